//! Processes whose I/O priority was raised, and what they had before.
//!
//! Whoever is born of a raised thread, as a thread or as a process, has its priority from the start
//! on. That is no wish of anybody, and is given back as well.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::ioprio::IoPrio;
use crate::journal::{Entry, Journal};
use crate::procfs::Proc;

/// How often a process that goes on to beget threads is searched when it is given back.
const SEARCHES: u32 = 8;

/// The threads whose priority was changed, with what they had before.
#[derive(Debug)]
pub(crate) struct Raised {
    proc: Proc,
    processes: HashMap<u32, Threads>,
    /// What was given back since the last scan: a child born before that may be unknown yet.
    lately: HashMap<u32, Thread>,
    journal: Journal,
}

type Threads = HashMap<u32, Thread>;

#[derive(Clone, Copy, Debug)]
struct Thread {
    /// Ordinary, or the same as `now`: then somebody has asked for that, and it stays.
    before: IoPrio,
    now: IoPrio,
    /// In ticks since boot.
    started: u64,
}

impl Raised {
    /// Nobody is raised. Whom the last agent has left raised, by the journal at `path`, gets back
    /// what he had.
    pub(crate) fn new(proc: Proc, path: PathBuf) -> Self {
        let (journal, left) = Journal::open(path);
        let mut raised = Self { proc, processes: HashMap::new(), lately: HashMap::new(), journal };
        for Entry { process, thread, started, before, now } in left {
            if raised.proc.started(process, thread) == Some(started) {
                let threads = raised.processes.entry(process).or_default();
                threads.insert(thread, Thread { before, now, started });
            }
        }
        raised.restore_all();
        raised.journal.renew(std::iter::empty());
        raised
    }

    /// Gives all threads of a process this priority. Those that somebody has given an explicit
    /// priority better than the default keep it.
    ///
    /// # Errors
    ///
    /// What the kernel says if it refuses that for any of them.
    pub(crate) fn raise(&mut self, process: u32, to: IoPrio) -> io::Result<()> {
        let mut refused = Ok(());
        let mut known = self.processes.remove(&process).unwrap_or_default();
        let heritage = heritage(process, &known);
        // Those that have ended are left out.
        let mut threads = Threads::new();
        for id in self.proc.threads(process) {
            let is_new = !known.contains_key(&id);
            let thread = known.remove(&id).or_else(|| self.first_seen(process, id, heritage, to));
            let Some(mut thread) = thread else { continue };
            let had = thread.now;
            if thread.before.is_ordinary() && thread.now != to {
                match to.set(id) {
                    Ok(()) => thread.now = to,
                    Err(error) => {
                        if error.raw_os_error() != Some(libc::ESRCH) {
                            refused = Err(error);
                        }
                        if thread.now == thread.before {
                            continue;
                        }
                    }
                }
            }
            threads.insert(id, thread);
            if is_new || thread.now != had {
                self.journal.raised(entry(process, id, thread));
            }
        }
        if !threads.is_empty() {
            self.processes.insert(process, threads);
        }
        refused
    }

    /// Takes note that a process was forked, unless it has not inherited the priority. One that
    /// `has_ended` since may have children that have.
    pub(crate) fn forked(&mut self, parent: u32, child: u32, has_ended: bool) {
        if self.has(child) {
            return;
        }
        let raised = self.processes.get(&parent).and_then(|threads| heritage(parent, threads));
        let heritage = raised.or_else(|| self.lately.get(&parent).copied());
        let Some(mut thread) = heritage else { return };
        // Of one that has ended nothing is written down: no thread was started then.
        thread.started = 0;
        if !has_ended && let Ok(now) = IoPrio::of(child) {
            if now == thread.now {
                thread.started = self.proc.started(child, child).unwrap_or_default();
                self.journal.raised(entry(child, child, thread));
            } else if !self.proc.has_ended(child) {
                return;
            }
        }
        self.processes.insert(child, Threads::from([(child, thread)]));
    }

