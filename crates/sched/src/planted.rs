//! Bugs that are planted on purpose, for the tests of those who look for bugs.
//!
//! Not in any program that is released: the feature `planted` is for tests alone.

/// A bug.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Planted {
    /// One request in ten thousand is forgotten.
    LosesRequests,
    /// One request in a thousand goes to the device again while it is there.
    ServesTwice,
    /// All groups have the same weight.
    ForgetsWeights,
    /// Nobody is called when a wait is over.
    MissesDeadlines,
    /// A flush is answered with the one that is at the device already.
    FlushesEarly,
    /// Requests go to the device whether they overlap or not.
    LetsOverlap,
}

impl Planted {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::LosesRequests,
        Self::ServesTwice,
        Self::ForgetsWeights,
        Self::MissesDeadlines,
        Self::FlushesEarly,
        Self::LetsOverlap,
    ];
}

/// Returns true once in so many cases, always the same ones.
pub(crate) const fn hits(case: u64, one_in: u64) -> bool {
    let mixed = (case ^ (case >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 20).is_multiple_of(one_in)
}
