//! Random histories against what the engine promises in words.

use std::vec::Vec;

use super::entity::Place;
use super::{After, Node, Policy, ROOT, Return, Wf2q};
use crate::testing::{Random, for_many_seeds};
use crate::{Class, Nanos, Weight};

const GUARANTEE: Nanos = Nanos::from_millis(200);
const NOW: Nanos = Nanos::ORIGIN;

fn engine() -> Wf2q {
    Wf2q::new(GUARANTEE, Policy::Exact)
}

fn leaf(engine: &mut Wf2q, class: Class, share: u64) -> Node {
    engine.add_leaf(ROOT, class, Weight::new(share).unwrap())
}

/// Returns the idle entities that virtual time has caught up with.
fn caught_up_nodes(engine: &Wf2q, nodes: &[Node]) -> Vec<Node> {
    let vtime = engine.scheds[0].trees[Class::BestEffort as usize].vtime;
    let is_caught_up = |node: &Node| {
        let entity = engine.arena.at(*node);
        entity.place == Place::Idle && !entity.finish.is_after(vtime)
    };
    nodes.iter().copied().filter(is_caught_up).collect()
}

/// Returns how many idle entities virtual time has caught up with, and how many there are.
fn idle_counts(engine: &Wf2q, nodes: &[Node]) -> (usize, usize) {
    let is_idle = |node: &&Node| engine.arena.at(**node).place == Place::Idle;
    (caught_up_nodes(engine, nodes).len(), nodes.iter().filter(is_idle).count())
}

/// E11.
#[test]
fn only_who_is_ahead_is_remembered_and_each_service_forgets_one_who_is_not() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut engine = engine();
        let count = 2 + random.below(8);
        let nodes: Vec<Node> = (0..count)
            .map(|_| leaf(&mut engine, Class::BestEffort, 1 + random.below(1000)))
            .collect();
        for _ in 0..60 {
            let any = nodes[usize::try_from(random.below(count)).unwrap()];
            if matches!(engine.arena.at(any).place, Place::Away | Place::Idle) {
                engine.activate(NOW, any, 1 + random.below(4096), Return::Anew);
            }
            let Some(node) = engine.select(NOW) else { continue };
            let service = 1 + random.below(engine.budget(node));
            let (caught_up, _) = idle_counts(&engine, &nodes);
            let vtime = engine.tree_of(node).vtime;
            engine.serve(node, service, service);
            let (left, _) = idle_counts(&engine, &nodes);
            let moved = engine.tree_of(node).vtime != vtime;
            assert!(moved || left < caught_up.max(1), "one is forgotten");
            let (_, before) = idle_counts(&engine, &nodes);
            let stays = random.below(2) == 0;
            engine.expire(node, if stays { After::Waits(1024) } else { After::Leaves(0) });
            let entity = engine.arena.at(node);
            if entity.place == Place::Idle {
                let vtime = engine.scheds[0].trees[Class::BestEffort as usize].vtime;
                assert!(entity.finish.is_after(vtime), "who is remembered is ahead");
            }
            // Services without arrivals forget those that are caught up within their number; more
            // may be caught up meanwhile.
            if random.below(8) == 0 && stays {
                let due = caught_up_nodes(&engine, &nodes);
                for _ in 0..before {
                    let node = engine.select(NOW).unwrap();
                    engine.serve(node, 1 << 30, 1 << 30);
                    engine.expire(node, After::Waits(1 << 30));
                }
                let left = |&node: &Node| engine.arena.at(node).place == Place::Idle;
                assert!(!due.iter().any(left), "those that were caught up are forgotten");
            }
        }
    });
}

/// One that sleeps and wakes among others that always wait, and what it got.
struct Sleeper {
    engine: Wf2q,
    random: Random,
    node: Node,
    budget: u64,
    share: u64,
    shares: u64,
}

impl Sleeper {
    /// Returns by how much it got more than its share of all service, times the sum of shares.
    fn ahead(&self) -> i128 {
        i128::from(self.engine.total(self.node)) * i128::from(self.shares)
            - i128::from(self.engine.total(ROOT)) * i128::from(self.share)
    }

    /// Returns by how much it got more than virtual time earns it, in sectors times 2^22.
    fn ahead_of_vtime(&self) -> i128 {
        let vtime = self.engine.scheds[0].trees[Class::BestEffort as usize].vtime;
        i128::from(self.engine.total(self.node) << 22)
            - i128::from(vtime.0) * i128::from(self.share)
    }

    fn is_asleep(&self) -> bool {
        matches!(self.engine.arena.at(self.node).place, Place::Away | Place::Idle)
    }

