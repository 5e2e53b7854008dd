//! Help: a guest says that something in it is urgent, and is believed within bounds.
//!
//! A guest cannot be trusted to ask only when it must, so help costs *credit*: seconds of the device
//! and sectors that refill slowly. A guest that uses its credit up is believed less each time: the refill
//! halves, and recovers only while the guest does not ask. So one that always asks gets what its
//! first credit holds, half as much again, a quarter, and in the long run its fair share.
//!
//! What is asked has level semantics: the message with the highest sequence number says what is.
//! A lease ends what nobody renews, whatever happened to the guest.
//!
//! Source: deliverable D3.6 of the vIrtical project (2014), section 9.3, for the idea that the
//! guest's scheduler asks the host's; the credit is ours.

use evenkeel_sched::{Nanos, Urgency};

/// The scale of [`Help::trust`]; fine, so that it grows by whatever little time passes.
const FULL_TRUST: u64 = 1 << 48;

/// Trust never falls below this: a guest that stops lying is believed again within 8 minutes.
const LEAST_TRUST: u64 = FULL_TRUST >> 16;

/// In about this time without asking a guest is believed twice as much.
const TRUST_RECOVERY: Nanos = Nanos::from_secs(30);

const MINUTE: Nanos = Nanos::from_secs(60);

/// How far a VM's requests for help are believed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HelpPolicy {
    /// The most that is granted; [`Urgency::None`] grants nothing.
    pub most: Urgency,
    /// Time of the device with help that is earned per minute.
    pub time_per_minute: Nanos,
    /// Sectors with help that are earned per minute.
    pub sectors_per_minute: u64,
    /// How many minutes' worth may be saved up, at least 1.
    pub saved_minutes: u32,
    /// The longest lease.
    pub lease: Nanos,
}

impl Default for HelpPolicy {
    /// A third of the device and 1 GiB per minute: an application a minute, generously measured, or a
    /// film.
    fn default() -> Self {
        Self {
            most: Urgency::SoftRealTime,
            time_per_minute: Nanos::from_secs(20),
            sectors_per_minute: 2 << 20,
            saved_minutes: 2,
            lease: Nanos::from_secs(1),
        }
    }
}

/// What a VM has received of the device so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Served {
    pub(crate) sectors: u64,
    /// For how long it held the device while anybody waited; of what it shared with others, its part.
    pub(crate) time: Nanos,
}

/// What a guest asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// Grows with every message; one that is not above the last is old and ignored.
    pub seq: u64,
    /// How urgent; [`Urgency::None`] says that nothing is.
    pub urgency: Urgency,
    /// For how long, unless it is repeated.
    pub lease: Nanos,
    /// Whether the guest says that it marks the requests that it means by their I/O priority.
    pub marked: bool,
}

/// What a VM has got, and why not more; counted since it exists.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct HelpReport {
    /// What holds now.
    pub urgency: Urgency,
    /// Time of the device that it could still have with help at once.
    pub credit: Nanos,
    /// How far it is believed, in thousandths: what part of the refill it gets.
    pub trust_per_mille: u32,
    /// Messages that were understood, old ones included.
    pub messages: u64,
    /// Messages that were older than one before.
    pub outdated: u64,
    /// Times that help began.
    pub begun: u64,
    /// Times that a lease ran out.
    pub expired: u64,
    /// Times that the credit ran out while the guest asked.
    pub exhausted: u64,
    /// Messages that asked for help when there was no credit, or none is allowed.
    pub refused: u64,
    /// Time with help.
    pub helped: Nanos,
    /// Sectors served with help.
    pub helped_sectors: u64,
}

/// The help of one VM.
#[derive(Clone, Debug)]
pub(crate) struct Help {
    policy: HelpPolicy,
    urgency: Urgency,
    seq: Option<u64>,
    lease_ends: Nanos,
    /// When the account was last settled, and what the VM had received by then.
    settled: Nanos,
    served: Served,
    time_left: Nanos,
    sectors_left: u64,
    trust: u64,
    /// Until when the guest is known to have asked.
    asked: Nanos,
    report: HelpReport,
}

impl Help {
    /// Opens an account that is full, for a VM that has received so much.
    pub(crate) fn new(now: Nanos, policy: HelpPolicy, served: Served) -> Self {
        let mut help = Self {
            policy,
            urgency: Urgency::None,
            seq: None,
            lease_ends: now,
            settled: now,
            served,
            time_left: Nanos::ZERO,
            sectors_left: 0,
            trust: FULL_TRUST,
            asked: now,
            report: HelpReport::default(),
        };
        (help.time_left, help.sectors_left) = help.most();
        help
    }

