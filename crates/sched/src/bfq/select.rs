//! Who holds the device, for how long, and what happens when the slot ends.

use super::budget::{Pace, Slot, next_budget, pace, time_charge};
use super::queue::Queue;
use super::rate::Sample;
use super::relief::Served;
use super::stats::is_seek;
use super::{Bfq, ExpireReason};
use crate::wf2q::After;
use crate::{Class, Nanos, Next, Tag};

/// Least that the device may hold, in sectors (512 KiB), however slow it seems.
const DEVICE_SECTORS_MIN: u64 = 1024;

/// Requests may always be merged up to this, in sectors (128 KiB): what guests read ahead by.
const MERGED_SECTORS_MIN: u32 = 256;

/// A slot that lasted no longer than this, once the head had arrived, had one request.
const BRIEF: Nanos = Nanos::from_millis(1);

/// Marks in the record of a request at the device: it found the device empty; it was injected.
pub(super) const ALONE: u64 = 1;
pub(super) const INJECTED: u64 = 2;
pub(super) const MARK_BITS: u32 = 2;

/// What to do with the queue in service.
enum Verdict {
    Serve(Tag),
    /// Serve another queue meanwhile.
    Inject(u32, Tag),
    Wait(Next),
    Expire(ExpireReason),
}

impl Bfq {
    /// Ends a wait whose window has passed.
    #[inline]
    pub(super) fn end_overdue_wait(&mut self, now: Nanos) {
        if let Some(until) = self.slot.idle_until
            && now >= until
        {
            let timed_out = until >= self.slot.ends;
            let reason =
                if timed_out { ExpireReason::BudgetTimeout } else { ExpireReason::TooIdle };
            // It ended then, however late we hear of it.
            self.expire(if self.rules.waits_end_when_due { until } else { now }, reason);
        }
    }

    #[inline]
    pub(super) fn choose_next(&mut self, now: Nanos) -> Next {
        if self.is_full && now < self.slot.ends { Next::Empty } else { self.look_for_next(now) }
    }

    fn look_for_next(&mut self, now: Nanos) -> Next {
        self.end_overdue_wait(now);
        self.slot.is_wasteful |= self.slot.wasteful_from.take_if(|at| now >= *at).is_some();
        if self.busy_total() == 0 || (self.tunables.strict_guarantees && self.table.in_flight() > 0)
        {
            return Next::Empty;
        }
        loop {
            let Some(id) = self.holder else {
                if !self.begin_slot(now) {
                    return Next::Empty;
                }
                continue;
            };
            match self.examine(now, id) {
                Verdict::Serve(tag) => {
                    self.send(now, id, tag);
                    return Next::Request(tag);
                }
                Verdict::Inject(other, tag) => return self.inject(now, other, tag),
                Verdict::Wait(next) => return next,
                Verdict::Expire(reason) => self.expire(now, reason),
            }
        }
    }

    /// Adapts budgets and merging to the device's estimated speed.
    pub(super) fn retune(&mut self) {
        let budget = self.rate.budget(self.tunables.timeout_sync);
        self.limits.retune(budget);
        // A fifth of a slot: on a slow disk a request must not be so long that it is a slot by
        // itself; on a fast one this never binds.
        let longest = u32::try_from(budget / 5).unwrap_or(u32::MAX).max(MERGED_SECTORS_MIN);
        if self.rules.device_holds_little {
            self.merge_rules.limits.max_sectors = self.merge.max_sectors.min(longest);
        }
    }

    fn begin_slot(&mut self, now: Nanos) -> bool {
        self.end_lingering(now);
        let Some(node) = self.engine.select(now) else { return false };
        let id = self.owners[node as usize];
        self.holder = Some(id);
        let queue = &mut self.queues[id as usize];
        queue.fifo_check_at = Nanos::ZERO;
        let (raise, group) = (queue.raise, &self.groups[queue.group as usize]);
        let (served, is_urged) = match (raise.is_on(), group.lingers.is_some()) {
            (true, _) => (Served::Raised, raise.is_urged()),
            (false, true) => (Served::Lingering, group.lingers_urged),
            (false, false) => (Served::Other, false),
        };
        self.relief.slot_begins(now, served);
        self.limits.slot_begins();
        self.slot.taken = now;
        self.slot.began_raised = served != Served::Other && !is_urged;
        self.slot.shared_until = now;
        self.slot.position = u64::MAX;
        self.slot.end_wait();
        // While the device works for others, nobody can tell when the head arrives.
        let can_tell = self.rotational && self.table.in_flight() == 0;
        self.slot.is_new = can_tell && self.rules.clock_waits_for_head;
        self.slot.arrival = Nanos::ZERO;
        self.start_clock(now, id);
        self.excuse_wait(now, id);
        true
    }

