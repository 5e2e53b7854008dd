//! One disk of a pool, as the engine sees it, and its figures.

use evenkeel_sched::{GroupId, Nanos, NodeId, Tag};

use crate::claims::Claims;
use crate::classify::FlushHabit;
use crate::histogram::Histogram;
use crate::request::Geometry;

/// Names a disk within its engine; reused after removal.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct DiskId(pub u32);

#[derive(Debug)]
pub(crate) struct Disk {
    pub geometry: Geometry,
    pub vm: GroupId,
    /// Its place in the tree of limits, below its VM's.
    pub node: NodeId,
    /// First sector on the pool's address space.
    pub base: u64,
    pub write_through: bool,
    pub habit: FlushHabit,
    pub claims: Claims,
    /// How many short requests came while no other was outstanding, in a row or nearly.
    pub lone: u8,
    pub flush_in_flight: Option<Tag>,
    /// Flushes that wait for the one in flight: they become one.
    pub flushes_waiting: Vec<Tag>,
    /// Writes that found the file system full, oldest first.
    pub stalled: Vec<Tag>,
    pub retry_at: Option<Nanos>,
    pub outstanding: u32,
    pub in_flight: u32,
    /// Answers that wait for others of the same program, and until when.
    pub kept: Vec<Tag>,
    pub kept_until: Nanos,
    pub figures: Figures,
}

impl Disk {
    pub(crate) fn new(vm: GroupId, node: NodeId, base: u64, geometry: Geometry) -> Self {
        Self {
            geometry,
            vm,
            node,
            base,
            write_through: false,
            habit: FlushHabit::default(),
            claims: Claims::default(),
            lone: 0,
            flush_in_flight: None,
            flushes_waiting: Vec::new(),
            stalled: Vec::new(),
            retry_at: None,
            outstanding: 0,
            in_flight: 0,
            kept: Vec::new(),
            kept_until: Nanos::ZERO,
            figures: Figures::default(),
        }
    }

    /// Returns the sector behind the disk on the pool's address space.
    pub(crate) const fn end(&self) -> u64 {
        self.base + self.geometry.sectors
    }
}

#[derive(Debug, Default)]
pub(crate) struct Figures {
    pub reads: u64,
    pub writes: u64,
    pub discards: u64,
    pub flushes: u64,
    pub read_sectors: u64,
    pub written_sectors: u64,
    pub merged: u64,
    pub errors: u64,
    pub stalls: u64,
    pub queue_time: Histogram,
    pub service_time: Histogram,
}

/// Durations of one kind: the mean, and what 50, 99 and 99.9 % of requests stay within.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Durations {
    /// Arithmetic mean.
    pub mean: Nanos,
    /// Median.
    pub p50: Nanos,
    /// 99th percentile.
    pub p99: Nanos,
    /// 99.9th percentile.
    pub p999: Nanos,
    /// The longest.
    pub longest: Nanos,
    /// All together.
    pub total: Nanos,
}

impl From<&Histogram> for Durations {
    fn from(histogram: &Histogram) -> Self {
        Self {
            mean: histogram.mean(),
            p50: histogram.per_mille(500),
            p99: histogram.per_mille(990),
            p999: histogram.per_mille(999),
            longest: histogram.longest(),
            total: histogram.total(),
        }
    }
}

/// Figures of one disk since it was added. Counters count requests of the guest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DiskReport {
    /// Reads finished.
    pub reads: u64,
    /// Writes and write-zeroes finished.
    pub writes: u64,
    /// Discards finished.
    pub discards: u64,
    /// Flushes finished.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests that went to the device as a part of another.
    pub merged: u64,
    /// Requests answered with an error of the device.
    pub errors: u64,
    /// Writes that found the file system full and were kept.
    pub stalls: u64,
    /// Requests taken from the guest and not answered.
    pub outstanding: u32,
    /// Commands at the device.
    pub in_flight: u32,
    /// Writes that wait for room on the file system now.
    pub stalled: u32,
    /// From arrival to dispatch.
    pub queue_time: Durations,
    /// From dispatch to completion.
    pub service_time: Durations,
    /// Whether the VM's weight is raised now.
    pub raised: bool,
    /// Sectors dispatched for the VM, all its disks together.
    pub vm_service_sectors: u64,
}
