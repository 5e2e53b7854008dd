//! Arithmetic of virtual time.

/// Fractional bits of virtual time.
const SERVICE_SHIFT: u32 = 22;

/// A point in virtual time: service per weight since an arbitrary origin.
///
/// Wraps after 2^42 sectors times the sum of weights, which a long-lived daemon reaches; so points
/// are compared by their distance, never by size.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Vtime(pub(crate) u64);

impl Vtime {
    /// Returns the point that `service` sectors at `weight` lie after this one, rounded down.
    ///
    /// `service` must be less than 2^42 sectors, two exbibytes; budgets and charges are far less.
    #[inline]
    pub(crate) const fn after(self, service: u64, weight: u64) -> Self {
        Self(self.0.wrapping_add(delta(service, weight)))
    }

    /// Returns whether this point lies after `other`.
    #[inline]
    pub(crate) const fn is_after(self, other: Self) -> bool {
        self.0.wrapping_sub(other.0).cast_signed() > 0
    }

    /// Returns whether this point lies after the one that `service` sectors at `weight` lie after
    /// `start`. Multiplies where comparing with [`after`](Self::after) would divide.
    #[inline]
    pub(crate) fn is_beyond(self, start: Self, service: u64, weight: u64) -> bool {
        let way = self.0.wrapping_sub(start.0);
        // A whole number is greater than a quotient rounded down if it is greater than the quotient.
        way.cast_signed() > 0
            && u128::from(way) * u128::from(weight) > u128::from(service) << SERVICE_SHIFT
    }

    /// Returns the later of two points.
    #[inline]
    pub(crate) const fn max(self, other: Self) -> Self {
        if other.is_after(self) { other } else { self }
    }

    /// Returns the earlier of two points.
    #[inline]
    pub(crate) const fn min(self, other: Self) -> Self {
        if self.is_after(other) { other } else { self }
    }

    /// Returns the way from `earlier` to this point, which must not lie before it.
    #[inline]
    pub(crate) const fn since(self, earlier: Self) -> u64 {
        self.0.wrapping_sub(earlier.0)
    }

    /// Returns this point moved back by `way`.
    #[inline]
    pub(crate) const fn before(self, way: u64) -> Self {
        Self(self.0.wrapping_sub(way))
    }

    /// Returns this point moved forward by `way`.
    #[inline]
    pub(crate) const fn plus(self, way: u64) -> Self {
        Self(self.0.wrapping_add(way))
    }
}

/// Returns how far `service` sectors at `weight` move virtual time, rounded down.
#[inline]
pub(crate) const fn delta(service: u64, weight: u64) -> u64 {
    debug_assert!(service < 1 << (64 - SERVICE_SHIFT));
    (service << SERVICE_SHIFT) / weight
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn delta_matches_the_vectors() {
        for (service, weight, expected) in [
            (512, 40, 53_687_091),
            (1024, 40, 107_374_182),
            (16_384, 100, 687_194_767),
            (1024, 1200, 3_579_139),
            (1024, 120_000, 35_791),
            (8, 1000, 33_554),
        ] {
            assert_eq!(delta(service, weight), expected);
        }
    }

    #[test]
    fn being_beyond_is_being_after_the_point_that_the_service_leads_to() {
        let mut random = Random::new(5);
        for _ in 0..100_000 {
            let start = Vtime(random.below(u64::MAX));
            let (service, weight) = (random.below(1 << 20), 1 + random.below(120_000));
            let way = random.below(2 * delta(service, weight) + 3);
            for point in
                [start.plus(way), start.after(service, weight), Vtime(start.0.wrapping_sub(1))]
            {
                let expected = point.is_after(start.after(service, weight));
                assert_eq!(point.is_beyond(start, service, weight), expected);
            }
        }
    }

    #[test]
    fn comparisons_survive_the_wrap() {
        let late = Vtime(u64::MAX - 5);
        let wrapped = late.plus(10);
        assert!(wrapped.is_after(late) && !late.is_after(wrapped) && !late.is_after(late));
        assert_eq!(late.max(wrapped), wrapped);
        assert_eq!(late.min(wrapped), late);
        assert_eq!(wrapped.since(late), 10);
    }
}
