//! Readers of one VM whose I/O priorities differ, on a modelled hard disk: each gets the share of
//! its weight, however long it thinks between two reads.

use evenkeel_engine::{
    BlockConfig, DeviceOp, DiskId, Engine, EngineConfig, Geometry, Request, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};
use evenkeel_sim::{DeviceModel, IoOp, Model};

#[expect(dead_code, reason = "each test uses its part")]
mod common;

use common::{Random, build, io};

const DISK_SECTORS: u64 = 8 << 21;
const READERS: u64 = 4;
/// What best effort 0, 2, 4 and 6 are entitled to, in percent.
const ENTITLED: [f64; 4] = [40.0, 30.0, 20.0, 10.0];

/// What the readers do.
#[derive(Clone, Copy, Debug)]
struct Habit {
    random: bool,
    /// Between half and one and a half times this passes from an answer to the next read.
    think: Nanos,
    /// Of a thousand pauses so many last up to 20 ms longer.
    long_per_mille: u64,
}

/// Reads in its own quarter of the disk, one request at a time.
struct Reader {
    ioprio: u32,
    start: u64,
    read: u64,
    due: Option<Nanos>,
    random: Random,
    bytes: u64,
}

impl Reader {
    fn request(&mut self, habit: Habit) -> Request {
        let nr_sectors: u32 = if habit.random { 8 } else { 256 };
        let blocks = DISK_SECTORS / READERS / u64::from(nr_sectors);
        let block = if habit.random { self.random.below(blocks) } else { self.read % blocks };
        self.read += 1;
        self.bytes += u64::from(nr_sectors) * 512;
        let sector = self.start + block * u64::from(nr_sectors);
        Request { op: Op::Read, sector, nr_sectors, segments: 1, ioprio: self.ioprio, unmap: false }
    }

    fn pause(&mut self, habit: Habit) -> Nanos {
        let is_long = self.random.below(1000) < habit.long_per_mille;
        let more = if is_long { self.random.below(20_000_000) } else { 0 };
        Nanos(habit.think.0 / 2 + self.random.below(habit.think.0) + more)
    }
}

fn engine(device: &Model) -> (Engine, DiskId) {
    let mut elevator = ElevatorConfig { kind: Kind::Bfq, ..ElevatorConfig::default() };
    elevator.rotational = device.rotational();
    // Raises end at another moment for each queue, and this is about weights.
    elevator.bfq.low_latency = false;
    let config = EngineConfig { elevator, depth: device.depth(), blocks: BlockConfig::default() };
    let mut engine = Engine::new(Nanos::ORIGIN, &config);
    let weight = Weight::new(100).expect("in range");
    let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, weight);
    let geometry = Geometry::plain(DISK_SECTORS);
    let disk = engine.add_disk(vm, geometry);
    (engine, disk)
}

/// Returns what each reader got in a minute, in percent of all.
fn shares(habit: Habit) -> Vec<f64> {
    let mut device = build("hdd");
    let (mut engine, disk) = engine(&device);
    let mut readers: Vec<Reader> = (0..READERS)
        .map(|index| Reader {
            ioprio: 0x4000 + 2 * u32::try_from(index).expect("few readers"),
            start: DISK_SECTORS / READERS * index,
            read: 0,
            due: Some(Nanos::ORIGIN),
            random: Random(index + 7),
            bytes: 0,
        })
        .collect();
    let mut now = Nanos::ORIGIN;
    while now < Nanos::ORIGIN + Nanos::from_secs(60) {
        while let Some(tag) = device.complete(now) {
            engine.complete(now, tag, Ok(()));
        }
        while let Some(retired) = engine.retire() {
            let reader = &mut readers[usize::try_from(retired.token.0).expect("an index")];
            reader.due = Some(now + reader.pause(habit));
        }
        for (index, reader) in (0..).zip(&mut readers) {
            if reader.due.take_if(|due| *due <= now).is_some() {
                let request = reader.request(habit);
                engine.submit(now, disk, Token(index), &request);
            }
        }
        while let Some(command) = engine.dispatch(now) {
            assert_eq!(command.op, DeviceOp::Read);
            device.submit(now, command.tag, &io(IoOp::Read, command.pos, command.nr_sectors));
        }
        let due = readers.iter().filter_map(|reader| reader.due);
        let next = [device.next_event(), engine.next_deadline()].into_iter().flatten().chain(due);
        now = next.min().expect("somebody has something to do").max(now + Nanos(1));
    }
    engine.check_invariants();
    let all: u64 = readers.iter().map(|reader| reader.bytes).sum();
    readers.iter().map(|reader| 100.0 * reader.bytes as f64 / all as f64).collect()
}

#[test]
fn readers_get_the_shares_of_their_priorities_however_long_they_think() {
    // Think times up to 8 ms, for which BFQ waits; beyond, the readers themselves ask for less.
    for random in [false, true] {
        for (think_us, long_per_mille, tolerance) in [
            (500, 0, 2.5),
            (1500, 0, 2.5),
            (3000, 100, 4.0),
            (3000, 300, 4.0),
            (5000, 0, 4.0),
            (5000, 50, 4.0),
            (7000, 0, 6.0),
        ] {
            let habit = Habit { random, think: Nanos::from_micros(think_us), long_per_mille };
            let shares = shares(habit);
            println!("{habit:?}: {shares:.1?}");
            for (share, entitled) in shares.iter().zip(ENTITLED) {
                assert!((share - entitled).abs() < tolerance, "{habit:?}: {shares:.1?}");
            }
        }
    }
}
