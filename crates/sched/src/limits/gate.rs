//! The gate in front of an elevator: requests over a limit wait here.
//!
//! A *lane* is one direction of a node; requests wait in the lanes of leaves, in the order of
//! their arrival. A lane with requests in it or below it is in one of two places: in the tree of
//! its parent, if its own buckets let a request pass, or among the blocked, by when they will. So
//! whoever can be reached from the root passes all limits of its way at once, no lane is looked at
//! in vain, and the first of the blocked is the next deadline.
//!
//! Which of several lanes that one limit holds up is next follows from weights, by start-time fair
//! queueing: lowest start first, and a request moves it by its cost divided by the weight. While
//! nobody waits, nothing of this happens.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::bucket::{Buckets, Limits};
use super::{Demand, NodeId};
use crate::tree::{Links, NIL, Nodes, Tree, some};
use crate::{Nanos, Tag, Weight};

/// Figures of one node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GateReport {
    /// Requests that wait in the gate now, here and below.
    pub waiting: u32,
    /// Requests that had to wait since the node exists.
    pub delayed: u64,
    /// How long at least one request waited, all together.
    pub throttled: Nanos,
}

/// Where a lane is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// Nothing waits in it.
    Away,
    /// In the tree of its parent; the root's lane in no tree.
    Active,
    /// Among the blocked.
    Blocked,
}

/// One direction of a node.
#[derive(Clone, Copy, Debug)]
struct Lane {
    links: Links,
    state: State,
    /// Its place among the blocked; never later than when it is ready.
    blocked_until: Nanos,
    /// Active lanes of its children, by start.
    children: Tree,
    /// Requests that wait, oldest first.
    head: u32,
    tail: u32,
}

impl Lane {
    const NEW: Self = Self {
        links: Links::DETACHED,
        state: State::Away,
        blocked_until: Nanos::ZERO,
        children: Tree::EMPTY,
        head: NIL,
        tail: NIL,
    };

    const fn has_work(&self) -> bool {
        self.head != NIL || !self.children.is_empty()
    }
}

#[derive(Debug)]
struct Node {
    parent: u32,
    is_used: bool,
    weight: u64,
    /// Start of its next request in the virtual time of its parent; compared with wrap-around.
    start: u64,
    /// Virtual time of its children: the start of the last one that was served.
    vtime: u64,
    /// From when on the buckets let a request of each direction pass.
    ready: [Nanos; 2],
    buckets: Option<Box<Buckets>>,
    lanes: [Lane; 2],
    figures: GateReport,
    /// Since when somebody waits.
    since: Nanos,
}

impl Node {
    fn new(parent: u32, weight: Weight) -> Self {
        Self {
            parent,
            is_used: true,
            weight: u64::from(weight.value()),
            start: 0,
            vtime: 0,
            ready: [Nanos::ZERO; 2],
            buckets: None,
            lanes: [Lane::NEW; 2],
            figures: GateReport::default(),
            since: Nanos::ZERO,
        }
    }
}

/// All nodes, as the records in which the nodes of all trees of lanes lie: two lanes each.
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

    #[inline]
    fn lane(&self, lane: u32) -> &Lane {
        &self.at(lane / 2).lanes[(lane % 2) as usize]
    }

    #[inline]
    fn lane_mut(&mut self, lane: u32) -> &mut Lane {
        &mut self.at_mut(lane / 2).lanes[(lane % 2) as usize]
    }
}

impl Nodes for Arena {
    #[inline]
    fn links(&self, index: u32) -> &Links {
        &self.lane(index).links
    }

    #[inline]
    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.lane_mut(index).links
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        if self.lane(a).state == State::Blocked {
            return self.lane(a).blocked_until < self.lane(b).blocked_until;
        }
        is_before(self.at(a / 2).start, self.at(b / 2).start)
    }
}

/// Returns whether one point of virtual time lies before another.
const fn is_before(one: u64, other: u64) -> bool {
    one.wrapping_sub(other).cast_signed() < 0
}

/// A request in the gate.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    demand: Demand,
    /// The next younger one of its lane.
    next: u32,
}

