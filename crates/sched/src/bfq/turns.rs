//! Whose turn it is among those who are raised: how long one keeps the device, and that what starts
//! goes on through all queues in which its program reads.
//!
//! A program that starts is seldom one queue. The host sees where a guest reads, not who: its
//! libraries, its many small files and its first pages are streams of their own. So while the
//! device is kept for one of them, a request of another one lets the wait begin anew; as a slot of
//! one ends, neither it nor their group sits out what it is ahead of those beside it; and who turns
//! from such a queue to another one has there what is left of its start.
//!
//! All of that ends with who never pauses, and is bounded by what a group may owe (`loan.rs`) and
//! by relief (`relief.rs`).

use super::Bfq;
use super::queue::Queue;
use super::raise::WrKind;
use crate::{GroupId, Nanos, QueueId};

/// How many timeouts a queue that is raised alone has the device for as it turns busy, whatever its
/// budget.
const KEPT_TIMEOUTS: u64 = 8;

impl Bfq {
    /// Returns how many times the timeout a slot of this queue lasts: a queue in which something
    /// starts may load it in one go, a soft real-time one has little to do anyway.
    ///
    /// Several of them take turns.
    pub(super) fn slot_factor(&self, now: Nanos, id: u32) -> u64 {
        let takes_turns = self.rules.raised_take_turns && self.wr_busy > 1;
        let raise = self.queues[id as usize].raise;
        let starts = if self.rules.raised_keep_device {
            raise.starts(now, self.wr_duration())
        } else {
            raise.kind == WrKind::Interactive
        };
        if starts && !takes_turns && self.is_privileged(id) {
            u64::from(self.tunables.wr_coeff)
        } else {
            1
        }
    }

    /// Returns whether a queue is served whatever its budget: it alone is raised, and has been served
    /// for a short while since it turned busy. Between two small budgets somebody else would get a
    /// slot, during which it waits. Who never pauses is no program that starts.
    ///
    /// For whom somebody outside waits it lasts to the slot's end: that has a credit of its own. So it
    /// does for a player: a piece of a film is more than a small budget holds.
    #[inline]
    pub(super) fn keeps_device(&self, now: Nanos, id: u32) -> bool {
        now < self.kept_until(now, id)
    }

    fn kept_until(&self, now: Nanos, id: u32) -> Nanos {
        let queue = &self.queues[id as usize];
        if !self.rules.raised_keep_device || !queue.raise.is_on() {
            return Nanos::ZERO;
        }
        let timeouts = match (queue.raise.is_urged(), queue.has_come) {
            (true, _) => u64::MAX,
            (_, true) => KEPT_TIMEOUTS,
            _ => 1,
        };
        let plays = queue.raise.kind == WrKind::SoftRt && self.is_privileged(id);
        match timeouts.min(self.slot_factor(now, id)) {
            1 if !plays || self.wr_busy > 1 => Nanos::ZERO,
            timeouts => {
                self.slot.began + Nanos(self.tunables.timeout_sync.0.saturating_mul(timeouts))
            }
        }
    }

    /// Returns whether the time of the slot of this queue, which is in service, is over. Who took
    /// turns and is alone again goes on.
    pub(super) fn slot_is_over(&mut self, now: Nanos, id: u32) -> bool {
        if now >= self.slot.ends {
            self.slot.ends = self.slot.ends.max(self.kept_until(now, id));
        }
        now >= self.slot.ends
    }

    /// Takes note that a raised queue turns busy, perhaps the first of its group.
    pub(super) fn note_pause(&mut self, now: Nanos, id: u32) {
        let lasts = self.wr_duration();
        let Queue { group, raise, .. } = self.queues[id as usize];
        let group = &mut self.groups[group as usize];
        if group.raised == 0 {
            group.raised_served = Nanos::ZERO;
        }
        if raise.start(now, lasts).is_some() {
            group.started = Some(now);
        }
    }

    /// Returns whether a queue that turns busy has probably been kept waiting, by others or by a
    /// scheduler in the guest: it goes on in order, in a group in which something starts. By its rate
    /// it would count as a player. Who has played until now still does.
    pub(super) fn is_held_up(&self, now: Nanos, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        let pause = self.tunables.wr_min_idle_time;
        let lately = |at: Option<Nanos>| at.is_some_and(|at| now <= at + pause);
        let group = &self.groups[queue.group as usize];
        self.rules.starts_go_on
            && queue.seek.is_in_order()
            && (lately(group.started) || group.lingers.is_some_and(|until| now < until))
            && !lately(queue.played)
    }

    /// Lets what starts in one or several queues of a group go on as a slot of one of them ends:
    /// neither that queue nor the group sits out the lead over those beside it. Who had the device for
    /// long without a pause is no program that starts.
    pub(super) fn go_on_after_slot(&mut self, now: Nanos, id: u32, stays: bool) {
        let Queue { node, group, raise, .. } = self.queues[id as usize];
        if !raise.is_on() {
            return;
        }
        let most = self.longest_start();
        let at = &mut self.groups[group as usize];
        at.raised_served += now.since(self.slot.taken);
        let goes_on = (stays || at.raised > 1) && at.raised_served < most;
        let starts = || raise.start(now, self.wr_duration()).is_some() && self.is_privileged(id);
        if !goes_on || !self.rules.starts_go_on || !starts() {
            return;
        }
        if stays {
            self.engine.lift(node);
        }
        self.lift_groups(group);
    }

