//! `evenkeel bench scale`: many busy disks in one pool, and very many idle ones.
//!
//! Four questions: whether many vrings of many disks together are as fast as a few of one disk,
//! whether each gets its share, whether those that have stopped cost nothing, and what a disk that
//! nobody uses costs.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::client::{Client, Io, IoOp, Options};
use crate::process::{DiskSpec, PoolSpec, Server};
use crate::rate::{DEPTH_MAX, count};
use crate::stats;
use crate::target::{Backing, Running, Stage, Target};

/// Vrings of each busy disk.
const VRINGS: u16 = 4;
/// Size of each of many disks: each image is written in full.
const DISK_BYTES: u64 = 16 << 20;
/// How many of the idle disks are used at a time.
const WAVE: usize = 100;

/// What to measure.
#[derive(Clone, Debug)]
pub struct ScaleOptions {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where images, sockets and logs go. The images lie on the disk that is measured.
    pub dir: PathBuf,
    /// What is served.
    pub backing: Backing,
    /// Scheduler by name.
    pub scheduler: String,
    /// Busy disks.
    pub busy: u16,
    /// Requests in flight per vring of each of them; one disk alone has as many as all together.
    pub depth: u16,
    /// Disks that are started, used once, and stopped.
    pub idle: usize,
    /// Times that one disk and many are measured.
    pub rounds: u32,
    /// How long each of these takes, and how long nobody does anything afterwards.
    pub duration: Duration,
}

impl ScaleOptions {
    /// Returns the standard measurement: 64 busy disks, 1,000 idle ones, three rounds of two
    /// seconds.
    #[must_use]
    pub fn new(evenkeel: PathBuf, dir: PathBuf, backing: Backing) -> Self {
        Self {
            evenkeel,
            dir,
            backing,
            scheduler: "bfq".to_owned(),
            busy: 64,
            depth: 4,
            idle: 1000,
            rounds: 3,
            duration: Duration::from_secs(2),
        }
    }
}

/// One disk, and many disks, with as much in flight: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScaleRow {
    /// Disks of the pool, all busy.
    pub disks: u16,
    /// Vrings of each.
    pub vrings: u16,
    /// Requests in flight per vring.
    pub depth: u16,
    /// Requests per second, all disks together.
    pub iops: f64,
    /// Median over the rounds of `iops` divided by that of one disk in the same round.
    pub ratio_to_one: f64,
    /// Least and most that a disk got, divided by the mean: the furthest of all rounds.
    pub share_min: f64,
    /// The same for the most.
    pub share_max: f64,
    /// Processor time of the server.
    pub server_cpu_us_per_request: f64,
    /// Processor time of the server in a second in which nobody does anything, its clients still
    /// connected.
    pub idle_cpu_us_per_second: f64,
}

/// What disks cost that nobody uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct IdleRow {
    /// Disks of the pool.
    pub disks: usize,
    /// From the start of the program until every socket is there.
    pub start_ms: f64,
    /// From the signal until the program has ended.
    pub stop_ms: f64,
    /// Resident memory for each disk, beyond that of a daemon with one.
    pub kib_per_disk: f64,
    /// Resident memory for each connected VMM with a vring of 128 descriptors, beyond that.
    pub kib_per_session: f64,
    /// Open descriptors after the start.
    pub descriptors: usize,
    /// Open descriptors more than that after every disk was connected, read from, and left.
    pub descriptors_leaked: usize,
    /// Threads when nobody is connected.
    pub threads: usize,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScaleReport {
    /// One disk, then many.
    pub rows: Vec<ScaleRow>,
    /// Disks that nobody uses; none if they were not asked for.
    pub idle: Vec<IdleRow>,
}

/// One measurement of busy disks.
#[derive(Clone, Debug)]
struct Sample {
    iops: f64,
    shares: (f64, f64),
    cpu_us: f64,
    idle_us_s: f64,
}

