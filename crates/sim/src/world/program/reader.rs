//! Readers: the background loads of the experiments.

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;
use crate::world::random::Random;

/// In which order a reader reads.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Order {
    /// From the beginning to the end, then again.
    Sequential,
    /// Anywhere.
    Random,
    /// One piece, then the one so many sectors behind its beginning.
    Strided(u64),
}

/// Reads a file for ever.
#[derive(Clone, Debug)]
pub struct Reader {
    /// The file.
    pub file: File,
    /// The order.
    pub order: Order,
    /// Sectors of one read.
    pub piece_sectors: u64,
    /// Past the page cache, so without read-ahead.
    pub direct: bool,
    /// CPU time for each read, at least 1 ns.
    pub think: Nanos,
    at: u64,
    thinks: bool,
}

impl Reader {
    /// Returns a reader through the page cache: 64 KiB at a time in order, as `dd` and `cat` do, or
    /// 4 KiB anywhere. Copying takes 0.3 ns per byte, and the system call 5 us.
    #[must_use]
    pub const fn new(file: File, order: Order) -> Self {
        let piece_sectors = if matches!(order, Order::Sequential) { 128 } else { 8 };
        let think = Nanos(5_000 + piece_sectors * 512 * 3 / 10);
        Self { file, order, piece_sectors, direct: false, think, at: 0, thinks: true }
    }

    /// Takes the step between two reads if it is next; returns how long it takes, else zero.
    pub(super) fn take_think(&mut self) -> Nanos {
        if core::mem::replace(&mut self.thinks, true) {
            return Nanos::ZERO;
        }
        self.think.max(Nanos(1))
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Step {
        let think = self.take_think();
        if think > Nanos::ZERO {
            return Step::Compute(think);
        }
        self.thinks = false;
        let File { start, sectors } = self.file;
        let pieces = (sectors / self.piece_sectors).max(1);
        let at = match self.order {
            Order::Sequential => self.at,
            Order::Random => random.below(pieces) * self.piece_sectors,
            Order::Strided(_) => self.at,
        };
        let step = match self.order {
            Order::Strided(stride) => stride,
            Order::Sequential | Order::Random => self.piece_sectors,
        };
        self.at = (at + step) % (pieces * self.piece_sectors);
        let span = Span::new(start + at, self.piece_sectors);
        if self.direct { Step::Direct(span) } else { Step::Read(span) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(order: Order) -> Vec<u64> {
        let mut reader = Reader::new(File { start: 1000, sectors: 512 }, order);
        let mut random = Random::new(1);
        let mut reads = Vec::new();
        while reads.len() < 6 {
            if let Step::Read(span) = reader.next(&mut random) {
                assert!(span.start >= 1000 && span.end <= 1512);
                reads.push(span.start - 1000);
            }
        }
        reads
    }

    #[test]
    fn readers_keep_their_order_and_start_again_at_the_end() {
        assert_eq!(positions(Order::Sequential), [0, 128, 256, 384, 0, 128]);
        assert_eq!(positions(Order::Strided(200)), [0, 200, 400, 88, 288, 488]);
        let random = positions(Order::Random);
        assert!(random.windows(2).any(|pair| pair[1] < pair[0]), "{random:?}");
    }
}
