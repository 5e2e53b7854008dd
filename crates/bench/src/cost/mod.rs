//! `evenkeel bench cost`: where the time of a request goes, stage by stage.
//!
//! The engine of the daemon runs here in a loop, in the order of the daemon's turn, without a guest
//! and without a device: what the device was given is finished at the next turn. A clock stands
//! around each stage of a turn, so around as many requests as the device takes; what the clock
//! itself costs is measured and subtracted. The elevator then runs the same load by itself: what is
//! its part of a stage.
//!
//! What is around the engine (vrings, guest memory, `io_uring`, system calls) is measured on the
//! daemon itself, as its processor time per request: with the null backend, and with a file.

mod machine;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
pub use evenkeel_sched::Kind;
use serde::Serialize;

use self::machine::{Bare, Figures, Loop, Whole};
use crate::client::IoOp;
use crate::rate::{self, RateOptions};
use crate::stats;
use crate::target::{Backing, Target};

/// The stages of a turn, in its order.
const STAGES: [&str; 5] = ["complete", "retire", "parse", "submit", "dispatch"];
/// Requests of one repetition, so that its clocks are of no weight.
const REQUESTS: u32 = 200_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct CostOptions {
    /// The elevators.
    pub kinds: Vec<Kind>,
    /// Numbers of disks, each a VM of its own, that keep the device busy.
    pub disks: Vec<u32>,
    /// Most commands at the device, hence in a turn.
    pub depth: u32,
    /// Requests in one repetition.
    pub requests: u32,
    /// Repetitions, of which the median counts.
    pub repetitions: u32,
    /// The daemon, to measure what is around the engine, too.
    pub daemon: Option<Daemon>,
}

/// The daemon, and where it is measured.
#[derive(Clone, Debug)]
pub struct Daemon {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where image, sockets and logs go.
    pub dir: PathBuf,
    /// How long each measurement takes.
    pub duration: Duration,
}

impl CostOptions {
    /// Returns the standard measurement: `none` and `bfq`, 1, 10 and 100 disks, depth 32, nine
    /// repetitions of 200 000 requests.
    #[must_use]
    pub fn new(daemon: Option<Daemon>) -> Self {
        let kinds = vec![Kind::None, Kind::Bfq];
        Self {
            kinds,
            disks: vec![1, 10, 100],
            depth: 32,
            requests: REQUESTS,
            repetitions: 9,
            daemon,
        }
    }
}

/// One stage with one elevator and one number of disks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostRow {
    /// The elevator.
    pub scheduler: String,
    /// Busy disks.
    pub disks: u32,
    /// Commands at the device.
    pub depth: u32,
    /// `complete`, `retire`, `parse`, `submit` (classify and insert), `dispatch`; `engine` is their
    /// sum; `daemon-null` and `daemon-file` are all processor time of the daemon.
    pub stage: &'static str,
    /// Nanoseconds for one request: the median of the repetitions.
    pub ns_per_request: f64,
    /// The largest less the smallest repetition.
    pub spread_ns: f64,
    /// What the elevator takes of it, measured by itself with the same load: insert, dispatch,
    /// complete. Absent where it has no part, or where that is not known.
    pub elevator_ns: Option<f64>,
    /// The part of the sum of all stages; of the daemon's the part that is the engine.
    pub share: f64,
}

/// What `evenkeel bench cost --format json` prints.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CostReport {
    /// In the order of the options; the stages in that of a turn.
    pub rows: Vec<CostRow>,
}

/// Measures everything; `progress` is told one line before each step.
///
/// # Errors
///
/// If there is nothing to measure, or the daemon cannot be measured.
pub fn run(options: &CostOptions, progress: &mut dyn FnMut(&str)) -> Result<CostReport> {
    ensure!(options.depth > 0 && options.repetitions > 0, "nothing to measure");
    ensure!(!options.disks.contains(&0), "at least one disk is needed");
    let mut report = CostReport::default();
    for &kind in &options.kinds {
        for &disks in &options.disks {
            progress(&format!("engine with {kind}, {disks} disks"));
            report.rows.extend(measure(options, kind, disks));
        }
        if let Some(daemon) = &options.daemon {
            let engine = report.rows.iter().rev().find(|row| {
                row.stage == "engine"
                    && row.disks == options.disks[0]
                    && row.scheduler == kind.to_string()
            });
            let engine = engine.map_or(0.0, |row| row.ns_per_request);
            report.rows.extend(measure_daemon(options, daemon, kind, engine, progress)?);
        }
    }
    Ok(report)
}

fn measure(options: &CostOptions, kind: Kind, disks: u32) -> Vec<CostRow> {
    let CostOptions { depth, requests, repetitions, .. } = *options;
    let mut whole = Whole::new(kind, disks, depth);
    let mut bare = Bare::new(kind, disks, depth);
    let (mut wholes, mut bares) = (Vec::new(), Vec::new());
    for repetition in 0..=repetitions {
        let figures = (whole.serve(requests), bare.serve(requests));
        // The first warms up. The two take turns, so that both see the same machine.
        if repetition > 0 {
            wholes.push(figures.0);
            bares.push(figures.1);
        }
    }
    rows(kind, disks, depth, &wholes, &bares)
}

