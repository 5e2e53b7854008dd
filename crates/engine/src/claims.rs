//! Which sectors of a disk are spoken for.

use evenkeel_sched::Tag;

/// The extents at the device and those held back behind them, oldest first.
///
/// Two requests that touch the same sector, one of them changing it, never are at the device
/// together: the later one is held until the earlier has completed. Guests may not rely on an
/// order of concurrent requests, but they may rely on a sector never mixing two of them, on a
/// read never returning half a write, and on replay after a crash meeting no stale write.
///
/// Costs nothing while only reads are at the device; else a scan of at most `depth` extents.
#[derive(Debug, Default)]
pub struct Claims {
    extents: Vec<Extent>,
    /// Claims that change sectors. While zero, reads need no scan.
    changing: u32,
    held: u32,
}

/// Most extents that room is made for beforehand: some KiB a disk.
const ROOM_MAX: u32 = 128;

#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    end: u64,
    tag: Tag,
    changes: bool,
    held: bool,
}

impl Extent {
    const fn conflicts(&self, other: &Self) -> bool {
        (self.changes || other.changes) && self.start < other.end && other.start < self.end
    }
}

impl Claims {
    /// Makes room for as many extents as a device of this depth holds, so that a disk that rarely
    /// has several requests there allocates for none of them.
    pub(crate) fn make_room(&mut self, depth: u32) {
        let room = usize::try_from(depth.min(ROOM_MAX)).expect("a small number");
        self.extents.reserve_exact(room.saturating_sub(self.extents.len()));
    }

    /// Claims `nr_sectors` from `start`. Returns whether the request may go to the device now; if
    /// not it is held until [`release`](Self::release) frees it.
    pub fn claim(&mut self, tag: Tag, start: u64, nr_sectors: u32, changes: bool) -> bool {
        let mut extent =
            Extent { start, end: start + u64::from(nr_sectors), tag, changes, held: false };
        if changes || self.changing > 0 {
            extent.held = self.extents.iter().any(|earlier| earlier.conflicts(&extent));
        }
        self.changing += u32::from(changes);
        self.held += u32::from(extent.held);
        self.extents.push(extent);
        !extent.held
    }

    /// Claims an extent only if the request may go now; else claims nothing and returns false.
    pub fn claim_if_free(&mut self, tag: Tag, start: u64, nr_sectors: u32, changes: bool) -> bool {
        let end = start + u64::from(nr_sectors);
        let extent = Extent { start, end, tag, changes, held: false };
        let scan = changes || self.changing > 0;
        if scan && self.extents.iter().any(|earlier| earlier.conflicts(&extent)) {
            return false;
        }
        self.changing += u32::from(changes);
        self.extents.push(extent);
        true
    }

    /// Gives up the claim of a request that has left the device, and calls `free` for each held
    /// request that may go now, oldest first.
    pub fn release(&mut self, tag: Tag, mut free: impl FnMut(Tag)) {
        let Some(index) = self.extents.iter().position(|extent| extent.tag == tag) else {
            return;
        };
        let released = if self.held == 0 {
            // Order matters only to those who are held.
            self.extents.swap_remove(index)
        } else {
            self.extents.remove(index)
        };
        self.changing -= u32::from(released.changes);
        if self.held == 0 {
            return;
        }
        for at in index..self.extents.len() {
            let (earlier, rest) = self.extents.split_at_mut(at);
            let extent = &mut rest[0];
            if extent.held && !earlier.iter().any(|other| other.conflicts(extent)) {
                extent.held = false;
                self.held -= 1;
                free(extent.tag);
            }
        }
    }

    /// Returns the requests with a claim that are not held.
    pub(crate) fn at_device(&self) -> impl Iterator<Item = Tag> {
        self.extents.iter().filter(|extent| !extent.held).map(|extent| extent.tag)
    }

    /// Returns how many claims there are, held ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Returns whether nothing is claimed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns how many requests are held back.
    #[must_use]
    pub const fn held(&self) -> u32 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn freed(claims: &mut Claims, tag: u32) -> Vec<u32> {
        let mut freed = Vec::new();
        claims.release(Tag(tag), |tag| freed.push(tag.0));
        freed
    }

    #[test]
    fn overlapping_reads_go_together() {
        let mut claims = Claims::default();
        assert!(claims.claim(Tag(0), 0, 8, false));
        assert!(claims.claim(Tag(1), 4, 8, false));
    }

    #[test]
    fn a_write_waits_for_the_reads_before_it_and_holds_those_behind() {
        let mut claims = Claims::default();
        assert!(claims.claim(Tag(0), 0, 8, false));
        assert!(!claims.claim(Tag(1), 7, 2, true));
        assert!(!claims.claim(Tag(2), 8, 1, false));
        assert!(claims.claim(Tag(3), 9, 1, true));
        assert_eq!(freed(&mut claims, 0), [1]);
        assert_eq!(freed(&mut claims, 3), []);
        assert_eq!(freed(&mut claims, 1), [2]);
        assert_eq!(freed(&mut claims, 2), []);
        assert!(claims.is_empty());
    }

    proptest! {
        #[test]
        fn nobody_meets_a_conflict_and_nobody_is_forgotten(
            steps in proptest::collection::vec((0..40_u64, 1..12_u32, any::<bool>(), 0..8_usize), 1..80)
        ) {
            let mut claims = Claims::default();
            let mut at_device: Vec<(u32, u64, u64, bool)> = Vec::new();
            let mut waiting: Vec<(u32, u64, u64, bool)> = Vec::new();
            for (tag, (start, len, changes, victim)) in (0..).zip(steps) {
                let entry = (tag, start, start + u64::from(len), changes);
                let goes = claims.claim(Tag(tag), start, len, changes);
                if goes { at_device.push(entry); } else { waiting.push(entry); }
                for (i, a) in at_device.iter().enumerate() {
                    for b in &at_device[i + 1..] {
                        prop_assert!(!((a.3 || b.3) && a.1 < b.2 && b.1 < a.2), "{a:?} meets {b:?}");
                    }
                }
                if victim < at_device.len() {
                    let done = at_device.swap_remove(victim);
                    for tag in freed(&mut claims, done.0) {
                        let index = waiting.iter().position(|w| w.0 == tag).unwrap();
                        at_device.push(waiting.remove(index));
                    }
                }
            }
            while let Some(done) = at_device.pop() {
                for tag in freed(&mut claims, done.0) {
                    let index = waiting.iter().position(|w| w.0 == tag).unwrap();
                    at_device.push(waiting.remove(index));
                }
            }
            prop_assert!(waiting.is_empty() && claims.is_empty());
        }
    }
}
