//! Random worlds: those that failed once, and some that nobody has seen.

use std::hash::{BuildHasher as _, RandomState};

use evenkeel_sim::swarm::{self, SwarmOptions};

/// Says which seed it was if something panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let at = swarm::whereabouts::now().map_or(evenkeel_sched::Nanos::ORIGIN, |here| here.1);
            eprintln!("{}", swarm::failure(self.0, at, "see above"));
        }
    }
}

fn holds(seed: u64) {
    let _named = Named(seed);
    let report = swarm::run(seed, &SwarmOptions::default());
    let failure = report.failure();
    assert!(failure.is_none(), "{}", failure.unwrap_or_default());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeds_that_failed_once_hold() {
    for line in include_str!("swarm_seeds.txt").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            holds(seed.parse().unwrap());
        }
    }
}

#[test]
fn seeds_that_nobody_has_seen_hold() {
    let first = number("EVENKEEL_SEED").unwrap_or_else(|| RandomState::new().hash_one(0) >> 16);
    let count = number("EVENKEEL_CASES").unwrap_or(200).min(100_000_000);
    println!("EVENKEEL_SEED={first}, {count} seeds");
    for seed in (first..).take(usize::try_from(count).unwrap()) {
        holds(seed);
    }
}

#[test]
fn the_same_seed_gives_the_same_history_byte_for_byte_and_another_seed_another() {
    let options = SwarmOptions { keeps_history: true, ..SwarmOptions::default() };
    for seed in 1..20 {
        let history = swarm::run(seed, &options).history;
        assert!(history.lines().count() > 20, "seed {seed}: {history}");
        assert_eq!(history, swarm::run(seed, &options).history, "seed {seed}");
        assert_ne!(history, swarm::run(seed + 1, &options).history, "seed {seed}");
    }
}
