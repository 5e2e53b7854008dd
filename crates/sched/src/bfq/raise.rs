//! Raising: a queue in which an application seems to start is served at once.
//!
//! While a queue is raised, so is every group above it, as long as the queue is busy: otherwise an
//! application that starts in a VM would get that VM's plain share against other VMs.

use super::Bfq;
use super::queue::Queue;
use crate::{Class, GroupId, Nanos};

/// Why a queue is raised.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum WrKind {
    /// It is not.
    #[default]
    None,
    /// Something starts there, or somebody works with it.
    Interactive,
}

/// The raise of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raise {
    pub(super) kind: WrKind,
    began: Nanos,
    lasts: Nanos,
    /// Charged since the raise began, in sectors.
    pub(super) service: u64,
}

impl Raise {
    pub(super) fn is_on(&self) -> bool {
        self.kind != WrKind::None
    }

    fn is_over(&self, now: Nanos, most_service: u32) -> bool {
        now > self.began + self.lasts || self.service > u64::from(most_service)
    }
}

impl Queue {
    /// Returns whether this queue may be raised at all.
    fn is_raisable(&self) -> bool {
        self.sync && self.class != Class::Idle
    }

    /// Returns whether a request that arrives now ends a long inactivity. A queue without a past
    /// counts as inactive for ever.
    fn is_back_after_long(&self, now: Nanos, pause: Nanos) -> bool {
        self.in_flight == 0 && self.idle_since.is_none_or(|since| now > since + pause)
    }
}

impl Bfq {
    /// Decides about the raise of a queue that turns busy; returns whether one begins.
    pub(super) fn review_raise(&mut self, now: Nanos, id: u32) -> bool {
        let lasts = self.rate.wr_duration();
        let pause = self.tunables.wr_min_idle_time;
        let queue = &mut self.queues[id as usize];
        let is_interactive = self.tunables.low_latency
            && queue.is_raisable()
            && queue.is_back_after_long(now, pause);
        if !is_interactive {
            return false;
        }
        let begins = !queue.raise.is_on();
        // Sectors are counted from the first raise on, so that pauses do not prolong it for ever.
        let service = if begins { 0 } else { queue.raise.service };
        queue.raise = Raise { kind: WrKind::Interactive, began: now, lasts, service };
        if begins {
            let (node, mut group) = (queue.node, queue.group);
            self.engine.set_coeff(node, self.tunables.wr_coeff);
            self.engine.forgive(node);
            while group != GroupId::ROOT.0 {
                let at = &self.groups[group as usize];
                self.engine.forgive(at.node);
                group = at.parent;
            }
            self.recount_weight(id);
        }
        begins
    }

    /// Ends the raise of the queue in service if its time or its sectors are used up.
    pub(super) fn review_raise_in_service(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        if queue.raise.is_on() && queue.raise.is_over(now, self.tunables.wr_max_service_sectors) {
            self.end_raise(id);
            self.engine.settle_weights(self.queues[id as usize].node);
        }
    }

    /// Ends the raise of a queue; the weights return when they are next used.
    pub(super) fn end_raise(&mut self, id: u32) {
        let queue = &mut self.queues[id as usize];
        if !queue.raise.is_on() {
            return;
        }
        queue.raise.kind = WrKind::None;
        let (node, is_busy) = (queue.node, queue.busy);
        self.engine.set_coeff(node, 1);
        if is_busy {
            self.count_raised(id, false);
        }
        self.recount_weight(id);
    }

    /// Counts a queue in or out of the raised busy ones, up to the root.
    pub(super) fn count_raised(&mut self, id: u32, comes: bool) {
        let mut group = self.queues[id as usize].group;
        self.wr_busy = if comes { self.wr_busy + 1 } else { self.wr_busy - 1 };
        loop {
            let at = &mut self.groups[group as usize];
            at.raised = if comes { at.raised + 1 } else { at.raised - 1 };
            if group == GroupId::ROOT.0 {
                return;
            }
            let coeff = if at.raised > 0 { self.tunables.wr_coeff } else { 1 };
            self.engine.set_coeff(at.node, coeff);
            group = at.parent;
        }
    }

    /// Returns the factor by which a queue is raised, 1 if it is not.
    pub(super) fn coeff(&self, id: u32) -> u16 {
        if self.queues[id as usize].raise.is_on() { self.tunables.wr_coeff } else { 1 }
    }
}
