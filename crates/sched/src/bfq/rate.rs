//! How fast is the device? The estimator behind budgets and raise durations.
//!
//! Rates are fixed-point sectors per microsecond with 16 fractional bits, as in Linux, in `u64`.

use crate::Nanos;

/// Most that is believed: 128 sectors per microsecond, 65.5 GB/s. Linux stops at 10.24 GB/s and so
/// ignores what fast NVMe devices and page caches really do.
const RATE_MAX: u64 = 128 << 16;
/// Where Linux stops.
const RATE_MAX_LINUX: u64 = 20 << 16;
const MIN_SAMPLES: u32 = 32;
const MIN_INTERVAL_US: u64 = 300_000;
const REF_INTERVAL_US: u64 = 1_000_000;

/// Peak-rate estimator. Source: Linux, block/bfq-iosched.c, `bfq_update_peak_rate` and friends.
#[derive(Clone, Debug)]
pub(super) struct PeakRate {
    peak: u64,
    rotational: bool,
    /// Whether long requests count by their length and idleness from the last completion; else
    /// everything is as in Linux.
    counts_length: bool,
    /// Requests of this interval, long ones counted several times (see [`Sample::count`]).
    samples: u32,
    requests: u32,
    sequential: u32,
    sectors: u64,
    /// Largest request of the last 32, in sectors.
    last_max: u32,
    first_dispatch: Nanos,
    last_dispatch: Nanos,
    last_completion: Nanos,
    delta_us: u64,
}

/// One dispatch, as the estimator sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) nr_sectors: u32,
    /// Whether it lies far from the previous dispatch.
    pub(super) seeky: bool,
    /// Whether anything is at the device.
    pub(super) device_busy: bool,
}

impl Sample {
    /// Returns how much this dispatch says: one sample for each 128 KiB begun.
    ///
    /// Merged requests of a slow disk are few and long. Counted by heads, as Linux does, they never
    /// make an interval valid, and the estimate stays at its initial guess.
    fn count(self, by_length: bool) -> u32 {
        if by_length { self.nr_sectors.div_ceil(256).max(1) } else { 1 }
    }
}

impl PeakRate {
    pub(super) fn new(now: Nanos, rotational: bool, counts_length: bool) -> Self {
        Self {
            peak: Self::reference(rotational) * 2 / 3,
            rotational,
            counts_length,
            samples: 0,
            requests: 0,
            sequential: 0,
            sectors: 0,
            last_max: 0,
            first_dispatch: now,
            last_dispatch: now,
            last_completion: now,
            delta_us: 0,
        }
    }

    pub(super) fn set_counts_length(&mut self, counts_length: bool) {
        self.counts_length = counts_length;
    }

    const fn reference(rotational: bool) -> u64 {
        if rotational { 14_000 } else { 33_000 }
    }

    /// Returns the sectors that the device moves in `timeout` at its peak.
    pub(super) fn budget(&self, timeout: Nanos) -> u64 {
        (self.peak * timeout.as_micros()) >> 16
    }

    /// Returns how long an interactive raise lasts: as long as loading a large application takes.
    pub(super) fn wr_duration(&self) -> Nanos {
        let ms = if self.rotational { 7000 } else { 2500 };
        Nanos::from_millis((Self::reference(self.rotational) * ms / self.peak).clamp(3000, 25_000))
    }

    /// Takes note of a dispatch; returns whether the estimate was renewed.
    pub(super) fn dispatched(&mut self, now: Nanos, sample: Sample) -> bool {
        if self.samples == 0 {
            self.restart(now, sample);
            return false;
        }
        // Idle since then, that is: a long request keeps a slow disk busy for longer.
        let active = if self.counts_length {
            self.last_dispatch.max(self.last_completion)
        } else {
            self.last_dispatch
        };
        if now.since(active) > Nanos::from_millis(100) && !sample.device_busy {
            return self.close_and_restart(now, sample);
        }
        let samples = sample.count(self.counts_length);
        self.samples += samples;
        let kept_busy =
            sample.device_busy || now.since(self.last_completion) < Nanos::from_millis(2);
        // Behind its first piece, a request continues itself.
        self.sequential += samples - u32::from(!kept_busy || sample.seeky);
        self.sectors += u64::from(sample.nr_sectors);
        self.requests += 1;
        let forget = self.requests.is_multiple_of(32);
        self.last_max = if forget { 0 } else { self.last_max }.max(sample.nr_sectors);
        self.delta_us = now.since(self.first_dispatch).as_micros();
        if self.delta_us >= REF_INTERVAL_US {
            return self.close_and_restart(now, sample);
        }
        self.last_dispatch = now;
        false
    }

