//! What `deadline` promises.

use evenkeel_sched::{
    Class, DeadlineTunables, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits,
    Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag, Weight,
};

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
