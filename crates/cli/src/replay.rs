//! `evenkeel sim replay`: from a recorded file to what might have been.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::replay::{self, InputFormat, Kind, Pace, ReplayOptions};

use crate::failure::{Failure, Outcome};
use crate::print;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel serve --trace monday.trace web=web.img db=db.img    record\n  \
    evenkeel sim replay monday.trace --device hdd --scheduler noop,deadline,bfq\n  \
    evenkeel sim replay monday.trace --device ssd --scheduler bfq --closed --format json\n\n\
    docs/guide/traces.md tells how to record, and how far to believe the answer.")]
pub(crate) struct ReplayArgs {
    /// What was recorded: a trace of evenkeel, a log of fio --write_iolog (version 2 or 3), or what
    /// blktrace or blkparse wrote
    file: PathBuf,
    /// Whom to try: none, noop, deadline, deadline-legacy, anticipatory, kyber, cfq or bfq;
    /// several with commas, or by giving the option again
    #[arg(long, value_name = "NAME", required = true, value_delimiter = ',',
          value_parser = str::parse::<Kind>)]
    scheduler: Vec<Kind>,
    /// On which device: hdd, sdhc, emmc, ssd or nvme, with options (hdd:rpm=5400)
    #[arg(long, value_name = "NAME", value_parser = str::parse::<ModelSpec>)]
    device: ModelSpec,
    /// Most commands at the device at a time [default: the device's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: Option<u32>,
    /// Let requests come as long after the answers before them as they did, instead of when they
    /// did
    #[arg(long)]
    closed: bool,
    /// What the file is: evenkeel, fio, blktrace or blkparse [default: by its content]
    #[arg(long, value_name = "NAME", value_parser = str::parse::<InputFormat>)]
    input_format: Option<InputFormat>,
    /// How to print the answer
    #[arg(long, value_enum, default_value_t = ReplayFormat::Table)]
    format: ReplayFormat,
}

/// How a replay is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum ReplayFormat {
    /// For people
    Table,
    /// One JSON document
    Json,
    /// For spreadsheets
    Csv,
}

pub(crate) fn run(args: &ReplayArgs) -> Outcome<()> {
    let file = args.file.display();
    let bytes = fs::read(&args.file)
        .with_context(|| format!("cannot read {file}"))
        .map_err(Failure::wrong_use)?;
    let workload = replay::read(&bytes, args.input_format)
        .with_context(|| format!("cannot replay {file}"))
        .map_err(Failure::work)?;
    drop(bytes);
    let options = ReplayOptions {
        schedulers: args.scheduler.clone(),
        device: args.device.clone(),
        depth: args.depth,
        pace: if args.closed { Pace::Closed } else { Pace::Open },
    };
    let report = replay::run(&workload, &options)
        .with_context(|| format!("cannot replay {file}"))
        .map_err(Failure::work)?;
    print(&match args.format {
        ReplayFormat::Table => report.table(),
        ReplayFormat::Json => serde_json::to_string_pretty(&report).map_err(Failure::work)? + "\n",
        ReplayFormat::Csv => report.csv(),
    })
}
