//! `evenkeel sim`: calls the experiments in virtual time and prints what they report.

use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_bench::{d36, demo, speed};
use evenkeel_sim::demo::CpuModel;
use evenkeel_sim::replay::Kind;
use evenkeel_sim::world::App;
use evenkeel_sim::{ModelSpec, blocks, practice};

use crate::args::Format;
use crate::bench::{show, table};
use crate::failure::{Failure, Outcome};
use crate::print;
use crate::replay::{self, ReplayArgs};

mod swarm;

use swarm::SwarmArgs;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel sim devices\n  \
    evenkeel sim d36 --quick\n  \
    evenkeel sim d36 --figure 8 --format html > figure8.html\n  \
    evenkeel sim demo --scheduler noop,bfq --device hdd:rpm=7200\n  \
    evenkeel sim demo --measured target/demo/result.json\n  \
    evenkeel sim swarm --seed 1 --seeds 1000\n  \
    evenkeel sim blocks --format html > blocks.html\n  \
    evenkeel sim best-practice\n  \
    evenkeel sim replay monday.trace --device hdd --scheduler deadline --scheduler bfq")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: Sim,
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Print the modelled devices: every parameter, its default and where that comes from
    Devices,
    /// Repeat the experiments of D3.6: throughput and application start-up in a guest under load,
    /// with BFQ and CFQ, without and with coordination between guest and host
    D36(D36Args),
    /// Predict what `evenkeel bench demo` measures: start of an application in a guest while another
    /// hammers the disk
    Demo(DemoArgs),
    /// Tell what other schedulers, or another device, would have made of recorded requests
    Replay(ReplayArgs),
    /// Measure how fast the simulator itself is, in requests per second of one core
    Speed(SpeedArgs),
    /// Random worlds around the engine, each from its seed, and what must hold in all of them
    Swarm(SwarmArgs),
    /// Figures of the paper on adaptive blocks: throughput and latency by block, threads and size
    Blocks {
        /// How to print them
        #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
        format: ReportFormat,
    },
    /// Storage figures of two papers on KVM: schedulers, virtio, partitions, exits, timers
    BestPractice {
        /// For whom to print
        #[arg(long, value_enum, default_value_t = Format::Table)]
        format: Format,
        /// Virtual time of each experiment
        #[arg(long, value_name = "MS", default_value_t = 1_000,
              value_parser = clap::value_parser!(u64).range(1..=60_000))]
        span_ms: u64,
    },
}

#[derive(Args, Debug)]
struct SpeedArgs {
    /// Readers, each a queue of its own
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    queues: u64,
    /// Instead, so many VMs with operating systems, a reader and a player in each; tells the memory
    #[arg(long, value_name = "N", conflicts_with = "queues",
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    vms: Option<u64>,
    /// Devices that the VMs are shared out among
    #[arg(long, value_name = "N", default_value_t = 24, requires = "vms",
          value_parser = clap::value_parser!(u64).range(1..=1_000))]
    disks: u64,
    /// Virtual time
    #[arg(long, value_name = "S", default_value_t = 60, requires = "vms",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// What the devices are
    #[arg(long, value_name = "NAME", default_value = "hdd", requires = "vms",
          value_parser = clap::builder::PossibleValuesParser::new(evenkeel_sim::MODELS))]
    model: String,
    /// For whom to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Args, Debug)]
struct D36Args {
    /// Only this figure of the document; may be given more than once [default: all of them]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=17))]
    figure: Vec<u32>,
    /// What is started: bash, xterm or konsole; the document shows xterm
    #[arg(long, value_name = "NAMES", value_delimiter = ',', default_value = "xterm",
          value_parser = app)]
    app: Vec<App>,
    /// Three runs of two starts instead of ten of five
    #[arg(long)]
    quick: bool,
    /// Also what the document does not show: deadline and noop, other elevators in the host,
    /// Evenkeel without help or with help that only the guest's scheduler asks for
    #[arg(long)]
    extras: bool,
    /// Of all that is left to chance; the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to print them
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

#[derive(Args, Debug)]
struct DemoArgs {
    /// Schedulers of the pool, a row each
    #[arg(long, value_name = "NAMES", value_delimiter = ',',
          default_value = "noop,deadline,bfq", value_parser = str::parse::<Kind>)]
    scheduler: Vec<Kind>,
    /// On which device: hdd, sdhc, emmc, ssd or nvme, with options (hdd:rpm=5400)
    #[arg(long, value_name = "NAME", default_value = "hdd",
          value_parser = str::parse::<ModelSpec>)]
    device: ModelSpec,
    /// What `evenkeel bench demo` has measured (result.json): predict the same rows, for guests with
    /// CPUs of that speed, and tell how far off that is
    #[arg(long, value_name = "FILE", conflicts_with_all = ["scheduler", "device"])]
    measured: Option<PathBuf>,
    /// Starts on the idle disk, and again as many under load
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..=100))]
    starts: u32,
    /// How often the whole is repeated, each time with other chances
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Of all that is left to chance; the same seed gives the same figures
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to print them
    #[arg(long, value_enum, default_value_t = ReportFormat::Table)]
    format: ReportFormat,
}

