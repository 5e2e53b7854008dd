//! How many of the device's places writes may take while others wait.
//!
//! What is at the device is out of reach. If writes fill all of its places, a read that arrives
//! waits for most of them, however soon it is chosen. So writes leave places free: write-back more
//! than writes that somebody waits for, and more while something raised is busy.
//!
//! Linux limits the requests that it lets into the scheduler, because they come out of one pool of
//! tags for everybody. Here every VM has rings of its own, so nobody takes another one's; and what
//! is left in a ring keeps what lies behind it from the scheduler, a read behind a refused write.
//! So the same fractions hold for the device's places, the scarce thing here. For the same reason a
//! share of the places by weight is held by who is injected alone: whoever is in service may use
//! the whole device.
//!
//! Who is refused is asked again when something completes; and nobody is refused unless something
//! of the same kind is at the device. So nobody is forgotten.
//!
//! Source: Linux, block/bfq-iosched.c, `bfq_limit_depth` and `bfqq_request_over_limit`.

use super::Bfq;
use crate::Tag;
use crate::table::Flavour;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Read,
    SyncWrite,
    WriteBack,
}

impl Kind {
    pub(super) fn of(flavour: Flavour) -> Self {
        match (flavour.is_write(), flavour.sync()) {
            (false, _) => Self::Read,
            (true, true) => Self::SyncWrite,
            (true, false) => Self::WriteBack,
        }
    }
}

/// Returns how many of `depth` places requests of a kind may take; at least 1.
pub(super) fn most_places(kind: Kind, raised: bool, depth: u32) -> u32 {
    let sixteenths = match (kind, raised) {
        (Kind::Read, _) => 16,
        (Kind::SyncWrite, false) => 12,
        (Kind::WriteBack, false) => 8,
        (Kind::SyncWrite, true) => 6,
        (Kind::WriteBack, true) => 3,
    };
    let most = u64::from(depth) * sixteenths / 16;
    u32::try_from(most).expect("not more than the depth").max(1)
}

impl Bfq {
    /// Returns whether a request of the queue in service must wait because requests of its kind
    /// take enough of the device's places.
    #[inline]
    pub(super) fn lacks_place(&self, tag: Tag) -> bool {
        let kind = Kind::of(self.table.get(tag).flavour);
        if kind == Kind::Read || self.depth == 0 || self.pending <= 1 {
            return false;
        }
        self.writes_at_device[usize::from(kind == Kind::WriteBack)]
            >= most_places(kind, self.wr_busy > 0, self.depth)
    }

    /// Counts a request that goes to the device or comes from there.
    #[inline]
    pub(super) fn count_place(&mut self, flavour: Flavour, comes: bool) {
        if flavour.is_write() {
            let count = &mut self.writes_at_device[usize::from(!flavour.sync())];
            *count = if comes { *count + 1 } else { *count - 1 };
        }
    }

    /// Returns whether a queue that is not in service has the places at the device that its weight
    /// and those of its groups earn.
    pub(super) fn has_its_places(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        self.depth > 0 && queue.in_flight >= self.engine.fair_slots(queue.node, self.depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_may_take_all_places_and_writes_fewer_while_something_is_raised() {
        let places = |kind| [false, true].map(|raised| most_places(kind, raised, 64));
        assert_eq!(places(Kind::Read), [64, 64]);
        assert_eq!(places(Kind::SyncWrite), [48, 24]);
        assert_eq!(places(Kind::WriteBack), [32, 12]);
        assert_eq!(most_places(Kind::WriteBack, true, 1), 1, "one place is left to everybody");
    }
}
