//! A request arrives; a queue turns busy, or idle; a request completes.

use super::select::{ALONE, INJECTED, MARK_BITS};
use super::{Bfq, ExpireReason, NOBODY};
use crate::merge::{End, Merge};
use crate::wf2q::Return;
use crate::{Class, GroupId, Insertion, Nanos, QueueId, Request, Tag};

impl Bfq {
    pub(super) fn arrive(&mut self, now: Nanos, mut request: Request) -> Insertion {
        self.end_overdue_wait(now);
        let issuer = request.queue.0;
        let id = if self.tunables.merge_queues || self.tunables.stable_merge {
            self.redirect(now, issuer, request.pos)
        } else {
            self.merging.routes[issuer as usize]
        };
        assert!(id != NOBODY, "nobody inserts into a removed queue");
        request.queue = QueueId(id);
        if self.holder == Some(id) {
            self.is_full = false;
        }
        let request = &request;
        let queue = &mut self.queues[id as usize];
        let was_empty = queue.is_empty();
        let rules = self.merge_rules;
        if let Some(merge) = queue.list.add(&mut self.table, request, now, rules) {
            queue.seek.continued(request.end());
            let flavour = self.table.get(merge.into).flavour;
            self.accounts[queue.group as usize].cell(flavour).merged +=
                1 + u64::from(merge.absorbed.is_some());
            self.renew_next_after_merge(id, merge);
            if self.tunables.merge_queues {
                self.reposition(id);
            }
            return Insertion::Merged(merge.into);
        }
        self.observe(now, request, was_empty);
        self.review_seeks(now, id);
        let before = self.queues[id as usize].next;
        let next = self.renew_next(id, request.tag);
        let queue = &mut self.queues[id as usize];
        queue.next = next;
        if !queue.busy {
            self.turn_busy(now, id);
        } else if queue.next != before {
            self.renew_budget(id);
        }
        if self.tunables.merge_queues {
            self.reposition(id);
        }
        if self.holder == Some(id) && self.slot.end_wait() {
            self.slot.resumed = now;
            if self.slot_is_over(now, request.queue.0) {
                self.expire(now, ExpireReason::BudgetTimeout);
            }
        }
        Insertion::Queued
    }

    fn renew_next_after_merge(&mut self, id: u32, merge: Merge) {
        let before = self.queues[id as usize].next;
        let next = if merge.absorbed.is_some() && before == merge.absorbed {
            Some(merge.into)
        } else if merge.end == End::Front || merge.absorbed.is_some() {
            self.renew_next(id, merge.into)
        } else {
            before
        };
        self.queues[id as usize].next = next;
        if next != before || before == Some(merge.into) {
            self.renew_budget(id);
        }
    }

    /// Learns from an arrival: think time, seeks, how much of the time the queue wants the device.
    fn observe(&mut self, now: Nanos, request: &Request, was_empty: bool) {
        let slice_idle = self.tunables.slice_idle;
        // On flash that queues the wait itself follows from the think time; where that also says
        // whether to wait at all, it must be known of those who are waited for.
        let is_circular = self.is_queueing_flash() && !self.bounded;
        let queue = &mut self.queues[request.queue.0 as usize];
        let is_done = queue.in_flight == 0 && was_empty;
        let is_exact = self.rules.think_time_is_exact;
        if is_done && ((is_exact && !is_circular) || !queue.busy) {
            let cap = slice_idle + slice_idle;
            // Who comes after a long silence is somebody else, who thinks as he thinks.
            let silence = cap.max(self.tunables.wr_min_idle_time);
            let starts = queue.think.last_end().is_some_and(|end| now > end + silence);
            if !(is_exact && starts) {
                queue.think.arrived(now, cap, is_exact);
            }
        }
        if queue.sync && queue.class != Class::Idle && slice_idle > Nanos::ZERO {
            let longest = Nanos(slice_idle.0 / 2);
            let short = queue.think.mean().is_none_or(|mean| mean <= longest);
            if core::mem::replace(&mut queue.short_ttime, short) != short {
                self.habit_changed(now, request.queue.0);
            }
        }
        let queue = &mut self.queues[request.queue.0 as usize];
        queue.seek.arrived(request.pos, request.nr_sectors, self.rotational);
        if queue.sync {
            let since = queue.think.last_end().filter(|_| is_done);
            let fresh = queue.fresh;
            queue.bound.arrived(now, since.map(|since| now.since(since)), fresh);
            if is_done {
                self.came_alone(now, request.queue.0);
            }
        }
    }

