//! What may be wrong with a vring.

use std::fmt;

use crate::inflight::InflightError;

/// How a guest or VMM lied about a vring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum BrokenRing {
    /// Not a power of two, or more than [`VRING_SIZE_MAX`](super::VRING_SIZE_MAX).
    Size(u16),
    /// Table or rings are not, or not wholly, in one region of guest memory.
    Unmapped,
    /// Table or rings are not aligned as virtio demands.
    Misaligned,
    /// The available index is further ahead than the vring is long.
    AvailIndex { ahead: u16 },
    /// The head is no descriptor of the table.
    HeadRange,
    /// The head was made available while its chain is being served.
    HeadInFlight { head: u16 },
    /// `next` is no descriptor of its table.
    NextRange { next: u16 },
    /// More descriptors than the table has: the chain runs in a circle.
    Loop,
    /// An indirect descriptor without the feature.
    IndirectNotNegotiated,
    /// An indirect descriptor inside an indirect table.
    IndirectNested,
    /// An indirect descriptor with `NEXT`.
    IndirectNext,
    /// An indirect table of no or of too many descriptors, or of a fraction of one.
    IndirectSize { bytes: u32 },
    /// An indirect table outside guest memory.
    IndirectUnmapped,
    /// The in-flight region has no page for this vring, or one that is too short.
    NoInflightPage,
    /// The in-flight page makes no sense.
    Inflight(InflightError),
    /// The VMM shrank the file behind its memory.
    MemoryGone,
}

impl fmt::Display for BrokenRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => write!(f, "a vring of {size} descriptors"),
            Self::Unmapped => f.write_str("the vring is not in guest memory"),
            Self::Misaligned => f.write_str("the vring is not aligned"),
            Self::AvailIndex { ahead } => write!(f, "the available index jumped ahead by {ahead}"),
            Self::HeadRange => f.write_str("the head of a chain is not in the table"),
            Self::HeadInFlight { head } => write!(f, "head {head} is being served already"),
            Self::NextRange { next } => write!(f, "descriptor {next} is not in its table"),
            Self::Loop => f.write_str("a chain runs in a circle"),
            Self::IndirectNotNegotiated => f.write_str("an indirect table without the feature"),
            Self::IndirectNested => f.write_str("an indirect table inside an indirect table"),
            Self::IndirectNext => f.write_str("an indirect descriptor with a next one"),
            Self::IndirectSize { bytes } => write!(f, "an indirect table of {bytes} bytes"),
            Self::IndirectUnmapped => f.write_str("an indirect table outside guest memory"),
            Self::NoInflightPage => f.write_str("the in-flight region has no room for the vring"),
            Self::Inflight(error) => error.fmt(f),
            Self::MemoryGone => f.write_str("the VMM took its memory away"),
        }
    }
}

impl std::error::Error for BrokenRing {}
