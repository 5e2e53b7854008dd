//! Injection: who is waited for need not have an idle device.
//!
//! While the queue in service is empty and the device is kept for it, requests of others may use
//! the device, as long as those of the queue in service hardly take longer for it. How many others
//! it bears is measured: its *baseline* is how long one request of it takes when nobody else is
//! there; each time that others were, the time is compared with one and a half baselines, and the
//! limit goes up or down by one.
//!
//! What is injected is paid for by its own queue, and moves that queue's place in the competition;
//! on a device that works on one thing after the other it also pays for the time by which it
//! delayed the queue in service, and that one does not.
//!
//! Source: P. Valente, "Boosting throughput by I/O injection", patches to Linux 5.2, 2019; Linux,
//! block/bfq-iosched.c.

use super::Bfq;
use super::budget::{Device, time_charge};
use super::select::INJECTED;
use crate::wf2q::ROOT;
use crate::{Class, Nanos, Next, Tag};

/// By what Linux charges time, whatever the timeout.
const LINUX_TIMEOUT: Nanos = Nanos::from_millis(125);
/// A limit that was not lowered for so long is measured anew.
const RENEWAL: Nanos = Nanos::from_millis(1000);
/// After the limit was lowered nothing is measured for so long.
const CALM: Nanos = Nanos::from_millis(10);
/// A queue whose habits change is measured anew at most so often, unless it became slow.
const HABIT: Nanos = Nanos::from_millis(100);
/// Window over which the most requests at the device are counted; the last two count.
const PEAK_WINDOW: Nanos = Nanos::from_millis(1000);
/// From this many sectors on a request is injected only into an empty device that does not rotate.
const LONG_ON_FLASH: u32 = 64;

/// How many requests may be at the device when others are injected, for one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectLimit {
    pub(super) most: u32,
    /// How long one request takes with nobody else there; none before it was measured.
    baseline: Option<Nanos>,
    /// When the limit was last lowered or forgotten.
    lowered: Nanos,
}

/// One request of the queue in service, from its arrival to its completion.
#[derive(Clone, Copy, Debug)]
struct Trial {
    took: Nanos,
    /// Whether requests of others were injected meanwhile.
    injected: bool,
    /// Requests at the device as it completes, itself included.
    at_device: u32,
    /// Most requests at the device lately.
    peak: u32,
}

impl InjectLimit {
    pub(super) fn new(now: Nanos) -> Self {
        Self { most: 0, baseline: None, lowered: now }
    }

    fn reset(&mut self, now: Nanos, short_ttime: bool) {
        *self = Self { most: u32::from(!short_ttime), baseline: None, lowered: now };
    }

    fn update(&mut self, now: Nanos, trial: Trial) {
        let Trial { took, injected, at_device, peak } = trial;
        let alone = at_device == 1;
        let Some(baseline) = self.baseline else {
            if alone {
                self.most = self.most.max(1);
                self.baseline = Some(took);
            }
            return;
        };
        if injected {
            let is_slowed = took >= baseline + Nanos(baseline.0 / 2);
            if is_slowed && self.most > 0 {
                self.most -= 1;
                self.lowered = now;
            } else if !is_slowed && self.most <= peak {
                self.most += 1;
            }
        }
        if took < baseline || (!injected && alone) {
            self.baseline = Some(took);
        }
    }
}

/// The measurement in progress, and what it is compared with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Injection {
    /// When the request that is measured arrived.
    began: Nanos,
    /// The next request of the queue in service is measured.
    armed: bool,
    measured: Option<Tag>,
    /// Whether others were injected since.
    injected: bool,
    /// Most requests at the device in this window and in the one before.
    peak: u32,
    former_peak: u32,
    window_ends: Nanos,
}

impl Injection {
    /// Forgets the measurement in progress.
    pub(super) fn forget(&mut self) {
        (self.armed, self.injected, self.measured) = (false, false, None);
    }

    /// Takes note that a request of another queue goes to the device.
    pub(super) fn interfered(&mut self) {
        self.injected = true;
    }

