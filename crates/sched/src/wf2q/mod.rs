//! B-WF2Q+: who is next, so that everybody gets the share that its weight earns.
//!
//! Think of a row of people who draw water into cups of different sizes. On the wall hangs a clock
//! that advances by one tick for every tick's worth of water that an ideal tap, split among all
//! of them, would have given each. A person may draw once the clock has reached the moment at
//! which its last cup was paid for (its *start*); among those who may, the one whose next cup
//! would be paid for soonest (its *finish*) is first. So nobody runs ahead of the ideal tap by more
//! than its own cup, or falls behind it by more than the largest one.
//!
//! Entities form a tree: leaves are queues, inner nodes are groups, the root is the pool. In each
//! group one child at most is *in service*; those children form one path from the root to a leaf.
//! An entity in service lies in no search tree: its place is settled when its slot ends, from what
//! it really received. So a child that becomes active below an entity in service changes nothing
//! above, and no service is charged twice (the kernel repositions the group and pays twice).
//!
//! Where this differs from the kernel, besides that ([`Policy`] restores the kernel's errors):
//!
//! * The lookup is exact: always the least finish among the eligible, in O(log n).
//! * Virtual time never moves backwards, and all comparisons are wrap-safe.
//! * No successor is cached: it is looked up when it is needed. The budget of a group that waits
//!   is always that of the child that would be served, and the group lies where that puts it.
//! * The idle class is served once per guarantee interval *while it waits*; the interval begins
//!   when it becomes active, not when somebody looks.
//! * An entity can be forgiven its lead over virtual time, once ([`Wf2q::forgive`]); its lag goes with
//!   the lead: at a raised weight it would be worth as many times more.
//! * An entity can be relieved of both for as long as it is raised ([`Wf2q::lift`]): a group that was
//!   served a moment ago need not sit out its turn when an application starts in it. Nothing is
//!   given away: afterwards it waits for as long as it would have. It also goes before those whose
//!   finish virtual time has passed while somebody had a large slot. That is the warp of K. J. Duda and
//!   D. R. Cheriton, "Borrowed-Virtual-Time (BVT) Scheduling", SOSP 1999.
//!
//! Source: P. Valente and F. Checconi, "High Throughput Disk Scheduling with Fair Bandwidth
//! Distribution", IEEE Transactions on Computers 59(9), 2010; J. C. R. Bennett and H. Zhang,
//! "Hierarchical Packet Fair Queueing Algorithms", 1997.

mod check;
#[cfg(test)]
mod deviation;
mod entity;
mod inject;
#[cfg(test)]
mod model;
mod policy;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod vtime;

use alloc::vec::Vec;

use crate::tree::NIL;
use crate::{Class, Nanos, Weight};
use entity::{Arena, Entity, Place, Sched, ServiceTree};
pub(crate) use policy::Policy;
use vtime::delta;

/// Names an entity.
pub(crate) type Node = u32;

/// The pool: the parent of the topmost entities. It competes with nobody.
pub(crate) const ROOT: Node = 0;

/// How a leaf comes back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Return {
    /// After a pause: from virtual time on, or from its finish if that lies ahead.
    Anew,
    /// At once, having paused only to wait for its own requests: as though it had never stopped.
    /// It gets back what it missed up to its budget, or up to this many sectors if that is more.
    Continued(u64),
}

/// What the leaf in service does when its slot ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum After {
    /// It has requests, and waits with this budget, in sectors.
    Waits(u64),
    /// It has none, and goes. If it is expected to [continue](Return::Continued), its weight goes
    /// on counting until virtual time is this many sectors ahead of it; otherwise virtual time
    /// would run too fast for everybody, as though the leaf had given its share away.
    Leaves(u64),
}

/// All entities of a pool and their competition.
#[derive(Clone, Debug)]
pub(crate) struct Wf2q {
    arena: Arena,
    scheds: Vec<Sched>,
    free_entities: Vec<Node>,
    free_scheds: Vec<u32>,
    /// Longest time that the idle class of a group waits while others are served.
    idle_guarantee: Nanos,
    policy: Policy,
}

impl Wf2q {
    pub(crate) fn new(idle_guarantee: Nanos, policy: Policy) -> Self {
        let mut arena = Arena::default();
        arena.0.push(Entity::new(NIL, 0, Class::BestEffort, 100, 0));
        let scheds = Vec::from([Sched::NEW]);
        let (free_entities, free_scheds) = (Vec::new(), Vec::new());
        Self { arena, scheds, free_entities, free_scheds, idle_guarantee, policy }
    }

