//! A thread of an application that loads many small files.
//!
//! The threads take files from one list, as people take numbers at a counter: who is held up at the
//! disk holds up nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;

/// One such thread: reads a file, computes, takes the next, and ends when there is none.
#[derive(Clone, Debug)]
pub struct Loader {
    area: File,
    files: Arc<[(File, Nanos)]>,
    taken: Arc<AtomicUsize>,
    think: Option<Nanos>,
}

impl Loader {
    /// Returns so many threads that share the files in `area`; beside each the time that it costs
    /// its reader, at least 1 ns.
    #[must_use]
    pub fn threads(area: File, files: &[(File, Nanos)], count: usize) -> Vec<Self> {
        let (files, taken) = (Arc::from(files), Arc::default());
        vec![Self { area, files, taken, think: None }; count]
    }

    pub(super) const fn area(&self) -> Span {
        self.area.span()
    }

    pub(super) fn next(&mut self) -> Step {
        if let Some(think) = self.think.take() {
            return Step::Compute(think.max(Nanos(1)));
        }
        // Atomic for the type's sake only: a world is one thread.
        let index = self.taken.fetch_add(1, Ordering::Relaxed);
        let Some(&(file, think)) = self.files.get(index) else { return Step::Exit };
        self.think = Some(think);
        Step::Fault(file.span())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_files_and_each_is_read_once() {
        let file = |start| (File { start, sectors: 8 }, Nanos(5));
        let mut threads = Loader::threads(file(0).0, &[file(8), file(24), file(16)], 2);
        let read = |thread: &mut Loader| match thread.next() {
            Step::Fault(span) => Some(span.start),
            _ => None,
        };
        assert_eq!((read(&mut threads[0]), read(&mut threads[1])), (Some(8), Some(24)));
        assert_eq!(threads[1].next(), Step::Compute(Nanos(5)));
        assert_eq!(read(&mut threads[1]), Some(16));
        assert_eq!(threads[0].next(), Step::Compute(Nanos(5)));
        assert_eq!(threads[0].next(), Step::Exit);
    }
}
