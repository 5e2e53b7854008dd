//! The table of requests, indexed by tag.

use evenkeel_sched::{Nanos, Op, Priority, Tag};

use crate::disk::DiskId;
use crate::request::Status;
use crate::streams::Seat;

/// Opaque value by which the guest edge recognises its request when it comes back.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Token(pub u64);

/// A positive `errno` of the backend.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Errno(pub i32);

impl Errno {
    /// No space left on the file system.
    pub const ENOSPC: Self = Self(28);
    /// The operation is not supported.
    pub const EOPNOTSUPP: Self = Self(95);
    /// The disk quota is used up.
    pub const EDQUOT: Self = Self(122);

    /// Returns whether the write succeeds once somebody makes room.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self, Self::ENOSPC | Self::EDQUOT)
    }
}

/// What the device shall do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum DeviceOp {
    /// Read sectors into the parts' segments.
    Read,
    /// Write sectors from the parts' segments.
    Write,
    /// Forget the contents of sectors.
    Discard,
    /// Make sectors read as zero.
    WriteZeroes,
    /// Make everything completed so far durable.
    Flush,
}

impl From<Op> for DeviceOp {
    fn from(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
            Op::Discard => Self::Discard,
            Op::WriteZeroes => Self::WriteZeroes,
        }
    }
}

impl DeviceOp {
    /// Returns what the scheduler is told.
    pub(crate) fn scheduled(self) -> Op {
        match self {
            Self::Read => Op::Read,
            Self::Write => Op::Write,
            Self::Discard => Op::Discard,
            Self::WriteZeroes => Op::WriteZeroes,
            Self::Flush => unreachable!("flushes pass the scheduler"),
        }
    }
}

/// How much a command matters beside what others on the same host want from the same device.
///
/// Says what the engine knows, not what the device is told: that is the operator's decision.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Precedence {
    /// Nobody waits for it: write-back, and what a guest has put into the idle class.
    Background,
    /// Anything else.
    #[default]
    Ordinary,
    /// Its queue is raised as interactive: an application starts, or somebody works with one.
    Interactive,
    /// Its queue is raised as soft real-time: a player or recorder must keep its pace.
    SoftRealTime,
}

impl Precedence {
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// An order for the device. The caller owes one `complete` for each.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Command {
    /// Names it at the device. Its data is the segments of its parts, in the order of
    /// [`Engine::parts`](crate::Engine::parts).
    pub tag: Tag,
    /// The disk.
    pub disk: DiskId,
    /// What to do.
    pub op: DeviceOp,
    /// First sector of the disk; 0 for a flush.
    pub sector: u64,
    /// First sector on the pool's address space, for a modelled device.
    pub pos: u64,
    /// Length in sectors; 0 for a flush.
    pub nr_sectors: u32,
    /// Sectors of the request's data that come before those of the command: 0 unless the request
    /// is too long for one command and goes piece by piece.
    pub skip_sectors: u32,
    /// Whether the data must be on stable media when it completes.
    pub durable: bool,
    /// Write-zeroes only: the sectors may be deallocated.
    pub unmap: bool,
    /// How much it matters; [`Precedence::Ordinary`] unless it reads or writes.
    pub precedence: Precedence,
}

/// An answer for a guest. Given out exactly once for each submitted request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Retired {
    /// What the guest edge gave with the request.
    pub token: Token,
    /// The tag, which is free again from now on.
    pub tag: Tag,
    /// The disk.
    pub disk: DiskId,
    /// What the guest is told.
    pub status: Status,
    /// When it came.
    pub arrived: Nanos,
    /// When it went to the device for the last time, alone or as a part of another; of a request in
    /// pieces, when the first did. If that never happened, when it came.
    pub dispatched: Nanos,
    /// When the device had finished it.
    pub completed: Nanos,
}

/// Where a request is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// The tag is free.
    Free,
    /// With the scheduler, alone or as a part, up to the completion of the whole.
    Scheduled,
    /// At the gate: it would exceed a limit, and the scheduler has not heard of it.
    Gated,
    /// At the device, alone or as a part, by the decision of an earlier elevator.
    Carried,
    /// A flush; never with the scheduler.
    Flush,
    /// Sent once, failed, and on its own since: the scheduler has forgotten it.
    Alone,
    /// Finished, waits for `retire`.
    Retired,
}

/// Two cache lines; what it takes to send a request lies in the first.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Slot {
    pub token: Token,
    pub arrived: Nanos,
    /// Of a part, from its end on: when the whole was dispatched.
    pub dispatched: Nanos,
    pub sector: u64,
    pub nr_sectors: u32,
    /// Of a request in pieces: how much of it is done, and how long the piece is that waits or is
    /// at the device. Else nothing, and all of it.
    pub done_sectors: u32,
    pub piece_sectors: u32,
    pub disk: DiskId,
    /// Of what goes to the device as one: of how many requests it consists.
    pub parts: u32,
    pub segments: u16,
    pub priority: Priority,
    pub op: DeviceOp,
    pub place: Place,
    /// Whether a command that it leads is at the device.
    pub is_sent: bool,
    /// Whether somebody waits for it.
    pub sync: bool,
    pub unmap: bool,
    pub status: Status,
    /// Of a read, where it counts among those of its VM.
    pub seat: Option<Seat>,
    /// Of a dispatched request with parts: the extent of the whole.
    pub whole_sector: u64,
    pub whole_sectors: u32,
    /// Next part of a coalesced flush or of a carried command, or next free tag.
    pub next: Option<Tag>,
    pub completed: Nanos,
    /// Of a piece at the device: when it was sent, and what the device had moved until then.
    pub piece_sent: Nanos,
    pub moved_before: u64,
    /// Counts arrivals.
    pub order: u64,
}

