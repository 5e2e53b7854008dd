//! Waits a moment after a read, because the next one is probably near.
//!
//! Picture a librarian who has just brought a book from the cellar. Rather than climb to the attic
//! for the next in line at once, he stays on the stairs for a breath: who asked for volume one
//! usually asks for volume two. If that reader is known to think long, or somebody else asks for
//! a book nearby, he does not wait.
//!
//! One elevator for the whole device: requests that somebody waits for (*sync*) and write-back take
//! turns in batches limited by time, each an ascending sweep with short hops back. The number of
//! writes in a batch follows from how long the last ones took. Whoever issues requests (a queue)
//! is known by its mean think time and mean seek.
//!
//! We differ from the anticipatory scheduler of Linux in this. A wait begins only after a
//! completion; the state in which it waits for one first cannot be reached there either. Times are
//! in nanoseconds, and only the age of a wait that widens what is near is in whole milliseconds. An
//! issuer ends when its queue is removed.
//!
//! Deliberately absent: classes and shares. Groups and queues only count.
//!
//! Source: S. Iyer and P. Druschel, "Anticipatory Scheduling: A Disk Scheduling Framework to
//! Overcome Deceptive Idleness in Synchronous I/O", 2001.

mod issuer;
mod wait;

use alloc::vec::Vec;

use issuer::{Issuer, Lessons};
use wait::{Anticipation, Status};

use crate::choose::BackSeek;
use crate::merge::{End, MergeLimits, MergeRules};
use crate::roster::Roster;
use crate::table::{SortList, Table};
use crate::tunable::{self, OutOfRange};
use crate::{
    GroupId, GroupReport, Insertion, Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag,
    Weight,
};

/// What can be tuned about `anticipatory`; names as in Linux, each from 0 to 2^31 - 1 ms.
///
/// "Read" stands for all requests that somebody waits for, "write" for write-back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AnticipatoryTunables {
    /// Age at which a waiting read is overdue. 125 ms.
    pub read_expire: Nanos,
    /// Age at which a waiting write is overdue. 250 ms.
    pub write_expire: Nanos,
    /// Length of a batch of reads while writes wait. 500 ms.
    pub read_batch_expire: Nanos,
    /// Length of a batch of writes while reads wait. 125 ms.
    pub write_batch_expire: Nanos,
    /// How long the device is kept for the next read of an issuer. 6 ms; zero: never, which is
    /// right for devices that do not seek.
    pub antic_expire: Nanos,
}

impl Default for AnticipatoryTunables {
    fn default() -> Self {
        Self {
            read_expire: Nanos::from_millis(125),
            write_expire: Nanos::from_millis(250),
            read_batch_expire: Nanos::from_millis(500),
            write_batch_expire: Nanos::from_millis(125),
            antic_expire: Nanos::from_millis(6),
        }
    }
}

impl AnticipatoryTunables {
    /// Returns whether these values work.
    ///
    /// # Errors
    ///
    /// * [`OutOfRange`] -- use a value in the range that it names.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let max = Nanos::from_millis((1 << 31) - 1).0;
        tunable::check([
            ("read_expire", self.read_expire.0, 0, max),
            ("write_expire", self.write_expire.0, 0, max),
            ("read_batch_expire", self.read_batch_expire.0, 0, max),
            ("write_batch_expire", self.write_batch_expire.0, 0, max),
            ("antic_expire", self.antic_expire.0, 0, max),
        ])
    }
}

/// Index of write-back in everything that is kept per direction.
const ASYNC: usize = 0;
/// Index of requests that somebody waits for.
const SYNC: usize = 1;
const BACK_SEEK: BackSeek = BackSeek { max_sectors: 1 << 20, penalty: 2 };

/// The requests of one direction.
#[derive(Clone, Debug)]
struct Side {
    list: SortList,
    /// The one that the sweep comes to next.
    next: Option<Tag>,
    /// Sector behind the last one that went to the device.
    last_sector: u64,
    /// When an overdue one was served last.
    last_overdue: Nanos,
    /// Age at which one is overdue.
    expire: Nanos,
    /// Length of a batch.
    batch_expire: Nanos,
}

/// The batch in service.
#[derive(Clone, Copy, Debug)]
struct Batch {
    side: usize,
    ends: Nanos,
    /// The direction has changed and requests of the old one are still at the device.
    is_draining: bool,
    /// Its clock starts with the first completion.
    is_new: bool,
    /// When the last batch of writes was to end.
    writes_end: Nanos,
    /// Writes that it may still send.
    writes_left: u32,
    /// It had no writes, or nobody waited for its end: its length says nothing.
    has_idled: bool,
}

