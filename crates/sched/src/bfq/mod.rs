//! BFQ: budget fair queueing, with quick answers for applications that start.
//!
//! One queue at a time holds the device. It may send so many sectors (its *budget*) or keep the
//! device for so long (the *timeout*); then [`wf2q`](crate::wf2q) says who is next, by weight. What
//! a queue used, and why it stopped, decides how large its next budget is. A queue that has just
//! run empty but is expected back at once may be waited for; a queue that is slow because the head
//! travels pays for time rather than for sectors; and a queue in which something seems to start is
//! *raised* for a while: it competes with thirty times its weight. So is one that is *soft
//! real-time*, a player or recorder that needs little but in time, a hundred times more. Queues that
//! start all together are not: they want to be done soon, not to be first.
//!
//! What the device holds can no longer be scheduled, so service is charged when a request is
//! dispatched. While a queue is waited for, requests of others may be *injected*, as many as it
//! bears. Queues and groups lie in flat arrays, their names are indices; once warm nothing is
//! allocated, and every call takes O(log n) steps per level of the tree; while something starts, the
//! end of a request in its group looks at all queues.
//!
//! # Decisions
//!
//! Where this differs from Linux, unless `kernel_compat` is set (`rules.rs` says which it takes
//! back):
//!
//! 1. Raising goes up: while a raised queue is busy, every group above it competes with its weight
//!    times the raise, and when the raise begins those groups start without lead or lag, each at most
//!    once per `wr_min_idle_time`.
//! 2. Any real-time or best-effort queue that somebody waits for may be raised, whatever its level,
//!    since the level is a hint from the guest; idle class and write-back never are.
//! 3. A queue is fresh, and so interactive, when its first request comes; raises end after their
//!    time or their sectors. But nobody has been idle for longer than the scheduler exists: a
//!    restarted daemon, to which all guests come back at once, raises none of them.
//! 4. Write-back pays its factor only while all queues have equal rights; otherwise everybody pays
//!    sectors, or time if slow.
//! 5. On a device that queues by itself and does not rotate, a queue is waited for only if requests
//!    slow each other down there, and if it is raised, or is behind its share with a mean think
//!    time of 1 ms at most; and then for four think times (at least 1 ms). What it misses while
//!    others are served it gets back, up to the largest budget, if it continues. So queues of depth
//!    1 overlap, and weights hold where the device is saturated.
//! 6. A queue that paused to wait for its own requests continues where it left even if it had just
//!    used its budget up.
//! 7. A queue whose requests are stuck at the device is waited for until its slot times out, not
//!    longer, and that instant is a deadline.
//! 8. A slot is slow if it moved less than half of what its own length earns, however short it was
//!    and whether the queue is seeky or not.
//! 9. Time is charged by the timeout in force, up to two of them, and never counts as sectors
//!    moved; on a device of decision 5 only time during which no other queue had requests there.
//! 10. Preemption compares two queues where their paths part, and asks whether the newcomer would
//!     be next there, and the groups that both are in next above: else their VM would lose its
//!     turn to other VMs. The idle class preempts nobody else. Nobody takes the device back who was not
//!     waited for: the lightest queue and another one would interrupt each other after each
//!     request. On a device of decision 5, where hardly anybody is waited for, everybody may.
//! 11. The wait for the next request is never prolonged for a small one: the engine hands over all
//!     that is pending before it asks.
//! 12. On a rotating device that was idle the slot's clock starts when its first request completes:
//!     the way to the queue's area is nobody's service, and whoever is served more often in a row
//!     would pay for it less often. A slot of one request, which is nothing but that way, is
//!     charged for it.
//! 13. The device holds at most what it moves in 4 ms, or 512 KiB if that is more; requests are
//!     merged up to a fifth of one: what is there cannot be scheduled any more.
//! 14. The peak rate counts a long request as one sample per 128 KiB, and measures idleness from the
//!     last completion; else slow disks with merged requests are never measured.
//! 15. An overdue wait counts as ended when it was due, not when somebody noticed.
//! 16. Whether a batch is soft real-time is judged when its successor comes, from the last
//!     completion on, in nanoseconds, with a guard that is a tunable; interactive queues are judged
//!     alike. A batch whose requests are still in flight goes on.
//! 17. A queue starts, as bursts count it, with its first request and whenever it counts as
//!     interactive again, since here a queue outlives applications. A burst begins in a group with
//!     nothing to do, not only on an idle device, and each group counts for itself; so machines that
//!     start together are all raised, and no burst is hidden by what neighbours do.
//! 18. Whether the device queues by itself is told; if it is to be detected, then in both
//!     directions, and what the scheduler itself holds back is no evidence.
//! 19. Time that passes in one jump while requests wait or are in flight did not pass (see
//!     [`clock`]).
//! 20. What is injected is what would be served next, first in the group of the queue in service,
//!     then further up: no list of all busy queues is searched, and a VM that thinks leaves its
//!     time to itself before others. It moves its queue's place in the competition at once, and
//!     ends when that queue is ahead by a budget. The idle class is never injected, and with strict
//!     guarantees nothing is.
//! 21. Where the device works on one thing after the other, an injected request, and one that is
//!     still there when its queue's slot ends, also pays for the time in which it kept others
//!     waiting, and they do not. So injection uses what is idle, and leaves shares as they are.
//! 22. A queue that injection emptied is expected back like one whose slot ended while it waited
//!     for its own requests; and an issuer's write-back has no precedence over the rest of its VM.
//! 23. Only queues of one group wake each other; see `wakers`.
//! 24. Merges take effect at once for all issuers, without chains; see `merging`.
//! 25. Places at the device are what is limited for writes, and only while others wait; see `slots`.
//! 26. The first arrival at a queue is no sample of its think time, nor is one after a silence that
//!     makes it a start. Where the disk rotates, one that was waited for is: else the think time of a
//!     queue that is always waited for would be made of its pauses alone.
//! 27. A wait longer than `slice_idle` for a queue that was never measured lets one request in.
//! 28. Unless the device is flash that queues, nothing but requests of raised queues is injected
//!     while a raised queue is waited for that thinks for up to 15 ms.
//! 29. A raise is a loan: a group that got too far ahead of its share by raises is lifted for
//!     short starts alone, and gives back what it got; see `loan`. A raised queue below it pays for
//!     time.
//! 30. A slot lasts many timeouts only for a queue that is raised alone: raised queues take turns.
//! 31. An overdue request that is to go next goes next: whatever arrives nearer waits. A slot that
//!     lasts many timeouts looks for one in each of them. Else one program of a guest that reads in
//!     order keeps the others of its queue waiting for as long as it reads.
//! 33. A queue that turns busy and is raised alone keeps the device for a while whatever its budget,
//!     and one that is urged from outside for its whole slot; what it is ahead of the queues beside
//!     it does not delay it as it comes back. Else it waits for a slot of others after each pause:
//!     its first small budget brings it ahead.
//! 34. Who wakes others has nothing more to do then, and is given up when they come without it.
//! 35. When raised queues alone have been served for a second, others are relieved: a request of
//!     each in turn, all together for at most an eighth of the time. Who is raised pays for no
//!     time, and who never pauses would keep the device.
//! 36. While somebody outside says who is urgent in a group, nobody else there is taken for a
//!     player: he knows, and who was kept waiting looks like one.
//! 37. A start goes on through all queues of its group in which its program may read (`turns.rs`).
//! 38. Who never pauses is soon no program that starts; what it had while it counted as one it owes.
//! 39. A player that is raised alone has its slot whatever its budget, and who takes the device from
//!     another one of its group begins now.
//! 40. Who starts pays nothing now for what it reads out of turn beside another queue of its group
//!     that starts, and what a queue had before it turned idle is not held against a start in it.
//! 41. Who goes on in order beside something that starts in its group, or has paused there, was held
//!     up, and does not play.
//! 42. What is raised goes before everybody whose turn virtual time has passed.
//! 43. A group stays lifted for a moment when what starts in it pauses, see `linger`: with a
//!     scheduler in the guest, the program's next request waits there for those beside it here.
//! 44. Whose issuer comes from another queue has the past of that one: what others did in it before
//!     says nothing of him.
//! 45. The raised queues of a group go before the others of it, and one in which something starts is
//!     served while another one is waited for: they may be one program's.
//!
//! Deliberately absent, with room left: raising of write-back; devices with several actuators.
//!
//! Source: P. Valente and F. Checconi, "High Throughput Disk Scheduling with Fair Bandwidth
//! Distribution", 2010; P. Valente and A. Avanzini, "Evolution of the BFQ Storage-I/O Scheduler",
//! 2015; Linux documentation, "BFQ (Budget Fair Queueing)".