    /// Returns what holds now.
    pub(crate) fn urgency(&self) -> Urgency {
        self.urgency
    }

    /// Changes the policy. What was saved beyond the new bounds is lost.
    pub(crate) fn set_policy(&mut self, now: Nanos, policy: HelpPolicy, served: Served) {
        self.settle(now, served);
        self.policy = policy;
        let (time, sectors) = self.most();
        self.time_left = self.time_left.min(time);
        self.sectors_left = self.sectors_left.min(sectors);
        self.set(self.urgency.min(policy.most));
    }

    /// Takes a message of the guest; `served` is what the VM has received so far.
    /// Returns whether it was taken: an old one changes nothing.
    pub(crate) fn ask(&mut self, now: Nanos, ask: Ask, served: Served) -> bool {
        self.review(now, served);
        self.report.messages += 1;
        if self.seq.is_some_and(|last| ask.seq <= last) {
            self.report.outdated += 1;
            return false;
        }
        self.seq = Some(ask.seq);
        let urgency = ask.urgency.min(self.policy.most);
        if ask.urgency == Urgency::None || ask.lease == Nanos::ZERO {
            self.set(Urgency::None);
            return true;
        }
        let lease = ask.lease.min(self.policy.lease);
        self.asked = now + lease;
        if urgency == Urgency::None || !self.can_pay(lease) {
            self.report.refused += 1;
            self.set(Urgency::None);
            return true;
        }
        self.lease_ends = now + lease;
        self.set(urgency);
        true
    }

    /// Ends help whose lease or credit is over; returns whether it ended.
    pub(crate) fn review(&mut self, now: Nanos, served: Served) -> bool {
        let before = self.urgency;
        self.settle(now, served);
        self.urgency != before
    }

    /// Ends help, and forgets which message was the last: another agent speaks from now on.
    /// Credit and trust stay, so that reconnecting earns nothing.
    pub(crate) fn reset(&mut self, now: Nanos, served: Served) {
        self.settle(now, served);
        self.seq = None;
        self.set(Urgency::None);
    }

