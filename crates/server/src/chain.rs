//! Walks one descriptor chain: from links in guest memory to a shape, segments and a status byte.
//!
//! Every descriptor is copied once and then believed no further than it was checked. The walk
//! always ends: a table of n descriptors allows n steps.
//!
//! Source: VIRTIO 1.2, "The Virtqueue Descriptor Table" and "Block Device", "Device Operation".

use evenkeel_engine::Shape;

use crate::memory::{Memory, Piece, Spot, Window};
use crate::vring::BrokenRing;

/// Most descriptors in an indirect table, and most data segments of a chain.
///
/// The kernel takes no more segments in one vectored request (`UIO_MAXIOV`). Drivers respect
/// `seg_max`, but may exceed the size of the vring with an indirect table.
pub(crate) const SEGMENTS_MAX: usize = 1024;

/// Where chains come from.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(crate) table: &'a Window,
    pub(crate) memory: &'a Memory,
    /// Whether indirect tables were negotiated.
    pub(crate) indirect: bool,
}

/// A chain that was walked to its end.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Walked {
    /// `None` if no request can be read from the chain: the header is short, a segment is outside
    /// guest memory, or something readable follows something writable.
    pub(crate) shape: Option<Shape>,
    /// The place of the status byte; `None` if the chain has none and so cannot be answered.
    pub(crate) status: Option<Spot>,
    /// What it took: descriptors read and look-ups of guest addresses.
    pub(crate) steps: u32,
}

/// Follows the chain that begins at `head`, which must be a descriptor of the table, and appends
/// its data segments to `segments`.
///
/// # Errors
///
/// * The [`BrokenRing`] of a chain whose links are wrong; what `segments` got is then meaningless.
pub(crate) fn walk(
    source: &Source<'_>,
    head: u16,
    segments: &mut Vec<libc::iovec>,
) -> Result<Walked, BrokenRing> {
    let mut walk = Walk {
        memory: source.memory,
        first: segments.len(),
        segments,
        header: [0; 16],
        header_bytes: 0,
        readable_bytes: 0,
        writable_bytes: 0,
        last_writable: None,
        is_sound: true,
        steps: 0,
    };
    let size = u16::try_from(source.table.len() / DESCRIPTOR_BYTES).unwrap_or(u16::MAX);
    let mut next = Some(head);
    for _ in 0..size {
        let Some(index) = next else { break };
        if index >= size {
            return Err(BrokenRing::NextRange { next: index });
        }
        let bytes = source.table.read_16(usize::from(index) * DESCRIPTOR_BYTES);
        let descriptor = Descriptor::parse(bytes);
        if descriptor.flags & INDIRECT == 0 {
            walk.add(descriptor);
        } else {
            walk_indirect(source, descriptor, &mut walk)?;
        }
        next = descriptor.next();
    }
    if next.is_some() { Err(BrokenRing::Loop) } else { Ok(walk.finish()) }
}

/// Follows an indirect table, which is always read from its first descriptor.
fn walk_indirect(
    source: &Source<'_>,
    descriptor: Descriptor,
    walk: &mut Walk<'_>,
) -> Result<(), BrokenRing> {
    let Descriptor { addr, len: bytes, flags, .. } = descriptor;
    if !source.indirect {
        return Err(BrokenRing::IndirectNotNegotiated);
    }
    if flags & NEXT != 0 {
        return Err(BrokenRing::IndirectNext);
    }
    let table_bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let size = table_bytes / DESCRIPTOR_BYTES;
    if size == 0 || size > SEGMENTS_MAX || !table_bytes.is_multiple_of(DESCRIPTOR_BYTES) {
        return Err(BrokenRing::IndirectSize { bytes });
    }
    let table = source.memory.translate(addr, bytes).filter(|piece| piece.len == bytes);
    let table = table.ok_or(BrokenRing::IndirectUnmapped)?;
    let mut next = Some(0);
    for _ in 0..size {
        let Some(index) = next else { break };
        if usize::from(index) >= size {
            return Err(BrokenRing::NextRange { next: index });
        }
        let bytes = source.memory.read_16(table, usize::from(index) * DESCRIPTOR_BYTES);
        let descriptor = Descriptor::parse(bytes);
        if descriptor.flags & INDIRECT != 0 {
            return Err(BrokenRing::IndirectNested);
        }
        walk.add(descriptor);
        next = descriptor.next();
    }
    if next.is_some() { Err(BrokenRing::Loop) } else { Ok(()) }
}

