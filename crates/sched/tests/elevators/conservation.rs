//! Every request comes out exactly once, whatever happens.

use evenkeel_sched::{Kind, Nanos};

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
        for_many_seeds(1_000, |seed| {
            let mut world = World::new(kind, seed);
            for _ in 0..100 {
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
