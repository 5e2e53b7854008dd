//! Randomness that follows from a seed.

use std::env;

/// A small random number generator (xorshift64*).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds shall not begin alike; zero would stay zero.
        let mixed = (seed ^ (seed >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = Self((mixed ^ (mixed >> 29)) | 1);
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number from 0 to `end - 1`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap()
    }

    /// Returns true in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }
}

/// Runs `case` for many seeds. `EVENKEEL_SEED` and `EVENKEEL_CASES` choose other ones; a failing seed
/// is printed, so that `EVENKEEL_SEED=... EVENKEEL_CASES=1` repeats it alone.
pub(crate) fn for_many_seeds(cases: u64, mut case: impl FnMut(u64)) {
    struct Story(u64);
    impl Drop for Story {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("repeat with EVENKEEL_SEED={} EVENKEEL_CASES=1", self.0);
            }
        }
    }
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    let first = number("EVENKEEL_SEED").unwrap_or(1);
    for seed in first..first + number("EVENKEEL_CASES").unwrap_or(cases) {
        let story = Story(seed);
        case(seed);
        drop(story);
    }
}
