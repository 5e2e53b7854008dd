//! What must be put back, in a file: for the next agent if this one is killed.
//!
//! A line for each thread that is raised, added when it is, and one for each process that is given
//! back; later ones hold. Now and then the file is written anew, without what is over.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::ioprio::IoPrio;

/// Lines beyond twice those that hold, until the file is written anew.
const SPARE: usize = 256;

/// The file is never longer than a guest with as many threads as it may have makes it.
const LENGTH_MAX: u64 = 16 << 20;

/// A thread that is raised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Entry {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// When the thread was started, in ticks since boot: its number may be somebody else's by now.
    pub(crate) started: u64,
    pub(crate) before: IoPrio,
    pub(crate) now: IoPrio,
}

/// The file.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    /// Why it is not written, or where it is.
    file: Result<File, String>,
    /// Lines in it, and those that are still to be written.
    lines: usize,
    pending: String,
}

impl Journal {
    /// Takes over what the last agent has left at `path`, and begins anew.
    pub(crate) fn open(path: PathBuf) -> (Self, Vec<Entry>) {
        let left = read(&path).map_or_else(|_unreadable| Vec::new(), |text| parse(&text));
        (
            Self { path, file: Err("not tried yet".to_owned()), lines: 0, pending: String::new() },
            left,
        )
    }

    /// Notes that a thread is raised.
    pub(crate) fn raised(&mut self, entry: Entry) {
        write_line(&mut self.pending, entry);
        self.lines += 1;
    }

    /// Notes that a process has been given back.
    pub(crate) fn given_back(&mut self, process: u32) {
        let _never_fails = writeln!(self.pending, "{process} -");
        self.lines += 1;
    }

    /// Writes what was noted. `all` is what holds, `count` how much that is: when too much else is
    /// in the file it is written anew.
    pub(crate) fn flush<I: Iterator<Item = Entry>>(&mut self, count: usize, all: impl Fn() -> I) {
        if self.pending.is_empty() {
            return;
        }
        let Ok(file) = &mut self.file else {
            self.pending.clear();
            return;
        };
        if self.lines > 2 * count + SPARE {
            self.renew(all());
            return;
        }
        if let Err(error) = file.write_all(self.pending.as_bytes()) {
            self.file = Err(error.to_string());
        }
        self.pending.clear();
    }

    /// Writes the file anew, with `all` that holds.
    pub(crate) fn renew(&mut self, all: impl Iterator<Item = Entry>) {
        let mut text = String::new();
        all.for_each(|entry| write_line(&mut text, entry));
        self.lines = text.lines().count();
        self.pending.clear();
        self.file = replace(&self.path, &text).map_err(|error| error.to_string());
    }

    /// Returns where the file is, or why there is none.
    pub(crate) fn state(&self) -> Result<&Path, &str> {
        self.file.as_ref().map(|_| self.path.as_path()).map_err(String::as_str)
    }

    /// Removes the file: nothing is left to be put back.
    pub(crate) fn remove(&mut self) {
        if self.file.is_ok() {
            let _gone = fs::remove_file(&self.path);
        }
    }
}

/// Puts a new file in the place of the old one, at once.
fn replace(path: &Path, text: &str) -> io::Result<File> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let _none = fs::remove_file(&new);
    // Nobody else's file, nor one that a link leads to: the directory may be everybody's.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&new, path)?;
    Ok(file)
}

fn read(path: &Path) -> io::Result<String> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    // Who may set priorities does so for nobody else.
    if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut text = String::new();
    file.take(LENGTH_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn write_line(text: &mut String, entry: Entry) {
    let Entry { process, thread, started, before, now } = entry;
    let _never_fails = writeln!(text, "{process} {thread} {started} {} {}", before.0, now.0);
}

/// Reads what holds; lines that are cut short, or make no sense, are skipped.
fn parse(text: &str) -> Vec<Entry> {
    let mut entries: HashMap<u32, HashMap<u32, Entry>> = HashMap::new();
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { continue };
        if let Some(process) = line.strip_suffix(" -").and_then(|process| process.parse().ok()) {
            entries.remove(&process);
        } else if let Some(entry) = parse_line(line) {
            entries.entry(entry.process).or_default().insert(entry.thread, entry);
        }
    }
    entries.into_values().flat_map(HashMap::into_values).collect()
}

fn parse_line(line: &str) -> Option<Entry> {
    let mut fields = line.split(' ');
    let entry = Entry {
        process: fields.next()?.parse().ok()?,
        thread: fields.next()?.parse().ok()?,
        started: fields.next()?.parse().ok()?,
        before: IoPrio(fields.next()?.parse().ok()?),
        now: IoPrio(fields.next()?.parse().ok()?),
    };
    fields.next().is_none().then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("evenkeel-agent-{}-{name}.raised", std::process::id()))
    }

    fn entry(process: u32, thread: u32) -> Entry {
        Entry { process, thread, started: 9, before: IoPrio(0), now: IoPrio::HIGH }
    }

    #[test]
    fn the_next_agent_finds_what_holds_and_nothing_else() {
        let path = path("holds");
        let (mut journal, left) = Journal::open(path.clone());
        assert_eq!(left, []);
        journal.renew(std::iter::empty());
        for thread in [4, 5] {
            journal.raised(entry(thread, thread));
            journal.flush(1, std::iter::empty);
        }
        journal.given_back(4);
        journal.flush(1, std::iter::empty);
        let (_, left) = Journal::open(path.clone());
        assert_eq!(left, [entry(5, 5)]);
        journal.remove();
        assert!(!path.exists());
    }

    #[test]
    fn the_file_stays_short_however_much_comes_and_goes() {
        let path = path("short");
        let (mut journal, _) = Journal::open(path.clone());
        journal.renew(std::iter::empty());
        for _ in 0..10_000 {
            journal.raised(entry(4, 4));
            journal.given_back(4);
            journal.raised(entry(5, 5));
            journal.flush(1, || std::iter::once(entry(5, 5)));
        }
        let text = read(&path).expect("it is ours");
        assert!(text.lines().count() <= SPARE + 5, "{} lines", text.lines().count());
        assert_eq!(parse(&text), [entry(5, 5)]);
        journal.remove();
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_of() {
        let (mut journal, left) = Journal::open(PathBuf::from("/nowhere/agent.raised"));
        assert_eq!(left, []);
        journal.renew(std::iter::empty());
        journal.raised(entry(4, 4));
        journal.flush(1, std::iter::empty);
        assert_eq!(journal.state(), Err("No such file or directory (os error 2)"));
    }

    #[test]
    fn nonsense_and_what_is_cut_short_are_skipped() {
        assert_eq!(
            parse("x\n4 4 9 0\n-\n4 4 9 0 16384 1\n5 5 9 0 16384\n6 6 9 0 163"),
            [entry(5, 5)]
        );
        assert_eq!(parse("5 5 9 0 16384\n5 -\n"), []);
    }
}
