//! What `deadline` promises.

use evenkeel_sched::{
    Class, DeadlineTunables, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits,
    Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag, Weight,
};

use crate::random::Random;

const NOW: Nanos = Nanos::ORIGIN;

/// An elevator with one queue per class, and a supply of tags.
struct Desk {
    elevator: Elevator,
    queues: [QueueId; 3],
    next_tag: u32,
    tunables: DeadlineTunables,
}

const REAL_TIME: usize = 0;
const BEST_EFFORT: usize = 1;
const IDLE: usize = 2;

impl Desk {
    fn new(tunables: DeadlineTunables) -> Self {
        // Nothing merges, so that every request is seen.
        let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
        let kind = Kind::Deadline;
        let config =
            ElevatorConfig { kind, merge, deadline: tunables, ..ElevatorConfig::default() };
        let mut elevator = Elevator::new(NOW, &config);
        let queues = [Class::RealTime, Class::BestEffort, Class::Idle].map(|class| {
            elevator.add_queue(NOW, GroupId::ROOT, Priority { class, level: 4 }, true)
        });
        Self { elevator, queues, next_tag: 0, tunables }
    }

    fn put(&mut self, now: Nanos, class: usize, op: Op, pos: u64) -> Tag {
        let tag = Tag(self.next_tag);
        self.next_tag += 1;
        let queue = self.queues[class];
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
        assert_eq!(self.elevator.insert(now, request), Insertion::Queued);
        tag
    }

    /// Dispatches one request and completes it at once.
    fn serve(&mut self, now: Nanos) -> Tag {
        let Next::Request(tag) = self.elevator.dispatch(now) else {
            unreachable!("something waits")
        };
        self.elevator.complete(now, tag);
        tag
    }
}

/// Puts as many reads (even tags) as writes (odd tags), ascending, and serves `count` of them.
fn letters(tunables: DeadlineTunables, count: usize) -> String {
    let mut desk = Desk::new(tunables);
    for index in 0..200 {
        desk.put(NOW, BEST_EFFORT, Op::Read, index * 100);
        desk.put(NOW, BEST_EFFORT, Op::Write, index * 100 + 50);
    }
    (0..count).map(|_| if desk.serve(NOW).0.is_multiple_of(2) { 'R' } else { 'W' }).collect()
}

#[test]
fn a_fresh_elevator_starts_with_writes_and_then_prefers_reads() {
    let tunables = DeadlineTunables { fifo_batch: 2, ..DeadlineTunables::default() };
    assert_eq!(letters(tunables, 14), "WWRRRRWWRRRRWW");
}

#[test]
fn writes_wait_for_exactly_the_allowed_number_of_read_batches() {
    for writes_starved in [0, 1, 3] {
        let tunables = DeadlineTunables { fifo_batch: 2, writes_starved, ..Default::default() };
        let period = "RR".repeat(writes_starved as usize) + "WW";
        let expected = "WW".to_owned() + &period.repeat(4);
        assert_eq!(letters(tunables, expected.len()), expected);
    }
}

#[test]
fn a_batch_ascends_and_ends_after_its_allowance() {
    let mut random = Random::new(31);
    for fifo_batch in [0, 1, 4, 16] {
        let mut desk = Desk::new(DeadlineTunables { fifo_batch, ..Default::default() });
        let mut positions = Vec::new();
        for _ in 0..300 {
            let pos = random.below(1 << 30);
            let op = if random.chance(50) { Op::Read } else { Op::Write };
            desk.put(NOW, BEST_EFFORT, op, pos);
            positions.push((op, pos));
        }
        let order: Vec<_> = (0..300).map(|_| positions[desk.serve(NOW).0 as usize]).collect();
        // Of 300 requests about 150 are reads; two of three batches are, so that in the first 150
        // both directions wait all the time.
        let (mut run, mut longest) = (1, 1);
        for pair in order[..150].windows(2) {
            let continues = pair[0].0 == pair[1].0 && pair[0].1 <= pair[1].1;
            run = if continues { run + 1 } else { 1 };
            longest = longest.max(run);
        }
        let allowance = fifo_batch.max(1);
        assert!(longest <= 2 * allowance, "two batches of reads at most: {longest}");
        assert!(longest >= allowance, "requests are sorted within a batch: {longest}");
    }
}

