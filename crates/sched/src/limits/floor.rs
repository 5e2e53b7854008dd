//! Reservations: requests that an elevator holds past the time by which they were promised.
//!
//! Every waiting request of a node with a reservation has a tag, the time by which it must go:
//! that of the request before it plus its own cost divided by the reservation, or its arrival if
//! that is later. A request whose tag has come goes before everything that the elevator would
//! choose. One that the elevator chose by itself is forgotten as though it had never been, so the
//! tags of those behind it move up by exactly its cost: the reservation is a floor, not a part of
//! what the elevator grants. Only the oldest request of a node needs its tag; so that is computed
//! when it becomes the oldest, and no tag is ever corrected.
//!
//! A request counts in every node with a reservation on its way to the root.
//!
//! Source: A. Gulati, A. Merchant, P. J. Varman, "mClock: Handling Throughput Variability for
//! Hypervisor IO Scheduling", OSDI 2010.

use alloc::vec::Vec;

use super::bucket::ops_cost;
use super::{Demand, NodeId};
use crate::tree::{Links, NIL, Nodes, Tree, some};
use crate::{Nanos, Tag};

/// What a node is promised. Zero means nothing; with both, whichever is due first counts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reservation {
    /// Requests a second.
    pub ops: u64,
    /// Bytes a second.
    pub bytes: u64,
    /// A request of n times so many bytes counts as n requests; 0: 64 KiB.
    pub op_bytes: u64,
}

impl Reservation {
    /// Returns whether nothing is promised.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.ops == 0 && self.bytes == 0
    }
}

/// How large a request is that counts as one, unless the operator says otherwise.
const OP_BYTES: u64 = 64 * 1024;
/// Kinds of reservations: requests, and bytes.
const KINDS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Node {
    parent: u32,
    promised: Reservation,
    /// Per kind the tag of the last request that went because it was due.
    previous: [Option<Nanos>; KINDS],
    /// When the oldest request is due; means nothing without one.
    due: Nanos,
    /// Its place among those with waiting requests.
    links: Links,
    /// Waiting requests in the order of arrival, as places.
    head: u32,
    tail: u32,
}

impl Node {
    const fn new(parent: u32) -> Self {
        Self {
            parent,
            promised: Reservation { ops: 0, bytes: 0, op_bytes: 0 },
            previous: [None; KINDS],
            due: Nanos::ZERO,
            links: Links::DETACHED,
            head: NIL,
            tail: NIL,
        }
    }

    /// Returns by when a request must go, by kind; never, where nothing is promised.
    fn tags(&self, place: &Place) -> [Nanos; KINDS] {
        let Reservation { ops, bytes, op_bytes } = self.promised;
        let op_bytes = if op_bytes == 0 { OP_BYTES } else { op_bytes };
        let costs = [ops_cost(place.bytes, op_bytes), u128::from(place.bytes) * SECOND];
        let mut tags = [NEVER; KINDS];
        for (kind, rate) in [ops, bytes].into_iter().enumerate().filter(|(_, rate)| *rate > 0) {
            let span = u64::try_from(costs[kind] / u128::from(rate)).unwrap_or(u64::MAX);
            let earliest = self.previous[kind].map_or(place.arrived, |tag| tag + Nanos(span));
            tags[kind] = earliest.max(place.arrived);
        }
        tags
    }
}

const SECOND: u128 = 1_000_000_000;
const NEVER: Nanos = Nanos(u64::MAX);

/// Where a request stands in the line of one node.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The node; none if it stands nowhere.
    node: u32,
    older: u32,
    younger: u32,
    arrived: Nanos,
    bytes: u64,
}

impl Place {
    const NONE: Self = Self { node: NIL, older: NIL, younger: NIL, arrived: Nanos::ZERO, bytes: 0 };
}

/// All nodes, as the records in which the nodes of the tree by due time lie.
#[derive(Debug)]
struct Arena(Vec<Node>);

impl Arena {
    #[inline]
    fn at(&self, node: u32) -> &Node {
        &self.0[node as usize]
    }

    #[inline]
    fn at_mut(&mut self, node: u32) -> &mut Node {
        &mut self.0[node as usize]
    }
}

