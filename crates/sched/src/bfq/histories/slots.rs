//! What holds of budgets and slots after every step.

use super::super::ExpireReason;
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// B5, B6, B7, B8, P11.
    #[test]
    fn slots_keep_to_their_budget_and_their_time(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        let untrained = world.bfq.rate.budget(setup.tunables.timeout_sync);
        for step in steps {
            world.step(step, &mut |world, _, next| {
                let bfq = &world.bfq;
                let Some(id) = bfq.holder else { return };
                let queue = &bfq.queues[id as usize];
                if let Next::Request(tag) = next {
                    let is_own = bfq.table.get(tag).queue.0 == id && !world.was_injected(tag);
                    let (service, budget) =
                        (bfq.engine.service(queue.node), bfq.engine.budget(queue.node));
                    assert!(!is_own || service <= budget, "B6: {service} of {budget}");
                } else if bfq.queued() > 0
                    && !(setup.tunables.strict_guarantees && bfq.in_flight() > 0)
                {
                    // Who is alone at the device by right is waited for until it answers.
                    // What was at the device when the time was over may still bring a wait.
                    let longest = setup.tunables.slice_idle.max(Nanos::from_millis(20));
                    let over = bfq.slot.ends.max(bfq.last_completion);
                    assert!(world.now <= over + longest, "B8");
                }
            });
            let bfq = &world.bfq;
            for (id, queue) in (0..).zip(&bfq.queues).filter(|(_, queue)| queue.used) {
                // A merged request may be larger than any budget.
                let most = bfq.limits.max().max(16_384).max(1024);
                prop_assert!((1..=most).contains(&queue.max_budget), "B7: {}", queue.max_budget);
                let is_waiting = queue.busy && bfq.holder != Some(id) && queue.sync;
                if let Some(tag) = queue.next.filter(|_| is_waiting) {
                    let budget = bfq.engine.budget(queue.node);
                    // Who continues with what was left of its budget gets a new one when it turns
                    // out to be too little.
                    let is_rest = budget <= queue.max_budget;
                    prop_assert!(is_rest || budget >= bfq.charge(id, tag), "B5");
                }
            }
            let learned = bfq.rate.budget(setup.tunables.timeout_sync);
            prop_assert!(learned == untrained || bfq.limits.max() == learned, "P11");
        }
    }
}

/// P7.
#[test]
fn raised_queues_and_write_back_never_pay_for_time() {
    for (sync, raised, pays) in [(true, false, true), (true, true, false), (false, false, false)] {
        let now = Nanos::ORIGIN + Nanos::from_secs(9);
        let tunables = BfqTunables { low_latency: raised, ..BfqTunables::default() };
        let merge = MergeLimits::default();
        let mut bfq = Bfq::new(Nanos::ORIGIN, tunables, merge, true);
        let queue = bfq.add_queue(now, GroupId::ROOT, Priority::default(), sync);
        let (tag, op) = (Tag(0), if sync { Op::Read } else { Op::Write });
        let request = Request { tag, queue, op, pos: 64, nr_sectors: 8, segments: 1, sync };
        bfq.insert(now, request);
        assert_eq!(bfq.dispatch(now), Next::Request(tag));
        let id = bfq.holder.expect("it was served");
        assert_eq!(bfq.queues[id as usize].raise.is_on(), raised);
        let node = bfq.queues[id as usize].node;
        let before = bfq.engine.service(node);
        // 8 sectors in 100 ms are slow on any device.
        bfq.charge_time(id, ExpireReason::BudgetTimeout, Nanos::from_millis(100));
        assert_eq!(bfq.engine.service(node) > before, pays, "sync {sync}, raised {raised}");
    }
}
