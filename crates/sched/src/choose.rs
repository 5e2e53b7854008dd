//! Which of two requests the head should visit next.
//!
//! The head sweeps upwards like a reader through a page. A word that it just passed may be picked
//! up by a short step back, but steps back cost more than steps ahead; and who has read to the
//! bottom starts again at the top rather than reading upwards.

/// How far and how gladly the head moves back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct BackSeek {
    /// Longest step back that is considered, in sectors.
    pub(crate) max_sectors: u64,
    /// How many times as expensive a sector is backwards.
    pub(crate) penalty: u32,
}

/// What the choice looks at.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Candidate {
    /// First sector.
    pub(crate) pos: u64,
    /// Whether somebody waits for it.
    pub(crate) sync: bool,
}

/// Returns whether `first` is to be visited before `second` by a head that stands at `last`.
///
/// Somebody who waits goes first. Then the shorter way wins, where sectors backwards count
/// [`penalty`](BackSeek::penalty) times and more than [`max_sectors`](BackSeek::max_sectors) of
/// them are out of question; if both are, one long step back to the smaller position is best. The
/// order of the arguments matters only for two requests alike in everything that counts.
///
/// Source: the choice shared by the anticipatory, CFQ and BFQ elevators of Linux; ours has no
/// requests marked as metadata, which a disk of a guest cannot tell.
#[inline]
pub(crate) fn goes_first(
    first: Candidate,
    second: Candidate,
    last: u64,
    back_seek: BackSeek,
) -> bool {
    if first.sync != second.sync {
        return first.sync;
    }
    match (distance(first.pos, last, back_seek), distance(second.pos, last, back_seek)) {
        (Some(a), Some(b)) if a == b => first.pos >= second.pos,
        (Some(a), Some(b)) => a < b,
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => first.pos <= second.pos,
    }
}

/// Returns what the way from `last` to `pos` costs, nothing if it lies too far back.
#[inline]
fn distance(pos: u64, last: u64, back_seek: BackSeek) -> Option<u64> {
    if pos >= last {
        return Some(pos - last);
    }
    let back = last - pos;
    (back <= back_seek.max_sectors).then(|| back.saturating_mul(u64::from(back_seek.penalty)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const BACK_SEEK: BackSeek = BackSeek { max_sectors: 32_768, penalty: 2 };

    fn winner(last: u64, first: u64, second: u64) -> u64 {
        let candidate = |pos| Candidate { pos, sync: true };
        if goes_first(candidate(first), candidate(second), last, BACK_SEEK) {
            first
        } else {
            second
        }
    }

    #[test]
    fn the_six_known_choices_come_out() {
        for (last, first, second, expected) in [
            (1_000, 1_100, 960, 960),
            (1_000, 1_080, 960, 1_080),
            (100_000, 50_000, 90_000, 90_000),
            (100_000, 50_000, 20_000, 20_000),
            (100_000, 200_000, 70_000, 70_000),
            (0, 0, 8, 0),
        ] {
            assert_eq!(winner(last, first, second), expected);
            assert_eq!(winner(last, second, first), expected, "whichever comes first");
        }
    }

    #[test]
    fn who_is_waited_for_goes_before_who_is_near() {
        let near = Candidate { pos: 100, sync: false };
        let far = Candidate { pos: 1 << 40, sync: true };
        assert!(goes_first(far, near, 100, BACK_SEEK));
        assert!(!goes_first(near, far, 100, BACK_SEEK));
    }

    #[test]
    fn the_order_of_the_arguments_matters_only_for_equals() {
        let mut random = Random::new(0xc400);
        for _ in 0..100_000 {
            let mut draw = || Candidate { pos: random.below(120_000), sync: random.below(4) > 0 };
            let (first, second) = (draw(), draw());
            let last = random.below(120_000);
            let forth = goes_first(first, second, last, BACK_SEEK);
            let back = goes_first(second, first, last, BACK_SEEK);
            assert_eq!(forth == back, first == second, "{first:?} {second:?} from {last}");
        }
    }

    #[test]
    fn positions_at_the_end_of_the_address_space_do_not_overflow() {
        let everywhere = BackSeek { max_sectors: u64::MAX, penalty: u32::MAX };
        let low = Candidate { pos: 0, sync: true };
        let high = Candidate { pos: u64::MAX, sync: true };
        assert!(goes_first(high, low, u64::MAX, everywhere));
        assert!(goes_first(low, high, 0, everywhere));
    }
}