impl Nodes for Arena {
    fn links(&self, index: u32) -> &Links {
        &self.at(index).links
    }

    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.at_mut(index).links
    }

    fn before(&self, a: u32, b: u32) -> bool {
        self.at(a).due < self.at(b).due
    }
}

/// All reservations, and the waiting requests that they concern; see the module.
///
/// Names nodes as the [`Gate`](super::Gate) does.
#[derive(Debug)]
pub struct Floors {
    arena: Arena,
    /// Nodes with waiting requests, by when the oldest is due.
    due: Tree,
    /// Per tag as many as there are reservations on the longest way to the root.
    places: Vec<Place>,
    per_tag: usize,
    /// Nodes with a reservation.
    reserved: u32,
}

impl Default for Floors {
    fn default() -> Self {
        Self::new()
    }
}

impl Floors {
    /// Returns floors without reservations, with the root alone.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arena: Arena(Vec::from([Node::new(NIL)])),
            due: Tree::EMPTY,
            places: Vec::new(),
            per_tag: 1,
            reserved: 0,
        }
    }

    /// Returns whether anybody is promised anything.
    #[inline]
    #[must_use]
    pub const fn is_any(&self) -> bool {
        self.reserved > 0
    }

    /// Takes the node `node`, new or not used any more, below `parent`.
    pub fn add(&mut self, node: NodeId, parent: NodeId) {
        let new = Node::new(parent.0);
        let index = node.0 as usize;
        if index >= self.arena.0.len() {
            self.arena.0.resize(index + 1, new);
        }
        self.arena.0[index] = new;
    }

    /// Changes what a node is promised. Requests that wait already count if they did before.
    pub fn set(&mut self, node: NodeId, promised: Reservation) {
        let record = self.arena.at_mut(node.0);
        let was_none = record.promised.is_none();
        record.promised = promised;
        self.reserved = self.reserved + u32::from(!promised.is_none()) - u32::from(!was_none);
        if promised.is_none() {
            while let Some(head) = some(self.arena.at(node.0).head) {
                self.unlink(head);
            }
            self.arena.at_mut(node.0).previous = [None; KINDS];
        } else {
            self.renew(node.0);
            self.widen(node.0);
        }
    }

    /// Takes note of a request of a leaf that enters the elevator.
    pub fn enter(&mut self, now: Nanos, leaf: NodeId, demand: &Demand) {
        let first = demand.tag.0 as usize * self.per_tag;
        if first + self.per_tag > self.places.len() {
            self.places.resize(first + self.per_tag, Place::NONE);
        }
        let (mut at, mut place) = (leaf.0, first);
        while let Some(id) = some(at) {
            let node = self.arena.at(id);
            at = node.parent;
            if !node.promised.is_none() {
                self.link(now, id, place, demand.bytes());
                place += 1;
            }
        }
    }

    /// Returns a request that must go now, the one that is overdue longest.
    #[must_use]
    pub fn overdue(&self, now: Nanos) -> Option<Tag> {
        let first = self.arena.at(self.due.first(&self.arena)?);
        (first.due <= now).then(|| self.tag_of(first.head))
    }

    /// Returns when the next request is due.
    #[must_use]
    pub fn next_due(&self) -> Option<Nanos> {
        self.due.first(&self.arena).map(|first| self.arena.at(first).due)
    }

    /// Returns by when the oldest waiting request of a node must go.
    #[must_use]
    pub fn due_of(&self, node: NodeId) -> Option<Nanos> {
        let node = self.arena.at(node.0);
        (node.head != NIL).then_some(node.due)
    }

    /// Takes note of a request that leaves the elevator: because it was due, or because the
    /// elevator chose it.
    pub fn leave(&mut self, now: Nanos, tag: Tag, was_due: bool) {
        let first = tag.0 as usize * self.per_tag;
        for place in first..(first + self.per_tag).min(self.places.len()) {
            let Place { node, .. } = self.places[place];
            if node == NIL {
                continue;
            }
            if was_due {
                let node = self.arena.at_mut(node);
                let tags = node.tags(&self.places[place]);
                for (previous, tag) in node.previous.iter_mut().zip(tags) {
                    if tag <= now {
                        *previous = Some(tag);
                    }
                }
            }
            self.unlink(index_of(place));
            if was_due {
                // Somebody else may be the oldest, and is due later now.
                self.renew(node);
            }
        }
    }

    /// Panics if the state contradicts itself. For tests and the simulator; O(everything).
    pub fn check_invariants(&self) {
        let mut lines = 0;
        let mut placed = 0;
        for (id, node) in (0..).zip(&self.arena.0) {
            assert_eq!(node.links.is_linked(), node.head != NIL, "who waits has a due time");
            lines += u32::from(node.head != NIL);
            assert!(node.head == NIL || !node.promised.is_none());
            let (mut at, mut older) = (node.head, NIL);
            while let Some(place) = some(at) {
                let record = &self.places[place as usize];
                assert_eq!((record.node, record.older), (id, older));
                (older, at) = (place, record.younger);
                placed += 1;
            }
            assert_eq!(node.tail, older, "a line knows its youngest request");
        }
        assert_eq!(self.due.check(&self.arena), lines);
        assert_eq!(self.places.iter().filter(|place| place.node != NIL).count(), placed);
    }
}

