//! The request table: one record per tag, and whatever lists the records form.
//!
//! A record is one cache line. It carries the links of its request in a list by age ([`Fifo`]) and
//! in a tree by sector ([`Sorted`]), so a scheduler moves requests about without allocating; the
//! table grows only when a larger tag than ever appears.
//!
//! A merged request is a ring of records, its parts in ascending sector order. One of them stands
//! for all (the *representative*: the one inserted first); only it is in lists, and its `pos`,
//! `nr_sectors` and `segments` are those of the whole.

use alloc::vec::Vec;

use crate::choose::{BackSeek, Candidate, goes_first};
use crate::fifo::Fifo;
use crate::merge::{self, Merge, MergeRules};
use crate::sorted::Sorted;
use crate::tree::{Links, NIL, Nodes};
use crate::{Nanos, Op, QueueId, Request, Tag};

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum State {
    /// The tag names nothing.
    Free,
    /// In the lists of a scheduler.
    Waiting,
    /// Dispatched and not completed.
    InFlight,
    /// Goes where its representative goes.
    Part,
}

/// What requests must have in common to be merged: operation and whether somebody waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Flavour(u8);

impl Flavour {
    #[inline]
    pub(crate) const fn new(op: Op, sync: bool) -> Self {
        let op = match op {
            Op::Read => 0,
            Op::Write => 2,
            Op::Discard => 4,
            Op::WriteZeroes => 6,
        };
        Self(op | sync as u8)
    }

    #[inline]
    pub(crate) const fn is_write(self) -> bool {
        self.0 >> 1 != 0
    }

    /// Returns a number below 8 for each flavour: twice 0 for reads, 1 for writes, 2 for discards,
    /// 3 for writes of zeroes, and one more if somebody waits.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        (self.0 & 7) as usize
    }

    #[inline]
    pub(crate) const fn sync(self) -> bool {
        self.0 & 1 != 0
    }
}

/// What the table knows of one tag.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(crate) struct Record {
    /// Links in a tree by sector.
    links: Links,
    /// First sector of the whole request.
    pub(crate) pos: u64,
    /// When the request is overdue.
    pub(crate) fifo_time: Nanos,
    /// Length of the whole request.
    pub(crate) nr_sectors: u32,
    /// The queue that the request was inserted into.
    pub(crate) queue: QueueId,
    /// Neighbours in the list by age.
    pub(crate) older: u32,
    pub(crate) younger: u32,
    /// The next part upwards; the last part names the first.
    pub(crate) next_part: u32,
    /// The last part, in a representative; in any other part itself if it is the last, else none.
    pub(crate) last_part: u32,
    /// Counts insertions; compared with wrap-around.
    pub(crate) age: u32,
    /// Memory segments of the whole request.
    pub(crate) segments: u16,
    pub(crate) flavour: Flavour,
    pub(crate) state: State,
}

const _: () = assert!(size_of::<Record>() == 64, "a record is one cache line");

impl Record {
    const FREE: Self = Self {
        links: Links::DETACHED,
        pos: 0,
        fifo_time: Nanos::ZERO,
        nr_sectors: 0,
        queue: QueueId(0),
        older: NIL,
        younger: NIL,
        next_part: NIL,
        last_part: NIL,
        age: 0,
        segments: 0,
        flavour: Flavour(0),
        state: State::Free,
    };

    /// Returns the sector behind the last one.
    #[inline]
    pub(crate) const fn end(&self) -> u64 {
        self.pos + self.nr_sectors as u64
    }

    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == State::Waiting
    }

    /// Returns whether this request was inserted before `other`.
    #[inline]
    pub(crate) fn is_older_than(&self, other: &Self) -> bool {
        other.age.wrapping_sub(self.age).cast_signed() > 0
    }

    #[inline]
    pub(crate) const fn candidate(&self) -> Candidate {
        Candidate { pos: self.pos, sync: self.flavour.sync() }
    }
}

/// All requests of a scheduler; see the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    records: Vec<Record>,
    next_age: u32,
    waiting: u32,
    in_flight: u32,
}

impl Nodes for Table {
    #[inline]
    fn links(&self, index: u32) -> &Links {
        &self.record(index).links
    }

    #[inline]
    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.record_mut(index).links
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        self.record(a).pos < self.record(b).pos
    }
}

impl Table {
    /// Returns the number of waiting requests, a merged one counted once.
    #[inline]
    pub(crate) const fn waiting(&self) -> u32 {
        self.waiting
    }

