//! The rules of the depths, from inside.

use super::*;
use crate::testing::{Random, for_many_seeds};

const NOW: Nanos = Nanos::ORIGIN;

/// A load with as many requests waiting as asked for, on a device that takes its time.
struct Desk {
    kyber: Kyber,
    queue: QueueId,
    now: Nanos,
    free: Vec<u32>,
    ops: Vec<Op>,
    pos: u64,
}

impl Desk {
    fn new(tags: u32) -> Self {
        let mut kyber = Kyber::new(KyberTunables::default(), MergeLimits::default());
        let queue = kyber.add_queue(NOW, GroupId::ROOT, Priority::default(), true);
        let ops = alloc::vec![Op::Read; tags as usize];
        Self { kyber, queue, now: NOW, free: (0..tags).collect(), ops, pos: 0 }
    }

    fn put(&mut self, op: Op) -> Tag {
        let tag = self.free.pop().unwrap();
        self.ops[tag as usize] = op;
        self.pos += 100;
        let (tag, queue, pos) = (Tag(tag), self.queue, self.pos);
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
        assert_eq!(self.kyber.insert(self.now, request), Insertion::Queued);
        tag
    }

    fn complete(&mut self, tag: Tag) {
        self.kyber.complete(self.now, tag);
        self.free.push(tag.0);
    }

    /// Puts, dispatches and completes `count` requests, each of which takes `latency` at the
    /// device.
    fn serve(&mut self, op: Op, latency: Nanos, count: u32) {
        for _ in 0..count {
            let tag = self.put(op);
            assert_eq!(self.kyber.dispatch(self.now), Next::Request(tag));
            self.now += latency;
            self.complete(tag);
            self.kyber.check_invariants();
        }
    }

    fn depths(&self) -> [u32; DOMAINS] {
        self.kyber.domains.map(|domain| domain.depth)
    }
}

#[test]
fn the_known_depths_come_out() {
    for (p99, expected) in [(0, 64), (1, 128), (2, 192), (3, 256), (7, 256)] {
        assert_eq!(scaled(256, p99, 256), expected);
    }
    assert_eq!(scaled(100, 5, 256), 150);
    assert_eq!(scaled(1, 0, 256), 1);
    // Without congestion only a domain that misses its target changes.
    for (p99_latency, expected) in [(3, 100), (5, 150)] {
        let mut domain = Domain::new(100);
        let target = Nanos(400);
        for _ in 0..500 {
            domain.total.add(NOW, Nanos(p99_latency * 100 + 1), target);
        }
        domain.adapt(NOW, false, 256);
        assert_eq!(domain.depth, expected);
    }
}

#[test]
fn a_remembered_percentile_is_used_once_when_the_device_becomes_congested() {
    let mut domain = Domain::new(64);
    for _ in 0..500 {
        domain.total.add(NOW, Nanos(1), Nanos(400));
    }
    domain.adapt(NOW, false, 64);
    assert_eq!((domain.depth, domain.last_p99), (64, Some(0)));
    domain.adapt(NOW, true, 64);
    assert_eq!((domain.depth, domain.last_p99), (16, None));
    domain.adapt(NOW, true, 64);
    assert_eq!(domain.depth, 16, "what nobody knows changes nothing");
}