    /// Adds a group; groups are always best effort among their siblings.
    pub(crate) fn add_group(&mut self, parent: Node, weight: Weight) -> Node {
        let sched = match self.free_scheds.pop() {
            Some(sched) => {
                self.scheds[sched as usize] = Sched::NEW;
                sched
            }
            None => {
                self.scheds.push(Sched::NEW);
                index_of_last(self.scheds.len())
            }
        };
        self.add(parent, Class::BestEffort, weight, sched)
    }

    /// Adds a queue.
    pub(crate) fn add_leaf(&mut self, parent: Node, class: Class, weight: Weight) -> Node {
        self.add(parent, class, weight, NIL)
    }

    fn add(&mut self, parent: Node, class: Class, weight: Weight, sched: u32) -> Node {
        assert!(!self.arena.at(parent).is_leaf(), "only groups have children");
        let depth = self.arena.at(parent).depth.checked_add(1).expect("at most 255 levels");
        let competes_in = self.arena.at(parent).sched;
        let entity =
            Entity { competes_in, ..Entity::new(parent, depth, class, weight.value(), sched) };
        if let Some(node) = self.free_entities.pop() {
            *self.arena.at_mut(node) = entity;
            return node;
        }
        self.arena.0.push(entity);
        index_of_last(self.arena.0.len())
    }

    /// Removes an entity that neither waits nor is in service, and has no children.
    pub(crate) fn remove(&mut self, node: Node) {
        let place = self.arena.at(node).place;
        assert!(
            matches!(place, Place::Away | Place::Idle),
            "what is removed has nothing to do any more"
        );
        if place == Place::Idle {
            self.leave_idle(node);
            let weight = u64::from(self.arena.at(node).weight);
            self.tree_of(node).wsum -= weight;
            self.arena.at_mut(node).place = Place::Away;
        }
        let sched = self.arena.at(node).sched;
        if sched != NIL {
            self.free_scheds.push(sched);
        }
        self.free_entities.push(node);
    }

    /// Asks for another weight; in force when the entity is next queued.
    pub(crate) fn set_weight(&mut self, node: Node, weight: Weight) {
        self.arena.at_mut(node).base = weight.value();
    }

    /// Asks for another raise; in force when the entity is next queued.
    pub(crate) fn set_coeff(&mut self, node: Node, coeff: u16) {
        self.arena.at_mut(node).new_coeff = coeff;
    }

    /// Forgives the entity its lead over virtual time when it is next queued, and its lag: at a
    /// larger weight that would be worth more than it was.
    pub(crate) fn forgive(&mut self, node: Node) {
        self.arena.at_mut(node).is_forgiven = true;
    }

    /// Lets the entity start at virtual time when it is next queued, if it is raised then, and go before
    /// its siblings until it is served. Its lead, or its lag, returns when it is raised no longer: what
    /// it received at its own weight neither delays what is urgent, nor is worth more by that.
    pub(crate) fn lift(&mut self, node: Node) {
        self.arena.at_mut(node).is_lifted = true;
    }

    pub(crate) fn service(&self, node: Node) -> u64 {
        self.arena.at(node).service
    }

    pub(crate) fn budget(&self, node: Node) -> u64 {
        self.arena.at(node).budget
    }

    pub(crate) fn total(&self, node: Node) -> u64 {
        self.arena.at(node).total
    }

    /// Makes a leaf wait for service.
    pub(crate) fn activate(&mut self, now: Nanos, leaf: Node, budget: u64, how: Return) {
        let entity = self.arena.at(leaf);
        if entity.class == Class::Idle && self.policy == Policy::Exact {
            // Groups are best effort, so this concerns leaves alone.
            let sched = &mut self.scheds[entity.competes_in as usize];
            if sched.trees[Class::Idle as usize].active.is_empty() {
                sched.idle_due = now + self.idle_guarantee;
            }
        }
        self.enter(leaf, budget, how);
        self.child_changed(self.arena.at(leaf).parent, how);
    }

    /// Takes a leaf that is not in service out of the competition.
    pub(crate) fn deactivate(&mut self, leaf: Node) {
        self.leave_active(leaf);
        self.retire(leaf, 0);
        self.child_changed(self.arena.at(leaf).parent, Return::Anew);
    }

