//! What another scheduler, or another device, would have made of recorded requests.
//!
//! [`Workload`] is what was recorded, whoever recorded it; [`read`] makes one from the bytes of a
//! file. [`run`] gives the requests to the production engine above a modelled device, in virtual
//! time, once for each scheduler, and [`Report`] tells how long they took, beside how long they had
//! taken.
//!
//! A replay is a function of its arguments: the same file gives the same answer, byte for byte.
//!
//! Deliberately absent: files, and guests that would have asked for something else had they been
//! answered at another time. [`Pace::Closed`] comes as close to those as a recording can.

mod blktrace;
mod closed;
mod events;
mod fio;
mod foreign;
mod input;
mod machine;
mod report;

pub use evenkeel_sched::Kind;
use evenkeel_sched::{Nanos, Weight};
pub use foreign::LineError;
pub use input::{FORMATS, InputFormat, ReadError, read};
pub use report::{Report, ReportRow, Span, Times};

use crate::{IoOp, ModelError, ModelSpec};

/// Requests as they were recorded.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Workload {
    /// Where they come from, for people.
    pub source: String,
    /// The disks that they name.
    pub disks: Vec<ReplayDisk>,
    /// In the order of their arrival.
    pub requests: Vec<Arrival>,
    /// What people should know before they believe the answer.
    pub notes: Vec<String>,
}

/// A disk that was recorded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReplayDisk {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The weight of that.
    pub weight: Weight,
    /// Its size in sectors.
    pub sectors: u64,
    /// Whether the I/O priorities of its requests count.
    pub heeds_priority: bool,
    /// Whether writes are answered only when they are durable.
    pub write_through: bool,
}

/// One recorded request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arrival {
    /// When it came, since the recording began.
    pub at: Nanos,
    /// Its disk, by position in [`Workload::disks`].
    pub disk: u32,
    /// What it asked for.
    pub op: IoOp,
    /// First sector of the disk; 0 for a flush.
    pub sector: u64,
    /// Length in sectors; 0 for a flush, and only there.
    pub nr_sectors: u32,
    /// I/O priority, as Linux writes it: class << 13, level.
    pub ioprio: u32,
    /// How long it took when it was recorded, if that is known.
    pub recorded: Option<Taken>,
}

/// How long a request took.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Taken {
    /// From its arrival to the device.
    pub wait: Nanos,
    /// From the device to its answer.
    pub service: Nanos,
}

impl Taken {
    /// Returns how long it took altogether.
    #[must_use]
    pub fn total(&self) -> Nanos {
        self.wait + self.service
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Pace {
    /// When they came: whoever is too slow for that piles them up.
    #[default]
    Open,
    /// As long after the answer of the request that ended last before them, on the same disk, as
    /// when they were recorded: guests wait for answers, and think as long as they thought.
    Closed,
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Each is tried by itself.
    pub schedulers: Vec<Kind>,
    /// The device.
    pub device: ModelSpec,
    /// The most commands at the device at a time; none is as many as it works on.
    pub depth: Option<u32>,
    /// When requests come.
    pub pace: Pace,
}

/// A workload that cannot be replayed so.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReplayError {
    /// The device does not exist.
    Device(ModelError),
    /// Requests without recorded durations do not tell who waited for whom.
    NoDurations {
        /// Where they come from.
        source: String,
    },
    /// Its disks do not fit into one address space.
    TooLarge,
    /// There is nothing to replay.
    Nothing,
}

impl core::fmt::Display for ReplayError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Device(error) => error.fmt(f),
            Self::NoDurations { source } => write!(
                f,
                "{source} does not tell how long requests took, so nobody knows which of them \
                 waited for which; replay it without --closed"
            ),
            Self::TooLarge => f.write_str(
                "its disks have more than 2^60 sectors together; the file must be damaged",
            ),
            Self::Nothing => f.write_str("there are no requests in it; record some"),
        }
    }
}

impl core::error::Error for ReplayError {}

/// What all disks of a workload may have together.
const SECTORS_MAX: u64 = 1 << 60;

/// Replays a workload with each scheduler.
///
/// # Errors
///
/// * [`ReplayError`], which says what to do.
pub fn run(workload: &Workload, options: &ReplayOptions) -> Result<Report, ReplayError> {
    if workload.requests.is_empty() {
        return Err(ReplayError::Nothing);
    }
    let sectors = workload.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.sectors));
    if sectors > SECTORS_MAX {
        return Err(ReplayError::TooLarge);
    }
    let triggers = match options.pace {
        Pace::Open => None,
        Pace::Closed => Some(
            closed::triggers(workload)
                .ok_or_else(|| ReplayError::NoDurations { source: workload.source.clone() })?,
        ),
    };
    let mut report = Report::new(workload, options);
    for &kind in &options.schedulers {
        let outcome = machine::replay(workload, triggers.as_deref(), kind, options)
            .map_err(ReplayError::Device)?;
        report.depth = outcome.depth;
        report.add(workload, &kind.to_string(), &outcome.taken, outcome.ended);
    }
    report.sort();
    Ok(report)
}

impl Workload {
    /// Brings the requests into the order of their arrival; those of one instant stay as they are.
    pub(crate) fn sort(&mut self) {
        self.requests.sort_by_key(|request| request.at);
    }
}
