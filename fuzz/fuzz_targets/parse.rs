//! Whatever a guest writes into a chain, what the parser lets through lies within the disk.
#![no_main]

use arbitrary::Arbitrary;
use evenkeel_engine::{
    Geometry, Malformed, Parsed, RangeKind, Request, Shape, Status, parse, parse_range,
};
use evenkeel_sched::Op;
use libfuzzer_sys::fuzz_target;

/// A disk and a chain. Small numbers are drawn as often as all others, so that limits are met.
#[derive(Arbitrary, Debug)]
struct Chain {
    sectors: Number,
    large_blocks: bool,
    read_only: bool,
    discard: bool,
    write_zeroes: bool,
    kind: Kind,
    ioprio: u32,
    sector: Number,
    readable_bytes: Number,
    writable_bytes: Number,
    segments: u16,
    range_sector: Number,
    range_nr_sectors: u32,
    range_flags: Flags,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Byte(u8),
    Sectors(u8),
    Pages(u16),
    Any(u64),
    /// So far below the largest number.
    Large(u16),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Self::Byte(n) => u64::from(n),
            Self::Sectors(n) => u64::from(n) * 512,
            Self::Pages(n) => u64::from(n) * 4096,
            Self::Any(n) => n,
            Self::Large(n) => u64::MAX - u64::from(n),
        }
    }
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Known(u8),
    Any(u32),
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Flags {
    None,
    Unmap,
    Any(u32),
}

fuzz_target!(|chain: Chain| {
    let disk = Geometry {
        sectors: chain.sectors.value(),
        block_bytes: if chain.large_blocks { 4096 } else { 512 },
        read_only: chain.read_only,
        discard: chain.discard,
        write_zeroes: chain.write_zeroes,
    };
    let kind = match chain.kind {
        Kind::Known(n) => u32::from(n % 16),
        Kind::Any(n) => n,
    };
    let mut header = [0; 16];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..8].copy_from_slice(&chain.ioprio.to_le_bytes());
    header[8..].copy_from_slice(&chain.sector.value().to_le_bytes());
    let shape = Shape {
        header,
        readable_bytes: chain.readable_bytes.value(),
        writable_bytes: chain.writable_bytes.value(),
        segments: chain.segments,
    };
    let parsed = parse(&shape, &disk);
    assert_eq!(parsed, parse(&shape, &disk), "parsing is not a function");
    match parsed {
        Ok(Parsed::Io(request)) => {
            assert!(!request.unmap && request.segments == shape.segments);
            assert_eq!((request.sector, request.ioprio), (chain.sector.value(), chain.ioprio));
            let (data, other) = match request.op {
                Op::Read => (shape.writable_bytes, shape.readable_bytes),
                Op::Write => (shape.readable_bytes, shape.writable_bytes),
                op => panic!("{op:?} without a range"),
            };
            assert_eq!((u64::from(request.nr_sectors) * 512, 0), (data, other));
            check(&request, &disk);
        }
        Ok(Parsed::Flush) => assert_eq!(kind, 4),
        Ok(Parsed::Id) => assert!(kind == 8 && shape.writable_bytes > 0),
        Ok(Parsed::Range(range)) => {
            assert!(!disk.read_only && shape.readable_bytes == 16);
            assert!(if range == RangeKind::Discard { disk.discard } else { disk.write_zeroes });
        }
        Err(reason) => refused(reason, &disk),
    }
    ranges(&chain, &disk);
});

/// The payload of a range may be anything, whatever the chain was.
fn ranges(chain: &Chain, disk: &Geometry) {
    let flags = match chain.range_flags {
        Flags::None => 0,
        Flags::Unmap => 1,
        Flags::Any(flags) => flags,
    };
    let mut payload = [0; 16];
    payload[..8].copy_from_slice(&chain.range_sector.value().to_le_bytes());
    payload[8..12].copy_from_slice(&chain.range_nr_sectors.to_le_bytes());
    payload[12..].copy_from_slice(&flags.to_le_bytes());
    for kind in [RangeKind::Discard, RangeKind::WriteZeroes] {
        match parse_range(kind, chain.ioprio, payload, disk) {
            Ok(request) => {
                let zeroes = kind == RangeKind::WriteZeroes;
                assert_eq!(request.op, if zeroes { Op::WriteZeroes } else { Op::Discard });
                assert!(flags == 0 || (zeroes && flags == 1 && request.unmap));
                assert_eq!(request.nr_sectors, chain.range_nr_sectors);
                assert_eq!(request.sector, chain.range_sector.value());
                // Whether the disk may change was settled by the chain's shape.
                check(&request, &Geometry { read_only: false, ..*disk });
            }
            Err(reason) => refused(reason, disk),
        }
    }
}

fn check(request: &Request, disk: &Geometry) {
    let length = u64::from(request.nr_sectors);
    assert!(length > 0);
    assert!(request.sector.checked_add(length).is_some_and(|end| end <= disk.sectors));
    let block = u64::from(disk.block_bytes / 512);
    assert!(request.sector.is_multiple_of(block) && length.is_multiple_of(block));
    assert!(!(disk.read_only && request.op.is_write()));
}

fn refused(reason: Malformed, disk: &Geometry) {
    assert_ne!(reason.status(), Status::Ok);
    if reason == Malformed::ReadOnly {
        assert!(disk.read_only);
    }
    assert_ne!(reason.to_string(), "");
}
