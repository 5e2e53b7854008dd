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

/// Returns how many idle entities virtual time has caught up with, and how many there are.
fn idle_counts(engine: &Wf2q, nodes: &[Node]) -> (usize, usize) {
    let idle = nodes.iter().map(|&node| engine.arena.at(node));
    let idle: Vec<_> = idle.filter(|entity| entity.place == Place::Idle).collect();
    let vtime = engine.scheds[0].trees[Class::BestEffort as usize].vtime;
    (idle.iter().filter(|entity| !entity.finish.is_after(vtime)).count(), idle.len())
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
            // Services without arrivals forget all of them within their number.
            if random.below(8) == 0 && stays {
                for _ in 0..=before {
                    let node = engine.select(NOW).unwrap();
                    engine.serve(node, 1 << 30, 1 << 30);
                    engine.expire(node, After::Waits(1 << 30));
                }
                assert_eq!(idle_counts(&engine, &nodes).0, 0, "all are forgotten");
            }
        }
    });
}

/// P2.
#[test]
fn who_sleeps_and_wakes_gets_no_more_than_its_share_and_a_budget() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut engine = engine();
        let shares = [1 + random.below(1000), 1 + random.below(1000)];
        let budgets = [1 + random.below(8192), 1 + random.below(8192)];
        let [sleeper, greedy] = shares.map(|share| leaf(&mut engine, Class::BestEffort, share));
        engine.activate(NOW, greedy, budgets[1], Return::Anew);
        // From here on, and for every later beginning, the sleeper gets its share and a budget.
        let mut least = i128::MAX;
        let wsum = i128::from(shares[0] + shares[1]);
        for _ in 0..80 {
            let place = engine.arena.at(sleeper).place;
            if random.below(3) == 0 && matches!(place, Place::Away | Place::Idle) {
                engine.activate(NOW, sleeper, 1 + random.below(budgets[0]), Return::Anew);
            }
            let got = i128::from(engine.total(sleeper)) * wsum;
            let ahead = got - i128::from(engine.total(ROOT)) * i128::from(shares[0]);
            least = least.min(ahead);
            let node = engine.select(NOW).unwrap();
            let service = 1 + random.below(engine.budget(node));
            engine.serve(node, service, service);
            let leaves = node == sleeper && random.below(2) == 0;
            let budget = if node == sleeper { budgets[0] } else { budgets[1] };
            engine.expire(node, if leaves { After::Leaves(0) } else { After::Waits(budget) });
            let got = i128::from(engine.total(sleeper)) * wsum;
            let ahead = got - i128::from(engine.total(ROOT)) * i128::from(shares[0]);
            // What it lags, at most a budget of the other, is no credit from sleeping.
            let lag = i128::from(budgets[1]) * wsum;
            assert!(ahead - least <= (i128::from(budgets[0]) + 2) * wsum + lag, "it gained");
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
