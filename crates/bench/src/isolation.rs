//! `evenkeel bench isolation`: what a neighbour costs somebody who asks for little.
//!
//! The *victim* reads 4 KiB at random, waits for it, thinks for 300 µs and reads again, as an
//! interactive program or a small database does. The *aggressor* has another disk of the same pool,
//! with the same weight, and keeps many requests there. What counts is the victim's latency, alone
//! and beside the aggressor, and what is left of the aggressor's rate: a server that keeps the
//! device idle protects the victim, too.
//!
//! `qemu-storage-daemon` has no scheduler; it isolates by caps. Here only the aggressor is capped,
//! at a part of what it gets alone on the same server in the same round. That flatters caps: nobody
//! knows these figures beforehand, and a cap also holds when nobody is in the way.
//!
//! BFQ's raising is off unless asked for: it favours whoever has just begun, for some seconds, and
//! this is about what stays.

use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive, drive_thinking};
use crate::rate::{admitted, count, percentile_us, turns};
use crate::stats;
use crate::target::{Backing, Running, Stage, Target};

/// How long the victim thinks between an answer and its next request.
const THINK: Duration = Duration::from_micros(300);
/// What the victim asks for.
const VICTIM: Shape =
    Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth: 1 };
/// The victim's disk.
const VICTIM_DISK: usize = 0;
/// The aggressor's disk.
const AGGRESSOR_DISK: usize = 1;
/// Latencies of the victim that are kept.
const LATENCIES_MAX: usize = 1 << 20;
/// How long the aggressor goes on between two looks whether the victim is finished.
const TAIL: Duration = Duration::from_millis(5);
/// Size of each image on a real disk, written in full once.
const IMAGE_BYTES: u64 = 1 << 30;
/// Size of each image behind a model, where only distances count; sparse.
const MODEL_BYTES: u64 = 8 << 30;

/// What to measure.
#[derive(Clone, Debug)]
pub struct IsolationOptions {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where images, sockets and logs go.
    pub dir: PathBuf,
    /// What is served.
    pub backing: Backing,
    /// Size of each disk in bytes.
    pub disk_bytes: u64,
    /// The servers.
    pub targets: Vec<Target>,
    /// The aggressors.
    pub aggressors: Vec<Shape>,
    /// Whether BFQ raises who has just begun.
    pub low_latency: bool,
    /// How many times every server is measured.
    pub rounds: u32,
    /// How long each of the three measurements takes, besides a fifth of it for warming up.
    pub duration: Duration,
}

impl IsolationOptions {
    /// Returns the standard measurement: both schedulers, BFQ with each of `depths` commands at the
    /// device, `qemu-storage-daemon` without a cap, with each of `caps` (percent of what the
    /// aggressor gets alone), and over the kernel's BFQ; three aggressors, five rounds of one
    /// second.
    #[must_use]
    pub fn new(
        evenkeel: PathBuf,
        dir: PathBuf,
        backing: Backing,
        depths: &[u32],
        caps: &[u32],
    ) -> Self {
        let mut targets = vec![Target::evenkeel("bfq"), Target::evenkeel("none")];
        targets.extend(depths.iter().copied().map(Target::fixed));
        if backing == Backing::Image {
            targets.push(Target::qsd("io_uring"));
            targets.extend(caps.iter().map(|&percent| Target::Qsd {
                aio: "io_uring".to_owned(),
                cap_percent: Some(percent),
            }));
            targets.push(Target::KernelBfq);
        }
        Self {
            evenkeel,
            dir,
            disk_bytes: if backing == Backing::Image { IMAGE_BYTES } else { MODEL_BYTES },
            backing,
            targets,
            aggressors: AGGRESSORS.to_vec(),
            low_latency: false,
            rounds: 5,
            duration: Duration::from_secs(1),
        }
    }
}

/// 128 KiB reads, 64 in flight; 64 KiB writes, 32 in flight; 4 KiB reads, 256 in flight; all at
/// random places.
pub const AGGRESSORS: [Shape; 3] = [
    aggressor(IoOp::Read, 128 << 10, 64),
    aggressor(IoOp::Write, 64 << 10, 32),
    aggressor(IoOp::Read, 4 << 10, 256),
];

