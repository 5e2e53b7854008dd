//! What `deadline` promises, in random histories.

use evenkeel_sched::{
    Class, DeadlineTunables, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits,
    Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag,
};

use crate::random::{Random, for_many_seeds};

const NOW: Nanos = Nanos::ORIGIN;
const READ: usize = 0;
const WRITE: usize = 1;
/// Longer than any history.
const NEVER: Nanos = Nanos::from_secs(1_000_000);

/// A request, its class (all are one by the legacy rules) and its direction.
#[derive(Clone, Copy)]
struct Known {
    tag: Tag,
    class: usize,
    side: usize,
    pos: u64,
    since: Nanos,
    /// Once it is overdue: how many requests of its class may still go before it.
    patience: Option<u64>,
}

/// An elevator with one queue per class that merges nothing, and what its caller knows.
struct World {
    elevator: Elevator,
    now: Nanos,
    random: Random,
    tunables: DeadlineTunables,
    queues: [QueueId; 3],
    /// Oldest first.
    waiting: Vec<Known>,
    out: Vec<Known>,
    free: Vec<Tag>,
}

impl World {
    fn new(seed: u64, legacy: bool, prio_aging_expire: Nanos) -> Self {
        let mut random = Random::new(seed);
        let ms = Nanos::from_millis;
        let tunables = DeadlineTunables {
            read_expire: ms(random.pick(&[0, 1, 10, 500])),
            write_expire: ms(random.pick(&[0, 1, 10, 500])),
            writes_starved: random.pick(&[0, 1, 1, 2, 3]),
            fifo_batch: random.pick(&[0, 1, 2, 3, 4, 16]),
            front_merges: random.chance(50),
            prio_aging_expire,
            legacy,
        };
        let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
        let kind = if legacy { Kind::DeadlineLegacy } else { Kind::Deadline };
        let config =
            ElevatorConfig { kind, merge, deadline: tunables, ..ElevatorConfig::default() };
        let mut elevator = Elevator::new(NOW, &config);
        let queues = [Class::RealTime, Class::BestEffort, Class::Idle].map(|class| {
            elevator.add_queue(NOW, GroupId::ROOT, Priority { class, level: 4 }, true)
        });
        let free = (0..64).map(Tag).collect();
        let (waiting, out) = (Vec::new(), Vec::new());
        Self { elevator, now: NOW, random, tunables, queues, waiting, out, free }
    }

    /// Inserts a request of one of the first `classes` classes, from a disk with few places.
    fn put(&mut self, classes: usize) {
        let Some(tag) = self.free.pop() else { return };
        let queue = self.random.index(classes);
        let side = usize::from(self.random.chance(50));
        let pos = self.random.below(64) * 8;
        let op = [Op::Read, Op::Write][side];
        let queue_id = self.queues[queue];
        let request =
            Request { tag, queue: queue_id, op, pos, nr_sectors: 8, segments: 1, sync: true };
        assert_eq!(self.elevator.insert(self.now, request), Insertion::Queued);
        let class = if self.tunables.legacy { 0 } else { queue };
        self.waiting.push(Known { tag, class, side, pos, since: self.now, patience: None });
    }

    /// Asks who is next; a request leaves the list of those that wait.
    fn ask(&mut self) -> Result<Known, Next> {
        let next = self.elevator.dispatch(self.now);
        self.elevator.check_invariants();
        let Next::Request(tag) = next else { return Err(next) };
        let place = self.waiting.iter().position(|known| known.tag == tag).unwrap();
        let known = self.waiting.remove(place);
        self.out.push(known);
        Ok(known)
    }

    fn complete(&mut self) {
        if !self.out.is_empty() {
            let known = self.out.swap_remove(self.random.index(self.out.len()));
            self.elevator.complete(self.now, known.tag);
            self.free.push(known.tag);
        }
    }

    fn batch(&self) -> u64 {
        u64::from(self.tunables.fifo_batch.max(1))
    }