    /// Returns when [`review`](Self::review) must be called even if nothing happens.
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        let ends = self.lease_ends.min(self.settled + self.time_left);
        (self.urgency != Urgency::None).then_some(ends)
    }

    /// Returns what there is to tell.
    pub(crate) fn report(&self) -> HelpReport {
        HelpReport {
            urgency: self.urgency,
            credit: if self.sectors_left == 0 { Nanos::ZERO } else { self.time_left },
            trust_per_mille: u32::try_from(self.trust / (FULL_TRUST / 1000))
                .unwrap_or(1000)
                .min(1000),
            ..self.report
        }
    }

    fn most(&self) -> (Nanos, u64) {
        let minutes = u64::from(self.policy.saved_minutes.max(1));
        (
            Nanos(self.policy.time_per_minute.0.saturating_mul(minutes)),
            self.policy.sectors_per_minute.saturating_mul(minutes),
        )
    }

    /// Returns whether there is credit for a lease. Nobody begins with a crumb, or help would
    /// flicker: half a lease must be there, and a second's worth of sectors.
    fn can_pay(&self, lease: Nanos) -> bool {
        let begins = self.urgency == Urgency::None;
        let time = Nanos(if begins { lease.0 / 2 } else { 0 });
        let sectors = if begins { self.policy.sectors_per_minute / 60 } else { 0 };
        self.time_left > time && self.sectors_left > sectors
    }

    fn set(&mut self, urgency: Urgency) {
        let begins = self.urgency == Urgency::None && urgency != Urgency::None;
        self.report.begun += u64::from(begins);
        self.urgency = urgency;
    }

    /// Brings the account up to date. A lease that ended meanwhile ended when it was due, however
    /// late somebody asks.
    fn settle(&mut self, now: Nanos, served: Served) {
        let sectors = served.sectors.saturating_sub(self.served.sectors);
        let used = served.time.since(self.served.time);
        self.served = served;
        if self.urgency != Urgency::None {
            let end = now.min(self.lease_ends);
            let span = end.since(self.settled);
            // What it had behind the end of its lease was no help.
            self.spend(span, used.min(span), sectors);
            // What is earned meanwhile does not end.
            self.recover(end, span);
            self.settled = end;
            if self.urgency != Urgency::None && now >= self.lease_ends {
                self.report.expired += 1;
                self.set(Urgency::None);
            }
        }
        let span = now.since(self.settled);
        self.settled = now;
        if self.urgency == Urgency::None {
            self.recover(now, span);
        }
    }

    /// Pays for help: for the time in which it had the device, not for that in which it computed, or
    /// paused.
    fn spend(&mut self, span: Nanos, used: Nanos, sectors: u64) {
        self.report.helped += span;
        self.report.helped_sectors += sectors;
        self.time_left = Nanos(self.time_left.0.saturating_sub(used.0));
        self.sectors_left = self.sectors_left.saturating_sub(sectors);
        if self.time_left == Nanos::ZERO || self.sectors_left == 0 {
            self.report.exhausted += 1;
            self.trust = (self.trust / 2).max(LEAST_TRUST);
            self.set(Urgency::None);
        }
    }

    /// Earns credit, and trust for the part of the time in which nobody asked.
    fn recover(&mut self, now: Nanos, span: Nanos) {
        let quiet = Nanos(span.0.min(now.since(self.asked.min(now)).0));
        let (most_time, most_sectors) = self.most();
        let part = |amount: u64| {
            let earned = u128::from(amount) * u128::from(span.0) * u128::from(self.trust)
                / (u128::from(MINUTE.0) * u128::from(FULL_TRUST));
            u64::try_from(earned).unwrap_or(u64::MAX)
        };
        let time = self.time_left.0.saturating_add(part(self.policy.time_per_minute.0));
        let sectors = self.sectors_left.saturating_add(part(self.policy.sectors_per_minute));
        self.time_left = Nanos(time).min(most_time);
        self.sectors_left = sectors.min(most_sectors);
        let gained = u128::from(self.trust) * u128::from(quiet.0) / u128::from(TRUST_RECOVERY.0);
        let gained = u64::try_from(gained).unwrap_or(FULL_TRUST);
        self.trust = self.trust.saturating_add(gained).min(FULL_TRUST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(1000);
    const SECOND: Nanos = Nanos::from_secs(1);

    fn ask(seq: u64, urgency: Urgency) -> Ask {
        Ask { seq, urgency, lease: SECOND, marked: false }
    }

    /// What a VM has received that had the device all the time.
    fn all(now: Nanos, sectors: u64) -> Served {
        Served { sectors, time: now }
    }

    /// Asks every half second for `seconds`; returns the time with help.
    fn cry(help: &mut Help, from: Nanos, seconds: u64, rate: u64) -> Nanos {
        let before = help.report().helped;
        let served = |now: Nanos| all(now, now.since(START).0 / SECOND.0 * rate);
        for step in 0..seconds * 2 {
            let now = from + Nanos::from_millis(500 * step);
            while let Some(deadline) = help.next_deadline().filter(|&deadline| deadline < now) {
                help.review(deadline, served(deadline));
            }
            help.ask(now, ask(now.0, Urgency::Interactive), served(now));
        }
        let end = from + Nanos::from_secs(seconds);
        help.review(end, served(end));
        Nanos(help.report().helped.0 - before.0)
    }

    #[test]
    fn help_holds_until_its_lease_ends() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        assert!(help.ask(START, ask(1, Urgency::Interactive), all(START, 0)));
        assert_eq!(help.next_deadline(), Some(START + SECOND));
        assert!(!help.review(START + Nanos(SECOND.0 - 1), all(START, 0)));
        assert_eq!(help.urgency(), Urgency::Interactive);
        assert!(help.review(START + SECOND, all(START, 0)));
        assert_eq!((help.urgency(), help.next_deadline()), (Urgency::None, None));
        assert_eq!(help.report().expired, 1);
    }

    #[test]
    fn the_newest_message_wins_whatever_the_order() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        assert!(help.ask(START, ask(5, Urgency::None), all(START, 0)));
        assert!(!help.ask(START, ask(4, Urgency::Interactive), all(START, 0)));
        assert!(!help.ask(START, ask(5, Urgency::Interactive), all(START, 0)));
        assert_eq!(help.urgency(), Urgency::None);
        assert!(help.ask(START, ask(6, Urgency::SoftRealTime), all(START, 0)));
        assert_eq!(help.urgency(), Urgency::SoftRealTime);
        assert_eq!(help.report().outdated, 2);
    }

    #[test]
    fn no_more_is_granted_than_the_policy_allows() {
        let policy = HelpPolicy { most: Urgency::Interactive, ..HelpPolicy::default() };
        let mut help = Help::new(START, policy, all(START, 0));
        help.ask(START, ask(1, Urgency::SoftRealTime), all(START, 0));
        assert_eq!(help.urgency(), Urgency::Interactive);
        let mut help =
            Help::new(START, HelpPolicy { most: Urgency::None, ..policy }, all(START, 0));
        help.ask(START, ask(1, Urgency::SoftRealTime), all(START, 0));
        assert_eq!((help.urgency(), help.report().refused), (Urgency::None, 1));
    }

    #[test]
    fn a_lease_is_never_longer_than_the_policy_says() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        let lease = Nanos::from_secs(3600);
        help.ask(
            START,
            Ask { seq: 1, urgency: Urgency::Interactive, lease, marked: false },
            all(START, 0),
        );
        assert_eq!(help.next_deadline(), Some(START + SECOND));
    }

    #[test]
    fn help_ends_when_its_time_or_its_sectors_are_used_up() {
        let policy = HelpPolicy { saved_minutes: 1, ..HelpPolicy::default() };
        let mut help = Help::new(START, policy, all(START, 0));
        // 20 s, and a third of a second for each of them.
        let helped = cry(&mut help, START, 40, 0);
        assert!(helped.0.abs_diff(Nanos::from_secs(30).0) <= SECOND.0, "{helped:?}");
        let mut help = Help::new(START, policy, all(START, 0));
        let rate = policy.sectors_per_minute / 4;
        let helped = cry(&mut help, START, 30, rate);
        assert!(helped <= Nanos::from_secs(8), "{helped:?}");
        // What is earned meanwhile, and what a look every half second finds too late.
        let sectors = help.report().helped_sectors;
        assert!(sectors <= policy.sectors_per_minute * 2, "{sectors}");
    }

    #[test]
    fn who_has_a_third_of_the_device_is_helped_for_ever() {
        let mut help = Help::new(START, HelpPolicy::default(), Served::default());
        for step in 0..24 * 3600 {
            let now = START + Nanos(SECOND.0 / 2 * step);
            let served = Served { sectors: 4_000 * step, time: Nanos(SECOND.0 / 6 * step) };
            help.ask(now, ask(now.0, Urgency::SoftRealTime), served);
            assert_eq!(help.urgency(), Urgency::SoftRealTime, "{step}");
        }
    }

    #[test]
    fn a_guest_that_always_asks_gets_its_first_credit_and_little_more() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        let helped = cry(&mut help, START, 24 * 3600, 1000);
        // 40 s saved, what is earned meanwhile, and then half as fast again and again.
        assert!(helped < Nanos::from_secs(90), "{helped:?}");
        let second_day = cry(&mut help, START + Nanos::from_secs(24 * 3600), 24 * 3600, 1000);
        assert!(second_day <= SECOND, "{second_day:?}");
    }

    #[test]
    fn a_guest_that_asks_seldom_is_always_helped() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        for minute in 0..60 {
            let from = START + Nanos::from_secs(60 * minute);
            assert!(cry(&mut help, from, 10, 1000) >= Nanos::from_secs(10));
        }
        assert_eq!((help.report().exhausted, help.report().refused), (0, 0));
    }

    #[test]
    fn trust_comes_back_while_nobody_asks() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        cry(&mut help, START, 3600, 1000);
        let low = help.report().trust_per_mille;
        assert!(low < 100, "{low}");
        let mut now = START + Nanos::from_secs(3600);
        for _ in 0..20 {
            now += TRUST_RECOVERY;
            help.review(now, all(now, 0));
        }
        assert_eq!(help.report().trust_per_mille, 1000);
    }

    #[test]
    fn a_new_connection_starts_a_new_count_but_no_new_credit() {
        let mut help = Help::new(START, HelpPolicy::default(), all(START, 0));
        cry(&mut help, START, 100, 1000);
        let (credit, trust) = (help.report().credit, help.report().trust_per_mille);
        let now = START + Nanos::from_secs(100);
        help.reset(now, all(now, 0));
        assert_eq!(help.urgency(), Urgency::None);
        assert!(help.report().credit < credit + SECOND);
        assert!(help.report().trust_per_mille <= trust + 40);
        assert!(help.ask(now, ask(0, Urgency::None), all(now, 0)), "the count starts anew");
    }
}
