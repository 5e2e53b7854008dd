//! CFQ: complete fairness of time.
//!
//! Picture a workshop with one lathe. Who has the lathe keeps it for a while (a *slice*), even if
//! he has to fetch the next piece meanwhile: setting it up for somebody else and back again costs
//! more than the pause. How long a slice is follows from his level; how often his group has a turn,
//! from its weight. Some people rush about for single small pieces; those take the lathe together,
//! and only when all of them are through is there a pause for them.
//!
//! Groups are served by the time that they used, divided by their fraction of the device. Within a
//! group a better class goes strictly first; within a class three kinds of work take turns:
//! write-back ([`ASYNC`]), scattered or slow readers ([`SYNC_NOIDLE`]), readers worth waiting for
//! ([`SYNC`]). Each has a tree of queues by the time at which they are to be served.
//!
//! # Decisions
//!
//! Where this differs from CFQ of Linux:
//!
//! 1. Times are in nanoseconds; what was one tick of a clock there is named here.
//! 2. The fraction of a group has 32 bits instead of 12 and is computed when a slot is charged, so
//!    weights count at once, and small fractions keep their ratios.
//! 3. The queues of a group itself weigh 100 together against its child groups.
//! 4. Without idling on a device that queues, a request counts as 1 ms, so that charges of both
//!    kinds compare.
//! 5. The first request of a slot is charged no more than the slice of its queue, so that a clock
//!    that jumps does not lock a group out.
//! 6. A request that ends a wait may go at once; nothing waits for more to merge.
//! 7. The end of a slice is a deadline, so that others do not wait for the next completion.
//! 8. Write-back is not merged into one queue for all of a group; the caller decides that.
//!
//! Deliberately absent: merging of queues that read interleaved (cooperators).
//!
//! Source: J. Axboe, "Linux Block IO: Present and Future", 2004; Linux documentation, "CFQ
//! (Complete Fairness Queueing)".

mod check;
mod group;
mod lifecycle;
mod queue;
mod select;
mod tunables;

use group::{Groups, Saved};
use queue::{Queue, Queues};
pub use tunables::CfqTunables;

use crate::choose::BackSeek;
use crate::merge::{MergeLimits, MergeRules};
use crate::roster::Roster;
use crate::table::Table;
use crate::{
    Class, GroupId, GroupReport, Insertion, Nanos, Next, Priority, QueueId, Request, Scheduler,
    Tag, Weight,
};

/// Classes, best first.
const REAL_TIME: usize = 0;
const BEST_EFFORT: usize = 1;
const IDLE: usize = 2;
/// Kinds of work: write-back.
const ASYNC: usize = 0;
/// Scattered or slow readers, waited for together.
const SYNC_NOIDLE: usize = 1;
/// Readers that are each waited for.
const SYNC: usize = 2;
const KINDS: usize = 3;

/// A queue of the idle class is served so long after the others of its tree.
const IDLE_DELAY: Nanos = Nanos::from_millis(200);
/// A queue that took the device goes so far before the others of its tree.
const FRONT: Nanos = Nanos::from_secs(1);
/// What a request counts as where requests are shared rather than time.
const REQUEST_CHARGE: Nanos = Nanos::from_millis(1);
/// So many requests at the device show that it queues by itself.
const QUEUEING_DEPTH: u32 = 5;
/// So many completions decide whether it does.
const QUEUEING_SAMPLES: u32 = 50;

/// The slice of the queue that holds the device.
#[derive(Clone, Copy, Debug)]
struct Slice {
    holder: u32,
    /// When the first request completed: the clock runs from there.
    began: Option<Nanos>,
    dispatch_began: Nanos,
    /// When it is over; means nothing before it began.
    ends: Nanos,
    allocated: Nanos,
    /// Requests sent.
    dispatched: u32,
    fifo_checked: bool,
    /// It is prolonged so that the group stays in competition, until a request comes.
    wait_busy: bool,
    /// Until when the device is kept although nothing of the queue waits or is at the device.
    idle_until: Option<Nanos>,
}

impl Slice {
    fn is_used(&self, now: Nanos) -> bool {
        self.began.is_some() && now >= self.ends
    }
}

/// What the group in service does.
#[derive(Clone, Copy, Debug)]
struct Workload {
    class: usize,
    kind: usize,
    expires: Nanos,
}

/// Whether the device queues by itself.
#[derive(Clone, Copy, Debug)]
struct Queueing {
    is_on: bool,
    depth: u32,
    samples: u32,
}

