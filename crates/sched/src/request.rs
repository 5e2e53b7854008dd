//! What a scheduler knows of a request.

use crate::scheduler::QueueId;

/// Names a request between [`insert`](crate::Scheduler::insert) and
/// [`complete`](crate::Scheduler::complete).
///
/// A dense index that the caller chooses: small numbers, reused after completion. Schedulers keep
/// one record per tag in a flat array, so the largest tag in use fixes their memory.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tag(pub u32);

/// What the device shall do. Flushes never enter a scheduler.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Op {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Forget the contents of sectors.
    Discard,
    /// Make sectors read as zero.
    WriteZeroes,
}

impl Op {
    /// Returns whether the operation changes the disk.
    #[must_use]
    pub const fn is_write(self) -> bool {
        !matches!(self, Self::Read)
    }

    /// Returns whether two adjacent requests of this kind may go to the device as one.
    #[must_use]
    pub const fn is_mergeable(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }
}

/// I/O priority class. Inside one group a better class is served strictly first (the idle class
/// keeps a thin share).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Class {
    /// Real time: before everything else of the same group.
    RealTime,
    /// Best effort: the default.
    BestEffort,
    /// Idle: when nothing else of the same group wants the device.
    Idle,
}

/// Class and level of a queue. Level 0 is the best, 7 the worst, 4 the default.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Priority {
    /// The class.
    pub class: Class,
    /// The level, 0 to 7; larger values count as 7.
    pub level: u8,
}

impl Default for Priority {
    fn default() -> Self {
        Self { class: Class::BestEffort, level: 4 }
    }
}

/// One request as the scheduler sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// Its name, unique among all requests that are not completed.
    pub tag: Tag,
    /// The queue that it belongs to.
    pub queue: QueueId,
    /// What to do.
    pub op: Op,
    /// First sector (512 bytes), on the pool's linear address space: disks lie behind each other
    /// with gaps, so requests of different disks are never adjacent.
    pub pos: u64,
    /// Length in sectors, at least 1.
    pub nr_sectors: u32,
    /// Number of memory segments, which bounds merging.
    pub segments: u16,
    /// Whether somebody waits for it: reads, and writes that a flush soon waits for.
    pub sync: bool,
}

impl Request {
    /// Returns the sector behind the last one.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.pos + self.nr_sectors as u64
    }
}
