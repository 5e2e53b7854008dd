//! A database: reads a few pages at random, then commits.

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;
use crate::world::random::Random;

/// A page, in sectors: 8 KiB.
const PAGE: u64 = 16;

/// Answers transactions one after the other: reads, computes, appends to its log, waits until that
/// is durable.
#[derive(Clone, Debug)]
pub struct Database {
    /// The pages.
    pub data: File,
    /// The log.
    pub log: File,
    /// Pages read for each transaction.
    pub reads: u32,
    /// CPU time of each transaction.
    pub think: Nanos,
    stage: u32,
    log_at: u64,
    began: Option<Nanos>,
    transactions: u64,
    longest: Nanos,
}

impl Database {
    /// Returns a database whose transactions read 4 pages and compute 0.5 ms.
    #[must_use]
    pub const fn new(data: File, log: File) -> Self {
        Self {
            data,
            log,
            reads: 4,
            think: Nanos::from_micros(500),
            stage: 0,
            log_at: 0,
            began: None,
            transactions: 0,
            longest: Nanos::ZERO,
        }
    }

    /// Returns how many transactions were answered, and how long the longest took.
    #[must_use]
    pub const fn transactions(&self) -> (u64, Nanos) {
        (self.transactions, self.longest)
    }

    pub(super) fn next(&mut self, now: Nanos, random: &mut Random) -> Step {
        if self.stage == 0
            && let Some(began) = self.began.replace(now)
        {
            self.transactions += 1;
            self.longest = self.longest.max(now - began);
        }
        let stage = self.stage;
        self.stage += 1;
        if stage < self.reads {
            let page = random.below((self.data.sectors / PAGE).max(1));
            return Step::Direct(Span::new(self.data.start + page * PAGE, PAGE));
        }
        match stage - self.reads {
            0 => Step::Compute(self.think),
            1 => {
                let pages = (self.log.sectors / PAGE).max(1);
                let at = self.log_at % pages * PAGE;
                self.log_at += 1;
                Step::Write(Span::new(self.log.start + at, PAGE))
            }
            _ => {
                self.stage = 0;
                Step::Sync
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_is_counted_when_its_log_is_durable() {
        let file = File { start: 0, sectors: 1 << 16 };
        let log = File { start: 1 << 20, sectors: 1 << 10 };
        let mut database = Database::new(file, log);
        let mut random = Random::new(1);
        let mut now = Nanos::ORIGIN;
        let mut syncs = 0;
        for _ in 0..70 {
            let step = database.next(now, &mut random);
            now += Nanos::from_millis(1);
            if step == Step::Sync {
                syncs += 1;
                now += Nanos::from_millis(20);
            }
        }
        assert_eq!(syncs, 10);
        assert_eq!(database.transactions(), (9, Nanos::from_millis(27)));
    }
}
