//! The loops that are measured: a whole engine, and an elevator by itself, under the same load.
//!
//! Every disk keeps requests of 4 KiB outstanding, at random places that are never adjacent, so
//! that nothing merges. The device finishes at the next turn all that it was given.

use std::hint::black_box;
use std::time::{Duration, Instant};

use evenkeel_engine::{
    BlockConfig, DiskId, Engine, EngineConfig, Geometry, Parsed, Request as GuestRequest, Shape,
    Token, parse,
};
use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Kind, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag, Weight,
};

/// Nanoseconds per request of each stage.
pub(super) type Figures = [f64; 5];

const COMPLETE: usize = 0;
const RETIRE: usize = 1;
const PARSE: usize = 2;
const SUBMIT: usize = 3;
const DISPATCH: usize = 4;

/// Sectors of a disk: 8 GiB.
const DISK_SECTORS: u64 = 1 << 24;
/// Sectors of a request.
const REQUEST_SECTORS: u32 = 8;
/// Virtual time that the device spends on one request.
const SERVICE: Nanos = Nanos::from_micros(10);
/// Fewest requests that all disks together keep outstanding, in units of the depth.
const BACKLOG: u32 = 2;
/// Fewest that each of them does.
const PER_DISK: u32 = 4;

/// One of the two loops.
pub(super) trait Loop {
    /// Takes one turn; returns how many requests were finished.
    fn turn(&mut self, clock: &mut Stopwatch) -> u32;

    /// Lets at least so many requests through; returns what each stage cost.
    fn serve(&mut self, requests: u32) -> Figures {
        let mut clock = Stopwatch::new();
        let mut served = 0;
        while served < requests {
            served += self.turn(&mut clock);
        }
        clock.per_request(served)
    }
}

/// The time that each stage took so far.
#[derive(Debug)]
pub(super) struct Stopwatch {
    times: [Duration; 5],
    laps: [u32; 5],
    last: Instant,
    /// What reading the clock costs, in ns.
    own_ns: f64,
}

impl Stopwatch {
    fn new() -> Self {
        const READS: u32 = 1000;
        let start = Instant::now();
        for _ in 0..READS {
            black_box(Instant::now());
        }
        let own_ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(READS);
        Self { times: [Duration::ZERO; 5], laps: [0; 5], last: Instant::now(), own_ns }
    }

    /// Begins a stage without counting what was before.
    fn start(&mut self) {
        self.last = Instant::now();
    }

    /// Ends a stage; the next begins.
    fn lap(&mut self, stage: usize) {
        let now = Instant::now();
        self.times[stage] += now - self.last;
        self.laps[stage] += 1;
        self.last = now;
    }

    fn per_request(&self, requests: u32) -> Figures {
        std::array::from_fn(|stage| {
            let own = self.own_ns * f64::from(self.laps[stage]);
            let ns = self.times[stage].as_secs_f64() * 1e9 - own;
            ns.max(0.0) / f64::from(requests.max(1))
        })
    }
}

/// Random places on a disk.
#[derive(Debug)]
struct Places(u64);

impl Places {
    const fn new() -> Self {
        Self(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a sector; two of them are never adjacent (xorshift64).
    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 44) * 16
    }
}

/// Returns how many requests each disk keeps outstanding.
fn outstanding(disks: u32, depth: u32) -> u32 {
    (BACKLOG * depth).div_ceil(disks).max(PER_DISK)
}

fn elevator_config(kind: Kind, depth: u32) -> ElevatorConfig {
    ElevatorConfig { kind, depth, ..ElevatorConfig::default() }
}

/// The daemon's engine.
#[derive(Debug)]
pub(super) struct Whole {
    engine: Engine,
    geometry: Geometry,
    now: Nanos,
    places: Places,
    in_flight: Vec<Tag>,
    idle: Vec<(DiskId, Token)>,
    shapes: Vec<Shape>,
    requests: Vec<GuestRequest>,
}

