//! `evenkeel bench shares`: does everybody get what their weight says?
//!
//! Clients without a guest keep the disks of one pool saturated, and what each of them receives is
//! counted. On request a visitor comes and goes meanwhile: what it takes, it must take from
//! everybody in proportion.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::Serialize;

use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::image::fill_image;
use crate::process::{DiskSpec, PoolSpec, Server};
use crate::rate::count;

/// Weight of the visitor.
const VISITOR_WEIGHT: u32 = 100;
/// How long the visitor works each time.
const VISIT: Duration = Duration::from_secs(2);
/// How long it stays away.
const PAUSE: Duration = Duration::from_secs(1);

/// What to measure.
#[derive(Clone, Debug)]
pub struct SharesOptions {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where images, sockets and logs go.
    pub dir: PathBuf,
    /// Scheduler by name.
    pub scheduler: String,
    /// Model by name and parameters; `None` is the real disk under `dir`.
    pub model: Option<String>,
    /// BFQ's weight raising; `None` is its default.
    pub low_latency: Option<bool>,
    /// One disk per weight.
    pub weights: Vec<u32>,
    /// The loads, one after the other, each on a fresh server.
    pub loads: Vec<Shape>,
    /// Size of each image in bytes. On the real disk it is written in full once.
    pub image_bytes: u64,
    /// How long the load runs before counting. New queues are raised as interactive for up to
    /// 25 s; without raising, two seconds are enough.
    pub warm_up: Duration,
    /// How long is counted.
    pub duration: Duration,
    /// Whether another disk comes and goes.
    pub visitor: bool,
}

impl SharesOptions {
    /// Returns the standard measurement on one device: weights 100 and 300, random reads of 4 KiB
    /// and sequential ones of 128 KiB, 30 s each, no visitor.
    ///
    /// Raising is off: it ends at another moment for each queue, and this is about weights.
    #[must_use]
    pub fn new(evenkeel: PathBuf, dir: &Path, model: Option<String>) -> Self {
        // Sparse behind a model, where only distances count; written in full on a real disk.
        let image_bytes = if model.is_some() { 8 << 30 } else { 1 << 30 };
        // Images of different sizes, so in folders of their own.
        let dir = dir.join(if model.is_some() { "shares-modelled" } else { "shares-real" });
        Self {
            evenkeel,
            dir,
            scheduler: "bfq".to_owned(),
            model,
            low_latency: Some(false),
            weights: vec![100, 300],
            loads: vec![random(IoOp::Read), sequential(IoOp::Read)],
            image_bytes,
            warm_up: Duration::from_secs(2),
            duration: Duration::from_secs(30),
            visitor: false,
        }
    }
}

/// Returns random requests of 4 KiB, 64 in flight: more than the device takes.
#[must_use]
pub fn random(op: IoOp) -> Shape {
    Shape { op, pattern: Pattern::Random, block_bytes: 4096, depth: 64 }
}

/// Returns sequential requests of 128 KiB, 64 in flight.
#[must_use]
pub fn sequential(op: IoOp) -> Shape {
    Shape { op, pattern: Pattern::Sequential, block_bytes: 128 << 10, depth: 64 }
}

/// What one disk received.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SharesRow {
    /// Name of the disk.
    pub disk: String,
    /// Weight of its VM.
    pub weight: u32,
    /// `read` or `write`.
    pub op: &'static str,
    /// `random` or `sequential`.
    pub pattern: &'static str,
    /// Size of a request.
    pub block_bytes: u32,
    /// Requests in flight.
    pub depth: u16,
    /// `real`, or the model.
    pub device: String,
    /// Scheduler.
    pub scheduler: String,
    /// Megabytes (10^6 bytes) per second.
    pub mb_s: f64,
    /// Requests per second.
    pub iops: f64,
    /// Part of what all disks received, the visitor aside.
    pub share: f64,
    /// The weight's part of all weights, the visitor aside.
    pub expected_share: f64,
    /// What it received divided by what the disk of the least weight received.
    pub ratio: f64,
    /// What that should be.
    pub expected_ratio: f64,
    /// Seconds counted.
    pub seconds: f64,
    /// Whether a visitor came and went meanwhile.
    pub with_visitor: bool,
    /// What the visitor received, MB/s over the whole time; 0 without one.
    pub visitor_mb_s: f64,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SharesReport {
    /// One row per disk and load.
    pub rows: Vec<SharesRow>,
}

/// What one load brought.
#[derive(Debug)]
struct Outcome {
    requests: Vec<u64>,
    elapsed: Duration,
    visitor_requests: u64,
}

/// Measures every load; `progress` is told one line before each.
///
/// # Errors
///
/// If the server does not start, a request fails, or the images cannot be written.
pub fn run(
    options: &SharesOptions,
    progress: &mut dyn FnMut(&str),
) -> anyhow::Result<SharesReport> {
    ensure!(!options.weights.is_empty(), "at least one weight is needed");
    ensure!(options.weights.len() <= 16, "one thread drives at most 16 disks");
    std::fs::create_dir_all(&options.dir)?;
    let mut report = SharesReport::default();
    for load in &options.loads {
        let (op, pattern) = (load.op_name(), load.pattern.as_str());
        let device = options.model.as_deref().unwrap_or("real");
        progress(&format!("{device}: {pattern} {op}s of {} bytes", load.block_bytes));
        let outcome =
            measure(options, *load).with_context(|| format!("{device}: {pattern} {op}s"))?;
        report.rows.extend(rows(options, *load, &outcome));
    }
    Ok(report)
}

