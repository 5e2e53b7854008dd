//! Two guests with readers that think a little, on a modelled hard disk: once all have started,
//! nobody is raised over and over, and both keep their shares.

use evenkeel_engine::{BlockConfig, DiskId, Engine, EngineConfig, Geometry, Request, Token};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};
use evenkeel_sim::{DeviceModel, Io, Model};

#[expect(dead_code, reason = "each test uses its part")]
mod common;

use common::{Random, build};

const MIB: u64 = 2048;
const FILE_SECTORS: u64 = 320 * MIB;
/// By then the raises of those who started are over.
const SETTLED: Nanos = Nanos::from_secs(40);
const WINDOW: Nanos = Nanos::from_secs(10);
const WINDOWS: usize = 8;

/// Reads a file from end to end in pairs of 128 KiB, or 4 KiB at random.
struct Reader {
    vm: u32,
    start: u64,
    random: bool,
    at: u64,
    outstanding: u32,
    due: Option<Nanos>,
    dice: Random,
}

impl Reader {
    fn reads(&mut self) -> Vec<Request> {
        let (sectors, count) = if self.random { (8, 1) } else { (256, 2) };
        if self.random {
            self.at = self.dice.below(FILE_SECTORS / 8) * 8;
        }
        self.outstanding = count;
        let read = |index: u32| Request {
            op: Op::Read,
            sector: self.start + (self.at + u64::from(index * sectors)) % FILE_SECTORS,
            nr_sectors: sectors,
            segments: 1,
            ioprio: 0,
            unmap: false,
        };
        let reads = (0..count).map(read).collect();
        self.at += u64::from(count * sectors);
        reads
    }
}

fn readers(seed: u64) -> Vec<Reader> {
    let start = Nanos::ORIGIN + Nanos::from_secs(5);
    let plan = [(0, 70, false), (0, 70, true), (1, 70, false), (1, 400, false), (1, 400, true)];
    let reader = |(index, (vm, mib, random)): (u64, (u32, u64, bool))| Reader {
        vm,
        start: mib * MIB,
        random,
        at: 0,
        outstanding: 0,
        due: Some(start),
        dice: Random(seed * 100 + index + 1),
    };
    (0..).zip(plan).map(reader).collect()
}

fn engine(device: &Model) -> (Engine, Vec<DiskId>) {
    let mut elevator = ElevatorConfig { kind: Kind::Bfq, ..ElevatorConfig::default() };
    elevator.rotational = device.rotational();
    let config = EngineConfig { elevator, depth: device.depth(), blocks: BlockConfig::default() };
    let mut engine = Engine::new(Nanos::ORIGIN, &config);
    let geometry = Geometry::plain(4096 * MIB);
    let mut disk = || {
        let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        engine.add_disk(vm, geometry)
    };
    let disks = vec![disk(), disk()];
    (engine, disks)
}

/// Returns for how long the device worked for each guest, in each window, once all is settled.
fn device_time(think: Nanos, seed: u64) -> Vec<[Nanos; 2]> {
    let mut device = build("hdd");
    let (mut engine, disks) = engine(&device);
    let mut readers = readers(seed);
    let mut used = vec![[Nanos::ZERO; 2]; WINDOWS];
    let mut now = Nanos::ORIGIN;
    let begin = now + SETTLED;
    let (mut sent, mut at_device) = (now, 0);
    loop {
        let window = usize::try_from(now.since(begin).0 / WINDOW.0).expect("a few");
        if window >= WINDOWS {
            return used;
        }
        while let Some(tag) = device.complete(now) {
            if now >= begin {
                used[window][at_device] += now.since(sent);
            }
            engine.complete(now, tag, Ok(()));
        }
        while let Some(retired) = engine.retire() {
            let reader = &mut readers[usize::try_from(retired.token.0).expect("an index")];
            reader.outstanding -= 1;
            if reader.outstanding == 0 {
                reader.due = Some(now + Nanos(think.0 / 2 + reader.dice.below(think.0)));
            }
        }
        for (token, reader) in (0..).zip(&mut readers) {
            if reader.due.take_if(|due| *due <= now).is_some() {
                for read in reader.reads() {
                    engine.submit(now, disks[reader.vm as usize], Token(token), &read);
                }
            }
        }
        while let Some(command) = engine.dispatch(now) {
            (sent, at_device) = (now, command.disk.0 as usize);
            device.submit(now, command.tag, &Io::from(&command));
        }
        let due = readers.iter().filter_map(|reader| reader.due);
        let events = [device.next_event(), engine.next_deadline()];
        let next = events.into_iter().flatten().chain(due).min().expect("somebody reads");
        now = next.max(now + Nanos(1));
    }
}

#[test]
fn settled_guests_share_the_disk_whatever_their_readers_think() {
    for think_ms in [1, 3, 8] {
        for seed in 0..8 {
            let used = device_time(Nanos::from_millis(think_ms), seed);
            let shares = used.iter().map(|&[a, b]| a.0 as f64 / (a + b).0 as f64);
            let shares: Vec<f64> = shares.collect();
            println!("think {think_ms} ms, seed {seed}: {shares:.2?}");
            assert!(
                shares.iter().all(|share| (0.4..=0.6).contains(share)),
                "think {think_ms} ms, seed {seed}: {shares:.2?}"
            );
        }
    }
}
