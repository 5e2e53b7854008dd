//! `evenkeel bench rate`: how many requests per second, beside `qemu-storage-daemon`.
//!
//! All servers serve the same file with the page cache bypassed. They take turns within each round,
//! because a shared disk drifts by more within minutes than servers differ; every other round goes
//! through them backwards, so that no server always follows the same one. What is reported is the
//! median of the rounds, and how far they spread.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::stats;
use crate::target::{Backing, Exits, Stage, Target};

/// Most requests in flight per vring: three descriptors each must fit into the largest vring.
pub const DEPTH_MAX: u16 = 256;
/// Size of the image, written in full once so that reads reach the disk.
const IMAGE_BYTES: u64 = 1 << 30;

/// What to measure.
#[derive(Clone, Debug)]
pub struct RateOptions {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where image, sockets and logs go. The image lies on the disk that is measured.
    pub dir: PathBuf,
    /// What is served.
    pub backing: Backing,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
    /// The servers.
    pub targets: Vec<Target>,
    /// Reads, writes.
    pub ops: Vec<IoOp>,
    /// Requests in flight per vring, 1 to [`DEPTH_MAX`].
    pub depths: Vec<u16>,
    /// Numbers of vrings.
    pub vrings: Vec<u16>,
    /// Sizes of a request in bytes, multiples of 512.
    pub blocks: Vec<u32>,
    /// How many times every server is measured at everything.
    pub rounds: u32,
    /// How long one measurement takes, besides a fifth of it for warming up.
    pub duration: Duration,
}

impl RateOptions {
    /// Returns the standard measurement: random 4 KiB reads and writes at depths 1, 8, 32 and 128
    /// through one and four vrings, both schedulers and both ways of `qemu-storage-daemon`, five
    /// rounds of half a second each: four to five minutes.
    #[must_use]
    pub fn new(evenkeel: PathBuf, dir: PathBuf, backing: Backing) -> Self {
        let mut targets = vec![Target::evenkeel("bfq"), Target::evenkeel("none")];
        match backing {
            Backing::Image => targets.extend([Target::qsd("io_uring"), Target::qsd("native")]),
            Backing::Null => targets.push(Target::QsdNull),
            Backing::Model(_) => {}
        }
        Self {
            evenkeel,
            dir,
            backing,
            disk_bytes: IMAGE_BYTES,
            targets,
            ops: vec![IoOp::Read, IoOp::Write],
            depths: vec![1, 8, 32, 128],
            vrings: vec![1, 4],
            blocks: vec![4096],
            rounds: 5,
            duration: Duration::from_millis(500),
        }
    }

    fn stage(&self) -> Stage {
        Stage {
            evenkeel: self.evenkeel.clone(),
            dir: self.dir.clone(),
            backing: self.backing.clone(),
            disk_bytes: self.disk_bytes,
            name: "rate",
            disks: 1,
            is_direct: false,
            low_latency: None,
        }
    }

    fn check(&self) -> Result<()> {
        let within = |&depth: &u16| (1..=DEPTH_MAX).contains(&depth);
        ensure!(self.depths.iter().all(within), "depths are 1 to {DEPTH_MAX}");
        let whole = |&block: &u32| block > 0 && block.is_multiple_of(512);
        ensure!(self.blocks.iter().all(whole), "block sizes are multiples of 512 bytes");
        ensure!(!self.vrings.contains(&0) && self.rounds > 0, "nothing to measure");
        Ok(())
    }
}

/// One server at one load: medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RateRow {
    /// `evenkeel-bfq`, `evenkeel-none`, `qsd-io_uring`, `qsd-native`, `qsd-null-co`, or the socket
    /// of another one.
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
    /// Megabytes (10^6 bytes) per second.
    pub mb_s: f64,
    /// Half of the requests took no longer, from submission to answer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// Processor time of the server, all its threads, user and system; absent if nobody said which
    /// process it is.
    pub server_cpu_us_per_request: Option<f64>,
    /// Kicks for each request, each an exit of a guest; only Evenkeel tells.
    pub kicks_per_request: Option<f64>,
    /// Interrupts for each request; only Evenkeel tells.
    pub interrupts_per_request: Option<f64>,
    /// Median over the rounds of `iops` divided by that of the fastest `qsd` of the same round;
    /// absent if none was measured.
    pub ratio_to_qsd: Option<f64>,
    /// Rounds measured.
    pub rounds: usize,
    /// `direct`, `page cache` or `null`; what another server does is not known.
    pub io: Option<String>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RateReport {
    /// One row per server and load.
    pub rows: Vec<RateRow>,
}

