//! Counts the allocations of a thread.
//!
//! The program that measures is also the daemon, so counting must cost the daemon next to nothing:
//! additions to variables of the thread, without a branch.
#![expect(unsafe_code, reason = "a global allocator is an unsafe trait; it only forwards")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    /// Allocated less freed, modulo 2^64.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// What a piece of work did to this thread's memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Allocations {
    /// How often something was allocated or changed its size.
    pub(crate) calls: u64,
    /// Bytes allocated and not freed; 0 if more were freed.
    pub(crate) bytes_kept: u64,
}

/// Counts what this thread allocates while `work` runs.
pub(crate) fn count(work: impl FnOnce()) -> Allocations {
    let (calls, bytes) = (CALLS.get(), BYTES.get());
    work();
    let kept = BYTES.get().wrapping_sub(bytes).cast_signed();
    Allocations { calls: CALLS.get() - calls, bytes_kept: u64::try_from(kept).unwrap_or(0) }
}

fn note(allocated: usize, freed: usize) {
    BYTES.set(BYTES.get().wrapping_add(allocated).wrapping_sub(freed));
}

fn note_call() {
    CALLS.set(CALLS.get().wrapping_add(1));
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call is forwarded to the system's allocator as it came; counting neither
// allocates nor unwinds: the counters are initialised by the compiler and have no destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note_call();
        note(layout.size(), 0);
        // SAFETY: the caller keeps the promises of this method, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note_call();
        note(layout.size(), 0);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        note_call();
        note(new_size, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(0, layout.size());
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn what_this_thread_allocates_is_counted_and_nothing_else() {
        let counted = |calls, bytes_kept| Allocations { calls, bytes_kept };
        assert_eq!(count(|| ()), counted(0, 0));
        assert_eq!(count(|| drop(black_box(Box::new(1_u64)))), counted(1, 0));
        let mut vector: Vec<u8> = Vec::with_capacity(1);
        assert_eq!(count(|| vector.reserve_exact(1000)), counted(1, 999));
        assert_eq!(count(|| drop(black_box(vector))), counted(0, 0));
        let other = std::thread::spawn(|| count(|| drop(black_box(vec![0_u8; 9]))));
        assert_eq!(other.join().unwrap(), counted(1, 0));
    }
}
