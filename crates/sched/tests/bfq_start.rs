//! An application starts while others hammer the disk.
#![expect(clippy::unwrap_used, reason = "a broken history is a failed test")]

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{BfqTunables, GroupId, Nanos, Scheduler};

/// A small hard disk: 10 MB/s, 10 ms to get anywhere.
const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
const FLASH: Device = Device::Parallel { latency: 100_000 };

/// Five greedy readers in two groups, three of them random; they have run for a while.
fn hammered(tunables: BfqTunables, rotational: bool, device: Device, depth: usize) -> World {
    let mut world = World::tuned(tunables, rotational, device, depth);
    let groups = [100, 100].map(|weight| world.group(GroupId::ROOT, weight));
    for (i, random) in [true, false, true, false, true].into_iter().enumerate() {
        let queue = world.queue(groups[i % 2]);
        let nr_sectors = if random { 8 } else { 256 };
        world.clients.push(Client::new(queue, if random { 4 } else { 2 }, nr_sectors, random));
    }
    world.run_for(Nanos::from_secs(60));
    world
}

/// Starts an application in the first group: 200 reads of 16 KiB, one after the other. Returns the
/// mean and the worst latency.
fn start(world: &mut World) -> (Nanos, Nanos) {
    let queue = world.queue(GroupId(1));
    let mut client = Client::new(queue, 1, 32, true);
    client.left = 200;
    client.from = world.now;
    client.think = Nanos::from_micros(200);
    world.clients.push(client);
    while world.clients.last().unwrap().requests < 200 {
        world.run_for(Nanos::from_millis(10));
        world.bfq.check_invariants();
    }
    let client = world.clients.pop().unwrap();
    world.bfq.remove_queue(world.now, queue);
    (Nanos(client.total_latency / 200), client.worst)
}

#[test]
fn an_application_that_starts_is_served_at_once_on_a_disk() {
    for depth in [1, 4] {
        let mut world = hammered(BfqTunables::default(), true, DISK, depth);
        let (mean, worst) = start(&mut world);
        println!("depth {depth}: mean {} us, worst {} us", mean.as_micros(), worst.as_micros());
        // Alone a read takes 10 ms + 32 * 50 us = 11.6 ms. The others keep a thirtieth of the
        // device: now and then a slot for the other group and one for those beside it, each 125 ms
        // from the end of its first request (up to 23 ms), and what they leave at the device.
        assert!(mean < Nanos::from_millis(16));
        assert!(worst < Nanos::from_millis(2 * (125 + 23) + 12 + 25 * depth as u64));
    }
}

#[test]
fn an_application_that_starts_is_served_at_once_on_flash() {
    let mut world = hammered(BfqTunables::default(), false, FLASH, 8);
    let (mean, worst) = start(&mut world);
    println!("mean {} us, worst {} us", mean.as_micros(), worst.as_micros());
    assert!(mean < Nanos::from_micros(150) && worst < Nanos::from_micros(250));
}

#[test]
fn an_application_that_starts_is_served_at_once_on_saturated_flash() {
    // 100 MB/s behind a queue of 32: what is inside can no longer be overtaken.
    let saturated = Device::Serial { per_sector: 5_000, seek: 0 };
    let mut world = hammered(BfqTunables::default(), false, saturated, 32);
    let (mean, worst) = start(&mut world);
    println!("mean {} us, worst {} us", mean.as_micros(), worst.as_micros());
    // Alone a read takes 160 us. While the application is waited for nobody else is at the device;
    // now and then the others take their share: 2 * 2 requests of 256 sectors and 3 * 4 of 8, that
    // is 5.6 ms.
    assert!(mean < Nanos::from_millis(1));
    assert!(worst < Nanos::from_millis(10));
}

#[test]
fn without_raising_it_waits_for_its_turn() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let mut world = hammered(tunables, true, DISK, 1);
    let (mean, _) = start(&mut world);
    println!("mean {} us", mean.as_micros());
    assert!(mean > Nanos::from_millis(30));
}

#[test]
fn a_raise_ends_after_its_time_and_leaves_no_trace() {
    let mut world = World::new(true, DISK, 1);
    world.check = true;
    let groups = [100, 100].map(|weight| world.group(GroupId::ROOT, weight));
    for group in groups {
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 2, 8, true));
    }
    world.clients[1].from = Nanos::ORIGIN + Nanos::from_secs(40);
    world.run_for(Nanos::from_secs(40));
    assert!(!world.bfq.group_report(groups[0]).raised);
    world.run_for(Nanos::from_millis(100));
    assert!(world.bfq.group_report(groups[1]).raised, "a fresh queue is raised");
    assert!(world.bfq.group_report(GroupId::ROOT).raised, "up to the root");
    world.forget();
    world.run_for(Nanos::from_secs(2));
    assert!(world.clients[1].sectors > world.clients[0].sectors * 10);
    world.run_for(Nanos::from_secs(28));
    assert!(!world.bfq.group_report(groups[1]).raised, "25 s is the longest raise");
    world.forget();
    world.run_for(Nanos::from_secs(60));
    let [one, two] = [0, 1].map(|i| world.clients[i].sectors);
    println!("{one} {two}");
    // One slot of 125 ms in 60 s, for each.
    assert!(one.abs_diff(two) * 100 < one + two);
}

#[test]
fn switching_raises_off_ends_them_all() {
    let mut world = World::new(true, DISK, 1);
    world.check = true;
    let group = world.group(GroupId::ROOT, 100);
    let queue = world.queue(group);
    world.clients.push(Client::new(queue, 2, 8, true));
    world.run_for(Nanos::from_millis(50));
    assert!(world.bfq.group_report(group).raised);
    let off = BfqTunables { low_latency: false, ..BfqTunables::default() };
    assert_eq!(world.bfq.set_tunables(world.now, off), Ok(()));
    assert!(!world.bfq.group_report(group).raised);
    world.bfq.check_invariants();
    world.run_for(Nanos::from_secs(5));
    assert!(!world.bfq.group_report(group).raised, "B15");
}

#[test]
fn a_raise_ends_after_its_sectors() {
    let mut world = World::new(false, Device::Serial { per_sector: 1_000, seek: 0 }, 1);
    let group = world.group(GroupId::ROOT, 100);
    let queue = world.queue(group);
    world.clients.push(Client::new(queue, 2, 256, false));
    while world.bfq.group_report(group).raised || world.clients[0].requests == 0 {
        world.run_for(Nanos::from_micros(200));
    }
    let sectors = world.clients[0].sectors;
    // It ends with the request that is sent then, two of 256 sectors before it completes.
    assert!((119_488..=120_512).contains(&sectors), "{sectors}");
}