/// The tree of limits, and the requests that they hold up; see the module.
#[derive(Debug)]
pub struct Gate {
    arena: Arena,
    free: Vec<u32>,
    /// By tag.
    waiting: Vec<Option<Waiting>>,
    blocked: Tree,
    /// Nodes with limits.
    limited: u32,
    /// The direction that was served last, which decides between equals.
    last: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// Returns a gate with the root alone and without limits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            arena: Arena(Vec::from([Node::new(NIL, Weight::default())])),
            free: Vec::new(),
            waiting: Vec::new(),
            blocked: Tree::EMPTY,
            limited: 0,
            last: 1,
        }
    }

    /// Adds a node below `parent`; its weight counts while a limit above holds up several.
    pub fn add(&mut self, parent: NodeId, weight: Weight) -> NodeId {
        assert!(self.arena.at(parent.0).is_used, "the parent exists");
        let mut node = Node::new(parent.0, weight);
        node.start = self.arena.at(parent.0).vtime;
        if let Some(id) = self.free.pop() {
            *self.arena.at_mut(id) = node;
            return NodeId(id);
        }
        self.arena.0.push(node);
        NodeId(u32::try_from(self.arena.0.len() - 1).expect("fewer than 2^31 nodes"))
    }

    /// Removes a node without children in which nothing waits.
    ///
    /// # Panics
    ///
    /// Panics if something waits in it, and for the root.
    pub fn remove(&mut self, now: Nanos, node: NodeId) {
        assert!(node != NodeId::ROOT, "the root stays");
        let waiting = self.arena.at(node.0).figures.waiting;
        assert!(self.arena.at(node.0).is_used && waiting == 0, "a node goes once, and empty");
        self.set_limits(now, node, &Limits::default());
        self.arena.at_mut(node.0).is_used = false;
        self.free.push(node.0);
    }

    /// Changes a weight; takes effect with the next request.
    pub fn set_weight(&mut self, node: NodeId, weight: Weight) {
        self.arena.at_mut(node.0).weight = u64::from(weight.value());
    }

    /// Puts limits in force; what waits follows the new ones at once.
    pub fn set_limits(&mut self, now: Nanos, node: NodeId, limits: &Limits) {
        let record = self.arena.at_mut(node.0);
        let was_limited = record.buckets.is_some();
        match &mut record.buckets {
            _ if limits.is_none() => record.buckets = None,
            Some(buckets) => buckets.renew(now, limits),
            none => *none = Some(Box::new(Buckets::new(now, limits))),
        }
        let ready = record.buckets.as_ref().map_or([Nanos::ZERO; 2], |buckets| buckets.ready());
        record.ready = ready;
        self.limited = self.limited - u32::from(was_limited) + u32::from(!limits.is_none());
        for direction in 0..2 {
            self.settle_up(now, node.0 * 2 + direction);
        }
    }

    /// Returns whether everything passes: there are no limits, and nothing waits.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.limited == 0 && self.waiting() == 0
    }

    /// Returns the number of requests that wait in the gate.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.arena.0[0].figures.waiting
    }

    /// Returns the figures of a node.
    #[must_use]
    pub fn report(&self, now: Nanos, node: NodeId) -> GateReport {
        let Node { mut figures, since, .. } = *self.arena.at(node.0);
        if figures.waiting > 0 {
            figures.throttled += now.since(since);
        }
        figures
    }

    /// Takes note of a request that arrives at a leaf. Either it passes, and the answer is true;
    /// or it waits here, and comes out of [`release`](Self::release) in time.
    pub fn arrive(&mut self, now: Nanos, leaf: NodeId, demand: &Demand) -> bool {
        let way = demand.direction();
        let is_alone = self.arena.at(leaf.0).lanes[way].head == NIL;
        if is_alone && !self.is_due(now) && self.is_clear(now, leaf.0, way) {
            if self.limited > 0 {
                self.pass(now, leaf.0, way, demand.bytes());
            }
            return true;
        }
        self.park(now, leaf.0, way, demand);
        false
    }

    /// Returns the next request that may enter now; the caller asks until there is none.
    pub fn release(&mut self, now: Nanos) -> Option<Tag> {
        while let Some(lane) = self.first_due(now) {
            self.blocked.remove(&mut self.arena, lane);
            self.arena.lane_mut(lane).state = State::Away;
            self.settle_up(now, lane);
        }
        let lane = self.choose()?;
        self.last = (lane % 2) as usize;
        Some(self.serve(now, lane))
    }

    /// Returns the next request of a leaf, whatever its limits say; the caller asks until there is
    /// none. It counts as every other, so those that follow pay for it.
    pub fn expedite(&mut self, now: Nanos, leaf: NodeId) -> Option<Tag> {
        let lanes = [leaf.0 * 2, leaf.0 * 2 + 1];
        let lane = lanes.into_iter().find(|&lane| self.arena.lane(lane).head != NIL)?;
        Some(self.serve(now, lane))
    }

    /// Returns when [`release`](Self::release) must be asked again even if nothing arrives.
    #[must_use]
    pub fn next_release(&self) -> Option<Nanos> {
        let root = self.arena.at(0);
        if root.lanes.iter().any(|lane| lane.state == State::Active) {
            return Some(Nanos::ZERO);
        }
        let first = self.blocked.first(&self.arena)?;
        Some(self.arena.lane(first).blocked_until)
    }
}

