//! The result: a table for the eye, JSON for checks, a page for the colleague.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::Options;
use super::images::Images;
use super::launch::{LIMIT, Run};
use super::measured::Comparison;
use super::page;
use super::scene::Rates;
use crate::lab::kvm_works;
use crate::stats::Summary;

/// What the demonstration has shown: `result.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// One row for each scheduler.
    pub rows: Vec<Row>,
    /// The device whose timing was imitated.
    pub device: String,
    /// How the guests ran: `kvm` or `tcg`; `model` in virtual time.
    pub accelerator: &'static str,
    /// Files that the application reads at its start.
    pub application_files: u32,
    /// Bytes in them.
    pub application_bytes: u64,
    /// In a prediction, what was measured beside it; nowhere else.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub measured: Vec<Comparison>,
    /// What readers of these figures must know.
    pub notes: Vec<String>,
    /// How long the demonstration took, in seconds.
    pub seconds: f64,
}

/// The start-up times with one scheduler, in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The scheduler.
    pub scheduler: String,
    /// Mean on the idle disk.
    pub idle_mean_ms: f64,
    /// Half-width of the 95 % confidence interval of that mean.
    pub idle_ci95_ms: f64,
    /// Mean under load; a failed start counts as the limit of 60 s, so the truth is worse.
    pub loaded_mean_ms: f64,
    /// Half-width of the 95 % confidence interval of that mean.
    pub loaded_ci95_ms: f64,
    /// Loaded mean by idle mean.
    pub ratio: f64,
    /// Starts, idle or loaded, that took more than 60 s or were given up after two such in a row.
    pub failed_runs: usize,
    /// Each start on the idle disk.
    pub idle_runs_ms: Vec<f64>,
    /// Each start under load.
    pub loaded_runs_ms: Vec<f64>,
    /// What all sequential readers got together meanwhile, in 10^6 bytes per second.
    pub sequential_readers_mb_s: f64,
    /// What all random readers got together meanwhile, in 10^6 bytes per second.
    pub random_readers_mb_s: f64,
}

impl Row {
    pub(super) fn new(scheduler: &str, idle: &[Run], loaded: &[Run], rates: Rates) -> Self {
        let idle_runs_ms: Vec<f64> = idle.iter().map(Run::ms).collect();
        let loaded_runs_ms: Vec<f64> = loaded.iter().map(Run::ms).collect();
        let summary = |runs| Summary::of(runs).expect("at least one start of each kind is made");
        let (idle_times, loaded_times) = (summary(&idle_runs_ms), summary(&loaded_runs_ms));
        Self {
            scheduler: scheduler.to_owned(),
            idle_mean_ms: tenths(idle_times.mean),
            idle_ci95_ms: tenths(idle_times.ci95),
            loaded_mean_ms: tenths(loaded_times.mean),
            loaded_ci95_ms: tenths(loaded_times.ci95),
            ratio: (loaded_times.mean / idle_times.mean * 1e3).round() / 1e3,
            failed_runs: idle.iter().chain(loaded).filter(|run| run.failed()).count(),
            idle_runs_ms: idle_runs_ms.into_iter().map(tenths).collect(),
            loaded_runs_ms: loaded_runs_ms.into_iter().map(tenths).collect(),
            sequential_readers_mb_s: (rates.sequential_mb_s * 1e3).round() / 1e3,
            random_readers_mb_s: (rates.random_mb_s * 1e3).round() / 1e3,
        }
    }
}

impl Report {
    pub(super) fn new(rows: Vec<Row>, options: &Options, images: &Images, took: Duration) -> Self {
        let accelerator = if kvm_works() { "kvm" } else { "tcg" };
        let notes = [
            format!(
                "The device is a model ({}): the data is real and goes to and from real files, \
                 but an answer is held back until that device would have given it.",
                options.model
            ),
            format!(
                "Guest A starts an application {} times on the idle disk, then {} times while \
                 guest A reads a large file sequentially and one at random (4 KiB), and guest B \
                 reads two sequentially and one at random. Both guests drop their caches before \
                 each start.",
                options.starts, options.starts
            ),
            "The application runs with the best ordinary I/O priority (ionice -c2 -n0), whatever \
             the scheduler. The guest's kernel puts the priority into every virtio-blk request; \
             this is the only coordination between guest and host in this release."
                .to_owned(),
            "The application loads its libraries one after another, then its other files with eight \
             threads."
                .to_owned(),
            "Inside the guests the I/O scheduler is none. The time runs inside guest A, by its \
             monotonic clock, from the start of the process until the application is ready."
                .to_owned(),
            format!(
                "A start over {} s has failed and counts as {} s.",
                LIMIT.as_secs(),
                LIMIT.as_secs()
            ),
        ];
        Self {
            rows,
            device: format!("{} (modelled)", options.model),
            accelerator,
            application_files: images.files,
            application_bytes: images.bytes,
            measured: Vec::new(),
            notes: notes.to_vec(),
            seconds: tenths(took.as_secs_f64()),
        }
    }

