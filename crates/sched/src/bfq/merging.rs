//! Queues that become one: several issuers that together read or write one stretch of the disk.
//!
//! An *issuer* is what the caller calls a queue; usually each has a queue of its own. Two cases in
//! which they share one:
//!
//! * *Early queue merging*: the next request of one lies close to where another one, of the same
//!   group and class, is being served or will be. Apart they would drag the head back and forth;
//!   in one queue their requests are sorted and merged. When the shared queue turns out to be
//!   seeky after all, they part again, and each goes on with what was known of it.
//! * *Stable merging*: issuers that were created in a burst, with equal rights, work on one task.
//!   They never part.
//!
//! A merge takes effect at once for all issuers of a queue: each points to its queue directly, so
//! there are no chains to follow and no cycles. (In Linux every process follows when it next
//! submits.) What a queue holds when it loses its issuers is still served from there.
//!
//! Only queues of one group are merged, and only synchronous ones. Where the device queues by
//! itself and does not rotate, nearness gains nothing, and only stable merging works.
//!
//! Source: A. Avanzini and P. Valente, "Early Queue Merge", in: P. Valente and A. Avanzini,
//! "Evolution of the BFQ Storage-I/O Scheduler", 2015.

use super::burst::InBurst;
use super::inject::InjectLimit;
use super::raise::Raise;
use super::stats::{IoBound, ThinkTime};
use super::{Bfq, NOBODY};
use crate::table::Table;
use crate::tree::{Links, Nodes, Tree, predecessor, some, successor};
use crate::{Class, Nanos, Priority, Urgency};

/// Requests are close within this many sectors.
const CLOSE: u64 = 8192;
/// A queue that has been served for so long since it turned busy is not merged any more.
const TOO_LATE: Nanos = Nanos::from_millis(100);
/// Queues created within this time of each other belong to one burst.
const BURST: Nanos = Nanos::from_millis(180);
/// A burst is merged after so long, unless its queues prove sequential.
pub(super) const PROBATION: Nanos = Nanos::from_millis(600);

/// One who inserts requests.
#[derive(Clone, Debug)]
pub(super) struct Issuer {
    /// The next one that has the same queue.
    next: u32,
    group: u32,
    priority: Priority,
    /// Whether it shares a queue for ever.
    stable: bool,
    /// What somebody outside says of it.
    urgency: Urgency,
    /// What was known of it when its queue became a shared one.
    saved: Option<Saved>,
}

/// What is known of an issuer, and comes back when it has a queue of its own again.
#[derive(Clone, Copy, Debug)]
struct Saved {
    think: ThinkTime,
    short_ttime: bool,
    bound: IoBound,
    raise: Raise,
    inject: InjectLimit,
    in_large_burst: bool,
}

/// Who shares a queue, and with whom it may yet be merged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    /// Its issuers, in a list, and how many.
    first: u32,
    pub(super) issuers: u32,
    /// Several issuers have it, or had.
    pub(super) shared: bool,
    /// It is shared and seeky: its issuers part when they next insert.
    pub(super) parts: bool,
    created: Nanos,
    /// Tells it from those that have had its place before, even at the same instant.
    serial: u64,
    /// The queue that it is to be merged with for ever.
    stable_with: Option<Head>,
    /// When it was first served since it turned busy.
    served_since: Option<Nanos>,
}

/// A queue that heads a burst of creations, perhaps gone since.
#[derive(Clone, Copy, Debug)]
struct Head {
    id: u32,
    serial: u64,
}

impl Sharing {
    pub(super) fn new(now: Nanos, serial: u64) -> Self {
        Self {
            first: NOBODY,
            issuers: 0,
            shared: false,
            parts: false,
            created: now,
            serial,
            stable_with: None,
            served_since: None,
        }
    }

    pub(super) fn turned_busy(&mut self) {
        self.served_since = None;
    }

    pub(super) fn served(&mut self, now: Nanos) {
        self.served_since.get_or_insert(now);
    }

