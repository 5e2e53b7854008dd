//! A group stays lifted for a moment when what starts in it pauses.
//!
//! Where the guest has a scheduler of its own, a program's next request may be held there until
//! those of the guest's other readers, whose turn it is, have been answered: the program seems to
//! think, and in truth waits for them, while they wait here as if nothing were urgent. So what the
//! group has in hand when what starts in it runs out of requests is served as the program would
//! have been, for a moment; the group owes for it (`loan.rs`), and who waits elsewhere is relieved
//! (`relief.rs`). Where somebody outside says what is urgent, only that counts, and he pays for it as
//! he does for the rest.
//!
//! How long that takes in the guest: BFQ in Linux, since 5.17, lets a process that has its share of
//! the disk's request slots have only the first of each word of their bitmap, four of 256 as a rule,
//! for all such processes together, and wakes who waits for one after several requests of others
//! have been answered. So a program gets its next slot after some tens of its neighbours' requests.

use super::Bfq;
use super::queue::Queue;
use crate::{GroupId, Nanos};

/// For how long a group stays lifted: a few slots of each of those beside the program.
const MOMENT: Nanos = Nanos::from_secs(1);
/// The same on a disk that turns, where the tens of requests that are waited for take longer.
const MOMENT_ROTATIONAL: Nanos = Nanos::from_secs(3);
/// For so long of the former what the group has in hand goes first: by then the program has mostly gone
/// on. On a disk that turns, where a round of what is waited for takes longer than a slot of others, that
/// brings programs nothing.
const AT_FIRST: Nanos = Nanos::from_millis(200);

impl Bfq {
    /// Keeps the groups above a queue lifted for a moment if something starts in it; it is about to
    /// turn idle.
    pub(super) fn linger(&mut self, now: Nanos, id: u32) {
        let lasts = self.wr_duration();
        let Queue { raise, mut group, .. } = self.queues[id as usize];
        let is_meant = raise.is_urged() || !self.groups[group as usize].is_spoken_for;
        let starts = raise.is_on() && raise.start(now, lasts).is_some();
        if !is_meant || !starts || !self.rules.pauses_are_bridged || !self.is_privileged(id) {
            return;
        }
        let until = now + if self.rotational { MOMENT_ROTATIONAL } else { MOMENT };
        self.lingers = Some(self.lingers.map_or(until, |at| at.min(until)));
        while group != GroupId::ROOT.0 {
            let at = &mut self.groups[group as usize];
            at.lingers_urged = raise.is_urged() || (at.lingers.is_some() && at.lingers_urged);
            at.lingers = Some(until);
            group = at.parent;
        }
    }

    /// Lets the group of a queue, and those above it, sit out no lead over others when what starts there
    /// has just paused, and the queue turns busy, goes on waiting or has left others behind: what the
    /// group has in hand goes first, as long as nothing anywhere is raised.
    pub(super) fn go_on_in_pause(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        let group = &self.groups[queue.group as usize];
        let Some(until) = group.lingers.filter(|_| !self.rotational && self.wr_busy == 0) else {
            return;
        };
        let has_just_paused = now + MOMENT < until + AT_FIRST;
        if has_just_paused && !group.lingers_urged {
            self.lift_groups(queue.group);
        }
    }

    /// Lets the groups above a queue go: nobody outside means it any more.
    pub(super) fn stop_lingering(&mut self, id: u32) {
        let mut group = self.queues[id as usize].group;
        while group != GroupId::ROOT.0 {
            let at = &mut self.groups[group as usize];
            let (node, parent) = (at.node, at.parent);
            if at.lingers.take().is_some() {
                self.engine.set_coeff(node, self.group_coeff(group));
            }
            group = parent;
        }
    }

    /// Lets groups go whose moment is over.
    #[inline]
    pub(super) fn end_lingering(&mut self, now: Nanos) {
        if self.lingers.is_some_and(|at| now >= at) {
            self.let_go(now);
        }
    }

    /// Lets those go whose moment is over by then.
    #[cold]
    pub(super) fn let_go(&mut self, by: Nanos) {
        self.lingers = None;
        for id in (0..).take(self.groups.len()) {
            let at = &mut self.groups[id as usize];
            if at.lingers.take_if(|until| by >= *until).is_some() && at.used {
                let node = at.node;
                self.engine.set_coeff(node, self.group_coeff(id));
            }
            let next = self.groups[id as usize].lingers;
            self.lingers = [self.lingers, next].into_iter().flatten().min();
        }
    }
}
