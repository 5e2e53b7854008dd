//! Somebody outside says that a queue is urgent.

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{BfqTunables, GroupId, Nanos, Scheduler, Urgency};

const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };

/// One greedy random reader in each of two groups, long after their raises have ended.
fn settled(tunables: BfqTunables) -> World {
    let mut world = World::tuned(tunables, true, DISK, 1);
    for _ in 0..2 {
        let group = world.group(GroupId::ROOT, 100);
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 2, 8, true));
    }
    world.check = true;
    world.run_for(Nanos::from_secs(40));
    world.forget();
    world
}

fn urge(world: &mut World, client: usize, urgency: Urgency) {
    let queue = world.clients[client].queue;
    world.bfq.set_urgency(world.now, queue, urgency);
}

fn sectors(world: &World) -> [u64; 2] {
    [0, 1].map(|client| world.clients[client].sectors)
}

#[test]
fn an_urgent_queue_gets_nearly_everything_for_as_long_as_it_is_urgent() {
    let mut world = settled(BfqTunables::default());
    urge(&mut world, 0, Urgency::Interactive);
    // Far beyond what a raise of its own would last. The other one pays for its slots by time, the
    // urgent one by sectors, so a slot of the other one is rare, and all that it gets is relief.
    world.run_for(Nanos::from_secs(2000));
    let [urgent, other] = sectors(&world);
    println!("{urgent} against {other}");
    assert!(urgent > other * 6);
    assert!(other * 9 > urgent, "nobody starves");
}

/// How a program is served whose queue is urgent, and which works for 240 ms and rests for 100, which
/// is longer than it is waited for; beside greedy readers in order.
fn beside_greedy_readers(same_group: bool) -> Client {
    let mut world = World::tuned(BfqTunables::default(), true, DISK, 1);
    let group = world.group(GroupId::ROOT, 100);
    let other = if same_group { group } else { world.group(GroupId::ROOT, 100) };
    let mut program = Client::new(world.queue(group), 1, 128, true);
    program.think = Nanos::from_millis(2);
    (program.until, program.period) =
        (Nanos::ORIGIN + Nanos::from_millis(240), Nanos::from_millis(340));
    world.clients.push(program);
    for _ in 0..2 {
        let queue = world.queue(other);
        world.clients.push(Client::new(queue, 2, 256, false));
    }
    world.check = true;
    world.run_for(Nanos::from_secs(40));
    urge(&mut world, 0, Urgency::Interactive);
    world.run_for(Nanos::from_secs(1));
    world.forget();
    world.run_for(Nanos::from_secs(60));
    assert!(world.clients[1].sectors > 0, "the pauses belong to others");
    world.clients.swap_remove(0)
}

#[test]
fn an_urgent_queue_that_is_raised_alone_waits_for_no_slots_of_others() {
    for same_group in [false, true] {
        let Client { worst, requests, total_latency, .. } = beside_greedy_readers(same_group);
        println!(
            "{requests} requests, at worst {worst:?}, mean {}",
            total_latency / requests / 1000
        );
        assert!(requests > 1000);
        // One of its own, of 16 ms, behind one of 23 that found the device idle.
        assert!(worst < Nanos::from_millis(60), "{worst:?}, same group: {same_group}");
    }
}

/// Returns how many reads others get in three seconds beside a program that starts, reads for 100 ms
/// and thinks for 45.
fn beside_thoughtful(is_urged: bool) -> u64 {
    let mut world = settled(BfqTunables::default());
    let group = world.group(GroupId::ROOT, 100);
    let mut program = Client::new(world.queue(group), 1, 32, true);
    (program.from, program.until) = (world.now, world.now + Nanos::from_millis(100));
    (program.think, program.period) = (Nanos::from_millis(2), Nanos::from_millis(145));
    world.clients.push(program);
    if is_urged {
        urge(&mut world, 2, Urgency::Interactive);
    }
    world.run_for(Nanos::from_secs(3));
    world.clients[..2].iter().map(|client| client.requests).sum()
}

