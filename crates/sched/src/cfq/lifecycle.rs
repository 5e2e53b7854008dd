//! A request arrives or completes; a queue takes the device from another, is waited for, or ends.

use super::{Cfq, IDLE, QUEUEING_DEPTH, QUEUEING_SAMPLES, REAL_TIME, SYNC_NOIDLE};
use crate::merge::{End, Merge};
use crate::{Insertion, Nanos, Request, Tag};

/// What is near, in sectors.
const NEAR: u64 = 8192;

impl Cfq {
    pub(super) fn arrive(&mut self, now: Nanos, request: &Request) -> Insertion {
        self.end_overdue_idling(now);
        let id = request.queue.0;
        let fifo_time = now + self.expire_of(request.sync);
        let queue = self.queues.get_mut(id);
        if let Some(merge) = queue.list.add(&mut self.table, request, fifo_time, self.rules) {
            if merge.absorbed.is_some() {
                self.roster.note_absorbed(request.queue);
            }
            self.renew_next_after_merge(id, merge);
            return Insertion::Merged(merge.into);
        }
        self.roster.note_waiting(request.queue);
        let new = Some(request.tag);
        queue.next = self.table.choose(queue.next, new, self.last_position, self.back_seek);
        if queue.place.is_none() {
            self.turn_busy(now, id);
        }
        self.observe(now, request);
        if let Some(slice) = self.slice.as_mut().filter(|slice| slice.holder == id) {
            // All that came with this request is here already: no wait for more to merge.
            slice.idle_until = None;
        } else if self.should_preempt(now, id, request) {
            self.preempt(now, id);
        }
        Insertion::Queued
    }

    fn renew_next_after_merge(&mut self, id: u32, merge: Merge) {
        let queue = self.queues.get_mut(id);
        let into = Some(merge.into);
        if merge.absorbed.is_some() && queue.next == merge.absorbed {
            queue.next = into;
        } else if merge.end == End::Front || merge.absorbed.is_some() {
            queue.next = self.table.choose(queue.next, into, self.last_position, self.back_seek);
        }
    }

    /// Learns think times and seeks from an arrival.
    fn observe(&mut self, now: Nanos, request: &Request) {
        let (slice_idle, group_idle) = (self.tunables.slice_idle, self.tunables.group_idle);
        let queue = self.queues.get_mut(request.queue.0);
        let group = self.groups.get_mut(queue.group);
        let (class, kind) = queue.place.expect("a request has just arrived");
        if queue.sync {
            queue.think.arrived(now, slice_idle);
            group.trees[class][kind].think.arrived(now, slice_idle);
        }
        group.think.arrived(now, group_idle);
        queue.note_seek(request.pos, request.nr_sectors, self.rotational);
        queue.renew_idle_window(slice_idle);
    }

    /// Returns whether the newcomer `id` takes the device from its holder.
    fn should_preempt(&self, now: Nanos, id: u32, request: &Request) -> bool {
        let Some(slice) = &self.slice else { return false };
        let (new, old) = (self.queues.get(id), self.queues.get(slice.holder));
        if new.class == IDLE {
            return false;
        }
        if old.class == IDLE {
            return true;
        }
        if old.class == REAL_TIME && new.class != REAL_TIME {
            return false;
        }
        if request.sync && !old.sync {
            return true;
        }
        if new.group != old.group {
            return false;
        }
        if slice.is_used(now) {
            return true;
        }
        let is_scattered = self.workload.kind == SYNC_NOIDLE && new.kind() == SYNC_NOIDLE;
        let has_two = || {
            let place =
                new.place.map(|(class, kind)| self.groups.get(new.group).trees[class][kind].count);
            place == Some(2)
        };
        if is_scattered && old.is_empty() && has_two() {
            return true;
        }
        if new.class == REAL_TIME && old.class != REAL_TIME {
            return true;
        }
        if old.is_empty() && !self.should_idle(slice.holder) {
            return true;
        }
        slice.idle_until.is_some() && self.last_position.abs_diff(request.pos) <= NEAR
    }

    fn preempt(&mut self, now: Nanos, id: u32) {
        let holder = self.slice.expect("a queue holds the device").holder;
        let old_kind = self.queues.get(holder).kind();
        self.expire(now, true);
        let new = self.queues.get(id);
        if new.kind() != old_kind {
            // Else the group would go on with the kind of work that was interrupted.
            self.groups.get_mut(new.group).saved = None;
        }
        self.place(now, id, true);
    }

