//! Does the device queue by itself?

use std::vec::Vec;

use super::super::{BfqTunables, Queueing};
use super::{Rig, ms};
use crate::QueueId;

fn detecting(tunables: BfqTunables) -> (Rig, Vec<QueueId>) {
    let tunables = BfqTunables { queueing: Queueing::Auto, low_latency: false, ..tunables };
    let mut rig = Rig::new(tunables, false);
    let group = rig.group();
    let queues = (0..6).map(|_| rig.queue(group)).collect();
    (rig, queues)
}

/// Keeps `depth` requests at the device, of queues that always have more.
fn run(rig: &mut Rig, queues: &[QueueId], depth: usize, completions: usize) {
    let mut at_device = Vec::new();
    for _ in 0..completions {
        for &queue in queues {
            while rig.bfq.queues[queue.0 as usize].list.len() < 4 {
                rig.read(queue, 100_000);
            }
        }
        while at_device.len() < depth {
            at_device.push(rig.dispatch().expect("somebody always has more"));
        }
        rig.pass(ms(1));
        rig.complete(at_device.remove(0));
    }
    for tag in at_device {
        rig.complete(tag);
    }
}

#[test]
fn a_device_that_is_never_given_more_than_three_is_found_not_to_queue_until_it_is_given_more() {
    let (mut rig, queues) = detecting(BfqTunables::default());
    assert!(rig.bfq.is_queueing_flash(), "it is presumed to queue");
    run(&mut rig, &queues, 3, 29);
    assert!(rig.bfq.is_queueing_flash(), "32 completions are not enough");
    run(&mut rig, &queues, 3, 4);
    assert!(!rig.bfq.is_queueing_flash());
    run(&mut rig, &queues, 4, 1);
    assert!(rig.bfq.is_queueing_flash(), "one moment shows it");
    run(&mut rig, &queues, 2, 50);
    assert!(!rig.bfq.is_queueing_flash(), "and it is not believed for ever");
}

#[test]
fn what_the_scheduler_holds_back_says_nothing_about_the_device() {
    let strict = BfqTunables { strict_guarantees: true, ..BfqTunables::default() };
    let (mut rig, queues) = detecting(strict);
    run(&mut rig, &queues, 1, 100);
    assert!(rig.bfq.is_queueing_flash());
    // Queues that have one request each, and are waited for.
    let (mut rig, queues) = detecting(BfqTunables::default());
    for round in 0..100 {
        let queue = queues[round % 2];
        rig.read(queue, 100_000);
        rig.serve_all(ms(1));
    }
    assert!(rig.bfq.is_queueing_flash());
}

#[test]
fn the_operator_knows_better() {
    for (queueing, expected) in [(Queueing::Yes, true), (Queueing::No, false)] {
        let mut rig = Rig::new(BfqTunables { queueing, ..BfqTunables::default() }, false);
        let group = rig.group();
        let queues: Vec<_> = (0..6).map(|_| rig.queue(group)).collect();
        run(&mut rig, &queues, if expected { 1 } else { 4 }, 100);
        assert_eq!(rig.bfq.is_queueing_flash(), expected);
    }
}
