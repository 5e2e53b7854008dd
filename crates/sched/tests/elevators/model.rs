//! `deadline` once more, told as simply as possible, and compared with the real one.

use evenkeel_sched::{
    Class, DeadlineTunables, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits,
    Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag,
};

use crate::random::{Random, for_many_seeds};

/// A waiting request: what it covers, who inserted it first, and its parts upwards.
#[derive(Clone, Debug)]
struct Entry {
    whole: Request,
    since: Nanos,
    age: u64,
    parts: Vec<Tag>,
}

/// One direction of one class, sorted by sector; equal sectors by arrival.
#[derive(Default)]
struct Side {
    entries: Vec<Entry>,
    latest_pos: u64,
}

impl Side {
    fn oldest(&self) -> Option<&Entry> {
        self.entries.iter().min_by_key(|entry| entry.age)
    }

    fn ahead(&self) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.whole.pos >= self.latest_pos)
    }

    fn put(&mut self, entry: Entry) {
        let place = self.entries.partition_point(|other| other.whole.pos <= entry.whole.pos);
        self.entries.insert(place, entry);
    }
}

#[derive(Default)]
struct Level {
    /// Reads, writes.
    sides: [Side; 2],
    direction: usize,
    batching: u32,
    starved: u32,
    in_flight: u32,
}

struct Model {
    tunables: DeadlineTunables,
    limits: MergeLimits,
    levels: [Level; 3],
    ages: u64,
    /// By the legacy rules: the direction and the request that the batch goes on with.
    next: Option<(usize, Tag)>,
}

/// Direction, tag, whether a batch starts, and the new count of starvation.
type Plan = (usize, Tag, bool, u32);

impl Model {
    fn insert(&mut self, now: Nanos, level: usize, request: Request) -> Insertion {
        let next = self.next.and_then(|(direction, tag)| {
            let entries = &self.levels[level].sides[direction].entries;
            let entry = entries.iter().find(|entry| entry.whole.tag == tag)?;
            Some((direction, entry.parts[0], *entry.parts.last()?))
        });
        let insertion = self.insert_into(now, level, request);
        if let Some((direction, first, last)) = next {
            // It goes on where the batch was, or behind what was served together with that.
            let entries = &self.levels[level].sides[direction].entries;
            let place = entries.iter().position(|entry| entry.parts.contains(&last)).unwrap();
            let entry = &entries[place];
            let keeps = Some(entry.whole.tag) == self.next.map(|next| next.1);
            let is_behind = !keeps && entry.parts[0] != first;
            let entry = entries.get(place + usize::from(is_behind));
            self.next = entry.map(|entry| (direction, entry.whole.tag));
        }
        insertion
    }

    fn insert_into(&mut self, now: Nanos, level: usize, request: Request) -> Insertion {
        let (tunables, limits) = (self.tunables, self.limits);
        self.ages += 1;
        let side = &mut self.levels[level].sides[usize::from(request.op.is_write())];
        let parts = vec![request.tag];
        let new = Entry { whole: request, since: now, age: self.ages, parts };
        let split = side.entries.partition_point(|entry| entry.whole.pos <= request.pos);
        let joins = |lower: &Entry, upper: &Entry| {
            let (a, b) = (lower.whole, upper.whole);
            let sectors = u64::from(a.nr_sectors) + u64::from(b.nr_sectors);
            (a.op, a.sync, a.queue, a.end()) == (b.op, b.sync, b.queue, b.pos)
                && a.op.is_mergeable()
                && sectors <= u64::from(limits.max_sectors)
                && u32::from(a.segments) + u32::from(b.segments) <= u32::from(limits.max_segments)
        };
        // From the lower neighbour, the new one and the upper neighbour glue what fits, where the
        // new one is glued first and to the lower one rather than to the upper one.
        let lower = split.checked_sub(1);
        let upper = (split < side.entries.len()).then_some(split);
        let back = lower.filter(|&index| joins(&side.entries[index], &new));
        let front =
            upper.filter(|&index| tunables.front_merges && joins(&new, &side.entries[index]));
        let (mut grown, neighbour) = match (back, front) {
            (Some(back), _) => (glue(side.entries.remove(back), new), upper.map(|it| it - 1)),
            (None, Some(front)) => (glue(new, side.entries.remove(front)), lower),
            (None, None) => {
                side.put(new);
                return Insertion::Queued;
            }
        };
        if let Some(index) = neighbour {
            if back.is_some() && joins(&grown, &side.entries[index]) {
                grown = glue(grown, side.entries.remove(index));
            } else if back.is_none() && joins(&side.entries[index], &grown) {
                grown = glue(side.entries.remove(index), grown);
            }
        }
        let into = grown.whole.tag;
        side.put(grown);
        Insertion::Merged(into)
    }

