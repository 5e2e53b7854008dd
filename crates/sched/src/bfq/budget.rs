//! How much a queue may receive in its next slot, and what a slow slot costs.

use crate::Nanos;

/// Budget until the device's speed is known, in sectors (8 MiB).
pub(super) const DEFAULT_MAX_BUDGET: u64 = 16_384;
/// Slots after which the automatic budget is trusted: 194 of 256 is reached by the 11th.
const TRUSTED_ASSIGNMENTS: u32 = 194;

/// Why a queue loses the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ExpireReason {
    /// It stayed empty for the whole idle window.
    TooIdle,
    /// Its slot lasted too long.
    BudgetTimeout,
    /// Its next request does not fit into what is left of its budget.
    BudgetExhausted,
    /// It is empty, and waiting for it does not pay.
    NoMoreRequests,
    /// Somebody with more right arrived.
    Preempted,
}

/// Largest and least budget of the device, now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Automatic or set by the operator, in sectors.
    max: u64,
    /// Moving count of slots, 256 = many.
    assigned: u32,
    set_by_operator: bool,
}

impl Limits {
    pub(super) fn new(set: u32) -> Self {
        let max = if set == 0 { DEFAULT_MAX_BUDGET } else { u64::from(set) };
        Self { max, assigned: 0, set_by_operator: set != 0 }
    }

    /// Lets the operator set the maximum, or leave it to the device's speed again if zero.
    pub(super) fn set(&mut self, set: u32) {
        self.set_by_operator = set != 0;
        if self.set_by_operator {
            self.max = u64::from(set);
        }
    }

    /// Takes over a new automatic maximum unless the operator has set one.
    pub(super) fn retune(&mut self, automatic: u64) {
        if !self.set_by_operator {
            self.max = automatic.max(1);
        }
    }

    pub(super) fn slot_begins(&mut self) {
        self.assigned = (7 * self.assigned + 256) / 8;
    }

    pub(super) fn is_trusted(&self) -> bool {
        self.assigned >= TRUSTED_ASSIGNMENTS
    }

    /// Returns the device's largest budget in sectors.
    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Returns the largest budget to start from: the automatic one only once it is trusted.
    pub(super) fn initial_max(&self) -> u64 {
        if self.is_trusted() || self.set_by_operator { self.max } else { DEFAULT_MAX_BUDGET }
    }

    pub(super) fn min(&self) -> u64 {
        (self.initial_max() / 32).max(1)
    }

    /// Returns the budget of a queue that has just come into being.
    pub(super) fn fresh(&self) -> u64 {
        (self.initial_max() * 2 / 3).max(1)
    }

    /// Returns the budget while raised: small, so that raised queues take turns quickly.
    pub(super) fn raised(&self) -> u64 {
        2 * self.min()
    }
}

/// What the feedback needs to know of a queue whose slot ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) sync: bool,
    pub(super) raised: bool,
    pub(super) in_flight: bool,
    /// Received in this slot, in sectors, time charge included.
    pub(super) service: u64,
    /// The queue's budget target so far.
    pub(super) budget: u64,
}

/// Returns the next budget target, or `None` if a preempted queue keeps everything as it is.
pub(super) fn next_budget(reason: ExpireReason, slot: Slot, limits: Limits) -> Option<u64> {
    let (budget, min, max) = (slot.budget, limits.min(), limits.max());
    let next = if !slot.sync {
        max
    } else if slot.raised {
        limits.raised()
    } else {
        match reason {
            ExpireReason::TooIdle if slot.in_flight => max.min(2 * budget),
            ExpireReason::TooIdle if budget > 5 * min => budget - 4 * min,
            ExpireReason::TooIdle => min,
            ExpireReason::BudgetTimeout => max.min(2 * budget),
            ExpireReason::BudgetExhausted => max.min(4 * budget),
            ExpireReason::NoMoreRequests => slot.service.min(max).max(min),
            ExpireReason::Preempted => return None,
        }
    };
    if reason == ExpireReason::Preempted {
        return None;
    }
    Some(if limits.is_trusted() && !limits.set_by_operator { next.min(max) } else { next })
}

/// A slot that lasted `span`: how long it counts, and whether it was slow.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Pace {
    pub(super) charged: Nanos,
    pub(super) slow: bool,
}

/// Returns the pace of a slot of a synchronous queue.
///
/// A slot is slow if it moved less than half of what the device's largest budget grants for that
/// time. Linux compares with half of the whole budget however short the slot was, so a good queue
/// that stopped early counts as slow there.
///
/// Short slots of a seeky queue count as slow unseen. In Linux the shortest cost a few
/// milliseconds, since the device will still be busy with what was dispatched; here that is paid
/// for when it completes. Where requests of several queues overlap at the device that would be
/// arbitrary, so there the rule for long slots holds for all, to the microsecond.
pub(super) fn pace(span: Nanos, seeky: bool, device: Device, service: u64) -> Pace {
    let ms = Nanos::from_millis;
    if device.overlaps || device.rest_is_paid {
        return Pace { charged: span, slow: service < time_charge(span, device) / 2 };
    }
    if span < ms(1) {
        let charged = if device.rotational { ms(8) } else { ms(2) };
        return Pace { charged, slow: seeky };
    }
    let charged = ms(span.as_millis());
    if span <= ms(20) {
        return Pace { charged, slow: seeky };
    }
    let due =
        if device.slow_follows_length { time_charge(charged, device) } else { device.max_budget };
    Pace { charged, slow: service < due / 2 }
}

