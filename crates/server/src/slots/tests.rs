//! Transfers step by step, and against a real file.

use std::fs;
use std::time::Duration;

use evenkeel_engine::{DiskId, Precedence};

use super::*;
use crate::backend::{Backend, Source};
use crate::uring::{Event, Wait};

const ALIGNED: Alignment = Alignment { memory: 512, length: 512 };

fn command(op: DeviceOp, sector: u64, nr_sectors: u32) -> Command {
    let tag = Tag(0);
    let disk = DiskId(0);
    Command {
        tag,
        disk,
        op,
        sector,
        pos: sector,
        nr_sectors,
        skip_sectors: 0,
        durable: false,
        unmap: false,
        precedence: Precedence::Ordinary,
    }
}

fn transfer(command: &Command, segments: &[iovec]) -> Transfer {
    let mut transfer = Transfer::default();
    transfer.begin(command, 0);
    transfer.segments.extend_from_slice(segments);
    transfer
}

fn segment(address: usize, iov_len: usize) -> iovec {
    iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len }
}

/// Offset, and addresses with lengths, of a read.
fn shape(step: &Step<'_>) -> (u64, Vec<(usize, usize)>) {
    let Step::Read { offset, segments, .. } = *step else { panic!("a read: {step:?}") };
    (offset, segments.iter().map(|one| (one.iov_base.addr(), one.iov_len)).collect())
}

fn mode(step: &Step<'_>) -> i32 {
    let Step::Allocate { mode, .. } = *step else { panic!("an allocation: {step:?}") };
    mode & !libc::FALLOC_FL_KEEP_SIZE
}

#[test]
fn a_short_transfer_goes_on_where_it_ended() {
    let segments = [segment(0x1000, 512), segment(0x4000, 1024)];
    let mut read = transfer(&command(DeviceOp::Read, 8, 3), &segments);
    assert_eq!(shape(&read.step()), (4096, vec![(0x1000, 512), (0x4000, 1024)]));
    assert_eq!(read.advance(1024), Progress::Again);
    assert_eq!(shape(&read.step()), (5120, vec![(0x4200, 512)]));
    assert_eq!(read.advance(-libc::EINTR), Progress::Again);
    assert_eq!(shape(&read.step()), (5120, vec![(0x4200, 512)]));
    assert_eq!(read.advance(512), Progress::Done(Ok(())));
}

#[test]
fn a_piece_uses_its_part_of_the_memory_of_its_request() {
    let segments = [segment(0x1000, 1024), segment(0x4000, 512), segment(0x8000, 2560)];
    let pieces = [
        (0, 2, vec![(0x1000, 1024)]),
        (0, 1, vec![(0x1000, 512)]),
        (1, 4, vec![(0x1200, 512), (0x4000, 512), (0x8000, 1024)]),
        (2, 1, vec![(0x4000, 512)]),
        (5, 3, vec![(0x8400, 1536)]),
    ];
    for (skip, nr_sectors, expected) in pieces {
        let mut read = transfer(&command(DeviceOp::Read, 8 + skip, nr_sectors), &segments);
        read.cut(skip * SECTOR_BYTES);
        assert_eq!(shape(&read.step()), ((8 + skip) * SECTOR_BYTES, expected));
    }
}

#[test]
fn more_segments_than_a_call_takes_go_in_several_calls() {
    let segments: Vec<_> = (0..1500).map(|page| segment(0x10_0000 + 4096 * page, 512)).collect();
    let mut read = transfer(&command(DeviceOp::Read, 0, 1500), &segments);
    assert_eq!(shape(&read.step()).1.len(), IOV_MAX);
    assert_eq!(read.advance(512 * 1024), Progress::Again);
    assert_eq!(shape(&read.step()).1.len(), 1500 - IOV_MAX);
}

#[test]
fn a_priority_that_the_kernel_refuses_is_given_up_and_not_the_request() {
    let command = command(DeviceOp::Read, 0, 1);
    let mut read = transfer(&command, &[segment(0x1000, 512)]);
    read.begin(&command, 0x2000);
    assert_eq!(read.advance(-libc::EPERM), Progress::Again);
    assert!(matches!(read.step(), Step::Read { ioprio: 0, .. }));
    assert_eq!(read.advance(-libc::EPERM), Progress::Done(Err(Errno(libc::EPERM))));
}

#[test]
fn an_image_that_was_cut_is_an_error() {
    let mut read = transfer(&command(DeviceOp::Read, 0, 1), &[segment(0x1000, 512)]);
    assert_eq!(read.advance(0), Progress::Done(Err(Errno(libc::EIO))));
}

#[test]
fn zeroes_that_must_stay_allocated_are_punched_and_reserved_where_nothing_better_exists() {
    let mut zero = transfer(&command(DeviceOp::WriteZeroes, 0, 8), &[]);
    assert_eq!(mode(&zero.step()), libc::FALLOC_FL_ZERO_RANGE);
    assert_eq!(zero.advance(-libc::EOPNOTSUPP), Progress::Again);
    assert_eq!(mode(&zero.step()), libc::FALLOC_FL_PUNCH_HOLE);
    assert_eq!(zero.advance(0), Progress::Again);
    assert_eq!(mode(&zero.step()), 0);
    assert_eq!(zero.advance(0), Progress::Done(Ok(())));
}

#[test]
fn zeroes_are_unsupported_only_if_both_ways_are() {
    for unmap in [false, true] {
        let order = Command { unmap, ..command(DeviceOp::WriteZeroes, 0, 8) };
        let mut zero = transfer(&order, &[]);
        assert_eq!(zero.advance(-libc::EOPNOTSUPP), Progress::Again);
        let end = zero.advance(-libc::EOPNOTSUPP);
        assert_eq!(end, Progress::Done(Err(Errno::EOPNOTSUPP)));
    }
}

