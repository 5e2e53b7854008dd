//! How long everybody took: as rows, as a table, as comma-separated values.

use std::fmt::Write as _;

use evenkeel_sched::Nanos;
use serde::Serialize;

use super::{Pace, ReplayOptions, Taken, Workload};

/// The name of the rows that tell what was recorded.
const RECORDED: &str = "recorded";
/// The name of the rows of all disks together.
const ALL: &str = "(all)";
const SINK: &str = "writing to a string cannot fail";

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Where the requests come from.
    pub source: String,
    /// The modelled device.
    pub device: String,
    /// The most commands at it at a time.
    pub depth: u32,
    /// Whether requests came when they had come, `open`, or after the answers that they had waited
    /// for, `closed`.
    pub pace: &'static str,
    /// What people should know before they believe it.
    pub notes: Vec<String>,
    /// How long everything took.
    pub spans: Vec<Span>,
    /// By disk, in their order, at last all together; for each what was recorded, then the
    /// schedulers in their order.
    pub rows: Vec<ReportRow>,
}

/// From the beginning to the last answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// The scheduler, or `recorded`.
    pub scheduler: String,
    /// In seconds.
    pub seconds: f64,
}

/// The requests of one disk, with one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReportRow {
    /// The disk, or `(all)`.
    pub disk: String,
    /// The scheduler, or `recorded`.
    pub scheduler: String,
    /// How many there are.
    pub requests: u64,
    /// From their arrival to the device.
    pub wait: Times,
    /// From the device to their answer.
    pub service: Times,
    /// Both together.
    pub total: Times,
    #[serde(skip)]
    place: usize,
}

/// Durations in microseconds: the mean, and what so many of a thousand stay within, exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Times {
    /// Arithmetic mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

impl Times {
    /// Sorts the durations.
    fn of(mut durations: Vec<Nanos>) -> Self {
        durations.sort_unstable();
        let Some(last) = durations.len().checked_sub(1) else { return Self::default() };
        let sum: u128 = durations.iter().map(|duration| u128::from(duration.0)).sum();
        let mean = sum / (last as u128 + 1);
        let at = |per_mille: usize| {
            let rank = (durations.len() * per_mille).div_ceil(1000).max(1);
            micros(durations[rank - 1])
        };
        Self {
            mean_us: micros(Nanos(u64::try_from(mean).unwrap_or(u64::MAX))),
            p50_us: at(500),
            p99_us: at(990),
            p999_us: at(999),
        }
    }

    const fn all(&self) -> [f64; 4] {
        [self.mean_us, self.p50_us, self.p99_us, self.p999_us]
    }
}

fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

impl Report {
    /// Returns a report of what was recorded.
    pub(super) fn new(workload: &Workload, options: &ReplayOptions) -> Self {
        let mut report = Self {
            source: workload.source.clone(),
            device: options.device.to_string(),
            depth: 0,
            pace: match options.pace {
                Pace::Open => "open",
                Pace::Closed => "closed",
            },
            notes: workload.notes.clone(),
            spans: Vec::new(),
            rows: Vec::new(),
        };
        let requests = workload.requests.iter();
        let known = requests.filter_map(|request| Some((request.disk, request.recorded?)));
        let known: Vec<_> = known.collect();
        report.add_rows(workload, RECORDED, &known);
        let ends = workload.requests.iter();
        let ends = ends.map(|request| request.at + request.recorded.unwrap_or_default().total());
        report.add_span(RECORDED, ends.max().unwrap_or_default());
        report
    }

    /// Adds what a scheduler made of it.
    pub(super) fn add(
        &mut self,
        workload: &Workload,
        scheduler: &str,
        taken: &[Taken],
        ended: Nanos,
    ) {
        let disks = workload.requests.iter().map(|request| request.disk);
        let all: Vec<_> = disks.zip(taken.iter().copied()).collect();
        self.add_rows(workload, scheduler, &all);
        self.add_span(scheduler, ended);
    }

    fn add_span(&mut self, scheduler: &str, end: Nanos) {
        let seconds = micros(end) / 1e6;
        self.spans.push(Span { scheduler: scheduler.to_owned(), seconds });
    }

