//! What `anticipatory` promises.

use evenkeel_sched::{
    AnticipatoryTunables, Elevator, ElevatorConfig, GroupId, Kind, MergeLimits, Nanos, Next, Op,
    OutOfRange, Priority, QueueId, Request, Scheduler, Tag,
};

use crate::random::{Random, for_many_seeds};

const NOW: Nanos = Nanos::ORIGIN;
pub(crate) const ANTIC_EXPIRE: Nanos = Nanos::from_millis(6);
pub(crate) const FAR: u64 = 1 << 30;

pub(crate) struct Desk {
    pub(crate) elevator: Elevator,
    pub(crate) now: Nanos,
    next_tag: u32,
    /// Tags that are completed and may be used again.
    free: Vec<Tag>,
}

impl Desk {
    pub(crate) fn new(tunables: AnticipatoryTunables) -> Self {
        let config = ElevatorConfig {
            kind: Kind::Anticipatory,
            anticipatory: tunables,
            merge: MergeLimits { max_sectors: 1, max_segments: 1 },
            ..ElevatorConfig::default()
        };
        Self { elevator: Elevator::new(NOW, &config), now: NOW, next_tag: 0, free: Vec::new() }
    }

    pub(crate) fn queue(&mut self) -> QueueId {
        self.elevator.add_queue(self.now, GroupId::ROOT, Priority::default(), true)
    }

    pub(crate) fn put(&mut self, queue: QueueId, sync: bool, pos: u64) -> Tag {
        let tag = self.free.pop().unwrap_or(Tag(self.next_tag));
        self.next_tag = self.next_tag.max(tag.0 + 1);
        let op = if sync { Op::Read } else { Op::Write };
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync };
        self.elevator.insert(self.now, request);
        self.elevator.check_invariants();
        tag
    }

    pub(crate) fn read(&mut self, queue: QueueId, pos: u64) -> Tag {
        self.put(queue, true, pos)
    }

    pub(crate) fn next(&mut self) -> Next {
        let next = self.elevator.dispatch(self.now);
        self.elevator.check_invariants();
        next
    }

    /// Dispatches `tag`, which must be next, and completes it a while later.
    pub(crate) fn serve(&mut self, tag: Tag) {
        assert_eq!(self.next(), Next::Request(tag));
        self.pass(Nanos::from_millis(3));
        self.complete(tag);
    }

    pub(crate) fn complete(&mut self, tag: Tag) {
        self.elevator.complete(self.now, tag);
        self.free.push(tag);
    }

    pub(crate) fn pass(&mut self, span: Nanos) {
        self.now += span;
    }
}

/// Reads of two queues far apart; the first one has been served.
fn after_a_read() -> (Desk, QueueId, QueueId, Tag) {
    let mut desk = Desk::new(AnticipatoryTunables::default());
    let (near, far) = (desk.queue(), desk.queue());
    let first = desk.read(near, 1000);
    let other = desk.read(far, FAR);
    desk.serve(first);
    (desk, near, far, other)
}

#[test]
fn the_device_is_kept_for_the_next_read_and_no_longer_than_it_may() {
    let (mut desk, _, _, other) = after_a_read();
    let until = desk.now + ANTIC_EXPIRE;
    assert_eq!(desk.next(), Next::NotBefore(until));
    assert_eq!(desk.elevator.next_deadline(), Some(until));
    desk.now = until - Nanos(1);
    assert_eq!(desk.next(), Next::NotBefore(until));
    desk.now = until;
    assert_eq!(desk.next(), Next::Request(other));
    assert_eq!(desk.elevator.next_deadline(), None);
}

#[test]
fn a_request_of_the_anticipated_issuer_ends_the_wait_at_once() {
    let (mut desk, near, _, other) = after_a_read();
    assert!(matches!(desk.next(), Next::NotBefore(_)));
    desk.pass(Nanos::from_millis(2));
    let second = desk.read(near, 1008);
    desk.serve(second);
    assert!(matches!(desk.next(), Next::NotBefore(_)), "and it is waited for again");
    desk.pass(ANTIC_EXPIRE);
    assert_eq!(desk.next(), Next::Request(other));
}

#[test]
fn a_near_request_of_somebody_else_ends_the_wait_and_a_far_one_does_not() {
    for (pos, ends) in [(1008 + 8192, true), (1009 + 8192, false), (FAR / 2, false)] {
        let (mut desk, ..) = after_a_read();
        assert!(matches!(desk.next(), Next::NotBefore(_)));
        let stranger = desk.queue();
        let tag = desk.read(stranger, pos);
        assert_eq!(desk.next() == Next::Request(tag), ends, "at {pos}");
    }
    // What counts as near doubles with each millisecond of waiting.
    let (mut desk, ..) = after_a_read();
    assert!(matches!(desk.next(), Next::NotBefore(_)));
    desk.pass(Nanos::from_millis(2));
    let stranger = desk.queue();
    let tag = desk.read(stranger, 1008 + 4 * 8192);
    assert_eq!(desk.next(), Next::Request(tag));
}

