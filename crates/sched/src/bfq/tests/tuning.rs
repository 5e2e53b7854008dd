//! Other tunables while requests are under way.

use super::super::raise::WrKind;
use super::super::{BfqTunables, BfqTunablesError};
use super::{Rig, ms};
use crate::{Nanos, Scheduler};

#[test]
fn values_that_cannot_work_change_nothing() {
    let mut rig = Rig::flash();
    let before = *rig.bfq.tunables();
    let wrong = BfqTunables { wr_coeff: 1, low_latency: false, ..before };
    let error = BfqTunablesError::OutOfRange { field: "wr_coeff", value: 1, min: 2, max: 100 };
    assert_eq!(rig.bfq.set_tunables(rig.now, wrong), Err(error));
    assert_eq!(*rig.bfq.tunables(), before);
}

#[test]
fn without_low_latency_all_raises_end_and_weights_return() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let [player, reader] = [0, 1].map(|_| rig.queue(group));
    rig.make_soft_rt(player);
    rig.pass(ms(60));
    rig.read(player, 8);
    rig.read(reader, 8);
    assert_eq!(rig.kind(player), WrKind::SoftRt);
    assert_eq!(rig.kind(reader), WrKind::Interactive);
    let off = BfqTunables { low_latency: false, ..BfqTunables::default() };
    assert_eq!(rig.bfq.set_tunables(rig.now, off), Ok(()));
    rig.bfq.check_invariants();
    for queue in [player, reader] {
        assert_eq!(rig.kind(queue), WrKind::None, "B15");
    }
    assert!(!rig.bfq.group_report(group).raised);
    rig.serve_all(ms(1));
    rig.pass(Nanos::from_secs(60));
    rig.read(reader, 8);
    assert_eq!(rig.kind(reader), WrKind::None);
}

#[test]
fn without_a_rate_only_soft_real_time_raises_end() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let [player, reader] = [0, 1].map(|_| rig.queue(group));
    rig.make_soft_rt(player);
    rig.read(reader, 8);
    let none = BfqTunables { wr_max_softrt_rate: 0, ..BfqTunables::default() };
    assert_eq!(rig.bfq.set_tunables(rig.now, none), Ok(()));
    rig.bfq.check_invariants();
    assert_eq!(rig.kind(player), WrKind::None);
    assert_eq!(rig.kind(reader), WrKind::Interactive);
}

#[test]
fn other_factors_reach_raised_queues_and_their_groups() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    rig.read(queue, 8);
    let more = BfqTunables { wr_coeff: 60, ..BfqTunables::default() };
    assert_eq!(rig.bfq.set_tunables(rig.now, more), Ok(()));
    rig.bfq.check_invariants();
    assert_eq!((rig.bfq.coeff(queue.0), rig.bfq.group_coeff(group.0)), (60, 60));
}

#[test]
fn strict_guarantees_idle_for_8_ms_and_give_back_what_was_set() {
    let mut rig = Rig::flash();
    let plain = BfqTunables { slice_idle: Nanos::ZERO, ..BfqTunables::default() };
    let strict = BfqTunables { strict_guarantees: true, ..plain };
    assert_eq!(rig.bfq.set_tunables(rig.now, strict), Ok(()));
    assert_eq!(rig.bfq.tunables().slice_idle, ms(8));
    assert_eq!(rig.bfq.set_tunables(rig.now, plain), Ok(()));
    assert_eq!(rig.bfq.tunables().slice_idle, Nanos::ZERO);
}

#[test]
fn the_largest_budget_is_set_and_left_to_the_device_again() {
    let mut rig = Rig::flash();
    let automatic = *rig.bfq.tunables();
    let set = BfqTunables { max_budget_sectors: 640, ..automatic };
    assert_eq!(rig.bfq.set_tunables(rig.now, set), Ok(()));
    assert_eq!(rig.bfq.limits.max(), 640);
    assert_eq!(rig.bfq.set_tunables(rig.now, automatic), Ok(()));
    // What an unmeasured flash device moves in 125 ms.
    assert_eq!(rig.bfq.limits.max(), 41_961);
    let shorter = BfqTunables { timeout_sync: ms(25), ..automatic };
    assert_eq!(rig.bfq.set_tunables(rig.now, shorter), Ok(()));
    assert_eq!(rig.bfq.limits.max(), 8_392);
}

#[test]
fn the_same_tunables_again_change_nothing() {
    let mut rig = Rig::flash();
    let same = *rig.bfq.tunables();
    let before = rig.bfq.limits.max();
    assert_eq!(rig.bfq.set_tunables(rig.now, same), Ok(()));
    assert_eq!((*rig.bfq.tunables(), rig.bfq.limits.max()), (same, before));
}
