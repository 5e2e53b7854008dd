//! Chains that no honest driver builds.

use evenkeel_bench::client::vring::{Descriptor, INDIRECT, NEXT, Vring, WRITE};
use evenkeel_bench::client::{Client, GUEST_BASE, Options};

use crate::arena::{Arena, DISK_BYTES, Fate, descriptor, submit};

const IO_ERROR: Fate = Fate::Status(1);
const UNSUPPORTED: Fate = Fate::Status(2);
const LAST_SECTOR: u64 = DISK_BYTES / 512 - 1;

/// Guest addresses of slot 0: header, status and data.
fn places(client: &mut Client) -> (u64, u64, u64) {
    let vring = client.vring(0);
    let (header, data) = (vring.header_at(0), vring.data_at(0));
    (Vring::address(header), Vring::address(header + 16), Vring::address(data))
}

/// Writes a header into slot 0 and marks its status byte as not answered.
fn header(client: &mut Client, kind: u32, sector: u64) {
    let at = client.vring(0).header_at(0);
    let mut bytes = [0; 17];
    bytes[0..4].copy_from_slice(&kind.to_le_bytes());
    bytes[8..16].copy_from_slice(&sector.to_le_bytes());
    bytes[16] = 0xff;
    client.memory().write(at, &bytes);
}

fn submit_chain(client: &mut Client, chain: &[Descriptor]) -> Fate {
    let table = client.vring(0).layout().descriptors;
    for (index, descriptor) in (0..).zip(chain) {
        client.vring(0).set_descriptor(table, index, *descriptor);
    }
    submit(client, 0)
}

/// Submits a well-formed chain with this type, sector and data length and returns its fate.
fn submit_io(client: &mut Client, kind: u32, sector: u64, bytes: u32) -> Fate {
    let (head, status, data) = places(client);
    header(client, kind, sector);
    let flags = if kind == 0 || kind == 8 { NEXT | WRITE } else { NEXT };
    submit_chain(
        client,
        &[
            descriptor(head, 16, NEXT, 1),
            descriptor(data, bytes, flags, 2),
            descriptor(status, 1, WRITE, 0),
        ],
    )
}

