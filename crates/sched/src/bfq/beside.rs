//! What starts beside a request of its group that is about to be answered.
//!
//! It matters where the guest has a scheduler of its own: when an answer is given decides whether a
//! program that starts there gets a request slot ([`Beside`]).

use super::Bfq;
use super::queue::Queue;
use crate::{Beside, Nanos};

/// A reader who was last answered so long ago may still be at it: a scheduler in the guest may be
/// holding him up.
const LATELY: Nanos = Nanos::from_secs(10);
/// Readers who are let go together, while what starts pauses, read within this time.
const IN_PAUSE: Nanos = Nanos::from_millis(200);

impl Queue {
    /// Returns whether something starts in it now, if that `lasts` so long. Whoever reads a file in
    /// order reads on by himself.
    pub(super) fn starts(&self, now: Nanos, lasts: Nanos) -> bool {
        let Self { raise, seek, .. } = self;
        raise.is_on() && raise.start(now, lasts).is_some() && !seek.is_in_order()
    }

    /// Returns whether it is of somebody who reads a file in order, as far as anybody knows.
    fn reads_on(&self) -> bool {
        !self.raise.is_on() && self.seek.is_in_order()
    }

    /// Returns how many of its requests wait or are at the device.
    fn in_hand(&self) -> u32 {
        self.list.len() + self.in_flight
    }

    fn has_read_within(&self, now: Nanos, span: Nanos) -> bool {
        self.in_hand() > 0 || self.think.last_end().is_some_and(|end| now <= end + span)
    }
}

impl Bfq {
    /// Returns what starts beside a request of a queue that is at the device.
    #[inline]
    pub(super) fn what_is_beside(&self, now: Nanos, id: u32) -> Beside {
        let queue = &self.queues[id as usize];
        let group = &self.groups[queue.group as usize];
        // Where an agent marks what starts, that has slots of its own.
        let matters = self.rules.pauses_are_bridged && !group.is_spoken_for;
        if matters && (queue.raise.is_on() || group.lingers.is_some()) {
            self.look_beside(now, id)
        } else {
            Beside::Nothing
        }
    }

    #[cold]
    fn look_beside(&self, now: Nanos, id: u32) -> Beside {
        let lasts = self.wr_duration();
        let queue = &self.queues[id as usize];
        if queue.starts(now, lasts) {
            let starts = |other: &&Queue| other.starts(now, lasts);
            let others: u32 = self.others_of_group(id).filter(starts).map(Queue::in_hand).sum();
            let is_rival = |other: &Queue| other.reads_on() && other.has_read_within(now, LATELY);
            // Its own is not counted.
            let company = (queue.in_hand() + others).saturating_sub(1);
            let matters = company > 0 && self.others_of_group(id).any(is_rival);
            return Beside::Start(if matters { company } else { 0 });
        }
        let group = &self.groups[queue.group as usize];
        let pauses = group.lingers.is_some_and(|until| now < until) && !group.lingers_urged;
        // Whatever else is raised may be the program's.
        let is_rest = |other: &Queue| !other.raise.is_on() || other.in_hand() == 0;
        // A reader who is alone may be what has started, and reads on elsewhere.
        let has_rival = || {
            self.others_of_group(id)
                .any(|other| other.reads_on() && other.has_read_within(now, IN_PAUSE))
        };
        if pauses && queue.reads_on() && self.others_of_group(id).all(is_rest) && has_rival() {
            Beside::Pause
        } else {
            Beside::Nothing
        }
    }

    /// Returns whether what starts in the group of a queue has paused; then answers to that one may be
    /// kept, and nothing comes until they are given. Where the device queues, nobody is told apart.
    #[inline]
    pub(super) fn is_beside_pause(&self, now: Nanos, id: u32) -> bool {
        !self.is_queueing_flash() && self.what_is_beside(now, id) == Beside::Pause
    }

    fn others_of_group(&self, id: u32) -> impl Iterator<Item = &Queue> {
        let Queue { group, node, .. } = self.queues[id as usize];
        let is_other = move |other: &&Queue| other.group == group && other.node != node;
        self.queues.iter().filter(|other| other.used).filter(is_other)
    }
}