const fn aggressor(op: IoOp, block_bytes: u32, depth: u16) -> Shape {
    Shape { op, pattern: Pattern::Random, block_bytes, depth }
}

/// Returns the name of an aggressor, such as `read-128K-depth-64`.
#[must_use]
pub fn name(shape: &Shape) -> String {
    let Shape { block_bytes, depth, .. } = shape;
    format!("{}-{}K-depth-{depth}", shape.op_name(), block_bytes >> 10)
}

/// One server and one aggressor: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct IsolationRow {
    /// `evenkeel-bfq`, `evenkeel-none`, `evenkeel-bfq-fixed-4`, `qsd-io_uring`,
    /// `qsd-io_uring-cap-50`, `qsd-kernel-bfq`.
    pub server: String,
    /// Operation, size and depth of the aggressor.
    pub aggressor: String,
    /// 99 of 100 of the victim's reads took no longer, with nobody else on the server.
    pub victim_alone_p99_us: f64,
    /// Half of them took no longer.
    pub victim_alone_p50_us: f64,
    /// As `victim_alone_p99_us`, beside the aggressor.
    pub victim_p99_us: f64,
    /// The least of the rounds.
    pub victim_p99_us_min: f64,
    /// The largest of the rounds.
    pub victim_p99_us_max: f64,
    /// Half of the victim's reads took no longer, beside the aggressor.
    pub victim_p50_us: f64,
    /// Reads of the victim per second, beside the aggressor.
    pub victim_iops: f64,
    /// What the aggressor gets alone, in MB/s; under a cap, with the cap.
    pub aggressor_alone_mb_s: f64,
    /// What it gets beside the victim, in MB/s.
    pub aggressor_mb_s: f64,
    /// What it is capped at, in MB/s.
    pub cap_mb_s: Option<f64>,
    /// `direct`, `page cache`, or the model.
    pub io: String,
    /// Rounds measured.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IsolationReport {
    /// One row per server and aggressor.
    pub rows: Vec<IsolationRow>,
}

/// What the victim saw.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Victim {
    p50_us: f64,
    p99_us: f64,
    iops: f64,
}

/// What one round brought for one server and one aggressor.
#[derive(Clone, Copy, Debug)]
struct Sample {
    victim_alone: Victim,
    victim: Victim,
    aggressor_alone_mb_s: f64,
    aggressor_mb_s: f64,
    cap_mb_s: Option<f64>,
}

/// Measures everything; `progress` is told one line before each server, and who is left out.
///
/// # Errors
///
/// If a server does not start, a request fails, or the images cannot be written.
pub fn run(options: &IsolationOptions, progress: &mut dyn FnMut(&str)) -> Result<IsolationReport> {
    ensure!(options.rounds > 0 && !options.aggressors.is_empty(), "nothing to measure");
    ensure!(options.backing != Backing::Null, "without a device there is nothing to wait for");
    let mut stage = stage(options);
    stage.prepare()?;
    let targets = admitted(&stage, &options.targets, progress);
    ensure!(!targets.is_empty(), "no server is left to be measured");
    let mut samples = vec![vec![Vec::new(); targets.len()]; options.aggressors.len()];
    for round in 0..options.rounds {
        for (aggressor, samples) in options.aggressors.iter().zip(&mut samples) {
            for index in turns(targets.len(), round) {
                let target = &targets[index];
                let text = format!("{target}, {}", name(aggressor));
                progress(&format!("round {}/{}: {text}", round + 1, options.rounds));
                let sample = measure(&stage, target, *aggressor, options.duration);
                samples[index].push(sample.with_context(|| text)?);
            }
        }
    }
    let mut report = IsolationReport::default();
    for (aggressor, samples) in options.aggressors.iter().zip(&samples) {
        for (target, samples) in targets.iter().zip(samples) {
            report.rows.push(row(target, aggressor, stage.io(), samples));
        }
    }
    Ok(report)
}

