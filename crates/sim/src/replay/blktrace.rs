//! What `blktrace` records of the kernel's block layer, as its binary files or as `blkparse`
//! prints them.
//!
//! A request is queued (`Q`), goes to the device (`D`) and is completed (`C`), alone or merged with
//! its neighbours; the events name each time the extent that they are about. What was queued gives
//! the arrivals; the others, where they cover it, its wait and its service.
//!
//! Source: `struct blk_io_trace` of `include/uapi/linux/blktrace_api.h` (48 bytes, then as many as
//! it says); the manual of blkparse, "Default output" and "RWBS".

use evenkeel_sched::Nanos;
use evenkeel_wire::trace::TraceError;

use super::Workload;
use super::events::{Event, Events, Step};
use super::foreign::{self, LineError};
use crate::IoOp;

const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const HEADER_BYTES: usize = 48;

/// Returns whether a file begins with a binary event, of either byte order.
pub(super) fn is_binary(bytes: &[u8]) -> bool {
    byte_order(bytes).is_some()
}

fn byte_order(bytes: &[u8]) -> Option<fn([u8; 8]) -> u64> {
    let magic: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    if u32::from_le_bytes(magic) & !0xff == MAGIC {
        return Some(u64::from_le_bytes);
    }
    (u32::from_be_bytes(magic) & !0xff == MAGIC).then_some(u64::from_be_bytes)
}

/// Reads binary events: a file for each processor, or several of them one behind the other.
pub(super) fn read_binary(bytes: &[u8]) -> Result<Workload, TraceError> {
    let wrong = |at: usize, problem: &str| TraceError {
        offset: at as u64,
        problem: problem.to_owned(),
        remedy: "give what blktrace has written; several files may stand one behind the other",
        is_cut: false,
    };
    let long = byte_order(bytes).ok_or_else(|| wrong(0, "no event of blktrace"))?;
    let is_little = long([1, 0, 0, 0, 0, 0, 0, 0]) == 1;
    let mut events = Events::default();
    let mut at = 0;
    while at < bytes.len() {
        let Some(header) = bytes.get(at..at + HEADER_BYTES) else {
            events.note("The last event of the file is cut.");
            break;
        };
        let word = |offset: usize| {
            let mut word: [u8; 4] = header[offset..offset + 4].try_into().expect("four bytes");
            if !is_little {
                word.reverse();
            }
            u32::from_le_bytes(word)
        };
        let number =
            |offset: usize| long(header[offset..offset + 8].try_into().expect("eight bytes"));
        let magic = word(0);
        if magic & !0xff != MAGIC {
            return Err(wrong(at, "no event of blktrace begins here"));
        }
        if magic & 0xff != VERSION {
            return Err(wrong(at, "an event of another version than 7"));
        }
        let payload = if is_little { word(44) >> 16 } else { word(44) & 0xffff };
        if let Some((step, op)) = action(word(28)) {
            let event = Event {
                at: foreign::instant(number(8)).ok_or_else(|| wrong(at, "an impossible time"))?,
                device: u64::from(word(36)),
                step,
                op,
                sector: number(16),
                nr_sectors: word(24).div_ceil(512),
            };
            events.add(event).map_err(|problem| wrong(at, problem))?;
        }
        at += HEADER_BYTES + payload as usize;
    }
    // A device's number has 12 bits for its kind and 20 for its unit.
    Ok(events.finish("a recording of blktrace", |device| {
        format!("{},{}", device >> 20, device & 0xf_ffff)
    }))
}

/// Returns what an event is about; none if nobody needs it.
fn action(word: u32) -> Option<(Step, IoOp)> {
    const WRITE: u32 = 1 << 1;
    const FLUSH: u32 = 1 << 2;
    const NOTIFY: u32 = 1 << 10;
    const DISCARD: u32 = 1 << 13;
    let categories = word >> 16;
    let step = match word & 0xffff {
        1 => Step::Queued,
        7 => Step::Issued,
        8 => Step::Completed,
        _ => return None,
    };
    let op = match categories {
        categories if categories & NOTIFY != 0 => return None,
        categories if categories & DISCARD != 0 => IoOp::Discard,
        categories if categories & FLUSH != 0 => IoOp::Flush,
        categories if categories & WRITE != 0 => IoOp::Write,
        _ => IoOp::Read,
    };
    Some((step, op))
}

/// Returns whether a text begins as `blkparse` begins.
pub(super) fn is_text(text: &str) -> bool {
    text.lines().take(20).any(|line| device(line).is_some())
}

/// Returns the device of a line with an event; other lines are of the summary.
fn device(line: &str) -> Option<(u64, u64)> {
    let (major, minor) = line.split_ascii_whitespace().next()?.split_once(',')?;
    let (major, minor) = (major.parse::<u64>().ok()?, minor.parse::<u64>().ok()?);
    (major < 1 << 12 && minor < 1 << 20).then_some((major, minor))
}

/// Reads the default output of `blkparse`.
pub(super) fn read_text(text: &str) -> Result<Workload, LineError> {
    let mut events = Events::default();
    for (line, number) in text.lines().zip(1..) {
        let Some((major, minor)) = device(line) else { continue };
        let event = event(line, major << 20 | minor);
        let added = event.and_then(|event| event.map_or(Ok(()), |event| events.add(event)));
        added.map_err(|problem| LineError {
            line: number,
            problem,
            remedy: "give the default output of blkparse",
        })?;
    }
    Ok(events
        .finish("output of blkparse", |device| format!("{},{}", device >> 20, device & 0xf_ffff)))
}

/// Reads `device cpu sequence time pid action rwbs [sector + sectors] [process]`.
fn event(line: &str, device: u64) -> Result<Option<Event>, &'static str> {
    let words: Vec<&str> = line.split_ascii_whitespace().take(10).collect();
    let word = |at: usize| words.get(at).copied().unwrap_or("");
    let step = match word(5) {
        "" => return Err("an event without an action"),
        "Q" => Step::Queued,
        "D" => Step::Issued,
        "C" => Step::Completed,
        _ => return Ok(None),
    };
    let at = seconds(word(3)).ok_or("no time")?;
    let kind = word(6);
    let op = match kind.trim_start_matches('F').chars().next() {
        _ if kind.starts_with('F') => IoOp::Flush,
        Some('R') => IoOp::Read,
        Some('W') => IoOp::Write,
        Some('D') => IoOp::Discard,
        _ => return Ok(None),
    };
    // Without an extent the name of a process stands here, which may be anything.
    let (sector, nr_sectors) = match word(7).parse() {
        Ok(sector) if word(8) == "+" => (sector, word(9).parse().map_err(|_| "no length")?),
        _ => (0, 0),
    };
    Ok(Some(Event { at, device, step, op, sector, nr_sectors }))
}

/// Reads seconds with exactly nine digits behind the point.
fn seconds(text: &str) -> Option<Nanos> {
    let (seconds, nanos) = text.split_once('.')?;
    let (seconds, digits) = (seconds.parse::<u64>().ok()?, nanos.len());
    let nanos = nanos.parse::<u64>().ok().filter(|_| digits == 9)?;
    foreign::instant(seconds.checked_mul(1_000_000_000)?.checked_add(nanos)?)
}
