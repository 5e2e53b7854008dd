//! What a successor must know if this process dies now.
//!
//! Imagine a clerk who may drop dead between any two strokes of the pen. So beside every vring
//! lies a page, kept by the VMM, on which he ticks each request when he takes it and crosses it
//! out when the guest has its answer. The next clerk reads the page, settles the one answer that
//! may have been half given, and takes up the ticked ones in the order in which they came.
//!
//! The page of one vring, little endian:
//!
//! | bytes | field           | meaning                                                    |
//! |-------|-----------------|------------------------------------------------------------|
//! | 0..8  | features        | 0                                                          |
//! | 8..10 | version         | 0 untouched, 1 this layout                                 |
//! | 10..12| desc_num        | number of states that follow                               |
//! | 12..14| last_batch_head | newest of the heads of the last batch, chained by `next`   |
//! | 14..16| used_idx        | used index of which all flags are known to be right        |
//! | 16..  | states          | 16 bytes per head: inflight u8, 5 unused, next u16, counter u64 |
//!
//! Stores that the next process must find in this order are separated by [`then`]. A killed
//! process has executed exactly the instructions before the kill, and memory outlives it; so it is
//! the compiler alone that must not reorder them.
//!
//! Source: vhost-user protocol specification, "Inflight I/O tracking", split virtqueues.

use std::fs::File;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::fs::{MemfdFlags, SealFlags};

use crate::memory::{MemoryError, Window};

/// The page of one vring.
#[derive(Debug)]
pub(crate) struct Inflight {
    page: Window,
    /// Number of states on the page.
    states: u16,
    /// Stamp for the next request.
    counter: u64,
}

/// The pages of all vrings of a session.
#[derive(Clone, Debug)]
pub(crate) struct InflightRegion {
    window: Window,
    vrings: u16,
    states: u16,
}

impl InflightRegion {
    /// Makes a memfd that holds `vrings` pages of `states` states, and returns it with its size
    /// in bytes. Nobody can shrink it.
    ///
    /// # Errors
    ///
    /// * Whatever the system says.
    pub(crate) fn create(vrings: u16, states: u16) -> Result<(File, u64), InflightError> {
        let bytes = region_bytes(vrings, states);
        let fd = rustix::fs::memfd_create(
            "evenkeel-inflight",
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )?;
        rustix::fs::ftruncate(&fd, bytes)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((File::from(fd), bytes))
    }

    /// Maps the region that a VMM brings: ours, or that of a predecessor.
    ///
    /// # Errors
    ///
    /// * [`InflightError::TooSmall`] if `bytes` do not hold so many pages.
    /// * [`InflightError::Memory`] if the file does not hold so many bytes.
    pub(crate) fn open(
        file: &File,
        file_offset: u64,
        bytes: u64,
        (vrings, states): (u16, u16),
    ) -> Result<Self, InflightError> {
        let needs = region_bytes(vrings, states);
        if bytes < needs {
            return Err(InflightError::TooSmall { has: bytes, needs });
        }
        let len = usize::try_from(needs).expect("at most 65535 pages of 1 MiB");
        let window = Window::map(file, file_offset, len)?;
        Ok(Self { window, vrings, states })
    }

    /// Returns the page of a vring; `None` if it is beyond those that the VMM counted.
    pub(crate) fn page(&self, index: u16) -> Option<Window> {
        let len = usize::from(self.states) * STATE_BYTES + HEADER_BYTES;
        let stride = len.next_multiple_of(PAGE_ALIGN);
        (index < self.vrings).then(|| self.window.part(usize::from(index) * stride, len))?
    }

    /// Returns the number of states on every page.
    pub(crate) fn states(&self) -> u16 {
        self.states
    }
}

