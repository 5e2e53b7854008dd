//! Relief: nobody waits for long because somebody else is raised.
//!
//! A raised queue is served again and again before all others, and pays for no time: a program that
//! reads at random places and is taken for one that starts would keep the device for as long as it
//! is raised. A program that does start pauses now and then, and others are served meanwhile. So
//! when raised queues alone have been served for a while, each who waits gets a request served in
//! turn, all of them together for at most an eighth of the device's time. They pay for what they
//! read, and not for the delay: it is less than what the raised ones owe them.

use super::Bfq;
use super::raise::WrKind;
use crate::{Class, Nanos, Tag};

/// For how long raised queues may be served alone.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// For how many times as long as a request of relief took there is none after it.
const REST: u64 = 7;
/// When to look again if nobody can be relieved just now.
const SOON: Nanos = Nanos::from_millis(10);

/// What is known of those who wait beside raised queues.
#[derive(Clone, Copy, Debug)]
pub(super) struct Relief {
    /// Nobody is relieved before then.
    looks_at: Nanos,
    /// Whether the queue in service, or the last one, was raised.
    is_raised: bool,
    /// The request of relief at the device.
    at_device: Option<Tag>,
}

impl Relief {
    pub(super) const NEW: Self = Self { looks_at: Nanos::ZERO, is_raised: false, at_device: None };

    /// Takes note that a slot begins, of a raised queue or of another one.
    #[inline]
    pub(super) fn slot_begins(&mut self, now: Nanos, is_raised: bool) {
        if is_raised && !self.is_raised {
            self.looks_at = now + PATIENCE;
        }
        self.is_raised = is_raised;
    }

    /// Takes note that a request completes after it `took` so long; returns whether it was one of
    /// relief.
    pub(super) fn completed(&mut self, now: Nanos, tag: Tag, took: Nanos) -> bool {
        let is_relief = self.at_device == Some(tag);
        if is_relief {
            self.at_device = None;
            self.looks_at = self.looks_at.max(now + Nanos(took.0.saturating_mul(REST)));
        }
        is_relief
    }
}

impl Bfq {
    /// Returns a request of who has waited longest, if raised queues alone have been served for long
    /// and `holder` is one of them.
    #[inline]
    pub(super) fn choose_relief(&mut self, now: Nanos, holder: u32) -> Option<(u32, Tag)> {
        // Who plays wants little, and that in time.
        let starts = || self.queues[holder as usize].raise.kind == WrKind::Interactive;
        let is_due = self.relief.is_raised && now >= self.relief.looks_at;
        if is_due && starts() && self.rules.nobody_starves { self.find_starved(now) } else { None }
    }

    #[cold]
    fn find_starved(&mut self, now: Nanos) -> Option<(u32, Tag)> {
        self.relief.looks_at = now + SOON;
        if self.relief.at_device.is_some() {
            return None;
        }
        let waits = |&id: &u32| {
            let queue = &self.queues[id as usize];
            let counts = queue.sync && queue.class != Class::Idle && !queue.raise.is_on();
            queue.used && queue.busy && counts
        };
        let count = u32::try_from(self.queues.len()).expect("names of queues are u32");
        let since = |&id: &u32| self.queues[id as usize].waits_since;
        let id = (0..count).filter(waits).min_by_key(since)?;
        let tag = self.queues[id as usize].next?;
        let fits = self.charge(id, tag) <= self.engine.budget(self.queues[id as usize].node);
        if !fits || self.has_its_places(id) || self.device_is_full(tag) {
            return None;
        }
        self.queues[id as usize].waits_since = now;
        self.relief.at_device = Some(tag);
        self.injection.interfered();
        Some((id, tag))
    }
}