    pub(super) fn finish(&mut self, now: Nanos, tag: Tag) {
        self.end_overdue_idling(now);
        self.detect_queueing();
        let record = self.table.complete(tag);
        let (name, fifo_time, sync) = (record.queue, record.fifo_time, record.flavour.sync());
        let id = name.0;
        let arrived = fifo_time - self.expire_of(sync);
        let queue = self.queues.get_mut(id);
        queue.in_flight -= 1;
        self.in_flight[usize::from(queue.sync)] -= 1;
        let place = queue.place.unwrap_or_else(|| (queue.class, queue.tree_kind()));
        let group = self.groups.get_mut(queue.group);
        group.in_flight -= 1;
        group.think.last_end = Some(now);
        if queue.sync {
            queue.think.last_end = Some(now);
            group.trees[place.0][place.1].think.last_end = Some(now);
            if now >= arrived + self.tunables.fifo_expire_sync {
                self.last_delayed_sync = now;
            }
        }
        if self.is_holder(id) {
            self.holder_completed(now, id);
        }
        self.roster.note_completed(name);
        self.end_if_gone(now, id);
    }

    /// Starts the clock of the slice, ends it, or keeps the device for the next request.
    fn holder_completed(&mut self, now: Nanos, id: u32) {
        if self.slice.is_some_and(|slice| slice.began.is_none()) {
            let allocated = self.scaled_slice(id);
            let slice = self.slice.as_mut().expect("this queue holds the device");
            slice.began = Some(now);
            slice.allocated = allocated;
            slice.ends = now + allocated;
        }
        if self.should_wait_busy(now, id) {
            let (slice_idle, group_idle) = (self.tunables.slice_idle, self.tunables.group_idle);
            let extension = if slice_idle > Nanos::ZERO { slice_idle } else { group_idle };
            let slice = self.slice.as_mut().expect("this queue holds the device");
            slice.ends = now + extension;
            slice.wait_busy = true;
        }
        let is_used = self.slice.is_some_and(|slice| slice.is_used(now));
        let queue = self.queues.get(id);
        if is_used || queue.class == IDLE {
            self.expire(now, true);
        } else if queue.sync && queue.is_empty() {
            self.keep_for(now, id);
        }
    }

    /// Returns whether the slice is prolonged so that the group of its holder stays in competition.
    fn should_wait_busy(&self, now: Nanos, id: u32) -> bool {
        let Some(slice) = &self.slice else { return false };
        let queue = self.queues.get(id);
        let group = self.groups.get(queue.group);
        let is_alone = queue.is_empty() && group.busy == 1;
        if !is_alone || group.think.is_longer_than(self.tunables.group_idle) {
            return false;
        }
        slice.is_used(now) || queue.think.is_longer_than(slice.ends.since(now))
    }

    /// Begins to keep the device for an empty queue, if it is likely to come back in time.
    fn keep_for(&mut self, now: Nanos, id: u32) {
        let Some(slice) = &self.slice else { return };
        let left = slice.ends.since(now);
        let queue = self.queues.get(id);
        let is_hopeless = queue.in_flight > 0 || queue.is_gone || queue.think.is_longer_than(left);
        if self.is_queueing_flash() || is_hopeless {
            return;
        }
        let span = if self.should_idle(id) {
            self.tunables.slice_idle
        } else if self.groups.get(queue.group).busy == 1 {
            self.tunables.group_idle
        } else {
            return;
        };
        if span > Nanos::ZERO {
            let slice = self.slice.as_mut().expect("this queue holds the device");
            slice.idle_until = Some(now + span);
        }
    }

    /// Ends a wait whose time has passed, as of when it was due.
    pub(super) fn end_overdue_idling(&mut self, now: Nanos) {
        let Some(slice) = &self.slice else { return };
        let (holder, due) = (slice.holder, slice.idle_until.filter(|&until| until <= now));
        if let Some(due) = due {
            self.queues.get_mut(holder).is_deep = false;
            self.expire(due, false);
        }
    }

    pub(super) fn end_if_gone(&mut self, now: Nanos, id: u32) {
        let queue = self.queues.get(id);
        let is_done = queue.is_gone && queue.is_empty() && queue.in_flight == 0;
        if is_done && self.is_holder(id) {
            self.expire(now, false);
        }
    }

    /// Learns from how many requests are at the device whether it queues by itself.
    fn detect_queueing(&mut self) {
        let detected = &mut self.queueing;
        let (at_device, waiting) = (self.table.in_flight(), self.table.waiting());
        detected.depth = detected.depth.max(at_device);
        let is_known = detected.samples > QUEUEING_SAMPLES && detected.is_on;
        if is_known || (waiting <= QUEUEING_DEPTH && at_device <= QUEUEING_DEPTH) {
            return;
        }
        let holds_back = self.slice.as_ref().is_some_and(|slice| {
            let queue = self.queues.get(slice.holder);
            queue.idle_window && queue.in_flight + queue.list.len() < QUEUEING_DEPTH
        });
        if holds_back && at_device < QUEUEING_DEPTH {
            return;
        }
        detected.samples = detected.samples.saturating_add(1);
        if detected.samples > QUEUEING_SAMPLES {
            detected.is_on = detected.depth >= QUEUEING_DEPTH;
        }
    }

    /// Returns whether write-back of a group is charged all of its slice.
    pub(super) fn is_only_async(&self, group: u32) -> bool {
        let group = self.groups.get(group);
        group.busy == group.busy_async() + group.busy_of(IDLE)
    }
}
