//! The worker's clock.

use evenkeel_sched::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Reads `CLOCK_MONOTONIC`, shifted so that it starts at [`Nanos::ORIGIN`] at the latest, and
/// never steps back.
#[derive(Debug)]
pub(crate) struct Clock {
    last: Nanos,
}

impl Clock {
    /// Returns a clock.
    pub(crate) const fn new() -> Self {
        Self { last: Nanos::ORIGIN }
    }

    /// Reads the time.
    pub(crate) fn now(&mut self) -> Nanos {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        let read = Nanos::ORIGIN + Nanos::from_secs(seconds) + Nanos(nanos);
        self.last = self.last.max(read);
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_starts_beyond_the_origin_and_never_steps_back() {
        let mut clock = Clock::new();
        let first = clock.now();
        assert!(first >= Nanos::ORIGIN);
        clock.last = first + Nanos::from_secs(1000);
        assert_eq!(clock.now(), first + Nanos::from_secs(1000));
    }
}
