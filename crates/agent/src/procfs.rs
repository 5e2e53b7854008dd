//! `/proc`, read with care: processes come and go while one looks.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;

/// A mounted `/proc`, or something that looks like one.
#[derive(Clone, Debug)]
pub(crate) struct Proc(PathBuf);

/// What is known of a process that does not change while its program runs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Identity {
    /// The program's name, 15 bytes at most.
    pub(crate) name: String,
    pub(crate) parent: u32,
    /// Kernel threads do I/O for others; they are left alone.
    pub(crate) is_kernel: bool,
    /// When it was started, in ticks since boot: tells processes with the same number apart.
    pub(crate) started: u64,
}

impl Proc {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns the numbers of all processes.
    pub(crate) fn processes(&self) -> Vec<u32> {
        numbers(&self.0)
    }

    /// Returns the numbers of all threads of a process.
    pub(crate) fn threads(&self, pid: u32) -> Vec<u32> {
        numbers(&self.0.join(pid.to_string()).join("task"))
    }

    /// Returns how many bytes a process has read from disks, its ended threads included; `None`
    /// if it is gone or not ours to see.
    pub(crate) fn read_bytes(&self, pid: u32) -> Option<u64> {
        let text = read(&self.0.join(pid.to_string()).join("io"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?;
        line.trim().parse().ok()
    }

    /// Returns whether a thread of a process waits for a disk, or for something else that nothing
    /// interrupts.
    pub(crate) fn is_held_up(&self, pid: u32) -> bool {
        let dir = self.0.join(pid.to_string());
        let Some((is_leader_held_up, threads)) = read(&dir.join("stat")).and_then(|text| {
            let mut fields = fields(&text)?;
            Some((fields.next()? == HELD_UP, fields.nth(THREADS - 1)?.to_owned()))
        }) else {
            return false;
        };
        is_leader_held_up
            || threads != "1"
                && self.threads(pid).into_iter().filter(|&id| id != pid).any(|id| {
                    let stat = read(&dir.join("task").join(id.to_string()).join("stat"));
                    stat.is_some_and(|text| {
                        fields(&text).and_then(|mut f| f.next()) == Some(HELD_UP)
                    })
                })
    }

    /// Returns who a process is; `None` if it is gone.
    pub(crate) fn identity(&self, pid: u32) -> Option<Identity> {
        parse_stat(&read(&self.0.join(pid.to_string()).join("stat"))?)
    }
}

/// The state of a thread that waits for a disk.
const HELD_UP: &str = "D";
/// Where in `stat`, counted from the state, the number of threads is.
const THREADS: usize = 17;

/// Reads a small file of `/proc`, which is whole in one read.
fn read(path: &Path) -> Option<String> {
    let mut text = [0; 2048];
    let length = File::open(path).and_then(|mut file| file.read(&mut text)).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

fn numbers(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(|entry| name(entry.ok()?)).collect()
}

/// Returns the fields of `/proc/PID/stat` from the state on.
fn fields(text: &str) -> Option<SplitAsciiWhitespace<'_>> {
    Some(text.rsplit_once(')')?.1.split_ascii_whitespace())
}

/// Reads `/proc/PID/stat`. The name may have blanks and parentheses in it.
fn parse_stat(text: &str) -> Option<Identity> {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let name = text.rsplit_once(')')?.0.split_once('(')?.1.to_owned();
    // State, ppid, pgrp, session, tty, tpgid, flags, ...
    let fields: Vec<&str> = fields(text)?.collect();
    let flags: u64 = fields.get(6)?.parse().ok()?;
    Some(Identity {
        name,
        parent: fields.get(1)?.parse().ok()?,
        is_kernel: flags & KERNEL_THREAD != 0,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_have_parentheses_and_blanks() {
        let text = "42 (a b) c) S 7 1 1 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        let expected =
            Identity { name: "a b) c".to_owned(), parent: 7, is_kernel: false, started: 1234 };
        assert_eq!(parse_stat(text), Some(expected));
        let mut fields = fields(text).expect("it has fields");
        assert_eq!((fields.next(), fields.nth(THREADS - 1)), (Some("S"), Some("1")));
    }

    #[test]
    fn what_is_cut_short_is_nobody() {
        assert_eq!(parse_stat(""), None);
        assert_eq!(parse_stat("42 (x) S 7"), None);
    }

    #[test]
    fn this_process_is_found_with_its_threads() {
        let proc = Proc::new("/proc");
        let pid = std::process::id();
        assert!(proc.processes().contains(&pid));
        assert!(proc.threads(pid).contains(&pid));
        let identity = proc.identity(pid).expect("it runs");
        assert!(!identity.is_kernel && identity.parent > 0);
        assert!(!proc.is_held_up(pid), "who reads that runs");
    }
}
