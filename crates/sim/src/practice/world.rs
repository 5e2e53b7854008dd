//! Threads of a host or of one guest, one or two elevators, and a device.
//!
//! Work of processors is a resource like the device: a thread's system call, an exit, the
//! emulation of a device each take a processor of the guest or of the host for a while.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Nanos, Next, Op, Priority, QueueId, Request, Scheduler as _,
    Tag, Weight,
};

use crate::{DeviceModel, Io, IoOp};

/// What a thread does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Workload {
    /// Writes new files from their beginnings.
    Create,
    SequentialRead,
    RandomRead,
    RandomWrite,
    /// Two reads of small files for each write, at random places.
    Mail,
}

/// What a step costs, on which processors.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    /// The thread: its system call and what the benchmark itself does for a request.
    pub thread_ns: u64,
    /// The guest's driver: exits for a request, and for its completion.
    pub guest_submit_ns: u64,
    pub guest_complete_ns: u64,
    /// The emulation in the host for a request, one at a time.
    pub emulation_ns: u64,
}

/// An elevator and how much it lets through.
#[derive(Clone, Debug)]
pub(super) struct Layer {
    pub elevator: ElevatorConfig,
    pub depth: u32,
}

/// One experiment.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub workload: Workload,
    pub threads: u32,
    pub request_sectors: u32,
    pub costs: Costs,
    pub thread_processors: usize,
    /// The elevator of the guest, if the threads run in one. All of the guest's requests are one
    /// stream to the host then.
    pub guest: Option<Layer>,
    pub host: Layer,
    pub span: Nanos,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub mb_per_second: f64,
    pub latency_mean_us: f64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A thread's request reaches its first elevator.
    Submit(u32),
    /// A request reaches the elevator of the host.
    Arrive(Tag),
    /// The device, or an elevator, wants to be asked.
    Ask,
    /// A request is back at its thread's side.
    Back(Tag),
}

/// One elevator at work.
#[derive(Debug)]
struct Level {
    elevator: Elevator,
    queues: Vec<QueueId>,
    depth: u32,
    in_flight: u32,
}

impl Level {
    fn new(layer: &Layer, queues: u32) -> Self {
        let mut elevator = Elevator::new(Nanos::ORIGIN, &layer.elevator);
        let group = elevator.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        let queues = (0..queues)
            .map(|_| elevator.add_queue(Nanos::ORIGIN, group, Priority::default(), true))
            .collect();
        Self { elevator, queues, depth: layer.depth, in_flight: 0 }
    }

    fn dispatch(&mut self, now: Nanos) -> Option<Tag> {
        if self.in_flight >= self.depth {
            return None;
        }
        let Next::Request(tag) = self.elevator.dispatch(now) else { return None };
        self.in_flight += 1;
        Some(tag)
    }

    fn complete(&mut self, now: Nanos, tag: Tag) {
        self.in_flight -= 1;
        self.elevator.complete(now, tag);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        if self.in_flight < self.depth { self.elevator.next_deadline() } else { None }
    }
}

/// Some processors; who comes first takes the one that is free first.
#[derive(Debug)]
struct Processors(Vec<u64>);

impl Processors {
    fn run(&mut self, now: u64, time: u64) -> u64 {
        let first = self.0.iter_mut().min().expect("at least one processor");
        *first = (*first).max(now) + time;
        *first
    }
}

/// A thread; it has one request at a time, whose tag is its number.
#[derive(Clone, Copy, Debug)]
struct Thread {
    started: u64,
    next: u64,
    random: u64,
    requests: u64,
    io: Io,
}

/// Sectors that a thread has for itself: 8 GiB.
const AREA_SECTORS: u64 = 1 << 24;

pub(super) struct World<'a, D> {
    setting: &'a Setting,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    asked: u64,
    guest: Option<Level>,
    host: Level,
    device: D,
    threads: Vec<Thread>,
    thread_processors: Processors,
    emulation: Processors,
    bytes: u64,
    requests: u64,
    latency: u64,
}

/// Runs an experiment.
pub(super) fn run<D: DeviceModel>(setting: &Setting, device: D) -> Outcome {
    let mut world = World::new(setting, device);
    let warm = setting.span.0 / 4;
    world.run_until(warm);
    (world.bytes, world.requests, world.latency) = (0, 0, 0);
    world.run_until(warm + setting.span.0);
    world.outcome()
}

