//! How much of a long request goes to the device at a time.
//!
//! A guest may ask for gigabytes at once. What is at the device can no longer be scheduled, so such
//! a request goes there piece by piece, and every other VM has its turn in between. A piece is long
//! enough to cost nothing, a mebibyte, unless the device is so slow that the others would notice
//! even that.
//!
//! How fast the device is, is seen from the pieces themselves: while one is at the device, the
//! device is busy, so what it moves meanwhile over how long that takes is its rate.

use evenkeel_sched::{Nanos, Op};

use crate::request::Request;
use crate::slots::{DeviceOp, Slot};

/// The longest piece, in sectors: 1 MiB. Every device that reaches its best rate at all reaches it
/// with commands of this length.
pub(crate) const PIECE_SECTORS_MAX: u32 = 2048;
/// What a piece is never shorter than but for the end of a request, in sectors: 128 KiB. Shorter
/// ones would spend a disk's time on seeks.
const PIECE_SECTORS_MIN: u32 = 256;
/// Pieces begin and end at multiples of so many sectors: the largest block that devices have.
const BLOCK_SECTORS: u32 = 8;
/// How long a piece may hold the device, about.
const HOLD: Nanos = Nanos::from_millis(30);
const SECOND: u64 = 1_000_000_000;
/// A device that looks slower than believed is believed so only by this part of the difference: it
/// may have had other things to do.
const FORGET: u64 = 8;

/// The length of pieces, and what the device is measured by.
#[derive(Debug)]
pub(crate) struct Pieces {
    /// Sectors that the device has moved.
    moved: u64,
    /// Sectors a second; zero while unknown.
    rate: u64,
    /// The longest piece now, in sectors.
    most: u32,
}

impl Default for Pieces {
    fn default() -> Self {
        Self { moved: 0, rate: 0, most: PIECE_SECTORS_MAX }
    }
}

impl Pieces {
    /// Returns the length of the first piece of a request, in sectors: all of it if it is not too
    /// long, or moves no data.
    #[inline]
    pub(crate) fn first(&self, request: &Request) -> u32 {
        match request.op {
            Op::Read | Op::Write => self.of(request.nr_sectors),
            Op::Discard | Op::WriteZeroes => request.nr_sectors,
        }
    }

    /// Returns the length of the next piece if so many sectors are left. Pieces are about equal, so
    /// that none of them is too short to be worth a command.
    #[inline]
    pub(crate) fn of(&self, left: u32) -> u32 {
        if left <= self.most {
            return left;
        }
        left.div_ceil(left.div_ceil(self.most)).next_multiple_of(BLOCK_SECTORS)
    }

    /// Returns what the device has moved so far, in sectors.
    pub(crate) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Takes what a command that is done has to say about the device's rate.
    #[inline]
    pub(crate) fn completed(&mut self, now: Nanos, slot: &Slot) {
        if !matches!(slot.op, DeviceOp::Read | DeviceOp::Write) {
            return;
        }
        self.add(slot.whole_sectors);
        if slot.is_split() {
            self.learn(now - slot.piece_sent, self.moved - slot.moved_before);
        }
    }

    /// Notes that a command of so many sectors is done.
    #[inline]
    pub(crate) fn add(&mut self, nr_sectors: u32) {
        self.moved += u64::from(nr_sectors);
    }

    /// Learns from a piece that was at the device for `span`, in which `sectors` were moved.
    pub(crate) fn learn(&mut self, span: Nanos, sectors: u64) {
        let rate = sectors.saturating_mul(SECOND) / span.0.max(1);
        self.rate = if rate < self.rate { self.rate - (self.rate - rate) / FORGET } else { rate };
        let sectors = self.rate.saturating_mul(HOLD.0) / SECOND;
        let sectors = u32::try_from(sectors).unwrap_or(PIECE_SECTORS_MAX);
        let sectors = sectors.clamp(PIECE_SECTORS_MIN, PIECE_SECTORS_MAX);
        self.most = sectors - sectors % BLOCK_SECTORS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a device of so many MiB a second move one piece after the other of a long request.
    fn lengths(mib_per_s: u64, pieces: usize) -> Vec<u32> {
        let mut rule = Pieces::default();
        (0..pieces)
            .map(|_| {
                let piece = rule.of(1 << 20);
                rule.add(piece);
                rule.learn(Nanos(u64::from(piece) * SECOND / (mib_per_s * 2048)), u64::from(piece));
                piece
            })
            .collect()
    }

    #[test]
    fn a_fast_device_gets_a_mebibyte_at_a_time() {
        assert_eq!(lengths(500, 20), [2048; 20]);
    }

    #[test]
    fn a_piece_holds_a_slow_device_for_about_thirty_milliseconds() {
        let [.., last] = lengths(10, 10)[..] else { unreachable!("ten were asked for") };
        // 10 MiB/s for 30 ms are 614 sectors.
        assert!((600..=616).contains(&last), "{last}");
    }

    #[test]
    fn a_piece_is_never_shorter_than_128_kib() {
        assert_eq!(lengths(1, 10).last(), Some(&256));
    }

    #[test]
    fn pieces_are_about_equal_and_make_up_the_request() {
        let rule = Pieces::default();
        for all in [2049, 2560, 4096, 4097, 8_388_607] {
            let (mut left, mut pieces) = (all, Vec::new());
            while left > 0 {
                let piece = rule.of(left);
                pieces.push(piece);
                left -= piece;
            }
            let (last, others) = pieces.split_last().expect("there is one");
            assert!(others.iter().all(|&piece| (1024..=2048).contains(&piece) && piece % 8 == 0));
            assert!((1000..=2048).contains(last), "{all}: {pieces:?}");
        }
    }

    #[test]
    fn one_slow_piece_is_no_slow_device() {
        let mut rule = Pieces::default();
        rule.learn(Nanos::from_millis(2), 2048);
        rule.learn(Nanos::from_millis(200), 2048);
        assert_eq!(rule.of(1 << 20), 2048);
    }
}
