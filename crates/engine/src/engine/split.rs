//! Requests that are too long for one command.
//!
//! Such a request keeps its tag and goes through the scheduler once for each piece, one at a time:
//! who else waits is chosen in between as though each piece were a request. Its claim is on the
//! whole extent from the first piece to the last, so whatever overlaps it sees all of it or
//! nothing. It is answered once, with the first error if there is one; what comes after that is
//! not sent any more. Its limits have counted all of it when it came.

use evenkeel_sched::{Nanos, Tag};

use super::Engine;
use crate::request::Status;
use crate::slots::{DeviceOp, Slot};

impl Engine {
    /// Claims the extent of a request in pieces, if this is the first; false if somebody is in the
    /// way.
    pub(super) fn claim_for_pieces(&mut self, tag: Tag) -> bool {
        let Slot { disk, sector, nr_sectors, done_sectors, op, .. } = *self.slots.get(tag);
        let claims = &mut self.disk_mut(disk).claims;
        done_sectors > 0 || claims.claim_if_free(tag, sector, nr_sectors, op != DeviceOp::Read)
    }

    /// Notes that a piece is done, which whoever decided for it has forgotten; the next one is
    /// scheduled, or the request is finished.
    pub(super) fn complete_piece(&mut self, now: Nanos, tag: Tag) {
        let slot = self.slots.get_mut(tag);
        let done = slot.done_sectors + slot.piece_sectors;
        let left = slot.nr_sectors - done;
        if left == 0 {
            self.release(now, tag);
            return self.finish(now, tag, tag, Status::Ok);
        }
        slot.done_sectors = done;
        slot.piece_sectors = self.pieces.of(left);
        let disk = slot.disk;
        let vm = self.disk(disk).vm;
        self.blame.wait(now, vm, 1);
        self.enter(now, tag);
    }
}