/// What one measurement asks for.
#[derive(Clone, Copy, Debug)]
struct Load {
    shape: Shape,
    vrings: u16,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Sample {
    iops: f64,
    p50_us: f64,
    p99_us: f64,
    cpu_us: Option<f64>,
    exits: Option<Exits>,
}

/// Measures everything; `progress` is told one line before each measurement, and who is left out.
///
/// # Errors
///
/// If options contradict what can be, a server does not start, a request fails, or the image cannot
/// be written.
pub fn run(options: &RateOptions, progress: &mut dyn FnMut(&str)) -> Result<RateReport> {
    options.check()?;
    let mut stage = options.stage();
    let starts_none = options.targets.iter().all(|target| matches!(target, Target::Other { .. }));
    let targets = if starts_none {
        options.targets.clone()
    } else {
        stage.prepare()?;
        admitted(&stage, &options.targets, progress)
    };
    ensure!(!targets.is_empty(), "no server is left to be measured");
    let loads = loads(options);
    let mut samples = vec![vec![Vec::new(); targets.len()]; loads.len()];
    for round in 0..options.rounds {
        for (load, samples) in loads.iter().zip(&mut samples) {
            for index in turns(targets.len(), round) {
                let target = &targets[index];
                let text = format!("{target}, {load}");
                progress(&format!("round {}/{}: {text}", round + 1, options.rounds));
                let sample = measure(&stage, target, *load, options.duration);
                samples[index].push(sample.with_context(|| text)?);
            }
        }
    }
    let mut report = RateReport::default();
    for (load, samples) in loads.iter().zip(&samples) {
        let best = best_qsd(&targets, samples);
        for (target, samples) in targets.iter().zip(samples) {
            report.rows.push(row(target, *load, stage.io(), samples, best.as_deref()));
        }
    }
    Ok(report)
}

/// Returns the servers that can be measured here; says of the others why not.
pub(crate) fn admitted(
    stage: &Stage,
    targets: &[Target],
    progress: &mut dyn FnMut(&str),
) -> Vec<Target> {
    if stage.backing == Backing::Image && !stage.is_direct {
        progress("no direct I/O on this file system: images go through the page cache");
    }
    let mut admitted = targets.to_vec();
    admitted.retain(|target| match stage.refusal(target) {
        Some(why) => {
            progress(&format!("{target} is left out: {why}"));
            false
        }
        None => true,
    });
    admitted
}

/// Returns in which order the servers are measured in a round: forwards and backwards in turn.
pub(crate) fn turns(targets: usize, round: u32) -> impl Iterator<Item = usize> {
    let is_backwards = round % 2 == 1;
    (0..targets).map(move |turn| if is_backwards { targets - 1 - turn } else { turn })
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shape { block_bytes, depth, .. } = self.shape;
        let (op, vrings) = (self.shape.op_name(), self.vrings);
        write!(f, "{op}s of {block_bytes} bytes, depth {depth}, vrings {vrings}")
    }
}

fn loads(options: &RateOptions) -> Vec<Load> {
    let mut loads = Vec::new();
    for &op in &options.ops {
        for &block_bytes in &options.blocks {
            for &vrings in &options.vrings {
                for &depth in &options.depths {
                    let shape = Shape { op, pattern: Pattern::Random, block_bytes, depth };
                    loads.push(Load { shape, vrings });
                }
            }
        }
    }
    loads
}

fn measure(stage: &Stage, target: &Target, load: Load, duration: Duration) -> Result<Sample> {
    let server = stage.start(target, load.vrings, None)?;
    let sample = server.explain(sample(&server, load, duration))?;
    server.leave()?;
    Ok(sample)
}

fn sample(server: &crate::target::Running, load: Load, duration: Duration) -> Result<Sample> {
    /// More requests than any server here answers in the longest sensible measurement.
    const LATENCIES_MAX: usize = 4_000_000;
    let mut loaders =
        [Loader::connect(server.socket(0), load.shape, load.vrings, 1, LATENCIES_MAX)?];
    drive(&mut loaders, duration / 5)?;
    loaders[0].reset();
    let meter = server.cpu_meter()?;
    let elapsed = drive(&mut loaders, duration)?;
    let cpu = meter.map(|meter| meter.used()).transpose()?;
    let exits = server.exits()?;
    let [mut loader] = loaders;
    let requests = loader.requests;
    let mut latencies = std::mem::take(&mut loader.latencies_ns);
    loader.leave()?;
    latencies.sort_unstable();
    Ok(Sample {
        iops: count(requests) / elapsed.as_secs_f64(),
        p50_us: percentile_us(&latencies, 50),
        p99_us: percentile_us(&latencies, 99),
        cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count(requests.max(1))),
        exits,
    })
}