mod beside;
mod budget;
mod burst;
mod check;
mod clock;
mod contention;
#[cfg(test)]
mod histories;
mod hwtag;
mod idling;
mod inject;
mod iostat;
mod lifecycle;
mod linger;
mod loan;
mod merging;
mod pull;
mod queue;
mod raise;
mod rate;
mod relief;
mod rules;
mod select;
mod slots;
mod softrt;
mod stats;
#[cfg(test)]
mod tests;
mod tunables;
mod tune;
mod turns;
mod wakers;

use alloc::vec::Vec;

use budget::{ExpireReason, Limits};
use burst::InBurst;
use clock::Clock;
use contention::Contention;
use hwtag::HwTag;
use inject::{InjectLimit, Injection};
use iostat::Account;
use merging::{Merging, Sharing};
use queue::{Group, Queue, weight_of};
use raise::Raise;
use rate::PeakRate;
use relief::Relief;
use rules::Rules;
use softrt::Batches;
use stats::{IoBound, SeekHistory, ThinkTime};
pub use tunables::{BfqTunables, BfqTunablesError, Queueing};
use wakers::Ties;

use crate::choose::BackSeek;
use crate::merge::{MergeLimits, MergeRules};
use crate::table::{SortList, Table};
use crate::wf2q::{ROOT, Wf2q};
use crate::{
    Beside, Class, GroupId, GroupReport, GroupStats, Insertion, Lead, Nanos, Next, Priority,
    QueueId, Request, Scheduler, Tag, Urgency, Weight,
};

