//! Modelled devices, and whatever can be tried on them, in virtual time.
//!
//! Think of a stopwatch with the habits of a disk. It moves no data; it is told what a disk would
//! be asked to do, and says when that disk would have done it. The daemon puts one between engine
//! and backend (`serve --model hdd`): real data, modelled timing. The simulator puts one below the
//! engine and needs no disk at all.
//!
//! The contract is [`DeviceModel`]; [`model`] and [`ModelSpec`] build one by name. Every figure is
//! listed with its source in `docs/devices.md`, and can be overridden.
//!
//! [`world`] is that simulator: guests, hosts and time around the production schedulers and the
//! production engine. [`d36`] are the setups of a published experiment in it; [`swarm`] draws such
//! worlds at random, and checks what must hold in all of them.
//!
//! [`replay`] feeds requests that were recorded elsewhere to the production engine.
//!
//! Deliberately absent: clocks, threads, I/O and data. Models have no failures and no randomness
//! other than hashes of positions; worlds have both, from a seed.
#![forbid(unsafe_code)]

pub mod blocks;
mod chart;
pub mod d36;
pub mod demo;
mod device;
mod disk;
mod events;
mod flash;
pub mod practice;
pub mod replay;
mod spec;
pub mod swarm;
pub mod world;

pub use device::{DeviceModel, Io, IoOp};
pub use disk::DiskModel;
pub use flash::FlashModel;
pub use spec::{MODELS, Model, ModelError, ModelSpec, describe, model};
