//! What is measured, in which unit, and which way is better.

use std::fmt;

use super::fio;

/// One figure of one run.
pub(super) type Sample = (Metric, f64);

/// A row of the table.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Metric {
    /// Percent of the sequential bytes that the reader of this index got.
    SequentialShare(usize),
    /// By how many percent points the share of the worst treated reader is off.
    SequentialShareError,
    SequentialTotal,
    RandomShare(usize),
    RandomShareError,
    RandomTotal,
    MixedSequential,
    MixedRandom,
    MixedTotal,
    StartIdle,
    StartPlain,
    StartPlainRatio,
    StartPreferred,
    StartPreferredRatio,
    StartReaders,
}

/// Whether more is better, or less, or neither.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Better {
    More,
    Less,
    Neither,
}

impl Metric {
    /// Every row, in the order of the table.
    pub(super) fn all() -> Vec<Self> {
        let mut all: Vec<Self> = (0..4).map(Self::SequentialShare).collect();
        all.extend([Self::SequentialShareError, Self::SequentialTotal]);
        all.extend((0..4).map(Self::RandomShare));
        all.extend([
            Self::RandomShareError,
            Self::RandomTotal,
            Self::MixedSequential,
            Self::MixedRandom,
            Self::MixedTotal,
            Self::StartIdle,
            Self::StartPlain,
            Self::StartPlainRatio,
            Self::StartPreferred,
            Self::StartPreferredRatio,
            Self::StartReaders,
        ]);
        all
    }

    /// Returns what the rates of the weighted readers say, in megabytes per second.
    pub(super) fn of_shares(sequential: bool, rates: &[f64]) -> Vec<Sample> {
        let total: f64 = rates.iter().sum();
        let mut samples = Vec::new();
        let mut error: f64 = 0.0;
        for (index, (rate, entitled)) in rates.iter().zip(fio::entitled()).enumerate() {
            let share = if total > 0.0 { rate / total } else { 0.0 };
            error = error.max((share - entitled).abs());
            let metric =
                if sequential { Self::SequentialShare(index) } else { Self::RandomShare(index) };
            samples.push((metric, share * 100.0));
        }
        let (errors, totals) = if sequential {
            (Self::SequentialShareError, Self::SequentialTotal)
        } else {
            (Self::RandomShareError, Self::RandomTotal)
        };
        samples.extend([(errors, error * 100.0), (totals, total)]);
        samples
    }

    /// Returns what the rates of two sequential and two random readers say.
    pub(super) fn of_mixture(rates: &[f64]) -> [Sample; 3] {
        let (sequential, random) = rates.split_at(rates.len() / 2);
        let (sequential, random): (f64, f64) = (sequential.iter().sum(), random.iter().sum());
        [
            (Self::MixedSequential, sequential),
            (Self::MixedRandom, random),
            (Self::MixedTotal, sequential + random),
        ]
    }

    pub(super) fn job(self) -> &'static str {
        match self {
            Self::SequentialShare(_) | Self::SequentialShareError | Self::SequentialTotal => {
                "4 sequential readers"
            }
            Self::RandomShare(_) | Self::RandomShareError | Self::RandomTotal => "4 random readers",
            Self::MixedSequential | Self::MixedRandom | Self::MixedTotal => {
                "2 sequential, 2 random readers"
            }
            _ => "start of an application",
        }
    }

    pub(super) fn unit(self) -> &'static str {
        match self {
            Self::SequentialShare(_) | Self::RandomShare(_) => "%",
            Self::SequentialShareError | Self::RandomShareError => "points",
            Self::StartIdle | Self::StartPlain | Self::StartPreferred => "s",
            Self::StartPlainRatio | Self::StartPreferredRatio => "times idle",
            Self::SequentialTotal
            | Self::RandomTotal
            | Self::MixedSequential
            | Self::MixedRandom
            | Self::MixedTotal
            | Self::StartReaders => "MB/s",
        }
    }

    pub(super) fn better(self) -> Better {
        match self {
            Self::SequentialTotal | Self::RandomTotal | Self::MixedTotal => Better::More,
            Self::SequentialShareError
            | Self::RandomShareError
            | Self::StartIdle
            | Self::StartPlain
            | Self::StartPreferred => Better::Less,
            // A matter of weights, the other side of what the application got, or worse just
            // because the start on the idle disk is better.
            Self::SequentialShare(_)
            | Self::RandomShare(_)
            | Self::MixedSequential
            | Self::MixedRandom
            | Self::StartPlainRatio
            | Self::StartPreferredRatio
            | Self::StartReaders => Better::Neither,
        }
    }

    /// Returns whether only schedulers with weights promise anything.
    pub(super) fn is_about_weights(self) -> bool {
        matches!(self, Self::SequentialShareError | Self::RandomShareError)
    }

    /// Returns the least difference of two figures that is worth a word.
    pub(super) fn tolerance(self, figure: f64) -> f64 {
        if self.is_about_weights() { 1.0 } else { 0.05 * figure }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SequentialShare(index) | Self::RandomShare(index) => {
                let entitled = fio::entitled()[*index] * 100.0;
                write!(f, "share of the reader entitled to {entitled:.0} %")
            }
            Self::SequentialShareError | Self::RandomShareError => {
                f.write_str("largest error of a share")
            }
            Self::SequentialTotal | Self::RandomTotal | Self::MixedTotal => f.write_str("together"),
            Self::MixedSequential => f.write_str("the sequential ones"),
            Self::MixedRandom => f.write_str("the random ones"),
            Self::StartIdle => f.write_str("idle disk"),
            Self::StartPlain => f.write_str("beside readers"),
            Self::StartPlainRatio => f.write_str("beside readers, to idle"),
            Self::StartPreferred => f.write_str("beside readers, with ionice"),
            Self::StartPreferredRatio => f.write_str("beside readers, with ionice, to idle"),
            Self::StartReaders => f.write_str("the readers meanwhile"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_shares_is_that_of_the_reader_furthest_off() {
        let samples = Metric::of_shares(true, &[4.0, 3.0, 1.0, 2.0]);
        assert_eq!(samples[0], (Metric::SequentialShare(0), 40.0));
        assert_eq!(samples[4], (Metric::SequentialShareError, 10.0));
        assert_eq!(samples[5], (Metric::SequentialTotal, 10.0));
    }

    #[test]
    fn every_sample_has_its_row() {
        let all = Metric::all();
        let mut samples = Metric::of_shares(true, &[1.0; 4]);
        samples.extend(Metric::of_shares(false, &[0.0; 4]));
        samples.extend(Metric::of_mixture(&[1.0; 4]));
        assert!(samples.iter().all(|(metric, _)| all.contains(metric)));
    }
}
