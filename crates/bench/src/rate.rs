//! `evenkeel bench rate`: how many requests per second, beside `qemu-storage-daemon`.
//!
//! All servers serve the same file with the page cache bypassed. They take turns within each round,
//! because a shared disk drifts by more within minutes than servers differ; what is reported is the
//! median of the rounds, and how far they spread.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;

use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::client::verify::Random;
use crate::process::{DiskSpec, PoolSpec, Server};
use crate::stats;

/// A server to be measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// `evenkeel serve` with this scheduler.
    Evenkeel(String),
    /// `qemu-storage-daemon` with this way of asynchronous I/O: `io_uring` or `native`.
    Qsd(String),
}

impl Target {
    /// Returns its name in reports.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Evenkeel(scheduler) => format!("evenkeel-{scheduler}"),
            Self::Qsd(aio) => format!("qsd-{aio}"),
        }
    }

    fn start(&self, options: &RateOptions) -> anyhow::Result<Server> {
        match self {
            Self::Qsd(aio) => Server::qsd(&options.dir, &options.image(), aio, options.vrings),
            Self::Evenkeel(scheduler) => {
                let mut disk = DiskSpec::image("rate", &options.image(), 0);
                disk.create_bytes = None;
                let pool = PoolSpec {
                    scheduler: scheduler.clone(),
                    model: None,
                    low_latency: None,
                    settings: Vec::new(),
                    disks: vec![disk],
                };
                Server::evenkeel(&options.evenkeel, &options.dir, &pool)
            }
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct RateOptions {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where image, sockets and logs go. The image lies on the disk that is measured.
    pub dir: PathBuf,
    /// Size of the image in bytes; written in full once, so that reads reach the disk.
    pub image_bytes: u64,
    /// The servers.
    pub targets: Vec<Target>,
    /// Reads, writes.
    pub ops: Vec<IoOp>,
    /// Requests in flight per vring.
    pub depths: Vec<u16>,
    /// Number of vrings.
    pub vrings: u16,
    /// Size of a request in bytes.
    pub block_bytes: u32,
    /// How many times every server is measured at everything.
    pub rounds: u32,
    /// How long one measurement takes, besides a fifth of it for warming up.
    pub duration: Duration,
}

impl RateOptions {
    /// Returns the standard measurement: random 4 KiB reads at depths 1 and 32 through one vring,
    /// both schedulers and both ways of `qemu-storage-daemon`, five rounds of two seconds each.
    #[must_use]
    pub fn new(evenkeel: PathBuf, dir: PathBuf) -> Self {
        let targets = vec![
            Target::Evenkeel("bfq".to_owned()),
            Target::Evenkeel("none".to_owned()),
            Target::Qsd("io_uring".to_owned()),
            Target::Qsd("native".to_owned()),
        ];
        Self {
            evenkeel,
            dir,
            image_bytes: 1 << 30,
            targets,
            ops: vec![IoOp::Read],
            depths: vec![1, 32],
            vrings: 1,
            block_bytes: 4096,
            rounds: 5,
            duration: Duration::from_secs(2),
        }
    }

    fn image(&self) -> PathBuf {
        self.dir.join("rate.img")
    }
}

/// One server at one load: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateRow {
    /// `evenkeel-bfq`, `evenkeel-none`, `qsd-io_uring`, `qsd-native`.
    pub server: String,
    /// `read` or `write`.
    pub op: &'static str,
    /// Size of a request.
    pub block_bytes: u32,
    /// Requests in flight per vring.
    pub depth: u16,
    /// Number of vrings.
    pub vrings: u16,
    /// Requests per second.
    pub iops: f64,
    /// The slowest round.
    pub iops_min: f64,
    /// The fastest round.
    pub iops_max: f64,
    /// Half of the requests took no longer, from submission to answer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// CPU time of the server, all its threads, user and system.
    pub server_cpu_us_per_request: f64,
    /// Median over the rounds of `iops` divided by that of the fastest `qsd` of the same round;
    /// absent if none was measured.
    pub ratio_to_qsd: Option<f64>,
    /// Rounds measured.
    pub rounds: usize,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RateReport {
    /// One row per server and load.
    pub rows: Vec<RateRow>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: f64,
}

/// Measures everything; `progress` is told one line before each measurement.
///
/// # Errors
///
/// If a server does not start, a request fails, or the image cannot be written.
pub fn run(options: &RateOptions, progress: &mut dyn FnMut(&str)) -> anyhow::Result<RateReport> {
    std::fs::create_dir_all(&options.dir)?;
    fill_image(&options.image(), options.image_bytes)?;
    let loads = loads(options);
    let mut samples = vec![vec![Vec::new(); options.targets.len()]; loads.len()];
    for round in 1..=options.rounds {
        for (load, samples) in loads.iter().zip(&mut samples) {
            for (target, samples) in options.targets.iter().zip(samples) {
                let (name, op, depth) = (target.name(), load.op_name(), load.depth);
                let rounds = options.rounds;
                progress(&format!("round {round}/{rounds}: {name}, {op}, depth {depth}"));
                let sample = measure(target, *load, options);
                samples.push(sample.with_context(|| format!("{name}, {op}, depth {depth}"))?);
            }
        }
    }
    let mut report = RateReport::default();
    for (load, samples) in loads.iter().zip(&samples) {
        let best = best_qsd(&options.targets, samples);
        for (target, samples) in options.targets.iter().zip(samples) {
            report.rows.push(row(target, *load, options.vrings, samples, best.as_deref()));
        }
    }
    Ok(report)
}

fn loads(options: &RateOptions) -> Vec<Shape> {
    let mut loads = Vec::new();
    for &op in &options.ops {
        for &depth in &options.depths {
            let block_bytes = options.block_bytes;
            loads.push(Shape { op, pattern: Pattern::Random, block_bytes, depth });
        }
    }
    loads
}

fn measure(target: &Target, load: Shape, options: &RateOptions) -> anyhow::Result<Sample> {
    /// More requests than any server here answers in the longest sensible measurement.
    const LATENCIES_MAX: usize = 4_000_000;
    let mut server = target.start(options)?;
    let socket = server.socket(0).to_owned();
    let mut loaders = [Loader::connect(&socket, load, options.vrings, 1, LATENCIES_MAX)?];
    drive(&mut loaders, options.duration / 5)?;
    loaders[0].reset();
    let cpu = server.cpu_time()?;
    let elapsed = drive(&mut loaders, options.duration)?;
    let cpu = server.cpu_time()? - cpu;
    let [mut loader] = loaders;
    let requests = loader.requests;
    let mut latencies = std::mem::take(&mut loader.latencies_ns);
    loader.leave()?;
    server.terminate()?;
    latencies.sort_unstable();
    Ok(Sample {
        iops: count(requests) / elapsed.as_secs_f64(),
        p50_us: percentile_us(&latencies, 50),
        p99_us: percentile_us(&latencies, 99),
        cpu_us: cpu.as_secs_f64() * 1e6 / count(requests.max(1)),
    })
}

fn row(
    target: &Target,
    load: Shape,
    vrings: u16,
    samples: &[Sample],
    best: Option<&[f64]>,
) -> RateRow {
    let median = |figures: Vec<f64>| stats::median(&figures).unwrap_or(0.0);
    let over = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
    let iops = samples.iter().map(|sample| sample.iops);
    let ratios = best.map(|best| iops.clone().zip(best).map(|(own, best)| own / best).collect());
    RateRow {
        server: target.name(),
        op: load.op_name(),
        block_bytes: load.block_bytes,
        depth: load.depth,
        vrings,
        iops: over(|sample| sample.iops),
        iops_min: iops.clone().fold(f64::INFINITY, f64::min),
        iops_max: iops.fold(0.0, f64::max),
        p50_us: over(|sample| sample.p50_us),
        p99_us: over(|sample| sample.p99_us),
        server_cpu_us_per_request: over(|sample| sample.cpu_us),
        ratio_to_qsd: ratios.map(median),
        rounds: samples.len(),
    }
}

/// Returns the rate of the fastest `qemu-storage-daemon` of each round.
fn best_qsd(targets: &[Target], samples: &[Vec<Sample>]) -> Option<Vec<f64>> {
    let ours = targets.iter().zip(samples).filter(|(target, _)| matches!(target, Target::Qsd(_)));
    let columns: Vec<&Vec<Sample>> = ours.map(|(_, samples)| samples).collect();
    let rounds = columns.first()?.len();
    let best = |round: usize| columns.iter().map(|column| column[round].iops).fold(0.0, f64::max);
    Some((0..rounds).map(best).collect())
}

/// Writes an image of pseudo-random bytes, unless one of this size is there already.
///
/// # Errors
///
/// What the file system reports.
pub fn fill_image(path: &Path, bytes: u64) -> anyhow::Result<()> {
    const CHUNK: usize = 1 << 20;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes) {
        return Ok(());
    }
    // Its name says that it is complete; a run that was cut short leaves another one behind.
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    let mut random = Random::new(bytes);
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
        }
        let len = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    file.sync_all()?;
    std::fs::rename(&partial, path)?;
    Ok(())
}

