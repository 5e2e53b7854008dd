//! When the scheduler has nothing to say although requests wait.

use super::super::idling::RAISED_IDLE;
use super::*;

/// Returns why nothing goes to the device although something waits, if there is a reason.
fn reason(bfq: &Bfq, now: Nanos) -> Option<&'static str> {
    if bfq.tunables.strict_guarantees && bfq.in_flight() > 0 {
        return Some("one at a time");
    }
    let id = bfq.holder?;
    let queue = &bfq.queues[id as usize];
    if let Some(tag) = queue.next {
        let is_full = bfq.device_is_full(tag) || bfq.lacks_place(tag);
        return (is_full && bfq.in_flight() > 0).then_some("the device has enough to do");
    }
    let is_kept = bfq.slot.idle_until.is_some() || (queue.in_flight > 0 && bfq.better_to_idle(id));
    let is_alone = bfq.clone().choose_injection(bfq.clock.inside(now), id).is_none();
    (is_kept && is_alone).then_some("kept for the queue in service")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// B12, P19, P21, P22.
    #[test]
    fn whoever_waits_waits_for_a_reason(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        let longest = setup.tunables.slice_idle.max(RAISED_IDLE);
        for step in steps {
            world.step(step, &mut |world, _, next| {
                let bfq = &world.bfq;
                if setup.tunables.strict_guarantees {
                    assert!(bfq.in_flight() <= 1, "P21");
                }
                if let Some(until) = bfq.slot.idle_until {
                    assert!(until - bfq.slot.idle_began <= longest, "P19");
                }
                if let Next::NotBefore(_) = next {
                    let id = bfq.holder.expect("somebody is waited for");
                    assert!(!bfq.queues[id as usize].gone, "P22");
                }
                if bfq.queued() > 0 && !matches!(next, Next::Request(_)) {
                    assert!(reason(bfq, world.now).is_some(), "B12: {next:?}");
                }
            });
            if world.bfq.queued() > 0 && world.at_device.is_empty() {
                world.step(Step::Dispatch, &mut |_, _, _| ());
                let is_woken = !world.at_device.is_empty() || world.bfq.next_deadline().is_some();
                prop_assert!(is_woken, "somebody waits for nothing");
            }
        }
    }

    /// P20.
    #[test]
    fn without_idling_the_device_works_while_anybody_waits(setup in setup(), steps in steps()) {
        let slice_idle = Nanos::ZERO;
        let tunables = BfqTunables { slice_idle, strict_guarantees: false, ..setup.tunables };
        let mut world = World::new(Setup { tunables, ..setup });
        for step in steps {
            world.step(step, &mut |world, _, next| {
                if world.bfq.queued() > 0 && !matches!(next, Next::Request(_)) {
                    assert_eq!(reason(&world.bfq, world.now), Some("the device has enough to do"));
                }
            });
        }
    }
}
