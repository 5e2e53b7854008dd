//! Durations, counted in buckets of constant relative width.

use evenkeel_sched::Nanos;

/// A histogram of durations from 1 ns to about 18 minutes; longer ones count as the longest.
///
/// Each power of two is cut into 16 buckets, so a percentile is at most 6.25 % above the true
/// value, never below it. Adding is a shift and an increment; nothing is allocated after creation.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    samples: u64,
    total: u64,
    longest: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), samples: 0, total: 0, longest: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    #[inline]
    pub fn add(&mut self, duration: Nanos) {
        self.counts[bucket(duration.0)] += 1;
        self.samples += 1;
        self.total = self.total.saturating_add(duration.0);
        self.longest = self.longest.max(duration.0);
    }

    /// Returns the number of durations counted.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the sum of the durations counted.
    #[must_use]
    pub const fn total(&self) -> Nanos {
        Nanos(self.total)
    }

    /// Returns the mean, zero without samples.
    #[must_use]
    pub fn mean(&self) -> Nanos {
        Nanos(self.total.checked_div(self.samples).unwrap_or(0))
    }

    /// Returns the longest duration, exactly.
    #[must_use]
    pub const fn longest(&self) -> Nanos {
        Nanos(self.longest)
    }

    /// Returns a duration that at least `per_mille` thousandths of the samples do not exceed;
    /// zero without samples.
    #[must_use]
    pub fn per_mille(&self, per_mille: u32) -> Nanos {
        let rank = u128::from(self.samples) * u128::from(per_mille);
        let rank = u64::try_from(rank.div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Nanos(upper_bound(index).min(self.longest));
            }
        }
        Nanos(self.longest)
    }
}

/// Returns the bucket of a duration in nanoseconds.
fn bucket(value: u64) -> usize {
    let value = value.min(LONGEST);
    // Below two times as many as a power of two is cut into, each number has its own.
    let shift = (value | 1 << SUB_BITS).ilog2() - SUB_BITS;
    let index = (u64::from(shift) << SUB_BITS) + (value >> shift);
    usize::try_from(index).expect("bounded by LONGEST")
}

/// Returns the largest duration of a bucket.
fn upper_bound(index: usize) -> u64 {
    let index = index as u64;
    let shift = (index >> SUB_BITS).saturating_sub(1);
    let base = index - (shift << SUB_BITS);
    ((base + 1) << shift) - 1
}

const SUB_BITS: u32 = 4;
const LONGEST: u64 = (1 << 40) - 1;
const BUCKETS: usize = (40 - SUB_BITS as usize + 1) << SUB_BITS;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_contains_what_it_counts_and_is_narrow() {
        for value in (0..2000).chain((0..40).map(|e| (1_u64 << e) + 12_345)) {
            let value = value.min(LONGEST);
            let upper = upper_bound(bucket(value));
            assert!(upper >= value, "{upper} < {value}");
            assert!(upper - value <= value / 16, "{upper} is too far above {value}");
            assert!(bucket(value) < BUCKETS);
        }
    }

    #[test]
    fn percentiles_of_a_known_series_are_right_within_a_bucket() {
        let mut histogram = Histogram::default();
        for us in 1..=1000 {
            histogram.add(Nanos::from_micros(us));
        }
        assert_eq!(histogram.mean(), Nanos(500_500));
        assert_eq!(histogram.longest(), Nanos::from_millis(1));
        let median = histogram.per_mille(500).0;
        assert!((500_000..=531_250).contains(&median), "{median}");
        assert_eq!(histogram.per_mille(1000), Nanos::from_millis(1));
    }

    #[test]
    fn an_empty_histogram_says_zero() {
        assert_eq!(Histogram::default().per_mille(990), Nanos::ZERO);
        assert_eq!(Histogram::default().mean(), Nanos::ZERO);
    }
}