/// The elevator `anticipatory`.
#[derive(Clone, Debug)]
pub(crate) struct Anticipatory {
    tunables: AnticipatoryTunables,
    rules: MergeRules,
    table: Table,
    sides: [Side; 2],
    batch: Batch,
    /// Writes in a batch, so that it lasts about as long as it may.
    write_batch_count: u32,
    wait: Anticipation,
    lessons: Lessons,
    issuers: Vec<Issuer>,
    /// When `dispatch` must be asked again.
    deadline: Option<Nanos>,
    roster: Roster,
}

impl Anticipatory {
    /// Returns an elevator without requests.
    pub(crate) fn new(now: Nanos, tunables: AnticipatoryTunables, limits: MergeLimits) -> Self {
        let side = |expire, batch_expire| Side {
            list: SortList::EMPTY,
            next: None,
            last_sector: 0,
            last_overdue: now,
            expire,
            batch_expire,
        };
        let writes_at_first = tunables.write_batch_expire.as_millis() / 10;
        Self {
            tunables,
            rules: MergeRules { limits, front: true },
            table: Table::default(),
            sides: [
                side(tunables.write_expire, tunables.write_batch_expire),
                side(tunables.read_expire, tunables.read_batch_expire),
            ],
            batch: Batch {
                side: ASYNC,
                ends: now + tunables.read_batch_expire,
                is_draining: false,
                is_new: false,
                writes_end: now,
                writes_left: 0,
                has_idled: false,
            },
            write_batch_count: u32::try_from(writes_at_first).unwrap_or(u32::MAX).max(2),
            wait: Anticipation { status: Status::Off, issuer: None, since: None },
            lessons: Lessons::default(),
            issuers: Vec::new(),
            deadline: None,
            roster: Roster::new(),
        }
    }

    /// Changes the tunables, also for what waits already. The batch and the wait under way keep the
    /// end that they have.
    pub(crate) fn set_tunables(&mut self, tunables: AnticipatoryTunables) {
        let expiry = |tunables: &AnticipatoryTunables, side| match side {
            SYNC => (tunables.read_expire, tunables.read_batch_expire),
            _ => (tunables.write_expire, tunables.write_batch_expire),
        };
        let before = self.tunables;
        self.table.change_expiry(|flavour| {
            let side = usize::from(flavour.sync());
            (expiry(&before, side).0, expiry(&tunables, side).0)
        });
        for (index, side) in self.sides.iter_mut().enumerate() {
            (side.expire, side.batch_expire) = expiry(&tunables, index);
        }
        self.tunables = tunables;
    }

    /// Returns a waiting request as somebody who looks for near ones sees it.
    fn request_of(&self, tag: Tag) -> Request {
        let record = self.table.get(tag);
        let (pos, nr_sectors, queue) = (record.pos, record.nr_sectors, record.queue);
        let (op, sync) = (Op::Read, record.flavour.sync());
        Request { tag, queue, op, pos, nr_sectors, segments: record.segments, sync }
    }

    fn is_batch_over(&self, now: Nanos) -> bool {
        let batch = &self.batch;
        let is_timed = !batch.is_draining && !batch.is_new;
        is_timed && (now > batch.ends || (batch.side == ASYNC && batch.writes_left == 0))
    }

    /// Returns the oldest request of a side if it is overdue; so that a heap of overdue requests
    /// does not end all sweeps, only one in each interval.
    fn take_overdue(&mut self, now: Nanos, side: usize) -> Option<Tag> {
        let side = &mut self.sides[side];
        let oldest = side.list.oldest()?;
        let is_time = now >= side.last_overdue + side.expire;
        if !is_time || now <= self.table.get(oldest).fifo_time {
            return None;
        }
        side.last_overdue = now;
        Some(oldest)
    }

    /// Returns the request that goes now; a wait may begin instead.
    fn choose(&mut self, now: Nanos) -> Option<Tag> {
        let [writes, reads] = [ASYNC, SYNC].map(|side| !self.sides[side].list.is_empty());
        if self.batch.side == ASYNC && !reads && (!writes || self.batch.writes_left == 0) {
            self.batch.has_idled = true;
        }
        let is_kept = matches!(self.wait.status, Status::Waiting(_));
        if !(reads || writes) || is_kept || self.batch.is_draining {
            return None;
        }
        if !(reads && writes && self.is_batch_over(now)) {
            let side = self.batch.side;
            let next = self.sides[side].next;
            if side == SYNC && self.tunables.antic_expire > Nanos::ZERO {
                if let Some(overdue) = self.take_overdue(now, SYNC) {
                    return Some(overdue);
                }
                if let Some(until) = self.anticipate(now, next) {
                    self.wait.status = Status::Waiting(until);
                    return None;
                }
            }
            if let Some(next) = next {
                if reads && !writes {
                    self.batch.ends = now + self.tunables.read_batch_expire;
                }
                return Some(self.take_overdue(now, side).unwrap_or(next));
            }
        }
        self.switch(now, reads && !(writes && self.batch.side == SYNC))
    }

