//! Do requests at the device slow each other down?
//!
//! A device with free channels takes as long for a request whether others are there or not; then
//! waiting for a queue gains it nothing and costs everybody. A device that is saturated makes them
//! queue inside, and there only waiting can keep a share. So: compare how long requests take now
//! with how long they take at best.

use crate::Nanos;

/// Requests count as slowed down from this multiple of the best time on.
const SLOWED: u64 = 2;
/// Requests longer than this many sectors are compared among themselves.
const LONG: u32 = 32;

/// Times of one kind of request, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// At best; grows only with requests that had the device alone. Zero before the first.
    least: u64,
    /// Moving average with weight 1/8.
    mean: u64,
}

impl Times {
    fn sample(&mut self, took: u64, alone: bool) {
        if self.least == 0 {
            (self.least, self.mean) = (took, took);
            return;
        }
        self.mean = self.mean - self.mean / 8 + took / 8;
        if took < self.least {
            self.least = took;
        } else if alone {
            self.least += (took - self.least) / 8;
        }
    }
}

/// The comparison, apart for reads and writes, short and long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Contention {
    times: [Times; 4],
}

impl Contention {
    /// Takes note that a request took `took`; `alone` says that it found the device empty.
    pub(super) fn completed(&mut self, took: Nanos, nr_sectors: u32, is_write: bool, alone: bool) {
        let kind = usize::from(is_write) + 2 * usize::from(nr_sectors > LONG);
        self.times[kind].sample(took.0.max(1), alone);
    }

    /// Returns how long a short read takes at best; none before the first.
    pub(super) fn least_read(&self) -> Option<Nanos> {
        let least = self.times[0].least;
        (least > 0).then_some(Nanos(least))
    }

    /// Returns whether requests of any kind are slowed down.
    pub(super) fn is_felt(&self) -> bool {
        self.times.iter().any(|times| times.mean > SLOWED * times.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(contention: &mut Contention, us: u64, alone: bool) {
        for _ in 0..100 {
            contention.completed(Nanos::from_micros(us), 8, false, alone);
        }
    }

    #[test]
    fn contention_is_felt_when_requests_take_twice_as_long_as_at_best() {
        let mut contention = Contention::default();
        feed(&mut contention, 100, false);
        assert!(!contention.is_felt());
        feed(&mut contention, 190, false);
        assert!(!contention.is_felt());
        feed(&mut contention, 300, false);
        assert!(contention.is_felt());
        feed(&mut contention, 100, false);
        assert!(!contention.is_felt());
    }

    #[test]
    fn a_device_that_became_slower_is_learned_from_requests_that_had_it_alone() {
        let mut contention = Contention::default();
        feed(&mut contention, 100, true);
        feed(&mut contention, 300, false);
        assert!(contention.is_felt());
        feed(&mut contention, 300, true);
        assert!(!contention.is_felt());
    }

    #[test]
    fn long_requests_and_writes_are_compared_among_themselves() {
        let mut contention = Contention::default();
        contention.completed(Nanos(10), 8, true, true);
        contention.completed(Nanos(100), 8, false, true);
        contention.completed(Nanos(1000), 256, false, true);
        assert!(!contention.is_felt());
    }
}