    /// Returns the number of dispatched requests, a merged one counted once.
    #[inline]
    pub(crate) const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the record of a tag that was inserted at least once.
    #[inline]
    pub(crate) fn get(&self, tag: Tag) -> &Record {
        self.record(tag.0)
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> &Record {
        &self.records[index as usize]
    }

    #[inline]
    pub(crate) fn record_mut(&mut self, index: u32) -> &mut Record {
        &mut self.records[index as usize]
    }

    /// Returns the part with the lowest sector of the request that `tag` represents.
    #[inline]
    pub(crate) fn first_part(&self, tag: Tag) -> Tag {
        Tag(self.record(self.get(tag).last_part).next_part)
    }

    /// Returns the part above `tag`.
    #[inline]
    pub(crate) fn next_part(&self, tag: Tag) -> Option<Tag> {
        let record = self.get(tag);
        (record.last_part != tag.0).then_some(Tag(record.next_part))
    }

    /// Returns the waiting request that `tag` is, or is a part of.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    pub(crate) fn whole_of(&self, tag: Tag) -> Tag {
        let mut at = tag.0;
        loop {
            let record = self.record(at);
            match record.state {
                State::Waiting => return Tag(at),
                State::Part => at = record.next_part,
                State::Free | State::InFlight => unreachable!("only a waiting request is pulled"),
            }
        }
    }

    /// Writes the record of a new waiting request that is in no list yet.
    ///
    /// # Panics
    ///
    /// Panics if the tag names a request that is not completed, or the request is empty.
    pub(crate) fn admit(&mut self, request: &Request, fifo_time: Nanos) {
        assert!(request.nr_sectors > 0, "a request has sectors");
        let index = request.tag.0;
        assert!(index != NIL, "the largest number is no tag");
        if index as usize >= self.records.len() {
            self.records.resize(index as usize + 1, Record::FREE);
        }
        let age = self.next_age;
        self.next_age = age.wrapping_add(1);
        self.waiting += 1;
        let record = self.record_mut(index);
        assert!(record.state == State::Free, "a tag names one request at a time");
        *record = Record {
            pos: request.pos,
            fifo_time,
            nr_sectors: request.nr_sectors,
            queue: request.queue,
            next_part: index,
            last_part: index,
            age,
            segments: request.segments,
            flavour: Flavour::new(request.op, request.sync),
            state: State::Waiting,
            ..Record::FREE
        };
    }

    /// Notes that a waiting request, now in no list, goes to the device.
    #[inline]
    pub(crate) fn start(&mut self, index: u32) {
        let record = self.record_mut(index);
        assert!(record.is_waiting(), "only a waiting request goes to the device");
        record.state = State::InFlight;
        self.waiting -= 1;
        self.in_flight += 1;
    }

    /// Notes that a waiting request, now in no list, became a part of another.
    #[inline]
    pub(crate) fn absorb(&mut self, index: u32) {
        let record = self.record_mut(index);
        assert!(record.is_waiting(), "only a waiting request is merged");
        record.state = State::Part;
        self.waiting -= 1;
    }

    /// Frees the tags of a dispatched request and of all its parts, and returns its record, of
    /// which everything but the parts stays as it was until the tag is inserted again.
    ///
    /// # Panics
    ///
    /// Panics if `tag` was not returned by `dispatch` or is completed already.
    pub(crate) fn complete(&mut self, tag: Tag) -> &Record {
        assert!(self.get(tag).state == State::InFlight, "a dispatched request completes once");
        self.in_flight -= 1;
        let mut at = tag.0;
        loop {
            let record = self.record_mut(at);
            record.state = State::Free;
            at = record.next_part;
            if at == tag.0 {
                return self.get(tag);
            }
        }
    }

    /// Moves the time at which each request is overdue, as `expire` changes from the first to the
    /// second value for its flavour. O(all tags); for when an operator changes a tunable.
    pub(crate) fn change_expiry(&mut self, expire: impl Fn(Flavour) -> (Nanos, Nanos)) {
        for record in &mut self.records {
            let (before, after) = expire(record.flavour);
            record.fifo_time = record.fifo_time - before + after;
        }
    }

    /// Returns which of two waiting requests a head that stands at `last` visits first.
    #[inline]
    pub(crate) fn choose(
        &self,
        first: Option<Tag>,
        second: Option<Tag>,
        last: u64,
        back_seek: BackSeek,
    ) -> Option<Tag> {
        let (Some(a), Some(b)) = (first, second) else { return first.or(second) };
        let (one, other) = (self.get(a).candidate(), self.get(b).candidate());
        Some(if goes_first(one, other, last, back_seek) { a } else { b })
    }

