//! `evenkeel sim`: calls the experiments in virtual time and prints what they report.

use clap::{Args, Subcommand};

use crate::failure::Outcome;
use crate::print;

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  evenkeel sim devices")]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    what: Sim,
}

#[derive(Debug, Subcommand)]
enum Sim {
    /// Print the modelled devices: every parameter, its default and where that comes from
    Devices,
}

pub(crate) fn run(args: &SimArgs) -> Outcome<()> {
    match &args.what {
        Sim::Devices => print(&evenkeel_sim::describe()),
    }
}
