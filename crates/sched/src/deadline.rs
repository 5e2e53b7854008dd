//! Sweeps over the disk that no request waits for too long.
//!
//! Picture a lift that goes up only. It serves a batch of requests in ascending order, in one
//! direction of data at a time; then it looks whether somebody has stood at the doors past his
//! deadline, and if so starts the next batch there. Reads come before writes, but not for ever.
//!
//! The three priority classes are three such lifts in one shaft: a better class goes first, and
//! while it has requests at the device a worse one stays closed, unless one of its requests has
//! waited longer than [`prio_aging_expire`](DeadlineTunables::prio_aging_expire).
//!
//! We differ from mq-deadline of Linux in this. The age of a request is tested before anything
//! changes, so that a request that is not served leaves no trace. Batch, direction and starvation
//! belong to each class, so that the history of one does not disturb another. And among aged
//! requests the scan still decides if it may, else the oldest one is served, so that a young
//! request under the head never hides an aged one.
//!
//! With [`legacy`](DeadlineTunables::legacy) it is the older deadline elevator: one lift for all
//! classes, that follows its passengers rather than its position. After a request comes the one
//! above it at that time, not one that came in between since; at the top the batch ends, and the
//! next one begins at the oldest request. A fresh elevator begins with reads.
//!
//! Deliberately absent: shares. Groups and queues only count.

use crate::merge::{End, Merge, MergeLimits, MergeRules};
use crate::roster::Roster;
use crate::table::{SortList, Table};
use crate::tunable::{self, OutOfRange};
use crate::{
    Class, GroupId, GroupReport, Insertion, Nanos, Next, Priority, QueueId, Request, Scheduler,
    Tag, Weight,
};

/// What can be tuned about `deadline`; names and defaults are those of mq-deadline in Linux.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeadlineTunables {
    /// Age at which a waiting read is overdue. 500 ms. Smaller: more seeks, shorter tails.
    pub read_expire: Nanos,
    /// Age at which a waiting write is overdue. 5 s.
    pub write_expire: Nanos,
    /// Batches of reads after which a waiting write gets its batch. 2.
    pub writes_starved: u32,
    /// Most requests of one batch. 16. Larger: more throughput on a disk that seeks, longer waits.
    pub fifo_batch: u32,
    /// Whether a request may be glued before a waiting one. True; false saves little.
    pub front_merges: bool,
    /// Age at which a request goes before those of better classes. 10 s.
    pub prio_aging_expire: Nanos,
    /// Whether the rules are those of the deadline elevator before mq-deadline. False. Classes do
    /// not matter then, nor does `prio_aging_expire`.
    pub legacy: bool,
}

impl Default for DeadlineTunables {
    fn default() -> Self {
        Self {
            read_expire: Nanos::from_millis(500),
            write_expire: Nanos::from_secs(5),
            writes_starved: 2,
            fifo_batch: 16,
            front_merges: true,
            prio_aging_expire: Nanos::from_secs(10),
            legacy: false,
        }
    }
}

impl DeadlineTunables {
    /// Returns whether these values work.
    ///
    /// # Errors
    ///
    /// * [`OutOfRange`] -- use a value in the range that it names.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let most = (1 << 31) - 1;
        let longest = Nanos::from_millis(most).0;
        tunable::check([
            ("read_expire", self.read_expire.0, 0, longest),
            ("write_expire", self.write_expire.0, 0, longest),
            ("writes_starved", self.writes_starved.into(), 0, most),
            ("fifo_batch", self.fifo_batch.into(), 0, most),
            ("prio_aging_expire", self.prio_aging_expire.0, 0, longest),
        ])
    }
}

/// The direction of data.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Direction {
    Read,
    Write,
}

/// The requests of one direction.
#[derive(Clone, Debug)]
struct Side {
    list: SortList,
    /// Position of the request dispatched last.
    latest_pos: u64,
    /// The first waiting request at or behind `latest_pos`; by the legacy rules the one that was
    /// above the last request when that went to the device.
    ahead: Option<Tag>,
}

impl Side {
    const EMPTY: Self = Self { list: SortList::EMPTY, latest_pos: 0, ahead: None };

