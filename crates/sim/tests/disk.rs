//! The hard disk keeps the promises of `docs/devices.md`.
#![expect(clippy::cast_precision_loss, reason = "figures for comparison")]

mod common;

use common::{Measured, build, io, random, run, sequential};
use evenkeel_sched::{Nanos, Tag};
use evenkeel_sim::{DeviceModel, IoOp, Model};

/// 128 KiB and 4 MiB in sectors.
const LARGE: u32 = 256;
const RUN: u64 = 8_192;

fn assert_near(value: f64, expected: f64, part: f64) {
    assert!((value / expected - 1.0).abs() <= part, "{value} instead of {expected} +-{part}");
}

/// Reads a single command and returns how long it took.
fn time_of(device: &mut Model, now: Nanos, op: IoOp, pos: u64, nr_sectors: u32) -> Nanos {
    device.submit(now, Tag(0), &io(op, pos, nr_sectors));
    let end = device.next_event().expect("a command is under way");
    assert_eq!(device.complete(end), Some(Tag(0)));
    end - now
}

#[test]
fn sequential_reads_reach_the_measured_rate() {
    let measured = sequential(&mut build("hdd"), IoOp::Read, 1, LARGE, 2_000);
    assert_near(measured.mbps(), 10.0, 0.02);
    let faster = sequential(&mut build("hdd:rate_kbps=40000"), IoOp::Read, 1, LARGE, 2_000);
    assert_near(faster.mbps(), 40.0, 0.02);
}

#[test]
fn sequential_writes_reach_the_rate_through_the_cache_and_lose_turns_without_it() {
    let cached = sequential(&mut build("hdd"), IoOp::Write, 1, LARGE, 2_000);
    assert_near(cached.mbps(), 10.0, 0.02);
    // Each command misses its angle: 128 KiB take 13.1 ms of media and, rounded up to whole turns
    // of 14.3 ms and with switches on the way, between one and two turns.
    let through = sequential(&mut build("hdd:write_cache_kib=0"), IoOp::Write, 1, LARGE, 2_000);
    assert!((4.0..8.0).contains(&through.mbps()), "{}", through.mbps());
}

#[test]
fn a_random_read_costs_a_seek_and_half_a_turn() {
    let measured = random(&mut build("hdd"), IoOp::Read, 1, 5_000);
    // Overhead 0.2, seek 15, half a turn 7.14, 8 of about 308 sectors of a turn 0.37 ms. The
    // standard error of 5 000 draws is (5 ms seek, 4.1 ms turn) 0.1 ms, 0.4 %; four of them.
    assert_near(measured.mean_us(), 200.0 + 15_000.0 + 7_143.0 + 370.0, 0.016);
}

#[test]
fn a_deep_queue_shortens_the_way_and_forgets_nobody() {
    // Not derived but required: a queue of 32 is worth well above half of the rate without.
    let alone = random(&mut build("hdd:ncq=32"), IoOp::Read, 1, 3_000).iops();
    for (depth, gain) in [(4, 1.2), (32, 1.7)] {
        let measured = random(&mut build("hdd:ncq=32"), IoOp::Read, depth, 3_000);
        assert!(measured.iops() > alone * gain, "{depth}: {} and {alone}", measured.iops());
        // Behind the age of 1 s only the 31 others can go first, each at most 26 + 15 ms.
        let worst = longest_wait(&measured, depth);
        assert!(worst < Nanos::from_millis(1_000 + 31 * 41), "{depth}: {worst:?}");
    }
    let fifo = random(&mut build("hdd"), IoOp::Read, 32, 500);
    assert!(fifo.history.iter().enumerate().all(|(index, (_, tag))| tag.0 as usize == index));
}

/// In a closed loop, tag n + depth is submitted when the n-th completion comes.
fn longest_wait(measured: &Measured, depth: usize) -> Nanos {
    let submitted = |tag: usize| match tag.checked_sub(depth) {
        Some(earlier) => measured.history[earlier].0,
        None => Nanos::ORIGIN,
    };
    let waits = measured.history.iter().map(|(end, tag)| *end - submitted(tag.0 as usize));
    waits.max().expect("something completed")
}

/// Two sequential readers take turns after every `turn` sectors.
fn two_readers(device: &mut Model, turn: u64) -> f64 {
    let mut heads = [1_000_000, 80_000_000];
    let mut done = 0;
    run(device, Nanos::ORIGIN, 1, |_| {
        let reader = usize::from(done / turn % 2 == 1);
        let io = io(IoOp::Read, heads[reader], LARGE);
        heads[reader] += u64::from(LARGE);
        done += u64::from(LARGE);
        (done <= 40 * RUN).then_some(io)
    })
    .mbps()
}

