//! I/O priorities of processes: set while they are urgent, restored afterwards.
#![expect(unsafe_code, reason = "the C library has no function for these two system calls")]

use std::collections::HashMap;
use std::io;

use crate::procfs::Proc;

/// An I/O priority as the kernel codes it: `class << 13 | level`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct IoPrio(pub(crate) u16);

impl IoPrio {
    /// Best effort, level 0: first among equals.
    pub(crate) const HIGH: Self = Self(2 << 13);
    /// Real time, lowest level: before everybody that has no class of its own. A guest whose own
    /// scheduler is BFQ needs it: there any explicit level of best effort ends BFQ's own raising.
    pub(crate) const FIRST: Self = Self(1 << 13 | 7);

    /// Returns a thread's priority.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it is gone.
    fn of(thread: u32) -> io::Result<Self> {
        // SAFETY: the call takes numbers only.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
        u16::try_from(value).map(Self).map_err(|_negative| io::Error::last_os_error())
    }

    /// Sets a thread's priority.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it is gone, `EPERM` if it belongs to somebody else or the class is not allowed.
    pub(crate) fn set(self, thread: u32) -> io::Result<()> {
        let value = u32::from(self.0);
        // SAFETY: the call takes numbers only.
        let failed = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, value) };
        if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

const WHO_PROCESS: u32 = 1;

/// The threads whose priority was changed, by number, with what they had before.
#[derive(Debug, Default)]
pub(crate) struct Raised {
    threads: HashMap<u32, Thread>,
    /// Why the last change failed, until one succeeds.
    pub(crate) refused: Option<String>,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    process: u32,
    before: IoPrio,
    now: IoPrio,
}

impl Raised {
    /// Gives all threads of a process this priority. Those that somebody has given an explicit
    /// priority better than the default keep it.
    pub(crate) fn raise(&mut self, proc: &Proc, process: u32, to: IoPrio) {
        for id in proc.threads(process) {
            match self.threads.get(&id) {
                Some(thread) if thread.now == to => continue,
                Some(_) => {}
                None => {
                    let Ok(before) = IoPrio::of(id) else { continue };
                    if !is_ordinary(before) {
                        continue;
                    }
                    self.threads.insert(id, Thread { process, before, now: to });
                }
            }
            match to.set(id) {
                Ok(()) => {
                    self.refused = None;
                    self.threads.entry(id).and_modify(|thread| thread.now = to);
                }
                Err(error) => {
                    self.threads.remove(&id);
                    if error.raw_os_error() != Some(libc::ESRCH) {
                        self.refused = Some(error.to_string());
                    }
                }
            }
        }
    }

    /// Takes note that a process was forked: the child has inherited the priority.
    pub(crate) fn forked(&mut self, parent: u32, child: u32) {
        let inherited = self.threads.values().find(|thread| thread.process == parent).copied();
        if let Some(thread) = inherited {
            self.threads.insert(child, Thread { process: child, ..thread });
        }
    }

    /// Gives the threads of a process back what they had, unless somebody has changed it since.
    pub(crate) fn restore(&mut self, process: u32) {
        self.threads.retain(|&id, thread| {
            if thread.process != process {
                return true;
            }
            give_back(id, *thread);
            false
        });
    }

    /// Forgets a process that has ended; its numbers may be somebody else's soon.
    pub(crate) fn forget(&mut self, process: u32) {
        self.threads.retain(|_, thread| thread.process != process);
    }

    /// Returns whether a process has been raised.
    pub(crate) fn has(&self, process: u32) -> bool {
        self.threads.values().any(|thread| thread.process == process)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        for (&id, &thread) in &self.threads {
            give_back(id, thread);
        }
    }
}

fn give_back(id: u32, thread: Thread) {
    if IoPrio::of(id).is_ok_and(|now| now == thread.now) {
        let _gone = thread.before.set(id);
    }
}

/// Returns whether nobody has asked for this priority: none at all, or best effort in the middle,
/// as it follows from an ordinary nice value.
fn is_ordinary(prio: IoPrio) -> bool {
    let (class, level) = (prio.0 >> 13, prio.0 & 0x1fff);
    class == 0 || (class == 2 && level == 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `test` on a thread of its own, with its number: priorities belong to threads.
    fn on_a_thread(test: impl FnOnce(u32) + Send + 'static) {
        let thread = std::thread::spawn(|| {
            let id = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get());
            test(id.expect("threads have positive numbers"));
        });
        thread.join().expect("the test passed");
    }

    #[test]
    fn a_priority_is_set_and_given_back() {
        on_a_thread(|id| {
            let before = IoPrio::of(id).expect("it runs");
            let mut raised = Raised::default();
            let thread = Thread { process: id, before, now: IoPrio::HIGH };
            IoPrio::HIGH.set(id).expect("best effort is allowed");
            raised.threads.insert(id, thread);
            assert_eq!(IoPrio::of(id).expect("it runs"), IoPrio::HIGH);
            raised.restore(id);
            assert_eq!(IoPrio::of(id).expect("it runs"), before);
            assert!(!raised.has(id));
        });
    }

    #[test]
    fn what_somebody_else_has_set_is_not_touched() {
        on_a_thread(|id| {
            let own = IoPrio(2 << 13 | 6);
            own.set(id).expect("best effort is allowed");
            let thread = Thread { process: id, before: IoPrio(0), now: IoPrio::HIGH };
            give_back(id, thread);
            assert_eq!(IoPrio::of(id).expect("it runs"), own);
        });
    }

    #[test]
    fn only_ordinary_priorities_are_changed() {
        assert!(is_ordinary(IoPrio(0)) && is_ordinary(IoPrio(2 << 13 | 4)));
        assert!(!is_ordinary(IoPrio(3 << 13)) && !is_ordinary(IoPrio(2 << 13 | 6)));
        assert!(!is_ordinary(IoPrio::FIRST));
    }
}
