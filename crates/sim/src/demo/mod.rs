//! The demonstration with real guests (`evenkeel bench demo`), in virtual time.
//!
//! Two guests share a disk. Guest A starts an application on the idle disk, then again while
//! readers of both guests keep the disk busy. Engine, schedulers and device are those of the
//! daemon; guests, page caches and the application are modelled, so what comes out is a prediction
//! of what the real demonstration measures.
//!
//! The models know requests, caches and CPU time; they know nothing of schedulers. How long the
//! CPUs of an emulated guest take is in [`CpuModel`], and was read from traces of idle starts.

mod application;
mod calibrate;

use evenkeel_sched::{Class, Kind, Nanos, Priority};

use crate::ModelSpec;
use crate::world::{
    FaultyDevice, File, GuestModel, HostModel, HostPath, Loader, Order, OsModel, Place, ProcessId,
    Program, Random, Reader, World,
};

pub use application::{Application, CpuModel};
pub use calibrate::calibrated;

/// How the demonstration is played.
#[derive(Clone, Debug)]
pub struct Scene {
    /// The host's elevator.
    pub scheduler: Kind,
    /// The device.
    pub device: ModelSpec,
    /// Starts on the idle disk, and again as many under load.
    pub starts: u32,
    /// How fast the guests' CPUs are.
    pub cpu: CpuModel,
}

/// What the demonstration gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Each start on the idle disk; none if it was not done within [`LIMIT`].
    pub idle: Vec<Option<Nanos>>,
    /// Each start under load.
    pub loaded: Vec<Option<Nanos>>,
    /// What all sequential readers together got, in 10^6 bytes per second.
    pub sequential_mb_s: f64,
    /// What all random readers together got, in 10^6 bytes per second.
    pub random_mb_s: f64,
}

/// A start that takes longer has failed.
pub const LIMIT: Nanos = Nanos::from_secs(60);
/// Between two starts, and how much longer the commands around a start may take. BFQ takes a queue
/// for freshly started only after 2 s of silence.
const PAUSE: (Nanos, Nanos) = (Nanos::from_millis(2_200), Nanos::from_millis(300));
/// Readers run for so long before anything is measured, and under BFQ for at most so much longer
/// until it no longer takes them for programs that start.
const SETTLE: Nanos = Nanos::from_secs(3);
const LONGEST_RAISE: Nanos = Nanos::from_secs(26);
const LOOK: Nanos = Nanos::from_millis(500);
/// Threads by which the application loads its small files.
const LOADERS: usize = 8;
/// `ionice -c2 -n0`, the best priority that an unprivileged process may have.
const BEST: Priority = Priority { class: Class::BestEffort, level: 0 };

const MIB: u64 = 2048;
/// The disk of each guest.
const IMAGE: u64 = 2048 * MIB;
/// A file of the readers; what the image holds before it.
const LARGE: u64 = 320 * MIB;
const BEFORE: u64 = 37 * MIB;
/// What is left for files of a guest of 256 MiB.
const CACHE_MIB: u64 = 160;

/// Plays the demonstration once. The same seed gives the same outcome.
///
/// # Panics
///
/// Panics if the device's parameters are out of range, which parsing them rules out.
#[must_use]
pub fn play(scene: &Scene, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let (mut world, guests) = set_up(scene, &mut random);
    let application = Application::new(&scene.cpu);
    let mut outcome = Outcome::default();
    for _ in 0..scene.starts {
        outcome.idle.push(start(&mut world, guests[0], &application, BEST, &mut random));
    }
    let readers = begin_readers(&mut world, guests, &scene.cpu, &mut random);
    let began = world.now();
    warm_up(&mut world, scene.scheduler);
    for _ in 0..scene.starts {
        // Two failures in a row tell enough.
        let is_hopeless = matches!(outcome.loaded.as_slice(), [.., None, None]);
        let took = if is_hopeless {
            None
        } else {
            start(&mut world, guests[0], &application, BEST, &mut random)
        };
        outcome.loaded.push(took);
    }
    for (reader, order) in readers {
        let rate = megabytes_per_second(world.life(reader).read_sectors, world.now() - began);
        match order {
            Order::Sequential => outcome.sequential_mb_s += rate,
            Order::Random | Order::Strided(_) => outcome.random_mb_s += rate,
        }
    }
    outcome
}

