//! `/proc`, read with care: processes come and go while one looks.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::str::SplitAsciiWhitespace;
use std::time::Duration;

use rustix::param::clock_ticks_per_second;

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
    /// Processor time that it has used, its ended threads included.
    pub(crate) worked: Duration,
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

    /// Returns the user as whom a process acts; `None` if it is gone.
    pub(crate) fn owner(&self, pid: u32) -> Option<u32> {
        // The owner of the directory is root if the process hides its memory from its own user.
        let status = read(&self.0.join(pid.to_string()).join("status"))?;
        let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        users.split_ascii_whitespace().nth(1)?.parse().ok()
    }

    /// Returns when a thread was started, in ticks since boot; `None` if it is gone.
    pub(crate) fn started(&self, pid: u32, thread: u32) -> Option<u64> {
        let stat = read(&self.0.join(format!("{pid}/task/{thread}/stat")))?;
        fields(&stat)?.nth(STARTED)?.parse().ok()
    }

    /// Returns whether all threads of a process have ended.
    pub(crate) fn has_ended(&self, pid: u32) -> bool {
        let Some(stat) = read(&self.0.join(pid.to_string()).join("stat")) else { return true };
        let Some(mut fields) = fields(&stat) else { return true };
        let is_dead = fields.next().is_some_and(|state| ENDED.contains(&state));
        // The first thread waits for the others.
        is_dead && fields.nth(THREADS - 1).is_none_or(|threads| threads == "0" || threads == "1")
    }

    /// Returns the counters of a process; whether it exists shows when they are read.
    pub(crate) fn counters(&self, pid: u32) -> Counters {
        Counters { dir: self.0.join(pid.to_string()), io: None, stat: None }
    }

    /// Returns who a process is; `None` if it is gone.
    pub(crate) fn identity(&self, pid: u32) -> Option<Identity> {
        parse_stat(&read(&self.0.join(pid.to_string()).join("stat"))?)
    }
}

/// What of a process is read again and again.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Its directory in `/proc`.
    dir: PathBuf,
    /// Files that stay open: opening one costs more than reading it.
    io: Option<File>,
    stat: Option<File>,
}

impl Counters {
    /// Returns how many bytes the process has read from disks, its ended threads included.
    ///
    /// # Errors
    ///
    /// It is gone or not ours to see, or the kernel does not count.
    pub(crate) fn read_bytes(&mut self) -> io::Result<u64> {
        let text = read_kept(&mut self.io, &self.dir, "io")?;
        let line = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        let bytes = line.and_then(|line| line.trim().parse().ok());
        bytes.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns whether a thread of the process waits for a disk, or for something else that nothing
    /// interrupts.
    pub(crate) fn is_held_up(&mut self) -> bool {
        let Some((is_leader_held_up, threads)) =
            read_kept(&mut self.stat, &self.dir, "stat").ok().and_then(|text| {
                let mut fields = fields(&text)?;
                Some((fields.next()? == HELD_UP, fields.nth(THREADS - 1)?.to_owned()))
            })
        else {
            return false;
        };
        let is_thread_held_up = |id: u32| {
            let stat = read(&self.dir.join(format!("task/{id}/stat")));
            stat.is_some_and(|text| fields(&text).and_then(|mut f| f.next()) == Some(HELD_UP))
        };
        is_leader_held_up
            || threads != "1" && numbers(&self.dir.join("task")).into_iter().any(is_thread_held_up)
    }

    /// Returns how much processor time the process has used, its ended threads included; `None` if it
    /// is gone.
    pub(crate) fn worked(&mut self) -> Option<Duration> {
        Some(parse_stat(&read_kept(&mut self.stat, &self.dir, "stat").ok()?)?.worked)
    }

    /// Closes its files, until it is read again.
    pub(crate) fn close(&mut self) {
        (self.io, self.stat) = (None, None);
    }
}

/// Files with numbers below this stay open: a guest may have more processes than a process may have
/// files.
const KEPT: i32 = 512;

/// The state of a thread that waits for a disk.
const HELD_UP: &str = "D";
/// States of a thread that has ended.
const ENDED: [&str; 2] = ["Z", "X"];
/// Where in `stat`, counted from the state, its time as a user and in the kernel are, the number of
/// threads, and when it was started.
const WORKED: usize = 11;
const THREADS: usize = 17;
const STARTED: usize = 19;

/// Reads a small file of `/proc`, which is whole in one read.
fn read(path: &Path) -> Option<String> {
    read_whole(&File::open(path).ok()?).ok()
}

/// The same for a file that may be open already, and stays open if there is room.
fn read_kept(kept: &mut Option<File>, dir: &Path, name: &str) -> io::Result<String> {
    if let Some(file) = kept {
        return read_whole(file);
    }
    let file = File::open(dir.join(name))?;
    let text = read_whole(&file);
    *kept = Some(file).filter(|file| file.as_raw_fd() < KEPT);
    text
}

fn read_whole(file: &File) -> io::Result<String> {
    let mut text = [0; 2048];
    let length = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..length]).into_owned())
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
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(WORKED)? + number(WORKED + 1)?;
    Some(Identity {
        name,
        parent: fields.get(1)?.parse().ok()?,
        is_kernel: number(6)? & KERNEL_THREAD != 0,
        started: number(STARTED)?,
        worked: Duration::from_millis(ticks * 1000 / clock_ticks_per_second()),
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn names_may_have_parentheses_and_blanks() {
        let text = "42 (a b) c) S 7 1 1 0 -1 4194304 1 2 3 4 150 25 6 7 20 0 1 0 1234 0 0";
        let expected = Identity {
            name: "a b) c".to_owned(),
            parent: 7,
            is_kernel: false,
            started: 1234,
            // A tick is a hundredth of a second on all architectures of Linux but one.
            worked: Duration::from_millis(1750),
        };
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
        assert_eq!(proc.started(pid, pid), Some(identity.started));
        assert_eq!(proc.owner(pid), Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn counters_are_read_again_and_end_with_the_process() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep is there");
        let mut counters = Proc::new("/proc").counters(child.id());
        // Until its own program is read, it may wait for the disk.
        let stat = PathBuf::from(format!("/proc/{}/stat", child.id()));
        let sleeps_soon = (0..1_000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            read(&stat).is_some_and(|text| fields(&text).and_then(|mut f| f.next()) == Some("S"))
        });
        assert!(sleeps_soon, "it has nothing else to do");
        for _ in 0..2 {
            counters.read_bytes().expect("it runs");
            assert!(!counters.is_held_up(), "it sleeps");
            assert!(counters.io.is_some() && counters.stat.is_some(), "they stay open");
        }
        counters.close();
        counters.read_bytes().expect("opened again");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
        assert_eq!((counters.read_bytes().ok(), counters.is_held_up()), (None, false));
    }
}
