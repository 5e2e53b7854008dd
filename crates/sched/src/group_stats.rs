//! What a group requested and got: the figures that Linux keeps for a control group.

use core::ops::AddAssign;

use crate::Nanos;

/// Requests of one kind, from the beginning of the group on. A merged request counts once.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IoStats {
    /// Sectors (512 bytes) of all completed requests.
    pub sectors: u64,
    /// Requests completed.
    pub serviced: u64,
    /// Requests that were glued to others, and so are none of their own.
    pub merged: u64,
    /// From insertion to dispatch, all requests added up.
    pub wait_time: Nanos,
    /// From dispatch to completion, all requests added up.
    pub service_time: Nanos,
}

impl AddAssign for IoStats {
    fn add_assign(&mut self, other: Self) {
        self.sectors += other.sectors;
        self.serviced += other.serviced;
        self.merged += other.merged;
        self.wait_time += other.wait_time;
        self.service_time += other.service_time;
    }
}

/// The requests of some queues, sorted in two ways: by what they do, and by who waits for them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct IoReport {
    /// Reads.
    pub reads: IoStats,
    /// Writes.
    pub writes: IoStats,
    /// Discards, and writes of zeroes.
    pub discards: IoStats,
    /// Requests that somebody waits for, whatever they do.
    pub sync: IoStats,
    /// Write-back.
    pub write_back: IoStats,
    /// Requests that wait now.
    pub queued: u32,
}

impl AddAssign for IoReport {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.discards += other.discards;
        self.sync += other.sync;
        self.write_back += other.write_back;
        self.queued += other.queued;
    }
}

impl IoReport {
    /// Returns the sum over all kinds.
    #[must_use]
    pub fn total(&self) -> IoStats {
        let mut total = self.sync;
        total += self.write_back;
        total
    }
}

/// Statistics of one group.
///
/// Source: Linux documentation, "Block IO Controller", `blkio.bfq.*`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GroupStats {
    /// Of the queues in it.
    pub own: IoReport,
    /// Of the queues in it and in all groups below it, including those that are gone.
    pub recursive: IoReport,
}
