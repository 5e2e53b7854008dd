//! Every request comes out exactly once, whatever happens.

use evenkeel_sched::{Kind, Nanos, Next};

use crate::random::for_many_seeds;
use crate::world::World;

fn conserve(kind: Kind) {
    let mut merged = 0;
    for_many_seeds(10_000, |seed| {
        let mut world = World::new(kind, seed);
        for _ in 0..80 {
            world.step();
        }
        world.drain();
        assert_eq!(world.inserted, world.came_out);
        merged += world.merged;
    });
    println!("{kind}: {merged} requests were merged");
}

#[test]
fn none_conserves_every_request() {
    conserve(Kind::None);
}

#[test]
fn noop_conserves_every_request() {
    conserve(Kind::Noop);
}

#[test]
fn deadline_conserves_every_request() {
    conserve(Kind::Deadline);
}

#[test]
fn legacy_deadline_conserves_every_request() {
    conserve(Kind::DeadlineLegacy);
}

#[test]
fn anticipatory_conserves_every_request() {
    conserve(Kind::Anticipatory);
}

#[test]
fn kyber_conserves_every_request() {
    conserve(Kind::Kyber);
}

#[test]
fn cfq_conserves_every_request() {
    conserve(Kind::Cfq);
}

#[test]
fn bfq_conserves_every_request() {
    conserve(Kind::Bfq);
}

#[test]
fn every_elevator_survives_time_jumps() {
    let jumps = [
        Nanos::from_secs(2),
        Nanos::from_secs(60),
        Nanos::from_secs(3600),
        Nanos::from_secs(86_400 * 365),
    ];
    for kind in Kind::ALL {
        for_many_seeds(10_000, |seed| {
            let mut world = World::new(kind, seed);
            for _ in 0..30 {
                if world.random.chance(10) {
                    world.now += world.random.pick(&jumps);
                }
                world.step();
            }
            world.drain();
            assert_eq!(world.inserted, world.came_out);
        });
    }
}

/// X6: of two equal worlds one is asked in vain once more, at every occasion.
fn nothing_changes_by_asking(kind: Kind) {
    for_many_seeds(10_000, |seed| {
        let mut twins = [World::new(kind, seed), World::new(kind, seed)];
        for _ in 0..40 {
            let answers = twins.each_mut().map(|world| {
                world.step();
                world.dispatch()
            });
            assert_eq!(answers[0], answers[1]);
            if !matches!(answers[1], Next::Request(_)) {
                assert_eq!(twins[1].dispatch(), answers[1], "the answer stays");
                twins[1].check();
            }
        }
    });
}

#[test]
fn asking_in_vain_changes_nothing() {
    for kind in Kind::ALL {
        nothing_changes_by_asking(kind);
    }
}
