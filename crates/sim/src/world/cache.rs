//! A page cache: which sectors of a disk are in memory.
//!
//! Deliberately absent: use counts. What came first goes first when memory is short, which is
//! right for the streams and starts of the experiments: they read everything once.

use std::collections::{BTreeMap, VecDeque};

/// A run of sectors, `start..end`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Span {
    pub(crate) const fn new(start: u64, nr_sectors: u64) -> Self {
        Self { start, end: start + nr_sectors }
    }

    pub(crate) const fn len(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.start >= self.end
    }
}

/// The cache.
#[derive(Debug)]
pub(crate) struct PageCache {
    /// From the start to the end of what is held; never adjacent, never overlapping.
    held: BTreeMap<u64, u64>,
    arrivals: VecDeque<Span>,
    sectors: u64,
    most_sectors: u64,
}

impl PageCache {
    pub(crate) fn new(most_sectors: u64) -> Self {
        Self { held: BTreeMap::new(), arrivals: VecDeque::new(), sectors: 0, most_sectors }
    }

    /// Forgets everything (`drop_caches`).
    pub(crate) fn clear(&mut self) {
        self.held.clear();
        self.arrivals.clear();
        self.sectors = 0;
    }

    pub(crate) fn holds(&self, span: Span) -> bool {
        span.is_empty()
            || self.held.range(..=span.start).next_back().is_some_and(|(_, &end)| end >= span.end)
    }

    /// Returns the first part of `span` that is not held; `None` if all of it is.
    pub(crate) fn first_gap(&self, span: Span) -> Option<Span> {
        let mut start = span.start;
        if let Some((_, &end)) = self.held.range(..=start).next_back() {
            start = start.max(end);
        }
        if start >= span.end {
            return None;
        }
        let next = self.held.range(start..span.end).next().map_or(span.end, |(&next, _)| next);
        Some(Span { start, end: next })
    }

    pub(crate) fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let Span { mut start, mut end } = span;
        // Whatever touches it becomes one with it.
        if let Some((&before, &its_end)) = self.held.range(..=start).next_back()
            && its_end >= start
        {
            start = before;
            end = end.max(its_end);
            self.sectors -= its_end - before;
            self.held.remove(&before);
        }
        while let Some((&next, &its_end)) = self.held.range(start..=end).next() {
            end = end.max(its_end);
            self.sectors -= its_end - next;
            self.held.remove(&next);
        }
        self.held.insert(start, end);
        self.sectors += end - start;
        self.arrivals.push_back(span);
        while self.sectors > self.most_sectors
            && let Some(oldest) = self.arrivals.pop_front()
        {
            self.remove(oldest);
        }
    }

    fn remove(&mut self, span: Span) {
        while let Some((&start, &end)) = self.held.range(..span.end).next_back()
            && end > span.start
        {
            self.held.remove(&start);
            self.sectors -= end - start;
            for left in [Span { start, end: span.start }, Span { start: span.end, end }] {
                if !left.is_empty() {
                    self.held.insert(left.start, left.end);
                    self.sectors += left.len();
                }
            }
            if start <= span.start {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;

    #[test]
    fn what_was_read_is_held_until_memory_is_short_and_the_oldest_goes_first() {
        let mut cache = PageCache::new(100);
        cache.insert(Span::new(0, 60));
        cache.insert(Span::new(60, 40));
        assert!(cache.holds(Span::new(0, 100)), "neighbours become one");
        cache.insert(Span::new(500, 30));
        assert!(!cache.holds(Span::new(0, 1)));
        assert!(cache.holds(Span::new(60, 40)) && cache.holds(Span::new(500, 30)));
        cache.clear();
        assert_eq!(cache.first_gap(Span::new(500, 30)), Some(Span::new(500, 30)));
    }

    #[test]
    fn the_cache_agrees_with_a_list_of_sectors() {
        let mut random = Random::new(0xcac4e);
        for _ in 0..200 {
            let mut cache = PageCache::new(u64::MAX);
            let mut sectors = [false; 64];
            for _ in 0..40 {
                let start = random.below(60);
                let span = Span::new(start, 1 + random.below(64 - start));
                let range =
                    usize::try_from(span.start).unwrap()..usize::try_from(span.end).unwrap();
                if random.per_mille(600) {
                    cache.insert(span);
                    sectors[range.clone()].fill(true);
                } else {
                    cache.remove(span);
                    sectors[range.clone()].fill(false);
                }
                let held = sectors.iter().filter(|held| **held).count();
                assert_eq!(cache.sectors, u64::try_from(held).unwrap());
                let probe = Span::new(0, 64);
                let gap = sectors.iter().position(|held| !held);
                assert_eq!(
                    cache.first_gap(probe).map(|gap| gap.start),
                    gap.map(|gap| u64::try_from(gap).unwrap())
                );
                let start = usize::try_from(random.below(64)).unwrap();
                let one = Span::new(u64::try_from(start).unwrap(), 1);
                assert_eq!(cache.holds(one), sectors[start]);
            }
        }
    }
}
