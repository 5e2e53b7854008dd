//! Whatever a client does to the server, nobody else on the same pool notices.
//!
//! Each test starts a server with two disks in one pool. A witness runs verified I/O on one of them
//! while a hostile client misbehaves on the other. Afterwards the witness has seen no error, the
//! server is the same process, and an honest client works on the disk that was abused.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot set its scene has failed"
)]

mod arena;
mod chains;
mod rings;
mod sessions;
mod tables;