/// The steps behind the calls above.
impl Gate {
    /// Returns whether something may come out now.
    #[inline]
    fn is_due(&self, now: Nanos) -> bool {
        self.waiting() > 0 && self.next_release().is_some_and(|then| then <= now)
    }

    fn first_due(&self, now: Nanos) -> Option<u32> {
        let first = self.blocked.first(&self.arena)?;
        (self.arena.lane(first).blocked_until <= now).then_some(first)
    }

    /// Returns whether all limits from a leaf upwards let a request pass.
    #[inline]
    fn is_clear(&self, now: Nanos, leaf: u32, way: usize) -> bool {
        let mut at = leaf;
        while let Some(node) = some(at) {
            let node = self.arena.at(node);
            if node.ready[way] > now {
                return false;
            }
            at = node.parent;
        }
        true
    }

    /// Counts a request that passes, at a leaf and above.
    fn pass(&mut self, now: Nanos, leaf: u32, way: usize, bytes: u64) {
        let mut at = leaf;
        while let Some(id) = some(at) {
            let node = self.arena.at_mut(id);
            at = node.parent;
            if let Some(buckets) = &mut node.buckets {
                buckets.pour(now, way, bytes);
                node.ready = buckets.ready();
            }
            self.settle(now, id * 2);
            self.settle(now, id * 2 + 1);
        }
    }

    /// Lets a request wait.
    fn park(&mut self, now: Nanos, leaf: u32, way: usize, demand: &Demand) {
        let index = demand.tag.0;
        if index as usize >= self.waiting.len() {
            self.waiting.resize(index as usize + 1, None);
        }
        let place = &mut self.waiting[index as usize];
        assert!(place.is_none(), "a tag names one request at a time");
        *place = Some(Waiting { demand: *demand, next: NIL });
        let lane = self.arena.lane_mut(lane_of(leaf, way));
        let tail = core::mem::replace(&mut lane.tail, index);
        if tail == NIL {
            lane.head = index;
        } else {
            self.waiting_mut(tail).next = index;
        }
        let mut at = leaf;
        while let Some(id) = some(at) {
            let node = self.arena.at_mut(id);
            at = node.parent;
            if node.figures.waiting == 0 {
                node.since = now;
            }
            node.figures.waiting += 1;
            node.figures.delayed += 1;
        }
        self.settle_up(now, lane_of(leaf, way));
    }