/// Longest time that the idle class waits while others of its group are served.
const IDLE_GUARANTEE: Nanos = Nanos::from_millis(200);

/// The index that names no queue.
const NOBODY: u32 = u32::MAX;

/// The slot of the queue in service.
#[derive(Clone, Copy, Debug, Default)]
struct SlotTimes {
    /// When the queue got the device.
    taken: Nanos,
    /// When the slot began to count, see decision 12.
    began: Nanos,
    /// Whether the queue was raised then, and not because somebody outside said so.
    began_raised: bool,
    /// Whether no request of the queue has completed in it yet.
    is_new: bool,
    /// When the slot times out.
    ends: Nanos,
    /// When the last request of another queue completed since, or when the slot began.
    shared_until: Nanos,
    idle_began: Nanos,
    /// Until when the device is kept although the queue is empty; none unless it is being kept
    /// with nothing of the queue in flight.
    idle_until: Option<Nanos>,
    /// When the wait begins to be a waste, and whether it has; see `wasteful_from`.
    wasteful_from: Option<Nanos>,
    is_wasteful: bool,
    /// Since when the queue in service has had something to do.
    resumed: Nanos,
    /// For how long injected requests delayed it.
    others: Nanos,
    /// How long the head was on its way, if the slot's clock has waited for it.
    arrival: Nanos,
    /// Sector behind the last request of the queue in service; far from everything before it.
    position: u64,
}

impl SlotTimes {
    /// Ends a wait for the queue in service; returns whether there was one.
    fn end_wait(&mut self) -> bool {
        self.wasteful_from = None;
        self.is_wasteful = false;
        self.idle_until.take().is_some()
    }

    fn is_idle(&self) -> bool {
        self.idle_until.is_some()
    }

    /// Returns when the device is looked after again while the queue in service is empty.
    fn wakes(&self) -> Nanos {
        self.wasteful_from.or(self.idle_until).unwrap_or(self.ends)
    }
}