/// Returns the rows of the stages and of their sum.
fn rows(kind: Kind, disks: u32, depth: u32, wholes: &[Figures], bares: &[Figures]) -> Vec<CostRow> {
    let column = |figures: &[Figures], of: &dyn Fn(&Figures) -> f64| {
        let mut column: Vec<f64> = figures.iter().map(of).collect();
        column.sort_by(f64::total_cmp);
        column
    };
    let median = |column: &[f64]| stats::median(column).unwrap_or(0.0);
    let sum = column(wholes, &|figures| figures.iter().sum());
    let elevator_sum = median(&column(bares, &|figures| figures.iter().sum()));
    let row = |stage, column: &[f64], elevator_ns| CostRow {
        scheduler: kind.to_string(),
        disks,
        depth,
        stage,
        ns_per_request: median(column),
        spread_ns: column.last().unwrap_or(&0.0) - column.first().unwrap_or(&0.0),
        elevator_ns,
        share: median(column) / median(&sum),
    };
    let mut rows: Vec<CostRow> = (0..)
        .zip(STAGES)
        .map(|(at, stage)| {
            let elevator = matches!(stage, "complete" | "submit" | "dispatch");
            let elevator_ns = elevator.then(|| median(&column(bares, &|figures| figures[at])));
            row(stage, &column(wholes, &|figures| figures[at]), elevator_ns)
        })
        .collect();
    rows.push(row("engine", &sum, Some(elevator_sum)));
    rows
}

/// Measures reads of 4 KiB by the daemon's processor time, without a device and with a file.
fn measure_daemon(
    options: &CostOptions,
    daemon: &Daemon,
    kind: Kind,
    engine_ns: f64,
    progress: &mut dyn FnMut(&str),
) -> Result<Vec<CostRow>> {
    let mut rows = Vec::new();
    for (stage, backing) in [("daemon-null", Backing::Null), ("daemon-file", Backing::Image)] {
        let Daemon { evenkeel, dir, duration } = daemon.clone();
        let mut rate = RateOptions::new(evenkeel, dir, backing);
        rate.targets = vec![Target::evenkeel(&kind.to_string())];
        let depth = u16::try_from(options.depth).unwrap_or(u16::MAX).min(rate::DEPTH_MAX);
        (rate.ops, rate.vrings, rate.depths) = (vec![IoOp::Read], vec![1], vec![depth]);
        (rate.rounds, rate.duration) = (1, duration);
        let mut samples = Vec::new();
        for repetition in 1..=options.repetitions {
            progress(&format!("{stage} with {kind}, {repetition} of {}", options.repetitions));
            let report = rate::run(&rate, &mut |_| ())?;
            let cpu = report.rows[0].server_cpu_us_per_request;
            samples.push(cpu.context("the daemon's processor time is not known")? * 1e3);
        }
        samples.sort_by(f64::total_cmp);
        let ns_per_request = stats::median(&samples).unwrap_or(0.0);
        rows.push(CostRow {
            scheduler: kind.to_string(),
            disks: 1,
            depth: depth.into(),
            stage,
            ns_per_request,
            spread_ns: samples[samples.len() - 1] - samples[0],
            elevator_ns: None,
            share: engine_ns / ns_per_request,
        });
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stages_make_up_the_engine_and_the_elevator_has_its_part_of_three() {
        let wholes = [[10.0, 5.0, 5.0, 50.0, 30.0], [12.0, 5.0, 5.0, 50.0, 28.0]];
        let bares = [[4.0, 0.0, 0.0, 30.0, 20.0]];
        let rows = rows(Kind::Bfq, 2, 32, &wholes, &bares);
        let stages: Vec<&str> = rows.iter().map(|row| row.stage).collect();
        assert_eq!(stages, ["complete", "retire", "parse", "submit", "dispatch", "engine"]);
        let elevator: Vec<Option<f64>> = rows.iter().map(|row| row.elevator_ns).collect();
        assert_eq!(elevator, [Some(4.0), None, None, Some(30.0), Some(20.0), Some(54.0)]);
        assert_eq!((rows[0].ns_per_request, rows[0].spread_ns), (11.0, 2.0));
        assert_eq!((rows[5].ns_per_request, rows[5].share), (100.0, 1.0));
        assert_eq!((rows[3].share, rows[5].scheduler.as_str()), (0.5, "bfq"));
    }

    #[test]
    fn every_elevator_and_number_of_disks_has_its_stages() {
        let mut options = CostOptions::new(None);
        (options.requests, options.repetitions, options.disks) = (500, 1, vec![1, 3]);
        let mut steps = 0;
        let report = run(&options, &mut |_| steps += 1).unwrap();
        assert_eq!((report.rows.len(), steps), (2 * 2 * 6, 4));
        let engines = report.rows.iter().filter(|row| row.stage == "engine");
        assert!(engines.clone().all(|row| row.ns_per_request > 0.0), "{report:?}");
        assert_eq!(engines.count(), 4);
    }
}
