//! A raise is a loan: what a group gets ahead of its share while something in it is raised, it
//! gives back afterwards.
//!
//! A raised queue lifts the groups above it, so that an application that starts in one machine is
//! served before what other machines do all the time. That is right for a start, and wrong for a
//! machine in which something seems to start, or to be a player, all day. So each group that is
//! lifted has a *lead*: for how long it had the device more than its weight earned meanwhile. From a
//! certain lead on the group is lifted no more until half of it is gone; and as long as there is
//! any, whatever is served in the group while it is not lifted counts twice. So in the long run
//! nobody has more than its share by raises, and at any time no more than one such lead.
//!
//! What somebody outside urges has a credit of its own there, and adds nothing to the lead.
//!
//! Source: the principle is that of K. J. Duda and D. R. Cheriton, "Borrowed-Virtual-Time (BVT)
//! Scheduling", SOSP 1999: a thread that needs it is served ahead of its time, and pays.

use super::Bfq;
use crate::{Class, GroupId, Nanos};

/// How many raises of full length a group may be ahead.
const LONGEST_STARTS: u64 = 2;

/// What one group owes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loan {
    /// By how much time of the device the group is ahead of its share.
    lead: Nanos,
    /// When that was last reckoned.
    reckoned: Nanos,
    /// Whether the lead is such that the group is not lifted.
    pub(super) is_spent: bool,
}

impl Loan {
    pub(super) fn new(now: Nanos) -> Self {
        Self { lead: Nanos::ZERO, reckoned: now, is_spent: false }
    }

    /// Returns whether anything is to be given back.
    fn is_open(&self) -> bool {
        self.lead > Nanos::ZERO
    }

    /// Takes note that the group had the device for `used` since the last reckoning, and that it
    /// earns that `share`. The lead grows only while it is `lifted`, and `most` is the lead
    /// at which that ends.
    fn reckon(&mut self, now: Nanos, used: Nanos, share: Share, lifted: bool, most: Nanos) {
        let since = now.since(self.reckoned);
        let earned = u128::from(since.0) * u128::from(share.earned) / u128::from(share.of.max(1));
        let earned = Nanos(u64::try_from(earned).unwrap_or(u64::MAX));
        let lead = (self.lead + used.min(since)).since(earned);
        self.lead = if lifted { lead } else { lead.min(self.lead) };
        self.reckoned = now;
        self.is_spent = if self.is_spent { self.lead.0 > most.0 / 2 } else { self.lead > most };
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

    /// Returns whether the lead of a group, or of one above it, is spent.
    fn owes(&self, mut group: u32) -> bool {
        while group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            if at.loan.is_spent {
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
                self.rules.raise_goes_up && !at.is_urged() && !at.loan.is_spent && was_raised;
            if is_lifted || at.loan.is_open() {
                self.reckon(now, group, used, is_lifted);
                if !is_lifted && self.groups[group as usize].loan.is_open() {
                    self.engine.charge_one(node, service);
                }
            }
            group = parent;
        }
    }

    /// Looks whether the groups above a queue that turns busy may be lifted again.
    pub(super) fn renew_loans(&mut self, now: Nanos, id: u32) {
        let mut group = self.queues[id as usize].group;
        while group != GroupId::ROOT.0 {
            let at = &self.groups[group as usize];
            let parent = at.parent;
            if at.loan.is_spent {
                self.reckon(now, group, Nanos::ZERO, false);
            }
            group = parent;
        }
    }

    fn reckon(&mut self, now: Nanos, group: u32, used: Nanos, is_lifted: bool) {
        let most = Nanos(LONGEST_STARTS * self.wr_duration().0);
        let at = &self.groups[group as usize];
        let above = &self.groups[at.parent as usize];
        let players = if at.soft_rt > 0 { above.players } else { 0 };
        let share = Share::new(at.weight, above.contenders.max(at.weight), players);
        let at = &mut self.groups[group as usize];
        let was_spent = at.loan.is_spent;
        at.loan.reckon(now, used, share, is_lifted, most);
        if at.loan.is_spent != was_spent {
            let node = at.node;
            self.engine.set_coeff(node, self.group_coeff(group));
        }
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

    const MOST: Nanos = Nanos::from_secs(7);

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
    fn a_lead_is_spent_when_it_is_too_large_and_lent_again_when_half_is_gone() {
        let mut loan = Loan::new(at_s(0));
        let half = Share::new(100, 200, 0);
        let spent = (1..100).find(|&second| {
            loan.reckon(at_s(second), at_s(1), half, true, MOST);
            loan.is_spent
        });
        assert_eq!(spent, Some(15), "half of each second is ahead of the share");
        let free = (16..100).find(|&second| {
            loan.reckon(at_s(second), Nanos::from_millis(250), half, false, MOST);
            !loan.is_spent
        });
        assert_eq!(free, Some(31), "a quarter of each second is given back: 3.75 in 16");
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
