//! `evenkeel bench`: calls the benchmarks and prints what they report.

use std::env;

use evenkeel_bench::{demo, downwards, fairness, kernel, sched, shares};
use serde::Serialize;
use serde_json::Value;

use crate::args::{Bench, BenchArgs, BenchFormat, Format};
use crate::failure::{Failure, Outcome};
use crate::{measure, print, suite};

pub(crate) fn run(args: &BenchArgs) -> Outcome<()> {
    let format = match args.format {
        BenchFormat::Json => Format::Json,
        BenchFormat::Table => Format::Table,
        BenchFormat::Html | BenchFormat::Suite if args.what.has_pages() => Format::Table,
        BenchFormat::Html | BenchFormat::Suite => {
            let problem = "--format: this benchmark prints table and json only";
            return Err(Failure::wrong_use(anyhow::anyhow!(problem)));
        }
    };
    let evenkeel = env::current_exe().map_err(Failure::work)?;
    match &args.what {
        Bench::Startup(what) => suite::startup(what, args.format),
        Bench::Throughput(what) => suite::throughput(what, args.format),
        Bench::Player(what) => suite::player(what, args.format),
        Bench::Demo { scheduler, model, starts, dir } => {
            let report = demo::run(&demo::Options {
                schedulers: scheduler.iter().map(ToString::to_string).collect(),
                model: model.clone(),
                starts: *starts,
                dir: dir.clone(),
            })
            .map_err(Failure::Work)?;
            show(format, &report, |_| report.table())
        }
        Bench::Downwards { dir, schedulers, seconds, repetitions } => {
            let mut options = downwards::Options::new(evenkeel, dir);
            options.schedulers.clone_from(schedulers);
            (options.seconds, options.repetitions) = (*seconds, *repetitions);
            let report = downwards::run(&options, &mut progress).map_err(Failure::Work)?;
            show(format, &report, table)
        }
        Bench::Kernel { model, seconds, repetitions, results } => {
            let mut options = kernel::Options::new(evenkeel);
            options.model.clone_from(model);
            (options.seconds, options.repetitions) = (*seconds, *repetitions);
            let report = kernel::run(&options, &mut progress).map_err(Failure::Work)?;
            if let Some(dir) = results {
                report.write(dir).map_err(Failure::Work)?;
            }
            show(format, &report, |_| report.page())
        }
        Bench::Cost(what) => measure::cost(what, format),
        Bench::Isolation(what) => measure::isolation(what, format),
        Bench::Rate(what) => measure::rate(what, format),
        Bench::Scale(what) => measure::scale(what, format),
        Bench::Sched => {
            let report = sched::run(&sched::Options::default(), |row| {
                progress(&format!("{}, {} queues", row.scheduler, row.queues));
            });
            show(format, &report, |_| report.table())
        }
        Bench::Fairness => {
            let report = fairness::run(progress);
            show(format, &report, table)
        }
        Bench::Shares { dir, model, visitor } => {
            let mut options = shares::SharesOptions::new(evenkeel, dir, model.clone());
            options.visitor = *visitor;
            let report = shares::run(&options, &mut progress).map_err(Failure::Work)?;
            show(format, &report, table)
        }
    }
}

impl Bench {
    /// Returns whether its report has more formats than table and JSON.
    fn has_pages(&self) -> bool {
        matches!(self, Self::Startup(_) | Self::Throughput(_) | Self::Player(_))
    }
}

/// Tells how far it is.
pub(crate) fn progress(line: &str) {
    eprintln!("{line}");
}

/// Prints a report as JSON, or as the table that `table` makes of that.
pub(crate) fn show(
    format: Format,
    report: &impl Serialize,
    table: impl FnOnce(&Value) -> String,
) -> Outcome<()> {
    print(&match format {
        Format::Json => serde_json::to_string_pretty(report).map_err(Failure::work)? + "\n",
        Format::Table => table(&serde_json::to_value(report).map_err(Failure::work)?),
    })
}

/// Lays out the rows of a report, and those of idle disks if it has them: one column per field, in
/// the order of the fields.
pub(crate) fn table(report: &Value) -> String {
    let of = |key: &str| report.get(key).and_then(Value::as_array).and_then(|rows| lay_out(rows));
    match (of("rows"), of("idle")) {
        (Some(rows), Some(idle)) => format!("{rows}\n{idle}"),
        (rows, idle) => rows.or(idle).unwrap_or_else(|| "nothing was measured\n".to_owned()),
    }
}

fn lay_out(rows: &[Value]) -> Option<String> {
    let first = rows.first()?.as_object()?;
    let heading: Vec<String> = first.keys().cloned().collect();
    let mut lines = vec![heading.clone()];
    lines.extend(rows.iter().map(|row| heading.iter().map(|key| cell(&row[key])).collect()));
    let widths: Vec<usize> = (0..heading.len())
        .map(|column| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    Some(lines.iter().map(line).collect())
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(float) if float.abs() >= 1000.0 => format!("{float:.0}"),
            Some(float) => format!("{float:.2}"),
            None => number.to_string(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_column_for_each_field_in_their_order() {
        let report = serde_json::json!({"rows": [
            {"server": "bfq", "iops": 12345.6, "ratio": null},
            {"server": "none", "iops": 1.0, "ratio": 0.987},
        ]});
        let expected = "server   iops  ratio\n   bfq  12346      -\n  none   1.00   0.99\n";
        assert_eq!(table(&report), expected);
        let both = serde_json::json!({"rows": [{"a": 1}], "idle": [{"b": 2}]});
        assert_eq!(table(&both), "a\n1\n\nb\n2\n");
        assert_eq!(table(&serde_json::json!({"rows": []})), "nothing was measured\n");
    }
}
