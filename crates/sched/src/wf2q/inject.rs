//! Service out of turn: a leaf receives something while another one is in service.
//!
//! What waits lies in its tree where its start and its budget put it, and holds no service of its
//! own; so service out of turn moves the start of the leaf, and of every waiting group above it, at
//! once. (The kernel adds it to a slot that has not begun, and looks the entity up at its old
//! place.) Where the paths join, groups in service are charged as for any other request.

use super::entity::Place;
use super::{Node, ROOT, Return, Wf2q};

impl Wf2q {
    /// Returns the parent of an entity other than the root.
    pub(crate) fn parent(&self, node: Node) -> Node {
        self.arena.at(node).parent
    }

    /// Returns the leaf that would be served next among the siblings of `node`, which is in
    /// service, and below them.
    pub(crate) fn runner_up(&self, node: Node) -> Option<Node> {
        let mut group = self.arena.at(node).parent;
        loop {
            let sched = &self.scheds[self.arena.at(group).sched as usize];
            let (_, next) = sched.next(&self.arena, self.policy)?;
            if self.arena.at(next).is_leaf() {
                return Some(next);
            }
            group = next;
        }
    }

    /// Returns whether a waiting leaf may be served out of turn: neither it nor any waiting group
    /// above it is ahead of virtual time by more than its budget.
    pub(crate) fn has_credit(&self, leaf: Node) -> bool {
        let mut node = leaf;
        while node != ROOT && self.arena.at(node).place == Place::Active {
            let entity = self.arena.at(node);
            let sched = &self.scheds[entity.competes_in as usize];
            let tree = &sched.trees[entity.class as usize];
            if entity.start.is_after(tree.vtime.after(entity.budget, u64::from(entity.weight))) {
                return false;
            }
            node = entity.parent;
        }
        true
    }

    /// Charges `cost` sectors, of which `moved` were really moved, to a leaf that waits or is in
    /// service, and to all above it.
    pub(crate) fn serve_out_of_turn(&mut self, leaf: Node, cost: u64, moved: u64) {
        debug_assert!(cost >= moved, "P5: what is moved is charged");
        let mut node = leaf;
        while node != ROOT {
            let entity = self.arena.at_mut(node);
            entity.total += moved;
            let (parent, class, place) = (entity.parent, entity.class, entity.place);
            let sched = entity.competes_in;
            let tree = &mut self.scheds[sched as usize].trees[class as usize];
            tree.vtime = tree.vtime.after(cost, tree.wsum);
            match place {
                Place::InService => self.arena.at_mut(node).service += cost,
                Place::Active => self.advance(node, cost),
                Place::Away | Place::Idle => unreachable!("who has requests waits or is served"),
            }
            self.scheds[sched as usize].trees[class as usize].forget(&mut self.arena, self.policy);
            node = parent;
        }
        self.arena.at_mut(ROOT).total += moved;
    }

    /// Moves the start of a waiting entity by what it has received.
    fn advance(&mut self, node: Node, cost: u64) {
        self.leave_active(node);
        let entity = self.arena.at_mut(node);
        entity.step_back();
        entity.start = entity.after(cost);
        let budget = if entity.is_leaf() {
            entity.budget
        } else {
            self.next_budget(node).expect("a waiting group has a waiting child")
        };
        self.queue(node, budget, None);
    }

    /// Takes a leaf that is not in service out of the competition, to be remembered as one that
    /// [leaves](super::After::Leaves) at the end of its slot.
    pub(crate) fn leave(&mut self, leaf: Node, memory: u64) {
        let mut node = leaf;
        loop {
            self.leave_active(node);
            self.retire(node, memory);
            node = self.arena.at(node).parent;
            if node == ROOT || self.arena.at(node).place == Place::InService {
                return;
            }
            if self.next_budget(node).is_some() {
                return self.child_changed(node, Return::Anew);
            }
        }
    }