impl<'a, D: DeviceModel> World<'a, D> {
    fn new(setting: &'a Setting, device: D) -> Self {
        let threads = setting.threads;
        let host_queues = if setting.guest.is_some() { 1 } else { threads };
        let io = Io { op: IoOp::Read, pos: 0, nr_sectors: setting.request_sectors, durable: false };
        let thread = |number| Thread {
            started: 0,
            next: 0,
            random: 0x9e37_79b9_7f4a_7c15 ^ (u64::from(number) << 32),
            requests: 0,
            io,
        };
        let mut world = Self {
            setting,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            asked: u64::MAX,
            guest: setting.guest.as_ref().map(|layer| Level::new(layer, threads)),
            host: Level::new(&setting.host, host_queues),
            device,
            threads: (0..threads).map(thread).collect(),
            thread_processors: Processors(vec![0; setting.thread_processors]),
            emulation: Processors(vec![0]),
            bytes: 0,
            requests: 0,
            latency: 0,
        };
        (0..threads).for_each(|thread| world.start(thread));
        world
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// A thread decides on its next request and makes its system call.
    fn start(&mut self, number: u32) {
        let workload = self.setting.workload;
        let sectors = u64::from(self.setting.request_sectors);
        let thread = &mut self.threads[number as usize];
        thread.started = self.now;
        thread.requests += 1;
        let random =
            matches!(workload, Workload::RandomRead | Workload::RandomWrite | Workload::Mail);
        thread.next = if random {
            thread.random ^= thread.random << 13;
            thread.random ^= thread.random >> 7;
            thread.random ^= thread.random << 17;
            (thread.random >> 20) % (AREA_SECTORS / sectors) * sectors
        } else {
            (thread.next + sectors) % AREA_SECTORS
        };
        thread.io.pos = u64::from(number) * (AREA_SECTORS + 64) + thread.next;
        thread.io.op = match workload {
            Workload::SequentialRead | Workload::RandomRead => IoOp::Read,
            Workload::Create | Workload::RandomWrite => IoOp::Write,
            Workload::Mail if thread.requests.is_multiple_of(3) => IoOp::Write,
            Workload::Mail => IoOp::Read,
        };
        let at = self.thread_processors.run(self.now, self.setting.costs.thread_ns);
        self.schedule(at, Event::Submit(number));
    }

    fn run_until(&mut self, end: u64) {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Submit(number) => self.submit(number),
                Event::Arrive(tag) => self.insert(tag, 0, false),
                Event::Back(tag) => self.back(tag),
                Event::Ask => self.asked = u64::MAX,
            }
            self.pump();
        }
        self.now = end;
    }

    fn submit(&mut self, number: u32) {
        let in_guest = self.guest.is_some();
        self.insert(Tag(number), number, in_guest);
    }

    /// Hands a thread's request to an elevator.
    fn insert(&mut self, tag: Tag, queue: u32, in_guest: bool) {
        let Io { op, pos, nr_sectors, .. } = self.threads[tag.0 as usize].io;
        let level = if in_guest { self.guest.as_mut() } else { None };
        let level = level.unwrap_or(&mut self.host);
        let queue = level.queues[queue as usize];
        let op = if op == IoOp::Read { Op::Read } else { Op::Write };
        let request = Request { tag, queue, op, pos, nr_sectors, segments: 1, sync: true };
        level.elevator.insert(Nanos(self.now), request);
    }

    /// Moves what can move.
    fn pump(&mut self) {
        let now = Nanos(self.now);
        let costs = self.setting.costs;
        while let Some(tag) = self.device.complete(now) {
            self.host.complete(now, tag);
            let at = match self.guest {
                // The emulation tells the guest, whose driver takes its exits.
                Some(_) => self.thread_processors.run(self.now, costs.guest_complete_ns),
                None => self.now,
            };
            self.schedule(at, Event::Back(tag));
        }
        while let Some(tag) = self.guest.as_mut().and_then(|guest| guest.dispatch(now)) {
            let at = self.thread_processors.run(self.now, costs.guest_submit_ns);
            let at = self.emulation.run(at, costs.emulation_ns);
            self.schedule(at, Event::Arrive(tag));
        }
        while let Some(tag) = self.host.dispatch(now) {
            let io = self.threads[tag.0 as usize].io;
            self.device.submit(now, tag, &io);
        }
        let guest = self.guest.as_ref().and_then(Level::next_deadline);
        let next = [self.device.next_event(), self.host.next_deadline(), guest];
        if let Some(at) = next.into_iter().flatten().min()
            && at.0 < self.asked
        {
            self.asked = at.0.max(self.now);
            self.schedule(self.asked, Event::Ask);
        }
    }

    fn back(&mut self, tag: Tag) {
        if let Some(guest) = &mut self.guest {
            guest.complete(Nanos(self.now), tag);
        }
        let thread = &self.threads[tag.0 as usize];
        self.latency += self.now - thread.started;
        self.requests += 1;
        self.bytes += u64::from(thread.io.nr_sectors) * 512;
        self.start(tag.0);
    }

    #[expect(clippy::cast_precision_loss, reason = "figures of seconds stay far below 2^53")]
    fn outcome(&self) -> Outcome {
        Outcome {
            mb_per_second: self.bytes as f64 * 1e3 / self.setting.span.0 as f64,
            latency_mean_us: self.latency as f64 / 1e3 / self.requests.max(1) as f64,
        }
    }
}
