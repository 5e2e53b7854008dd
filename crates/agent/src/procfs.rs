//! `/proc`, read with care: processes come and go while one looks.

use std::fs;
use std::path::{Path, PathBuf};

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
        let text = fs::read_to_string(self.0.join(pid.to_string()).join("io")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "))?;
        line.trim().parse().ok()
    }

    /// Returns whether a thread of a process waits for a disk, or for something else that nothing
    /// interrupts.
    pub(crate) fn is_held_up(&self, pid: u32) -> bool {
        let tasks = self.0.join(pid.to_string()).join("task");
        self.threads(pid).into_iter().any(|id| {
            let stat = fs::read_to_string(tasks.join(id.to_string()).join("stat"));
            stat.is_ok_and(|text| parse_state(&text) == Some("D"))
        })
    }

    /// Returns who a process is; `None` if it is gone.
    pub(crate) fn identity(&self, pid: u32) -> Option<Identity> {
        parse_stat(&fs::read_to_string(self.0.join(pid.to_string()).join("stat")).ok()?)
    }
}

fn numbers(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let name = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    entries.filter_map(|entry| name(entry.ok()?)).collect()
}

/// Reads the state in `/proc/PID/stat`.
fn parse_state(text: &str) -> Option<&str> {
    text.rsplit_once(')')?.1.split_ascii_whitespace().next()
}

/// Reads `/proc/PID/stat`. The name may have blanks and parentheses in it.
fn parse_stat(text: &str) -> Option<Identity> {
    const KERNEL_THREAD: u64 = 0x0020_0000;
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    // From here on: state, ppid, pgrp, session, tty, tpgid, flags, ...
    let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
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
        assert_eq!(parse_state(text), Some("S"));
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
        let stat = fs::read_to_string("/proc/thread-self/stat").expect("it runs");
        assert_eq!(parse_state(&stat), Some("R"), "who reads that runs");
    }
}
