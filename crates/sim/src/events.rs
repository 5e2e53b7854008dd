//! What happens when.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use evenkeel_sched::Nanos;

/// Slots of the wheel.
const SLOTS: usize = 256;
const SLOT_MASK: u64 = SLOTS as u64 - 1;
const WORDS: usize = SLOTS / 64;
/// Names no node, no instant, no tick.
const NIL: u32 = u32::MAX;
const NEVER: u64 = u64::MAX;
/// The first width of a slot, as a power of two in nanoseconds, and the largest.
const FIRST_SHIFT: u32 = 10;
const MOST_SHIFT: u32 = 40;
/// After so many events the width of the slots is looked at.
const REVIEW: u64 = 1024;
/// Slots are too narrow if more than so many events of those did not fit, too wide if more than so
/// many others had to be passed on the way to their places.
const MOST_FAR: u32 = 1024 / 32;
const MOST_PASSED: u32 = 1024 * 4;

/// An event in the wheel.
#[derive(Clone, Copy, Debug)]
struct Node<E> {
    at: u64,
    /// Orders those of the same instant as they were added.
    number: u64,
    /// The next one of the same slot, or the next free node.
    next: u32,
    event: E,
}

/// An event that is too far away for the wheel.
#[derive(Clone, Copy, Debug)]
struct Far<E> {
    /// The instant, and below it the number.
    key: u128,
    event: E,
}

impl<E> PartialEq for Far<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Far<E> {}

impl<E> PartialOrd for Far<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Far<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key.cmp(&self.key)
    }
}

/// Events by their instant; those of one instant in the order in which they were added, so that
/// nothing depends on how they are kept.
///
/// Picture a desk calendar: a sheet for each of the next days, and a drawer for what is further
/// away. Here a day is as long as it must be so that most events find a sheet and few share one;
/// with that, adding one and taking the next is a matter of a few steps however many there are.
/// The drawer is a heap, and what is in it stays there until it is due.
///
/// Source: R. Brown, "Calendar Queues: A Fast O(1) Priority Queue Implementation for the Simulation
/// Event Set Problem", Communications of the ACM 31(10), 1988.
#[derive(Debug)]
pub(crate) struct Events<E> {
    nodes: Vec<Node<E>>,
    /// The first free node.
    free: u32,
    /// The first and the last event of each slot, in their order.
    slots: Box<[(u32, u32); SLOTS]>,
    /// For each slot with events a bit.
    used: [u64; WORDS],
    /// The width of a slot is two to this power; a tick is an instant divided by it.
    shift: u32,
    /// The tick at which the wheel begins: its slots are those of this tick and the following ones.
    base: u64,
    /// The tick of the first slot with events.
    first: u64,
    far: BinaryHeap<Far<E>>,
    /// The instants of the next event in the wheel, and of the next one that is too far away for it.
    near_at: u64,
    far_at: u64,
    added: u64,
    /// Since the width was looked at: events that did not fit, and those that were passed.
    missed: u32,
    passed: u32,
    scratch: Vec<u32>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            free: NIL,
            slots: Box::new([(NIL, NIL); SLOTS]),
            used: [0; WORDS],
            shift: FIRST_SHIFT,
            base: 0,
            first: NEVER,
            far: BinaryHeap::new(),
            near_at: NEVER,
            far_at: NEVER,
            added: 0,
            missed: 0,
            passed: 0,
            scratch: Vec::new(),
        }
    }
}

impl<E: Copy> Events<E> {
    pub(crate) fn add(&mut self, at: Nanos, event: E) {
        let (at, number) = (at.0, self.added);
        self.added += 1;
        if self.added.is_multiple_of(REVIEW) {
            self.review();
        }
        // What lies before the beginning of the wheel is first in its first slot.
        let ahead = (at >> self.shift).saturating_sub(self.base);
        if ahead > SLOT_MASK {
            self.missed += 1;
            return self.push_far(at, number, event);
        }
        self.near_at = self.near_at.min(at);
        let node = Node { at, number, next: NIL, event };
        let index = self.free;
        if index == NIL {
            self.grow(node);
        } else {
            let place = &mut self.nodes[index as usize];
            self.free = place.next;
            *place = node;
            self.link(self.base + ahead, at, index);
        }
    }

    /// Makes room for one more node.
    #[cold]
    fn grow(&mut self, node: Node<E>) {
        let index = u32::try_from(self.nodes.len()).expect("fewer than 2^32 events");
        self.nodes.push(node);
        let ahead = (node.at >> self.shift).saturating_sub(self.base);
        self.link(self.base + ahead, node.at, index);
    }

    #[cold]
    fn push_far(&mut self, at: u64, number: u64, event: E) {
        self.far_at = self.far_at.min(at);
        self.far.push(Far { key: u128::from(at) << 64 | u128::from(number), event });
    }

    /// Puts a node into the slot of a tick.
    #[inline]
    fn link(&mut self, tick: u64, at: u64, index: u32) {
        let slot = slot_of(tick);
        self.first = self.first.min(tick);
        let (head, tail) = &mut self.slots[slot];
        if *tail == NIL {
            (*head, *tail) = (index, index);
            self.used[slot / 64] |= 1 << (slot % 64);
        } else if self.nodes[*tail as usize].at <= at {
            self.nodes[*tail as usize].next = index;
            *tail = index;
        } else {
            let mut before = NIL;
            let mut behind = *head;
            while self.nodes[behind as usize].at <= at {
                before = behind;
                behind = self.nodes[behind as usize].next;
                self.passed += 1;
            }
            self.nodes[index as usize].next = behind;
            if before == NIL {
                *head = index;
            } else {
                self.nodes[before as usize].next = index;
            }
        }
    }

