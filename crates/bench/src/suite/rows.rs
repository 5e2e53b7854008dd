//! What was measured: single runs, the statistics over them, and rows for the eye and for machines.

use std::fmt::Write as _;

use serde::Serialize;
use serde::ser::{SerializeStruct as _, Serializer};

use super::{App, Scenario, html, names};
use crate::stats::Summary;

/// One single run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Start-up times in ms, or throughput in MB/s.
    pub samples: Vec<f64>,
    /// For how long each program waited for the disk, in ms, where the guest could tell.
    pub disk_ms: Vec<f64>,
    /// Whether it was aborted: a start took more than 60 s.
    pub failed: bool,
}

impl Measured {
    /// Returns the statistics of the run, none if it was aborted.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        if self.failed { None } else { Summary::of(&self.samples) }
    }
}

/// Returns the statistics over the means of the runs that were not aborted. One run alone has no
/// deviation of its mean; its starts say how sure one may be.
fn over_runs(runs: &[Measured]) -> Option<Summary> {
    let summaries: Vec<Summary> = runs.iter().filter_map(Measured::summary).collect();
    if let [only] = summaries[..] {
        return Some(only);
    }
    Summary::of(&summaries.iter().map(|run| run.mean).collect::<Vec<f64>>())
}

/// Returns how long a program waited for the disk, over all runs.
fn mean_wait(runs: &[Measured]) -> Option<f64> {
    let waits: Vec<f64> = runs.iter().flat_map(|run| &run.disk_ms).copied().collect();
    mean(&waits).map(rounded)
}

/// Start-up of one application in one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupRow {
    pub(super) subject: App,
    pub(super) scenario: Scenario,
    /// On the idle disk, before each of the runs under load.
    pub(super) idle: Vec<Measured>,
    /// Under load.
    pub(super) runs: Vec<Measured>,
    /// What all readers got meanwhile, by run.
    pub(super) readers_mb_s: Vec<f64>,
}

impl StartupRow {
    pub(super) fn new(app: &App, scenario: &Scenario) -> Self {
        let (idle, runs, readers_mb_s) = (Vec::new(), Vec::new(), Vec::new());
        Self { subject: app.clone(), scenario: scenario.clone(), idle, runs, readers_mb_s }
    }

    pub(super) fn add(&mut self, idle: Measured, run: Measured, readers_mb_s: f64) {
        self.idle.push(idle);
        self.runs.push(run);
        self.readers_mb_s.push(readers_mb_s);
    }

    fn failed_runs(&self) -> usize {
        self.runs.iter().filter(|run| run.failed).count()
    }
}

/// Throughput of the guest, or of the host's disk, in one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct ThroughputRow {
    pub(super) scenario: Scenario,
    pub(super) runs: Vec<Measured>,
    /// What others beside the guest got, by run.
    pub(super) beside_mb_s: Vec<f64>,
}

impl ThroughputRow {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self { scenario: scenario.clone(), runs: Vec::new(), beside_mb_s: Vec::new() }
    }

    pub(super) fn add(&mut self, run: Measured, beside_mb_s: f64) {
        self.runs.push(run);
        self.beside_mb_s.push(beside_mb_s);
    }
}

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    Summary::of(values).map(|summary| summary.mean)
}

pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The fields by which both kinds of rows name their scenario.
#[derive(Debug, Serialize)]
pub(super) struct Names<'a> {
    #[serde(rename = "where")]
    place: &'static str,
    device: &'a str,
    guest_load: String,
    host_load: String,
    guest_scheduler: &'a str,
    scheduler: &'a str,
    coordination: String,
}

impl<'a> Names<'a> {
    pub(super) fn of(scenario: &'a Scenario) -> Self {
        Self {
            place: scenario.place.as_str(),
            device: &scenario.device,
            guest_load: scenario.guest_load.to_string(),
            host_load: scenario.host_load.to_string(),
            guest_scheduler: &scenario.guest_scheduler,
            scheduler: &scenario.scheduler,
            coordination: scenario.coordination.to_string(),
        }
    }
}

#[derive(Debug, Serialize)]
struct StartupFields<'a> {
    app: String,
    #[serde(flatten)]
    names: Names<'a>,
    idle_mean_ms: Option<f64>,
    loaded_mean_ms: Option<f64>,
    loaded_ci95_ms: Option<f64>,
    ratio: Option<f64>,
    idle_disk_ms: Option<f64>,
    loaded_disk_ms: Option<f64>,
    failed_runs: usize,
    readers_mb_s: Option<f64>,
    over_runs: Option<Summary>,
    runs: Vec<Option<Summary>>,
}

