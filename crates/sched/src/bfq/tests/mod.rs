//! The mechanisms of raising, seen from inside.

mod bursts;
mod jumps;
mod queueing;
mod raising;
mod random;
mod soft_rt;
mod statistics;
mod tuning;

use std::vec::Vec;

use super::raise::WrKind;
use super::{Bfq, BfqTunables};
use crate::{
    GroupId, Insertion, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request, Scheduler, Tag,
    Weight,
};

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A scheduler that has run for an hour, and a clock.
struct Rig {
    bfq: Bfq,
    now: Nanos,
    free: Vec<Tag>,
    next_tag: u32,
    at: u64,
}

impl Rig {
    fn new(tunables: BfqTunables, rotational: bool) -> Self {
        assert_eq!(tunables.validate(), Ok(()));
        let bfq = Bfq::new(Nanos::ORIGIN, tunables, MergeLimits::default(), rotational);
        let now = Nanos::ORIGIN + Nanos::from_secs(3600);
        Self { bfq, now, free: Vec::new(), next_tag: 0, at: 0 }
    }

    fn flash() -> Self {
        Self::new(BfqTunables::default(), false)
    }

    fn group(&mut self) -> GroupId {
        self.bfq.add_group(self.now, GroupId::ROOT, Weight::default())
    }

    fn queue(&mut self, group: GroupId) -> QueueId {
        self.bfq.add_queue(self.now, group, Priority::default(), true)
    }

    fn pass(&mut self, span: Nanos) {
        self.now += span;
    }

    /// Inserts a read of 8 sectors; positions go up by `stride`.
    fn read(&mut self, queue: QueueId, stride: u64) -> Insertion {
        self.insert(queue, Op::Read, stride, true)
    }

    fn insert(&mut self, queue: QueueId, op: Op, stride: u64, sync: bool) -> Insertion {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.next_tag += 1;
            Tag(self.next_tag - 1)
        });
        self.at += stride;
        let pos = (u64::from(queue.0) << 40) + self.at;
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync };
        self.bfq.insert(self.now, request)
    }

    fn dispatch(&mut self) -> Option<Tag> {
        match self.bfq.dispatch(self.now) {
            Next::Request(tag) => Some(tag),
            _ => None,
        }
    }

    fn complete(&mut self, tag: Tag) {
        let mut part = Some(self.bfq.first_part(tag));
        while let Some(at) = part {
            self.free.push(at);
            part = self.bfq.next_part(at);
        }
        self.bfq.complete(self.now, tag);
    }

    /// Serves all that waits, one after the other, each in `took`; waits for whom it is kept.
    fn serve_all(&mut self, took: Nanos) {
        while self.bfq.queued() > 0 {
            match self.bfq.dispatch(self.now) {
                Next::Request(tag) => {
                    self.pass(took);
                    self.complete(tag);
                }
                Next::NotBefore(at) => self.now = at,
                Next::Empty => unreachable!("nothing is at the device"),
            }
        }
        self.bfq.check_invariants();
    }

    /// Requests once and is served.
    fn once(&mut self, queue: QueueId) {
        self.read(queue, 8);
        self.serve_all(ms(1));
    }

    fn kind(&self, queue: QueueId) -> WrKind {
        self.bfq.queues[queue.0 as usize].raise.kind
    }

    /// Makes a queue soft real-time that has done nothing yet: waits until its interactive raise
    /// is over, and then requests little at a time.
    fn make_soft_rt(&mut self, queue: QueueId) {
        self.bfq.queues[queue.0 as usize].idle_since = Some(self.now);
        self.once(queue);
        assert_eq!(self.kind(queue), WrKind::None);
        self.pass(ms(50));
        self.read(queue, 8);
        assert_eq!(self.kind(queue), WrKind::SoftRt);
        self.serve_all(ms(1));
    }
}