const _: () = assert!(core::mem::offset_of!(Slot, whole_sector) == 64, "the first line ends here");
const _: () = assert!(size_of::<Slot>() == 128, "a slot is two cache lines");

/// A command at the device whose elevator is gone; its parts are linked in their slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carried {
    pub whole: Tag,
    /// The part with the lowest sector.
    pub first: Tag,
}

impl Slot {
    /// Makes a request without sectors, for which somebody waits.
    #[inline]
    pub(crate) fn new(now: Nanos, token: Token, disk: DiskId, op: DeviceOp) -> Self {
        Self {
            token,
            arrived: now,
            dispatched: now,
            completed: now,
            sector: 0,
            whole_sector: 0,
            whole_sectors: 0,
            nr_sectors: 0,
            done_sectors: 0,
            piece_sectors: 0,
            piece_sent: now,
            moved_before: 0,
            disk,
            op,
            place: if op == DeviceOp::Flush { Place::Flush } else { Place::Scheduled },
            is_sent: false,
            unmap: false,
            status: Status::Ok,
            next: None,
            parts: 1,
            order: 0,
            segments: 0,
            priority: Priority::default(),
            sync: true,
            seat: None,
        }
    }

    /// Returns what the request costs, in sectors.
    #[inline]
    pub(crate) fn cost_sectors(&self) -> u32 {
        match self.op {
            DeviceOp::Discard | DeviceOp::WriteZeroes => self.nr_sectors.min(RANGE_COST_SECTORS),
            DeviceOp::Read | DeviceOp::Write | DeviceOp::Flush => self.nr_sectors,
        }
    }

    /// Returns what the piece that goes next costs, in sectors; of most requests that is all.
    #[inline]
    pub(crate) fn piece_cost_sectors(&self) -> u32 {
        self.cost_sectors().min(self.piece_sectors)
    }

    /// Returns whether the request is too long for one command.
    pub(crate) const fn is_split(&self) -> bool {
        self.piece_sectors != self.nr_sectors
    }
}

/// What a discard or write-zeroes is charged at most, in sectors: it moves no data, so its length
/// says little about its cost. 64 KiB is about what a metadata operation takes on a flash device.
const RANGE_COST_SECTORS: u32 = 128;

/// All requests that are not retired. Grows to the most ever outstanding, then allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Option<Tag>,
    used: u32,
    arrivals: u64,
}

impl Slots {
    /// Stores a request and names it; sets its `order`.
    // Inside its callers a request is written where it stays; else it is made on the stack and
    // copied, which takes longer than all that is known of it.
    #[inline(always)]
    pub(crate) fn take(&mut self, mut slot: Slot) -> Tag {
        self.used += 1;
        self.arrivals += 1;
        slot.order = self.arrivals;
        if let Some(tag) = self.free {
            let place = &mut self.slots[index(tag)];
            self.free = place.next;
            *place = slot;
            return tag;
        }
        self.grow(slot)
    }

    #[cold]
    fn grow(&mut self, slot: Slot) -> Tag {
        let tag = Tag(u32::try_from(self.slots.len()).expect("bounded by the rings' sizes"));
        self.slots.push(slot);
        tag
    }

    /// Frees a tag.
    #[inline]
    pub(crate) fn give_back(&mut self, tag: Tag) {
        let slot = &mut self.slots[index(tag)];
        slot.place = Place::Free;
        slot.next = self.free;
        self.free = Some(tag);
        self.used -= 1;
    }

    #[inline]
    pub(crate) fn get(&self, tag: Tag) -> &Slot {
        &self.slots[index(tag)]
    }

    /// Has the memory of a request fetched that is about to be needed. Requests leave in another
    /// order than they came in, so nothing else foresees which one it is; and by the time it goes it
    /// may have waited for thousands of others.
    #[inline]
    pub(crate) fn fetch(&self, tag: Tag) {
        core::hint::black_box(self.get(tag).piece_sectors);
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, tag: Tag) -> &mut Slot {
        &mut self.slots[index(tag)]
    }

    /// Returns every request of [`Place::Scheduled`], with its place in the order of arrival.
    pub(crate) fn scheduled(&self) -> impl Iterator<Item = (u64, Tag)> {
        let all = self.slots.iter().zip(0..);
        let scheduled = all.filter(|(slot, _)| slot.place == Place::Scheduled);
        scheduled.map(|(slot, index)| (slot.order, Tag(index)))
    }

    /// Returns the number of tags in use.
    pub(crate) const fn used(&self) -> u32 {
        self.used
    }
}

const fn index(tag: Tag) -> usize {
    tag.0 as usize
}

/// The requests that one command consists of, in ascending sector order.
#[derive(Debug)]
pub struct Parts<'a> {
    pub(crate) next: Option<Tag>,
    pub(crate) links: Links<'a>,
}

#[derive(Debug)]
pub(crate) enum Links<'a> {
    /// Merged by the scheduler.
    Scheduler(&'a evenkeel_sched::Elevator),
    /// Merged by an earlier elevator.
    Slots(&'a Slots),
    /// On its own.
    Single,
}

impl Iterator for Parts<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        let tag = self.next?;
        self.next = match self.links {
            Links::Scheduler(scheduler) => evenkeel_sched::Scheduler::next_part(scheduler, tag),
            Links::Slots(slots) => slots.get(tag).next,
            Links::Single => None,
        };
        Some(tag)
    }
}
