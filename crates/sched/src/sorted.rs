//! Waiting requests by sector: a sorted row while they are few, a tree while they are many.
//!
//! Nearly every queue holds fewer requests than fit into some cache lines side by side. Among so
//! few, a row is searched, opened and closed in less time than a tree is balanced, and the records
//! of neighbours, which lie anywhere, are not touched. With more of them the row becomes a tree;
//! and a row again once most have left, so that none of the two happens often.
//!
//! Room for a row is made when the first request comes; nothing is allocated after that.

use alloc::vec::Vec;

use crate::table::Table;
use crate::tree::{self, Gap, Nodes as _, Tree};

/// Most requests in a row.
const ROW_MAX: usize = 64;
/// A tree of so many becomes a row.
const ROW_AGAIN: u32 = 16;

/// What is to be known of a request to find its place and to see whether another touches it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Entry {
    pos: u64,
    nr_sectors: u32,
    index: u32,
}

impl Entry {
    #[inline]
    fn of(table: &Table, index: u32) -> Self {
        let record = table.record(index);
        Self { pos: record.pos, nr_sectors: record.nr_sectors, index }
    }

    #[inline]
    const fn end(&self) -> u64 {
        self.pos + self.nr_sectors as u64
    }
}

/// A place between two neighbours, for a new request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    gap: Gap,
    /// The place in the row.
    at: usize,
    /// Whether the new request may begin where the lower neighbour ends, and end where the upper one
    /// begins; certain in a row only.
    meets_below: bool,
    meets_above: bool,
}

impl Spot {
    /// Returns the last request before the new one.
    #[inline]
    pub(crate) const fn below(&self) -> Option<u32> {
        self.gap.below()
    }

    /// Returns the first request behind the new one.
    #[inline]
    pub(crate) const fn above(&self) -> Option<u32> {
        self.gap.above()
    }

    /// Returns the lower neighbour unless it certainly ends elsewhere than the new request begins.
    #[inline]
    pub(crate) fn met_below(&self) -> Option<u32> {
        self.below().filter(|_| self.meets_below)
    }

    /// Returns the upper neighbour unless it certainly begins elsewhere than the new request ends.
    #[inline]
    pub(crate) fn met_above(&self) -> Option<u32> {
        self.above().filter(|_| self.meets_above)
    }
}

/// A sorted set of waiting requests; see the module. Equal ones lie in the order of insertion.
#[derive(Clone, Debug)]
pub(crate) struct Sorted {
    row: Vec<Entry>,
    /// Where in the row somebody was looked for last: most are looked at before they go.
    cursor: usize,
    /// Requests in the tree; while there are any, the row is empty.
    many: u32,
    tree: Tree,
}

impl Default for Sorted {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Sorted {
    /// The set without requests.
    pub(crate) const EMPTY: Self = Self { row: Vec::new(), cursor: 0, many: 0, tree: Tree::EMPTY };

    /// Returns where a request from `pos` to `end` belongs.
    #[inline]
    pub(crate) fn spot(&self, table: &Table, pos: u64, end: u64) -> Spot {
        if self.many > 0 {
            let gap = self.tree.gap(table, |index| table.record(index).pos <= pos);
            return Spot { gap, at: 0, meets_below: true, meets_above: true };
        }
        let at = self.row.partition_point(|entry| entry.pos <= pos);
        let below = at.checked_sub(1).map(|before| &self.row[before]);
        let above = self.row.get(at);
        Spot {
            gap: Gap::between(below.map(|entry| entry.index), above.map(|entry| entry.index)),
            at,
            meets_below: below.is_some_and(|entry| entry.end() == pos),
            meets_above: above.is_some_and(|entry| entry.pos == end),
        }
    }

    /// Adds a request where [`spot`](Self::spot) found that it belongs; nothing changed since.
    #[inline]
    pub(crate) fn insert_at(&mut self, table: &mut Table, spot: &Spot, index: u32) {
        if self.many > 0 {
            self.many += 1;
            return self.tree.insert_at(table, spot.gap, index);
        }
        if self.row.len() == self.row.capacity() || self.row.len() == ROW_MAX {
            if self.row.len() >= ROW_MAX {
                return self.plant(table, index);
            }
            self.row.reserve_exact(ROW_MAX);
        }
        self.row.insert(spot.at, Entry::of(table, index));
        self.cursor += usize::from(spot.at <= self.cursor);
    }

    /// Makes the row a tree, with a new request.
    #[cold]
    fn plant(&mut self, table: &mut Table, index: u32) {
        for entry in self.row.drain(..) {
            self.tree.insert(table, entry.index);
            self.many += 1;
        }
        self.tree.insert(table, index);
        self.many += 1;
    }

    /// Takes out a request, which must be here.
    #[inline]
    pub(crate) fn remove(&mut self, table: &mut Table, index: u32) {
        if self.many > 0 {
            self.many -= 1;
            self.tree.remove(table, index);
            if self.many <= ROW_AGAIN {
                self.line_up(table);
            }
            return;
        }
        self.cursor = self.find(table, index);
        self.row.remove(self.cursor);
    }

    /// Makes the tree a row.
    #[cold]
    fn line_up(&mut self, table: &mut Table) {
        self.many = 0;
        self.cursor = 0;
        while let Some(first) = self.tree.first(table) {
            self.tree.remove(table, first);
            self.row.push(Entry::of(table, first));
        }
    }