    /// Lets the slot of a queue begin now.
    fn start_clock(&mut self, now: Nanos, id: u32) {
        let lasts = self.tunables.timeout_sync.0.saturating_mul(self.slot_factor(now, id));
        self.slot.began = now;
        self.slot.ends = now + Nanos(lasts);
        self.slot.resumed = now;
        self.slot.others = Nanos::ZERO;
    }

    /// Takes note that a request of the queue in service has completed. With the first one the head
    /// has arrived in the queue's area, and the slot begins anew.
    pub(super) fn slot_moves(&mut self, now: Nanos, id: u32) {
        if self.slot.is_new {
            self.slot.is_new = false;
            self.slot.arrival = now.since(self.slot.began);
            self.start_clock(now, id);
        }
    }

    fn examine(&mut self, now: Nanos, id: u32) -> Verdict {
        let timed_out = self.slot_is_over(now, id);
        if let Some((other, tag)) = self.choose_relief(now, id) {
            return Verdict::Inject(other, tag);
        }
        let queue = &self.queues[id as usize];
        if let Some(tag) = queue.next {
            if timed_out {
                return Verdict::Expire(ExpireReason::BudgetTimeout);
            }
            let needed = self.engine.service(queue.node) + self.charge(id, tag);
            return if needed > self.engine.budget(queue.node) && !self.keeps_device(now, id) {
                Verdict::Expire(ExpireReason::BudgetExhausted)
            } else if self.device_is_full(tag) {
                // What write-back costs depends on others, too.
                self.is_full = queue.sync;
                Verdict::Wait(Next::Empty)
            } else if self.lacks_place(tag) {
                Verdict::Wait(Next::Empty)
            } else {
                Verdict::Serve(tag)
            };
        }
        if self.slot.idle_until.is_some() || (queue.in_flight > 0 && self.better_to_idle(id)) {
            if self.table.waiting() == 0 {
                return Verdict::Wait(Next::Empty);
            }
            let is_left = timed_out && self.rules.stuck_times_out;
            if is_left && self.slot.idle_until.is_none() {
                return Verdict::Expire(ExpireReason::BudgetTimeout);
            }
            return match self.choose_injection(now, id) {
                Some((other, tag)) => Verdict::Inject(other, tag),
                None if self.slot.idle_until.is_none() && !self.rules.stuck_times_out => {
                    Verdict::Wait(Next::Empty)
                }
                None => Verdict::Wait(Next::NotBefore(self.slot.wakes())),
            };
        }
        Verdict::Expire(ExpireReason::NoMoreRequests)
    }

    /// Returns whether the device has enough to do without this request.
    ///
    /// What is at the device can no longer be scheduled, and where it queues in the kernel, large
    /// requests of one file were seen to starve those of another for seconds. So it holds at most
    /// what it moves in a thirty-second part of the timeout, about 4 ms.
    pub(super) fn device_is_full(&self, tag: Tag) -> bool {
        let would_hold = self.device_sectors + u64::from(self.table.get(tag).nr_sectors);
        self.rules.device_holds_little
            && self.device_sectors > 0
            && would_hold > DEVICE_SECTORS_MIN
            && would_hold > self.rate.budget(self.tunables.timeout_sync) / 32
    }

    /// Sends a request of the queue in service to the device.
    fn send(&mut self, now: Nanos, id: u32, tag: Tag) {
        let (cost, nr_sectors) = (self.charge(id, tag), self.table.get(tag).nr_sectors);
        if self.keeps_device(now, id) {
            let node = self.queues[id as usize].node;
            self.engine.extend_budget(node, self.engine.service(node) + cost);
        }
        self.engine.serve(self.queues[id as usize].node, cost, u64::from(nr_sectors));
        self.injection.sent(tag);
        self.start(now, id, tag, cost);
        self.slot.position = self.last_position;
        self.review_raise_in_service(now, id);
        self.foresee_full(now, id);
        let is_idle_class = self.queues[id as usize].class == Class::Idle;
        if is_idle_class && self.busy_total() > 1 {
            self.expire(now, ExpireReason::BudgetExhausted);
        }
    }

