//! A partition that begins in the middle of a page.
//!
//! The guest writes blocks of 4 KiB; the host keeps the image in pages of 4 KiB. A block that covers
//! a page replaces it. One that lies across two pages changes a part of each, and a part cannot be
//! written before the rest has been read.

use std::collections::{BTreeMap, BTreeSet};

/// What the host did for the guest's writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Amplification {
    /// Blocks that the guest wrote.
    pub blocks: u64,
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
}

/// Pages of the image that fit into the host's memory.
const CACHED_PAGES: usize = 4_096;
/// Blocks that the guest writes.
const BLOCKS: u64 = 100_000;
/// Blocks of the partition: many more than there are pages in memory.
const AREA_BLOCKS: u64 = 1 << 22;
const PAGE_SECTORS: u64 = 8;

/// The host's page cache; everything in it is dirty, the least recently used page leaves first.
#[derive(Debug, Default)]
struct PageCache {
    used: BTreeMap<u64, u64>,
    order: BTreeSet<(u64, u64)>,
    clock: u64,
    done: Amplification,
}

impl PageCache {
    /// Changes a page, of which `whole` says whether nothing is left of what it was.
    fn change(&mut self, page: u64, whole: bool) {
        self.clock += 1;
        match self.used.insert(page, self.clock) {
            Some(before) => {
                self.order.remove(&(before, page));
            }
            None => self.done.reads += u64::from(!whole),
        }
        self.order.insert((self.clock, page));
        if self.order.len() > CACHED_PAGES {
            self.evict();
        }
    }

    fn evict(&mut self) {
        if let Some((_, page)) = self.order.pop_first() {
            self.used.remove(&page);
            self.done.writes += 1;
        }
    }
}

/// Writes blocks of 4 KiB to a partition that begins at sector `offset`, at random or one after
/// the other, until all is on the device.
pub(super) fn write(offset: u64, random: bool) -> Amplification {
    let mut cache = PageCache::default();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for number in 0..BLOCKS {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let block = if random { (state >> 20) % AREA_BLOCKS } else { number };
        let start = offset + block * PAGE_SECTORS;
        let (first, last) = (start / PAGE_SECTORS, start.div_ceil(PAGE_SECTORS));
        for page in first..=last {
            cache.change(page, first == last);
        }
    }
    while !cache.order.is_empty() {
        cache.evict();
    }
    Amplification { blocks: BLOCKS, ..cache.done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aligned_partition_costs_one_write_for_each() {
        for random in [false, true] {
            let done = write(64, random);
            assert_eq!(done.reads, 0);
            assert!(done.writes <= done.blocks, "twice the same block may be one write");
        }
    }

    #[test]
    fn a_block_across_two_pages_costs_four_operations_at_random_and_two_in_sequence() {
        let random = write(63, true);
        let operations = random.reads + random.writes;
        assert!(operations > 39 * BLOCKS / 10 && operations <= 4 * BLOCKS, "{random:?}");
        let sequence = write(63, false);
        // Each page is read once, for its first part, and written once.
        assert_eq!(
            sequence,
            Amplification { blocks: BLOCKS, reads: BLOCKS + 1, writes: BLOCKS + 1 }
        );
    }
}
