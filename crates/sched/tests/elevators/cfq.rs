//! What `cfq` promises.

use evenkeel_sched::{
    CfqTunables, Class, Elevator, ElevatorConfig, GroupId, Kind, MergeLimits, Nanos, Next, Op,
    Priority, QueueId, Request, Scheduler, Tag, Weight,
};

const NOW: Nanos = Nanos::ORIGIN;
const MS: Nanos = Nanos::from_millis(1);

/// A queue that always has requests, as many as it may.
pub(crate) struct Load {
    queue: QueueId,
    sync: bool,
    /// What one of its requests takes at the device.
    pub(crate) service: Nanos,
    pos: u64,
    pub(crate) waiting: u32,
    /// Time that it was served.
    used: Nanos,
    served: u64,
    /// When it was served last, and the longest time between two requests of it.
    last: Nanos,
    longest_gap: Nanos,
}

/// An elevator over a device that does one request at a time.
pub(crate) struct World {
    elevator: Elevator,
    pub(crate) now: Nanos,
    pub(crate) loads: Vec<Load>,
    /// Per tag the load that it belongs to.
    pub(crate) owners: Vec<usize>,
    free: Vec<Tag>,
}

const fn level(level: u8) -> Priority {
    Priority { class: Class::BestEffort, level }
}

impl World {
    pub(crate) fn new(tunables: CfqTunables, rotational: bool) -> Self {
        let config = ElevatorConfig {
            kind: Kind::Cfq,
            cfq: tunables,
            merge: MergeLimits { max_sectors: 1, max_segments: 1 },
            rotational,
            ..ElevatorConfig::default()
        };
        let elevator = Elevator::new(NOW, &config);
        Self { elevator, now: NOW, loads: Vec::new(), owners: Vec::new(), free: Vec::new() }
    }

    fn group(&mut self, parent: GroupId, weight: u64) -> GroupId {
        self.elevator.add_group(self.now, parent, Weight::new(weight).unwrap())
    }

    pub(crate) fn queue(&mut self, group: GroupId, priority: Priority, sync: bool) -> usize {
        let queue = self.elevator.add_queue(self.now, group, priority, sync);
        let pos = (self.loads.len() as u64 + 1) << 30;
        self.loads.push(Load {
            queue,
            sync,
            service: MS,
            pos,
            waiting: 0,
            used: Nanos::ZERO,
            served: 0,
            last: self.now,
            longest_gap: Nanos::ZERO,
        });
        self.loads.len() - 1
    }

    /// Inserts the next sequential request of a load.
    fn put(&mut self, index: usize) -> Tag {
        let next = Tag(u32::try_from(self.owners.len()).unwrap());
        let tag = self.free.pop().unwrap_or_else(|| {
            self.owners.push(index);
            next
        });
        self.owners[tag.0 as usize] = index;
        let load = &mut self.loads[index];
        load.waiting += 1;
        load.pos += 8;
        let (queue, pos, sync) = (load.queue, load.pos, load.sync);
        let op = if sync { Op::Read } else { Op::Write };
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync };
        self.elevator.insert(self.now, request);
        tag
    }

    pub(crate) fn enqueue(&mut self, index: usize) {
        self.put(index);
    }

    pub(crate) fn next(&mut self) -> Next {
        let next = self.elevator.dispatch(self.now);
        self.elevator.check_invariants();
        if let Next::Request(tag) = next {
            self.loads[self.owners[tag.0 as usize]].waiting -= 1;
        }
        next
    }

    pub(crate) fn complete(&mut self, tag: Tag) {
        self.elevator.complete(self.now, tag);
        self.free.push(tag);
    }

    /// Serves whatever is next, and returns whose it was.
    fn serve(&mut self) -> usize {
        loop {
            match self.next() {
                Next::Request(tag) => {
                    let owner = self.owners[tag.0 as usize];
                    let load = &mut self.loads[owner];
                    load.longest_gap = load.longest_gap.max(self.now.since(load.last));
                    self.now += load.service;
                    load.used += load.service;
                    load.served += 1;
                    load.last = self.now;
                    self.complete(tag);
                    return owner;
                }
                Next::NotBefore(then) => self.now = then,
                Next::Empty => unreachable!("something waits"),
            }
        }
    }

    /// Lets all loads compete for a while.
    pub(crate) fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            for index in 0..self.loads.len() {
                while self.loads[index].waiting < 3 {
                    self.put(index);
                }
            }
            self.serve();
        }
    }

    /// Returns the time that each load was served, in milliseconds.
    pub(crate) fn used_ms(&self) -> Vec<u64> {
        self.loads.iter().map(|load| load.used.as_millis()).collect()
    }
}

