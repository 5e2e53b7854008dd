//! What is known of one queue and of one group.

use super::burst::{Burst, InBurst};
use super::inject::InjectLimit;
use super::loan::Loan;
use super::merging::{Neighbours, Sharing};
use super::raise::Raise;
use super::softrt::Batches;
use super::stats::{IoBound, SeekHistory, ThinkTime};
use super::wakers::Ties;
use crate::table::SortList;
use crate::wf2q::Node;
use crate::{Class, Nanos, Tag};

/// One queue. Busy means: waits for service or is in service.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) node: Node,
    pub(super) group: u32,
    pub(super) list: SortList,
    /// The request that is served next; none if nothing waits.
    pub(super) next: Option<Tag>,
    pub(super) in_flight: u32,
    pub(super) class: Class,
    /// 0 to 7; decides the weight.
    pub(super) level: u8,
    pub(super) sync: bool,
    /// Whether the name is in use.
    pub(super) used: bool,
    /// Nobody will insert any more.
    pub(super) gone: bool,
    pub(super) busy: bool,
    /// No request has come yet.
    pub(super) fresh: bool,
    /// It left only because it waited for its own requests, and is expected back.
    pub(super) paused: bool,
    /// Its last slot ended before its budget and its time did, so it may take the device back.
    pub(super) cut_short: bool,
    /// It has not used up a slot since it turned busy.
    pub(super) has_come: bool,
    /// When its oldest request is looked at again; a new slot looks at once.
    pub(super) fifo_check_at: Nanos,
    /// Its next request is overdue, and goes before whatever arrives.
    pub(super) next_is_due: bool,
    /// It comes back soon after its requests complete, or is presumed to.
    pub(super) short_ttime: bool,
    /// It counts in its group's `pending`: from busy until empty and all completed.
    pub(super) pending: bool,
    /// It counts in the device's `levels`: pending and not raised.
    pub(super) weighed: bool,
    /// Target of the next budget, in sectors.
    pub(super) max_budget: u64,
    /// What of its last budget it used, if `paused`, in sectors.
    pub(super) spent: u64,
    /// Since when nothing waits and nothing is in flight; none if nothing ever was.
    pub(super) idle_since: Option<Nanos>,
    pub(super) think: ThinkTime,
    pub(super) seek: SeekHistory,
    /// When it was raised last as a soft real-time one.
    pub(super) played: Option<Nanos>,
    pub(super) bound: IoBound,
    pub(super) raise: Raise,
    pub(super) batches: Batches,
    /// Since when it waits for the device, while it does.
    pub(super) waits_since: Nanos,
    /// Since when it waits and nothing of it has been served, while it waits.
    pub(super) starves_since: Nanos,
    /// When it turned busy last, less the time for which it has waited for slots since.
    pub(super) came: Nanos,
    pub(super) in_burst: InBurst,
    /// How many requests of others it bears while it is waited for.
    pub(super) inject: InjectLimit,
    /// What it owes for time that injected requests took, in sectors; paid when it is next busy.
    pub(super) debt: u64,
    pub(super) ties: Ties,
    pub(super) sharing: Sharing,
}

/// Returns the weight of queues of an I/O priority level, 0 to 7.
pub(super) fn weight_of(level: u8) -> u64 {
    (8 - u64::from(level)) * 10
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns its weight without a raise.
    pub(super) fn plain_weight(&self) -> u64 {
        weight_of(self.level)
    }
}

/// One group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) node: Node,
    pub(super) parent: u32,
    pub(super) used: bool,
    /// How many of its own queues are pending.
    pub(super) pending: u32,
    /// How many raised queues are busy in it and below.
    pub(super) raised: u32,
    /// For how long they have had the device since the first of them turned busy.
    pub(super) raised_served: Nanos,
    /// When one of them turned busy last in which something starts.
    pub(super) started: Option<Nanos>,
    /// Until when it stays lifted although none of them is busy.
    pub(super) lingers: Option<Nanos>,
    /// Whether that is for something that somebody outside urges.
    pub(super) lingers_urged: bool,
    /// How many of those are soft real-time.
    pub(super) soft_rt: u32,
    /// How many of those somebody outside urges.
    pub(super) urged: u32,
    /// Whether somebody outside knows which of its own queues are urgent.
    pub(super) is_spoken_for: bool,
    /// Its weight, and the sum of those of its queues and groups that compete, without raises.
    pub(super) weight: u64,
    pub(super) contenders: u64,
    /// The sum of the weights of its groups in which a soft real-time queue is busy.
    pub(super) players: u64,
    pub(super) loan: Loan,
    pub(super) burst: Burst,
    pub(super) neighbours: Neighbours,
}

impl Group {
    /// Returns whether it is lifted because of what somebody outside urges, who pays for that.
    pub(super) fn is_urged(&self) -> bool {
        self.urged > 0 || (self.lingers.is_some() && self.lingers_urged)
    }

    pub(super) fn new(now: Nanos, node: Node, parent: u32, weight: u64) -> Self {
        Self {
            node,
            parent,
            used: true,
            pending: 0,
            raised: 0,
            raised_served: Nanos::ZERO,
            started: None,
            lingers: None,
            lingers_urged: false,
            soft_rt: 0,
            urged: 0,
            is_spoken_for: false,
            weight,
            contenders: 0,
            players: 0,
            loan: Loan::new(now),
            burst: Burst::NONE,
            neighbours: Neighbours::default(),
        }
    }
}