    fn ahead<'a>(&self, level: &'a Level, direction: usize) -> Option<&'a Entry> {
        let side = &level.sides[direction];
        if !self.tunables.legacy {
            return side.ahead();
        }
        let (_, tag) = self.next.filter(|next| next.0 == direction)?;
        side.entries.iter().find(|entry| entry.whole.tag == tag)
    }

    fn plan(&self, level: &Level, now: Nanos) -> Option<Plan> {
        if level.batching < self.tunables.fifo_batch
            && let Some(entry) = self.ahead(level, level.direction)
        {
            return Some((level.direction, entry.whole.tag, false, level.starved));
        }
        let [reads, writes] = [0, 1].map(|side| !level.sides[side].entries.is_empty());
        let is_writes_turn = level.starved >= self.tunables.writes_starved;
        let (direction, starved) = match (reads, writes) {
            (false, false) => return None,
            (true, false) => (0, level.starved),
            (true, true) if !is_writes_turn => (0, level.starved + 1),
            _ => (1, 0),
        };
        let side = &level.sides[direction];
        let oldest = side.oldest()?;
        let is_overdue = oldest.since + self.expire(direction) <= now;
        let ahead = self.ahead(level, direction);
        let entry = if is_overdue { oldest } else { ahead.unwrap_or(oldest) };
        Some((direction, entry.whole.tag, true, starved))
    }

    fn expire(&self, direction: usize) -> Nanos {
        [self.tunables.read_expire, self.tunables.write_expire][direction]
    }

    fn dispatch(&mut self, now: Nanos) -> (Next, Vec<Tag>) {
        let aging = self.tunables.prio_aging_expire;
        let is_used = |level: &Level| {
            level.in_flight > 0 || level.sides.iter().any(|side| !side.entries.is_empty())
        };
        let mut chosen: Option<(usize, Plan)> = None;
        let mut ages_next: Option<Nanos> = None;
        let are_several = self.levels.iter().filter(|level| is_used(level)).count() > 1;
        for index in (1..3).filter(|_| are_several) {
            let level = &self.levels[index];
            let all = level.sides.iter().flat_map(|side| &side.entries);
            let aged: Vec<&Entry> =
                all.clone().filter(|entry| entry.since + aging <= now).collect();
            ages_next = ages_next.into_iter().chain(all.map(|entry| entry.since + aging)).min();
            let Some(oldest) = aged.iter().min_by_key(|entry| (entry.since, side_of(entry))) else {
                continue;
            };
            let side = &level.sides[side_of(oldest)];
            let oldest = side.oldest().unwrap_or(oldest);
            let fallback = (side_of(oldest), oldest.whole.tag, true, level.starved);
            let plan = self.plan(level, now);
            let plan = plan.filter(|plan| aged.iter().any(|entry| entry.whole.tag == plan.1));
            chosen = chosen.or_else(|| Some((index, plan.unwrap_or(fallback))));
        }
        if chosen.is_none() {
            let best = self.levels.iter().position(is_used);
            chosen = best.and_then(|best| Some((best, self.plan(&self.levels[best], now)?)));
        }
        let Some((index, (direction, tag, starts_batch, starved))) = chosen else {
            return (ages_next.map_or(Next::Empty, Next::NotBefore), Vec::new());
        };
        let level = &mut self.levels[index];
        level.batching = if starts_batch { 1 } else { level.batching + 1 };
        (level.direction, level.starved) = (direction, starved);
        level.in_flight += 1;
        let side = &mut level.sides[direction];
        let place = side.entries.iter().position(|entry| entry.whole.tag == tag).unwrap();
        let entry = side.entries.remove(place);
        side.latest_pos = entry.whole.pos;
        self.next = side.entries.get(place).map(|next| (direction, next.whole.tag));
        (Next::Request(tag), entry.parts)
    }
}

fn side_of(entry: &Entry) -> usize {
    usize::from(entry.whole.op.is_write())
}