    /// Returns whether requests of a class wait in both directions.
    fn has_both(&self, class: usize) -> bool {
        let has =
            |side| self.waiting.iter().any(|known| (known.class, known.side) == (class, side));
        has(READ) && has(WRITE)
    }
}

/// Requests of one direction and class in a row, while the other direction waited all the time.
#[derive(Clone, Copy)]
struct Run {
    side: usize,
    requests: u64,
    /// How often the sweep began anew lower down.
    falls: u64,
    last_pos: u64,
    /// It is known where it began, and the other direction waited from there on.
    counts: bool,
}

impl Run {
    fn note(&mut self, known: &Known, has_both: bool) {
        self.requests += 1;
        self.falls += u64::from(known.pos < self.last_pos && self.requests > 1);
        self.last_pos = known.pos;
        self.counts &= has_both;
    }

    /// T3.1, T3.2: no more requests than its batches hold, ascending within each batch; writes get
    /// one batch, reads exactly `writes_starved`. Without those, who has begun to write goes on.
    fn check(&self, tunables: &DeadlineTunables, is_over: bool) {
        let batches = match self.side {
            READ => u64::from(tunables.writes_starved),
            _ if tunables.writes_starved == 0 => return,
            _ => 1,
        };
        let most = batches * u64::from(tunables.fifo_batch.max(1));
        assert!(self.requests <= most, "T3.1: {} requests, {batches} batches", self.requests);
        assert!(self.falls < batches, "T3.1: {} falls, {batches} batches", self.falls);
        let has_enough = !is_over || self.requests >= batches;
        assert!(has_enough, "T3.2: {} requests, {batches} batches", self.requests);
    }
}

fn batches_end(legacy: bool) {
    for_many_seeds(10_000, |seed| {
        let mut world = World::new(seed, legacy, NEVER);
        let classes = 1 + world.random.index(2);
        let mut runs: [Option<Run>; 3] = [None; 3];
        for _ in 0..160 {
            match world.random.below(8) {
                0..=3 => world.put(classes),
                4 => world.complete(),
                5 => world.now += Nanos::from_micros(world.random.below(2_000)),
                _ => {
                    let has_both = [0, 1, 2].map(|class| world.has_both(class));
                    let Ok(known) = world.ask() else { continue };
                    let run = &mut runs[known.class];
                    let old = run.filter(|run| run.side == known.side);
                    if let (None, Some(ended)) = (old, *run) {
                        // Of a run that the other direction ends, both ends are known.
                        if ended.counts && has_both[known.class] {
                            ended.check(&world.tunables, true);
                        }
                    }
                    let mut now = old.unwrap_or_else(|| Run {
                        side: known.side,
                        requests: 0,
                        falls: 0,
                        last_pos: 0,
                        counts: run.is_some(),
                    });
                    now.note(&known, has_both[known.class]);
                    *run = Some(now);
                    if now.counts {
                        now.check(&world.tunables, false);
                    }
                }
            }
        }
    });
}

/// T3.1, T3.2.
#[test]
fn reads_and_writes_that_both_wait_take_turns_in_ascending_batches() {
    batches_end(false);
}

#[test]
fn by_the_legacy_rules_reads_and_writes_take_the_same_turns() {
    batches_end(true);
}

impl World {
    /// Returns how many requests of its class may go before the `place`-th overdue request of one
    /// direction, oldest first from 1; none, if there is no such promise.
    ///
    /// Each batch of its direction serves one of them. What is left of the batch under way goes
    /// first, and the batches of the other direction that are due by then.
    fn patience(&self, side: usize, place: u64) -> Option<u64> {
        let starved = u64::from(self.tunables.writes_starved);
        let batches = match side {
            WRITE => place * (starved + 1),
            _ => place + 1 + (place - 1).checked_div(starved)?,
        };
        Some(batches * self.batch())
    }