    fn is_too_late(&self, now: Nanos) -> bool {
        self.served_since.is_some_and(|since| now > since + TOO_LATE)
    }
}

/// Issuers by name, and queues by the sector of their next request.
#[derive(Clone, Debug, Default)]
pub(super) struct Merging {
    /// The queue of each issuer, or nobody.
    pub(super) routes: alloc::vec::Vec<u32>,
    issuers: alloc::vec::Vec<Issuer>,
    free: alloc::vec::Vec<u32>,
    places: Places,
    /// Queues created so far.
    serials: u64,
}

impl Merging {
    /// Returns a number that no other queue has.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    links: Links,
    pos: u64,
}

#[derive(Clone, Debug, Default)]
struct Places(alloc::vec::Vec<Spot>);

impl Nodes for Places {
    fn links(&self, index: u32) -> &Links {
        &self.0[index as usize].links
    }

    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.0[index as usize].links
    }

    fn before(&self, a: u32, b: u32) -> bool {
        self.0[a as usize].pos < self.0[b as usize].pos
    }
}

/// The queues of one group as far as merging is concerned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Neighbours {
    /// Its queues by the sector of their next request.
    by_pos: Tree,
    /// The queue that heads the latest burst of creations.
    newest: Option<Head>,
}

impl Bfq {
    /// Names a new issuer, with queue `id` of its own.
    pub(super) fn add_issuer(&mut self, now: Nanos, id: u32, priority: Priority) -> u32 {
        let group = self.queues[id as usize].group;
        let urgency = Urgency::None;
        let issuer = Issuer { next: NOBODY, group, priority, stable: false, urgency, saved: None };
        let merging = &mut self.merging;
        let name = match merging.free.pop() {
            Some(name) => {
                merging.issuers[name as usize] = issuer;
                name
            }
            None => {
                merging.issuers.push(issuer);
                merging.routes.push(NOBODY);
                u32::try_from(merging.issuers.len() - 1).expect("fewer than 2^32 issuers")
            }
        };
        merging.places.0.resize(self.queues.len(), Spot::default());
        self.join(name, id);
        self.consider_stable_merge(now, id);
        name
    }

    /// Forgets an issuer. Its name is free at once: requests know their queue, and what it left in
    /// queues that it once had is served from there.
    pub(super) fn remove_issuer(&mut self, now: Nanos, issuer: u32) {
        let id = self.merging.routes[issuer as usize];
        assert!(id != NOBODY, "a queue is removed once");
        self.part(issuer, id);
        self.merging.free.push(issuer);
        if self.queues[id as usize].sharing.issuers == 0 {
            self.retire_queue(now, id);
        } else {
            self.renew_urgency(now, id);
        }
    }

    /// Takes note of how urgent an issuer's requests are said to be.
    pub(super) fn urge_issuer(&mut self, now: Nanos, issuer: u32, urgency: Urgency) {
        self.merging.issuers[issuer as usize].urgency = urgency;
        self.renew_urgency(now, self.merging.routes[issuer as usize]);
    }

    /// Makes a queue as urgent as the most urgent of its issuers.
    fn renew_urgency(&mut self, now: Nanos, id: u32) {
        let mut urgency = Urgency::None;
        let mut at = self.queues[id as usize].sharing.first;
        while at != NOBODY {
            let issuer = &self.merging.issuers[at as usize];
            urgency = urgency.max(issuer.urgency);
            at = issuer.next;
        }
        self.urge(now, id, urgency);
    }

    fn join(&mut self, issuer: u32, id: u32) {
        let sharing = &mut self.queues[id as usize].sharing;
        sharing.issuers += 1;
        let next = core::mem::replace(&mut sharing.first, issuer);
        self.merging.issuers[issuer as usize].next = next;
        self.merging.routes[issuer as usize] = id;
    }