fn row(target: &Target, load: Load, io: &str, samples: &[Sample], best: Option<&[f64]>) -> RateRow {
    let median = |figures: Vec<f64>| stats::median(&figures).unwrap_or(0.0);
    let over = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure).collect());
    let rates = samples.iter().map(|sample| sample.iops);
    let ratios = best.map(|best| rates.clone().zip(best).map(|(own, best)| own / best).collect());
    let cpu: Option<Vec<f64>> = samples.iter().map(|sample| sample.cpu_us).collect();
    let exits = |figure: fn(Exits) -> f64| -> Option<Vec<f64>> {
        samples.iter().map(|sample| sample.exits.map(figure)).collect()
    };
    let iops = over(|sample| sample.iops);
    RateRow {
        server: target.to_string(),
        op: load.shape.op_name(),
        block_bytes: load.shape.block_bytes,
        depth: load.shape.depth,
        vrings: load.vrings,
        iops,
        iops_min: rates.clone().fold(f64::INFINITY, f64::min),
        iops_max: rates.fold(0.0, f64::max),
        mb_s: iops * f64::from(load.shape.block_bytes) / 1e6,
        p50_us: over(|sample| sample.p50_us),
        p99_us: over(|sample| sample.p99_us),
        server_cpu_us_per_request: cpu.map(median),
        kicks_per_request: exits(|exits| exits.kicks_per_request).map(median),
        interrupts_per_request: exits(|exits| exits.interrupts_per_request).map(median),
        ratio_to_qsd: ratios.map(median),
        rounds: samples.len(),
        io: (!matches!(target, Target::Other { .. })).then(|| io.to_owned()),
    }
}

/// Returns the rate of the fastest `qemu-storage-daemon` of each round.
fn best_qsd(targets: &[Target], samples: &[Vec<Sample>]) -> Option<Vec<f64>> {
    let theirs = targets.iter().zip(samples).filter(|(target, _)| target.is_qsd());
    let columns: Vec<&Vec<Sample>> = theirs.map(|(_, samples)| samples).collect();
    let rounds = columns.first()?.len();
    let best = |round: usize| columns.iter().map(|column| column[round].iops).fold(0.0, f64::max);
    Some((0..rounds).map(best).collect())
}

pub(crate) fn percentile_us(sorted_ns: &[u32], percent: usize) -> f64 {
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

    fn sample(iops: f64, cpu_us: Option<f64>) -> Sample {
        Sample { iops, p50_us: 1.0, p99_us: 2.0, cpu_us, exits: None }
    }

    fn load() -> Load {
        let shape = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes: 4096, depth: 1 };
        Load { shape, vrings: 1 }
    }

    #[test]
    fn ratios_compare_within_a_round_and_the_report_takes_their_median() {
        let targets = [Target::evenkeel("bfq"), Target::qsd("native"), Target::qsd("io_uring")];
        let column = |rates: [f64; 3]| rates.map(|rate| sample(rate, Some(rate / 10.0))).to_vec();
        let samples = [[90.0, 200.0, 30.0], [100.0, 200.0, 10.0], [80.0, 250.0, 20.0]].map(column);
        let best = best_qsd(&targets, &samples).unwrap();
        assert_eq!(best, [100.0, 250.0, 20.0]);
        let row = row(&targets[0], load(), "direct", &samples[0], Some(&best));
        assert_eq!((row.iops, row.iops_min, row.iops_max), (90.0, 30.0, 200.0));
        assert_eq!((row.ratio_to_qsd, row.server_cpu_us_per_request), (Some(0.9), Some(9.0)));
        assert_eq!((row.server.as_str(), row.mb_s), ("evenkeel-bfq", 90.0 * 4096.0 / 1e6));
    }

    #[test]
    fn of_another_server_only_what_the_client_sees_is_known() {
        let socket = PathBuf::from("/run/a.sock");
        let other = Target::Other { socket, pid: None };
        let row = row(&other, load(), "direct", &[sample(1.0, None)], None);
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!(json["server"], "/run/a.sock");
        for unknown in ["server_cpu_us_per_request", "ratio_to_qsd", "io"] {
            assert_eq!(json[unknown], serde_json::Value::Null, "{unknown}");
        }
    }

    #[test]
    fn every_other_round_goes_backwards() {
        assert_eq!(turns(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(turns(3, 1).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn percentiles_of_few_and_no_figures_exist() {
        assert_eq!(percentile_us(&[], 99), 0.0);
        assert_eq!(percentile_us(&[1000, 2000, 3000], 50), 2.0);
        assert_eq!(percentile_us(&[1000, 2000, 3000], 99), 3.0);
    }
}
