//! Soft real-time: who is, for how long, and who never.

use proptest::prelude::*;

use super::super::BfqTunables;
use super::super::raise::WrKind;
use super::super::softrt::{Batches, SoftRtRules};
use super::{Rig, ms};
use crate::testing::{Random, cases};
use crate::{Nanos, Scheduler};

/// The batch of the known vector: from 10 s on, complete at 10.020 s.
fn batch(service: u64) -> (Batches, Nanos) {
    let at = |ms| Nanos::ORIGIN + Nanos::from_millis(ms);
    let mut batches = Batches::default();
    let rules = SoftRtRules::new(&BfqTunables::default());
    batches.next(at(10_000), None, rules);
    batches.service = service;
    (batches, at(10_020))
}

#[test]
fn the_earliest_next_batch_follows_the_vectors() {
    for (service, earliest_ms) in [(700, 10_100), (70, 10_044)] {
        let rules = SoftRtRules::new(&BfqTunables::default());
        let earliest = Nanos::ORIGIN + ms(earliest_ms);
        let (mut batches, ended) = batch(service);
        assert!(!batches.clone().next(earliest, Some(ended), rules), "{service}");
        assert!(batches.next(earliest + Nanos(1), Some(ended), rules), "{service}");
    }
}

#[test]
fn what_one_batch_took_too_much_later_ones_pay_for() {
    let rules = SoftRtRules::new(&BfqTunables::default());
    let (mut batches, ended) = batch(70_000);
    // 70 000 sectors are ten seconds' worth.
    assert!(!batches.next(ended + ms(100), Some(ended), rules));
    batches.service = 8;
    let ended = ended + ms(101);
    assert!(!batches.next(Nanos::ORIGIN + ms(20_000), Some(ended), rules));
    assert!(batches.next(Nanos::ORIGIN + ms(20_001), Some(ended), rules));
}

#[test]
fn a_queue_without_a_past_and_a_rate_of_zero_are_never_soft_real_time() {
    let (mut batches, ended) = batch(8);
    let tunables = BfqTunables { wr_max_softrt_rate: 0, ..BfqTunables::default() };
    let later = ended + Nanos::from_secs(9);
    assert!(!batches.next(later, Some(ended), SoftRtRules::new(&tunables)));
    let rules = SoftRtRules::new(&BfqTunables::default());
    assert!(!Batches::default().next(later, None, rules));
    assert!(batches.next(later + later, Some(later), rules), "nothing is left of the off time");
}

#[test]
fn a_player_is_raised_for_its_batch_and_for_300_ms() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    rig.make_soft_rt(queue);
    assert_eq!(rig.bfq.coeff(queue.0), 3000);
    // It turns greedy: the raise ends with the first request after 300 ms of service.
    let began = rig.now - ms(1);
    while rig.kind(queue) == WrKind::SoftRt {
        rig.once(queue);
        assert!(rig.now - began <= ms(302), "P14");
    }
    assert!(rig.now - began > ms(300));
    assert_eq!(rig.bfq.coeff(queue.0), 1);
}

#[test]
fn a_raise_goes_up_with_the_factor_of_its_kind() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let [player, reader] = [0, 1].map(|_| rig.queue(group));
    rig.make_soft_rt(player);
    rig.pass(ms(50));
    rig.read(reader, 8);
    assert_eq!(rig.bfq.group_coeff(group.0), 30);
    rig.read(player, 8);
    assert_eq!(rig.bfq.group_coeff(group.0), 3000);
    rig.bfq.check_invariants();
    rig.serve_all(ms(1));
    rig.pass(ms(100));
    // Both left; the device may be kept for one of them a while.
    rig.dispatch();
    rig.bfq.check_invariants();
}

#[test]
fn the_interactive_raise_goes_on_when_the_soft_real_time_one_is_over() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    rig.once(queue);
    assert_eq!(rig.kind(queue), WrKind::Interactive);
    let began = rig.now - ms(1);
    rig.pass(ms(50));
    rig.read(queue, 8);
    assert_eq!(rig.kind(queue), WrKind::SoftRt);
    rig.serve_all(ms(1));
    while rig.kind(queue) == WrKind::SoftRt {
        rig.once(queue);
    }
    assert_eq!(rig.kind(queue), WrKind::Interactive);
    while rig.kind(queue) == WrKind::Interactive {
        rig.once(queue);
    }
    let lasted = rig.now - began;
    // An unmeasured flash device: 3.75 s, counted from the interactive beginning.
    assert!(lasted > ms(3750) && lasted <= ms(3752));
}

