//! Every elevator of Evenkeel, as pure state machines.
//!
//! Think of a shared tap and a family of buckets. Each bucket may hold the tap for a while (its
//! budget); how soon its turn comes again follows from its weight and from what it really drew.
//! Nobody who was away from the table may later claim the water that ran while it was away, and
//! somebody who comes with a small cup and great thirst is let through first.
//!
//! The contract is [`Scheduler`]: requests go in with [`Scheduler::insert`], come out with
//! [`Scheduler::dispatch`] in the order in which the device shall see them, and are accounted for
//! with [`Scheduler::complete`]. Time is an argument. Once warm nothing is allocated.
//!
//! Deliberately absent: clocks, threads, I/O, disks, virtio, unsafe code, dependencies.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod anticipatory;
mod average;
mod bfq;
mod cfq;
mod choose;
mod deadline;
mod elevator;
mod fifo;
mod group_stats;
mod kyber;
mod limits;
mod merge;
mod noop;
#[cfg(feature = "planted")]
mod planted;
#[cfg(test)]
mod properties;
mod request;
mod roster;
mod scheduler;
mod sorted;
mod table;
#[cfg(test)]
mod testing;
mod tree;
mod tunable;
mod units;
mod wf2q;

pub use anticipatory::AnticipatoryTunables;
pub use bfq::{Bfq, BfqTunables, BfqTunablesError, Queueing};
pub use cfq::CfqTunables;
pub use deadline::DeadlineTunables;
pub use elevator::{Elevator, ElevatorConfig, Kind, KindError};
pub use group_stats::{GroupStats, IoReport, IoStats};
pub use kyber::KyberTunables;
pub use limits::{Demand, Floors, Gate, GateReport, Limits, NodeId, Rate, Rates, Reservation};
pub use merge::MergeLimits;
#[cfg(feature = "planted")]
pub use planted::Planted;
pub use request::{Class, Op, Priority, Request, Tag};
pub use scheduler::{
    Beside, GroupId, GroupReport, Insertion, Lead, Next, QueueId, Scheduler, Urgency,
};
pub use tunable::OutOfRange;
pub use units::{Nanos, Weight, WeightError};