    /// Panics if counts and parts contradict each other.
    pub(crate) fn check(&self) {
        let (mut waiting, mut in_flight, mut parts, mut reached) = (0, 0, 0, 0);
        for (index, record) in (0..).zip(&self.records) {
            match record.state {
                State::Waiting => waiting += 1,
                State::InFlight => in_flight += 1,
                State::Part => parts += 1,
                State::Free => {}
            }
            let stands_for_itself = matches!(record.state, State::Waiting | State::InFlight);
            if stands_for_itself {
                reached += self.check_parts(Tag(index)) - 1;
            }
            assert!(
                !record.links.is_linked() || record.is_waiting(),
                "only waiting ones are sorted"
            );
        }
        assert_eq!(waiting, self.waiting, "waiting requests are counted");
        assert_eq!(in_flight, self.in_flight, "dispatched requests are counted");
        assert_eq!(parts, reached, "every part belongs to one request");
    }

    /// Returns the number of parts of a request.
    fn check_parts(&self, tag: Tag) -> u32 {
        let (mut count, mut at) = (0, Some(self.first_part(tag)));
        let mut met_itself = false;
        while let Some(part) = at {
            count += 1;
            met_itself |= part == tag;
            assert!(part == tag || self.get(part).state == State::Part, "parts know it");
            assert_eq!(self.get(part).flavour, self.get(tag).flavour, "operations are not mixed");
            assert_eq!(self.get(part).queue, self.get(tag).queue, "queues are not mixed");
            at = self.next_part(part);
        }
        assert!(met_itself, "a request is one of its parts");
        count
    }
}

/// The waiting requests of one queue, or of one direction: by sector and by age.
#[derive(Clone, Debug, Default)]
pub(crate) struct SortList {
    sorted: Sorted,
    fifo: Fifo,
    len: u32,
}

impl SortList {
    /// The lists without requests.
    pub(crate) const EMPTY: Self = Self { sorted: Sorted::EMPTY, fifo: Fifo::EMPTY, len: 0 };

    /// Returns the number of requests, a merged one counted once.
    #[inline]
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether nothing waits here.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Makes a new request a part of one that waits here, if there is one that it touches; else
    /// it waits here on its own, overdue at `fifo_time`, and the answer is nothing.
    pub(crate) fn add(
        &mut self,
        table: &mut Table,
        request: &Request,
        fifo_time: Nanos,
        rules: MergeRules,
    ) -> Option<Merge> {
        let lists = (&mut self.sorted, &mut self.fifo);
        let merge = merge::add(table, lists, request, fifo_time, rules);
        match merge {
            None => self.len += 1,
            Some(merge) => self.len -= u32::from(merge.absorbed.is_some()),
        }
        merge
    }

    /// Takes out a request that goes to the device.
    pub(crate) fn start(&mut self, table: &mut Table, tag: Tag) {
        self.sorted.remove(table, tag.0);
        self.fifo.remove(table, tag.0);
        self.len -= 1;
        table.start(tag.0);
    }

