//! Who made whom wait.
//!
//! Think of a queue at one counter. Whoever stands in it looks at the person being served and notes
//! on that person's page how long it took; when nobody is served, the note goes to the person whom
//! the clerk waits for. If several are served at once, the time is shared out among them.
//!
//! Exactly: a request *waits* while it is neither at the device, nor answered, nor kept until its
//! file system has room. While a limit holds it up, that alone is to blame; while another request
//! of its own VM is in its way (an overlapping one, a flush under way), the VM itself is. Any other
//! instant of a wait is blamed on the VMs that hold the device then, in proportion to their
//! commands there (a command that takes longer is there longer, so duration needs no other weight).
//! If the device is empty, the scheduler keeps it for the next request of the VM that was given it
//! last, unless a static block waits for more requests. Nothing is lost in rounding: the causes of
//! a VM's waits add up to them.
//!
//! Blaming each waiting request at each event would cost their product. Instead every VM has a
//! meter of the time for which it held the device, and the blame of `v` on `u` is the integral of
//! `v`'s number of waiting requests over `u`'s meter. That changes its slope only when `v`'s number
//! changes; so what must be kept is one number per pair, corrected then:
//!
//! ```text
//! blame(v, u) = settled(v, u) + waiting(v) * meter(u)
//! ```
//!
//! When `waiting(v)` grows by `d`, `settled(v, u)` shrinks by `d * meter(u)`: one row for each VM
//! whose number differs from one instant to the next. The meters follow the same rule, with the
//! time that one command at the device has had of it in place of the meter; so time that passes
//! costs one addition, however many VMs hold the device. Numbers wrap around; the sums do not, for
//! 500 years.
//!
//! So that a row stays short however many VMs there are, at most [`NAMED`] VMs at a time are told
//! apart by name: those that hold the device most. What is left of a wait is blamed on the others
//! together, which needs no meter, since all causes add up. There is room for rows as soon as VMs are
//! there, but they grow when they are first needed.

mod account;
mod named;

use evenkeel_sched::{GroupId, Nanos};

pub(crate) use account::Aside;
use account::{Account, Clocks};
pub use account::{Cause, Explanation};
use named::{NAMED, Named};

/// The books of a pool.
#[derive(Debug)]
pub(crate) struct Blame {
    /// While it is off, nothing is written.
    is_on: bool,
    now: u64,
    clocks: Clocks,
    /// By group; those without disks stay empty.
    accounts: Vec<Account>,
    named: Named,
    /// Commands at the device, and requests that compete for it.
    commands: u32,
    waiting: u32,
    /// Who was given the device last.
    last: usize,
    /// Whether a static block waits for more requests.
    gathers: bool,
    /// Accounts whose `counted` may differ from `waiting`.
    dirty: Vec<usize>,
    /// When to look next who is to be told apart.
    review_at: u64,
}

impl Blame {
    pub(crate) fn new(now: Nanos) -> Self {
        Self::with_places(now, NAMED)
    }

    fn with_places(now: Nanos, places: usize) -> Self {
        Self {
            is_on: true,
            now: now.0,
            clocks: Clocks::default(),
            accounts: vec![Account::default()],
            named: Named::new(places),
            commands: 0,
            waiting: 0,
            last: 0,
            gathers: false,
            dirty: Vec::new(),
            review_at: now.0 + REVIEW_INTERVAL.0,
        }
    }

    /// Says whether anything is written. Nothing may have been written yet.
    pub(crate) fn turn(&mut self, is_on: bool) {
        let is_blank = |account: &Account| account.waited.time == 0 && account.served.time == 0;
        assert!(
            self.accounts.iter().all(is_blank),
            "whether there are books is said before they begin"
        );
        self.is_on = is_on;
        self.make_room(0);
    }

    /// Opens an account.
    pub(crate) fn add(&mut self, vm: GroupId) {
        let (len, before) = (vm.0 as usize + 1, self.accounts.len());
        if before >= len {
            return self.make_room(vm.0 as usize);
        }
        self.accounts.resize_with(len, Account::default);
        // So that events do not allocate.
        self.dirty.reserve(len);
        let is_full = |len: usize| len > NAMED;
        let grows = len.next_power_of_two() > before.next_power_of_two() && !is_full(before);
        self.make_room(if grows || is_full(len) != is_full(before) { 0 } else { before });
    }

    /// Makes room for what accounts will hold when all who are there have been told apart, in
    /// those from `first` on. So events do not allocate, however late somebody is first served.
    fn make_room(&mut self, first: usize) {
        if self.is_on {
            let vms = self.accounts.len();
            self.named.make_room(vms);
            self.accounts[first..].iter_mut().for_each(|account| account.make_room(vms));
        }
    }

