//! Crowds of programs of every kind for half a minute each: what random steps rarely reach, since
//! it takes seconds in which the same ones go on.
#![expect(clippy::unwrap_used, reason = "a broken history is a failed test")]

mod bfq_world;

use bfq_world::{Client, Device, Random, World, for_many_seeds};
use evenkeel_sched::{BfqTunables, GroupId, Nanos, Scheduler, Urgency};

const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
const CARD: Device = Device::Serial { per_sector: 25_000, seek: 500_000 };
const FLASH: Device = Device::Parallel { latency: 2_000_000 };

fn pick<T: Copy, const N: usize>(random: &mut Random, from: [T; N]) -> T {
    from[usize::try_from(random.below(N as u64)).unwrap()]
}

fn client(world: &mut World, random: &mut Random, group: GroupId) -> Client {
    let queue = world.queue(group);
    let outstanding = pick(random, [1, 1, 2, 4]);
    let mut client = Client::new(queue, outstanding, pick(random, [8, 32, 256]), false);
    client.random = random.below(2) == 0;
    client.think = Nanos::from_micros(pick(random, [0, 0, 200, 5_000, 40_000, 200_000, 1_500_000]));
    client.from = world.now + Nanos::from_millis(pick(random, [0, 0, 3_000, 9_000]));
    if random.below(4) == 0 {
        client.left = 1 + random.below(300);
    }
    client
}

/// Nobody waits for ever, and all that must hold holds at every instant.
#[test]
fn a_crowd_is_served_whoever_is_in_it() {
    for_many_seeds(100, |seed| {
        let mut random = Random::new(seed);
        let random = &mut random;
        let (device, rotational) = pick(random, [(DISK, true), (CARD, false), (FLASH, false)]);
        let kernel_compat = random.below(8) == 0;
        let tunables = BfqTunables { kernel_compat, ..BfqTunables::default() };
        let mut world = World::tuned(tunables, rotational, device, pick(random, [1, 1, 4]));
        world.check = true;
        let mut parent = GroupId::ROOT;
        for _ in 0..1 + random.below(3) {
            let group = world.group(parent, pick(random, [50, 100, 300]));
            parent = pick(random, [GroupId::ROOT, GroupId::ROOT, group]);
            for _ in 0..1 + random.below(4) {
                let client = client(&mut world, random, group);
                world.clients.push(client);
            }
        }
        for _ in 0..10 {
            world.run_for(Nanos::from_secs(3));
            let (now, among) = (world.now, world.clients.len() as u64);
            let queue = world.clients[usize::try_from(random.below(among)).unwrap()].queue;
            match random.below(6) {
                0 => world.bfq.set_urgency(now, queue, Urgency::Interactive),
                1 => world.bfq.set_urgency(now, queue, Urgency::None),
                2 => world.bfq.set_spoken_for(now, GroupId(1), random.below(2) == 0),
                _ => {}
            }
        }
        let starved = world.clients.iter().position(|client| client.requests == 0);
        // With it, whoever is urged all the time keeps the device.
        assert!(kernel_compat || starved.is_none(), "{starved:?} of {:?}", world.clients);
    });
}
