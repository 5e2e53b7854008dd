//! `evenkeel bench downwards`: does what is urgent stay urgent below the daemon?
//!
//! A loop device stands for the host's disk, with one of the kernel's schedulers. Two host
//! processes keep more requests on it than it takes at a time; a pool whose disk is that device
//! sends one request after the other, from a queue that has been granted help. What differs between
//! the runs of a row is `device_priority`. They take turns, so that all see the same machine.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use evenkeel_wire::agent::{FromGuest, LEASE_MS_MAX, Level, VERSION};
use serde::Serialize;

use crate::child::Process;
use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::image::fill_image;
use crate::lab::find_program;
use crate::loop_device::LoopDevice;
use crate::process::{DiskSpec, PoolSpec, Server};
use crate::stats::{Summary, percentile};

/// Size of the loop device.
const DEVICE_BYTES: u64 = 1 << 30;
/// Requests that each of the two host processes keeps at the device; together more than the 128
/// that a loop device takes, so that some wait where the kernel's scheduler orders them.
const READERS_DEPTH: u32 = 256;
/// Latencies kept of one run at most.
const LATENCIES: usize = 1 << 20;
/// The disk, hence the VM, of the pool.
const DISK: &str = "urgent";

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where the image behind the loop device, sockets and logs go.
    pub dir: PathBuf,
    /// Schedulers of the kernel, by name.
    pub schedulers: Vec<String>,
    /// Values of `device_priority`; the first is what the others are compared with.
    pub priorities: Vec<String>,
    /// How long each run is measured.
    pub seconds: u32,
    /// Runs for each scheduler and priority.
    pub repetitions: u32,
}

impl Options {
    /// Returns the standard measurement: mq-deadline and BFQ, all priorities, three runs of 5 s.
    #[must_use]
    pub fn new(evenkeel: PathBuf, dir: &Path) -> Self {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            evenkeel,
            dir: dir.join("downwards"),
            schedulers: names(&["mq-deadline", "bfq"]),
            priorities: names(&["none", "best-effort", "real-time"]),
            seconds: 5,
            repetitions: 3,
        }
    }
}

/// What one scheduler made of one priority.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Scheduler of the device, in the kernel.
    pub scheduler: String,
    /// `device_priority` of the pool.
    pub device_priority: String,
    /// Latency of the urgent reads, mean of the runs' means.
    pub mean_us: f64,
    /// Half-width of the 95 % confidence interval of that mean.
    pub ci95_us: f64,
    /// Mean of the runs' 99th percentiles.
    pub p99_us: f64,
    /// The mean divided by that of the first priority.
    pub ratio: f64,
    /// Part of the commands that the daemon sent as urgent.
    pub urgent_share: f64,
    /// What the host processes read meanwhile, in MB/s.
    pub readers_mb_s: f64,
    /// Runs.
    pub runs: usize,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// One row per scheduler and priority.
    pub rows: Vec<Row>,
}

/// What one run brought.
#[derive(Clone, Copy, Debug)]
struct Sample {
    mean_us: f64,
    p99_us: f64,
    urgent_share: f64,
    readers_mb_s: f64,
}

/// Measures; `progress` is told one line before each run.
///
/// # Errors
///
/// If this is not root or has no loop device, if fio is missing, or if the daemon fails.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(rustix::process::geteuid().is_root(), "a loop device needs root; run it with sudo");
    ensure!(!options.priorities.is_empty() && options.repetitions > 0, "nothing to measure");
    find_program("fio")?;
    fs::create_dir_all(&options.dir)?;
    // Sockets are named below it, and the daemon has another directory than we may have.
    let dir = options.dir.canonicalize()?;
    let image = dir.join("device.img");
    fill_image(&image, DEVICE_BYTES)?;
    let device = LoopDevice::attach(&image)?;
    let mut report = Report::default();
    for scheduler in &options.schedulers {
        device.set_scheduler(scheduler)?;
        let mut samples = vec![Vec::new(); options.priorities.len()];
        for repetition in 1..=options.repetitions {
            for (priority, samples) in options.priorities.iter().zip(&mut samples) {
                progress(&format!(
                    "{scheduler}, device_priority {priority}, run {repetition} of {}",
                    options.repetitions
                ));
                samples.push(measure(options, &dir, &device, priority)?);
            }
        }
        report.rows.extend(rows(scheduler, &options.priorities, &samples));
    }
    Ok(report)
}

fn rows(scheduler: &str, priorities: &[String], samples: &[Vec<Sample>]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (priority, samples) in priorities.iter().zip(samples) {
        let mean = |of: fn(&Sample) -> f64| {
            let values: Vec<f64> = samples.iter().map(of).collect();
            Summary::of(&values).expect("at least one run")
        };
        let latency = mean(|sample| sample.mean_us);
        rows.push(Row {
            scheduler: scheduler.to_owned(),
            device_priority: priority.clone(),
            mean_us: latency.mean,
            ci95_us: latency.ci95,
            p99_us: mean(|sample| sample.p99_us).mean,
            ratio: latency.mean / rows.first().map_or(latency.mean, |first| first.mean_us),
            urgent_share: mean(|sample| sample.urgent_share).mean,
            readers_mb_s: mean(|sample| sample.readers_mb_s).mean,
            runs: latency.count,
        });
    }
    rows
}

