//! Ranges of what an operator may set.

use core::fmt;

/// A tunable is outside its range; use a value inside. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OutOfRange {
    /// Name of the tunable.
    pub field: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The least that works.
    pub min: u64,
    /// The most that works.
    pub max: u64,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, min, max } = self;
        write!(f, "{field} is {value}; choose a value from {min} to {max}")
    }
}

impl core::error::Error for OutOfRange {}

/// Returns the first value that is outside its range.
pub(crate) fn check<const N: usize>(
    values: [(&'static str, u64, u64, u64); N],
) -> Result<(), OutOfRange> {
    for (field, value, min, max) in values {
        if value < min || value > max {
            return Err(OutOfRange { field, value, min, max });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn both_ends_are_inside_and_what_lies_beyond_is_named_with_its_range() {
        assert_eq!(check([("low", 1, 1, 9), ("high", 9, 1, 9)]), Ok(()));
        for value in [0, 10] {
            let error = check([("fine", 5, 1, 9), ("depth", value, 1, 9)]).unwrap_err();
            assert_eq!(error, OutOfRange { field: "depth", value, min: 1, max: 9 });
        }
        let error = check([("depth", 0, 1, 9)]).unwrap_err();
        assert_eq!(error.to_string(), "depth is 0; choose a value from 1 to 9");
    }
}