/// The elevator `cfq`.
#[derive(Clone, Debug)]
pub(crate) struct Cfq {
    tunables: CfqTunables,
    rotational: bool,
    rules: MergeRules,
    back_seek: BackSeek,
    table: Table,
    groups: Groups,
    queues: Queues,
    slice: Option<Slice>,
    workload: Workload,
    /// Queues with requests, and the one that holds the device.
    busy: u32,
    /// Those of them that somebody waits for.
    busy_sync: u32,
    /// Requests at the device, of write-back and of others.
    in_flight: [u32; 2],
    queueing: Queueing,
    /// When a request that somebody waits for last took long.
    last_delayed_sync: Nanos,
    /// Sector behind the last request dispatched.
    last_position: u64,
    /// When `dispatch` must be asked again.
    deadline: Option<Nanos>,
    roster: Roster,
}

impl Cfq {
    /// Returns an elevator without requests.
    pub(crate) fn new(
        now: Nanos,
        tunables: CfqTunables,
        limits: MergeLimits,
        rotational: bool,
    ) -> Self {
        Self {
            tunables,
            rotational,
            rules: MergeRules { limits, front: true },
            back_seek: BackSeek {
                max_sectors: u64::from(tunables.back_seek_max_kib) * 2,
                penalty: tunables.back_seek_penalty,
            },
            table: Table::default(),
            groups: Groups::new(),
            queues: Queues::default(),
            slice: None,
            workload: Workload { class: BEST_EFFORT, kind: SYNC, expires: Nanos::ZERO },
            busy: 0,
            busy_sync: 0,
            in_flight: [0; 2],
            // A device is taken to queue until it shows otherwise.
            queueing: Queueing { is_on: true, depth: 0, samples: 0 },
            last_delayed_sync: now - Nanos::from_secs(1),
            last_position: 0,
            deadline: None,
            roster: Roster::new(),
        }
    }

    /// Changes the tunables, also for what waits already. The slice under way keeps its length.
    pub(crate) fn set_tunables(&mut self, tunables: CfqTunables) {
        let expire = |tunables: &CfqTunables, sync| match sync {
            true => tunables.fifo_expire_sync,
            false => tunables.fifo_expire_async,
        };
        let before = self.tunables;
        self.table.change_expiry(|flavour| {
            (expire(&before, flavour.sync()), expire(&tunables, flavour.sync()))
        });
        self.back_seek = BackSeek {
            max_sectors: u64::from(tunables.back_seek_max_kib) * 2,
            penalty: tunables.back_seek_penalty,
        };
        self.tunables = tunables;
    }

    /// Returns whether reaching a sector means moving something.
    pub(crate) const fn is_rotational(&self) -> bool {
        self.rotational
    }

    const fn is_queueing_flash(&self) -> bool {
        !self.rotational && self.queueing.is_on
    }

    fn is_holder(&self, id: u32) -> bool {
        self.slice.is_some_and(|slice| slice.holder == id)
    }

    const fn expire_of(&self, sync: bool) -> Nanos {
        if sync { self.tunables.fifo_expire_sync } else { self.tunables.fifo_expire_async }
    }

    /// Returns the slice of a busy queue, shrunk if there are many.
    fn scaled_slice(&mut self, id: u32) -> Nanos {
        let queue = self.queues.get(id);
        let queues = self.groups.get_mut(queue.group).average_busy(queue.class);
        let group_slice = self.groups.part_of(queue.group, self.tunables.target_latency);
        let slice = self.tunables.slice(queue.sync, queue.level);
        self.tunables.scaled(slice, queues, group_slice)
    }

    /// Lets a queue that has its first request compete.
    fn turn_busy(&mut self, now: Nanos, id: u32) {
        self.place(now, id, false);
        let queue = self.queues.get(id);
        self.groups.queue_came(queue.group);
        self.busy += 1;
        self.busy_sync += u32::from(queue.sync);
    }

    /// Puts a queue where it is to be served: by its level and what it has left of its slice, or
    /// before all others.
    fn place(&mut self, now: Nanos, id: u32, at_front: bool) {
        self.lift_out(id);
        let tunables = &self.tunables;
        let queue = self.queues.get_mut(id);
        let group = self.groups.get_mut(queue.group);
        let (class, kind) = (queue.class, queue.tree_kind());
        let others = i64::from(group.busy.saturating_sub(1));
        let tree = &mut group.trees[class][kind];
        let lag = tunables.slice(true, 0).0.cast_signed()
            - tunables.slice(queue.sync, queue.level).0.cast_signed();
        let residue = if at_front { 0 } else { core::mem::take(&mut queue.residue) };
        let key = |index| self.queues.get(index).key;
        let now = i64::try_from(now.0).unwrap_or(i64::MAX);
        let key = if at_front {
            tree.tree.first(&self.queues).map_or(now, key).saturating_sub_unsigned(FRONT.0)
        } else if class == IDLE {
            let last = tree.tree.gap(&self.queues, |_| true).below();
            last.map_or(now, key).saturating_add_unsigned(IDLE_DELAY.0)
        } else {
            now.saturating_add(others.saturating_mul(lag)).saturating_sub(residue)
        };
        let queue = self.queues.get_mut(id);
        queue.key = key;
        queue.place = Some((class, kind));
        tree.tree.insert(&mut self.queues, id);
        tree.count += 1;
    }

