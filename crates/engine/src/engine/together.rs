//! Answers that a program gets together.
//!
//! A program that starts asks for a few things at once: the block that it needs, and those that are
//! likely to follow. Where others of its VM wait as well, the guest may be short of request slots, and
//! its scheduler counts how many each process has: BFQ in Linux, since 5.17, lets one that has its
//! share or more have only some of them, which the guest's readers hold, and then the program's next
//! request waits, before any scheduler sees it, until some tens of theirs have been answered. So
//! what it is first answered waits for the rest of what it has asked for, as long as a way of the head
//! takes, and it goes on with nothing to its account. That is so in the first second of a start:
//! for longer it would wait for other programs that start in its VM as well.

use evenkeel_sched::{Nanos, Scheduler as _, Tag, Urgency};

use super::{Engine, KNOWN_DISK, saturated};
use crate::disk::{Disk, DiskId};
use crate::slots::{DeviceOp, Place};

/// For how long an answer waits for the others at most: two turns of a slow disk, and the ways there.
const LONGEST: Nanos = Nanos::from_millis(30);

impl Engine {
    /// Returns how many requests of what starts in its VM go on when this one, at the device, is over,
    /// if that may matter to it.
    #[inline]
    pub(super) fn company(&self, now: Nanos, tag: Tag) -> Option<u32> {
        let slot = self.slots.get(tag);
        let counts = self.has_streams
            && slot.op == DeviceOp::Read
            && slot.place == Place::Scheduled
            && self.blocks.is_indifferent()
            && self.granted_urgency(now, slot) == Urgency::None;
        if counts { self.scheduler.beside(now, tag) } else { None }
    }

    /// Keeps the answers from the one at `first` on until their `company` is there, or gives out those
    /// that have waited for these.
    pub(super) fn keep_together(&mut self, now: Nanos, id: DiskId, first: usize, company: u32) {
        let disk = self.disks[id.0 as usize].as_mut().expect(KNOWN_DISK);
        if disk.kept.is_empty() {
            disk.kept_until = now + LONGEST;
        }
        self.kept += saturated(self.retired.len() - first);
        disk.kept.extend(self.retired.drain(first..));
        let has_others = disk.outstanding > saturated(disk.kept.len()) + company;
        if company == 0 || !has_others {
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
