//! The knobs of BFQ: names, units, defaults, ranges.

use core::fmt;

use crate::Nanos;

/// What an operator may set. The defaults are Linux's; the last five fields are constants there.
///
/// Source: Linux documentation, "BFQ (Budget Fair Queueing)", tunables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BfqTunables {
    /// How long the device is kept for a queue that is expected back at once; zero: never, which
    /// gives the most throughput and loses the guarantees. 0 to 1 s, at most `timeout_sync`.
    pub slice_idle: Nanos,
    /// One request at the device at a time, and always idle: exact order at the cost of speed.
    pub strict_guarantees: bool,
    /// Longest backward hop that is not taken for a wrap of the scan, in KiB. Up to 2^21.
    pub back_seek_max_kib: u32,
    /// A backward distance counts this many times. 1 to 1000.
    pub back_seek_penalty: u32,
    /// Age at which the oldest synchronous request of a queue is served next. 1 ms to 60 s.
    pub fifo_expire_sync: Nanos,
    /// The same for write-back. 1 ms to 60 s.
    pub fifo_expire_async: Nanos,
    /// Longest service slot. 1 ms to 10 s.
    pub timeout_sync: Nanos,
    /// Largest budget in sectors; zero: as much as the device moves in one `timeout_sync`.
    /// Otherwise 64 to 2^24.
    pub max_budget_sectors: u32,
    /// Whether queues that look interactive are raised.
    pub low_latency: bool,
    /// Factor by which an interactive queue's weight is raised. 2 to 100.
    pub wr_coeff: u16,
    /// Longest raise in sectors served. 1 to 2^32 - 1.
    pub wr_max_service_sectors: u32,
    /// Inactivity after which a queue that comes back counts as interactive. Longer than
    /// `slice_idle`, up to 1 h.
    pub wr_min_idle_time: Nanos,
    /// How many times write-back is charged while all queues have equal rights. 1 to 100.
    pub async_charge_factor: u32,
    /// Whether the device itself queues and reorders several requests (NCQ, flash).
    pub queueing: bool,
}

impl Default for BfqTunables {
    fn default() -> Self {
        Self {
            slice_idle: Nanos::from_millis(8),
            strict_guarantees: false,
            back_seek_max_kib: 16_384,
            back_seek_penalty: 2,
            fifo_expire_sync: Nanos::from_millis(125),
            fifo_expire_async: Nanos::from_millis(250),
            timeout_sync: Nanos::from_millis(125),
            max_budget_sectors: 0,
            low_latency: true,
            wr_coeff: 30,
            wr_max_service_sectors: 120_000,
            wr_min_idle_time: Nanos::from_millis(2000),
            async_charge_factor: 3,
            queueing: true,
        }
    }
}

/// A tunable that cannot work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BfqTunablesError {
    /// `field` is outside `min` to `max`; use a value inside. Times in nanoseconds.
    OutOfRange {
        /// Name of the tunable.
        field: &'static str,
        /// What was asked for.
        value: u64,
        /// The least that works.
        min: u64,
        /// The most that works.
        max: u64,
    },
    /// Idling longer than a whole slot; shorten `slice_idle` or lengthen `timeout_sync`.
    SliceIdleExceedsTimeout {
        /// `slice_idle`.
        slice_idle: Nanos,
        /// `timeout_sync`.
        timeout_sync: Nanos,
    },
    /// A queue that the device is kept for would count as inactive; lengthen `wr_min_idle_time`.
    WrIdleWithinSliceIdle {
        /// `wr_min_idle_time`.
        wr_min_idle_time: Nanos,
        /// `slice_idle`.
        slice_idle: Nanos,
    },
}

impl fmt::Display for BfqTunablesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfRange { field, value, min, max } => {
                write!(f, "{field} is {value}; choose a value from {min} to {max}")
            }
            Self::SliceIdleExceedsTimeout { slice_idle, timeout_sync } => write!(
                f,
                "slice_idle is {} us, longer than timeout_sync, {} us; shorten slice_idle or \
                 lengthen timeout_sync",
                slice_idle.as_micros(),
                timeout_sync.as_micros()
            ),
            Self::WrIdleWithinSliceIdle { wr_min_idle_time, slice_idle } => write!(
                f,
                "wr_min_idle_time is {} us, not longer than slice_idle, {} us; lengthen \
                 wr_min_idle_time",
                wr_min_idle_time.as_micros(),
                slice_idle.as_micros()
            ),
        }
    }
}

