//! From hostile bytes to a request, or to the status that they deserve.
#![warn(clippy::arithmetic_side_effects, clippy::indexing_slicing)]

use core::fmt;

use evenkeel_sched::Op;

/// Bytes in a sector, the unit of every position and length.
///
/// Source: VIRTIO 1.2, "Block Device": sectors are 512 bytes whatever the block size.
pub const SECTOR_BYTES: u64 = 512;

/// Largest discard or write-zeroes request, in sectors (1 GiB); announced to the guest. Bounds how
/// long one such request can keep the device.
pub const RANGE_SECTORS_MAX: u32 = 1 << 21;

/// The shape of a disk, against which requests are checked.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Geometry {
    /// Size in sectors.
    pub sectors: u64,
    /// Logical block size in bytes: 512 or 4096. Requests must be multiples of it.
    pub block_bytes: u32,
    /// Whether every change is refused.
    pub read_only: bool,
    /// Whether discard is offered.
    pub discard: bool,
    /// Whether write-zeroes is offered.
    pub write_zeroes: bool,
}

impl Geometry {
    /// Returns the shape of a disk of so many sectors in blocks of 512 bytes that can be written,
    /// and offers nothing else.
    #[must_use]
    pub const fn plain(sectors: u64) -> Self {
        Self { sectors, block_bytes: 512, read_only: false, discard: false, write_zeroes: false }
    }
}

/// What the guest learns: the last byte of every chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed; the data is not there.
    IoError = 1,
    /// Not a request that this disk knows.
    Unsupported = 2,
}

/// What the ring edge found in a chain, before anybody looked at its meaning.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// The first 16 device-readable bytes, little-endian: type u32, ioprio u32, sector u64.
    pub header: [u8; 16],
    /// Device-readable bytes behind the header.
    pub readable_bytes: u64,
    /// Device-writable bytes without the final status byte.
    pub writable_bytes: u64,
    /// Number of data segments.
    pub segments: u16,
}

/// Which kind of range a payload describes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RangeKind {
    /// `VIRTIO_BLK_T_DISCARD`.
    Discard,
    /// `VIRTIO_BLK_T_WRITE_ZEROES`.
    WriteZeroes,
}

/// A well-formed chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parsed {
    /// A read or write, ready to be submitted.
    Io(Request),
    /// Make everything completed so far durable.
    Flush,
    /// The guest asks for the serial number: up to 20 bytes into the writable segments.
    Id,
    /// A discard or write-zeroes; its 16 payload bytes go to [`parse_range`].
    Range(RangeKind),
}

/// One guest operation on sectors. Needs no further check: it lies within the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Request {
    /// What to do.
    pub op: Op,
    /// First sector of the disk.
    pub sector: u64,
    /// Length in sectors, at least 1.
    pub nr_sectors: u32,
    /// Number of data segments.
    pub segments: u16,
    /// The header's priority word as the guest sent it: a hint, trusted only within the VM.
    pub ioprio: u32,
    /// Write-zeroes only: the sectors may be deallocated.
    pub unmap: bool,
}

/// Why a chain is refused. The answer is [`Malformed::status`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Malformed {
    /// A read that carries data, or a write or range that expects some.
    Direction,
    /// No data at all.
    Empty,
    /// Reaches behind the end of the disk.
    OutOfRange {
        /// First sector asked for.
        sector: u64,
        /// Number of sectors asked for.
        nr_sectors: u64,
    },
    /// Not a whole number of blocks.
    PartialBlock,
    /// A change to a disk that is read-only.
    ReadOnly,
    /// More than one range, or half of one.
    RangeCount,
    /// Range flags that the specification reserves.
    UnknownFlags(u32),
    /// A request type that this disk does not offer.
    UnknownType(u32),
}

