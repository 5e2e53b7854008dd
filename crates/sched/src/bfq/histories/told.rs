//! What somebody outside says, at any time, of queues and groups.

use super::*;

fn told() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => step(),
        1 => (0..QUEUES, 0..3_u8).prop_map(|(queue, urgency)| Step::Urge { queue, urgency }),
        1 => (0..QUEUES, any::<u32>())
            .prop_map(|(queue, came_from)| Step::Deny { queue, came_from }),
        1 => (1..4_u32, any::<bool>()).prop_map(|(group, is_on)| Step::Speak { group, is_on }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// All that always holds, and that nothing is lost.
    #[test]
    fn whatever_is_said_of_them_all_requests_are_served(
        setup in setup(),
        steps in prop::collection::vec(told(), 20..160),
    ) {
        let mut world = World::new(setup);
        for step in steps {
            world.step(step, &mut |_, _, _| {});
            world.bfq.check_invariants();
        }
        for _ in 0..10_000 {
            if world.free.len() == TAGS as usize {
                break;
            }
            world.step(Step::Dispatch, &mut |_, _, _| {});
            world.step(Step::Complete(0), &mut |_, _, _| {});
            world.step(Step::Pass(1000), &mut |_, _, _| {});
            world.bfq.check_invariants();
        }
        prop_assert_eq!(world.free.len(), TAGS as usize);
    }
}