    /// Takes note that a request that is here, and was at `before`, has grown. It stays where it is
    /// among the others.
    pub(crate) fn grown(&mut self, table: &Table, index: u32, before: u64) {
        if self.many == 0 {
            let at = self.find_at(index, before);
            self.row[at] = Entry::of(table, index);
        }
    }

    /// Returns the request with the lowest position.
    #[inline]
    pub(crate) fn first(&self, table: &Table) -> Option<u32> {
        if self.many > 0 {
            return self.tree.first(table);
        }
        self.row.first().map(|entry| entry.index)
    }

    /// Returns the first request at or behind sector `pos`.
    pub(crate) fn at_or_after(&self, table: &Table, pos: u64) -> Option<u32> {
        if self.many > 0 {
            return self.tree.lower_bound(table, |index| table.record(index).pos < pos);
        }
        let at = self.row.partition_point(|entry| entry.pos < pos);
        self.row.get(at).map(|entry| entry.index)
    }

    /// Returns the request above another one that is here.
    pub(crate) fn above(&self, table: &Table, index: u32) -> Option<u32> {
        if self.many > 0 {
            return tree::successor(table, index);
        }
        self.row.get(self.find(table, index) + 1).map(|entry| entry.index)
    }

    /// Returns the requests below and above another one that is here and about to go.
    #[inline]
    pub(crate) fn around(&mut self, table: &Table, index: u32) -> (Option<u32>, Option<u32>) {
        if self.many > 0 {
            return (tree::predecessor(table, index), tree::successor(table, index));
        }
        let at = self.find(table, index);
        self.cursor = at;
        let below = at.checked_sub(1).map(|before| self.row[before].index);
        (below, self.row.get(at + 1).map(|entry| entry.index))
    }

    /// Returns the place of a request in the row.
    #[inline]
    fn find(&self, table: &Table, index: u32) -> usize {
        if self.row.get(self.cursor).is_some_and(|entry| entry.index == index) {
            return self.cursor;
        }
        self.find_at(index, table.record(index).pos)
    }

    fn find_at(&self, index: u32, pos: u64) -> usize {
        let mut at = self.row.partition_point(|entry| entry.pos < pos);
        while self.row[at].index != index {
            at += 1;
        }
        at
    }

    /// Returns the number of requests.
    ///
    /// # Panics
    ///
    /// Panics if something is not as it should be.
    pub(crate) fn check(&self, table: &Table) -> u32 {
        assert!(self.row.is_empty() || self.many == 0, "a row or a tree");
        assert!(self.row.len() <= ROW_MAX && (self.many == 0 || self.many > ROW_AGAIN));
        assert_eq!(self.tree.check(table), self.many, "the tree is counted");
        for entry in &self.row {
            assert_eq!(*entry, Entry::of(table, entry.index), "the row knows its requests");
            assert!(!table.links(entry.index).is_linked(), "they are in no tree");
        }
        assert!(self.row.is_sorted_by_key(|entry| entry.pos), "the row is sorted");
        self.many + u32::try_from(self.row.len()).expect("a short row")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, for_many_seeds};
    use crate::{Nanos, Op, QueueId, Request, Tag};
    use std::vec::Vec;

    #[test]
    fn a_row_that_becomes_a_tree_and_a_row_again_is_always_in_order() {
        for_many_seeds(300, |seed| {
            let mut random = Random::new(seed);
            let (mut table, mut sorted) = (Table::default(), Sorted::default());
            // Position, age, name: as they must come.
            let mut model: Vec<(u64, u32, u32)> = Vec::new();
            let mut free: Vec<u32> = (0..200).collect();
            let most = 20 + usize::try_from(random.below(150)).unwrap();
            for age in 0..1500 {
                let wants = if age / 300 % 2 == 0 { 3 } else { 1 };
                if model.len() < most && random.below(4) < wants {
                    let index = free.swap_remove(0);
                    let pos = random.below(300) * 8;
                    let request = Request {
                        tag: Tag(index),
                        queue: QueueId(0),
                        op: Op::Read,
                        pos,
                        nr_sectors: 8,
                        segments: 1,
                        sync: true,
                    };
                    table.admit(&request, Nanos::ZERO);
                    let spot = sorted.spot(&table, pos, request.end());
                    sorted.insert_at(&mut table, &spot, index);
                    model.push((pos, age, index));
                    model.sort_unstable();
                } else if !model.is_empty() {
                    let place = usize::try_from(random.below(model.len() as u64)).unwrap();
                    let (pos, _, index) = model[place];
                    let name = |place: usize| model.get(place).map(|request| request.2);
                    let around = (place.checked_sub(1).and_then(name), name(place + 1));
                    assert_eq!(sorted.above(&table, index), around.1, "seed {seed}");
                    if random.below(2) == 0 {
                        assert_eq!(sorted.around(&table, index), around, "seed {seed}");
                    }
                    let behind = model.partition_point(|request| request.0 < pos);
                    assert_eq!(sorted.at_or_after(&table, pos), name(behind), "seed {seed}");
                    assert_eq!(sorted.first(&table), name(0), "seed {seed}");
                    sorted.remove(&mut table, index);
                    table.start(index);
                    table.complete(Tag(index));
                    model.remove(place);
                    free.push(index);
                }
                assert_eq!(sorted.check(&table) as usize, model.len(), "seed {seed}");
            }
        });
    }
}
