//! `evenkeel sim swarm`: many random worlds, one after the other.

use std::time::Instant;

use clap::Args;
use evenkeel_sim::swarm::{self, SeedReport, SwarmOptions};
use serde::Serialize;

use super::Pace;
use crate::args::Format;
use crate::failure::{Failure, Outcome};
use crate::print;

#[derive(Args, Debug)]
pub(crate) struct SwarmArgs {
    /// The first seed; the same seed gives the same history
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How many seeds, this one and those after it
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// Virtual time of each world [default: as the seed says, at most a minute and 9000 events]
    #[arg(long, value_name = "H", value_parser = hours)]
    hours: Option<u64>,
    /// Print what happens in the world of the first seed, a line for each event, and no more
    #[arg(long, conflicts_with_all = ["seeds", "format"])]
    history: bool,
    /// For whom to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Understands a number of hours; returns milliseconds.
fn hours(text: &str) -> Result<u64, String> {
    let hours: f64 = text.parse().map_err(|_| "give a number of hours, such as 0.5".to_owned())?;
    if !(0.0001..=10_000.0).contains(&hours) {
        return Err("allowed are 0.0001 to 10000 hours".to_owned());
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in the range above"
    )]
    let millis = (hours * 3_600_000.0) as u64;
    Ok(millis)
}

/// What `--format json` prints.
#[derive(Debug, Serialize)]
struct SwarmReport {
    first_seed: u64,
    seeds: u64,
    requests: u64,
    commands: u64,
    virtual_s: u64,
    seeds_per_s: f64,
    /// The world of the only seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    world: Option<SeedReport>,
}

pub(super) fn run(args: &SwarmArgs) -> Outcome<()> {
    tell_of_panics();
    let SwarmArgs { seed, seeds, hours, history, format } = args;
    let options = SwarmOptions { span_ms: *hours, keeps_history: *history };
    let (pace, start) = (Pace::default(), Instant::now());
    let mut sum = SwarmReport {
        first_seed: *seed,
        seeds: *seeds,
        requests: 0,
        commands: 0,
        virtual_s: 0,
        seeds_per_s: 0.0,
        world: None,
    };
    let mut virtual_ms = 0;
    for done in 0..*seeds {
        let mut world = swarm::run(seed.wrapping_add(done), &options);
        if *history {
            print(&std::mem::take(&mut world.history))?;
        }
        if let Some(failure) = world.failure() {
            return Err(Failure::Work(anyhow::anyhow!(failure)));
        }
        sum.requests += world.requests;
        sum.commands += world.commands;
        virtual_ms += world.virtual_ms;
        sum.world = (*seeds == 1).then_some(world);
        #[expect(clippy::cast_precision_loss, reason = "fewer than 2^52 seeds")]
        let rate = (done + 1) as f64 / start.elapsed().as_secs_f64();
        sum.seeds_per_s = rate;
        pace.say(done + 1 == *seeds, || format!("{} of {seeds} seeds, {rate:.0} per s", done + 1));
    }
    sum.virtual_s = virtual_ms / 1000;
    if *history {
        return Ok(());
    }
    print(&match format {
        Format::Json => serde_json::to_string_pretty(&sum).map_err(Failure::work)? + "\n",
        Format::Table => text(&sum),
    })
}

fn text(sum: &SwarmReport) -> String {
    let SwarmReport { first_seed, seeds, requests, virtual_s, world, .. } = sum;
    let Some(SeedReport { setup, digest, longest_wait_ms, .. }) = world else {
        let last = first_seed + (seeds - 1);
        return format!(
            "seeds {first_seed} to {last} hold: {requests} requests in {virtual_s} s of virtual \
             time\n"
        );
    };
    format!(
        "seed {first_seed} holds: {requests} requests in {virtual_s} s of virtual time\n  in \
         {setup}\n  longest wait {longest_wait_ms} ms, digest {digest}\n"
    )
}

/// Says of a panic, which ends the program, which world it happened in.
fn tell_of_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        if let Some((seed, at)) = swarm::whereabouts::now() {
            let what = "an assertion of the engine or of a scheduler, above, soon after";
            eprintln!("{}", swarm::failure(seed, at, what));
        }
    }));
}