impl Serialize for StartupRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (idle, loaded) = (over_runs(&self.idle), over_runs(&self.runs));
        let ratio = idle.zip(loaded).map(|(idle, loaded)| rounded(loaded.mean / idle.mean));
        StartupFields {
            app: self.subject.to_string(),
            names: Names::of(&self.scenario),
            idle_mean_ms: idle.map(|summary| rounded(summary.mean)),
            loaded_mean_ms: loaded.map(|summary| rounded(summary.mean)),
            loaded_ci95_ms: loaded.map(|summary| rounded(summary.ci95)),
            ratio,
            idle_disk_ms: mean_wait(&self.idle),
            loaded_disk_ms: mean_wait(&self.runs),
            failed_runs: self.failed_runs(),
            readers_mb_s: mean(&self.readers_mb_s).map(rounded),
            over_runs: loaded,
            runs: self.runs.iter().map(Measured::summary).collect(),
        }
        .serialize(serializer)
    }
}

#[derive(Debug, Serialize)]
struct ThroughputFields<'a> {
    #[serde(flatten)]
    names: Names<'a>,
    throughput_mean_mb_s: Option<f64>,
    throughput_ci95_mb_s: Option<f64>,
    host_readers_mb_s: Option<f64>,
    over_runs: Option<Summary>,
    runs: Vec<Option<Summary>>,
}

impl Serialize for ThroughputRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let over_runs = over_runs(&self.runs);
        ThroughputFields {
            names: Names::of(&self.scenario),
            throughput_mean_mb_s: over_runs.map(|summary| rounded(summary.mean)),
            throughput_ci95_mb_s: over_runs.map(|summary| rounded(summary.ci95)),
            host_readers_mb_s: mean(&self.beside_mb_s).map(rounded),
            over_runs,
            runs: self.runs.iter().map(Measured::summary).collect(),
        }
        .serialize(serializer)
    }
}

/// What `evenkeel bench startup` has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Startup {
    /// One row per application and scenario.
    pub rows: Vec<StartupRow>,
    /// Starts of a single run.
    pub runs: u32,
}

/// What `evenkeel bench throughput` has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughput {
    /// One row per scenario.
    pub rows: Vec<ThroughputRow>,
    /// Length of a single run.
    pub seconds: u32,
}

macro_rules! report {
    ($report:ident, $figure:literal, $unit:literal, $page:expr, $subject:expr) => {
        impl Serialize for $report {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut report = serializer.serialize_struct(stringify!($report), 1)?;
                report.serialize_field("rows", &self.rows)?;
                report.end()
            }
        }

        impl $report {
            /// Returns each single run as a file: its name, which tells the scenario, and its text.
            #[must_use]
            pub fn files(&self) -> Vec<(String, String)> {
                let rows = self.rows.iter();
                let runs =
                    rows.flat_map(|row| (1_usize..).zip(&row.runs).map(move |run| (row, run)));
                runs.map(|(row, (repeat, run))| {
                    let subject: String = $subject(row);
                    let name = names::file(&row.scenario, &subject, $figure, repeat);
                    let title = names::title(&row.scenario, &subject);
                    (name, names::single(&title, run, $unit))
                })
                .collect()
            }

            /// Returns the statistics over the repetitions of each scenario, under a line that
            /// describes it.
            #[must_use]
            pub fn suite(&self) -> String {
                let mut text = String::new();
                for row in &self.rows {
                    let title = names::title(&row.scenario, &$subject(row));
                    text.push_str(&names::overall(&title, &row.runs, $unit));
                }
                text
            }

            /// Returns the rows as a table of text.
            #[must_use]
            pub fn table(&self) -> String {
                let (_title, columns, _bars) = $page;
                table(&serde_json::json!(self), columns)
            }

            /// Returns the rows as a page that needs nothing else.
            #[must_use]
            pub fn html(&self) -> String {
                let (title, columns, bars) = $page;
                html::page(title, &serde_json::json!(self), columns, bars)
            }
        }
    };
}

pub(super) use report;

report!(
    Startup,
    "startup",
    "ms",
    ("Start-up", &STARTUP_COLUMNS[..], "ratio"),
    |row: &StartupRow| row.subject.to_string()
);
report!(
    Throughput,
    "throughput",
    "MB/s",
    ("Throughput", &THROUGHPUT_COLUMNS[..], "throughput_mean_mb_s"),
    |_row: &ThroughputRow| String::new()
);

