//! One single run: five starts of an application, or a minute of load.

use evenkeel_sched::Nanos;

use super::figures::Metric;
use super::layout::Layout;
use super::setup::Setup;
use crate::world::{Program, Random, Startup, World};

/// An application that has not started by then never will.
const PATIENCE: Nanos = Nanos::from_secs(60);
/// The guest runs for so long before its load begins.
const WARM_UP: Nanos = Nanos::from_secs(5);
/// The load runs for so long before an application starts, and for at most so much longer while an
/// elevator still takes a reader for a program that starts.
///
/// Source: the benchmark suite of the document waits for that, too: 13 s, or with BFQ the longest
/// raise and 7 s.
const SETTLE: Nanos = Nanos::from_secs(13);
const LONGEST_RAISE: Nanos = Nanos::from_secs(19);
const LOOK: Nanos = Nanos::from_millis(500);

/// How much to measure in one run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Effort {
    /// Starts of the application.
    pub starts: u32,
    /// Seconds of load when throughput is measured, and seconds of one sample.
    pub throughput_s: (u64, u64),
}

impl Effort {
    /// As in the document: five starts; 60 seconds, a sample every two.
    pub const FULL: Self = Self { starts: 5, throughput_s: (60, 2) };
    /// For a quick look.
    pub const QUICK: Self = Self { starts: 2, throughput_s: (20, 2) };
}

/// What one run gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Start-up times in seconds, or throughput in 10^6 bytes per second.
    pub samples: Vec<f64>,
    /// Whether an application did not start within a minute; the run ends with that.
    pub failed: bool,
    /// Commands that the device has completed.
    pub commands: u64,
}

/// Runs a setup once.
#[must_use]
pub fn measure(setup: &Setup, metric: Metric, effort: Effort, seed: u64) -> Outcome {
    match metric {
        Metric::StartUp => start_up(setup, effort, seed),
        Metric::Throughput => throughput(setup, effort, seed),
    }
}

fn start_up(setup: &Setup, effort: Effort, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let (mut world, place) = setup.world(random.bits());
    // A kernel is not new when its load begins.
    world.run_until(world.now() + WARM_UP);
    setup.load(&mut world, place, &mut random);
    settle(&mut world);
    let mut outcome = Outcome { samples: Vec::new(), failed: false, commands: 0 };
    for _ in 0..effort.starts {
        let pause = Nanos::from_millis(1000 + random.below(1000));
        world.run_until(world.now() + pause);
        world.drop_caches();
        let startup = Startup::new(setup.app, Layout::system());
        let process = world.start(place, Program::Startup(startup));
        if !world.run_process(process, world.now() + PATIENCE) {
            outcome.failed = true;
            break;
        }
        let life = world.life(process);
        let took = life.ended.map_or(PATIENCE, |ended| ended - life.started);
        outcome.samples.push(seconds(took));
    }
    outcome.commands = world.completed();
    outcome
}

/// Waits until the readers count as what they are.
fn settle(world: &mut World) {
    world.run_until(world.now() + SETTLE);
    let end = world.now() + LONGEST_RAISE;
    while world.is_anybody_raised() && world.now() < end {
        world.run_until(world.now() + LOOK);
    }
}

fn throughput(setup: &Setup, effort: Effort, seed: u64) -> Outcome {
    let mut random = Random::new(seed);
    let (mut world, place) = setup.world(random.bits());
    world.run_until(world.now() + WARM_UP);
    setup.load(&mut world, place, &mut random);
    let (whole, sample) = effort.throughput_s;
    let mut samples = Vec::new();
    let mut before = world.read_sectors(place);
    for _ in 0..whole / sample.max(1) {
        world.run_until(world.now() + Nanos::from_secs(sample));
        let read = world.read_sectors(place);
        samples.push(megabytes(read - before) / seconds(Nanos::from_secs(sample)));
        before = read;
    }
    Outcome { samples, failed: false, commands: world.completed() }
}

#[expect(clippy::cast_precision_loss, reason = "minutes, in nanoseconds, are below 2^53")]
fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "gigabytes, in sectors, are below 2^53")]
fn megabytes(sectors: u64) -> f64 {
    sectors as f64 * 512.0 / 1e6
}
