//! The knobs of CFQ.

use crate::Nanos;
use crate::tunable::{self, OutOfRange};

/// What can be tuned about `cfq`; names, units and defaults as in Linux.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CfqTunables {
    /// Most requests of one queue at the device while others wait. 8; 1 to 2^31 - 1. Larger: more
    /// throughput from devices that reorder, longer waits.
    pub quantum: u32,
    /// Age at which the oldest request that somebody waits for is served next, once per slice.
    /// 125 ms; 1 ms to 2^31 - 1 ms.
    pub fifo_expire_sync: Nanos,
    /// The same for write-back. 250 ms; 1 ms to 2^31 - 1 ms.
    pub fifo_expire_async: Nanos,
    /// Longest hop back that is not taken for a wrap of the sweep, in KiB. 16384; up to 2^31 - 1.
    pub back_seek_max_kib: u32,
    /// A distance backwards counts this many times. 2; 1 to 2^31 - 1.
    pub back_seek_penalty: u32,
    /// Slice of a queue that somebody waits for, at level 4. 100 ms; 1 ms to 2^31 - 1 ms.
    pub slice_sync: Nanos,
    /// Slice of a queue of write-back, at level 4. 40 ms; 1 ms to 2^31 - 1 ms.
    pub slice_async: Nanos,
    /// Requests in a slice of write-back: twice this for each level above the worst, while others
    /// wait. 2; 1 to 2^31 - 1.
    pub slice_async_rq: u32,
    /// How long the device is kept for the next request of a queue. 8 ms; 0 to 2^31 - 1 ms. Zero:
    /// never; then slices end when a queue runs empty, and groups share requests instead of time on
    /// a device that queues by itself.
    pub slice_idle: Nanos,
    /// The same for a group whose only queue has run empty. 8 ms; 0 to 2^31 - 1 ms.
    pub group_idle: Nanos,
    /// Whether slices shrink so that all queues have their turn within `target_latency`, and
    /// write-back is held back after a request that took long. True.
    pub low_latency: bool,
    /// In how long all queues shall have their turn. 300 ms; 1 ms to 2^31 - 1 ms.
    pub target_latency: Nanos,
}

impl Default for CfqTunables {
    fn default() -> Self {
        Self {
            quantum: 8,
            fifo_expire_sync: Nanos::from_millis(125),
            fifo_expire_async: Nanos::from_millis(250),
            back_seek_max_kib: 16_384,
            back_seek_penalty: 2,
            slice_sync: Nanos::from_millis(100),
            slice_async: Nanos::from_millis(40),
            slice_async_rq: 2,
            slice_idle: Nanos::from_millis(8),
            group_idle: Nanos::from_millis(8),
            low_latency: true,
            target_latency: Nanos::from_millis(300),
        }
    }
}

impl CfqTunables {
    /// Returns the profile `enterprise-storage`: for arrays that reorder many requests themselves,
    /// and lose more by idling than they gain.
    ///
    /// Source: IBM, "Kernel Virtual Machine (KVM): Best practices for KVM", first edition, 2010.
    #[must_use]
    pub fn enterprise_storage() -> Self {
        Self { quantum: 32, slice_idle: Nanos::ZERO, ..Self::default() }
    }

    /// Returns whether these values work.
    ///
    /// # Errors
    ///
    /// * [`OutOfRange`] -- use a value in the range that it names.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        let most = (1 << 31) - 1;
        let (ms, longest) = (Nanos::from_millis(1).0, Nanos::from_millis(most).0);
        tunable::check([
            ("quantum", self.quantum.into(), 1, most),
            ("fifo_expire_sync", self.fifo_expire_sync.0, ms, longest),
            ("fifo_expire_async", self.fifo_expire_async.0, ms, longest),
            ("back_seek_max_kib", self.back_seek_max_kib.into(), 0, most),
            ("back_seek_penalty", self.back_seek_penalty.into(), 1, most),
            ("slice_sync", self.slice_sync.0, ms, longest),
            ("slice_async", self.slice_async.0, ms, longest),
            ("slice_async_rq", self.slice_async_rq.into(), 1, most),
            ("slice_idle", self.slice_idle.0, 0, longest),
            ("group_idle", self.group_idle.0, 0, longest),
            ("target_latency", self.target_latency.0, ms, longest),
        ])
    }

    /// Returns the slice of a queue by its level, 0 to 7.
    pub(super) fn slice(&self, sync: bool, level: u8) -> Nanos {
        let base = if sync { self.slice_sync.0 } else { self.slice_async.0 };
        Nanos(base / 5 * (9 - u64::from(level)))
    }

    /// Returns a slice shrunk so that `queues` of them fit into `group_slice`, if they have to be;
    /// but not far below two idle periods.
    pub(super) fn scaled(&self, slice: Nanos, queues: u32, group_slice: Nanos) -> Nanos {
        let expected = self.slice_sync.0.saturating_mul(queues.into());
        if !self.low_latency || expected <= group_slice.0 {
            return slice;
        }
        let least = slice.0.min(fraction(2 * self.slice_idle.0, slice.0, self.slice_sync.0));
        Nanos(fraction(slice.0, group_slice.0, expected).max(least))
    }

    /// Returns how many requests a queue of write-back sends in a slice while others wait.
    pub(super) fn max_async(&self, level: u8) -> u32 {
        self.slice_async_rq.saturating_mul(2 * (8 - u32::from(level)))
    }
}

/// Returns `value * numerator / denominator`, where the result fits.
pub(super) fn fraction(value: u64, numerator: u64, denominator: u64) -> u64 {
    let product = u128::from(value) * u128::from(numerator);
    u64::try_from(product / u128::from(denominator.max(1))).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Nanos = Nanos::from_millis;

    #[test]
    fn the_known_slices_come_out() {
        let tunables = CfqTunables::default();
        let slices = |sync| [0, 1, 2, 3, 4, 5, 6, 7].map(|level| tunables.slice(sync, level));
        assert_eq!(slices(true), [180, 160, 140, 120, 100, 80, 60, 40].map(MS));
        assert_eq!(slices(false), [72, 64, 56, 48, 40, 32, 24, 16].map(MS));
    }

    #[test]
    fn slices_shrink_to_fit_the_target_but_not_below_two_idle_periods() {
        let tunables = CfqTunables::default();
        for (queues, expected) in [(10, 30), (40, 16), (3, 100), (1, 100)] {
            assert_eq!(tunables.scaled(MS(100), queues, MS(300)), MS(expected));
        }
        // A slice of another level shrinks in proportion, as does what it may not go below.
        assert_eq!(tunables.scaled(MS(40), 40, MS(300)).as_micros(), 6_400);
        let steady = CfqTunables { low_latency: false, ..tunables };
        assert_eq!(steady.scaled(MS(100), 40, MS(300)), MS(100));
    }

    #[test]
    fn tunables_outside_their_range_are_refused() {
        assert_eq!(CfqTunables::default().validate(), Ok(()));
        assert_eq!(CfqTunables::enterprise_storage().validate(), Ok(()));
        let error = CfqTunables { quantum: 0, ..Default::default() }.validate();
        let expected = OutOfRange { field: "quantum", value: 0, min: 1, max: 2_147_483_647 };
        assert_eq!(error, Err(expected));
    }
}
