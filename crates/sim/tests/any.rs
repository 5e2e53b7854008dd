//! What holds for every model and every history.

#[expect(dead_code, reason = "each test binary uses its part")]
mod common;

use common::{Random, build, run};
use evenkeel_sched::{Nanos, Tag};
use evenkeel_sim::{DeviceModel, Io, IoOp};
use proptest::prelude::*;

const SPECS: [&str; 7] =
    ["hdd", "hdd:ncq=32,inner_percent=60", "hdd:write_cache_kib=0", "sdhc", "emmc", "ssd", "nvme"];

fn any_io() -> impl Strategy<Value = Io> {
    let op = prop_oneof![
        4 => Just(IoOp::Read),
        4 => Just(IoOp::Write),
        1 => Just(IoOp::Discard),
        1 => Just(IoOp::WriteZeroes),
        1 => Just(IoOp::Flush),
    ];
    // Few places, so that commands meet; and places at and behind the end of every device.
    let pos = prop_oneof![
        6 => (0..40_u64).prop_map(|n| n * 100),
        2 => 117_187_000..117_188_000_u64,
        1 => any::<u64>().prop_map(|n| n >> 8),
    ];
    (op, pos, 1..2_000_u32, any::<bool>()).prop_map(|(op, pos, nr_sectors, durable)| Io {
        op,
        pos,
        nr_sectors,
        durable,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_command_completes_once_and_never_early(
        spec in prop::sample::select(&SPECS[..]),
        ios in prop::collection::vec(any_io(), 1..120),
        depth in 1..80_usize,
    ) {
        // `run` asserts the contract; twice the same calls give twice the same answers.
        let mut histories = Vec::new();
        for _ in 0..2 {
            let mut rest = ios.iter();
            let mut device = build(spec);
            histories.push(run(&mut device, Nanos::ORIGIN, depth, |_| {
                rest.next().copied()
            }));
        }
        prop_assert_eq!(&histories[0], &histories[1]);
        prop_assert_eq!(histories[0].requests, ios.len() as u64);
    }

    #[test]
    fn looking_late_changes_no_instant_of_what_was_already_there(
        spec in prop::sample::select(&SPECS[..]),
        ios in prop::collection::vec(any_io(), 1..60),
    ) {
        // All commands arrive at once; one observer looks at each event, the other at the end.
        let (mut prompt, mut late) = (build(spec), build(spec));
        for (tag, io) in (0..).zip(&ios) {
            prompt.submit(Nanos::ORIGIN, Tag(tag), io);
            late.submit(Nanos::ORIGIN, Tag(tag), io);
        }
        let end = Nanos::ORIGIN + Nanos::from_secs(10_000);
        for _ in 0..ios.len() {
            let at = prompt.next_event().expect("more commands to come");
            prop_assert_eq!(late.next_event(), Some(at));
            prop_assert_eq!(prompt.complete(at), late.complete(end));
        }
        prop_assert_eq!((prompt.next_event(), late.next_event()), (None, None));
    }
}

#[test]
fn arrivals_at_odd_times_keep_the_contract() {
    for spec in SPECS {
        println!("{spec}, seed 11");
        let mut draw = Random(11);
        let mut device = build(spec);
        let (mut now, mut submitted, mut seen) = (Nanos::ORIGIN, 0_u32, vec![false; 4_000]);
        let mut last = now;
        while submitted < 4_000 || device.next_event().is_some() {
            now += Nanos(draw.below(20_000_000));
            if submitted < 4_000 {
                let op = match draw.below(4) {
                    0 => IoOp::Flush,
                    1 => IoOp::Write,
                    _ => IoOp::Read,
                };
                let io = Io {
                    op,
                    pos: draw.below(100) * 1_000_000 + draw.below(5) * 64,
                    nr_sectors: u32::try_from(1 + draw.below(128)).unwrap(),
                    durable: draw.below(9) == 0,
                };
                device.submit(now, Tag(submitted), &io);
                submitted += 1;
            }
            loop {
                let at = device.next_event();
                let Some(tag) = device.complete(now) else {
                    assert!(at.is_none_or(|at| at > now), "{spec}: {at:?} at {now:?}");
                    break;
                };
                let at = at.expect("a completion without an event");
                assert!(at <= now && at >= last, "{spec}: {at:?} after {last:?} at {now:?}");
                last = at;
                assert!(!core::mem::replace(&mut seen[tag.0 as usize], true), "{spec}: {tag:?}");
            }
        }
        assert!(seen.iter().all(|seen| *seen), "{spec}");
    }
}
