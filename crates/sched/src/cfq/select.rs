//! Who holds the device, and whether it may send another request.

use super::tunables::fraction;
use super::{ASYNC, BEST_EFFORT, Cfq, IDLE, KINDS, REAL_TIME, REQUEST_CHARGE, Slice, Workload};
use crate::{Nanos, Next, Tag};

/// The least time for one kind of work.
const WORKLOAD_MIN: Nanos = Nanos::from_millis(2);
/// The same for the idle class.
const WORKLOAD_IDLE: Nanos = Nanos::from_millis(1);

impl Cfq {
    pub(super) fn choose_next(&mut self, now: Nanos) -> Next {
        self.end_overdue_idling(now);
        self.deadline = None;
        if self.table.waiting() == 0 {
            return Next::Empty;
        }
        if let Some(id) = self.select(now)
            && self.may_dispatch(now, id)
        {
            return Next::Request(self.start(now, id));
        }
        let until = |slice: &Slice| slice.idle_until.or_else(|| slice.began.map(|_| slice.ends));
        self.deadline = self.slice.as_ref().and_then(until).filter(|&then| then > now);
        self.deadline.map_or(Next::Empty, Next::NotBefore)
    }

    /// Returns the queue that holds the device and has requests; nothing while the device is kept
    /// for one that has none.
    fn select(&mut self, now: Nanos) -> Option<u32> {
        let Some(slice) = self.slice else { return self.select_new(now) };
        let (id, is_used) = (slice.holder, slice.is_used(now));
        let queue = self.queues.get(id);
        let (is_empty, in_flight) = (queue.is_empty(), queue.in_flight);
        if !is_empty && slice.wait_busy {
            return self.replace(now);
        }
        if !is_empty && !is_used {
            return Some(id);
        }
        if is_used {
            let is_alone = self.groups.get(queue.group).busy == 1;
            if is_alone && is_empty && in_flight > 0 && self.should_idle(id) {
                return None;
            }
        } else {
            if slice.idle_until.is_some() {
                return None;
            }
            // Deep and scattered, and the device is faster than the queue: no reason to wait.
            let is_young = slice.began.is_none_or(|began| slice.ends.since(now) > now.since(began));
            let queue = self.queues.get_mut(id);
            if queue.is_seeky() && queue.idle_window && is_young {
                queue.is_deep = false;
                queue.idle_window = false;
            }
            if in_flight > 0 && self.should_idle(id) {
                return None;
            }
        }
        if self.should_keep_for_group(id) { None } else { self.replace(now) }
    }

    /// Returns whether a group whose only queue cannot go on is waited for, as it has requests at
    /// the device.
    fn should_keep_for_group(&self, id: u32) -> bool {
        let idle = self.tunables.group_idle;
        let group = self.groups.get(self.queues.get(id).group);
        idle > Nanos::ZERO
            && group.busy == 1
            && group.in_flight > 0
            && !group.think.is_longer_than(idle)
    }

    fn replace(&mut self, now: Nanos) -> Option<u32> {
        self.expire(now, false);
        self.select_new(now)
    }

    fn select_new(&mut self, now: Nanos) -> Option<u32> {
        let group = self.groups.first()?;
        self.choose_workload(now, group);
        let Workload { class, kind, .. } = self.workload;
        let id = self.groups.get(group).trees[class][kind].tree.first(&self.queues)?;
        self.slice = Some(Slice {
            holder: id,
            began: None,
            dispatch_began: now,
            ends: now,
            allocated: Nanos::ZERO,
            dispatched: 0,
            fifo_checked: false,
            wait_busy: false,
            idle_until: None,
        });
        Some(id)
    }

    /// Chooses class and kind of work within a group, and for how long.
    fn choose_workload(&mut self, now: Nanos, id: u32) {
        let group = self.groups.get(id);
        if let Some(saved) = group.saved {
            let (class, kind, expires) = (saved.class, saved.kind, now + saved.left);
            self.workload = Workload { class, kind, expires };
        } else {
            self.workload.expires = Nanos::ZERO;
        }
        let better = [REAL_TIME, BEST_EFFORT].into_iter().find(|&class| group.busy_of(class) > 0);
        let Some(class) = better else {
            self.workload = Workload { class: IDLE, kind: 0, expires: now + WORKLOAD_IDLE };
            return;
        };
        let workload = self.workload;
        let continues = workload.class == class && group.trees[class][workload.kind].count > 0;
        if continues && now <= workload.expires {
            return;
        }
        let first_key = |kind: usize| {
            let first = group.trees[class][kind].tree.first(&self.queues)?;
            Some((self.queues.get(first).key, kind))
        };
        let first = (0..KINDS).filter_map(first_key).min();
        let (_, kind) = first.expect("a queue of this class is busy");
        let expires = now + self.workload_slice(id, class, kind);
        self.workload = Workload { class, kind, expires };
    }

    /// Returns how long a group may do one kind of work.
    fn workload_slice(&self, id: u32, class: usize, kind: usize) -> Nanos {
        let tunables = &self.tunables;
        let group = self.groups.get(id);
        let count = u64::from(group.trees[class][kind].count);
        let queues = u64::from(group.latest_average(class).max(group.busy_of(class)));
        let whole = self.groups.part_of(id, tunables.target_latency);
        let mut slice = fraction(whole.0, count, queues);
        if kind == ASYNC {
            let async_busy = u64::from(group.busy_async());
            slice = slice.min(fraction(tunables.target_latency.0, async_busy, self.busy.into()));
            slice = fraction(slice, tunables.slice_async.0, tunables.slice_sync.0);
        } else {
            slice = slice.max(2 * tunables.slice_idle.0);
        }
        Nanos(slice).max(WORKLOAD_MIN)
    }

