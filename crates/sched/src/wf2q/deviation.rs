//! How far service strays from that of an ideal fluid server, and how far it may.
//!
//! A fluid server gives everybody its share at every instant. Ours gives budgets, one after the
//! other, so it runs ahead of the fluid for whoever was just served, and behind for the others.
//! Every test takes a million random slots and compares after each of them, in exact integers:
//!
//! * *Backlogged*: all leaves wait all the time. Then the fluid gives leaf `i` the product of its
//!   shares on the way to the root. On each level a child leads by `(1 - share) * B` at most, where
//!   `B` is its largest budget, and lags by the largest budget among its siblings; for a leaf the
//!   levels add up, each counted by the share of the leaf in the group of that level.
//! * *Coming and going*: leaves pause and return at any time, during slots too. Then the fluid is
//!   the group's virtual time since the entity came: it leads by `B` at most, and lags by the
//!   largest budget of its siblings.
//!
//! The same with the kernel's errors is printed beside it, for comparison.
//!
//! Source: Bennett and Zhang, "Hierarchical Packet Fair Queueing Algorithms", 1997; Valente and
//! Checconi, 2010.

use std::vec::Vec;

use super::entity::Place;
use super::vtime::Vtime;
use super::{After, Node, Policy, ROOT, Return, Wf2q};
use crate::testing::Random;
use crate::{Class, Nanos, Weight};

const NOW: Nanos = Nanos::ORIGIN;
/// Slots with one shape of the tree; then another one is drawn.
const SLOTS_PER_SHAPE: u64 = 10_000;
const SLOTS: u64 = 1_000_000;

/// What the test knows of an entity.
#[derive(Clone, Debug)]
struct Known {
    node: Node,
    parent: usize,
    share: u64,
    /// Sum of the shares of itself and its siblings.
    shares: u64,
    /// Largest budget of the leaves below.
    largest: u64,
    /// Largest budget of itself and its siblings.
    rivals_largest: u64,
    /// From where its virtual time counts, if it waits.
    since: Option<Vtime>,
    got: u64,
}

/// The worst deviations so far, as parts of what is allowed.
#[derive(Clone, Copy, Debug, Default)]
struct Worst {
    lead: f64,
    lag: f64,
    lead_sectors: f64,
    lag_sectors: f64,
}

impl Worst {
    /// Takes note of a lead (negative: a lag), and of what is allowed both ways, in sectors.
    fn note(&mut self, lead: f64, lead_most: f64, lag_most: f64) {
        self.lead = self.lead.max(lead / lead_most);
        self.lag = self.lag.max(-lead / lag_most);
        self.lead_sectors = self.lead_sectors.max(lead);
        self.lag_sectors = self.lag_sectors.max(-lead);
    }

    fn print(&self, what: &str, policy: Policy) {
        let Self { lead, lag, lead_sectors, lag_sectors } = self;
        std::println!(
            "{what}, {policy:?}: lead {lead_sectors:.0} sectors, {lead:.4} of the bound; \
             lag {lag_sectors:.0} sectors, {lag:.4} of the bound"
        );
    }
}

#[expect(clippy::cast_precision_loss, reason = "the difference itself is exact")]
fn float(value: i128) -> f64 {
    value as f64
}

fn sectors(value: u64) -> f64 {
    float(i128::from(value))
}

/// An engine over a random tree, and a record of all its entities, parents first.
struct Shape {
    engine: Wf2q,
    random: Random,
    known: Vec<Known>,
    leaves: Vec<usize>,
    slots: u64,
}

impl Shape {
    /// Draws a tree with `levels` levels of entities below the root.
    fn new(seed: u64, levels: u32, policy: Policy) -> Self {
        let mut shape = Self {
            engine: Wf2q::new(Nanos::from_millis(200), policy),
            random: Random::new(seed),
            known: Vec::new(),
            leaves: Vec::new(),
            slots: 0,
        };
        let root = Known {
            node: ROOT,
            parent: 0,
            share: 1,
            shares: 1,
            largest: 0,
            rivals_largest: 0,
            since: None,
            got: 0,
        };
        shape.known.push(root);
        shape.grow(0, levels);
        for index in (1..shape.known.len()).rev() {
            let (parent, largest) = (shape.known[index].parent, shape.known[index].largest);
            shape.known[parent].largest = shape.known[parent].largest.max(largest);
        }
        for index in 1..shape.known.len() {
            let siblings =
                |other: &&Known| other.node != ROOT && other.parent == shape.known[index].parent;
            let rivals = shape.known.iter().filter(siblings);
            let (shares, largest) = rivals.fold((0, 0), |(shares, largest), rival| {
                (shares + rival.share, rival.largest.max(largest))
            });
            shape.known[index].shares = shares;
            shape.known[index].rivals_largest = largest;
        }
        shape
    }

