//! What happens when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use evenkeel_sched::Nanos;

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: Nanos,
    /// Orders those of the same instant as they were added.
    number: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// Events by their instant; those of one instant in the order in which they were added, so that
/// nothing depends on how a heap is built.
#[derive(Debug)]
pub(crate) struct Events<E> {
    heap: BinaryHeap<Entry<E>>,
    added: u64,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E> Events<E> {
    pub(crate) fn add(&mut self, at: Nanos, event: E) {
        self.heap.push(Entry { at, number: self.added, event });
        self.added += 1;
    }

    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.at)
    }

    /// Returns the next event if it is due.
    pub(crate) fn due(&mut self, now: Nanos) -> Option<E> {
        if self.heap.peek()?.at > now {
            return None;
        }
        self.heap.pop().map(|entry| entry.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_instant_in_their_order() {
        let mut events = Events::default();
        for (at, name) in [(5, 'd'), (1, 'a'), (3, 'b'), (3, 'c'), (9, 'e')] {
            events.add(Nanos(at), name);
        }
        assert_eq!(events.next_at(), Some(Nanos(1)));
        let all: String = std::iter::from_fn(|| events.due(Nanos(5))).collect();
        assert_eq!(all, "abcd");
        assert_eq!(events.next_at(), Some(Nanos(9)));
    }
}