#[test]
fn a_discard_that_the_backend_does_not_know_is_no_error() {
    let mut discard = transfer(&command(DeviceOp::Discard, 0, 8), &[]);
    assert_eq!(mode(&discard.step()), libc::FALLOC_FL_PUNCH_HOLE);
    assert_eq!(discard.advance(-libc::EOPNOTSUPP), Progress::Done(Ok(())));
}

#[test]
fn a_durable_range_ends_with_a_sync() {
    let order = Command { durable: true, unmap: true, ..command(DeviceOp::WriteZeroes, 0, 8) };
    let mut zero = transfer(&order, &[]);
    assert_eq!(zero.advance(0), Progress::Again);
    assert!(matches!(zero.step(), Step::Sync));
    assert_eq!(zero.advance(0), Progress::Done(Ok(())));
}

/// A file and a ring to try transfers on.
struct Bench {
    path: std::path::PathBuf,
    ring: Ring,
    slots: Slots,
    backend: Backend,
}

impl Bench {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        let create = Some(8 << 20);
        let source = Source::Path { path: path.clone(), create, preallocate: false };
        let backend = Backend::open(&source, false, Duration::ZERO).unwrap();
        let ring = Ring::new(&[backend.raw_fd()], None).unwrap();
        Self { path, ring, slots: Slots::default(), backend }
    }

    fn run(&mut self, order: &Command, segments: &[iovec]) -> Result<(), Errno> {
        let origin = Origin { vring: 0, head: 0, written: 0 };
        self.slots.open(order.tag, origin, &mut segments.to_vec());
        // At least what a disk demands, even if the file system would take more.
        let have = self.backend.alignment();
        let alignment = Alignment { memory: have.memory.max(512), length: have.length.max(512) };
        self.slots.begin(order, std::iter::once(order.tag), alignment, false);
        self.slots.send(&mut self.ring, order.tag).unwrap();
        loop {
            self.ring.enter(Wait::Forever).unwrap();
            let mut events = Vec::new();
            self.ring.reap(&mut events);
            for event in events {
                let Event::Io { tag, result } = event else { panic!("no poll: {event:?}") };
                match self.slots.reap(tag, result) {
                    Progress::Again => self.slots.send(&mut self.ring, tag).unwrap(),
                    Progress::Done(outcome) => {
                        self.slots.close(tag);
                        return outcome;
                    }
                }
            }
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        fs::remove_file(&self.path).unwrap();
    }
}

/// Cuts memory into segments of odd lengths that start at an odd address.
fn cut(bytes: &mut [u8], length: usize) -> Vec<iovec> {
    bytes
        .chunks_mut(length)
        .map(|chunk| iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: chunk.len() })
        .collect()
}

#[test]
fn misaligned_guest_memory_is_carried_over_longer_than_one_bounce_buffer() {
    let mut bench = Bench::new("bounce");
    // Three pieces, the last one short.
    let nr_sectors = u32::try_from(2 * BOUNCE_BYTES / 512 + 3).unwrap();
    let bytes = nr_sectors as usize * 512;
    let mut data: Vec<u8> = (0..=250).cycle().step_by(7).take(bytes + 1).collect();
    let expected = data[1..].to_vec();
    let order = command(DeviceOp::Write, 5, nr_sectors);
    assert_eq!(bench.run(&order, &cut(&mut data[1..], 99_991)), Ok(()));
    let image = fs::read(&bench.path).unwrap();
    assert!(image[5 * 512..5 * 512 + bytes] == expected[..]);

    let mut back = vec![0; bytes + 1];
    let order = command(DeviceOp::Read, 5, nr_sectors);
    assert_eq!(bench.run(&order, &cut(&mut back[1..], 7_919)), Ok(()));
    assert!(back[1..] == expected[..]);
    assert_eq!(bench.slots.spare.len(), 1, "the bounce buffer is used again");
}

#[test]
fn punched_blocks_read_as_zero_and_their_neighbours_stay() {
    let mut bench = Bench::new("punch");
    let mut data = vec![9_u8; 64 << 10];
    assert_eq!(bench.run(&command(DeviceOp::Write, 0, 128), &cut(&mut data, 64 << 10)), Ok(()));
    let order = Command { unmap: true, ..command(DeviceOp::WriteZeroes, 16, 32) };
    assert_eq!(bench.run(&order, &[]), Ok(()));
    assert_eq!(bench.run(&command(DeviceOp::WriteZeroes, 64, 8), &[]), Ok(()));
    assert_eq!(bench.run(&command(DeviceOp::Flush, 0, 0), &[]), Ok(()));
    let image = fs::read(&bench.path).unwrap();
    for (sector, bytes) in image.chunks(512).take(128).enumerate() {
        let zero = (16..48).contains(&sector) || (64..72).contains(&sector);
        assert!(bytes.iter().all(|&byte| byte == if zero { 0 } else { 9 }), "sector {sector}");
    }
}

#[test]
fn aligned_memory_goes_without_a_copy() {
    let pages = Bounce::new();
    let mut aligned = Transfer::default();
    aligned.begin(&command(DeviceOp::Read, 0, 2), 0);
    aligned.segments.push(segment(pages.0.as_ptr().addr(), 1024));
    assert!(aligned.is_aligned(ALIGNED));
    aligned.segments[0] = segment(pages.0.as_ptr().addr() + 4, 1024);
    assert!(!aligned.is_aligned(ALIGNED));
    assert!(aligned.is_aligned(Alignment { memory: 4, length: 512 }));
    aligned.segments[0] = segment(pages.0.as_ptr().addr(), 1000);
    assert!(!aligned.is_aligned(ALIGNED));
}
