//! Numbers with a unit.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in time, or a span of it, in nanoseconds.
///
/// Points count from an origin that the caller chooses, are monotonic, and start well above zero
/// (see [`Nanos::ORIGIN`]) so that subtracting any interval of the schedulers never underflows.
/// Differences saturate at zero: a clock that stalls or steps back costs accuracy, never a panic.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The first instant a caller should use: 2^40 ns, about 18 minutes.
    pub const ORIGIN: Self = Self(1 << 40);
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Returns `us` microseconds.
    #[must_use]
    pub const fn from_micros(us: u64) -> Self {
        Self(us.saturating_mul(1_000))
    }

    /// Returns `ms` milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms.saturating_mul(1_000_000))
    }

    /// Returns `s` seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000_000_000))
    }

    /// Returns whole microseconds, rounded down.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Returns whole milliseconds, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`, zero if `earlier` lies after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Nanos {
    type Output = Self;

    fn add(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, span: Self) {
        *self = *self + span;
    }
}

impl Sub for Nanos {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.since(earlier)
    }
}

/// A relative share among siblings, 1 to 1000, 100 by default.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Weight(u16);

/// The weight asked for is outside 1 to 1000.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WeightError(pub u64);

impl fmt::Display for WeightError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {} is outside 1 to 1000", self.0)
    }
}

impl core::error::Error for WeightError {}

impl Weight {
    /// The largest weight.
    pub const MAX: Self = Self(1000);
    /// The smallest weight.
    pub const MIN: Self = Self(1);

    /// Returns the weight `value`.
    ///
    /// # Errors
    ///
    /// * [`WeightError`] if `value` is not in 1 to 1000.
    pub const fn new(value: u64) -> Result<Self, WeightError> {
        if value >= 1 && value <= 1000 {
            #[expect(clippy::cast_possible_truncation, reason = "at most 1000")]
            return Ok(Self(value as u16));
        }
        Err(WeightError(value))
    }

    /// Returns the number.
    #[must_use]
    pub const fn value(self) -> u16 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self(100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_yields_zero_time() {
        assert_eq!(Nanos(5) - Nanos(9), Nanos::ZERO);
        assert_eq!(Nanos::ORIGIN.since(Nanos::ORIGIN + Nanos(1)), Nanos::ZERO);
    }

    #[test]
    fn weights_outside_the_range_are_refused_with_their_value() {
        assert_eq!(Weight::new(0), Err(WeightError(0)));
        assert_eq!(Weight::new(1001), Err(WeightError(1001)));
        assert_eq!(Weight::new(1000).map(Weight::value), Ok(1000));
    }
}