fn percentile_us(sorted_ns: &[u32], percent: usize) -> f64 {
    let index = (sorted_ns.len() * percent / 100).min(sorted_ns.len().saturating_sub(1));
    sorted_ns.get(index).map_or(0.0, |ns| f64::from(*ns) / 1e3)
}

/// Returns a count as a fraction's part.
#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay far below 2^53")]
pub(crate) fn count(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(iops: f64) -> Sample {
        Sample { iops, p50_us: 1.0, p99_us: 2.0, cpu_us: 3.0 }
    }

    #[test]
    fn ratios_compare_within_a_round_and_the_report_takes_their_median() {
        let targets = [
            Target::Evenkeel("bfq".to_owned()),
            Target::Qsd("native".to_owned()),
            Target::Qsd("io_uring".to_owned()),
        ];
        let samples = [
            vec![sample(90.0), sample(200.0), sample(30.0)],
            vec![sample(100.0), sample(200.0), sample(10.0)],
            vec![sample(80.0), sample(250.0), sample(20.0)],
        ];
        let best = best_qsd(&targets, &samples).unwrap();
        assert_eq!(best, [100.0, 250.0, 20.0]);
        let load = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth: 1 };
        let row = row(&targets[0], load, 1, &samples[0], Some(&best));
        assert_eq!((row.iops, row.iops_min, row.iops_max), (90.0, 30.0, 200.0));
        assert_eq!(row.ratio_to_qsd, Some(0.9));
        assert_eq!(row.server, "evenkeel-bfq");
    }

    #[test]
    fn percentiles_of_few_and_no_figures_exist() {
        assert_eq!(percentile_us(&[], 99), 0.0);
        assert_eq!(percentile_us(&[1000, 2000, 3000], 50), 2.0);
        assert_eq!(percentile_us(&[1000, 2000, 3000], 99), 3.0);
    }
}