    #[inline]
    pub(crate) fn next_at(&self) -> Option<Nanos> {
        let next = self.next_or_never();
        (next.0 != NEVER).then_some(next)
    }

    /// Returns the instant of the next event, the last instant there is if there is none.
    #[inline]
    pub(crate) fn next_or_never(&self) -> Nanos {
        Nanos(self.near_at.min(self.far_at))
    }

    /// Returns the next event if it is due.
    #[inline]
    pub(crate) fn due(&mut self, now: Nanos) -> Option<E> {
        let next = self.next_or_never().0;
        if next > now.0 || next == NEVER {
            return None;
        }
        // Of one instant the one that was added first.
        if self.far_at <= self.near_at && self.is_far() {
            return self.take_far();
        }
        Some(self.take_near())
    }

    #[cold]
    fn take_far(&mut self) -> Option<E> {
        let Far { key, event } = self.far.pop()?;
        self.far_at = self.far.peek().map_or(NEVER, |far| instant(far.key));
        // Whatever is in the wheel comes later.
        self.base = self.base.max(instant(key) >> self.shift);
        Some(event)
    }

    /// Returns whether the first of the heap, if there is one, comes before the first of the wheel.
    #[cold]
    fn is_far(&self) -> bool {
        if self.first == NEVER {
            return true;
        }
        let node = &self.nodes[self.slots[slot_of(self.first)].0 as usize];
        let near = u128::from(node.at) << 64 | u128::from(node.number);
        self.far.peek().is_some_and(|far| far.key < near)
    }

    /// Takes the first event of the wheel.
    #[inline]
    fn take_near(&mut self) -> E {
        self.base = self.first;
        let slot = slot_of(self.first);
        let (head, tail) = &mut self.slots[slot];
        let index = *head;
        let Node { next, event, .. } = self.nodes[index as usize];
        self.nodes[index as usize].next = self.free;
        self.free = index;
        if next == NIL {
            (*head, *tail) = (NIL, NIL);
            self.used[slot / 64] &= !(1 << (slot % 64));
            self.first = self.first_used();
            self.near_at = self.first_at();
        } else {
            *head = next;
            self.near_at = self.nodes[next as usize].at;
        }
        event
    }

    /// Returns the tick of the first slot with events.
    #[inline]
    fn first_used(&self) -> u64 {
        let start = slot_of(self.base);
        let mut word = start / 64;
        let mut bits = self.used[word] & (u64::MAX << (start % 64));
        // The word in which the wheel begins is looked at twice: its first bits come last.
        for _ in 0..=WORDS {
            if bits != 0 {
                let slot = word as u64 * 64 + u64::from(bits.trailing_zeros());
                return self.base + (slot.wrapping_sub(self.base) & SLOT_MASK);
            }
            word = (word + 1) % WORDS;
            bits = self.used[word];
        }
        NEVER
    }

    /// Returns the instant of the first event of the wheel.
    #[inline]
    fn first_at(&self) -> u64 {
        if self.first == NEVER {
            return NEVER;
        }
        self.nodes[self.slots[slot_of(self.first)].0 as usize].at
    }

    /// Looks at whether the slots have the right width.
    #[cold]
    fn review(&mut self) {
        let shift = if self.missed > MOST_FAR {
            (self.shift + 1).min(MOST_SHIFT)
        } else if self.passed > MOST_PASSED {
            self.shift.saturating_sub(1)
        } else {
            self.shift
        };
        (self.missed, self.passed) = (0, 0);
        if shift != self.shift {
            self.widen(shift);
        }
    }

    /// Gives the slots another width.
    fn widen(&mut self, shift: u32) {
        let mut sorted = core::mem::take(&mut self.scratch);
        while self.first != NEVER {
            let slot = slot_of(self.first);
            let (mut at, _) = core::mem::replace(&mut self.slots[slot], (NIL, NIL));
            while at != NIL {
                sorted.push(at);
                at = self.nodes[at as usize].next;
            }
            self.used[slot / 64] &= !(1 << (slot % 64));
            self.first = self.first_used();
        }
        // Nothing is due before the slot in which the wheel begins.
        self.base = if shift > self.shift { self.base >> 1 } else { self.base << 1 };
        self.shift = shift;
        for index in sorted.drain(..) {
            let Node { at, number, event, .. } = self.nodes[index as usize];
            let ahead = (at >> shift).saturating_sub(self.base);
            if ahead > SLOT_MASK {
                self.push_far(at, number, event);
                self.nodes[index as usize].next = self.free;
                self.free = index;
            } else {
                self.nodes[index as usize].next = NIL;
                self.link(self.base + ahead, at, index);
            }
        }
        self.scratch = sorted;
        self.near_at = self.first_at();
    }
}

/// Returns the slot of a tick.
const fn slot_of(tick: u64) -> usize {
    (tick & SLOT_MASK) as usize
}

/// Returns the instant of a key.
const fn instant(key: u128) -> u64 {
    (key >> 64) as u64
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
