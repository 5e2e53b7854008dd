//! `evenkeel bench startup`, `throughput` and `player`: arguments in, reports out.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use evenkeel_bench::suite::{self, App, Coordination, Film, Options, Where, parse_load};
use evenkeel_wire::Scheduler;
use serde::Serialize;

use crate::args::BenchFormat;
use crate::failure::{Failure, Outcome};
use crate::print;

/// What all measurements have in common; lists are combined with one another.
#[derive(Args, Clone, Debug)]
pub(crate) struct Scenarios {
    /// Where it is measured: in a guest, or on the host (startup and throughput, as root), without
    /// daemon, on a loop device
    #[arg(id = "where", long, value_name = "PLACE", default_value = "guest",
          value_parser = |name: &str| name.parse::<Where>())]
    place: Where,
    /// Devices: models as in evenkeel serve --model, or real for the disk below --dir, which is all
    /// that there is on the host, and the default there
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "hdd",
        default_value_if("where", "host", "real")
    )]
    device: Vec<String>,
    /// Loads in the guest, or on the host: none, or readers and writers as in 1r-seq, 5r-rand,
    /// 2r2w-seq
    #[arg(long, value_name = "LOADS", value_delimiter = ',', default_value = "5r-rand",
          value_parser = parse_load)]
    guest_load: Vec<suite::GuestLoad>,
    /// Loads beside the guest, from other VMs of the pool; none on the host
    #[arg(long, value_name = "LOADS", value_delimiter = ',', default_value = "1r-seq",
          default_value_if("where", "host", "none"), value_parser = parse_load)]
    host_load: Vec<suite::GuestLoad>,
    /// Schedulers of the guest, by their names in the kernel; on the host those of its disk
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "none",
          value_parser = ["none", "mq-deadline", "kyber", "bfq"])]
    guest_scheduler: Vec<String>,
    /// Schedulers of the pool; none on the host
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "bfq",
          default_value_if("where", "host", "none"), value_parser = |name: &str| name.parse::<Scheduler>())]
    scheduler: Vec<Scheduler>,
    /// What guest and host tell each other: off, priority, help, infer, all; off on the host
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "off,all",
          default_value_if("where", "host", "off"), value_parser = |name: &str| name.parse::<Coordination>())]
    coordination: Vec<Coordination>,
    /// Times that each single run is repeated
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    repeats: u32,
    /// Where the guest's disk, sockets and logs go
    #[arg(long, value_name = "DIR", default_value = "target/bench/suite")]
    dir: PathBuf,
    /// Also write a file for each single run, and the statistics over them, into this directory
    #[arg(long, value_name = "DIR")]
    results: Option<PathBuf>,
}

impl Scenarios {
    fn options(&self) -> Outcome<Options> {
        let options = Options {
            place: self.place,
            evenkeel: env::current_exe().map_err(Failure::work)?,
            dir: self.dir.clone(),
            devices: self.device.clone(),
            guest_loads: self.guest_load.clone(),
            host_loads: self.host_load.clone(),
            guest_schedulers: self.guest_scheduler.clone(),
            schedulers: self.scheduler.iter().map(ToString::to_string).collect(),
            coordinations: self.coordination.clone(),
            repeats: self.repeats,
        };
        options.check().map_err(Failure::wrong_use)?;
        Ok(options)
    }
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench startup --app xterm --guest-load 5r-rand --host-load 1r-seq\n  \
    evenkeel bench startup --app bash --app 'perl -e 1' --coordination off,priority,help,infer,all\n  \
    evenkeel bench startup --scheduler bfq,cfq --guest-scheduler bfq --format suite\n  \
    sudo evenkeel bench startup --where host --guest-scheduler bfq --guest-load 5r-rand")]
pub(crate) struct StartupArgs {
    /// What is started: bash, python3, xterm, or a command line; may be given more than once
    #[arg(long, value_name = "APP", default_value = "python3",
          value_parser = |text: &str| text.parse::<App>())]
    app: Vec<App>,
    /// Starts in a single run
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    #[command(flatten)]
    scenarios: Scenarios,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench throughput --guest-load 1r-seq,5r-seq,1r-rand,5r-rand --host-load none\n  \
    evenkeel bench throughput --device ssd --scheduler bfq,deadline --repeats 10\n  \
    sudo evenkeel bench throughput --where host --guest-scheduler mq-deadline,bfq")]
pub(crate) struct ThroughputArgs {
    /// Length of a single run; a sample is taken every two seconds
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(4..=3600))]
    seconds: u32,
    #[command(flatten)]
    scenarios: Scenarios,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench player --guest-load 5r-rand --host-load 5r-rand --coordination off,infer,all\n  \
    evenkeel bench player --device sdhc,emmc --mb-s 2 --deadline-ms 100")]
pub(crate) struct PlayerArgs {
    /// Length of the film
    #[arg(long, value_name = "N", default_value_t = 60,
          value_parser = clap::value_parser!(u32).range(4..=600))]
    seconds: u32,
    /// What the film needs, in megabytes (10^6 bytes) per second
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=8))]
    mb_s: u32,
    /// Length of a piece, and how long it may take to come
    #[arg(long, value_name = "MS", default_value_t = 250,
          value_parser = clap::value_parser!(u32).range(10..=2000))]
    deadline_ms: u32,
    #[command(flatten)]
    scenarios: Scenarios,
}

