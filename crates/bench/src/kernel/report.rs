//! The result: one table side by side, for the eye, for checks, and for the documentation.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::metric::{Better, Metric, Sample};
use super::{CONTESTANTS, Options};
use crate::lab::kvm_works;
use crate::stats::Summary;

/// What the comparison has shown.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The schedulers, in the order of the cells; pairs of the kernel's and ours.
    pub schedulers: Vec<&'static str>,
    /// One row for each figure.
    pub rows: Vec<Row>,
    /// The device whose timing was imitated.
    pub device: String,
    /// Release of the guest's kernel.
    pub guest_kernel: String,
    /// How the guest ran: `kvm` or `tcg`.
    pub accelerator: &'static str,
    /// How long readers were counted in each run.
    pub seconds: u32,
    /// Runs of each job.
    pub repetitions: u32,
    /// How long everything took.
    pub seconds_taken: f64,
    /// Mean number of processes of this machine that wanted a CPU in the last five minutes.
    pub load_average: f64,
    /// CPUs of this machine.
    pub cpus: usize,
}

/// One figure with every scheduler.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What the guest did.
    pub job: &'static str,
    /// What was measured.
    pub figure: String,
    /// Its unit.
    pub unit: &'static str,
    /// By scheduler; none where it was not measured.
    pub cells: Vec<Option<Cell>>,
    /// By pair: how ours compares with the kernel's; none where neither is better.
    pub verdicts: Vec<Option<Verdict>>,
    #[serde(skip)]
    metric: Metric,
}

/// One figure with one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Arithmetic mean of the runs.
    pub mean: f64,
    /// The least.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// Every run.
    pub runs: Vec<f64>,
}

/// How ours compares with the kernel's.
///
/// The two differ if every run of one beats every run of the other, and the means by 5 % (shares:
/// by one percent point).
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Ours is better.
    Better,
    /// They cannot be told apart.
    Same,
    /// Ours is worse.
    Worse,
}

impl Cell {
    fn of(runs: Vec<f64>) -> Self {
        let Summary { mean, min, max, .. } = Summary::of(&runs).expect("a cell has a run");
        Self { mean: rounded(mean), min: rounded(min), max: rounded(max), runs }
    }

    /// Renders mean and spread.
    fn text(&self) -> String {
        let digits = if self.mean.abs() >= 10.0 { 1 } else { 2 };
        if self.runs.len() < 2 {
            return format!("{:.digits$}", self.mean);
        }
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.mean, self.min, self.max)
    }
}

impl Verdict {
    fn of(metric: Metric, kernel: &Cell, ours: &Cell) -> Option<Self> {
        let (better, worse) = match metric.better() {
            Better::More => (ours.min > kernel.max, ours.max < kernel.min),
            Better::Less => (ours.max < kernel.min, ours.min > kernel.max),
            Better::Neither => return None,
        };
        let differ = (ours.mean - kernel.mean).abs() > metric.tolerance(kernel.mean);
        Some(match (differ, better, worse) {
            (true, true, _) => Self::Better,
            (true, _, true) => Self::Worse,
            _ => Self::Same,
        })
    }

    fn text(verdict: Option<Self>) -> &'static str {
        match verdict {
            Some(Self::Better) => "better",
            Some(Self::Same) => "same",
            Some(Self::Worse) => "worse",
            None => "",
        }
    }
}

impl Row {
    fn new(metric: Metric) -> Self {
        Self {
            job: metric.job(),
            figure: metric.to_string(),
            unit: metric.unit(),
            cells: vec![None; CONTESTANTS.len()],
            verdicts: vec![None; CONTESTANTS.len() / 2],
            metric,
        }
    }

    fn judge(&mut self) {
        for (pair, cells) in self.cells.chunks_exact(2).enumerate() {
            let weighs = CONTESTANTS[2 * pair].is_bfq();
            self.verdicts[pair] = match cells {
                [Some(kernel), Some(ours)] if weighs || !self.metric.is_about_weights() => {
                    Verdict::of(self.metric, kernel, ours)
                }
                _ => None,
            };
        }
    }
}

