//! Groups: who of them is next, and what a slice costs.
//!
//! Each group with busy queues is served in the order of its *vdisktime*: the time that it used,
//! divided by the fraction of the device that its weight and those above it entitle it to.

use alloc::vec::Vec;

use super::queue::ServiceTree;
use super::tunables::fraction;
use super::{BEST_EFFORT, IDLE, REAL_TIME};
use crate::average::Average;
use crate::tree::{Links, Nodes, Tree};
use crate::{Nanos, Weight};

/// The whole device, as a fraction: 32 bits, so that deep trees keep their ratios.
const WHOLE: u64 = 1 << 32;
/// The least fraction, which bounds how fast the vdisktime of a group grows.
const LEAST: u64 = 1 << 12;
/// A group that comes back is served after all others, plus this.
const JOIN_DELAY: Nanos = Nanos::from_millis(200);
/// A queue of the group itself against its child groups.
const LEAF_WEIGHT: u64 = 100;

/// Think time of a queue, of a service tree or of a group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Think {
    pub(super) mean: Average,
    pub(super) last_end: Option<Nanos>,
}

impl Think {
    /// Takes note of an arrival; `idle` is how long the device may be kept.
    pub(super) fn arrived(&mut self, now: Nanos, idle: Nanos) {
        if let Some(last_end) = self.last_end {
            self.mean.add(now.since(last_end).0.min(2 * idle.0));
        }
    }

    /// Returns whether the next request usually takes longer than `span` to come.
    pub(super) fn is_longer_than(&self, span: Nanos) -> bool {
        self.mean.settled().is_some_and(|mean| mean > span.0)
    }
}

/// What a group was doing when its slot ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Saved {
    pub(super) left: Nanos,
    pub(super) class: usize,
    pub(super) kind: usize,
}

/// One group.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) parent: u32,
    weight: u64,
    links: Links,
    vdisktime: u64,
    /// Weights of active children and, if queues of its own are busy, [`LEAF_WEIGHT`].
    active_weight: u64,
    /// Active children, and one if queues of its own are busy.
    active: u32,
    /// Busy queues.
    pub(super) busy: u32,
    /// Moving average of the busy queues of each class but idle.
    averages: [u32; 2],
    /// Per class and kind of work; of the idle class only the first one is used.
    pub(super) trees: [[ServiceTree; 3]; 3],
    pub(super) in_flight: u32,
    pub(super) think: Think,
    pub(super) saved: Option<Saved>,
}

impl Group {
    fn new(parent: u32, weight: Weight) -> Self {
        Self {
            parent,
            weight: u64::from(weight.value()),
            links: Links::DETACHED,
            vdisktime: 0,
            active_weight: 0,
            active: 0,
            busy: 0,
            averages: [0; 2],
            trees: Default::default(),
            in_flight: 0,
            think: Think::default(),
            saved: None,
        }
    }

    /// Returns how many queues of a class are busy.
    pub(super) fn busy_of(&self, class: usize) -> u32 {
        self.trees[class].iter().map(|tree| tree.count).sum()
    }

    /// Returns how many queues of write-back are busy.
    pub(super) fn busy_async(&self) -> u32 {
        [REAL_TIME, BEST_EFFORT].map(|class| self.trees[class][super::ASYNC].count).iter().sum()
    }

    /// Returns the average number of busy queues of a class when it was counted last.
    pub(super) fn latest_average(&self, class: usize) -> u32 {
        self.averages.get(class).copied().unwrap_or_default()
    }

    /// Returns the average number of busy queues of a class, after counting once more.
    pub(super) fn average_busy(&mut self, class: usize) -> u32 {
        let busy = self.busy_of(class);
        if class == IDLE {
            return busy;
        }
        let average = &mut self.averages[class];
        *average = (3 * busy.max(*average) + busy.min(*average) + 2) / 4;
        *average
    }
}

/// All groups; the first one is the root.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// Those with busy queues, by vdisktime.
    tree: Tree,
    least_vdisktime: u64,
}

impl Nodes for Groups {
    fn links(&self, index: u32) -> &Links {
        &self.get(index).links
    }

    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.get_mut(index).links
    }

    fn before(&self, a: u32, b: u32) -> bool {
        let (a, b) = (self.get(a).vdisktime, self.get(b).vdisktime);
        a.wrapping_sub(b).cast_signed() < 0
    }
}

