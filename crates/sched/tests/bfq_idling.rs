//! Waiting: for whom, how long, and at whose cost.

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{
    Bfq, BfqTunables, Class, GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag,
};

const FLASH: Device = Device::Parallel { latency: 100_000 };
const ROTATING: bool = true;

fn insert(bfq: &mut Bfq, now: Nanos, tag: u32, queue: QueueId, pos: u64) {
    let (op, tag) = (Op::Read, Tag(tag));
    bfq.insert(now, Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true });
}

/// Two queues of different groups; the first has had one request served and completed at the
/// returned time, the second has one waiting.
fn one_served(tunables: BfqTunables, rotational: bool) -> (Bfq, Nanos, [QueueId; 2]) {
    let mut bfq = Bfq::new(Nanos::ORIGIN, tunables, MergeLimits::default(), rotational);
    // Long enough that a queue without a past counts as new.
    let mut now = Nanos::ORIGIN + Nanos::from_secs(3);
    let groups = [1, 2].map(|_| bfq.add_group(now, GroupId::ROOT, evenkeel_sched::Weight::MAX));
    let queues = groups.map(|group| bfq.add_queue(now, group, Priority::default(), true));
    insert(&mut bfq, now, 0, queues[0], 0);
    assert_eq!(bfq.dispatch(now), Next::Request(Tag(0)));
    insert(&mut bfq, now, 1, queues[1], 1 << 30);
    now += Nanos::from_millis(1);
    bfq.complete(now, Tag(0));
    (bfq, now, queues)
}

#[test]
fn the_device_is_kept_until_the_deadline_and_not_longer() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let (mut bfq, now, _) = one_served(tunables, ROTATING);
    let until = now + Nanos::from_millis(8);
    assert_eq!(bfq.dispatch(now), Next::NotBefore(until));
    assert_eq!(bfq.next_deadline(), Some(until));
    assert_eq!(bfq.dispatch(until - Nanos(1)), Next::NotBefore(until));
    assert_eq!(bfq.dispatch(until), Next::Request(Tag(1)));
    bfq.check_invariants();
}

#[test]
fn who_is_raised_is_waited_for_longer() {
    let tunables = BfqTunables { injection: false, ..BfqTunables::default() };
    let (mut bfq, now, _) = one_served(tunables, ROTATING);
    assert_eq!(bfq.dispatch(now), Next::NotBefore(now + Nanos::from_millis(30)));
}

#[test]
fn a_wait_longer_than_an_idle_slice_lets_one_request_of_another_raised_queue_in() {
    let (mut bfq, now, queues) = one_served(BfqTunables::default(), ROTATING);
    let wasteful = now + Nanos::from_millis(8);
    insert(&mut bfq, now, 2, queues[1], 1 << 31);
    assert_eq!(bfq.dispatch(now), Next::NotBefore(wasteful));
    assert_eq!(bfq.dispatch(wasteful), Next::Request(Tag(1)));
    bfq.check_invariants();
    assert_eq!(bfq.dispatch(wasteful), Next::NotBefore(now + Nanos::from_millis(30)), "only one");
    let back = now + Nanos::from_millis(9);
    insert(&mut bfq, back, 3, queues[0], 8);
    assert_eq!(bfq.dispatch(back), Next::Request(Tag(3)), "it is still in service");
}

#[test]
fn who_comes_back_in_time_goes_first() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let (mut bfq, now, queues) = one_served(tunables, ROTATING);
    assert!(matches!(bfq.dispatch(now), Next::NotBefore(_)));
    let later = now + Nanos::from_millis(7);
    insert(&mut bfq, later, 2, queues[0], 8);
    assert_eq!(bfq.dispatch(later), Next::Request(Tag(2)));
}

#[test]
fn nobody_waits_for_a_removed_queue() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let (mut bfq, now, queues) = one_served(tunables, ROTATING);
    assert!(matches!(bfq.dispatch(now), Next::NotBefore(_)));
    bfq.remove_queue(now, queues[0]);
    bfq.check_invariants();
    assert_eq!(bfq.dispatch(now), Next::Request(Tag(1)), "P22");
}

#[test]
fn without_idling_nobody_is_waited_for() {
    let tunables = BfqTunables { slice_idle: Nanos::ZERO, ..BfqTunables::default() };
    let (mut bfq, now, _) = one_served(tunables, ROTATING);
    assert_eq!(bfq.dispatch(now), Next::Request(Tag(1)), "P20");
}

#[test]
fn a_stuck_device_holds_others_up_for_one_slot_at_most() {
    let now = Nanos::ORIGIN;
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let mut bfq = Bfq::new(now, tunables, MergeLimits::default(), ROTATING);
    let groups = [1, 2].map(|_| bfq.add_group(now, GroupId::ROOT, evenkeel_sched::Weight::MAX));
    let queues = groups.map(|group| bfq.add_queue(now, group, Priority::default(), true));
    insert(&mut bfq, now, 0, queues[0], 0);
    assert_eq!(bfq.dispatch(now), Next::Request(Tag(0)));
    insert(&mut bfq, now, 1, queues[1], 1 << 30);
    let ends = now + Nanos::from_millis(125);
    assert_eq!(bfq.dispatch(now), Next::NotBefore(ends));
    assert_eq!(bfq.next_deadline(), Some(ends));
    assert_eq!(bfq.dispatch(ends), Next::Request(Tag(1)));
}

