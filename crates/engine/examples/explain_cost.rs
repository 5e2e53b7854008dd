//! What explaining waits costs: the same requests through an engine that explains and one that does
//! not, in turns, so that whatever else the machine does meets both.
//!
//! Every VM keeps four reads outstanding at random places; 32 are at the device; each turn one
//! completes, is answered, and the VM submits another. All VMs are busy all the time, which is the
//! worst case: every request waits for every other VM.
#![expect(clippy::disallowed_methods, reason = "a program that measures reads the clock")]

use std::time::Instant;

use evenkeel_engine::{
    BlockConfig, DiskId, Engine, EngineConfig, Geometry, Request, Retired, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Tag, Weight};

const DEPTH: u32 = 32;
const PER_VM: u32 = 4;
const REQUESTS: u32 = 2_000;
const ROUNDS: usize = 1_000;
/// Virtual time between two completions.
const TURN: Nanos = Nanos::from_micros(10);

struct Loop {
    engine: Engine,
    disks: Vec<DiskId>,
    at_device: Vec<Tag>,
    now: Nanos,
    random: u64,
}

impl Loop {
    fn new(kind: Kind, vms: u32, explains: bool) -> Self {
        let now = Nanos::ORIGIN;
        let elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
        let config = EngineConfig { elevator, depth: DEPTH, blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        engine.explain_waits(explains);
        let geometry = Geometry::plain(1 << 24);
        let add = |_| {
            let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
            engine.add_disk(vm, geometry)
        };
        let disks = (0..vms).map(add).collect();
        let mut this = Self { engine, disks, at_device: Vec::new(), now, random: 1 };
        for _ in 0..PER_VM {
            for vm in 0..vms {
                this.submit(vm);
            }
        }
        this
    }

    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn submit(&mut self, vm: u32) {
        let sector = self.random() % (1 << 20) * 16;
        let request =
            Request { op: Op::Read, sector, nr_sectors: 8, segments: 1, ioprio: 0, unmap: false };
        let disk = self.disks[vm as usize];
        self.engine.submit(self.now, disk, Token(u64::from(vm)), &request);
    }

    fn run(&mut self) {
        let mut answered = 0;
        while answered < REQUESTS {
            while let Some(command) = self.engine.dispatch(self.now) {
                self.at_device.push(command.tag);
            }
            self.now += TURN;
            if self.at_device.is_empty() {
                continue;
            }
            let which = self.random() % self.at_device.len() as u64;
            let tag = self.at_device.swap_remove(usize::try_from(which).expect("it is small"));
            self.engine.complete(self.now, tag, Ok(()));
            while let Some(Retired { token, .. }) = self.engine.retire() {
                answered += 1;
                self.submit(u32::try_from(token.0).expect("a token is the number of a VM"));
            }
        }
    }
}

fn main() {
    println!("{:<6} {:>5} {:>14} {:>12} {:>12}", "", "VMs", "ns, explained", "ns, not", "ratio");
    for kind in [Kind::None, Kind::Bfq] {
        for vms in [1, 10, 100, 1000] {
            let mut loops = [true, false].map(|explains| Loop::new(kind, vms, explains));
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                rounds.push(loops.each_mut().map(|pair| {
                    let begin = Instant::now();
                    pair.run();
                    begin.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS)
                }));
            }
            // The least of many: what else the machine does only ever adds.
            let least = |at: usize| rounds.iter().map(|r| r[at]).fold(f64::INFINITY, f64::min);
            let (with, without) = (least(0), least(1));
            let ratio = with / without;
            println!("{kind:<6} {vms:>5} {with:>14.1} {without:>12.1} {ratio:>12.3}");
        }
    }
}