/// The scheduler; see the module.
#[derive(Clone, Debug)]
pub struct Bfq {
    /// In force, see [`BfqTunables::in_force`].
    tunables: BfqTunables,
    rules: Rules,
    clock: Clock,
    /// When the scheduler came into being: what was before, nobody knows.
    began: Nanos,
    rotational: bool,
    /// Whether the device queues by itself, as told or as detected.
    queueing: bool,
    hw_tag: HwTag,
    /// As configured; what is in force follows from the device's speed as well.
    merge: MergeLimits,
    merge_rules: MergeRules,
    back_seek: BackSeek,
    table: Table,
    engine: Wf2q,
    queues: Vec<Queue>,
    merging: Merging,
    free_queues: Vec<u32>,
    groups: Vec<Group>,
    free_groups: Vec<u32>,
    /// The books of each group.
    accounts: Vec<Account>,
    /// The queue that each leaf of the engine stands for.
    owners: Vec<u32>,
    /// The queue in service.
    holder: Option<u32>,
    slot: SlotTimes,
    /// Busy queues of each class.
    busy: [u32; 3],
    /// Busy queues that are raised.
    wr_busy: u32,
    /// Pending queues of each level that are not raised, and for each level that has some a bit.
    levels: [u32; 8],
    levels_used: u8,
    /// Queues with requests, waiting or at the device.
    pending: u32,
    /// Groups with pending queues of their own.
    pending_groups: u32,
    limits: Limits,
    rate: PeakRate,
    contention: Contention,
    /// Whether somebody sees to it that little waits at the device.
    bounded: bool,
    injection: Injection,
    relief: Relief,
    /// When a group is next let go that lingers.
    lingers: Option<Nanos>,
    /// Whose request completed last, if it still exists, and when.
    last_completed: u32,
    last_completion: Nanos,
    /// Sector behind the last request dispatched.
    last_position: u64,
    /// Sectors of all requests at the device.
    device_sectors: u64,
    /// Whether the device is known to be full for the queue in service, whatever comes to others.
    /// Whatever changes the queue or what is at the device forgets it.
    is_full: bool,
    /// Writes at the device that somebody waits for, and write-back.
    writes_at_device: [u32; 2],
    /// Most requests at the device; zero if unknown.
    depth: u32,
}

impl Bfq {
    /// Returns a scheduler for a device without queues and requests, with the root group alone.
    ///
    /// `rotational` says whether reaching a sector means moving something. The tunables are valid
    /// (see [`BfqTunables::validate`]).
    #[must_use]
    pub fn new(now: Nanos, tunables: BfqTunables, merge: MergeLimits, rotational: bool) -> Self {
        let tunables = tunables.in_force();
        let rules = Rules::new(tunables.kernel_compat);
        Self {
            tunables,
            rules,
            clock: Clock::new(now),
            began: now,
            rotational,
            queueing: tunables.queueing != Queueing::No,
            hw_tag: HwTag::NEW,
            merge,
            merge_rules: MergeRules { limits: merge, front: true },
            back_seek: tunables.back_seek(),
            table: Table::default(),
            engine: Wf2q::new(IDLE_GUARANTEE, rules.engine),
            queues: Vec::new(),
            merging: Merging::default(),
            free_queues: Vec::new(),
            groups: Vec::from([Group::new(now, ROOT, ROOT, 0)]),
            free_groups: Vec::new(),
            accounts: Vec::from([Account::default()]),
            owners: Vec::new(),
            holder: None,
            slot: SlotTimes::default(),
            busy: [0; 3],
            wr_busy: 0,
            levels: [0; 8],
            levels_used: 0,
            pending: 0,
            pending_groups: 0,
            limits: Limits::new(tunables.max_budget_sectors),
            rate: PeakRate::new(now, rotational, rules.rate_counts_length),
            contention: Contention::default(),
            bounded: false,
            injection: Injection::default(),
            relief: Relief::NEW,
            lingers: None,
            last_completed: NOBODY,
            last_completion: now,
            last_position: 0,
            device_sectors: 0,
            is_full: false,
            writes_at_device: [0; 2],
            depth: 0,
        }
    }

    /// Says how many requests the device takes at once, so that writes leave places free.
    #[must_use]
    pub fn with_depth(mut self, depth: u32) -> Self {
        self.set_depth(depth);
        self
    }

