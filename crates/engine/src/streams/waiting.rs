//! Who of a VM waits for a read.
//!
//! A process that waits for one read does not begin another: so whoever waits is not the one that
//! reads elsewhere now. As many as *usual* wait if no more did in seven eighths of the time in which
//! anybody waited of late; the rest is what programs did that came and went.

use evenkeel_sched::Nanos;

use super::{CANDIDATES, STREAMS};

/// For how long, or up to twice as long, it is remembered how many waited.
const LATELY: Nanos = Nanos::from_secs(8);
/// What is usual is reckoned again after so long.
const RECKON: Nanos = Nanos::from_millis(250);
/// Numbers that are told apart: each up to 16, then four for each power of two up to 255.
const LEVELS: usize = 32;

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

/// How many reads are under way, by seat, and how many outside of streams usually are.
///
/// A candidate that takes the place of another inherits what is still under way there, so that too
/// few others seem to wait, never too many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    seats: [u32; STREAMS + CANDIDATES],
    /// Microseconds for which so many waited, in the present stretch of time and the one before.
    spent: [[u32; LEVELS]; 2],
    stretch: u64,
    /// Up to when that is counted.
    counted: Nanos,
    usual: u32,
    reckoned: Nanos,
}

impl Waiting {
    pub(super) fn begin(&mut self, now: Nanos, seat: Seat) {
        self.turn(now);
        self.seats[usize::from(seat.0)] += 1;
        // However fast the answer is, it was waited for.
        self.spend(1);
    }

    pub(super) fn end(&mut self, now: Nanos, seat: Seat) {
        self.turn(now);
        let count = &mut self.seats[usize::from(seat.0)];
        // Reads from before streams were forgotten are not counted.
        *count = count.saturating_sub(1);
    }

    /// Counts the time that has passed, and forgets what is too long ago.
    pub(super) fn turn(&mut self, now: Nanos) {
        let stretch = now.0 / LATELY.0;
        if stretch != self.stretch {
            let before = self.spent[0];
            let is_next = stretch == self.stretch + 1;
            self.spent = [[0; LEVELS], if is_next { before } else { [0; LEVELS] }];
            self.stretch = stretch;
        }
        let passed = u32::try_from(now.since(self.counted).0 / 1000).unwrap_or(u32::MAX);
        if passed == 0 {
            return;
        }
        self.spend(passed);
        self.counted = now;
        if now.since(self.reckoned) > RECKON {
            (self.usual, self.reckoned) = (self.reckon(), now);
        }
    }

    /// Counts so many microseconds in which as many waited as do now.
    fn spend(&mut self, time: u32) {
        let rest = self.rest();
        if rest > 0 {
            // A stretch is shorter than what fits; only the first wait may be longer.
            let spent = &mut self.spent[0][level(rest)];
            *spent = spent.saturating_add(time);
        }
    }

    fn reckon(&self) -> u32 {
        let [present, before] = &self.spent;
        let spent = |level: usize| u64::from(present[level]) + u64::from(before[level]);
        let total: u64 = (0..LEVELS).map(spent).sum();
        let mut above = total;
        for level in 0..LEVELS {
            above -= spent(level);
            if above <= total / 8 {
                return most_of(level);
            }
        }
        unreachable!("nothing is above the last level")
    }

    /// Returns how many reads outside of streams are usually under way at most.
    pub(super) fn usual(&self) -> u32 {
        self.usual
    }

    /// Returns whether any read is under way.
    pub(super) fn does_anybody(&self) -> bool {
        self.seats.iter().any(|&count| count > 0)
    }

    /// Returns whether any read is under way elsewhere.
    pub(super) fn do_others(&self, seat: Seat) -> bool {
        let mut seats = self.seats.iter().enumerate();
        seats.any(|(place, &count)| count > 0 && place != usize::from(seat.0))
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

/// Returns at which level a number counts.
fn level(number: u32) -> usize {
    let level = if number < 16 {
        number
    } else {
        let power = number.ilog2();
        16 + 4 * (power - 4) + ((number >> (power - 2)) & 3)
    };
    (level as usize).min(LEVELS - 1)
}

/// Returns the largest number at a level; beyond what is told apart, none is large enough.
fn most_of(level: usize) -> u32 {
    let level = u32::try_from(level).expect("below 32");
    match level {
        0..16 => level,
        16..31 => {
            let (power, quarter) = (4 + (level - 16) / 4, (level - 16) % 4);
            (1 << power) + ((quarter + 1) << (power - 2)) - 1
        }
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_at_a_level_that_reaches_as_far() {
        assert_eq!((level(0), most_of(0), level(15), most_of(15)), (0, 0, 15, 15));
        for number in 0..300 {
            let at = level(number);
            assert!(number <= most_of(at), "{number}");
            assert!(at == 0 || most_of(at - 1) < number, "{number}");
        }
        assert_eq!(most_of(level(224)), u32::MAX);
    }

    #[test]
    fn who_comes_and_goes_does_not_change_what_is_usual() {
        let mut waiting = Waiting::default();
        let seat = Seat::of_candidate(3);
        let mut now = Nanos::ORIGIN;
        for _ in 0..5 {
            waiting.begin(now, seat);
        }
        for round in 0..20 {
            now += Nanos::from_millis(900);
            waiting.begin(now, seat);
            waiting.begin(now, seat);
            now += Nanos::from_millis(100);
            waiting.end(now, seat);
            waiting.end(now, seat);
            assert!(round < 2 || waiting.usual() == 5, "round {round}: {}", waiting.usual());
        }
        // Two that stay become usual.
        waiting.begin(now, seat);
        waiting.begin(now, seat);
        now += Nanos::from_secs(20);
        waiting.end(now, seat);
        assert_eq!(waiting.usual(), 7);
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut waiting = Waiting::default();
        let seat = Seat::of_candidate(0);
        waiting.begin(Nanos::ORIGIN, seat);
        waiting.end(Nanos::ORIGIN + Nanos::from_secs(4), seat);
        assert_eq!(waiting.usual(), 1);
        waiting.turn(Nanos::ORIGIN + Nanos::from_secs(40));
        assert_eq!(waiting.usual(), 0);
    }
}