    /// Returns for how long what starts in several queues of a group may have the device until others
    /// are looked at.
    fn longest_start(&self) -> Nanos {
        Nanos(self.tunables.timeout_sync.0.saturating_mul(KEPT_TIMEOUTS))
    }

    /// Sets aside what a group, and those above it, are ahead of their siblings.
    pub(super) fn lift_groups(&mut self, mut group: u32) {
        while group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            self.engine.lift(at.node);
            group = at.parent;
        }
    }

    /// Lets a queue of which a request goes to the device out of turn pay nothing for that now, if it is
    /// raised and beside it in its group another one is waited for.
    pub(super) fn go_on_beside(&mut self, id: u32) {
        let [queue, other] = [id, self.holder.unwrap_or(id)].map(|id| &self.queues[id as usize]);
        let is_one = queue.group == other.group && queue.raise.is_on() && other.raise.is_on();
        if is_one && self.rules.starts_go_on && self.is_privileged(id) {
            self.engine.lift(self.queues[id as usize].node);
        }
    }

    /// Lets a queue that has taken the device from another one begin now: if that was one of its own
    /// group, the group has just been charged for its slot, and would sit that out.
    pub(super) fn follow(&mut self, id: u32, holder: u32) {
        let [group, other] = [id, holder].map(|id| self.queues[id as usize].group);
        if group == other && self.rules.starts_go_on && self.is_privileged(id) {
            self.lift_groups(group);
        }
    }

    /// Lets the slot of a raised queue end soon if it was to last longer because it was the only
    /// one, and it is not any more: the queue `id` turns busy.
    pub(super) fn let_take_turns(&mut self, now: Nanos, id: u32) {
        let is_raised = |id: u32| self.queues[id as usize].raise.is_on();
        if self.rules.raised_take_turns && is_raised(id) && self.holder.is_some_and(is_raised) {
            self.slot.ends = self.slot.ends.min(now + self.tunables.timeout_sync);
        }
    }

    /// Lets a queue have the past of the one that its issuer has left for it; what others did in it
    /// says nothing of him. If it is one of several, he counts as who reads in order only if all do.
    pub(super) fn take_past(&mut self, id: u32, came_from: &[QueueId]) {
        let past = |&from: &QueueId| {
            let Queue { seek, played, batches, .. } = *self.queue_of(from);
            (seek, played, batches)
        };
        let pasts = came_from.iter().map(past);
        let Some(past) = pasts.reduce(|one, other| if one.0.is_in_order() { other } else { one })
        else {
            return;
        };
        let queue = &mut self.queues[id as usize];
        (queue.seek, queue.played, queue.batches) = past;
    }

    /// Returns the queue that an issuer shares with others, or has for himself.
    fn queue_of(&self, issuer: QueueId) -> &Queue {
        &self.queues[self.merging.routes[issuer.0 as usize] as usize]
    }

    /// Raises a queue that is not as far as its issuer was starting in all of the queues in which he
    /// may have been until now: the least that is left to one of them.
    pub(super) fn go_on_starting(&mut self, now: Nanos, id: u32, came_from: &[QueueId]) {
        let lasts = self.wr_duration();
        let start = |&from: &QueueId| self.queue_of(from).raise.start(now, lasts);
        let starts = came_from.iter().map(start);
        let left = starts.reduce(|one, other| Some(one?.least(other?))).flatten();
        let Some(left) = left.filter(|_| self.rules.starts_go_on) else { return };
        let queue = &mut self.queues[id as usize];
        if !queue.is_raisable() {
            return;
        }
        if queue.raise.is_over(now) {
            self.adopt_raise(now, id, left);
        } else {
            queue.raise.precede(now, left);
        }
    }

    /// Lets the wait for the queue in service begin anew because something starts in it and in queue
    /// `id`, of the same group, a request of which goes to the device or comes from there: a program
    /// that reads here and there may be in both, and thinks about what it gets last.
    pub(super) fn wait_anew(&mut self, now: Nanos, id: u32) {
        let (Some(holder), Some(until)) = (self.holder, self.slot.idle_until) else { return };
        let [queue, other] = [holder, id].map(|id| &self.queues[id as usize]);
        let lasts = self.wr_duration();
        let starts = |queue: &Queue| queue.raise.start(now, lasts).is_some();
        let is_one = queue.group == other.group && starts(queue) && starts(other);
        let had = self.groups[queue.group as usize].raised_served + now.since(self.slot.taken);
        let goes_on = is_one && had < self.longest_start();
        if goes_on && self.rules.starts_go_on && self.is_privileged(holder) {
            self.slot.idle_until = Some(until.max(now + self.idle_window(now, holder)));
        }
    }
}