pub(crate) fn player(args: &PlayerArgs, format: BenchFormat) -> Outcome<()> {
    let PlayerArgs { seconds, mb_s, deadline_ms, scenarios } = args;
    let film = Film { mb_s: (*mb_s).into(), deadline_ms: *deadline_ms, seconds: *seconds };
    if scenarios.place == Where::Host {
        let problem = "--where host: films are played in guests; leave it out";
        return Err(Failure::wrong_use(anyhow::anyhow!(problem)));
    }
    let options = scenarios.options()?;
    let report =
        suite::player(&options, film, &mut |line| eprintln!("{line}")).map_err(Failure::Work)?;
    let texts = Texts { table: report.table(), html: report.html(), suite: report.suite() };
    finish(scenarios, format, &report, &texts, &report.files())
}

pub(crate) fn startup(args: &StartupArgs, format: BenchFormat) -> Outcome<()> {
    let options = args.scenarios.options()?;
    let report = suite::startup(&options, &args.app, args.runs, &mut |line| eprintln!("{line}"))
        .map_err(Failure::Work)?;
    let texts = Texts { table: report.table(), html: report.html(), suite: report.suite() };
    finish(&args.scenarios, format, &report, &texts, &report.files())
}

pub(crate) fn throughput(args: &ThroughputArgs, format: BenchFormat) -> Outcome<()> {
    let options = args.scenarios.options()?;
    let report = suite::throughput(&options, args.seconds, &mut |line| eprintln!("{line}"))
        .map_err(Failure::Work)?;
    let texts = Texts { table: report.table(), html: report.html(), suite: report.suite() };
    finish(&args.scenarios, format, &report, &texts, &report.files())
}

/// A report in the formats that are no JSON.
struct Texts {
    table: String,
    html: String,
    suite: String,
}

fn finish(
    scenarios: &Scenarios,
    format: BenchFormat,
    report: &impl Serialize,
    texts: &Texts,
    files: &[(String, String)],
) -> Outcome<()> {
    if let Some(dir) = &scenarios.results {
        write(dir, texts, files).map_err(Failure::Work)?;
    }
    match format {
        BenchFormat::Table => print(&texts.table),
        BenchFormat::Html => print(&texts.html),
        BenchFormat::Suite => print(&texts.suite),
        BenchFormat::Json => {
            print(&(serde_json::to_string_pretty(report).map_err(Failure::work)? + "\n"))
        }
    }
}

fn write(dir: &Path, texts: &Texts, files: &[(String, String)]) -> anyhow::Result<()> {
    let summary = ("overall_stats.txt".to_owned(), texts.suite.clone());
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    for (name, text) in files.iter().chain([&summary]) {
        let path = dir.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Bench, Cli, Command};

    /// What the words make of the scenarios, or what is wrong with them.
    fn options(words: &[&str]) -> Result<Options, String> {
        let words = ["evenkeel", "bench", "startup"].iter().chain(words);
        let Command::Bench(args) = Cli::try_parse_from(words).unwrap().command else {
            panic!("they are of bench")
        };
        let Bench::Startup(args) = args.what else { panic!("they are of bench startup") };
        args.scenarios.options().map_err(|failure| match failure {
            Failure::Use(error) => error.to_string(),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn on_the_host_all_that_is_left_out_is_what_there_is_there() {
        let host = options(&["--where", "host"]).unwrap();
        assert_eq!(
            (&host.devices[..], &host.schedulers[..]),
            (&["real".into()][..], &["none".into()][..])
        );
        assert_eq!(host.host_loads, [suite::GuestLoad::NONE]);
        assert_eq!(host.coordinations, [Coordination::Off]);
        assert_eq!(host.guest_loads, options(&[]).unwrap().guest_loads);
        assert_eq!(options(&[]).unwrap().devices, ["hdd"]);
    }

    #[test]
    fn on_the_host_what_only_guests_have_is_refused_by_its_name() {
        for [option, wrong, right] in [
            ["--device", "ssd", "real"],
            ["--host-load", "1r-seq", "none"],
            ["--scheduler", "bfq", "none"],
            ["--coordination", "off,all", "off"],
        ] {
            let problem = options(&["--where", "host", option, wrong]).unwrap_err();
            assert!(problem.starts_with(option) && problem.contains("leave it out"), "{problem}");
            options(&["--where", "host", option, right]).unwrap();
            options(&[option, wrong]).unwrap();
        }
    }

    #[test]
    fn lists_are_separated_by_commas_and_applications_are_not() {
        let parse = |words: &[&str]| {
            let words = ["evenkeel", "bench", "startup"].iter().chain(words);
            Cli::try_parse_from(words).map(drop).map_err(|error| error.to_string())
        };
        let many = ["--guest-load", "5r-rand,none", "--coordination", "off,all", "--device", "ssd"];
        assert_eq!(parse(&many), Ok(()));
        assert_eq!(
            parse(&["--app", "echo a,b", "--app", "bash", "--scheduler", "cfq,bfq"]),
            Ok(())
        );
        for (option, wrong, remedy) in [
            ("--guest-load", "5r", "5r-rand"),
            ("--host-load", "9r-seq", "at most 8"),
            ("--coordination", "some", "infer"),
            ("--guest-scheduler", "cfq", "mq-deadline"),
            ("--scheduler", "fair", "no such scheduler"),
            ("--repeats", "0", "1..=100"),
            ("--where", "here", "guest and host"),
        ] {
            let problem = parse(&[option, wrong]).unwrap_err();
            assert!(problem.contains(remedy), "{option} {wrong}: {problem}");
        }
    }
}
