//! Long random histories with everything that raises.

use proptest::prelude::*;
use std::vec::Vec;

use super::super::burst::InBurst;
use super::super::raise::WrKind;
use super::super::{BfqTunables, Queueing};
use super::{Rig, ms};
use crate::testing::{Random, cases};
use crate::{Nanos, Op, Scheduler};

fn tunables(random: &mut Random) -> BfqTunables {
    BfqTunables {
        low_latency: random.below(8) > 0,
        wr_rt_coeff: if random.below(2) == 0 { 30 } else { 3000 },
        wr_max_softrt_rate: if random.below(4) == 0 { 0 } else { 7000 },
        large_burst_thresh: [0, 2, 8][usize::try_from(random.below(3)).expect("small")],
        wr_max_time: if random.below(2) == 0 { ms(100) } else { Nanos::ZERO },
        queueing: if random.below(2) == 0 { Queueing::Auto } else { Queueing::No },
        ..BfqTunables::default()
    }
}

/// P15, P16 and all other invariants, after each of 48 steps.
fn history(seed: u64) {
    let mut random = Random::new(seed);
    let tuned = tunables(&mut random);
    let mut rig = Rig::new(tuned, random.below(2) == 0);
    if random.below(4) == 0 {
        rig.bfq.began = rig.now;
    }
    let groups = [0, 1].map(|_| rig.group());
    let queues: Vec<_> = (0..6).map(|i| rig.queue(groups[i % 2])).collect();
    let mut at_device = Vec::new();
    for _ in 0..48 {
        let span = 1 << random.below(33);
        rig.pass(Nanos(random.below(span)));
        match random.below(16) {
            0..=6 => {
                let queue = queues[usize::try_from(random.below(6)).expect("small")];
                let before = rig.kind(queue);
                let op = if random.below(3) == 0 { Op::Write } else { Op::Read };
                rig.insert(queue, op, 8 << random.below(12), true);
                let in_burst = rig.bfq.queues[queue.0 as usize].in_burst;
                let is_new = before == WrKind::None && rig.kind(queue) != WrKind::None;
                assert!(!is_new || in_burst != InBurst::Large, "P15");
                assert!(!is_new || rig.bfq.tunables.low_latency);
            }
            7..=9 if !at_device.is_empty() => {
                let at = usize::try_from(random.below(at_device.len() as u64)).expect("small");
                let tag = at_device.swap_remove(at);
                rig.complete(tag);
            }
            10 => {
                let tunables = tunables(&mut random);
                assert_eq!(rig.bfq.set_tunables(rig.now, tunables), Ok(()));
            }
            _ => at_device.extend(rig.dispatch()),
        }
        rig.bfq.check_invariants();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(10_000)))]

    #[test]
    fn whatever_happens_raises_and_bursts_are_counted(seed: u64) {
        history(seed);
    }
}
