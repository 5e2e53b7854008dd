//! The contract of a modelled device.

use evenkeel_engine::{Command, DeviceOp};
use evenkeel_sched::{Nanos, Op, Tag};

/// What a device is asked to do.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum IoOp {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Forget the contents of sectors.
    Discard,
    /// Make sectors read as zero, without moving data.
    WriteZeroes,
    /// Put everything that was written and completed on stable media.
    Flush,
}

impl IoOp {
    /// Returns the operation by which elevators know it; none for a flush, which has no place on
    /// the device and which no elevator sees.
    #[must_use]
    pub const fn op(self) -> Option<Op> {
        match self {
            Self::Read => Some(Op::Read),
            Self::Write => Some(Op::Write),
            Self::Discard => Some(Op::Discard),
            Self::WriteZeroes => Some(Op::WriteZeroes),
            Self::Flush => None,
        }
    }
}

impl From<DeviceOp> for IoOp {
    fn from(op: DeviceOp) -> Self {
        match op {
            DeviceOp::Read => Self::Read,
            DeviceOp::Write => Self::Write,
            DeviceOp::Discard => Self::Discard,
            DeviceOp::WriteZeroes => Self::WriteZeroes,
            DeviceOp::Flush => Self::Flush,
        }
    }
}

/// One command as a device sees it: no data, only where and how much.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Io {
    /// What to do.
    pub op: IoOp,
    /// First sector (512 bytes) on the pool's linear address space. A model smaller than that
    /// space wraps around for its geometry, never for the contents of its caches.
    pub pos: u64,
    /// Length in sectors; 0 only for [`IoOp::Flush`].
    pub nr_sectors: u32,
    /// Whether a write must be on stable media when it completes.
    pub durable: bool,
}

impl From<&Command> for Io {
    fn from(command: &Command) -> Self {
        let Command { op, pos, nr_sectors, durable, .. } = *command;
        Self { op: op.into(), pos, nr_sectors, durable }
    }
}

/// A device in virtual time: says when each command would have finished.
///
/// `now` never lies before the `now` of an earlier call. Every tag given to
/// [`submit`](Self::submit) comes out of [`complete`](Self::complete) exactly once, possibly in
/// another order. A model is a function of its parameters and of the calls: no clock, no I/O, no
/// randomness but hashes of positions; once warm it allocates nothing.
pub trait DeviceModel {
    /// Returns how many commands the device works on at once. More may be submitted; they wait in
    /// the order of their arrival until a slot is free.
    fn depth(&self) -> u32;

    /// Returns whether positions cost time: heads that move over platters that turn.
    fn rotational(&self) -> bool;

    /// Hands a command to the device.
    fn submit(&mut self, now: Nanos, tag: Tag, io: &Io);

    /// Returns the instant at which [`complete`](Self::complete) has something to return, unless
    /// an earlier [`submit`](Self::submit) brings it forward. `None` if the device has nothing.
    fn next_event(&self) -> Option<Nanos>;

    /// Returns a command that has finished by `now`, earliest first; call until `None`.
    fn complete(&mut self, now: Nanos) -> Option<Tag>;

    /// Returns the name of the model, as given to [`model`](crate::model).
    fn name(&self) -> &str;

    /// Returns the capacity in sectors.
    fn sectors(&self) -> Option<u64>;
}
