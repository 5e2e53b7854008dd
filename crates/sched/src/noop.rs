//! First come, first served.
//!
//! One line at one counter. With merging it is `noop`: who arrives with the continuation of
//! something that still waits hands it to the one in the line. Without it is `none`.
//!
//! Deliberately absent: priorities, shares, deadlines; groups and queues only count.

use alloc::vec::Vec;

use crate::fifo::Fifo;
use crate::merge::{self, MergeLimits, MergeRules};
use crate::roster::Roster;
use crate::sorted::Sorted;
use crate::table::Table;
use crate::{
    GroupId, GroupReport, Insertion, Nanos, Next, Priority, QueueId, Request, Scheduler, Tag,
    Weight,
};

/// The elevators `noop` and `none`.
#[derive(Clone, Debug)]
pub(crate) struct Noop {
    rules: Option<MergeRules>,
    table: Table,
    fifo: Fifo,
    /// Per queue its waiting requests by sector, to find neighbours.
    trees: Vec<Sorted>,
    roster: Roster,
}

impl Noop {
    /// Returns an elevator that merges within `limits`, or not at all.
    pub(crate) fn new(limits: Option<MergeLimits>) -> Self {
        Self {
            rules: limits.map(|limits| MergeRules { limits, front: false }),
            table: Table::default(),
            fifo: Fifo::EMPTY,
            trees: Vec::new(),
            roster: Roster::new(),
        }
    }

    /// Returns whether requests are merged.
    pub(crate) const fn merges(&self) -> bool {
        self.rules.is_some()
    }

    /// Takes out a request that goes to the device.
    fn start(&mut self, index: u32) {
        self.fifo.remove(&mut self.table, index);
        let record = self.table.record(index);
        let (queue, nr_sectors) = (record.queue, record.nr_sectors);
        if self.rules.is_some() {
            self.trees[queue.0 as usize].remove(&mut self.table, index);
        }
        self.table.start(index);
        self.roster.note_started(queue, nr_sectors);
    }
}

impl Scheduler for Noop {
    fn add_group(&mut self, _now: Nanos, parent: GroupId, _weight: Weight) -> GroupId {
        self.roster.add_group(parent)
    }

    fn remove_group(&mut self, _now: Nanos, group: GroupId) {
        self.roster.remove_group(group);
    }

    fn set_weight(&mut self, _now: Nanos, _group: GroupId, _weight: Weight) {}

    fn add_queue(
        &mut self,
        _now: Nanos,
        group: GroupId,
        priority: Priority,
        _sync: bool,
    ) -> QueueId {
        let queue = self.roster.add_queue(group, priority);
        if queue.0 as usize == self.trees.len() {
            self.trees.push(Sorted::EMPTY);
        }
        queue
    }

    fn remove_queue(&mut self, _now: Nanos, queue: QueueId) {
        self.roster.remove_queue(queue);
    }

    fn insert(&mut self, now: Nanos, request: Request) -> Insertion {
        let Some(rules) = self.rules else {
            self.table.admit(&request, now);
            self.fifo.push(&mut self.table, request.tag.0);
            self.roster.note_waiting(request.queue);
            return Insertion::Queued;
        };
        let lists = (&mut self.trees[request.queue.0 as usize], &mut self.fifo);
        let Some(merge) = merge::add(&mut self.table, lists, &request, now, rules) else {
            self.roster.note_waiting(request.queue);
            return Insertion::Queued;
        };
        if merge.absorbed.is_some() {
            self.roster.note_absorbed(request.queue);
        }
        Insertion::Merged(merge.into)
    }

    fn dispatch(&mut self, _now: Nanos) -> Next {
        let Some(head) = self.fifo.head() else { return Next::Empty };
        self.start(head);
        Next::Request(Tag(head))
    }

    fn pull(&mut self, _now: Nanos, tag: Tag) -> Tag {
        let whole = self.table.whole_of(tag);
        self.start(whole.0);
        whole
    }

    fn complete(&mut self, _now: Nanos, tag: Tag) {
        let queue = self.table.complete(tag).queue;
        self.roster.note_completed(queue);
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn next_part(&self, tag: Tag) -> Option<Tag> {
        self.table.next_part(tag)
    }

    fn first_part(&self, tag: Tag) -> Tag {
        self.table.first_part(tag)
    }

    fn queued(&self) -> u32 {
        self.table.waiting()
    }

    fn in_flight(&self) -> u32 {
        self.table.in_flight()
    }

    fn group_report(&self, group: GroupId) -> GroupReport {
        self.roster.report(group)
    }

    fn check_invariants(&self) {
        self.table.check();
        assert_eq!(self.fifo.check(&self.table), self.queued(), "everybody stands in the line");
        let sorted: u32 = self.trees.iter().map(|tree| tree.check(&self.table)).sum();
        assert_eq!(sorted, if self.rules.is_some() { self.queued() } else { 0 });
        self.roster.check(self.queued(), self.queued() + self.in_flight());
    }
}