impl Malformed {
    /// Returns what the guest is told.
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::UnknownType(_) | Self::UnknownFlags(_) => Status::Unsupported,
            Self::Direction
            | Self::Empty
            | Self::OutOfRange { .. }
            | Self::PartialBlock
            | Self::ReadOnly
            | Self::RangeCount => Status::IoError,
        }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direction => write!(f, "data in the wrong direction"),
            Self::Empty => write!(f, "no data"),
            Self::OutOfRange { sector, nr_sectors } => {
                write!(f, "{nr_sectors} sectors from sector {sector} reach behind the disk's end")
            }
            Self::PartialBlock => write!(f, "not a whole number of blocks"),
            Self::ReadOnly => write!(f, "the disk is read-only"),
            Self::RangeCount => write!(f, "not exactly one range"),
            Self::UnknownFlags(flags) => write!(f, "unknown range flags {flags:#x}"),
            Self::UnknownType(kind) => write!(f, "unknown request type {kind}"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Parses one chain whose header the caller has copied out of guest memory.
///
/// | bytes  | field  | unit                                          |
/// |--------|--------|-----------------------------------------------|
/// | 0..4   | type   | `VIRTIO_BLK_T_*`                              |
/// | 4..8   | ioprio | Linux: class << 13 or level; 0 is "unknown"   |
/// | 8..16  | sector | 512-byte sectors                              |
///
/// The bytes come from a guest and may be hostile. Parsing reads each of them once, allocates
/// nothing and cannot panic. What it returns needs no further check.
///
/// # Errors
///
/// * [`Malformed`] -- answer [`Malformed::status`]; nothing else needs to happen.
///
/// Source: VIRTIO 1.2, "Block Device", "Device Operation".
pub fn parse(shape: &Shape, disk: &Geometry) -> Result<Parsed, Malformed> {
    let [t0, t1, t2, t3, p0, p1, p2, p3, sector @ ..] = shape.header;
    let kind = u32::from_le_bytes([t0, t1, t2, t3]);
    let ioprio = u32::from_le_bytes([p0, p1, p2, p3]);
    let sector = u64::from_le_bytes(sector);
    let (op, bytes, other) = match kind {
        TYPE_IN => (Op::Read, shape.writable_bytes, shape.readable_bytes),
        TYPE_OUT => (Op::Write, shape.readable_bytes, shape.writable_bytes),
        TYPE_FLUSH => return Ok(Parsed::Flush),
        TYPE_GET_ID if shape.writable_bytes > 0 => return Ok(Parsed::Id),
        TYPE_GET_ID => return Err(Malformed::Empty),
        TYPE_DISCARD if disk.discard => return range(RangeKind::Discard, shape, disk),
        TYPE_WRITE_ZEROES if disk.write_zeroes => {
            return range(RangeKind::WriteZeroes, shape, disk);
        }
        _ => return Err(Malformed::UnknownType(kind)),
    };
    if other != 0 {
        return Err(Malformed::Direction);
    }
    if op.is_write() && disk.read_only {
        return Err(Malformed::ReadOnly);
    }
    let nr_sectors = bytes / SECTOR_BYTES;
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(Malformed::PartialBlock);
    }
    let nr_sectors = extent(sector, nr_sectors, disk)?;
    Ok(Parsed::Io(Request {
        op,
        sector,
        nr_sectors,
        segments: shape.segments,
        ioprio,
        unmap: false,
    }))
}

/// Parses the payload of a discard or write-zeroes.
///
/// | bytes  | field       | unit                              |
/// |--------|-------------|-----------------------------------|
/// | 0..8   | sector      | 512-byte sectors                  |
/// | 8..12  | num_sectors | 512-byte sectors                  |
/// | 12..16 | flags       | bit 0: unmap (write-zeroes only)  |
///
/// `ioprio` is the priority word of the chain's header.
///
/// # Errors
///
/// * [`Malformed`] -- answer [`Malformed::status`].
///
/// Source: VIRTIO 1.2, "Block Device", "Device Operation".
pub fn parse_range(
    kind: RangeKind,
    ioprio: u32,
    payload: [u8; 16],
    disk: &Geometry,
) -> Result<Request, Malformed> {
    let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, flags @ ..] = payload;
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let nr_sectors = u32::from_le_bytes([n0, n1, n2, n3]);
    let flags = u32::from_le_bytes(flags);
    let (op, known) = match kind {
        RangeKind::Discard => (Op::Discard, 0),
        RangeKind::WriteZeroes => (Op::WriteZeroes, FLAG_UNMAP),
    };
    if flags & !known != 0 {
        return Err(Malformed::UnknownFlags(flags));
    }
    if nr_sectors > RANGE_SECTORS_MAX {
        return Err(Malformed::OutOfRange { sector, nr_sectors: u64::from(nr_sectors) });
    }
    let nr_sectors = extent(sector, u64::from(nr_sectors), disk)?;
    Ok(Request { op, sector, nr_sectors, segments: 0, ioprio, unmap: flags & FLAG_UNMAP != 0 })
}