/// Measures everything; `progress` is told one line before each measurement.
///
/// # Errors
///
/// If options contradict what can be, a server does not start, or a request fails.
pub fn run(options: &ScaleOptions, progress: &mut dyn FnMut(&str)) -> Result<ScaleReport> {
    ensure!((1..=64).contains(&options.busy), "1 to 64 busy disks");
    ensure!(options.rounds > 0, "nothing to measure");
    let together = options.busy.saturating_mul(options.depth);
    ensure!(
        (1..=DEPTH_MAX).contains(&together),
        "busy disks times depth are 1 to {DEPTH_MAX}: one disk has all of it"
    );
    let loads = [(1, together), (options.busy, options.depth)];
    let mut samples = [Vec::new(), Vec::new()];
    let mut stages = loads.map(|(disks, _)| stage(options, disks));
    for stage in &mut stages {
        stage.prepare()?;
    }
    for round in 0..options.rounds {
        let measured = loads.iter().zip(&stages).zip(&mut samples);
        for (((disks, depth), stage), samples) in measured {
            let text = format!("{disks} disks, {VRINGS} vrings, depth {depth}");
            progress(&format!("round {}/{}: {text}", round + 1, options.rounds));
            let server = stage.start(&Target::evenkeel(&options.scheduler), VRINGS, None)?;
            let sample = busy(&server, usize::from(*disks), *depth, options.duration);
            samples.push(server.explain(sample).context(text)?);
            server.leave()?;
        }
    }
    let rates: Vec<f64> = samples[0].iter().map(|sample| sample.iops).collect();
    let rows = loads.iter().zip(&samples);
    let mut report = ScaleReport {
        rows: rows.map(|(&(disks, depth), samples)| row(disks, depth, samples, &rates)).collect(),
        idle: Vec::new(),
    };
    if options.idle > 0 {
        progress(&format!("{} idle disks", options.idle));
        report.idle.push(idle(options)?);
    }
    Ok(report)
}

/// Returns the scene with so many disks. However many there are, together they are as large: a
/// device answers faster where it has less to look in.
fn stage(options: &ScaleOptions, disks: u16) -> Stage {
    let name = if disks == 1 { "scale-one" } else { "scale" };
    Stage {
        evenkeel: options.evenkeel.clone(),
        dir: options.dir.clone(),
        backing: options.backing.clone(),
        disk_bytes: DISK_BYTES * u64::from(options.busy / disks),
        name,
        disks: usize::from(disks),
        is_direct: false,
        // Who has just begun is not the question: all have.
        low_latency: Some(false),
    }
}

/// Keeps so many disks busy, then leaves them alone.
fn busy(server: &Running, disks: usize, depth: u16, duration: Duration) -> Result<Sample> {
    let shape = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth };
    let seeds = 1..;
    let loaders = (0..disks)
        .zip(seeds)
        .map(|(disk, seed)| Loader::connect(server.socket(disk), shape, VRINGS, seed, 0));
    let mut loaders = loaders.collect::<std::io::Result<Vec<_>>>()?;
    drive(&mut loaders, duration / 5)?;
    loaders.iter_mut().for_each(Loader::reset);
    let meter = server.cpu_meter()?.context("a server that was started here")?;
    let elapsed = drive(&mut loaders, duration)?;
    let cpu = meter.used()?;
    let requests: Vec<f64> = loaders.iter().map(|loader| count(loader.requests)).collect();
    let total: f64 = requests.iter().sum();
    let mean = total / requests.iter().map(|_| 1.0).sum::<f64>();
    let share = |least: fn(f64, f64) -> f64| requests.iter().copied().fold(mean, least) / mean;
    for loader in &mut loaders {
        loader.settle()?;
    }
    // What a poll or a timer of the last request still does is not idle.
    std::thread::sleep(duration / 10);
    let meter = server.cpu_meter()?.context("a server that was started here")?;
    std::thread::sleep(duration);
    let idle = meter.used()?;
    for loader in loaders {
        loader.leave()?;
    }
    Ok(Sample {
        iops: total / elapsed.as_secs_f64(),
        shares: (share(f64::min), share(f64::max)),
        cpu_us: cpu.as_secs_f64() * 1e6 / total.max(1.0),
        idle_us_s: idle.as_secs_f64() * 1e6 / duration.as_secs_f64(),
    })
}

fn row(disks: u16, depth: u16, samples: &[Sample], one: &[f64]) -> ScaleRow {
    let median = |figures: Vec<f64>| stats::median(&figures).unwrap_or(0.0);
    let over = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
    let shares = samples.iter().map(|sample| sample.shares);
    ScaleRow {
        disks,
        vrings: VRINGS,
        depth,
        iops: over(|sample| sample.iops),
        ratio_to_one: median(samples.iter().zip(one).map(|(many, one)| many.iops / one).collect()),
        share_min: shares.clone().fold(1.0, |least, (min, _)| least.min(min)),
        share_max: shares.fold(1.0, |most, (_, max)| most.max(max)),
        server_cpu_us_per_request: over(|sample| sample.cpu_us),
        idle_cpu_us_per_second: over(|sample| sample.idle_us_s),
    }
}