fn stage(options: &IsolationOptions) -> Stage {
    // Images of different sizes, so in folders of their own.
    let is_real = options.backing == Backing::Image;
    let dir = options.dir.join(if is_real { "isolation-real" } else { "isolation-modelled" });
    Stage {
        evenkeel: options.evenkeel.clone(),
        dir,
        backing: options.backing.clone(),
        disk_bytes: options.disk_bytes,
        name: "isolation",
        disks: 2,
        is_direct: false,
        low_latency: Some(options.low_latency),
    }
}

fn measure(stage: &Stage, target: &Target, shape: Shape, duration: Duration) -> Result<Sample> {
    let cap_bytes_s = match target {
        Target::Qsd { cap_percent: Some(percent), .. } => {
            let server = stage.start(target, 1, None)?;
            let uncapped = server.explain(aggressor_alone(&server, shape, duration))?;
            server.leave()?;
            Some(cap(uncapped, *percent))
        }
        _ => None,
    };
    let server = stage.start(target, 1, cap_bytes_s)?;
    let sample = server.explain(sample(&server, shape, duration, cap_bytes_s))?;
    server.leave()?;
    Ok(sample)
}

/// Returns so many percent of a rate, at least a block per second.
const fn cap(bytes_s: u64, percent: u32) -> u64 {
    let bytes = bytes_s / 100 * percent as u64;
    if bytes < 4096 { 4096 } else { bytes }
}

fn sample(
    server: &Running,
    shape: Shape,
    duration: Duration,
    cap_bytes_s: Option<u64>,
) -> Result<Sample> {
    let victim_alone = victim(server, duration, &Barrier::new(1))?;
    let alone = aggressor_alone(server, shape, duration)?;
    let (both, is_over) = (Barrier::new(2), AtomicBool::new(false));
    let (victim, aggressor) = thread::scope(|scope| {
        let aggressor = scope.spawn(|| aggress(server, shape, duration, &both, &is_over));
        let victim = victim(server, duration, &both);
        is_over.store(true, Ordering::Relaxed);
        (victim, aggressor.join().expect("it reports errors instead of panicking"))
    });
    Ok(Sample {
        victim_alone,
        victim: victim.context("the victim")?,
        aggressor_alone_mb_s: count(alone) / 1e6,
        aggressor_mb_s: count(aggressor.context("the aggressor")?) / 1e6,
        cap_mb_s: cap_bytes_s.map(|bytes| count(bytes) / 1e6),
    })
}

/// Plays the victim; begins when everybody is at the barrier.
fn victim(server: &Running, duration: Duration, start: &Barrier) -> Result<Victim> {
    let loader = Loader::connect(server.socket(VICTIM_DISK), VICTIM, 1, 1, LATENCIES_MAX);
    // Whoever waits at the barrier must not wait for ever.
    start.wait();
    let mut loader = loader?;
    drive_thinking(&mut loader, THINK, duration / 5)?;
    loader.reset();
    let elapsed = drive_thinking(&mut loader, THINK, duration)?;
    let requests = loader.requests;
    let mut latencies = std::mem::take(&mut loader.latencies_ns);
    loader.leave()?;
    latencies.sort_unstable();
    Ok(Victim {
        p50_us: percentile_us(&latencies, 50),
        p99_us: percentile_us(&latencies, 99),
        iops: count(requests) / elapsed.as_secs_f64(),
    })
}

fn aggressor_alone(server: &Running, shape: Shape, duration: Duration) -> Result<u64> {
    aggress(server, shape, duration, &Barrier::new(1), &AtomicBool::new(true))
}

