//! The whole life of a request: parse, classify, submit, dispatch, complete, retire.
//!
//! Picture a counter between two crowds. Guests hand slips over it, some of them forged; every
//! slip is read once, gets a numbered tag and waits with the scheduler. When the device has room,
//! the engine calls the next tag, and when the device is done, the answer goes back over the
//! counter to whoever holds the matching token. A slip is answered exactly once.
//!
//! The order of calls is the *turn* (ARCHITECTURE.md): [`Engine::complete`] for what the device
//! finished, [`parse`] and [`Engine::submit`] for what guests brought, [`Engine::dispatch`] until
//! it has nothing, [`Engine::retire`] until it has nothing, then wait until
//! [`Engine::next_deadline`].
//!
//! Deliberately absent: clock, I/O, file descriptors, guest addresses, unsafe code.
#![forbid(unsafe_code)]

mod engine;
mod request;

mod blame;
mod blocks;
mod claims;
mod classify;
mod coordination;
mod disk;
mod governor;
mod groups;
mod help;
mod histogram;
mod pieces;
mod slots;
mod streams;

pub use blame::{Cause, Explanation};
pub use blocks::{
    BlockConfig, BlockFigures, BlockSize, Blocks, REMAINDER_WAIT, Responses, is_block_due,
};
pub use claims::Claims;
pub use disk::{DiskId, DiskReport, Durations};
pub use engine::{Engine, EngineConfig, Limited};
pub use governor::{FlightLimit, GovernorReport};
pub use help::{Ask, HelpPolicy, HelpReport};
pub use histogram::Histogram;
pub use request::{
    Geometry, Malformed, Parsed, RANGE_SECTORS_MAX, RangeKind, Request, SECTOR_BYTES, Shape,
    Status, parse, parse_range,
};
pub use slots::{Command, DeviceOp, Errno, Parts, Precedence, Retired, Token};
