//! Vectors, differential tests against the naive model, and the bounds on fairness.

use std::vec::Vec;

use super::entity::Place;
use super::model::Model;
use super::vtime::Vtime;
use super::{After, Node, Policy, ROOT, Return, Wf2q};
use crate::testing::{Random, for_many_seeds};
use crate::{Class, Nanos, Weight};

const GUARANTEE: Nanos = Nanos::from_millis(200);
const NOW: Nanos = Nanos::ORIGIN;

fn weight(value: u64) -> Weight {
    Weight::new(value).unwrap()
}

fn waits_if(waits: bool, budget: u64) -> After {
    if waits { After::Waits(budget) } else { After::Leaves(0) }
}

/// Returns whether `vtime` is `value` units of 2^22, but for rounding of a few slots.
fn is_about(vtime: Vtime, value: f64) -> bool {
    let exact = value * f64::from(1 << 22);
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    let found = vtime.0 as f64;
    (found - exact).abs() < 16.0
}

#[test]
fn three_backlogged_queues_follow_the_trace() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let shape = [(40, 1024), (80, 512), (40, 256)];
    let leaves = shape.map(|(share, _)| engine.add_leaf(ROOT, Class::BestEffort, weight(share)));
    for (leaf, (_, budget)) in leaves.into_iter().zip(shape) {
        engine.activate(NOW, leaf, budget, Return::Anew);
    }
    let trace = [
        (1, 0.0, 0.0, 6.4),
        (2, 3.2, 0.0, 6.4),
        (0, 4.8, 0.0, 25.6),
        (1, 11.2, 6.4, 12.8),
        (2, 14.4, 6.4, 12.8),
        (1, 16.0, 12.8, 19.2),
        (2, 19.2, 12.8, 19.2),
        (1, 20.8, 19.2, 25.6),
        (2, 24.0, 19.2, 25.6),
        (1, 25.6, 25.6, 32.0),
        (2, 28.8, 25.6, 32.0),
        (0, 30.4, 25.6, 51.2),
    ];
    for (step, (which, vtime, start, finish)) in trace.into_iter().enumerate() {
        let leaf = engine.select(NOW).unwrap();
        assert_eq!(leaf, leaves[which], "step {step}");
        let now = engine.tree_of(leaf).vtime;
        assert!(is_about(now, vtime), "step {step}: {}", now.0);
        let entity = engine.arena.at(leaf);
        assert!(is_about(entity.start, start) && is_about(entity.finish, finish), "step {step}");
        let budget = entity.budget;
        engine.serve(leaf, budget, budget);
        engine.expire(leaf, After::Waits(budget));
        engine.check();
        if step == 8 {
            assert_eq!(leaves.map(|leaf| engine.total(leaf)), [1024, 2048, 1024]);
        }
    }
}

#[test]
fn a_slot_cut_short_is_stamped_with_what_it_received() {
    for stays in [true, false] {
        let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
        let shape = [(40, 1024), (80, 512), (40, 256)];
        let leaves =
            shape.map(|(share, _)| engine.add_leaf(ROOT, Class::BestEffort, weight(share)));
        for (leaf, (_, budget)) in leaves.into_iter().zip(shape) {
            engine.activate(NOW, leaf, budget, Return::Anew);
        }
        for used in [512, 256, 200] {
            let leaf = engine.select(NOW).unwrap();
            engine.serve(leaf, used, used);
            let stays = leaf != leaves[0] || stays;
            engine.expire(leaf, waits_if(stays, 512));
        }
        let first = engine.arena.at(leaves[0]).clone();
        assert!(is_about(engine.tree_of(leaves[0]).vtime, 6.05));
        if stays {
            assert!(is_about(first.start, 5.0));
        } else {
            assert!(is_about(first.finish, 5.0));
            assert_eq!(first.place, Place::Away);
            assert_eq!(engine.tree_of(leaves[0]).wsum, 120);
        }
    }
}

/// Both machines side by side; every step is done twice and compared.
struct Pair {
    engine: Wf2q,
    model: Model,
    /// Engine's name of the model's members.
    nodes: Vec<Node>,
    now: Nanos,
    holder: Option<usize>,
}

impl Pair {
    fn new() -> Self {
        let (engine, model) = (Wf2q::new(GUARANTEE, Policy::Exact), Model::new(GUARANTEE));
        Self { engine, model, nodes: std::vec![ROOT], now: NOW, holder: None }
    }

