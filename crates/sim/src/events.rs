//! What happens when.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_sched::Nanos;

/// How many delays are told apart.
const LANES: usize = 4;
/// Whatever is further away does not enter a lane: nothing else could before it is due.
const NEAR: Nanos = Nanos::from_millis(10);
/// The key of nothing.
const NEVER: u128 = u128::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    /// The instant, and below it a number that orders those of the same instant as they were added.
    key: u128,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
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
        other.key.cmp(&self.key)
    }
}

/// Events by their instant; those of one instant in the order in which they were added, so that
/// nothing depends on how they are kept.
///
/// Most events follow another one by a delay that is always the same, or nearly: they are due in
/// the order in which they are added, once they are sorted by delay as people are at the counters
/// of a post office. So a few lanes are kept, of which each is in order, and a heap for what fits
/// into none. Who is next is the first of some few.
#[derive(Debug)]
pub(crate) struct Events<E> {
    lanes: [VecDeque<Entry<E>>; LANES],
    /// The instant of the last event of each lane; zero if there is none.
    lasts: [Nanos; LANES],
    heap: BinaryHeap<Entry<E>>,
    /// The first key of each lane, and of the heap.
    firsts: [u128; LANES + 1],
    /// The least of those, and where it is.
    next: u128,
    place: usize,
    added: u64,
    now: Nanos,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self {
            lanes: std::array::from_fn(|_| VecDeque::new()),
            lasts: [Nanos::ZERO; LANES],
            heap: BinaryHeap::new(),
            firsts: [NEVER; LANES + 1],
            next: NEVER,
            place: LANES,
            added: 0,
            now: Nanos::ZERO,
        }
    }
}

impl<E> Events<E> {
    pub(crate) fn add(&mut self, at: Nanos, event: E) {
        let key = u128::from(at.0) << 64 | u128::from(self.added);
        self.added += 1;
        let place = self.place_of(at);
        if key < self.next {
            (self.next, self.place) = (key, place);
        }
        self.firsts[place] = self.firsts[place].min(key);
        let entry = Entry { key, event };
        if place == LANES {
            self.heap.push(entry);
        } else {
            self.lasts[place] = at;
            self.lanes[place].push_back(entry);
        }
    }

    /// Returns the lane whose last event comes closest before this instant, or where the heap is.
    fn place_of(&self, at: Nanos) -> usize {
        let (mut found, mut latest) = (LANES, Nanos::ZERO);
        if at < self.now + NEAR {
            for (place, &last) in self.lasts.iter().enumerate() {
                if last <= at && (found == LANES || last > latest) {
                    (found, latest) = (place, last);
                }
            }
        }
        found
    }

    pub(crate) fn next_at(&self) -> Option<Nanos> {
        (self.next != NEVER).then(|| instant(self.next))
    }

    /// Returns the next event if it is due.
    #[inline]
    pub(crate) fn due(&mut self, now: Nanos) -> Option<E> {
        if self.next == NEVER || instant(self.next) > now {
            return None;
        }
        self.now = now;
        self.take()
    }

    fn take(&mut self) -> Option<E> {
        let place = self.place;
        let (entry, first) = if place == LANES {
            (self.heap.pop(), self.heap.peek())
        } else {
            let lane = &mut self.lanes[place];
            (lane.pop_front(), lane.front())
        };
        self.firsts[place] = first.map_or(NEVER, |entry| entry.key);
        if first.is_none() && place < LANES {
            self.lasts[place] = Nanos::ZERO;
        }
        self.next = NEVER;
        for (place, &first) in self.firsts.iter().enumerate() {
            if first < self.next {
                (self.next, self.place) = (first, place);
            }
        }
        entry.map(|entry| entry.event)
    }
}

/// Returns the instant of a key.
const fn instant(key: u128) -> Nanos {
    Nanos((key >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Random;

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

    #[test]
    fn events_of_few_delays_and_of_many_come_as_though_they_were_sorted() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let delays = [1, 3, 20, 200, 20_000_000].map(|most| random.below(most));
            let (mut events, mut sorted) = (Events::default(), Vec::new());
            let mut now = Nanos::ORIGIN;
            for number in 0..2_000_u32 {
                let delay = match random.below(6) {
                    5 => random.below(30_000_000),
                    choice => delays[usize::try_from(choice).unwrap()],
                };
                let at = now + Nanos(delay);
                events.add(at, number);
                sorted.push((at, number));
                if random.below(3) == 0 {
                    now += Nanos(random.below(40));
                    sorted.sort_unstable();
                    assert_eq!(events.next_at(), Some(sorted[0].0), "seed {seed}");
                    while let Some(event) = events.due(now) {
                        assert_eq!(event, sorted.remove(0).1, "seed {seed}");
                    }
                    assert!(sorted.first().is_none_or(|(at, _)| *at > now), "seed {seed}");
                }
            }
        }
    }
}