    /// Finds out whether the device is full now for the queue in service, so that nobody needs to
    /// examine it again before something changes.
    #[inline]
    fn foresee_full(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        if let Some(next) = queue.next
            && queue.sync
            && self.device_is_full(next)
        {
            let needed = self.engine.service(queue.node) + self.charge(id, next);
            self.is_full = needed <= self.engine.budget(queue.node) || self.keeps_device(now, id);
        }
    }

    /// Takes a request, for which its queue was charged `cost`, from its queue to the device.
    // Inside `send`, which is on the way of every request, a call would cost a tenth of it.
    #[inline(always)]
    pub(super) fn start(&mut self, now: Nanos, id: u32, tag: Tag, cost: u64) {
        self.is_full = false;
        let record = self.table.get(tag);
        let (pos, end, nr_sectors) = (record.pos, record.end(), record.nr_sectors);
        let (flavour, waited) = (record.flavour, now.since(record.fifo_time));
        let seeky = is_seek(self.last_position, pos, nr_sectors, self.rotational);
        let device_busy = self.table.in_flight() > 0;
        if self.rate.dispatched(now, Sample { nr_sectors, seeky, device_busy }) {
            self.retune();
        }
        self.last_position = end;
        self.device_sectors += u64::from(nr_sectors);
        self.count_place(flavour, true);
        let queue = &mut self.queues[id as usize];
        if queue.raise.is_on() {
            queue.raise.service += cost;
        }
        queue.batches.service += u64::from(nr_sectors);
        queue.in_flight += 1;
        let overdue =
            if now < queue.fifo_check_at { None } else { self.find_overdue(now, id, tag) };
        let is_due = overdue.is_some() && self.rules.overdue_stay_next;
        let queue = &mut self.queues[id as usize];
        queue.next_is_due = is_due;
        queue.next = overdue.or_else(|| queue.list.next_after(&self.table, tag, self.back_seek));
        queue.list.start(&mut self.table, tag);
        self.accounts[queue.group as usize].cell(flavour).wait_time += waited;
        // When it came is known to the books; the record now carries when the request was sent,
        // and below that its marks.
        let alone = if device_busy { 0 } else { ALONE };
        self.table.record_mut(tag.0).fifo_time = Nanos(now.0 << MARK_BITS | alone);
        self.injection.at_device(self.table.in_flight());
        if self.tunables.merge_queues {
            self.queues[id as usize].sharing.served(now);
            self.reposition(id);
        }
    }

    /// Returns the oldest request of a queue besides this one if it is overdue; looks again in the
    /// next slot, or after a timeout.
    fn find_overdue(&mut self, now: Nanos, id: u32, tag: Tag) -> Option<Tag> {
        let again = self.rules.overdue_stay_next.then(|| now + self.tunables.timeout_sync);
        let queue = &mut self.queues[id as usize];
        queue.fifo_check_at = again.unwrap_or(Nanos(u64::MAX));
        queue.list.oldest().filter(|&old| old != tag && self.is_overdue(now, old))
    }

    /// Returns which request of a queue goes next if this one has come or grown.
    #[inline]
    pub(super) fn renew_next(&self, id: u32, tag: Tag) -> Option<Tag> {
        let queue = &self.queues[id as usize];
        if queue.next_is_due {
            return queue.next;
        }
        self.table.choose(queue.next, Some(tag), self.last_position, self.back_seek)
    }

    /// Returns whether a waiting request is older than it should become.
    fn is_overdue(&self, now: Nanos, tag: Tag) -> bool {
        let record = self.table.get(tag);
        let expire = if record.flavour.sync() {
            self.tunables.fifo_expire_sync
        } else {
            self.tunables.fifo_expire_async
        };
        now >= record.fifo_time + expire
    }