    fn add(&mut self, parent: usize, is_group: bool, class: Class, share: u64) -> usize {
        self.model.add(parent, is_group, class, share);
        let above = self.nodes[parent];
        self.nodes.push(if is_group {
            self.engine.add_group(above, weight(share))
        } else {
            self.engine.add_leaf(above, class, weight(share))
        });
        self.nodes.len() - 1
    }

    /// Starts every virtual clock just before it wraps.
    fn wind_clocks(&mut self, distance: u64) {
        for member in &mut self.model.members {
            member.vtime = [u64::MAX - distance; 3];
        }
        for sched in &mut self.engine.scheds {
            for tree in &mut sched.trees {
                tree.vtime = Vtime(u64::MAX - distance);
            }
        }
    }

    fn compare(&self) {
        self.engine.check();
        for (member, &node) in self.model.members.iter().zip(&self.nodes) {
            let entity = self.engine.arena.at(node);
            assert_eq!(entity.place, member.place);
            assert_eq!((entity.start.0, entity.finish.0), (member.start, member.finish));
            assert_eq!((entity.service, entity.budget), (member.service, member.budget));
            assert_eq!(u64::from(entity.weight), member.weight);
        }
        if let Some(leaf) = self.holder {
            // Only the leaf in service is served here, so what a group got, its child got.
            let (mut node, service) = (self.nodes[leaf], self.model.members[leaf].service);
            while node != ROOT {
                assert_eq!(self.engine.arena.at(node).service, service, "E9");
                node = self.engine.arena.at(node).parent;
            }
        }
        for (group, member) in self.model.members.iter().enumerate().filter(|(_, m)| m.is_group) {
            let sched = &self.engine.scheds[self.engine.arena.at(self.nodes[group]).sched as usize];
            for (tree, class) in
                sched.trees.iter().zip([Class::RealTime, Class::BestEffort, Class::Idle])
            {
                assert_eq!(tree.vtime.0, member.vtime[class as usize]);
                assert_eq!(tree.wsum, self.model.wsum(group, class));
            }
        }
    }

    fn vtimes(&self) -> Vec<Vtime> {
        let trees = self.engine.scheds.iter().flat_map(|sched| sched.trees);
        trees.map(|tree| tree.vtime).collect()
    }

    fn step(&mut self, random: &mut Random) {
        self.now += Nanos(random.below(30_000_000));
        let now = self.now;
        let most = random_power(random);
        let budget = 1 + random.below(most);
        if let Some(leaf) = self.holder
            && random.below(2) == 0
        {
            let node = self.nodes[leaf];
            if random.below(3) > 0 {
                self.engine.serve(node, budget, budget);
                self.model.serve(leaf, budget);
                return;
            }
            let stays = if random.below(2) == 0 {
                After::Waits(budget)
            } else {
                After::Leaves(random.below(600) * random.below(2))
            };
            self.engine.expire(node, stays);
            self.model.expire(leaf, stays);
            self.holder = None;
            return;
        }
        let any = 1 + usize::try_from(random.below(self.nodes.len() as u64 - 1)).unwrap();
        let (node, member) = (self.nodes[any], self.model.members[any].clone());
        match (random.below(8), member.place) {
            (0, _) => {
                let share = 1 + random.below(1000);
                self.engine.set_weight(node, weight(share));
                self.model.members[any].base = share;
            }
            (1, _) => {
                let coeff = if random.below(2) == 0 { 1 } else { 30 };
                self.engine.set_coeff(node, coeff);
                self.model.members[any].new_coeff = u64::from(coeff);
                match random.below(3) {
                    0 => {
                        self.engine.forgive(node);
                        self.model.members[any].is_forgiven = true;
                    }
                    1 => {
                        self.engine.lift(node);
                        self.model.members[any].is_lifted = true;
                    }
                    _ => {}
                }
            }
            (2, Place::Active) if !member.is_group => {
                self.engine.deactivate(node);
                self.model.deactivate(any);
            }
            (3, Place::Active) if !member.is_group => {
                self.engine.set_budget(node, budget);
                self.model.set_budget(any, budget);
            }
            (_, Place::Away | Place::Idle) if !member.is_group => {
                let continued = random.below(3) == 0;
                let how =
                    if continued { Return::Continued(random.below(600)) } else { Return::Anew };
                self.engine.activate(now, node, budget, how);
                self.model.activate(now, any, budget, how);
            }
            _ if self.holder.is_none() => {
                self.holder = self.model.select(now);
                let found = self.engine.select(now);
                assert_eq!(found, self.holder.map(|leaf| self.nodes[leaf]), "E5");
            }
            _ => {}
        }
    }
}

