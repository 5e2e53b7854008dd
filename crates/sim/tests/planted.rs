//! Bugs that were planted on purpose are found: `cargo test -p evenkeel-sim --features planted`.
#![cfg(feature = "planted")]

use std::panic::catch_unwind;

use evenkeel_sched::Planted;
use evenkeel_sim::swarm::{self, SwarmOptions};

/// Seeds that are tried before the swarm counts as blind: some ten seconds of one core.
const SEEDS: u64 = 1000;

/// Returns the first seed whose world breaks a promise, and which one it breaks.
fn found(planted: Planted) -> Option<(u64, String)> {
    let options = SwarmOptions { planted: Some(planted), ..SwarmOptions::default() };
    (1..=SEEDS).find_map(|seed| {
        // An assertion of the engine finds a bug as well as the auditor does.
        let report = catch_unwind(|| swarm::run(seed, &options));
        let broken = match report {
            Ok(report) => report.violation?.invariant.to_owned(),
            Err(_) => "an assertion".to_owned(),
        };
        Some((seed, broken))
    })
}

#[test]
fn every_planted_bug_is_found_and_its_seed_shows_it_again() {
    for planted in Planted::ALL {
        let first = found(planted);
        println!("{planted:?}: {first:?}");
        assert!(first.is_some(), "{planted:?} is not found");
        assert_eq!(first, found(planted), "{planted:?}");
    }
}
