//! How long anybody waits while all want the device.

use super::*;

/// Time per sector; about what a fresh scheduler presumes of a disk, so that nobody is slow.
const SECTOR_NS: u64 = 7_000;
/// Budget in sectors: a slot of 7 ms.
const BUDGET: u32 = 1024;
/// Longest request.
const LONGEST: u32 = 256;

/// Queues that always have two requests, and a device that works on one at a time.
struct Loop {
    bfq: Bfq,
    now: Nanos,
    /// Queue, length of its requests, next sector, when it was served last, longest pause.
    clients: Vec<(QueueId, u32, u64, Nanos, Nanos)>,
}

impl Loop {
    fn new(strict_guarantees: bool) -> Self {
        let tunables = BfqTunables {
            low_latency: false,
            max_budget_sectors: BUDGET,
            strict_guarantees,
            ..BfqTunables::default()
        };
        let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
        let bfq = Bfq::new(Nanos::ORIGIN, tunables, merge, true);
        Self { bfq, now: Nanos::ORIGIN, clients: Vec::new() }
    }

    fn client(&mut self, group: GroupId, class: Class, nr_sectors: u32) {
        let priority = Priority { class, level: 4 };
        let queue = self.bfq.add_queue(self.now, group, priority, true);
        let at = u64::from(queue.0) << 32;
        self.clients.push((queue, nr_sectors, at, self.now, Nanos::ZERO));
    }

    fn insert(&mut self, tag: u32) {
        let (queue, nr_sectors, pos, ..) = &mut self.clients[tag as usize / 2];
        let request = Request {
            tag: Tag(tag),
            queue: *queue,
            op: Op::Read,
            pos: *pos,
            nr_sectors: *nr_sectors,
            segments: 1,
            sync: true,
        };
        *pos += u64::from(*nr_sectors);
        self.bfq.insert(self.now, request);
    }

    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        for tag in 0..2 * u32::try_from(self.clients.len()).unwrap() {
            self.insert(tag);
        }
        while self.now < end {
            let tag = match self.bfq.dispatch(self.now) {
                Next::Request(tag) => tag,
                next => unreachable!("all have requests, but {next:?}"),
            };
            let (_, nr_sectors, _, served, longest) = &mut self.clients[tag.0 as usize / 2];
            *longest = self.now.since(*served).max(*longest);
            *served = self.now;
            self.now += Nanos(u64::from(*nr_sectors) * SECTOR_NS);
            self.bfq.complete(self.now, tag);
            self.insert(tag.0);
        }
        for (_, _, _, served, longest) in &mut self.clients {
            *longest = self.now.since(*served).max(*longest);
        }
        self.bfq.check_invariants();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// B11: a queue that was served as early as it may be, and next time as late, waits for two
    /// budgets by its share, and one that was in its way. B14: it gets its share, up to a budget.
    #[test]
    fn nobody_starves(
        weights in prop::collection::vec((50..400_u64, 8..=LONGEST), 2..5), strict: bool
    ) {
        let mut world = Loop::new(strict);
        let total: u64 = weights.iter().map(|&(weight, _)| weight).sum();
        for &(weight, nr_sectors) in &weights {
            let group = world.bfq.add_group(world.now, GroupId::ROOT, Weight::new(weight).unwrap());
            world.client(group, Class::BestEffort, nr_sectors);
        }
        world.run_for(Nanos::from_millis(300));
        for (&(weight, _), (.., longest)) in weights.iter().zip(&world.clients) {
            let budgets = 2 * total * u64::from(BUDGET) / weight + u64::from(BUDGET);
            let sectors = budgets + u64::from(LONGEST);
            prop_assert!(*longest <= Nanos(sectors * SECTOR_NS), "{weight} of {total}: {longest:?}");
        }
        let served: Vec<u64> = world.clients.iter().map(|client| client.2 & u64::from(u32::MAX)).collect();
        let all: u64 = served.iter().sum();
        for (&(weight, _), &sectors) in weights.iter().zip(&served) {
            // What is inserted is ahead of what is served by two requests.
            let most = total * u64::from(BUDGET + 3 * LONGEST);
            prop_assert!((sectors * total).abs_diff(all * weight) <= most, "{served:?}: {weight}");
        }
    }

    /// P4: once per 200 ms, a slot and a request.
    #[test]
    fn the_idle_class_has_a_thin_share(
        sizes in prop::collection::vec(8..=LONGEST, 1..5), idle in 8..=LONGEST, strict: bool
    ) {
        let mut world = Loop::new(strict);
        for nr_sectors in sizes {
            world.client(GroupId::ROOT, Class::BestEffort, nr_sectors);
        }
        world.client(GroupId::ROOT, Class::Idle, idle);
        world.run_for(Nanos::from_millis(700));
        let (.., longest) = world.clients.last().unwrap();
        let slot = Nanos(u64::from(BUDGET + 2 * LONGEST) * SECTOR_NS);
        prop_assert!(*longest <= Nanos::from_millis(200) + slot, "{longest:?}");
        prop_assert!(*longest >= Nanos::from_millis(190), "strictly after all others");
    }
}

#[test]
fn shares_are_exact_in_the_same_loop() {
    let mut world = Loop::new(false);
    for weight in [100, 300] {
        let group = world.bfq.add_group(world.now, GroupId::ROOT, Weight::new(weight).unwrap());
        world.client(group, Class::BestEffort, 64);
    }
    world.run_for(Nanos::from_secs(2));
    let served = world.clients.iter().map(|(queue, _, pos, ..)| pos - (u64::from(queue.0) << 32));
    let served: Vec<_> = served.collect();
    assert!(served[0] * 3 <= served[1] + 4096 && served[1] <= served[0] * 3 + 4096, "{served:?}");
}