impl core::error::Error for BfqTunablesError {}

impl BfqTunables {
    /// Returns whether these values work, each alone and all together.
    ///
    /// # Errors
    ///
    /// * [`BfqTunablesError::OutOfRange`] -- use a value in the range that it names.
    /// * [`BfqTunablesError::SliceIdleExceedsTimeout`],
    ///   [`BfqTunablesError::WrIdleWithinSliceIdle`] -- move one of the two values.
    pub fn validate(&self) -> Result<(), BfqTunablesError> {
        const MS: u64 = 1_000_000;
        const S: u64 = 1_000 * MS;
        let budget_min = if self.max_budget_sectors == 0 { 0 } else { 64 };
        let ranges = [
            ("slice_idle", self.slice_idle.0, 0, S),
            ("back_seek_max_kib", u64::from(self.back_seek_max_kib), 0, 1 << 21),
            ("back_seek_penalty", u64::from(self.back_seek_penalty), 1, 1000),
            ("fifo_expire_sync", self.fifo_expire_sync.0, MS, 60 * S),
            ("fifo_expire_async", self.fifo_expire_async.0, MS, 60 * S),
            ("timeout_sync", self.timeout_sync.0, MS, 10 * S),
            ("max_budget_sectors", u64::from(self.max_budget_sectors), budget_min, 1 << 24),
            ("wr_coeff", u64::from(self.wr_coeff), 2, 100),
            ("wr_max_service_sectors", u64::from(self.wr_max_service_sectors), 1, (1 << 32) - 1),
            ("wr_min_idle_time", self.wr_min_idle_time.0, 1, 3600 * S),
            ("async_charge_factor", u64::from(self.async_charge_factor), 1, 100),
        ];
        for (field, value, min, max) in ranges {
            if value < min || value > max {
                return Err(BfqTunablesError::OutOfRange { field, value, min, max });
            }
        }
        if self.slice_idle > self.timeout_sync {
            return Err(BfqTunablesError::SliceIdleExceedsTimeout {
                slice_idle: self.slice_idle,
                timeout_sync: self.timeout_sync,
            });
        }
        if self.wr_min_idle_time <= self.slice_idle {
            return Err(BfqTunablesError::WrIdleWithinSliceIdle {
                wr_min_idle_time: self.wr_min_idle_time,
                slice_idle: self.slice_idle,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::string::ToString;

    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(BfqTunables::default().validate(), Ok(()));
    }

    #[test]
    fn a_value_outside_its_range_is_named_with_the_range() {
        let tunables = BfqTunables { back_seek_penalty: 0, ..BfqTunables::default() };
        let error = tunables.validate().unwrap_err();
        assert_eq!(
            error,
            BfqTunablesError::OutOfRange {
                field: "back_seek_penalty",
                value: 0,
                min: 1,
                max: 1000
            }
        );
        assert_eq!(error.to_string(), "back_seek_penalty is 0; choose a value from 1 to 1000");
    }

    #[test]
    fn a_set_budget_needs_room_for_a_request_but_zero_means_automatic() {
        let with =
            |max_budget_sectors| BfqTunables { max_budget_sectors, ..BfqTunables::default() };
        assert_eq!(with(0).validate(), Ok(()));
        assert_eq!(with(64).validate(), Ok(()));
        let error = BfqTunablesError::OutOfRange {
            field: "max_budget_sectors",
            value: 63,
            min: 64,
            max: 1 << 24,
        };
        assert_eq!(with(63).validate(), Err(error));
    }

    #[test]
    fn idling_longer_than_a_slot_is_refused() {
        let slice_idle = Nanos::from_millis(126);
        let tunables = BfqTunables { slice_idle, ..BfqTunables::default() };
        let timeout_sync = Nanos::from_millis(125);
        let error = BfqTunablesError::SliceIdleExceedsTimeout { slice_idle, timeout_sync };
        assert_eq!(tunables.validate(), Err(error));
    }

    #[test]
    fn a_kept_queue_must_not_count_as_inactive() {
        let slice_idle = Nanos::from_millis(8);
        let tunables = BfqTunables { wr_min_idle_time: slice_idle, ..BfqTunables::default() };
        let error =
            BfqTunablesError::WrIdleWithinSliceIdle { wr_min_idle_time: slice_idle, slice_idle };
        assert_eq!(tunables.validate(), Err(error));
    }
}
