//! Who of a VM waits for a read.
//!
//! A process that waits for one read does not begin another: so whoever waits is not the one that
//! reads elsewhere now.

use evenkeel_sched::Nanos;

use super::{CANDIDATES, STREAMS};

/// For how long, or up to twice as long, the most reads under way are remembered.
const MEMORY: Nanos = Nanos::from_secs(16);

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

    fn is_of_rest(self) -> bool {
        self.stream().is_none()
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
    seats: [u16; STREAMS + CANDIDATES],
    rest: u16,
    /// The most of the present stretch of time and of the one before.
    most: [u16; 2],
    stretch: u64,
}

impl Waiting {
    pub(super) fn begin(&mut self, now: Nanos, seat: Seat) {
        let count = &mut self.seats[usize::from(seat.0)];
        *count = count.saturating_add(1);
        if seat.is_of_rest() {
            self.turn(now);
            self.rest = self.rest.saturating_add(1);
            self.most[0] = self.most[0].max(self.rest);
        }
    }

    pub(super) fn end(&mut self, now: Nanos, seat: Seat) {
        let count = &mut self.seats[usize::from(seat.0)];
        // Reads from before streams were forgotten are not counted.
        if *count > 0 {
            *count -= 1;
            if seat.is_of_rest() {
                self.turn(now);
                self.rest -= 1;
            }
        }
    }

    /// Forgets what is too long ago.
    pub(super) fn turn(&mut self, now: Nanos) {
        let stretch = now.0 / MEMORY.0;
        if stretch != self.stretch {
            let earlier = if stretch == self.stretch + 1 { self.most[0] } else { self.rest };
            (self.most, self.stretch) = ([self.rest, earlier], stretch);
        }
    }

    /// Returns how many reads outside of streams were under way together at most in the last
    /// [`MEMORY`] or two.
    pub(super) fn most_of_rest(&self) -> u16 {
        self.most[0].max(self.most[1])
    }

    /// Returns whether a stream waits.
    pub(super) fn waits(&self, stream: usize) -> bool {
        self.seats[stream] > 0
    }

    /// Returns how many reads outside of streams are under way.
    pub(super) fn rest(&self) -> u16 {
        self.rest
    }

    /// Returns how many reads outside of streams are under way that are not a candidate's.
    pub(super) fn rest_without(&self, candidate: usize) -> u16 {
        self.rest - self.seats[STREAMS + candidate]
    }
}