/// Returns the host with its two guests, A first.
fn set_up(scene: &Scene, random: &mut Random) -> (World, [Place; 2]) {
    let device = scene.device.build().expect("a device that was parsed can be built");
    let host = HostModel::new(HostPath::Evenkeel, scene.scheduler);
    let mut world = World::new(FaultyDevice::new(device), &host, random.bits());
    let guests = [2, 1].map(|cpus| {
        let index = u64::from(cpus == 1);
        let image = File { start: index * IMAGE, sectors: IMAGE };
        let mut guest = GuestModel::new(Kind::None, image);
        guest.os = OsModel { wakeup: scene.cpu.wakeup, ..OsModel::new(cpus, CACHE_MIB) };
        (guest.kick, guest.interrupt) = (scene.cpu.kick, scene.cpu.interrupt);
        world.add_guest(&guest)
    });
    (world, guests)
}

/// Starts the application once with cold caches, after a silence; returns how long it took, if it
/// was done within [`LIMIT`].
#[must_use]
pub fn start(
    world: &mut World,
    place: Place,
    application: &Application,
    priority: Priority,
    random: &mut Random,
) -> Option<Nanos> {
    world.run_until(world.now() + PAUSE.0 + Nanos(random.below(PAUSE.1.0)));
    world.drop_caches();
    let began = world.now();
    let limit = began + LIMIT;
    let main = Program::Startup(application.main(random));
    let main = world.start_with(place, main, priority);
    let mut processes = vec![main];
    if world.run_process(main, limit) {
        let threads = Loader::threads(Application::area(), &application.files(random), LOADERS);
        processes = threads
            .into_iter()
            .map(|thread| world.start_with(place, Program::Loader(thread), priority))
            .collect();
    }
    let mut is_ready = true;
    for &process in &processes {
        is_ready &= world.run_process(process, limit);
    }
    if !is_ready {
        processes.into_iter().for_each(|process| world.kill(process));
        return None;
    }
    Some(world.now() - began)
}

/// Starts the readers, a moment apart.
fn begin_readers(
    world: &mut World,
    [a, b]: [Place; 2],
    cpu: &CpuModel,
    random: &mut Random,
) -> Vec<(ProcessId, Order)> {
    let file = |index: u64| File { start: BEFORE + index * LARGE, sectors: LARGE };
    let readers = [
        (a, Order::Sequential, file(0)),
        (a, Order::Random, file(0)),
        (b, Order::Sequential, file(0)),
        (b, Order::Sequential, file(1)),
        (b, Order::Random, file(1)),
    ];
    readers
        .map(|(place, order, file)| {
            world.run_until(world.now() + Nanos(random.below(50_000_000)));
            let mut reader = Reader::new(file, order);
            if order == Order::Sequential {
                reader.piece_sectors = 256;
            }
            reader.think = cpu.of_read(reader.piece_sectors);
            (world.start(place, Program::Reader(reader)), order)
        })
        .to_vec()
}

/// Waits until the readers no longer count as freshly started programs.
fn warm_up(world: &mut World, scheduler: Kind) {
    world.run_until(world.now() + SETTLE);
    let end = world.now() + LONGEST_RAISE;
    while scheduler == Kind::Bfq && world.is_anybody_raised() && world.now() < end {
        world.run_until(world.now() + LOOK);
    }
}

#[expect(clippy::cast_precision_loss, reason = "gigabytes and minutes are below 2^53")]
fn megabytes_per_second(sectors: u64, time: Nanos) -> f64 {
    sectors as f64 * 512.0 / 1e6 / (time.0.max(1) as f64 / 1e9)
}
