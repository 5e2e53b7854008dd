//! Processors as an operator lists them, in the way of `taskset` and of the kernel's own lists.

use std::fmt;
use std::str::FromStr;

/// The highest number of a processor that may be written.
pub const CPU_MAX: u16 = 1023;

/// One or more processors of the host, by number.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Cpus(Vec<u16>);

/// What to write for a pool's `cpus`.
pub(crate) const CPUS_REMEDY: &str = "list numbers and ranges of processors, such as \"2\" or \"0-3,8\"; lscpu shows which there are";

impl Cpus {
    /// Returns their numbers, ascending, each once, at least one.
    #[must_use]
    pub fn numbers(&self) -> &[u16] {
        &self.0
    }

    /// Returns those of these numbers; none if there is none.
    #[must_use]
    pub fn new(numbers: impl IntoIterator<Item = u16>) -> Option<Self> {
        let mut numbers: Vec<u16> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        (!numbers.is_empty()).then_some(Self(numbers))
    }
}

impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.0.chunk_by(|&one, &next| next == one + 1);
        for (at, run) in runs.enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let (first, last) = (run[0], run[run.len() - 1]);
            match run.len() {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Cpus {
    type Err = &'static str;

    /// Parses numbers up to [`CPU_MAX`] and ranges of them, with commas between.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.trim().parse().ok().filter(|&number| number <= CPU_MAX);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        ranges.and_then(|ranges| Self::new(ranges.into_iter().flatten())).ok_or(CPUS_REMEDY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_the_kernel_writes_them() {
        for (written, shown, numbers) in [
            ("2", "2", &[2][..]),
            ("0-3,8", "0-3,8", &[0, 1, 2, 3, 8]),
            ("8, 1 - 2,1", "1-2,8", &[1, 2, 8]),
            ("1023", "1023", &[1023]),
        ] {
            let cpus: Cpus = written.parse().unwrap();
            assert_eq!((cpus.numbers(), cpus.to_string().as_str()), (numbers, shown));
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for wrong in ["", ",", "1,", "3-1", "-1", "1024", "0-1024", "one", "0x1", "1-2-3"] {
            assert!(wrong.parse::<Cpus>().is_err(), "{wrong}");
        }
    }
}
