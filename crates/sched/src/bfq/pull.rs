//! A request goes out of turn, because it was promised to go by now.
//!
//! It is charged to its own queue and to all groups above, whoever holds the device; so whoever
//! needs its reservation gets less of what weights divide, and together no more than its share
//! unless the reservation is larger.

use super::Bfq;
use crate::{Nanos, Next, Tag};

impl Bfq {
    pub(super) fn send_out_of_turn(&mut self, now: Nanos, tag: Tag) -> Tag {
        self.end_overdue_wait(now);
        let tag = self.table.whole_of(tag);
        let id = self.table.get(tag).queue.0;
        if self.holder != Some(id) {
            self.injection.interfered();
            let sent = self.inject(now, id, tag);
            assert_eq!(sent, Next::Request(tag), "what is injected goes at once");
            return tag;
        }
        let (cost, nr_sectors) = (self.charge(id, tag), self.table.get(tag).nr_sectors);
        let node = self.queues[id as usize].node;
        // What was promised is not bounded by the budget.
        let service = self.engine.service(node) + cost;
        self.engine.extend_budget(node, service);
        self.engine.serve_out_of_turn(node, cost, u64::from(nr_sectors));
        self.start(now, id, tag, cost);
        tag
    }
}
