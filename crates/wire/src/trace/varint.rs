//! Numbers in as few bytes as they need.
//!
//! Seven bits a byte, the least significant first; the highest bit says that another byte follows.
//! Signed differences are folded first, so that small ones of either sign stay small.

/// The most bytes that a number takes.
pub(super) const VARINT_BYTES_MAX: usize = 10;

pub(super) fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(low_seven(value) | 0x80);
        value >>= 7;
    }
    bytes.push(low_seven(value));
}

fn low_seven(value: u64) -> u8 {
    u8::try_from(value & 0x7f).expect("seven bits")
}

/// Returns the number at the beginning of `bytes` and how many bytes it takes; `None` if it does
/// not end, or does not fit.
pub(super) fn get(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0;
    for (at, &byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        if at == VARINT_BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        value |= bits << (7 * at);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Folds the difference from `before` to `value`.
pub(super) const fn fold(before: u64, value: u64) -> u64 {
    let difference = value.wrapping_sub(before);
    (difference << 1) ^ (if difference >> 63 == 1 { u64::MAX } else { 0 })
}

/// The reverse of [`fold`].
pub(super) const fn unfold(before: u64, folded: u64) -> u64 {
    let sign = if folded & 1 == 1 { u64::MAX } else { 0 };
    before.wrapping_add((folded >> 1) ^ sign)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_and_small_ones_take_one_byte() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            assert_eq!(get(&bytes), Some((value, bytes.len())));
            assert_eq!(bytes.len() == 1, value < 128);
        }
    }

    #[test]
    fn a_number_that_does_not_end_or_does_not_fit_is_none() {
        assert_eq!(get(&[]), None);
        assert_eq!(get(&[0x80; 9]), None);
        assert_eq!(get(&[0xff; 10]), None);
        let mut long = [0xff; 10];
        long[9] = 2;
        assert_eq!(get(&long), None);
        long[9] = 1;
        assert_eq!(get(&long), Some((u64::MAX, 10)));
    }

    #[test]
    fn differences_of_both_signs_come_back_and_small_ones_stay_small() {
        for (before, value) in [(0, 0), (5, 4), (4, 5), (0, u64::MAX), (u64::MAX, 0), (1, 1 << 63)]
        {
            assert_eq!(unfold(before, fold(before, value)), value);
        }
        assert_eq!((fold(5, 4), fold(4, 5)), (1, 2));
    }
}
