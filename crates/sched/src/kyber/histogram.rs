//! How long requests took, in quarters of what they may take.

use crate::Nanos;

/// Buckets below this one are within the target.
pub(super) const GOOD_BUCKETS: u8 = 4;
const BUCKETS: usize = 8;
/// So many samples make a percentile.
const ENOUGH_SAMPLES: u32 = 500;
/// After so long any number of samples does.
const LONG_ENOUGH: Nanos = Nanos::from_secs(1);

/// Latencies of one domain since the last percentile; a bucket is a quarter of the target wide, the
/// last one has no end.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Histogram {
    buckets: [u32; BUCKETS],
    samples: u32,
    first_sample: Nanos,
}

impl Histogram {
    /// Counts a request that took `latency`, where `target` was allowed.
    pub(super) fn add(&mut self, now: Nanos, latency: Nanos, target: Nanos) {
        if self.samples == 0 {
            self.first_sample = now;
        }
        let bucket = &mut self.buckets[bucket(latency, target)];
        *bucket = bucket.saturating_add(1);
        self.samples = self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count));
    }

    /// Returns the bucket of the sample below which `percent` of 100 lie, and forgets all samples;
    /// nothing if there are too few of them and the first one is not old enough.
    pub(super) fn take_percentile(&mut self, now: Nanos, percent: u64) -> Option<u8> {
        let is_old = now.since(self.first_sample) >= LONG_ENOUGH;
        if self.samples == 0 || (self.samples < ENOUGH_SAMPLES && !is_old) {
            return None;
        }
        let mut rank = (u64::from(self.samples) * percent).div_ceil(100);
        let mut found = 0;
        for &count in &self.buckets[..BUCKETS - 1] {
            if u64::from(count) >= rank {
                break;
            }
            rank -= u64::from(count);
            found += 1;
        }
        *self = Self::default();
        Some(found)
    }

    /// Panics if the number of samples is not that of the buckets.
    pub(super) fn check(&self) {
        assert_eq!(self.buckets.iter().sum::<u32>(), self.samples, "samples are counted");
    }
}

/// Returns the bucket of a latency.
fn bucket(latency: Nanos, target: Nanos) -> usize {
    let Some(rest) = latency.0.checked_sub(1) else { return 0 };
    let quarters = rest / (target.0 / 4).max(1);
    usize::try_from(quarters).map_or(BUCKETS - 1, |quarters| quarters.min(BUCKETS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const NOW: Nanos = Nanos::ORIGIN;
    const TARGET: Nanos = Nanos::from_millis(2);

    #[test]
    fn a_bucket_is_a_quarter_of_the_target_and_includes_its_end() {
        let quarter = TARGET.0 / 4;
        assert_eq!(bucket(Nanos::ZERO, TARGET), 0);
        for index in 0..8 {
            let start = quarter * u64::try_from(index).unwrap();
            assert_eq!(bucket(Nanos(start + 1), TARGET), index);
            assert_eq!(bucket(Nanos(start + quarter), TARGET), index);
        }
        assert_eq!(bucket(Nanos(u64::MAX), TARGET), 7);
        assert_eq!(bucket(Nanos(7), Nanos(1)), 6, "a target without quarters divides nothing");
    }

    #[test]
    fn a_percentile_needs_500_samples_or_a_second() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.take_percentile(NOW + Nanos::from_secs(9), 99), None);
        for _ in 0..499 {
            histogram.add(NOW, TARGET, TARGET);
        }
        assert_eq!(histogram.take_percentile(NOW + (LONG_ENOUGH - Nanos(1)), 99), None);
        assert_eq!(histogram.take_percentile(NOW + LONG_ENOUGH, 99), Some(3));
        assert_eq!(histogram.take_percentile(NOW + LONG_ENOUGH, 99), None, "it starts anew");
        for _ in 0..500 {
            histogram.add(NOW, TARGET, TARGET);
        }
        assert_eq!(histogram.take_percentile(NOW, 99), Some(3));
    }

    #[test]
    fn a_percentile_is_the_bucket_of_the_sample_with_its_rank() {
        let mut random = Random::new(99);
        for _ in 0..2_000 {
            let count = 1 + random.below(700);
            let mut histogram = Histogram::default();
            let mut latencies: std::vec::Vec<u64> =
                (0..count).map(|_| random.below(TARGET.0 * 3)).collect();
            for &latency in &latencies {
                histogram.add(NOW, Nanos(latency), TARGET);
            }
            latencies.sort_unstable();
            let percent = 1 + random.below(100);
            let rank = usize::try_from((count * percent).div_ceil(100)).unwrap();
            let expected = bucket(Nanos(latencies[rank - 1]), TARGET);
            let found = histogram.take_percentile(NOW + LONG_ENOUGH, percent);
            assert_eq!(found.map(usize::from), Some(expected));
        }
    }
}
