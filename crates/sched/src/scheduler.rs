//! The contract between the engine and every elevator.

use crate::{GroupStats, Nanos, Priority, Request, Tag, Weight};

/// Names a queue, the leaf of the scheduling tree: what comes closest to one application.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct QueueId(pub u32);

/// Names a group, an inner node of the scheduling tree: a tenant or a VM.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The root of the tree: the pool.
    pub const ROOT: Self = Self(0);
}

/// What became of an inserted request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Insertion {
    /// It waits on its own.
    Queued,
    /// It was glued to the waiting request named here, and goes to the device as a part of it.
    Merged(Tag),
}

/// What a scheduler answers to "who is next?".
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// This request goes to the device now, with all its [`parts`](Scheduler::first_part).
    Request(Tag),
    /// Requests wait, but none may go before this instant, unless an insertion or a completion
    /// changes that: the scheduler keeps the device for somebody who is expected back at once.
    NotBefore(Nanos),
    /// Nothing to do until the next insertion or completion.
    Empty,
}

/// Figures of one group for `status`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GroupReport {
    /// Sectors dispatched for this group and all below it since it exists.
    pub service_sectors: u64,
    /// Requests that wait in this group and below.
    pub queued: u32,
    /// Whether its weight is raised now, for an interactive or soft real-time queue in it.
    pub raised: bool,
}

/// What a group got ahead of its share by raises, and gives back.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Lead {
    /// By how much time of the device it is ahead.
    pub ahead: Nanos,
    /// Whether that is so much that it is raised for short starts alone until a part of it is gone.
    pub is_spent: bool,
}

/// What goes on in the group of a request that is about to be answered, as far as the answer may
/// matter to something that starts there.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Beside {
    /// Nothing.
    #[default]
    Nothing,
    /// It is one of what starts, which has asked for so many others that are not answered; none if
    /// nobody beside it reads a file in order.
    Start(u32),
    /// It is of somebody else, who reads a file in order, while what starts has paused with nothing in
    /// hand.
    Pause,
}

/// How urgent somebody outside says that a queue's requests are.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Urgency {
    /// Nothing is said.
    #[default]
    None,
    /// An application starts in it, or somebody works with one.
    Interactive,
    /// A player or recorder in it must keep its pace.
    SoftRealTime,
}

/// An elevator: decides who is next, and nothing else.
///
/// `now` never lies before the `now` of an earlier call. Every tag given to [`insert`] comes out
/// exactly once: by itself from [`dispatch`] or [`pull`], or as one of the [`parts`] of a request
/// that does. The caller owes one [`complete`] for every tag that came out by itself (not for its
/// parts).
///
/// [`insert`]: Self::insert
/// [`dispatch`]: Self::dispatch
/// [`parts`]: Self::first_part
/// [`complete`]: Self::complete
/// [`pull`]: Self::pull
pub trait Scheduler {
    /// Adds a group below `parent`. Elevators without shares accept and ignore groups.
    fn add_group(&mut self, now: Nanos, parent: GroupId, weight: Weight) -> GroupId;

    /// Removes a group. The caller has removed its queues and child groups, and all is completed.
    fn remove_group(&mut self, now: Nanos, group: GroupId);

    /// Changes the weight of a group; takes effect when the group next becomes active.
    fn set_weight(&mut self, now: Nanos, group: GroupId, weight: Weight);

    /// Adds a queue to a group. `sync` queues hold requests that somebody waits for; a queue that
    /// is not `sync` holds write-back.
    fn add_queue(&mut self, now: Nanos, group: GroupId, priority: Priority, sync: bool) -> QueueId;

    /// Says that nobody will insert into this queue any more. What it holds still comes out, but
    /// its name may be given to the next queue that is added.
    fn remove_queue(&mut self, now: Nanos, queue: QueueId);

    /// Says how urgent a queue's requests are, until something else is said. Whoever says so bounds
    /// it; elevators that know no urgency ignore it.
    fn set_urgency(&mut self, now: Nanos, queue: QueueId, urgency: Urgency) {
        let _nothing_to_do = (now, queue, urgency);
    }

    /// Says whether somebody outside knows which queues of a group are urgent, those of groups below
    /// apart. While he does, who is soft real-time there is what he has said by
    /// [`set_urgency`](Self::set_urgency), and not what an elevator takes for it. What looks like a
    /// start still counts: he may have missed it.
    fn set_spoken_for(&mut self, now: Nanos, group: GroupId, is_spoken_for: bool) {
        let _nothing_to_do = (now, group, is_spoken_for);
    }

