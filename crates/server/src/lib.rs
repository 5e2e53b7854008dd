//! The daemon's edges: vhost-user sessions, vrings, `io_uring`, backends.
//!
//! One worker thread per pool owns the engine, the ring and all vrings of all disks in it, so there
//! is no lock on the way of a request. Control threads (one per connected session, one that
//! accepts) talk to it in bounded messages only. Nothing here decides what goes first: that is
//! `evenkeel-engine`'s part.

mod affinity;
mod agents;
pub mod api;
mod backend;
mod chain;
mod clock;
mod command;
mod config;
mod copies;
mod daemon;
mod elevator;
mod features;
#[cfg(test)]
mod guest;
mod guests;
mod inflight;
mod limits;
#[expect(unsafe_code, reason = "maps foreign memory and reads it while others write")]
mod memory;
mod model;
mod polling;
mod pool;
mod priority;
mod scheduling;
mod session;
#[expect(unsafe_code, reason = "a signal handler works on raw addresses")]
mod sigbus;
mod signals;
mod slots;
mod status;
mod trace;
mod uring;
mod vring;
mod worker;

pub use affinity::PinError;
pub use backend::{OpenError, OpenProblem};
pub use config::check_devices;
pub use daemon::{Daemon, DiskInfo, SocketProblem, StartError};
pub use pool::PoolError;
pub use signals::Signals;
pub use trace::{TraceError, TraceProblem};