    /// Adds a request and keeps `ahead` true, without a search if nothing began earlier.
    #[inline]
    fn add(
        &mut self,
        table: &mut Table,
        request: &Request,
        fifo_time: Nanos,
        (rules, legacy): (MergeRules, bool),
    ) -> Option<Merge> {
        let merge = self.list.add(table, request, fifo_time, rules);
        match merge {
            Some(merge) if legacy => self.replace_absorbed(table, merge),
            None if legacy => {}
            None => {
                let is_nearer = |ahead| request.pos < table.get(ahead).pos;
                if request.pos >= self.latest_pos && self.ahead.is_none_or(is_nearer) {
                    self.ahead = Some(request.tag);
                }
            }
            Some(Merge { end: End::Back, absorbed: None, .. }) => {}
            Some(_) => self.ahead = self.list.at_or_after(table, self.latest_pos),
        }
        merge
    }

    /// Moves `ahead` on to the next request if it was absorbed by the one below it.
    fn replace_absorbed(&mut self, table: &Table, merge: Merge) {
        let Some(gone) = merge.absorbed.filter(|_| self.ahead == merge.absorbed) else { return };
        let is_from_above = table.get(merge.into).pos != table.get(gone).pos;
        self.ahead =
            if is_from_above { self.list.above(table, merge.into) } else { Some(merge.into) };
    }

    /// Takes out a request that goes to the device.
    #[inline]
    fn start(&mut self, table: &mut Table, tag: Tag, legacy: bool) {
        self.latest_pos = table.get(tag).pos;
        self.ahead = if self.ahead == Some(tag) || legacy {
            self.list.above(table, tag)
        } else {
            let first = self.list.at_or_after(table, self.latest_pos);
            if first == Some(tag) { self.list.above(table, tag) } else { first }
        };
        self.list.start(table, tag);
    }

    /// Takes out a request out of turn: the sweep goes on where it is.
    fn pull(&mut self, table: &mut Table, tag: Tag) {
        if self.ahead == Some(tag) {
            self.ahead = self.list.above(table, tag);
        }
        self.list.start(table, tag);
    }
}

/// One priority class.
#[derive(Clone, Debug)]
struct Level {
    sides: [Side; 2],
    /// Direction of the current batch.
    direction: Direction,
    /// Requests served in the current batch.
    batching: u32,
    /// Batches of reads chosen while writes waited.
    starved: u32,
    /// Requests of this class that wait or are at the device.
    outstanding: u32,
}

/// What a level would do next.
#[derive(Clone, Copy, Debug)]
struct Plan {
    tag: Tag,
    direction: Direction,
    starts_batch: bool,
    starved: u32,
}

impl Level {
    const FRESH: Self = Self {
        sides: [Side::EMPTY; 2],
        direction: Direction::Write,
        batching: 0,
        starved: 0,
        outstanding: 0,
    };

    #[inline]
    fn side(&self, direction: Direction) -> &Side {
        &self.sides[direction as usize]
    }

    #[inline]
    fn side_mut(&mut self, direction: Direction) -> &mut Side {
        &mut self.sides[direction as usize]
    }

    /// Returns what is next by batch, direction and deadline, and changes nothing.
    fn plan(&self, table: &Table, tunables: &DeadlineTunables, now: Nanos) -> Option<Plan> {
        if self.batching < tunables.fifo_batch
            && let Some(tag) = self.side(self.direction).ahead
        {
            let (direction, starved) = (self.direction, self.starved);
            return Some(Plan { tag, direction, starts_batch: false, starved });
        }
        let has_reads = !self.side(Direction::Read).list.is_empty();
        let has_writes = !self.side(Direction::Write).list.is_empty();
        let (direction, starved) = match (has_reads, has_writes) {
            (true, true) if self.starved >= tunables.writes_starved => (Direction::Write, 0),
            (true, true) => (Direction::Read, self.starved + 1),
            (true, false) => (Direction::Read, self.starved),
            (false, true) => (Direction::Write, 0),
            (false, false) => return None,
        };
        let side = self.side(direction);
        let oldest = side.list.oldest()?;
        let tag =
            if table.get(oldest).fifo_time <= now { oldest } else { side.ahead.unwrap_or(oldest) };
        Some(Plan { tag, direction, starts_batch: true, starved })
    }

