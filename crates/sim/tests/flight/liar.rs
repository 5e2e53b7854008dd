//! A guest that always cries for help and gives each request the highest priority: what it gets,
//! and what that costs an honest neighbour of the same weight.

use evenkeel_sched::{Kind, Nanos, Urgency};

use super::closed::{Got, Load, World};

/// Real time, level 0.
const HIGHEST: u32 = 0x2000;
const GREEDY: Load = Load::random(8, 8);
const HALF_SECOND: Nanos = Nanos::from_millis(500);

/// What the second of two guests does beside reading as much as it can.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Guest {
    Honest,
    /// Cries, and is not believed.
    Disbelieved(Urgency),
    /// Cries, and is believed up to its credit.
    Trusted(Urgency),
}

/// Returns what an honest guest gets beside the other, long after the beginning, in so many seconds.
fn beside(device: &str, honest: Load, guest: Guest, seconds: u64) -> Got {
    let lies = guest != Guest::Honest;
    let other = Load { ioprio: if lies { HIGHEST } else { 0 }, ..GREEDY };
    let mut world = World::new(device, Kind::Bfq, &[honest, other]);
    if let Guest::Trusted(_) = guest {
        world.trust(1);
    }
    let mut seq = 0;
    let mut run = |world: &mut World, span: Nanos| -> Vec<Got> {
        (0..span.0 / HALF_SECOND.0)
            .map(|_| {
                if let Guest::Disbelieved(urgency) | Guest::Trusted(urgency) = guest {
                    seq += 1;
                    world.ask(1, seq, urgency);
                }
                world.run_for(HALF_SECOND).swap_remove(0)
            })
            .collect()
    };
    // No credit lasts for so long.
    run(&mut world, Nanos::from_secs(120));
    Got::sum(run(&mut world, Nanos::from_secs(seconds)))
}

#[test]
fn who_always_cries_takes_nothing_from_an_honest_neighbour_in_the_long_run() {
    for (device, seconds) in [("hdd", 600), ("emmc", 60)] {
        let [greedy, victim] = [GREEDY, Load::VICTIM]
            .map(|honest| (honest, beside(device, honest, Guest::Honest, seconds)));
        for urgency in [Urgency::Interactive, Urgency::SoftRealTime] {
            for (honest, expected) in [&greedy, &victim] {
                let got = beside(device, *honest, Guest::Disbelieved(urgency), seconds);
                assert_eq!(got, *expected, "{device}: whoever is not believed changes nothing");
            }
            let trusted = Guest::Trusted(urgency);
            let got = [greedy.0, victim.0].map(|honest| beside(device, honest, trusted, seconds));
            let rate = got[0].bytes_per_s / greedy.1.bytes_per_s;
            let longer = got[1].p99().0 as f64 / victim.1.p99().0 as f64;
            println!("{device}, {urgency:?}: {rate:.3} of the rate, p99 {longer:.3} times as long");
            assert!(rate >= 0.97 && longer <= 1.1, "{device}, {urgency:?}: {rate}, {longer}");
        }
    }
}