    /// Returns the request that waits longest.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<Tag> {
        self.fifo.head().map(Tag)
    }

    /// Returns the request with the lowest position.
    #[inline]
    pub(crate) fn first(&self, table: &Table) -> Option<Tag> {
        self.sorted.first(table).map(Tag)
    }

    /// Returns the first request at or behind sector `pos`.
    #[inline]
    pub(crate) fn at_or_after(&self, table: &Table, pos: u64) -> Option<Tag> {
        self.sorted.at_or_after(table, pos).map(Tag)
    }

    /// Returns the request above `tag`, which waits here.
    #[inline]
    pub(crate) fn above(&self, table: &Table, tag: Tag) -> Option<Tag> {
        self.sorted.above(table, tag.0).map(Tag)
    }

    /// Returns who is next when `tag`, which still waits here and was next, goes away: its upper
    /// neighbour (the lowest request if it is the highest) or its lower one.
    pub(crate) fn next_after(
        &mut self,
        table: &Table,
        tag: Tag,
        back_seek: BackSeek,
    ) -> Option<Tag> {
        let (below, above) = self.sorted.around(table, tag.0);
        let wrapped = || self.first(table).filter(|&first| first != tag);
        let above = above.map(Tag).or_else(wrapped);
        table.choose(above, below.map(Tag), table.get(tag).pos, back_seek)
    }

    /// Panics if the lists contradict each other.
    pub(crate) fn check(&self, table: &Table) {
        assert_eq!(self.sorted.check(table), self.len, "the row or tree holds every request");
        assert_eq!(self.fifo.check(table), self.len, "the list by age holds every request");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::End;
    use crate::testing::{Random, for_many_seeds};
    use crate::{MergeLimits, Op};
    use std::vec;

    const RULES: MergeRules = MergeRules {
        limits: MergeLimits { max_sectors: 1 << 20, max_segments: 1024 },
        front: true,
    };

    #[derive(Default)]
    struct Desk {
        table: Table,
        list: SortList,
    }

    impl Desk {
        /// Adds a read of 8 sectors; its fifo time is its tag.
        fn add(&mut self, tag: u32, pos: u64) -> Option<Merge> {
            let (op, queue) = (Op::Read, QueueId(0));
            let tag = Tag(tag);
            let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
            let fifo_time = Nanos(u64::from(tag.0));
            let merge = self.list.add(&mut self.table, &request, fifo_time, RULES);
            self.table.check();
            self.list.check(&self.table);
            merge
        }

        fn parts(&self, tag: u32) -> Vec<u32> {
            let first = self.table.first_part(Tag(tag));
            let parts = core::iter::successors(Some(first), |&tag| self.table.next_part(tag));
            parts.map(|tag| tag.0).collect()
        }
    }

    #[test]
    fn a_request_that_closes_a_gap_makes_one_of_three_and_the_oldest_stands_for_all() {
        let mut desk = Desk::default();
        assert_eq!(desk.add(3, 108), None);
        assert_eq!(desk.add(5, 92), None);
        let end = End::Back;
        assert_eq!(desk.add(7, 100), Some(Merge { into: Tag(3), end, absorbed: Some(Tag(5)) }));
        assert_eq!(desk.parts(3), [5, 7, 3]);
        let whole = desk.table.get(Tag(3));
        assert_eq!((whole.pos, whole.nr_sectors, whole.segments), (92, 24, 3));
        assert_eq!(whole.fifo_time, Nanos(3), "age is not lost");
        assert_eq!((desk.list.len(), desk.list.oldest()), (1, Some(Tag(3))));
    }

    #[test]
    fn a_request_grows_at_both_ends_part_by_part() {
        let mut desk = Desk::default();
        desk.add(0, 100);
        for (tag, pos, end) in [(1, 108, End::Back), (2, 92, End::Front), (3, 116, End::Back)] {
            assert_eq!(desk.add(tag, pos), Some(Merge { into: Tag(0), end, absorbed: None }));
        }
        assert_eq!(desk.parts(0), [2, 0, 1, 3]);
        desk.list.start(&mut desk.table, Tag(0));
        assert_eq!(desk.add(4, 124), None, "what is at the device does not grow");
        desk.table.complete(Tag(0));
        assert_eq!((desk.table.waiting(), desk.table.in_flight()), (1, 0));
        assert_eq!(desk.add(2, 500), None, "the tags of parts are free again");
    }

    #[test]
    fn a_sweep_without_backward_hops_visits_every_request_and_wraps_once() {
        let back_seek = BackSeek { max_sectors: 0, penalty: 2 };
        for_many_seeds(10_000, |seed| {
            let mut random = Random::new(seed);
            let mut desk = Desk::default();
            let count = 1 + u32::try_from(random.below(40)).unwrap();
            for tag in 0..count {
                // Multiples of 16 never touch; some are equal.
                desk.add(tag, random.below(60) * 16);
            }
            let mut next = desk.list.at_or_after(&desk.table, random.below(960));
            next = next.or_else(|| desk.list.first(&desk.table));
            let mut visited = vec![];
            while let Some(tag) = next {
                visited.push(desk.table.get(tag).pos);
                next = desk.list.next_after(&desk.table, tag, back_seek);
                desk.list.start(&mut desk.table, tag);
                desk.list.check(&desk.table);
            }
            assert_eq!(visited.len(), count as usize);
            let wraps = visited.windows(2).filter(|pair| pair[1] < pair[0]).count();
            assert!(wraps <= 1, "{visited:?}");
        });
    }

    #[test]
    #[should_panic(expected = "a tag names one request at a time")]
    fn a_tag_in_use_is_refused() {
        let mut desk = Desk::default();
        desk.add(0, 0);
        desk.add(0, 100);
    }

    #[test]
    #[should_panic(expected = "a dispatched request completes once")]
    fn a_waiting_request_does_not_complete() {
        let mut desk = Desk::default();
        desk.add(0, 0);
        desk.table.complete(Tag(0));
    }
}
