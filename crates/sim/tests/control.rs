//! Limits and reservations on modelled devices: the engine in virtual time under clients that
//! saturate it.

use evenkeel_engine::{
    BlockConfig, Command, DeviceOp, DiskId, Engine, EngineConfig, Geometry, Limited, Request, Token,
};
use evenkeel_sched::{
    ElevatorConfig, GroupId, Kind, Limits, Nanos, Op, Queueing, Rate, Rates, Reservation, Weight,
};
use evenkeel_sim::{DeviceModel, Io, IoOp, Model, ModelSpec};

const DISK_SECTORS: u64 = 8 << 21;

/// Somebody who keeps a number of random reads outstanding.
struct Client {
    disk: DiskId,
    vm: GroupId,
    nr_sectors: u32,
    depth: u32,
    outstanding: u32,
    next: u64,
    /// When each request was answered.
    answered: Vec<Nanos>,
}

impl Client {
    fn request(&mut self) -> Request {
        self.next = self
            .next
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let blocks = DISK_SECTORS / u64::from(self.nr_sectors);
        let sector = (self.next >> 33) % blocks * u64::from(self.nr_sectors);
        let (op, nr_sectors) = (Op::Read, self.nr_sectors);
        Request { op, sector, nr_sectors, segments: 1, ioprio: 0x4004, unmap: false }
    }
}

struct World {
    now: Nanos,
    engine: Engine,
    device: Model,
    clients: Vec<Client>,
}

impl World {
    /// Makes a pool with a VM for each of `clients`: weight, sectors per read, depth.
    fn new(device: &str, kind: Kind, clients: &[(u64, u32, u32)]) -> Self {
        let device = device.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
        let mut elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
        elevator.rotational = device.rotational();
        let queues = device.depth() > 1;
        elevator.bfq.queueing = if queues { Queueing::Yes } else { Queueing::No };
        let now = Nanos::ORIGIN;
        let config =
            EngineConfig { elevator, depth: device.depth(), blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let geometry = Geometry::plain(DISK_SECTORS);
        let clients = clients.iter().zip(1..).map(|(&(weight, nr_sectors, depth), next)| {
            let vm = engine.add_group(now, GroupId::ROOT, Weight::new(weight).expect("in range"));
            let disk = engine.add_disk(vm, geometry);
            Client { disk, vm, nr_sectors, depth, outstanding: 0, next, answered: Vec::new() }
        });
        let clients = clients.collect();
        Self { now, engine, device, clients }
    }

    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            while let Some(tag) = self.device.complete(self.now) {
                self.engine.complete(self.now, tag, Ok(()));
            }
            for (index, client) in self.clients.iter_mut().enumerate() {
                while client.outstanding < client.depth {
                    let (request, token) = (client.request(), Token(index as u64));
                    self.engine.submit(self.now, client.disk, token, &request);
                    client.outstanding += 1;
                }
            }
            while let Some(command) = self.engine.dispatch(self.now) {
                self.device.submit(self.now, command.tag, &io(&command));
            }
            while let Some(retired) = self.engine.retire() {
                let client = &mut self.clients[usize::try_from(retired.token.0).expect("an index")];
                client.outstanding -= 1;
                client.answered.push(self.now);
            }
            let next = [self.device.next_event(), self.engine.next_deadline()];
            let next = next.into_iter().flatten().min().expect("somebody always wants something");
            self.now = next.min(end).max(self.now + Nanos(1));
        }
    }

    /// Returns the fewest requests of a client answered in any second of the run after its first.
    fn fewest_in_a_second(&self, client: usize) -> usize {
        let second = Nanos::from_secs(1);
        let answered = &self.clients[client].answered;
        let begin = Nanos::ORIGIN + second;
        let starts = std::iter::once(begin).chain(answered.iter().copied());
        let windows = starts.filter(|&start| start >= begin && start + second <= self.now);
        let until = |end: Nanos| answered.partition_point(|&then| then <= end);
        let count = |start: Nanos| until(start + second) - until(start);
        windows.map(count).min().expect("the run is longer than that")
    }
}

