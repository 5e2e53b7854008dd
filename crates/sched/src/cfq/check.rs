//! What must always hold.

use super::{Cfq, IDLE};

impl Cfq {
    pub(super) fn check(&self) {
        self.table.check();
        assert_eq!(self.groups.check(), self.busy, "groups know their busy queues");
        let (mut waiting, mut in_flight, mut busy_sync) = (0, [0; 2], 0);
        for (id, queue) in (0..).zip(&self.queues.0) {
            queue.list.check(&self.table);
            assert_eq!(queue.next.is_some(), !queue.is_empty(), "a sweep knows what is next");
            assert!(queue.next.is_none_or(|tag| self.table.get(tag).is_waiting()));
            waiting += queue.list.len();
            in_flight[usize::from(queue.sync)] += queue.in_flight;
            let is_busy = !queue.is_empty() || self.is_holder(id);
            assert_eq!(queue.place.is_some(), is_busy, "who has requests competes");
            busy_sync += u32::from(is_busy && queue.sync);
            let is_done = queue.is_gone && queue.is_empty() && queue.in_flight == 0;
            assert!(!is_done || !self.is_holder(id), "who is gone holds nothing");
            if let Some((class, kind)) = queue.place {
                assert_eq!(class, queue.class);
                assert!(class != IDLE || kind == 0, "the idle class has one tree");
            }
        }
        assert_eq!(waiting, self.table.waiting(), "every waiting request is in one list");
        assert_eq!((in_flight, busy_sync), (self.in_flight, self.busy_sync));
        assert_eq!(in_flight[0] + in_flight[1], self.table.in_flight());
        for group in 0..self.groups.len() {
            for tree in self.groups.get(group).trees.iter().flatten() {
                assert_eq!(tree.tree.check(&self.queues), tree.count, "queues are counted");
            }
        }
        if let Some(slice) = &self.slice {
            let queue = self.queues.get(slice.holder);
            let is_kept = slice.idle_until.is_some();
            assert!(!is_kept || (queue.is_empty() && queue.in_flight == 0), "it is expected back");
        }
        self.roster.check(waiting, waiting + self.table.in_flight());
    }
}