#[test]
fn domains_that_meet_their_target_shrink_to_one_while_the_device_is_congested() {
    let mut desk = Desk::new(8);
    let (slow, quick) = (Nanos::from_millis(20), Nanos::from_micros(100));
    let mut last = desk.depths();
    for _ in 0..8 {
        // Writes are late at the device; reads are quick.
        for _ in 0..60 {
            desk.serve(Op::Write, slow, 1);
            desk.serve(Op::Read, quick, 10);
        }
        let depths = desk.depths();
        assert!(depths[READ] < last[READ] || depths[READ] == 1, "{last:?} {depths:?}");
        last = depths;
    }
    assert_eq!(last[READ], 1);
    assert_eq!(last[WRITE], MAX_DEPTH[WRITE], "who suffers is not throttled");
    // And back: reads that wait too long without congestion get more.
    let later = Nanos::from_secs(1);
    for _ in 0..100 {
        for _ in 0..3 {
            desk.put(Op::Read);
        }
        desk.now += Nanos::from_millis(4);
        while let Next::Request(tag) = desk.kyber.dispatch(desk.now) {
            desk.complete(tag);
        }
    }
    desk.now += later;
    desk.kyber.dispatch(desk.now);
    assert!(desk.depths()[READ] > 1, "{:?}", desk.depths());
}

/// T7.1, also when depths change while tokens are in use.
#[test]
fn tokens_in_use_never_grow_beyond_the_depth() {
    let (mut blocked, mut shrunk) = (0, 0);
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut desk = Desk::new(60);
        let mut out: Vec<Tag> = Vec::new();
        let slowness = 1 << random.below(22);
        for step in 0..150 {
            if step % 50 == 0 {
                for (domain, most) in desk.kyber.domains.iter_mut().zip(MAX_DEPTH) {
                    let most = 1 + random.below(u64::from(most.min(8)));
                    domain.depth = u32::try_from(most).unwrap();
                }
            }
            match random.below(10) {
                0..=4 if !desk.free.is_empty() => {
                    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
                    desk.put(ops[usize::try_from(random.below(4)).unwrap()]);
                }
                5..=7 => match desk.kyber.dispatch(desk.now) {
                    Next::Request(tag) => {
                        let domain = &desk.kyber.domains[domain_of(desk.ops[tag.0 as usize])];
                        assert!(domain.in_flight <= domain.depth, "{domain:?}");
                        out.push(tag);
                    }
                    Next::NotBefore(then) => {
                        assert!(then > desk.now);
                        blocked += 1;
                    }
                    Next::Empty => blocked += u32::from(desk.kyber.queued() > 0),
                },
                _ if !out.is_empty() => {
                    let index = random.below(u64::try_from(out.len()).unwrap());
                    let tag = out.swap_remove(usize::try_from(index).unwrap());
                    desk.complete(tag);
                }
                _ => {}
            }
            desk.now += Nanos(random.below(slowness));
            for (domain, most) in desk.kyber.domains.iter().zip(MAX_DEPTH) {
                assert!((1..=most).contains(&domain.depth), "{domain:?}");
                shrunk += u32::from(domain.in_flight > domain.depth);
            }
        }
        desk.kyber.check_invariants();
    });
    assert!(blocked > 0 && shrunk > 0, "blocked {blocked} times, shrunk {shrunk} times");
}

#[test]
fn a_depth_below_the_tokens_in_use_waits_until_enough_are_back() {
    let mut desk = Desk::new(16);
    for _ in 0..8 {
        desk.put(Op::Read);
    }
    let out: Vec<Tag> = (0..6)
        .map(|_| match desk.kyber.dispatch(desk.now) {
            Next::Request(tag) => tag,
            other => unreachable!("{other:?}"),
        })
        .collect();
    desk.kyber.domains[READ].depth = 2;
    for (index, &tag) in out.iter().enumerate() {
        let next = desk.kyber.dispatch(desk.now);
        if index < 5 {
            assert!(!matches!(next, Next::Request(_)), "{} tokens are in use", 6 - index);
        } else {
            assert!(matches!(next, Next::Request(_)));
        }
        desk.complete(tag);
    }
}

#[test]
fn targets_outside_their_range_are_refused() {
    assert_eq!(KyberTunables::default().validate(), Ok(()));
    let tunables = KyberTunables { write_lat: Nanos(3), ..KyberTunables::default() };
    let error = OutOfRange { field: "write_lat", value: 3, min: 4, max: 3_600_000_000_000 };
    assert_eq!(tunables.validate(), Err(error));
}
