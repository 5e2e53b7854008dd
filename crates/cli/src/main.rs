//! The one binary of the host: arguments in, calls out.
//!
//! Exit status: 0 success, 1 the work failed, 2 wrong use.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod connect;
mod explain;
mod failure;
mod measure;
mod place;
mod replay;
mod results;
mod serve;
mod set;
mod sim;
mod status;
mod suite;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};
use crate::failure::{Failure, Outcome};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn run() -> Outcome<()> {
    match Cli::try_parse().map_err(Failure::Arguments)?.command {
        Command::Bench(args) => bench::run(&args),
        Command::Connect(args) => connect::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Status(args) => status::run(&args),
    }
}

/// Prints a whole answer. A reader that has seen enough (`| head`) is not a failure.
fn print(text: &str) -> Outcome<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::work(error)),
        _ => Ok(()),
    }
}
