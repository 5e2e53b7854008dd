//! Why requests waited.

use evenkeel_sched::{GroupId, Lead, Nanos, Scheduler as _};

use super::Engine;
use crate::blame::Explanation;
use crate::disk::DiskId;

impl Engine {
    /// Says whether books are kept from which [`explain`](Self::explain) tells why requests waited.
    /// They are unless told otherwise; a simulation that nobody will ask saves a few additions for
    /// each request and each VM.
    ///
    /// # Panics
    ///
    /// Panics if there have been requests.
    pub fn explain_waits(&mut self, explains: bool) {
        self.blame.turn(explains);
    }

    /// Returns why the requests of a VM waited, since it was added; nothing if no books are kept.
    /// Allocates: not for every turn.
    #[must_use]
    pub fn explain(&mut self, now: Nanos, vm: GroupId) -> Explanation {
        self.blame.explain(now, vm)
    }

    /// Returns what a VM has ahead of its share because it was raised; nothing where the elevator
    /// does not lend.
    #[must_use]
    pub fn lead(&self, now: Nanos, vm: GroupId) -> Option<Lead> {
        self.scheduler.lead(now, self.groups.get(vm).known_as)
    }

    /// Returns the number of requests of a disk that wait for another of the same disk: one that
    /// overlaps, or a flush under way.
    #[must_use]
    pub fn held_back_of(&self, disk: DiskId) -> usize {
        let disk = self.disk(disk);
        disk.claims.held() as usize + disk.flushes_waiting.len()
    }
}
