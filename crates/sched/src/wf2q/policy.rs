//! Where the original engine errs, and what happens there instead.
//!
//! [`Policy::Exact`] is what everybody should use. [`Policy::Kernel`] repeats the five mistakes of
//! Linux, for comparison and for who relies on them:
//!
//! 1. the lookup stops early and may miss an entity that finishes sooner;
//! 2. virtual time steps back when nobody waits and all that remembers its finish is behind it;
//! 3. virtual time advances only if that makes the *number* larger, so not across the wrap;
//! 4. a group in service whose children change is charged for its slot at once, and again when the
//!    slot ends;
//! 5. the idle class counts as served whenever its guarantee was looked at and had expired, even
//!    if it had nothing to serve.
//!
//! Source: Linux, block/bfq-wf2q.c, `bfq_first_active_entity`, `bfq_forget_idle`,
//! `bfq_update_vtime`, `__bfq_requeue_entity`, `bfq_lookup_next_entity`.

use alloc::vec::Vec;

use super::entity::{Arena, Place, Sched, ServiceTree};
use super::vtime::Vtime;
use super::{Node, ROOT, Return, Wf2q};
use crate::tree::NIL;
use crate::{Class, Nanos};

/// How the engine decides where the original errs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Policy {
    /// As the algorithm is published.
    #[default]
    Exact,
    /// As Linux does it.
    Kernel,
}

impl ServiceTree {
    /// Returns the earliest virtual time from now on at which somebody is eligible, and the
    /// eligible entity that finishes first.
    #[inline]
    pub(super) fn next(&self, arena: &Arena, policy: Policy) -> Option<(Vtime, Node)> {
        self.active.root().map(|root| self.next_below(root, arena, policy))
    }

    /// The same where somebody waits, below `root`: mostly two classes of three are empty, and cost
    /// no call.
    fn next_below(&self, root: Node, arena: &Arena, policy: Policy) -> (Vtime, Node) {
        let vtime = self.vtime.max(arena.at(root).min_start);
        let node = match policy {
            Policy::Exact => first_eligible(arena, root, vtime),
            Policy::Kernel => some_eligible(arena, root, vtime),
        };
        (vtime, node)
    }

    /// Lets go of one idle entity that virtual time has caught up with; one per call keeps the
    /// cost bounded.
    #[inline]
    pub(super) fn forget(&mut self, arena: &mut Arena, policy: Policy) {
        if policy == Policy::Kernel {
            self.step_back(arena);
        }
        self.forget_first(arena);
    }

    /// Lets virtual time arrive where [`next`](Self::next) found somebody eligible.
    #[inline]
    pub(super) fn arrive(&mut self, vtime: Vtime, policy: Policy) {
        if policy == Policy::Exact || vtime.0 > self.vtime.0 {
            self.vtime = vtime;
        }
    }

    /// Moves virtual time back to the last finish that is remembered, if nobody waits and that
    /// finish has passed.
    fn step_back(&mut self, arena: &Arena) {
        if self.active.is_empty()
            && let Some(last) = self.idle.last(arena)
            && !arena.at(last).finish.is_after(self.vtime)
        {
            self.vtime = arena.at(last).finish;
        }
    }
}

/// Returns the entity with the least finish among the eligible ones below `at`, one at least.
#[inline]
fn first_eligible(arena: &Arena, mut at: Node, vtime: Vtime) -> Node {
    loop {
        let entity = arena.at(at);
        // If anybody on the left is eligible, the answer is there: it finishes earlier.
        at = match entity.links.left() {
            Some(left) if !arena.at(left).min_start.is_after(vtime) => left,
            _ if !entity.start.is_after(vtime) => return at,
            _ => entity.links.right().expect("some eligible entity lies in this subtree"),
        };
    }
}

/// Returns an eligible entity below `at`, mostly the one with the least finish: the walk does not
/// turn right any more once it has met an eligible entity.
fn some_eligible(arena: &Arena, mut at: Node, vtime: Vtime) -> Node {
    let mut found = None;
    loop {
        let entity = arena.at(at);
        if !entity.start.is_after(vtime) {
            found = Some(at);
        }
        at = match (entity.links.left(), found) {
            (Some(left), _) if !arena.at(left).min_start.is_after(vtime) => left,
            (_, Some(found)) => return found,
            _ => entity.links.right().expect("some eligible entity lies in this subtree"),
        };
    }
}

impl Sched {
    /// Returns whether the idle class goes first now.
    #[inline]
    pub(super) fn is_idle_due(&mut self, now: Nanos, guarantee: Nanos, policy: Policy) -> bool {
        let is_waiting = !self.trees[Class::Idle as usize].active.is_empty();
        match policy {
            Policy::Exact => now >= self.idle_due && is_waiting,
            Policy::Kernel if now > self.idle_due => {
                self.idle_due = now + guarantee;
                is_waiting
            }
            Policy::Kernel => false,
        }
    }
}

