//! Few at the device, so that each is quick: admission by latency targets, for fast devices.
//!
//! Picture a club with one door for each kind of guest, and a number of wristbands at each door.
//! Inside nobody is sorted. Ten times a second the doorkeeper looks how long people took. If the
//! club is crowded, doors whose guests are well served give out fewer wristbands; a door whose
//! guests wait too long may give out more.
//!
//! The doors are the *domains* (reads, writes, discards, everything else), a wristband is a token,
//! and a domain has as many as its *depth*. A domain is served for a batch; then the next one with
//! requests and a free token. When a depth shrinks below the tokens in use nothing is called back:
//! nobody enters until enough have left.
//!
//! We differ from Kyber of Linux in this. A domain has one list in the order of arrival, not one
//! for each processor. The timer is no timer: whoever comes by when it is due does its work. A
//! percentile is due one second after its first sample, not after the first look at it.
//!
//! Deliberately absent: shares (groups and queues only count), and the limit of write-back to three
//! quarters of all tags, because a scheduler here never refuses a request.
//!
//! Source: O. Sandoval, the Kyber I/O scheduler of Linux, 2017.

mod histogram;

use alloc::vec::Vec;

use histogram::{GOOD_BUCKETS, Histogram};

use crate::fifo::Fifo;
use crate::merge::{self, MergeLimits, MergeRules};
use crate::roster::Roster;
use crate::sorted::Sorted;
use crate::table::Table;
use crate::tunable::{self, OutOfRange};
use crate::{
    GroupId, GroupReport, Insertion, Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag,
    Weight,
};

/// What can be tuned about `kyber`; Linux has the same in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KyberTunables {
    /// What reads shall take at most (`read_lat_nsec`). 2 ms; 4 ns to 1 h. Smaller: quicker reads,
    /// fewer writes at the device.
    pub read_lat: Nanos,
    /// What writes shall take at most (`write_lat_nsec`). 10 ms; 4 ns to 1 h.
    pub write_lat: Nanos,
}

impl Default for KyberTunables {
    fn default() -> Self {
        Self { read_lat: Nanos::from_millis(2), write_lat: Nanos::from_millis(10) }
    }
}

impl KyberTunables {
    /// Returns whether these values work.
    ///
    /// # Errors
    ///
    /// * [`OutOfRange`] -- use a value in the range that it names.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let hour = Nanos::from_secs(3600).0;
        tunable::check([
            ("read_lat", self.read_lat.0, 4, hour),
            ("write_lat", self.write_lat.0, 4, hour),
        ])
    }
}

const DOMAINS: usize = 4;
const READ: usize = 0;
const WRITE: usize = 1;
const DISCARD: usize = 2;
const OTHER: usize = 3;
/// The largest depth of each domain, which is also the first.
const MAX_DEPTH: [u32; DOMAINS] = [256, 128, 64, 16];
/// The most requests of each domain in a row.
const BATCH: [u32; DOMAINS] = [16, 8, 1, 1];
/// What discards shall take at most.
const DISCARD_LAT: Nanos = Nanos::from_secs(5);
/// How often depths are adapted while requests complete.
const PERIOD: Nanos = Nanos::from_millis(100);

/// One kind of requests.
#[derive(Clone, Copy, Debug)]
struct Domain {
    /// Waiting requests in the order of arrival.
    fifo: Fifo,
    waiting: u32,
    /// Tokens in use: requests at the device.
    in_flight: u32,
    /// Tokens.
    depth: u32,
    /// From arrival to completion.
    total: Histogram,
    /// From dispatch to completion.
    device: Histogram,
    /// The last 99th percentile while the device was not congested, used once when it is.
    last_p99: Option<u8>,
}

impl Domain {
    fn new(depth: u32) -> Self {
        Self {
            fifo: Fifo::EMPTY,
            waiting: 0,
            in_flight: 0,
            depth,
            total: Histogram::default(),
            device: Histogram::default(),
            last_p99: None,
        }
    }

