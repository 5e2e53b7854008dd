//! Modelled devices, in virtual time.
//!
//! Think of a stopwatch with the habits of a disk. It moves no data; it is told what a disk would
//! be asked to do, and says when that disk would have done it. The daemon puts one between engine
//! and backend (`serve --model hdd`): real data, modelled timing. The simulator puts one below the
//! engine and needs no disk at all.
//!
//! The contract is [`DeviceModel`]; [`model`] and [`ModelSpec`] build one by name. Every figure is
//! listed with its source in `docs/devices.md`, and can be overridden.
//!
//! Deliberately absent: clocks, threads, I/O, data, failures, and randomness other than hashes of
//! positions.
#![forbid(unsafe_code)]

pub mod blocks;
mod chart;
mod device;
mod disk;
mod flash;
pub mod practice;
mod spec;

pub use device::{DeviceModel, Io, IoOp};
pub use disk::DiskModel;
pub use flash::FlashModel;
pub use spec::{MODELS, Model, ModelError, ModelSpec, describe, model};