    /// Changes that number.
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth;
    }

    /// Says whether somebody sees to it that little waits at the device; see `idling_needed`.
    pub fn set_bounded(&mut self, bounded: bool) {
        self.bounded = bounded;
    }

    /// Returns the tunables in force.
    #[must_use]
    pub fn tunables(&self) -> &BfqTunables {
        &self.tunables
    }

    /// Returns the instant, in own time, at which [`dispatch`](Scheduler::dispatch) must be asked
    /// again even if nothing else happens.
    #[inline]
    fn deadline(&self) -> Option<Nanos> {
        let queue = &self.queues[self.holder? as usize];
        if self.table.waiting() == 0 || !queue.is_empty() {
            return None;
        }
        // With nothing waited for, the queue has requests in flight, and may keep the device until
        // its slot ends.
        let times_out = self.rules.stuck_times_out && !self.tunables.strict_guarantees;
        let is_waiting = self.slot.idle_until.is_some();
        (is_waiting || times_out).then(|| self.slot.wakes())
    }

    /// Returns whether reaching a sector means moving something.
    pub(crate) const fn is_rotational(&self) -> bool {
        self.rotational
    }

    fn busy_total(&self) -> u32 {
        self.busy.iter().sum()
    }

    fn group(&self, id: GroupId) -> &Group {
        let group = &self.groups[id.0 as usize];
        assert!(group.used, "the group exists");
        group
    }

    fn new_queue(&mut self, now: Nanos, group: u32, priority: Priority, sync: bool) -> Queue {
        let class = priority.class;
        let level = if class == Class::Idle { 7 } else { priority.level.min(7) };
        let weight = Weight::new(weight_of(level)).expect("10 to 80");
        Queue {
            node: self.engine.add_leaf(self.groups[group as usize].node, class, weight),
            group,
            list: SortList::default(),
            next: None,
            in_flight: 0,
            class,
            level,
            sync,
            used: true,
            gone: false,
            busy: false,
            fresh: true,
            paused: false,
            cut_short: false,
            has_come: false,
            fifo_check_at: Nanos::ZERO,
            next_is_due: false,
            short_ttime: sync && class != Class::Idle,
            pending: false,
            weighed: false,
            max_budget: self.limits.fresh(),
            spent: 0,
            idle_since: None,
            think: ThinkTime::default(),
            seek: SeekHistory::default(),
            played: None,
            bound: IoBound::new(now),
            raise: Raise::default(),
            batches: Batches::default(),
            waits_since: now,
            starves_since: now,
            came: now,
            in_burst: InBurst::No,
            inject: InjectLimit::new(now),
            debt: 0,
            ties: Ties::default(),
            sharing: Sharing::new(now, self.merging.next_serial()),
        }
    }

    fn add_internal_queue(
        &mut self,
        now: Nanos,
        group: u32,
        priority: Priority,
        sync: bool,
    ) -> u32 {
        let queue = self.new_queue(now, group, priority, sync);
        let node = queue.node as usize;
        let id = if let Some(id) = self.free_queues.pop() {
            self.queues[id as usize] = queue;
            id
        } else {
            self.queues.push(queue);
            u32::try_from(self.queues.len() - 1).expect("fewer than 2^32 queues")
        };
        if self.owners.len() <= node {
            self.owners.resize(node + 1, u32::MAX);
        }
        self.owners[node] = id;
        id
    }
}

impl Scheduler for Bfq {
    fn add_group(&mut self, now: Nanos, parent: GroupId, weight: Weight) -> GroupId {
        let node = self.engine.add_group(self.group(parent).node, weight);
        let now = self.inside(now);
        let group = Group::new(now, node, parent.0, u64::from(weight.value()));
        let id = if let Some(id) = self.free_groups.pop() {
            self.groups[id as usize] = group;
            id
        } else {
            self.groups.push(group);
            u32::try_from(self.groups.len() - 1).expect("fewer than 2^32 groups")
        };
        self.open_account(id);
        GroupId(id)
    }

    fn remove_group(&mut self, _now: Nanos, group: GroupId) {
        assert!(group != GroupId::ROOT, "the root stays");
        self.engine.remove(self.group(group).node);
        self.close_account(group.0);
        self.groups[group.0 as usize].used = false;
        self.free_groups.push(group.0);
    }

    fn set_weight(&mut self, _now: Nanos, group: GroupId, weight: Weight) {
        assert!(group != GroupId::ROOT, "the root competes with nobody");
        self.engine.set_weight(self.group(group).node, weight);
        self.reweigh(group.0, u64::from(weight.value()));
    }