    /// Adapts the depth to the latencies since the last time.
    fn adapt(&mut self, now: Nanos, is_congested: bool, max_depth: u32) {
        let fresh = self.total.take_percentile(now, 99);
        let p99 = if is_congested {
            fresh.or_else(|| self.last_p99.take())
        } else {
            self.last_p99 = fresh.or(self.last_p99);
            fresh
        };
        if is_congested {
            self.last_p99 = None;
        }
        if let Some(p99) = p99.filter(|&p99| is_congested || p99 >= GOOD_BUCKETS) {
            self.depth = scaled(self.depth, p99, max_depth);
        }
    }
}

/// Returns the depth that follows from a 99th percentile in bucket `p99`: as many quarters of the
/// old one as the latency has quarters of its target.
fn scaled(depth: u32, p99: u8, max_depth: u32) -> u32 {
    ((depth * (u32::from(p99) + 1)) >> 2).clamp(1, max_depth)
}

/// The elevator `kyber`.
#[derive(Clone, Debug)]
pub(crate) struct Kyber {
    targets: [Nanos; OTHER],
    rules: MergeRules,
    table: Table,
    domains: [Domain; DOMAINS],
    /// The domain in service.
    current: usize,
    /// Requests that it was served in a row.
    batching: u32,
    /// Requests were sent out of turn, perhaps without a token.
    has_pulled: bool,
    /// When depths are adapted; nothing until a request has completed.
    adapt_at: Option<Nanos>,
    /// When `dispatch` must be asked again.
    deadline: Option<Nanos>,
    /// Per tag its domain, and when it was dispatched.
    marks: Vec<(usize, Nanos)>,
    /// Per queue its waiting requests by sector, to find neighbours.
    trees: Vec<Sorted>,
    roster: Roster,
}

impl Kyber {
    /// Returns an elevator without requests.
    pub(crate) fn new(tunables: KyberTunables, limits: MergeLimits) -> Self {
        Self {
            targets: [tunables.read_lat, tunables.write_lat, DISCARD_LAT],
            rules: MergeRules { limits, front: true },
            table: Table::default(),
            domains: MAX_DEPTH.map(Domain::new),
            current: READ,
            batching: 0,
            has_pulled: false,
            adapt_at: None,
            deadline: None,
            marks: Vec::new(),
            trees: Vec::new(),
            roster: Roster::new(),
        }
    }

    /// Changes the targets; depths follow them from the next adaptation on.
    pub(crate) fn set_tunables(&mut self, tunables: KyberTunables) {
        self.targets = [tunables.read_lat, tunables.write_lat, DISCARD_LAT];
    }

    /// Adapts all depths if it is time.
    #[inline]
    fn adapt_if_due(&mut self, now: Nanos) {
        if self.adapt_at.is_some_and(|then| then <= now) {
            self.adapt_at = None;
            self.adapt(now);
        }
    }

    fn adapt(&mut self, now: Nanos) {
        let mut is_congested = false;
        for domain in &mut self.domains[..OTHER] {
            let p90 = domain.device.take_percentile(now, 90);
            is_congested |= p90.is_some_and(|p90| p90 >= GOOD_BUCKETS);
        }
        for (domain, max_depth) in self.domains[..OTHER].iter_mut().zip(MAX_DEPTH) {
            domain.adapt(now, is_congested, max_depth);
        }
    }

    /// Returns the oldest request of a domain if there is a token for it.
    #[inline]
    fn candidate(&self, domain: usize) -> Option<u32> {
        let domain = &self.domains[domain];
        domain.fifo.head().filter(|_| domain.in_flight < domain.depth)
    }

    /// Takes out a request that goes to the device; it takes a token even if there is none, and
    /// those who come later wait until that is made up for.
    fn start(&mut self, now: Nanos, index: u32) {
        let (domain, dispatched) = &mut self.marks[index as usize];
        *dispatched = now;
        let domain = &mut self.domains[*domain];
        domain.fifo.remove(&mut self.table, index);
        domain.waiting -= 1;
        domain.in_flight += 1;
        let record = self.table.record(index);
        let (queue, nr_sectors) = (record.queue, record.nr_sectors);
        self.trees[queue.0 as usize].remove(&mut self.table, index);
        self.table.start(index);
        self.roster.note_started(queue, nr_sectors);
    }

