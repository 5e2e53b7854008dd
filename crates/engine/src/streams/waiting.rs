//! Who of a VM waits for a read.
//!
//! A process that waits for one read does not begin another: so whoever waits is not the one that
//! reads elsewhere now.

use evenkeel_sched::Nanos;

use super::{CANDIDATES, STREAMS};

/// For how long, or up to twice as long, the most reads under way are remembered.
const LATELY: Nanos = Nanos::from_secs(16);

/// Where a read counts: in a stream, or at a candidate.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seat(u8);

impl Seat {
    pub(super) const fn of_stream(place: usize) -> Self {
        Self::at(place)
    }

    pub(super) const fn of_candidate(place: usize) -> Self {
        Self::at(STREAMS + place)
    }

    #[expect(clippy::cast_possible_truncation, reason = "there are 16 seats")]
    const fn at(index: usize) -> Self {
        Self(index as u8)
    }

    /// Returns the place of the stream.
    pub(super) fn stream(self) -> Option<usize> {
        let place = usize::from(self.0);
        (place < STREAMS).then_some(place)
    }
}

/// How many reads are under way, by seat, and how many outside of streams there were at most of
/// late.
///
/// A candidate that takes the place of another inherits what is still under way there, so that too
/// few others seem to wait, never too many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    seats: [u32; STREAMS + CANDIDATES],
    /// The most of the present stretch of time and of the one before.
    most: [u32; 2],
    stretch: u64,
}

impl Waiting {
    pub(super) fn begin(&mut self, now: Nanos, seat: Seat) {
        self.turn(now);
        self.seats[usize::from(seat.0)] += 1;
        self.most[0] = self.most[0].max(self.rest());
    }

    pub(super) fn end(&mut self, now: Nanos, seat: Seat) {
        self.turn(now);
        let count = &mut self.seats[usize::from(seat.0)];
        // Reads from before streams were forgotten are not counted.
        *count = count.saturating_sub(1);
    }

    /// Forgets what is too long ago.
    pub(super) fn turn(&mut self, now: Nanos) {
        let stretch = now.0 / LATELY.0;
        if stretch != self.stretch {
            let rest = self.rest();
            let earlier = if stretch == self.stretch + 1 { self.most[0] } else { rest };
            (self.most, self.stretch) = ([rest, earlier], stretch);
        }
    }

    /// Returns how many reads outside of streams were under way together at most in the last
    /// [`LATELY`] or two.
    pub(super) fn most_of_rest(&self) -> u32 {
        self.most[0].max(self.most[1])
    }

    /// Returns whether a stream waits.
    pub(super) fn waits(&self, stream: usize) -> bool {
        self.seats[stream] > 0
    }

    /// Returns how many reads outside of streams are under way.
    pub(super) fn rest(&self) -> u32 {
        self.seats[STREAMS..].iter().sum()
    }

    /// Returns how many reads outside of streams are under way that are not a candidate's.
    pub(super) fn rest_without(&self, candidate: usize) -> u32 {
        self.rest() - self.seats[STREAMS + candidate]
    }
}
