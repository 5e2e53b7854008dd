//! `evenkeel sim`: calls the experiments in virtual time and prints what they report.

use clap::{Args, Subcommand, ValueEnum};
use evenkeel_sim::{blocks, practice};

use crate::args::Format;
use crate::bench::table;
use crate::failure::{Failure, Outcome};
use crate::print;

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel sim devices\n  \
    evenkeel sim blocks --format html > blocks.html\n  \
    evenkeel sim best-practice")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: Sim,
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Print the modelled devices: every parameter, its default and where that comes from
    Devices,
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

/// Lists statements of a paper, and whether they hold here.
fn claims(claims: &[blocks::Claim]) -> String {
    let line = |claim: &blocks::Claim| {
        let blocks::Claim { source, statement, simulated, holds } = claim;
        let verdict = if *holds { "holds" } else { "differs" };
        format!("{verdict:7}  {source}: {statement} ({simulated})\n")
    };
    "\n".to_owned() + &claims.iter().map(line).collect::<String>()
}
