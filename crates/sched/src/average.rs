//! What has been usual lately.

/// A moving average in which a new value weighs one eighth.
///
/// Fixed point, 1.0 = 256. The weight of all values so far walks 32, 60, 84, ... towards 249, so
/// that the first values count fully rather than being pulled towards zero.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Average {
    samples: u64,
    total: u64,
    mean: u64,
}

impl Average {
    #[inline]
    pub(crate) fn add(&mut self, value: u64) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total).saturating_add(value.saturating_mul(256)) / 8;
        self.mean = self.total.saturating_add(128) / self.samples;
    }

    /// Returns the weight of all values so far; zero before the first.
    #[inline]
    pub(crate) const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the mean, zero before the first value.
    #[inline]
    pub(crate) const fn mean(&self) -> u64 {
        self.mean
    }

    /// Returns the mean once three values stand behind it.
    #[inline]
    pub(crate) fn settled(&self) -> Option<u64> {
        (self.samples > 80).then_some(self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nanos;

    #[test]
    fn the_known_think_times_come_out() {
        let mut think = Average::default();
        let walk = [(0, 32, 0), (0, 60, 0), (0, 84, 0), (16, 105, 488), (16, 123, 780)];
        for (value_ms, samples, hundredths_ms) in walk.into_iter().chain([(16, 139, 973)]) {
            think.add(Nanos::from_millis(value_ms).0);
            assert_eq!(think.samples(), samples);
            assert_eq!(think.settled().is_some(), samples >= 84);
            assert_eq!((think.mean() + 5_000) / 10_000, hundredths_ms);
        }
    }

    #[test]
    fn enormous_values_do_not_overflow() {
        let mut average = Average::default();
        for _ in 0..100 {
            average.add(u64::MAX);
        }
        assert_eq!(average.samples(), 249);
    }
}