/// Checks what a range chain's shape can tell.
fn range(kind: RangeKind, shape: &Shape, disk: &Geometry) -> Result<Parsed, Malformed> {
    if disk.read_only {
        return Err(Malformed::ReadOnly);
    }
    if shape.writable_bytes != 0 {
        return Err(Malformed::Direction);
    }
    if shape.readable_bytes != RANGE_BYTES {
        return Err(Malformed::RangeCount);
    }
    Ok(Parsed::Range(kind))
}

/// Checks that an extent is not empty, made of whole blocks and within the disk.
fn extent(sector: u64, nr_sectors: u64, disk: &Geometry) -> Result<u32, Malformed> {
    if nr_sectors == 0 {
        return Err(Malformed::Empty);
    }
    let out_of_range = Malformed::OutOfRange { sector, nr_sectors };
    let end = sector.checked_add(nr_sectors).ok_or(out_of_range)?;
    if end > disk.sectors {
        return Err(out_of_range);
    }
    let block_sectors = (u64::from(disk.block_bytes) / SECTOR_BYTES).max(1);
    if !sector.is_multiple_of(block_sectors) || !nr_sectors.is_multiple_of(block_sectors) {
        return Err(Malformed::PartialBlock);
    }
    u32::try_from(nr_sectors).map_err(|_| out_of_range)
}