    /// Begins a batch, of reads or of writes, and returns its first request if it may go now.
    fn switch(&mut self, now: Nanos, to_reads: bool) -> Option<Tag> {
        let to = if to_reads { SYNC } else { ASYNC };
        let has_changed = self.batch.side != to;
        self.batch.side = to;
        self.batch.is_draining |= has_changed;
        if to == ASYNC {
            self.batch.is_new = false;
            self.batch.writes_left = self.write_batch_count;
            self.batch.has_idled = false;
        }
        self.sides[to].last_overdue = now;
        if self.batch.is_draining {
            if self.table.in_flight() > 0 {
                return None;
            }
            self.end_draining(now);
        }
        self.sides[to].list.oldest()
    }

    /// Lets the batch begin that the old requests at the device held up.
    fn end_draining(&mut self, now: Nanos) {
        self.batch.is_draining = false;
        self.batch.ends = now + self.sides[self.batch.side].batch_expire;
        self.batch.is_new = self.batch.side == SYNC;
        if self.batch.side == ASYNC {
            self.batch.writes_end = self.batch.ends;
        }
    }

    /// Learns from the batch of writes that has just ended how many writes fit.
    fn tune_write_batch(&mut self, now: Nanos) {
        let length = self.tunables.write_batch_expire;
        let took = (length + now).since(self.batch.writes_end);
        let count = &mut self.write_batch_count;
        if took > length && !self.batch.has_idled {
            *count = if took.0 > 3 * length.0 { *count / 2 } else { *count - 1 };
        } else if took < length && self.batch.writes_left == 0 {
            let is_short = 3 * took.0 < length.0;
            *count = if is_short { count.saturating_mul(2) } else { count.saturating_add(1) };
        }
        *count = (*count).max(1);
    }

    /// Takes out a request that goes to the device.
    fn start(&mut self, tag: Tag) {
        let record = self.table.get(tag);
        let (queue, nr_sectors, end) = (record.queue, record.nr_sectors, record.end());
        let index = usize::from(record.flavour.sync());
        let side = &mut self.sides[index];
        side.next = side.list.next_after(&self.table, tag, BACK_SEEK);
        side.last_sector = end;
        side.list.start(&mut self.table, tag);
        if index == ASYNC {
            self.batch.writes_left = self.batch.writes_left.saturating_sub(1);
        }
        let issuer = (index == SYNC).then_some(queue);
        self.wait = Anticipation { status: Status::Off, issuer, since: None };
        let issuer = &mut self.issuers[queue.0 as usize];
        issuer.queued -= 1;
        issuer.in_flight += 1;
        self.roster.note_started(queue, nr_sectors);
    }
}

impl Scheduler for Anticipatory {
    fn add_group(&mut self, _now: Nanos, parent: GroupId, _weight: Weight) -> GroupId {
        self.roster.add_group(parent)
    }

    fn remove_group(&mut self, _now: Nanos, group: GroupId) {
        self.roster.remove_group(group);
    }

    fn set_weight(&mut self, _now: Nanos, _group: GroupId, _weight: Weight) {}

    fn add_queue(
        &mut self,
        now: Nanos,
        group: GroupId,
        priority: Priority,
        _sync: bool,
    ) -> QueueId {
        self.end_overdue_wait(now);
        let queue = self.roster.add_queue(group, priority);
        if queue.0 as usize == self.issuers.len() {
            self.issuers.push(Issuer::default());
        }
        self.issuers[queue.0 as usize] = Issuer::default();
        if self.wait.issuer == Some(queue) {
            // The name is that of somebody else now; a wait runs to its end.
            self.wait.issuer = None;
        }
        queue
    }

