//! Where the three parts of a vring are in guest memory, and what is where in them.

use std::sync::atomic::Ordering;

use super::{Addresses, BrokenRing};
use crate::memory::{Memory, Window};

// Offsets in the available and used rings: flags u16, idx u16, then the elements.
pub(super) const FLAGS: usize = 0;
pub(super) const IDX: usize = 2;
pub(super) const RING: usize = 4;

/// The three parts of a vring, mapped and long enough for every index below the size.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) table: Window,
    pub(super) avail: Window,
    pub(super) used: Window,
    size: u16,
}

impl Rings {
    pub(super) fn map(
        memory: &Memory,
        addresses: Addresses,
        size: u16,
        event_idx: bool,
    ) -> Result<Self, BrokenRing> {
        let (count, event) = (usize::from(size), if event_idx { 2 } else { 0 });
        let part = |addr, len, align| {
            let window = memory.window(addr, len).ok_or(BrokenRing::Unmapped)?;
            if window.is_aligned(align) { Ok(window) } else { Err(BrokenRing::Misaligned) }
        };
        Ok(Self {
            table: part(addresses.table, 16 * count, 16)?,
            avail: part(addresses.avail, RING + 2 * count + event, 2)?,
            used: part(addresses.used, RING + 8 * count + event, 4)?,
            size,
        })
    }

    /// Returns the guest's available index; acquires what the guest wrote before it.
    pub(super) fn avail_idx(&self) -> u16 {
        self.avail.load_u16(IDX, Ordering::Acquire)
    }

    pub(super) fn used_idx(&self) -> u16 {
        self.used.load_u16(IDX, Ordering::Relaxed)
    }

    pub(super) fn used_event(&self) -> u16 {
        self.avail.load_u16(RING + 2 * usize::from(self.size), Ordering::Relaxed)
    }

    pub(super) fn avail_event_offset(&self) -> usize {
        RING + 8 * usize::from(self.size)
    }
}