    /// Takes out the request of a plan.
    fn start(&mut self, table: &mut Table, plan: Plan, legacy: bool) {
        if plan.starts_batch {
            self.batching = 0;
        }
        self.batching += 1;
        self.starved = plan.starved;
        self.direction = plan.direction;
        if legacy {
            self.sides.iter_mut().for_each(|side| side.ahead = None);
        }
        self.side_mut(plan.direction).start(table, plan.tag, legacy);
    }
}

/// The elevator `deadline`.
#[derive(Clone, Debug)]
pub(crate) struct Deadline {
    tunables: DeadlineTunables,
    rules: MergeRules,
    table: Table,
    levels: [Level; 3],
    roster: Roster,
    /// When the oldest request that a better class holds back is aged.
    next_aged: Option<Nanos>,
}

impl Deadline {
    /// Returns an elevator without requests.
    pub(crate) fn new(tunables: DeadlineTunables, limits: MergeLimits) -> Self {
        Self {
            tunables,
            rules: MergeRules { limits, front: tunables.front_merges },
            table: Table::default(),
            levels: [Level::FRESH; 3],
            roster: Roster::new(),
            next_aged: None,
        }
    }

    /// Returns the tunables in force.
    pub(crate) const fn tunables(&self) -> &DeadlineTunables {
        &self.tunables
    }

    /// Changes everything but [`legacy`](DeadlineTunables::legacy), also for what waits already.
    pub(crate) fn set_tunables(&mut self, tunables: DeadlineTunables) {
        let before = self.tunables;
        let after = DeadlineTunables { legacy: before.legacy, ..tunables };
        self.table.change_expiry(|flavour| match flavour.is_write() {
            true => (before.write_expire, after.write_expire),
            false => (before.read_expire, after.read_expire),
        });
        for level in &mut self.levels {
            level.batching = level.batching.min(after.fifo_batch.max(1));
            level.starved = level.starved.min(after.writes_starved);
        }
        self.rules.front = after.front_merges;
        self.tunables = after;
        // Whoever asks for the next request learns the new one.
        self.next_aged = None;
    }

    #[inline]
    fn expire(&self, direction: Direction) -> Nanos {
        match direction {
            Direction::Read => self.tunables.read_expire,
            Direction::Write => self.tunables.write_expire,
        }
    }

    /// Returns when a waiting request that goes `direction` counts as aged.
    #[inline]
    fn aged_at(&self, tag: Tag, direction: Direction) -> Nanos {
        let inserted = self.table.get(tag).fifo_time - self.expire(direction);
        inserted + self.tunables.prio_aging_expire
    }

    /// Returns the waiting request of a level that ages first, and when.
    fn first_to_age(&self, level: &Level) -> Option<(Nanos, Tag, Direction)> {
        let oldest = |direction: Direction| {
            let tag = level.side(direction).list.oldest()?;
            Some((self.aged_at(tag, direction), tag, direction))
        };
        match (oldest(Direction::Read), oldest(Direction::Write)) {
            (Some(read), Some(write)) => Some(if read.0 <= write.0 { read } else { write }),
            (read, write) => read.or(write),
        }
    }

    /// Returns what an aged request of a worse class asks for.
    fn plan_aged(&self, now: Nanos) -> Option<(usize, Plan)> {
        let used = self.levels.iter().filter(|level| level.outstanding > 0).count();
        if used < 2 {
            return None;
        }
        for (index, level) in self.levels.iter().enumerate().skip(1) {
            let Some((aged_at, tag, direction)) = self.first_to_age(level) else { continue };
            if aged_at > now {
                continue;
            }
            let oldest = Plan { tag, direction, starts_batch: true, starved: level.starved };
            let scan = level.plan(&self.table, &self.tunables, now);
            let scan = scan.filter(|plan| self.aged_at(plan.tag, plan.direction) <= now);
            return Some((index, scan.unwrap_or(oldest)));
        }
        None
    }

    /// Returns what the best class with requests does next.
    fn plan_best(&self, now: Nanos) -> Option<(usize, Plan)> {
        let index = self.levels.iter().position(|level| level.outstanding > 0)?;
        Some((index, self.levels[index].plan(&self.table, &self.tunables, now)?))
    }

    #[inline]
    fn level_of(&self, queue: QueueId) -> usize {
        if self.tunables.legacy {
            return 1;
        }
        match self.roster.queue(queue).priority.class {
            Class::RealTime => 0,
            Class::BestEffort => 1,
            Class::Idle => 2,
        }
    }
}