/// The device's side of [`pace`] and [`time_charge`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) rotational: bool,
    /// Whether it works on several requests at once and does not rotate.
    pub(super) overlaps: bool,
    /// Whether what is at the device as a slot ends is paid for when it completes.
    pub(super) rest_is_paid: bool,
    pub(super) max_budget: u64,
    /// The slot length that costs the largest budget.
    pub(super) timeout: Nanos,
    /// Whether a long slot is slow by what its own length earns, not by the whole budget.
    pub(super) slow_follows_length: bool,
}

/// Returns the sectors that `span` of the device costs.
///
/// In Linux a slot never costs more than one timeout. But it ends with the request during which it
/// times out, so whoever seeks far would pay less for the same time; two timeouts are the limit
/// here, which still forgives a device that hangs.
pub(super) fn time_charge(span: Nanos, device: Device) -> u64 {
    let longest =
        if device.rest_is_paid { device.timeout + device.timeout } else { device.timeout };
    let bounded = span.min(longest);
    device.max_budget * bounded.as_micros() / device.timeout.as_micros().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reason: ExpireReason, budget: u64, in_flight: bool, service: u64) -> Option<u64> {
        let slot = Slot { sync: true, raised: false, in_flight, service, budget };
        next_budget(reason, slot, Limits::new(0))
    }

    #[test]
    fn budgets_follow_the_vectors() {
        use ExpireReason::{BudgetExhausted, BudgetTimeout, NoMoreRequests, Preempted, TooIdle};
        assert_eq!(Limits::new(0).fresh(), 10_922);
        assert_eq!(Limits::new(0).min(), 512);
        assert_eq!(after(BudgetExhausted, 10_922, false, 0), Some(16_384));
        assert_eq!(after(BudgetTimeout, 10_922, false, 0), Some(16_384));
        assert_eq!(after(TooIdle, 10_922, false, 0), Some(8874));
        assert_eq!(after(TooIdle, 10_922, true, 0), Some(16_384));
        assert_eq!(after(NoMoreRequests, 10_922, false, 40), Some(512));
        assert_eq!(after(NoMoreRequests, 10_922, false, 3000), Some(3000));
        assert_eq!(after(Preempted, 10_922, false, 3000), None);
        assert_eq!(after(TooIdle, 2560, false, 0), Some(512));
        assert_eq!(after(TooIdle, 2561, false, 0), Some(513));
        let slot = Slot { sync: true, raised: true, in_flight: false, service: 9, budget: 10_922 };
        assert_eq!(next_budget(BudgetExhausted, slot, Limits::new(0)), Some(1024));
        let slot = Slot { sync: false, raised: false, ..slot };
        assert_eq!(next_budget(NoMoreRequests, slot, Limits::new(0)), Some(16_384));
    }

    #[test]
    fn too_idle_takes_eight_slots_to_the_minimum() {
        let mut budget = 16_384;
        for _ in 0..7 {
            budget = after(ExpireReason::TooIdle, budget, false, 0).unwrap();
            assert!(budget > 512);
        }
        assert_eq!(after(ExpireReason::TooIdle, budget, false, 0), Some(512));
    }

    #[test]
    fn the_automatic_budget_is_trusted_from_the_eleventh_slot() {
        let mut limits = Limits::new(0);
        limits.retune(41_961);
        for slot in 1..=11 {
            limits.slot_begins();
            assert_eq!(limits.is_trusted(), slot >= 11);
        }
        assert_eq!(limits.initial_max(), 41_961);
        let mut set = Limits::new(1000);
        set.retune(41_961);
        assert_eq!(set.max(), 1000);
    }

    fn disk() -> Device {
        Device {
            rotational: true,
            overlaps: false,
            rest_is_paid: false,
            max_budget: 16_384,
            timeout: Nanos::from_millis(125),
            slow_follows_length: true,
        }
    }

    #[test]
    fn time_charges_follow_the_vectors() {
        let ms = Nanos::from_millis;
        let device = disk();
        assert_eq!(pace(ms(40), false, device, 800), Pace { charged: ms(40), slow: true });
        assert_eq!(time_charge(ms(40), device), 5242);
        assert_eq!(time_charge(ms(300), device), 16_384);
        let short = pace(Nanos::from_micros(500), true, device, 8);
        assert_eq!(short, Pace { charged: ms(8), slow: true });
        assert_eq!(time_charge(short.charged, device), 1048);
        let flash = Device { rotational: false, ..device };
        assert_eq!(time_charge(pace(Nanos(1), true, flash, 8).charged, flash), 262);
    }

    #[test]
    fn where_the_rest_is_paid_later_slots_of_any_length_cost_what_they_lasted() {
        let (us, ms) = (Nanos::from_micros, Nanos::from_millis);
        let device = Device { rest_is_paid: true, ..disk() };
        assert_eq!(pace(us(500), true, device, 8), Pace { charged: us(500), slow: true });
        assert!(!pace(us(500), true, device, 40).slow, "65 sectors are due");
        assert!(pace(ms(14), false, device, 256).slow, "1835 are due, whether it seeks or not");
        assert_eq!(time_charge(ms(140), device), 18_350);
        assert_eq!(time_charge(ms(900), device), 2 * 16_384);
    }

    #[test]
    fn a_short_good_slot_is_not_slow() {
        let ms = Nanos::from_millis;
        let device = disk();
        // 25 ms of 125 ms earn 3276 sectors; half of that is the threshold.
        assert!(!pace(ms(25), false, device, 1638).slow);
        assert!(pace(ms(25), false, device, 1637).slow);
        let linux = Device { slow_follows_length: false, ..device };
        assert!(pace(ms(25), false, linux, 8191).slow && !pace(ms(25), false, linux, 8192).slow);
    }
}