    /// Takes a queue out of its tree, if it is in one.
    fn lift_out(&mut self, id: u32) {
        let queue = self.queues.get_mut(id);
        let Some((class, kind)) = queue.place.take() else { return };
        let tree = &mut self.groups.get_mut(queue.group).trees[class][kind];
        tree.count -= 1;
        tree.tree.remove(&mut self.queues, id);
    }

    /// Ends the slice: charges the group, and lets the queue wait for its next turn, if it has
    /// requests. `pushed_out` queues keep what is left of the slice, or owe what they overran.
    fn expire(&mut self, now: Nanos, pushed_out: bool) {
        let Some(slice) = self.slice.take() else { return };
        let id = slice.holder;
        if pushed_out {
            let left = match slice.began {
                None => self.scaled_slice(id).0.cast_signed(),
                Some(_) => slice.ends.0.cast_signed().saturating_sub(now.0.cast_signed()),
            };
            self.queues.get_mut(id).residue = left;
        }
        let group = self.queues.get(id).group;
        self.groups.charge(group, self.charge(now, &slice));
        let Workload { class, kind, expires } = self.workload;
        let left = expires.since(now);
        let saved = (left > Nanos::ZERO).then_some(Saved { left, class, kind });
        self.groups.get_mut(group).saved = saved;
        if !self.queues.get(id).is_empty() {
            self.place(now, id, false);
            return;
        }
        self.lift_out(id);
        self.groups.queue_went(group);
        self.busy -= 1;
        self.busy_sync -= u32::from(self.queues.get(id).sync);
    }

    /// Returns what a slice costs the group.
    fn charge(&self, now: Nanos, slice: &Slice) -> Nanos {
        let queue = self.queues.get(slice.holder);
        if self.tunables.slice_idle == Nanos::ZERO && self.queueing.is_on {
            return Nanos(REQUEST_CHARGE.0 * u64::from(slice.dispatched));
        }
        let used = match slice.began {
            Some(began) if began < now => now.since(began).min(slice.allocated),
            _ => {
                let most = self.tunables.slice(queue.sync, queue.level);
                now.since(slice.dispatch_began).clamp(Nanos(1), most.max(Nanos(1)))
            }
        };
        let is_charged_all = !queue.sync && self.is_only_async(queue.group);
        if is_charged_all { used.max(slice.allocated) } else { used }
    }
}

impl Scheduler for Cfq {
    fn add_group(&mut self, _now: Nanos, parent: GroupId, weight: Weight) -> GroupId {
        let id = self.roster.add_group(parent);
        self.groups.add(id.0, parent.0, weight);
        id
    }

    fn remove_group(&mut self, _now: Nanos, group: GroupId) {
        self.roster.remove_group(group);
    }

    fn set_weight(&mut self, _now: Nanos, group: GroupId, weight: Weight) {
        assert!(group != GroupId::ROOT, "the root competes with nobody");
        self.groups.set_weight(group.0, weight);
    }

    fn add_queue(
        &mut self,
        _now: Nanos,
        group: GroupId,
        priority: Priority,
        sync: bool,
    ) -> QueueId {
        let id = self.roster.add_queue(group, priority);
        let (class, level) = match priority.class {
            Class::RealTime => (REAL_TIME, priority.level.min(7)),
            Class::BestEffort => (BEST_EFFORT, priority.level.min(7)),
            Class::Idle => (IDLE, 7),
        };
        let queue = Queue::new(group.0, class, level, sync);
        if id.0 as usize == self.queues.0.len() {
            self.queues.0.push(queue);
        } else {
            *self.queues.get_mut(id.0) = queue;
        }
        id
    }

    fn remove_queue(&mut self, now: Nanos, queue: QueueId) {
        self.queues.get_mut(queue.0).is_gone = true;
        self.roster.remove_queue(queue);
        self.end_if_gone(now, queue.0);
    }

    #[inline]
    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        self.arrive(now, &request)
    }

    #[inline]
    fn dispatch(&mut self, now: Nanos) -> Next {
        self.choose_next(now)
    }

    fn pull(&mut self, _now: Nanos, tag: Tag) -> Tag {
        self.start_out_of_turn(tag)
    }

    #[inline]
    fn complete(&mut self, now: Nanos, tag: Tag) {
        self.finish(now, tag);
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
        self.check();
    }
}
