//! Why requests waited.

use evenkeel_sched::{GroupId, Nanos};

use super::Engine;
use crate::blame::Explanation;
use crate::disk::DiskId;

impl Engine {
    /// Never explains anything: for measuring what explaining costs.
    ///
    /// # Panics
    ///
    /// Panics if there have been requests.
    pub fn without_explanations(&mut self) {
        self.blame.turn_off();
    }

    /// Returns why the requests of a VM waited, since it was added. Allocates: not for every turn.
    #[must_use]
    pub fn explain(&mut self, now: Nanos, vm: GroupId) -> Explanation {
        self.blame.explain(now, vm)
    }

    /// Returns the number of requests of a disk that wait for another of the same disk: one that
    /// overlaps, or a flush under way.
    #[must_use]
    pub fn held_back_of(&self, disk: DiskId) -> usize {
        let disk = self.disk(disk);
        disk.claims.held() as usize + disk.flushes_waiting.len()
    }
}