/// Glues two adjacent requests; the one inserted first stands for both.
fn glue(lower: Entry, upper: Entry) -> Entry {
    let whole = Request {
        tag: if lower.age < upper.age { lower.whole.tag } else { upper.whole.tag },
        nr_sectors: lower.whole.nr_sectors + upper.whole.nr_sectors,
        segments: lower.whole.segments + upper.whole.segments,
        ..lower.whole
    };
    let (since, age) = (lower.since.min(upper.since), lower.age.min(upper.age));
    Entry { whole, since, age, parts: [lower.parts, upper.parts].concat() }
}

struct Pair {
    random: Random,
    now: Nanos,
    real: Elevator,
    model: Model,
    queues: Vec<(QueueId, usize)>,
    free: Vec<Tag>,
    /// Requests at the device: tag, class, parts.
    out: Vec<(Tag, usize, Vec<Tag>)>,
    levels: Vec<usize>,
}

impl Pair {
    fn new(seed: u64, legacy: bool) -> Self {
        let mut random = Random::new(seed);
        let tunables = DeadlineTunables {
            read_expire: Nanos::from_millis(random.pick(&[0, 50, 500])),
            write_expire: Nanos::from_millis(random.pick(&[0, 50, 5000])),
            writes_starved: random.pick(&[0, 1, 2, 5]),
            fifo_batch: random.pick(&[0, 1, 2, 16]),
            front_merges: random.chance(70),
            prio_aging_expire: Nanos::from_millis(random.pick(&[0, 100, 10_000])),
            legacy,
        };
        let limits = MergeLimits { max_sectors: random.pick(&[1, 12, 2560]), max_segments: 7 };
        let config = ElevatorConfig {
            kind: Kind::Deadline,
            merge: limits,
            deadline: tunables,
            ..ElevatorConfig::default()
        };
        let now = Nanos::ORIGIN;
        let mut real = Elevator::new(now, &config);
        let classes = [Class::RealTime, Class::BestEffort, Class::Idle];
        let mut queues = Vec::new();
        for _ in 0..1 + random.below(4) {
            let level = random.index(3);
            let priority = Priority { class: classes[level], level: 4 };
            // By the legacy rules all classes are one.
            let served_as = if legacy { 1 } else { level };
            queues.push((real.add_queue(now, GroupId::ROOT, priority, true), served_as));
        }
        let mut levels: [Level; 3] = Default::default();
        levels.iter_mut().for_each(|level| level.direction = 1);
        let model = Model { tunables, limits, levels, ages: 0, next: None };
        let free = (0..40).map(Tag).collect();
        Self { random, now, real, model, queues, free, out: Vec::new(), levels: vec![0; 40] }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..=4 => self.insert(),
            5..=7 => self.dispatch(),
            8 if !self.out.is_empty() => {
                let (tag, level, parts) = self.out.swap_remove(self.random.index(self.out.len()));
                self.real.complete(self.now, tag);
                self.model.levels[level].in_flight -= 1;
                self.free.extend(parts);
            }
            _ => self.now += Nanos::from_millis(self.random.pick(&[0, 1, 30, 300, 9000])),
        }
        self.real.check_invariants();
    }

    fn insert(&mut self) {
        let (queue, level) = self.random.pick(&self.queues);
        let Some(tag) = self.free.pop() else { return };
        let request = Request {
            tag,
            queue,
            op: self.random.pick(&[Op::Read, Op::Read, Op::Write, Op::Discard]),
            pos: self.random.below(30),
            nr_sectors: u32::try_from(1 + self.random.below(4)).unwrap(),
            segments: 1,
            sync: self.random.chance(90),
        };
        self.levels[tag.0 as usize] = level;
        let expected = self.model.insert(self.now, level, request);
        assert_eq!(self.real.insert(self.now, request), expected);
    }

    fn dispatch(&mut self) {
        let (expected, parts) = self.model.dispatch(self.now);
        assert_eq!(self.real.dispatch(self.now), expected);
        if let Next::Request(tag) = expected {
            let first = self.real.first_part(tag);
            let real: Vec<Tag> =
                std::iter::successors(Some(first), |&part| self.real.next_part(part)).collect();
            assert_eq!(real, parts);
            self.out.push((tag, self.levels[tag.0 as usize], parts));
        }
    }
}

fn decides_like_its_model(legacy: bool) {
    for_many_seeds(10_000, |seed| {
        let mut pair = Pair::new(seed, legacy);
        for _ in 0..150 {
            pair.step();
        }
    });
}

#[test]
fn deadline_decides_like_its_naive_model() {
    decides_like_its_model(false);
}

#[test]
fn legacy_deadline_decides_like_its_naive_model() {
    decides_like_its_model(true);
}
