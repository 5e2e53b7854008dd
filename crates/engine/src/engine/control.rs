//! Limits and reservations around the scheduler: who may enter it, and who must leave it first.

use evenkeel_sched::{
    Demand, GateReport, GroupId, Limits, Nanos, Next, NodeId, Reservation, Scheduler, Tag, Weight,
};

use super::Engine;
use crate::blame::Aside;
use crate::disk::{Disk, DiskId};
use crate::slots::Place;

/// Something that limits and reservations can be set for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Limited {
    /// A tenant or a VM; with [`GroupId::ROOT`] the whole pool.
    Group(GroupId),
    /// A disk.
    Disk(DiskId),
}

impl Engine {
    /// Limits what a group and all below it, or a disk, may use. A request over a limit waits
    /// where no scheduler has heard of it; what waits already follows the new limits at once.
    pub fn set_limits(&mut self, now: Nanos, whom: Limited, limits: &Limits) {
        self.gate.set_limits(now, self.node(whom), limits);
        self.control_changed(now);
    }

    /// Promises a group with all below it, or a disk, at least so much as long as it has requests.
    /// Limits win over it, it wins over weights. The caller has seen to it that the device can
    /// keep all promises together; if it cannot, nobody knows who falls short.
    pub fn set_reservation(&mut self, now: Nanos, whom: Limited, reservation: Reservation) {
        self.floors.set(self.node(whom), reservation);
        self.control_changed(now);
    }

    /// Lets everything pass that the limits of a disk hold up: somebody wants to be done with it.
    /// It counts as ever, so what comes later pays for it.
    pub fn expedite(&mut self, now: Nanos, disk: DiskId) {
        let node = self.disk(disk).node;
        while let Some(tag) = self.gate.expedite(now, node) {
            self.leave_gate(now, tag);
        }
    }

    /// Returns what the limits of a group, or of a disk, held up.
    #[must_use]
    pub fn gate_report(&self, now: Nanos, whom: Limited) -> GateReport {
        self.gate.report(now, self.node(whom))
    }
}

/// The steps behind the calls above, and of those of the engine that ask for control.
impl Engine {
    fn node(&self, whom: Limited) -> NodeId {
        match whom {
            Limited::Group(group) => self.nodes[group.0 as usize],
            Limited::Disk(disk) => self.disk(disk).node,
        }
    }

    pub(super) fn add_node(&mut self, parent: GroupId, group: GroupId, weight: Weight) {
        let above = self.nodes[parent.0 as usize];
        let node = self.gate.add(above, weight);
        self.floors.add(node, above);
        let index = group.0 as usize;
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, NodeId::ROOT);
        }
        self.nodes[index] = node;
    }

    pub(super) fn add_leaf(&mut self, vm: GroupId) -> NodeId {
        let above = self.nodes[vm.0 as usize];
        let node = self.gate.add(above, Weight::default());
        self.floors.add(node, above);
        node
    }

    pub(super) fn remove_node(&mut self, now: Nanos, node: NodeId) {
        self.floors.set(node, Reservation::default());
        self.gate.remove(now, node);
        self.control_changed(now);
    }

    fn control_changed(&mut self, now: Nanos) {
        self.open_gate(now);
        self.is_controlled = !self.gate.is_open() || self.floors.is_any();
    }

    fn demand(&self, tag: Tag) -> Demand {
        let slot = self.slots.get(tag);
        Demand { tag, op: slot.op.scheduled(), nr_sectors: slot.cost_sectors() }
    }

    /// Gives a request to the scheduler as soon as the limits allow.
    pub(super) fn admit(&mut self, now: Nanos, tag: Tag) {
        let Disk { node, vm, .. } = *self.disk(self.slots.get(tag).disk);
        if self.gate.arrive(now, node, &self.demand(tag)) {
            self.enter(now, tag);
        } else {
            self.blame.step_aside(now, vm, Aside::Limit, 1);
            self.slots.get_mut(tag).place = Place::Gated;
        }
    }

    /// Lets every request in that may enter now.
    pub(super) fn open_gate(&mut self, now: Nanos) {
        while let Some(tag) = self.gate.release(now) {
            self.leave_gate(now, tag);
        }
    }

    fn leave_gate(&mut self, now: Nanos, tag: Tag) {
        let vm = self.disk(self.slots.get(tag).disk).vm;
        self.blame.step_back(now, vm, Aside::Limit, 1);
        self.enter(now, tag);
    }

    /// Gives a request, or the next piece of one, to the scheduler.
    pub(super) fn enter(&mut self, now: Nanos, tag: Tag) {
        self.slots.get_mut(tag).place = Place::Scheduled;
        if self.floors.is_any() {
            let slot = self.slots.get(tag);
            let node = self.disk(slot.disk).node;
            let nr_sectors = slot.piece_cost_sectors();
            self.floors.enter(now, node, &Demand { nr_sectors, ..self.demand(tag) });
        }
        self.schedule(now, tag);
    }

    /// Returns the request that goes next: one whose reservation is due, else the scheduler's.
    pub(super) fn choose_controlled(&mut self, now: Nanos) -> Option<Tag> {
        let overdue = self.floors.overdue(now);
        let tag = match overdue {
            Some(tag) => self.scheduler.pull(now, tag),
            None => match self.scheduler.dispatch(now) {
                Next::Request(tag) => tag,
                Next::NotBefore(_) | Next::Empty => return None,
            },
        };
        if self.floors.is_any() {
            let mut part = Some(self.scheduler.first_part(tag));
            while let Some(tag) = part {
                self.floors.leave(now, tag, overdue.is_some());
                part = self.scheduler.next_part(tag);
            }
        }
        Some(tag)
    }
}
