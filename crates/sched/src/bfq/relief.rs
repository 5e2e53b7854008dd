//! Relief: nobody waits for long because somebody else is raised.
//!
//! A raised queue is served again and again before all others, and pays for no time: a program that
//! reads at random places and is taken for one that starts would keep the device for as long as it
//! is raised. A program that does start pauses now and then, and others are served meanwhile, unless
//! its group stays lifted (`linger.rs`). So when raised queues alone, and those beside them in such
//! a group, have been served for a while, each who waits gets a request served in turn, all of them
//! together for at most an eighth of the device's time. They pay for what they read, and not for the
//! delay: it is less than what the raised ones owe them.

use super::Bfq;
use super::raise::WrKind;
use crate::{Class, Nanos, Tag};

/// For how long raised queues may be served alone.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// For how many times as long as a request of relief took there is none after it.
const REST: u64 = 7;
/// When to look again if nobody can be relieved just now.
const SOON: Nanos = Nanos::from_millis(10);

/// Who has the slot in service, or had the last one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Served {
    /// A queue that is raised.
    Raised,
    /// One whose group lingers.
    Lingering,
    Other,
}

/// What is known of those who wait beside raised queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relief {
    served: Served,
    /// Since when raised queues have been served alone.
    raised_since: Nanos,
    /// Since when they have, and those whose groups linger.
    alone_since: Nanos,
    /// Nobody is relieved before then.
    rests_until: Nanos,
    /// The request of relief at the device.
    at_device: Option<Tag>,
}

impl Relief {
    pub(super) const NEW: Self = Self {
        served: Served::Other,
        raised_since: Nanos::ZERO,
        alone_since: Nanos::ZERO,
        rests_until: Nanos::ZERO,
        at_device: None,
    };

    /// Takes note that a slot begins.
    #[inline]
    pub(super) fn slot_begins(&mut self, now: Nanos, served: Served) {
        if self.served != Served::Raised {
            self.raised_since = now;
        }
        if self.served == Served::Other {
            self.alone_since = now;
        }
        self.served = served;
    }

    /// Returns whether somebody may be relieved in the slot of a queue that is raised like this. A
    /// program that starts is left alone for a while after each of its pauses, if its group lingers:
    /// relief is for the pauses then.
    #[inline]
    fn is_due(&self, now: Nanos, kind: WrKind) -> bool {
        let since = match (self.served, kind) {
            (Served::Raised, WrKind::Interactive) => self.raised_since,
            (Served::Lingering, WrKind::None) => self.alone_since,
            // Who plays wants little, and that in time.
            _ => return false,
        };
        now >= self.rests_until && now.since(since) >= PATIENCE
    }

    /// Takes note that a request completes after it `took` so long; returns whether it was one of
    /// relief.
    pub(super) fn completed(&mut self, now: Nanos, tag: Tag, took: Nanos) -> bool {
        let is_relief = self.at_device == Some(tag);
        if is_relief {
            self.at_device = None;
            self.rests_until = now + Nanos(took.0.saturating_mul(REST));
        }
        is_relief
    }
}

impl Bfq {
    /// Returns a request of who has waited longest, if raised queues and those that linger beside
    /// them have been served alone for long, and `holder` is one of them.
    #[inline]
    pub(super) fn choose_relief(&mut self, now: Nanos, holder: u32) -> Option<(u32, Tag)> {
        let is_due = self.relief.is_due(now, self.queues[holder as usize].raise.kind);
        if is_due && self.rules.nobody_starves { self.find_starved(now, holder) } else { None }
    }

    #[cold]
    fn find_starved(&mut self, now: Nanos, holder: u32) -> Option<(u32, Tag)> {
        self.relief.rests_until = now + SOON;
        if self.relief.at_device.is_some() {
            return None;
        }
        let waits = |&id: &u32| {
            let queue = &self.queues[id as usize];
            let counts = queue.sync && queue.class != Class::Idle && id != holder;
            // Those who are raised take turns, and get theirs sooner.
            let is_due = !queue.raise.is_on() || now.since(queue.starves_since) >= PATIENCE;
            queue.used && queue.busy && counts && is_due
        };
        let count = u32::try_from(self.queues.len()).expect("names of queues are u32");
        let since = |&id: &u32| self.queues[id as usize].starves_since;
        let id = (0..count).filter(waits).min_by_key(since)?;
        let tag = self.queues[id as usize].next?;
        let fits = self.charge(id, tag) <= self.engine.budget(self.queues[id as usize].node);
        if !fits || self.has_its_places(id) || self.device_is_full(tag) {
            return None;
        }
        self.queues[id as usize].starves_since = now;
        self.relief.at_device = Some(tag);
        self.injection.interfered();
        Some((id, tag))
    }
}
