//! Why requests waited, as the engine tells it.

mod common;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{BlockConfig, DiskId, Engine, Explanation, Limited, Token};
use evenkeel_sched::{GroupId, Kind, Limits, Nanos, Op, Rate, Rates, Weight};

const START: Nanos = Nanos::ORIGIN;

fn ms(time: u64) -> Nanos {
    START + Nanos::from_millis(time)
}

/// An engine that has one command at the device at a time, and two VMs with a disk each.
fn two_vms(kind: Kind) -> (Engine, [GroupId; 2], [DiskId; 2]) {
    let mut engine = engine_with_blocks(kind, 1, BlockConfig::default());
    let vms = [(); 2].map(|()| engine.add_group(START, GroupId::ROOT, Weight::default()));
    let disks = vms.map(|vm| engine.add_disk(vm, geometry()));
    (engine, vms, disks)
}

/// Serves everything, 1 ms each; returns when it is done.
fn serve_all(engine: &mut Engine, mut now: Nanos) -> Nanos {
    while engine.outstanding() > 0 {
        match engine.dispatch(now) {
            Some(command) => {
                now += Nanos::from_millis(1);
                engine.complete(now, command.tag, Ok(()));
            }
            None => now = engine.next_deadline().expect("something is to come"),
        }
        while engine.retire().is_some() {}
        engine.check_invariants();
    }
    now
}

fn sum_of_parts(explained: &Explanation) -> Nanos {
    let causes = explained.causes.iter().map(|cause| cause.held.0);
    let Explanation { own, limited, idled, gathered, others, .. } = explained;
    Nanos(causes.sum::<u64>() + own.0 + idled.0 + limited.0 + gathered.0 + others.0)
}

#[test]
fn a_neighbour_is_blamed_for_what_it_holds_and_a_limit_for_what_it_holds_up() {
    for kind in Kind::ALL {
        let (mut engine, vms, [web, db]) = two_vms(kind);
        let ten = Rate { per_second: 10, ..Rate::default() };
        let ops = Rates { total: ten, ..Rates::default() };
        engine.set_limits(START, Limited::Disk(web), &Limits { ops, ..Limits::default() });
        engine.submit(START, db, Token(0), &request(Op::Read, 0, 8));
        let first = engine.dispatch(START).expect("it is alone");
        for token in 1..4 {
            engine.submit(START, web, Token(token), &request(Op::Read, 1000 * token, 8));
        }
        engine.complete(ms(30), first.tag, Ok(()));
        while engine.retire().is_some() {}
        let now = serve_all(&mut engine, ms(30));
        let explained = engine.explain(now, vms[0]);
        assert_eq!(sum_of_parts(&explained), explained.waited, "{kind}");
        assert_eq!(explained.served, Nanos::from_millis(3), "{kind}");
        // Two pass the limit at once, since a bucket is looked at before it is filled, and wait for
        // the device; the third waits for the limit.
        let held = explained.causes.iter().find(|cause| cause.vm == vms[1]).expect("it held it");
        assert_eq!(held.held, Nanos::from_millis(60), "{kind}");
        assert!(explained.limited >= Nanos::from_millis(50), "{kind}: {explained:?}");
        let db = engine.explain(now, vms[1]);
        assert_eq!((db.waited, db.served), (Nanos::ZERO, Nanos::from_millis(30)), "{kind}");
    }
}

#[test]
fn a_request_behind_another_of_its_own_disk_blames_its_own_vm() {
    let (mut engine, [web, db], [disk, neighbour]) = two_vms(Kind::Noop);
    engine.set_depth(3);
    engine.submit(START, neighbour, Token(0), &request(Op::Read, 0, 8));
    engine.submit(START, disk, Token(1), &request(Op::Write, 0, 8));
    assert!(engine.dispatch(START).is_some() && engine.dispatch(START).is_some());
    // A place at the device is left, but the first write is in the way of the second.
    engine.submit(START, disk, Token(2), &request(Op::Write, 4, 8));
    assert_eq!(engine.dispatch(START), None);
    assert_eq!(engine.held_back_of(disk), 1);
    let explained = engine.explain(ms(5), web);
    assert_eq!(explained.own, Nanos::from_millis(5));
    assert_eq!(explained.waited, Nanos::from_millis(5));
    assert_eq!(engine.explain(ms(5), db).waited, Nanos::ZERO);
}

#[test]
fn a_flush_behind_another_of_its_disk_blames_its_own_vm() {
    let (mut engine, [web, _db], [disk, neighbour]) = two_vms(Kind::Noop);
    engine.submit(START, neighbour, Token(0), &request(Op::Read, 0, 8));
    let read = engine.dispatch(START).expect("there is room");
    engine.flush(START, disk, Token(1));
    engine.flush(START, disk, Token(2));
    // One waits for the neighbour, the other for the one.
    engine.complete(ms(5), read.tag, Ok(()));
    let explained = engine.explain(ms(5), web);
    assert_eq!(explained.own, Nanos::from_millis(5));
    assert_eq!(explained.causes[0].held, Nanos::from_millis(5));
    assert_eq!(explained.waited, Nanos::from_millis(10));
}