    /// Takes note that all processes, which are those in order, have been looked at: no unknown
    /// child is left.
    pub(crate) fn scanned(&mut self, there: &[u32]) {
        self.processes.retain(|process, _| there.binary_search(process).is_ok());
        self.lately.clear();
        if self.journal.state().is_err() {
            self.journal.renew(entries(&self.processes));
        }
    }

    /// Writes down what has changed, for the next agent if this one is killed.
    pub(crate) fn write_down(&mut self) {
        let count = self.processes.values().map(HashMap::len).sum();
        self.journal.flush(count, || entries(&self.processes));
    }

    /// Returns where it is written down, or why it is not.
    pub(crate) fn written_down(&self) -> Result<&Path, &str> {
        self.journal.state()
    }

    /// Gives the threads of a process back what they had, unless somebody has changed it since.
    pub(crate) fn restore(&mut self, process: u32) {
        let Some(threads) = self.processes.remove(&process) else { return };
        for (&id, &thread) in &threads {
            give_back(id, thread);
        }
        self.journal.given_back(process);
        let Some(heritage) = heritage(process, &threads) else { return };
        self.lately.insert(process, heritage);
        // Those born since it was raised last, and what they beget meanwhile.
        for _ in 0..SEARCHES {
            let born = self.proc.threads(process).into_iter();
            let born = born.filter(|id| !threads.contains_key(id));
            if born.filter(|&id| give_back(id, heritage)).count() == 0 {
                return;
            }
        }
    }

    /// Forgets a process that has ended; its numbers may be somebody else's soon.
    pub(crate) fn forget(&mut self, process: u32) {
        self.processes.remove(&process);
    }

    /// Returns whether a process has been raised.
    pub(crate) fn has(&self, process: u32) -> bool {
        self.processes.contains_key(&process)
    }

    /// Gives everybody back what he had.
    fn restore_all(&mut self) {
        if self.processes.is_empty() && self.lately.is_empty() {
            return;
        }
        // Children that nobody has told of yet, after their parents.
        let mut there = self.proc.processes();
        there.sort_unstable();
        for pid in there {
            if let Some(identity) = self.proc.identity(pid) {
                self.forked(identity.parent, pid, false);
            }
        }
        let processes: Vec<u32> = self.processes.keys().copied().collect();
        for process in processes {
            self.restore(process);
        }
    }

    /// Looks at a thread that is not known yet; `None` if it is gone, or has a priority of its own
    /// that nobody could take for ours.
    fn first_seen(
        &self,
        process: u32,
        id: u32,
        heritage: Option<Thread>,
        to: IoPrio,
    ) -> Option<Thread> {
        let now = IoPrio::of(id).ok()?;
        let heritage = heritage.filter(|thread| thread.now == now);
        if heritage.is_none() && !now.is_ordinary() && now != to {
            return None;
        }
        let before = heritage.map_or(now, |thread| thread.before);
        Some(Thread { before, now, started: self.proc.started(process, id)? })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.restore_all();
        self.journal.remove();
    }
}

fn entry(process: u32, id: u32, thread: Thread) -> Entry {
    let Thread { before, now, started } = thread;
    Entry { process, thread: id, started, before, now }
}

fn entries(processes: &HashMap<u32, Threads>) -> impl Iterator<Item = Entry> {
    let entries = |(&process, threads): (&u32, &Threads)| -> Vec<Entry> {
        threads.iter().map(|(&id, &thread)| entry(process, id, thread)).collect()
    };
    processes.iter().flat_map(entries)
}

/// Returns what those born of a process now have, and had if it were not raised; `None` if it is
/// not.
fn heritage(process: u32, threads: &Threads) -> Option<Thread> {
    let leader = threads.get(&process).into_iter();
    leader.chain(threads.values()).find(|thread| thread.before.is_ordinary()).copied()
}

