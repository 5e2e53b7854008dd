//! Where a VM has been reading for long, outside of streams.
//!
//! Programs that read here and there for minutes, as databases do, come back to the same stretches
//! of the disk again and again. What a program reads that starts lies elsewhere: what was read of
//! late is in the guest's memory. So a read where nobody has been reading all the time is somebody
//! new's, whoever else reads meanwhile, and however many they are.
//!
//! A *place* is a stretch of the disk, with the seconds in which somebody read there, or waited.
//! It grows by reads that are near it, where near is what its own reads are from one another; two
//! that meet become one. There are few, so whoever reads all over a large disk soon has one place
//! that is all of it, and then nobody is new.

use evenkeel_sched::Nanos;

/// Places of one VM at a time.
const PLACES: usize = 16;
/// Reads nearer than this to a place belong to it, in MiB: an eighth of a block group, in which ext4
/// keeps what was written together.
const NEAR_MIB: u32 = 16;
/// A read may be further away than the reads of the place are from one another on average, by so
/// much; but never by more than a quarter of the place.
const LOOSENESS: u32 = 8;
/// Seconds that are remembered: longer than most programs take to start.
const SECONDS: u32 = 12;
/// Who read, or waited, in so many of them has been there for long; and is still known as long as it
/// is so many.
const FAMILIAR: u32 = 11;
const STILL_FAMILIAR: u32 = 8;
/// Seconds after which a queue that nobody has read in looks like that of a program that starts: the
/// second one is not over then.
const LATELY: u64 = 2;

/// A position, in MiB: exact enough for places, and small.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Mib(u32);

impl Mib {
    /// Returns the position of a sector.
    pub(super) fn of(sector: u64) -> Self {
        Self(u32::try_from(sector >> 11).unwrap_or(u32::MAX))
    }
}

/// Who reads at a place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reader {
    /// Nobody knows: it is there for the first time, or has not been for long.
    Unknown,
    /// Somebody of the crowd, who has been there for long.
    Crowd {
        /// Nobody has read in its queue lately: who was there meanwhile was apart.
        returns: bool,
        /// There was no crowd until now.
        settles: bool,
    },
}

/// The places of one VM.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    places: [Place; PLACES],
}

impl Default for Places {
    fn default() -> Self {
        Self { places: [Place::FREE; PLACES] }
    }
}

#[derive(Clone, Copy, Debug)]
struct Place {
    first: u32,
    last: u32,
    reads: u32,
    /// Reads under way.
    waiting: u32,
    /// In which of the last seconds somebody read or waited there: bit 0 is the second `at`.
    seconds: u32,
    at: u64,
    /// The second of the last read that was of the crowd.
    crowd_at: u64,
    /// Whether it was familiar at its last read.
    was_familiar: bool,
    /// Priority of the reads, as a number; of nobody's if the place is free.
    priority: u8,
}

impl Place {
    const FREE: Self = Self {
        first: 0,
        last: 0,
        reads: 0,
        waiting: 0,
        seconds: 0,
        at: 0,
        crowd_at: 0,
        was_familiar: false,
        priority: u8::MAX,
    };

    fn gap(&self, first: u32, last: u32) -> u32 {
        first.saturating_sub(self.last).max(self.first.saturating_sub(last))
    }

    /// Returns how far from it a read may be that belongs to it.
    fn reach(&self) -> u32 {
        let length = self.last - self.first;
        let apart = length / self.reads.max(1);
        NEAR_MIB.max(apart.saturating_mul(LOOSENESS).min(length / 4))
    }

    /// Lets time pass, in which those who wait are there.
    fn age(&mut self, second: u64) {
        let passed = second.saturating_sub(self.at).min(u64::from(SECONDS));
        let present = if self.waiting > 0 { (1 << passed) - 1 } else { 0 };
        self.seconds = (self.seconds << passed | present) & ((1 << SECONDS) - 1);
        self.at = second;
    }

    const fn is_familiar(&self) -> bool {
        self.seconds.count_ones() >= if self.was_familiar { STILL_FAMILIAR } else { FAMILIAR }
    }

    const fn is_forgotten(&self) -> bool {
        self.seconds == 0 && self.waiting == 0
    }

    fn merge(&mut self, other: &Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.reads = self.reads.saturating_add(other.reads);
        self.waiting += other.waiting;
        self.seconds |= other.seconds;
        self.crowd_at = self.crowd_at.max(other.crowd_at);
        self.was_familiar |= other.was_familiar;
    }
}