    /// Returns how many of `slots` the weights of a leaf and of all groups above it earn among
    /// those that have something to do; at least 1. At the leaf itself better classes count eight
    /// times.
    pub(crate) fn fair_slots(&self, leaf: Node, slots: u32) -> u32 {
        let mut share = u64::from(slots);
        let mut node = leaf;
        while node != ROOT {
            let entity = self.arena.at(node);
            let sched = &self.scheds[entity.competes_in as usize];
            let classes = &sched.trees[..=entity.class as usize];
            let wsum = if entity.is_leaf() {
                classes.iter().fold(0, |wsum, tree| wsum * 8 + tree.wsum)
            } else {
                classes[entity.class as usize].wsum
            };
            let earned = share * u64::from(entity.weight) + wsum / 2;
            share = earned.checked_div(wsum).unwrap_or(share);
            node = entity.parent;
        }
        u32::try_from(share).unwrap_or(slots).clamp(1, slots.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wf2q::Policy;
    use crate::{Class, Nanos, Weight};

    fn weight(value: u64) -> Weight {
        Weight::new(value).unwrap()
    }

    #[test]
    fn slots_are_shared_by_weight_level_by_level() {
        let mut engine = Wf2q::new(Nanos::from_millis(200), Policy::Exact);
        let [small, large] = [100, 300].map(|share| engine.add_group(ROOT, weight(share)));
        let leaves = [small, small, large]
            .map(|group| engine.add_leaf(group, Class::BestEffort, weight(40)));
        for leaf in leaves {
            engine.activate(Nanos::ORIGIN, leaf, 512, Return::Anew);
        }
        assert_eq!(leaves.map(|leaf| engine.fair_slots(leaf, 64)), [8, 8, 48]);
        assert_eq!(leaves.map(|leaf| engine.fair_slots(leaf, 1)), [1, 1, 1]);
        let urgent = engine.add_leaf(small, Class::RealTime, weight(40));
        engine.activate(Nanos::ORIGIN, urgent, 512, Return::Anew);
        // 64 / 4 * 40 / (8 * 40 + 80) = 1.6
        assert_eq!(engine.fair_slots(leaves[0], 64), 2);
    }

    #[test]
    fn service_out_of_turn_counts_like_any_other() {
        let mut engine = Wf2q::new(Nanos::from_millis(200), Policy::Exact);
        let groups = [100, 100].map(|share| engine.add_group(ROOT, weight(share)));
        let leaves = groups.map(|group| engine.add_leaf(group, Class::BestEffort, weight(40)));
        for leaf in leaves {
            engine.activate(Nanos::ORIGIN, leaf, 100, Return::Anew);
        }
        let mut received = [0, 0];
        for _ in 0..1000 {
            let leaf = engine.select(Nanos::ORIGIN).unwrap();
            let own = usize::from(leaf == leaves[1]);
            received[own] += 100;
            engine.serve(leaf, 100, 100);
            // The second gets ten sectors of every slot of the first, as long as it may.
            if own == 0 && engine.has_credit(leaves[1]) {
                assert_eq!(engine.runner_up(groups[0]), Some(leaves[1]));
                engine.serve_out_of_turn(leaves[1], 10, 10);
                received[1] += 10;
            }
            engine.check();
            engine.expire(leaf, super::super::After::Waits(100));
            engine.check();
            assert!(u64::abs_diff(received[0], received[1]) <= 200, "{received:?}");
        }
    }

    #[test]
    fn who_is_ahead_by_a_budget_has_no_credit_left() {
        let mut engine = Wf2q::new(Nanos::from_millis(200), Policy::Exact);
        let leaves = [40, 40].map(|share| engine.add_leaf(ROOT, Class::BestEffort, weight(share)));
        for leaf in leaves {
            engine.activate(Nanos::ORIGIN, leaf, 100, Return::Anew);
        }
        assert_eq!(engine.select(Nanos::ORIGIN), Some(leaves[0]));
        let mut received = 0;
        while engine.has_credit(leaves[1]) {
            engine.serve_out_of_turn(leaves[1], 10, 10);
            received += 10;
            engine.check();
        }
        // Half of what it receives moves virtual time along.
        assert_eq!(received, 210);
        engine.leave(leaves[1], 0);
        engine.check();
    }
}