    /// Takes note of how many requests are at the device.
    #[inline]
    pub(super) fn at_device(&mut self, count: u32) {
        self.peak = self.peak.max(count);
    }

    /// Takes note that a request of the queue in service goes to the device.
    #[inline]
    pub(super) fn sent(&mut self, tag: Tag) {
        if self.armed {
            self.armed = false;
            self.measured = Some(tag);
        }
    }

    fn recent_peak(&mut self, now: Nanos, at_device: u32) -> u32 {
        let peak = self.peak.max(self.former_peak);
        if now >= self.window_ends {
            (self.former_peak, self.peak) = (self.peak, at_device);
            self.window_ends = now + PEAK_WINDOW;
        }
        peak
    }
}

impl Bfq {
    /// Takes note of a request that came to a synchronous queue with nothing else to do.
    pub(super) fn came_alone(&mut self, now: Nanos, id: u32) {
        self.look_for_waker(now, id);
        let queue = &mut self.queues[id as usize];
        if now >= queue.inject.lowered + RENEWAL {
            queue.inject.reset(now, queue.short_ttime);
            self.injection.measured = None;
        }
        if self.holder != Some(id) || now < queue.inject.lowered + CALM {
            return;
        }
        let is_empty = self.table.in_flight() == 0;
        if is_empty || (queue.inject.baseline.is_some() && self.injection.injected) {
            self.injection.began = now;
            self.injection.armed = true;
            self.injection.injected &= !is_empty;
        }
    }

    /// Takes note that a queue's think time became long or short.
    pub(super) fn habit_changed(&mut self, now: Nanos, id: u32) {
        let queue = &mut self.queues[id as usize];
        let limit = &mut queue.inject;
        if limit.baseline.is_none() && (now >= limit.lowered + HABIT || !queue.short_ttime) {
            limit.reset(now, queue.short_ttime);
            self.injection.measured = None;
        }
    }

    /// Learns from a completion if its request was the one that is measured. `at_device` includes
    /// it.
    #[inline]
    pub(super) fn measure(&mut self, now: Nanos, id: u32, tag: Tag, at_device: u32) {
        if self.injection.measured != Some(tag) {
            return;
        }
        let peak = self.injection.recent_peak(now, at_device);
        let (took, injected) = (now.since(self.injection.began), self.injection.injected);
        let trial = Trial { took, injected, at_device, peak };
        self.queues[id as usize].inject.update(now, trial);
        self.injection.measured = None;
        self.injection.injected = false;
    }

    fn may_inject(&self) -> bool {
        self.tunables.injection && !self.tunables.strict_guarantees
    }

    /// Returns a request of another queue that goes to the device while the queue in service, which
    /// is empty, is waited for.
    #[inline(never)]
    pub(super) fn choose_injection(&mut self, now: Nanos, id: u32) -> Option<(u32, Tag)> {
        if !self.may_inject() {
            return None;
        }
        if let Some(friend) = self.friend(id) {
            return Some(friend);
        }
        let queue = &self.queues[id as usize];
        let is_urgent = queue.raise.is_on() && self.comes_soon(queue);
        let suffers = is_urgent && self.wr_busy <= 1;
        let in_flight = self.table.in_flight();
        let most = queue.inject.most.max(u32::from(self.slot.is_wasteful));
        let is_within = in_flight < most;
        // What starts in several queues of a group may be one program, which does not delay itself.
        let (group, lasts) = (queue.group, self.wr_duration());
        let goes_on = queue.starts(now, lasts) && in_flight == 0 && self.rules.starts_go_on;
        if !(is_within || goes_on) || suffers || self.idling_boosts(queue) {
            return None;
        }
        let is_free = self.rotational || in_flight == 0;
        let mut node = queue.node;
        while node != ROOT {
            if let Some(leaf) = self.engine.runner_up(node) {
                let other = self.owners[leaf as usize];
                let rival = &self.queues[other as usize];
                let is_one = goes_on && rival.group == group && rival.starts(now, lasts);
                let is_wanted = is_one || (is_within && (!is_urgent || rival.raise.is_on()));
                let tag = if is_wanted { self.may_be_injected(other) } else { None };
                if let Some(tag) = tag.filter(|&tag| is_free || !self.is_long(tag)) {
                    self.injection.injected = true;
                    return Some((other, tag));
                }
            }
            node = self.engine.parent(node);
        }
        None
    }

