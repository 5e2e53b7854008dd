//! A kernel's block layer: an elevator, a pool of request slots, and a device with room for some.
//!
//! The pool is the queue at the door: only so many may be inside, whoever comes next waits outside
//! in the order of arrival and the elevator does not know of him. Write-back fills the room, and
//! then what the elevator decides matters little (D3.6, section 8.1).

use std::collections::VecDeque;

use evenkeel_sched::{
    Elevator, GroupId, GroupReport, Insertion, Nanos, Next, Priority, QueueId, Request,
    Scheduler as _, Tag,
};

use crate::{Io, IoOp};

/// What a process or the flusher wants from the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Bio {
    /// By which the owner recognises it.
    pub(crate) token: u64,
    /// Who wants it.
    pub(crate) source: u32,
    pub(crate) op: IoOp,
    pub(crate) pos: u64,
    /// Zero for a flush.
    pub(crate) nr_sectors: u32,
    /// Whether somebody waits for it.
    pub(crate) sync: bool,
}

/// How a block layer is set up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockLimits {
    /// Request slots, the kernel's `nr_requests`.
    pub(crate) slots: u32,
    /// Most requests at the device: the size of the virtqueue, or the depth of the disk.
    pub(crate) depth: u32,
}

/// The layer; time is the guest's, hence an argument.
#[derive(Debug)]
pub(crate) struct BlockLayer {
    elevator: Elevator,
    limits: BlockLimits,
    bios: Vec<Bio>,
    free: Vec<u32>,
    outside: VecDeque<Bio>,
    /// Sources that go as soon as nothing of theirs is outside.
    leaving: Vec<u32>,
    /// Requests with a slot; what was merged shares one.
    inside: u32,
    in_flight: u32,
    flushes: VecDeque<Tag>,
    retired: VecDeque<u64>,
}

impl BlockLayer {
    pub(crate) fn new(elevator: Elevator, limits: BlockLimits) -> Self {
        Self {
            elevator,
            limits,
            bios: Vec::new(),
            free: Vec::new(),
            outside: VecDeque::new(),
            leaving: Vec::new(),
            inside: 0,
            in_flight: 0,
            flushes: VecDeque::new(),
            retired: VecDeque::new(),
        }
    }

    /// Adds somebody with a queue of his own; the answer is his [`Bio::source`].
    pub(crate) fn add_source(&mut self, now: Nanos, priority: Priority, sync: bool) -> u32 {
        self.elevator.add_queue(now, GroupId::ROOT, priority, sync).0
    }

    /// Says that somebody who comes next was active before, by another name.
    pub(crate) fn goes_on(&mut self, now: Nanos, source: u32) {
        self.elevator.deny_start(now, QueueId(source), &[]);
    }

    /// Removes somebody. What he has asked for goes on.
    pub(crate) fn remove_source(&mut self, now: Nanos, source: u32) {
        if self.outside.iter().any(|bio| bio.source == source) {
            self.leaving.push(source);
        } else {
            self.elevator.remove_queue(now, QueueId(source));
        }
    }

    /// Returns whose request it is; of merged ones, whose was first.
    pub(crate) fn source(&self, tag: Tag) -> u32 {
        self.bios[tag.0 as usize].source
    }

    pub(crate) fn submit(&mut self, now: Nanos, bio: Bio) {
        if self.inside < self.limits.slots && self.outside.is_empty() {
            self.enter(now, bio);
        } else {
            self.outside.push_back(bio);
        }
    }

    fn enter(&mut self, now: Nanos, bio: Bio) {
        let tag = if let Some(tag) = self.free.pop() {
            self.bios[tag as usize] = bio;
            Tag(tag)
        } else {
            self.bios.push(bio);
            Tag(u32::try_from(self.bios.len() - 1).expect("fewer than 2^32 requests"))
        };
        self.inside += 1;
        let Some(op) = bio.op.op() else {
            self.flushes.push_back(tag);
            return;
        };
        let inserted = self.elevator.insert(
            now,
            Request {
                tag,
                queue: QueueId(bio.source),
                op,
                pos: bio.pos,
                nr_sectors: bio.nr_sectors,
                segments: 1,
                sync: bio.sync,
            },
        );
        if inserted != Insertion::Queued {
            self.inside -= 1;
        }
    }

