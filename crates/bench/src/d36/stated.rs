//! What the document states in words. Its bars have no numbers, so nothing is read off them.

use super::rows::Row;

/// A statement about one bar, and how its words are taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stated {
    /// The start-up time lies between these multiples of that without load.
    Ratio {
        /// The least that the words allow.
        least: f64,
        /// The most that they allow.
        most: f64,
        /// The words.
        words: &'static str,
    },
    /// The application did not start within 60 seconds.
    Fails,
    /// Failure, or a multiple from this one on.
    RatioOrFails {
        /// The least that the words allow.
        least: f64,
        /// The words.
        words: &'static str,
    },
    /// Words that no bar alone can agree with.
    Words(&'static str),
}

impl Stated {
    /// Returns the statement in words.
    #[must_use]
    pub const fn words(&self) -> &'static str {
        match self {
            Self::Ratio { words, .. } | Self::RatioOrFails { words, .. } | Self::Words(words) => {
                words
            }
            Self::Fails => "fails (over 60 s)",
        }
    }

    /// Returns whether a row agrees; `None` if that cannot be said of a row.
    #[must_use]
    pub fn agrees(&self, row: &Row) -> Option<bool> {
        match *self {
            Self::Ratio { least, most, .. } => {
                Some(row.ratio.is_some_and(|ratio| ratio >= least && ratio <= most))
            }
            Self::Fails => Some(row.failed),
            Self::RatioOrFails { least, .. } => {
                Some(row.failed || row.ratio.is_some_and(|ratio| ratio >= least))
            }
            Self::Words(_) => None,
        }
    }
}

/// "About the same as idle": up to 30 % more.
const IDLE: Stated = Stated::Ratio { least: 0.9, most: 1.3, words: "about idle" };
/// "Comparable to idle", "slightly higher": up to twice.
const NEAR: Stated = Stated::Ratio { least: 0.9, most: 2.0, words: "comparable to idle" };
const SLIGHTLY: Stated =
    Stated::Ratio { least: 0.9, most: 2.0, words: "slightly higher than idle" };
/// A multiple read as "about": a third more or less.
const THRICE: Stated = Stated::Ratio { least: 2.0, most: 4.0, words: "3 times idle" };
const SEVENTEEN: Stated = Stated::Ratio { least: 11.3, most: 22.7, words: "about 17 times idle" };
const MISSING_LINK: Stated = Stated::Ratio { least: 3.0, most: 5.5, words: "3 to 5.5 times idle" };
const UNBEARABLE: Stated =
    Stated::RatioOrFails { least: 8.0, words: "basically unbearable, or over 60 s" };

/// Returns what the document states about a bar; what it says of the hard disk it says of the other
/// devices as "about the same patterns, at different scales" (section 8.3).
#[must_use]
pub fn stated(row: &Row) -> Option<Stated> {
    let is_bfq = row.guest_scheduler == "bfq";
    let is_shown = row.host_scheduler == "bfq"
        && row.app == "xterm"
        && match row.guest_scheduler.as_str() {
            "bfq" => row.coordination || row.host_path == "kernel",
            "cfq" => row.host_path == "kernel",
            _ => false,
        };
    if !is_shown {
        return None;
    }
    match row.figure {
        2 | 5 => throughput(row, "as much as CFQ or more"),
        6 | 7 => throughput(row, "about the same as CFQ"),
        3 if is_bfq => Some(match row.guest_load.as_str() {
            "1r-rand" => Stated::RatioOrFails { least: 2.0, words: "much higher than idle" },
            "5r-rand" => Stated::Fails,
            _ => IDLE,
        }),
        11 if row.guest_load == "2r2w-seq" => {
            Some(Stated::Words("extremely higher than with all other loads"))
        }
        _ if row.coordination => Some(coordinated(row)),
        3 | 4 | 8..=17 => alone(row, is_bfq),
        _ => None,
    }
}

fn throughput(row: &Row, words: &'static str) -> Option<Stated> {
    match (row.guest_scheduler.as_str(), row.guest_load.ends_with("rand"), row.device.as_str()) {
        ("bfq", _, _) => Some(Stated::Words(words)),
        (_, true, "hdd") => Some(Stated::Words("the VM became unresponsive")),
        _ => None,
    }
}

fn coordinated(row: &Row) -> Stated {
    match (row.guest_load.as_str(), row.host_load.as_str()) {
        ("1r-seq" | "1r-rand", _) => IDLE,
        ("5r-seq", _) => NEAR,
        (_, "none") => SLIGHTLY,
        _ => Stated::Words("sensitive to the host's load"),
    }
}

fn alone(row: &Row, is_bfq: bool) -> Option<Stated> {
    let stated = match (is_bfq, row.host_load.as_str(), row.guest_load.as_str()) {
        (true, "none", "5r-rand") => SLIGHTLY,
        (true, "none", _) => IDLE,
        (true, "1r-seq", _) => MISSING_LINK,
        (false, "none", "1r-seq" | "1r-rand") => THRICE,
        (false, "none", "5r-seq") => SEVENTEEN,
        (false, "none", _) => Stated::Fails,
        (false, "1r-seq", "1r-seq") => {
            Stated::RatioOrFails { least: 5.5, words: "much higher than BFQ" }
        }
        (false, "1r-seq", "5r-seq" | "5r-rand") => Stated::Fails,
        (_, "5r-seq", "1r-rand") => Stated::Words("lower than with the other loads"),
        (_, "5r-seq", _) => UNBEARABLE,
        _ => return None,
    };
    Some(stated)
}
