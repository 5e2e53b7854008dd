//! Properties that need to look inside: random histories against a small world.

mod fairness;
mod injecting;
mod merging;
mod places;
mod slots;
mod told;
mod waiting;
mod wakers;

use std::vec::Vec;

use proptest::prelude::*;

use super::select::INJECTED;
use super::{Bfq, BfqTunables, Queueing};
use crate::merge::MergeLimits;
use crate::testing::cases;
use crate::{
    Class, GroupId, Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag, Urgency, Weight,
};

/// Queues of every world: three groups of different weight, three queues each.
const QUEUES: u32 = 9;
/// Requests that may be outstanding.
const TAGS: u32 = 48;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes, in microseconds.
    Pass(u32),
    Insert {
        queue: u32,
        pos: u64,
        nr_sectors: u32,
    },
    /// The scheduler is asked until it has nothing or the device is full.
    Dispatch,
    /// One of the requests at the device completes.
    Complete(u32),
    /// Nobody inserts into this queue any more.
    Remove(u32),
    /// A governor begins or ends to see to what waits at the device.
    Bound(bool),
    /// Somebody outside says how urgent a queue is.
    Urge {
        queue: u32,
        urgency: u8,
    },
    /// Somebody outside says that nothing starts with what comes next, whose issuer was in these
    /// queues, a bit for each.
    Deny {
        queue: u32,
        came_from: u32,
    },
    /// Somebody outside begins or ends to know what is urgent in a group.
    Speak {
        group: u32,
        is_on: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..14_000_u32).prop_map(Step::Pass),
        1 => (0..300_u32).prop_map(Step::Pass),
        4 => (0..QUEUES, 0..4_u64, 0..64_u64, 0..5_u32).prop_map(|(queue, area, at, size)| {
            Step::Insert { queue, pos: area * 100_000 + at * 4, nr_sectors: 4 << (2 * size) }
        }),
        5 => Just(Step::Dispatch),
        4 => (0..32_u32).prop_map(Step::Complete),
        1 => (0..4 * QUEUES).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(Step::Bound),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 20..160)
}

/// A device and how it is scheduled.
#[derive(Clone, Copy, Debug)]
struct Setup {
    tunables: BfqTunables,
    rotational: bool,
    depth: usize,
}

prop_compose! {
    fn setup()(
        rotational: bool,
        queueing in prop::sample::select([Queueing::Yes, Queueing::No, Queueing::Auto].as_slice()),
        low_latency in prop::bool::weighted(0.3),
        slice_idle_ms in prop::sample::select([0, 2, 8, 8, 8, 30].as_slice()),
        strict_guarantees in prop::bool::weighted(0.1),
        depth in 1..12_usize,
    ) -> Setup {
        let slice_idle = Nanos::from_millis(slice_idle_ms);
        let tunables = BfqTunables {
            slice_idle, low_latency, queueing, strict_guarantees, ..BfqTunables::default()
        };
        assert_eq!(tunables.validate(), Ok(()));
        Setup { tunables, rotational, depth }
    }
}

struct World {
    bfq: Bfq,
    now: Nanos,
    depth: usize,
    queues: Vec<Option<QueueId>>,
    free: Vec<Tag>,
    at_device: Vec<Tag>,
}

impl World {
    fn new(setup: Setup) -> Self {
        let now = Nanos::ORIGIN;
        let merge = MergeLimits { max_sectors: 1024, max_segments: 8 };
        let depth = u32::try_from(setup.depth).unwrap();
        let bfq = Bfq::new(now, setup.tunables, merge, setup.rotational);
        let mut bfq = bfq.with_depth(depth);
        let mut queues = Vec::new();
        for weight in [100, 200, 500] {
            let group = bfq.add_group(now, GroupId::ROOT, Weight::new(weight).unwrap());
            for (class, level, sync) in [
                (Class::BestEffort, 4, true),
                (Class::BestEffort, 4, weight != 100),
                (if weight == 200 { Class::Idle } else { Class::BestEffort }, 2, true),
            ] {
                queues.push(Some(bfq.add_queue(now, group, Priority { class, level }, sync)));
            }
        }
        let free = (0..TAGS).rev().map(Tag).collect();
        Self { bfq, now, depth: setup.depth, queues, free, at_device: Vec::new() }
    }

    /// Lets one thing happen. `asked` sees every answer of the scheduler, and how
    /// many requests were at the device before it.
    fn step(&mut self, step: Step, asked: &mut impl FnMut(&Self, u32, Next)) {
        match step {
            Step::Pass(us) => self.now += Nanos::from_micros(u64::from(us)),
            Step::Insert { queue, pos, nr_sectors } => self.insert(queue, pos, nr_sectors),
            Step::Dispatch => self.dispatch(asked),
            Step::Complete(at) => {
                if !self.at_device.is_empty() {
                    self.complete(at as usize % self.at_device.len());
                }
            }
            Step::Remove(queue) => {
                let queue = self.queues.get_mut(queue as usize).and_then(Option::take);
                if let Some(queue) = queue {
                    self.bfq.remove_queue(self.now, queue);
                }
            }
            Step::Bound(bounded) => self.bfq.set_bounded(bounded),
            Step::Urge { queue, urgency } => {
                if let Some(queue) = self.queues[queue as usize] {
                    let levels = [Urgency::None, Urgency::Interactive, Urgency::SoftRealTime];
                    self.bfq.set_urgency(self.now, queue, levels[urgency as usize]);
                }
            }
            Step::Deny { queue, came_from } => {
                if let Some(queue) = self.queues[queue as usize] {
                    let known = self.queues.iter().zip(0..);
                    let came_from: Vec<QueueId> = known
                        .filter(|(_, bit)| came_from >> bit & 1 != 0)
                        .filter_map(|(queue, _)| *queue)
                        .collect();
                    self.bfq.deny_start(self.now, queue, &came_from);
                }
            }
            Step::Speak { group, is_on } => {
                self.bfq.set_spoken_for(self.now, GroupId(group), is_on);
            }
        }
    }

    fn insert(&mut self, queue: u32, pos: u64, nr_sectors: u32) {
        let Some(queue) = self.queues[queue as usize] else { return };
        let Some(tag) = self.free.pop() else { return };
        let sync = self.bfq.queues[self.bfq.merging.routes[queue.0 as usize] as usize].sync;
        let op = if sync { Op::Read } else { Op::Write };
        let request = Request { tag, queue, op, pos, nr_sectors, segments: 1, sync };
        self.bfq.insert(self.now, request);
    }

    fn dispatch(&mut self, asked: &mut impl FnMut(&Self, u32, Next)) {
        while self.at_device.len() < self.depth {
            let before = self.bfq.in_flight();
            let next = self.bfq.dispatch(self.now);
            asked(self, before, next);
            let Next::Request(tag) = next else { return };
            self.at_device.push(tag);
        }
    }

    fn complete(&mut self, at: usize) {
        let tag = self.at_device.swap_remove(at);
        let parts = core::iter::successors(Some(self.bfq.first_part(tag)), |&part| {
            self.bfq.next_part(part)
        });
        self.free.extend(parts);
        self.bfq.complete(self.now, tag);
    }

    /// Returns whether a request at the device was injected.
    fn was_injected(&self, tag: Tag) -> bool {
        self.bfq.table.get(tag).fifo_time.0 & INJECTED != 0
    }
}