const SPAN: Nanos = Nanos::from_secs(20);

#[test]
fn equal_queues_get_equal_time_whatever_their_requests_cost() {
    let mut world = World::new(CfqTunables::default(), true);
    for service in [1, 2, 4, 7] {
        let index = world.queue(GroupId::ROOT, level(4), true);
        world.loads[index].service = Nanos::from_millis(service);
    }
    world.run(SPAN);
    for used in world.used_ms() {
        // One slice, and in each of about 67 rounds at most a request more.
        assert!(used.abs_diff(5_000) <= 100 + 67 * 7, "{:?}", world.used_ms());
    }
}

#[test]
fn time_follows_the_levels() {
    let tunables = CfqTunables { low_latency: false, ..CfqTunables::default() };
    for (first, second) in [(0, 7), (2, 4), (3, 6)] {
        let mut world = World::new(tunables, true);
        world.queue(GroupId::ROOT, level(first), true);
        world.queue(GroupId::ROOT, level(second), true);
        world.run(SPAN);
        let used = world.used_ms();
        let expected = 20_000 * u64::from(9 - first) / u64::from(18 - first - second);
        // A slice, and the first request of each of at least 83 rounds, which has no clock.
        assert!(used[0].abs_diff(expected) <= 180 + 90, "{first} and {second}: {used:?}");
    }
}

#[test]
fn a_round_takes_the_target_latency_or_two_idle_periods_for_each_queue() {
    for (queues, round_ms) in [(10_u64, 300), (30, 480)] {
        let mut world = World::new(CfqTunables::default(), true);
        for _ in 0..queues {
            world.queue(GroupId::ROOT, level(4), true);
        }
        // The average number of queues has to be learnt first.
        world.run(Nanos::from_secs(2));
        world.loads.iter_mut().for_each(|load| load.longest_gap = Nanos::ZERO);
        world.run(Nanos::from_secs(5));
        let gap = world.loads.iter().map(|load| load.longest_gap.as_millis()).max().unwrap();
        assert!(gap <= round_ms + 2 * queues, "{queues} queues: {gap} ms");
        assert!(gap >= round_ms / 2, "{queues} queues: {gap} ms");
    }
}

#[test]
fn a_better_class_starves_a_worse_one_of_its_group() {
    let mut world = World::new(CfqTunables::default(), true);
    for class in [Class::RealTime, Class::BestEffort, Class::Idle] {
        world.queue(GroupId::ROOT, Priority { class, level: 4 }, true);
    }
    world.run(SPAN);
    assert!(world.used_ms()[1..].iter().all(|&used| used <= 1), "{:?}", world.used_ms());
    // The worst class has its turn only once nobody else wants the device.
    let mut world = World::new(CfqTunables::default(), true);
    for class in [Class::BestEffort, Class::Idle] {
        world.queue(GroupId::ROOT, Priority { class, level: 4 }, true);
    }
    world.run(SPAN);
    assert!(world.used_ms()[1] <= 1, "{:?}", world.used_ms());
    while world.loads[0].waiting > 0 {
        world.serve();
    }
    assert_eq!(world.serve(), 1);
}

#[test]
fn groups_share_time_by_weight_on_every_level() {
    let mut world = World::new(CfqTunables::default(), true);
    let [light, heavy] = [100, 300].map(|weight| world.group(GroupId::ROOT, weight));
    let [first, second] = [200, 400].map(|weight| world.group(heavy, weight));
    world.queue(light, level(4), true);
    world.queue(first, level(4), true);
    // Neither the number of queues nor what a request costs matters.
    for service in [3, 5] {
        let index = world.queue(second, level(4), true);
        world.loads[index].service = Nanos::from_millis(service);
    }
    world.run(SPAN);
    let used = world.used_ms();
    for (used, expected) in [(used[0], 5_000), (used[1], 5_000), (used[2] + used[3], 10_000)] {
        assert!(used.abs_diff(expected) <= 400, "{used} of {expected}: {:?}", world.used_ms());
    }
}

#[test]
fn a_new_weight_counts_at_once() {
    let mut world = World::new(CfqTunables::default(), true);
    let [first, second] = [100, 100].map(|weight| world.group(GroupId::ROOT, weight));
    world.queue(first, level(4), true);
    world.queue(second, level(4), true);
    world.run(SPAN);
    world.elevator.set_weight(world.now, second, Weight::new(300).unwrap());
    let before = world.used_ms();
    world.run(SPAN);
    let used = world.used_ms()[1] - before[1];
    assert!(used.abs_diff(15_000) <= 400, "{used}");
}