    fn part(&mut self, issuer: u32, id: u32) {
        let next = self.merging.issuers[issuer as usize].next;
        let sharing = &mut self.queues[id as usize].sharing;
        sharing.issuers -= 1;
        if sharing.first == issuer {
            sharing.first = next;
        } else {
            let mut at = sharing.first;
            while self.merging.issuers[at as usize].next != issuer {
                at = self.merging.issuers[at as usize].next;
            }
            self.merging.issuers[at as usize].next = next;
        }
        self.merging.routes[issuer as usize] = NOBODY;
    }

    /// Returns the queue that a request of an issuer at `pos` goes to, after merging or splitting
    /// what is to be merged or split now.
    pub(super) fn redirect(&mut self, now: Nanos, issuer: u32, pos: u64) -> u32 {
        let id = self.merging.routes[issuer as usize];
        assert!(id != NOBODY, "nobody inserts into a removed queue");
        let queue = &self.queues[id as usize];
        if !queue.sync {
            return id;
        }
        if queue.sharing.parts && !self.merging.issuers[issuer as usize].stable {
            return self.split(now, issuer, id);
        }
        if let Some(target) = self.stable_target(now, id) {
            self.unite(now, id, target, true);
            return target;
        }
        match self.cooperator(now, id, pos) {
            Some(other) => {
                self.unite(now, id, other, false);
                other
            }
            None => id,
        }
    }

    /// Returns a queue that works close to `pos`.
    fn cooperator(&self, now: Nanos, id: u32, pos: u64) -> Option<u32> {
        let queue = &self.queues[id as usize];
        if !self.tunables.merge_queues
            || self.is_queueing_flash()
            || queue.sharing.is_too_late(now)
            || self.busy_total() == 1
        {
            return None;
        }
        let in_service = self.holder.filter(|_| self.slot.position.abs_diff(pos) <= CLOSE);
        if let Some(holder) = in_service
            && self.are_compatible(now, id, holder)
        {
            return Some(holder);
        }
        let places = &self.merging.places;
        let tree = &self.groups[queue.group as usize].neighbours.by_pos;
        let gap = tree.gap(places, |index| places.0[index as usize].pos < pos);
        let skip_own = |at: Option<u32>, next: fn(&Places, u32) -> Option<u32>| match at {
            Some(own) if own == id => next(places, own),
            other => other,
        };
        let below = skip_own(gap.below(), predecessor);
        let above = skip_own(gap.above(), successor);
        let distance = |&at: &u32| places.0[at as usize].pos.abs_diff(pos);
        let nearest = [above, below].into_iter().flatten().min_by_key(distance)?;
        (distance(&nearest) <= CLOSE && self.are_compatible(now, id, nearest)).then_some(nearest)
    }

    fn are_compatible(&self, now: Nanos, id: u32, other: u32) -> bool {
        let (one, two) = (&self.queues[id as usize], &self.queues[other as usize]);
        id != other
            && one.group == two.group
            && one.class == two.class
            && one.class != Class::Idle
            && two.sync
            && !two.gone
            && !one.seek.is_seeky()
            && !two.seek.is_seeky()
            && !two.sharing.is_too_late(now)
    }

    /// Lets all issuers of queue `id` use queue `into` from now on.
    pub(super) fn unite(&mut self, now: Nanos, id: u32, into: u32, stable: bool) {
        assert_ne!(id, into, "two queues become one");
        for queue in [id, into] {
            self.save(now, queue);
        }
        let mut issuer = self.queues[id as usize].sharing.first;
        while issuer != NOBODY {
            let next = self.merging.issuers[issuer as usize].next;
            self.join(issuer, into);
            issuer = next;
        }
        if stable {
            let mut at = self.queues[into as usize].sharing.first;
            while at != NOBODY {
                let issuer = &mut self.merging.issuers[at as usize];
                issuer.stable = true;
                at = issuer.next;
            }
        }
        let from = &mut self.queues[id as usize];
        (from.sharing.first, from.sharing.issuers) = (NOBODY, 0);
        let (bound, raise, waker, group) = (from.bound, from.raise, from.ties.waker, from.group);
        let target = &mut self.queues[into as usize];
        target.sharing.shared = true;
        if bound.is_bound() {
            target.bound = bound;
        }
        let (takes_raise, has_waker) = (!target.raise.is_on(), target.ties.waker != NOBODY);
        if raise.is_on() {
            self.end_raise(now, id);
            if takes_raise {
                self.adopt_raise(now, into, raise);
            }
        }
        if waker != NOBODY && waker != into && !has_waker {
            self.tie(into, waker);
        }
        let newest = &mut self.groups[group as usize].neighbours.newest;
        if newest.is_some_and(|newest| newest.id == id) {
            *newest = Some(Head { id: into, serial: self.queues[into as usize].sharing.serial });
        }
        self.retire_queue(now, id);
        self.renew_urgency(now, into);
    }

