//! What a real demonstration has measured, for a prediction to be held against.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};
use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::demo::{CpuModel, calibrated};
use serde::{Deserialize, Serialize};

use super::report::Report;

/// The `result.json` of a real demonstration, as far as a prediction needs it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The device whose timing was imitated.
    pub device: ModelSpec,
    /// The schedulers, in the order of the rows.
    pub schedulers: Vec<Kind>,
    /// CPUs with which the simulated idle start takes as long as the measured ones.
    pub cpu: CpuModel,
    ratios: Vec<f64>,
}

/// A predicted ratio beside the measured one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scheduler.
    pub scheduler: String,
    /// Mean start under load by that on the idle disk, in real guests.
    pub measured_ratio: f64,
    /// The same, in virtual time.
    pub predicted_ratio: f64,
    /// How much larger the predicted one is, in percent.
    pub off_percent: f64,
}

#[derive(Deserialize)]
struct Document {
    rows: Vec<Line>,
    device: String,
}

#[derive(Deserialize)]
struct Line {
    scheduler: String,
    idle_mean_ms: f64,
    ratio: f64,
}

impl Measured {
    /// Reads what `evenkeel bench demo` has written, and finds the CPUs that explain it.
    ///
    /// # Errors
    ///
    /// Fails with what to do if the file cannot be read, is no such result, or has idle starts that
    /// no CPU explains.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::of(&text).with_context(|| {
            format!("{}: give the result.json that evenkeel bench demo has written", path.display())
        })
    }

    fn of(text: &str) -> Result<Self> {
        let Document { rows, device } = serde_json::from_str(text)?;
        ensure!(!rows.is_empty(), "rows: there are none");
        let name = device.strip_suffix(" (modelled)").unwrap_or(&device);
        let spec: ModelSpec = name.parse().map_err(|error| anyhow!("device: {error}"))?;
        let kind = |row: &Line| {
            row.scheduler.parse::<Kind>().map_err(|error| anyhow!("scheduler: {error}"))
        };
        let schedulers = rows.iter().map(kind).collect::<Result<Vec<Kind>>>()?;
        let count = u32::try_from(rows.len()).context("rows: too many")?;
        let idle_ms = rows.iter().map(|row| row.idle_mean_ms).sum::<f64>() / f64::from(count);
        ensure!(idle_ms.is_finite() && idle_ms > 0.0, "idle_mean_ms: no time");
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is positive"
        )]
        let idle = Nanos((idle_ms * 1e6) as u64);
        let cpu = calibrated(&spec, idle).map_err(|(least, most)| {
            anyhow!(
                "idle_mean_ms: starts on the idle {name} took {idle_ms:.0} ms on average; here they \
                 take {} to {} ms, whatever the CPU",
                least.0 / 1_000_000,
                most.0 / 1_000_000
            )
        })?;
        let ratios: Vec<f64> = rows.iter().map(|row| row.ratio).collect();
        ensure!(ratios.iter().all(|&ratio| ratio > 0.0), "ratio: not above zero");
        Ok(Self { device: spec, schedulers, cpu, ratios })
    }

    /// Holds a prediction for the same schedulers against what was measured.
    pub fn compare(&self, report: &mut Report) {
        let line = |(row, &measured): (&super::Row, &f64)| Comparison {
            scheduler: row.scheduler.clone(),
            measured_ratio: measured,
            predicted_ratio: row.ratio,
            off_percent: ((row.ratio / measured - 1.0) * 1e3).round() / 10.0,
        };
        report.measured = report.rows.iter().zip(&self.ratios).map(line).collect();
        report.notes.extend(report.measured.iter().map(Comparison::line));
    }
}

impl Comparison {
    /// Returns the comparison as a sentence.
    pub(super) fn line(&self) -> String {
        let Self { scheduler, measured_ratio, predicted_ratio, off_percent } = self;
        format!(
            "{scheduler}: {measured_ratio:.2} times idle was measured, {predicted_ratio:.2} is \
             predicted ({off_percent:+.1} %)."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::{PredictOptions, predict};

    const RESULT: &str = r#"{"device": "hdd (modelled)", "seconds": 204.1, "rows": [
        {"scheduler": "noop", "idle_mean_ms": 600.0, "ratio": 14.3},
        {"scheduler": "bfq", "idle_mean_ms": 640.0, "ratio": 1.35}]}"#;

    #[test]
    fn a_prediction_is_held_against_what_was_measured() {
        let measured = Measured::of(RESULT).unwrap();
        assert_eq!(measured.schedulers, [Kind::Noop, Kind::Bfq]);
        let mut report = predict(&PredictOptions {
            schedulers: measured.schedulers.clone(),
            device: measured.device.clone(),
            starts: 5,
            runs: 4,
            seed: 1,
            cpu: measured.cpu,
        });
        measured.compare(&mut report);
        let idle = report.rows[0].idle_mean_ms;
        assert!((590.0..650.0).contains(&idle), "{idle} ms: calibrated for 620");
        for (comparison, ratio) in report.measured.iter().zip([14.3, 1.35]) {
            assert_eq!(comparison.measured_ratio, ratio);
            assert!(report.table().contains(&comparison.line()), "{}", report.table());
            assert!(report.html().contains(&comparison.line()));
        }
    }

    #[test]
    fn what_is_no_result_is_refused_by_the_name_of_what_is_wrong() {
        for (text, part) in [
            ("{}", "rows"),
            (r#"{"device": "hdd", "rows": []}"#, "rows: there are none"),
            (&RESULT.replace("hdd", "tape"), "device: "),
            (&RESULT.replace("noop", "fast"), "scheduler: "),
            (&RESULT.replace("600.0", "-640.0"), "idle_mean_ms: no time"),
            (&RESULT.replace("14.3", "0.0"), "ratio: not above zero"),
            (&RESULT.replace("600.0", "2.0").replace("640.0", "2.0"), "took 2 ms on average"),
        ] {
            let error = format!("{:#}", Measured::of(text).unwrap_err());
            assert!(error.contains(part), "{part}: {error}");
        }
    }
}
