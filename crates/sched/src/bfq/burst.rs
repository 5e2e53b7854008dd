//! Large bursts: when many queues of one group start together, none of them is raised.
//!
//! Services that start when a guest boots, a search that forks, a parallel build: what matters to
//! them is when all are done. Raising all of them gains nobody anything and costs throughput.
//!
//! A queue starts when its first request comes, and again when one comes after the inactivity that
//! makes it interactive: here queues live as long as their VM, and stand for one application after
//! the other. A burst begins with a start in a group that has nothing to do, goes on as long as the
//! next start follows within an interval, and becomes large with its so-manieth queue; then all its
//! queues, and those that still join, are marked. A mark goes after 10 s without requests.
//!
//! Each group counts for itself, so VMs that start at the same time are no burst.
//!
//! Source: P. Valente and A. Avanzini, "Evolution of the BFQ Storage-I/O Scheduler", 2015.

use super::Bfq;
use crate::Nanos;
use crate::tree::NIL;

/// A queue that did nothing for this long has nothing to do with its burst any more.
pub(super) const BURST_EXIT: Nanos = Nanos::from_secs(10);

/// What a queue has to do with bursts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum InBurst {
    /// Nothing.
    #[default]
    No,
    /// It started in the current burst of its group, which is not large yet. Names the queue that
    /// started before it in the same burst.
    Listed(u32),
    /// It started in a large one.
    Large,
}

/// The current burst of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Burst {
    /// Queues in it; zero: no burst has begun.
    size: u32,
    is_large: bool,
    /// When the latest queue started.
    last: Nanos,
    /// The latest of the listed queues, [`NIL`] if none is.
    head: u32,
}

impl Burst {
    pub(super) const NONE: Self = Self { size: 0, is_large: false, last: Nanos::ZERO, head: NIL };

    pub(super) fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }
}

impl InBurst {
    /// Returns the queue listed before this one.
    pub(super) fn before(self) -> Option<u32> {
        match self {
            Self::Listed(before) if before != NIL => Some(before),
            _ => None,
        }
    }
}

impl Bfq {
    /// Takes note that something starts in a queue that has nothing in flight yet.
    pub(super) fn note_start(&mut self, now: Nanos, id: u32) {
        let (interval, large) = (self.tunables.burst_interval, self.tunables.large_burst_thresh);
        let group = self.queues[id as usize].group;
        let Burst { size, is_large, last, .. } = self.groups[group as usize].burst;
        if size > 0 && now > last + interval {
            self.end_burst(group);
            return self.note_start(now, id);
        }
        let has_begun = size > 0;
        let may_begin = large > 0 && self.groups[group as usize].pending == 0;
        if self.queues[id as usize].in_burst != InBurst::No || !(has_begun || may_begin) {
            return;
        }
        let burst = &mut self.groups[group as usize].burst;
        burst.last = now;
        if is_large {
            self.queues[id as usize].in_burst = InBurst::Large;
            return;
        }
        burst.size += 1;
        self.queues[id as usize].in_burst = InBurst::Listed(burst.head);
        burst.head = id;
        if burst.size >= large {
            burst.is_large = true;
            self.mark_listed(group, InBurst::Large);
        }
    }

    /// Forgets the burst of a group; those that it marked stay marked.
    pub(super) fn end_burst(&mut self, group: u32) {
        self.mark_listed(group, InBurst::No);
        self.groups[group as usize].burst = Burst::NONE;
    }

    fn mark_listed(&mut self, group: u32, mark: InBurst) {
        let mut at = core::mem::replace(&mut self.groups[group as usize].burst.head, NIL);
        while at != NIL {
            let listed = core::mem::replace(&mut self.queues[at as usize].in_burst, mark);
            let InBurst::Listed(before) = listed else { unreachable!("the list holds these") };
            at = before;
        }
    }

    /// Takes a queue out of its burst.
    pub(super) fn leave_burst(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        let was = core::mem::take(&mut queue.in_burst);
        let group = queue.group;
        let InBurst::Listed(before) = was else { return };
        let burst = &mut self.groups[group as usize].burst;
        burst.size -= 1;
        if burst.head == id {
            burst.head = before;
            return;
        }
        let mut at = burst.head;
        loop {
            let InBurst::Listed(next) = self.queues[at as usize].in_burst else {
                unreachable!("the list holds these");
            };
            if next == id {
                self.queues[at as usize].in_burst = InBurst::Listed(before);
                return;
            }
            at = next;
        }
    }
}
