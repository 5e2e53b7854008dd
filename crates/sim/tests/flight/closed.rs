//! Clients in closed loops over an engine and a modelled device.

use std::collections::BinaryHeap;

use evenkeel_engine::{
    Ask, BlockConfig, DiskId, Engine, EngineConfig, Geometry, GovernorReport, HelpPolicy, Request,
    Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Queueing, Urgency, Weight};
use evenkeel_sim::{DeviceModel, Io, Model, ModelSpec};

/// Size of each client's disk: 8 GiB.
const DISK_SECTORS: u64 = 16 << 20;

/// What somebody does, in a VM of his own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) op: Op,
    pub(crate) nr_sectors: u32,
    /// Requests outstanding at a time.
    pub(crate) depth: u32,
    /// From an answer to the request that follows it.
    pub(crate) think: Nanos,
    /// Whether each request continues the one before it; else they are anywhere.
    pub(crate) is_sequential: bool,
    /// The priority word of each request.
    pub(crate) ioprio: u32,
}

impl Load {
    /// Reads anywhere.
    pub(crate) const fn random(nr_sectors: u32, depth: u32) -> Self {
        let (op, think, is_sequential, ioprio) = (Op::Read, Nanos::ZERO, false, 0);
        Self { op, nr_sectors, depth, think, is_sequential, ioprio }
    }

    /// Somebody who works with an application: one read of 4 KiB at a time, with pauses.
    pub(crate) const VICTIM: Self = Self { think: Nanos::from_micros(300), ..Self::random(8, 1) };
}

struct Client {
    load: Load,
    vm: GroupId,
    disk: DiskId,
    random: u64,
    next: u64,
    bytes: u64,
    waits: Vec<Nanos>,
}

impl Client {
    fn request(&mut self) -> Request {
        let Load { op, nr_sectors, is_sequential, ioprio, .. } = self.load;
        let places = DISK_SECTORS / u64::from(nr_sectors);
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.next = if is_sequential { self.next + 1 } else { self.random >> 16 } % places;
        let sector = self.next * u64::from(nr_sectors);
        Request { op, sector, nr_sectors, segments: 1, ioprio, unmap: false }
    }
}

/// What a client got.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Got {
    pub(crate) bytes_per_s: f64,
    /// How long its requests took, sorted.
    waits: Vec<Nanos>,
}

impl Got {
    /// Puts together what was got in stretches of equal length.
    pub(crate) fn sum(parts: Vec<Self>) -> Self {
        let bytes_per_s = parts.iter().map(|part| part.bytes_per_s).sum::<f64>();
        let bytes_per_s = bytes_per_s / parts.len() as f64;
        let mut waits: Vec<Nanos> = parts.into_iter().flat_map(|part| part.waits).collect();
        waits.sort_unstable();
        Self { bytes_per_s, waits }
    }

    /// Returns how long all but one in a hundred took at most.
    pub(crate) fn p99(&self) -> Nanos {
        self.waits.get(self.waits.len() * 99 / 100).copied().unwrap_or_default()
    }

    /// Returns how long the longest took.
    pub(crate) fn longest(&self) -> Nanos {
        self.waits.last().copied().unwrap_or_default()
    }
}

/// Clients, an engine and a device.
pub(crate) struct World {
    now: Nanos,
    engine: Engine,
    device: Model,
    clients: Vec<Client>,
    /// When whose next request comes, soonest first.
    coming: BinaryHeap<std::cmp::Reverse<(Nanos, usize)>>,
}

impl World {
    /// Makes a pool on a modelled device with a VM for each load.
    pub(crate) fn new(device: &str, kind: Kind, loads: &[Load]) -> Self {
        Self::with_depth(device, kind, loads, build(device).depth())
    }

    /// Makes a pool that lets the device have so many commands.
    pub(crate) fn with_depth(device: &str, kind: Kind, loads: &[Load], depth: u32) -> Self {
        let device = build(device);
        let mut elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
        elevator.rotational = device.rotational();
        elevator.bfq.queueing = if depth > 1 { Queueing::Yes } else { Queueing::No };
        let now = Nanos::ORIGIN;
        let config = EngineConfig { elevator, depth, blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let geometry = Geometry::plain(DISK_SECTORS);
        let clients = loads.iter().zip(1..).map(|(&load, number)| {
            let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
            let disk = engine.add_disk(vm, geometry);
            let random = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number);
            Client { load, vm, disk, random, next: 0, bytes: 0, waits: Vec::new() }
        });
        let clients = clients.collect();
        let first = |(index, load): (usize, &Load)| (0..load.depth).map(move |_| (now, index));
        let coming = loads.iter().enumerate().flat_map(first).map(std::cmp::Reverse).collect();
        Self { now, engine, device, clients, coming }
    }

    /// Lets a governor find out how much the device needs.
    pub(crate) fn governed(mut self) -> Self {
        self.engine.govern(true);
        self
    }

    /// Returns what the governor has decided.
    pub(crate) fn decided(&self) -> GovernorReport {
        self.engine.governor_report().expect("it is governed")
    }

    /// Believes a client when it asks for help, up to its credit.
    pub(crate) fn trust(&mut self, client: usize) {
        self.engine.set_help_policy(self.now, self.clients[client].vm, HelpPolicy::default());
    }

    /// Lets a client ask for help, for a second, for the `seq`-th time.
    pub(crate) fn ask(&mut self, client: usize, seq: u64, urgency: Urgency) {
        let ask = Ask { seq, urgency, lease: Nanos::from_secs(1), marked: true };
        self.engine.ask_help(self.now, self.clients[client].vm, ask);
    }

    /// Lets time pass, and returns what each client got in it.
    pub(crate) fn run_for(&mut self, span: Nanos) -> Vec<Got> {
        let end = self.now + span;
        while self.now < end {
            self.turn();
            let coming = self.coming.peek().map(|next| next.0.0);
            let next = [self.device.next_event(), self.engine.next_deadline(), coming];
            let next = next.into_iter().flatten().min().expect("somebody always wants something");
            self.now = next.min(end).max(self.now);
        }
        self.clients.iter_mut().map(|client| client.take(span)).collect()
    }

    fn turn(&mut self) {
        while let Some(tag) = self.device.complete(self.now) {
            self.engine.complete(self.now, tag, Ok(()));
        }
        while let Some(next) = self.coming.peek()
            && next.0.0 <= self.now
        {
            let index = self.coming.pop().expect("seen above").0.1;
            let client = &mut self.clients[index];
            let (request, token) = (client.request(), Token(index as u64));
            self.engine.submit(self.now, client.disk, token, &request);
        }
        while let Some(command) = self.engine.dispatch(self.now) {
            self.device.submit(self.now, command.tag, &Io::from(&command));
        }
        while let Some(retired) = self.engine.retire() {
            let index = usize::try_from(retired.token.0).expect("an index");
            let client = &mut self.clients[index];
            client.waits.push(retired.completed - retired.arrived);
            client.bytes += u64::from(client.load.nr_sectors) * 512;
            self.coming.push(std::cmp::Reverse((self.now + client.load.think, index)));
        }
    }
}

impl Client {
    fn take(&mut self, span: Nanos) -> Got {
        let mut waits = std::mem::take(&mut self.waits);
        waits.sort_unstable();
        let bytes = std::mem::take(&mut self.bytes);
        Got { bytes_per_s: bytes as f64 * 1e9 / span.0 as f64, waits }
    }
}

fn build(device: &str) -> Model {
    device.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model")
}
