//! Raising: a queue in which an application seems to start, or that is soft real-time, is served at
//! once.
//!
//! While a queue is raised, so is every group above it, as long as the queue is busy: otherwise an
//! application that starts in a VM would get that VM's plain share against other VMs.

use super::Bfq;
use super::burst::{BURST_EXIT, InBurst};
use super::queue::Queue;
use super::softrt::SoftRtRules;
use crate::{Class, GroupId, Nanos, Urgency};

/// After so many timeouts at the device without a pause a queue is none in which something starts.
const ENDLESS_TIMEOUTS: u64 = 32;
/// The level of queues that nobody has given one.
const DEFAULT_LEVEL: u8 = 4;

/// Why a queue is raised.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) enum WrKind {
    /// It is not.
    #[default]
    None,
    /// Something starts there, or somebody works with it.
    Interactive,
    /// It needs little, but in time.
    SoftRt,
}

impl From<Urgency> for WrKind {
    fn from(urgency: Urgency) -> Self {
        match urgency {
            Urgency::None => Self::None,
            Urgency::Interactive => Self::Interactive,
            Urgency::SoftRealTime => Self::SoftRt,
        }
    }
}

impl From<WrKind> for Urgency {
    fn from(kind: WrKind) -> Self {
        match kind {
            WrKind::None => Self::None,
            WrKind::Interactive => Self::Interactive,
            WrKind::SoftRt => Self::SoftRealTime,
        }
    }
}

/// The raise of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Raise {
    pub(super) kind: WrKind,
    began: Nanos,
    lasts: Nanos,
    /// When the interactive raise began that a soft real-time one has replaced, or what somebody
    /// outside says.
    interactive_since: Option<Nanos>,
    /// Charged since the raise began, in sectors.
    pub(super) service: u64,
    /// What somebody outside says; while it is not [`Urgency::None`] the raise has no end.
    urged: Urgency,
}

impl Raise {
    pub(super) fn is_on(&self) -> bool {
        self.kind != WrKind::None
    }

    /// Returns whether somebody outside wants it.
    pub(super) fn is_urged(&self) -> bool {
        self.urged != Urgency::None
    }

    /// Returns whether somebody starts something: it is an interactive one, or its time as such is
    /// not over.
    pub(super) fn starts(&self, now: Nanos, lasts: Nanos) -> bool {
        let goes_on = || self.interactive_since.is_some_and(|since| now <= since + lasts);
        self.kind == WrKind::Interactive || goes_on()
    }

    /// Returns the interactive raise that it is, or that a soft real-time one has replaced, as long
    /// as its time, which then `lasts` so long, is not over.
    pub(super) fn start(&self, now: Nanos, lasts: Nanos) -> Option<Self> {
        let start = match self.kind {
            WrKind::Interactive => *self,
            _ => Self {
                kind: WrKind::Interactive,
                began: self.interactive_since?,
                lasts,
                interactive_since: None,
                ..*self
            },
        };
        (!start.is_late(now)).then_some(start)
    }

    /// Lets an interactive raise go on when this one, a soft real-time one, is over, unless one does
    /// that by itself.
    pub(super) fn precede(&mut self, now: Nanos, start: Self) {
        let goes_on = self.start(now, start.lasts).is_some();
        if self.kind == WrKind::SoftRt && !self.is_urged() && !goes_on {
            self.interactive_since = Some(start.began);
            self.service = start.service;
        }
    }

    /// Returns the one that ends first, with the service of the one that has had more.
    pub(super) fn least(self, other: Self) -> Self {
        let service = self.service.max(other.service);
        let ends = |raise: &Self| raise.began + raise.lasts;
        let first = if ends(&self) <= ends(&other) { self } else { other };
        Self { service, ..first }
    }

    /// Returns whether it is an interactive one that begins, or begins again, now, and that nobody
    /// outside urges: who does pays for it.
    pub(super) fn begins(&self, now: Nanos) -> bool {
        self.kind == WrKind::Interactive && self.began == now && !self.is_urged()
    }

    /// Returns whether its time is over.
    pub(super) fn is_late(&self, now: Nanos) -> bool {
        now > self.began + self.lasts
    }

    /// Returns whether it is off, or will be as soon as somebody looks: time passes unseen for a queue
    /// without requests.
    pub(super) fn is_over(&self, now: Nanos) -> bool {
        !self.is_on() || (self.is_late(now) && !self.is_urged())
    }

    /// Returns whether it is an interactive one that has brought more than `most` sectors.
    pub(super) fn is_spent(&self, most: u32) -> bool {
        self.kind == WrKind::Interactive && self.service > u64::from(most)
    }
}

impl Queue {
    /// Returns whether this queue may be raised at all.
    pub(super) fn is_raisable(&self) -> bool {
        self.sync && self.class != Class::Idle
    }

