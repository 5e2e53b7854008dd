//! What must hold of queues, groups and counts after every call.

use super::Bfq;
use super::burst::InBurst;
use super::queue::{Group, Queue};
use super::raise::WrKind;
use crate::{Class, GroupId};

impl Bfq {
    /// Panics if the state contradicts itself.
    pub(super) fn check(&self) {
        self.table.check();
        self.engine.check();
        self.check_counts();
        self.check_groups();
        for (id, queue) in (0..).zip(&self.queues).filter(|(_, queue)| queue.used) {
            self.check_queue(id, queue);
        }
        self.check_waiting();
        self.check_merging();
    }

    fn used(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().filter(|queue| queue.used)
    }

    fn check_counts(&self) {
        let waiting: u32 = self.used().map(|queue| queue.list.len()).sum();
        assert_eq!(waiting, self.table.waiting(), "B1: what waits, waits in a queue");
        let in_flight: u32 = self.used().map(|queue| queue.in_flight).sum();
        assert_eq!(in_flight, self.table.in_flight(), "B1: what is in flight has a queue");
        if self.is_full {
            let next = self.holder.and_then(|holder| self.queues[holder as usize].next);
            assert!(next.is_some_and(|tag| self.device_is_full(tag)), "it is still full");
        }
        for class in [Class::RealTime, Class::BestEffort, Class::Idle] {
            let busy = self.used().filter(|queue| queue.busy && queue.class == class).count();
            assert_eq!(busy, self.busy[class as usize] as usize, "B2");
        }
        let raised = self.used().filter(|queue| queue.busy && queue.raise.is_on()).count();
        assert_eq!(raised, self.wr_busy as usize, "P16: raised busy queues are counted");
        for (level, &count) in self.levels.iter().enumerate() {
            let weighed =
                self.used().filter(|queue| queue.weighed && usize::from(queue.level) == level);
            assert_eq!(weighed.count(), count as usize, "weights in play are counted");
            assert_eq!(self.levels_used >> level & 1 == 1, count > 0, "and levels in use known");
        }
    }

    fn check_groups(&self) {
        let mut pending_groups = 0;
        for (id, group) in (0..).zip(&self.groups).filter(|(_, group)| group.used) {
            let own = self.used().filter(|queue| queue.group == id);
            let pending = own.filter(|queue| queue.pending).count();
            assert_eq!(pending, group.pending as usize, "pending queues are counted");
            pending_groups += u32::from(pending > 0);
            let below = self.used().filter(|queue| self.is_within(queue.group, GroupId(id)));
            let raised = below.filter(|queue| queue.busy && queue.raise.is_on()).count();
            assert_eq!(raised, group.raised as usize, "raised queues are counted up to the root");
            let below = self.used().filter(|queue| self.is_within(queue.group, GroupId(id)));
            let soft_rt =
                below.filter(|queue| queue.busy && queue.raise.kind == WrKind::SoftRt).count();
            assert_eq!(soft_rt, group.soft_rt as usize, "soft real-time queues are counted, too");
            let below = self.used().filter(|queue| self.is_within(queue.group, GroupId(id)));
            let urged = below.filter(|queue| queue.busy && queue.raise.is_on());
            let urged = urged.filter(|queue| queue.raise.is_urged()).count();
            assert_eq!(urged, group.urged as usize, "and urged ones");
            assert_eq!(group.contenders, self.contenders(id), "plain weights are added up");
            let is_child = |at: &&Group| at.used && at.parent == id && at.soft_rt > 0;
            let players: u64 = self.groups.iter().filter(is_child).map(|at| at.weight).sum();
            assert_eq!(group.players, players, "groups with players are added up");
            if id != GroupId::ROOT.0 {
                let coeff = self.group_coeff(id);
                assert_eq!(self.engine.coeff_wanted(group.node), coeff, "a raise goes up");
            }
            self.check_burst(id);
        }
        let pending = self.used().filter(|queue| queue.pending).count();
        assert_eq!(pending, self.pending as usize, "pending queues are counted");
        assert_eq!(pending_groups, self.pending_groups, "groups with pending requests are counted");
    }

    fn contenders(&self, id: u32) -> u64 {
        let own = self.used().filter(|queue| queue.group == id && queue.busy);
        let own = own.filter(|queue| queue.class != Class::Idle).map(Queue::plain_weight);
        let is_child = |group: &&Group| group.used && group.parent == id && group.weight > 0;
        let groups = self.groups.iter().filter(is_child).filter(|group| group.contenders > 0);
        own.sum::<u64>() + groups.map(|group| group.weight).sum::<u64>()
    }

    fn check_burst(&self, group: u32) {
        let own = || self.used().filter(|queue| queue.group == group);
        let listed = own().filter(|queue| matches!(queue.in_burst, InBurst::Listed(_))).count();
        let mut at = self.groups[group as usize].burst.head();
        let mut linked = 0;
        while let Some(id) = at {
            let queue = &self.queues[id as usize];
            assert!(queue.used && queue.group == group, "a burst lists queues of its group");
            at = queue.in_burst.before();
            linked += 1;
        }
        assert_eq!(listed, linked, "who is listed in a burst is in its list");
    }

    fn check_queue(&self, id: u32, queue: &Queue) {
        queue.list.check(&self.table);
        self.check_ties(id);
        assert_eq!(queue.next.is_some(), !queue.is_empty(), "something is next if anything waits");
        if let Some(tag) = queue.next {
            assert!(self.table.get(tag).is_waiting(), "what is next waits");
            assert_eq!(self.table.get(tag).queue.0, id, "what is next waits here");
        }
        assert!(queue.busy || queue.is_empty(), "B3: a queue with requests is busy");
        let is_held = self.holder == Some(id);
        assert!(!is_held || queue.busy, "the queue in service is busy");
        let (is_active, is_in_service) = self.engine.is_active_or_in_service(queue.node);
        assert_eq!(is_in_service, is_held, "B4: engine and scheduler agree on who is in service");
        assert_eq!(is_active || is_in_service, queue.busy, "busy queues compete");
        assert_eq!(queue.pending, queue.busy || queue.in_flight > 0, "pending until all completed");
        assert_eq!(queue.weighed, queue.pending && !queue.raise.is_on(), "raised: not weighed");
        assert_eq!(self.engine.coeff_wanted(queue.node), self.coeff(id), "B15: weights follow");
        let is_guess = queue.raise.kind == WrKind::SoftRt && !queue.raise.is_urged();
        let is_spoken_for = self.groups[queue.group as usize].is_spoken_for;
        assert!(!is_guess || !is_spoken_for, "whoever speaks for a group knows who plays there");
        assert!(queue.max_budget >= 1, "B7: a budget is never zero");
        assert!(!queue.raise.is_on() || (queue.sync && queue.class != Class::Idle), "raisable");
        assert!(!queue.gone || queue.busy || queue.in_flight > 0, "removed queues go when done");
    }

    fn check_waiting(&self) {
        if self.slot.idle_until.is_some() {
            let id = self.holder.expect("B9: the device is kept for somebody");
            let queue = &self.queues[id as usize];
            assert!(self.slot.wasteful_from.is_none_or(|at| self.slot.idle_until > Some(at)));
            assert!(queue.is_empty() && queue.in_flight == 0, "B9: who is waited for has nothing");
        }
    }
}
