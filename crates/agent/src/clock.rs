//! The guest's clock, and how far it can be trusted.

use std::time::Duration;

use rustix::thread::{ClockId, clock_nanosleep_relative};
use rustix::time::{Timespec, clock_gettime};

/// Returns the time since boot, suspensions not counted.
pub(crate) fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock is not negative");
    let nanos = u32::try_from(time.tv_nsec).expect("below a billion");
    Duration::new(seconds, nanos)
}

/// Measures by how much sleeps in this guest are too long: its timer's ticks, and what the host
/// adds by running somebody else. The median of a few, in at most some 100 ms.
pub(crate) fn granularity() -> Duration {
    const WISH: Duration = Duration::from_millis(1);
    let mut overruns: Vec<Duration> = (0..15)
        .map(|_| {
            let before = now();
            let request = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
            let _interrupted = clock_nanosleep_relative(ClockId::Monotonic, &request);
            now().saturating_sub(before + WISH)
        })
        .collect();
    overruns.sort_unstable();
    overruns[overruns.len() / 2]
}