    /// Returns the domain and the request that are next, and whether a new batch begins.
    fn plan(&self) -> Option<(usize, u32, bool)> {
        if self.batching < BATCH[self.current]
            && let Some(head) = self.candidate(self.current)
        {
            return Some((self.current, head, false));
        }
        (1..=DOMAINS).find_map(|step| {
            let domain = (self.current + step) % DOMAINS;
            self.candidate(domain).map(|head| (domain, head, true))
        })
    }
}

/// Returns the domain of an operation.
const fn domain_of(op: Op) -> usize {
    match op {
        Op::Read => READ,
        Op::Write => WRITE,
        Op::Discard => DISCARD,
        Op::WriteZeroes => OTHER,
    }
}

impl Scheduler for Kyber {
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
        let queue = self.roster.add_queue(group, priority);
        if queue.0 as usize == self.trees.len() {
            self.trees.push(Sorted::EMPTY);
        }
        queue
    }

    fn remove_queue(&mut self, _now: Nanos, queue: QueueId) {
        self.roster.remove_queue(queue);
    }

    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        let index = request.tag.0 as usize;
        if index >= self.marks.len() {
            self.marks.resize(index + 1, (OTHER, Nanos::ZERO));
        }
        let domain = domain_of(request.op);
        self.marks[index] = (domain, now);
        let domain = &mut self.domains[domain];
        let lists = (&mut self.trees[request.queue.0 as usize], &mut domain.fifo);
        // Nothing expires here; the time of arrival is kept where others keep that.
        let Some(merge) = merge::add(&mut self.table, lists, &request, now, self.rules) else {
            domain.waiting += 1;
            self.roster.note_waiting(request.queue);
            return Insertion::Queued;
        };
        if merge.absorbed.is_some() {
            domain.waiting -= 1;
            self.roster.note_absorbed(request.queue);
        }
        Insertion::Merged(merge.into)
    }

    fn dispatch(&mut self, now: Nanos) -> Next {
        self.adapt_if_due(now);
        self.deadline = None;
        let Some((domain, head, starts_batch)) = self.plan() else {
            // Tokens come back with completions, or when a depth grows.
            self.deadline = self.adapt_at.filter(|_| self.table.waiting() > 0);
            return self.deadline.map_or(Next::Empty, Next::NotBefore);
        };
        self.batching = if starts_batch { 1 } else { self.batching + 1 };
        self.current = domain;
        self.start(now, head);
        Next::Request(Tag(head))
    }

    fn pull(&mut self, now: Nanos, tag: Tag) -> Tag {
        let whole = self.table.whole_of(tag);
        self.has_pulled = true;
        self.start(now, whole.0);
        whole
    }

    fn complete(&mut self, now: Nanos, tag: Tag) {
        self.adapt_if_due(now);
        let record = self.table.complete(tag);
        let (queue, arrived) = (record.queue, record.fifo_time);
        self.roster.note_completed(queue);
        let (index, dispatched) = self.marks[tag.0 as usize];
        let domain = &mut self.domains[index];
        domain.in_flight -= 1;
        if let Some(&target) = self.targets.get(index) {
            domain.total.add(now, now.since(arrived), target);
            domain.device.add(now, now.since(dispatched), target);
            self.adapt_at.get_or_insert(now + PERIOD);
        }
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
        let mut in_flight = 0;
        for (domain, max_depth) in self.domains.iter().zip(MAX_DEPTH) {
            assert_eq!(domain.fifo.check(&self.table), domain.waiting);
            assert!((1..=max_depth).contains(&domain.depth), "depths keep to their range");
            let has_tokens = domain.in_flight <= max_depth || self.has_pulled;
            assert!(has_tokens, "nobody is let in without a token");
            domain.total.check();
            domain.device.check();
            in_flight += domain.in_flight;
        }
        assert_eq!(in_flight, self.in_flight(), "a token for each request at the device");
        let waiting: u32 = self.domains.iter().map(|domain| domain.waiting).sum();
        assert_eq!(waiting, self.queued(), "every waiting request is in one list");
        let sorted: u32 = self.trees.iter().map(|tree| tree.check(&self.table)).sum();
        assert_eq!(sorted, waiting, "and in the tree of its queue");
        assert!(self.batching <= BATCH[self.current], "batches end");
        self.roster.check(self.queued(), self.queued() + self.in_flight());
    }
}

#[cfg(test)]
mod tests;
