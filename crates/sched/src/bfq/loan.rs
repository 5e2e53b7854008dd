//! A raise is a loan: what a group gets ahead of its share while something in it is raised, it
//! gives back afterwards.
//!
//! A raised queue lifts the groups above it, so that an application that starts in one machine is
//! served before what other machines do all the time. That is right for a start, and wrong for a
//! machine in which something seems to start, or to be a player, all day. So each group that is
//! lifted has a *lead*: for how long it had the device more than its weight earned meanwhile. From a
//! certain lead on the group is lifted no more until a part of it is gone; and as long as there is
//! any, whatever is served in the group while it is not lifted counts twice. So in the long run
//! nobody has more than its share by raises, and at any time no more than one such lead.
//!
//! The last quarter of it is kept for *short starts*: a program is seldom loaded for longer than an
//! eighth of a raise of full length, and readers that begin, and are raised for all of it, would leave
//! nothing to the programs that start beside them, one after the other.
//!
//! What somebody outside urges has a credit of its own there, and adds nothing to the lead.
//!
//! Source: the principle is that of K. J. Duda and D. R. Cheriton, "Borrowed-Virtual-Time (BVT)
//! Scheduling", SOSP 1999: a thread that needs it is served ahead of its time, and pays.

use super::Bfq;
use super::queue::Queue;
use crate::{Class, GroupId, Lead, Nanos};

/// A raise of full length counts for so long at least, even if it lasts for less, unless an operator
/// says for how long it does: while a program thinks, the device is kept for it, and that takes no less
/// time where its disk is fast, or is thought to be, as one from which nobody reads in order.
const LEAST_RAISE: Nanos = Nanos::from_secs(10);
/// How many raises of full length a group may be ahead.
const LONGEST_STARTS: u64 = 2;
/// A short start has the device for this part of a raise of full length.
const SHORT: u64 = 8;
/// For so many times as long it may take over that.
const SHORT_PATIENCE: u64 = 4;

/// What one group owes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loan {
    /// By how much time of the device the group is ahead of its share.
    lead: Nanos,
    /// When that was last reckoned.
    reckoned: Nanos,
    /// Whether the lead is such that the group is lifted for short starts alone.
    is_spent: bool,
    /// Whether not even for these.
    is_exhausted: bool,
    /// What is left to the short start for which the group was last lifted, when that began, and when
    /// it is over anyway.
    short_left: Nanos,
    short_since: Nanos,
    short_until: Nanos,
}

impl Loan {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            lead: Nanos::ZERO,
            reckoned: now,
            is_spent: false,
            is_exhausted: false,
            short_left: Nanos::ZERO,
            short_since: now,
            short_until: now,
        }
    }

    /// Returns whether the group may be lifted.
    pub(super) fn lends(&self) -> bool {
        !self.is_spent || (!self.is_exhausted && self.short_left > Nanos::ZERO)
    }

    /// Takes note that something starts, which has the device for so long if it is a `short` start.
    fn start(&mut self, now: Nanos, short: Nanos) {
        let is_another = self.short_left == Nanos::ZERO || now > self.short_since + short;
        if self.is_spent && is_another {
            self.short_left = short;
            (self.short_since, self.short_until) = (now, now + Nanos(SHORT_PATIENCE * short.0));
        }
    }

    /// Returns whether anything is to be given back.
    fn is_open(&self) -> bool {
        self.lead > Nanos::ZERO
    }

    /// Takes note that the group had the device for `used` since the last reckoning, and that it
    /// earns that `share`. The lead grows only while it is `lifted`, which ends when it is `most`.
    fn reckon(&mut self, now: Nanos, used: Nanos, share: Share, lifted: bool, most: Nanos) {
        let since = now.since(self.reckoned);
        let earned = u128::from(since.0) * u128::from(share.earned) / u128::from(share.of.max(1));
        let earned = Nanos(u64::try_from(earned).unwrap_or(u64::MAX));
        let lead = (self.lead + used.min(since)).since(earned);
        self.lead = if lifted { lead } else { lead.min(self.lead) };
        self.reckoned = now;
        let is_over = !self.is_spent || now > self.short_until;
        let used = if lifted { used } else { Nanos::ZERO };
        self.short_left = if is_over { Nanos::ZERO } else { self.short_left.since(used) };
        let eighths = |count: u64| Nanos(most.0 / 8 * count);
        self.is_spent = self.lead > eighths(if self.is_spent { 4 } else { 6 });
        self.is_exhausted = self.lead > eighths(if self.is_exhausted { 7 } else { 8 });
    }
}

/// What a group earns in the competition with its siblings: so many parts of so many.
#[derive(Clone, Copy, Debug)]
struct Share {
    earned: u64,
    of: u64,
}

