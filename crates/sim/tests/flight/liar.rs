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

/// Returns what ten guests get of which the last lies for so many half seconds of each minute: in
/// the first two minutes, and in the ten after.
fn among_ten(device: &str, cries: u64) -> [Vec<Got>; 2] {
    let mut loads = [GREEDY; 10];
    loads[0] = Load::VICTIM;
    loads[9].ioprio = if cries > 0 { HIGHEST } else { 0 };
    let mut world = World::new(device, Kind::Bfq, &loads);
    if cries > 0 {
        world.trust(9);
    }
    let mut steps = 0..;
    [120, 600].map(|seconds: u64| {
        let mut parts = vec![Vec::new(); loads.len()];
        for step in steps.by_ref().take(usize::try_from(seconds * 2).expect("few")) {
            if step % 120 < cries {
                world.ask(9, step + 1, Urgency::Interactive);
            }
            for (part, got) in parts.iter_mut().zip(world.run_for(HALF_SECOND)) {
                part.push(got);
            }
        }
        parts.into_iter().map(Got::sum).collect()
    })
}

/// What the last of them has of what all but the first have.
fn share(got: &[Got]) -> f64 {
    let all: f64 = got[1..].iter().map(|got| got.bytes_per_s).sum();
    got[9].bytes_per_s / all
}

/// A third of the device is what twenty seconds a minute stand for, and of the rest there is its
/// share.
#[test]
fn among_ten_guests_a_liar_gets_its_credit_and_no_more() {
    let fair = 1.0 / 9.0;
    // And a little more: what it has at the device as its help ends.
    let bound = 1.1 * (1.0 / 3.0 + fair * 2.0 / 3.0);
    for device in ["hdd", "emmc"] {
        let honest = among_ten(device, 0);
        for (manner, cries, most) in [("always", 120, fair * 1.5), ("20 s a minute", 40, bound)] {
            let lied = among_ten(device, cries);
            for (phase, (lied, honest)) in ["first", "later"].iter().zip(lied.iter().zip(&honest)) {
                let [p99, alike] = [lied, honest].map(|got| got[0].p99().as_micros());
                let share = share(lied);
                println!("{device}, {manner}, {phase}: {share:.3}, p99 {p99} us, not {alike} us");
                let most = if *phase == "first" { 1.0 } else { most };
                assert!(share <= most, "{device}, {manner}, {phase}: {share}");
            }
        }
    }
}

/// Most of a slow disk, with pauses as a player makes them.
#[test]
fn who_only_pauses_like_a_player_takes_nothing_from_a_neighbour() {
    let greedy = Load { is_sequential: true, ..Load::random(8192, 1) };
    let faker = Load { think: Nanos::from_millis(88), ..greedy };
    let beside = |other: Load| {
        let mut world = World::new("hdd", Kind::Bfq, &[GREEDY, other]);
        world.run_for(Nanos::from_secs(120));
        world.run_for(Nanos::from_secs(300)).swap_remove(0).bytes_per_s
    };
    let (greedy, faker) = (beside(greedy), beside(faker));
    println!("{:.3} of the rate", faker / greedy);
    assert!(faker >= 0.97 * greedy, "{faker} and {greedy}");
}
