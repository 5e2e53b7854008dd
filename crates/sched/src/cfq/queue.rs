//! Queues, and the trees in which they wait for their turn.

use alloc::vec::Vec;

use super::group::Think;
use super::{ASYNC, SYNC, SYNC_NOIDLE};
use crate::table::SortList;
use crate::tree::{Links, Nodes, Tree};
use crate::{Nanos, Tag};

/// Farther than this is a seek, in sectors.
const SEEK: u64 = 800;
/// Smaller than this counts as one on a device that does not rotate, in sectors.
const SMALL: u32 = 64;
/// Of the last 32 requests more than these must be seeks.
const SEEKY: u32 = 4;

/// One queue.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) group: u32,
    pub(super) class: usize,
    pub(super) level: u8,
    pub(super) sync: bool,
    pub(super) is_gone: bool,
    pub(super) list: SortList,
    pub(super) next: Option<Tag>,
    pub(super) in_flight: u32,
    links: Links,
    /// Where it is served, in ns; the smallest first.
    pub(super) key: i64,
    /// In which tree it lies, class and kind; in none if it is not busy.
    pub(super) place: Option<(usize, usize)>,
    /// Slice left when it was pushed out; negative if it used more.
    pub(super) residue: i64,
    /// Worth waiting for: somebody waits for it, it thinks shortly, and near.
    pub(super) idle_window: bool,
    /// It has had many requests at a time.
    pub(super) is_deep: bool,
    pub(super) think: Think,
    /// Which of the last 32 requests were seeks.
    seeks: u32,
    last_pos: Option<u64>,
}

impl Queue {
    pub(super) fn new(group: u32, class: usize, level: u8, sync: bool) -> Self {
        Self {
            group,
            class,
            level,
            sync,
            is_gone: false,
            list: SortList::EMPTY,
            next: None,
            in_flight: 0,
            links: Links::DETACHED,
            key: 0,
            place: None,
            residue: 0,
            idle_window: sync && class != super::IDLE,
            is_deep: false,
            think: Think::default(),
            seeks: 0,
            last_pos: None,
        }
    }

    /// Returns what kind of work this is.
    pub(super) const fn kind(&self) -> usize {
        match (self.sync, self.idle_window) {
            (false, _) => ASYNC,
            (true, false) => SYNC_NOIDLE,
            (true, true) => SYNC,
        }
    }

    /// Returns which of the trees of its class it belongs into now.
    pub(super) const fn tree_kind(&self) -> usize {
        if self.class == super::IDLE { 0 } else { self.kind() }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn note_seek(&mut self, pos: u64, nr_sectors: u32, rotational: bool) {
        let is_far = self.last_pos.is_some_and(|last| last.abs_diff(pos) > SEEK);
        let is_seek = if rotational { is_far } else { nr_sectors < SMALL };
        self.seeks = (self.seeks << 1) | u32::from(is_seek);
        self.last_pos = Some(pos + u64::from(nr_sectors));
    }

    pub(super) const fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKY
    }

    /// Decides whether the queue is worth waiting for.
    pub(super) fn renew_idle_window(&mut self, slice_idle: Nanos) {
        if !self.sync || self.class == super::IDLE {
            return;
        }
        self.is_deep |= self.list.len() >= 4;
        if self.is_gone || slice_idle == Nanos::ZERO || (!self.is_deep && self.is_seeky()) {
            self.idle_window = false;
        } else if let Some(mean) = self.think.mean.settled() {
            self.idle_window = mean <= slice_idle.0;
        }
    }
}

/// The busy queues of one group, class and kind of work.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ServiceTree {
    pub(super) tree: Tree,
    pub(super) count: u32,
    pub(super) think: Think,
}

/// All queues, as nodes of service trees.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues(pub(super) Vec<Queue>);

impl Queues {
    #[inline]
    pub(super) fn get(&self, id: u32) -> &Queue {
        &self.0[id as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut Queue {
        &mut self.0[id as usize]
    }
}

impl Nodes for Queues {
    fn links(&self, index: u32) -> &Links {
        &self.get(index).links
    }

    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.get_mut(index).links
    }

    fn before(&self, a: u32, b: u32) -> bool {
        self.get(a).key < self.get(b).key
    }
}