#[test]
fn a_chain_without_a_status_byte_is_given_back_empty() {
    let arena = Arena::new("no-status");
    let mut client = arena.connect();
    let (head, _status, data) = places(&mut client);
    header(&mut client, 1, 0);
    let chain = [descriptor(head, 16, NEXT, 1), descriptor(data, 512, 0, 0)];
    assert_eq!(submit_chain(&mut client, &chain), Fate::Dropped);
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn a_header_that_is_too_short_is_an_error() {
    let arena = Arena::new("short-header");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    for len in [0, 1, 8, 15] {
        header(&mut client, 0, 0);
        let chain = [descriptor(head, len, NEXT, 1), descriptor(status, 1, WRITE, 0)];
        assert_eq!(submit_chain(&mut client, &chain), IO_ERROR, "{len} bytes of header");
    }
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn a_header_that_only_the_device_may_write_is_an_error() {
    let arena = Arena::new("write-only-header");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    header(&mut client, 0, 0);
    let chain = [descriptor(head, 16, NEXT | WRITE, 1), descriptor(status, 1, WRITE, 0)];
    assert_eq!(submit_chain(&mut client, &chain), IO_ERROR);
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn readable_descriptors_behind_writable_ones_are_an_error() {
    let arena = Arena::new("readable-after-writable");
    let mut client = arena.connect();
    let (head, status, data) = places(&mut client);
    header(&mut client, 0, 0);
    let chain = [
        descriptor(head, 16, NEXT, 1),
        descriptor(data, 512, NEXT | WRITE, 2),
        descriptor(data + 512, 512, NEXT, 3),
        descriptor(status, 1, WRITE, 0),
    ];
    let fate = submit_chain(&mut client, &chain);
    assert!([IO_ERROR, Fate::Dropped, Fate::Stopped].contains(&fate), "{fate:?}");
    drop(client);
    arena.finish();
}

#[test]
fn a_chain_that_never_ends_stops_the_vring() {
    let arena = Arena::new("loop");
    for (first, second) in [(1, 0), (0, 0), (1, 1)] {
        let mut client = arena.connect();
        let (head, _status, data) = places(&mut client);
        header(&mut client, 0, 0);
        let chain =
            [descriptor(head, 16, NEXT, first), descriptor(data, 512, NEXT | WRITE, second)];
        assert_eq!(submit_chain(&mut client, &chain), Fate::Stopped);
    }
    arena.finish();
}

#[test]
fn a_descriptor_index_out_of_range_stops_the_vring() {
    let arena = Arena::new("next-out-of-range");
    for next in [64, 65, 5000, u16::MAX] {
        let mut client = arena.connect();
        let (head, _status, _data) = places(&mut client);
        header(&mut client, 0, 0);
        let fate = submit_chain(&mut client, &[descriptor(head, 16, NEXT, next)]);
        assert_eq!(fate, Fate::Stopped, "next {next}");
    }
    arena.finish();
}

#[test]
fn a_head_out_of_range_stops_the_vring() {
    let arena = Arena::new("head-out-of-range");
    for head in [64, 1000, u16::MAX] {
        let mut client = arena.connect();
        assert_eq!(submit(&mut client, head), Fate::Stopped, "head {head}");
    }
    arena.finish();
}

#[test]
fn data_outside_the_memory_is_an_error_of_that_request() {
    let arena = Arena::new("address-outside");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    let end = GUEST_BASE + client.memory().len() as u64;
    let cases = [
        (0, 512),
        (end, 512),
        (end - 511, 512),
        (end - 512, u32::MAX),
        (u64::MAX, 512),
        (u64::MAX - 511, 512),
        (GUEST_BASE - 1, 512),
    ];
    for (address, len) in cases {
        header(&mut client, 0, 0);
        let chain = [
            descriptor(head, 16, NEXT, 1),
            descriptor(address, len, NEXT | WRITE, 2),
            descriptor(status, 1, WRITE, 0),
        ];
        assert_eq!(submit_chain(&mut client, &chain), IO_ERROR, "{len} bytes at {address:#x}");
    }
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn a_header_or_status_outside_the_memory_is_an_error_or_given_back() {
    let arena = Arena::new("header-outside");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    header(&mut client, 0, 0);
    let chain = [descriptor(1, 16, NEXT, 1), descriptor(status, 1, WRITE, 0)];
    assert_eq!(submit_chain(&mut client, &chain), IO_ERROR);
    header(&mut client, 0, 0);
    let chain = [descriptor(head, 16, NEXT, 1), descriptor(1, 1, WRITE, 0)];
    assert_eq!(submit_chain(&mut client, &chain), Fate::Dropped);
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn lengths_that_are_no_whole_sectors_are_errors() {
    let arena = Arena::new("lengths");
    let mut client = arena.connect();
    for kind in [0, 1] {
        for bytes in [1, 511, 513, 4095, 0x1001] {
            assert_eq!(submit_io(&mut client, kind, 0, bytes), IO_ERROR, "{bytes} bytes");
        }
    }
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn a_request_without_data_is_answered() {
    let arena = Arena::new("no-data");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    for kind in [0, 1, 8, 11, 13] {
        header(&mut client, kind, 0);
        let chain = [descriptor(head, 16, NEXT, 1), descriptor(status, 1, WRITE, 0)];
        let fate = submit_chain(&mut client, &chain);
        assert!(matches!(fate, Fate::Status(0..=2)), "type {kind}: {fate:?}");
    }
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn gigabytes_of_the_same_memory_are_an_error() {
    let arena = Arena::new("gigabytes");
    let mut client = arena.connect();
    let (head, status, _data) = places(&mut client);
    let len = u32::try_from(client.memory().len()).unwrap();
    header(&mut client, 1, 0);
    // Sixty times all of the memory: more than the disk holds.
    let mut chain = vec![descriptor(head, 16, NEXT, 1)];
    chain.extend((2..62).map(|next| descriptor(GUEST_BASE, len, NEXT, next)));
    chain.push(descriptor(status, 1, WRITE, 0));
    assert_eq!(submit_chain(&mut client, &chain), IO_ERROR);
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn sectors_beyond_the_end_are_errors() {
    let arena = Arena::new("sectors");
    let mut client = arena.connect();
    for kind in [0, 1] {
        for (sector, bytes) in [
            (LAST_SECTOR, 1024),
            (LAST_SECTOR + 1, 512),
            (1 << 55, 512),
            (u64::MAX, 512),
            (u64::MAX, 1024),
            (u64::MAX - 7, 4096),
            (u64::MAX / 512 + 1, 512),
        ] {
            let fate = submit_io(&mut client, kind, sector, bytes);
            assert_eq!(fate, IO_ERROR, "type {kind}, {bytes} bytes at sector {sector}");
        }
    }
    assert_eq!(submit_io(&mut client, 0, LAST_SECTOR, 512), Fate::Status(0), "the last sector");
    drop(client);
    arena.finish();
}

#[test]
fn ranges_that_lie_are_errors() {
    let arena = Arena::new("ranges");
    let mut client = arena.connect();
    for kind in [11, 13] {
        for (sector, sectors, flags) in [
            (LAST_SECTOR, 2, 0),
            (u64::MAX, 1, 0),
            (u64::MAX, u32::MAX, 0),
            (0, u32::MAX, 0),
            (0, 8, 0xffff_fffe),
        ] {
            let mut range = [0; 16];
            range[0..8].copy_from_slice(&u64::to_le_bytes(sector));
            range[8..12].copy_from_slice(&u32::to_le_bytes(sectors));
            range[12..16].copy_from_slice(&u32::to_le_bytes(flags));
            let data = client.vring(0).data_at(0);
            client.memory().write(data, &range);
            let fate = submit_io(&mut client, kind, 0, 16);
            let honest = [IO_ERROR, UNSUPPORTED];
            assert!(honest.contains(&fate), "{sectors} at {sector}, flags {flags:#x}: {fate:?}");
        }
        for bytes in [1, 8, 15, 17, 31, 4096, 16384] {
            let fate = submit_io(&mut client, kind, 0, bytes);
            let honest = [IO_ERROR, UNSUPPORTED];
            assert!(honest.contains(&fate), "{bytes} bytes of ranges: {fate:?}");
        }
    }
    assert_eq!(submit_io(&mut client, 0, 0, 512), Fate::Status(0), "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn unknown_types_are_unsupported() {
    let arena = Arena::new("types");
    let mut client = arena.connect();
    for kind in [2, 3, 7, 14, 15, 24, 255, 1 << 16, 1 << 31, u32::MAX] {
        assert_eq!(submit_io(&mut client, kind, 0, 512), UNSUPPORTED, "type {kind}");
    }
    drop(client);
    arena.finish();
}

#[test]
fn an_identity_fits_into_whatever_room_there_is() {
    let arena = Arena::new("identity");
    let mut client = arena.connect();
    for bytes in [1, 19, 20, 21, 4096] {
        let fate = submit_io(&mut client, 8, 0, bytes);
        assert!(matches!(fate, Fate::Status(0..=2)), "{bytes} bytes: {fate:?}");
    }
    drop(client);
    arena.finish();
}

fn indirect() -> Options {
    Options { indirect: true, ..Arena::options() }
}

/// Submits an indirect table of these descriptors, with what it claims to be.
fn submit_table(client: &mut Client, table: &[Descriptor], claim: Descriptor) -> Fate {
    let at = client.vring(0).data_at(1);
    for (index, descriptor) in (0..).zip(table) {
        client.vring(0).set_descriptor(at, index, *descriptor);
    }
    submit_chain(client, &[claim])
}

#[test]
fn an_indirect_table_that_lies_about_its_size_stops_the_vring() {
    let arena = Arena::new("indirect-size");
    for len in [0, 1, 15, 17, 47, 1 << 21, u32::MAX - 15, u32::MAX] {
        let mut client = arena.connect_with(indirect());
        let (head, status, _data) = places(&mut client);
        let table = Vring::address(client.vring(0).data_at(1));
        header(&mut client, 4, 0);
        let chain = [descriptor(head, 16, NEXT, 1), descriptor(status, 1, WRITE, 0)];
        let fate = submit_table(&mut client, &chain, descriptor(table, len, INDIRECT, 0));
        assert_eq!(fate, Fate::Stopped, "{len} bytes");
    }
    arena.finish();
}

#[test]
fn an_indirect_table_outside_the_memory_stops_the_vring() {
    let arena = Arena::new("indirect-outside");
    for table in [0, GUEST_BASE - 16, u64::MAX - 15, u64::MAX] {
        let mut client = arena.connect_with(indirect());
        let fate = submit_chain(&mut client, &[descriptor(table, 32, INDIRECT, 0)]);
        assert_eq!(fate, Fate::Stopped, "table at {table:#x}");
    }
    arena.finish();
}

#[test]
fn an_indirect_table_inside_another_stops_the_vring() {
    let arena = Arena::new("indirect-nested");
    let mut client = arena.connect_with(indirect());
    let table = Vring::address(client.vring(0).data_at(1));
    let claim = descriptor(table, 16, INDIRECT, 0);
    assert_eq!(submit_table(&mut client, &[claim], claim), Fate::Stopped);
    drop(client);
    arena.finish();
}

#[test]
fn an_indirect_table_with_links_that_lead_nowhere_stops_the_vring() {
    let arena = Arena::new("indirect-links");
    for (next, flags) in [(2, INDIRECT), (60, INDIRECT), (0, INDIRECT), (1, INDIRECT | NEXT)] {
        let mut client = arena.connect_with(indirect());
        let (head, status, _data) = places(&mut client);
        let table = Vring::address(client.vring(0).data_at(1));
        header(&mut client, 4, 0);
        let chain = [descriptor(head, 16, NEXT, next), descriptor(status, 1, WRITE, 0)];
        let claim = descriptor(table, 32, flags, 1);
        let fate = submit_table(&mut client, &chain, claim);
        assert_eq!(fate, Fate::Stopped, "next {next}, flags {flags}");
    }
    arena.finish();
}

#[test]
fn an_indirect_table_that_was_not_negotiated_stops_the_vring() {
    let arena = Arena::new("indirect-unasked");
    let mut client = arena.connect();
    let table = Vring::address(client.vring(0).data_at(1));
    let fate = submit_chain(&mut client, &[descriptor(table, 32, INDIRECT, 0)]);
    assert_eq!(fate, Fate::Stopped);
    drop(client);
    arena.finish();
}