    /// Gives a waiting leaf another budget; its start stays.
    pub(crate) fn set_budget(&mut self, leaf: Node, budget: u64) {
        debug_assert!(self.arena.at(leaf).place == Place::Active, "a slot's budget is fixed");
        self.requeue(leaf, budget);
        self.child_changed(self.arena.at(leaf).parent, Return::Anew);
    }

    /// Charges `cost` sectors to a leaf and all above it, of which `moved` were really moved.
    #[inline]
    pub(crate) fn serve(&mut self, leaf: Node, cost: u64, moved: u64) {
        debug_assert!(cost >= moved, "P5: what is moved is charged");
        let mut node = leaf;
        while node != ROOT {
            let entity = self.arena.at_mut(node);
            entity.service += cost;
            entity.total += moved;
            let (sched, class) = (entity.competes_in, entity.class);
            node = entity.parent;
            let tree = &mut self.scheds[sched as usize].trees[class as usize];
            tree.vtime = tree.vtime.after(cost, tree.wsum);
            tree.forget(&mut self.arena, self.policy);
        }
        self.arena.at_mut(ROOT).total += moved;
    }

    /// Charges `cost` sectors to one entity of the path in service alone.
    pub(crate) fn charge_one(&mut self, node: Node, cost: u64) {
        let entity = self.arena.at_mut(node);
        debug_assert!(entity.place == Place::InService, "who is served pays");
        entity.service += cost;
        let (sched, class) = (entity.competes_in, entity.class);
        let tree = &mut self.scheds[sched as usize].trees[class as usize];
        tree.vtime = tree.vtime.after(cost, tree.wsum);
        tree.forget(&mut self.arena, self.policy);
    }

    /// Raises the budget of the leaf in service to at least `budget`: a charge may exceed it.
    pub(crate) fn extend_budget(&mut self, leaf: Node, budget: u64) {
        let entity = self.arena.at_mut(leaf);
        entity.budget = entity.budget.max(budget);
    }

    /// Sets the leaf that is next in service. Nobody may be in service.
    pub(crate) fn select(&mut self, now: Nanos) -> Option<Node> {
        let mut group = ROOT;
        loop {
            let sched = &mut self.scheds[self.arena.at(group).sched as usize];
            assert!(sched.in_service == NIL, "one path is in service at a time");
            let idle_class = Class::Idle as usize;
            let found = if sched.is_idle_due(now, self.idle_guarantee, self.policy) {
                sched.trees[idle_class].next(&self.arena, self.policy)
            } else {
                sched.next(&self.arena, self.policy)
            };
            let (vtime, node) = found?;
            let class = self.arena.at(node).class;
            if class == Class::Idle && self.policy == Policy::Exact {
                sched.idle_due = now + self.idle_guarantee;
            }
            let tree = &mut sched.trees[class as usize];
            tree.arrive(vtime, self.policy);
            tree.leave_active(&mut self.arena, node);
            tree.forget(&mut self.arena, self.policy);
            sched.in_service = node;
            let entity = self.arena.at_mut(node);
            entity.place = Place::InService;
            entity.step_back();
            if entity.is_leaf() {
                if self.policy == Policy::Kernel {
                    self.cache_budgets(node);
                }
                return Some(node);
            }
            group = node;
        }
    }

    /// Ends the slot of the leaf in service.
    pub(crate) fn expire(&mut self, leaf: Node, after: After) {
        let (mut node, mut budget, memory) = match after {
            After::Waits(budget) => (leaf, Some(budget), 0),
            After::Leaves(memory) => (leaf, None, memory),
        };
        loop {
            let Entity { parent, competes_in, .. } = *self.arena.at(node);
            let sched = &mut self.scheds[competes_in as usize];
            assert!(sched.in_service == node, "the leaf in service expires");
            sched.in_service = NIL;
            match budget {
                Some(budget) => {
                    self.arena.at_mut(node).end_slot();
                    self.queue(node, budget, None);
                }
                None => self.retire(node, memory),
            }
            if parent == ROOT {
                return;
            }
            node = parent;
            budget = self.next_budget(node);
        }
    }

    /// Puts weights asked for on the path in service in force at once, so that the slot in
    /// progress is already stamped with them.
    pub(crate) fn settle_weights(&mut self, leaf: Node) {
        let mut node = leaf;
        while node != ROOT {
            if self.arena.at(node).place == Place::InService {
                self.settle_weight(node);
            }
            node = self.arena.at(node).parent;
        }
    }

