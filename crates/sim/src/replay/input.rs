//! From the bytes of a file to a workload, whoever recorded it.

use core::fmt;
use core::str::FromStr;
use std::borrow::Cow;

use evenkeel_sched::{Nanos, Weight};
use evenkeel_wire::trace::{
    TRACE_MAGIC, TraceError, TraceHeader, TraceOp, TraceReader, TraceRecord,
};

use super::foreign::LineError;
use super::{Arrival, ReplayDisk, Taken, Workload, blktrace, fio};
use crate::IoOp;

/// What a file may be.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InputFormat {
    /// A trace of `evenkeel serve`.
    Evenkeel,
    /// A log of `fio --write_iolog`, version 2 or 3.
    Fio,
    /// Binary files of `blktrace`, one or several behind one another.
    Blktrace,
    /// What `blkparse` prints, unless told otherwise.
    Blkparse,
}

/// Every format, with its name.
pub const FORMATS: [(&str, InputFormat); 4] = [
    ("evenkeel", InputFormat::Evenkeel),
    ("fio", InputFormat::Fio),
    ("blktrace", InputFormat::Blktrace),
    ("blkparse", InputFormat::Blkparse),
];

/// A file that cannot be read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ReadError {
    /// It is in none of the formats.
    Unknown,
    /// Bytes that are damaged, or in another format.
    Trace(TraceError),
    /// The same of a text.
    Line(LineError),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => {
                let names = FORMATS.map(|(name, _)| name).join(", ");
                write!(f, "none of the formats {names}; give one of those, or --input-format")
            }
            Self::Trace(error) => error.fmt(f),
            Self::Line(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ReadError {}

impl fmt::Display for InputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = FORMATS.iter().find(|(_, format)| format == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl FromStr for InputFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = FORMATS.iter().find(|(known, _)| *known == name);
        found.map(|(_, format)| *format).ok_or_else(|| {
            format!("no such format; there are {}", FORMATS.map(|(name, _)| name).join(", "))
        })
    }
}

/// Reads a workload, recognising the format by its content unless one is given.
///
/// # Errors
///
/// * [`ReadError`], which says where and what to do. A trace that was merely cut short is read up
///   to there, with a note.
pub fn read(bytes: &[u8], format: Option<InputFormat>) -> Result<Workload, ReadError> {
    let format = format.or_else(|| recognise(bytes)).ok_or(ReadError::Unknown)?;
    let mut workload = match format {
        InputFormat::Evenkeel => read_trace(bytes).map_err(ReadError::Trace)?,
        InputFormat::Blktrace => blktrace::read_binary(bytes).map_err(ReadError::Trace)?,
        InputFormat::Fio => fio::read(&text(bytes)).map_err(ReadError::Line)?,
        InputFormat::Blkparse => blktrace::read_text(&text(bytes)).map_err(ReadError::Line)?,
    };
    workload.sort();
    Ok(workload)
}

fn recognise(bytes: &[u8]) -> Option<InputFormat> {
    if bytes.starts_with(&TRACE_MAGIC) {
        return Some(InputFormat::Evenkeel);
    }
    if blktrace::is_binary(bytes) {
        return Some(InputFormat::Blktrace);
    }
    let start = text(&bytes[..bytes.len().min(4096)]);
    if [fio::VERSION_2, fio::VERSION_3].iter().any(|version| start.starts_with(version)) {
        return Some(InputFormat::Fio);
    }
    blktrace::is_text(&start).then_some(InputFormat::Blkparse)
}

/// Names in a log may be anything; everything else is ASCII.
fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn read_trace(bytes: &[u8]) -> Result<Workload, TraceError> {
    let mut reader = TraceReader::new(bytes)?;
    let mut workload = of_header(reader.header());
    for record in reader.by_ref() {
        match record {
            Ok(record) => workload.requests.push(arrival(&record)),
            Err(error) if error.is_cut => break,
            Err(error) => return Err(error),
        }
    }
    if !reader.is_complete() {
        workload.notes.push(
            "The trace was cut short: its daemon was killed, runs still, or had no room."
                .to_owned(),
        );
    }
    if reader.dropped() > 0 {
        workload.notes.push(format!(
            "{} requests are missing in the trace: they came faster than it could be written.",
            reader.dropped()
        ));
    }
    Ok(workload)
}

fn of_header(header: &TraceHeader) -> Workload {
    let TraceHeader { pool, scheduler, device, disks, .. } = header;
    let disks = disks.iter().map(|disk| ReplayDisk {
        name: printable(&disk.name),
        vm: printable(&disk.vm),
        weight: Weight::new(u64::from(disk.weight)).unwrap_or_default(),
        sectors: disk.sectors,
        heeds_priority: disk.heeds_priority,
        write_through: disk.write_through,
    });
    Workload {
        source: printable(&format!("pool {pool} (recorded with {scheduler} on {device})")),
        disks: disks.collect(),
        ..Workload::default()
    }
}

/// Files come from anywhere, and names go to terminals.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { '?' } else { char }).collect()
}

fn arrival(record: &TraceRecord) -> Arrival {
    let op = match record.op {
        TraceOp::Read => IoOp::Read,
        TraceOp::Write => IoOp::Write,
        TraceOp::Discard => IoOp::Discard,
        TraceOp::WriteZeroes => IoOp::WriteZeroes,
        TraceOp::Flush => IoOp::Flush,
    };
    let taken = Taken { wait: Nanos(record.wait_ns), service: Nanos(record.service_ns) };
    let TraceRecord { disk, sector, nr_sectors, ioprio, .. } = *record;
    let at = Nanos(record.arrived_ns);
    Arrival { at, disk, op, sector, nr_sectors, ioprio, recorded: Some(taken) }
}
