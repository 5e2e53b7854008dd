//! What holds of budgets and slots after every step.

use super::super::ExpireReason;
use super::*;

/// What is left of budgets: the queues that continue with it, and how much it is.
#[derive(Default)]
struct Rests(std::collections::BTreeMap<u32, u64>);

impl Rests {
    /// Returns the queues that would continue if a request came now.
    fn candidates(bfq: &Bfq) -> Vec<u32> {
        let queues = (0..).zip(&bfq.queues).filter(|(_, queue)| queue.used);
        let paused = queues.filter(|(id, queue)| {
            let is_waited_for = bfq.holder == Some(*id) && bfq.slot.idle_until.is_some();
            is_waited_for || (queue.paused && !queue.busy)
        });
        paused.map(|(id, _)| id).collect()
    }

    /// Takes note of who came back in the step after `candidates` were found.
    fn note(&mut self, bfq: &Bfq, candidates: &[u32]) {
        let budget = |id: u32| bfq.engine.budget(bfq.queues[id as usize].node);
        let waits = |id: u32| bfq.queues[id as usize].busy && bfq.holder != Some(id);
        self.0.retain(|&id, rest| waits(id) && budget(id) == *rest);
        for &id in candidates.iter().filter(|&&id| waits(id)) {
            self.0.insert(id, budget(id));
        }
    }
}

/// B8: the slot of the queue in service lasts as long as it may; then nothing of its own is sent,
/// and while others wait it is waited for only if its last request has just completed.
fn check_time(world: &World, setup: &Setup, next: Next) {
    let bfq = &world.bfq;
    let (Some(id), slot) = (bfq.holder, &bfq.slot) else { return };
    let timeout = setup.tunables.timeout_sync;
    let raised = Nanos(timeout.0 * u64::from(setup.tunables.wr_coeff));
    let lasts = slot.ends - slot.began;
    assert!(lasts == timeout || (setup.tunables.low_latency && lasts == raised), "B8: {lasts:?}");
    match next {
        Next::Request(tag) => {
            let is_own = bfq.table.get(tag).queue.0 == id && !world.was_injected(tag);
            assert!(!is_own || world.now < slot.ends, "B8: sent after its time");
        }
        // Who is alone at the device by right is waited for until it answers.
        _ if setup.tunables.strict_guarantees && bfq.in_flight() > 0 => {}
        _ if bfq.queued() > 0 && world.now >= slot.ends => {
            let queue = &bfq.queues[id as usize];
            let until = slot.idle_until.expect("B8: it is waited for, or left");
            let window = setup.tunables.slice_idle.max(Nanos::from_millis(20));
            assert!(world.now < until && until <= slot.idle_began + window, "B8: too long");
            assert!(queue.is_empty() && queue.in_flight == 0, "B8: nothing is outstanding");
            assert_eq!(queue.think.last_end(), Some(slot.idle_began), "B8: from its completion");
        }
        _ => {}
    }
}

/// B6.
fn check_budget(world: &World, next: Next) {
    let bfq = &world.bfq;
    let (Some(id), Next::Request(tag)) = (bfq.holder, next) else { return };
    let node = bfq.queues[id as usize].node;
    let is_own = bfq.table.get(tag).queue.0 == id && !world.was_injected(tag);
    let (service, budget) = (bfq.engine.service(node), bfq.engine.budget(node));
    assert!(!is_own || service <= budget, "B6: {service} of {budget}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// B5, B6, B7, B8, P11.
    #[test]
    fn slots_keep_to_their_budget_and_their_time(setup in setup(), steps in steps()) {
        let mut world = World::new(setup);
        let untrained = world.bfq.rate.budget(setup.tunables.timeout_sync);
        let mut rests = Rests::default();
        for step in steps {
            let candidates = Rests::candidates(&world.bfq);
            world.step(step, &mut |world, _, next| {
                check_budget(world, next);
                check_time(world, &setup, next);
            });
            rests.note(&world.bfq, &candidates);
            let bfq = &world.bfq;
            for (id, queue) in (0..).zip(&bfq.queues).filter(|(_, queue)| queue.used) {
                // A merged request may be larger than any budget.
                let most = bfq.limits.max().max(16_384).max(1024);
                prop_assert!((1..=most).contains(&queue.max_budget), "B7: {}", queue.max_budget);
                let is_waiting = queue.busy && bfq.holder != Some(id) && queue.sync;
                // Who continues with what was left of its budget gets a new one when it turns out
                // to be too little.
                let is_new = !rests.0.contains_key(&id);
                if let Some(tag) = queue.next.filter(|_| is_waiting && is_new) {
                    let (budget, cost) = (bfq.engine.budget(queue.node), bfq.charge(id, tag));
                    prop_assert!(budget >= cost, "B5: {} for {}", budget, cost);
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