    /// Returns the next request for the device.
    pub(crate) fn dispatch(&mut self, now: Nanos) -> Option<(Tag, Io)> {
        if self.in_flight >= self.limits.depth {
            return None;
        }
        if let Some(tag) = self.flushes.pop_front() {
            self.in_flight += 1;
            return Some((tag, Io { op: IoOp::Flush, pos: 0, nr_sectors: 0, durable: false }));
        }
        let Next::Request(tag) = self.elevator.dispatch(now) else { return None };
        self.in_flight += 1;
        let first = self.elevator.first_part(tag);
        let Bio { op, pos, .. } = self.bios[first.0 as usize];
        let (mut nr_sectors, mut part) = (0, Some(first));
        while let Some(tag) = part {
            nr_sectors += self.bios[tag.0 as usize].nr_sectors;
            part = self.elevator.next_part(tag);
        }
        Some((tag, Io { op, pos, nr_sectors, durable: false }))
    }

    pub(crate) fn complete(&mut self, now: Nanos, tag: Tag) {
        self.in_flight -= 1;
        self.inside -= 1;
        if self.bios[tag.0 as usize].op == IoOp::Flush {
            self.give_back(tag);
        } else {
            let mut part = Some(self.elevator.first_part(tag));
            while let Some(tag) = part {
                part = self.elevator.next_part(tag);
                self.give_back(tag);
            }
            self.elevator.complete(now, tag);
        }
        while self.inside < self.limits.slots
            && let Some(bio) = self.outside.pop_front()
        {
            self.enter(now, bio);
            if let Some(index) = self.leaving.iter().position(|&source| source == bio.source) {
                self.leaving.swap_remove(index);
                self.remove_source(now, bio.source);
            }
        }
    }

    fn give_back(&mut self, tag: Tag) {
        self.retired.push_back(self.bios[tag.0 as usize].token);
        self.free.push(tag.0);
    }

    /// Returns the token of a bio that is finished; call until `None`.
    pub(crate) fn retire(&mut self) -> Option<u64> {
        self.retired.pop_front()
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        if self.in_flight >= self.limits.depth { None } else { self.elevator.next_deadline() }
    }

    pub(crate) fn report(&self) -> GroupReport {
        self.elevator.group_report(GroupId::ROOT)
    }

    pub(crate) fn check_invariants(&self) {
        self.elevator.check_invariants();
        assert!(self.in_flight <= self.limits.depth && self.inside <= self.limits.slots);
        assert!(self.outside.is_empty() || self.inside == self.limits.slots);
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_sched::{ElevatorConfig, Kind};

    use super::*;

    const NOW: Nanos = Nanos::ORIGIN;

    fn layer(slots: u32, depth: u32) -> (BlockLayer, u32) {
        let config = ElevatorConfig { kind: Kind::Noop, ..ElevatorConfig::default() };
        let mut layer = BlockLayer::new(Elevator::new(NOW, &config), BlockLimits { slots, depth });
        let source = layer.add_source(NOW, Priority::default(), true);
        (layer, source)
    }

    fn read(source: u32, token: u64, pos: u64) -> Bio {
        Bio { token, source, op: IoOp::Read, pos, nr_sectors: 8, sync: true }
    }

    #[test]
    fn who_finds_no_slot_waits_outside_in_the_order_of_arrival() {
        let (mut layer, source) = layer(2, 1);
        for token in 0..4 {
            layer.submit(NOW, read(source, token, token * 1000));
            layer.check_invariants();
        }
        let mut answered = Vec::new();
        while let Some((tag, _)) = layer.dispatch(NOW) {
            assert_eq!(layer.dispatch(NOW), None, "the device has room for one");
            layer.complete(NOW, tag);
            layer.check_invariants();
            answered.extend(layer.retire());
        }
        assert_eq!(answered, [0, 1, 2, 3]);
    }

    #[test]
    fn who_ends_while_his_requests_wait_outside_still_gets_them() {
        let (mut layer, source) = layer(1, 1);
        for token in 0..3 {
            layer.submit(NOW, read(source, token, token * 1000));
        }
        layer.remove_source(NOW, source);
        let mut answered = Vec::new();
        while let Some((tag, _)) = layer.dispatch(NOW) {
            layer.complete(NOW, tag);
            layer.check_invariants();
            answered.extend(layer.retire());
        }
        assert_eq!(answered, [0, 1, 2]);
        assert!(layer.leaving.is_empty(), "the name is free again");
    }

    #[test]
    fn merged_bios_share_a_slot_and_are_all_answered() {
        let (mut layer, source) = layer(2, 1);
        for token in 0..4 {
            layer.submit(NOW, read(source, token, token * 8));
        }
        let (tag, io) = layer.dispatch(NOW).expect("something waits");
        assert_eq!((io.pos, io.nr_sectors), (0, 32));
        layer.complete(NOW, tag);
        let mut answered: Vec<u64> = std::iter::from_fn(|| layer.retire()).collect();
        answered.sort_unstable();
        assert_eq!(answered, [0, 1, 2, 3]);
        assert_eq!(layer.dispatch(NOW), None);
    }
}