fn random_power(random: &mut Random) -> u64 {
    1 << (1 + random.below(15))
}

fn history(seed: u64, levels: u64, steps: u64) {
    let mut random = Random::new(seed);
    let mut pair = Pair::new();
    let mut groups = std::vec![0];
    if levels > 1 {
        for _ in 0..1 + random.below(4) {
            groups.push(pair.add(0, true, Class::BestEffort, 1 + random.below(1000)));
        }
        for _ in 0..random.below(4) {
            let top = 1 + usize::try_from(random.below(groups.len() as u64 - 1)).unwrap();
            groups.push(pair.add(groups[top], true, Class::BestEffort, 1 + random.below(1000)));
        }
    }
    for _ in 0..1 + random.below(12) {
        let class = match random.below(8) {
            0 => Class::RealTime,
            1 | 2 => Class::Idle,
            _ => Class::BestEffort,
        };
        let parent = groups[usize::try_from(random.below(groups.len() as u64)).unwrap()];
        pair.add(parent, false, class, 1 + random.below(1000));
    }
    pair.wind_clocks(random.below(1 << 40));
    let mut vtimes = pair.vtimes();
    for _ in 0..steps {
        pair.step(&mut random);
        pair.compare();
        let moved = pair.vtimes();
        assert!(moved.iter().zip(&vtimes).all(|(new, old)| !old.is_after(*new)), "E4");
        vtimes = moved;
    }
}

#[test]
fn ten_thousand_flat_histories_match_the_model() {
    for_many_seeds(10_000, |seed| history(seed, 1, 60));
}

#[test]
fn ten_thousand_histories_of_trees_three_deep_match_the_model() {
    for_many_seeds(10_000, |seed| history(seed ^ (1 << 40), 3, 80));
}

#[test]
fn long_histories_match_the_model() {
    for seed in 0..20 {
        std::println!("seed {seed}");
        history(seed ^ 0x10_0000, 3, 5_000);
    }
}

/// Two groups with a greedy queue each; the first also has one that comes and goes all the time.
fn shares_with_child_activations(weights: [u64; 2]) -> f64 {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let groups = weights.map(|share| engine.add_group(ROOT, weight(share)));
    let greedy = groups.map(|group| engine.add_leaf(group, Class::BestEffort, weight(40)));
    let visitor = engine.add_leaf(groups[0], Class::BestEffort, weight(40));
    for leaf in greedy {
        engine.activate(NOW, leaf, 4096, Return::Anew);
    }
    for _ in 0..20_000 {
        let leaf = engine.select(NOW).unwrap();
        for _ in 0..8 {
            engine.serve(leaf, 64, 64);
            if engine.arena.at(visitor).place != Place::Active && leaf != visitor {
                engine.activate(NOW, visitor, 64, Return::Anew);
                engine.deactivate(visitor);
                engine.activate(NOW, visitor, 64, Return::Anew);
            }
        }
        engine.expire(leaf, waits_if(leaf != visitor, 4096));
        engine.check();
    }
    #[expect(clippy::cast_precision_loss, reason = "sectors of a short test")]
    let share = engine.total(groups[0]) as f64 / engine.total(ROOT) as f64;
    share
}

#[test]
fn child_activations_do_not_cost_a_group_its_share() {
    let equal = shares_with_child_activations([100, 100]);
    assert!((equal - 0.5).abs() < 0.005, "{equal}");
    let three = shares_with_child_activations([300, 100]);
    assert!((three - 0.75).abs() < 0.005, "{three}");
}

#[test]
fn a_sleeper_earns_no_credit() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let [sleeper, greedy] =
        [40, 40].map(|share| engine.add_leaf(ROOT, Class::BestEffort, weight(share)));
    engine.activate(NOW, greedy, 1024, Return::Anew);
    let mut random = Random::new(7);
    for _ in 0..1_000 {
        let (before, all) = (engine.total(sleeper), engine.total(ROOT));
        engine.activate(NOW, sleeper, 512, Return::Anew);
        let mut left = 1 + random.below(4_000);
        while left > 0 {
            let leaf = engine.select(NOW).unwrap();
            let used = if leaf == sleeper { left.min(512) } else { 1024 };
            engine.serve(leaf, used, used);
            if leaf == sleeper {
                left -= used;
                engine.expire(leaf, waits_if(left > 0, 512));
            } else {
                engine.expire(leaf, After::Waits(1024));
            }
        }
        let (got, all) = (engine.total(sleeper) - before, engine.total(ROOT) - all);
        assert!(got <= all / 2 + 512 + 1, "{got} of {all}");
        // While it sleeps others are served.
        for _ in 0..random.below(4) {
            let leaf = engine.select(NOW).unwrap();
            engine.serve(leaf, 1024, 1024);
            engine.expire(leaf, After::Waits(1024));
        }
    }
}