    /// Notes which requests are overdue now.
    fn note_overdue(&mut self) {
        let expire = [self.tunables.read_expire, self.tunables.write_expire];
        let mut places = [[0; 2]; 3];
        for index in 0..self.waiting.len() {
            let known = self.waiting[index];
            let place = &mut places[known.class][known.side];
            *place += 1;
            if known.patience.is_none() && known.since + expire[known.side] <= self.now {
                let place = *place;
                self.waiting[index].patience = self.patience(known.side, place);
            }
        }
    }
}

fn overdue_requests_go_in_time(legacy: bool) {
    for_many_seeds(10_000, |seed| {
        let mut world = World::new(seed, legacy, NEVER);
        let classes = 1 + world.random.index(2);
        for _ in 0..160 {
            match world.random.below(8) {
                0..=3 => world.put(classes),
                4 => world.complete(),
                5 => world.now += Nanos::from_micros(world.random.below(5_000)),
                _ => {
                    world.note_overdue();
                    let Ok(known) = world.ask() else { continue };
                    for other in world.waiting.iter_mut().filter(|it| it.class == known.class) {
                        if let Some(patience) = &mut other.patience {
                            assert!(*patience > 0, "T3.3, T3.4: {:?} waits too long", other.tag);
                            *patience -= 1;
                        }
                    }
                }
            }
        }
    });
}

/// T3.3, T3.4: the k-th overdue request of a direction waits for about k of its batches.
#[test]
fn an_overdue_request_waits_for_a_batch_for_each_one_before_it() {
    overdue_requests_go_in_time(false);
}

#[test]
fn by_the_legacy_rules_an_overdue_request_waits_as_long() {
    overdue_requests_go_in_time(true);
}

impl World {
    /// T3.5, T3.6, T3.7: what may be next, by classes and ages alone.
    fn check_classes(&mut self) {
        let is_used =
            |class: usize| self.waiting.iter().chain(&self.out).any(|it| it.class == class);
        let used: Vec<usize> = (0..3).filter(|&class| is_used(class)).collect();
        let aged_at = |known: &Known| known.since + self.tunables.prio_aging_expire;
        let is_aged =
            |known: &&Known| used.len() > 1 && known.class > 0 && aged_at(known) <= self.now;
        let aged = self.waiting.iter().filter(is_aged).map(|known| known.class).min();
        let best = used.first().copied();
        let best_waits = self.waiting.iter().any(|known| Some(known.class) == best);
        let first_aged = self.waiting.iter().map(aged_at).min();
        let aging = self.tunables.prio_aging_expire;
        let now = self.now;
        match (aged, self.ask()) {
            (Some(class), Ok(known)) => {
                assert_eq!(known.class, class, "T3.5: the aged of the best class go first");
                assert!(known.since + aging <= now, "T3.5: a young one does not hide an aged one");
            }
            (None, Ok(known)) => assert_eq!(Some(known.class), best, "T3.6, T3.7"),
            (aged, Err(next)) => {
                assert_eq!(aged, None, "T3.5: who is aged goes next");
                assert!(!best_waits, "T3.6, T3.7: the best class goes");
                let expected = first_aged.map_or(Next::Empty, Next::NotBefore);
                assert_eq!(next, expected, "T3.7: a worse class waits for the device, or its age");
                assert_eq!(self.elevator.next_deadline(), first_aged);
            }
        }
    }
}

/// T3.5, T3.6, T3.7.
#[test]
fn a_better_class_goes_first_and_holds_the_device_until_somebody_is_aged() {
    for_many_seeds(10_000, |seed| {
        let aging = Nanos::from_millis([0, 5, 50, 10_000][usize::try_from(seed % 4).unwrap()]);
        let mut world = World::new(seed, false, aging);
        for _ in 0..160 {
            match world.random.below(10) {
                0..=3 => world.put(3),
                4..=5 => world.complete(),
                6 => world.now += Nanos::from_micros(world.random.below(10_000)),
                _ => world.check_classes(),
            }
        }
    });
}