/// Plays the aggressor from the barrier until it `is_over`; returns how many bytes per second
/// it got in its `duration`.
fn aggress(
    server: &Running,
    shape: Shape,
    duration: Duration,
    start: &Barrier,
    is_over: &AtomicBool,
) -> Result<u64> {
    let loader = Loader::connect(server.socket(AGGRESSOR_DISK), shape, 1, 2, 0);
    start.wait();
    let mut loaders = [loader?];
    drive(&mut loaders, duration / 5)?;
    loaders[0].reset();
    let elapsed = drive(&mut loaders, duration)?;
    let bytes = u128::from(loaders[0].bytes()) * 1_000_000_000 / elapsed.as_nanos().max(1);
    while !is_over.load(Ordering::Relaxed) {
        drive(&mut loaders, TAIL)?;
    }
    let [loader] = loaders;
    loader.leave()?;
    Ok(u64::try_from(bytes).unwrap_or(u64::MAX))
}

fn row(target: &Target, aggressor: &Shape, io: &str, samples: &[Sample]) -> IsolationRow {
    let median = |figures: Vec<f64>| stats::median(&figures).unwrap_or(0.0);
    let over = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
    let p99 = samples.iter().map(|sample| sample.victim.p99_us);
    let caps: Option<Vec<f64>> = samples.iter().map(|sample| sample.cap_mb_s).collect();
    IsolationRow {
        server: target.to_string(),
        aggressor: name(aggressor),
        victim_alone_p99_us: over(|sample| sample.victim_alone.p99_us),
        victim_alone_p50_us: over(|sample| sample.victim_alone.p50_us),
        victim_p99_us: over(|sample| sample.victim.p99_us),
        victim_p99_us_min: p99.clone().fold(f64::INFINITY, f64::min),
        victim_p99_us_max: p99.fold(0.0, f64::max),
        victim_p50_us: over(|sample| sample.victim.p50_us),
        victim_iops: over(|sample| sample.victim.iops),
        aggressor_alone_mb_s: over(|sample| sample.aggressor_alone_mb_s),
        aggressor_mb_s: over(|sample| sample.aggressor_mb_s),
        cap_mb_s: caps.map(median),
        io: io.to_owned(),
        rounds: samples.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_medians_and_the_extremes_of_its_rounds() {
        let sample = |p99_us: f64, cap_mb_s| {
            let victim = Victim { p50_us: p99_us / 2.0, p99_us, iops: 1e6 / p99_us };
            let victim_alone = Victim { p50_us: 1.0, p99_us: 2.0, iops: 3.0 };
            let (aggressor_alone_mb_s, aggressor_mb_s) = (p99_us * 4.0, p99_us * 3.0);
            Sample { victim_alone, victim, aggressor_alone_mb_s, aggressor_mb_s, cap_mb_s }
        };
        let samples = [sample(300.0, None), sample(100.0, None), sample(200.0, None)];
        let found = row(&Target::evenkeel("bfq"), &AGGRESSORS[0], "direct", &samples);
        assert_eq!(found.aggressor, "read-128K-depth-64");
        let extremes = (found.victim_p99_us_min, found.victim_p99_us, found.victim_p99_us_max);
        assert_eq!(extremes, (100.0, 200.0, 300.0));
        assert_eq!((found.victim_alone_p99_us, found.victim_p50_us), (2.0, 100.0));
        assert_eq!((found.aggressor_alone_mb_s, found.aggressor_mb_s), (800.0, 600.0));
        assert_eq!((found.cap_mb_s, found.rounds), (None, 3));
        let capped = [sample(1.0, Some(7.0)), sample(1.0, Some(9.0))];
        assert_eq!(row(&Target::qsd("x"), &AGGRESSORS[1], "", &capped).cap_mb_s, Some(8.0));
    }

    #[test]
    fn a_cap_is_a_part_of_a_rate_and_never_nothing() {
        assert_eq!(cap(200_000_000, 50), 100_000_000);
        assert_eq!(cap(0, 50), 4096);
        assert_eq!(cap(1_500_000, 10), 150_000);
    }

    #[test]
    fn nothing_is_compared_without_a_device() {
        let (evenkeel, dir) = (PathBuf::new(), PathBuf::new());
        let options = IsolationOptions::new(evenkeel, dir, Backing::Null, &[4], &[50]);
        assert!(!options.targets.iter().any(Target::is_qsd));
        let error = run(&options, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains("device"), "{error}");
    }
}
