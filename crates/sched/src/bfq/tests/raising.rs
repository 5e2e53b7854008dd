//! Interactive raises: how long, and how much.

use proptest::prelude::*;

use super::super::BfqTunables;
use super::super::raise::WrKind;
use super::{Rig, ms};
use crate::testing::cases;
use crate::{Class, Nanos, Priority, Scheduler};

#[test]
fn the_operator_sets_how_long_a_raise_lasts() {
    let tunables = BfqTunables { wr_max_time: ms(100), ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, false);
    let group = rig.group();
    let queue = rig.queue(group);
    let began = rig.now;
    rig.once(queue);
    while rig.kind(queue) != WrKind::None {
        rig.once(queue);
    }
    assert_eq!(rig.now - began, ms(102));
}

#[test]
fn write_back_and_the_idle_class_are_never_raised() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let write_back = rig.bfq.add_queue(rig.now, group, Priority::default(), false);
    let idle = Priority { class: Class::Idle, level: 0 };
    let idle = rig.bfq.add_queue(rig.now, group, idle, true);
    for queue in [write_back, idle] {
        for pause in [0, 100, 5_000] {
            rig.pass(ms(pause));
            rig.once(queue);
            assert_eq!(rig.kind(queue), WrKind::None);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P14.
    #[test]
    fn an_interactive_raise_ends_after_its_time_or_its_sectors(
        most_ms in 1_u64..200, most_sectors in 1_u32..500, request_us in 10_u64..10_000,
    ) {
        let tunables = BfqTunables {
            wr_max_time: ms(most_ms),
            wr_max_service_sectors: most_sectors,
            ..BfqTunables::default()
        };
        let mut rig = Rig::new(tunables, false);
        let group = rig.group();
        let queue = rig.queue(group);
        let began = rig.now;
        let took = Nanos::from_micros(request_us);
        let mut sectors = 0;
        loop {
            rig.read(queue, 8);
            let tag = rig.dispatch().expect("it is alone");
            sectors += 8;
            if rig.kind(queue) == WrKind::None {
                break;
            }
            prop_assert!(rig.now - began <= ms(most_ms) && sectors <= most_sectors);
            rig.pass(took);
            rig.complete(tag);
        }
        prop_assert!(rig.now - began > ms(most_ms) || sectors > most_sectors);
    }
}