impl Report {
    pub(super) fn new(options: &Options, guest_kernel: String) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            schedulers: CONTESTANTS.map(|contestant| contestant.name).to_vec(),
            rows: Metric::all().into_iter().map(Row::new).collect(),
            device: format!("{} (modelled)", options.model),
            guest_kernel,
            accelerator: if kvm_works() { "kvm" } else { "tcg" },
            seconds: options.seconds,
            repetitions: options.repetitions,
            seconds_taken: 0.0,
            load_average: 0.0,
            cpus,
        }
    }

    /// Notes what was measured with the scheduler of this index.
    pub(super) fn add(&mut self, scheduler: usize, (metric, value): Sample) {
        let row = self.rows.iter_mut().find(|row| row.metric == metric);
        let row = row.expect("every metric has a row");
        let cell = row.cells[scheduler].take();
        let mut runs = cell.map(|cell| cell.runs).unwrap_or_default();
        runs.push(rounded(value));
        row.cells[scheduler] = Some(Cell::of(runs));
        row.judge();
    }

    /// Notes how long everything took, and how busy the machine was.
    pub(super) fn finish(&mut self, seconds: f64) {
        self.seconds_taken = seconds.round();
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let five_minutes = load.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        self.load_average = five_minutes.unwrap_or(0.0);
    }

    /// Returns the rows as a table, in Markdown, which is as good for the eye.
    #[must_use]
    pub fn table(&self) -> String {
        let mut heading = vec!["job".to_owned(), "figure".to_owned(), "unit".to_owned()];
        for pair in self.schedulers.chunks(2) {
            heading.extend(pair.iter().map(|&name| name.to_owned()));
            heading.push("ours is".to_owned());
        }
        let mut lines = vec![heading];
        let measured = |row: &&Row| row.cells.iter().any(Option::is_some);
        let mut job = "";
        for row in self.rows.iter().filter(measured) {
            let named = if row.job == job { "" } else { row.job };
            job = row.job;
            let mut line = vec![named.to_owned(), row.figure.clone(), row.unit.to_owned()];
            for (cells, verdict) in row.cells.chunks(2).zip(&row.verdicts) {
                line.extend(
                    cells
                        .iter()
                        .map(|cell| cell.as_ref().map_or_else(|| "–".to_owned(), Cell::text)),
                );
                line.push(Verdict::text(*verdict).to_owned());
            }
            lines.push(line);
        }
        lay_out(&lines)
    }

    /// Returns the conditions, the table, and what its words mean.
    #[must_use]
    pub fn page(&self) -> String {
        format!(
            "- Device: {}. Guest: Linux {}, on {}, two virtual CPUs, two vrings.\n\
             - Readers were counted for {} s in each run; {} runs of each job, and as many starts. \
             Cells: mean (least–largest).\n\
             - Everything took {:.0} s, on {} CPUs with a load average of {:.1}.\n\n{}",
            self.device,
            self.guest_kernel,
            if self.accelerator == "kvm" { "KVM" } else { "an emulated CPU (TCG)" },
            self.seconds,
            self.repetitions,
            self.seconds_taken,
            self.cpus,
            self.load_average,
            self.table()
        )
    }

    /// Writes `bench-kernel.json` into `dir`, and the measured part of `bench-kernel.md`: what
    /// stands between the lines `BEGIN` and `END`; a page that is not there is begun.
    ///
    /// # Errors
    ///
    /// The files cannot be written, or the page lacks those lines.
    pub fn write(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let path = dir.join("bench-kernel.json");
        fs::write(&path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        let path = dir.join("bench-kernel.md");
        let old = match fs::read_to_string(&path) {
            Ok(old) => old,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                format!("# Beside the kernel's schedulers\n\n{BEGIN}\n{END}\n")
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let page = replaced(&old, &self.page()).with_context(|| {
            format!("{} lacks the lines {BEGIN} and {END}; add them, or move it", path.display())
        })?;
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Where the measured part of the page begins.
const BEGIN: &str = "<!-- measured: written by evenkeel bench kernel -->";
/// Where it ends.
const END: &str = "<!-- end of what was measured -->";

/// Returns `page` with `part` in its measured part.
fn replaced(page: &str, part: &str) -> Option<String> {
    let (before, rest) = page.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", part.trim()))
}

/// Lays out a table in Markdown; the first line is the heading.
fn lay_out(lines: &[Vec<String>]) -> String {
    let columns = lines.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns)
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        for (cell, width) in line.iter().zip(&widths) {
            let _infallible = write!(text, "| {cell:<width$} ");
        }
        text.push_str("|\n");
        if index == 0 {
            for width in &widths {
                let _infallible = write!(text, "|{}", "-".repeat(width + 2));
            }
            text.push_str("|\n");
        }
    }
    text
}

/// Rounds to a thousandth: more digits would only pretend.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Report {
        let mut report = Report::new(&Options::new("evenkeel".into()), "6.1".to_owned());
        for (scheduler, seconds) in [(0, 2.0), (1, 1.0), (2, 9.0), (3, 9.1)] {
            report.add(scheduler, (Metric::StartPlain, seconds));
            report.add(scheduler, (Metric::StartPlain, seconds + 0.1));
        }
        report
    }

    #[test]
    fn ours_is_better_or_worse_only_if_every_run_says_so() {
        let cell = |runs: &[f64]| Cell::of(runs.to_vec());
        let judge = |kernel: &[f64], ours: &[f64]| {
            Verdict::of(Metric::MixedTotal, &cell(kernel), &cell(ours))
        };
        assert_eq!(judge(&[1.0, 2.0], &[3.0, 4.0]), Some(Verdict::Better));
        assert_eq!(judge(&[3.0, 4.0], &[1.0, 2.0]), Some(Verdict::Worse));
        assert_eq!(judge(&[1.0, 3.0], &[2.9, 4.0]), Some(Verdict::Same));
        assert_eq!(judge(&[100.0], &[104.0]), Some(Verdict::Same));
        assert_eq!(Verdict::of(Metric::MixedRandom, &cell(&[1.0]), &cell(&[2.0])), None);
    }

    #[test]
    fn less_is_better_for_starts() {
        let row = |report: &Report| {
            report.rows.iter().find(|row| row.metric == Metric::StartPlain).cloned().unwrap()
        };
        let row = row(&sample());
        assert_eq!(row.verdicts, [Some(Verdict::Better), Some(Verdict::Same)]);
        assert_eq!(row.cells[0].as_ref().unwrap().mean, 2.05);
    }

    #[test]
    fn only_the_measured_part_of_the_page_is_replaced() {
        let page = format!("head\n{BEGIN}\nold\n{END}\ntail\n");
        let new = replaced(&page, "new\n").unwrap();
        assert_eq!(new, format!("head\n{BEGIN}\n\nnew\n\n{END}\ntail\n"));
        assert_eq!(replaced("head", "new"), None);
    }

    #[test]
    fn the_table_shows_what_was_measured_and_nothing_else() {
        let table = sample().table();
        assert_eq!(table.lines().count(), 3, "{table}");
        assert!(table.contains("2.05 (2.00–2.10)"), "{table}");
    }

    #[test]
    fn the_json_names_schedulers_figures_and_verdicts() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["schedulers"][1], "evenkeel bfq");
        let rows = json["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["figure"] == "beside readers").unwrap();
        assert_eq!(row["verdicts"][0], "better");
        assert_eq!(row["cells"][1]["runs"][1], 1.1);
    }
}