#[test]
fn the_wait_of_overdue_reads_grows_by_about_a_batch_for_each_older_one() {
    // The scan runs upwards among reads that never end; a read waits below it.
    for fifo_batch in [1, 4, 16] {
        let mut desk = Desk::new(DeadlineTunables { fifo_batch, ..Default::default() });
        let mut pos = 1 << 20;
        for _ in 0..40 {
            pos += 100;
            desk.put(NOW, BEST_EFFORT, Op::Read, pos);
            desk.put(NOW, BEST_EFFORT, Op::Write, pos);
        }
        while desk.serve(NOW).0 % 2 == 1 {}
        let now = NOW + Nanos::from_millis(1);
        let lonely = desk.put(now, BEST_EFFORT, Op::Read, 8);
        // Everything older than the lonely read goes first once all is overdue.
        let overdue = now + desk.tunables.read_expire;
        let mut served = 0;
        loop {
            let tag = desk.serve(overdue);
            if tag == lonely {
                break;
            }
            served += 1;
            pos += 100;
            desk.put(overdue, BEST_EFFORT, Op::Read, pos);
            desk.put(overdue, BEST_EFFORT, Op::Write, pos);
            // Of the 40 older reads every batch start serves at least one, and of three batches
            // two are reads: the k-th overdue request waits for about k batches, not for ever.
            assert!(served <= (40 * 3 / 2 + 2) * fifo_batch, "the lonely read starves");
        }
    }
}

#[test]
fn the_head_of_the_reads_is_served_at_the_first_read_batch_after_its_deadline() {
    let fifo_batch = 16;
    let mut desk = Desk::new(DeadlineTunables { fifo_batch, ..Default::default() });
    // Draw the scan upwards, so that the lonely read below it is the oldest one.
    desk.put(NOW, BEST_EFFORT, Op::Read, 1 << 20);
    desk.serve(NOW);
    let lonely = desk.put(NOW, BEST_EFFORT, Op::Read, 8);
    let overdue = NOW + desk.tunables.read_expire;
    let mut pos = 1 << 21;
    for _ in 0..100 {
        pos += 100;
        desk.put(overdue, BEST_EFFORT, Op::Read, pos);
        desk.put(overdue, BEST_EFFORT, Op::Write, pos);
    }
    let waits = (0..200).position(|_| desk.serve(overdue) == lonely).unwrap();
    assert!(waits <= 2 * fifo_batch as usize, "{waits} requests went first");
}

#[test]
fn an_aged_request_of_a_worse_class_goes_next_even_under_real_time_load() {
    for class in [BEST_EFFORT, IDLE] {
        let mut desk = Desk::new(DeadlineTunables::default());
        let aged = desk.put(NOW, class, Op::Write, 5_000);
        // A young request under the head of the same class must not hide it.
        let before = NOW + (desk.tunables.prio_aging_expire - Nanos(1));
        desk.put(before, class, Op::Write, 9_000);
        for index in 0..50 {
            desk.put(before, REAL_TIME, Op::Read, index * 1_000);
        }
        for _ in 0..10 {
            assert_ne!(desk.serve(before), aged, "it is not aged yet");
        }
        assert_eq!(desk.serve(before + Nanos(1)), aged);
        assert_eq!(desk.elevator.group_report(GroupId::ROOT).queued, 41);
    }
}

#[test]
fn a_better_class_goes_first_while_nothing_is_aged() {
    let mut random = Random::new(77);
    let mut desk = Desk::new(DeadlineTunables::default());
    let mut waiting = [0_u32; 3];
    let mut classes = Vec::new();
    for _ in 0..5_000 {
        let class = random.index(3);
        let op = if random.chance(50) { Op::Read } else { Op::Write };
        desk.put(NOW, class, op, random.below(1 << 20));
        classes.push(class);
        waiting[class] += 1;
        if random.chance(95) {
            let served = classes[desk.serve(NOW).0 as usize];
            waiting[served] -= 1;
            assert!(waiting[..served].iter().all(|&better| better == 0), "class {served}");
        }
    }
}

#[test]
fn a_worse_class_waits_for_a_better_one_at_the_device_and_no_longer() {
    let mut desk = Desk::new(DeadlineTunables::default());
    let urgent = desk.put(NOW, REAL_TIME, Op::Read, 0);
    assert_eq!(desk.elevator.dispatch(NOW), Next::Request(urgent));
    let patient = desk.put(NOW, IDLE, Op::Read, 100);
    let aged = NOW + desk.tunables.prio_aging_expire;
    assert_eq!(desk.elevator.dispatch(NOW), Next::NotBefore(aged));
    assert_eq!(desk.elevator.next_deadline(), Some(aged));
    desk.elevator.complete(NOW + Nanos(1), urgent);
    assert_eq!(desk.elevator.dispatch(NOW + Nanos(1)), Next::Request(patient));
    assert_eq!(desk.elevator.next_deadline(), None);
}