impl Scheduler for Deadline {
    fn add_group(&mut self, _now: Nanos, parent: GroupId, _weight: Weight) -> GroupId {
        self.roster.add_group(parent)
    }

    fn remove_group(&mut self, _now: Nanos, group: GroupId) {
        self.roster.remove_group(group);
    }

    fn set_weight(&mut self, _now: Nanos, _group: GroupId, _weight: Weight) {}

    fn add_queue(
        &mut self,
        _now: Nanos,
        group: GroupId,
        priority: Priority,
        _sync: bool,
    ) -> QueueId {
        self.roster.add_queue(group, priority)
    }

    fn remove_queue(&mut self, _now: Nanos, queue: QueueId) {
        self.roster.remove_queue(queue);
    }

    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        let direction = if request.op.is_write() { Direction::Write } else { Direction::Read };
        let fifo_time = now + self.expire(direction);
        let level = self.level_of(request.queue);
        let rules = (self.rules, self.tunables.legacy);
        let level = &mut self.levels[level];
        let side = level.side_mut(direction);
        let Some(merge) = side.add(&mut self.table, &request, fifo_time, rules) else {
            level.outstanding += 1;
            self.roster.note_waiting(request.queue);
            return Insertion::Queued;
        };
        if merge.absorbed.is_some() {
            level.outstanding -= 1;
            self.roster.note_absorbed(request.queue);
        }
        Insertion::Merged(merge.into)
    }

    fn dispatch(&mut self, now: Nanos) -> Next {
        self.next_aged = None;
        if let Some((index, plan)) = self.plan_aged(now).or_else(|| self.plan_best(now)) {
            self.levels[index].start(&mut self.table, plan, self.tunables.legacy);
            let record = self.table.get(plan.tag);
            self.roster.note_started(record.queue, record.nr_sectors);
            return Next::Request(plan.tag);
        }
        let waiting = self.levels.iter().filter_map(|level| self.first_to_age(level));
        self.next_aged = waiting.map(|(aged_at, ..)| aged_at).min();
        self.next_aged.map_or(Next::Empty, Next::NotBefore)
    }

    fn pull(&mut self, _now: Nanos, tag: Tag) -> Tag {
        let whole = self.table.whole_of(tag);
        let record = self.table.get(whole);
        let (queue, nr_sectors) = (record.queue, record.nr_sectors);
        let direction = if record.flavour.is_write() { Direction::Write } else { Direction::Read };
        let level = self.level_of(queue);
        self.levels[level].side_mut(direction).pull(&mut self.table, whole);
        self.roster.note_started(queue, nr_sectors);
        whole
    }

    fn complete(&mut self, _now: Nanos, tag: Tag) {
        let queue = self.table.complete(tag).queue;
        let level = self.level_of(queue);
        self.levels[level].outstanding -= 1;
        self.roster.note_completed(queue);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.next_aged
    }

    fn next_part(&self, tag: Tag) -> Option<Tag> {
        self.table.next_part(tag)
    }

    fn first_part(&self, tag: Tag) -> Tag {
        self.table.first_part(tag)
    }

    fn queued(&self) -> u32 {
        self.table.waiting()
    }

    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    fn group_report(&self, group: GroupId) -> GroupReport {
        self.roster.report(group)
    }

    fn check_invariants(&self) {
        self.table.check();
        let mut waiting = 0;
        for level in &self.levels {
            for side in &level.sides {
                side.list.check(&self.table);
                if self.tunables.legacy {
                    assert!(side.ahead.is_none_or(|tag| self.table.get(tag).is_waiting()));
                } else {
                    assert_eq!(side.ahead, side.list.at_or_after(&self.table, side.latest_pos));
                }
                waiting += side.list.len();
            }
            let are_both_ahead = level.sides.iter().all(|side| side.ahead.is_some());
            assert!(!self.tunables.legacy || !are_both_ahead, "a batch has one direction");
            assert!(level.batching <= self.tunables.fifo_batch.max(1), "batches end");
            assert!(level.starved <= self.tunables.writes_starved, "writes are not starved");
        }
        assert_eq!(waiting, self.queued(), "every waiting request is in one list");
        let outstanding: u32 = self.levels.iter().map(|level| level.outstanding).sum();
        assert_eq!(outstanding, self.queued() + self.in_flight());
        self.roster.check(self.queued(), outstanding);
    }
}
