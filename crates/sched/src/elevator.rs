//! One type for all elevators, chosen when a pool is opened.

use core::fmt;
use core::str::FromStr;

use crate::anticipatory::{Anticipatory, AnticipatoryTunables};
use crate::bfq::{Bfq, BfqTunables};
use crate::cfq::{Cfq, CfqTunables};
use crate::deadline::{Deadline, DeadlineTunables};
use crate::kyber::{Kyber, KyberTunables};
use crate::merge::MergeLimits;
use crate::noop::Noop;
use crate::{
    Beside, GroupId, GroupReport, GroupStats, Insertion, Lead, Nanos, Next, Priority, QueueId,
    Request, Scheduler, Tag, Urgency, Weight,
};

/// The name of an elevator.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Kind {
    /// First come, first served; nothing is merged.
    None,
    /// First come, first served; what continues a waiting request joins it.
    Noop,
    /// Sweeps with deadlines and classes, as mq-deadline in Linux.
    Deadline,
    /// Sweeps with deadlines, as the deadline elevator in Linux before mq-deadline.
    DeadlineLegacy,
    /// Waits a moment after a read for the next one nearby, as the anticipatory scheduler in Linux.
    Anticipatory,
    /// Few at the device, by latency targets, as Kyber in Linux.
    Kyber,
    /// Complete fairness of time: slices by level, shares for groups by weight, as CFQ in Linux.
    Cfq,
    /// Budget fair queueing: shares for groups, quick answers for applications.
    #[default]
    Bfq,
}

impl Kind {
    /// Every elevator, in the order of the documentation.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Noop,
        Self::Deadline,
        Self::DeadlineLegacy,
        Self::Anticipatory,
        Self::Kyber,
        Self::Cfq,
        Self::Bfq,
    ];
}

/// No elevator has this name.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct KindError;

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "unknown elevator, use none, noop, deadline, deadline-legacy, anticipatory, kyber, \
             cfq or bfq",
        )
    }
}

impl core::error::Error for KindError {}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Noop => "noop",
            Self::Deadline => "deadline",
            Self::DeadlineLegacy => "deadline-legacy",
            Self::Anticipatory => "anticipatory",
            Self::Kyber => "kyber",
            Self::Cfq => "cfq",
            Self::Bfq => "bfq",
        })
    }
}

impl FromStr for Kind {
    type Err = KindError;

    fn from_str(name: &str) -> Result<Self, KindError> {
        match name {
            "none" => Ok(Self::None),
            "noop" => Ok(Self::Noop),
            "deadline" | "mq-deadline" => Ok(Self::Deadline),
            "deadline-legacy" => Ok(Self::DeadlineLegacy),
            "anticipatory" | "as" => Ok(Self::Anticipatory),
            "kyber" => Ok(Self::Kyber),
            "cfq" => Ok(Self::Cfq),
            "bfq" => Ok(Self::Bfq),
            _ => Err(KindError),
        }
    }
}

/// Which elevator, and how it is tuned.
#[derive(Clone, Debug, Default)]
pub struct ElevatorConfig {
    /// Which one.
    pub kind: Kind,
    /// How large merged requests become; `none` does not merge.
    pub merge: MergeLimits,
    /// For `deadline` and `deadline-legacy`.
    pub deadline: DeadlineTunables,
    /// For `anticipatory`.
    pub anticipatory: AnticipatoryTunables,
    /// For `kyber`.
    pub kyber: KyberTunables,
    /// For `cfq`.
    pub cfq: CfqTunables,
    /// For `bfq`.
    pub bfq: BfqTunables,
    /// Most requests at the device at a time, for `bfq`; zero if unknown.
    pub depth: u32,
    /// Whether the device has to move something to reach a sector; for `cfq` and `bfq`.
    pub rotational: bool,
    /// A bug to be found.
    #[cfg(feature = "planted")]
    pub planted: Option<crate::Planted>,
}