    fn grow(&mut self, parent: usize, levels: u32) {
        let most = if levels == 1 && parent == 0 { 12 } else { 4 };
        for _ in 0..2 + self.random.below(most - 1) {
            let (share, above) = (1 + self.random.below(1000), self.known[parent].node);
            let weight = Weight::new(share).unwrap();
            let is_leaf = levels == 1;
            let node = if is_leaf {
                self.engine.add_leaf(above, Class::BestEffort, weight)
            } else {
                self.engine.add_group(above, weight)
            };
            let largest = if is_leaf { 8 + self.random.below(16_384) } else { 0 };
            let child = Known { node, parent, share, largest, ..self.known[0].clone() };
            self.known.push(child);
            let index = self.known.len() - 1;
            if is_leaf {
                self.leaves.push(index);
            } else {
                self.grow(index, levels - 1);
            }
        }
    }

    /// Sectors by which truncation of virtual time may add up.
    fn rounding(&self, share: u64) -> f64 {
        1.0 + sectors(self.slots * share) / f64::from(1 << 22)
    }

    fn activate(&mut self, index: usize) {
        let budget = self.draw_budget(index);
        self.engine.activate(NOW, self.known[index].node, budget, Return::Anew);
        self.climb(index);
    }

    fn draw_budget(&mut self, index: usize) -> u64 {
        let largest = self.known[index].largest;
        if self.random.below(2) == 0 { largest } else { 1 + self.random.below(largest) }
    }

    /// Takes note of who came and who went on the way up.
    fn climb(&mut self, mut index: usize) {
        while index != 0 {
            let entity = self.engine.arena.at(self.known[index].node);
            let is_here = matches!(entity.place, Place::Active | Place::InService);
            let known = &mut self.known[index];
            if is_here && known.since.is_none() {
                (known.since, known.got) = (Some(entity.start), 0);
            } else if !is_here {
                known.since = None;
            }
            index = known.parent;
        }
    }

    fn serve(&mut self, leaf: usize, service: u64) {
        self.engine.serve(self.known[leaf].node, service, service);
        let mut index = leaf;
        loop {
            self.known[index].got += service;
            if index == 0 {
                return;
            }
            index = self.known[index].parent;
        }
    }

    fn select(&mut self) -> Option<usize> {
        let node = self.engine.select(NOW)?;
        self.leaves.iter().copied().find(|&leaf| self.known[leaf].node == node)
    }

    /// One slot of a pool in which everybody always waits.
    fn backlogged_slot(&mut self) {
        let leaf = self.select().unwrap();
        let budget = self.engine.budget(self.known[leaf].node);
        let service =
            if self.random.below(3) == 0 { 1 + self.random.below(budget) } else { budget };
        self.serve(leaf, service);
        let budget = self.draw_budget(leaf);
        self.engine.expire(self.known[leaf].node, After::Waits(budget));
        self.slots += 1;
    }

    /// Compares each leaf with its part of all service.
    fn compare_backlogged(&self, worst: &mut Worst) {
        let all = i128::from(self.known[0].got);
        for &leaf in &self.leaves {
            let (mut share, mut shares) = (1_i128, 1_i128);
            let (mut lead_most, mut lag_most) = (self.rounding(self.known[leaf].share), 0.0);
            let mut index = leaf;
            while index != 0 {
                let known = &self.known[index];
                // The leaf's part of the entity of this level.
                let part = float(share) / float(shares);
                let fraction = sectors(known.share) / sectors(known.shares);
                lead_most += part * (1.0 - fraction) * sectors(known.largest);
                lag_most += part * sectors(known.rivals_largest);
                share *= i128::from(known.share);
                shares *= i128::from(known.shares);
                index = known.parent;
            }
            let lead = i128::from(self.known[leaf].got) * shares - all * share;
            lag_most += self.rounding(self.known[leaf].share);
            worst.note(float(lead) / float(shares), lead_most, lag_most);
        }
    }

