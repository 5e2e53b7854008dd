//! `evenkeel bench rate`, `isolation`, `scale` and `cost`: arguments in, reports out.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use evenkeel_bench::client::IoOp;
use evenkeel_bench::cost::{self, CostOptions, Daemon, Kind};
use evenkeel_bench::isolation::{self, IsolationOptions};
use evenkeel_bench::rate::{self, DEPTH_MAX, RateOptions};
use evenkeel_bench::scale::{self, ScaleOptions};
use evenkeel_bench::target::{Backing, Target};
use evenkeel_wire::{Scheduler, parse_size};

use crate::args::Format;
use crate::bench::progress;
use crate::failure::{Failure, Outcome};
use crate::results::finish;

/// Largest request that a benchmark sends, in bytes: 128 in flight in each of 4 vrings are 512 MiB.
const BLOCK_MAX: u64 = 1 << 20;
/// Most vrings, as many as a disk has.
const VRINGS_MAX: i64 = 16;

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum BackingName {
    /// An image on the disk below --dir
    File,
    /// No device: requests are answered at once
    Null,
}

impl BackingName {
    const fn backing(self) -> Backing {
        match self {
            Self::File => Backing::Image,
            Self::Null => Backing::Null,
        }
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Op {
    Read,
    Write,
}

impl From<Op> for IoOp {
    fn from(op: Op) -> Self {
        match op {
            Op::Read => Self::Read,
            Op::Write => Self::Write,
        }
    }
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench rate --dir /mnt/nvme/bench --format json\n  \
    evenkeel bench rate --op read --depth 1,32 --vrings 1 --seconds 2\n  \
    evenkeel bench rate --backend null                     the path without a device\n  \
    evenkeel bench rate --server /run/x.sock --pid 4711    a server of your own; reads only\n\n\
    Everything listed is combined with everything. docs/performance.md says how to measure.")]
pub(crate) struct RateArgs {
    /// Requests in flight per vring
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,8,32,128",
          value_parser = clap::value_parser!(u16).range(1..=i64::from(DEPTH_MAX)))]
    depth: Vec<u16>,
    /// Numbers of vrings
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,4",
          value_parser = clap::value_parser!(u16).range(1..=VRINGS_MAX))]
    vrings: Vec<u16>,
    /// Operations; both, but with --server only reads unless this says otherwise: writes destroy
    /// what is on that disk
    #[arg(long, value_name = "OPS", value_delimiter = ',')]
    op: Vec<Op>,
    /// Sizes of a request
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "4K",
          value_parser = block)]
    block: Vec<u32>,
    /// Times that every server is measured at everything
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long one measurement takes, besides a fifth of it for warming up
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    seconds: Duration,
    /// Measure only the vhost-user-blk server that listens at this socket
    #[arg(long, value_name = "SOCKET", conflicts_with = "backend")]
    server: Option<PathBuf>,
    /// The process of that server, for its processor time
    #[arg(long, value_name = "PID", requires = "server")]
    pid: Option<u32>,
    /// What is served
    #[arg(long, value_enum, default_value_t = BackingName::File)]
    backend: BackingName,
    /// Also measure evenkeel-bfq and evenkeel-none with this field of the pool: poll=auto
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', conflicts_with = "server",
          value_parser = setting)]
    also: Vec<(String, String)>,
    /// Measure only these, by the names in reports
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "server")]
    only: Vec<String>,
    /// Where the image, sockets and logs go; the disk below it is the one that is measured
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Also write the report into this directory, as JSON and as a page
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