impl Whole {
    pub(super) fn new(kind: Kind, disks: u32, depth: u32) -> Self {
        let now = Nanos::ORIGIN;
        let elevator = elevator_config(kind, depth);
        let config = EngineConfig { elevator, depth, blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let geometry = Geometry {
            sectors: DISK_SECTORS,
            block_bytes: 512,
            read_only: false,
            discard: true,
            write_zeroes: true,
        };
        let mut idle = Vec::new();
        for _ in 0..disks {
            let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
            let disk = engine.add_disk(vm, geometry);
            idle.extend((0..outstanding(disks, depth)).map(|at| (disk, Token(at.into()))));
        }
        Self {
            engine,
            geometry,
            now,
            places: Places::new(),
            in_flight: Vec::new(),
            shapes: Vec::with_capacity(idle.len()),
            requests: Vec::with_capacity(idle.len()),
            idle,
        }
    }

    /// Writes the headers of the next requests, as guests would.
    fn prepare(&mut self) {
        self.shapes.clear();
        self.requests.clear();
        for _ in &self.idle {
            let mut header = [0; 16];
            header[8..].copy_from_slice(&self.places.next().to_le_bytes());
            let writable_bytes = u64::from(REQUEST_SECTORS) * 512;
            self.shapes.push(Shape { header, readable_bytes: 0, writable_bytes, segments: 1 });
        }
    }
}

impl Loop for Whole {
    fn turn(&mut self, clock: &mut Stopwatch) -> u32 {
        let (engine, now) = (&mut self.engine, self.now);
        let finished = u32::try_from(self.in_flight.len()).expect("no more than the depth");
        clock.start();
        for tag in self.in_flight.drain(..) {
            engine.complete(now, tag, Ok(()));
        }
        clock.lap(COMPLETE);
        while let Some(retired) = engine.retire() {
            self.idle.push((retired.disk, retired.token));
        }
        clock.lap(RETIRE);
        self.prepare();
        clock.start();
        for shape in &self.shapes {
            match parse(black_box(shape), &self.geometry) {
                Ok(Parsed::Io(request)) => self.requests.push(request),
                other => unreachable!("a plain read was parsed as {other:?}"),
            }
        }
        clock.lap(PARSE);
        for ((disk, token), request) in self.idle.drain(..).zip(&self.requests) {
            self.engine.submit(now, disk, token, request);
        }
        clock.lap(SUBMIT);
        while let Some(command) = self.engine.dispatch(now) {
            black_box(self.engine.parts(command.tag).count());
            self.in_flight.push(command.tag);
        }
        clock.lap(DISPATCH);
        self.now = if self.in_flight.is_empty() {
            self.engine.next_deadline().expect("requests wait, so somebody will be served")
        } else {
            now + SERVICE
        };
        finished
    }
}

/// An elevator by itself.
#[derive(Debug)]
pub(super) struct Bare {
    elevator: Elevator,
    depth: usize,
    now: Nanos,
    places: Places,
    /// The queue of each tag.
    queues: Vec<QueueId>,
    in_flight: Vec<Tag>,
    next: Vec<Request>,
}

impl Bare {
    pub(super) fn new(kind: Kind, disks: u32, depth: u32) -> Self {
        let now = Nanos::ORIGIN;
        let mut elevator = Elevator::new(now, &elevator_config(kind, depth));
        let mut queues = Vec::new();
        for _ in 0..disks {
            let vm = elevator.add_group(now, GroupId::ROOT, Weight::default());
            let queue = elevator.add_queue(now, vm, Priority::default(), true);
            queues.extend((0..outstanding(disks, depth)).map(|_| queue));
        }
        let depth = usize::try_from(depth).expect("usize has at least 32 bits");
        let in_flight = Vec::with_capacity(depth);
        let mut bare = Self {
            elevator,
            depth,
            now,
            places: Places::new(),
            queues,
            in_flight,
            next: Vec::new(),
        };
        for tag in (0..).take(bare.queues.len()) {
            bare.prepare(Tag(tag));
        }
        bare
    }

    fn prepare(&mut self, tag: Tag) {
        let queue = self.queues[usize::try_from(tag.0).expect("usize has at least 32 bits")];
        let pos = u64::from(queue.0) * DISK_SECTORS + self.places.next();
        self.next.push(Request {
            tag,
            queue,
            op: Op::Read,
            pos,
            nr_sectors: REQUEST_SECTORS,
            segments: 1,
            sync: true,
        });
    }
}

impl Loop for Bare {
    fn turn(&mut self, clock: &mut Stopwatch) -> u32 {
        let finished = u32::try_from(self.in_flight.len()).expect("no more than the depth");
        clock.start();
        for &tag in &self.in_flight {
            self.elevator.complete(self.now, tag);
        }
        clock.lap(COMPLETE);
        let done = std::mem::take(&mut self.in_flight);
        for &tag in &done {
            self.prepare(tag);
        }
        self.in_flight = done;
        self.in_flight.clear();
        clock.start();
        for request in self.next.drain(..) {
            self.elevator.insert(self.now, request);
        }
        clock.lap(SUBMIT);
        let mut then = self.now + SERVICE;
        while self.in_flight.len() < self.depth {
            match self.elevator.dispatch(self.now) {
                Next::Request(tag) => self.in_flight.push(tag),
                Next::NotBefore(time) if self.in_flight.is_empty() => {
                    then = time;
                    break;
                }
                Next::NotBefore(_) | Next::Empty => break,
            }
        }
        clock.lap(DISPATCH);
        self.now = then;
        finished
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_loops_keep_every_request_going_and_do_not_allocate_for_each() {
        for kind in Kind::ALL {
            for disks in [1, 3, 40] {
                let (mut whole, mut bare) = (Whole::new(kind, disks, 8), Bare::new(kind, disks, 8));
                whole.serve(5000);
                bare.serve(5000);
                let counted = crate::allocations::count(|| {
                    whole.serve(5000);
                    bare.serve(5000);
                });
                assert_eq!(counted.calls, 0, "{kind}, {disks} disks: {counted:?}");
                let all = disks * outstanding(disks, 8);
                assert_eq!(whole.engine.outstanding(), all, "{kind}, {disks} disks");
                assert_eq!(bare.elevator.queued() + bare.elevator.in_flight(), all, "{kind}");
            }
        }
    }

    #[test]
    fn a_request_costs_something_in_every_stage_that_the_loop_has() {
        let figures = Bare::new(Kind::Bfq, 4, 8).serve(20_000);
        assert_eq!((figures[RETIRE], figures[PARSE]), (0.0, 0.0), "an elevator has neither");
        assert!(figures[SUBMIT] > 0.0 && figures[DISPATCH] > 0.0, "{figures:?}");
    }
}
