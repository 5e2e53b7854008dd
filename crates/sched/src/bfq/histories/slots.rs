//! What holds of budgets and slots after every step.

use super::super::ExpireReason;
use super::super::idling::RAISED_IDLE;
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
            let window = setup.tunables.slice_idle.max(RAISED_IDLE);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P7, as long as the raise is within its credit.
    #[test]
    fn raised_queues_and_write_back_never_pay_for_time(
        sync: bool,
        raised: bool,
        rotational: bool,
        kernel_compat: bool,
        span_us in 0..400_000_u64,
        nr_sectors in 1..1024_u32,
        timed_out: bool,
    ) {
        let now = Nanos::ORIGIN + Nanos::from_secs(9);
        let tunables =
            BfqTunables { low_latency: raised, kernel_compat, ..BfqTunables::default() };
        let mut bfq = Bfq::new(Nanos::ORIGIN, tunables, MergeLimits::default(), rotational);
        let queue = bfq.add_queue(now, GroupId::ROOT, Priority::default(), sync);
        let (tag, op) = (Tag(0), if sync { Op::Read } else { Op::Write });
        let request = Request { tag, queue, op, pos: 64, nr_sectors, segments: 1, sync };
        bfq.insert(now, request);
        assert_eq!(bfq.dispatch(now), Next::Request(tag));
        let id = bfq.holder.expect("it was served");
        assert_eq!(bfq.queues[id as usize].raise.is_on(), raised && sync);
        let node = bfq.queues[id as usize].node;
        let before = bfq.engine.service(node);
        let reason =
            if timed_out { ExpireReason::BudgetTimeout } else { ExpireReason::NoMoreRequests };
        bfq.charge_time(id, reason, Nanos::from_micros(span_us));
        let paid = bfq.engine.service(node) - before;
        assert!(paid == 0 || (sync && !raised), "sync {sync}, raised {raised}: {paid}");
        // At most 1024 sectors in 100 ms or more are slow on any device.
        let is_slow = sync && !raised && span_us >= 100_000;
        assert!(paid > 0 || !is_slow, "it was slow");
    }

    /// P6: who seeks pays for its time, so that all get equal time, up to a slot.
    #[test]
    fn slow_queues_share_time_equally(costs_us in prop::collection::vec(4_000..20_000_u64, 2..5)) {
        let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
        let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
        let mut now = Nanos::ORIGIN;
        let mut bfq = Bfq::new(now, tunables, merge, true);
        let queues: Vec<_> = costs_us
            .iter()
            .map(|_| {
                let group = bfq.add_group(now, GroupId::ROOT, Weight::default());
                bfq.add_queue(now, group, Priority::default(), true)
            })
            .collect();
        let mut far = 0;
        let mut insert = |bfq: &mut Bfq, now: Nanos, tag: u32| {
            far = (far + 1_234_577) % 100_000_000;
            let (queue, tag, op) = (queues[tag as usize / 2], Tag(tag), Op::Read);
            let request =
                Request { tag, queue, op, pos: far, nr_sectors: 8, segments: 1, sync: true };
            bfq.insert(now, request);
        };
        for tag in 0..2 * u32::try_from(queues.len()).unwrap() {
            insert(&mut bfq, now, tag);
        }
        // The first request of a slot is the way to the queue's area: nobody's time.
        let (mut used, mut last) = (std::vec![Nanos::ZERO; queues.len()], usize::MAX);
        let mut changes = 0;
        while now < Nanos::ORIGIN + Nanos::from_secs(3) {
            let Next::Request(tag) = bfq.dispatch(now) else { unreachable!("all have requests") };
            let client = tag.0 as usize / 2;
            let took = Nanos::from_micros(costs_us[client]);
            now += took;
            if core::mem::replace(&mut last, client) == client {
                used[client] += took;
            } else {
                changes += 1;
            }
            bfq.complete(now, tag);
            insert(&mut bfq, now, tag.0);
        }
        let slots = changes / queues.len() as u64 + 1;
        let share = Nanos(used.iter().map(|used| used.0).sum::<u64>() / queues.len() as u64);
        // A slot may exceed its time by a request, for which nobody pays more.
        let slot = tunables.timeout_sync + Nanos(slots * 1_000 * costs_us.iter().max().unwrap());
        for &used in &used {
            prop_assert!(used.0.abs_diff(share.0) <= slot.0, "{:?} of {:?}", used, share);
        }
    }
}
