//! Answers that are given together.
//!
//! A program that starts may be short of request slots in its guest where others of its VM read as
//! well: the guest's scheduler counts how many each process has, and BFQ in Linux, since 5.17, lets one
//! that has its share or more have only some of them, which the guest's readers hold. Then the
//! program's next request waits, before any scheduler sees it, until a slot comes free as it looks for
//! one: that was seen to take up to a hundred answers to readers, each of which takes the slot again.
//! So
//!
//! * what the program itself is first answered waits for the rest of what it has asked for, as long as
//!   a way of the head takes, and it goes on with nothing to its account;
//! * while it pauses with nothing in hand, those who read files in order in its VM are answered
//!   together, when all that is open is there: many slots come free at once.
//!
//! Whether they read now tells nothing, as the guest may be holding them up for the program.

use evenkeel_sched::{Beside, Nanos, Scheduler as _, Tag, Urgency};

use super::{Engine, KNOWN_DISK, saturated};
use crate::disk::{Disk, DiskId};
use crate::slots::{DeviceOp, Place};

/// For how long an answer to what starts waits for the others at most: two turns of a slow disk, and
/// the ways there.
const LONGEST: Nanos = Nanos::from_millis(30);
/// For how long those of others wait in a pause: a few requests of each of a few readers.
const LONGEST_IN_PAUSE: Nanos = Nanos::from_millis(150);

impl Engine {
    /// Returns what starts in its VM beside this request, at the device, if its answer may matter to
    /// that.
    #[inline]
    pub(super) fn beside(&self, now: Nanos, tag: Tag) -> Beside {
        let slot = self.slots.get(tag);
        let counts = self.has_streams
            && slot.op == DeviceOp::Read
            && slot.place == Place::Scheduled
            && self.blocks.is_indifferent()
            && self.granted_urgency(now, slot) == Urgency::None;
        if counts { self.scheduler.beside(now, tag) } else { Beside::Nothing }
    }

    /// Keeps the answers from the one at `first` on until those are there that belong to them, or gives
    /// out what has waited for these.
    pub(super) fn keep_together(&mut self, now: Nanos, id: DiskId, first: usize, beside: Beside) {
        let disk = self.disks[id.0 as usize].as_mut().expect(KNOWN_DISK);
        let longest = if beside == Beside::Pause { LONGEST_IN_PAUSE } else { LONGEST };
        // What starts does not wait for as long as others do that are kept.
        let until = now + longest;
        disk.kept_until = if disk.kept.is_empty() { until } else { disk.kept_until.min(until) };
        self.kept += saturated(self.retired.len() - first);
        disk.kept.extend(self.retired.drain(first..));
        let waits = match beside {
            Beside::Nothing => false,
            Beside::Start(others) => others > 0,
            Beside::Pause => disk.outstanding > saturated(disk.kept.len()),
        };
        if !waits {
            let vm = disk.vm;
            self.give_out_if(|disk| disk.vm == vm);
        }
    }

    /// Gives out answers that have waited for long enough.
    #[inline]
    pub(super) fn give_out(&mut self, now: Nanos) {
        if self.kept > 0 {
            self.give_out_due(now);
        }
    }

    #[cold]
    fn give_out_due(&mut self, now: Nanos) {
        self.give_out_if(|disk| now >= disk.kept_until);
        if self.blocks.is_indifferent() {
            self.show_answers();
        }
    }

    fn give_out_if(&mut self, is_meant: impl Fn(&Disk) -> bool) {
        for disk in self.disks.iter_mut().flatten() {
            if !disk.kept.is_empty() && is_meant(disk) {
                self.kept -= saturated(disk.kept.len());
                self.retired.extend(disk.kept.drain(..));
            }
        }
    }

    /// Returns when the first of them has.
    pub(super) fn next_given_out(&self) -> Option<Nanos> {
        let kept = self.disks.iter().flatten().filter(|disk| !disk.kept.is_empty());
        if self.kept > 0 { kept.map(|disk| disk.kept_until).min() } else { None }
    }
}
