//! What is injected, when, and who pays.

use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P23.
    #[test]
    fn others_are_injected_only_below_the_limit(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        for step in steps {
            world.step(step, &mut |world, before, next| {
                let Next::Request(tag) = next else { return };
                if !world.was_injected(tag) {
                    return;
                }
                let id = world.bfq.holder.expect("somebody is waited for");
                let queue = &world.bfq.queues[id as usize];
                let other = world.bfq.table.get(tag).queue.0;
                assert!(queue.is_empty() && other != id);
                assert!(world.bfq.queues[other as usize].class != Class::Idle);
                assert!(!world.bfq.tunables.strict_guarantees);
                let is_friend = [queue.ties.waker, queue.ties.woken].contains(&other);
                let most = queue.inject.most.max(u32::from(world.bfq.slot.is_wasteful));
                let rival = &world.bfq.queues[other as usize];
                let is_one_start = before == 0
                    && rival.group == queue.group
                    && rival.raise.is_on()
                    && queue.raise.is_on();
                assert!(is_friend || is_one_start || before < most, "{before} of {most}");
            });
        }
        world.bfq.check_invariants();
    }
}
