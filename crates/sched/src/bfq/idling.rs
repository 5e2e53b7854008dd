//! When is it worth keeping the device for a queue that is empty right now?

use super::Bfq;
use super::queue::Queue;
use crate::{Class, Nanos};

/// A request counts as answered "at once" within this time.
const IMMEDIATE: Nanos = Nanos::from_millis(2);
/// Longest wait for a program that starts, where the device is kept for it: about what a request of
/// somebody else would take, with the ways there and back. To wait for as long as the alternative
/// costs is at most twice as bad as knowing when it comes.
pub(super) const RAISED_IDLE: Nanos = Nanos::from_millis(30);
/// The same where somebody outside says that it starts: he does not guess.
const URGED_IDLE: Nanos = Nanos::from_millis(60);
/// Longest wait for any raised queue in Linux, and for one that keeps a pace.
const LINUX_RAISED_IDLE: Nanos = Nanos::from_millis(20);
/// Longest mean think time for which a device that queues and does not rotate is kept: a guest
/// that answers a completion with the next request needs a fraction of it.
const FLASH_THINK: Nanos = Nanos::from_millis(1);
/// Shortest wait on such a device.
const FLASH_IDLE: Nanos = Nanos::from_millis(1);

impl Bfq {
    /// Returns whether treating all queues alike would do injustice to this one.
    pub(super) fn is_asymmetric(&self, id: u32) -> bool {
        if self.pending_groups > 1 {
            return true;
        }
        let queue = &self.queues[id as usize];
        let used = self.levels_used;
        let is_lightest = queue.weighed && used.ilog2() == u32::from(queue.level);
        let classes = self.busy.iter().filter(|&&count| count > 0).count();
        (used.count_ones() >= 2 && !is_lightest) || classes >= 2
    }

    /// Returns whether the device reorders on its own and does not rotate: there, waiting for one
    /// queue leaves most of the device unused. Linux waits all the same.
    pub(super) fn is_queueing_flash(&self) -> bool {
        !self.rotational && self.queueing && self.rules.flash_overlaps
    }

    /// Returns whether waiting for this queue gains more throughput than it costs.
    pub(super) fn idling_boosts(&self, queue: &Queue) -> bool {
        let (rotational, queueing) = (self.rotational, self.queueing);
        let sequential = !queue.seek.is_seeky() && queue.bound.is_bound() && queue.short_ttime;
        let boosts = (rotational && !queueing) || ((rotational || !queueing) && sequential);
        boosts && self.wr_busy == 0
    }

    /// Returns whether the queue would lose what it is entitled to if others were served while it
    /// is empty.
    ///
    /// On a device that queues by itself and does not rotate, being entitled to more than others is
    /// not enough: only where requests slow each other down, a queue that is raised, or is behind
    /// its share and comes back soon, is waited for. One that is ahead loses nothing, as it
    /// continues where it left (see `Return::Continued`).
    ///
    /// Where what is at the device is bounded, so that nobody waits long behind it, soon is within
    /// the time of a short read: then the device has nothing to do for half of the queue's time at
    /// most. Without a bound, to keep the device empty is the only way to be served quickly.
    pub(super) fn idling_needed(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        if queue.gone {
            return false;
        }
        let busy = self.busy_total();
        if busy == 1 {
            return true;
        }
        let is_optional = self.is_queueing_flash() && queue.is_empty();
        if is_optional && !self.contention.is_felt() {
            return false;
        }
        let others_matter = self.wr_busy < busy || self.table.in_flight() >= queue.in_flight + 4;
        if queue.raise.is_on() && others_matter {
            return true;
        }
        let comes_soon = || {
            let least = self.contention.least_read().filter(|_| self.bounded);
            let longest = least.map_or(FLASH_THINK, |least| least.min(FLASH_THINK));
            queue.think.mean().is_none_or(|mean| mean <= longest)
        };
        let is_behind = || self.engine.is_behind(queue.node, self.limits.min() / 4);
        self.is_asymmetric(id) && (!is_optional || (comes_soon() && is_behind()))
    }

    /// Returns whether the device is kept for this queue while it is empty.
    pub(super) fn better_to_idle(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        if queue.gone {
            return false;
        }
        if self.tunables.strict_guarantees {
            return true;
        }
        if self.tunables.slice_idle == Nanos::ZERO || !queue.sync || queue.class == Class::Idle {
            return false;
        }
        self.idling_boosts(queue) || self.idling_needed(id)
    }

    /// Begins to wait for the next request of the queue in service.
    pub(super) fn arm_idle(&mut self, now: Nanos, id: u32) {
        self.slot.idle_began = now;
        self.slot.idle_until = Some(now + self.idle_window(now, id));
        self.slot.wasteful_from = self.wasteful_from(now, id);
    }

    /// Returns whether a raised queue is likely to come within the wait for it.
    pub(super) fn comes_soon(&self, queue: &Queue) -> bool {
        let longest = Nanos(RAISED_IDLE.0 / 2);
        let is_quick = || queue.think.mean().is_none_or(|mean| mean <= longest);
        queue.short_ttime
            || (self.rules.raised_are_left_alone && !self.is_queueing_flash() && is_quick())
    }

    pub(super) fn idle_window(&self, now: Nanos, id: u32) -> Nanos {
        let queue = &self.queues[id as usize];
        let slice = self.tunables.slice_idle;
        if self.is_queueing_flash() {
            let mean = queue.think.mean().unwrap_or(IMMEDIATE);
            return slice.min(FLASH_IDLE.max(Nanos(mean.0.saturating_mul(4))));
        }
        if queue.raise.is_on() {
            let starts = queue.raise.starts(now, self.wr_duration()) && self.is_privileged(id);
            let is_kept = self.rules.raised_are_left_alone && starts;
            slice.max(match (is_kept, queue.raise.is_urged()) {
                (true, true) => URGED_IDLE,
                (true, false) => RAISED_IDLE,
                _ => LINUX_RAISED_IDLE,
            })
        } else if queue.seek.is_seeky() && !self.is_asymmetric(id) {
            slice.min(IMMEDIATE)
        } else {
            slice
        }
    }
}
