//! Shares on modelled devices: the engine in virtual time under clients that saturate it.

use evenkeel_engine::{
    BlockConfig, Command, DeviceOp, DiskId, Engine, EngineConfig, Geometry, Request, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};
use evenkeel_sim::{DeviceModel, Io, IoOp, Model, ModelSpec};

const DISK_SECTORS: u64 = 8 << 21;

/// Somebody who keeps a number of reads outstanding.
struct Client {
    disk: DiskId,
    nr_sectors: u32,
    depth: u32,
    random: bool,
    outstanding: u32,
    next: u64,
    /// Works for `.0` of every `.0 + .1`; no pause if `.1` is zero.
    rhythm: (Nanos, Nanos),
    sectors: u64,
}

impl Client {
    fn is_at_work(&self, now: Nanos) -> bool {
        let (work, pause) = self.rhythm;
        pause == Nanos::ZERO || now.0 % (work.0 + pause.0) < work.0
    }

    fn request(&mut self) -> Request {
        let count = DISK_SECTORS / u64::from(self.nr_sectors);
        self.next = if self.random {
            self.next
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407)
        } else {
            self.next + 1
        };
        let block = if self.random { (self.next >> 33) % count } else { self.next % count };
        Request {
            op: Op::Read,
            sector: block * u64::from(self.nr_sectors),
            nr_sectors: self.nr_sectors,
            segments: 1,
            ioprio: 0x4004,
            unmap: false,
        }
    }
}

struct World {
    now: Nanos,
    engine: Engine,
    device: Model,
    clients: Vec<Client>,
}

impl World {
    fn new(device: &str, clients: &[(u64, bool, bool)]) -> Self {
        let device = device.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
        let mut elevator = ElevatorConfig { kind: Kind::Bfq, ..ElevatorConfig::default() };
        elevator.rotational = device.rotational();
        // Raises end at another moment for each queue, and this is about weights.
        elevator.bfq.low_latency = false;
        let now = Nanos::ORIGIN;
        let config =
            EngineConfig { elevator, depth: device.depth(), blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let geometry = Geometry::plain(DISK_SECTORS);
        let clients = clients.iter().map(|&(weight, random, visits)| {
            let weight = Weight::new(weight).expect("in range");
            let vm = engine.add_group(now, GroupId::ROOT, weight);
            let (nr_sectors, depth) = if random { (8, 64) } else { (256, 16) };
            let rhythm = if visits {
                (Nanos::from_secs(2), Nanos::from_secs(1))
            } else {
                (Nanos::ZERO, Nanos::ZERO)
            };
            let disk = engine.add_disk(vm, geometry);
            Client {
                disk,
                nr_sectors,
                depth,
                random,
                outstanding: 0,
                next: weight.value().into(),
                rhythm,
                sectors: 0,
            }
        });
        let clients = clients.collect();
        Self { now, engine, device, clients }
    }

    fn run_until(&mut self, end: Nanos) {
        while self.now < end {
            while let Some(tag) = self.device.complete(self.now) {
                self.engine.complete(self.now, tag, Ok(()));
            }
            for (index, client) in self.clients.iter_mut().enumerate() {
                while client.outstanding < client.depth && client.is_at_work(self.now) {
                    let request = client.request();
                    let token = Token(index as u64);
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
                client.sectors += u64::from(client.nr_sectors);
            }
            let next = [self.device.next_event(), self.engine.next_deadline()];
            let pause = self.now + Nanos::from_millis(10);
            self.now = next
                .into_iter()
                .flatten()
                .min()
                .map_or(pause, |at| at.min(pause).max(self.now + Nanos(1)));
        }
    }
}

fn io(command: &Command) -> Io {
    assert_eq!(command.op, DeviceOp::Read);
    Io { op: IoOp::Read, pos: command.pos, nr_sectors: command.nr_sectors, durable: false }
}

/// Runs two clients of weights 100 and 300, and perhaps a third that comes and goes; returns what
/// the second got for each sector of the first in a minute.
#[expect(clippy::cast_precision_loss, reason = "sectors of a minute")]
fn ratio(device: &str, governs: bool, random: bool, visitor: bool) -> f64 {
    let mut clients = vec![(100, random, false), (300, random, false)];
    if visitor {
        clients.push((100, random, true));
    }
    let mut world = World::new(device, &clients);
    world.engine.govern(governs);
    // Until budgets fit the device: its rate is measured second by second.
    world.run_until(Nanos::ORIGIN + Nanos::from_secs(4));
    for client in &mut world.clients {
        client.sectors = 0;
    }
    let until = world.now + Nanos::from_secs(60);
    world.run_until(until);
    let ratio = world.clients[1].sectors as f64 / world.clients[0].sectors as f64;
    let moved: u64 = world.clients.iter().map(|client| client.sectors).sum();
    let mb_s = moved as f64 * 512.0 / 60e6;
    println!(
        "{device}, governed {governs}, random {random}, visitor {visitor}: {ratio:.3}, {mb_s:.0} MB/s"
    );
    ratio
}

#[test]
fn weights_hold_on_every_modelled_device_whoever_comes_and_goes() {
    // On the disk the lighter client gets 80 to 120 slots in 60 s, and one of them may fall
    // outside: 1 %; what a slot moves varies with the seeks in it. Elsewhere slots are shorter.
    for (device, governs, tolerance) in [
        ("hdd", false, 0.05),
        ("sdhc", false, 0.05),
        ("emmc", false, 0.03),
        ("ssd", false, 0.03),
        ("nvme", false, 0.03),
        ("emmc", true, 0.03),
        ("ssd", true, 0.03),
    ] {
        for random in [true, false] {
            for visitor in [false, true] {
                let ratio = ratio(device, governs, random, visitor);
                assert!((ratio / 3.0 - 1.0).abs() < tolerance, "{device}: {ratio}");
            }
        }
    }
}