    /// Returns whether `leaf`, were the leaf in service `holder` gone, would be served next, as
    /// far as the two compete: from the level at which their paths part down to the leaf.
    pub(crate) fn is_next(&self, leaf: Node, holder: Node) -> bool {
        let (top, _) = self.rivals(leaf, holder);
        let mut node = leaf;
        loop {
            let Entity { parent, competes_in, .. } = *self.arena.at(node);
            let sched = &self.scheds[competes_in as usize];
            if sched.next(&self.arena, self.policy).is_none_or(|(_, next)| next != node) {
                return false;
            }
            if node == top {
                return true;
            }
            node = parent;
        }
    }

    /// Returns whether the groups that both leaves are in would be served again if the slot of
    /// `holder`, which is in service, ended now; `leaf` is next among those in the lowest of them.
    pub(crate) fn would_stay(&self, leaf: Node, holder: Node) -> bool {
        let budget = self.arena.at(leaf).budget;
        let mut node = self.arena.at(self.rivals(leaf, holder).0).parent;
        while node != ROOT {
            let mut group = self.arena.at(node).clone();
            let sched = &self.scheds[group.competes_in as usize];
            if let Some((vtime, rival)) = sched.next(&self.arena, self.policy) {
                let tree = &sched.trees[group.class as usize];
                let now = tree.vtime;
                group.continue_with(now, budget, tree.least_finish(&self.arena));
                let rival = self.arena.at(rival);
                // Where nobody is eligible yet, the first to be so is next.
                let is_first = vtime.is_after(now) && vtime.is_after(group.start);
                let is_next = !group.start.is_after(vtime) && rival.finish.is_after(group.finish);
                let is_better = group.class < rival.class;
                if !is_better && (rival.class < group.class || !(is_first || is_next)) {
                    return false;
                }
            }
            node = group.parent;
        }
        true
    }

    /// Returns whether `leaf` has more right than `holder` at the level at which their paths part:
    /// a better class or a larger weight, raises included.
    pub(crate) fn outranks(&self, leaf: Node, holder: Node) -> bool {
        let (one, other) = self.rivals(leaf, holder);
        let (one, other) = (self.arena.at(one), self.arena.at(other));
        one.class < other.class || (one.class == other.class && one.wanted() > other.wanted())
    }

    /// Returns whether the leaf in service, or a group above it, would still be more than
    /// `tolerance` sectors behind its share if its slot ended now.
    pub(crate) fn is_behind(&self, leaf: Node, tolerance: u64) -> bool {
        let mut node = leaf;
        while node != ROOT {
            let entity = self.arena.at(node);
            let sched = &self.scheds[entity.competes_in as usize];
            let vtime = sched.trees[entity.class as usize].vtime;
            if entity.is_left_behind(vtime, entity.service + tolerance) {
                return true;
            }
            node = entity.parent;
        }
        false
    }

    /// Returns the two siblings in which the paths to two different leaves part.
    fn rivals(&self, mut one: Node, mut other: Node) -> (Node, Node) {
        while self.arena.at(one).parent != self.arena.at(other).parent {
            if self.arena.at(one).depth >= self.arena.at(other).depth {
                one = self.arena.at(one).parent;
            } else {
                other = self.arena.at(other).parent;
            }
        }
        (one, other)
    }

    /// Repositions, activates or deactivates the groups from `group` upwards after the children of
    /// `group` changed, as far as that changes anything. Groups in service wait for their slot's
    /// end, where the original would not (see [`Policy`]).
    fn child_changed(&mut self, mut group: Node, how: Return) {
        while group != ROOT {
            let entity = self.arena.at(group);
            let (place, parent) = (entity.place, entity.parent);
            if place == Place::InService {
                if self.policy == Policy::Kernel {
                    self.charge_in_service(group);
                }
                return;
            }
            match self.next_budget(group) {
                Some(budget) if place == Place::Active => {
                    let entity = self.arena.at(group);
                    if entity.budget == budget
                        && entity.weight == entity.wanted()
                        && !entity.is_forgiven
                        && !entity.is_lifted
                    {
                        return;
                    }
                    self.requeue(group, budget);
                }
                Some(budget) => self.enter(group, budget, how),
                None => {
                    self.leave_active(group);
                    self.retire(group, 0);
                }
            }
            group = parent;
        }
    }

