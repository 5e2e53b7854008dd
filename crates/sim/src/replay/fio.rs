//! Logs that `fio --write_iolog` writes, versions 2 and 3.
//!
//! One action a line. Version 3 begins each with its instant in microseconds; version 2 has none,
//! but lines that say how long to wait. Neither tells how long anything took.
//!
//! Source: fio's manual, "Trace file format v2" and "v3"; the unit of version 3, which the manual
//! leaves out, from logs of fio 3.33.

use evenkeel_sched::Nanos;

use super::foreign::{Disks, LineError, extent};
use super::{Arrival, Workload};
use crate::IoOp;

pub(super) const VERSION_2: &str = "fio version 2 iolog";
pub(super) const VERSION_3: &str = "fio version 3 iolog";

/// Reads a log.
pub(super) fn read(text: &str) -> Result<Workload, LineError> {
    let mut lines = text.lines().zip(1..);
    let is_timed = match lines.next().map(|(line, _)| line.trim_end()) {
        Some(VERSION_2) => false,
        Some(VERSION_3) => true,
        _ => {
            let remedy = "give a log that fio --write_iolog has written, of version 2 or 3";
            return Err(LineError { line: 1, problem: "not a log of fio", remedy });
        }
    };
    let mut log = Log { is_timed, now: Nanos::ZERO, disks: Disks::default(), requests: Vec::new() };
    for (line, number) in lines {
        log.line(line).map_err(|problem| LineError {
            line: number,
            problem,
            remedy: "correct the line, or record the log again",
        })?;
    }
    Ok(Workload {
        source: "a log of fio".to_owned(),
        disks: log.disks.finish(),
        requests: log.requests,
        notes: vec![
            "The log tells neither how long requests took nor how large the disks are: they end \
             where the requests end."
                .to_owned(),
        ],
    })
}

struct Log<'a> {
    is_timed: bool,
    now: Nanos,
    disks: Disks<'a>,
    requests: Vec<Arrival>,
}

impl<'a> Log<'a> {
    fn line(&mut self, line: &'a str) -> Result<(), &'static str> {
        let mut words = line.split_ascii_whitespace();
        let Some(mut name) = words.next() else { return Ok(()) };
        if self.is_timed {
            self.now = micros(name).ok_or("no instant in microseconds at the beginning")?;
            name = words.next().ok_or("no file")?;
        }
        let action = words.next().ok_or("no action")?;
        let op = match action {
            "add" | "open" | "close" => return Ok(()),
            "wait" if self.is_timed => return Err("version 3 knows no wait"),
            "wait" => {
                let span = words.next().and_then(micros).ok_or("no duration to wait for")?;
                self.now += span;
                return Ok(());
            }
            "read" => IoOp::Read,
            "write" => IoOp::Write,
            "trim" => IoOp::Discard,
            "sync" | "datasync" => IoOp::Flush,
            _ => return Err("an unknown action"),
        };
        let disk = self.disks.named(name);
        let mut number = || words.next()?.parse::<u64>().ok();
        let (sector, nr_sectors) = if op == IoOp::Flush {
            (0, 0)
        } else {
            let (offset, length) = (number(), number());
            let bytes = offset.zip(length).ok_or("no offset and length in bytes")?;
            // fio logs what it was asked for, even if that is nothing.
            let Some(extent) = extent(bytes.0, bytes.1)? else { return Ok(()) };
            extent
        };
        self.disks.reach(disk, sector + u64::from(nr_sectors));
        let at = self.now;
        self.requests.push(Arrival { at, disk, op, sector, nr_sectors, ioprio: 0, recorded: None });
        Ok(())
    }
}

fn micros(text: &str) -> Option<Nanos> {
    let micros: u64 = text.parse().ok()?;
    super::foreign::instant(micros.checked_mul(1000)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<(u64, u32, IoOp, u64, u32)> {
        let workload = read(text).unwrap();
        let requests = workload.requests.iter();
        requests.map(|r| (r.at.0, r.disk, r.op, r.sector, r.nr_sectors)).collect()
    }

    #[test]
    fn a_log_of_version_3_has_an_instant_for_each_action() {
        let text = "fio version 3 iolog\n32 a.img add\n33 b.img add\n300 a.img open\n\
                    307 a.img read 4096 4096\n351 b.img write 1000 100\n360 a.img sync 0 0\n\
                    400 b.img trim 0 8192\n410 a.img datasync 0 0\n411 a.img read 0 0\n\
                    500 a.img close\n";
        assert_eq!(
            told(text),
            [
                (307_000, 0, IoOp::Read, 8, 8),
                (351_000, 1, IoOp::Write, 1, 2),
                (360_000, 0, IoOp::Flush, 0, 0),
                (400_000, 1, IoOp::Discard, 0, 16),
                (410_000, 0, IoOp::Flush, 0, 0),
            ]
        );
        let workload = read(text).unwrap();
        let disks: Vec<_> = workload.disks.iter().map(|d| (d.name.as_str(), d.sectors)).collect();
        assert_eq!(disks, [("a.img", 16), ("b.img", 16)]);
    }

    #[test]
    fn a_log_of_version_2_has_waits_in_between() {
        let text = "fio version 2 iolog\n/dev/sda add\n/dev/sda open\n/dev/sda read 0 4096\n\
                    /dev/sda wait 500 0\n/dev/sda write 4096 4096\n/dev/sda wait 250 0\n\
                    /dev/sda read 0 512\n/dev/sda close\n";
        assert_eq!(
            told(text),
            [
                (0, 0, IoOp::Read, 0, 8),
                (500_000, 0, IoOp::Write, 8, 8),
                (750_000, 0, IoOp::Read, 0, 1)
            ]
        );
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let error = |line: &str| read(&format!("{VERSION_3}\n1 a add\n{line}\n")).unwrap_err();
        for (line, problem) in [
            ("x a read 0 512", "no instant in microseconds at the beginning"),
            ("18446744073709551615 a read 0 512", "no instant in microseconds at the beginning"),
            ("1", "no file"),
            ("1 a", "no action"),
            ("1 a chew 0 512", "an unknown action"),
            ("1 a wait 5 0", "version 3 knows no wait"),
            ("1 a read 0", "no offset and length in bytes"),
            ("1 a read 18446744073709551615 512", "an extent behind the end of every disk"),
            ("1 a read 0 18446744073709551615", "an extent behind the end of every disk"),
            ("1 a read 0 99999999999999", "a request of more than 2 TiB"),
        ] {
            let found = error(line);
            assert_eq!((found.line, found.problem), (3, problem), "{line}");
        }
        assert_eq!(read("fio version 1\n").unwrap_err().line, 1);
    }
}