impl Share {
    /// Returns the share of a group of this weight among siblings of `total`, by plain weights.
    ///
    /// Groups with soft real-time queues, `players` by their weights, may together take a quarter of
    /// what the others earn, for good: who plays a film would not be helped for a minute.
    fn new(weight: u64, total: u64, players: u64) -> Self {
        if players == 0 {
            return Self { earned: weight, of: total };
        }
        // The weight's part of the total, and of a quarter of the others' part.
        Self { earned: weight * (3 * players + total), of: 4 * total * players }
    }
}

impl Bfq {
    /// Returns whether a queue is raised and all groups above it may be lifted.
    pub(super) fn is_privileged(&self, id: u32) -> bool {
        let queue = &self.queues[id as usize];
        queue.raise.is_on() && (queue.raise.is_urged() || !self.owes(queue.group))
    }

    /// Returns whether a group, or one above it, may not be lifted.
    pub(super) fn owes(&self, mut group: u32) -> bool {
        while group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            if !at.loan.lends() {
                return true;
            }
            group = at.parent;
        }
        false
    }

    /// Reckons what the groups above the queue in service owe as its slot ends, in which it had
    /// the device to itself for `span`.
    pub(super) fn reckon_slot(&mut self, now: Nanos, id: u32, span: Nanos) {
        let queue = &self.queues[id as usize];
        let (mut group, service) = (queue.group, self.engine.service(queue.node));
        let used = if self.is_queueing_flash() {
            // Where requests of several queues overlap, what they moved tells more.
            let moved = self.tunables.timeout_sync.0.saturating_mul(service) / self.limits.max();
            span.max(Nanos(moved))
        } else {
            // The head's way there, and the wait for the next request, kept others away, too.
            now.since(self.slot.taken) - self.slot.others
        };
        while group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            let (parent, node) = (at.parent, at.node);
            // Whose raise has ended in its slot was lifted for most of it.
            let was_raised = at.raised > 0 || at.lingers.is_some() || self.slot.began_raised;
            let is_lifted =
                self.rules.raise_goes_up && !at.is_urged() && at.loan.lends() && was_raised;
            if is_lifted || at.loan.is_open() {
                self.reckon(now, group, used, is_lifted);
                if !is_lifted && self.groups[group as usize].loan.is_open() {
                    self.engine.charge_one(node, service);
                }
            }
            group = parent;
        }
    }

    /// Looks whether the groups above a raised queue that turns busy may be lifted again, or for it
    /// alone, because something starts in it.
    pub(super) fn renew_loans(&mut self, now: Nanos, id: u32) {
        let short = Nanos(self.full_raise().0 / SHORT);
        let Queue { mut group, raise, .. } = self.queues[id as usize];
        while group != GroupId::ROOT.0 {
            if !self.groups[group as usize].loan.lends() {
                // Else what it has in its slot under way would not be reckoned any more.
                self.reckon(now, group, Nanos::ZERO, false);
            }
            let at = &mut self.groups[group as usize];
            let (node, parent, lent) = (at.node, at.parent, at.loan.lends());
            if raise.begins(now) {
                at.loan.start(now, short);
            }
            if at.loan.lends() != lent {
                self.engine.set_coeff(node, self.group_coeff(group));
            }
            group = parent;
        }
    }

    fn reckon(&mut self, now: Nanos, group: u32, used: Nanos, is_lifted: bool) {
        let (most, share) = (self.most_lead(), self.share_of(group));
        let at = &mut self.groups[group as usize];
        let lent = at.loan.lends();
        at.loan.reckon(now, used, share, is_lifted, most);
        if at.loan.lends() != lent {
            let node = at.node;
            self.engine.set_coeff(node, self.group_coeff(group));
        }
    }

    /// Returns for how long a raise of full length counts.
    fn full_raise(&self) -> Nanos {
        match self.tunables.wr_max_time {
            Nanos::ZERO => self.wr_duration().max(LEAST_RAISE),
            _ => self.wr_duration(),
        }
    }

    fn most_lead(&self) -> Nanos {
        Nanos(LONGEST_STARTS * self.full_raise().0)
    }

    fn share_of(&self, group: u32) -> Share {
        let at = &self.groups[group as usize];
        let above = &self.groups[at.parent as usize];
        let players = if at.soft_rt > 0 { above.players } else { 0 };
        Share::new(at.weight, above.contenders.max(at.weight), players)
    }

    /// Returns what a group has ahead now.
    pub(super) fn lead_of(&self, now: Nanos, group: u32) -> Lead {
        let mut loan = self.groups[group as usize].loan;
        if group != GroupId::ROOT.0 {
            loan.reckon(now, Nanos::ZERO, self.share_of(group), false, self.most_lead());
        }
        Lead { ahead: loan.lead, is_spent: loan.is_spent }
    }

    /// Counts a queue that turns busy, or idle, among those that compete, and so each group above
    /// it that thereby begins to compete, or ceases to.
    pub(super) fn count_contender(&mut self, id: u32, comes: bool) {
        let queue = &self.queues[id as usize];
        if queue.class == Class::Idle {
            return;
        }
        let (mut weight, mut group) = (queue.plain_weight(), queue.group);
        loop {
            let at = &mut self.groups[group as usize];
            let before = at.contenders;
            at.contenders = if comes { before + weight } else { before - weight };
            let (now_empty, was_empty) = (at.contenders == 0, before == 0);
            if group == GroupId::ROOT.0 || now_empty == was_empty {
                return;
            }
            (weight, group) = (at.weight, at.parent);
        }
    }

    /// Puts another weight of a group in force where it is compared with its siblings'.
    pub(super) fn reweigh(&mut self, group: u32, weight: u64) {
        let at = &mut self.groups[group as usize];
        let before = core::mem::replace(&mut at.weight, weight);
        let (competes, plays, parent) = (at.contenders > 0, at.soft_rt > 0, at.parent);
        let above = &mut self.groups[parent as usize];
        if competes {
            above.contenders = above.contenders - before + weight;
        }
        if plays {
            above.players = above.players - before + weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos::from_secs(8);
    const SHORT_START: Nanos = Nanos::from_secs(1);

    fn at_s(s: u64) -> Nanos {
        Nanos::from_secs(s)
    }

    #[test]
    fn half_the_device_for_whoever_earns_half_of_it_is_no_lead() {
        let mut loan = Loan::new(at_s(0));
        let half = Share::new(100, 200, 0);
        for second in 1..100 {
            loan.reckon(at_s(second), Nanos::from_millis(500), half, true, MOST);
        }
        assert_eq!((loan.lead, loan.is_spent), (Nanos::ZERO, false));
    }

    #[test]
    fn a_lead_is_spent_when_it_is_too_large_and_lent_again_when_a_third_is_gone() {
        let mut loan = Loan::new(at_s(0));
        let half = Share::new(100, 200, 0);
        let spent = (1..100).find(|&second| {
            loan.reckon(at_s(second), at_s(1), half, true, MOST);
            !loan.lends()
        });
        assert_eq!(spent, Some(13), "half of each second is ahead of the share: 6.5 of 8");
        let free = (14..100).find(|&second| {
            loan.reckon(at_s(second), Nanos::from_millis(250), half, false, MOST);
            loan.lends()
        });
        assert_eq!(free, Some(23), "a quarter of each second is given back: 2.5 in 10");
    }

    #[test]
    fn short_starts_are_lent_the_rest_until_that_is_gone_too() {
        let mut loan = Loan::new(at_s(0));
        let none = Share::new(0, 100, 0);
        loan.start(at_s(0), SHORT_START);
        loan.reckon(at_s(7), at_s(7), none, true, MOST);
        assert!(!loan.lends(), "what began before is no short start");
        loan.start(at_s(7), SHORT_START);
        loan.reckon(at_s(8), Nanos::from_millis(500), none, true, MOST);
        assert!(loan.lends(), "half of a short start is left");
        loan.start(at_s(8), SHORT_START);
        loan.reckon(at_s(9), Nanos::from_millis(500), none, true, MOST);
        assert!(!loan.lends(), "another one in its time is the same");
        loan.start(at_s(9), SHORT_START);
        assert!(loan.lends());
        loan.reckon(at_s(10), Nanos::from_millis(500), none, true, MOST);
        assert!(!loan.lends(), "8.5 of 8");
        let half = Share::new(100, 200, 0);
        let free = (11..100).find(|&second| {
            loan.start(at_s(second), SHORT_START);
            loan.reckon(at_s(second), Nanos::ZERO, half, false, MOST);
            loan.lends()
        });
        assert_eq!(free, Some(13), "7 of 8 are left after three times half a second");
    }

    #[test]
    fn who_is_not_lifted_gets_no_further_ahead() {
        let mut loan = Loan::new(at_s(0));
        let quarter = Share::new(100, 400, 0);
        loan.reckon(at_s(1), at_s(1), quarter, true, MOST);
        assert_eq!(loan.lead, Nanos::from_millis(750));
        loan.reckon(at_s(2), at_s(1), quarter, false, MOST);
        assert_eq!(loan.lead, Nanos::from_millis(750));
        loan.reckon(at_s(100), Nanos::ZERO, quarter, false, MOST);
        assert_eq!(loan.lead, Nanos::ZERO, "nothing is saved");
    }

    #[test]
    fn players_together_take_a_quarter_of_what_others_earn() {
        let part = |share: Share| share.earned as f64 / share.of as f64;
        assert_eq!(part(Share::new(100, 400, 100)), 0.25 + 0.75 / 4.0);
        assert_eq!(part(Share::new(100, 400, 200)), 0.25 + 0.5 / 8.0, "two of them");
        assert_eq!(part(Share::new(100, 400, 400)), 0.25, "all of them");
    }
}
