//! How requests leave: in which order, and how many at a time.

use evenkeel_sched::{Class, Nanos, Next, Scheduler, Tag, Urgency};

use super::govern::govern_sent;
use super::{Engine, KNOWN_DISK, saturated};
use crate::blame::Aside;
use crate::blocks::BlockFigures;
use crate::slots::{Command, DeviceOp, Place, Precedence, Slot};

impl Engine {
    /// Returns the next command for the device, in the order in which the device should see them.
    ///
    /// The caller asks until the answer is `None`, and owes one [`complete`](Self::complete) for
    /// each command, in any order. Takes O(log n) time.
    #[inline]
    pub fn dispatch(&mut self, now: Nanos) -> Option<Command> {
        self.give_out(now);
        if self.is_device_full(now) {
            self.blocks.close();
            return None;
        }
        self.dispatch_next(now)
    }

    fn dispatch_next(&mut self, now: Nanos) -> Option<Command> {
        if self.stalled > 0 || self.is_controlled || self.helps.is_due(now) {
            self.look_around(now);
        }
        let Some(tag) = self.next_for_device(now) else {
            self.blame.gather(now, self.blocks.is_gathering());
            if self.blocks.close() {
                self.show_answers();
            }
            return None;
        };
        if let Some(next) = self.scheduler.likely_next() {
            self.slots.fetch(next);
        }
        Some(self.send(now, tag))
    }

    /// Returns whether it is known that [`dispatch`](Self::dispatch) has nothing to say before a
    /// command completes, and [`next_deadline`](Self::next_deadline) nothing new, whatever has been
    /// submitted since they were asked: the device has enough to do. Then nobody needs to ask. False
    /// says nothing.
    #[must_use]
    #[inline]
    pub fn is_device_full(&mut self, now: Nanos) -> bool {
        let is_simple = self.blocks.is_indifferent()
            && self.stalled == 0
            && !self.is_controlled
            && !self.governor.is_on()
            && !self.helps.is_any_on()
            && self.helps.next_deadline().is_none();
        let is_occupied = self.blocks.is_occupied();
        is_simple && (is_occupied || (self.ready.is_empty() && self.scheduler.is_device_full(now)))
    }

    /// Returns when [`dispatch`](Self::dispatch) must be asked again even if nothing happens.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let retry = if self.stalled > 0 { self.next_retry() } else { None };
        let mut first = earlier(retry, self.helps.next_deadline());
        first = earlier(first, self.next_given_out());
        // Whatever could be decided then, a completion comes first.
        if !self.blocks.has_room() || !self.governor.has_room() {
            return first;
        }
        if self.is_controlled {
            first = earlier(first, self.gate.next_release());
        }
        let next = self.blocks.next_deadline(|| {
            let due = if self.is_controlled { self.floors.next_due() } else { None };
            earlier(due, self.scheduler.next_deadline())
        });
        earlier(first, next)
    }

    /// Returns how commands were handed to the device so far.
    #[must_use]
    pub const fn block_figures(&self) -> BlockFigures {
        self.blocks.figures()
    }

    /// Returns how many commands went to the device with each [`Precedence`], from the least on.
    #[must_use]
    pub const fn precedence_figures(&self) -> [u64; Precedence::COUNT] {
        self.sent_with
    }
}

/// Returns the earlier of two instants, as far as there are any.
#[inline]
fn earlier(one: Option<Nanos>, other: Option<Nanos>) -> Option<Nanos> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The steps behind the calls above.
impl Engine {
    /// Returns when writes that found the file system full are tried again.
    #[cold]
    fn next_retry(&self) -> Option<Nanos> {
        self.disks.iter().flatten().filter_map(|disk| disk.retry_at).min()
    }

    /// Does what may be due, and hardly ever is.
    #[cold]
    fn look_around(&mut self, now: Nanos) {
        if self.stalled > 0 {
            self.revive(now);
        }
        if self.helps.is_due(now) {
            self.review_help(now);
        }
        if self.is_controlled {
            self.open_gate(now);
        }
    }

    /// Returns the request that goes next, with all its parts.
    fn choose(&mut self, now: Nanos) -> Option<Tag> {
        if self.is_controlled {
            return self.choose_controlled(now);
        }
        match self.scheduler.dispatch(now) {
            Next::Request(tag) => Some(tag),
            Next::NotBefore(_) | Next::Empty => None,
        }
    }

    /// Takes what goes to the device next from those who may.
    fn next_for_device(&mut self, now: Nanos) -> Option<Tag> {
        loop {
            let (scheduler, ready) = (&self.scheduler, &self.ready);
            let waiting = || scheduler.queued().saturating_add(saturated(ready.len()));
            if !self.blocks.admits(now, waiting) {
                return None;
            }
            if !self.is_others_turn()
                && let Some(tag) = self.ready.pop_front()
            {
                return Some(tag);
            }
            let scheduler = &self.scheduler;
            let has_room = self.governor.admits(|| scheduler.queued() > 0);
            let chosen = if has_room { self.choose(now) } else { None };
            let Some(tag) = chosen else {
                return self.ready.pop_front();
            };
            self.flushed_last = false;
            if self.claim_whole(tag) {
                return Some(tag);
            }
            self.take_from_scheduler(now, tag);
        }
    }

