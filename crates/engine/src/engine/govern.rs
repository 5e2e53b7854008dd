//! What the governor sees, and what it says.

use evenkeel_sched::{Kind, Nanos, Scheduler as _};

use super::Engine;
use crate::disk::DiskId;
use crate::governor::{CROWD, GovernorReport};
use crate::slots::{DeviceOp, Precedence, Slot};

impl Engine {
    /// Says whether a governor finds out how much of its depth the device needs for full
    /// throughput, and gives it no more, and less while somebody waits for each answer. It does not
    /// unless told otherwise.
    pub fn govern(&mut self, governs: bool) {
        self.governor.turn(governs, self.favours());
    }

    /// Returns what the governor has decided; none without one.
    #[must_use]
    pub fn governor_report(&self) -> Option<GovernorReport> {
        self.governor.report()
    }
}

/// The steps behind the calls above, and of those of the engine that tell the governor.
impl Engine {
    /// Returns whether the elevator serves a queue of few requests before one of many, so that a
    /// request is better off there than behind others at the device.
    fn favours(&self) -> bool {
        matches!(self.scheduler.kind(), Kind::Bfq | Kind::Cfq)
    }

    /// Lets the governor know that there is another elevator.
    pub(super) fn govern_anew(&mut self) {
        self.governor.turn(self.governor.is_on(), self.favours());
    }

    #[inline]
    pub(super) fn note_arrival(
        &mut self,
        now: Nanos,
        disk: DiskId,
        others: u32,
        sync: bool,
        nr_sectors: u32,
    ) {
        let disk = self.disks[disk.0 as usize].as_mut().expect("the request's disk is there");
        let is_short = sync && nr_sectors <= SHORT_SECTORS;
        self.governor.arrived(now, others, is_short, &mut disk.lone);
    }

    #[inline]
    pub(super) fn govern_sent(&mut self, now: Nanos, slot: &Slot, precedence: Precedence) {
        if let Some(writes) = writes(slot.op) {
            self.governor.sent(now, writes, slot.whole_sectors);
            // Whatever comes in crowds waits for nothing in particular, raised or not.
            if precedence >= Precedence::Interactive && self.disk(slot.disk).outstanding < CROWD {
                self.governor.favour(now);
            }
        }
    }

    #[inline]
    pub(super) fn govern_completed(&mut self, now: Nanos, slot: &Slot) {
        if let Some(writes) = writes(slot.op) {
            let scheduler = &self.scheduler;
            let waits = || scheduler.queued() > 0;
            self.governor.completed(now, writes, slot.whole_sectors, waits);
        }
    }
}

/// Returns whether a request writes data; none if it moves none.
const fn writes(op: DeviceOp) -> Option<bool> {
    match op {
        DeviceOp::Read => Some(false),
        DeviceOp::Write => Some(true),
        DeviceOp::Discard | DeviceOp::WriteZeroes | DeviceOp::Flush => None,
    }
}

/// Somebody who waits for each answer asks for this much at most: 64 KiB.
const SHORT_SECTORS: u32 = 128;
