//! The knobs of BFQ: names, units, defaults, ranges.

use core::fmt;

use crate::Nanos;
use crate::choose::BackSeek;

/// The least `slice_idle` with strict guarantees.
const STRICT_IDLE: Nanos = Nanos::from_millis(8);

/// Whether a device works on several requests at once and chooses among them (NCQ, flash).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Queueing {
    /// Judged by how many requests are at the device when more than three could be. It is presumed
    /// to queue until 32 such moments in a row say otherwise, and again from the first that does.
    Auto,
    /// It does.
    Yes,
    /// It takes one request after the other.
    No,
}

/// What an operator may set. The defaults are Linux's, where the raises (`wr_...`), bursts, the
/// charge of write-back and the kind of device are constants or detected.
///
/// Source: Linux documentation, "BFQ (Budget Fair Queueing)", tunables.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BfqTunables {
    /// How long the device is kept for a queue that is expected back at once; zero: never, which
    /// gives the most throughput and loses the guarantees. 0 to 1 s, at most `timeout_sync`.
    pub slice_idle: Nanos,
    /// One request at the device at a time, and always idle: exact order at the cost of speed.
    /// While set, `slice_idle` is at least 8 ms.
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
    /// Whether queues that look interactive or soft real-time are raised.
    pub low_latency: bool,
    /// Factor by which an interactive queue's weight is raised. 2 to 100.
    pub wr_coeff: u16,
    /// Longest interactive raise; zero: 3 to 25 s, as long as a large application takes to load
    /// from a device of the measured speed. Otherwise 1 ms to 5 min.
    pub wr_max_time: Nanos,
    /// Longest interactive raise in sectors served. 1 to 2^32 - 1.
    pub wr_max_service_sectors: u32,
    /// Inactivity after which a queue that comes back counts as interactive. Longer than
    /// `slice_idle` and `soft_rt_guard` together, up to 1 h.
    pub wr_min_idle_time: Nanos,
    /// Factor by which a soft real-time queue's weight is raised. `wr_coeff` to 10 000.
    pub wr_rt_coeff: u16,
    /// Longest soft real-time raise after a batch that earns it. 1 ms to 10 s.
    pub wr_rt_max_time: Nanos,
    /// Most that a soft real-time queue may request, in sectors per second; zero: nobody is soft
    /// real-time.
    pub wr_max_softrt_rate: u32,
    /// How much longer than `slice_idle` a soft real-time queue pauses between batches: more than
    /// by what the clock and the scheduling of guests may jump. Up to 1 s.
    pub soft_rt_guard: Nanos,
    /// So many queues that start together in one group are a large burst, and not raised; zero:
    /// no burst is large. Otherwise 2 to 1000.
    pub large_burst_thresh: u32,
    /// Longest pause between two starts in one burst. 1 to 599 ms.
    pub burst_interval: Nanos,
    /// How many times write-back is charged while all queues have equal rights. 1 to 100.
    pub async_charge_factor: u32,
    /// Whether requests of others may use the device while it is kept for an empty queue.
    pub injection: bool,
    /// Whether queues of one group that work close to each other become one.
    pub merge_queues: bool,
    /// Whether queues with equal rights that are created in a burst become one, for ever.
    pub stable_merge: bool,
    /// Whether the device queues by itself.
    pub queueing: Queueing,
    /// Decides as Linux does wherever this elevator deliberately does not, known errors of the
    /// original included: for comparison.
    pub kernel_compat: bool,
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
            wr_max_time: Nanos::ZERO,
            wr_max_service_sectors: 120_000,
            wr_min_idle_time: Nanos::from_millis(2000),
            wr_rt_coeff: 3000,
            wr_rt_max_time: Nanos::from_millis(300),
            wr_max_softrt_rate: 7000,
            soft_rt_guard: Nanos::from_millis(16),
            large_burst_thresh: 8,
            burst_interval: Nanos::from_millis(180),
            async_charge_factor: 3,
            injection: true,
            merge_queues: false,
            stable_merge: false,
            queueing: Queueing::Yes,
            kernel_compat: false,
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
    /// A queue that the device is kept for, or that pauses as soft real-time queues do, would count
    /// as inactive; lengthen `wr_min_idle_time`.
    WrIdleWithinSliceIdle {
        /// `wr_min_idle_time`.
        wr_min_idle_time: Nanos,
        /// `slice_idle`.
        slice_idle: Nanos,
        /// `soft_rt_guard`.
        soft_rt_guard: Nanos,
    },
    /// Interactive queues would go before soft real-time ones; raise `wr_rt_coeff` or lower
    /// `wr_coeff`.
    WrCoeffExceedsRt {
        /// `wr_coeff`.
        wr_coeff: u16,
        /// `wr_rt_coeff`.
        wr_rt_coeff: u16,
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
            Self::WrIdleWithinSliceIdle { wr_min_idle_time, slice_idle, soft_rt_guard } => write!(
                f,
                "wr_min_idle_time is {} us, not longer than slice_idle and soft_rt_guard, {} + {} \
                 us; lengthen wr_min_idle_time",
                wr_min_idle_time.as_micros(),
                slice_idle.as_micros(),
                soft_rt_guard.as_micros()
            ),
            Self::WrCoeffExceedsRt { wr_coeff, wr_rt_coeff } => write!(
                f,
                "wr_coeff is {wr_coeff}, more than wr_rt_coeff, {wr_rt_coeff}; raise wr_rt_coeff \
                 or lower wr_coeff"
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
    ///   [`BfqTunablesError::WrIdleWithinSliceIdle`], [`BfqTunablesError::WrCoeffExceedsRt`] --
    ///   move one of the values.
    pub fn validate(&self) -> Result<(), BfqTunablesError> {
        self.check_ranges()?;
        // What is in force counts: strict guarantees lengthen `slice_idle`.
        let Self { slice_idle, timeout_sync, wr_min_idle_time, soft_rt_guard, .. } =
            self.in_force();
        let Self { wr_coeff, wr_rt_coeff, .. } = *self;
        if slice_idle > timeout_sync {
            return Err(BfqTunablesError::SliceIdleExceedsTimeout { slice_idle, timeout_sync });
        }
        if wr_min_idle_time <= slice_idle + soft_rt_guard {
            return Err(BfqTunablesError::WrIdleWithinSliceIdle {
                wr_min_idle_time,
                slice_idle,
                soft_rt_guard,
            });
        }
        if wr_coeff > wr_rt_coeff {
            return Err(BfqTunablesError::WrCoeffExceedsRt { wr_coeff, wr_rt_coeff });
        }
        Ok(())
    }

    pub(super) fn back_seek(&self) -> BackSeek {
        BackSeek {
            max_sectors: u64::from(self.back_seek_max_kib) * 2,
            penalty: self.back_seek_penalty,
        }
    }

    /// Returns these values as they work together: strict guarantees idle even where the operator
    /// has turned idling off.
    pub(super) fn in_force(&self) -> Self {
        let least = if self.strict_guarantees { STRICT_IDLE } else { Nanos::ZERO };
        Self { slice_idle: self.slice_idle.max(least), ..*self }
    }

    fn check_ranges(&self) -> Result<(), BfqTunablesError> {
        const MS: u64 = 1_000_000;
        const S: u64 = 1_000 * MS;
        // Zero has a meaning of its own in these three.
        let budget_min = if self.max_budget_sectors == 0 { 0 } else { 64 };
        let raise_min = if self.wr_max_time == Nanos::ZERO { 0 } else { MS };
        let burst_min = if self.large_burst_thresh == 0 { 0 } else { 2 };
        let ranges = [
            ("slice_idle", self.slice_idle.0, 0, S),
            ("back_seek_max_kib", u64::from(self.back_seek_max_kib), 0, 1 << 21),
            ("back_seek_penalty", u64::from(self.back_seek_penalty), 1, 1000),
            ("fifo_expire_sync", self.fifo_expire_sync.0, MS, 60 * S),
            ("fifo_expire_async", self.fifo_expire_async.0, MS, 60 * S),
            ("timeout_sync", self.timeout_sync.0, MS, 10 * S),
            ("max_budget_sectors", u64::from(self.max_budget_sectors), budget_min, 1 << 24),
            ("wr_coeff", u64::from(self.wr_coeff), 2, 100),
            ("wr_max_time", self.wr_max_time.0, raise_min, 300 * S),
            ("wr_max_service_sectors", u64::from(self.wr_max_service_sectors), 1, (1 << 32) - 1),
            ("wr_min_idle_time", self.wr_min_idle_time.0, 1, 3600 * S),
            ("wr_rt_coeff", u64::from(self.wr_rt_coeff), 2, 10_000),
            ("wr_rt_max_time", self.wr_rt_max_time.0, MS, 10 * S),
            ("soft_rt_guard", self.soft_rt_guard.0, 0, S),
            ("large_burst_thresh", u64::from(self.large_burst_thresh), burst_min, 1000),
            ("burst_interval", self.burst_interval.0, MS, 599 * MS),
            ("async_charge_factor", u64::from(self.async_charge_factor), 1, 100),
        ];
        for (field, value, min, max) in ranges {
            if value < min || value > max {
                return Err(BfqTunablesError::OutOfRange { field, value, min, max });
            }
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
    fn a_kept_queue_must_not_count_as_inactive_nor_one_that_pauses_between_batches() {
        let slice_idle = Nanos::from_millis(8);
        let wr_min_idle_time = Nanos::from_millis(24);
        let tunables = BfqTunables { wr_min_idle_time, ..BfqTunables::default() };
        let soft_rt_guard = tunables.soft_rt_guard;
        let error =
            BfqTunablesError::WrIdleWithinSliceIdle { wr_min_idle_time, slice_idle, soft_rt_guard };
        assert_eq!(tunables.validate(), Err(error));
        let longer = BfqTunables { wr_min_idle_time: wr_min_idle_time + Nanos(1), ..tunables };
        assert_eq!(longer.validate(), Ok(()));
    }

    #[test]
    fn soft_real_time_goes_before_interactive() {
        let tunables = BfqTunables { wr_rt_coeff: 29, ..BfqTunables::default() };
        let error = BfqTunablesError::WrCoeffExceedsRt { wr_coeff: 30, wr_rt_coeff: 29 };
        assert_eq!(tunables.validate(), Err(error));
        assert_eq!(
            error.to_string(),
            "wr_coeff is 30, more than wr_rt_coeff, 29; raise wr_rt_coeff or lower wr_coeff"
        );
    }

    #[test]
    fn strict_guarantees_idle_for_8_ms_at_least_and_the_slot_must_hold_that() {
        let strict =
            BfqTunables { strict_guarantees: true, slice_idle: Nanos(0), ..BfqTunables::default() };
        assert_eq!(strict.in_force().slice_idle, Nanos::from_millis(8));
        let longer = BfqTunables { slice_idle: Nanos::from_millis(9), ..strict };
        assert_eq!(longer.in_force().slice_idle, Nanos::from_millis(9));
        let timeout_sync = Nanos::from_millis(7);
        let error = BfqTunablesError::SliceIdleExceedsTimeout {
            slice_idle: Nanos::from_millis(8),
            timeout_sync,
        };
        assert_eq!(BfqTunables { timeout_sync, ..strict }.validate(), Err(error));
    }

    #[test]
    fn zero_turns_off_and_the_least_that_works_is_accepted() {
        let default = BfqTunables::default();
        let ms = Nanos::from_millis;
        for tunables in [
            BfqTunables { large_burst_thresh: 0, ..default },
            BfqTunables { large_burst_thresh: 2, ..default },
            BfqTunables { wr_max_time: ms(1), ..default },
            BfqTunables { wr_max_softrt_rate: 0, ..default },
            BfqTunables { soft_rt_guard: Nanos::ZERO, ..default },
            BfqTunables { burst_interval: ms(599), ..default },
        ] {
            assert_eq!(tunables.validate(), Ok(()), "{tunables:?}");
        }
        for tunables in [
            BfqTunables { large_burst_thresh: 1, ..default },
            BfqTunables { wr_max_time: Nanos(1), ..default },
            BfqTunables { burst_interval: ms(600), ..default },
            BfqTunables { wr_rt_max_time: Nanos::ZERO, ..default },
        ] {
            let error = tunables.validate();
            assert!(matches!(error, Err(BfqTunablesError::OutOfRange { .. })), "{tunables:?}");
        }
    }
}