    /// Says that the request that comes next into a queue starts nothing, however long the queue has
    /// been silent: whoever issues it was active elsewhere, if anything is known about where, in one
    /// of the queues `came_from`. Elevators that take a silence for the sign of a start heed it; who
    /// was starting in all of those may be in the middle of it still, and is known by what he did
    /// there.
    fn deny_start(&mut self, now: Nanos, queue: QueueId, came_from: &[QueueId]) {
        let _nothing_to_do = (now, queue, came_from);
    }

    /// Returns what goes on in the group of a request at the device with which its answer may have to
    /// be given. Valid until [`complete`](Self::complete). O(1), or O(queues) while something starts
    /// in the group.
    fn beside(&self, _now: Nanos, _tag: Tag) -> Beside {
        Beside::Nothing
    }

    /// Returns how urgent the queue is from which a request at the device came, by what was said of
    /// it and what the elevator itself has found out. Valid until [`complete`](Self::complete);
    /// [`Urgency::None`] from elevators that know no urgency. O(1).
    fn urgency(&self, tag: Tag) -> Urgency {
        let _nobody_is = tag;
        Urgency::None
    }

    /// Returns whether it is known that [`dispatch`](Self::dispatch) answers [`Next::Empty`] and has
    /// no deadline: the device has enough to do for who is served now. Until one of these changes,
    /// whatever comes to others. False says nothing. O(1).
    #[inline]
    fn is_device_full(&mut self, now: Nanos) -> bool {
        let _nobody_knows = now;
        false
    }

    /// Returns the request that probably goes next, as far as that is known without a search. A
    /// hint for whoever wants to have what he knows of it at hand; O(1).
    #[inline]
    fn likely_next(&self) -> Option<Tag> {
        None
    }

    /// Hands over a request. Never refuses. O(log n) in the requests of the queue.
    fn insert(&mut self, now: Nanos, request: Request) -> Insertion;

    /// Chooses the request that goes to the device now. The caller asks only if the device has
    /// room, and repeats until the answer is not [`Next::Request`]. Also handles deadlines that
    /// have passed: there is no separate timer call.
    fn dispatch(&mut self, now: Nanos) -> Next;

    /// Sends a waiting request to the device out of turn, with all that it was merged with, and
    /// returns the tag that stands for the whole, as [`dispatch`](Self::dispatch) would.
    ///
    /// It is accounted for as any other request, so its queue and its groups pay for it.
    ///
    /// # Panics
    ///
    /// Panics if `tag` neither waits nor is a part of one that waits.
    fn pull(&mut self, now: Nanos, tag: Tag) -> Tag;

    /// Says that the device has finished a dispatched request and all its parts.
    fn complete(&mut self, now: Nanos, tag: Tag);

    /// Returns the instant at which [`dispatch`](Self::dispatch) must be asked again even if
    /// nothing arrives and nothing completes; never one that the last `dispatch` has handled.
    fn next_deadline(&self) -> Option<Nanos>;

    /// Returns the part of a request that follows `tag` in ascending sector order.
    ///
    /// A walk starts at [`first_part`](Self::first_part); valid until `complete`.
    fn next_part(&self, tag: Tag) -> Option<Tag>;

    /// Returns the part of a request with the lowest sector; the request itself if unmerged.
    fn first_part(&self, tag: Tag) -> Tag;

    /// Returns whether a request that came out by itself has no other parts. Valid until
    /// `complete`.
    #[inline]
    fn is_single(&self, tag: Tag) -> bool {
        self.next_part(tag).is_none() && self.first_part(tag) == tag
    }

    /// Returns the number of requests that wait (a merged request counts once).
    fn queued(&self) -> u32;

    /// Returns the number of requests dispatched and not completed (a merged one counts once).
    fn in_flight(&self) -> u32;

    /// Returns the figures of a group.
    fn group_report(&self, group: GroupId) -> GroupReport;

    /// Returns the statistics of a group, or nothing from an elevator that keeps none.
    fn group_stats(&self, _group: GroupId) -> Option<GroupStats> {
        None
    }

    /// Returns what a group has ahead of its share, or nothing from an elevator that lends nothing.
    fn lead(&self, _now: Nanos, _group: GroupId) -> Option<Lead> {
        None
    }

    /// Panics if the state contradicts itself. For tests and the simulator; O(everything).
    fn check_invariants(&self);
}
