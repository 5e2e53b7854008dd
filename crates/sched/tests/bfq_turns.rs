//! A program that starts and reads through several queues: it turns from one to the next, reads
//! through two in turn, or is helped for a while.
#![expect(clippy::unwrap_used, reason = "a broken history is a failed test")]

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{GroupId, Nanos, QueueId, Scheduler as _, Urgency};

/// A small hard disk: 10 MB/s, 10 ms to get anywhere. A read of 16 KiB takes 11.6 ms.
const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
/// Where the programs of these tests start; the first of the two groups with readers.
const GROUP: GroupId = GroupId(1);

/// After so long a program that pauses no longer keeps its group in front.
const PAUSE: Nanos = Nanos::from_millis(3_100);

/// Five greedy readers in two groups, three of them random; they have run for a while.
fn hammered() -> World {
    let mut world = World::new(true, DISK, 1);
    let groups = [100, 100].map(|weight| world.group(GroupId::ROOT, weight));
    for (i, random) in [true, false, true, false, true].into_iter().enumerate() {
        let queue = world.queue(groups[i % 2]);
        let nr_sectors = if random { 8 } else { 256 };
        world.clients.push(Client::new(queue, if random { 4 } else { 2 }, nr_sectors, random));
    }
    world.run_for(Nanos::from_secs(60));
    world
}

/// Returns a program that reads 16 KiB at random places, one after the other.
fn program(world: &World, queue: QueueId, left: u64, think: Nanos) -> Client {
    let mut client = Client::new(queue, 1, 32, true);
    (client.left, client.from, client.think) = (left, world.now, think);
    client
}

/// Lets somebody read 50 times through a queue; returns how long a read takes on average.
fn read(world: &mut World, queue: QueueId) -> Nanos {
    world.clients.push(program(world, queue, 50, Nanos::from_micros(200)));
    while world.clients.last().unwrap().requests < 50 {
        world.run_for(Nanos::from_millis(10));
        world.bfq.check_invariants();
    }
    Nanos(world.clients.pop().unwrap().total_latency / 50)
}

/// Lets a program start in one queue and go on in another one, to which it may have come from those
/// that `came_from` names, given its first one and that of a reader; returns how long a read takes
/// there.
fn turn(came_from: fn(QueueId, QueueId) -> Vec<QueueId>) -> Nanos {
    let mut world = hammered();
    let reader = world.clients[0].queue;
    let [first, second] = [(); 2].map(|()| world.queue(GROUP));
    read(&mut world, first);
    world.run_for(PAUSE);
    world.bfq.deny_start(world.now, second, &came_from(first, reader));
    read(&mut world, second)
}

#[test]
fn a_start_goes_on_in_the_queue_that_its_program_turns_to() {
    let goes_on = turn(|first, _| vec![first]);
    let [nobody_knows, may_be_reader] =
        [turn(|_, _| Vec::new()), turn(|first, reader| vec![first, reader])];
    println!("{goes_on:?}; {nobody_knows:?}; {may_be_reader:?}");
    assert!(goes_on < Nanos::from_millis(20));
    // Nothing starts twice, and who was held up is not served first because of a start beside him.
    assert!(nobody_knows > Nanos::from_millis(60) && may_be_reader > Nanos::from_millis(60));
}

#[test]
fn a_start_goes_on_in_a_queue_that_somebody_read_in_long_ago() {
    let mut world = hammered();
    let [first, second] = [(); 2].map(|()| world.queue(GROUP));
    read(&mut world, second);
    world.run_for(Nanos::from_secs(60));
    read(&mut world, first);
    world.bfq.deny_start(world.now, second, &[first]);
    let latency = read(&mut world, second);
    println!("{latency:?}");
    assert!(latency < Nanos::from_millis(20));
}

/// Where it came from may be known only after a few reads, while the device is kept for it.
#[test]
fn a_start_goes_on_in_a_queue_that_is_waited_for() {
    let mut world = hammered();
    let [first, second] = [(); 2].map(|()| world.queue(GROUP));
    read(&mut world, first);
    world.run_for(PAUSE);
    world.bfq.deny_start(world.now, second, &[]);
    let unknown = read(&mut world, second);
    // As the last of its reads is done.
    world.bfq.deny_start(world.now, second, &[first]);
    let known = read(&mut world, second);
    println!("{unknown:?}, {known:?}");
    assert!(unknown > Nanos::from_millis(60) && known < Nanos::from_millis(20));
}

#[test]
fn what_is_left_of_a_start_is_all_that_goes_on() {
    let mut world = hammered();
    let mut queue = world.queue(GROUP);
    let mut latencies = Vec::new();
    // It turns to another file every second: a start would be over after 25 s at most.
    for _ in 0..60 {
        latencies.push(read(&mut world, queue));
        let next = world.queue(GROUP);
        world.bfq.deny_start(world.now, next, &[queue]);
        world.bfq.remove_queue(world.now, queue);
        queue = next;
    }
    let urgent = latencies.iter().take_while(|&&latency| latency < Nanos::from_millis(20)).count();
    println!("{urgent} of 60: {latencies:?}");
    assert!((10..50).contains(&urgent));
    assert!(latencies[50..].iter().all(|&latency| latency > Nanos::from_millis(60)));
}

