//! What `cfq` promises, in random histories.

use std::collections::VecDeque;

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

/// A device that does one request after the other and takes `depth` of them in advance, from
/// queues of the given levels that always have more.
struct Rounds {
    world: World,
    depth: usize,
    /// Oldest first.
    inside: VecDeque<Tag>,
    /// When each queue sent a request last, and the longest time between two.
    last: Vec<Nanos>,
    longest: Vec<Nanos>,
}

impl Rounds {
    fn new(tunables: CfqTunables, levels: &[u8], random: &mut Random) -> Self {
        let mut world = World::new(tunables, true);
        for &level in levels {
            let priority = Priority { class: Class::BestEffort, level };
            let index = world.queue(GroupId::ROOT, priority, true);
            world.loads[index].service = Nanos::from_micros(1_000 + random.below(7_000));
        }
        let (depth, inside) = (1 + random.index(4), VecDeque::new());
        (0..levels.len()).for_each(|index| (0..=depth).for_each(|_| world.enqueue(index)));
        let (last, longest) = (vec![world.now; levels.len()], vec![Nanos::ZERO; levels.len()]);
        Self { world, depth, inside, last, longest }
    }

    fn run(&mut self, span: Nanos) {
        let end = self.world.now + span;
        while self.world.now < end {
            while self.inside.len() < self.depth
                && let Next::Request(tag) = self.world.next()
            {
                let (owner, now) = (self.world.owners[tag.0 as usize], self.world.now);
                self.longest[owner] = self.longest[owner].max(now.since(self.last[owner]));
                self.last[owner] = now;
                self.inside.push_back(tag);
            }
            let tag = self.inside.pop_front().expect("all queues wait");
            let owner = self.world.owners[tag.0 as usize];
            self.world.now += self.world.loads[owner].service;
            self.world.complete(tag);
            self.world.enqueue(owner);
        }
    }
}

/// Returns the slice of a queue of this level when `queues` of them compete, in ns.
fn slice_of(tunables: &CfqTunables, level: u8, queues: u64) -> u64 {
    let (usual, target) = (tunables.slice_sync.0, tunables.target_latency.0);
    let slice = usual / 5 * (9 - u64::from(level));
    let part =
        |of: u64| u64::try_from(u128::from(slice) * u128::from(of) / u128::from(usual)).unwrap();
    if !tunables.low_latency || usual * queues <= target {
        return slice;
    }
    part(target / queues).max(slice.min(part(2 * tunables.slice_idle.0)))
}

/// T5.2: a round takes the target latency, or two idle periods for each queue; and for each queue
/// what was at the device, the request before its clock runs and the last one. Who overran his
/// slice steps back by as much, so somebody else may go twice. A better level goes ahead for as
/// long as its place is before that of the worse one, which no target shortens.
#[test]
fn a_round_takes_the_target_latency_or_two_idle_periods_for_each_queue() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let ms = |random: &mut Random, least, most| {
            Nanos::from_millis(least + random.below(most - least + 1))
        };
        let tunables = CfqTunables {
            slice_sync: ms(&mut random, 10, 100),
            slice_idle: ms(&mut random, 0, 8),
            target_latency: ms(&mut random, 50, 300),
            low_latency: random.chance(80),
            ..CfqTunables::default()
        };
        let queues = 2 + random.index(5);
        let is_equal = random.chance(50);
        let level = u8::try_from(random.below(8)).unwrap();
        let mut draw = |_| if is_equal { level } else { u8::try_from(random.below(8)).unwrap() };
        let levels: Vec<u8> = (0..queues).map(&mut draw).collect();
        let mut rounds = Rounds::new(tunables, &levels, &mut random);
        let slowest = rounds.world.loads.iter().map(|load| load.service.0).max().unwrap();
        let overshoot = (rounds.depth as u64 + 1) * slowest;
        let turn = |level: u8| slice_of(&tunables, level, queues as u64) + overshoot;
        let round: u64 = levels.iter().map(|&level| turn(level)).sum();
        // The average number of queues has to be learnt first.
        rounds.run(Nanos(2 * round));
        rounds.longest.fill(Nanos::ZERO);
        rounds.run(Nanos(2 * round));
        let best = *levels.iter().min().unwrap();
        for (&level, &longest) in levels.iter().zip(&rounds.longest) {
            let unscaled = CfqTunables { low_latency: false, ..tunables };
            let lead = slice_of(&unscaled, best, 1) - slice_of(&unscaled, level, 1);
            let behind = if lead > 0 { lead * (queues as u64 - 1) + turn(best) } else { 0 };
            assert!(longest.0 <= round + behind, "T5.2: {longest:?}, {round} + {behind}");
        }
    });
}
