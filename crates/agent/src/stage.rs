//! A `/proc` for tests, whose processes are threads of the test: their priorities are real.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::ioprio::IoPrio;
use crate::procfs::Proc;

/// The directory; it goes with the test.
#[derive(Debug)]
pub(crate) struct Stage(PathBuf);

impl Stage {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("evenkeel-agent-{}-{name}.proc", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir_all(&dir).expect("a directory of ours");
        Self(dir)
    }

    pub(crate) fn proc(&self) -> Proc {
        Proc::new(&self.0)
    }

    /// Where an agent of this stage keeps its journal.
    pub(crate) fn journal(&self) -> PathBuf {
        self.0.join("agent.raised")
    }

    /// Where the disks of this stage are.
    pub(crate) fn disks(&self) -> PathBuf {
        self.0.join("block")
    }

    /// Gives a disk a scheduler, as the kernel tells of it.
    pub(crate) fn scheduler(&self, disk: &str, schedulers: &str) {
        let queue = self.disks().join(disk).join("queue");
        fs::create_dir_all(&queue).expect("a directory of ours");
        fs::write(queue.join("scheduler"), schedulers).expect("a file of ours");
    }

    /// Adds a process of user 7, with its first thread.
    pub(crate) fn process(&self, pid: u32, parent: u32, name: &str) {
        self.thread(pid, pid);
        let dir = self.0.join(pid.to_string());
        self.program(pid, parent, name, 9);
        fs::write(dir.join("status"), "Uid:\t7\t7\t7\t7\n").expect("a file of ours");
        fs::write(dir.join("io"), "read_bytes: 0\n").expect("a file of ours");
    }

    /// Gives a process another name, or makes it another one.
    pub(crate) fn program(&self, pid: u32, parent: u32, name: &str, started: u64) {
        self.stat(pid, &format!("({name}) S {parent}"), 1, started);
    }

    /// Ends the first thread of a process of so many, which is left until the others have ended, and
    /// somebody asks for it.
    pub(crate) fn dead(&self, pid: u32, threads: u32) {
        self.stat(pid, "(dead) Z 1", threads, 9);
    }

    fn stat(&self, pid: u32, who: &str, threads: u32, started: u64) {
        let rest = format!("1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 {started} 0 0");
        let stat = self.0.join(format!("{pid}/stat"));
        fs::write(stat, format!("{pid} {who} {rest}")).expect("a file of ours");
    }

    /// Says how much a process has read from disks.
    pub(crate) fn has_read(&self, pid: u32, bytes: u64) {
        let io = self.0.join(format!("{pid}/io"));
        fs::write(io, format!("read_bytes: {bytes}\n")).expect("a file of ours");
    }

    /// Adds a thread of a process.
    pub(crate) fn thread(&self, pid: u32, id: u32) {
        let task = self.0.join(format!("{pid}/task"));
        fs::create_dir_all(&task).expect("a directory of ours");
        let real = format!("/proc/self/task/{id}");
        std::os::unix::fs::symlink(real, task.join(id.to_string())).expect("a new name");
    }

    /// Puts something where a process's counters were that nobody can read.
    pub(crate) fn uncounted(&self, pid: u32) {
        let io = self.0.join(format!("{pid}/io"));
        fs::remove_file(&io).expect("it was added");
        fs::create_dir(io).expect("a directory of ours");
    }

    /// Removes a process.
    pub(crate) fn exited(&self, pid: u32) {
        fs::remove_dir_all(self.0.join(pid.to_string())).expect("it was added");
    }

    /// Removes a thread.
    pub(crate) fn ended(&self, pid: u32, id: u32) {
        fs::remove_file(self.0.join(format!("{pid}/task/{id}"))).expect("it was added");
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

/// A thread that does nothing, until it is dropped.
#[derive(Debug)]
pub(crate) struct Sleeper {
    id: u32,
    /// Asks for a child, which comes by the channel.
    ask: Option<Sender<Sender<Self>>>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    /// Makes one with no priority of its own.
    pub(crate) fn new() -> Self {
        let sleeper = Self::spawn();
        IoPrio(0).set(sleeper.id).expect("no class is allowed");
        sleeper
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Lets it make another one, which inherits from it.
    pub(crate) fn beget(&self) -> Self {
        let (child, born) = channel();
        self.ask.as_ref().and_then(|ask| ask.send(child).ok()).expect("it waits");
        born.recv().expect("it has one")
    }

    fn spawn() -> Self {
        let (told, id) = channel();
        let (ask, asked): (_, Receiver<Sender<Self>>) = channel();
        let thread = std::thread::spawn(move || {
            let id = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get());
            told.send(id.expect("threads have positive numbers")).expect("somebody waits");
            for child in asked {
                child.send(Self::spawn()).expect("somebody waits");
            }
        });
        Self { id: id.recv().expect("it runs"), ask: Some(ask), thread: Some(thread) }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.ask = None;
        self.thread.take().map(JoinHandle::join);
    }
}