/// The steps behind the calls above.
impl Floors {
    fn tag_of(&self, place: u32) -> Tag {
        Tag(index_of(place as usize / self.per_tag))
    }

    fn link(&mut self, now: Nanos, id: u32, place: usize, bytes: u64) {
        let node = self.arena.at_mut(id);
        let older = core::mem::replace(&mut node.tail, index_of(place));
        assert!(self.places[place].node == NIL, "a tag names one request at a time");
        self.places[place] = Place { node: id, older, younger: NIL, arrived: now, bytes };
        match some(older) {
            Some(older) => self.places[older as usize].younger = index_of(place),
            None => {
                node.head = index_of(place);
                self.renew(id);
            }
        }
    }

    fn unlink(&mut self, place: u32) {
        let Place { node: id, older, younger, .. } =
            core::mem::replace(&mut self.places[place as usize], Place::NONE);
        match some(younger) {
            Some(younger) => self.places[younger as usize].older = older,
            None => self.arena.at_mut(id).tail = older,
        }
        match some(older) {
            Some(older) => self.places[older as usize].younger = younger,
            None => {
                self.arena.at_mut(id).head = younger;
                self.renew(id);
            }
        }
    }

    /// Computes when the oldest request of a node is due, and puts the node in its place.
    fn renew(&mut self, id: u32) {
        if self.arena.at(id).links.is_linked() {
            self.due.remove(&mut self.arena, id);
        }
        let node = self.arena.at_mut(id);
        if let Some(head) = some(node.head) {
            let [ops, bytes] = node.tags(&self.places[head as usize]);
            node.due = ops.min(bytes);
            self.due.insert(&mut self.arena, id);
        }
    }

    /// Makes room for all reservations on the way from the leaves below a node to the root.
    fn widen(&mut self, node: u32) {
        let is_reserved = |id: u32| !self.arena.at(id).promised.is_none();
        let nested = |leaf: u32| {
            let up = |&id: &u32| some(self.arena.at(id).parent);
            core::iter::successors(Some(leaf), up).filter(|&id| is_reserved(id)).count()
        };
        debug_assert!(is_reserved(node), "it has just got a reservation");
        let all = 0..index_of(self.arena.0.len());
        let needed = all.map(nested).max().unwrap_or(1);
        if needed <= self.per_tag {
            return;
        }
        let old_width = self.per_tag;
        let moved = |place: u32| match some(place) {
            Some(place) => {
                let (tag, level) = (place as usize / old_width, place as usize % old_width);
                index_of(tag * needed + level)
            }
            None => NIL,
        };
        let tags = self.places.len() / old_width;
        let mut places = Vec::from([]);
        places.resize(tags * needed, Place::NONE);
        for (index, place) in self.places.iter().enumerate() {
            let target = moved(index_of(index)) as usize;
            let (older, younger) = (moved(place.older), moved(place.younger));
            places[target] = Place { older, younger, ..*place };
        }
        for node in &mut self.arena.0 {
            (node.head, node.tail) = (moved(node.head), moved(node.tail));
        }
        (self.places, self.per_tag) = (places, needed);
    }
}

/// Returns an index as nodes and places are named.
fn index_of(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 requests and nodes fit in memory")
}
