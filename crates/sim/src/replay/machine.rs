//! The production engine above a modelled device, fed from a recording.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use evenkeel_engine::{BlockConfig, DiskId, Engine, EngineConfig, Geometry, Request, Token};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Queueing};

use super::closed::Trigger;
use super::{Arrival, ReplayOptions, Taken, Workload};
use crate::{DeviceModel as _, Io, Model, ModelError};

/// What a replay brought.
#[derive(Debug)]
pub(super) struct Outcome {
    /// By position of the request.
    pub(super) taken: Vec<Taken>,
    /// When the last one was answered, since the beginning.
    pub(super) ended: Nanos,
    /// The most commands that were at the device at a time.
    pub(super) depth: u32,
}

/// Requests that are still to come.
#[derive(Debug)]
struct Source {
    /// Those whose instant is known.
    coming: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// By request: those that wait for its answer, and how long after it they come.
    waiting: Vec<Vec<(Nanos, usize)>>,
}

#[derive(Debug)]
struct Machine<'a> {
    workload: &'a Workload,
    engine: Engine,
    device: Model,
    /// By position in the workload.
    disks: Vec<DiskId>,
    source: Source,
    taken: Vec<Taken>,
    left: usize,
}

/// Replays a workload with one scheduler; without `triggers` at the recorded instants.
pub(super) fn replay(
    workload: &Workload,
    triggers: Option<&[Trigger]>,
    kind: Kind,
    options: &ReplayOptions,
) -> Result<Outcome, ModelError> {
    let device = options.device.build()?;
    let depth = options.depth.unwrap_or_else(|| device.depth()).max(1);
    let config = engine_config(kind, depth, device.rotational());
    let mut engine = Engine::new(Nanos::ORIGIN, &config);
    engine.explain_waits(false);
    let count = workload.requests.len();
    let mut machine = Machine {
        workload,
        engine,
        device,
        disks: Vec::new(),
        source: Source::new(&workload.requests, triggers),
        taken: vec![Taken::default(); count],
        left: count,
    };
    machine.add_disks();
    let ended = machine.run();
    Ok(Outcome { taken: machine.taken, ended: ended - Nanos::ORIGIN, depth })
}

/// Returns what the daemon would have chosen for this device.
fn engine_config(kind: Kind, depth: u32, rotational: bool) -> EngineConfig {
    let mut elevator = ElevatorConfig { kind, rotational, ..ElevatorConfig::default() };
    elevator.bfq.queueing = if depth > 1 { Queueing::Yes } else { Queueing::No };
    EngineConfig { elevator, depth, blocks: BlockConfig::default() }
}

impl Source {
    fn new(requests: &[Arrival], triggers: Option<&[Trigger]>) -> Self {
        let mut source = Self { coming: BinaryHeap::new(), waiting: Vec::new() };
        match triggers {
            None => {
                let all = requests.iter().enumerate();
                source.coming = all.map(|(index, request)| at(request.at, index)).collect();
            }
            Some(triggers) => {
                source.waiting.resize(requests.len(), Vec::new());
                for (index, trigger) in triggers.iter().enumerate() {
                    match trigger.after {
                        None => source.coming.push(at(trigger.think, index)),
                        Some(after) => source.waiting[after].push((trigger.think, index)),
                    }
                }
            }
        }
        source
    }

    /// Returns the next request that has come by now.
    fn next(&mut self, now: Nanos) -> Option<usize> {
        let &Reverse((at, index)) = self.coming.peek()?;
        if at > now {
            return None;
        }
        self.coming.pop();
        Some(index)
    }

    fn answered(&mut self, now: Nanos, index: usize) {
        let Some(waiting) = self.waiting.get_mut(index) else { return };
        for (think, index) in waiting.drain(..) {
            self.coming.push(Reverse((now + think, index)));
        }
    }
}

fn at(since_start: Nanos, index: usize) -> Reverse<(Nanos, usize)> {
    Reverse((Nanos::ORIGIN + since_start, index))
}

impl Machine<'_> {
    fn add_disks(&mut self) {
        let mut vms: BTreeMap<&str, GroupId> = BTreeMap::new();
        let now = Nanos::ORIGIN;
        for disk in &self.workload.disks {
            let engine = &mut self.engine;
            let vm = *vms.entry(&disk.vm).or_insert_with(|| {
                let vm = engine.add_group(now, GroupId::ROOT, disk.weight);
                engine.heed_priority(vm, disk.heeds_priority);
                vm
            });
            let geometry = Geometry {
                sectors: disk.sectors,
                block_bytes: 512,
                read_only: false,
                discard: true,
                write_zeroes: true,
            };
            let id = engine.add_disk(vm, geometry);
            engine.set_write_through(id, disk.write_through);
            self.disks.push(id);
        }
    }

    /// Goes from event to event until everything is answered; returns when that was.
    fn run(&mut self) -> Nanos {
        let mut now = Nanos::ORIGIN;
        while self.left > 0 {
            let coming = self.source.coming.peek().map(|Reverse((at, _))| *at);
            // One that is due already was asked for a moment ago.
            let deadline = self.engine.next_deadline().map(|at| at.max(now + Nanos(1)));
            let events = [coming, self.device.next_event(), deadline];
            let next = events.into_iter().flatten().min();
            now = now.max(next.expect("whatever is not answered has something to wait for"));
            while let Some(tag) = self.device.complete(now) {
                self.engine.complete(now, tag, Ok(()));
            }
            while let Some(index) = self.source.next(now) {
                self.submit(now, index);
            }
            self.work(now);
        }
        now
    }

    fn submit(&mut self, now: Nanos, index: usize) {
        let Arrival { disk, op, sector, nr_sectors, ioprio, .. } = self.workload.requests[index];
        let disk = self.disks[disk as usize];
        let token = Token(index as u64);
        let Some(op) = op.op() else {
            self.engine.flush(now, disk, token);
            return;
        };
        let request = Request { op, sector, nr_sectors, segments: 1, ioprio, unmap: false };
        self.engine.submit(now, disk, token, &request);
    }

    /// Dispatches and answers until nothing moves any more, as the worker does.
    fn work(&mut self, now: Nanos) {
        loop {
            let mut moved = false;
            while let Some(command) = self.engine.dispatch(now) {
                self.device.submit(now, command.tag, &Io::from(&command));
                moved = true;
            }
            while let Some(retired) = self.engine.retire() {
                let index = usize::try_from(retired.token.0).expect("it was an index");
                self.taken[index] = Taken {
                    wait: retired.dispatched - retired.arrived,
                    service: retired.completed - retired.dispatched,
                };
                self.source.answered(now, index);
                self.left -= 1;
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }
}
