//! A deterministic device and a handful of clients that drive the scheduler in virtual time.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test binary uses a part of this; a broken world is a failed test"
)]

use std::collections::HashMap;

use evenkeel_sched::{
    Bfq, BfqTunables, GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request, Scheduler,
    Tag, Urgency, Weight,
};

/// A small random number generator (xorshift64*), so that every history follows from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }
}

/// Runs `case` for many seeds. `EVENKEEL_SEED` and `EVENKEEL_CASES` choose other ones; a failing seed
/// is printed, so that `EVENKEEL_SEED=... EVENKEEL_CASES=1` repeats it alone.
pub(crate) fn for_many_seeds(cases: u64, mut case: impl FnMut(u64)) {
    struct Story(u64);
    impl Drop for Story {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("repeat with EVENKEEL_SEED={} EVENKEEL_CASES=1", self.0);
            }
        }
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect(name));
    let first = number("EVENKEEL_SEED").unwrap_or(0_u64);
    for seed in first..first + number("EVENKEEL_CASES").unwrap_or(cases) {
        let story = Story(seed);
        case(seed);
        drop(story);
    }
}

/// How long the device takes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Device {
    /// One request after the other: so many nanoseconds per sector, plus so many if the request
    /// does not follow the one before.
    Serial { per_sector: u64, seek: u64 },
    /// As many at once as there are channels; each takes so many nanoseconds.
    Parallel { latency: u64 },
}

/// Somebody who keeps `outstanding` requests in the queue while it is awake.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) queue: QueueId,
    pub(crate) random: bool,
    pub(crate) op: Op,
    pub(crate) nr_sectors: u32,
    pub(crate) outstanding: u32,
    /// Pause between a completion and the next request.
    pub(crate) think: Nanos,
    /// Awake from, until; after that again every `period`, if that is not zero.
    pub(crate) from: Nanos,
    pub(crate) until: Nanos,
    pub(crate) period: Nanos,
    /// Requests that it still wants to issue.
    pub(crate) left: u64,
    pub(crate) base: u64,
    pub(crate) at: u64,
    waiting: u32,
    due: Vec<Nanos>,
    pub(crate) sectors: u64,
    pub(crate) requests: u64,
    pub(crate) worst: Nanos,
    pub(crate) total_latency: u64,
    /// Commands for it that went out as urgent, and all.
    pub(crate) urgent: u64,
    pub(crate) sent: u64,
}

impl Client {
    pub(crate) fn new(queue: QueueId, outstanding: u32, nr_sectors: u32, random: bool) -> Self {
        Self {
            queue,
            random,
            op: Op::Read,
            nr_sectors,
            outstanding,
            think: Nanos::ZERO,
            from: Nanos::ORIGIN,
            until: Nanos(u64::MAX),
            period: Nanos::ZERO,
            left: u64::MAX,
            base: u64::from(queue.0) << 32,
            at: 0,
            waiting: 0,
            due: Vec::new(),
            sectors: 0,
            requests: 0,
            worst: Nanos::ZERO,
            total_latency: 0,
            urgent: 0,
            sent: 0,
        }
    }

    fn is_awake(&self, now: Nanos) -> bool {
        let now = if self.period == Nanos::ZERO || now < self.from {
            now
        } else {
            self.from + Nanos((now - self.from).0 % self.period.0)
        };
        now >= self.from && now < self.until && self.left > 0
    }

    /// Returns when it next wakes, if it sleeps now.
    fn wakes(&self, now: Nanos) -> Option<Nanos> {
        if self.left == 0 || self.is_awake(now) {
            None
        } else if now < self.from {
            Some(self.from)
        } else if self.period > Nanos::ZERO {
            let rounds = (now - self.from).0 / self.period.0;
            Some(self.from + Nanos((rounds + 1) * self.period.0))
        } else {
            None
        }
    }
}

pub(crate) struct World {
    pub(crate) bfq: Bfq,
    pub(crate) now: Nanos,
    pub(crate) device: Device,
    pub(crate) depth: usize,
    pub(crate) clients: Vec<Client>,
    in_flight: Vec<(Nanos, Tag)>,
    free_at: Nanos,
    head: u64,
    /// Client and time of issue of each tag.
    issued: HashMap<Tag, (usize, Nanos, u32)>,
    free_tags: Vec<Tag>,
    next_tag: u32,
    random: Random,
    pub(crate) dispatched: u64,
    pub(crate) check: bool,
}

impl World {
    pub(crate) fn new(rotational: bool, device: Device, depth: usize) -> Self {
        Self::tuned(BfqTunables::default(), rotational, device, depth)
    }

    pub(crate) fn tuned(
        tunables: BfqTunables,
        rotational: bool,
        device: Device,
        depth: usize,
    ) -> Self {
        // The scheduler is older than this world, so that a queue without a past counts as new.
        let began = Nanos(Nanos::ORIGIN.0 / 2);
        Self {
            bfq: Bfq::new(began, tunables, MergeLimits::default(), rotational),
            now: Nanos::ORIGIN,
            device,
            depth,
            clients: Vec::new(),
            in_flight: Vec::new(),
            free_at: Nanos::ORIGIN,
            head: 0,
            issued: HashMap::new(),
            free_tags: Vec::new(),
            next_tag: 0,
            random: Random::new(0xbf9),
            dispatched: 0,
            check: false,
        }
    }