    /// Saves what is known of the only issuer of a queue that will be shared.
    fn save(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        if queue.sharing.shared || queue.sharing.issuers != 1 {
            return;
        }
        // A queue that is merged before it could be raised was about to be.
        let in_large_burst = queue.in_burst == InBurst::Large;
        let raise =
            if queue.fresh && !in_large_burst { self.first_raise(now, id) } else { queue.raise };
        let saved = Saved {
            think: queue.think,
            short_ttime: queue.short_ttime,
            bound: queue.bound,
            raise,
            inject: queue.inject,
            in_large_burst,
        };
        self.merging.issuers[queue.sharing.first as usize].saved = Some(saved);
    }

    /// Gives an issuer a queue of its own again; returns it.
    pub(super) fn split(&mut self, now: Nanos, issuer: u32, id: u32) -> u32 {
        let own = if self.queues[id as usize].sharing.issuers == 1 {
            let sharing = &mut self.queues[id as usize].sharing;
            (sharing.shared, sharing.parts) = (false, false);
            id
        } else {
            let Issuer { group, priority, .. } = self.merging.issuers[issuer as usize];
            self.part(issuer, id);
            let own = self.add_internal_queue(now, group, priority, true);
            self.merging.places.0.resize(self.queues.len(), Spot::default());
            self.join(issuer, own);
            // It has a past.
            let queue = &mut self.queues[own as usize];
            (queue.fresh, queue.idle_since) = (false, Some(now));
            own
        };
        if let Some(saved) = self.merging.issuers[issuer as usize].saved.take() {
            self.resume(now, own, saved);
        }
        self.renew_urgency(now, own);
        if own != id {
            self.renew_urgency(now, id);
        }
        own
    }

    fn resume(&mut self, now: Nanos, id: u32, saved: Saved) {
        let queue = &mut self.queues[id as usize];
        queue.think = saved.think;
        queue.short_ttime = saved.short_ttime;
        queue.bound = saved.bound;
        queue.inject = saved.inject;
        if saved.in_large_burst {
            self.leave_burst(id);
            self.queues[id as usize].in_burst = InBurst::Large;
        }
        self.adopt_raise(now, id, saved.raise);
    }

    /// Merges a new queue for ever with the head of the burst that it belongs to, or plans that.
    fn consider_stable_merge(&mut self, now: Nanos, id: u32) {
        let queue = &self.queues[id as usize];
        if !self.tunables.stable_merge || !queue.sync || queue.class == Class::Idle {
            return;
        }
        let is_alike = |&newest: &Head| {
            let other = &self.queues[newest.id as usize];
            self.still_exists(newest)
                && now <= other.sharing.created + PROBATION
                && (other.group, other.class, other.level)
                    == (queue.group, queue.class, queue.level)
        };
        let neighbours = self.groups[queue.group as usize].neighbours;
        let group = queue.group as usize;
        let Some(newest) = neighbours.newest.filter(is_alike) else {
            let serial = queue.sharing.serial;
            self.groups[group].neighbours.newest = Some(Head { id, serial });
            return;
        };
        if now > self.queues[newest.id as usize].sharing.created + BURST {
            return;
        }
        if self.is_queueing_flash() {
            self.unite(now, id, newest.id, true);
        } else {
            self.queues[id as usize].sharing.stable_with = Some(newest);
        }
    }

