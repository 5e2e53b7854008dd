//! Injection on a modelled disk: what a thinking queue leaves unused, others use.

use evenkeel_engine::{
    BlockConfig, Command, DeviceOp, DiskId, Engine, EngineConfig, Geometry, Request, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};
use evenkeel_sim::{DeviceModel, Io, IoOp, Model, ModelSpec};

const DISK_SECTORS: u64 = 8 << 21;

/// A VM that reads 4 KiB at random places, and thinks after each answer.
struct Reader {
    disk: DiskId,
    depth: u32,
    think: Nanos,
    /// When each request that is not outstanding is issued.
    due: Vec<Nanos>,
    state: u64,
    requests: u64,
}

impl Reader {
    fn random(&mut self) -> u64 {
        let state = self.state.wrapping_mul(6_364_136_223_846_793_005);
        self.state = state.wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn request(&mut self) -> Request {
        let sector = self.random() % (DISK_SECTORS / 8) * 8;
        Request { op: Op::Read, sector, nr_sectors: 8, segments: 1, ioprio: 0x4004, unmap: false }
    }

    /// Between half and one and a half times the mean.
    fn pause(&mut self) -> Nanos {
        Nanos(self.think.0 / 2 + self.random() % self.think.0.max(1))
    }
}

struct World {
    now: Nanos,
    engine: Engine,
    device: Model,
    readers: Vec<Reader>,
}

impl World {
    /// Readers by weight, depth and think time in microseconds.
    fn new(device: &str, injection: bool, readers: &[(u64, u32, u64)]) -> Self {
        let device = device.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
        let mut elevator = ElevatorConfig { kind: Kind::Bfq, ..ElevatorConfig::default() };
        elevator.rotational = device.rotational();
        elevator.bfq.low_latency = false;
        elevator.bfq.injection = injection;
        let now = Nanos::ORIGIN;
        let config =
            EngineConfig { elevator, depth: device.depth(), blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let readers = readers.iter().map(|&(weight, depth, think_us)| {
            let weight = Weight::new(weight).expect("in range");
            let vm = engine.add_group(now, GroupId::ROOT, weight);
            let geometry = Geometry::plain(DISK_SECTORS);
            Reader {
                disk: engine.add_disk(vm, geometry),
                depth,
                think: Nanos::from_micros(think_us),
                due: (0..depth).map(|_| now).collect(),
                state: weight.value().into(),
                requests: 0,
            }
        });
        let readers = readers.collect();
        Self { now, engine, device, readers }
    }

    fn turn(&mut self) {
        while let Some(tag) = self.device.complete(self.now) {
            self.engine.complete(self.now, tag, Ok(()));
        }
        while let Some(retired) = self.engine.retire() {
            let reader = &mut self.readers[usize::try_from(retired.token.0).expect("an index")];
            reader.requests += 1;
            let pause = reader.pause();
            reader.due.push(self.now + pause);
        }
        for (index, reader) in (0..).zip(&mut self.readers) {
            while let Some(at) = reader.due.iter().position(|&at| at <= self.now) {
                reader.due.swap_remove(at);
                let request = reader.request();
                self.engine.submit(self.now, reader.disk, Token(index), &request);
            }
            assert!(reader.due.len() <= reader.depth as usize, "nothing is answered twice");
        }
        while let Some(command) = self.engine.dispatch(self.now) {
            self.device.submit(self.now, command.tag, &io(&command));
        }
    }

    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.turn();
            let due = self.readers.iter().flat_map(|reader| reader.due.iter().copied());
            let device = [self.device.next_event(), self.engine.next_deadline()];
            let next = device.into_iter().flatten().chain(due).min();
            self.now = next.expect("somebody has something to do").max(self.now + Nanos(1));
        }
        self.engine.check_invariants();
    }
}

fn io(command: &Command) -> Io {
    assert_eq!(command.op, DeviceOp::Read);
    Io { op: IoOp::Read, pos: command.pos, nr_sectors: command.nr_sectors, durable: false }
}

/// Returns the requests per second of each reader over a minute.
fn rates(device: &str, injection: bool, readers: &[(u64, u32, u64)]) -> Vec<u64> {
    let mut world = World::new(device, injection, readers);
    world.run_for(Nanos::from_secs(5));
    for reader in &mut world.readers {
        reader.requests = 0;
    }
    world.run_for(Nanos::from_secs(60));
    let rates = world.readers.iter().map(|reader| reader.requests / 60).collect();
    println!("{device}, injection {injection}, {readers:?}: {rates:?} requests/s");
    rates
}

/// Lets a thinker of weight 300 and a busy neighbour of weight 100 share a device; returns the
/// rates without and with injection.
fn without_and_with(device: &str, think_us: u64) -> [[u64; 2]; 2] {
    let readers = [(300, 1, think_us), (100, 16, 0)];
    [false, true].map(|injection| {
        let rates = rates(device, injection, &readers);
        [rates[0], rates[1]]
    })
}

#[test]
fn on_a_disk_a_neighbour_uses_what_a_thinker_leaves() {
    // The thinker is waited for, and comes too late half of the time.
    let [without, with] = without_and_with("hdd", 12_000);
    let total = |rates: [u64; 2]| rates[0] + rates[1];
    assert!(total(with) * 100 > total(without) * 120, "{without:?} {with:?}");
    assert!(with[0] * 100 > without[0] * 80, "it loses less than others gain");
}

#[test]
fn on_flash_a_neighbour_uses_what_a_thinker_leaves() {
    let [without, with] = without_and_with("ssd", 1_000);
    assert!(with[1] * 100 > without[1] * 120, "{without:?} {with:?}");
    assert!(with[0] * 100 > without[0] * 95, "{without:?} {with:?}");
}