/// Starts a daemon with very many disks, uses each once, and ends it.
fn idle(options: &ScaleOptions) -> Result<IdleRow> {
    let (_, alone) = start_idle(options, 1)?;
    let few = resident_kib(alone.pid())?;
    stop(alone)?;
    let (start, server) = start_idle(options, options.idle)?;
    let pid = server.pid();
    let many = resident_kib(pid)?;
    // The API is opened after the disks' sockets.
    server.status()?;
    let (before, threads) = (steady(pid)?, entries(pid, "task")?);
    let mut kib_per_session = 0.0;
    for first in (0..options.idle).step_by(WAVE) {
        let wave = first..(first + WAVE).min(options.idle);
        let length = wave.len();
        let calm = resident_kib(pid)?;
        let mut clients = Vec::new();
        for disk in wave {
            clients.push(use_once(server.socket(disk)).with_context(|| format!("disk {disk}"))?);
        }
        if first == 0 {
            let used = resident_kib(pid)? - calm;
            kib_per_session = used / count(u64::try_from(length).unwrap_or(u64::MAX));
        }
        for mut client in clients {
            client.stop()?;
        }
    }
    let after = settled(pid, before)?;
    let others = count(u64::try_from(options.idle.max(2) - 1).unwrap_or(u64::MAX));
    Ok(IdleRow {
        disks: options.idle,
        start_ms: start.as_secs_f64() * 1e3,
        stop_ms: stop(server)?.as_secs_f64() * 1e3,
        kib_per_disk: (many - few) / others,
        kib_per_session,
        descriptors: before,
        descriptors_leaked: after.saturating_sub(before),
        threads,
    })
}

fn start_idle(options: &ScaleOptions, disks: usize) -> Result<(Duration, Server)> {
    let dir = &options.dir;
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let disk = |index| {
        let mut disk = DiskSpec::image(&format!("idle{index}"), &idle_image(dir, index), 1 << 20);
        if options.backing == Backing::Null {
            (disk.source, disk.create_bytes) = ("null:1M".to_owned(), None);
        }
        disk
    };
    let pool = PoolSpec {
        scheduler: options.scheduler.clone(),
        model: None,
        low_latency: None,
        settings: Vec::new(),
        disks: (0..disks).map(disk).collect(),
    };
    let begin = Instant::now();
    let server = Server::evenkeel(&options.evenkeel, dir, &pool)?;
    Ok((begin.elapsed(), server))
}

fn idle_image(dir: &Path, index: usize) -> PathBuf {
    dir.join(format!("scale-idle{index}.img"))
}

fn stop(mut server: Server) -> Result<Duration> {
    let begin = Instant::now();
    let status = server.terminate()?;
    ensure!(status.success(), "the daemon ended with {status}; log:\n{}", server.log_tail());
    Ok(begin.elapsed())
}

/// Connects, reads a block, and stays.
fn use_once(socket: &Path) -> Result<Client> {
    let options = Options { vrings: 1, size: 128, ..Options::default() };
    let mut client = Client::connect(socket, options)?;
    let status = client.call(&Io::new(IoOp::Read, 0, 4096, 0), &mut [0; 4096])?;
    ensure!(status == 0, "a read ended with status {status}");
    Ok(client)
}

/// Returns the number of descriptors when they are as few as before, or do not become fewer:
/// sessions end when their threads have seen it.
fn settled(pid: u32, before: usize) -> Result<usize> {
    descriptors_when(pid, |_, now| now <= before)
}

/// Returns how many descriptors a process has when it opens and closes none.
fn steady(pid: u32) -> Result<usize> {
    descriptors_when(pid, |last, now| last == Some(now))
}

/// Counts the descriptors of a process until the last two counts are as they should be, or for two
/// seconds: nothing tells when another process opens or closes one.
fn descriptors_when(pid: u32, are_right: impl Fn(Option<usize>, usize) -> bool) -> Result<usize> {
    let (mut last, mut now) = (None, entries(pid, "fd")?);
    for _try in 0..100 {
        if are_right(last, now) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
        (last, now) = (Some(now), entries(pid, "fd")?);
    }
    Ok(now)
}

/// Counts what is in a directory of a process.
fn entries(pid: u32, what: &str) -> Result<usize> {
    let path = format!("/proc/{pid}/{what}");
    Ok(std::fs::read_dir(&path).with_context(|| path)?.count())
}

fn resident_kib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).with_context(|| path)?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no VmRSS")?;
    Ok(kib.trim().parse()?)
}
