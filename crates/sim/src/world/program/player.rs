//! A player: soft real time.

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;

/// Plays a file: reads a piece for each frame, computes, and waits for the time of the next frame.
/// A frame that is not there in time is late; the picture stands still until it is, and time is
/// counted from there.
#[derive(Clone, Debug)]
pub struct Player {
    /// The file.
    pub file: File,
    /// From frame to frame.
    pub period: Nanos,
    /// Sectors of one frame.
    pub piece_sectors: u64,
    /// CPU time of one frame.
    pub think: Nanos,
    frames: u64,
    late: u64,
    due: Option<Nanos>,
    state: State,
}

/// It reads a piece so much at a time, as the read-ahead of most systems does.
const READ_SECTORS: u64 = 256;

#[derive(Clone, Copy, Debug)]
enum State {
    Waits,
    /// Has so many sectors of the piece.
    Reads(u64),
    Decodes,
}

impl Player {
    /// Returns a player of a compressed high-definition film: 8 Mb/s in 25 frames per second.
    #[must_use]
    pub const fn film(file: File) -> Self {
        Self {
            file,
            period: Nanos::from_millis(40),
            piece_sectors: 80,
            think: Nanos::from_millis(8),
            frames: 0,
            late: 0,
            due: None,
            state: State::Waits,
        }
    }

    /// Returns how many frames were shown, and how many of them late.
    #[must_use]
    pub const fn frames(&self) -> (u64, u64) {
        (self.frames, self.late)
    }

    pub(super) fn next(&mut self, now: Nanos) -> Step {
        match self.state {
            State::Waits => self.read(0),
            State::Reads(sectors) if sectors < self.piece_sectors => self.read(sectors),
            State::Reads(_) => {
                self.state = State::Decodes;
                Step::Compute(self.think)
            }
            State::Decodes => {
                self.state = State::Waits;
                self.frames += 1;
                // The first frame starts the clock.
                let due = self.due.unwrap_or(now);
                if now > due {
                    self.late += 1;
                }
                let next = due.max(now) + self.period;
                self.due = Some(next);
                // It begins a frame early, so that it has a period to get one.
                Step::Pause((next - self.period).max(now) - now)
            }
        }
    }

    /// Goes on with a piece of which it has `sectors`.
    fn read(&mut self, sectors: u64) -> Step {
        let length = (self.piece_sectors - sectors).min(READ_SECTORS);
        self.state = State::Reads(sectors + length);
        let pieces = (self.file.sectors / self.piece_sectors).max(1);
        let at = self.frames % pieces * self.piece_sectors + sectors;
        Step::Direct(Span::new(self.file.start + at, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays 100 frames that each take so long to read.
    fn play(read: Nanos) -> (u64, u64) {
        let mut player = Player::film(File { start: 0, sectors: 1 << 20 });
        let mut now = Nanos::ORIGIN;
        while player.frames < 100 {
            now += match player.next(now) {
                Step::Direct(_) => read,
                Step::Compute(time) | Step::Pause(time) => time,
                other => unreachable!("a player does not {other:?}"),
            };
        }
        player.frames()
    }

    #[test]
    fn frames_are_late_when_reading_takes_longer_than_a_period_leaves() {
        assert_eq!(play(Nanos::from_millis(31)), (100, 0));
        let (_, late) = play(Nanos::from_millis(34));
        assert!(late > 90, "{late}");
    }
}