    /// Returns the next request of a queue if it may be served out of turn.
    pub(super) fn may_be_injected(&self, other: u32) -> Option<Tag> {
        let queue = &self.queues[other as usize];
        let tag = queue.next.filter(|_| queue.class != Class::Idle)?;
        let fits = self.charge(other, tag) <= self.engine.budget(queue.node)
            && self.engine.has_credit(queue.node)
            && !self.has_its_places(other)
            && !self.device_is_full(tag);
        fits.then_some(tag)
    }

    fn is_long(&self, tag: Tag) -> bool {
        self.table.get(tag).nr_sectors >= LONG_ON_FLASH
    }

    /// Sends a request of a queue that is not in service to the device.
    #[inline(never)]
    pub(super) fn inject(&mut self, now: Nanos, id: u32, tag: Tag) -> Next {
        let (cost, nr_sectors) = (self.charge(id, tag), self.table.get(tag).nr_sectors);
        let node = self.queues[id as usize].node;
        self.go_on_beside(id);
        self.engine.serve_out_of_turn(node, cost, u64::from(nr_sectors));
        self.start(now, id, tag, cost);
        self.table.record_mut(tag.0).fifo_time.0 |= INJECTED;
        self.review_raise_out_of_turn(now, id);
        self.wait_anew(now, id);
        let queue = &mut self.queues[id as usize];
        if let Some(next) = queue.next {
            let needed = self.charge(id, next);
            if needed > self.engine.budget(node) {
                self.engine.set_budget(node, needed);
            }
            return Next::Request(tag);
        }
        // It left while it waits for its own requests.
        let may_return = self.is_queueing_flash() || !self.rules.preempts_where_paths_part;
        let queue = &mut self.queues[id as usize];
        queue.paused = true;
        queue.cut_short = may_return;
        queue.spent = 0;
        let memory = if queue.gone { 0 } else { self.memory() };
        self.linger(now, id);
        self.leave_busy(id);
        self.engine.leave(node, memory);
        Next::Request(tag)
    }

    /// Lets the queue of a request that was not in service, on which the device worked since
    /// `since`, pay for the time in which it kept others waiting; they do not pay for it. It was
    /// injected, or was left when its queue's slot ended.
    ///
    /// Time in which nobody else had anything to do would have been lost anyway, and some is free.
    #[inline(never)]
    pub(super) fn pay_for_delay(
        &mut self,
        now: Nanos,
        id: u32,
        since: Nanos,
        nr_sectors: u32,
        is_free: bool,
    ) {
        let is_idle = match self.holder {
            Some(holder) => holder == id || self.slot.is_idle(),
            None => self.table.waiting() == 0,
        };
        if self.is_queueing_flash() || is_idle || !self.rules.delay_is_paid {
            return;
        }
        let delay = now.since(since.max(self.slot.resumed));
        self.slot.others += delay;
        let queue = &self.queues[id as usize];
        if !queue.sync || queue.raise.is_on() || is_free {
            return;
        }
        let cost = time_charge(delay, self.device());
        let nr_sectors = u64::from(nr_sectors);
        if nr_sectors < cost / 2 {
            self.owe(id, cost - nr_sectors);
        }
    }

    fn owe(&mut self, id: u32, sectors: u64) {
        let queue = &mut self.queues[id as usize];
        if queue.busy {
            self.engine.serve_out_of_turn(queue.node, sectors, 0);
        } else {
            queue.debt = (queue.debt + sectors).min(self.limits.max());
        }
    }

