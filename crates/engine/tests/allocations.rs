//! Once warm, the engine allocates nothing for a request, although it explains who waits for whom.

mod common;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{BlockConfig, DiskId, Engine, Token};
use evenkeel_sched::{GroupId, Kind, Nanos, Op, Weight};

/// More than are told apart.
const VMS: u64 = 50;

/// Sends a round of requests through: overlapping writes and flushes wait for one
/// another, and long requests go in pieces.
fn round(engine: &mut Engine, disks: &[DiskId], now: &mut Nanos) {
    for (disk, vm) in disks.iter().zip(0..) {
        for token in 0..4 {
            let op = if token < 2 { Op::Read } else { Op::Write };
            engine.submit(*now, *disk, Token(token), &request(op, vm * 64 + token * 4, 8));
        }
        // In pieces, and behind the others.
        engine.submit(*now, *disk, Token(6), &request(Op::Write, vm * 64, 5000));
        engine.flush(*now, *disk, Token(4));
        engine.flush(*now, *disk, Token(5));
        *now += Nanos::from_micros(7);
    }
    let mut at_device = [None; 4];
    let mut slot = 0;
    while engine.outstanding() > 0 {
        slot = (slot + 1) % at_device.len();
        if let Some(tag) = at_device[slot].take() {
            *now += Nanos::from_micros(50);
            engine.complete(*now, tag, Ok(()));
        } else if let Some(command) = engine.dispatch(*now) {
            at_device[slot] = Some(command.tag);
        } else if at_device.iter().all(Option::is_none) {
            *now = engine.next_deadline().expect("something waits");
        }
        while engine.retire().is_some() {}
    }
}

#[test]
fn a_request_allocates_nothing_once_warm() {
    for kind in Kind::ALL {
        let mut engine = engine_with_blocks(kind, 4, BlockConfig::default());
        engine.govern(true);
        let mut now = Nanos::ORIGIN;
        let disks: Vec<_> = (0..VMS)
            .map(|_| {
                let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
                engine.add_disk(vm, geometry())
            })
            .collect();
        // Some seconds, in which those who are told apart change.
        for _ in 0..300 {
            round(&mut engine, &disks, &mut now);
        }
        let info = allocation_counter::measure(|| {
            for _ in 0..40 {
                round(&mut engine, &disks, &mut now);
            }
        });
        assert_eq!(info.count_total, 0, "{kind} allocated: {info:?}");
        engine.check_invariants();
    }
}

/// Random places on a disk of 2^20 sectors, none adjacent to another.
fn scattered(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 48) * 16
}

/// Lets so many random reads of 40 disks through; each keeps four outstanding.
fn serve(
    engine: &mut Engine,
    now: &mut Nanos,
    idle: &mut Vec<(DiskId, Token)>,
    random: &mut u64,
    requests: u32,
) {
    let mut at_device = [None; 8];
    let mut served = 0;
    while served < requests {
        for slot in &mut at_device {
            if let Some(tag) = slot.take() {
                engine.complete(*now, tag, Ok(()));
                served += 1;
            }
        }
        while let Some(retired) = engine.retire() {
            idle.push((retired.disk, retired.token));
        }
        for (disk, token) in idle.drain(..) {
            engine.submit(*now, disk, token, &request(Op::Read, scattered(random), 8));
        }
        for slot in &mut at_device {
            *slot = engine.dispatch(*now).map(|command| command.tag);
        }
        *now = if at_device.iter().all(Option::is_none) {
            engine.next_deadline().expect("requests wait, so somebody will be served")
        } else {
            *now + Nanos::from_micros(10)
        };
    }
    for tag in at_device.into_iter().flatten() {
        engine.complete(*now, tag, Ok(()));
    }
}

/// Who rarely has several requests at the device is as warm as who often has.
#[test]
fn forty_disks_at_random_allocate_nothing_from_the_first_thousands_on() {
    for kind in Kind::ALL {
        let mut engine = engine_with_blocks(kind, 8, BlockConfig::default());
        let mut now = Nanos::ORIGIN;
        let mut idle = Vec::new();
        for _ in 0..40 {
            let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
            let disk = engine.add_disk(vm, geometry());
            idle.extend((0..4).map(|token| (disk, Token(token))));
        }
        let mut random = 0x2545_f491_4f6c_dd1d;
        serve(&mut engine, &mut now, &mut idle, &mut random, 5_000);
        let info = allocation_counter::measure(|| {
            serve(&mut engine, &mut now, &mut idle, &mut random, 20_000);
        });
        assert_eq!(info.count_total, 0, "{kind} allocated: {info:?}");
        engine.check_invariants();
    }
}