#[test]
fn what_somebody_says_starts_is_waited_for_longer_than_what_seems_to() {
    let [seems, said] = [false, true].map(beside_thoughtful);
    println!("{seems}, {said}");
    // Relief is left: an eighth of two seconds, in reads of 10 ms.
    assert!(seems > said + 10 && said < 35);
}

#[test]
fn nobody_starves_beside_an_urgent_queue_that_never_pauses() {
    for (random, nr_sectors) in [(true, 8), (false, 256)] {
        let mut world = World::tuned(BfqTunables::default(), true, DISK, 1);
        for _ in 0..6 {
            let group = world.group(GroupId::ROOT, 100);
            let queue = world.queue(group);
            world.clients.push(Client::new(queue, 1, nr_sectors, random));
        }
        world.check = true;
        world.run_for(Nanos::from_secs(100));
        urge(&mut world, 0, Urgency::Interactive);
        world.run_for(Nanos::from_secs(6));
        world.forget();
        world.run_for(Nanos::from_secs(60));
        let requests: Vec<u64> = world.clients.iter().map(|client| client.requests).collect();
        let others: u64 = requests[1..].iter().sum();
        let longest = world.clients[1..].iter().map(|client| client.worst).max();
        println!("{requests:?}, the others wait for up to {longest:?}");
        let (most, least) = (requests[1..].iter().max(), requests[1..].iter().min());
        assert!(most.zip(least).is_some_and(|(most, least)| least * 5 > most * 4), "in turn");
        assert!(longest < Some(Nanos::from_secs(2)));
        // The device takes as long for theirs as for the urgent one's.
        assert!((10..=15).contains(&(others * 100 / (others + requests[0]))));
    }
}

#[test]
fn shares_are_exact_again_once_nothing_is_urgent() {
    for urgency in [Urgency::Interactive, Urgency::SoftRealTime] {
        let mut world = settled(BfqTunables::default());
        urge(&mut world, 0, urgency);
        world.run_for(Nanos::from_secs(5));
        urge(&mut world, 0, Urgency::None);
        assert!(!world.bfq.group_report(GroupId::ROOT).raised);
        // A slot until the weights are in force.
        world.run_for(Nanos::from_millis(500));
        world.forget();
        world.run_for(Nanos::from_secs(60));
        let [one, two] = sectors(&world);
        println!("{urgency:?}: {one} {two}");
        assert!(one.abs_diff(two) * 100 < one + two);
    }
}

#[test]
fn two_urgent_queues_share_alike() {
    let mut world = settled(BfqTunables::default());
    urge(&mut world, 0, Urgency::Interactive);
    urge(&mut world, 1, Urgency::Interactive);
    world.run_for(Nanos::from_secs(60));
    let [one, two] = sectors(&world);
    println!("{one} {two}");
    // Turns last one timeout, as those of anybody else.
    assert!(one.abs_diff(two) * 100 < one + two);
}

#[test]
fn saying_the_same_again_changes_nothing() {
    let mut once = settled(BfqTunables::default());
    let mut often = settled(BfqTunables::default());
    urge(&mut once, 0, Urgency::Interactive);
    for _ in 0..100 {
        urge(&mut often, 0, Urgency::Interactive);
        once.run_for(Nanos::from_millis(50));
        often.run_for(Nanos::from_millis(50));
    }
    assert_eq!(sectors(&once), sectors(&often));
}

#[test]
fn without_low_latency_nobody_is_urgent() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let mut world = settled(tunables);
    urge(&mut world, 0, Urgency::SoftRealTime);
    world.run_for(Nanos::from_secs(30));
    let [one, two] = sectors(&world);
    assert!(one.abs_diff(two) * 50 < one + two);
    assert!(!world.bfq.group_report(GroupId::ROOT).raised);
}