    /// Lets a queue that has just entered the competition pay what it owes.
    pub(super) fn pay_debt(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        let debt = core::mem::take(&mut queue.debt);
        if debt > 0 {
            self.engine.serve_out_of_turn(queue.node, debt, 0);
        }
    }

    /// Returns the device's side of time charges.
    pub(super) fn device(&self) -> Device {
        Device {
            rotational: self.rotational,
            overlaps: self.is_queueing_flash(),
            rest_is_paid: self.rules.delay_is_paid,
            max_budget: self.limits.max(),
            timeout: if self.rules.charge_follows_timeout {
                self.tunables.timeout_sync
            } else {
                LINUX_TIMEOUT
            },
            slow_follows_length: self.rules.slow_follows_length,
        }
    }

    /// Returns when the wait for the queue in service, which begins now, is a waste unless others
    /// are let in, if that is before it ends: its requests were never measured, so it has no limit.
    pub(super) fn wasteful_from(&self, now: Nanos, id: u32) -> Option<Nanos> {
        let limit = self.queues[id as usize].inject;
        let at = now + self.tunables.slice_idle;
        let is_unmeasured =
            self.rules.long_waits_let_one_in && limit.most == 0 && limit.baseline.is_none();
        (is_unmeasured && self.may_inject() && self.slot.idle_until.is_some_and(|until| at < until))
            .then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::cases;
    use proptest::prelude::*;

    const US: u64 = 1_000;

    fn trial(us: u64, injected: bool) -> Trial {
        Trial { took: Nanos(us * US), injected, at_device: 1, peak: 1 }
    }

    fn measured(us: u64) -> InjectLimit {
        let mut limit = InjectLimit::new(Nanos::ORIGIN);
        limit.update(Nanos::ORIGIN, trial(us, false));
        limit
    }

    #[test]
    fn the_first_request_alone_gives_a_baseline_and_room_for_one() {
        let mut limit = InjectLimit::new(Nanos::ORIGIN);
        assert_eq!(limit.most, 0);
        limit.update(Nanos::ORIGIN, Trial { at_device: 2, ..trial(700, false) });
        assert_eq!((limit.most, limit.baseline), (0, None), "it had company");
        limit.update(Nanos::ORIGIN, trial(1000, false));
        assert_eq!((limit.most, limit.baseline), (1, Some(Nanos(1000 * US))));
    }

    #[test]
    fn the_limit_follows_the_vectors() {
        let mut limit = measured(1000);
        limit.update(Nanos::ORIGIN, trial(1200, true));
        assert_eq!(limit.most, 2);
        let now = Nanos::ORIGIN + Nanos::from_millis(5);
        limit.update(now, trial(1600, true));
        assert_eq!((limit.most, limit.lowered), (1, now));
        assert_eq!(limit.baseline, Some(Nanos(1000 * US)), "others do not prolong it");
        limit.update(now, trial(900, true));
        assert_eq!(limit.baseline, Some(Nanos(900 * US)), "but show when it was too long");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

        /// P24, P25.
        #[test]
        fn the_limit_stays_below_the_peak_and_falls_when_requests_are_slowed(
            trials in prop::collection::vec((1..4000_u64, any::<bool>(), 1..9_u32, 0..9_u32), 1..80)
        ) {
            let mut limit = InjectLimit::new(Nanos::ORIGIN);
            for (took, injected, at_device, more) in trials {
                let (before, took) = (limit, Nanos(took * US));
                let peak = at_device + more;
                limit.update(Nanos::ORIGIN, Trial { took, injected, at_device, peak });
                prop_assert!(limit.most <= before.most.max(peak + 1), "P24");
                let slow = before.baseline.is_some_and(|least| took.0 * 2 >= least.0 * 3);
                if injected && slow && before.most > 0 {
                    prop_assert_eq!(limit.most, before.most - 1, "P25");
                }
                prop_assert!(limit.baseline <= before.baseline || !injected || before.baseline.is_none());
            }
        }
    }
}