fn measure(options: &SharesOptions, load: Shape) -> anyhow::Result<Outcome> {
    let pool = pool(options)?;
    let mut server = Server::evenkeel(&options.evenkeel, &options.dir, &pool)?;
    let disks = options.weights.len();
    let (stop, counting) = (AtomicBool::new(false), AtomicBool::new(false));
    let visited = AtomicU64::new(0);
    let outcome = std::thread::scope(|scope| {
        let visitor = options.visitor.then(|| {
            let socket = server.socket(disks);
            let (stop, counting, visited) = (&stop, &counting, &visited);
            scope.spawn(move || visit(socket, load, stop, counting, visited))
        });
        let outcome = saturate(options, load, &server, &counting, &visited);
        stop.store(true, Ordering::Relaxed);
        if let Some(visitor) = visitor {
            visitor.join().expect("the visitor reports errors instead of panicking")?;
        }
        outcome
    });
    let outcome = outcome.with_context(|| format!("log of the server:\n{}", server.log_tail()))?;
    let status = server.terminate()?;
    ensure!(status.success(), "the server left with {status}");
    Ok(outcome)
}

fn pool(options: &SharesOptions) -> anyhow::Result<PoolSpec> {
    let mut weights = options.weights.clone();
    if options.visitor {
        weights.push(VISITOR_WEIGHT);
    }
    let mut disks = Vec::new();
    for (index, weight) in weights.into_iter().enumerate() {
        let name =
            if index < options.weights.len() { disk_name(index) } else { "visitor".to_owned() };
        let path = options.dir.join(format!("{name}.img"));
        if options.model.is_none() {
            fill_image(&path, options.image_bytes)?;
        }
        disks.push(DiskSpec { weight, ..DiskSpec::image(&name, &path, options.image_bytes) });
    }
    Ok(PoolSpec {
        scheduler: options.scheduler.clone(),
        model: options.model.clone(),
        low_latency: options.low_latency,
        settings: Vec::new(),
        disks,
    })
}

fn disk_name(index: usize) -> String {
    format!("disk{index}")
}

/// Runs the load on every disk at the same time and counts.
fn saturate(
    options: &SharesOptions,
    load: Shape,
    server: &Server,
    counting: &AtomicBool,
    visited: &AtomicU64,
) -> anyhow::Result<Outcome> {
    let connect = |index| Loader::connect(server.socket(index), load, 1, index as u64 + 1, 0);
    let mut loaders =
        (0..options.weights.len()).map(connect).collect::<std::io::Result<Vec<Loader>>>()?;
    drive(&mut loaders, options.warm_up)?;
    loaders.iter_mut().for_each(Loader::reset);
    counting.store(true, Ordering::Relaxed);
    let elapsed = drive(&mut loaders, options.duration)?;
    let visitor_requests = visited.load(Ordering::Relaxed);
    let requests = loaders.iter().map(|loader| loader.requests).collect();
    for loader in loaders {
        loader.leave()?;
    }
    Ok(Outcome { requests, elapsed, visitor_requests })
}

/// Comes, works and goes until told to stop.
fn visit(
    socket: &Path,
    load: Shape,
    stop: &AtomicBool,
    counting: &AtomicBool,
    visited: &AtomicU64,
) -> std::io::Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let mut loader = [Loader::connect(socket, load, 1, 99, 0)?];
        drive(&mut loader, VISIT)?;
        let [loader] = loader;
        if counting.load(Ordering::Relaxed) {
            visited.fetch_add(loader.requests, Ordering::Relaxed);
        }
        loader.leave()?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn rows(options: &SharesOptions, load: Shape, outcome: &Outcome) -> Vec<SharesRow> {
    let seconds = outcome.elapsed.as_secs_f64();
    let all: u64 = outcome.requests.iter().sum();
    let weights: u32 = options.weights.iter().sum();
    let bytes = f64::from(load.block_bytes);
    let by_weight = options.weights.iter().zip(&outcome.requests);
    let (least_weight, least_requests) =
        by_weight.clone().min_by_key(|(weight, _)| **weight).expect("there is a disk");
    let row = |(index, (weight, requests)): (usize, (&u32, &u64))| SharesRow {
        disk: disk_name(index),
        weight: *weight,
        op: load.op_name(),
        pattern: load.pattern.as_str(),
        block_bytes: load.block_bytes,
        depth: load.depth,
        device: options.model.clone().unwrap_or_else(|| "real".to_owned()),
        scheduler: options.scheduler.clone(),
        mb_s: count(*requests) * bytes / 1e6 / seconds,
        iops: count(*requests) / seconds,
        share: count(*requests) / count(all.max(1)),
        expected_share: f64::from(*weight) / f64::from(weights),
        ratio: count(*requests) / count((*least_requests).max(1)),
        expected_ratio: f64::from(*weight) / f64::from(*least_weight),
        seconds,
        with_visitor: options.visitor,
        visitor_mb_s: count(outcome.visitor_requests) * bytes / 1e6 / seconds,
    };
    by_weight.enumerate().map(row).collect()
}
