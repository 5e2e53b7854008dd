//! Wakers: a queue whose requests come only when those of another one complete.
//!
//! A process that waits for another one, such as a database for its log, has an empty queue until
//! that one is served; waiting for it with an idle device would never end well. So while such a
//! queue is waited for, the one that wakes it is served, and while its waker is waited for, so is
//! it; without regard to the injection limit, since that makes nobody later.
//!
//! A busy neighbour completes something shortly before anything else happens, and would be taken for
//! the waker of every slow queue of the pool. So only queues of one group wake each other; and who
//! wakes has done its work: with more of it waiting or at the device it is such a neighbour. Each
//! arrival without its waker speaks against that one, which is given up when there is no more to say
//! for it.
//!
//! Source: P. Valente, patches "block, bfq: detect wakers and unconditionally inject their I/O",
//! Linux 5.3, 2019.

use super::{Bfq, NOBODY};
use crate::tree::some;
use crate::{Nanos, Tag};

/// Whoever wakes has completed something less than this before.
const SOON: Nanos = Nanos::from_millis(4);
/// So many arrivals in a row make a waker.
const ENOUGH: u8 = 3;
/// More of them than this are not counted.
const MOST: u8 = 6;
/// They must come within this many idle slices.
const WINDOW_SLICES: u64 = 128;

/// Who wakes a queue, and whom it wakes; queues are named by index.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ties {
    pub(super) waker: u32,
    /// How many arrivals speak for it, less those that speak against it.
    trust: u8,
    /// Who seems to wake it, how often that was seen, since when.
    tentative: u32,
    count: u8,
    since: Nanos,
    /// Those that it wakes: the one that turned busy last, in a list through `next` and `former`.
    pub(super) woken: u32,
    next: u32,
    former: u32,
}

impl Default for Ties {
    fn default() -> Self {
        Self {
            waker: NOBODY,
            trust: 0,
            tentative: NOBODY,
            count: 0,
            since: Nanos::ZERO,
            woken: NOBODY,
            next: NOBODY,
            former: NOBODY,
        }
    }
}

impl Bfq {
    /// Takes note of whose request completed last when one arrives at a queue that had nothing to
    /// do.
    pub(super) fn look_for_waker(&mut self, now: Nanos, id: u32) {
        let is_exact = self.rules.wakers_have_done;
        let Some(last) = self.may_have_woken(now, id) else {
            if is_exact {
                self.queues[id as usize].ties.tentative = NOBODY;
                self.doubt_waker(id);
            }
            return;
        };
        let window = Nanos(self.tunables.slice_idle.0 * WINDOW_SLICES);
        let ties = &mut self.queues[id as usize].ties;
        if is_exact && ties.waker == last {
            ties.trust = MOST.min(ties.trust + 1);
            return;
        }
        if ties.tentative != last || now > ties.since + window {
            (ties.tentative, ties.count, ties.since) = (last, 1, now);
        } else {
            ties.count += 1;
        }
        if ties.count == ENOUGH {
            ties.tentative = NOBODY;
            self.tie(id, last);
        } else if is_exact {
            self.doubt_waker(id);
        }
    }

    /// Returns who may be the reason for a request that comes now to a queue with nothing to do.
    fn may_have_woken(&self, now: Nanos, id: u32) -> Option<u32> {
        let last = some(self.last_completed).filter(|&last| last != id)?;
        let (queue, other) = (&self.queues[id as usize], &self.queues[last as usize]);
        let is_at_work = self.rules.wakers_have_done && (!other.is_empty() || other.in_flight > 0);
        let is_woken = !queue.short_ttime
            && now.since(self.last_completion) < SOON
            && other.group == queue.group
            && !other.sharing.shared
            && !is_at_work;
        is_woken.then_some(last)
    }

    /// Takes note of an arrival at which a queue's waker had no part.
    fn doubt_waker(&mut self, id: u32) {
        let ties = &mut self.queues[id as usize].ties;
        if ties.waker != NOBODY {
            ties.trust -= 1;
            if ties.trust == 0 {
                self.untie(id);
            }
        }
    }

    /// Makes `waker` the waker of a queue.
    pub(super) fn tie(&mut self, id: u32, waker: u32) {
        self.untie(id);
        let ties = &mut self.queues[id as usize].ties;
        (ties.waker, ties.trust) = (waker, ENOUGH);
        self.link(id, waker);
    }

    fn link(&mut self, id: u32, waker: u32) {
        let next = core::mem::replace(&mut self.queues[waker as usize].ties.woken, id);
        let ties = &mut self.queues[id as usize].ties;
        (ties.next, ties.former) = (next, NOBODY);
        if next != NOBODY {
            self.queues[next as usize].ties.former = id;
        }
    }

    fn unlink(&mut self, id: u32, waker: u32) {
        let Ties { next, former, .. } = self.queues[id as usize].ties;
        if next != NOBODY {
            self.queues[next as usize].ties.former = former;
        }
        if former == NOBODY {
            self.queues[waker as usize].ties.woken = next;
        } else {
            self.queues[former as usize].ties.next = next;
        }
    }

    /// Takes a queue's waker away.
    fn untie(&mut self, id: u32) {
        let waker = core::mem::replace(&mut self.queues[id as usize].ties.waker, NOBODY);
        if waker != NOBODY {
            self.unlink(id, waker);
        }
    }

    /// Takes note that a queue turned busy: of those that its waker wakes it comes first.
    #[inline]
    pub(super) fn woke_up(&mut self, id: u32) {
        let Ties { waker, former, .. } = self.queues[id as usize].ties;
        if waker != NOBODY && former != NOBODY {
            self.unlink(id, waker);
            self.link(id, waker);
        }
    }

    /// Forgets a queue that is about to be freed.
    pub(super) fn cut_ties(&mut self, id: u32) {
        self.untie(id);
        while self.queues[id as usize].ties.woken != NOBODY {
            self.untie(self.queues[id as usize].ties.woken);
        }
        if self.last_completed == id {
            self.last_completed = NOBODY;
        }
    }

    /// Returns a request of the waker of a queue, or of one that it wakes, to be injected.
    pub(super) fn friend(&self, id: u32) -> Option<(u32, Tag)> {
        let Ties { waker, woken, .. } = self.queues[id as usize].ties;
        if waker == NOBODY && woken == NOBODY {
            return None;
        }
        let next = |other: u32| {
            let tag = if other == NOBODY { None } else { self.may_be_injected(other) };
            tag.map(|tag| (other, tag))
        };
        next(waker).or_else(|| next(woken))
    }

    /// Panics unless wakers and woken queues know each other.
    pub(super) fn check_ties(&self, id: u32) {
        let ties = self.queues[id as usize].ties;
        if ties.waker != NOBODY {
            let waker = &self.queues[ties.waker as usize];
            assert!(waker.used && ties.waker != id, "a waker is another queue that exists");
            let next = |&at: &u32| some(self.queues[at as usize].ties.next);
            let mut listed = core::iter::successors(some(waker.ties.woken), next);
            assert!(listed.any(|at| at == id), "a waker knows whom it wakes");
        }
        let mut at = ties.woken;
        while at != NOBODY {
            assert_eq!(self.queues[at as usize].ties.waker, id, "who is woken knows by whom");
            at = self.queues[at as usize].ties.next;
        }
    }
}
