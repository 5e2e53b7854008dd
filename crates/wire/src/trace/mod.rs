//! Traces: every request of a pool in a file, for replay. `docs/trace.md` describes the bytes.
//!
//! A trace is a [`TraceHeader`], then blocks of records in the order in which the requests were
//! answered. Each block can be read without the others, so a file that was cut short loses only
//! its end. [`TraceBlock`] writes, [`TraceReader`] reads; the reader takes nothing for granted,
//! because a file may come from anywhere.
//!
//! Deliberately absent: files. Both ends work on bytes in memory.

mod decode;
mod encode;
mod header;
mod varint;

use std::fmt;

pub use decode::TraceReader;
pub use encode::TraceBlock;
pub use header::{TraceDisk, TraceHeader};

/// The first bytes of every trace.
pub const TRACE_MAGIC: [u8; 8] = *b"EKTRACE\n";
/// The version of the format that is written, and the only one that is read.
pub const TRACE_VERSION: u32 = 1;
/// The most bytes of one block, its own header included.
pub const TRACE_BLOCK_BYTES_MAX: usize = 1 << 20;
/// The latest instant that a record may name, in nanoseconds since the trace began: 146 years.
pub const TRACE_TIME_MAX_NS: u64 = 1 << 62;

/// The most bytes that a record takes.
const RECORD_BYTES_MAX: usize = 64;
/// Bytes of the header of a block.
const BLOCK_HEADER_BYTES: usize = 24;
/// The first bytes of every block.
const BLOCK_MAGIC: [u8; 4] = *b"EKBL";
/// Flag of a block: the trace ends with it.
const BLOCK_LAST: u32 = 1;
/// Flags in the first byte of a record.
const HAS_IOPRIO: u8 = 1 << 5;
const HAS_PLACE: u8 = 1 << 6;

/// What a request asked for.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TraceOp {
    /// Read sectors.
    Read,
    /// Write sectors.
    Write,
    /// Forget the contents of sectors.
    Discard,
    /// Make sectors read as zero.
    WriteZeroes,
    /// Make everything answered so far durable.
    Flush,
}

impl TraceOp {
    /// Every operation, in the order of their numbers in the file.
    pub const ALL: [Self; 5] =
        [Self::Read, Self::Write, Self::Discard, Self::WriteZeroes, Self::Flush];

    const fn number(self) -> u8 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Discard => 2,
            Self::WriteZeroes => 3,
            Self::Flush => 4,
        }
    }
}

/// What the guest was told.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TraceStatus {
    /// Done.
    Ok,
    /// Failed.
    IoError,
    /// The device cannot do that.
    Unsupported,
}

impl TraceStatus {
    /// Every status, in the order of their numbers in the file.
    pub const ALL: [Self; 3] = [Self::Ok, Self::IoError, Self::Unsupported];

    const fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::IoError => 1,
            Self::Unsupported => 2,
        }
    }
}

/// One answered request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct TraceRecord {
    /// When the daemon took it from its vring, in nanoseconds since the trace began.
    pub arrived_ns: u64,
    /// Its disk, by position in [`TraceHeader::disks`].
    pub disk: u32,
    /// The vring that it came through.
    pub queue: u16,
    /// What it asked for.
    pub op: TraceOp,
    /// What the guest was told.
    pub status: TraceStatus,
    /// First sector (512 bytes); 0 for a flush.
    pub sector: u64,
    /// Length in sectors; 0 for a flush.
    pub nr_sectors: u32,
    /// The priority word of its header, as the guest sent it.
    pub ioprio: u32,
    /// From its arrival to the device, in nanoseconds.
    pub wait_ns: u64,
    /// From the device to its answer, in nanoseconds.
    pub service_ns: u64,
}

/// A trace that cannot be read, or not to its end.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TraceError {
    /// Where in the file, in bytes from its beginning.
    pub offset: u64,
    /// What is wrong there.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
    /// Whether the file merely ends too early; everything before is good.
    pub is_cut: bool,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}; {}", self.offset, self.problem, self.remedy)
    }
}

impl std::error::Error for TraceError {}

impl TraceError {
    fn new(offset: usize, problem: impl Into<String>) -> Self {
        Self {
            offset: offset as u64,
            problem: problem.into(),
            remedy: "the file is damaged from here on: copy it again, or record a new one",
            is_cut: false,
        }
    }

    fn cut(offset: usize) -> Self {
        Self {
            remedy: "the file was cut short, or its daemon was killed; what comes before is good",
            is_cut: true,
            ..Self::new(offset, "the file ends here, in the middle")
        }
    }
}