#[test]
fn the_idle_class_is_served_once_per_guarantee() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let busy = engine.add_leaf(ROOT, Class::BestEffort, weight(40));
    let idle = engine.add_leaf(ROOT, Class::Idle, weight(10));
    let mut now = NOW;
    engine.activate(now, busy, 1024, Return::Anew);
    engine.activate(now, idle, 8, Return::Anew);
    let (slot, mut waited, mut served) = (Nanos::from_millis(7), now, 0);
    for _ in 0..1_000 {
        let leaf = engine.select(now).unwrap();
        if leaf == idle {
            assert!(now.since(waited) <= GUARANTEE + slot);
            (waited, served) = (now, served + 1);
        }
        engine.serve(leaf, 8, 8);
        now += slot;
        engine.expire(leaf, After::Waits(8));
    }
    assert!((32..=36).contains(&served), "{served}");
}

#[test]
fn a_raise_gives_a_group_its_turn_without_waiting_for_its_lead() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let groups = [100, 100].map(|share| engine.add_group(ROOT, weight(share)));
    let greedy = groups.map(|group| engine.add_leaf(group, Class::BestEffort, weight(40)));
    let urgent = engine.add_leaf(groups[0], Class::BestEffort, weight(40));
    for leaf in greedy {
        engine.activate(NOW, leaf, 16_384, Return::Anew);
    }
    assert_eq!(engine.select(NOW), Some(greedy[0]));
    engine.serve(greedy[0], 16_384, 16_384);
    engine.expire(greedy[0], After::Waits(16_384));
    assert_eq!(engine.select(NOW), Some(greedy[1]));
    engine.set_coeff(urgent, 30);
    engine.set_coeff(groups[0], 30);
    engine.lift(groups[0]);
    engine.activate(NOW, urgent, 1024, Return::Anew);
    engine.check();
    assert!(engine.outranks(urgent, greedy[1]) && engine.is_next(urgent, greedy[1]));
    engine.serve(greedy[1], 512, 512);
    engine.expire(greedy[1], After::Waits(16_384));
    assert_eq!(engine.select(NOW), Some(urgent));
    // Back to normal: the weights return exactly.
    engine.set_coeff(urgent, 1);
    engine.set_coeff(groups[0], 1);
    engine.serve(urgent, 8, 8);
    engine.expire(urgent, After::Leaves(0));
    assert_eq!(engine.tree_of(groups[0]).wsum, 200);
    // And so does its lead: the other group is served for what it is behind.
    for _ in 0..2 {
        assert_eq!(engine.select(NOW), Some(greedy[1]));
        engine.serve(greedy[1], 8192, 8192);
        engine.expire(greedy[1], After::Waits(16_384));
    }
    assert_eq!(engine.select(NOW), Some(greedy[0]));
}

#[test]
fn a_raise_goes_before_those_whom_virtual_time_has_passed() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let groups = [(); 6].map(|()| engine.add_group(ROOT, weight(100)));
    let leaves = groups.map(|group| engine.add_leaf(group, Class::BestEffort, weight(40)));
    let [large, small @ ..] = &leaves[..5] else { unreachable!() };
    engine.activate(NOW, *large, 1024, Return::Anew);
    assert_eq!(engine.select(NOW), Some(*large));
    for leaf in small {
        engine.activate(NOW, *leaf, 512, Return::Anew);
    }
    // A charge for time: now virtual time is beyond what all others have waited for.
    engine.extend_budget(*large, 16_384);
    engine.serve(*large, 16_384, 8);
    engine.expire(*large, After::Waits(16_384));
    engine.set_coeff(leaves[5], 30);
    engine.set_coeff(groups[5], 30);
    engine.lift(groups[5]);
    engine.activate(NOW, leaves[5], 1024, Return::Anew);
    engine.check();
    assert_eq!(engine.select(NOW), Some(leaves[5]));
    engine.serve(leaves[5], 1024, 1024);
    engine.set_coeff(leaves[5], 1);
    engine.set_coeff(groups[5], 1);
    engine.expire(leaves[5], After::Waits(1024));
    engine.check();
    // What it got counts: all the others come before it gets as much again.
    for _ in 0..4 {
        let next = engine.select(NOW).unwrap();
        assert!(small.contains(&next));
        engine.serve(next, 512, 512);
        engine.expire(next, After::Waits(512));
    }
}

