//! The flash devices keep the promises of `docs/devices.md`.
#![expect(clippy::cast_precision_loss, reason = "figures for comparison")]

mod common;

use common::{build, io, random, run, sequential};
use evenkeel_sched::{Nanos, Tag};
use evenkeel_sim::{DeviceModel, Io, IoOp, Model};

const LARGE: u32 = 256;

fn assert_near(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() <= part, "{value} instead of {expected} +-{part}");
}

fn time_of(device: &mut Model, now: Nanos, io: &Io) -> Nanos {
    device.submit(now, Tag(0), io);
    let end = device.next_event().expect("a command is under way");
    assert_eq!(device.complete(end), Some(Tag(0)));
    end - now
}

#[test]
fn sequential_rates_are_the_stated_ones() {
    let cases = [
        ("sdhc", 1, 16.0, 8.0),
        ("sdhc:read_kbps=20000,write_kbps=10000", 1, 20.0, 10.0),
        ("emmc", 1, 70.0, 20.0),
        ("ssd", 32, 500.0, 450.0),
        ("nvme", 256, 3_000.0, 2_000.0),
    ];
    for (spec, depth, read, write) in cases {
        let count = 20_000;
        let reads = sequential(&mut build(spec), IoOp::Read, depth, LARGE, count).mbps();
        assert_near(reads, read, 0.02);
        let writes = sequential(&mut build(spec), IoOp::Write, depth, LARGE, count).mbps();
        // What is still in the cache at the end counts as written.
        let cached = match spec {
            "ssd" => 32.0,
            "nvme" => 128.0,
            _ => 0.5,
        };
        assert_near(writes, write, 0.02 + cached / (count as f64 / 8.0 - cached));
    }
}

#[test]
fn one_random_read_takes_the_stated_time() {
    let cases = [("sdhc", 950.0), ("emmc", 305.0), ("ssd", 90.0), ("nvme", 80.0)];
    for (spec, us) in cases {
        let measured = random(&mut build(spec), IoOp::Read, 1, 1_000);
        assert_near(measured.mean_us(), us, 0.03);
    }
}

#[test]
fn random_reads_grow_with_depth_until_the_ways_are_busy() {
    for (spec, most, ways, busy_us) in [("ssd", 32, 8.0, 70.24), ("nvme", 256, 16.0, 67.4)] {
        let rate = |depth| random(&mut build(spec), IoOp::Read, depth, 40_000).iops();
        assert_near(rate(2) / rate(1), 2.0, 0.1);
        assert!(rate(8) > 4.0 * rate(1), "{spec}: {} and {}", rate(1), rate(8));
        let full = rate(most);
        // All ways busy all the time is the bound; draws are uneven, and cost at most a third.
        let bound = ways * 1e6 / busy_us;
        assert!((bound * 0.67..=bound).contains(&full), "{spec}: {full} of {bound}");
        assert_near(rate(2 * most), full, 0.01);
    }
    for spec in ["sdhc", "emmc"] {
        let rate = |depth| random(&mut build(spec), IoOp::Read, depth, 1_000).iops();
        assert_near(rate(8), rate(1), 0.001);
    }
}

#[test]
fn random_writes_cost_what_the_allocation_units_cost() {
    // Sustained, so long enough for the caches: per write its own bytes and the price of a unit.
    let cases = [("sdhc", 1, 300, 9.9), ("emmc", 1, 3_000, 312.0), ("ssd", 32, 400_000, 70_800.0)];
    for (spec, depth, count, iops) in cases {
        let measured = random(&mut build(spec), IoOp::Write, depth, count);
        assert_near(measured.iops(), iops, 0.04);
    }
    // Within one unit the card copies less.
    let (mut left, mut draw) = (300, common::Random(7));
    let near = run(&mut build("sdhc"), Nanos::ORIGIN, 1, |_| {
        left -= 1;
        (left > 0).then(|| io(IoOp::Write, draw.below(1_024) * 8, 8))
    });
    assert!((90.0..130.0).contains(&near.iops()), "{}", near.iops());
}

#[test]
fn a_flush_waits_for_the_cache() {
    for spec in ["emmc", "ssd", "nvme"] {
        let mut device = build(spec);
        let empty = time_of(&mut device, Nanos::ORIGIN, &io(IoOp::Flush, 0, 0));
        let now = Nanos::ORIGIN + Nanos::from_secs(1);
        let write = time_of(&mut device, now, &io(IoOp::Write, 0, 8 * LARGE));
        let flush = time_of(&mut device, now + write, &io(IoOp::Flush, 0, 0));
        assert!(flush > empty, "{spec}: {flush:?} and {empty:?}");
        let later = now + Nanos::from_secs(1);
        assert_eq!(time_of(&mut device, later, &io(IoOp::Flush, 0, 0)), empty, "{spec}");
        let durable = Io { durable: true, ..io(IoOp::Write, 0, 8) };
        let cached = time_of(&mut device, later + empty, &io(IoOp::Write, 8_000_000, 8));
        let later = later + Nanos::from_secs(1);
        assert!(time_of(&mut device, later, &durable) > cached, "{spec}");
    }
}

#[test]
fn reads_find_chips_busy_with_writes() {
    let mut ssd = build("ssd");
    let mut draw = common::Random(3);
    let (mut left, mut reads) = (40_000, 0);
    let mixed = run(&mut ssd, Nanos::ORIGIN, 2, |_| {
        left -= 1;
        let op = if left % 2 == 0 { IoOp::Read } else { IoOp::Write };
        reads += u64::from(op == IoOp::Read);
        (left > 0).then(|| io(op, draw.below(100_000_000) * 8, 8))
    });
    assert_eq!(reads, 20_000);
    let pure = random(&mut build("ssd"), IoOp::Read, 2, 20_000);
    assert!(mixed.elapsed > pure.elapsed, "{:?} and {:?}", mixed.elapsed, pure.elapsed);
}

#[test]
fn small_discards_cost_little_and_large_ones_by_the_unit() {
    let mut emmc = build("emmc");
    let small = time_of(&mut emmc, Nanos::ORIGIN, &io(IoOp::Discard, 0, 8));
    assert_eq!(small, Nanos::from_micros(650));
    let large = time_of(&mut emmc, Nanos::ORIGIN + small, &io(IoOp::Discard, 0, 4 * 8_192));
    assert_eq!(large, Nanos::from_micros(150 + 4 * 500));
}
