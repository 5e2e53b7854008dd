//! What a client is like, and what it can ask.

use std::io;
use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of vrings.
    pub vrings: u16,
    /// Descriptors per vring, a power of two.
    pub size: u16,
    /// Most requests in flight per vring.
    pub depth: u16,
    /// Largest request in bytes; memory for `depth` of them is set aside per vring.
    pub max_bytes: u32,
    /// Most data segments per request.
    pub segments: u16,
    /// Negotiate EVENT_IDX.
    pub event_idx: bool,
    /// Put every chain into an indirect table.
    pub indirect: bool,
    /// Use the in-flight region if the server offers it.
    pub inflight: bool,
    /// How long to wait for the socket, and for any answer on it.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vrings: 1,
            size: 256,
            depth: 32,
            max_bytes: 4096,
            segments: 1,
            event_idx: true,
            indirect: false,
            inflight: true,
            patience: Duration::from_secs(20),
        }
    }
}

impl Options {
    /// Returns the number of descriptors of the longest chain.
    #[must_use]
    pub fn chain_len(&self) -> u16 {
        self.segments + 2
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let heads = if self.indirect { 1 } else { u32::from(self.chain_len()) };
        let fits = u32::from(self.depth) * heads <= u32::from(self.size);
        let whole = self.size.is_power_of_two() && self.vrings > 0 && self.segments > 0;
        if fits && whole {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "depth does not fit into the vring"))
    }
}

/// What to ask of the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub enum IoOp {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes {
        unmap: bool,
    },
    /// Any type number, without data.
    Raw(u32),
}

impl IoOp {
    pub(super) fn number(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 4,
            Self::GetId => 8,
            Self::Discard => 11,
            Self::WriteZeroes { .. } => 13,
            Self::Raw(number) => number,
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// What to do.
    pub op: IoOp,
    /// First 512-byte sector.
    pub sector: u64,
    /// Bytes of data, or of the range to discard.
    pub bytes: u32,
    /// I/O priority, as Linux guests send it: class in bits 13 to 15, level in the rest; 0 unknown.
    pub ioprio: u32,
    /// The caller's own word, returned with the answer.
    pub user: u64,
}

impl Io {
    /// Returns a request without priority.
    #[must_use]
    pub fn new(op: IoOp, sector: u64, bytes: u32, user: u64) -> Self {
        Self { op, sector, bytes, ioprio: 0, user }
    }

    pub(super) fn header_sector(&self) -> u64 {
        match self.op {
            IoOp::Read | IoOp::Write | IoOp::Raw(_) => self.sector,
            IoOp::Flush | IoOp::GetId | IoOp::Discard | IoOp::WriteZeroes { .. } => 0,
        }
    }

    pub(super) fn range(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&self.sector.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.bytes / 512).to_le_bytes());
        let unmap = u32::from(matches!(self.op, IoOp::WriteZeroes { unmap: true }));
        bytes[12..16].copy_from_slice(&unmap.to_le_bytes());
        bytes
    }
}
