//! `kernel_compat`: what comes back of Linux when it is asked for.
#![expect(clippy::unwrap_used, reason = "a broken history is a failed test")]

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{
    Bfq, BfqTunables, Class, GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag, Weight,
};

/// A small hard disk: 10 MB/s, 10 ms to get anywhere.
const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
const FLASH: Device = Device::Parallel { latency: 100_000 };

fn tunables(kernel_compat: bool) -> BfqTunables {
    BfqTunables { kernel_compat, ..BfqTunables::default() }
}

fn plain(kernel_compat: bool) -> BfqTunables {
    // Injection would hide for whom the device is kept.
    BfqTunables { low_latency: false, injection: false, ..tunables(kernel_compat) }
}

/// A scheduler with one queue in each of two groups.
struct Desk {
    bfq: Bfq,
    groups: [GroupId; 2],
    queues: [QueueId; 2],
    tags: u32,
}

impl Desk {
    fn new(tunables: BfqTunables, rotational: bool) -> Self {
        let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
        let mut bfq = Bfq::new(Nanos::ORIGIN, tunables, merge, rotational);
        let groups = [100, 100].map(|weight| {
            bfq.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::new(weight).unwrap())
        });
        let queues =
            groups.map(|group| bfq.add_queue(Nanos::ORIGIN, group, Priority::default(), true));
        Self { bfq, groups, queues, tags: 0 }
    }

    fn insert(&mut self, now: Nanos, queue: usize, nr_sectors: u32) -> Tag {
        let tag = Tag(self.tags);
        self.tags += 1;
        let (queue, pos) = (self.queues[queue], u64::from(tag.0) << 12 | (queue as u64) << 40);
        let request =
            Request { tag, queue, op: Op::Read, pos, nr_sectors, segments: 1, sync: true };
        self.bfq.insert(now, request);
        tag
    }
}

/// Starts an application beside greedy readers in two groups, and returns the percentage of all
/// service that the group without it receives meanwhile.
fn left_for_the_other_group(tunables: BfqTunables) -> u64 {
    let mut world = World::tuned(tunables, true, DISK, 1);
    let groups = [100, 100].map(|weight| world.group(GroupId::ROOT, weight));
    for group in groups {
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 4, 256, false));
    }
    world.run_for(Nanos::from_secs(40));
    world.forget();
    let queue = world.queue(groups[0]);
    world.clients.push(Client::new(queue, 4, 256, false));
    world.run_for(Nanos::from_secs(4));
    assert!(world.bfq.group_report(groups[0]).raised);
    let all: u64 = world.clients.iter().map(|client| client.sectors).sum();
    world.clients[1].sectors * 100 / all
}

#[test]
fn a_raise_no_longer_lifts_groups() {
    let [ours, kernel] = [false, true].map(|compat| left_for_the_other_group(tunables(compat)));
    println!("{ours} % and {kernel} %");
    // Without the group, the raise decides within the group alone; but a raised queue is never
    // charged for its time, and the other one is.
    assert!(ours < 8 && kernel > 12);
}

#[test]
fn queues_with_a_level_of_their_own_are_no_longer_raised() {
    for (compat, level, raised) in [(false, 2, true), (true, 2, false), (true, 4, true)] {
        let mut desk = Desk::new(tunables(compat), true);
        let priority = Priority { class: Class::BestEffort, level };
        desk.queues[0] = desk.bfq.add_queue(Nanos::ORIGIN, desk.groups[0], priority, true);
        // Whoever comes first after a while may be an application that starts.
        desk.insert(Nanos::ORIGIN + Nanos::from_secs(3), 0, 8);
        assert_eq!(desk.bfq.group_report(desk.groups[0]).raised, raised, "level {level}");
        desk.bfq.check_invariants();
    }
}

/// Requests per second of eight groups on flash, with one request at a time each.
fn rate_of_depth_one(tunables: BfqTunables) -> u64 {
    let mut world = World::tuned(tunables, false, FLASH, 32);
    for i in 0..8 {
        let group = world.group(GroupId::ROOT, 100);
        let queue = world.queue(group);
        let mut client = Client::new(queue, 1, 8, true);
        client.think = Nanos::from_micros(20 + i);
        world.clients.push(client);
    }
    world.run_for(Nanos::from_secs(1));
    world.forget();
    world.run_for(Nanos::from_secs(1));
    world.clients.iter().map(|client| client.requests).sum()
}

#[test]
fn groups_of_depth_one_no_longer_overlap_on_flash() {
    let [ours, kernel] = [false, true].map(|compat| rate_of_depth_one(plain(compat)));
    println!("{ours}/s and {kernel}/s");
    assert!(ours > 5 * kernel);
}

#[test]
fn a_stuck_device_holds_others_up_for_as_long_as_it_is_stuck() {
    let mut desk = Desk::new(plain(true), true);
    let stuck = desk.insert(Nanos::ORIGIN, 0, 8);
    assert_eq!(desk.bfq.dispatch(Nanos::ORIGIN), Next::Request(stuck));
    let other = desk.insert(Nanos::ORIGIN, 1, 8);
    assert_eq!(desk.bfq.dispatch(Nanos::ORIGIN), Next::Empty);
    assert_eq!(desk.bfq.next_deadline(), None);
    let late = Nanos::ORIGIN + Nanos::from_secs(9);
    assert_eq!(desk.bfq.dispatch(late), Next::Empty);
    desk.bfq.complete(late, stuck);
    let Next::NotBefore(until) = desk.bfq.dispatch(late) else {
        unreachable!("the queue is waited for")
    };
    assert_eq!(desk.bfq.dispatch(until), Next::Request(other));
}

#[test]
fn the_device_is_filled_as_far_as_the_budget_reaches() {
    for (compat, most) in [(false, 1536), (true, 10_922)] {
        let mut desk = Desk::new(plain(compat), false);
        for _ in 0..40 {
            desk.insert(Nanos::ORIGIN, 0, 512);
        }
        let mut sectors = 0;
        while desk.bfq.dispatch(Nanos::ORIGIN) != Next::Empty && sectors < 10_000 {
            sectors += 512;
        }
        println!("{sectors} sectors at once");
        assert!(sectors <= most && sectors > most / 2);
    }
}

#[test]
fn the_clock_of_a_slot_no_longer_waits_for_the_head() {
    for (compat, is_over) in [(false, false), (true, true)] {
        let mut desk = Desk::new(plain(compat), true);
        let first = desk.insert(Nanos::ORIGIN, 0, 8);
        assert_eq!(desk.bfq.dispatch(Nanos::ORIGIN), Next::Request(first));
        let own = desk.insert(Nanos::ORIGIN, 0, 8);
        let other = desk.insert(Nanos::ORIGIN, 1, 8);
        // The first request takes 100 ms, 130 ms pass in all; a slot has 125 ms.
        desk.bfq.complete(Nanos::ORIGIN + Nanos::from_millis(100), first);
        let now = Nanos::ORIGIN + Nanos::from_millis(130);
        let expected = if is_over { other } else { own };
        assert_eq!(desk.bfq.dispatch(now), Next::Request(expected));
    }
}

#[test]
fn kernel_compat_is_off_unless_asked_for() {
    assert!(!BfqTunables::default().kernel_compat);
    assert_eq!(tunables(true).validate(), Ok(()));
}