#[test]
fn raised_queues_of_a_group_go_before_the_others_in_their_own_order() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let group = engine.add_group(ROOT, weight(100));
    let leaves = [(); 5].map(|()| engine.add_leaf(group, Class::BestEffort, weight(40)));
    let [large, small, other, first, second] = leaves;
    engine.activate(NOW, large, 1024, Return::Anew);
    assert_eq!(engine.select(NOW), Some(large));
    for leaf in [small, other] {
        engine.activate(NOW, leaf, 512, Return::Anew);
    }
    // Now virtual time is beyond what the others have waited for.
    engine.extend_budget(large, 16_384);
    engine.serve(large, 16_384, 8);
    engine.expire(large, After::Waits(16_384));
    for leaf in [first, second] {
        engine.set_coeff(leaf, 30);
        engine.lift(leaf);
        engine.activate(NOW, leaf, 1024, Return::Anew);
    }
    engine.check();
    let mut turn = |budget: u64| {
        let next = engine.select(NOW).unwrap();
        engine.serve(next, budget, budget);
        engine.expire(next, After::Leaves(0));
        engine.check();
        next
    };
    assert_eq!([turn(1024), turn(1024), turn(512), turn(512)], [first, second, small, other]);
}

/// Returns the weight and coefficient of a group, the weights of its leaves and a budget.
fn draw_shares(random: &mut Random) -> (u64, u16, [u64; 2], u64) {
    let coeff = if random.below(3) == 0 { 30 } else { 1 };
    (1 + random.below(100), coeff, [1 + random.below(100), 1 + random.below(100)], 1024)
}

#[test]
fn who_would_take_its_own_groups_turn_away_is_known_beforehand() {
    let mut seen = [0, 0];
    for_many_seeds(1000, |seed| {
        let mut random = Random::new(seed);
        let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
        let mut leaves = Vec::<(Node, Node)>::new();
        for _ in 0..2 {
            let (share, coeff, shares, budget) = draw_shares(&mut random);
            let group = engine.add_group(ROOT, weight(share));
            engine.set_coeff(group, coeff);
            for share in shares {
                let leaf = engine.add_leaf(group, Class::BestEffort, weight(share));
                engine.activate(NOW, leaf, budget, Return::Anew);
                leaves.push((group, leaf));
            }
        }
        for _ in 0..20 {
            let holder = engine.select(NOW).unwrap();
            let &(group, _) = leaves.iter().find(|&&(_, leaf)| leaf == holder).unwrap();
            let &(_, sibling) =
                leaves.iter().find(|&&(g, leaf)| g == group && leaf != holder).unwrap();
            let used = 1 + random.below(1024);
            engine.serve(holder, used, used);
            let stays = engine.would_stay(sibling, holder);
            engine.expire(holder, After::Leaves(0));
            let next = engine.select(NOW).unwrap();
            assert_eq!(stays, next == sibling, "seed {seed}");
            seen[usize::from(stays)] += 1;
            let used = 1 + random.below(1024);
            engine.serve(next, used, used);
            engine.expire(next, After::Waits(1024));
            engine.activate(NOW, holder, 1024, Return::Anew);
        }
    });
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

#[test]
fn names_are_reused_and_leave_nothing_behind() {
    let mut engine = Wf2q::new(GUARANTEE, Policy::Exact);
    let group = engine.add_group(ROOT, weight(100));
    let other = engine.add_leaf(ROOT, Class::BestEffort, weight(40));
    engine.activate(NOW, other, 512, Return::Anew);
    for round in 0..10 {
        let leaf = engine.add_leaf(ROOT, Class::BestEffort, weight(40));
        engine.activate(NOW, leaf, 512, Return::Anew);
        while engine.select(NOW).unwrap() != leaf {
            engine.serve(other, 512, 512);
            engine.expire(other, After::Waits(512));
        }
        engine.serve(leaf, 512, 512);
        engine.expire(leaf, After::Leaves(0));
        assert_eq!(engine.arena.at(leaf).place, Place::Idle, "it holds its finish");
        engine.remove(leaf);
        engine.check();
        assert_eq!(engine.arena.0.len(), 4, "round {round}");
    }
    engine.remove(group);
    assert_eq!(engine.scheds[0].trees[1].wsum, 40);
}