#[test]
fn a_start_goes_on_behind_what_looks_like_a_player() {
    for came_from_a_start in [false, true] {
        let mut rig = Rig::flash();
        let group = rig.group();
        let [first, second] = [(); 2].map(|()| rig.queue(group));
        rig.bfq.deny_start(rig.now, second, &[]);
        rig.once(second);
        rig.pass(ms(50));
        rig.once(first);
        rig.once(second);
        assert_eq!([first, second].map(|at| rig.kind(at)), [WrKind::Interactive, WrKind::SoftRt]);
        if came_from_a_start {
            rig.bfq.deny_start(rig.now, second, &[first]);
        }
        while rig.kind(second) == WrKind::SoftRt {
            rig.once(second);
        }
        let kind = if came_from_a_start { WrKind::Interactive } else { WrKind::None };
        assert_eq!(rig.kind(second), kind);
    }
}

#[test]
fn who_goes_on_in_order_beside_a_start_does_not_play_whatever_queue_he_is_in() {
    for (returns_from_there, expected) in [(true, WrKind::None), (false, WrKind::SoftRt)] {
        let mut rig = Rig::new(BfqTunables::default(), true);
        let group = rig.group();
        let [wild, tidy, program] = [(); 3].map(|()| rig.queue(group));
        for queue in [wild, tidy] {
            rig.bfq.queues[queue.0 as usize].idle_since = Some(rig.now);
        }
        for _ in 0..16 {
            rig.read(wild, 1_000_000);
            rig.serve_all(ms(1));
        }
        rig.at = 0;
        for _ in 0..16 {
            rig.once(tidy);
        }
        let tidy_end = rig.at;
        rig.pass(ms(60));
        rig.once(program);
        assert_eq!(rig.kind(program), WrKind::Interactive);
        if returns_from_there {
            rig.bfq.deny_start(rig.now, wild, &[tidy]);
            // Where the other one goes on.
            rig.at = tidy_end + (u64::from(tidy.0 - wild.0) << 40);
        }
        rig.pass(ms(60));
        rig.read(wild, 8);
        assert_eq!(rig.kind(wild), expected);
        rig.serve_all(ms(1));
        rig.at = tidy_end;
        rig.pass(ms(60));
        rig.read(tidy, 8);
        assert_eq!(rig.kind(tidy), WrKind::None);
    }
}

#[test]
fn what_an_application_loaded_does_not_delay_what_it_plays() {
    let tunables = BfqTunables { wr_max_time: ms(100), ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, false);
    let group = rig.group();
    let queue = rig.queue(group);
    // It loads 7000 sectors, which a player may request in one second.
    for _ in 0..875 {
        rig.read(queue, 8);
    }
    rig.serve_all(Nanos::from_micros(10));
    rig.pass(ms(60));
    rig.once(queue);
    assert_eq!(rig.kind(queue), WrKind::Interactive, "too early for a player");
    rig.pass(ms(60));
    rig.once(queue);
    assert_eq!(rig.kind(queue), WrKind::None, "it has loaded for long enough");
    rig.pass(ms(60));
    rig.once(queue);
    assert_eq!(rig.kind(queue), WrKind::SoftRt);
}

#[test]
fn a_player_may_request_more_in_all_than_an_application_that_starts() {
    let tunables = BfqTunables { wr_max_service_sectors: 32, ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, false);
    let group = rig.group();
    let queue = rig.queue(group);
    rig.make_soft_rt(queue);
    for _ in 0..10 {
        rig.pass(ms(60));
        rig.once(queue);
        assert_eq!(rig.kind(queue), WrKind::SoftRt);
    }
}

#[test]
fn seeking_all_the_time_ends_it() {
    let mut rig = Rig::new(BfqTunables::default(), true);
    let group = rig.group();
    let queue = rig.queue(group);
    rig.make_soft_rt(queue);
    for _ in 0..31 {
        rig.pass(ms(60));
        rig.read(queue, 1_000_000);
        assert_eq!(rig.kind(queue), WrKind::SoftRt);
        rig.serve_all(ms(1));
    }
    rig.pass(ms(60));
    rig.read(queue, 1_000_000);
    assert_eq!(rig.kind(queue), WrKind::None, "all of the last 32 were seeks");
}

#[test]
fn time_spent_waiting_for_the_device_is_not_raised_time() {
    let mut rig = Rig::new(BfqTunables::default(), true);
    let group = rig.group();
    let [player, other] = [0, 1].map(|_| rig.queue(group));
    rig.make_soft_rt(player);
    rig.pass(ms(100));
    rig.bfq.queues[other.0 as usize].idle_since = Some(rig.now);
    rig.read(other, 8);
    let tag = rig.dispatch().expect("the device is free");
    rig.read(player, 8);
    // The other one's request is stuck for a second.
    rig.pass(ms(1000));
    rig.complete(tag);
    rig.pass(ms(9));
    let began = rig.now;
    while rig.kind(player) == WrKind::SoftRt {
        rig.read(player, 8);
        rig.serve_all(ms(1));
    }
    assert!(rig.now - began > ms(290) && rig.now - began < ms(310), "{:?}", rig.now - began);
}

/// A clock that stands still and then jumps, by less than four ticks.
struct HaltingClock {
    tick: Nanos,
    shows: Nanos,
    random: Random,
}

