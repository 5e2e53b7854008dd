//! Shares: what weights promise, groups get, whatever the device and the pattern.

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{BfqTunables, GroupId, Nanos, Scheduler};

const MS: u64 = 1_000_000;

/// 100 MB/s: 5 us per sector.
const SERIAL: Device = Device::Serial { per_sector: 5_000, seek: 0 };

#[expect(clippy::cast_precision_loss, reason = "sectors of a short run")]
fn ratio(world: &World) -> f64 {
    world.clients[1].sectors as f64 / world.clients[0].sectors as f64
}

/// Two groups of weights 100 and 300 and a third that comes and goes; returns the ratio of the
/// first two over 120 s, in which a slot of the lighter one is less than a percent, after a warm-up
/// that outlasts the raises.
fn three_groups(rotational: bool, device: Device, depth: usize, random: bool) -> f64 {
    let mut world = World::new(rotational, device, depth);
    for weight in [100, 300, 200] {
        let group = world.group(GroupId::ROOT, weight);
        let queue = world.queue(group);
        let nr_sectors = if random { 8 } else { 256 };
        world.clients.push(Client::new(queue, 32, nr_sectors, random));
    }
    let visitor = &mut world.clients[2];
    visitor.from = Nanos::ORIGIN + Nanos(700 * MS);
    visitor.until = Nanos::ORIGIN + Nanos(1500 * MS);
    visitor.period = Nanos(1700 * MS);
    world.run_for(Nanos::from_secs(30));
    world.forget();
    world.run_for(Nanos::from_secs(120));
    world.bfq.check_invariants();
    ratio(&world)
}

#[test]
fn weights_hold_on_a_constant_rate_device() {
    let mut wrong = false;
    for rotational in [false, true] {
        for depth in [1, 32] {
            for random in [false, true] {
                let ratio = three_groups(rotational, SERIAL, depth, random);
                println!("rotational {rotational} depth {depth} random {random}: {ratio:.4}");
                wrong |= (ratio / 3.0 - 1.0).abs() >= 0.02;
            }
        }
    }
    assert!(!wrong);
}

#[test]
fn weights_hold_where_requests_wait_for_a_channel() {
    let ratio = three_groups(false, Device::Parallel { latency: 500_000 }, 32, true);
    println!("{ratio:.4}");
    assert!((ratio / 3.0 - 1.0).abs() < 0.02, "{ratio}");
}

#[test]
fn where_the_device_has_room_for_all_nobody_is_held_back() {
    // Sequential requests merge, so that all together fill a third of the channels.
    let ratio = three_groups(false, Device::Parallel { latency: 500_000 }, 32, false);
    println!("{ratio:.4}");
    assert!((ratio - 1.0).abs() < 0.02, "{ratio}");
}

/// A small hard disk, 10 MB/s and 10 ms to get anywhere; a sequential and a random reader of equal
/// weight. Returns the sectors per second of both.
fn sequential_and_random(nested: bool) -> [u64; 2] {
    let disk = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
    let mut world = World::new(true, disk, 1);
    for random in [false, true] {
        let top = world.group(GroupId::ROOT, 100);
        let group = if nested { world.group(top, 700) } else { top };
        let queue = world.queue(group);
        let (outstanding, nr_sectors) = if random { (4, 8) } else { (2, 256) };
        world.clients.push(Client::new(queue, outstanding, nr_sectors, random));
    }
    world.run_for(Nanos::from_secs(40));
    world.forget();
    world.run_for(Nanos::from_secs(60));
    world.bfq.check_invariants();
    [0, 1].map(|i| world.clients[i].sectors / 60)
}

#[test]
fn slow_and_fast_queues_share_the_time_of_a_disk() {
    for nested in [false, true] {
        let [sequential, random] = sequential_and_random(nested);
        println!("sequential {sequential}/s, random {random}/s");
        // Alone the first moves 20 000 sectors per second, the second 8 per 10.4 ms, 769. Half the
        // time each, with a tolerance for one seek and one idle window per slot of 125 ms.
        assert!((8_000..=12_000).contains(&sequential), "{sequential}");
        assert!((300..=460).contains(&random), "{random}");
    }
}

/// P6: readers whose requests are of different sizes, all far apart, so that all are slow.
#[test]
fn slow_queues_share_time() {
    let disk = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
    let mut world =
        World::tuned(BfqTunables { low_latency: false, ..BfqTunables::default() }, true, disk, 1);
    let sizes = [8, 16, 32, 64];
    for nr_sectors in sizes {
        let group = world.group(GroupId::ROOT, 100);
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 4, nr_sectors, true));
    }
    world.run_for(Nanos::from_secs(10));
    world.forget();
    world.run_for(Nanos::from_secs(120));
    for (client, nr_sectors) in world.clients.iter().zip(sizes) {
        let busy_ms = client.requests * (10_000 + 50 * u64::from(nr_sectors)) / 1000;
        println!("{nr_sectors} sectors: {busy_ms} ms");
        // Slots of 125 ms from the end of their first request, which is longer for some: 2 %.
        assert!(busy_ms.abs_diff(30_000) <= 900, "{nr_sectors} sectors: {busy_ms} ms");
    }
}
