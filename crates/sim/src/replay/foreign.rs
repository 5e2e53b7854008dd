//! What the formats of other programs have in common: they tell little, and mostly text.

use core::fmt;
use std::collections::BTreeMap;

use evenkeel_sched::{Nanos, Weight};
use evenkeel_wire::trace::TRACE_TIME_MAX_NS;

use super::ReplayDisk;

/// A line that cannot be understood.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LineError {
    /// Which, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub problem: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}; {}", self.line, self.problem, self.remedy)
    }
}

impl core::error::Error for LineError {}

/// Disks in the order in which they are first heard of, each a VM of its own.
#[derive(Debug, Default)]
pub(super) struct Disks<'a> {
    indices: BTreeMap<&'a str, u32>,
    /// Names, and where the requests end.
    disks: Vec<(&'a str, u64)>,
}

impl<'a> Disks<'a> {
    pub(super) fn named(&mut self, name: &'a str) -> u32 {
        *self.indices.entry(name).or_insert_with(|| {
            self.disks.push((name, 0));
            u32::try_from(self.disks.len() - 1).expect("fewer disks than lines of a file")
        })
    }

    /// Notes that a request reaches up to there.
    pub(super) fn reach(&mut self, disk: u32, end: u64) {
        let (_, sectors) = &mut self.disks[disk as usize];
        *sectors = end.max(*sectors);
    }

    pub(super) fn finish(self) -> Vec<ReplayDisk> {
        let disks = self.disks.into_iter().map(|(name, end)| disk(name, end));
        disks.collect()
    }
}

/// Returns a disk of which only the name is known, and where its requests end.
pub(super) fn disk(name: &str, end: u64) -> ReplayDisk {
    let name = super::input::printable(name);
    ReplayDisk {
        vm: name.clone(),
        name,
        weight: Weight::default(),
        // Whole blocks of 4 KiB, at least one.
        sectors: end.max(1).next_multiple_of(8),
        heeds_priority: true,
        write_through: false,
    }
}

/// Returns an instant if it is possible.
pub(super) fn instant(nanos: u64) -> Option<Nanos> {
    (nanos <= TRACE_TIME_MAX_NS).then_some(Nanos(nanos))
}

/// Returns the sectors that some bytes touch; none for no bytes.
pub(super) fn extent(offset: u64, bytes: u64) -> Result<Option<(u64, u32)>, &'static str> {
    let end = offset.checked_add(bytes).filter(|end| *end <= u64::MAX >> 4);
    let end = end.ok_or("an extent behind the end of every disk")?;
    if bytes == 0 {
        return Ok(None);
    }
    let first = offset / 512;
    let count = u32::try_from(end.div_ceil(512) - first);
    count.map(|count| Some((first, count))).map_err(|_| "a request of more than 2 TiB")
}