pub(crate) fn rate(args: &RateArgs, format: Format) -> Outcome<()> {
    let backing = args.backend.backing();
    let evenkeel = env::current_exe().map_err(Failure::work)?;
    let mut options = RateOptions::new(evenkeel, args.dir.clone(), backing);
    for (key, value) in &args.also {
        options.targets.extend(["bfq", "none"].map(|name| Target::evenkeel_with(name, key, value)));
    }
    if !args.only.is_empty() {
        only(&mut options.targets, &args.only).map_err(Failure::wrong_use)?;
    }
    if let Some(socket) = &args.server {
        options.targets = vec![Target::Other { socket: socket.clone(), pid: args.pid }];
        options.ops = vec![IoOp::Read];
    }
    if !args.op.is_empty() {
        options.ops = args.op.iter().copied().map(IoOp::from).collect();
    }
    options.depths.clone_from(&args.depth);
    options.vrings.clone_from(&args.vrings);
    options.blocks.clone_from(&args.block);
    (options.rounds, options.duration) = (args.rounds, args.seconds);
    let report = rate::run(&options, &mut progress).map_err(Failure::Work)?;
    finish("rate", format, &report, args.results.as_deref())
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench isolation --dir /mnt/nvme/bench --format json\n  \
    evenkeel bench isolation --model hdd --depth 1,4,32 --seconds 20\n  \
    evenkeel bench isolation --only evenkeel-bfq,qsd-io_uring --rounds 3 --seconds 3\n\n\
    docs/performance.md says what is compared, and how to measure.")]
pub(crate) struct IsolationArgs {
    /// Also measure BFQ with fixed numbers of commands at the device, which is never kept idle: the
    /// frontier of what it can do
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "2,4,8,16,64",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Vec<u32>,
    /// Also measure qemu-storage-daemon with the aggressor capped at so many percent of what it
    /// gets alone
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "75,50,25",
          value_parser = clap::value_parser!(u32).range(1..=100))]
    cap: Vec<u32>,
    /// Also measure BFQ with this field of the pool: depth=auto
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = setting)]
    also: Vec<(String, String)>,
    /// Measure only these servers, by the names of the report
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Imitate the timing of a device, as in evenkeel serve --model; without qemu-storage-daemon
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Let BFQ raise who has just begun
    #[arg(long)]
    low_latency: bool,
    /// Times that every server is measured
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long victim, aggressor, and both together are measured each time
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    seconds: Duration,
    /// Where images, sockets and logs go; the disk below it is the one that is shared
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Also write the report into this directory, as JSON and as a page
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

pub(crate) fn isolation(args: &IsolationArgs, format: Format) -> Outcome<()> {
    let backing = args.model.clone().map_or(Backing::Image, Backing::Model);
    let evenkeel = env::current_exe().map_err(Failure::work)?;
    let dir = args.dir.clone();
    let mut options = IsolationOptions::new(evenkeel, dir, backing, &args.depth, &args.cap);
    let also = args.also.iter().map(|(key, value)| Target::evenkeel_with("bfq", key, value));
    options.targets.extend(also);
    if !args.only.is_empty() {
        only(&mut options.targets, &args.only).map_err(Failure::wrong_use)?;
    }
    options.low_latency = args.low_latency;
    (options.rounds, options.duration) = (args.rounds, args.seconds);
    let report = isolation::run(&options, &mut progress).map_err(Failure::Work)?;
    finish("isolation", format, &report, args.results.as_deref())
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench scale --dir /mnt/nvme/bench\n  \
    evenkeel bench scale --backend null --busy 16 --idle 0\n\n\
    docs/performance.md says what the columns mean.")]
pub(crate) struct ScaleArgs {
    /// Disks with four vrings each that are busy at the same time
    #[arg(long, value_name = "N", default_value_t = 64,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    busy: u16,
    /// Requests in flight per vring of each
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    depth: u16,
    /// Disks that are started, used once, and stopped; 0 is none
    #[arg(long, value_name = "N", default_value_t = 1000)]
    idle: u16,
    /// The scheduler
    #[arg(long, value_name = "NAME", default_value = "bfq", value_parser = str::parse::<Scheduler>)]
    scheduler: Scheduler,
    /// Times that one busy disk and many are measured
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long each measurement takes
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: Duration,
    /// What is served
    #[arg(long, value_enum, default_value_t = BackingName::File)]
    backend: BackingName,
    /// Where the images, sockets and logs go; the disk below it is the one that is measured
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Also write the report into this directory, as JSON and as a page
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

pub(crate) fn scale(args: &ScaleArgs, format: Format) -> Outcome<()> {
    let evenkeel = env::current_exe().map_err(Failure::work)?;
    let mut options = ScaleOptions::new(evenkeel, args.dir.clone(), args.backend.backing());
    options.scheduler = args.scheduler.to_string();
    (options.busy, options.depth) = (args.busy, args.depth);
    options.idle = usize::from(args.idle);
    (options.rounds, options.duration) = (args.rounds, args.seconds);
    let report = scale::run(&options, &mut progress).map_err(Failure::Work)?;
    finish("scale", format, &report, args.results.as_deref())
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench cost --results docs/results\n  \
    evenkeel bench cost --scheduler bfq,cfq --disks 1,1000 --no-daemon\n\n\
    docs/performance.md says what the stages are, and how to look into them with perf.")]
pub(crate) struct CostArgs {
    /// Schedulers
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "none,bfq",
          value_parser = |name: &str| name.parse::<Kind>())]
    scheduler: Vec<Kind>,
    /// Numbers of disks, each of a VM of its own, that keep the device busy
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,10,100",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    disks: Vec<u32>,
    /// Most commands at the device, hence in a turn
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(DEPTH_MAX)))]
    depth: u32,
    /// Times that each is measured
    #[arg(long, value_name = "N", default_value_t = 9,
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Measure the engine only, in this process
    #[arg(long)]
    no_daemon: bool,
    /// Where the daemon's image, socket and log go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    dir: PathBuf,
    /// Also write the report into this directory, as JSON and as a page
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

