//! What a queue's past tells: think time, seekiness, how much of the time it wants the device.

use crate::Nanos;

/// Distance in sectors from which a request counts as a seek.
pub(super) const SEEK_THRESHOLD: u64 = 800;
/// Requests of at least this many sectors never count as seeks on a device that does not rotate.
const LARGE_ON_FLASH: u32 = 64;

/// Moving average with weight 1/8 of the time between the last completion and the next arrival.
///
/// Fixed point, 1.0 = 256; `samples` walks 32, 60, 84, ... towards 249.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThinkTime {
    last_end: Option<Nanos>,
    samples: u64,
    total: u64,
    mean: Nanos,
}

impl ThinkTime {
    /// Takes note that the last request of the queue has completed.
    pub(super) fn completed(&mut self, now: Nanos) {
        self.last_end = Some(now);
    }

    /// Takes note of an arrival at a queue with nothing waiting and nothing in flight.
    ///
    /// The first arrival of all has no completion before it and says nothing, unless it counts as
    /// one after an endless pause.
    pub(super) fn arrived(&mut self, now: Nanos, cap: Nanos, first_is_none: bool) {
        match self.last_end {
            Some(last_end) => self.sample(now.since(last_end).min(cap)),
            None if first_is_none => {}
            None => self.sample(cap),
        }
    }

    fn sample(&mut self, think: Nanos) {
        self.samples = (7 * self.samples + 256) / 8;
        self.total = (7 * self.total + 256 * think.0) / 8;
        self.mean = Nanos((self.total + 128) / self.samples);
    }

    pub(super) fn last_end(&self) -> Option<Nanos> {
        self.last_end
    }

    /// Returns the mean once three samples stand behind it.
    pub(super) fn mean(&self) -> Option<Nanos> {
        (self.samples > 80).then_some(self.mean)
    }
}

/// So many requests without a seek are a file that is read in order.
const IN_ORDER: u32 = 8;

/// Which of the last 32 requests were seeks, the newest in the lowest bit.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeekHistory {
    bits: u32,
    /// Sector behind the last request.
    last_end: Option<u64>,
}

impl Default for SeekHistory {
    fn default() -> Self {
        Self { bits: 1, last_end: None }
    }
}

impl SeekHistory {
    pub(super) fn arrived(&mut self, pos: u64, nr_sectors: u32, rotational: bool) {
        let seek = self.last_end.is_some_and(|last| is_seek(last, pos, nr_sectors, rotational));
        self.bits = (self.bits << 1) | u32::from(seek);
        self.last_end = Some(pos + u64::from(nr_sectors));
    }

    /// Takes note that the last request grew: what comes behind it is no seek.
    pub(super) fn continued(&mut self, end: u64) {
        self.last_end = Some(end);
    }

    pub(super) fn is_seeky(&self) -> bool {
        self.bits.count_ones() > 19
    }

    /// Returns whether none of the last eight requests was a seek.
    pub(super) fn is_in_order(&self) -> bool {
        self.bits.trailing_zeros() >= IN_ORDER
    }

    /// Returns whether all of the last 32 requests were seeks.
    pub(super) fn is_totally_seeky(&self) -> bool {
        self.bits == u32::MAX
    }
}

/// Returns whether going from `last` to `pos` is a seek.
pub(super) fn is_seek(last: u64, pos: u64, nr_sectors: u32, rotational: bool) -> bool {
    last.abs_diff(pos) > SEEK_THRESHOLD && (rotational || nr_sectors < LARGE_ON_FLASH)
}

/// Whether a queue wants the device at least four fifths of the time.
#[derive(Clone, Copy, Debug)]
pub(super) struct IoBound {
    is_bound: bool,
    window_start: Nanos,
    idle: Nanos,
}

impl IoBound {
    pub(super) fn new(now: Nanos) -> Self {
        Self { is_bound: true, window_start: now, idle: Nanos::ZERO }
    }

    /// Takes note of an arrival; `idle` is the time since the last completion if the queue was
    /// empty with nothing in flight. The very first request of a queue decides nothing.
    pub(super) fn arrived(&mut self, now: Nanos, idle: Option<Nanos>, first: bool) {
        self.idle += idle.unwrap_or_default();
        let window = now.since(self.window_start);
        if !first {
            self.is_bound = Nanos(self.idle.0.saturating_mul(5)) <= window;
        }
        if window > Nanos::from_millis(200) {
            self.window_start = now - Nanos(window.0 / 2);
            self.idle = Nanos(self.idle.0 / 2);
        }
    }

    pub(super) fn is_bound(&self) -> bool {
        self.is_bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_time_follows_the_vectors() {
        let mut think = ThinkTime::default();
        let ms = Nanos::from_millis;
        let expected = [(32, 0), (60, 0), (84, 0), (105, 488), (123, 780), (139, 973)];
        for (i, (samples, mean)) in expected.into_iter().enumerate() {
            think.sample(if i < 3 { Nanos::ZERO } else { ms(16) });
            assert_eq!(think.samples, samples);
            let hundredths = (think.mean.0 + 5_000) / 10_000;
            assert_eq!(hundredths, mean);
            assert_eq!(think.mean().is_some(), i >= 2);
            assert_eq!(think.mean().is_some_and(|mean| mean > ms(4)), i >= 3);
        }
    }

    #[test]
    fn think_time_is_capped_and_a_first_arrival_is_no_sample() {
        let mut think = ThinkTime::default();
        think.arrived(Nanos::ORIGIN, Nanos(16), true);
        assert_eq!(think.samples, 0);
        for _ in 0..3 {
            think.completed(Nanos::ORIGIN);
            think.arrived(Nanos::ORIGIN + Nanos::from_secs(9), Nanos::from_millis(16), true);
        }
        assert_eq!(think.mean().map(Nanos::as_millis), Some(16));
    }

    #[test]
    fn a_queue_is_seeky_from_the_twentieth_seek_of_32() {
        let mut seek = SeekHistory::default();
        let mut pos = 0;
        for i in 0..20 {
            pos += 1_000_000;
            seek.arrived(pos, 8, false);
            // The initial bit stands for one seek, the first request for none.
            assert_eq!(seek.is_seeky(), i + 1 > 19, "{i}");
        }
        for _ in 0..32 {
            seek.arrived(pos + 8, 8, false);
            pos += 8;
        }
        assert_eq!(seek.bits, 0);
    }

    #[test]
    fn large_requests_are_seeks_only_where_something_rotates() {
        assert!(is_seek(0, 801, 63, false));
        assert!(!is_seek(0, 801, 64, false));
        assert!(is_seek(0, 801, 64, true));
        assert!(!is_seek(0, 800, 1, true));
        assert!(is_seek(801, 0, 1, true));
    }

    #[test]
    fn a_queue_idle_for_more_than_a_fifth_is_not_io_bound() {
        let ms = Nanos::from_millis;
        let mut bound = IoBound::new(Nanos::ORIGIN);
        bound.arrived(Nanos::ORIGIN, Some(ms(90)), true);
        assert!(bound.is_bound(), "the first request decides nothing");
        let mut bound = IoBound::new(Nanos::ORIGIN);
        bound.arrived(Nanos::ORIGIN + ms(100), Some(ms(20)), false);
        assert!(bound.is_bound());
        bound.arrived(Nanos::ORIGIN + ms(101), Some(ms(1)), false);
        assert!(!bound.is_bound());
    }
}