/// Any elevator.
#[derive(Debug)]
pub struct Elevator(Inner, #[cfg(feature = "planted")] Bug);

/// A bug, and what went to the device last.
#[cfg(feature = "planted")]
#[derive(Debug)]
struct Bug(Option<crate::Planted>, Option<Tag>);

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one per pool, and nothing to follow on the way")]
enum Inner {
    Noop(Noop),
    Deadline(Deadline),
    Anticipatory(Anticipatory),
    Kyber(Kyber),
    Cfq(Cfq),
    Bfq(Bfq),
}

/// Evaluates an expression for whichever elevator there is; a branch, not a virtual call.
macro_rules! each {
    ($elevator:expr, $inner:ident => $call:expr) => {
        match $elevator {
            Inner::Noop($inner) => $call,
            Inner::Deadline($inner) => $call,
            Inner::Anticipatory($inner) => $call,
            Inner::Kyber($inner) => $call,
            Inner::Cfq($inner) => $call,
            Inner::Bfq($inner) => $call,
        }
    };
}

impl Elevator {
    /// Returns an elevator without queues and requests, with the root group alone.
    #[must_use]
    pub fn new(now: Nanos, config: &ElevatorConfig) -> Self {
        let merge = config.merge;
        let inner = match config.kind {
            Kind::None => Inner::Noop(Noop::new(None)),
            Kind::Noop => Inner::Noop(Noop::new(Some(merge))),
            Kind::Deadline => Inner::Deadline(Deadline::new(config.deadline, merge)),
            Kind::DeadlineLegacy => {
                let tunables = DeadlineTunables { legacy: true, ..config.deadline };
                Inner::Deadline(Deadline::new(tunables, merge))
            }
            Kind::Anticipatory => {
                Inner::Anticipatory(Anticipatory::new(now, config.anticipatory, merge))
            }
            Kind::Kyber => Inner::Kyber(Kyber::new(config.kyber, merge)),
            Kind::Cfq => Inner::Cfq(Cfq::new(now, config.cfq, merge, config.rotational)),
            Kind::Bfq => {
                let bfq = Bfq::new(now, config.bfq, merge, config.rotational);
                Inner::Bfq(bfq.with_depth(config.depth))
            }
        };
        #[cfg(feature = "planted")]
        return Self(inner, Bug(config.planted, None));
        #[cfg(not(feature = "planted"))]
        Self(inner)
    }

    /// Returns which one it is.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match &self.0 {
            Inner::Noop(noop) if noop.merges() => Kind::Noop,
            Inner::Noop(_) => Kind::None,
            Inner::Deadline(deadline) if deadline.tunables().legacy => Kind::DeadlineLegacy,
            Inner::Deadline(_) => Kind::Deadline,
            Inner::Anticipatory(_) => Kind::Anticipatory,
            Inner::Kyber(_) => Kind::Kyber,
            Inner::Cfq(_) => Kind::Cfq,
            Inner::Bfq(_) => Kind::Bfq,
        }
    }

    /// Changes how many requests the device takes at once.
    pub fn set_depth(&mut self, depth: u32) {
        if let Inner::Bfq(bfq) = &mut self.0 {
            bfq.set_depth(depth);
        }
    }

    /// Says whether somebody sees to it that what is at the device is no more than it needs. Nobody
    /// does unless told otherwise.
    pub fn set_bounded(&mut self, bounded: bool) {
        if let Inner::Bfq(bfq) = &mut self.0 {
            bfq.set_bounded(bounded);
        }
    }

    /// Changes the tunables of the elevator at work, with everything that waits where it is.
    ///
    /// Returns false, and does nothing, if `config` asks for another elevator; make a new one then.
    /// How requests are merged, the depth, and whether the device is rotational stay as they were. The tunables
    /// are valid.
    pub fn set_tunables(&mut self, now: Nanos, config: &ElevatorConfig) -> bool {
        if self.kind() != config.kind {
            return false;
        }
        match &mut self.0 {
            Inner::Noop(_) => {}
            Inner::Deadline(deadline) => deadline.set_tunables(config.deadline),
            Inner::Anticipatory(anticipatory) => anticipatory.set_tunables(config.anticipatory),
            Inner::Kyber(kyber) => kyber.set_tunables(config.kyber),
            Inner::Cfq(cfq) => cfq.set_tunables(config.cfq),
            Inner::Bfq(bfq) => {
                bfq.set_tunables(now, config.bfq).expect("the tunables are valid");
            }
        }
        true
    }

    /// Returns whether it serves one queue after the other on a device that takes `depth` requests at
    /// once, and so that reads of different places had better not share a queue: they would move a
    /// head to and fro, or each wait for the ones before it.
    #[must_use]
    pub const fn profits_from_streams(&self, depth: u32) -> bool {
        match &self.0 {
            Inner::Bfq(bfq) => bfq.is_rotational() || depth == 1,
            Inner::Cfq(cfq) => cfq.is_rotational() || depth == 1,
            _ => false,
        }
    }
}

impl Scheduler for Elevator {
    fn add_group(&mut self, now: Nanos, parent: GroupId, weight: Weight) -> GroupId {
        #[cfg(feature = "planted")]
        let weight = if self.1.0 == Some(crate::Planted::ForgetsWeights) {
            Weight::default()
        } else {
            weight
        };
        each!(&mut self.0, inner => inner.add_group(now, parent, weight))
    }

    fn remove_group(&mut self, now: Nanos, group: GroupId) {
        each!(&mut self.0, inner => inner.remove_group(now, group));
    }

