//! What Evenkeel promises to others: the configuration file, the documents of its API, and the
//! messages between daemon and guest.
//!
//! [`Config`] is what an operator writes, [`status`] is what the daemon answers, [`agent`] is what
//! it says to a guest's agent, [`trace`] is the file that it records. All are plain values; nobody
//! but `server::config` turns a configuration into something that runs.
//!
//! A configuration is read in two steps, so that an operator sees all mistakes in one run:
//!
//! 1. [`Document::read`] parses the text. Broken TOML, unknown keys, wrong types and values out of
//!    range each become one [`Problem`], and reading goes on with the default.
//! 2. [`Config::check`] compares the fields with one another: names, references, cycles, images
//!    that two disks share. The caller may add problems of its own before
//!    [`Document::finish`] decides.
//!
//! A [`PoolChange`] is what may be changed while a pool runs, read by the same rules.
//!
//! Deliberately absent: I/O, clocks, and every other room.
#![forbid(unsafe_code)]

pub mod agent;
mod blocks;
mod change;
mod check;
mod config;
mod cpus;
mod limits;
mod poll;
mod problem;
mod profile;
mod read;
mod size;
pub mod status;
pub mod trace;
mod tunables;

pub use blocks::{Block, DEPTH_MAX, Responses};
pub use change::PoolChange;
pub use check::{NAME_BYTES_MAX, SOCKET_PATH_BYTES_MAX, check_name};
pub use config::{
    Config, DEFAULT_BLOCK_BYTES, DEFAULT_QUEUES, DEFAULT_WEIGHT, DevicePriority, Disk, Group, Pool,
    QUEUES_MAX, Rotational, Scheduler, Source, Trust, Vm, WEIGHT_MAX,
};
pub use cpus::{CPU_MAX, Cpus};
pub use limits::{
    LIMITS, LimitKey, LimitRate, LimitUnit, Limits, LimitsChange, format_limit, is_limit,
};
pub use poll::{POLL_US_MAX, Poll};
pub use problem::{Problem, Problems};
pub use profile::Profile;
pub use read::Document;
pub use size::{SizeError, format_size, parse_size};
pub use tunables::{TUNABLES, Tunable, TunableValue, Tunables, Unit};