    /// Returns what a request costs its queue, in sectors.
    ///
    /// While all have equal rights write-back pays several times, so that reads come through; where
    /// rights differ the shares must be exact.
    #[inline]
    pub(super) fn charge(&self, id: u32, tag: Tag) -> u64 {
        let queue = &self.queues[id as usize];
        let nr_sectors = u64::from(self.table.get(tag).nr_sectors);
        if queue.sync || queue.raise.is_on() || self.is_asymmetric(id) {
            nr_sectors
        } else {
            nr_sectors * u64::from(self.tunables.async_charge_factor)
        }
    }

    /// Makes the budget of a waiting queue large enough for its next request.
    fn renew_budget(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        let (Some(tag), true, false) = (queue.next, queue.busy, self.holder == Some(id)) else {
            return;
        };
        let budget = queue.max_budget.max(self.charge(id, tag));
        if budget != self.engine.budget(queue.node) {
            self.engine.set_budget(queue.node, budget);
        }
    }

    /// Lets a queue that has its first request compete, and perhaps take the device at once.
    fn turn_busy(&mut self, now: Nanos, id: u32) {
        let slice_idle = self.tunables.slice_idle;
        let queue = &mut self.queues[id as usize];
        let tag = queue.next.expect("a request has just arrived");
        let in_time = queue.think.last_end().is_none_or(|end| now <= end + Nanos(3 * slice_idle.0));
        (queue.waits_since, queue.starves_since, queue.came) = (now, now, now);
        if self.tunables.merge_queues {
            queue.sharing.turned_busy();
        }
        let left = self.engine.budget(queue.node).saturating_sub(queue.spent);
        let has_budget = left > 0 || self.rules.spent_continues;
        let continues = core::mem::take(&mut queue.paused) && in_time && has_budget;
        (queue.fresh, queue.has_come) = (false, true);
        let target = queue.max_budget;
        let mut budget =
            if continues && left > 0 { left.min(target) } else { target.max(self.charge(id, tag)) };
        if self.review_raise(now, id) {
            budget = budget.min(self.limits.raised()).max(self.charge(id, tag));
        }
        let how = if continues { Return::Continued(self.memory()) } else { Return::Anew };
        if self.queues[id as usize].raise.is_on() {
            self.renew_loans(now, id);
            self.lift(id);
            self.note_pause(now, id);
            if self.rules.raised_keep_device && self.is_privileged(id) {
                // It need not sit out a slot of those beside it for the lead that it has over them.
                self.engine.lift(self.queues[id as usize].node);
            }
            self.let_take_turns(now, id);
        } else if self.groups[self.queues[id as usize].group as usize].contenders == 0 {
            self.go_on_in_pause(now, id);
        }
        self.enter_busy(id);
        self.engine.activate(now, self.queues[id as usize].node, budget, how);
        self.pay_debt(id);
        self.preempt(now, id, continues);
    }

    /// Returns how many sectors a queue that pauses may fall behind, and gets back.
    ///
    /// Where others are served meanwhile that is all that one of them may receive in a slot;
    /// elsewhere the device was kept for it.
    pub(super) fn memory(&self) -> u64 {
        if self.is_queueing_flash() { self.limits.max() } else { 0 }
    }

    /// Takes the device from its holder if the newcomer `id` would be next and has reason to.
    fn preempt(&mut self, now: Nanos, id: u32, continues: bool) {
        let Some(holder) = self.holder else { return };
        let queue = &self.queues[id as usize];
        let (node, class) = (queue.node, queue.class);
        let returns = continues && queue.cut_short;
        let rival = self.queues[holder as usize].node;
        let is_exact = self.rules.preempts_where_paths_part;
        let outranks = || {
            if is_exact {
                self.engine.outranks(node, rival)
            } else {
                self.engine.outranks_by_parent(node, rival)
            }
        };
        let has_reason = || {
            (returns && self.coeff(id) >= self.coeff(holder))
                || outranks()
                || !self.better_to_idle(holder)
        };
        let is_worse = class == Class::Idle && self.queues[holder as usize].class != Class::Idle;
        let may = || {
            if is_exact {
                // Else their VM would lose the device, and both would wait.
                !is_worse && self.engine.is_next(node, rival) && self.engine.would_stay(node, rival)
            } else {
                self.engine.is_top_contested()
            }
        };
        if has_reason() && may() {
            self.expire(now, ExpireReason::Preempted);
            self.follow(id, holder);
        }
    }

    fn enter_busy(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        queue.busy = true;
        self.busy[queue.class as usize] += 1;
        if queue.raise.is_on() {
            self.count_raised(id, true);
        }
        self.count_contender(id, true);
        self.woke_up(id);
        self.set_pending(id, true);
    }

    pub(super) fn leave_busy(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        queue.busy = false;
        self.busy[queue.class as usize] -= 1;
        let (is_raised, in_flight) = (queue.raise.is_on(), queue.in_flight);
        if is_raised {
            self.count_raised(id, false);
        }
        self.count_contender(id, false);
        if in_flight == 0 {
            self.set_pending(id, false);
        }
    }

