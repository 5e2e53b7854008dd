//! The clock of a guest: it ticks, and sometimes halts and jumps.
//!
//! A guest whose virtual CPU does not run gets no timer interrupts; when it runs again several
//! ticks arrive at once. Its scheduler then sees time stand still and jump. Deliverable D3.6 of the
//! vIrtical project (2014, section 3.2) traces wrongly privileged readers to that.

use evenkeel_sched::Nanos;

use super::random::mix;

/// How a guest's clock advances.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ClockModel {
    /// Ticks per second, the kernel's HZ: 100, 250, 1000. Zero: a perfect clock.
    pub hz: u32,
    /// How many in a thousand ticks are late.
    pub late_per_mille: u32,
    /// The most ticks that one is late by.
    pub most_late_ticks: u32,
}

impl ClockModel {
    /// A clock that is always right.
    pub const PERFECT: Self = Self { hz: 0, late_per_mille: 0, most_late_ticks: 0 };

    /// Returns the clock of a kernel of `hz` ticks per second in a VM: one tick in fifty is late,
    /// by up to four.
    #[must_use]
    pub const fn halting(hz: u32) -> Self {
        Self { hz, late_per_mille: 20, most_late_ticks: 4 }
    }
}

/// The clock of one guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestClock {
    model: ClockModel,
    tick: u64,
    seed: u64,
}

impl GuestClock {
    pub(crate) fn new(model: ClockModel, seed: u64) -> Self {
        let tick = 1_000_000_000_u64.checked_div(u64::from(model.hz)).unwrap_or(1).max(1);
        Self { model, tick, seed: mix(seed) }
    }

    /// Returns the instant at which tick number `index` reaches the guest.
    fn arrives(&self, index: u64) -> u64 {
        let draw = mix(self.seed ^ index);
        let is_late = draw % 1000 < u64::from(self.model.late_per_mille);
        let most = u64::from(self.model.most_late_ticks);
        let late = if is_late && most > 0 { 1 + (draw >> 32) % most } else { 0 };
        (index + late) * self.tick
    }

    /// Returns the time that the guest reads at the instant `now`; it never decreases.
    pub(crate) fn read(&self, now: Nanos) -> Nanos {
        if self.model.hz == 0 {
            return now;
        }
        // Ticks are late by so many at most: an earlier one has arrived for certain.
        let newest = now.0 / self.tick;
        let oldest = newest.saturating_sub(u64::from(self.model.most_late_ticks));
        let seen = (oldest..=newest).rev().find(|&index| self.arrives(index) <= now.0);
        Nanos(seen.unwrap_or(oldest) * self.tick)
    }

    /// Returns the first instant, not before `now`, at which the guest reads `time` or later.
    pub(crate) fn reads(&self, time: Nanos, now: Nanos) -> Nanos {
        if self.model.hz == 0 {
            return time.max(now);
        }
        let first = time.0.div_ceil(self.tick);
        let last = first + u64::from(self.model.most_late_ticks);
        let at = (first..=last).map(|index| self.arrives(index)).min().unwrap_or(time.0);
        Nanos(at).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_clock_never_runs_back_and_is_late_by_the_model_at_most() {
        for hz in [100, 250, 1000] {
            let clock = GuestClock::new(ClockModel::halting(hz), 7);
            let tick = 1_000_000_000 / u64::from(hz);
            let mut last = Nanos::ZERO;
            let mut jumps = 0;
            for step in 0..40_000 {
                let now = Nanos::ORIGIN + Nanos(step * tick / 4);
                let read = clock.read(now);
                assert!(read >= last && read <= now && now.0 - read.0 < 5 * tick);
                jumps += u32::from(last > Nanos::ZERO && read.0 - last.0 > tick);
                last = read;
            }
            assert!(jumps > 50, "HZ {hz}: {jumps} jumps");
        }
    }

    #[test]
    fn a_timer_fires_at_the_first_instant_at_which_the_guest_reads_its_time() {
        let clock = GuestClock::new(ClockModel::halting(100), 3);
        for step in 0..5_000 {
            let wanted = Nanos::ORIGIN + Nanos(step * 3_700_000);
            let at = clock.reads(wanted, Nanos::ZERO);
            assert!(clock.read(at) >= wanted);
            assert!(clock.read(Nanos(at.0 - 1)) < wanted, "not a moment earlier");
        }
    }

    #[test]
    fn a_perfect_clock_reads_what_is() {
        let clock = GuestClock::new(ClockModel::PERFECT, 3);
        assert_eq!(clock.read(Nanos(123)), Nanos(123));
        assert_eq!(clock.reads(Nanos(123), Nanos(200)), Nanos(200));
    }
}