/// How an experiment is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum ReportFormat {
    /// For people
    Table,
    /// One JSON document
    Json,
    /// For spreadsheets
    Csv,
    /// A page with the figures drawn
    Html,
}

pub(crate) fn run(args: &SimArgs) -> Outcome<()> {
    match &args.what {
        Sim::Devices => print(&evenkeel_sim::describe()),
        Sim::D36(args) => run_d36(args),
        Sim::Demo(args) => run_demo(args),
        Sim::Swarm(args) => swarm::run(args),
        Sim::Replay(args) => replay::run(args),
        Sim::Speed(args) => run_speed(args),
        Sim::Blocks { format } => {
            let report = blocks::run(&blocks::BlocksOptions::default());
            print(&match format {
                ReportFormat::Table => {
                    table(&serde_json::to_value(&report).map_err(Failure::work)?)
                        + &claims(&report.claims)
                }
                ReportFormat::Json => {
                    serde_json::to_string_pretty(&report).map_err(Failure::work)? + "\n"
                }
                ReportFormat::Csv => report.csv(),
                ReportFormat::Html => report.html(),
            })
        }
        Sim::BestPractice { format, span_ms } => {
            let report = practice::run(&practice::PracticeOptions { span_ms: *span_ms });
            let value = serde_json::to_value(&report).map_err(Failure::work)?;
            print(&match format {
                Format::Table => {
                    let claims = serde_json::json!({ "rows": value["claims"] });
                    format!("{}\n{}", table(&value), table(&claims))
                }
                Format::Json => serde_json::to_string_pretty(&value).map_err(Failure::work)? + "\n",
            })
        }
    }
}

fn run_speed(args: &SpeedArgs) -> Outcome<()> {
    let SpeedArgs { queues, vms, disks, seconds, model, format } = args;
    let Some(vms) = *vms else {
        return show(*format, &speed::run(*queues), table);
    };
    let fleet = speed::Fleet { vms, disks: *disks, seconds: *seconds, model: model.clone() };
    show(*format, &speed::run_fleet(&fleet), table)
}

fn run_demo(args: &DemoArgs) -> Outcome<()> {
    let DemoArgs { scheduler, device, measured, starts, runs, seed, format } = args;
    let measured =
        measured.as_deref().map(demo::Measured::read).transpose().map_err(Failure::Use)?;
    let mut options = demo::PredictOptions {
        schedulers: scheduler.clone(),
        device: device.clone(),
        starts: *starts,
        runs: *runs,
        seed: *seed,
        cpu: CpuModel::EMULATED,
    };
    if let Some(demo::Measured { device, schedulers, cpu, .. }) = measured.clone() {
        options = demo::PredictOptions { schedulers, device, cpu, ..options };
    }
    let mut report = demo::predict(&options);
    if let Some(measured) = measured {
        measured.compare(&mut report);
    }
    print(&match format {
        ReportFormat::Table => report.table(),
        ReportFormat::Json => serde_json::to_string_pretty(&report).map_err(Failure::work)? + "\n",
        ReportFormat::Csv => report.csv(),
        ReportFormat::Html => report.html(),
    })
}

fn app(name: &str) -> Result<App, String> {
    App::named(name).ok_or_else(|| {
        format!("{name:?} is no application of the experiments: bash, xterm, konsole")
    })
}

fn run_d36(args: &D36Args) -> Outcome<()> {
    let D36Args { figure, app, quick, extras, seed, format } = args;
    let options = d36::Options {
        figures: figure.clone(),
        apps: app.clone(),
        quick: *quick,
        extras: *extras,
        seed: *seed,
    };
    let pace = Pace::default();
    let report = d36::run(&options, |progress| {
        pace.say(progress.done == progress.all, || {
            let left = progress.left.as_secs();
            format!("{} of {} runs, {left} s left", progress.done, progress.all)
        });
    });
    print(&match format {
        ReportFormat::Table => report.table(),
        ReportFormat::Json => serde_json::to_string_pretty(&report).map_err(Failure::work)? + "\n",
        ReportFormat::Csv => report.csv(),
        ReportFormat::Html => report.html().map_err(Failure::Work)?,
    })
}

/// Tells how far the work is on standard error, every two seconds and at the end.
#[derive(Debug, Default)]
struct Pace(Mutex<Option<Instant>>);

impl Pace {
    fn say(&self, is_last: bool, line: impl FnOnce() -> String) {
        // Whoever finds it locked has nothing newer to tell.
        let Ok(mut last) = self.0.try_lock() else { return };
        let due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(2));
        if due || is_last {
            *last = Some(Instant::now());
            eprintln!("{}", line());
        }
    }
}

/// Lists statements of a paper, and whether they hold here.
fn claims(claims: &[blocks::Claim]) -> String {
    let line = |claim: &blocks::Claim| {
        let blocks::Claim { source, statement, simulated, holds } = claim;
        let verdict = if *holds { "holds" } else { "differs" };
        format!("{verdict:7}  {source}: {statement} ({simulated})\n")
    };
    "\n".to_owned() + &claims.iter().map(line).collect::<String>()
}
