//! What `none` and `noop` promise: first come, first served, at once.

use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits, Nanos, Next, Op, Priority,
    Request, Scheduler, Tag,
};

use crate::random::{Random, for_many_seeds};

/// T2.1, T2.2: lets requests come and go at random. What is dispatched is always the request that
/// came first, and nothing is dispatched only if nothing waits.
fn serves_in_order(kind: Kind) {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let limits = MergeLimits { max_sectors: random.pick(&[1, 32, 2560]), max_segments: 16 };
        let config = ElevatorConfig { kind, merge: limits, ..ElevatorConfig::default() };
        let mut now = Nanos::ORIGIN;
        let mut elevator = Elevator::new(now, &config);
        let queues = [true, false]
            .map(|sync| elevator.add_queue(now, GroupId::ROOT, Priority::default(), sync));
        let mut line: Vec<Tag> = Vec::new();
        let mut free: Vec<Tag> = (0..32).map(Tag).collect();
        for _ in 0..80 {
            now += Nanos(random.below(1_000_000));
            if random.chance(55) && !free.is_empty() {
                let tag = free.pop().unwrap();
                let (queue, sync) = random.pick(&[(queues[0], true), (queues[1], false)]);
                let (op, pos) = (random.pick(&[Op::Read, Op::Write]), random.below(30) * 8);
                let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync };
                let waiting = elevator.queued();
                match elevator.insert(now, request) {
                    Insertion::Queued => line.push(tag),
                    // It may have closed the gap to a third one, which is then gone as well.
                    Insertion::Merged(into) => {
                        assert!(kind == Kind::Noop && line.contains(&into));
                        if elevator.queued() < waiting {
                            let parts = parts(&elevator, into);
                            line.retain(|other| *other == into || !parts.contains(other));
                        }
                    }
                }
            } else {
                match elevator.dispatch(now) {
                    Next::Request(tag) => {
                        assert_eq!(line.remove(0), tag);
                        free.extend(parts(&elevator, tag));
                        elevator.complete(now, tag);
                    }
                    Next::Empty => assert!(line.is_empty(), "it works while anybody waits"),
                    Next::NotBefore(_) => unreachable!("it waits for nobody"),
                }
            }
            assert_eq!(elevator.queued() as usize, line.len());
            elevator.check_invariants();
        }
    });
}

fn parts(elevator: &Elevator, tag: Tag) -> Vec<Tag> {
    let first = elevator.first_part(tag);
    std::iter::successors(Some(first), |&part| elevator.next_part(part)).collect()
}

#[test]
fn none_serves_who_comes_first() {
    serves_in_order(Kind::None);
}

#[test]
fn noop_serves_who_comes_first_and_what_joined_it() {
    serves_in_order(Kind::Noop);
}