    /// Lets [`retire`](Self::retire) give out all answers that there are.
    pub(super) fn show_answers(&mut self) {
        self.shown = self.retired.len();
    }

    /// Claims the extent of a request with all its parts; false if somebody is in the way.
    #[inline]
    fn claim_whole(&mut self, tag: Tag) -> bool {
        let whole =
            if self.scheduler.is_single(tag) { None } else { Some(self.measure_whole(tag)) };
        let slot = self.slots.get_mut(tag);
        let (sector, nr_sectors, parts) = whole.unwrap_or((slot.sector, slot.piece_sectors, 1));
        slot.whole_sector = sector + u64::from(slot.done_sectors);
        slot.whole_sectors = nr_sectors;
        slot.parts = parts;
        if slot.is_split() {
            return self.claim_for_pieces(tag);
        }
        let (disk, changes) = (slot.disk, slot.op != DeviceOp::Read);
        #[cfg(feature = "planted")]
        if self.planted == Some(evenkeel_sched::Planted::LetsOverlap) {
            return true;
        }
        self.disk_mut(disk).claims.claim_if_free(tag, sector, nr_sectors, changes)
    }

    /// Returns the first sector of a request, its length and the number of its parts.
    fn measure_whole(&self, tag: Tag) -> (u64, u32, u32) {
        let first = self.scheduler.first_part(tag);
        let sector = self.slots.get(first).sector;
        let (mut nr_sectors, mut parts) = (0, 0);
        let mut part = Some(first);
        while let Some(tag) = part {
            parts += 1;
            nr_sectors += self.slots.get(tag).piece_sectors;
            part = self.scheduler.next_part(tag);
        }
        (sector, nr_sectors, parts)
    }

    /// Takes a request that cannot go now out of the scheduler's hands. Its parts wait here, each
    /// on its own, for those who are in their way.
    pub(super) fn take_from_scheduler(&mut self, now: Nanos, tag: Tag) {
        self.take_apart(now, tag);
        let parts = core::mem::take(&mut self.scratch);
        for &tag in &parts {
            let slot = self.slots.get_mut(tag);
            slot.place = Place::Alone;
            slot.parts = 1;
            slot.whole_sector = slot.sector;
            slot.whole_sectors = slot.piece_sectors;
            let (id, sector, nr_sectors) = (slot.disk, slot.sector, slot.nr_sectors);
            let changes = slot.op != DeviceOp::Read;
            let disk = self.disk_mut(id);
            let vm = disk.vm;
            if disk.claims.claim(tag, sector, nr_sectors, changes) {
                self.ready.push_back(tag);
            } else {
                self.blame.step_aside(now, vm, Aside::Own, 1);
            }
        }
        self.scratch = parts;
    }

    /// Returns whether a flush would follow a flush, before the scheduler was asked in between.
    fn is_others_turn(&self) -> bool {
        let is_flush = |&tag| self.slots.get(tag).op == DeviceOp::Flush;
        self.flushed_last && self.ready.front().is_some_and(is_flush)
    }

    // Not inside `dispatch`, which says much more often that nobody goes.
    #[inline(never)]
    fn send(&mut self, now: Nanos, tag: Tag) -> Command {
        self.in_flight += 1;
        self.blocks.sent();
        let precedence = self.precedence(now, tag, self.slots.get(tag));
        self.sent_with[precedence as usize] += 1;
        let slot = self.slots.get_mut(tag);
        if slot.done_sectors == 0 {
            slot.dispatched = now;
        }
        slot.is_sent = true;
        if slot.is_split() {
            (slot.moved_before, slot.piece_sent) = (self.pieces.moved(), now);
        }
        self.flushed_last |= slot.op == DeviceOp::Flush;
        let disk = self.disks[slot.disk.0 as usize].as_mut().expect(KNOWN_DISK);
        govern_sent(&mut self.governor, now, slot, precedence, disk.outstanding);
        disk.in_flight += 1;
        self.blame.send(now, disk.vm, slot.parts);
        Command {
            tag,
            disk: slot.disk,
            op: slot.op,
            sector: slot.whole_sector,
            pos: disk.base + slot.whole_sector,
            nr_sectors: slot.whole_sectors,
            skip_sectors: slot.done_sectors,
            durable: disk.write_through
                && matches!(slot.op, DeviceOp::Write | DeviceOp::WriteZeroes),
            unmap: slot.unmap,
            precedence,
        }
    }

    /// Says how much a command matters to others than the scheduler.
    ///
    /// A guest's I/O priority alone never counts: it orders the requests of its VM only. What is
    /// granted help, and what BFQ raises, does.
    fn precedence(&self, now: Nanos, tag: Tag, slot: &Slot) -> Precedence {
        if !matches!(slot.op, DeviceOp::Read | DeviceOp::Write) {
            return Precedence::Ordinary;
        }
        if !slot.sync || slot.priority.class == Class::Idle {
            return Precedence::Background;
        }
        let found = match slot.place {
            Place::Scheduled => self.scheduler.urgency(tag),
            _ => Urgency::None,
        };
        // Elevators that know no urgency still send what is helped with precedence.
        match found.max(self.granted_urgency(now, slot)) {
            Urgency::None => Precedence::Ordinary,
            Urgency::Interactive => Precedence::Interactive,
            Urgency::SoftRealTime => Precedence::SoftRealTime,
        }
    }
}
