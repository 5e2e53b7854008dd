//! Groups and queues of the elevators that know no shares: names and figures, nothing more.

use alloc::vec::Vec;

use crate::{GroupId, GroupReport, Priority, QueueId};

/// One group: where it hangs and what went through it.
#[derive(Clone, Copy, Debug)]
struct Group {
    parent: GroupId,
    is_used: bool,
    queued: u32,
    service_sectors: u64,
}

/// One queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    group: GroupId,
    /// Requests that wait or are at the device, a merged one counted once.
    outstanding: u32,
    is_used: bool,
    is_removed: bool,
    pub(crate) priority: Priority,
}

/// The groups and queues of an elevator.
#[derive(Clone, Debug)]
pub(crate) struct Roster {
    groups: Vec<Group>,
    free_groups: Vec<GroupId>,
    queues: Vec<Queue>,
    free_queues: Vec<QueueId>,
}

impl Roster {
    /// Returns a roster of the root group alone.
    pub(crate) fn new() -> Self {
        let root = Group { parent: GroupId::ROOT, is_used: true, queued: 0, service_sectors: 0 };
        Self {
            groups: Vec::from([root]),
            free_groups: Vec::new(),
            queues: Vec::new(),
            free_queues: Vec::new(),
        }
    }

    pub(crate) fn add_group(&mut self, parent: GroupId) -> GroupId {
        assert!(self.group(parent).is_used, "the parent exists");
        let group = Group { parent, is_used: true, queued: 0, service_sectors: 0 };
        if let Some(id) = self.free_groups.pop() {
            *self.group_mut(id) = group;
            return id;
        }
        self.groups.push(group);
        GroupId(last_index(self.groups.len()))
    }

    pub(crate) fn remove_group(&mut self, id: GroupId) {
        assert!(id != GroupId::ROOT, "the root stays");
        let group = self.group_mut(id);
        assert!(group.is_used && group.queued == 0, "a group goes once, and empty");
        group.is_used = false;
        self.free_groups.push(id);
    }

    pub(crate) fn add_queue(&mut self, group: GroupId, priority: Priority) -> QueueId {
        assert!(self.group(group).is_used, "the group exists");
        let queue = Queue { group, outstanding: 0, is_used: true, is_removed: false, priority };
        if let Some(id) = self.free_queues.pop() {
            self.queues[id.0 as usize] = queue;
            return id;
        }
        self.queues.push(queue);
        // So that freeing names later does not allocate.
        self.free_queues.reserve(self.queues.len());
        QueueId(last_index(self.queues.len()))
    }

    pub(crate) fn remove_queue(&mut self, id: QueueId) {
        let queue = &mut self.queues[id.0 as usize];
        assert!(queue.is_used && !queue.is_removed, "a queue goes once");
        queue.is_removed = true;
        self.free_if_done(id);
    }

    /// Returns a queue that is not removed, or has requests.
    #[inline]
    pub(crate) fn queue(&self, id: QueueId) -> &Queue {
        &self.queues[id.0 as usize]
    }

    /// Counts a request that waits from now on.
    #[inline]
    pub(crate) fn note_waiting(&mut self, id: QueueId) {
        let queue = &mut self.queues[id.0 as usize];
        assert!(queue.is_used && !queue.is_removed, "requests go to queues that exist");
        queue.outstanding += 1;
        let group = queue.group;
        self.climb(group, |group| group.queued += 1);
    }

    /// Counts a waiting request that became a part of another one.
    #[inline]
    pub(crate) fn note_absorbed(&mut self, id: QueueId) {
        let queue = &mut self.queues[id.0 as usize];
        queue.outstanding -= 1;
        let group = queue.group;
        self.climb(group, |group| group.queued -= 1);
    }

    /// Counts a request that goes to the device.
    #[inline]
    pub(crate) fn note_started(&mut self, id: QueueId, nr_sectors: u32) {
        let group = self.queue(id).group;
        self.climb(group, |group| {
            group.queued -= 1;
            group.service_sectors += u64::from(nr_sectors);
        });
    }

    /// Counts a request that the device has finished.
    #[inline]
    pub(crate) fn note_completed(&mut self, id: QueueId) {
        self.queues[id.0 as usize].outstanding -= 1;
        self.free_if_done(id);
    }

    pub(crate) fn report(&self, id: GroupId) -> GroupReport {
        let &Group { queued, service_sectors, .. } = self.group(id);
        GroupReport { service_sectors, queued, raised: false }
    }

    /// Panics unless the figures fit `waiting` requests in the root and below, `outstanding` in
    /// all queues.
    pub(crate) fn check(&self, waiting: u32, outstanding: u32) {
        assert_eq!(self.group(GroupId::ROOT).queued, waiting, "the root counts everything");
        let used = || self.queues.iter().filter(|queue| queue.is_used);
        assert_eq!(used().map(|queue| queue.outstanding).sum::<u32>(), outstanding);
        assert!(used().all(|queue| !queue.is_removed || queue.outstanding > 0));
        assert!(used().all(|queue| self.group(queue.group).is_used), "queues lie in groups");
        for (index, group) in self.groups.iter().enumerate() {
            let below = |other: &&Group| other.is_used && other.parent.0 as usize == index;
            let children = self.groups.iter().skip(1).filter(below);
            let queued: u32 = children.map(|child| child.queued).sum();
            assert!(!group.is_used || queued <= group.queued, "a group counts its children");
        }
    }

    #[inline]
    fn climb(&mut self, group: GroupId, mut note: impl FnMut(&mut Group)) {
        let mut at = group;
        loop {
            let group = self.group_mut(at);
            note(group);
            if at == GroupId::ROOT {
                return;
            }
            at = group.parent;
        }
    }

    fn free_if_done(&mut self, id: QueueId) {
        let queue = &mut self.queues[id.0 as usize];
        if queue.is_removed && queue.outstanding == 0 {
            queue.is_used = false;
            self.free_queues.push(id);
        }
    }

    #[inline]
    fn group(&self, id: GroupId) -> &Group {
        &self.groups[id.0 as usize]
    }

    #[inline]
    fn group_mut(&mut self, id: GroupId) -> &mut Group {
        &mut self.groups[id.0 as usize]
    }
}

fn last_index(len: usize) -> u32 {
    u32::try_from(len - 1).expect("fewer than 2^32 queues and groups fit in memory")
}
