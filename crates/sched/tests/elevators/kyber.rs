//! What `kyber` promises.

use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Kind, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag,
};

use crate::random::{Random, for_many_seeds};

const NOW: Nanos = Nanos::ORIGIN;
const OPS: [Op; 4] = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];

fn fresh() -> (Elevator, QueueId) {
    let config = ElevatorConfig { kind: Kind::Kyber, ..ElevatorConfig::default() };
    let mut elevator = Elevator::new(NOW, &config);
    let queue = elevator.add_queue(NOW, GroupId::ROOT, Priority::default(), true);
    (elevator, queue)
}

fn request(tag: u32, queue: QueueId, op: Op) -> Request {
    let pos = u64::from(tag) * 100;
    Request { tag: Tag(tag), queue, op, pos, nr_sectors: 8, segments: 1, sync: true }
}

#[test]
fn domains_take_turns_of_their_batches() {
    let (mut elevator, queue) = fresh();
    for tag in 0..400 {
        elevator.insert(NOW, request(tag, queue, OPS[tag as usize % 4]));
    }
    let mut order = String::new();
    for _ in 0..54 {
        let Next::Request(tag) = elevator.dispatch(NOW) else { unreachable!("there is room") };
        order.push(['R', 'W', 'D', 'Z'][tag.0 as usize % 4]);
        elevator.complete(NOW, tag);
    }
    let turn = "R".repeat(16) + &"W".repeat(8) + "DZ";
    assert_eq!(order, turn.repeat(2) + "RR");
}

#[test]
fn a_domain_without_tokens_leaves_the_device_to_others_and_waits_for_completions() {
    let (mut elevator, queue) = fresh();
    for tag in 0..300 {
        elevator.insert(NOW, request(tag, queue, Op::Read));
    }
    for tag in 0..256 {
        assert_eq!(elevator.dispatch(NOW), Next::Request(Tag(tag)), "first come, first served");
    }
    assert_eq!(elevator.dispatch(NOW), Next::Empty);
    assert_eq!(elevator.next_deadline(), None, "a completion brings the next token");
    elevator.insert(NOW, request(300, queue, Op::Write));
    assert_eq!(elevator.dispatch(NOW), Next::Request(Tag(300)));
    elevator.complete(NOW, Tag(17));
    assert_eq!(elevator.dispatch(NOW), Next::Request(Tag(256)));
    let adapts = NOW + Nanos::from_millis(100);
    assert_eq!(elevator.dispatch(NOW), Next::NotBefore(adapts));
    assert_eq!(elevator.next_deadline(), Some(adapts));
    assert_eq!(elevator.dispatch(adapts), Next::Empty);
    assert_eq!(elevator.next_deadline(), None);
}

/// T7.2.
#[test]
fn no_domain_waits_longer_than_the_batches_of_the_others() {
    let batches = [16_usize, 8, 1, 1];
    let mut worst = [0; 4];
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let (mut elevator, queue) = fresh();
        let (mut ops, mut free) = (vec![0; 100], (0..100).collect::<Vec<u32>>());
        let (mut waiting, mut passed) = ([0_u32; 4], [0_usize; 4]);
        let eagerness = 30 + random.below(60);
        for _ in 0..200 {
            while random.chance(eagerness) && !free.is_empty() {
                let tag = free.pop().unwrap();
                let op = random.index(4);
                ops[tag as usize] = op;
                waiting[op] += 1;
                elevator.insert(NOW, request(tag, queue, OPS[op]));
            }
            let Next::Request(tag) = elevator.dispatch(NOW) else { continue };
            let served = ops[tag.0 as usize];
            waiting[served] -= 1;
            for op in 0..4 {
                passed[op] = if op == served || waiting[op] == 0 { 0 } else { passed[op] + 1 };
                worst[op] = worst[op].max(passed[op]);
                let others = batches.iter().sum::<usize>() - batches[op];
                assert!(passed[op] <= others, "domain {op} is passed over {} times", passed[op]);
            }
            // Parts complete with it, but nothing merges here: gaps lie between all requests.
            elevator.complete(NOW, tag);
            free.push(tag.0);
        }
    });
    assert!(worst[0] > 0, "there was competition: {worst:?}");
}

/// T7.4.
#[test]
fn within_a_queue_and_a_domain_who_comes_first_goes_first() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let (mut elevator, queue) = fresh();
        let other = elevator.add_queue(NOW, GroupId::ROOT, Priority::default(), false);
        let mut kinds = Vec::new();
        let mut latest = std::collections::BTreeMap::new();
        for _ in 0..120 {
            if random.chance(60) {
                let tag = u32::try_from(kinds.len()).unwrap();
                let (op, queue) = (random.index(4), random.pick(&[queue, other]));
                kinds.push((op, queue));
                elevator.insert(NOW, request(tag, queue, OPS[op]));
            } else if let Next::Request(tag) = elevator.dispatch(NOW) {
                let (op, queue) = kinds[tag.0 as usize];
                let before = latest.insert((op, queue.0), tag);
                assert!(before.is_none_or(|before| before < tag));
                elevator.complete(NOW, tag);
            }
        }
    });
}