    /// Lets it wake or not, and serves whoever is next.
    fn slot(&mut self, greedy_budget: u64) {
        if self.is_asleep() && self.random.below(3) == 0 {
            let budget = 1 + self.random.below(self.budget);
            self.engine.activate(NOW, self.node, budget, Return::Anew);
        }
        let node = self.engine.select(NOW).unwrap();
        let service = 1 + self.random.below(self.engine.budget(node));
        self.engine.serve(node, service, service);
        let budget = if node == self.node { self.budget } else { greedy_budget };
        let leaves = node == self.node && self.random.below(2) == 0;
        self.engine.expire(node, if leaves { After::Leaves(0) } else { After::Waits(budget) });
    }
}

/// P2. From any instant in which it sleeps it gets what virtual time earns it, and a budget: it
/// earns nothing by sleeping. Of all service it gets its share, a budget, and what it lagged before
/// the interval, at most the largest budget of another: virtual time gives that back to whoever
/// waits next, also to one that slept for a moment.
#[test]
fn who_sleeps_and_wakes_gets_no_more_than_its_share_and_a_budget() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut engine = engine();
        let (share, budget) = (1 + random.below(1000), 1 + random.below(8192));
        let node = leaf(&mut engine, Class::BestEffort, share);
        let (mut shares, greedy_budget) = (share, 1 + random.below(8192));
        for _ in 0..1 + random.below(4) {
            let weight = 1 + random.below(1000);
            shares += weight;
            let greedy = leaf(&mut engine, Class::BestEffort, weight);
            engine.activate(NOW, greedy, greedy_budget, Return::Anew);
        }
        let mut sleeper = Sleeper { engine, random, node, budget, share, shares };
        // How little it had so far: of virtual time while it slept, of all service ever.
        let (mut asleep, mut ever) = (i128::MAX, i128::MAX);
        for slot in 1..=80 {
            ever = ever.min(sleeper.ahead());
            if sleeper.is_asleep() {
                asleep = asleep.min(sleeper.ahead_of_vtime());
            }
            sleeper.slot(greedy_budget);
            // Each slot truncates virtual time by less than a step.
            let steps = slot * i128::from(shares);
            let earned = sleeper.ahead_of_vtime() - asleep.min(sleeper.ahead_of_vtime());
            assert!(earned <= i128::from(budget << 22) + steps, "it earned by sleeping");
            let own = i128::from(budget) * i128::from(shares);
            let lag = i128::from(greedy_budget) * i128::from(shares);
            // A step of virtual time is a sector's 2^22nd part for each unit of weight.
            let rounding = i128::from(shares) + ((steps * i128::from(share)) >> 21);
            let gain = sleeper.ahead() - ever - own - lag;
            assert!(gain <= rounding, "it gained {gain} more than {rounding}");
        }
    });
}

/// P4.
#[test]
fn the_idle_class_waits_for_one_guarantee_and_a_slot_at_most() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut engine = engine();
        let busy: Vec<Node> = (0..1 + random.below(4))
            .map(|_| leaf(&mut engine, Class::BestEffort, 1 + random.below(1000)))
            .collect();
        let idle = leaf(&mut engine, Class::Idle, 10);
        for &node in &busy {
            engine.activate(NOW, node, 512, Return::Anew);
        }
        let longest = 1 + random.below(125_000_000);
        let mut now = NOW;
        let mut waits_since = None;
        for _ in 0..60 {
            if waits_since.is_none() && random.below(3) == 0 {
                engine.activate(now, idle, 8, Return::Anew);
                waits_since = Some(now);
            }
            let node = engine.select(now).unwrap();
            if let Some(since) = waits_since {
                let waited = now.since(since);
                assert!(waited <= GUARANTEE + Nanos(longest), "{} ms", waited.as_millis());
            }
            engine.serve(node, 8, 8);
            now += Nanos(1 + random.below(longest));
            let leaves = node == idle && random.below(2) == 0;
            engine.expire(node, if leaves { After::Leaves(0) } else { After::Waits(8) });
            if node == idle {
                waits_since = (!leaves).then_some(now);
            }
        }
    });
}

/// X8: service that moves virtual time around the whole circle several times changes nothing.
#[test]
fn shares_survive_the_wrap_of_virtual_time() {
    let mut engine = engine();
    let nodes = [1, 3].map(|share| leaf(&mut engine, Class::BestEffort, share));
    let budget = (1 << 38) + 7;
    for node in nodes {
        engine.activate(NOW, node, budget, Return::Anew);
    }
    // 2^42 sectors times the sum of weights are one round.
    for _ in 0..400 {
        let node = engine.select(NOW).unwrap();
        engine.serve(node, budget, budget);
        engine.expire(node, After::Waits(budget));
        engine.check();
    }
    let [one, three] = nodes.map(|node| engine.total(node) / budget);
    assert_eq!((one, three), (100, 300));
    assert!(engine.total(ROOT) > 4 << 44, "several rounds");
}