    /// Counts a queue in or out of those with requests that wait or are in flight.
    fn set_pending(&mut self, id: u32, is_pending: bool) {
        let queue = &mut self.queues[id as usize];
        if queue.pending != is_pending {
            queue.pending = is_pending;
            let group = &mut self.groups[queue.group as usize];
            if is_pending {
                self.pending_groups += u32::from(group.pending == 0);
                group.pending += 1;
                self.pending += 1;
            } else {
                group.pending -= 1;
                self.pending -= 1;
                self.pending_groups -= u32::from(group.pending == 0);
            }
        }
        self.recount_weight(id);
    }

    /// Counts a queue in or out of the weights that are compared: raised queues are not.
    pub(super) fn recount_weight(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        let is_weighed = queue.pending && !queue.raise.is_on();
        if queue.weighed != is_weighed {
            queue.weighed = is_weighed;
            let count = &mut self.levels[usize::from(queue.level)];
            *count = if is_weighed { *count + 1 } else { *count - 1 };
            let bit = 1_u8 << queue.level;
            self.levels_used =
                if *count > 0 { self.levels_used | bit } else { self.levels_used & !bit };
        }
    }

    #[inline]
    pub(super) fn finish(&mut self, now: Nanos, tag: Tag) {
        self.observe_depth();
        self.is_full = false;
        let record = self.table.complete(tag);
        let id = record.queue.0;
        let (sent, marks) = (Nanos(record.fifo_time.0 >> MARK_BITS), record.fifo_time.0);
        let (nr_sectors, flavour) = (record.nr_sectors, record.flavour);
        // Who came to an empty device may have had company a moment later.
        let alone = marks & ALONE != 0 && self.table.in_flight() == 0;
        let took = now.since(sent);
        self.measure(now, id, tag, self.table.in_flight() + 1);
        self.contention.completed(took, nr_sectors, flavour.is_write(), alone);
        self.device_sectors -= u64::from(nr_sectors);
        let group = self.queues[id as usize].group;
        self.accounts[group as usize].book_service(flavour, nr_sectors, took);
        if self.holder != Some(id) || marks & INJECTED != 0 {
            let is_free = self.relief.completed(now, tag, took);
            self.pay_for_delay(now, id, sent.max(self.last_completion), nr_sectors, is_free);
        }
        self.count_place(flavour, false);
        let queue = &mut self.queues[id as usize];
        self.last_completion = now;
        self.last_completed = id;
        queue.in_flight -= 1;
        queue.think.completed(now);
        let (in_flight, is_empty, is_busy) = (queue.in_flight, queue.is_empty(), queue.busy);
        if in_flight == 0 && !is_busy {
            queue.idle_since = Some(now);
            self.set_pending(id, false);
        }
        if self.rate.completed(now) {
            self.retune();
        }
        if self.holder == Some(id) {
            self.slot_moves(now, id);
            let waits = is_empty && self.better_to_idle(id) && !self.is_beside_pause(now, id);
            if waits {
                if in_flight == 0 {
                    self.arm_idle(now, id);
                }
            } else if is_empty {
                self.expire(now, ExpireReason::NoMoreRequests);
            } else if self.slot_is_over(now, id) {
                self.expire(now, ExpireReason::BudgetTimeout);
            }
        } else {
            self.slot.shared_until = now;
            self.wait_anew(now, id);
        }
        self.reap(id);
    }

    /// Says that nobody inserts into this queue any more; so nobody waits for it either.
    pub(super) fn retire_queue(&mut self, now: Nanos, id: u32) {
        let queue = &mut self.queues[id as usize];
        assert!(queue.used && !queue.gone, "a queue is removed once");
        queue.gone = true;
        if queue.is_empty() && queue.busy {
            if self.holder == Some(id) {
                self.expire(now, ExpireReason::NoMoreRequests);
                return;
            }
            let node = queue.node;
            self.leave_busy(id);
            self.engine.deactivate(node);
        }
        self.reap(id);
    }

    /// Frees the place of a removed queue that has nothing left.
    #[inline]
    pub(super) fn reap(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        if queue.gone && queue.used && !queue.busy && queue.in_flight == 0 {
            self.bury(id);
        }
    }

    #[cold]
    fn bury(&mut self, id: u32) {
        self.queues[id as usize].used = false;
        self.cut_ties(id);
        self.leave_neighbours(id);
        let queue = &self.queues[id as usize];
        self.engine.remove(queue.node);
        self.leave_burst(id);
        self.free_queues.push(id);
    }

    /// Returns whether `group` is `top` or lies below it.
    pub(super) fn is_within(&self, mut group: u32, top: GroupId) -> bool {
        while group != top.0 {
            if group == GroupId::ROOT.0 {
                return false;
            }
            group = self.groups[group as usize].parent;
        }
        true
    }
}
