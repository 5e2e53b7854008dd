//! What `cfq` promises, in random histories.

use evenkeel_sched::{CfqTunables, Class, GroupId, Nanos, Next, Priority, Tag};

use crate::cfq::World;
use crate::random::{Random, for_many_seeds};

/// T5.1, T5.3: time follows the slices of the levels, whatever requests cost: of any number of
/// queues of one level, and of two of different ones. Where a third one takes its turn, the better
/// of two is also served more often, by the place that its level gives it.
#[test]
fn time_follows_the_slices_whatever_requests_cost() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let tunables = CfqTunables { low_latency: random.chance(50), ..CfqTunables::default() };
        let mut world = World::new(tunables, true);
        let mut slices = Vec::new();
        let queues = 2 + random.index(3);
        let mut level = 0;
        for at in 0..queues {
            if at == 0 || queues == 2 {
                level = u8::try_from(random.below(8)).unwrap();
            }
            let priority = Priority { class: Class::BestEffort, level };
            let index = world.queue(GroupId::ROOT, priority, true);
            world.loads[index].service = Nanos::from_micros(2_000 + random.below(5_000));
            slices.push(20 * (9 - u64::from(level)));
        }
        world.run(Nanos::from_secs(3));
        let (used, sum) = (world.used_ms(), slices.iter().sum::<u64>());
        let all: u64 = used.iter().sum();
        for (used, slice) in used.iter().zip(&slices) {
            // A slice; and in each round, which with many queues takes 300 ms rather than the sum
            // of all slices, a request before the clock of the slice runs.
            let rounds = all / sum.min(300) + 1;
            let most = 180 + rounds * 7;
            let expected = all * slice / sum;
            assert!(used.abs_diff(expected) <= most, "{used} ms of {expected} ms, {slices:?}");
        }
    });
}

/// What is at the device, by load.
struct Device {
    at_device: Vec<Tag>,
    in_flight: Vec<u32>,
}

impl Device {
    /// T5.4, T5.5.
    fn dispatch(&mut self, world: &mut World, classes: &[Class], quantum: u32) {
        let waiting: Vec<u32> = world.loads.iter().map(|load| load.waiting).collect();
        let Next::Request(tag) = world.next() else { return };
        let owner = world.owners[tag.0 as usize];
        let others_wait = (0..waiting.len()).any(|other| other != owner && waiting[other] > 0);
        let most = if classes[owner] == Class::Idle { 1 } else { quantum };
        let before = self.in_flight[owner];
        assert!(!others_wait || before < most, "T5.5: {before} of {most} are there already");
        let is_better = |other: usize| classes[other] == Class::RealTime && waiting[other] > 0;
        let is_passed = classes[owner] != Class::RealTime && (0..waiting.len()).any(is_better);
        assert!(!is_passed, "T5.4: real time goes first");
        self.in_flight[owner] += 1;
        self.at_device.push(tag);
    }

    fn complete(&mut self, world: &mut World, random: &mut Random) {
        let tag = self.at_device.swap_remove(random.index(self.at_device.len()));
        self.in_flight[world.owners[tag.0 as usize]] -= 1;
        world.complete(tag);
    }
}

#[test]
fn a_queue_has_its_quantum_at_the_device_and_real_time_goes_first() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let quantum = 1 + u32::try_from(random.below(16)).unwrap();
        let tunables = CfqTunables { quantum, ..CfqTunables::default() };
        let mut world = World::new(tunables, random.chance(50));
        let mut classes = Vec::new();
        for _ in 0..1 + random.index(4) {
            let class = random.pick(&[Class::RealTime, Class::BestEffort, Class::Idle]);
            let level = u8::try_from(random.below(8)).unwrap();
            world.queue(GroupId::ROOT, Priority { class, level }, true);
            classes.push(class);
        }
        let mut device = Device { at_device: Vec::new(), in_flight: vec![0; classes.len()] };
        for _ in 0..120 {
            let span = 1 << random.below(15);
            world.now += Nanos::from_micros(random.below(span));
            match random.below(8) {
                0..=2 => {
                    let index = random.index(classes.len());
                    (0..1 + random.below(4)).for_each(|_| world.enqueue(index));
                }
                3..=4 if !device.at_device.is_empty() => device.complete(&mut world, &mut random),
                _ => device.dispatch(&mut world, &classes, quantum),
            }
        }
    });
}