    fn add_rows(&mut self, workload: &Workload, scheduler: &str, taken: &[(u32, Taken)]) {
        let mut of_disk: Vec<Vec<Taken>> = workload.disks.iter().map(|_| Vec::new()).collect();
        for &(disk, taken) in taken {
            of_disk[disk as usize].push(taken);
        }
        let names = workload.disks.iter().map(|disk| disk.name.as_str());
        let everything = (ALL, taken.iter().map(|&(_, taken)| taken).collect());
        for (place, (disk, taken)) in names.zip(of_disk).chain([everything]).enumerate() {
            if taken.is_empty() {
                continue;
            }
            let times = |of: fn(&Taken) -> Nanos| Times::of(taken.iter().map(of).collect());
            self.rows.push(ReportRow {
                disk: disk.to_owned(),
                scheduler: scheduler.to_owned(),
                requests: taken.len() as u64,
                wait: times(|taken| taken.wait),
                service: times(|taken| taken.service),
                total: times(Taken::total),
                place,
            });
        }
    }

    /// Puts the rows of a disk beside one another.
    pub(super) fn sort(&mut self) {
        self.rows.sort_by_key(|row| row.place);
    }

    /// Returns the report for people.
    #[must_use]
    pub fn table(&self) -> String {
        let Self { source, device, depth, pace, .. } = self;
        let when = match *pace {
            "open" => "requests come when they came",
            _ => "requests come when what they waited for is answered",
        };
        let mut text = format!("{source} on {device}, depth {depth}; {when}\n\n");
        let longest = self.rows.iter().map(|row| row.total.p999_us).fold(0.0, f64::max);
        let (unit, scale, digits) =
            if longest < 100_000.0 { ("µs", 1.0, 0) } else { ("ms", 1000.0, 1) };
        let names = |name: fn(&ReportRow) -> &str, least: usize| {
            let lengths = self.rows.iter().map(|row| name(row).chars().count());
            lengths.max().unwrap_or(0).max(least)
        };
        let (disks, schedulers) = (names(|row| &row.disk, 4), names(|row| &row.scheduler, 9));
        let kinds = ["WAIT", "SERVICE", "TOTAL"].map(|kind| format!("   {kind:<36}"));
        let indent = disks + schedulers + 11;
        writeln!(text, "{:indent$}{}", "", kinds.concat().trim_end()).expect(SINK);
        let heads = ["MEAN", "P50", "P99", "P99.9"].map(|head| format!("{head:>9}")).concat();
        let heads = [heads.as_str(); 3].join("   ");
        writeln!(text, "{:disks$} {:schedulers$} {:>9}{heads}", "DISK", "SCHEDULER", "REQUESTS")
            .expect(SINK);
        let mut before = None;
        for row in &self.rows {
            // The disk stands once, before what was made of it.
            let disk = if before == Some(row.place) { "" } else { &row.disk };
            before = Some(row.place);
            write!(text, "{disk:disks$} {:schedulers$} {:>9}", row.scheduler, row.requests)
                .expect(SINK);
            for (times, gap) in [(row.wait, ""), (row.service, "   "), (row.total, "   ")] {
                text.push_str(gap);
                for time in times.all() {
                    write!(text, "{:>9.digits$}", time / scale).expect(SINK);
                }
            }
            text.push('\n');
        }
        let spans = self.spans.iter();
        let spans: Vec<_> =
            spans.map(|span| format!("{} {:.3} s", span.scheduler, span.seconds)).collect();
        writeln!(text, "\nTimes in {unit}. To the last answer: {}.", spans.join(", ")).expect(SINK);
        for note in &self.notes {
            writeln!(text, "{note}").expect(SINK);
        }
        text
    }

    /// Returns the rows for spreadsheets, in microseconds.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = String::from("disk,scheduler,requests");
        for kind in ["wait", "service", "total"] {
            for figure in ["mean", "p50", "p99", "p999"] {
                write!(text, ",{kind}_{figure}_us").expect(SINK);
            }
        }
        for row in &self.rows {
            let disk = row.disk.replace('"', "\"\"");
            write!(text, "\n\"{disk}\",{},{}", row.scheduler, row.requests).expect(SINK);
            for time in [row.wait, row.service, row.total].iter().flat_map(Times::all) {
                write!(text, ",{time:.3}").expect(SINK);
            }
        }
        text.push('\n');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_durations_themselves() {
        let times = Times::of((1..=1000).rev().map(Nanos::from_micros).collect());
        let expected = Times { mean_us: 500.5, p50_us: 500.0, p99_us: 990.0, p999_us: 999.0 };
        assert_eq!(times, expected);
        assert_eq!(Times::of(Vec::new()), Times::default());
        assert_eq!(Times::of(vec![Nanos(1500)]).all(), [1.5; 4]);
    }
}