impl Inflight {
    /// Opens a page for a vring whose used index in guest memory is `used_idx`, settles the last
    /// batch and returns the heads that were taken and not answered, in the order of taking.
    ///
    /// # Errors
    ///
    /// * [`InflightError::Foreign`] if the page was written in another layout.
    pub(crate) fn recover(
        page: Window,
        states: u16,
        used_idx: u16,
    ) -> Result<(Self, Vec<u16>), InflightError> {
        let version = page.load_u16(VERSION, Ordering::Relaxed);
        if version == 0 {
            page.store_u16(DESC_NUM, states, Ordering::Relaxed);
            page.store_u16(USED_IDX, used_idx, Ordering::Relaxed);
            then();
            page.store_u16(VERSION, 1, Ordering::Relaxed);
        }
        let desc_num = page.load_u16(DESC_NUM, Ordering::Relaxed);
        if version > 1 || desc_num != states {
            return Err(InflightError::Foreign { version, desc_num, states });
        }
        let mut inflight = Self { page, states, counter: 0 };
        inflight.settle(used_idx);
        let mut taken: Vec<(u64, u16)> = (0..states)
            .filter(|&head| inflight.page.load_u8(state(head)) != 0)
            .map(|head| (inflight.page.load_u64(state(head) + COUNTER), head))
            .collect();
        taken.sort_unstable();
        let newest = taken.last().map_or(0, |&(counter, _)| counter);
        inflight.counter = newest.wrapping_add(1);
        Ok((inflight, taken.into_iter().map(|(_, head)| head).collect()))
    }

    /// Crosses out the heads of a batch whose used index was published but whose flags may not
    /// have been cleared.
    fn settle(&mut self, used_idx: u16) {
        let batch = used_idx.wrapping_sub(self.page.load_u16(USED_IDX, Ordering::Relaxed));
        // More than the vring holds cannot have been one batch: the guest has reset the vring
        // since, after a drain that left no flag.
        if batch <= self.states {
            let mut head = self.page.load_u16(LAST_BATCH_HEAD, Ordering::Relaxed);
            for _ in 0..batch {
                if head >= self.states {
                    break;
                }
                self.page.store_u8(state(head), 0);
                head = self.page.load_u16(state(head) + NEXT, Ordering::Relaxed);
            }
        }
        then();
        self.page.store_u16(USED_IDX, used_idx, Ordering::Relaxed);
        then();
    }

    /// Ticks a head: from now on a successor would do this request again.
    #[inline]
    pub(crate) fn begin(&mut self, head: u16) {
        self.page.store_u64(state(head) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        then();
        self.page.store_u8(state(head), 1);
        then();
    }

    /// Crosses out a head that will not be answered.
    pub(crate) fn forget(&mut self, head: u16) {
        self.page.store_u8(state(head), 0);
    }

    /// Adds a head, whose answer is in the used ring but not published, to the batch.
    #[inline]
    pub(crate) fn link(&mut self, head: u16) {
        let newest = self.page.load_u16(LAST_BATCH_HEAD, Ordering::Relaxed);
        self.page.store_u16(state(head) + NEXT, newest, Ordering::Relaxed);
        then();
        self.page.store_u16(LAST_BATCH_HEAD, head, Ordering::Relaxed);
        then();
    }

    /// Crosses out the batch after its used index was published.
    #[inline]
    pub(crate) fn settle_batch(&mut self, batch: &[u16], used_idx: u16) {
        then();
        for &head in batch {
            self.page.store_u8(state(head), 0);
            then();
        }
        self.page.store_u16(USED_IDX, used_idx, Ordering::Relaxed);
        then();
    }

    /// Returns whether the VMM took the page away.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.page.is_poisoned()
    }
}

/// Why a region is refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum InflightError {
    #[error("the in-flight region has {has} bytes, its vrings need {needs}")]
    TooSmall { has: u64, needs: u64 },
    #[error("the in-flight region has version {version} and {desc_num} states, not 1 and {states}")]
    Foreign { version: u16, desc_num: u16, states: u16 },
    #[error("the in-flight region cannot be mapped: {0}")]
    Memory(#[from] MemoryError),
    #[error("the in-flight region cannot be made: {0}")]
    System(#[from] rustix::io::Errno),
}

/// Everything above this line is in memory before anything below it.
#[inline(always)]
fn then() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(test)]
    tests::cut();
}

/// Returns the offset of a head's state; its flag comes first.
#[inline]
fn state(head: u16) -> usize {
    HEADER_BYTES + usize::from(head) * STATE_BYTES
}

/// Returns the size of the pages of `vrings` vrings.
fn region_bytes(vrings: u16, states: u16) -> u64 {
    let page = usize::from(states) * STATE_BYTES + HEADER_BYTES;
    let page = u64::try_from(page.next_multiple_of(PAGE_ALIGN)).expect("usize has 64 bits");
    u64::from(vrings) * page
}

const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const HEADER_BYTES: usize = 16;
const NEXT: usize = 6;
const COUNTER: usize = 8;
const STATE_BYTES: usize = 16;
/// Source: the specification's `QUEUE_ALIGNMENT` for this region.
const PAGE_ALIGN: usize = 64;

#[cfg(test)]
mod tests;
