//! The same competition, so naive that it is plainly right: no trees, linear searches, every sum
//! taken anew.

use alloc::vec::Vec;

use super::entity::Place;
use super::{After, ROOT, Return};
use crate::{Class, Nanos};

const SHIFT: u32 = 22;

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) parent: usize,
    pub(super) is_group: bool,
    pub(super) class: Class,
    pub(super) base: u64,
    pub(super) coeff: u64,
    pub(super) new_coeff: u64,
    pub(super) weight: u64,
    pub(super) start: u64,
    pub(super) finish: u64,
    pub(super) service: u64,
    pub(super) budget: u64,
    pub(super) place: Place,
    pub(super) is_forgiven: bool,
    pub(super) is_lifted: bool,
    /// By how much it would start later, or earlier, if it were not lifted.
    pub(super) warp: u64,
    /// By how much it was put before its siblings, until it is served.
    pub(super) jump: u64,
    /// Put on top of `finish` while idle.
    pub(super) hold: u64,
    /// When it entered its list: ties go to the earlier.
    pub(super) order: u64,
    /// Virtual times of the three classes of its children.
    pub(super) vtime: [u64; 3],
    pub(super) idle_due: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) members: Vec<Member>,
    guarantee: u64,
    orders: u64,
}

fn after(a: u64, b: u64) -> bool {
    a.wrapping_sub(b).cast_signed() > 0
}

fn later(a: u64, b: u64) -> u64 {
    if after(b, a) { b } else { a }
}

impl Model {
    pub(super) fn new(guarantee: Nanos) -> Self {
        let mut model = Self { members: Vec::new(), guarantee: guarantee.0, orders: 0 };
        model.add(usize::MAX, true, Class::BestEffort, 100);
        model
    }

    pub(super) fn add(&mut self, parent: usize, is_group: bool, class: Class, weight: u64) {
        self.members.push(Member {
            parent,
            is_group,
            class,
            base: weight,
            coeff: 1,
            new_coeff: 1,
            weight,
            start: 0,
            finish: 0,
            service: 0,
            budget: 0,
            place: Place::Away,
            is_forgiven: false,
            is_lifted: false,
            warp: 0,
            jump: 0,
            hold: 0,
            order: 0,
            vtime: [0; 3],
            idle_due: 0,
        });
    }

    fn vtime(&self, node: usize) -> u64 {
        self.members[self.members[node].parent].vtime[self.members[node].class as usize]
    }