#[test]
fn without_idling_groups_share_requests_rather_than_time() {
    let tunables = CfqTunables::enterprise_storage();
    let mut world = World::new(tunables, true);
    for service in [1, 4] {
        let group = world.group(GroupId::ROOT, 100);
        let index = world.queue(group, level(4), true);
        world.loads[index].service = Nanos::from_millis(service);
    }
    world.run(SPAN);
    let [quick, slow] = [0, 1].map(|index: usize| world.loads[index].served);
    assert!(quick.abs_diff(slow) <= slow / 10, "{quick} and {slow}");
}

#[test]
fn the_device_is_kept_for_a_sequential_reader_and_not_for_long() {
    let mut world = World::new(CfqTunables::default(), true);
    let reader = world.queue(GroupId::ROOT, level(4), true);
    let other = world.queue(GroupId::ROOT, level(4), true);
    world.put(reader);
    world.put(other);
    assert_eq!(world.serve(), reader);
    let until = world.now + Nanos::from_millis(8);
    assert_eq!(world.next(), Next::NotBefore(until));
    assert_eq!(world.elevator.next_deadline(), Some(until));
    world.now = until - Nanos(1);
    let next = world.put(reader);
    assert_eq!(world.next(), Next::Request(next), "who comes back in time goes on");
    world.complete(next);
    world.now += Nanos::from_millis(8);
    assert_eq!(world.serve(), other);
    assert_eq!(world.elevator.next_deadline(), None);
}

#[test]
fn a_device_that_queues_and_does_not_turn_is_kept_for_nobody() {
    let mut world = World::new(CfqTunables::default(), false);
    let reader = world.queue(GroupId::ROOT, level(4), true);
    let other = world.queue(GroupId::ROOT, level(4), true);
    let tags = [world.put(reader), world.put(other)];
    assert_eq!(world.serve(), reader);
    assert_eq!(world.next(), Next::Request(tags[1]));
}

#[test]
fn the_end_of_a_slice_is_a_deadline_while_the_holder_may_not_send() {
    let mut world = World::new(CfqTunables { quantum: 1, ..CfqTunables::default() }, true);
    let first = world.queue(GroupId::ROOT, level(4), true);
    let second = world.queue(GroupId::ROOT, level(4), true);
    for _ in 0..4 {
        world.put(first);
        world.put(second);
    }
    assert_eq!(world.serve(), first);
    assert!(matches!(world.next(), Next::Request(_)));
    let ends = world.now + Nanos::from_millis(100);
    assert_eq!(world.next(), Next::NotBefore(ends));
    world.now = ends;
    let Next::Request(tag) = world.next() else { unreachable!("the slice is over") };
    assert_eq!(world.owners[tag.0 as usize], second);
}

#[test]
fn a_queue_has_its_quantum_at_the_device_unless_it_is_alone() {
    for quantum in [1, 8, 32] {
        for others in [0, 1] {
            let tunables = CfqTunables { quantum, ..CfqTunables::default() };
            let mut world = World::new(tunables, true);
            for _ in 0..=others {
                let index = world.queue(GroupId::ROOT, level(4), true);
                (0..100).for_each(|_| world.enqueue(index));
            }
            world.serve();
            let mut sent = 0;
            while let Next::Request(_) = world.next() {
                sent += 1;
            }
            assert!(if others == 0 { sent == 99 } else { sent <= quantum }, "{sent}");
        }
    }
}

#[test]
fn who_is_waited_for_takes_the_device_from_write_back_and_real_time_from_everybody() {
    let mut world = World::new(CfqTunables::default(), true);
    let writer = world.queue(GroupId::ROOT, level(0), false);
    let reader = world.queue(GroupId::ROOT, level(7), true);
    let urgent = Priority { class: Class::RealTime, level: 7 };
    let urgent = world.queue(GroupId::ROOT, urgent, true);
    for _ in 0..3 {
        world.put(writer);
    }
    assert_eq!(world.serve(), writer);
    for _ in 0..3 {
        world.put(reader);
    }
    assert_eq!(world.serve(), reader);
    world.put(urgent);
    assert_eq!(world.serve(), urgent);
}

#[test]
fn write_back_takes_turns_of_as_many_requests_as_its_level_allows() {
    for (queue_level, turn) in [(4, 16), (6, 8), (0, 32)] {
        let mut world = World::new(CfqTunables::default(), true);
        for _ in 0..2 {
            let index = world.queue(GroupId::ROOT, level(queue_level), false);
            world.loads[index].service = Nanos::from_micros(100);
            (0..200).for_each(|_| world.enqueue(index));
        }
        let order: Vec<usize> = (0..6 * turn).map(|_| world.serve()).collect();
        for (index, owner) in order.iter().enumerate() {
            assert_eq!(*owner, index / turn % 2, "{order:?}");
        }
    }
}