const TYPE_IN: u32 = 0;
const TYPE_OUT: u32 = 1;
const TYPE_FLUSH: u32 = 4;
const TYPE_GET_ID: u32 = 8;
const TYPE_DISCARD: u32 = 11;
const TYPE_WRITE_ZEROES: u32 = 13;
const FLAG_UNMAP: u32 = 1;
const RANGE_BYTES: u64 = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DISK: Geometry = Geometry {
        sectors: 1000,
        block_bytes: 512,
        read_only: false,
        discard: true,
        write_zeroes: true,
    };

    fn shape(kind: u32, sector: u64, readable_bytes: u64, writable_bytes: u64) -> Shape {
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[4..8].copy_from_slice(&0x4004_u32.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        Shape { header, readable_bytes, writable_bytes, segments: 1 }
    }

    fn payload(sector: u64, nr_sectors: u32, flags: u32) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&sector.to_le_bytes());
        bytes[8..12].copy_from_slice(&nr_sectors.to_le_bytes());
        bytes[12..].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    #[test]
    fn a_read_to_the_last_sector_is_accepted_and_one_behind_it_is_not() {
        let last = Request {
            op: Op::Read,
            sector: 999,
            nr_sectors: 1,
            segments: 1,
            ioprio: 0x4004,
            unmap: false,
        };
        assert_eq!(parse(&shape(TYPE_IN, 999, 0, 512), &DISK), Ok(Parsed::Io(last)));
        assert_eq!(
            parse(&shape(TYPE_IN, 999, 0, 1024), &DISK),
            Err(Malformed::OutOfRange { sector: 999, nr_sectors: 2 })
        );
    }

    #[test]
    fn a_sector_that_overflows_is_out_of_range() {
        assert_eq!(
            parse(&shape(TYPE_OUT, u64::MAX, 512, 0), &DISK),
            Err(Malformed::OutOfRange { sector: u64::MAX, nr_sectors: 1 })
        );
    }

    #[test]
    fn lengths_that_are_no_whole_blocks_are_refused() {
        assert_eq!(parse(&shape(TYPE_IN, 0, 0, 511), &DISK), Err(Malformed::PartialBlock));
        assert_eq!(parse(&shape(TYPE_IN, 0, 0, 0), &DISK), Err(Malformed::Empty));
        let disk = Geometry { block_bytes: 4096, ..DISK };
        assert_eq!(parse(&shape(TYPE_IN, 0, 0, 512), &disk), Err(Malformed::PartialBlock));
        assert_eq!(parse(&shape(TYPE_IN, 1, 0, 4096), &disk), Err(Malformed::PartialBlock));
    }

    #[test]
    fn data_in_the_wrong_direction_is_refused() {
        assert_eq!(parse(&shape(TYPE_IN, 0, 512, 512), &DISK), Err(Malformed::Direction));
        assert_eq!(parse(&shape(TYPE_OUT, 0, 512, 512), &DISK), Err(Malformed::Direction));
        assert_eq!(parse(&shape(TYPE_DISCARD, 0, 16, 1), &DISK), Err(Malformed::Direction));
    }

    #[test]
    fn changes_to_a_read_only_disk_fail_and_reads_do_not() {
        let disk = Geometry { read_only: true, ..DISK };
        assert_eq!(parse(&shape(TYPE_OUT, 0, 512, 0), &disk), Err(Malformed::ReadOnly));
        assert_eq!(parse(&shape(TYPE_DISCARD, 0, 16, 0), &disk), Err(Malformed::ReadOnly));
        parse(&shape(TYPE_IN, 0, 0, 512), &disk).unwrap();
    }

    #[test]
    fn what_is_not_offered_is_unsupported() {
        let disk = Geometry { discard: false, write_zeroes: false, ..DISK };
        for kind in [TYPE_DISCARD, TYPE_WRITE_ZEROES, 2, 3, 5, 14, u32::MAX] {
            let refused = parse(&shape(kind, 0, 16, 0), &disk);
            assert_eq!(refused, Err(Malformed::UnknownType(kind)));
            assert_eq!(refused.map_err(Malformed::status), Err(Status::Unsupported));
        }
    }

    #[test]
    fn exactly_one_range_is_accepted() {
        for bytes in [0, 8, 15, 17, 32] {
            let refused = parse(&shape(TYPE_DISCARD, 0, bytes, 0), &DISK);
            assert_eq!(refused, Err(Malformed::RangeCount));
        }
        assert_eq!(
            parse(&shape(TYPE_WRITE_ZEROES, 0, 16, 0), &DISK),
            Ok(Parsed::Range(RangeKind::WriteZeroes))
        );
    }

    #[test]
    fn unmap_belongs_to_write_zeroes_alone() {
        let zeroes = parse_range(RangeKind::WriteZeroes, 0, payload(8, 8, 1), &DISK);
        assert_eq!(zeroes.map(|r| (r.op, r.unmap)), Ok((Op::WriteZeroes, true)));
        let discard = parse_range(RangeKind::Discard, 0, payload(8, 8, 1), &DISK);
        assert_eq!(discard, Err(Malformed::UnknownFlags(1)));
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_lies_within_the_disk(
            header: [u8; 16], readable_bytes: u64, writable_bytes: u64, payload: [u8; 16],
            sectors: u64, large_blocks: bool, small_type in 0..16_u8, small: bool,
        ) {
            let mut header = header;
            if small { header[..4].copy_from_slice(&[small_type, 0, 0, 0]); }
            let block_bytes = if large_blocks { 4096 } else { 512 };
            let disk = Geometry { sectors, block_bytes, ..DISK };
            let shape = Shape { header, readable_bytes, writable_bytes, segments: 3 };
            let request = match parse(&shape, &disk) {
                Ok(Parsed::Io(request)) => Some(request),
                Ok(Parsed::Range(kind)) => parse_range(kind, 0, payload, &disk).ok(),
                _ => None,
            };
            if let Some(request) = request {
                let end = request.sector.checked_add(u64::from(request.nr_sectors));
                prop_assert!(request.nr_sectors > 0);
                prop_assert!(end.is_some_and(|end| end <= sectors));
            }
        }
    }
}