    fn set_weight(&mut self, now: Nanos, group: GroupId, weight: Weight) {
        each!(&mut self.0, inner => inner.set_weight(now, group, weight));
    }

    fn set_urgency(&mut self, now: Nanos, queue: QueueId, urgency: Urgency) {
        each!(&mut self.0, inner => inner.set_urgency(now, queue, urgency));
    }

    fn set_spoken_for(&mut self, now: Nanos, group: GroupId, is_spoken_for: bool) {
        each!(&mut self.0, inner => inner.set_spoken_for(now, group, is_spoken_for));
    }

    fn deny_start(&mut self, now: Nanos, queue: QueueId, came_from: &[QueueId]) {
        each!(&mut self.0, inner => inner.deny_start(now, queue, came_from));
    }

    #[inline]
    fn beside(&self, now: Nanos, tag: Tag) -> Beside {
        each!(&self.0, inner => inner.beside(now, tag))
    }

    #[inline]
    fn urgency(&self, tag: Tag) -> Urgency {
        each!(&self.0, inner => inner.urgency(tag))
    }

    fn add_queue(&mut self, now: Nanos, group: GroupId, priority: Priority, sync: bool) -> QueueId {
        each!(&mut self.0, inner => inner.add_queue(now, group, priority, sync))
    }

    fn remove_queue(&mut self, now: Nanos, queue: QueueId) {
        each!(&mut self.0, inner => inner.remove_queue(now, queue));
    }

    #[inline]
    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        #[cfg(feature = "planted")]
        if self.1.0 == Some(crate::Planted::LosesRequests)
            && crate::planted::hits(now.0 ^ request.pos, 10_000)
        {
            return Insertion::Queued;
        }
        each!(&mut self.0, inner => inner.insert(now, request))
    }

    #[inline]
    fn dispatch(&mut self, now: Nanos) -> Next {
        #[cfg(feature = "planted")]
        if self.1.0 == Some(crate::Planted::ServesTwice)
            && crate::planted::hits(now.0, 1000)
            && let Some(tag) = self.1.1.take()
        {
            return Next::Request(tag);
        }
        let next = each!(&mut self.0, inner => inner.dispatch(now));
        #[cfg(feature = "planted")]
        if let Next::Request(tag) = next {
            self.1.1 = Some(tag);
        }
        next
    }

    fn pull(&mut self, now: Nanos, tag: Tag) -> Tag {
        each!(&mut self.0, inner => inner.pull(now, tag))
    }

    #[inline]
    fn complete(&mut self, now: Nanos, tag: Tag) {
        #[cfg(feature = "planted")]
        if self.1.1 == Some(tag) {
            self.1.1 = None;
        }
        each!(&mut self.0, inner => inner.complete(now, tag));
    }

    #[inline]
    fn next_deadline(&self) -> Option<Nanos> {
        #[cfg(feature = "planted")]
        if self.1.0 == Some(crate::Planted::MissesDeadlines) {
            return None;
        }
        each!(&self.0, inner => inner.next_deadline())
    }

    #[inline]
    fn next_part(&self, tag: Tag) -> Option<Tag> {
        each!(&self.0, inner => inner.next_part(tag))
    }

    #[inline]
    fn first_part(&self, tag: Tag) -> Tag {
        each!(&self.0, inner => inner.first_part(tag))
    }

    #[inline]
    fn is_device_full(&mut self, now: Nanos) -> bool {
        each!(&mut self.0, inner => inner.is_device_full(now))
    }

    #[inline]
    fn likely_next(&self) -> Option<Tag> {
        each!(&self.0, inner => inner.likely_next())
    }

    #[inline]
    fn is_single(&self, tag: Tag) -> bool {
        each!(&self.0, inner => inner.is_single(tag))
    }

    #[inline]
    fn queued(&self) -> u32 {
        each!(&self.0, inner => inner.queued())
    }

    #[inline]
    fn in_flight(&self) -> u32 {
        each!(&self.0, inner => inner.in_flight())
    }

    fn group_report(&self, group: GroupId) -> GroupReport {
        each!(&self.0, inner => inner.group_report(group))
    }

    fn group_stats(&self, group: GroupId) -> Option<GroupStats> {
        each!(&self.0, inner => inner.group_stats(group))
    }

    fn lead(&self, now: Nanos, group: GroupId) -> Option<Lead> {
        each!(&self.0, inner => inner.lead(now, group))
    }

    fn check_invariants(&self) {
        each!(&self.0, inner => inner.check_invariants());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn names_survive_a_round_trip_and_others_are_refused() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("mq-deadline".parse(), Ok(Kind::Deadline));
        assert_eq!("as".parse(), Ok(Kind::Anticipatory));
        assert_eq!("fair".parse::<Kind>(), Err(KindError));
        assert_eq!("".parse::<Kind>(), Err(KindError));
    }
}