impl Wf2q {
    /// Takes note, where the original does, of the budget of the child that would be served next in
    /// each group in service: zero if there is none.
    pub(super) fn cache_budgets(&mut self, leaf: Node) {
        let mut group = self.arena.at(leaf).parent;
        while group != ROOT {
            self.arena.at_mut(group).budget = self.next_budget(group).unwrap_or(0);
            group = self.arena.at(group).parent;
        }
    }

    /// Decides from now on by another policy.
    pub(crate) fn set_policy(&mut self, policy: Policy) {
        if core::mem::replace(&mut self.policy, policy) == policy {
            return;
        }
        // Another child may be next now, with another budget; from the deepest groups upwards.
        let count = u32::try_from(self.arena.0.len()).expect("fewer than 2^32 entities");
        let is_waiting = |&node: &Node| {
            let entity = self.arena.at(node);
            !entity.is_leaf() && entity.place == Place::Active
        };
        let mut groups: Vec<Node> = (1..count).filter(is_waiting).collect();
        groups.sort_by_key(|&group| core::cmp::Reverse(self.arena.at(group).depth));
        for group in groups {
            self.child_changed(group, Return::Anew);
        }
    }

    /// Returns whether the original would let a newcomer take the device: whether, at the top of the
    /// tree alone, somebody else than the entity in service would be next.
    pub(crate) fn is_top_contested(&self) -> bool {
        let sched = &self.scheds[0];
        let Some((vtime, next)) = sched.next(&self.arena, self.policy) else { return false };
        if sched.in_service == NIL || self.arena.at(sched.in_service).is_leaf() {
            return true;
        }
        let Some(budget) = self.next_budget(sched.in_service) else { return true };
        // With children that wait, the group in service is a candidate.
        let (group, next) = (self.arena.at(sched.in_service), self.arena.at(next));
        let is_first = !group.start.is_after(vtime) && !group.after(budget).is_after(next.finish);
        next.class < group.class || (next.class == group.class && !is_first)
    }

    /// Returns whether the original gives `leaf` more right than `holder`: a better class, or more
    /// weight, of the leaves if they are siblings, else of their groups.
    pub(crate) fn outranks_by_parent(&self, leaf: Node, holder: Node) -> bool {
        let (one, other) = (self.arena.at(leaf), self.arena.at(holder));
        if one.class < other.class {
            return true;
        }
        let weighed = |node: Node, parent: Node| {
            let are_siblings = one.parent == other.parent;
            self.arena.at(if are_siblings || parent == ROOT { node } else { parent }).wanted()
        };
        weighed(leaf, one.parent) > weighed(holder, other.parent)
    }

