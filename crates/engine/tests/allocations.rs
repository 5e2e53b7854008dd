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