fn io(command: &Command) -> Io {
    assert_eq!(command.op, DeviceOp::Read);
    Io { op: IoOp::Read, pos: command.pos, nr_sectors: command.nr_sectors, durable: false }
}

/// Returns the fewest reads that a VM of weight 1 gets in any second beside three that saturate
/// the device with the largest weight.
fn floor_kept(device: &str, kind: Kind, promised: Reservation) -> usize {
    let greedy = (1000, 8, 64);
    let mut world = World::new(device, kind, &[(1, 8, 16), greedy, greedy, greedy]);
    let vm = world.clients[0].vm;
    world.engine.set_reservation(world.now, Limited::Group(vm), promised);
    world.run_for(Nanos::from_secs(12));
    world.fewest_in_a_second(0)
}

#[test]
fn a_floor_in_requests_is_kept_on_a_hard_disk_whatever_the_elevator() {
    for kind in Kind::ALL {
        let none = floor_kept("hdd", kind, Reservation::default());
        let kept = floor_kept("hdd", kind, Reservation { ops: 30, ..Reservation::default() });
        println!("hdd {kind}: {none} without, {kept} of 30 with");
        // One request is what the guarantee itself allows, as many as the device holds are on
        // their way at both ends of the second.
        assert!(kept >= 30 - 1 - 4, "{kind}: {kept} of 30");
    }
}

#[test]
fn a_floor_is_kept_on_flash_whatever_the_elevator() {
    for kind in [Kind::None, Kind::Deadline, Kind::Bfq] {
        let none = floor_kept("ssd", kind, Reservation::default());
        let promised = Reservation { ops: 8000, ..Reservation::default() };
        let kept = floor_kept("ssd", kind, promised);
        println!("ssd {kind}: {none} without, {kept} of 8000 with");
        assert!(kept >= 8000 - 1 - 32, "{kind}: {kept} of 8000");
    }
}

#[test]
fn a_floor_in_bytes_is_kept_whatever_the_elevator() {
    for kind in [Kind::None, Kind::Deadline, Kind::Bfq] {
        let promised = Reservation { bytes: 120 << 10, ..Reservation::default() };
        let kept = floor_kept("hdd", kind, promised);
        assert!(kept >= 30 - 1 - 4, "{kind}: {kept} of 30");
    }
}

#[test]
fn weights_divide_what_limits_and_reservations_leave() {
    let clients = [(100, 8, 16), (300, 8, 16), (1000, 8, 16)];
    let mut world = World::new("ssd", Kind::Bfq, &clients);
    let limit = Rate { per_second: 2000, ..Rate::default() };
    let limits = Limits { ops: Rates { total: limit, ..Rates::default() }, ..Limits::default() };
    let largest = world.clients[2].vm;
    world.engine.set_limits(world.now, Limited::Group(largest), &limits);
    world.run_for(Nanos::from_secs(3));
    for client in &mut world.clients {
        client.answered.clear();
    }
    world.run_for(Nanos::from_secs(10));
    let [one, three, limited] = [0, 1, 2].map(|client| world.clients[client].answered.len());
    println!("{one} and {three}, limited {limited}");
    assert!((19_900..=20_201).contains(&limited), "{limited}");
    assert!((28..=32).contains(&(three * 10 / one)), "{one} and {three}");
}

#[test]
fn a_limit_wins_over_a_reservation() {
    let mut world = World::new("ssd", Kind::Bfq, &[(1, 8, 16), (1000, 8, 64)]);
    let limit = Rate { per_second: 500, ..Rate::default() };
    let limits = Limits { ops: Rates { total: limit, ..Rates::default() }, ..Limits::default() };
    let vm = Limited::Group(world.clients[0].vm);
    world.engine.set_limits(world.now, vm, &limits);
    let promised = Reservation { ops: 5000, ..Reservation::default() };
    world.engine.set_reservation(world.now, vm, promised);
    world.run_for(Nanos::from_secs(5));
    let count = world.clients[0].answered.len();
    assert!((2400..=2551).contains(&count), "{count}");
}
