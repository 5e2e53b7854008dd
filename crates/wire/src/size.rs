//! Sizes as people write them.

use std::fmt;

/// Units that a size may carry, with their bytes. Powers of 1024, as QEMU counts them.
const UNITS: [(&str, u64); 5] =
    [("T", 1 << 40), ("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10), ("", 1)];

/// Why a text is not a size.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SizeError {
    /// No digits, a sign, a fraction or an unknown unit.
    Malformed,
    /// Zero bytes.
    Zero,
    /// More than 2^63 - 1 bytes, the largest file offset.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "not a size",
            Self::Zero => "a size of zero",
            Self::TooLarge => "larger than the largest file, 8 EiB",
        })
    }
}

impl std::error::Error for SizeError {}

/// Parses a size in bytes: a whole number, alone or with one of the units `K`, `M`, `G`, `T`.
///
/// Units are powers of 1024 and may be written as `G`, `g` or `GiB`.
///
/// # Errors
///
/// See [`SizeError`].
///
/// # Examples
///
/// ```
/// use evenkeel_wire::{SizeError, parse_size};
///
/// assert_eq!(parse_size("10G"), Ok(10 << 30));
/// assert_eq!(parse_size("4096"), Ok(4096));
/// assert_eq!(parse_size("10 apples"), Err(SizeError::Malformed));
/// ```
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let text = text.trim();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(SizeError::Malformed);
    }
    let unit = unit.trim().to_ascii_uppercase();
    let unit = unit.strip_suffix("IB").unwrap_or(&unit);
    let (_, factor) =
        UNITS.into_iter().find(|(name, _)| *name == unit).ok_or(SizeError::Malformed)?;
    // Digits only, so the one way to fail is too many of them.
    let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
    let bytes = number.checked_mul(factor).ok_or(SizeError::TooLarge)?;
    match bytes {
        0 => Err(SizeError::Zero),
        bytes if i64::try_from(bytes).is_err() => Err(SizeError::TooLarge),
        bytes => Ok(bytes),
    }
}

/// Formats `bytes` with the largest unit that divides it, so that [`parse_size`] gives it back.
///
/// # Examples
///
/// ```
/// assert_eq!(evenkeel_wire::format_size(10 << 30), "10G");
/// assert_eq!(evenkeel_wire::format_size(1025), "1025");
/// ```
#[must_use]
pub fn format_size(bytes: u64) -> String {
    let (unit, factor) = UNITS
        .into_iter()
        .find(|(_, factor)| bytes != 0 && bytes.is_multiple_of(*factor))
        .unwrap_or(("", 1));
    format!("{}{unit}", bytes / factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_a_power_of_1024() {
        for (text, bytes) in [("1", 1), ("1K", 1 << 10), ("2m", 2 << 20), ("3 GiB", 3 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert_eq!(parse_size("1T"), Ok(1 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_reason() {
        for text in ["", "G", "-1", "1.5G", "1Q", "1 G B", "0x10"] {
            assert_eq!(parse_size(text), Err(SizeError::Malformed), "{text}");
        }
        assert_eq!(parse_size("0G"), Err(SizeError::Zero));
        assert_eq!(parse_size("8388608T"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("99999999999999999999"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("8388607T"), Ok(8_388_607 << 40));
    }

    #[test]
    fn a_formatted_size_parses_to_itself() {
        for bytes in [1, 511, 512, 1 << 20, (1 << 20) + 1, 10 << 30, 5 << 40] {
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(0), "0");
    }
}