#[test]
fn longer_turns_of_two_readers_waste_less_of_the_disk() {
    let short = two_readers(&mut build("hdd"), u64::from(LARGE));
    let long = two_readers(&mut build("hdd"), RUN);
    // 128 KiB take 13.1 ms; a switch over two thirds of the disk 3 + 21.7 * sqrt(2/3) + 0.9 =
    // 21.6 ms, and half a turn, 7.1 ms. Half a turn is a mean over few angles: 10 %.
    assert_near(short, 10.0 * 13.1 / (13.1 + 0.2 + 21.6 + 7.1), 0.15);
    assert_near(long, 10.0 * 419.4 / (419.4 + 0.2 + 21.6 + 7.1), 0.03);
}

#[test]
fn the_head_reads_ahead_while_nobody_asks() {
    let mut hdd = build("hdd");
    let start = Nanos::ORIGIN;
    let first = time_of(&mut hdd, start, IoOp::Read, 1_000_000, LARGE);
    let later = start + first + Nanos::from_millis(500);
    // From the buffer: overhead and 128 KiB at 100 MB/s.
    let second = time_of(&mut hdd, later, IoOp::Read, 1_000_256, LARGE);
    assert_eq!(second, Nanos(200_000 + 1_310_720));
    // A small gap is skipped, and the head goes on behind it.
    assert!(time_of(&mut hdd, later + second, IoOp::Read, 1_000_600, 8) < Nanos::from_millis(30));
    let again = later + Nanos::from_millis(500);
    assert_eq!(time_of(&mut hdd, again, IoOp::Read, 1_000_608, 8), Nanos(240_960));
}

#[test]
fn several_streams_are_remembered_and_one_too_many_is_not() {
    for (streams, remembered) in [(6, true), (7, false)] {
        let mut hdd = build("hdd");
        let mut now = Nanos::ORIGIN;
        for round in 0..2 {
            for stream in 0..streams {
                let pos = stream * 10_000_000 + round * 64;
                let took = time_of(&mut hdd, now, IoOp::Read, pos, 64);
                if round == 1 {
                    assert_eq!(took < Nanos::from_millis(1), remembered, "{streams} {stream}");
                }
                now = now + took + Nanos::from_millis(400);
            }
        }
    }
}

#[test]
fn a_flush_waits_until_the_cache_is_on_the_platter() {
    let mut hdd = build("hdd");
    let mut now = Nanos::ORIGIN;
    for index in 0..8 {
        let took = time_of(&mut hdd, now, IoOp::Write, index * 12_000_000, 8);
        assert!(took < Nanos::from_millis(1), "write {index} waited {took:?}");
        now += took;
    }
    let flush = time_of(&mut hdd, now, IoOp::Flush, 0, 0);
    // Eight places, each at least the shortest seek away; the first is under way already.
    assert!(flush > Nanos::from_millis(7 * 3), "{flush:?}");
    assert_eq!(time_of(&mut hdd, now + flush, IoOp::Flush, 0, 0), Nanos::from_micros(200));
}

#[test]
fn the_cache_empties_itself_while_the_disk_is_idle() {
    let mut hdd = build("hdd");
    let mut now = Nanos::ORIGIN;
    for index in 0..8 {
        now += time_of(&mut hdd, now, IoOp::Write, index * 12_000_000, 8);
    }
    now += Nanos::from_secs(1);
    assert_eq!(time_of(&mut hdd, now, IoOp::Flush, 0, 0), Nanos::from_micros(200));
}

#[test]
fn a_durable_write_goes_to_the_platter_and_cached_data_is_read_from_the_cache() {
    let mut hdd = build("hdd");
    time_of(&mut hdd, Nanos::ORIGIN, IoOp::Read, 0, 8);
    let now = Nanos::ORIGIN + Nanos::from_secs(1);
    let cached = time_of(&mut hdd, now, IoOp::Write, 50_000_000, 8);
    assert_eq!(cached, Nanos(200_000 + 40_960));
    assert_eq!(time_of(&mut hdd, now + cached, IoOp::Read, 50_000_000, 8), cached);
    let now = now + Nanos::from_secs(1);
    let durable = evenkeel_sim::Io { durable: true, ..io(IoOp::Write, 100_000_000, 8) };
    hdd.submit(now, Tag(9), &durable);
    assert!(hdd.next_event().expect("a command is under way") - now > Nanos::from_millis(3));
}

#[test]
fn inner_zones_are_slower() {
    let mut hdd = build("hdd:inner_percent=50");
    let outer = sequential(&mut hdd, IoOp::Read, 1, LARGE, 500).mbps();
    let mut pos = hdd.sectors().unwrap() - 1_000_000;
    let mut left = 500;
    let inner = run(&mut hdd, Nanos::ORIGIN + Nanos::from_secs(99), 1, |_| {
        left -= 1;
        pos += u64::from(LARGE);
        (left > 0).then(|| io(IoOp::Read, pos, LARGE))
    });
    assert_near(outer, 10.0, 0.02);
    assert_near(inner.mbps(), 5.0, 0.03);
}