    /// Takes the first request out of the lane of a leaf, and counts it there and above.
    fn serve(&mut self, now: Nanos, lane: u32) -> Tag {
        let (leaf, way) = (lane / 2, (lane % 2) as usize);
        let head = self.arena.lane(lane).head;
        let taken = self.waiting[head as usize].take().expect("who stands in a lane waits");
        let record = self.arena.lane_mut(lane);
        record.head = taken.next;
        if taken.next == NIL {
            record.tail = NIL;
        }
        let mut at = leaf;
        while let Some(id) = some(at) {
            let node = self.arena.at_mut(id);
            at = node.parent;
            node.figures.waiting -= 1;
            if node.figures.waiting == 0 {
                node.figures.throttled += now.since(node.since);
            }
            if at != NIL {
                self.advance(id, taken.demand.nr_sectors);
            }
        }
        self.pass(now, leaf, way, taken.demand.bytes());
        taken.demand.tag
    }

    /// Moves the start of a node that is served.
    fn advance(&mut self, id: u32, nr_sectors: u32) {
        let node = self.arena.at(id);
        let (parent, start) = (node.parent, node.start);
        let cost = (REQUEST_SECTORS + u64::from(nr_sectors)) << SHARE_SHIFT;
        let active = [id * 2, id * 2 + 1].map(|lane| self.arena.lane(lane).state == State::Active);
        for (lane, _) in (id * 2..).zip(active).filter(|(_, is_active)| *is_active) {
            self.leave_parent(lane);
        }
        let above = self.arena.at_mut(parent);
        if is_before(above.vtime, start) {
            above.vtime = start;
        }
        let node = self.arena.at_mut(id);
        node.start = start.wrapping_add(cost / node.weight);
        for (lane, _) in (id * 2..).zip(active).filter(|(_, is_active)| *is_active) {
            self.join_parent(lane);
        }
    }

    /// Returns the lane of a leaf whose request is next: on every level the child that has received
    /// least, whatever its direction; between the directions of one child they take turns.
    fn choose(&self) -> Option<u32> {
        let active = |lane: u32| (self.arena.lane(lane).state == State::Active).then_some(lane);
        let first = |lane: Option<u32>| self.arena.lane(lane?).children.first(&self.arena);
        let start = |lane: u32| self.arena.at(lane / 2).start;
        let mut lanes = [active(0), active(1)];
        loop {
            let next = match lanes.map(first) {
                [None, None] => return lanes[1 - self.last].or(lanes[self.last]),
                [Some(read), Some(write)] if start(read) == start(write) => {
                    [read, write][1 - self.last]
                }
                [Some(read), Some(write)] if is_before(start(write), start(read)) => write,
                [Some(one), _] | [None, Some(one)] => one,
            };
            let way = (next % 2) as usize;
            let other = lanes[1 - way].and_then(|_| active(next ^ 1));
            lanes[way] = Some(next);
            lanes[1 - way] = other;
        }
    }

    /// Puts a lane where it belongs, then those above it as far as that changes anything.
    fn settle_up(&mut self, now: Nanos, lane: u32) {
        let mut at = lane;
        while self.settle(now, at) {
            let Some(parent) = some(self.arena.at(at / 2).parent) else { return };
            at = lane_of(parent, (at % 2) as usize);
        }
    }

    /// Puts a lane where it belongs; returns whether that may concern its parent.
    fn settle(&mut self, now: Nanos, lane: u32) -> bool {
        let node = self.arena.at(lane / 2);
        let way = (lane % 2) as usize;
        let (record, ready) = (&node.lanes[way], node.ready[way]);
        let wanted = match record.has_work() {
            false => State::Away,
            true if ready > now => State::Blocked,
            true => State::Active,
        };
        let is_right = match wanted {
            // One that stands too early is looked at once more when its time has come.
            State::Blocked => record.state == wanted && record.blocked_until <= ready,
            _ => record.state == wanted,
        };
        if is_right {
            return false;
        }
        match record.state {
            State::Active => self.leave_parent(lane),
            State::Blocked => self.blocked.remove(&mut self.arena, lane),
            State::Away => {}
        }
        self.arena.lane_mut(lane).state = wanted;
        match wanted {
            State::Active => self.enter_parent(lane),
            State::Blocked => {
                self.arena.lane_mut(lane).blocked_until = ready;
                self.blocked.insert(&mut self.arena, lane);
            }
            State::Away => {}
        }
        true
    }

