//! What `anticipatory` learns, in random histories.

use std::collections::VecDeque;

use evenkeel_sched::{AnticipatoryTunables, Nanos, Next, QueueId, Scheduler, Tag};

use crate::anticipatory::{ANTIC_EXPIRE, Desk, FAR};
use crate::random::{Random, for_many_seeds};

/// A desk beside which somebody always has write-back to do, far away.
struct Street {
    desk: Desk,
    random: Random,
    writer: QueueId,
}

impl Street {
    fn new(seed: u64) -> Self {
        let mut desk = Desk::new(AnticipatoryTunables::default());
        let writer = desk.queue();
        Self { desk, random: Random::new(seed), writer }
    }

    fn some_time(&mut self, end: Nanos) -> Nanos {
        Nanos(self.random.below(end.0))
    }

    /// A stranger reads once and ends: before anybody waits for it, or while the device is kept
    /// for it. Returns whether it was kept, and whether the end was known before.
    fn stranger_ends(&mut self) -> (bool, bool) {
        let stranger = self.desk.queue();
        let pos = self.random.below(FAR / 2);
        let only = self.desk.read(stranger, pos);
        self.desk.serve(only);
        let ends_before = self.random.chance(50);
        if ends_before {
            self.desk.elevator.remove_queue(self.desk.now, stranger);
        }
        let write = self.desk.put(self.writer, false, FAR + self.random.below(FAR));
        let mut next = self.desk.next();
        let is_kept = if let Next::NotBefore(until) = next {
            assert_eq!(until, self.desk.now + ANTIC_EXPIRE);
            let pause = self.some_time(ANTIC_EXPIRE);
            self.desk.pass(pause);
            if !ends_before {
                self.desk.elevator.remove_queue(self.desk.now, stranger);
            }
            self.desk.now = until;
            next = self.desk.next();
            true
        } else {
            if !ends_before {
                self.desk.elevator.remove_queue(self.desk.now, stranger);
            }
            false
        };
        assert_eq!(next, Next::Request(write));
        let service = self.some_time(Nanos::from_millis(9));
        self.desk.pass(service);
        self.desk.complete(write);
        (is_kept, ends_before)
    }

    /// A stranger reads twice, nearby and without thinking long.
    fn stranger_comes_back(&mut self) {
        let stranger = self.desk.queue();
        let pos = self.random.below(FAR / 2);
        for step in 0..2 {
            let pause = self.some_time(ANTIC_EXPIRE);
            self.desk.pass(pause);
            let tag = self.desk.read(stranger, pos + step * 8);
            self.desk.serve(tag);
        }
        self.desk.elevator.remove_queue(self.desk.now, stranger);
    }
}

/// T4.4: ten ends in vain teach not to wait for strangers, six not to wait for one that is known to
/// have ended; and it is forgotten once enough strangers come back.
#[test]
fn strangers_that_end_teach_not_to_wait_for_strangers_until_others_come_back() {
    for_many_seeds(10_000, |seed| {
        let mut street = Street::new(seed);
        for known_ends in [false, true] {
            let mut kept = 0;
            for round in 0..24 {
                let (is_kept, is_known) = street.stranger_ends();
                assert!(!is_kept || kept < 10, "T4.4: {kept} waits were in vain");
                assert!(!(is_kept && is_known) || kept < 6, "T4.4: {kept} waits were in vain");
                let is_fresh = round == 0 && !(known_ends && is_known);
                assert!(is_kept || !is_fresh, "T4.4: the first stranger is waited for");
                kept += u32::from(is_kept);
            }
            // 249 of 256 is as sure as it gets; after six it is less than half of that.
            (0..6).for_each(|_| street.stranger_comes_back());
        }
    });
}

/// A device that does one request after the other and takes `depth` of them in advance, beside
/// reads and writes that never end.
struct Device {
    desk: Desk,
    queue: QueueId,
    depth: usize,
    service: Nanos,
    /// Oldest first, and whether somebody waits for it.
    inside: VecDeque<(Tag, bool)>,
    waiting: [Vec<Tag>; 2],
    pos: u64,
}

impl Device {
    fn fill(&mut self) {
        for sync in [false, true] {
            while self.waiting[usize::from(sync)].len() < 2 {
                self.pos += 100;
                let tag = self.desk.put(self.queue, sync, self.pos);
                self.waiting[usize::from(sync)].push(tag);
            }
        }
    }

    /// Takes as many as it can, completes one, and returns what it took.
    fn turn(&mut self) -> Vec<bool> {
        let mut took = Vec::new();
        self.fill();
        while self.inside.len() < self.depth
            && let Next::Request(tag) = self.desk.next()
        {
            let sync = self.waiting[1].contains(&tag);
            self.waiting[usize::from(sync)].retain(|&other| other != tag);
            self.inside.push_back((tag, sync));
            took.push(sync);
            self.fill();
        }
        let (tag, _) = self.inside.pop_front().expect("both always wait");
        self.desk.pass(self.service);
        self.desk.complete(tag);
        took
    }

    /// Works until so many batches of writes are over; returns how many writes each had.
    fn write_batches(&mut self, count: usize) -> Vec<u64> {
        let (mut batches, mut in_batch) = (Vec::new(), 0);
        while batches.len() < count {
            for sync in self.turn() {
                if !sync {
                    in_batch += 1;
                } else if in_batch > 0 {
                    batches.push(core::mem::take(&mut in_batch));
                }
            }
        }
        batches
    }
}

/// T4.5: whatever writes take, and took before, a batch of them comes to last as long as it may.
#[test]
fn batches_of_writes_come_to_last_as_long_as_they_may_whatever_writes_take() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let length = Nanos::from_millis(20 + random.below(140));
        let tunables = AnticipatoryTunables {
            write_batch_expire: length,
            read_batch_expire: Nanos::from_millis(1 + random.below(20)),
            ..Default::default()
        };
        let mut desk = Desk::new(tunables);
        let queue = desk.queue();
        let depth = 1 + random.index(16);
        let (inside, waiting) = (VecDeque::new(), Default::default());
        let service = Nanos::ZERO;
        let mut device = Device { desk, queue, depth, service, inside, waiting, pos: 0 };
        for _ in 0..2 {
            // At most eight fit: so many batches teach that.
            device.service = Nanos(length.0 / 8 + random.below(2 * length.0));
            let batches = device.write_batches(16);
            for &writes in &batches[12..] {
                // The batch is timed until the first read after it is done.
                let took = (writes + 1) * device.service.0;
                let is_close = took.abs_diff(length.0) <= 2 * device.service.0;
                let service = device.service;
                assert!(is_close || writes == 1, "T4.5: {writes} of {service:?} in {length:?}");
            }
        }
    });
}