/// One run: a fresh daemon, so that no credit of help is used up.
fn measure(options: &Options, dir: &Path, device: &LoopDevice, priority: &str) -> Result<Sample> {
    let disk = DiskSpec {
        name: DISK.to_owned(),
        source: device.path().display().to_string(),
        weight: 100,
        create_bytes: None,
    };
    let text = |value: &str| format!("\"{value}\"");
    let pool = PoolSpec {
        scheduler: "bfq".to_owned(),
        model: None,
        low_latency: None,
        settings: vec![
            ("trust".to_owned(), text("interactive")),
            ("device_priority".to_owned(), text(priority)),
        ],
        disks: vec![disk],
    };
    let mut server = Server::evenkeel(&options.evenkeel, dir, &pool)?;
    let readers = Readers::start(dir, device, options.seconds + 2)?;
    let stop = AtomicBool::new(false);
    let latencies = thread::scope(|scope| {
        let crier = scope.spawn(|| cry(&dir.join(format!("{DISK}.agent.sock")), &stop));
        let latencies = read(server.socket(0), options.seconds);
        stop.store(true, Ordering::Relaxed);
        crier.join().expect("it reports errors instead of panicking")?;
        latencies
    });
    let latencies = latencies.with_context(|| format!("log:\n{}", server.log_tail()))?;
    let urgent_share = urgent_share(&server)?;
    let readers_mb_s = readers.finish()?;
    server.terminate()?;
    Ok(Sample {
        mean_us: Summary::of(&latencies).context("no read was answered")?.mean,
        p99_us: percentile(&latencies, 0.99).context("no read was answered")?,
        urgent_share,
        readers_mb_s,
    })
}

/// Reads 4 KiB at random places, one after the other; returns how long each took, in µs.
fn read(socket: &Path, seconds: u32) -> Result<Vec<f64>> {
    let shape = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth: 1 };
    let mut loaders = [Loader::connect(socket, shape, 1, 1, LATENCIES)?];
    // The host processes and the help need a moment.
    drive(&mut loaders, Duration::from_secs(1))?;
    loaders[0].reset();
    drive(&mut loaders, Duration::from_secs(seconds.into()))?;
    let latencies = loaders[0].latencies_ns.iter().map(|&nanos| f64::from(nanos) / 1e3).collect();
    let [loader] = loaders;
    loader.leave()?;
    Ok(latencies)
}

/// Asks for help as an agent would, until told to stop.
fn cry(socket: &Path, stop: &AtomicBool) -> Result<()> {
    let mut port = connect(socket)?;
    let mut say = |line: &FromGuest| -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        Ok(port.write_all(text.as_bytes())?)
    };
    say(&FromGuest::Hello { version: VERSION, agent: "bench".to_owned() })?;
    for seq in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let level = Level::Interactive;
        let reason = "bench downwards".to_owned();
        say(&FromGuest::Help { seq, level, lease_ms: LEASE_MS_MAX, marked: false, reason })?;
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}

/// Connects to the port for agents, which is opened after the disks' sockets.
fn connect(socket: &Path) -> Result<UnixStream> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(socket) {
            Ok(port) => return Ok(port),
            Err(_) if Instant::now() < end => thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error).context("the port for agents"),
        }
    }
}

/// Returns the part of the pool's commands that went to the device as urgent.
fn urgent_share(server: &Server) -> Result<f64> {
    let document = server.status()?;
    let commands = &document["pools"][0]["commands"];
    let count = |name: &str| commands[name].as_f64().unwrap_or(0.0);
    let urgent = count("interactive") + count("soft_real_time");
    let all = urgent + count("ordinary") + count("background");
    Ok(if all > 0.0 { urgent / all } else { 0.0 })
}

/// The host's processes.
struct Readers {
    fio: Process,
    output: PathBuf,
    limit: Duration,
}

impl Readers {
    fn start(dir: &Path, device: &LoopDevice, seconds: u32) -> Result<Self> {
        let output = dir.join("fio.json");
        let fio = Process::start("fio", |fio| {
            fio.args(["--name=readers", "--readonly", "--rw=randread", "--bs=4k", "--direct=1"]);
            fio.args(["--ioengine=libaio", "--numjobs=2", "--group_reporting", "--time_based"]);
            fio.arg(format!("--iodepth={READERS_DEPTH}"));
            fio.arg(format!("--runtime={seconds}"));
            fio.arg(format!("--filename={}", device.path().display()));
            fio.args(["--output-format=json", "--output"]).arg(&output);
            let log = File::create(dir.join("fio.log"));
            fio.stdin(Stdio::null()).stdout(Stdio::null());
            fio.stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
        })?;
        Ok(Self { fio, output, limit: Duration::from_secs(u64::from(seconds) + 30) })
    }

    /// Waits for their end; returns how many megabytes they read per second.
    fn finish(mut self) -> Result<f64> {
        let status = self.fio.wait(self.limit)?;
        ensure!(status.success(), "fio ended with {status}");
        let text = fs::read_to_string(&self.output)?;
        // Warnings may stand before the document.
        let json = text.find('{').map_or("", |start| &text[start..]);
        let document: serde_json::Value = serde_json::from_str(json).context("fio's report")?;
        let bytes = document["jobs"][0]["read"]["bw_bytes"].as_f64();
        Ok(bytes.context("fio's report lacks a rate")? / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_are_compared_with_the_first_one() {
        let sample = |mean_us| Sample {
            mean_us,
            p99_us: 2.0 * mean_us,
            urgent_share: 1.0,
            readers_mb_s: 100.0,
        };
        let priorities = ["none", "real-time"].map(str::to_owned);
        let samples = [vec![sample(90.0), sample(110.0)], vec![sample(20.0), sample(30.0)]];
        let rows = rows("mq-deadline", &priorities, &samples);
        assert_eq!((rows[0].mean_us, rows[0].ratio, rows[0].p99_us), (100.0, 1.0, 200.0));
        assert_eq!((rows[1].mean_us, rows[1].ratio, rows[1].runs), (25.0, 0.25, 2));
    }
}