#[test]
fn strict_guarantees_keep_one_request_at_the_device() {
    let tunables = BfqTunables { strict_guarantees: true, ..BfqTunables::default() };
    let mut world = World::tuned(tunables, false, FLASH, 32);
    world.check = true;
    for weight in [100, 300] {
        let group = world.group(GroupId::ROOT, weight);
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 8, 8, true));
    }
    for _ in 0..2_000 {
        world.run_for(Nanos::from_micros(100));
        assert!(world.bfq.in_flight() <= 1, "P21");
    }
    assert!(world.clients[1].sectors > 0);
}

#[test]
fn a_long_silence_before_anybody_notices_counts_as_silence() {
    let tunables = BfqTunables::default();
    let mut now = Nanos::ORIGIN;
    let mut bfq = Bfq::new(now, tunables, MergeLimits::default(), ROTATING);
    let group = bfq.add_group(now, GroupId::ROOT, evenkeel_sched::Weight::MAX);
    let queue = bfq.add_queue(now, group, Priority::default(), true);
    insert(&mut bfq, now, 0, queue, 0);
    assert_eq!(bfq.dispatch(now), Next::Request(Tag(0)));
    bfq.complete(now, Tag(0));
    assert_eq!(bfq.dispatch(now), Next::Empty);
    assert_eq!(bfq.next_deadline(), None, "nobody waits, so nobody is woken");
    now += Nanos::from_secs(60);
    insert(&mut bfq, now, 0, queue, 0);
    assert!(bfq.group_report(group).raised, "60 s of silence make it interactive again");
}

/// As many groups as given with one request at a time each: returns requests per second.
fn rate_of_depth_one(groups: u64, spread: bool) -> u64 {
    let mut world = World::new(false, FLASH, 32);
    for i in 0..groups {
        let group = world.group(GroupId::ROOT, if spread { 50 + 50 * (i % 4) } else { 100 });
        let queue = world.queue(group);
        let mut client = Client::new(queue, 1, 8, true);
        client.think = Nanos::from_micros(20 + 3 * i);
        world.clients.push(client);
    }
    world.run_for(Nanos::from_secs(10));
    world.forget();
    world.run_for(Nanos::from_secs(2));
    world.clients.iter().map(|client| client.requests).sum::<u64>() / 2
}

#[test]
fn groups_of_depth_one_overlap_on_flash() {
    let alone = rate_of_depth_one(1, false);
    let together = rate_of_depth_one(16, false);
    println!("alone {alone}/s, 16 groups {together}/s");
    // A device of 32 channels has room for all; the slower ones are ahead of nobody, so some time
    // goes into waiting for them.
    assert!(together > 8 * alone, "{together} against {alone}");
    let weighted = rate_of_depth_one(16, true);
    println!("16 groups of four weights {weighted}/s");
}

/// What is left of the device for somebody with many long reads, beside one who reads 4 KiB, waits
/// for it, which takes 40 us alone, and thinks.
fn left_beside(bounded: bool, think: Nanos) -> f64 {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let full = Device::Serial { per_sector: 5_000, seek: 0 };
    let mut world = World::tuned(tunables, false, full, 8);
    world.check = true;
    world.bfq.set_bounded(bounded);
    for (outstanding, nr_sectors, think) in [(32, 256, Nanos::ZERO), (1, 8, think)] {
        let group = world.group(GroupId::ROOT, 100);
        let queue = world.queue(group);
        let mut client = Client::new(queue, outstanding, nr_sectors, true);
        client.think = think;
        world.clients.push(client);
    }
    world.run_for(Nanos::from_secs(2));
    world.forget();
    world.run_for(Nanos::from_secs(2));
    let left = world.clients[0].sectors as f64 * 5_000.0 / 2e9;
    println!("bounded {bounded}, thinks {} us: {left:.3}", think.as_micros());
    left
}

#[test]
fn flash_that_is_given_little_is_kept_for_nobody_who_thinks_longer_than_a_read_takes() {
    let [quick, slow] = [Nanos::from_micros(20), Nanos::from_micros(300)];
    assert!(left_beside(false, quick) < 0.6 && left_beside(false, slow) < 0.6);
    assert!(left_beside(true, quick) < 0.6, "it has a right to its half");
    assert!(left_beside(true, slow) > 0.9);
}

#[test]
fn the_idle_class_gets_a_thin_share() {
    let mut world = World::new(true, Device::Serial { per_sector: 5_000, seek: 1_000_000 }, 1);
    world.check = true;
    let busy = world.queue(GroupId::ROOT);
    let idle = Priority { class: Class::Idle, level: 0 };
    let idle = world.bfq.add_queue(world.now, GroupId::ROOT, idle, true);
    world.clients.push(Client::new(busy, 4, 256, false));
    world.clients.push(Client::new(idle, 4, 8, true));
    world.run_for(Nanos::from_secs(20));
    world.forget();
    world.run_for(Nanos::from_secs(10));
    let served = world.clients[1].requests;
    println!("idle class: {served} in 10 s, worst {} ms", world.clients[1].worst.as_millis());
    // P4: once per 200 ms and one slot of at most 125 ms.
    assert!((10_000 / 330..=10_000 / 200 + 1).contains(&served));
}