pub(crate) fn cost(args: &CostArgs, format: Format) -> Outcome<()> {
    let evenkeel = env::current_exe().map_err(Failure::work)?;
    let duration = Duration::from_millis(500);
    let daemon = Daemon { evenkeel, dir: args.dir.clone(), duration };
    let mut options = CostOptions::new((!args.no_daemon).then_some(daemon));
    options.kinds.clone_from(&args.scheduler);
    options.disks.clone_from(&args.disks);
    (options.depth, options.repetitions) = (args.depth, args.repetitions);
    let report = cost::run(&options, &mut progress).map_err(Failure::Work)?;
    finish("cost", format, &report, args.results.as_deref())
}

/// Reads a field of a pool and its value.
fn setting(text: &str) -> Result<(String, String), String> {
    let split = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = split.ok_or("write KEY=VALUE, such as poll=auto")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Keeps the servers of these names.
fn only(targets: &mut Vec<Target>, names: &[String]) -> anyhow::Result<()> {
    let known: Vec<String> = targets.iter().map(ToString::to_string).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        bail!("--only {name}: no such server; use some of {}", known.join(", "));
    }
    targets.retain(|target| names.contains(&target.to_string()));
    Ok(())
}

/// Reads the size of a request.
fn block(text: &str) -> Result<u32, String> {
    let remedy = format!("write a multiple of 512 bytes up to {}K, such as 4K", BLOCK_MAX >> 10);
    let bytes = parse_size(text).map_err(|error| format!("{error}; {remedy}"))?;
    let block = u32::try_from(bytes).ok().filter(|_| bytes <= BLOCK_MAX);
    block.filter(|block| *block > 0 && block.is_multiple_of(512)).ok_or(remedy)
}

/// Reads how long a measurement takes.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=600.0).contains(seconds));
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "write a number of seconds from 0.01 to 600".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_whole_sectors_and_no_more_than_a_mebibyte() {
        assert_eq!(block("4K"), Ok(4096));
        assert_eq!(block("1M"), Ok(1 << 20));
        for wrong in ["0", "100", "2M", "4X", "", "-1"] {
            let problem = block(wrong).unwrap_err();
            assert!(problem.contains("such as 4K"), "{wrong}: {problem}");
        }
    }

    #[test]
    fn a_server_that_is_not_measured_is_answered_with_those_that_are() {
        let all = [Target::evenkeel("bfq"), Target::evenkeel("none")].to_vec();
        let mut targets = all.clone();
        only(&mut targets, &["evenkeel-none".to_owned()]).unwrap();
        assert_eq!(targets, all[1..]);
        let problem = only(&mut targets, &["qsd".to_owned()]).unwrap_err().to_string();
        assert_eq!(problem, "--only qsd: no such server; use some of evenkeel-none");
    }

    #[test]
    fn a_measurement_takes_some_time_and_not_for_ever() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "NaN", "inf", "601", "x", ""] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