/// One link of a chain, as the guest had it when we looked.
#[derive(Clone, Copy, Debug)]
struct Descriptor {
    addr: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(bytes: [u8; 16]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Self {
            addr: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        }
    }

    fn next(self) -> Option<u16> {
        (self.flags & NEXT != 0).then_some(self.next)
    }
}

/// What a walk has gathered so far.
struct Walk<'a> {
    memory: &'a Memory,
    segments: &'a mut Vec<libc::iovec>,
    /// Where this chain's segments begin.
    first: usize,
    header: [u8; 16],
    header_bytes: usize,
    readable_bytes: u64,
    writable_bytes: u64,
    /// The end of the newest writable descriptor, if that is guest memory.
    last_writable: Option<Piece>,
    is_sound: bool,
    steps: u32,
}

impl Walk<'_> {
    /// Adds the bytes that a descriptor describes; one of length 0 adds nothing.
    fn add(&mut self, descriptor: Descriptor) {
        let Descriptor { mut addr, mut len, flags, .. } = descriptor;
        let is_writable = flags & WRITE != 0;
        self.steps += 1;
        if !is_writable && self.writable_bytes != 0 {
            self.is_sound = false;
            return;
        }
        while len != 0 {
            self.steps += 1;
            let Some(piece) = self.memory.translate(addr, len) else {
                self.is_sound = false;
                if is_writable {
                    self.last_writable = None;
                }
                return;
            };
            len -= piece.len;
            // A range that reaches the last address ends there, and the next look-up finds nothing.
            addr = addr.saturating_add(u64::from(piece.len));
            if is_writable {
                self.writable_bytes += u64::from(piece.len);
                self.last_writable = Some(piece);
                self.push(piece);
            } else {
                self.add_readable(piece);
            }
        }
    }

    /// Adds a readable piece: what the header lacks first, then data.
    fn add_readable(&mut self, mut piece: Piece) {
        if self.header_bytes == 0 && piece.len >= 16 {
            self.header = self.memory.read_16(piece, 0);
            self.header_bytes = 16;
            piece = piece.skip(16);
        } else if self.header_bytes < 16 {
            let read = self.memory.read(piece, &mut self.header[self.header_bytes..]);
            self.header_bytes += read;
            piece = piece.skip(u32::try_from(read).expect("at most 16"));
        }
        if piece.len != 0 {
            self.readable_bytes += u64::from(piece.len);
            self.push(piece);
        }
    }

    fn push(&mut self, piece: Piece) {
        // One more for the status byte, which may stand alone and is taken off at the end.
        if self.segments.len() - self.first > SEGMENTS_MAX {
            self.is_sound = false;
            return;
        }
        let iov_len = usize::try_from(piece.len).expect("a u32 fits a usize");
        self.segments.push(libc::iovec { iov_base: piece.ptr.cast(), iov_len });
    }

    /// Takes the status byte off the end.
    fn finish(mut self) -> Walked {
        let steps = self.steps;
        let Some(last) = self.last_writable else {
            return Walked { shape: None, status: None, steps };
        };
        let status = Some(last.last_byte());
        let total_bytes = self.readable_bytes + self.writable_bytes;
        if !self.is_sound || self.header_bytes < 16 || total_bytes > CHAIN_BYTES_MAX {
            return Walked { shape: None, status, steps };
        }
        self.writable_bytes -= 1;
        let segment = self.segments.last_mut().expect("a writable piece was pushed last");
        segment.iov_len -= 1;
        if segment.iov_len == 0 {
            self.segments.pop();
        }
        let Ok(segments) = u16::try_from(self.segments.len() - self.first) else {
            unreachable!("push lets no more than SEGMENTS_MAX + 1 in")
        };
        if usize::from(segments) > SEGMENTS_MAX {
            return Walked { shape: None, status, steps };
        }
        let Self { header, readable_bytes, writable_bytes, .. } = self;
        let shape = Shape { header, readable_bytes, writable_bytes, segments };
        Walked { shape: Some(shape), status, steps }
    }
}

const DESCRIPTOR_BYTES: usize = 16;

/// Source: VIRTIO 1.2, "The Virtqueue Descriptor Table": a driver must not describe more than
/// 2^32 bytes in a chain.
const CHAIN_BYTES_MAX: u64 = 1 << 32;

// Source: VIRTIO 1.2, `VIRTQ_DESC_F_NEXT`, `_WRITE` and `_INDIRECT`.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
