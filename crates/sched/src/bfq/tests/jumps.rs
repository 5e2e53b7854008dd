//! The caller's clock jumps.

use proptest::prelude::*;
use std::vec::Vec;

use super::super::raise::WrKind;
use super::super::{Bfq, BfqTunables};
use super::{Rig, ms};
use crate::testing::{Random, cases};
use crate::{
    GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag, Weight,
};

const HOUR: Nanos = Nanos::from_secs(3600);

/// Two readers of two groups that have run so long that nobody is raised; the first one holds the
/// device and is empty, the second one waits.
fn under_way() -> (Rig, [QueueId; 2]) {
    let mut rig = Rig::new(BfqTunables::default(), true);
    let queues = [0, 1].map(|_| {
        let group = rig.group();
        let queue = rig.queue(group);
        rig.bfq.queues[queue.0 as usize].idle_since = Some(rig.now);
        queue
    });
    for &queue in &queues {
        rig.once(queue);
    }
    rig.read(queues[0], 8);
    let tag = rig.dispatch().expect("the device is free");
    rig.read(queues[1], 8);
    rig.pass(ms(1));
    rig.complete(tag);
    (rig, queues)
}

#[test]
fn a_wait_goes_on_after_a_jump_as_if_no_time_had_passed() {
    let (mut rig, queues) = under_way();
    let until = rig.now + ms(8);
    assert_eq!(rig.bfq.dispatch(rig.now), Next::NotBefore(until));
    rig.pass(HOUR);
    assert_eq!(rig.bfq.dispatch(rig.now), Next::NotBefore(until + HOUR));
    assert_eq!(rig.bfq.next_deadline(), Some(until + HOUR));
    rig.pass(ms(7));
    rig.read(queues[0], 8);
    let tag = rig.dispatch().expect("it came in time");
    assert_eq!(rig.bfq.holder, Some(queues[0].0));
    rig.complete(tag);
    assert!(queues.iter().all(|&queue| rig.kind(queue) == WrKind::None));
}

#[test]
fn a_wake_up_that_comes_a_little_late_is_no_jump() {
    let (mut rig, _) = under_way();
    let Next::NotBefore(until) = rig.bfq.dispatch(rig.now) else {
        unreachable!("the device is kept")
    };
    rig.now = until + ms(1000);
    assert!(rig.dispatch().is_some());
}

#[test]
fn a_deadline_that_lies_far_ahead_is_no_jump() {
    let mut rig = Rig::new(BfqTunables::default(), true);
    let groups = [0, 1].map(|_| rig.group());
    let queues = groups.map(|group| rig.queue(group));
    // Raised, so the slot is long; its request is stuck while somebody else waits.
    rig.read(queues[0], 8);
    assert!(rig.dispatch().is_some());
    rig.bfq.queues[queues[1].0 as usize].idle_since = Some(rig.now);
    rig.read(queues[1], 8);
    let ends = rig.now + ms(30 * 125);
    assert_eq!(rig.bfq.dispatch(rig.now), Next::NotBefore(ends));
    rig.now = ends;
    assert!(rig.dispatch().is_some(), "the slot has timed out");
}

#[test]
fn a_jump_makes_nobody_interactive_and_ends_no_raise() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let [old, raised, reader] = [0, 1, 2].map(|_| rig.queue(group));
    rig.bfq.queues[old.0 as usize].idle_since = Some(rig.now);
    rig.once(old);
    rig.once(raised);
    rig.read(reader, 8);
    let tag = rig.dispatch().expect("the device is free");
    rig.pass(HOUR);
    rig.read(old, 8);
    assert_eq!(rig.kind(old), WrKind::None, "it was away for a moment only");
    rig.complete(tag);
    rig.serve_all(ms(1));
    rig.once(raised);
    assert_eq!(rig.kind(raised), WrKind::Interactive);
}

#[test]
fn while_nothing_is_to_be_done_time_passes() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    rig.bfq.queues[queue.0 as usize].idle_since = Some(rig.now);
    rig.once(queue);
    rig.pass(HOUR);
    rig.read(queue, 8);
    assert_eq!(rig.kind(queue), WrKind::Interactive);
}

#[test]
fn a_device_that_needs_seconds_for_each_request_does_not_stop_the_clock() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    rig.read(queue, 8);
    for _ in 0..10 {
        rig.read(queue, 100_000);
        let tag = rig.dispatch().expect("something waits");
        rig.pass(ms(2000));
        rig.complete(tag);
    }
    assert_eq!(rig.kind(queue), WrKind::None, "half of 20 s are more than 3.75 s");
}

/// Drives a scheduler through a random history in which every step takes less than a second, but
/// before one step the caller's clock jumps.
fn history(seed: u64, jump_at: usize, jump: Nanos) -> Vec<(u64, Option<Next>)> {
    let mut random = Random::new(seed);
    let rotational = random.below(2) == 0;
    let limits = MergeLimits::default();
    let began = Nanos::ORIGIN;
    let mut bfq = Bfq::new(began, BfqTunables::default(), limits, rotational);
    let groups = [100, 300]
        .map(|weight| bfq.add_group(began, GroupId::ROOT, Weight::new(weight).expect("in range")));
    let queues = [0, 0, 1, 1]
        .map(|group: usize| bfq.add_queue(began, groups[group], Priority::default(), true));
    let (mut now, mut moved) = (began + ms(2500), Nanos::ZERO);
    let (mut tag, mut at_device) = (0, Vec::new());
    let mut log = Vec::new();
    for step in 0..48 {
        if step == jump_at && bfq.queued() + bfq.in_flight() > 0 {
            moved = jump;
        } else if step != jump_at {
            let span = 1 << random.below(28);
            now += Nanos(random.below(span));
        }
        let at = now + moved;
        let answer = match random.below(3) {
            0 => {
                let queue = queues[usize::try_from(random.below(4)).expect("small")];
                let pos = random.below(64) * 1000;
                let (op, nr_sectors) = (Op::Read, 8);
                let request =
                    Request { tag: Tag(tag), queue, op, pos, nr_sectors, segments: 1, sync: true };
                tag += 1;
                bfq.insert(at, request);
                None
            }
            1 if !at_device.is_empty() => {
                bfq.complete(at, at_device.remove(0));
                None
            }
            _ => Some(match bfq.dispatch(at) {
                Next::Request(tag) => {
                    at_device.push(tag);
                    Next::Request(tag)
                }
                Next::NotBefore(until) => Next::NotBefore(until - moved),
                Next::Empty => Next::Empty,
            }),
        };
        let raised = queues
            .iter()
            .fold(0, |bits, queue| bits << 2 | bfq.queues[queue.0 as usize].raise.kind as u64);
        log.push((raised, answer));
    }
    log
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// X7.
    #[test]
    fn a_jump_while_there_is_something_to_do_changes_nothing(
        seed: u64, jump_at in 1_usize..48, jump_ms in 5_000_u64..10_000_000,
    ) {
        let (plain, jumped) = (history(seed, jump_at, Nanos::ZERO), history(seed, jump_at, ms(jump_ms)));
        prop_assert_eq!(plain, jumped);
    }
}