    fn remove_queue(&mut self, _now: Nanos, queue: QueueId) {
        self.issuers[queue.0 as usize].is_gone = true;
        self.roster.remove_queue(queue);
    }

    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        self.end_overdue_wait(now);
        let issuer = &mut self.issuers[request.queue.0 as usize];
        if request.sync {
            issuer.observe(now, &request, &mut self.lessons);
        }
        let side = &mut self.sides[usize::from(request.sync)];
        let fifo_time = now + side.expire;
        let merge = side.list.add(&mut self.table, &request, fifo_time, self.rules);
        let last = side.last_sector;
        let Some(merge) = merge else {
            issuer.queued += 1;
            let new = Some(request.tag);
            side.next = self.table.choose(new, side.next, last, BACK_SEEK);
            self.roster.note_waiting(request.queue);
            let is_kept = matches!(self.wait.status, Status::Waiting(_));
            if is_kept && self.may_break(now, Some(&request)) {
                self.wait.status = Status::Finished;
            }
            return Insertion::Queued;
        };
        if merge.absorbed.is_some() {
            issuer.queued -= 1;
            self.roster.note_absorbed(request.queue);
        }
        if side.next == merge.absorbed && merge.absorbed.is_some() {
            side.next = Some(merge.into);
        } else if merge.end == End::Front || merge.absorbed.is_some() {
            side.next = self.table.choose(Some(merge.into), side.next, last, BACK_SEEK);
        }
        Insertion::Merged(merge.into)
    }

    fn dispatch(&mut self, now: Nanos) -> Next {
        self.end_overdue_wait(now);
        self.deadline = None;
        if let Some(tag) = self.choose(now) {
            self.start(tag);
            return Next::Request(tag);
        }
        if let Status::Waiting(until) = self.wait.status {
            self.deadline = Some(until);
        }
        self.deadline.map_or(Next::Empty, Next::NotBefore)
    }

    fn pull(&mut self, now: Nanos, tag: Tag) -> Tag {
        self.end_overdue_wait(now);
        let whole = self.table.whole_of(tag);
        let record = self.table.get(whole);
        let (queue, nr_sectors) = (record.queue, record.nr_sectors);
        let side = &mut self.sides[usize::from(record.flavour.sync())];
        if side.next == Some(whole) {
            side.next = side.list.next_after(&self.table, whole, BACK_SEEK);
        }
        side.list.start(&mut self.table, whole);
        let issuer = &mut self.issuers[queue.0 as usize];
        issuer.queued -= 1;
        issuer.in_flight += 1;
        self.roster.note_started(queue, nr_sectors);
        if matches!(self.wait.status, Status::Waiting(_)) && self.table.waiting() == 0 {
            // Nobody is held up any more by whoever is waited for.
            self.wait.status = Status::Off;
        }
        whole
    }

    fn complete(&mut self, now: Nanos, tag: Tag) {
        self.end_overdue_wait(now);
        let record = self.table.complete(tag);
        let (queue, sync) = (record.queue, record.flavour.sync());
        if self.batch.is_draining && self.table.in_flight() == 0 {
            self.end_draining(now);
        }
        if self.batch.is_new && sync {
            self.tune_write_batch(now);
            self.batch.ends = now + self.tunables.read_batch_expire;
            self.batch.is_new = false;
        }
        if self.wait.issuer == Some(queue) {
            self.wait.since = Some(now);
        }
        let issuer = &mut self.issuers[queue.0 as usize];
        issuer.in_flight -= 1;
        if sync {
            issuer.last_end = Some(now);
        }
        self.roster.note_completed(queue);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
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
        for side in &self.sides {
            side.list.check(&self.table);
            assert_eq!(side.next.is_some(), !side.list.is_empty(), "a sweep knows what is next");
            assert!(side.next.is_none_or(|tag| self.table.get(tag).is_waiting()));
        }
        let waiting: u32 = self.sides.iter().map(|side| side.list.len()).sum();
        assert_eq!(waiting, self.queued(), "every waiting request is in one list");
        assert!(self.write_batch_count > 0, "a batch may send a write");
        assert!(!self.batch.is_draining || self.in_flight() > 0, "there is something to drain");
        assert!(self.lessons.exit_prob <= 256 && self.lessons.exit_no_coop <= 256);
        let is_kept = matches!(self.wait.status, Status::Waiting(_));
        assert!(!is_kept || self.queued() > 0, "nobody is kept waiting for nothing");
        let counted = |count: fn(&Issuer) -> u32| self.issuers.iter().map(count).sum::<u32>();
        assert_eq!(counted(|issuer| issuer.queued), self.queued());
        assert_eq!(counted(|issuer| issuer.in_flight), self.in_flight());
        self.roster.check(self.queued(), self.queued() + self.in_flight());
    }
}
