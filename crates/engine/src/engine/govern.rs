//! What the governor sees, and what it says.

use evenkeel_sched::{Kind, Nanos};

use super::Engine;
use crate::governor::{CROWD, Governor, GovernorReport};
use crate::slots::{DeviceOp, Precedence, Slot};

impl Engine {
    /// Says whether a governor finds out how much of its depth the device needs for full
    /// throughput, and gives it no more, and less while somebody waits for each answer. It does not
    /// unless told otherwise.
    pub fn govern(&mut self, governs: bool) {
        self.governor.turn(governs, self.favours());
        self.scheduler.set_bounded(governs);
        self.scheduler.set_depth(self.scheduled_depth());
    }

    /// Says how many commands usually are enough for the device: what a load may have there that no
    /// governor has looked into yet, and what the elevator shares out. All of the depth unless told
    /// otherwise.
    pub fn set_usual_depth(&mut self, depth: u32) {
        self.governor.set_usual(depth.max(1));
        self.scheduler.set_depth(self.scheduled_depth());
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

    /// Returns what the elevator shares out among those who wait.
    pub(super) fn scheduled_depth(&self) -> u32 {
        if self.governor.is_on() { self.governor.usual() } else { self.depth }
    }

    /// Lets the governor know that there is another elevator.
    pub(super) fn govern_anew(&mut self) {
        self.govern(self.governor.is_on());
    }
}

/// Lets the governor know of a command that goes to the device, of a disk with so many requests
/// `outstanding`.
#[inline]
pub(super) fn govern_sent(
    governor: &mut Governor,
    now: Nanos,
    slot: &Slot,
    precedence: Precedence,
    outstanding: u32,
) {
    if let Some(writes) = writes(slot.op) {
        governor.sent(now, writes, slot.whole_sectors);
        // Whatever comes in crowds waits for nothing in particular, raised or not.
        if precedence >= Precedence::Interactive && outstanding < CROWD {
            governor.favour(now);
        }
    }
}

/// Lets the governor know of a command that has come back; `waits` says whether a request waits for
/// the device.
#[inline]
pub(super) fn govern_completed(
    governor: &mut Governor,
    now: Nanos,
    slot: &Slot,
    waits: impl FnOnce() -> bool,
) {
    if let Some(writes) = writes(slot.op) {
        governor.completed(now, writes, slot.whole_sectors, waits);
    }
}

/// Returns whether somebody who waits for each answer would ask for this.
#[inline]
pub(super) const fn is_short(sync: bool, nr_sectors: u32) -> bool {
    sync && nr_sectors <= SHORT_SECTORS
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