    fn add_queue(&mut self, now: Nanos, group: GroupId, priority: Priority, sync: bool) -> QueueId {
        assert!(self.group(group).used, "the group exists");
        let now = self.inside(now);
        let id = self.add_internal_queue(now, group.0, priority, sync);
        QueueId(self.add_issuer(now, id, priority))
    }

    fn remove_queue(&mut self, now: Nanos, queue: QueueId) {
        let now = self.inside(now);
        self.remove_issuer(now, queue.0);
    }

    fn set_urgency(&mut self, now: Nanos, queue: QueueId, urgency: Urgency) {
        let now = self.inside(now);
        self.is_full = false;
        self.urge_issuer(now, queue.0, urgency);
    }

    fn set_spoken_for(&mut self, now: Nanos, group: GroupId, is_spoken_for: bool) {
        let now = self.inside(now);
        self.is_full = false;
        self.speak_for(now, group.0, is_spoken_for);
    }

    fn deny_start(&mut self, now: Nanos, queue: QueueId, came_from: &[QueueId]) {
        let now = self.inside(now);
        let id = self.merging.routes[queue.0 as usize];
        let queue = &mut self.queues[id as usize];
        if queue.next.is_some() || queue.in_flight > 0 {
            return;
        }
        // The device may be kept for it.
        if !queue.busy {
            queue.idle_since = Some(now);
        }
        self.take_past(id, came_from);
        self.go_on_starting(now, id, came_from);
    }

    #[inline]
    fn beside(&self, now: Nanos, tag: Tag) -> Beside {
        self.what_is_beside(self.clock.inside(now), self.table.get(tag).queue.0)
    }

    #[inline]
    fn urgency(&self, tag: Tag) -> Urgency {
        let id = self.table.get(tag).queue.0;
        if self.is_privileged(id) {
            self.queues[id as usize].raise.kind.into()
        } else {
            Urgency::None
        }
    }

    #[inline]
    fn is_device_full(&mut self, now: Nanos) -> bool {
        self.is_full && self.inside(now) < self.slot.ends
    }

    #[inline]
    fn likely_next(&self) -> Option<Tag> {
        self.queues[self.holder? as usize].next
    }

    #[inline]
    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        let now = self.inside(now);
        self.arrive(now, request)
    }

    #[inline]
    fn dispatch(&mut self, now: Nanos) -> Next {
        let now = self.inside(now);
        let next = self.choose_next(now);
        self.outward(next)
    }

    fn pull(&mut self, now: Nanos, tag: Tag) -> Tag {
        self.send_out_of_turn(now, tag)
    }

    #[inline]
    fn complete(&mut self, now: Nanos, tag: Tag) {
        let now = self.inside(now);
        self.finish(now, tag);
    }

    #[inline]
    fn next_deadline(&self) -> Option<Nanos> {
        self.deadline().map(|at| self.clock.outside(at))
    }

    #[inline]
    fn next_part(&self, tag: Tag) -> Option<Tag> {
        self.table.next_part(tag)
    }

    #[inline]
    fn first_part(&self, tag: Tag) -> Tag {
        self.table.first_part(tag)
    }

    #[inline]
    fn queued(&self) -> u32 {
        self.table.waiting()
    }

    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    fn group_report(&self, group: GroupId) -> GroupReport {
        let Group { node, raised, .. } = *self.group(group);
        let below = |queue: &&Queue| queue.used && self.is_within(queue.group, group);
        GroupReport {
            service_sectors: self.engine.total(node),
            queued: self.queues.iter().filter(below).map(|queue| queue.list.len()).sum(),
            raised: raised > 0,
        }
    }

    fn group_stats(&self, group: GroupId) -> Option<GroupStats> {
        assert!(self.group(group).used, "the group exists");
        Some(self.stats_of(group))
    }

    fn lead(&self, now: Nanos, group: GroupId) -> Option<Lead> {
        assert!(self.group(group).used, "the group exists");
        self.rules.raise_goes_up.then(|| self.lead_of(self.clock.inside(now), group.0))
    }

    fn check_invariants(&self) {
        self.check();
    }
}
