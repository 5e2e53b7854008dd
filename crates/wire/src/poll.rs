//! How long a pool's worker looks for work before it sleeps, as an operator writes it.

use std::fmt;
use std::str::FromStr;

/// The longest that a worker may look for work, in microseconds: more than it costs to be woken on
/// any machine.
pub const POLL_US_MAX: u32 = 1000;

/// Whether and how long a worker looks for work before it sleeps.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Poll {
    /// Never.
    Off,
    /// As long as it pays, for no longer than it costs to sleep and to be woken.
    #[default]
    Brief,
    /// As long as it pays; the daemon chooses the limit.
    Auto,
    /// As long as it pays, at most so many microseconds, 1 to [`POLL_US_MAX`].
    AtMost(u32),
}

/// What to write for a pool's `poll`.
pub(crate) const POLL_REMEDY: &str =
    "use \"brief\", \"auto\" or \"off\"; poll_us = 50 chooses the limit in microseconds";

impl Poll {
    /// Returns what a number of microseconds stands for; 0 is never.
    #[must_use]
    pub const fn from_us(us: u32) -> Self {
        if us == 0 { Self::Off } else { Self::AtMost(us) }
    }
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Brief => f.write_str("brief"),
            Self::Auto => f.write_str("auto"),
            Self::AtMost(us) => write!(f, "{us}"),
        }
    }
}

impl FromStr for Poll {
    type Err = &'static str;

    /// Parses `brief`, `auto`, `off` or a number of microseconds.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "off" => Ok(Self::Off),
            "brief" => Ok(Self::Brief),
            "auto" => Ok(Self::Auto),
            text => {
                let us = text.parse().ok().filter(|us| *us <= POLL_US_MAX);
                us.map(Self::from_us).ok_or("use brief, auto, off, or microseconds from 0 to 1000")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_reads_back() {
        for poll in [Poll::Off, Poll::Brief, Poll::Auto, Poll::AtMost(1), Poll::AtMost(1000)] {
            assert_eq!(poll.to_string().parse(), Ok(poll));
        }
        assert_eq!("0".parse(), Ok(Poll::Off));
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in ["", "on", "1001", "-1", "50us"] {
            assert!(wrong.parse::<Poll>().is_err(), "{wrong}");
        }
    }
}