    /// Takes note of a completion; returns whether the estimate was renewed.
    ///
    /// A completion after a stall ends the interval: what follows would look slower than it is.
    pub(super) fn completed(&mut self, now: Nanos) -> bool {
        let gap_us = now.since(self.last_completion).as_micros();
        let mut renewed = false;
        if gap_us > 2000 && (u64::from(self.last_max) << 16) / gap_us < 64 && self.samples > 0 {
            renewed = self.close();
            self.samples = 0;
        }
        self.last_completion = now;
        renewed
    }

    fn restart(&mut self, now: Nanos, sample: Sample) {
        self.samples = sample.count(self.counts_length);
        self.requests = 1;
        self.sequential = 0;
        self.sectors = u64::from(sample.nr_sectors);
        self.last_max = sample.nr_sectors;
        self.first_dispatch = now;
        self.last_dispatch = now;
        self.delta_us = 0;
    }

    fn close_and_restart(&mut self, now: Nanos, sample: Sample) -> bool {
        let renewed = self.close();
        self.restart(now, sample);
        renewed
    }

    fn close(&mut self) -> bool {
        if self.delta_us < MIN_INTERVAL_US {
            return false;
        }
        let drained = self.last_completion.since(self.first_dispatch).as_micros();
        let interval =
            Interval { samples: self.samples, sequential: self.sequential, sectors: self.sectors };
        let most = if self.counts_length { RATE_MAX } else { RATE_MAX_LINUX };
        match filter(self.peak, self.delta_us.max(drained), interval, most) {
            Some(peak) => {
                self.peak = peak;
                true
            }
            None => false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Interval {
    samples: u32,
    sequential: u32,
    sectors: u64,
}

/// Returns the new estimate, or `None` if the interval says nothing: too few requests, random and
/// not faster, or faster than the `most` that is believed.
fn filter(peak: u64, delta_us: u64, interval: Interval, most: u64) -> Option<u64> {
    if interval.samples < MIN_SAMPLES || delta_us < MIN_INTERVAL_US {
        return None;
    }
    let rate = (interval.sectors << 16) / delta_us;
    let random = u64::from(interval.sequential) < u64::from(interval.samples) * 3 / 4;
    if (random && rate <= peak) || rate > most {
        return None;
    }
    let weight = 9 * u64::from(interval.sequential) / u64::from(interval.samples);
    let weight = (weight * delta_us / REF_INTERVAL_US).min(8);
    let divisor = 10 - weight;
    Some((peak * (divisor - 1) / divisor + rate / divisor).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, for_many_seeds};

    fn filtered(delta_us: u64, sectors: u64, samples: u32, sequential: u32) -> Option<u64> {
        filter(22_000, delta_us, Interval { samples, sequential, sectors }, RATE_MAX)
    }

    #[test]
    fn the_filter_matches_the_vectors() {
        assert_eq!(filtered(1_000_000, 1_000_000, 1000, 999), Some(43_768));
        assert_eq!(filtered(1_000_000, 200_000, 1000, 100), None);
        assert_eq!(filtered(1_000_000, 400_000, 1000, 100), Some(22_421));
        assert_eq!(filtered(500_000, 400_000, 1000, 900), Some(27_071));
        assert_eq!(filtered(200_000, 400_000, 1000, 900), None);
        assert_eq!(filtered(1_000_000, 1_000_000, 31, 31), None);
    }

    #[test]
    fn budget_and_raise_duration_follow_the_peak() {
        let with = |peak| PeakRate { peak, ..PeakRate::new(Nanos::ORIGIN, false, true) };
        let timeout = Nanos::from_millis(125);
        for (peak, budget, ms) in [
            (22_000, 41_961, 3750),
            (9333, 17_801, 8839),
            (66_000, 125_885, 3000),
            (3000, 5722, 25_000),
        ] {
            assert_eq!(with(peak).budget(timeout), budget);
            assert_eq!(with(peak).wr_duration().as_millis(), ms);
        }
        assert_eq!(PeakRate::new(Nanos::ORIGIN, true, true).wr_duration().as_millis(), 10_500);
        assert_eq!(PeakRate::new(Nanos::ORIGIN, true, true).peak, 9333);
        assert_eq!(PeakRate::new(Nanos::ORIGIN, false, true).peak, 22_000);
    }

    /// Feeds `seconds` of back-to-back requests of 256 sectors at `rate` sectors per millisecond.
    fn feed(rate: &mut PeakRate, start: Nanos, sectors_per_ms: u64, seconds: u64, seeky: bool) {
        let step = 256 * 1_000_000 / sectors_per_ms;
        for i in 0..seconds * 1_000_000_000 / step {
            let now = start + Nanos(i * step);
            rate.dispatched(now, Sample { nr_sectors: 256, seeky, device_busy: i > 0 });
            rate.completed(now + Nanos(step));
        }
    }

    #[test]
    fn a_steady_sequential_load_converges_by_half_each_second() {
        let mut rate = PeakRate::new(Nanos::ORIGIN, false, true);
        feed(&mut rate, Nanos::ORIGIN, 1000, 12, false);
        let target = 65_536;
        assert!(rate.peak > target * 99 / 100 && rate.peak <= target * 101 / 100, "{}", rate.peak);
        let slow_start = Nanos::ORIGIN + Nanos::from_secs(20);
        feed(&mut rate, slow_start, 100, 20, false);
        assert!(rate.peak < 6554 * 102 / 100 && rate.peak > 6400, "{}", rate.peak);
    }

    #[test]
    fn random_traffic_raises_the_estimate_but_never_lowers_it() {
        let mut rate = PeakRate::new(Nanos::ORIGIN, false, true);
        feed(&mut rate, Nanos::ORIGIN, 100, 10, true);
        assert_eq!(rate.peak, 22_000);
        feed(&mut rate, Nanos::ORIGIN + Nanos::from_secs(11), 1000, 10, true);
        assert!(rate.peak > 22_000 && rate.peak <= 65_536);
    }

    #[test]
    fn forty_gigabytes_per_second_are_believed() {
        let mut rate = PeakRate::new(Nanos::ORIGIN, false, true);
        feed(&mut rate, Nanos::ORIGIN, 80_000, 12, false);
        assert!(rate.peak > (79 << 16) && rate.peak <= (80 << 16), "{}", rate.peak >> 16);
    }

    /// P9, P10.
    #[test]
    fn an_estimate_is_never_zero_never_above_what_was_seen_and_no_interval_is_short() {
        for_many_seeds(10_000, |seed| {
            let mut random = Random::new(seed);
            let mut rate = PeakRate::new(Nanos::ORIGIN, random.below(2) == 0, true);
            let mut now = Nanos::ORIGIN;
            let (mut renewed_at, mut samples) = (now, 0);
            for _ in 0..80 {
                let before = rate.peak;
                let span = 1 << random.below(28);
                now += Nanos(random.below(span));
                let nr_sectors = 1 + u32::try_from(random.below(2560)).unwrap();
                let (seeky, device_busy) = (random.below(2) == 0, random.below(3) > 0);
                let sample = Sample { nr_sectors, seeky, device_busy };
                let mut renewed = rate.dispatched(now, sample);
                samples += sample.count(true);
                if random.below(2) == 0 {
                    renewed |= rate.completed(now);
                }
                assert!(rate.peak >= 1, "P9: never zero");
                assert!(renewed || rate.peak == before, "it changes when it says so");
                if renewed {
                    let took_us = now.since(renewed_at).as_micros();
                    assert!(took_us >= MIN_INTERVAL_US && samples >= MIN_SAMPLES, "P10");
                    // More than 2560 sectors for each dispatch were never seen.
                    let most = ((u64::from(samples) * 2560) << 16) / MIN_INTERVAL_US;
                    assert!(rate.peak <= before.max(most), "P9: never above what was seen");
                    (renewed_at, samples) = (now, 0);
                }
            }
        });
    }
}