/// Lets a program read through two queues in turn, from so long on; returns how long a read takes on
/// average.
fn through_two(after: Nanos) -> Nanos {
    let mut world = hammered();
    world.run_for(after);
    // Each thinks longer than anybody is waited for, both together do not.
    for offset in [0, 25] {
        let queue = world.queue(GROUP);
        let mut client = program(&world, queue, 40, Nanos::from_millis(38));
        client.from = world.now + Nanos::from_millis(offset);
        world.clients.push(client);
    }
    while world.clients[5..].iter().any(|client| client.requests < 40) {
        world.run_for(Nanos::from_millis(10));
        world.bfq.check_invariants();
    }
    let total: u64 = world.clients[5..].iter().map(|client| client.total_latency).sum();
    Nanos(total / 80)
}

#[test]
fn a_program_that_reads_through_two_queues_is_waited_for_in_both() {
    // Some of these miss each other all the time.
    let mut latencies =
        [0, 13, 50, 100, 200, 500, 1000].map(|ms| through_two(Nanos::from_millis(ms)));
    latencies.sort_unstable();
    println!("{latencies:?}");
    assert!(latencies[3] < Nanos::from_millis(20));
    assert!(latencies[6] < Nanos::from_millis(30));
}

/// What a program thinks about in one queue does not keep the device from what it wants in another one.
#[test]
fn a_program_that_is_waited_for_in_one_queue_goes_on_in_another_one() {
    for (pause, most) in [(5, 25), (15, 35)] {
        let mut world = hammered();
        for (think, left) in [(25, 100), (pause, 300)] {
            let queue = world.queue(GROUP);
            world.clients.push(program(&world, queue, left, Nanos::from_millis(think)));
        }
        world.run_for(Nanos::from_secs(3));
        world.bfq.check_invariants();
        let [thinks, reads] = [5, 6].map(|at| &world.clients[at]);
        let [thinks, reads] =
            [thinks, reads].map(|client| Nanos(client.total_latency / client.requests));
        println!("{thinks:?}, {reads:?}");
        assert!(thinks.max(reads) < Nanos::from_millis(most));
    }
}

/// Lets a program start that reads through several queues: every so many milliseconds, for so many,
/// it keeps requests of so many sectors waiting there. Returns the worst latency.
fn scattered(parts: [(u64, u64, u32, u32); 3]) -> Nanos {
    let mut world = hammered();
    for (i, (period, awake, outstanding, nr_sectors)) in (0..).zip(parts) {
        let queue = world.queue(GROUP);
        let mut client = program(&world, queue, 40, Nanos::ZERO);
        (client.outstanding, client.nr_sectors) = (outstanding, nr_sectors);
        client.from = world.now + Nanos::from_millis(5 * i);
        client.until = client.from + Nanos::from_millis(awake);
        client.period = Nanos::from_millis(period);
        world.clients.push(client);
    }
    while world.clients[5..].iter().any(|client| client.requests < 40) {
        world.run_for(Nanos::from_millis(10));
        world.bfq.check_invariants();
    }
    world.clients[5..].iter().map(|client| client.worst).max().unwrap()
}

#[test]
fn a_program_that_reads_here_and_there_keeps_the_device() {
    // What is served while another of its queues is waited for is nothing to be sat out.
    let beside = scattered([(287, 50, 5, 56), (202, 17, 2, 8), (251, 5, 6, 32)]);
    // Nor is a slot that ended while nothing else started.
    let alone = scattered([(146, 13, 5, 16), (233, 28, 6, 40), (165, 24, 1, 56)]);
    println!("{beside:?}, {alone:?}");
    // Of the dozen requests at once each takes 13 ms here; a slot of somebody else's 125.
    assert!(beside.max(alone) < Nanos::from_millis(250));
}

/// Lets somebody outside urge a queue for a while, who reads there since then or for long; returns
/// how long a read takes afterwards.
fn after_help(is_new: bool) -> Nanos {
    let mut world = hammered();
    let queue = world.queue(GROUP);
    if !is_new {
        world.clients.push(program(&world, queue, u64::MAX, Nanos::ZERO));
        world.run_for(Nanos::from_secs(60));
        world.clients.pop();
    }
    world.bfq.set_urgency(world.now, queue, Urgency::Interactive);
    read(&mut world, queue);
    world.bfq.set_urgency(world.now, queue, Urgency::None);
    read(&mut world, queue)
}

#[test]
fn what_starts_while_it_is_helped_still_starts_when_help_ends() {
    let [new, old] = [true, false].map(after_help);
    println!("{new:?}, {old:?}");
    assert!(new < Nanos::from_millis(20) && old > Nanos::from_millis(60));
}