    fn siblings(&self, group: usize, class: Class, place: Place) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |&node| {
            let member = &self.members[node];
            member.parent == group && member.class == class && member.place == place
        })
    }

    pub(super) fn wsum(&self, group: usize, class: Class) -> u64 {
        let places = [Place::Active, Place::Idle, Place::InService];
        let all = places.iter().flat_map(|&place| self.siblings(group, class, place));
        all.map(|node| self.members[node].weight).sum()
    }

    /// Of `nodes` the one with the least finish, the one queued earliest if several have it.
    fn first(&self, nodes: impl Iterator<Item = usize>) -> Option<usize> {
        nodes.reduce(|best, node| {
            let (a, b) = (&self.members[best], &self.members[node]);
            let tie = a.finish == b.finish && b.order < a.order;
            if after(a.finish, b.finish) || tie { node } else { best }
        })
    }

    /// Of those that wait in a group the first before which one that is lifted may go: in a group of
    /// queues the first that is not raised, elsewhere the first of all if none is raised.
    fn first_to_pass(&self, parent: usize, mut waiting: Vec<usize>) -> Option<usize> {
        let is_raised = |node: usize| self.members[node].coeff > 1;
        if !waiting.iter().any(|&node| is_raised(node)) {
            return self.first(waiting.into_iter());
        }
        loop {
            let first = self.first(waiting.iter().copied())?;
            if parent == 0 || self.members[first].is_group {
                return None;
            }
            if !is_raised(first) {
                return Some(first);
            }
            waiting.retain(|&node| node != first);
        }
    }

    fn next_of(&self, group: usize, class: Class) -> Option<(u64, usize)> {
        let waiting = || self.siblings(group, class, Place::Active);
        let starts = waiting().map(|node| self.members[node].start);
        let least = starts.reduce(|a, b| if after(a, b) { b } else { a })?;
        let vtime = later(self.members[group].vtime[class as usize], least);
        let eligible = waiting().filter(|&node| !after(self.members[node].start, vtime));
        Some((vtime, self.first(eligible)?))
    }

    fn next(&self, group: usize) -> Option<(u64, usize)> {
        let classes = [Class::RealTime, Class::BestEffort, Class::Idle];
        classes.iter().find_map(|&class| self.next_of(group, class))
    }

    fn forget(&mut self, group: usize, class: Class) {
        if let Some(first) = self.first(self.siblings(group, class, Place::Idle))
            && !after(self.members[first].finish, self.members[group].vtime[class as usize])
        {
            self.leave_idle(first);
        }
    }

    fn leave_idle(&mut self, node: usize) {
        let member = &mut self.members[node];
        member.place = Place::Away;
        member.finish = member.finish.wrapping_sub(member.hold);
        member.hold = 0;
    }

    fn queue(&mut self, node: usize, budget: u64, missed: Option<u64>) {
        let vtime = self.vtime(node);
        let Member { parent, class, .. } = self.members[node];
        let waiting = self.siblings(parent, class, Place::Active).filter(|&other| other != node);
        let waiting: Vec<usize> = waiting.collect();
        let first = self.first_to_pass(parent, waiting).map(|first| self.members[first].finish);
        let member = &mut self.members[node];
        let weight = member.base * member.new_coeff;
        member.weight = weight;
        member.coeff = member.new_coeff;
        let is_lifted = core::mem::take(&mut member.is_lifted);
        let goes_before = (is_lifted || member.jump > 0) && member.coeff > 1;
        member.start = member.start.wrapping_add(core::mem::take(&mut member.jump));
        if core::mem::take(&mut member.is_forgiven) {
            (member.start, member.warp) = (vtime, 0);
        }
        if member.coeff == 1 {
            member.start = member.start.wrapping_add(member.warp);
            member.warp = 0;
        } else if is_lifted {
            member.warp = member.warp.wrapping_add(member.start).wrapping_sub(vtime);
            member.start = vtime;
        }
        member.budget = budget;
        if let Some(memory) = missed {
            let reach = member.start.wrapping_add((budget.max(memory) << SHIFT) / weight);
            if after(vtime, reach) {
                let divisor = if member.is_group { 1 } else { member.coeff };
                member.start = member.start.wrapping_add(vtime.wrapping_sub(reach) / divisor);
            }
        }
        member.finish = member.start.wrapping_add((budget << SHIFT) / weight);
        if let Some(first) = first.filter(|&first| goes_before && !after(first, member.finish)) {
            member.jump = member.finish.wrapping_sub(first) + 1;
            member.start = member.start.wrapping_sub(member.jump);
            member.finish = member.finish.wrapping_sub(member.jump);
        }
        member.place = Place::Active;
        self.orders += 1;
        member.order = self.orders;
    }

    fn enter(&mut self, node: usize, budget: u64, how: Return) {
        let was_idle = self.members[node].place == Place::Idle;
        self.leave_idle(node);
        let vtime = self.vtime(node);
        let member = &mut self.members[node];
        let (start, missed) = match how {
            Return::Continued(memory) if after(vtime, member.finish) => {
                (member.finish, Some(memory))
            }
            _ if was_idle => (later(vtime, member.finish), None),
            _ => (vtime, None),
        };
        member.start = start;
        self.queue(node, budget, missed);
    }

    fn retire(&mut self, node: usize, memory: u64) {
        let vtime = self.vtime(node);
        self.orders += 1;
        let member = &mut self.members[node];
        member.start = member.start.wrapping_add(core::mem::take(&mut member.jump));
        member.hold = (memory << SHIFT) / member.weight;
        let finish = member.start.wrapping_add((member.service << SHIFT) / member.weight);
        member.finish = finish.wrapping_add(member.hold).wrapping_add(member.warp);
        (member.service, member.warp) = (0, 0);
        member.order = self.orders;
        member.place = Place::Idle;
        if !after(member.finish, vtime) {
            self.leave_idle(node);
        }
    }

    fn climb(&mut self, mut group: usize, how: Return) {
        while group != ROOT as usize && self.members[group].place != Place::InService {
            let budget = self.next(group).map(|(_, child)| self.members[child].budget);
            let member = &self.members[group];
            match budget {
                Some(budget) if member.place == Place::Active => {
                    let weight = member.base * member.new_coeff;
                    if member.budget == budget
                        && member.weight == weight
                        && !member.is_forgiven
                        && !member.is_lifted
                    {
                        return;
                    }
                    self.members[group].place = Place::Away;
                    self.queue(group, budget, None);
                }
                Some(budget) => self.enter(group, budget, how),
                None => self.retire(group, 0),
            }
            group = self.members[group].parent;
        }
    }

    pub(super) fn activate(&mut self, now: Nanos, leaf: usize, budget: u64, how: Return) {
        let Member { parent, class, .. } = self.members[leaf];
        if class == Class::Idle && self.siblings(parent, class, Place::Active).next().is_none() {
            self.members[parent].idle_due = now.0 + self.guarantee;
        }
        self.enter(leaf, budget, how);
        self.climb(self.members[leaf].parent, how);
    }

    pub(super) fn deactivate(&mut self, leaf: usize) {
        self.retire(leaf, 0);
        self.climb(self.members[leaf].parent, Return::Anew);
    }

    pub(super) fn set_budget(&mut self, leaf: usize, budget: u64) {
        self.members[leaf].place = Place::Away;
        self.queue(leaf, budget, None);
        self.climb(self.members[leaf].parent, Return::Anew);
    }

    pub(super) fn serve(&mut self, leaf: usize, cost: u64) {
        let mut node = leaf;
        while node != ROOT as usize {
            let Member { parent, class, .. } = self.members[node];
            self.members[node].service += cost;
            let step = (cost << SHIFT) / self.wsum(parent, class);
            let vtime = &mut self.members[parent].vtime[class as usize];
            *vtime = vtime.wrapping_add(step);
            self.forget(parent, class);
            node = parent;
        }
    }

    pub(super) fn select(&mut self, now: Nanos) -> Option<usize> {
        let mut group = ROOT as usize;
        loop {
            let due = now.0 >= self.members[group].idle_due;
            let idle = self.next_of(group, Class::Idle).filter(|_| due);
            let (vtime, node) = idle.or_else(|| self.next(group))?;
            let class = self.members[node].class;
            if class == Class::Idle {
                self.members[group].idle_due = now.0 + self.guarantee;
            }
            self.members[group].vtime[class as usize] = vtime;
            self.members[node].place = Place::InService;
            let member = &mut self.members[node];
            let jump = core::mem::take(&mut member.jump);
            (member.start, member.finish) =
                (member.start.wrapping_add(jump), member.finish.wrapping_add(jump));
            self.forget(group, class);
            if !self.members[node].is_group {
                return Some(node);
            }
            group = node;
        }
    }

    pub(super) fn expire(&mut self, leaf: usize, after: After) {
        let (mut node, mut budget, memory) = match after {
            After::Waits(budget) => (leaf, Some(budget), 0),
            After::Leaves(memory) => (leaf, None, memory),
        };
        while node != ROOT as usize {
            if let Some(budget) = budget {
                let member = &mut self.members[node];
                let step = (member.service << SHIFT) / member.weight;
                member.start = member.start.wrapping_add(step);
                member.service = 0;
                member.place = Place::Away;
                self.queue(node, budget, None);
            } else {
                self.retire(node, memory);
            }
            node = self.members[node].parent;
            if node != ROOT as usize {
                budget = self.next(node).map(|(_, child)| self.members[child].budget);
            }
        }
    }
}