    /// Returns the rows as a table of text, with a line that says what it shows.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "Start-up of an application ({} files, {:.1} MB) on one {} shared by two guests\n\n\
             scheduler       idle disk        under load    ratio  failed   readers MB/s\n\
             {:<13}{:>10} {:>5}{:>11} {:>6}{:>9}{:>8}{:>8}{:>7}\n",
            self.application_files,
            whole_megabytes(self.application_bytes),
            self.device,
            "",
            "mean s",
            "±",
            "mean s",
            "±",
            "",
            "",
            "seq",
            "rand",
        );
        for row in &self.rows {
            text.push_str(&format!(
                "{:<13}{:>10.2} {:>5.2}{:>11.2} {:>6.2}{:>9.2}{:>8}{:>8.2}{:>7.2}\n",
                row.scheduler,
                row.idle_mean_ms / 1e3,
                row.idle_ci95_ms / 1e3,
                row.loaded_mean_ms / 1e3,
                row.loaded_ci95_ms / 1e3,
                row.ratio,
                row.failed_runs,
                row.sequential_readers_mb_s,
                row.random_readers_mb_s,
            ));
        }
        text.push_str("\n± is half the 95 % confidence interval (Student's t).\n");
        for comparison in &self.measured {
            text.push_str(&comparison.line());
            text.push('\n');
        }
        text
    }

    /// Returns the rows for a spreadsheet: times in milliseconds, rates in 10^6 bytes per second.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = "scheduler,idle_mean_ms,idle_ci95_ms,loaded_mean_ms,loaded_ci95_ms,ratio,\
                        failed_runs,sequential_readers_mb_s,random_readers_mb_s\n"
            .to_owned();
        for row in &self.rows {
            let Row { scheduler, idle_mean_ms, idle_ci95_ms, loaded_mean_ms, .. } = row;
            let Row { loaded_ci95_ms, ratio, failed_runs, .. } = row;
            let (seq, random) = (row.sequential_readers_mb_s, row.random_readers_mb_s);
            text.push_str(&format!(
                "{scheduler},{idle_mean_ms},{idle_ci95_ms},{loaded_mean_ms},{loaded_ci95_ms},\
                 {ratio},{failed_runs},{seq},{random}\n"
            ));
        }
        text
    }

    /// Returns the page for the browser.
    #[must_use]
    pub fn html(&self) -> String {
        page::render(self)
    }

    /// Writes `result.json` and `report.html` into `dir`.
    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)? + "\n";
        for (name, content) in [("result.json", json), ("report.html", self.html())] {
            let path = dir.join(name);
            fs::write(&path, content)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Rounds to a tenth: more digits would only pretend.
fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

#[expect(clippy::cast_precision_loss, reason = "an application reads far less than 2^52 bytes")]
pub(super) fn whole_megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn sample() -> Report {
        let took = |ms: &[u64]| -> Vec<Run> {
            ms.iter().map(|&ms| Run::Took(Duration::from_millis(ms))).collect()
        };
        let rates = Rates { sequential_mb_s: 4.0, random_mb_s: 0.1 };
        let mut failing = took(&[30_000]);
        failing.extend([Run::TimedOut, Run::TimedOut, Run::Skipped]);
        let rows = vec![
            Row::new("noop", &took(&[900, 1_100]), &failing, rates),
            Row::new("bfq", &took(&[1_000, 1_000]), &took(&[1_500, 1_700]), rates),
        ];
        let images = Images { a: "a".into(), b: "b".into(), files: 240, bytes: 3_000_000 };
        Report::new(rows, &Options::default(), &images, Duration::from_secs(200))
    }

    #[test]
    fn failed_and_skipped_starts_count_as_the_limit() {
        let row = &sample().rows[0];
        assert_eq!(row.failed_runs, 3);
        assert_eq!(row.loaded_runs_ms, [30_000.0, 60_000.0, 60_000.0, 60_000.0]);
        assert_eq!((row.loaded_mean_ms, row.ratio), (52_500.0, 52.5));
    }

    #[test]
    fn the_json_has_the_fields_that_checks_read() {
        let json = serde_json::to_value(sample()).unwrap();
        let row = &json["rows"][1];
        assert_eq!(row["scheduler"], "bfq");
        assert_eq!(row["idle_mean_ms"], 1_000.0);
        assert_eq!(row["loaded_mean_ms"], 1_600.0);
        assert_eq!(row["ratio"], 1.6);
        assert_eq!(row["failed_runs"], 0);
        // t(0.975, 1) = 12.706, s = 141.4, n = 2.
        assert_eq!(row["loaded_ci95_ms"], 1_270.6);
    }
}