    /// Takes the device from the queue in service, charges it, sizes its next budget and queues it
    /// anew or lets it go.
    pub(super) fn expire(&mut self, now: Nanos, reason: ExpireReason) {
        let id = self.holder.take().expect("somebody holds the device");
        self.is_full = false;
        // Time spent waiting for a queue is no time in which it was slow.
        let end = if self.slot.end_wait() { self.slot.idle_began } else { now };
        let span = self.exclusive_time(id, end);
        // What is left at the device is paid for from here on.
        self.slot.resumed = now;
        self.injection.forget();
        self.charge_time(id, reason, span);
        self.reckon_slot(now, id, span);
        let queue = &mut self.queues[id as usize];
        if self.tunables.merge_queues {
            queue.sharing.parts |= queue.sharing.shared && queue.seek.is_seeky();
        }
        let service = self.engine.service(queue.node);
        let slot = Slot {
            sync: queue.sync,
            raised: queue.raise.is_on(),
            in_flight: queue.in_flight > 0,
            service,
            budget: queue.max_budget,
        };
        let mut budget = self.engine.budget(queue.node);
        if let Some(target) = next_budget(reason, slot, self.limits) {
            queue.max_budget = target;
            budget = target;
        }
        if let Some(tag) = queue.next {
            budget = budget.max(self.charge(id, tag));
        }
        // Preempted while it was waited for, it keeps its place in the competition.
        let is_kept = reason == ExpireReason::Preempted && self.idling_needed(id);
        let stays = is_kept || !self.queues[id as usize].is_empty();
        self.go_on_after_slot(now, id, stays);
        let queue = &mut self.queues[id as usize];
        let Queue { node, group, .. } = *queue;
        if stays {
            queue.paused = false;
            queue.has_come &= reason == ExpireReason::Preempted;
            queue.waits_since = now;
            if service > 0 {
                queue.starves_since = now;
            }
            self.go_on_in_pause(now, id);
            self.engine.expire(node, After::Waits(budget));
            return;
        }
        let may_return = self.is_queueing_flash() || !self.rules.preempts_where_paths_part;
        let queue = &mut self.queues[id as usize];
        let has_ended =
            matches!(reason, ExpireReason::BudgetTimeout | ExpireReason::BudgetExhausted);
        // With requests in flight it left while it waited for them, whatever ended the wait.
        queue.paused = !has_ended || (self.rules.spent_continues && queue.in_flight > 0);
        // Who was not waited for has no claim to take the device back, unless nobody is.
        let was_wanted = reason != ExpireReason::NoMoreRequests;
        queue.cut_short = !has_ended && (was_wanted || may_return);
        queue.spent = service;
        if queue.in_flight == 0 {
            queue.idle_since = Some(now);
        }
        let is_expected = queue.paused && !queue.gone;
        let memory = if is_expected { self.memory() } else { 0 };
        self.linger(now, id);
        self.leave_busy(id);
        if self.groups[group as usize].contenders > 0 {
            self.go_on_in_pause(now, id);
        }
        self.engine.expire(node, After::Leaves(memory));
        self.reap(id);
    }

    /// Returns for how long up to `end` the queue in service had the device to itself. Where
    /// requests of several queues overlap at the device, time spent with others is not its own;
    /// elsewhere, time in which others delayed it is not.
    fn exclusive_time(&self, id: u32, end: Nanos) -> Nanos {
        let own = self.queues[id as usize].in_flight;
        if !self.is_queueing_flash() {
            if self.slot.is_new {
                Nanos::ZERO
            } else {
                let span = end.since(self.slot.began) - self.slot.others;
                // A slot of one request is nothing but the head's way.
                if span < BRIEF { span + self.slot.arrival } else { span }
            }
        } else if self.table.in_flight() > own {
            Nanos::ZERO
        } else {
            end.since(self.slot.shared_until)
        }
    }

    /// Charges the queue in service for its time if it was slow.
    pub(super) fn charge_time(&mut self, id: u32, reason: ExpireReason, span: Nanos) {
        let queue = &self.queues[id as usize];
        if !queue.sync || self.is_privileged(id) {
            return;
        }
        let (node, seeky) = (queue.node, queue.seek.is_seeky());
        let (service, budget) = (self.engine.service(node), self.engine.budget(node));
        let device = self.device();
        let Pace { charged, slow } = pace(span, seeky, device, service);
        let left = budget.saturating_sub(service);
        if slow || (reason == ExpireReason::BudgetTimeout && left >= budget / 3) {
            let total = time_charge(charged, device).max(service);
            self.engine.extend_budget(node, total);
            self.engine.serve(node, total - service, 0);
        }
    }
}