    /// Returns the queue that this one is to be merged with for ever now.
    fn stable_target(&mut self, now: Nanos, id: u32) -> Option<u32> {
        let queue = &mut self.queues[id as usize];
        let is_due = !queue.fresh && now > queue.sharing.created + PROBATION;
        let target = queue.sharing.stable_with.take_if(|_| is_due)?;
        let queue = &self.queues[id as usize];
        let is_wanted = self.still_exists(target) && !self.idling_boosts(queue);
        is_wanted.then_some(target.id)
    }

    fn still_exists(&self, head: Head) -> bool {
        let queue = &self.queues[head.id as usize];
        queue.used && !queue.gone && queue.sharing.serial == head.serial
    }

    /// Puts a queue where its next request belongs among its neighbours.
    pub(super) fn reposition(&mut self, id: u32) {
        let queue = &self.queues[id as usize];
        let is_candidate = queue.sync && queue.class != Class::Idle;
        let pos = queue.next.filter(|_| is_candidate).map(|tag| self.table.get(tag).pos);
        let tree = &mut self.groups[queue.group as usize].neighbours.by_pos;
        let places = &mut self.merging.places;
        let spot = places.0[id as usize];
        let is_in = spot.links.is_linked();
        if is_in && pos == Some(spot.pos) {
            return;
        }
        if is_in {
            tree.remove(places, id);
        }
        if let Some(pos) = pos {
            places.0[id as usize].pos = pos;
            tree.insert(places, id);
        }
    }

    /// Takes note that the merging of neighbours was turned on or off.
    pub(super) fn review_neighbours(&mut self) {
        for id in (0..).take(self.queues.len()) {
            if !self.tunables.merge_queues {
                self.leave_neighbours(id);
            } else if self.queues[id as usize].used {
                self.reposition(id);
            }
        }
    }

    /// Takes a queue that is about to be freed from its neighbours.
    pub(super) fn leave_neighbours(&mut self, id: u32) {
        if self.merging.places.0[id as usize].links.is_linked() {
            let group = self.queues[id as usize].group as usize;
            self.groups[group].neighbours.by_pos.remove(&mut self.merging.places, id);
        }
    }

    /// Panics unless issuers and queues know each other: every issuer has a queue of its own group
    /// in one step, and every queue that is not gone has issuers.
    pub(super) fn check_merging(&self) {
        let mut routed = alloc::vec![0_u32; self.queues.len()];
        for (issuer, &id) in self.merging.routes.iter().enumerate() {
            if id == NOBODY {
                continue;
            }
            let queue = &self.queues[id as usize];
            routed[id as usize] += 1;
            assert!(queue.used && !queue.gone, "P26: an issuer's queue is there");
            assert_eq!(queue.group, self.merging.issuers[issuer].group, "P29");
        }
        for (id, queue) in self.queues.iter().enumerate().filter(|(_, queue)| queue.used) {
            assert_eq!(queue.sharing.issuers, routed[id], "issuers are counted");
            assert_eq!(queue.gone, routed[id] == 0, "who has no issuers is gone");
            let next = |&at: &u32| some(self.merging.issuers[at as usize].next);
            let listed = core::iter::successors(some(queue.sharing.first), next);
            assert_eq!(
                listed.take(self.merging.routes.len() + 1).count(),
                routed[id] as usize,
                "P26: no cycle"
            );
            assert!(routed[id] <= 1 || queue.sharing.shared, "several issuers share");
            let spot = self.merging.places.0[id];
            if self.tunables.merge_queues && spot.links.is_linked() {
                assert_eq!(Some(spot.pos), next_pos(&self.table, queue.next), "sorted by next");
            }
        }
    }
}

fn next_pos(table: &Table, next: Option<crate::Tag>) -> Option<u64> {
    next.map(|tag| table.get(tag).pos)
}