    /// One slot of a pool in which leaves come and go.
    fn changing_slot(&mut self) {
        for _ in 0..self.random.below(3) {
            self.come_or_go();
        }
        let Some(leaf) = self.select() else {
            let index = self.draw_leaf();
            self.activate(index);
            return;
        };
        let node = self.known[leaf].node;
        let budget = self.engine.budget(node);
        let pieces = 1 + self.random.below(3);
        for _ in 0..pieces {
            self.serve(leaf, (budget / pieces).max(1).min(budget));
            if self.random.below(4) == 0 {
                self.come_or_go();
            }
        }
        let after = if self.random.below(3) == 0 {
            After::Leaves(0)
        } else {
            After::Waits(self.draw_budget(leaf))
        };
        self.engine.expire(node, after);
        self.climb(leaf);
        self.slots += 1;
    }

    fn draw_leaf(&mut self) -> usize {
        let at = self.random.below(self.leaves.len() as u64);
        self.leaves[usize::try_from(at).unwrap()]
    }

    fn come_or_go(&mut self) {
        let index = self.draw_leaf();
        let node = self.known[index].node;
        match self.engine.arena.at(node).place {
            Place::Away | Place::Idle => self.activate(index),
            Place::Active if self.random.below(8) == 0 => {
                self.engine.deactivate(node);
                self.climb(index);
            }
            _ => {}
        }
    }

    /// Compares everybody who waits with the virtual time of its group.
    fn compare_changing(&self, worst: &mut Worst) {
        for known in &self.known[1..] {
            let Some(since) = known.since else { continue };
            let entity = self.engine.arena.at(known.node);
            let sched = self.engine.arena.at(entity.parent).sched as usize;
            let vtime = self.engine.scheds[sched].trees[Class::BestEffort as usize].vtime;
            let way = i128::from(vtime.0.wrapping_sub(since.0).cast_signed());
            let lead = i128::from(known.got << 22) - way * i128::from(known.share);
            let rounding = self.rounding(known.share);
            worst.note(
                float(lead) / f64::from(1 << 22),
                sectors(known.largest) + rounding,
                sectors(known.rivals_largest) + rounding,
            );
        }
    }
}

fn backlogged(levels: u32, policy: Policy) -> Worst {
    let mut worst = Worst::default();
    for seed in 0..SLOTS / SLOTS_PER_SHAPE {
        std::println!("seed {seed}");
        let mut shape = Shape::new(seed, levels, policy);
        for leaf in shape.leaves.clone() {
            shape.activate(leaf);
        }
        for _ in 0..SLOTS_PER_SHAPE {
            shape.backlogged_slot();
            shape.compare_backlogged(&mut worst);
        }
    }
    worst
}

fn changing(levels: u32, policy: Policy) -> Worst {
    let mut worst = Worst::default();
    for seed in 0..SLOTS / SLOTS_PER_SHAPE {
        std::println!("seed {seed}");
        let mut shape = Shape::new(seed, levels, policy);
        for _ in 0..SLOTS_PER_SHAPE {
            shape.changing_slot();
            shape.compare_changing(&mut worst);
        }
    }
    worst
}

/// Runs both policies; asserts the bounds of the exact one, and returns how the other did.
fn compare(what: &str, run: impl Fn(Policy) -> Worst) -> Worst {
    let exact = run(Policy::Exact);
    let kernel = run(Policy::Kernel);
    exact.print(what, Policy::Exact);
    kernel.print(what, Policy::Kernel);
    assert!(exact.lead <= 1.0, "nobody leads by more than is allowed");
    assert!(exact.lag <= 1.0, "nobody lags by more than is allowed");
    // Otherwise the bounds say nothing.
    assert!(exact.lead > 0.5 && exact.lag > 0.5, "the bounds are nearly reached");
    kernel
}

#[test]
fn backlogged_leaves_stay_within_the_bounds_in_a_million_slots() {
    compare("flat, backlogged", |policy| backlogged(1, policy));
}

#[test]
fn backlogged_leaves_three_levels_deep_stay_within_the_bounds_in_a_million_slots() {
    compare("three levels, backlogged", |policy| backlogged(3, policy));
}

#[test]
fn leaves_that_come_and_go_stay_within_the_bounds_in_a_million_slots() {
    let kernel = compare("flat, coming and going", |policy| changing(1, policy));
    assert!(kernel.lead.max(kernel.lag) > 1.0, "the kernel's errors show");
}

#[test]
fn leaves_that_come_and_go_three_levels_deep_stay_within_the_bounds_in_a_million_slots() {
    let kernel = compare("three levels, coming and going", |policy| changing(3, policy));
    assert!(kernel.lag > 1.0, "the kernel charges groups twice");
}
