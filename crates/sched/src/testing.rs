//! Help for the unit tests of this room.

/// A small random number generator (xorshift64*), so that every history follows from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
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
}

/// Returns how many random cases a test tries: `EVENKEEL_CASES`, or as many as it asks for.
pub(crate) fn cases(usual: u32) -> u32 {
    let number = std::env::var("EVENKEEL_CASES").ok();
    number.map_or(usual, |number| number.parse().expect("EVENKEEL_CASES is a number"))
}

/// Runs `case` for many seeds, and says which one failed.
///
/// `EVENKEEL_SEED` chooses the first seed, `EVENKEEL_CASES` how many there are; so
/// `EVENKEEL_SEED=... EVENKEEL_CASES=1` repeats a failure alone.
pub(crate) fn for_many_seeds(usual: u32, mut case: impl FnMut(u64)) {
    struct Story(u64);
    impl Drop for Story {
        fn drop(&mut self) {
            if std::thread::panicking() {
                std::eprintln!("repeat with EVENKEEL_SEED={} EVENKEEL_CASES=1", self.0);
            }
        }
    }
    let first = std::env::var("EVENKEEL_SEED").ok();
    let first = first.map_or(1, |seed| seed.parse().expect("EVENKEEL_SEED is a number"));
    for seed in first..first + u64::from(cases(usual)) {
        let story = Story(seed);
        case(seed);
        drop(story);
    }
}