    /// Returns whether it is worth to keep the device for a busy queue.
    pub(super) fn should_idle(&self, id: u32) -> bool {
        let idle = self.tunables.slice_idle;
        let queue = self.queues.get(id);
        if idle == Nanos::ZERO || queue.class == IDLE {
            return false;
        }
        if queue.idle_window && !self.is_queueing_flash() {
            return true;
        }
        let (class, kind) = queue.place.expect("who holds the device is busy");
        let tree = &self.groups.get(queue.group).trees[class][kind];
        queue.sync && tree.count == 1 && !tree.think.is_longer_than(idle)
    }

    /// Returns whether the holder may have another request at the device. If not, something is
    /// there, whose completion asks again.
    fn may_dispatch(&self, now: Nanos, id: u32) -> bool {
        let tunables = &self.tunables;
        let queue = self.queues.get(id);
        let [asyncs, syncs] = self.in_flight;
        if (asyncs > 0 && self.should_idle(id)) || (syncs > 0 && !queue.sync) {
            return false;
        }
        let mut most = if queue.class == IDLE { 1 } else { (tunables.quantum / 2).max(1) };
        if queue.in_flight >= most {
            let is_only_sync = queue.sync && self.busy_sync == 1;
            if queue.class == IDLE || (self.busy > 1 && self.is_used_soon(now) && !is_only_sync) {
                return false;
            }
            most = if self.busy == 1 || is_only_sync { u32::MAX } else { tunables.quantum };
        }
        if !queue.sync && tunables.low_latency {
            let depth = now.since(self.last_delayed_sync).0 / tunables.slice_sync.0.max(1);
            let depth = if depth == 0 && queue.in_flight == 0 { 1 } else { depth };
            most = most.min(u32::try_from(depth).unwrap_or(u32::MAX));
        }
        queue.in_flight < most
    }

    /// Returns whether the slice will be over when all that the holder sent is done.
    fn is_used_soon(&self, now: Nanos) -> bool {
        self.slice.is_none_or(|slice| {
            let in_flight = u64::from(self.queues.get(slice.holder).in_flight);
            let pending = Nanos(self.tunables.slice_idle.0.saturating_mul(in_flight));
            slice.began.is_none() || now + pending > slice.ends
        })
    }

    /// Takes out the next request of the holder.
    fn start(&mut self, now: Nanos, id: u32) -> Tag {
        let slice = self.slice.as_mut().expect("a queue holds the device");
        let queue = self.queues.get_mut(id);
        let oldest = queue.list.oldest().filter(|_| !slice.fifo_checked);
        let overdue = oldest.filter(|&tag| self.table.get(tag).fifo_time <= now);
        slice.fifo_checked = true;
        slice.dispatched += 1;
        let sent = slice.dispatched;
        let tag = overdue.or(queue.next).expect("the holder has requests");
        let record = self.table.get(tag);
        let (name, nr_sectors, end) = (record.queue, record.nr_sectors, record.end());
        queue.next = queue.list.next_after(&self.table, tag, self.back_seek);
        queue.list.start(&mut self.table, tag);
        queue.in_flight += 1;
        self.last_position = end;
        self.in_flight[usize::from(queue.sync)] += 1;
        self.roster.note_started(name, nr_sectors);
        let (class, level, sync, group) = (queue.class, queue.level, queue.sync, queue.group);
        self.groups.get_mut(group).in_flight += 1;
        let has_had_its_turn = (!sync && sent >= self.tunables.max_async(level)) || class == IDLE;
        if self.busy > 1 && has_had_its_turn {
            self.expire(now, false);
        }
        tag
    }

    /// Takes out a waiting request out of turn. The group of a queue that does not hold the device
    /// is charged for one request; the slice of one that does goes on.
    pub(super) fn start_out_of_turn(&mut self, tag: Tag) -> Tag {
        let whole = self.table.whole_of(tag);
        let record = self.table.get(whole);
        let (name, nr_sectors, end) = (record.queue, record.nr_sectors, record.end());
        let id = name.0;
        let queue = self.queues.get_mut(id);
        if queue.next == Some(whole) {
            queue.next = queue.list.next_after(&self.table, whole, self.back_seek);
        }
        queue.list.start(&mut self.table, whole);
        queue.in_flight += 1;
        let (is_empty, sync, group) = (queue.is_empty(), queue.sync, queue.group);
        self.last_position = end;
        self.in_flight[usize::from(sync)] += 1;
        self.roster.note_started(name, nr_sectors);
        self.groups.get_mut(group).in_flight += 1;
        if let Some(slice) = self.slice.as_mut().filter(|slice| slice.holder == id) {
            slice.dispatched += 1;
            return whole;
        }
        self.groups.charge(group, REQUEST_CHARGE);
        if is_empty {
            self.lift_out(id);
            self.groups.queue_went(group);
            self.busy -= 1;
            self.busy_sync -= u32::from(sync);
        }
        whole
    }
}