impl Groups {
    pub(super) fn new() -> Self {
        let root = Group::new(0, Weight::default());
        Self { all: Vec::from([root]), tree: Tree::EMPTY, least_vdisktime: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.all.len()).expect("fewer than 2^32 groups fit in memory")
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &Group {
        &self.all[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Group {
        &mut self.all[id as usize]
    }

    /// Takes the group `id`, new or not used any more.
    pub(super) fn add(&mut self, id: u32, parent: u32, weight: Weight) {
        let group = Group::new(parent, weight);
        if id as usize == self.all.len() {
            self.all.push(group);
        } else {
            *self.get_mut(id) = group;
        }
    }

    /// Changes a weight, at once.
    pub(super) fn set_weight(&mut self, id: u32, weight: Weight) {
        let group = self.get_mut(id);
        let old = core::mem::replace(&mut group.weight, u64::from(weight.value()));
        let (new, parent, is_active) = (group.weight, group.parent, group.active > 0);
        if is_active && id != 0 {
            let sum = &mut self.get_mut(parent).active_weight;
            *sum = *sum - old + new;
        }
    }

    /// Counts a queue that has requests now; the first one brings its group into competition.
    pub(super) fn queue_came(&mut self, id: u32) {
        self.get_mut(id).busy += 1;
        if self.get(id).busy > 1 {
            return;
        }
        let last = self.tree.gap(self, |_| true).below();
        self.get_mut(id).vdisktime = last.map_or(self.least_vdisktime, |last| {
            self.get(last).vdisktime.wrapping_add(JOIN_DELAY.0)
        });
        self.tree_insert(id);
        self.activate(id, LEAF_WEIGHT);
    }

    /// Counts a queue that has no more requests and lost the device.
    pub(super) fn queue_went(&mut self, id: u32) {
        self.get_mut(id).busy -= 1;
        if self.get(id).busy == 0 {
            self.tree_remove(id);
            self.get_mut(id).saved = None;
            self.deactivate(id, LEAF_WEIGHT);
        }
    }

    /// Returns the group that is next.
    pub(super) fn first(&mut self) -> Option<u32> {
        let first = self.tree.first(self)?;
        let vdisktime = self.get(first).vdisktime;
        if vdisktime.wrapping_sub(self.least_vdisktime).cast_signed() > 0 {
            self.least_vdisktime = vdisktime;
        }
        Some(first)
    }

    /// Charges a competing group for `used` of the device.
    pub(super) fn charge(&mut self, id: u32, used: Nanos) {
        let cost = fraction(used.0, WHOLE, self.share(id));
        self.tree_remove(id);
        let group = self.get_mut(id);
        group.vdisktime = group.vdisktime.wrapping_add(cost);
        self.tree_insert(id);
    }

    /// Returns a span of the device's time multiplied by the fraction of a competing group.
    pub(super) fn part_of(&self, id: u32, span: Nanos) -> Nanos {
        Nanos(fraction(span.0, self.share(id), WHOLE))
    }

    /// Returns the fraction of the device that a competing group is entitled to.
    fn share(&self, id: u32) -> u64 {
        let mut share = WHOLE * LEAF_WEIGHT / self.get(id).active_weight.max(LEAF_WEIGHT);
        let mut at = id;
        while at != 0 {
            let group = self.get(at);
            let sum = self.get(group.parent).active_weight.max(group.weight);
            share = fraction(share, group.weight, sum);
            at = group.parent;
        }
        share.max(LEAST)
    }

    fn activate(&mut self, id: u32, weight: u64) {
        let (mut at, mut weight) = (id, weight);
        loop {
            let group = self.get_mut(at);
            group.active += 1;
            group.active_weight += weight;
            if group.active > 1 || at == 0 {
                return;
            }
            (at, weight) = (group.parent, group.weight);
        }
    }

    fn deactivate(&mut self, id: u32, weight: u64) {
        let (mut at, mut weight) = (id, weight);
        loop {
            let group = self.get_mut(at);
            group.active -= 1;
            group.active_weight -= weight;
            if group.active > 0 || at == 0 {
                return;
            }
            (at, weight) = (group.parent, group.weight);
        }
    }

    fn tree_insert(&mut self, id: u32) {
        let mut tree = self.tree;
        tree.insert(self, id);
        self.tree = tree;
    }

    fn tree_remove(&mut self, id: u32) {
        let mut tree = self.tree;
        tree.remove(self, id);
        self.tree = tree;
    }

    /// Panics if competition and counts contradict each other; returns the busy queues.
    pub(super) fn check(&self) -> u32 {
        let competing = self.all.iter().filter(|group| group.busy > 0).count();
        assert_eq!(self.tree.check(self) as usize, competing, "who has busy queues competes");
        for (id, group) in (0..).zip(&self.all) {
            assert_eq!(group.links.is_linked(), group.busy > 0);
            let of_classes: u32 = (0..3).map(|class| group.busy_of(class)).sum();
            assert_eq!(of_classes, group.busy, "every busy queue is in one tree");
            let is_child = |other: &&Group| other.parent == id && other.active > 0;
            let children = || self.all.iter().skip(1).filter(is_child);
            let own = if group.busy > 0 { LEAF_WEIGHT } else { 0 };
            let weights: u64 = children().map(|child| child.weight).sum();
            assert_eq!(group.active_weight, own + weights, "weights add up");
        }
        self.all.iter().map(|group| group.busy).sum()
    }
}