    /// Returns whether a request that arrives now ends an inactivity of more than `pause`. A queue
    /// without a past has been inactive since its scheduler `began`, as far as anybody knows.
    fn is_back_after(&self, now: Nanos, pause: Nanos, began: Nanos) -> bool {
        self.in_flight == 0 && now > self.idle_since.unwrap_or(began) + pause
    }
}

impl Bfq {
    /// Decides about the raise of a queue that turns busy; returns whether one begins.
    pub(super) fn review_raise(&mut self, now: Nanos, id: u32) -> bool {
        let (pause, began) = (self.tunables.wr_min_idle_time, self.began);
        let rules = SoftRtRules::new(&self.tunables);
        let queue = &mut self.queues[id as usize];
        let is_late =
            queue.in_flight == 0 && queue.batches.next(now, queue.think.last_end(), rules);
        let fits = self.rules.any_level_is_raised || queue.level == DEFAULT_LEVEL;
        if !self.tunables.low_latency || !queue.is_raisable() || !fits {
            return false;
        }
        let is_back = queue.is_back_after(now, pause, began);
        if queue.raise.urged != Urgency::None {
            let (kind, since) = (queue.raise.urged.into(), queue.raise.interactive_since);
            let begins = self.raise(now, id, kind);
            let raise = &mut self.queues[id as usize].raise;
            raise.interactive_since = if is_back { Some(now) } else { since };
            return begins;
        }
        let is_regular = is_late && !queue.seek.is_totally_seeky();
        let is_spoken_for = self.groups[queue.group as usize].is_spoken_for;
        let is_isochronous = is_regular && !is_spoken_for && !self.is_held_up(now, id);
        if is_back {
            if self.queues[id as usize].is_back_after(now, BURST_EXIT, began) {
                self.leave_burst(id);
            }
            self.note_start(now, id);
        }
        if self.queues[id as usize].in_burst == InBurst::Large {
            self.end_raise(now, id);
            return false;
        }
        if is_back {
            self.raise(now, id, WrKind::Interactive)
        } else if is_isochronous {
            self.queues[id as usize].played = Some(now);
            self.raise(now, id, WrKind::SoftRt)
        } else {
            false
        }
    }

    /// Raises a queue, or renews its raise; returns whether it was not raised before.
    fn raise(&mut self, now: Nanos, id: u32, kind: WrKind) -> bool {
        let lasts = match kind {
            WrKind::SoftRt => self.tunables.wr_rt_max_time,
            _ => self.wr_duration(),
        };
        let raise = &mut self.queues[id as usize].raise;
        let begins = !raise.is_on();
        raise.interactive_since = match (kind, raise.kind) {
            (WrKind::SoftRt, WrKind::Interactive) => Some(raise.began),
            (WrKind::SoftRt, WrKind::SoftRt) => raise.interactive_since,
            _ => None,
        };
        (raise.began, raise.lasts) = (now, lasts);
        if begins {
            // Sectors are counted from the first raise on, so that pauses do not prolong it for
            // ever.
            raise.service = 0;
            if self.rules.raise_goes_up {
                self.engine.forgive(self.queues[id as usize].node);
            }
            if self.queues[id as usize].busy {
                // Else it is lifted as it turns busy.
                self.lift(id);
            }
        }
        self.set_kind(id, kind);
        begins
    }