/// Returns whether there was something to give back.
fn give_back(id: u32, thread: Thread) -> bool {
    let is_raised = thread.now != thread.before;
    is_raised && IoPrio::of(id).is_ok_and(|now| now == thread.now) && thread.before.set(id).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::{Sleeper, Stage};

    fn prio(sleeper: &Sleeper) -> IoPrio {
        IoPrio::of(sleeper.id()).expect("it runs")
    }

    #[test]
    fn a_priority_is_set_and_given_back() {
        let (stage, leader) = (Stage::new("set"), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        assert_eq!(prio(&leader), IoPrio::HIGH);
        raised.restore(leader.id());
        assert_eq!(prio(&leader), IoPrio(0));
        assert!(!raised.has(leader.id()));
    }

    #[test]
    fn what_somebody_else_has_set_is_not_touched() {
        let (stage, leader) = (Stage::new("else"), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        let own = IoPrio(2 << 13 | 6);
        own.set(leader.id()).expect("best effort is allowed");
        drop(raised);
        assert_eq!(prio(&leader), own);
    }

    #[test]
    fn a_thread_born_of_a_raised_one_is_given_back_as_well() {
        let (stage, leader) = (Stage::new("born"), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        let known = leader.beget();
        assert_eq!(prio(&known), IoPrio::HIGH, "the kernel hands it on");
        stage.thread(leader.id(), known.id());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        // After the last look.
        let unknown = known.beget();
        stage.thread(leader.id(), unknown.id());
        raised.restore(leader.id());
        assert_eq!([prio(&leader), prio(&known), prio(&unknown)], [IoPrio(0); 3]);
    }

    #[test]
    fn a_thread_born_of_a_raised_one_outlives_its_leader_and_is_given_back() {
        let (stage, leader) = (Stage::new("outlives"), Sleeper::new());
        let process = leader.id();
        stage.process(process, 1, "leader");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(process, IoPrio::HIGH).expect("best effort is allowed");
        let heir = leader.beget();
        stage.thread(process, heir.id());
        raised.raise(process, IoPrio::HIGH).expect("best effort is allowed");
        drop(leader);
        stage.ended(process, process);
        raised.raise(process, IoPrio::HIGH).expect("best effort is allowed");
        raised.restore(process);
        assert_eq!(prio(&heir), IoPrio(0));
    }

    #[test]
    fn an_explicit_priority_stays_even_if_it_is_the_one_that_is_given() {
        let (stage, leader, own) = (Stage::new("explicit"), Sleeper::new(), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        stage.thread(leader.id(), own.id());
        IoPrio::HIGH.set(own.id()).expect("best effort is allowed");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        for _ in 0..2 {
            raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        }
        raised.restore(leader.id());
        assert_eq!((prio(&leader), prio(&own)), (IoPrio(0), IoPrio::HIGH));
    }

    #[test]
    fn a_child_of_a_raised_process_is_given_back_whenever_it_is_found() {
        let (stage, parent) = (Stage::new("child"), Sleeper::new());
        stage.process(parent.id(), 1, "parent");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(parent.id(), IoPrio::HIGH).expect("best effort is allowed");
        let (told, late, last) = (parent.beget(), parent.beget(), parent.beget());
        raised.forked(parent.id(), told.id(), false);
        raised.restore(parent.id());
        raised.forked(parent.id(), late.id(), false);
        let ordinary = parent.beget();
        stage.process(ordinary.id(), parent.id(), "ordinary");
        raised.forked(parent.id(), ordinary.id(), false);
        assert!(!raised.has(ordinary.id()), "it was born afterwards");
        stage.process(last.id(), parent.id(), "last");
        drop(raised);
        assert_eq!([prio(&told), prio(&late), prio(&last)], [IoPrio(0); 3]);
    }

    #[test]
    fn who_is_left_by_a_child_that_has_ended_is_given_back() {
        let (stage, parent) = (Stage::new("orphan"), Sleeper::new());
        stage.process(parent.id(), 1, "parent");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(parent.id(), IoPrio::HIGH).expect("best effort is allowed");
        // One is gone, one waits to be asked what became of it, and one's number is another's already.
        let (gone, again) = (u32::MAX >> 1, Sleeper::new());
        let mut unasked = std::process::Command::new("true").spawn().expect("a program");
        while !Proc::new("/proc").has_ended(unasked.id()) {
            std::thread::yield_now();
        }
        stage.process(again.id(), 1, "again");
        let middle = [(gone, false), (unasked.id(), false), (again.id(), true)];
        let orphans = middle.map(|(child, has_ended)| {
            let orphan = parent.beget();
            raised.forked(parent.id(), child, has_ended);
            raised.forked(child, orphan.id(), false);
            raised.forget(child);
            orphan
        });
        drop(raised);
        assert_eq!(orphans.map(|orphan| prio(&orphan)), [IoPrio(0); 3]);
        unasked.wait().expect("it is ours");
    }

    #[test]
    fn a_child_born_before_its_parent_was_raised_is_raised_itself() {
        let (stage, parent) = (Stage::new("before"), Sleeper::new());
        let child = parent.beget();
        stage.process(parent.id(), 1, "parent");
        stage.process(child.id(), parent.id(), "child");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(parent.id(), IoPrio::HIGH).expect("best effort is allowed");
        raised.forked(parent.id(), child.id(), false);
        raised.raise(child.id(), IoPrio::HIGH).expect("best effort is allowed");
        assert_eq!(prio(&child), IoPrio::HIGH);
    }

    /// A raised process with two threads, of which one was unknown when its agent was killed, and
    /// one with a priority of its own.
    fn killed(stage: &Stage) -> [Sleeper; 3] {
        let (leader, own) = (Sleeper::new(), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        stage.process(own.id(), 1, "own");
        IoPrio::HIGH.set(own.id()).expect("best effort is allowed");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        raised.raise(own.id(), IoPrio::HIGH).expect("best effort is allowed");
        raised.write_down();
        std::mem::forget(raised);
        let unknown = leader.beget();
        stage.thread(leader.id(), unknown.id());
        [leader, unknown, own]
    }

    #[test]
    fn what_a_killed_agent_has_raised_the_next_one_gives_back() {
        let stage = Stage::new("killed");
        let [leader, unknown, own] = killed(&stage);
        assert_eq!([prio(&leader), prio(&unknown)], [IoPrio::HIGH; 2]);
        let next = Raised::new(stage.proc(), stage.journal());
        assert_eq!([prio(&leader), prio(&unknown)], [IoPrio(0); 2]);
        assert_eq!(prio(&own), IoPrio::HIGH, "somebody has asked for that");
        assert_eq!(next.written_down(), Ok(stage.journal().as_path()));
        drop(next);
        assert!(!stage.journal().exists(), "nothing is left to do");
    }

    #[test]
    fn what_a_killed_agent_has_raised_is_left_alone_if_it_is_somebody_else_now() {
        let stage = Stage::new("killed-else");
        let [leader, ..] = killed(&stage);
        let journal = std::fs::read_to_string(stage.journal()).expect("it was written");
        let line = format!("{0} {0} ", leader.id());
        let started = stage.proc().started(leader.id(), leader.id()).expect("it runs");
        let older = journal.replace(&format!("{line}{started}"), &format!("{line}{}", started - 1));
        assert_ne!(older, journal);
        std::fs::write(stage.journal(), older).expect("it is ours");
        drop(Raised::new(stage.proc(), stage.journal()));
        assert_eq!(prio(&leader), IoPrio::HIGH);
    }

    #[test]
    fn what_a_killed_agent_has_given_back_already_is_left_alone() {
        let (stage, leader) = (Stage::new("killed-after"), Sleeper::new());
        stage.process(leader.id(), 1, "leader");
        let mut raised = Raised::new(stage.proc(), stage.journal());
        raised.raise(leader.id(), IoPrio::HIGH).expect("best effort is allowed");
        raised.write_down();
        raised.restore(leader.id());
        raised.write_down();
        std::mem::forget(raised);
        IoPrio::HIGH.set(leader.id()).expect("best effort is allowed");
        drop(Raised::new(stage.proc(), stage.journal()));
        assert_eq!(prio(&leader), IoPrio::HIGH);
    }
}