    /// Puts a lane that was not active into the tree of its parent. It does not claim what others
    /// received meanwhile.
    fn enter_parent(&mut self, lane: u32) {
        let id = lane / 2;
        let is_new = self.arena.lane(lane ^ 1).state != State::Active;
        if let Some(parent) = some(self.arena.at(id).parent).filter(|_| is_new) {
            let vtime = self.arena.at(parent).vtime;
            let node = self.arena.at_mut(id);
            let lead = node.start.wrapping_sub(vtime);
            // A start so far ahead is one from before a wrap.
            if lead > LEAD_MAX {
                node.start = vtime;
            }
        }
        self.join_parent(lane);
    }

    fn join_parent(&mut self, lane: u32) {
        let Some(parent) = some(self.arena.at(lane / 2).parent) else { return };
        let above = lane_of(parent, (lane % 2) as usize);
        let mut children = self.arena.lane(above).children;
        children.insert(&mut self.arena, lane);
        self.arena.lane_mut(above).children = children;
    }

    fn leave_parent(&mut self, lane: u32) {
        let Some(parent) = some(self.arena.at(lane / 2).parent) else { return };
        let above = lane_of(parent, (lane % 2) as usize);
        let mut children = self.arena.lane(above).children;
        children.remove(&mut self.arena, lane);
        self.arena.lane_mut(above).children = children;
    }

    fn waiting_mut(&mut self, index: u32) -> &mut Waiting {
        self.waiting[index as usize].as_mut().expect("who stands in a lane waits")
    }

    /// Panics if the state contradicts itself. For tests and the simulator; O(everything).
    pub fn check_invariants(&self) {
        let mut blocked = 0;
        let mut waiting = 0;
        for (id, node) in (0..).zip(&self.arena.0).filter(|(_, node)| node.is_used) {
            let mut own = 0;
            for (lane, record) in (id * 2..).zip(&node.lanes) {
                own += self.check_fifo(record);
                let children = record.children.check(&self.arena);
                assert!(record.head == NIL || children == 0, "requests wait at leaves");
                assert_eq!(record.state == State::Away, !record.has_work());
                blocked += u32::from(record.state == State::Blocked);
                let is_in_tree = record.state == State::Blocked
                    || (record.state == State::Active && node.parent != NIL);
                assert_eq!(record.links.is_linked(), is_in_tree, "lane {lane} is in its tree");
            }
            let below = |other: &&Node| other.is_used && other.parent == id;
            let children = self.arena.0.iter().filter(below);
            let sum: u32 = children.map(|child| child.figures.waiting).sum();
            assert_eq!(node.figures.waiting, own + sum, "a node counts what is below");
            waiting += own;
        }
        assert_eq!(self.blocked.check(&self.arena), blocked);
        assert_eq!(self.waiting(), waiting);
        assert_eq!(self.waiting.iter().flatten().count(), waiting as usize);
    }

    /// Returns the number of requests of a lane.
    fn check_fifo(&self, lane: &Lane) -> u32 {
        let (mut count, mut at, mut last) = (0, lane.head, NIL);
        while at != NIL {
            let waiting = self.waiting[at as usize].as_ref().expect("who stands in a lane waits");
            assert_eq!(waiting.demand.tag, Tag(at));
            (last, at) = (at, waiting.next);
            count += 1;
        }
        assert_eq!(lane.tail, last, "a lane knows its youngest request");
        count
    }
}

/// Returns the index of a lane.
const fn lane_of(node: u32, way: usize) -> u32 {
    node * 2 + (way != 0) as u32
}

/// What a request costs besides its sectors when lanes share a limit: 16 KiB, about what a flash
/// device could have moved instead.
const REQUEST_SECTORS: u64 = 32;
/// Fractional bits of virtual time.
const SHARE_SHIFT: u32 = 12;
/// The most that a start lies ahead of virtual time: one request of 2^32 sectors at weight 1.
const LEAD_MAX: u64 = 1 << (33 + SHARE_SHIFT);