const STARTUP_COLUMNS: [&str; 16] = [
    "app",
    "where",
    "device",
    "guest_load",
    "host_load",
    "guest_scheduler",
    "scheduler",
    "coordination",
    "idle_mean_ms",
    "loaded_mean_ms",
    "loaded_ci95_ms",
    "ratio",
    "idle_disk_ms",
    "loaded_disk_ms",
    "failed_runs",
    "readers_mb_s",
];

const THROUGHPUT_COLUMNS: [&str; 10] = [
    "where",
    "device",
    "guest_load",
    "host_load",
    "guest_scheduler",
    "scheduler",
    "coordination",
    "throughput_mean_mb_s",
    "throughput_ci95_mb_s",
    "host_readers_mb_s",
];

/// Returns a cell as people read it.
pub(super) fn cell(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        value if value.is_f64() => format!("{:.2}", value.as_f64().unwrap_or(0.0)),
        other => other.to_string(),
    }
}

pub(super) fn table(report: &serde_json::Value, columns: &[&str]) -> String {
    let empty = Vec::new();
    let rows = report["rows"].as_array().unwrap_or(&empty);
    let mut lines = vec![columns.iter().map(|&column| column.to_owned()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|&key| cell(&row[key])).collect()));
    let widths: Vec<usize> = (0..columns.len())
        .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        let _infallible = writeln!(text, "{}", cells.collect::<Vec<_>>().join("  "));
    }
    text
}

#[cfg(test)]
mod tests {
    use evenkeel_sim::d36::GuestLoad;

    use super::*;
    use crate::suite::{Coordination, Where};

    fn scenario() -> Scenario {
        Scenario {
            place: Where::Guest,
            device: "hdd".to_owned(),
            guest_load: GuestLoad::readers(5, true),
            host_load: GuestLoad::readers(1, false),
            guest_scheduler: "bfq".to_owned(),
            scheduler: "cfq".to_owned(),
            coordination: Coordination::Off,
        }
    }

    fn run(samples: &[f64]) -> Measured {
        Measured { samples: samples.to_vec(), ..Measured::default() }
    }

    #[test]
    fn the_second_level_of_statistics_is_over_the_means_of_the_runs() {
        let mut row = StartupRow::new(&App::Bash, &scenario());
        row.add(run(&[50.0, 150.0]), run(&[300.0, 500.0]), 2.0);
        row.add(run(&[200.0, 400.0]), run(&[500.0, 700.0]), 4.0);
        let json = serde_json::json!(row);
        assert_eq!(json["idle_mean_ms"], 200.0);
        assert_eq!(json["loaded_mean_ms"], 500.0);
        assert_eq!(json["ratio"], 2.5);
        assert_eq!(json["readers_mb_s"], 3.0);
        assert_eq!(json["over_runs"]["count"], 2);
        assert_eq!(json["runs"][1]["max"], 700.0);
        assert_eq!(
            (&json["guest_load"], &json["host_load"]),
            (&"5r-rand".into(), &"1r-seq".into())
        );
    }

    #[test]
    fn an_aborted_run_counts_as_failed_and_not_in_the_means() {
        let mut row = StartupRow::new(&App::Bash, &scenario());
        row.add(
            run(&[100.0]),
            Measured { samples: vec![900.0], failed: true, ..Measured::default() },
            0.0,
        );
        assert_eq!(serde_json::json!(row)["loaded_mean_ms"], serde_json::Value::Null);
        row.add(run(&[100.0]), run(&[200.0]), 0.0);
        let json = serde_json::json!(row);
        assert_eq!((&json["failed_runs"], &json["loaded_mean_ms"]), (&1.into(), &200.0.into()));
    }

    #[test]
    fn a_table_and_a_page_show_every_row() {
        let mut row = StartupRow::new(&App::Bash, &scenario());
        row.add(run(&[100.0]), run(&[200.0]), 1.0);
        let report = Startup { rows: vec![row], runs: 1 };
        assert_eq!(report.table().lines().count(), 2);
        assert!(report.table().contains("5r-rand"), "{}", report.table());
        assert!(report.html().contains("<td>5r-rand</td>"), "{}", report.html());
        assert_eq!(report.files().len(), 1);
        assert_eq!(serde_json::json!(report)["rows"][0]["ratio"], 2.0);
    }
}
