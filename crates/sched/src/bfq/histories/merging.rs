//! Queues that become one, and part again.

use std::format;
use std::string::String;

use super::*;
use crate::bfq::NOBODY;
use crate::bfq::merging::PROBATION;

fn merging(setup: Setup, stable_merge: bool) -> Setup {
    let tunables = BfqTunables { merge_queues: true, stable_merge, ..setup.tunables };
    Setup { tunables, ..setup }
}

impl World {
    fn route(&self, queue: QueueId) -> u32 {
        self.bfq.merging.routes[queue.0 as usize]
    }

    /// Returns everything that a queue is told by its past.
    fn past(&self, queue: QueueId) -> String {
        let id = self.route(queue);
        let queue = &self.bfq.queues[id as usize];
        let coeff = self.bfq.engine.coeff_wanted(queue.node);
        let habits = (queue.think, queue.short_ttime, queue.bound, queue.inject, queue.raise);
        format!("{:?} {habits:?} {} {coeff}", (queue.class, queue.level, queue.group), queue.sync)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P26, P27, P29; the first and the last in the checks of the scheduler itself.
    #[test]
    fn every_request_goes_to_the_queue_that_its_issuer_has(
        setup in setup(), stable: bool, steps in steps()
    ) {
        let mut world = World::new(merging(setup, stable));
        for step in steps {
            let tag = world.free.last().copied();
            let before = world.free.len();
            world.step(step, &mut |_, _, _| ());
            if let (Step::Insert { queue, .. }, Some(tag)) = (step, tag)
                && world.free.len() < before
            {
                let route = world.route(world.queues[queue as usize].unwrap());
                let group = world.bfq.queues[route as usize].group;
                prop_assert_eq!(world.bfq.table.get(tag).queue.0, route, "P27");
                prop_assert_eq!(group, 1 + queue / 3, "P29");
            }
            world.bfq.check_merging();
        }
        world.bfq.check_invariants();
    }

    /// P28.
    #[test]
    fn whoever_is_merged_and_split_again_is_what_it_was(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        for step in steps {
            world.step(step, &mut |_, _, _| ());
        }
        let now = world.now;
        for pair in [[0, 2], [3, 4], [6, 7], [8, 6]] {
            let [Some(one), Some(other)] = pair.map(|at| world.queues[at]) else { continue };
            let [from, into] = [one, other].map(|queue| world.route(queue));
            // A raise that is over may end at any moment, so also now; and a queue that never had
            // a request is given the raise that its first one would have begun.
            let most = world.bfq.tunables.wr_max_service_sectors;
            let is_special = |id: u32| {
                let queue = &world.bfq.queues[id as usize];
                let raise = queue.raise;
                queue.fresh || raise.is_on() && (raise.is_late(now) || raise.is_spent(most))
            };
            if is_special(from) || is_special(into) {
                continue;
            }
            let before = [one, other].map(|queue| world.past(queue));
            world.bfq.unite(now, from, into, false);
            world.bfq.check_invariants();
            prop_assert_eq!([one, other].map(|queue| world.route(queue)), [into, into]);
            for queue in [one, other] {
                let id = world.route(queue);
                world.bfq.split(now, queue.0, id);
                world.bfq.check_invariants();
            }
            prop_assert_ne!(world.route(one), world.route(other));
            prop_assert_eq!([one, other].map(|queue| world.past(queue)), before);
        }
    }
}

/// Two queues of a group on a disk, a third one elsewhere that keeps it busy.
fn neighbours(tunables: BfqTunables) -> World {
    let mut world = World::new(Setup { tunables, rotational: true, depth: 4 });
    world.insert(6, 1 << 30, 8);
    world.step(Step::Dispatch, &mut |_, _, _| ());
    world
}

#[test]
fn readers_of_one_stretch_share_a_queue_and_their_requests_merge() {
    let tunables = BfqTunables { merge_queues: true, ..BfqTunables::default() };
    let mut world = neighbours(tunables);
    let [one, other] = [0, 2].map(|at| world.queues[at].unwrap());
    world.insert(0, 0, 8);
    assert_ne!(world.route(one), world.route(other));
    world.insert(2, 8, 8);
    assert_eq!(world.route(one), world.route(other));
    assert_eq!(world.bfq.queued(), 1, "two requests are one");
    world.bfq.check_invariants();
}

#[test]
fn readers_of_different_stretches_groups_or_classes_keep_their_queues() {
    let tunables = BfqTunables { merge_queues: true, ..BfqTunables::default() };
    for (first, second, pos) in [(0, 2, 8193), (0, 3, 8), (3, 5, 8), (0, 1, 8)] {
        let mut world = neighbours(tunables);
        world.insert(first, 0, 8);
        world.insert(second, pos, 8);
        let routes = [first, second].map(|at| world.route(world.queues[at as usize].unwrap()));
        assert_ne!(routes[0], routes[1], "{first} and {second} at {pos}");
    }
    let mut world = neighbours(BfqTunables::default());
    world.insert(0, 0, 8);
    world.insert(2, 8, 8);
    assert_eq!(world.bfq.queued(), 2, "merging is off unless asked for");
}

#[test]
fn sharers_that_turn_out_to_seek_part() {
    let tunables = BfqTunables { merge_queues: true, low_latency: false, ..BfqTunables::default() };
    let mut world = neighbours(tunables);
    let [one, other] = [0, 2].map(|at| world.queues[at].unwrap());
    world.insert(0, 0, 8);
    world.insert(2, 8, 8);
    assert_eq!(world.route(one), world.route(other));
    for step in 0..400_u64 {
        let reader = if step % 2 == 0 { 0 } else { 2 };
        world.insert(reader, (step * 7_919 % 1009) * 50_000, 8);
        for step in [Step::Dispatch, Step::Pass(4_000), Step::Complete(0), Step::Complete(0)] {
            world.step(step, &mut |_, _, _| ());
        }
        world.bfq.check_invariants();
    }
    assert_ne!(world.route(one), world.route(other));
}

/// Creates queues of level 4 in one group, so many milliseconds apart; returns where they go.
fn created(tunables: BfqTunables, rotational: bool, apart_ms: &[u64]) -> (World, Vec<QueueId>) {
    let mut world = World::new(Setup { tunables, rotational, depth: 4 });
    let group = world.bfq.add_group(world.now, GroupId::ROOT, Weight::default());
    let queues = apart_ms.iter().map(|&ms| {
        world.now += Nanos::from_millis(ms);
        world.bfq.add_queue(world.now, group, Priority::default(), true)
    });
    let queues = queues.collect();
    (world, queues)
}

#[test]
fn a_burst_of_creations_is_one_queue_for_ever_on_flash() {
    let tunables = BfqTunables { stable_merge: true, ..BfqTunables::default() };
    let (mut world, queues) = created(tunables, false, &[0, 100, 80, 1, 500]);
    let routes: Vec<_> = queues.iter().map(|&queue| world.route(queue)).collect();
    assert!(routes[1] == routes[0] && routes[2] == routes[0], "{routes:?}");
    assert!(routes[3] != routes[0], "181 ms after the first");
    assert!(routes[4] != routes[0] && routes[4] != routes[3], "a burst of its own");
    world.bfq.check_invariants();
    for queue in queues {
        world.bfq.remove_queue(world.now, queue);
        world.bfq.check_invariants();
        assert_eq!(world.route(queue), NOBODY);
    }
    let (world, queues) = created(BfqTunables::default(), false, &[0, 1]);
    assert_ne!(world.route(queues[0]), world.route(queues[1]), "unless it is off");
}

#[test]
fn who_takes_the_place_of_a_removed_queue_at_the_same_instant_is_somebody_else() {
    let tunables = BfqTunables { stable_merge: true, ..BfqTunables::default() };
    for rotational in [false, true] {
        let (mut world, queues) = created(tunables, rotational, &[0]);
        let place = world.route(queues[0]);
        let group = GroupId(world.bfq.queues[place as usize].group);
        world.bfq.remove_queue(world.now, queues[0]);
        let other = world.bfq.add_queue(world.now, group, Priority::default(), true);
        assert_eq!(world.route(other), place);
        world.bfq.check_invariants();
    }
}

/// Lets the second of two queues that were created together on a disk read for a second, each
/// time `far` from where it stopped, after so many milliseconds; returns whether it still has a
/// queue of its own then.
fn stays_alone(far: u64, think_ms: u32) -> bool {
    let tunables = BfqTunables { stable_merge: true, low_latency: false, ..BfqTunables::default() };
    let (mut world, queues) = created(tunables, true, &[0, 1]);
    let (created, mut pos) = (world.now, 0);
    let is_alone = |world: &World| world.route(queues[0]) != world.route(queues[1]);
    while world.now < created + Nanos::from_secs(1) {
        let is_early = world.now <= created + PROBATION;
        let tag = world.free.pop().unwrap();
        let (op, queue) = (Op::Read, queues[1]);
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
        world.bfq.insert(world.now, request);
        assert!(is_alone(&world) || !is_early, "during its probation it is");
        for step in [Step::Dispatch, Step::Pass(1_000), Step::Complete(0)] {
            world.step(step, &mut |_, _, _| ());
        }
        world.bfq.check_invariants();
        world.step(Step::Pass(1_000 * think_ms), &mut |_, _, _| ());
        pos = (pos + 8 + far) % 1_000_000_000;
    }
    is_alone(&world)
}

#[test]
fn on_a_disk_a_burst_is_merged_after_a_probation_unless_a_queue_reads_in_order_without_pauses() {
    assert!(stays_alone(0, 0), "waiting for it pays");
    assert!(!stays_alone(1_000_000, 0), "it seeks");
    assert!(!stays_alone(0, 20), "it pauses");
}