    /// Lets each group above a queue whose raise begins to lift it compete from virtual time on, as
    /// long as it is lifted: it need not sit out its turn because others in it have just been served.
    pub(super) fn lift(&mut self, id: u32) {
        let mut group = self.queues[id as usize].group;
        while self.rules.raise_goes_up && group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            if at.raised == 0 {
                self.engine.lift(at.node);
            }
            group = at.parent;
        }
    }

    /// Ends the raise of the queue in service if its time or its sectors are used up.
    pub(super) fn review_raise_in_service(&mut self, now: Nanos, id: u32) {
        let Raise { kind: before, urged, .. } = self.queues[id as usize].raise;
        if before == WrKind::None || urged != Urgency::None {
            return;
        }
        self.end_overdue_raise(now, id);
        if self.queues[id as usize].raise.kind != before {
            self.engine.settle_weights(self.queues[id as usize].node);
        }
    }

    /// Ends the raise of a queue that is served out of turn if its time or its sectors are used up.
    pub(super) fn review_raise_out_of_turn(&mut self, now: Nanos, id: u32) {
        let raise = &self.queues[id as usize].raise;
        if raise.is_on() && !raise.is_urged() {
            self.end_overdue_raise(now, id);
        }
    }

    fn end_overdue_raise(&mut self, now: Nanos, id: u32) {
        let Queue { raise, in_burst, .. } = &self.queues[id as usize];
        if *in_burst == InBurst::Large {
            self.end_raise(now, id);
        } else if raise.is_late(now) {
            self.lapse(now, id);
        }
        let Queue { raise, busy, came, .. } = &self.queues[id as usize];
        let longest = self.tunables.timeout_sync.0.saturating_mul(ENDLESS_TIMEOUTS);
        let is_endless = raise.kind == WrKind::Interactive
            && *busy
            && self.rules.starts_pause
            && now > *came + Nanos(longest);
        if is_endless || raise.is_spent(self.tunables.wr_max_service_sectors) {
            self.end_raise(now, id);
            self.shorten_slot(now, id);
        }
    }

    /// Returns the raise that a queue without a past would have if something started in it now.
    pub(super) fn first_raise(&self, now: Nanos, id: u32) -> Raise {
        let pause = self.tunables.wr_min_idle_time;
        let starts = self.queues[id as usize].is_back_after(now, pause, self.began);
        let is_on = starts && self.tunables.low_latency;
        let kind = if is_on { WrKind::Interactive } else { WrKind::None };
        Raise { kind, began: now, lasts: self.wr_duration(), ..Raise::default() }
    }

    /// Lets a queue have this raise, as far as it is not over.
    pub(super) fn adopt_raise(&mut self, now: Nanos, id: u32, raise: Raise) {
        self.set_kind(id, WrKind::None);
        let urged = Urgency::None;
        self.queues[id as usize].raise = Raise { kind: WrKind::None, urged, ..raise };
        if self.tunables.low_latency && raise.is_on() {
            self.set_kind(id, raise.kind);
            self.end_overdue_raise(now, id);
            self.doubt_player(now, id);
        }
    }

    /// Raises a queue, or ends that, because somebody outside says so.
    pub(super) fn urge(&mut self, now: Nanos, id: u32, urgency: Urgency) {
        let queue = &self.queues[id as usize];
        if queue.raise.urged == urgency || !queue.is_raisable() {
            return;
        }
        let is_counted = queue.busy && queue.raise.is_on();
        if is_counted {
            self.count_raised(id, false);
        }
        let own_since = {
            let raise = &mut self.queues[id as usize].raise;
            let was_urged = core::mem::replace(&mut raise.urged, urgency) != Urgency::None;
            raise.interactive_since.filter(|_| was_urged)
        };
        if is_counted {
            self.count_raised(id, true);
        }
        if urgency == Urgency::None {
            self.stop_lingering(id);
            // It may have started something by itself meanwhile.
            self.lapse(now, id);
            self.shorten_slot(now, id);
        } else if self.tunables.low_latency {
            self.raise(now, id, urgency.into());
            self.queues[id as usize].raise.interactive_since = own_since;
            let Queue { node, next, busy, .. } = self.queues[id as usize];
            if let Some(tag) = next
                && busy
                && self.holder != Some(id)
            {
                // Who waits would see the raise only after the next slot.
                let budget = self.limits.raised().max(self.charge(id, tag));
                self.engine.set_budget(node, budget);
            }
        }
    }

    /// Lets the queue in service go soon, because others are meant now: a raised slot may last very
    /// long.
    fn shorten_slot(&mut self, now: Nanos, id: u32) {
        if self.holder == Some(id) {
            self.slot.ends = self.slot.ends.min(now + self.tunables.timeout_sync);
        }
    }

    /// Lets queues of a group that look like soft real-time ones count as such no more, or again.
    pub(super) fn speak_for(&mut self, now: Nanos, group: u32, is_spoken_for: bool) {
        let before =
            core::mem::replace(&mut self.groups[group as usize].is_spoken_for, is_spoken_for);
        if !is_spoken_for || before {
            return;
        }
        for id in (0..).take(self.queues.len()) {
            let queue = &self.queues[id as usize];
            if queue.used && queue.group == group {
                self.doubt_player(now, id);
            }
        }
    }

    /// Ends a soft real-time raise that nobody outside wants where somebody would.
    fn doubt_player(&mut self, now: Nanos, id: u32) {
        let Queue { raise, group, .. } = &self.queues[id as usize];
        let is_guess = raise.kind == WrKind::SoftRt && !raise.is_urged();
        if is_guess && self.groups[*group as usize].is_spoken_for {
            self.lapse(now, id);
            self.shorten_slot(now, id);
        }
    }

    /// Ends the soft real-time raise of a queue that turns out to seek all the time.
    pub(super) fn review_seeks(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        let is_urged = queue.raise.urged != Urgency::None;
        if queue.raise.kind == WrKind::SoftRt && queue.seek.is_totally_seeky() && !is_urged {
            self.lapse(now, id);
        }
    }

    /// Ends a raise whose time is over. What a soft real-time raise replaced goes on as long as it
    /// would have lasted.
    pub(super) fn lapse(&mut self, now: Nanos, id: u32) {
        let lasts = self.wr_duration();
        let raise = &mut self.queues[id as usize].raise;
        let Some(since) = raise.interactive_since.filter(|&since| now <= since + lasts) else {
            self.end_raise(now, id);
            return;
        };
        (raise.began, raise.lasts) = (since, lasts);
        raise.interactive_since = None;
        self.set_kind(id, WrKind::Interactive);
    }

    /// Ends the raise of a queue; the weights return when they are next used.
    pub(super) fn end_raise(&mut self, now: Nanos, id: u32) {
        let queue = &mut self.queues[id as usize];
        if queue.raise.kind == WrKind::Interactive {
            queue.batches.forgive(now);
        }
        queue.raise.interactive_since = None;
        self.set_kind(id, WrKind::None);
    }

    fn set_kind(&mut self, id: u32, kind: WrKind) {
        let queue = &self.queues[id as usize];
        let (before, is_busy) = (queue.raise.kind, queue.busy);
        if before == kind {
            return;
        }
        if is_busy && before != WrKind::None {
            self.count_raised(id, false);
        }
        self.queues[id as usize].raise.kind = kind;
        self.engine.set_coeff(self.queues[id as usize].node, self.coeff(id));
        if is_busy && kind != WrKind::None {
            self.count_raised(id, true);
        }
        self.recount_weight(id);
    }

    /// Counts a queue in or out of the raised busy ones, up to the root.
    pub(super) fn count_raised(&mut self, id: u32, comes: bool) {
        let Queue { raise, mut group, .. } = self.queues[id as usize];
        let soft = u32::from(raise.kind == WrKind::SoftRt);
        let urged = u32::from(raise.is_urged());
        self.wr_busy = if comes { self.wr_busy + 1 } else { self.wr_busy - 1 };
        loop {
            let at = &mut self.groups[group as usize];
            let had_player = at.soft_rt > 0;
            (at.raised, at.soft_rt, at.urged) = if comes {
                (at.raised + 1, at.soft_rt + soft, at.urged + urged)
            } else {
                (at.raised - 1, at.soft_rt - soft, at.urged - urged)
            };
            if group == GroupId::ROOT.0 {
                return;
            }
            let (node, parent, weight) = (at.node, at.parent, at.weight);
            let has_player = at.soft_rt > 0;
            if had_player != has_player {
                let players = &mut self.groups[parent as usize].players;
                *players = if has_player { *players + weight } else { *players - weight };
            }
            self.engine.set_coeff(node, self.group_coeff(group));
            group = parent;
        }
    }

    /// Gives a soft real-time queue that begins its slot back the time for which it waited for it:
    /// only service counts as raised time.
    pub(super) fn excuse_wait(&mut self, now: Nanos, id: u32) {
        let Queue { raise, waits_since, came, .. } = &mut self.queues[id as usize];
        *came += now.since(*waits_since);
        if raise.kind == WrKind::SoftRt {
            raise.began += now.since(raise.began.max(*waits_since));
        }
    }

    /// Puts other factors in force, after the tunables have changed.
    pub(super) fn renew_coeffs(&mut self) {
        for id in (0..).take(self.queues.len()) {
            let queue = &self.queues[id as usize];
            if queue.used {
                self.engine.set_coeff(queue.node, self.coeff(id));
            }
        }
        for id in (1..).take(self.groups.len() - 1) {
            let group = &self.groups[id as usize];
            if group.used {
                self.engine.set_coeff(group.node, self.group_coeff(id));
            }
        }
    }

    /// Returns how long an interactive raise lasts.
    pub(super) fn wr_duration(&self) -> Nanos {
        match self.tunables.wr_max_time {
            Nanos::ZERO => self.rate.wr_duration(),
            set => set,
        }
    }

    /// Returns the factor by which a queue is raised, 1 if it is not.
    pub(super) fn coeff(&self, id: u32) -> u16 {
        match self.queues[id as usize].raise.kind {
            WrKind::None => 1,
            WrKind::Interactive => self.tunables.wr_coeff,
            WrKind::SoftRt => self.tunables.wr_rt_coeff,
        }
    }

    /// Returns the factor by which a group is raised: that of the queue in it that is raised most.
    pub(super) fn group_coeff(&self, group: u32) -> u16 {
        if !self.rules.raise_goes_up {
            return 1;
        }
        let group = &self.groups[group as usize];
        if !group.loan.lends() && !group.is_urged() {
            return 1;
        }
        match (group.raised, group.soft_rt) {
            (0, _) if group.lingers.is_none() => 1,
            (_, 0) => self.tunables.wr_coeff,
            _ => self.tunables.wr_rt_coeff,
        }
    }
}
