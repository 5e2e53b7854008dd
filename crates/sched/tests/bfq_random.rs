//! Long random histories: nothing is lost, nothing comes twice, somebody always moves.
#![expect(clippy::unwrap_used, reason = "a broken history is a failed test")]

mod bfq_world;

use bfq_world::{Random, for_many_seeds};
use evenkeel_sched::{
    Bfq, BfqTunables, Class, GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Queueing,
    Request, Scheduler, Tag, Weight,
};

fn tunables(random: &mut Random) -> BfqTunables {
    let ms = Nanos::from_millis;
    let queueing = [Queueing::Yes, Queueing::No, Queueing::Auto];
    let tunables = BfqTunables {
        slice_idle: ms(if random.below(4) == 0 { 0 } else { 8 }),
        strict_guarantees: random.below(5) == 0,
        low_latency: random.below(4) != 0,
        queueing: queueing[usize::try_from(random.below(3)).unwrap()],
        max_budget_sectors: if random.below(3) == 0 { 64 } else { 0 },
        large_burst_thresh: if random.below(3) == 0 { 3 } else { 8 },
        wr_max_softrt_rate: if random.below(4) == 0 { 0 } else { 7000 },
        wr_rt_coeff: if random.below(2) == 0 { 30 } else { 3000 },
        injection: random.below(4) != 0,
        merge_queues: random.below(3) == 0,
        stable_merge: random.below(4) == 0,
        kernel_compat: random.below(4) == 0,
        ..BfqTunables::default()
    };
    assert_eq!(tunables.validate(), Ok(()));
    tunables
}

