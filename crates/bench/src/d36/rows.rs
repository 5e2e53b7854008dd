//! What was measured, as rows.

use evenkeel_sim::d36::{Coordination, Figure, Metric, Outcome, Setup};
use serde::Serialize;

use super::stated::{Stated, stated};
use crate::stats::Summary;

/// One bar of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The figure of the document.
    pub figure: u32,
    /// `hdd`, `sdhc` or `emmc`.
    pub device: String,
    /// Such as `5r-rand` or `none`.
    pub guest_load: String,
    /// Such as `1r-seq` or `none`.
    pub host_load: String,
    /// The guest's elevator.
    pub guest_scheduler: String,
    /// The host's elevator.
    pub host_scheduler: String,
    /// Whether the guest tells the host that somebody in it is urgent.
    pub coordination: bool,
    /// Who tells it: `agent`, Evenkeel's in the guest, which also marks the requests that it means;
    /// or `elevator`, the guest's, as the document has it.
    pub told_by: Option<&'static str>,
    /// What is started: `bash`, `xterm` or `konsole`.
    pub app: &'static str,
    /// Whether the guest's BFQ knows that its clock jumps; figure 3 shows what happens if not.
    pub guarded: bool,
    /// What schedules in the host: `kernel` the threads of QEMU, whose queues have been merged;
    /// `kernel-threads` a queue for each of them; or `evenkeel` the VM.
    pub host_path: &'static str,
    /// Mean start-up time in seconds, over the means of the runs that did not fail.
    pub startup_mean_s: Option<f64>,
    /// The same without any load.
    pub idle_mean_s: Option<f64>,
    /// The one divided by the other.
    pub ratio: Option<f64>,
    /// Whether half of the runs or more failed: an application did not start within 60 seconds.
    pub failed: bool,
    /// How many runs failed.
    pub failed_runs: usize,
    /// Mean throughput of the guest's readers in 10^6 bytes per second.
    pub throughput_mb_s: Option<f64>,
    /// Statistics over the means of the runs.
    pub over_runs: Option<Summary>,
    /// Statistics of each run over its samples.
    pub runs: Vec<Option<Summary>>,
    /// What the document states in words; none if it only shows a bar.
    pub stated: Option<String>,
    /// Whether what was measured agrees with that.
    pub agrees: Option<bool>,
}

/// What `evenkeel sim d36 --format json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The seed of everything.
    pub seed: u64,
    /// Whether fewer runs and starts were made than in the document.
    pub quick: bool,
    /// Runs of each setup.
    pub runs: u32,
    /// Commands that the modelled devices completed, all runs together.
    pub commands: u64,
    /// By figure, in the order of the document.
    pub rows: Vec<Row>,
    /// What the document does not show: other elevators in guest and host, and Evenkeel in the
    /// host without help from the guest, or with help that only its elevator asks for. `figure` is the one that it belongs to.
    pub extra_rows: Vec<Row>,
}

/// The measurements of a setup.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    pub(crate) outcomes: Vec<Outcome>,
}

impl Measured {
    fn runs(&self) -> Vec<Option<Summary>> {
        self.outcomes.iter().map(|outcome| Summary::of(&outcome.samples)).collect()
    }

    fn failed_runs(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.failed).count()
    }

    /// Returns the statistics over the means of the runs that did not fail.
    pub(crate) fn over_runs(&self) -> Option<Summary> {
        let good = self.outcomes.iter().filter(|outcome| !outcome.failed);
        let means = good.filter_map(|outcome| Summary::of(&outcome.samples)).map(|run| run.mean);
        Summary::of(&means.collect::<Vec<f64>>())
    }
}

const fn told_by(setup: &Setup) -> Option<&'static str> {
    match setup.coordination {
        Coordination::None | Coordination::Threads | Coordination::Evenkeel => None,
        Coordination::Help => Some("elevator"),
        Coordination::Agent => Some("agent"),
    }
}

impl Row {
    pub(crate) fn new(
        figure: &Figure,
        setup: &Setup,
        measured: &Measured,
        idle: Option<&Measured>,
    ) -> Self {
        let over_runs = measured.over_runs();
        let failed_runs = measured.failed_runs();
        let failed = failed_runs > 0 && failed_runs * 2 >= measured.outcomes.len();
        let mean = over_runs.map(|summary| summary.mean).filter(|_| !failed);
        let is_start = figure.metric == Metric::StartUp;
        let idle_mean_s = idle.and_then(Measured::over_runs).map(|summary| summary.mean);
        let mut row = Self {
            figure: figure.number,
            device: setup.device.name().to_owned(),
            guest_load: setup.guest_load.to_string(),
            host_load: setup.host_load.to_string(),
            guest_scheduler: setup.guest.to_string(),
            host_scheduler: setup.host.to_string(),
            coordination: told_by(setup).is_some(),
            told_by: told_by(setup),
            app: setup.app.name(),
            guarded: setup.guarded,
            host_path: match setup.coordination {
                Coordination::None => "kernel",
                Coordination::Threads => "kernel-threads",
                Coordination::Evenkeel | Coordination::Help | Coordination::Agent => "evenkeel",
            },
            startup_mean_s: mean.filter(|_| is_start),
            idle_mean_s: idle_mean_s.filter(|_| is_start),
            ratio: mean.zip(idle_mean_s).filter(|_| is_start).map(|(mean, idle)| mean / idle),
            failed,
            failed_runs,
            throughput_mb_s: mean.filter(|_| !is_start),
            over_runs,
            runs: measured.runs(),
            stated: None,
            agrees: None,
        };
        if let Some(stated) = stated(&row) {
            row.agrees = stated.agrees(&row);
            row.stated = Some(stated.words().to_owned());
        }
        row
    }

    /// Returns what the document states about this row.
    #[must_use]
    pub fn stated(&self) -> Option<Stated> {
        stated(self)
    }
}
