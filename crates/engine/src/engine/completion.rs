//! The way back: what becomes of a request that the device has done with.

use evenkeel_sched::{Nanos, Scheduler as _, Tag};

use super::{Engine, KNOWN_DISK, RETRY_INTERVAL};
use crate::blame::Aside;
use crate::request::Status;
use crate::slots::{DeviceOp, Errno, Place};

impl Engine {
    /// Lets whoever decided for a command forget it; its parts stand in `scratch` from then on.
    pub(super) fn take_apart(&mut self, now: Nanos, tag: Tag) {
        let mut parts = core::mem::take(&mut self.scratch);
        parts.clear();
        parts.extend(self.parts(tag));
        self.scratch = parts;
        self.let_go(now, tag);
    }

    /// Lets whoever decided for a command forget it.
    #[inline]
    fn let_go(&mut self, now: Nanos, tag: Tag) {
        match self.slots.get(tag).place {
            Place::Carried => self.drop_carried(tag),
            _ => self.scheduler.complete(now, tag),
        }
    }

    #[inline]
    pub(super) fn complete_whole(&mut self, now: Nanos, tag: Tag) {
        let slot = self.slots.get(tag);
        let (is_split, parts) = (slot.is_split(), slot.parts);
        if is_split {
            self.take_apart(now, tag);
            return self.complete_piece(now, tag);
        }
        self.release(now, tag);
        if parts == 1 {
            self.let_go(now, tag);
            return self.finish(now, tag, tag, Status::Ok);
        }
        self.take_apart(now, tag);
        let parts = core::mem::take(&mut self.scratch);
        for &part in &parts {
            self.finish(now, tag, part, Status::Ok);
        }
        self.scratch = parts;
    }

    pub(super) fn fail_whole(&mut self, now: Nanos, tag: Tag, errno: Errno) {
        let merged = self.parts(tag).nth(1).is_some();
        if merged {
            let slot = self.slots.get(tag);
            let (parts, vm) = (slot.parts, self.disk(slot.disk).vm);
            self.blame.wait(now, vm, parts);
            self.release(now, tag);
            self.take_from_scheduler(now, tag);
        } else {
            self.take_apart(now, tag);
            self.slots.get_mut(tag).place = Place::Alone;
            self.complete_single(now, tag, Err(errno));
        }
    }

    pub(super) fn complete_single(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        let slot = *self.slots.get(tag);
        let grows = matches!(slot.op, DeviceOp::Write | DeviceOp::WriteZeroes);
        let status = match outcome {
            Ok(()) if slot.is_split() => return self.complete_piece(now, tag),
            Ok(()) => Status::Ok,
            Err(errno) if errno.is_full() && grows => {
                // The claim stays: nobody overtakes a write that waits for room.
                let disk = self.disk_mut(slot.disk);
                disk.stalled.push(tag);
                disk.figures.stalls += 1;
                disk.retry_at.get_or_insert(now + RETRY_INTERVAL);
                self.stalled += 1;
                return;
            }
            Err(Errno::EOPNOTSUPP) => Status::Unsupported,
            Err(_) => Status::IoError,
        };
        self.release(now, tag);
        self.finish(now, tag, tag, status);
    }

    pub(super) fn complete_flush(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        let status = if outcome.is_ok() { Status::Ok } else { Status::IoError };
        let id = self.slots.get(tag).disk;
        let mut next = Some(tag);
        while let Some(part) = next {
            next = self.slots.get(part).next;
            self.finish(now, tag, part, status);
        }
        let disk = self.disks[id.0 as usize].as_mut().expect("a flush's disk is there");
        // Those who came meanwhile share the next flush; the last one carries them.
        let mut parts = 0;
        disk.flush_in_flight = disk.flushes_waiting.drain(..).fold(None, |earlier, tag| {
            parts += 1;
            let slot = self.slots.get_mut(tag);
            (slot.next, slot.parts) = (earlier, parts);
            Some(tag)
        });
        if parts > 0 {
            self.blame.step_back(now, disk.vm, Aside::Own, parts);
        }
        self.ready.extend(disk.flush_in_flight);
    }

    /// Notes the end of a request that went to the device as, or as a part of, `whole`.
    pub(super) fn finish(&mut self, now: Nanos, whole: Tag, tag: Tag, status: Status) {
        let dispatched = self.slots.get(whole).dispatched;
        let slot = self.slots.get_mut(tag);
        slot.place = Place::Retired;
        slot.status = status;
        slot.dispatched = dispatched;
        slot.completed = now;
        let disk = self.disks[slot.disk.0 as usize].as_mut().expect(KNOWN_DISK);
        if let Some(seat) = slot.seat {
            let (queues, pos) = (&mut self.groups.get_mut(disk.vm).queues, disk.base + slot.sector);
            queues.read_is_done(now, seat, slot.priority, pos);
        }
        let figures = &mut disk.figures;
        let sectors = u64::from(slot.nr_sectors);
        match slot.op {
            DeviceOp::Read => {
                figures.reads += 1;
                figures.read_sectors += sectors;
            }
            DeviceOp::Write | DeviceOp::WriteZeroes => {
                figures.writes += 1;
                figures.written_sectors += sectors;
            }
            DeviceOp::Discard => figures.discards += 1,
            DeviceOp::Flush => figures.flushes += 1,
        }
        figures.merged += u64::from(whole != tag && slot.op != DeviceOp::Flush);
        figures.errors += u64::from(status != Status::Ok);
        figures.queue_time.add(dispatched - slot.arrived);
        figures.service_time.add(now - dispatched);
        self.retired.push_back(tag);
    }
}