    pub(crate) fn group(&mut self, parent: GroupId, weight: u64) -> GroupId {
        self.bfq.add_group(self.now, parent, Weight::new(weight).unwrap())
    }

    pub(crate) fn queue(&mut self, group: GroupId) -> QueueId {
        self.bfq.add_queue(self.now, group, Priority::default(), true)
    }

    /// Lets time pass until `end`.
    pub(crate) fn run(&mut self, end: Nanos) {
        while self.now < end {
            self.arrivals();
            self.dispatch();
            if self.check {
                self.bfq.check_invariants();
            }
            let next = self.next_event().unwrap_or(end).min(end);
            assert!(next > self.now, "time moves on at {:?}", self.now);
            self.now = next;
            self.completions();
        }
    }

    pub(crate) fn run_for(&mut self, span: Nanos) {
        self.run(self.now + span);
    }

    /// Starts counting anew.
    pub(crate) fn forget(&mut self) {
        for client in &mut self.clients {
            (client.sectors, client.requests) = (0, 0);
            (client.worst, client.total_latency) = (Nanos::ZERO, 0);
            (client.urgent, client.sent) = (0, 0);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let completions = self.in_flight.iter().map(|&(at, _)| at);
        let deadline = self.bfq.next_deadline().into_iter();
        let sleepers = self.clients.iter().filter_map(|client| client.wakes(self.now));
        let due = self.clients.iter().flat_map(|client| client.due.iter().copied());
        completions.chain(deadline).chain(sleepers).chain(due).filter(|&at| at > self.now).min()
    }

    fn arrivals(&mut self) {
        for index in 0..self.clients.len() {
            let now = self.now;
            let client = &mut self.clients[index];
            if !client.is_awake(now) {
                client.due.retain(|&at| at > now);
                continue;
            }
            client.due.retain(|&at| at > now);
            let thinking = u32::try_from(client.due.len()).unwrap();
            let wanted = client.outstanding.saturating_sub(client.waiting + thinking);
            for _ in 0..u64::from(wanted).min(client.left) {
                self.issue(index);
            }
        }
    }

    fn issue(&mut self, index: usize) {
        let tag = self.free_tags.pop().unwrap_or_else(|| {
            self.next_tag += 1;
            Tag(self.next_tag - 1)
        });
        let client = &mut self.clients[index];
        if client.random {
            client.at = self.random.below(1 << 24) * 8;
        }
        let request = Request {
            tag,
            queue: client.queue,
            op: client.op,
            pos: client.base + client.at,
            nr_sectors: client.nr_sectors,
            segments: 1,
            sync: true,
        };
        client.at += u64::from(client.nr_sectors);
        client.waiting += 1;
        client.left -= 1;
        self.issued.insert(tag, (index, self.now, client.nr_sectors));
        self.bfq.insert(self.now, request);
    }

    fn dispatch(&mut self) {
        while self.in_flight.len() < self.depth {
            match self.bfq.dispatch(self.now) {
                Next::Request(tag) => self.send(tag),
                Next::NotBefore(at) => {
                    assert!(at > self.now && self.bfq.queued() > 0);
                    assert_eq!(self.bfq.next_deadline(), Some(at));
                    return;
                }
                Next::Empty => {
                    assert!(self.bfq.queued() == 0 || self.bfq.in_flight() > 0, "it stays alive");
                    return;
                }
            }
        }
    }

    fn send(&mut self, tag: Tag) {
        self.dispatched += 1;
        let client = &mut self.clients[self.issued[&tag].0];
        client.sent += 1;
        client.urgent += u64::from(self.bfq.urgency(tag) != Urgency::None);
        let parts = self.parts(tag);
        let sectors: u64 = parts.iter().map(|part| u64::from(self.issued[part].2)).sum();
        let done = match self.device {
            Device::Parallel { latency } => self.now + Nanos(latency),
            Device::Serial { per_sector, seek } => {
                let client = &self.clients[self.issued[&tag].0];
                let follows = !client.random && self.head == u64::from(client.queue.0);
                self.head = u64::from(client.queue.0);
                let cost = sectors * per_sector + if follows { 0 } else { seek };
                self.free_at = self.free_at.max(self.now) + Nanos(cost);
                self.free_at
            }
        };
        self.in_flight.push((done, tag));
    }

    fn parts(&self, tag: Tag) -> Vec<Tag> {
        let mut parts = vec![self.bfq.first_part(tag)];
        while let Some(part) = self.bfq.next_part(*parts.last().unwrap()) {
            parts.push(part);
        }
        parts
    }

    fn completions(&mut self) {
        while let Some(at) = self.in_flight.iter().position(|&(at, _)| at <= self.now) {
            let (_, tag) = self.in_flight.remove(at);
            for part in self.parts(tag) {
                let (index, since, sectors) = self.issued.remove(&part).unwrap();
                let client = &mut self.clients[index];
                client.waiting -= 1;
                client.sectors += u64::from(sectors);
                client.requests += 1;
                client.worst = client.worst.max(self.now - since);
                client.total_latency += (self.now - since).0;
                if client.think > Nanos::ZERO {
                    client.due.push(self.now + client.think);
                }
                self.free_tags.push(part);
            }
            self.bfq.complete(self.now, tag);
        }
    }
}
