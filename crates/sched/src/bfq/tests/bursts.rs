//! Queues that start together.

use proptest::prelude::*;
use std::vec::Vec;

use super::super::BfqTunables;
use super::super::burst::InBurst;
use super::super::raise::WrKind;
use super::{Rig, ms};
use crate::testing::cases;
use crate::{GroupId, Nanos, QueueId, Scheduler};

/// Lets as many queues start in a group, with pauses between them; all are served at once.
fn start(rig: &mut Rig, group: GroupId, count: usize, pause: Nanos) -> Vec<QueueId> {
    let start = |_| {
        let queue = rig.queue(group);
        rig.pass(pause);
        rig.once(queue);
        queue
    };
    (0..count).map(start).collect()
}

fn marks(rig: &Rig, queues: &[QueueId]) -> Vec<InBurst> {
    queues.iter().map(|queue| rig.bfq.queues[queue.0 as usize].in_burst).collect()
}

#[test]
fn the_eighth_queue_makes_a_burst_large_and_none_of_its_queues_stays_raised() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let mut queues = start(&mut rig, group, 7, ms(100));
    assert!(marks(&rig, &queues).iter().all(|mark| matches!(mark, InBurst::Listed(_))), "P17");
    assert_eq!(rig.kind(queues[0]), WrKind::Interactive);
    queues.extend(start(&mut rig, group, 2, ms(100)));
    assert_eq!(marks(&rig, &queues), [InBurst::Large; 9]);
    assert_eq!(rig.kind(queues[7]), WrKind::None, "P15");
    assert_eq!(rig.kind(queues[8]), WrKind::None, "P15: who joins a large burst");
    rig.once(queues[0]);
    assert_eq!(rig.kind(queues[0]), WrKind::None, "who was raised loses it with the next request");
}

#[test]
fn a_queue_of_a_large_burst_may_be_raised_again_after_ten_seconds() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queues = start(&mut rig, group, 8, ms(10));
    rig.pass(Nanos::from_secs(9));
    rig.once(queues[0]);
    assert_eq!(rig.kind(queues[0]), WrKind::None);
    rig.pass(ms(10_001));
    rig.once(queues[1]);
    assert_eq!(rig.kind(queues[1]), WrKind::Interactive);
}

#[test]
fn queues_that_come_back_together_are_a_burst_like_new_ones() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queues = start(&mut rig, group, 8, ms(1000));
    assert!(queues.iter().all(|&queue| rig.kind(queue) == WrKind::Interactive));
    rig.pass(Nanos::from_secs(60));
    for &queue in &queues {
        rig.pass(ms(83));
        rig.once(queue);
    }
    assert_eq!(marks(&rig, &queues), [InBurst::Large; 8]);
}

#[test]
fn a_burst_begins_only_in_a_group_that_has_nothing_to_do() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let reader = rig.queue(group);
    // It does something, but has been there for long.
    rig.bfq.queues[reader.0 as usize].idle_since = Some(rig.now);
    rig.read(reader, 8);
    let mut queues = Vec::new();
    for _ in 0..9 {
        let queue = rig.queue(group);
        rig.read(queue, 8);
        queues.push(queue);
        rig.pass(ms(1));
    }
    assert_eq!(marks(&rig, &queues), [InBurst::No; 9]);
}

#[test]
fn a_removed_queue_no_longer_counts() {
    let mut rig = Rig::flash();
    let group = rig.group();
    for removed in [0, 3, 6] {
        let queues = start(&mut rig, group, 7, ms(10));
        rig.bfq.remove_queue(rig.now, queues[removed]);
        rig.bfq.check_invariants();
        let last = start(&mut rig, group, 1, ms(10));
        assert!(matches!(marks(&rig, &last)[..], [InBurst::Listed(_)]), "{removed}");
        rig.pass(Nanos::from_secs(20));
        for queue in queues.iter().enumerate().filter(|&(i, _)| i != removed).map(|(_, q)| q) {
            rig.bfq.remove_queue(rig.now, *queue);
        }
        rig.bfq.remove_queue(rig.now, last[0]);
        rig.bfq.check_invariants();
    }
}

#[test]
fn no_burst_is_large_if_the_operator_says_so() {
    let tunables = BfqTunables { large_burst_thresh: 0, ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, false);
    let group = rig.group();
    let queues = start(&mut rig, group, 20, ms(1));
    assert_eq!(marks(&rig, &queues), [InBurst::No; 20]);
}

#[test]
fn machines_that_start_together_are_all_raised() {
    let mut rig = Rig::flash();
    for _ in 0..20 {
        let group = rig.group();
        let queue = start(&mut rig, group, 1, ms(1))[0];
        assert_eq!(rig.kind(queue), WrKind::Interactive);
    }
}

#[test]
fn a_restarted_daemon_raises_nobody_and_takes_nobody_for_a_burst() {
    let mut rig = Rig::flash();
    // As if it began now: the guests have been at work all the time.
    rig.bfq.began = rig.now;
    let groups: Vec<_> = (0..4).map(|_| rig.group()).collect();
    let mut queues = Vec::new();
    for _ in 0..10 {
        for &group in &groups {
            queues.extend(start(&mut rig, group, 1, ms(20)));
        }
    }
    assert!(queues.iter().all(|&queue| rig.kind(queue) == WrKind::None));
    assert_eq!(marks(&rig, &queues), [InBurst::No; 40]);
    rig.pass(ms(2000));
    let late = rig.queue(groups[0]);
    rig.once(late);
    assert_eq!(rig.kind(late), WrKind::Interactive, "two seconds later inactivity is known");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P17, P18: the count of a group goes on with pauses of 180 ms at most, and nobody else's
    /// queues matter.
    #[test]
    fn bursts_are_counted_by_pauses_and_by_group(
        starts in prop::collection::vec((0_usize..2, 1_u64..200), 1..24),
    ) {
        let mut rig = Rig::flash();
        let groups = [0, 1].map(|_| rig.group());
        // Expected: queues and time of the latest start, for each group.
        let mut expected = [(Vec::new(), Nanos::ZERO), (Vec::new(), Nanos::ZERO)];
        let mut large = Vec::new();
        for (at, pause_ms) in starts {
            rig.pass(ms(pause_ms));
            let queue = rig.queue(groups[at]);
            rig.read(queue, 8);
            let (burst, last) = &mut expected[at];
            if rig.now > *last + ms(180) {
                burst.clear();
            }
            burst.push(queue);
            *last = rig.now;
            if burst.len() >= 8 {
                large.extend_from_slice(burst);
            }
            rig.serve_all(Nanos(1));
        }
        for (id, queue) in (0..).zip(&rig.bfq.queues) {
            let expected = large.contains(&QueueId(id));
            prop_assert_eq!(queue.in_burst == InBurst::Large, expected, "queue {}", id);
        }
    }
}