#[test]
fn who_thinks_longer_than_the_wait_is_not_waited_for() {
    for (think_ms, waits) in [(1, true), (5, true), (7, false), (15, false)] {
        let mut desk = Desk::new(AnticipatoryTunables::default());
        let (thinker, other) = (desk.queue(), desk.queue());
        // One sample is enough.
        for pos in [1000, 1008] {
            let tag = desk.read(thinker, pos);
            desk.serve(tag);
            desk.pass(Nanos::from_millis(if pos == 1000 { think_ms } else { 0 }));
        }
        let far = desk.read(other, FAR);
        let next = desk.next();
        let until = desk.now + ANTIC_EXPIRE;
        let expected = if waits { Next::NotBefore(until) } else { Next::Request(far) };
        assert_eq!(next, expected, "{think_ms} ms");
    }
}

/// T4.2, T4.3: one sample decides whether somebody is waited for, and its next request ends the wait.
#[test]
fn who_thinks_for_as_long_as_the_wait_at_most_is_waited_for_until_it_comes() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut desk = Desk::new(AnticipatoryTunables::default());
        let (thinker, other) = (desk.queue(), desk.queue());
        let think = Nanos::from_micros(random.below(20_000));
        // Not near its mean, which has but eight bits.
        if think.0.abs_diff(ANTIC_EXPIRE.0) < ANTIC_EXPIRE.0 / 32 {
            return;
        }
        let first = random.below(FAR / 2);
        for place in [0, 8] {
            let tag = desk.read(thinker, first + place);
            desk.serve(tag);
            desk.pass(if place == 0 { think } else { Nanos::ZERO });
        }
        let far = desk.read(other, FAR + random.below(FAR));
        let next = desk.next();
        if think > ANTIC_EXPIRE {
            assert_eq!(next, Next::Request(far), "T4.3: {think:?}");
            return;
        }
        assert_eq!(next, Next::NotBefore(desk.now + ANTIC_EXPIRE), "{think:?}");
        desk.pass(Nanos(random.below(ANTIC_EXPIRE.0)));
        // The sweep may choose the other one.
        desk.read(thinker, random.below(FAR));
        assert!(matches!(desk.next(), Next::Request(_)), "T4.2");
    });
}

#[test]
fn no_wait_begins_if_waiting_is_turned_off_or_the_oldest_read_is_overdue() {
    let tunables = AnticipatoryTunables { antic_expire: Nanos::ZERO, ..Default::default() };
    let mut desk = Desk::new(tunables);
    let (near, far) = (desk.queue(), desk.queue());
    let first = desk.read(near, 1000);
    let other = desk.read(far, FAR);
    desk.serve(first);
    assert_eq!(desk.next(), Next::Request(other));

    let mut desk = Desk::new(AnticipatoryTunables::default());
    let (near, far) = (desk.queue(), desk.queue());
    let first = desk.read(near, 992);
    let overdue = desk.read(far, FAR);
    desk.serve(first);
    for step in 0..100 {
        let tag = desk.read(near, 1000 + step * 8);
        match desk.next() {
            Next::Request(next) if next == overdue => {
                let waited = desk.now.since(NOW);
                assert!(waited > Nanos::from_millis(125), "{waited:?}");
                assert!(waited <= Nanos::from_millis(125 + 3), "{waited:?}");
                return;
            }
            next => assert_eq!(next, Next::Request(tag)),
        }
        desk.pass(Nanos::from_millis(3));
        desk.complete(tag);
    }
    unreachable!("the oldest read starves");
}

#[test]
fn an_idle_device_never_waits_longer_than_allowed() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut desk = Desk::new(AnticipatoryTunables::default());
        let queues = [desk.queue(), desk.queue(), desk.queue()];
        let mut out = Vec::new();
        let mut idle_since = None;
        for _ in 0..60 {
            match random.below(8) {
                0..=2 => {
                    let (queue, sync) = (random.pick(&queues), random.chance(70));
                    let pos = random.below(4) * FAR + random.below(1 << 15);
                    desk.put(queue, sync, pos);
                }
                3 if !out.is_empty() => {
                    let tag = out.swap_remove(random.index(out.len()));
                    desk.complete(tag);
                }
                _ => desk.pass(Nanos::from_micros(random.below(4_000))),
            }
            let next = desk.next();
            if let Next::Request(tag) = next {
                out.push(tag);
            }
            if !out.is_empty() || desk.elevator.queued() == 0 {
                idle_since = None;
                continue;
            }
            let Next::NotBefore(until) = next else { unreachable!("it waits for somebody") };
            assert!(until <= *idle_since.get_or_insert(desk.now) + ANTIC_EXPIRE);
        }
    });
}

#[test]
fn tunables_have_the_ranges_of_linux() {
    assert_eq!(AnticipatoryTunables::default().validate(), Ok(()));
    let max = Nanos::from_millis((1 << 31) - 1);
    let value = max + Nanos(1);
    let tunables = AnticipatoryTunables { antic_expire: value, ..Default::default() };
    let error = OutOfRange { field: "antic_expire", value: value.0, min: 0, max: max.0 };
    assert_eq!(tunables.validate(), Err(error));
}
