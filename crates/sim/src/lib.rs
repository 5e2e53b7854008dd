//! Modelled devices, in virtual time.
//!
//! Deliberately absent: clocks, threads, I/O, randomness.
#![forbid(unsafe_code)]

mod device;

pub use device::{DeviceModel, Io, IoOp};