impl Places {
    /// Notes a read; returns whose it is.
    pub(super) fn begin(&mut self, now: Nanos, priority: u8, at: Mib) -> Reader {
        let is_crowds = |place: &&Place| place.priority == priority && place.was_familiar;
        let second = self.age(now);
        let mut crowd = self.places.iter().filter(is_crowds).filter(|place| place.is_familiar());
        let settles = crowd.clone().next().is_none();
        let returns = !crowd.any(|place| second.saturating_sub(place.crowd_at) < LATELY);
        let place = self.visit(second, priority, at);
        place.was_familiar = place.is_familiar();
        if !place.was_familiar {
            return Reader::Unknown;
        }
        place.crowd_at = second;
        Reader::Crowd { returns, settles }
    }

    /// Notes a read of somebody who has a queue of its own for now, and will be no stranger later.
    pub(super) fn begin_apart(&mut self, now: Nanos, priority: u8, at: Mib) {
        let second = self.age(now);
        self.visit(second, priority, at);
    }

    /// Lets time pass; returns in which second this is.
    fn age(&mut self, now: Nanos) -> u64 {
        let second = second(now);
        for place in &mut self.places {
            place.age(second);
            if place.is_forgotten() {
                *place = Place::FREE;
            }
        }
        second
    }

    /// Returns the place of a read that begins.
    fn visit(&mut self, second: u64, priority: u8, at: Mib) -> &mut Place {
        let index = self.nearest(priority, at).unwrap_or_else(|| {
            let free = self.make_room();
            self.places[free] =
                Place { first: at.0, last: at.0, at: second, priority, ..Place::FREE };
            free
        });
        let place = &mut self.places[index];
        (place.first, place.last) = (place.first.min(at.0), place.last.max(at.0));
        place.reads = place.reads.saturating_add(1);
        place.waiting += 1;
        place.seconds |= 1;
        self.meet(index);
        &mut self.places[index]
    }

    /// Returns the nearest place to which a read belongs.
    fn nearest(&self, priority: u8, at: Mib) -> Option<usize> {
        let places = self.places.iter().enumerate();
        let gaps = places.filter(|(_, place)| place.priority == priority);
        let gaps = gaps.map(|(index, place)| (place.gap(at.0, at.0), place.reach(), index));
        gaps.filter(|(gap, reach, _)| gap <= reach).min().map(|(.., index)| index)
    }

    /// Returns whether somebody has been reading there for long.
    pub(super) fn is_familiar(&self, priority: u8, at: Mib) -> bool {
        self.places.iter().any(|place| {
            place.priority == priority && place.gap(at.0, at.0) == 0 && place.is_familiar()
        })
    }

    /// Notes that a read is over.
    pub(super) fn end(&mut self, now: Nanos, priority: u8, at: Mib) {
        let second = second(now);
        // A long read may have left its place meanwhile.
        let mine = |place: &&mut Place| place.priority == priority && place.waiting > 0;
        let places = self.places.iter_mut().filter(mine);
        if let Some(place) = places.min_by_key(|place| place.gap(at.0, at.0)) {
            place.age(second);
            place.seconds |= 1;
            place.waiting -= 1;
        }
    }

    /// Merges a place with those that it has come to.
    fn meet(&mut self, index: usize) {
        for other in (0..PLACES).filter(|&other| other != index) {
            let (mine, its) = (self.places[index], self.places[other]);
            let is_met = its.gap(mine.first, mine.last) <= mine.reach().max(its.reach());
            if its.priority == mine.priority && is_met {
                self.places[index].merge(&its);
                self.places[other] = Place::FREE;
            }
        }
    }

    /// Returns a place that is free, if need be by merging two that are near one another. What is
    /// familiar and what is not are merged last.
    fn make_room(&mut self) -> usize {
        if let Some(free) = self.places.iter().position(|place| place.priority == u8::MAX) {
            return free;
        }
        let pairs = (0..PLACES).flat_map(|kept| (kept + 1..PLACES).map(move |given| (kept, given)));
        let gaps = pairs.filter_map(|(kept, given)| {
            let (place, its) = (&self.places[kept], &self.places[given]);
            let differ = place.is_familiar() != its.is_familiar();
            let gap = its.gap(place.first, place.last);
            (place.priority == its.priority).then_some((differ, gap, kept, given))
        });
        match gaps.min() {
            Some((.., kept, given)) => {
                let its = self.places[given];
                self.places[kept].merge(&its);
                given
            }
            // All are of different priorities: one of them has to be forgotten.
            None => 0,
        }
    }
}

fn second(now: Nanos) -> u64 {
    now.0 / Nanos::from_secs(1).0
}
