//! Does the device work on several requests at once?
//!
//! Seen from here it does if it is ever given several. That nobody gives it several shows nothing
//! unless somebody could have: moments count only if requests waited, and the scheduler was not the
//! one who held them back. Linux never takes a "yes" back; here it lasts until the evidence has
//! been missing for 32 moments in a row.

use super::{Bfq, Queueing};

/// More requests than this at the device show that it queues.
const DEPTH: u32 = 3;
/// More moments than this without such depth show that it does not.
const SAMPLES: u32 = 32;

/// What is known so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct HwTag {
    is_on: bool,
    /// Moments since the last one with depth.
    shallow: u32,
}

impl HwTag {
    /// Unknown, and so presumed.
    pub(super) const NEW: Self = Self { is_on: true, shallow: 0 };

    fn is_deep(&mut self) {
        *self = Self::NEW;
    }

    fn is_shallow(&mut self) {
        self.shallow += 1;
        if self.shallow > SAMPLES {
            *self = Self { is_on: false, shallow: 0 };
        }
    }
}

impl Bfq {
    /// Takes a sample; a request is about to complete, and still counts as at the device.
    #[inline]
    pub(super) fn observe_depth(&mut self) {
        if self.tunables.queueing == Queueing::Auto {
            self.sample_depth();
        }
    }

    fn sample_depth(&mut self) {
        let at_device = self.table.in_flight();
        if at_device > DEPTH {
            self.hw_tag.is_deep();
        } else if at_device + self.table.waiting() > DEPTH && !self.is_holding_back() {
            self.hw_tag.is_shallow();
        } else {
            return;
        }
        self.review_queueing();
    }

    /// Puts in force what the operator says, or what is known.
    pub(super) fn review_queueing(&mut self) {
        self.queueing = match self.tunables.queueing {
            Queueing::Auto => self.hw_tag.is_on,
            Queueing::Yes => true,
            Queueing::No => false,
        };
    }

    /// Returns whether the device holds few requests because of us: one at a time, no more than so
    /// many sectors, or only those of a queue that has no more and is waited for.
    fn is_holding_back(&self) -> bool {
        let Some(holder) = self.holder else { return self.tunables.strict_guarantees };
        let queue = &self.queues[holder as usize];
        let is_waited_for = queue.short_ttime
            && queue.in_flight + queue.list.len() < DEPTH
            && self.table.in_flight() < DEPTH;
        self.tunables.strict_guarantees
            || is_waited_for
            || queue.next.is_some_and(|tag| self.device_is_full(tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_three_shallow_moments_in_a_row_deny_it_and_one_deep_one_shows_it() {
        let mut hw_tag = HwTag::NEW;
        for _ in 0..SAMPLES {
            hw_tag.is_shallow();
        }
        assert!(hw_tag.is_on);
        hw_tag.is_deep();
        for _ in 0..SAMPLES {
            hw_tag.is_shallow();
        }
        assert!(hw_tag.is_on, "a row begins anew");
        hw_tag.is_shallow();
        assert!(!hw_tag.is_on);
        hw_tag.is_deep();
        assert!(hw_tag.is_on);
    }
}