    /// Closes an account whose requests are all answered. What others waited for it is blamed on
    /// nobody by name any more.
    pub(crate) fn remove(&mut self, vm: GroupId) {
        let index = vm.0 as usize;
        self.settle();
        self.named.vacate(&mut self.accounts, index);
        for account in &mut self.accounts {
            account.kept.retain(|(of, _)| *of != vm);
        }
        self.accounts[index] = Account::default();
        if self.last == index {
            self.last = 0;
        }
    }

    /// Notes that `requests` of a VM wait for the device from now on.
    #[inline]
    pub(crate) fn wait(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        if self.is_on {
            self.note_wait(now, vm, requests);
        }
    }

    fn note_wait(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        let account = self.touch(now, vm);
        account.waiting += requests;
        account.waited.enter(now, requests);
        self.waiting += requests;
    }

    /// Notes that requests that wait do not compete for the device for now.
    pub(crate) fn step_aside(&mut self, now: Nanos, vm: GroupId, why: Aside, requests: u32) {
        if !self.is_on {
            return;
        }
        let account = self.touch(now, vm);
        account.waiting -= requests;
        match why {
            Aside::Limit => account.limited.enter(now, requests),
            Aside::Own => account.behind.enter(now, requests),
        }
        self.waiting -= requests;
    }

    /// Notes that requests compete for the device again.
    pub(crate) fn step_back(&mut self, now: Nanos, vm: GroupId, why: Aside, requests: u32) {
        if !self.is_on {
            return;
        }
        let account = self.touch(now, vm);
        account.waiting += requests;
        match why {
            Aside::Limit => account.limited.leave(now, requests),
            Aside::Own => account.behind.leave(now, requests),
        }
        self.waiting += requests;
    }

    /// Notes that a command of `requests` that waited goes to the device.
    #[inline]
    pub(crate) fn send(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        if self.is_on {
            self.note_send(now, vm, requests);
        }
    }

    fn note_send(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        let account = self.touch(now, vm);
        account.waiting -= requests;
        account.waited.leave(now, requests);
        account.served.enter(now, requests);
        let place = account.place;
        let share = self.clocks.share;
        let index = vm.0 as usize;
        self.accounts[index].gauge.enter(share);
        self.waiting -= requests;
        self.commands += 1;
        self.last = index;
        match place {
            Some(place) => self.named.gauge_mut(place).enter(share),
            None => self.name(now, index),
        }
    }