#[test]
fn a_dispatch_with_nothing_to_do_leaves_no_trace() {
    let mut desk = Desk::new(DeadlineTunables { fifo_batch: 2, ..Default::default() });
    let urgent = desk.put(NOW, REAL_TIME, Op::Read, 0);
    assert_eq!(desk.elevator.dispatch(NOW), Next::Request(urgent));
    for index in 0..8 {
        desk.put(NOW, BEST_EFFORT, Op::Read, index * 100);
        desk.put(NOW, BEST_EFFORT, Op::Write, index * 100 + 50);
    }
    for _ in 0..100 {
        let aged = NOW + desk.tunables.prio_aging_expire;
        assert_eq!(desk.elevator.dispatch(NOW), Next::NotBefore(aged));
    }
    desk.elevator.complete(NOW, urgent);
    let order: String =
        (0..8).map(|_| if desk.serve(NOW).0.is_multiple_of(2) { 'W' } else { 'R' }).collect();
    assert_eq!(order, "WWRRRRWW");
}

#[test]
fn service_counts_for_the_group_of_a_queue_and_all_above_it() {
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Bfq) {
        let config = ElevatorConfig { kind, ..ElevatorConfig::default() };
        let mut elevator = Elevator::new(NOW, &config);
        let tenant = elevator.add_group(NOW, GroupId::ROOT, Weight::default());
        let machine = elevator.add_group(NOW, tenant, Weight::default());
        let other = elevator.add_group(NOW, tenant, Weight::default());
        let queue = elevator.add_queue(NOW, machine, Priority::default(), true);
        let tag = Tag(7);
        let op = Op::Write;
        let request = Request { tag, queue, op, pos: 64, nr_sectors: 24, segments: 1, sync: true };
        elevator.insert(NOW, request);
        assert_eq!(elevator.group_report(tenant).queued, 1);
        assert_eq!(elevator.dispatch(NOW), Next::Request(tag));
        let service = |group| elevator.group_report(group).service_sectors;
        assert_eq!([GroupId::ROOT, tenant, machine, other].map(service), [24, 24, 24, 0]);
        assert_eq!(elevator.group_report(tenant).queued, 0);
    }
}

#[test]
fn by_the_legacy_rules_a_fresh_elevator_starts_with_reads() {
    for writes_starved in [0, 1, 2, 3] {
        let tunables =
            DeadlineTunables { fifo_batch: 2, writes_starved, legacy: true, ..Default::default() };
        let period = "RR".repeat(writes_starved as usize) + "WW";
        let expected = period.repeat(4);
        assert_eq!(letters(tunables, expected.len()), expected);
    }
}

#[test]
fn by_the_legacy_rules_a_batch_ends_at_the_top_and_the_next_one_begins_at_the_oldest() {
    let mut desk = Desk::new(DeadlineTunables { legacy: true, ..Default::default() });
    let tags = [500, 900, 100, 300].map(|pos| desk.put(NOW, BEST_EFFORT, Op::Read, pos));
    assert_eq!(desk.serve(NOW), tags[0]);
    // It comes too late for this batch: the one above was known already.
    let late = desk.put(NOW, BEST_EFFORT, Op::Read, 700);
    assert_eq!(desk.serve(NOW), tags[1]);
    assert_eq!(desk.serve(NOW), tags[2], "no wrap: the oldest one");
    assert_eq!([desk.serve(NOW), desk.serve(NOW)], [tags[3], late]);
}

#[test]
fn by_the_legacy_rules_a_batch_is_not_interrupted_and_classes_are_one() {
    let fifo_batch = 4;
    let tunables = DeadlineTunables { legacy: true, fifo_batch, ..Default::default() };
    let mut desk = Desk::new(tunables);
    let far = desk.put(NOW, IDLE, Op::Read, 1 << 20);
    assert_eq!(desk.serve(NOW), far);
    let overdue = desk.put(NOW, REAL_TIME, Op::Read, 8);
    let batch: Vec<Tag> =
        (0..4).map(|index| desk.put(NOW, IDLE, Op::Read, 1000 + index * 100)).collect();
    let now = NOW + Nanos::from_secs(1);
    // The first of them is the oldest one; what follows is the batch above it.
    assert_eq!(desk.serve(now), overdue);
    for &tag in &batch[..3] {
        assert_eq!(desk.serve(now), tag);
    }
    assert_eq!(desk.elevator.dispatch(now), Next::Request(batch[3]));
    assert_eq!(desk.elevator.dispatch(now), Next::Empty);
    assert_eq!(desk.elevator.next_deadline(), None);
}
