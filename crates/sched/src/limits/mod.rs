//! Limits and reservations: who may enter an elevator, and who must leave it first.
//!
//! Picture the entrance and the exit of a department store. At the entrance stands the [`Gate`]:
//! every group has a bucket with a hole, what enters is poured into the buckets of its group and
//! of all groups above, and while one of them is over its brim nobody of that group enters. At the
//! exit stand the [`Floors`]: a customer who was promised to be served by a certain time and is
//! still inside is called to the counter first, past all queues.
//!
//! Both work with every elevator, because neither looks inside one. A request over its limit has
//! not entered the elevator yet; so limits win over everything, and a reservation never lets a
//! request past its limit. What neither is concerned with is decided by the elevator alone.
//!
//! Nodes form a tree of any depth: the pool, groups, VMs, disks. Requests arrive at its leaves.
//! All operations take O(log n) steps per level and allocate nothing once warm.
//!
//! Deliberately absent: the wish of an operator in words, and whether all reservations together
//! can be kept; `wire` knows both.
//!
//! Source: A. Gulati, A. Merchant, P. J. Varman, "mClock: Handling Throughput Variability for
//! Hypervisor IO Scheduling", OSDI 2010; QEMU documentation, "The QEMU throttling infrastructure";
//! P. Goyal, H. M. Vin, H. Cheng, "Start-time Fair Queueing", 1996.

mod bucket;
mod floor;
mod gate;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

pub use bucket::{Limits, Rate, Rates};
pub use floor::{Floors, Reservation};
pub use gate::{Gate, GateReport};

use crate::{Op, Tag};

/// Names a node of the tree of limits: a dense index, reused after removal.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root of the tree: the pool.
    pub const ROOT: Self = Self(0);
}

/// Bytes of a sector.
const SECTOR_BYTES: u64 = 512;

/// What limits and reservations know of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Demand {
    /// Its name, unique among all that wait.
    pub tag: Tag,
    /// What it does; whatever changes the disk counts as a write.
    pub op: Op,
    /// What it counts as, in sectors of 512 bytes: its length, or for one that moves no data
    /// whatever stands for its cost.
    pub nr_sectors: u32,
}

impl Demand {
    /// Returns the direction of data, as an index.
    const fn direction(&self) -> usize {
        self.op.is_write() as usize
    }

    const fn bytes(&self) -> u64 {
        self.nr_sectors as u64 * SECTOR_BYTES
    }
}