struct History {
    bfq: Bfq,
    random: Random,
    now: Nanos,
    depth: usize,
    groups: Vec<GroupId>,
    queues: Vec<(QueueId, GroupId)>,
    /// Inserted and not yet dispatched, by tag.
    waiting: Vec<bool>,
    free: Vec<Tag>,
    in_flight: Vec<Tag>,
    inserted: u64,
    came_out: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let tunables = tunables(&mut random);
        let rotational = random.below(2) == 0;
        let merge = MergeLimits { max_sectors: 64, max_segments: 8 };
        Self {
            bfq: Bfq::new(Nanos::ORIGIN, tunables, merge, rotational),
            now: Nanos::ORIGIN,
            depth: 1 + usize::try_from(random.below(8)).unwrap(),
            groups: vec![GroupId::ROOT],
            queues: Vec::new(),
            waiting: vec![false; 64],
            free: (0..64).map(Tag).collect(),
            in_flight: Vec::new(),
            inserted: 0,
            came_out: 0,
            random,
        }
    }

    fn pick(&mut self, len: usize) -> usize {
        usize::try_from(self.random.below(len as u64)).unwrap()
    }

    fn step(&mut self) {
        let span = 1 << self.random.below(33);
        self.now += Nanos(self.random.below(span));
        match self.random.below(20) {
            0 if self.groups.len() < 6 => {
                let parent = self.pick(self.groups.len());
                let weight = Weight::new(1 + self.random.below(1000)).unwrap();
                let group = self.bfq.add_group(self.now, self.groups[parent], weight);
                self.groups.push(group);
            }
            1 if self.queues.len() < 10 => self.add_queue(),
            2 if !self.queues.is_empty() => {
                let at = self.pick(self.queues.len());
                let (queue, _) = self.queues.swap_remove(at);
                self.bfq.remove_queue(self.now, queue);
            }
            3 if self.groups.len() > 1 => {
                let at = 1 + self.pick(self.groups.len() - 1);
                let weight = Weight::new(1 + self.random.below(1000)).unwrap();
                self.bfq.set_weight(self.now, self.groups[at], weight);
            }
            4 if self.random.below(20) == 0 => {
                let bounded = self.random.below(2) == 0;
                self.bfq.set_bounded(bounded);
                let tunables = tunables(&mut self.random);
                assert_eq!(self.bfq.set_tunables(self.now, tunables), Ok(()));
            }
            5..=12 if !self.queues.is_empty() && !self.free.is_empty() => self.insert(),
            13..=16 if !self.in_flight.is_empty() => {
                let at = self.pick(self.in_flight.len());
                self.complete(at);
            }
            _ => self.dispatch(),
        }
    }

    fn add_queue(&mut self) {
        let class = match self.random.below(6) {
            0 => Class::RealTime,
            1 => Class::Idle,
            _ => Class::BestEffort,
        };
        let level = u8::try_from(self.random.below(8)).unwrap();
        let at = self.pick(self.groups.len());
        let group = self.groups[at];
        let sync = self.random.below(4) > 0;
        let queue = self.bfq.add_queue(self.now, group, Priority { class, level }, sync);
        self.queues.push((queue, group));
    }

    fn insert(&mut self) {
        let tag = self.free.pop().unwrap();
        let at = self.pick(self.queues.len());
        let request = Request {
            tag,
            queue: self.queues[at].0,
            op: if self.random.below(3) == 0 { Op::Write } else { Op::Read },
            pos: self.random.below(4) * 100_000 + self.random.below(64) * 4,
            nr_sectors: 4 << self.random.below(4),
            segments: 1,
            sync: self.random.below(4) > 0,
        };
        self.waiting[tag.0 as usize] = true;
        self.inserted += 1;
        self.bfq.insert(self.now, request);
    }

    fn dispatch(&mut self) {
        while self.in_flight.len() < self.depth {
            match self.bfq.dispatch(self.now) {
                Next::Request(tag) => {
                    let mut part = Some(self.bfq.first_part(tag));
                    let mut met = false;
                    while let Some(at) = part {
                        assert!(core::mem::take(&mut self.waiting[at.0 as usize]), "comes once");
                        self.came_out += 1;
                        met |= at == tag;
                        part = self.bfq.next_part(at);
                    }
                    assert!(met);
                    self.in_flight.push(tag);
                }
                Next::NotBefore(at) => {
                    assert!(at > self.now, "X6: no deadline lies in the past");
                    assert_eq!(self.bfq.next_deadline(), Some(at));
                    assert!(self.bfq.queued() > 0);
                    return;
                }
                Next::Empty => {
                    let is_stuck = self.bfq.queued() > 0 && self.bfq.in_flight() == 0;
                    assert!(!is_stuck, "B12: who waits, waits for something");
                    return;
                }
            }
            self.bfq.check_invariants();
        }
    }

    fn complete(&mut self, at: usize) {
        let tag = self.in_flight.swap_remove(at);
        let mut part = Some(self.bfq.first_part(tag));
        while let Some(at) = part {
            self.free.push(at);
            part = self.bfq.next_part(at);
        }
        self.bfq.complete(self.now, tag);
    }

    /// Lets everything out, moving time only to deadlines.
    fn drain(&mut self) {
        for _ in 0..10_000 {
            self.dispatch();
            self.bfq.check_invariants();
            if !self.in_flight.is_empty() {
                self.complete(0);
            } else if let Some(at) = self.bfq.next_deadline() {
                self.now = self.now.max(at);
            } else {
                assert_eq!(self.bfq.queued(), 0, "a wake-up is lost");
            }
            self.bfq.check_invariants();
            if self.bfq.queued() == 0 && self.in_flight.is_empty() {
                break;
            }
        }
        assert_eq!((self.bfq.queued(), self.bfq.in_flight()), (0, 0));
        assert_eq!(self.inserted, self.came_out);
        for (queue, _) in core::mem::take(&mut self.queues) {
            self.bfq.remove_queue(self.now, queue);
            self.bfq.check_invariants();
        }
        while self.groups.len() > 1 {
            // Children come after their parents.
            let group = self.groups.pop().unwrap();
            self.bfq.remove_group(self.now, group);
            self.bfq.check_invariants();
        }
    }
}

#[test]
fn random_histories_lose_nothing_and_never_get_stuck() {
    for_many_seeds(10_000, |seed| {
        let mut history = History::new(seed);
        for _ in 0..120 {
            history.step();
            history.bfq.check_invariants();
        }
        history.drain();
    });
}

#[test]
fn the_same_history_gives_the_same_order() {
    for_many_seeds(10_000, |seed| {
        let mut twins = [History::new(seed), History::new(seed)];
        for _ in 0..100 {
            for twin in &mut twins {
                twin.step();
            }
            assert_eq!(twins[0].in_flight, twins[1].in_flight, "B13");
        }
    });
}
