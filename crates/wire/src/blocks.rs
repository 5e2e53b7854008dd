//! How a pool hands requests to its device, as an operator writes it: `static 8`, `subset 4`.

use std::fmt;
use std::str::FromStr;

/// The most commands at a device: one deeper holds more than it can finish before anybody waits
/// too long.
pub const DEPTH_MAX: u32 = 1024;

/// How many requests go to the device together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Block {
    /// All that wait when the device has room.
    #[default]
    Dynamic,
    /// This many, 1 to [`DEPTH_MAX`]; fewer only after a millisecond.
    Static(u32),
}

/// How the device's answers are taken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Responses {
    /// Each as soon as it is there.
    #[default]
    Each,
    /// All of a block together.
    Block,
    /// In groups of this many, 1 to [`DEPTH_MAX`].
    Subset(u32),
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dynamic => f.write_str("dynamic"),
            Self::Static(size) => write!(f, "static {size}"),
        }
    }
}

impl fmt::Display for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each => f.write_str("each"),
            Self::Block => f.write_str("block"),
            Self::Subset(size) => write!(f, "subset {size}"),
        }
    }
}

impl FromStr for Block {
    type Err = &'static str;

    /// Parses `dynamic` or `static N`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "dynamic" => Ok(Self::Dynamic),
            text => numbered(text, "static").map(Self::Static).ok_or(BLOCK_REMEDY),
        }
    }
}

impl FromStr for Responses {
    type Err = &'static str;

    /// Parses `each`, `block` or `subset N`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "each" => Ok(Self::Each),
            "block" => Ok(Self::Block),
            text => numbered(text, "subset").map(Self::Subset).ok_or(RESPONSES_REMEDY),
        }
    }
}

/// What to write for a pool's `block`.
pub(crate) const BLOCK_REMEDY: &str =
    "use \"dynamic\", or \"static N\" with N from 1 to 1024, such as \"static 8\"";
/// What to write for a pool's `responses`.
pub(crate) const RESPONSES_REMEDY: &str =
    "use \"each\", \"block\", or \"subset N\" with N from 1 to 1024, such as \"subset 4\"";

/// Parses `WORD N`.
fn numbered(text: &str, word: &str) -> Option<u32> {
    let number = text.strip_prefix(word)?.strip_prefix(' ')?.trim();
    number.parse().ok().filter(|number| (1..=DEPTH_MAX).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for block in [Block::Dynamic, Block::Static(1), Block::Static(1024)] {
            assert_eq!(block.to_string().parse(), Ok(block));
        }
        for responses in [Responses::Each, Responses::Block, Responses::Subset(4)] {
            assert_eq!(responses.to_string().parse(), Ok(responses));
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_is_possible() {
        for wrong in ["", "static", "static ", "static 0", "static 1025", "static x", "static8"] {
            assert_eq!(wrong.parse::<Block>(), Err(BLOCK_REMEDY), "{wrong}");
        }
        for wrong in ["", "subset", "subset 0", "subset -1", "blocks"] {
            assert_eq!(wrong.parse::<Responses>(), Err(RESPONSES_REMEDY), "{wrong}");
        }
    }
}