    /// Notes that a command of `requests` has left the device.
    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        if self.is_on {
            self.note_complete(now, vm, requests);
        }
    }

    fn note_complete(&mut self, now: Nanos, vm: GroupId, requests: u32) {
        self.advance(now.0);
        let share = self.clocks.share;
        let account = &mut self.accounts[vm.0 as usize];
        account.served.leave(now, requests);
        account.gauge.leave(share);
        if let Some(place) = account.place {
            self.named.gauge_mut(place).leave(share);
        }
        self.commands -= 1;
    }

    /// Returns for how long a VM has held the device, its part of what it shared with others, or had
    /// it kept idle, while anybody waited; none if nothing is written.
    pub(crate) fn held(&mut self, now: Nanos, vm: GroupId) -> Option<Nanos> {
        if !self.is_on {
            return None;
        }
        self.advance(now.0);
        let account = self.accounts.get(vm.0 as usize)?;
        Some(Nanos(account.gauge.read(self.clocks.share) + account.kept_for))
    }

    /// Notes whether a static block waits for more requests from now on.
    #[inline]
    pub(crate) fn gather(&mut self, now: Nanos, gathers: bool) {
        if gathers != self.gathers && self.is_on {
            self.advance(now.0);
            self.gathers = gathers;
        }
    }

    /// Returns why the requests of a VM waited up to now; nothing while off.
    pub(crate) fn explain(&mut self, now: Nanos, vm: GroupId) -> Explanation {
        if !self.is_on {
            return Explanation::default();
        }
        self.advance(now.0);
        self.settle();
        self.explanation(vm.0 as usize)
    }

    /// Returns the account of a VM whose number of waiting requests changes now.
    #[inline]
    fn touch(&mut self, now: Nanos, vm: GroupId) -> &mut Account {
        self.advance(now.0);
        let account = &mut self.accounts[vm.0 as usize];
        if !account.is_dirty {
            account.is_dirty = true;
            self.dirty.push(vm.0 as usize);
        }
        account
    }

    /// Shares out the time since the last event.
    #[inline]
    fn advance(&mut self, now: u64) {
        if now > self.now {
            self.settle();
            self.share_out(now);
        }
    }

    #[inline]
    fn share_out(&mut self, now: u64) {
        let span = now - core::mem::replace(&mut self.now, now);
        if self.waiting == 0 {
            return;
        }
        if self.commands > 0 {
            let commands = u64::from(self.commands);
            self.clocks.share += span / commands;
            self.clocks.rest += span % commands;
        } else if self.gathers {
            self.clocks.gathered += span;
        } else {
            self.clocks.idled += span;
            self.accounts[self.last].kept_for += span;
        }
    }

    /// Makes every row fit the number of requests that wait now.
    #[inline]
    fn settle(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        let meters = self.named.read(self.clocks.share);
        for index in self.dirty.drain(..) {
            self.accounts[index].settle(&self.clocks, meters);
        }
    }

    /// Tells a VM apart that was not so far, if there is a place or it has earned one.
    #[cold]
    fn name(&mut self, now: Nanos, index: usize) {
        if !self.named.is_full() {
            self.named.occupy(&mut self.accounts, index, self.clocks.share);
        } else if now.0 >= self.review_at {
            self.review_at = now.0 + REVIEW_INTERVAL.0;
            self.settle();
            self.accounts.iter_mut().for_each(|account| account.look(&self.clocks));
            for _ in 0..SWAPS {
                let Some((old, new)) = self.named.rivals(&self.accounts) else { return };
                self.replace(old, new);
            }
        }
    }

    fn replace(&mut self, old: usize, new: usize) {
        let place = self.accounts[old].place.expect("who is replaced has a place");
        let meter = self.named.meter(place, self.clocks.share);
        for account in &mut self.accounts {
            let blame = account.blame(place, meter);
            if blame > 0 {
                account.keep(group(old), blame);
            }
        }
        self.named.vacate(&mut self.accounts, old);
        self.named.occupy(&mut self.accounts, new, self.clocks.share);
    }

    fn explanation(&self, index: usize) -> Explanation {
        let account = &self.accounts[index];
        let mut causes: Vec<_> = account.kept.clone();
        for (place, vm) in self.named.vms().iter().enumerate() {
            let Some(vm) = vm.map(group) else { continue };
            let blame = account.blame(place, self.named.meter(place, self.clocks.share));
            match causes.iter_mut().find(|(of, _)| *of == vm) {
                Some((_, kept)) => *kept += blame,
                None => causes.push((vm, blame)),
            }
        }
        causes.retain(|(of, blame)| *of != group(index) && *blame > 0);
        let Clocks { share: mut own, rest, idled, gathered } = account.waits(&self.clocks);
        // A few nanoseconds that could not be shared out, to whom they matter least.
        let most = causes.iter_mut().map(|(_, blame)| blame).max();
        let most = most.filter(|blame| **blame > own).unwrap_or(&mut own);
        if *most > 0 {
            *most += rest;
        }
        let (waited, limited) = (account.waited.at(self.now), account.limited.at(self.now));
        let own = own + account.behind.at(self.now);
        let told = causes.iter().map(|(_, blame)| *blame);
        let told = told.fold(own + limited + idled + gathered, u64::wrapping_add);
        Explanation {
            waited: Nanos(waited),
            served: Nanos(account.served.at(self.now)),
            own: Nanos(own),
            limited: Nanos(limited),
            idled: Nanos(idled),
            gathered: Nanos(gathered),
            causes: causes.into_iter().map(|(vm, held)| Cause { vm, held: Nanos(held) }).collect(),
            others: Nanos(waited.wrapping_sub(told)),
            kept: Nanos(account.kept_for),
        }
    }

    /// Panics if counts contradict each other, or if somebody is blamed for more than was waited.
    pub(crate) fn check(&self) {
        let accounts = || self.accounts.iter();
        assert_eq!(accounts().map(|account| account.waiting).sum::<u32>(), self.waiting);
        let commands = accounts().map(|account| account.gauge.commands()).sum::<u64>();
        assert_eq!(commands, u64::from(self.commands));
        self.named.check(&self.accounts);
        for (index, account) in accounts().enumerate() {
            let aside = account.limited.requests + account.behind.requests;
            assert_eq!(account.waited.requests, account.waiting + aside);
            // What is not settled yet is of no use.
            if !account.is_dirty {
                let Explanation { waited, others, .. } = self.explanation(index);
                assert!(others <= waited, "more is blamed than was waited");
            }
        }
    }
}

fn group(index: usize) -> GroupId {
    GroupId(u32::try_from(index).expect("groups are named by u32"))
}

/// How often those who are told apart are chosen anew, if there are more VMs than places.
const REVIEW_INTERVAL: Nanos = Nanos::from_secs(1);

/// Most that are exchanged then: each costs a look at every VM.
const SWAPS: usize = 4;

#[cfg(test)]
mod tests;
