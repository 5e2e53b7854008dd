//! Writers: fill the page cache as fast as the kernel lets them.

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;
use crate::world::random::Random;

/// Writes a file for ever.
#[derive(Clone, Debug)]
pub struct Writer {
    /// The file.
    pub file: File,
    /// Anywhere instead of in order.
    pub random: bool,
    /// Sectors of one write.
    pub piece_sectors: u64,
    /// CPU time for each write, at least 1 ns.
    pub think: Nanos,
    at: u64,
    thinks: bool,
}

impl Writer {
    /// Returns a writer of 64 KiB in order, or of 4 KiB anywhere; making and copying the data takes
    /// 2 ns per byte, and the system call 5 us.
    #[must_use]
    pub const fn new(file: File, random: bool) -> Self {
        let piece_sectors = if random { 8 } else { 128 };
        let think = Nanos(5_000 + piece_sectors * 512 * 2);
        Self { file, random, piece_sectors, think, at: 0, thinks: true }
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Step {
        self.thinks = !self.thinks;
        if self.thinks {
            return Step::Compute(self.think.max(Nanos(1)));
        }
        let pieces = (self.file.sectors / self.piece_sectors).max(1);
        if self.random {
            self.at = random.below(pieces);
        }
        let span = Span::new(self.file.start + self.at * self.piece_sectors, self.piece_sectors);
        self.at = (self.at + 1) % pieces;
        Step::Write(span)
    }
}
