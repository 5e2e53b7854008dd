//! A queue by age whose links lie in the request table.

use crate::table::Table;
use crate::tree::{NIL, some};

/// A first-in, first-out list of waiting requests; a request is in at most one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Fifo {
    /// The list without requests.
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL };

    /// Returns the oldest request.
    #[inline]
    pub(crate) const fn head(&self) -> Option<u32> {
        some(self.head)
    }

    /// Adds a request behind all others.
    #[inline]
    pub(crate) fn push(&mut self, table: &mut Table, index: u32) {
        let record = table.record_mut(index);
        record.older = self.tail;
        record.younger = NIL;
        if self.tail == NIL {
            self.head = index;
        } else {
            table.record_mut(self.tail).younger = index;
        }
        self.tail = index;
    }

    /// Takes out a request, which must be in this list.
    #[inline]
    pub(crate) fn remove(&mut self, table: &mut Table, index: u32) {
        let record = table.record_mut(index);
        let (older, younger) = (record.older, record.younger);
        (record.older, record.younger) = (NIL, NIL);
        if older == NIL {
            self.head = younger;
        } else {
            table.record_mut(older).younger = younger;
        }
        if younger == NIL {
            self.tail = older;
        } else {
            table.record_mut(younger).older = older;
        }
    }

    /// Walks the list and returns its length.
    ///
    /// # Panics
    ///
    /// Panics if its links are broken or a request does not wait.
    pub(crate) fn check(&self, table: &Table) -> u32 {
        let (mut count, mut previous, mut at) = (0, NIL, self.head);
        while at != NIL {
            let record = table.record(at);
            assert_eq!(record.older, previous, "a request knows the next older one");
            assert!(record.is_waiting(), "only waiting requests are in a list by age");
            (previous, at) = (at, record.younger);
            count += 1;
        }
        assert_eq!(self.tail, previous, "the list knows its youngest request");
        count
    }
}