impl HaltingClock {
    fn read(&mut self, real: Nanos) -> Nanos {
        let lag = self.random.below(4) * self.tick.0;
        let shows = (real.0 - lag) / self.tick.0 * self.tick.0;
        self.shows = self.shows.max(Nanos(shows));
        self.shows
    }
}

/// A greedy random reader that needs up to `think` between a completion and its next request, as a
/// halting clock shows it; returns whether it ever counts as soft real-time.
fn greedy_is_soft_rt(seed: u64, guard: Nanos, think: Nanos) -> bool {
    let tunables = BfqTunables { soft_rt_guard: guard, ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, seed.is_multiple_of(2));
    let group = rig.group();
    let queue = rig.queue(group);
    let mut random = Random::new(seed);
    let mut clock = HaltingClock { tick: ms(4), shows: rig.now, random: Random::new(seed + 1) };
    let mut real = rig.now + ms(16);
    let mut found = false;
    for _ in 0..16 {
        rig.now = clock.read(real);
        rig.read(queue, 10_000);
        found |= rig.kind(queue) == WrKind::SoftRt;
        let tag = rig.dispatch().expect("it is alone");
        real += Nanos(random.below(ms(12).0));
        rig.now = clock.read(real);
        rig.complete(tag);
        rig.dispatch();
        real += Nanos(random.below(think.0 + 1));
    }
    found
}

#[test]
fn without_the_guard_a_halting_clock_makes_somebody_greedy_look_soft_real_time() {
    let deceived = (0..100).filter(|&seed| greedy_is_soft_rt(seed, Nanos::ZERO, ms(8))).count();
    assert!(deceived > 10, "{deceived}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    /// P13.
    #[test]
    fn somebody_greedy_is_never_soft_real_time_even_if_the_clock_halts_and_jumps(
        seed: u64, think_us in 0_u64..=8_000,
    ) {
        let think = Nanos::from_micros(think_us);
        prop_assert!(!greedy_is_soft_rt(seed >> 1, ms(16), think));
    }

    /// P12.
    #[test]
    fn only_slow_queues_with_pauses_are_soft_real_time(
        batches in prop::collection::vec((1_u64..40, 0_u64..400, 0_u64..3_000), 1..16),
    ) {
        let mut rig = Rig::flash();
        let group = rig.group();
        let queue = rig.queue(group);
        rig.bfq.queues[queue.0 as usize].idle_since = Some(rig.now);
        let (mut began, mut service, mut ended) = (rig.now, 0, rig.now);
        for (requests, pause_ms, request_us) in batches {
            rig.pass(ms(pause_ms));
            prop_assert_eq!(rig.dispatch(), None, "but a wait may end");
            let was_busy = rig.bfq.queues[queue.0 as usize].busy;
            rig.read(queue, 8);
            if rig.kind(queue) == WrKind::SoftRt {
                prop_assert!(!was_busy);
                let pause = rig.now - ended;
                prop_assert!(pause > ms(24), "a pause of {pause:?}");
                let span = rig.now - began;
                prop_assert!(
                    service * 1_000_000_000 <= 7000 * span.0,
                    "{service} sectors in {span:?}"
                );
            }
            // While the device is kept for it, a queue has not yet ended its batch.
            if !was_busy {
                (began, service) = (rig.now, 0);
            }
            service += 8 * requests;
            for _ in 1..requests {
                rig.read(queue, 8);
            }
            rig.serve_all(Nanos::from_micros(request_us));
            ended = rig.now;
            // For this test every batch stands alone.
            rig.bfq.end_raise(rig.now, queue.0);
        }
    }

    /// P14.
    #[test]
    fn a_soft_real_time_raise_ends_after_its_time_in_service(
        others in 0_usize..4, request_us in 50_u64..5_000, rotational: bool,
    ) {
        let mut rig = Rig::new(BfqTunables::default(), rotational);
        let group = rig.group();
        let player = rig.queue(group);
        rig.make_soft_rt(player);
        rig.pass(ms(60));
        let rivals: std::vec::Vec<_> = (0..others)
            .map(|_| {
                let group = rig.group();
                rig.queue(group)
            })
            .collect();
        rig.read(player, 8);
        let mut held = Nanos::ZERO;
        let took = Nanos::from_micros(request_us);
        while rig.kind(player) == WrKind::SoftRt {
            for &queue in &rivals {
                if rig.bfq.queues[queue.0 as usize].is_empty() {
                    rig.read(queue, 100_000);
                }
            }
            rig.read(player, 8);
            let Some(tag) = rig.dispatch() else {
                rig.now = rig.bfq.next_deadline().expect("somebody waits");
                continue;
            };
            rig.pass(took);
            if rig.bfq.holder == Some(player.0) {
                held += took;
            }
            rig.complete(tag);
        }
        prop_assert!(held <= ms(300) + took + took, "{held:?}");
    }
}
