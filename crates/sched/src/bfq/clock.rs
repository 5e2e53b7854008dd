//! The scheduler's own time, which stands still while nobody could have worked.
//!
//! When the host sleeps, a daemon is stopped, or a VM is moved, the caller's clock jumps by minutes
//! while requests are waiting or at the device. Taken at face value that would make every queue
//! look idle for long, every request overdue, every slot used up. So the jump is left out: inside,
//! time goes on where it stopped, and instants that the caller gets to see are moved by all that
//! was left out so far.
//!
//! A pause in which nothing waits and nothing is at the device is no jump; nor is one that the
//! scheduler itself asked for with a deadline. A device that needs more than a second for a request
//! looks like a jump, too; so that time does not stand still for ever there, at most one jump is
//! left out per second of own time.

use super::Bfq;
use crate::{Nanos, Next};

/// A pause longer than this is a jump.
const JUMP: Nanos = Nanos::from_secs(1);

/// The clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// All jumps so far.
    skipped: Nanos,
    /// The latest instant, in own time.
    last: Nanos,
    /// When the latest jump was left out, in own time.
    jumped: Nanos,
}

impl Clock {
    pub(super) fn new(now: Nanos) -> Self {
        Self { skipped: Nanos::ZERO, last: now, jumped: Nanos::ZERO }
    }

    /// Returns own time for the caller's `now` as far as jumps are known.
    pub(super) fn inside(&self, now: Nanos) -> Nanos {
        (now - self.skipped).max(self.last)
    }

    /// Returns the caller's time for an instant of own time.
    pub(super) fn outside(&self, at: Nanos) -> Nanos {
        at + self.skipped
    }
}

impl Bfq {
    /// Returns own time for the caller's `now`.
    #[inline]
    pub(super) fn inside(&mut self, now: Nanos) -> Nanos {
        let now = now - self.clock.skipped;
        if now.since(self.clock.last) > JUMP {
            return self.after_pause(now);
        }
        self.clock.last = now;
        now
    }

    #[cold]
    fn after_pause(&mut self, now: Nanos) -> Nanos {
        let Clock { last, jumped, .. } = self.clock;
        let is_at_work = self.table.waiting() + self.table.in_flight() > 0;
        let expected = self.deadline().map_or(last, |deadline| deadline.max(last));
        if is_at_work && now.since(expected) > JUMP && last.since(jumped) >= JUMP {
            self.clock.skipped += now.since(last);
            self.clock.jumped = last;
            return last;
        }
        self.clock.last = now;
        now
    }

    /// Returns the answer with its instant in the caller's time.
    #[inline]
    pub(super) fn outward(&self, next: Next) -> Next {
        match next {
            Next::NotBefore(at) => Next::NotBefore(self.clock.outside(at)),
            next => next,
        }
    }
}
