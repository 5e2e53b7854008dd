//! What must hold of the competition after every call.

use alloc::vec::Vec;

use super::entity::{Arena, Entity, Place, Sched, ServiceTree};
use super::vtime::Vtime;
use super::{Node, ROOT, Wf2q};
use crate::tree::{NIL, some, successor};

impl Wf2q {
    /// Returns the raise asked for.
    pub(crate) fn coeff_wanted(&self, node: Node) -> u16 {
        self.arena.at(node).new_coeff
    }

    /// Returns whether a leaf waits for service, and whether it is in service.
    pub(crate) fn is_active_or_in_service(&self, node: Node) -> (bool, bool) {
        let place = self.arena.at(node).place;
        (place == Place::Active, place == Place::InService)
    }

    /// Panics if trees, sums, places or budgets contradict each other. O(everything).
    pub(crate) fn check(&self) {
        let is_free = |node: &Node| self.free_entities.contains(node);
        let nodes = (1..).take(self.arena.0.len() - 1).filter(|node| !is_free(node));
        for node in nodes.clone() {
            self.check_entity(node);
        }
        let groups = nodes.clone().filter(|&node| !self.arena.at(node).is_leaf());
        for group in groups.chain([ROOT]) {
            let sched = &self.scheds[self.arena.at(group).sched as usize];
            self.check_sched(group, sched, nodes.clone());
        }
    }

    fn check_entity(&self, node: Node) {
        let entity = self.arena.at(node);
        let parent = self.arena.at(entity.parent);
        assert_eq!(entity.competes_in, parent.sched, "it competes among its parent's children");
        let sched = &self.scheds[parent.sched as usize];
        let is_linked = entity.links.is_linked();
        assert_eq!(is_linked, matches!(entity.place, Place::Active | Place::Idle), "E7");
        assert_eq!(
            entity.place == Place::InService,
            sched.in_service == node,
            "E8: one child at most is in service"
        );
        if entity.place == Place::Active {
            assert_eq!(entity.finish, entity.after(entity.budget), "E6");
            assert!(entity.service == 0, "service belongs to the slot in progress");
            let parent_works = matches!(parent.place, Place::Active | Place::InService);
            assert!(parent_works || entity.parent == ROOT, "who waits, waits with its parent");
            if !entity.is_leaf() {
                assert_eq!(self.next_budget(node), Some(entity.budget), "E10");
            }
        }
        if entity.place == Place::InService && entity.parent != ROOT {
            assert_eq!(parent.place, Place::InService, "E8: service follows a path");
        }
        if matches!(entity.place, Place::Away | Place::Idle) && !entity.is_leaf() {
            assert_eq!(self.next_budget(node), None, "a group without work has no busy child");
        }
    }

    fn check_sched(&self, group: Node, sched: &Sched, nodes: impl Iterator<Item = Node> + Clone) {
        let children = nodes.filter(|&node| self.arena.at(node).parent == group);
        if self.arena.at(group).place != Place::InService && group != ROOT {
            assert_eq!(sched.in_service, NIL, "E8: no service below a group out of service");
        }
        for (class, tree) in sched.trees.iter().enumerate() {
            let of = |node: &Node| self.arena.at(*node).class as usize == class;
            let members = children.clone().filter(of).map(|node| self.arena.at(node));
            tree.check(&self.arena, &members.collect::<Vec<_>>());
        }
    }
}

impl ServiceTree {
    fn check(&self, arena: &Arena, members: &[&Entity]) {
        let counted = members.iter().filter(|entity| entity.place != Place::Away);
        let wsum: u64 = counted.map(|entity| u64::from(entity.weight)).sum();
        assert_eq!(self.wsum, wsum, "E1: the sum of the weights that count");
        let count = |place| members.iter().filter(|entity| entity.place == place).count();
        let waits = |entity: &&&Entity| entity.place == Place::Active && entity.coeff > 1;
        assert_eq!(self.raised as usize, members.iter().filter(waits).count(), "raised ones");
        assert_eq!(self.active.check(arena) as usize, count(Place::Active), "E3, E7");
        assert_eq!(self.idle.check(arena) as usize, count(Place::Idle), "E3, E7");
        assert_eq!(self.idle.first(arena), some(self.first_idle), "the first is known");
        let mut at = self.active.first(arena);
        let mut least: Option<Vtime> = None;
        while let Some(node) = at {
            let entity = arena.at(node);
            let children = [entity.links.left(), entity.links.right()];
            let below = children.into_iter().flatten().map(|child| arena.at(child).min_start);
            assert_eq!(entity.min_start, below.fold(entity.start, Vtime::min), "E2");
            least = Some(least.map_or(entity.start, |least| least.min(entity.start)));
            at = successor(arena, node);
        }
        assert_eq!(self.active.root().map(|root| arena.at(root).min_start), least, "E2");
    }
}