    /// Charges a group in service for its slot so far, to charge it again at the end, and those
    /// above it, as far as the original climbs: until what would be served next in a group is
    /// nothing new and has no smaller budget.
    pub(super) fn charge_in_service(&mut self, mut group: Node) {
        let mut below = 0;
        while group != ROOT {
            let budget = self.next_budget(group).unwrap_or(below);
            let entity = self.arena.at_mut(group);
            let before = core::mem::replace(&mut entity.budget, budget);
            if before != 0 && budget >= before {
                return;
            }
            entity.start = entity.after(entity.service);
            below = budget;
            group = entity.parent;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::After;
    use super::*;
    use crate::Weight;
    use crate::testing::Random;

    const NOW: Nanos = Nanos::ORIGIN;
    const GUARANTEE: Nanos = Nanos::from_millis(200);

    fn weight(value: u64) -> Weight {
        Weight::new(value).unwrap()
    }

    fn leaf(engine: &mut Wf2q, parent: Node, share: u64) -> Node {
        engine.add_leaf(parent, Class::BestEffort, weight(share))
    }

    #[test]
    fn the_kernels_lookup_misses_now_and_then_who_finishes_first() {
        let (mut lookups, mut missed) = (0, 0);
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
            for _ in 0..12 {
                let share = 1 + random.below(1000);
                let node = leaf(&mut engine, ROOT, share);
                engine.activate(NOW, node, 1 + random.below(16_384), Return::Anew);
            }
            for _ in 0..200 {
                let tree = engine.scheds[0].trees[Class::BestEffort as usize];
                let [exact, kernel] = [Policy::Exact, Policy::Kernel]
                    .map(|policy| tree.next(&engine.arena, policy).unwrap());
                assert_eq!(exact.0, kernel.0);
                let finishes = [exact.1, kernel.1].map(|node| engine.arena.at(node).finish);
                assert!(!finishes[0].is_after(finishes[1]), "seed {seed}");
                lookups += 1;
                missed += u32::from(finishes[0] != finishes[1]);
                let node = engine.select(NOW).unwrap();
                let service = 1 + random.below(engine.budget(node));
                engine.serve(node, service, service);
                engine.expire(node, After::Waits(1 + random.below(16_384)));
            }
        }
        std::println!("{missed} of {lookups} lookups missed the first to finish");
        assert!(missed > 0 && missed < lookups / 2);
    }

    #[test]
    fn the_kernels_virtual_time_steps_back_to_what_is_remembered() {
        let moved = [Policy::Exact, Policy::Kernel].map(|policy| {
            let mut engine = Wf2q::new(GUARANTEE, policy);
            let nodes = [100, 100].map(|share| leaf(&mut engine, ROOT, share));
            for node in nodes {
                engine.activate(NOW, node, 1000, Return::Anew);
            }
            engine.select(NOW);
            engine.serve(nodes[0], 1000, 1000);
            engine.expire(nodes[0], After::Leaves(0));
            let remembered = engine.arena.at(nodes[0]).finish;
            engine.select(NOW);
            engine.serve(nodes[1], 8000, 8000);
            engine.tree_of(nodes[1]).vtime.0.cast_signed() - remembered.0.cast_signed()
        });
        assert!(moved[0] > 0, "virtual time passes what is remembered");
        assert_eq!(moved[1], 0, "and steps back to it");
    }

    #[test]
    fn the_kernels_virtual_time_does_not_jump_across_the_wrap() {
        for (policy, jumps) in [(Policy::Exact, true), (Policy::Kernel, false)] {
            let mut engine = Wf2q::new(GUARANTEE, policy);
            let node = leaf(&mut engine, ROOT, 100);
            let early = Vtime(u64::MAX - 5);
            engine.tree_of(node).vtime = early;
            engine.activate(NOW, node, 1000, Return::Anew);
            engine.select(NOW);
            // It received more than virtual time moved by: a sibling still counted.
            engine.arena.at_mut(node).start = early.plus(100);
            engine.expire(node, After::Waits(1000));
            engine.select(NOW);
            let expected = if jumps { early.plus(100) } else { early };
            assert_eq!(engine.tree_of(node).vtime, expected);
        }
    }

    /// Two groups with a greedy queue each; in the middle of each slot of the first one a visitor
    /// comes to it, who stays for one slot. Returns the share of the first group.
    fn share_with_a_visitor(policy: Policy, weights: [u64; 2]) -> f64 {
        let mut engine = Wf2q::new(GUARANTEE, policy);
        let groups = weights.map(|share| engine.add_group(ROOT, weight(share)));
        let greedy = groups.map(|group| leaf(&mut engine, group, 40));
        let visitor = leaf(&mut engine, groups[0], 40);
        for node in greedy {
            engine.activate(NOW, node, 512, Return::Anew);
        }
        for _ in 0..20_000 {
            let node = engine.select(NOW).unwrap();
            engine.serve(node, 256, 256);
            if node == greedy[0] && !engine.is_active_or_in_service(visitor).0 {
                engine.activate(NOW, visitor, 512, Return::Anew);
            }
            engine.serve(node, 256, 256);
            let after = if node == visitor { After::Leaves(0) } else { After::Waits(512) };
            engine.expire(node, after);
            engine.check();
        }
        #[expect(clippy::cast_precision_loss, reason = "sectors of a short test")]
        let share = engine.total(groups[0]) as f64 / engine.total(ROOT) as f64;
        share
    }

    #[test]
    fn a_group_with_visitors_keeps_its_share_unless_the_kernel_charges_it_twice() {
        for (policy, weights, expected) in [
            (Policy::Exact, [100, 100], 0.5),
            (Policy::Kernel, [100, 100], 0.444),
            (Policy::Exact, [300, 100], 0.75),
            (Policy::Kernel, [300, 100], 0.706),
        ] {
            let share = share_with_a_visitor(policy, weights);
            std::println!("{policy:?} {weights:?}: {share:.4}");
            assert!((share - expected).abs() < 0.005, "{policy:?} {weights:?}: {share}");
        }
    }

    #[test]
    fn the_kernels_idle_guarantee_runs_whether_or_not_anybody_idles() {
        for (policy, is_served) in [(Policy::Exact, false), (Policy::Kernel, true)] {
            let mut engine = Wf2q::new(GUARANTEE, policy);
            let busy = leaf(&mut engine, ROOT, 40);
            let idle = engine.add_leaf(ROOT, Class::Idle, weight(10));
            engine.activate(NOW, busy, 8, Return::Anew);
            engine.select(NOW);
            engine.expire(busy, After::Waits(8));
            // Nobody was idle when the guarantee was looked at first. Now somebody is, just
            // before it is looked at again.
            let now = NOW + GUARANTEE + Nanos(1);
            engine.activate(now, idle, 8, Return::Anew);
            assert_eq!(engine.select(now) == Some(idle), is_served, "{policy:?}");
        }
        // Here the guarantee has just been used up for nothing.
        let mut engine = Wf2q::new(GUARANTEE, Policy::Kernel);
        let busy = leaf(&mut engine, ROOT, 40);
        let idle = engine.add_leaf(ROOT, Class::Idle, weight(10));
        engine.activate(NOW, busy, 8, Return::Anew);
        engine.select(NOW);
        engine.expire(busy, After::Waits(8));
        engine.activate(NOW, idle, 8, Return::Anew);
        assert_eq!(engine.select(NOW), Some(busy));
    }
}