    /// Returns the budget of the child of `group` that would be served next.
    fn next_budget(&self, group: Node) -> Option<u64> {
        let sched = &self.scheds[self.arena.at(group).sched as usize];
        sched.next(&self.arena, self.policy).map(|(_, child)| self.arena.at(child).budget)
    }

    /// Lets an entity that is away or idle wait for service.
    fn enter(&mut self, node: Node, budget: u64, how: Return) {
        let was_idle = self.arena.at(node).place == Place::Idle;
        if was_idle {
            self.leave_idle(node);
            self.arena.at_mut(node).drop_hold();
        } else {
            assert!(self.arena.at(node).place == Place::Away, "what enters does not wait yet");
            let weight = u64::from(self.arena.at(node).weight);
            self.tree_of(node).wsum += weight;
        }
        let vtime = self.tree_of(node).vtime;
        let entity = self.arena.at_mut(node);
        let missed = match how {
            Return::Continued(memory) if vtime.is_after(entity.finish) => Some(memory),
            _ => None,
        };
        entity.start = if missed.is_some() {
            entity.finish
        } else if was_idle {
            vtime.max(entity.finish)
        } else {
            vtime
        };
        self.queue(node, budget, missed);
    }

    /// Moves a waiting entity to where a new budget or weight puts it.
    fn requeue(&mut self, node: Node, budget: u64) {
        self.leave_active(node);
        self.queue(node, budget, None);
    }

    /// Inserts an entity whose start is known into the active tree. One that `missed` service gets
    /// back no more than its budget, or the given number of sectors if that is more.
    fn queue(&mut self, node: Node, budget: u64, missed: Option<u64>) {
        self.settle_weight(node);
        let entity = self.arena.at(node);
        let (sched, class) = (entity.competes_in, entity.class);
        let tree = &mut self.scheds[sched as usize].trees[class as usize];
        let first = if entity.goes_before() { tree.least_finish(&self.arena) } else { None };
        let entity = self.arena.at_mut(node);
        entity.stamp(tree.vtime, budget, missed, first);
        entity.place = Place::Active;
        tree.enter_active(&mut self.arena, node);
    }

    /// Takes an entity that is in no tree out of the competition, stamped with what it received.
    fn retire(&mut self, node: Node, memory: u64) {
        let entity = self.arena.at_mut(node);
        entity.step_back();
        entity.hold = delta(memory, u64::from(entity.weight));
        let warp = core::mem::take(&mut entity.warp);
        entity.finish = entity.after(entity.service).plus(warp).plus(entity.hold);
        entity.service = 0;
        let (finish, weight) = (entity.finish, u64::from(entity.weight));
        let (sched, class) = (entity.competes_in, entity.class);
        let tree = &mut self.scheds[sched as usize].trees[class as usize];
        let place = if finish.is_after(tree.vtime) {
            tree.enter_idle(&mut self.arena, node);
            Place::Idle
        } else {
            tree.wsum -= weight;
            self.arena.at_mut(node).drop_hold();
            Place::Away
        };
        self.arena.at_mut(node).place = place;
    }

    /// Puts the weight asked for in force. The entity counts and is in no tree.
    fn settle_weight(&mut self, node: Node) {
        let entity = self.arena.at_mut(node);
        let (old, new) = (entity.weight, entity.wanted());
        entity.coeff = entity.new_coeff;
        if old != new {
            entity.weight = new;
            let tree = self.tree_of(node);
            tree.wsum = tree.wsum - u64::from(old) + u64::from(new);
        }
    }

    fn leave_active(&mut self, node: Node) {
        let entity = self.arena.at(node);
        debug_assert!(entity.place == Place::Active, "it waits");
        let (sched, class) = (entity.competes_in, entity.class);
        let sched = &mut self.scheds[sched as usize];
        sched.trees[class as usize].leave_active(&mut self.arena, node);
    }

    fn leave_idle(&mut self, node: Node) {
        let entity = self.arena.at(node);
        let (sched, class) = (entity.competes_in, entity.class);
        let sched = &mut self.scheds[sched as usize];
        sched.trees[class as usize].leave_idle(&mut self.arena, node);
    }

    fn tree_of(&mut self, node: Node) -> &mut ServiceTree {
        let entity = self.arena.at(node);
        let (sched, class) = (entity.competes_in, entity.class);
        &mut self.scheds[sched as usize].trees[class as usize]
    }
}

/// Returns the index of the last of `len` elements.
fn index_of_last(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer than 2^32 entities")
}
