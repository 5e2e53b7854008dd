//! I/O priorities of threads, as the kernel knows them.
#![expect(unsafe_code, reason = "the C library has no function for these two system calls")]

use std::io;
use std::path::Path;

/// An I/O priority as the kernel codes it: `class << 13 | level`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct IoPrio(pub(crate) u16);

impl IoPrio {
    /// Best effort, level 0: first among equals.
    pub(crate) const HIGH: Self = Self(2 << 13);
    /// Real time, lowest level: before everybody that has no class of its own. A guest whose own
    /// scheduler is BFQ needs it: there any explicit level of best effort ends BFQ's own raising.
    pub(crate) const FIRST: Self = Self(1 << 13 | 7);

    /// Returns the priority for urgent processes of a guest with these disks, such as
    /// [`DISKS`], by their schedulers.
    pub(crate) fn urgent(disks: &Path) -> Self {
        let uses_bfq = std::fs::read_dir(disks).is_ok_and(|disks| {
            disks.flatten().any(|disk| {
                std::fs::read_to_string(disk.path().join("queue/scheduler"))
                    .is_ok_and(|schedulers| schedulers.contains("[bfq]"))
            })
        });
        if uses_bfq { Self::FIRST } else { Self::HIGH }
    }

    /// Returns what an urgent process gets, for people.
    pub(crate) fn describe(self) -> &'static str {
        if self == Self::FIRST {
            "real time 7, since the guest's own scheduler is bfq"
        } else {
            "best effort 0"
        }
    }

    /// Returns a thread's priority.
    ///
    /// # Errors
    ///
    /// `ESRCH` if it is gone.
    pub(crate) fn of(thread: u32) -> io::Result<Self> {
        // SAFETY: the call takes numbers only.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
        u16::try_from(value).map(Self::told).map_err(|_negative| io::Error::last_os_error())
    }

    /// Reads what the kernel tells. Before Linux 6.0 that is level 4 of no class for who has none,
    /// which it does not take back: no class has no levels.
    fn told(value: u16) -> Self {
        if value >> 13 == 0 { Self(0) } else { Self(value) }
    }

    /// Returns whether nobody has asked for this priority: none at all, or best effort in the
    /// middle, as it follows from an ordinary nice value.
    pub(crate) fn is_ordinary(self) -> bool {
        let (class, level) = (self.0 >> 13, self.0 & 0x1fff);
        class == 0 || (class == 2 && level == 4)
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

/// Where the kernel shows its disks.
pub(crate) const DISKS: &str = "/sys/block";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ordinary_priorities_are_changed() {
        assert!(IoPrio(0).is_ordinary() && IoPrio(2 << 13 | 4).is_ordinary());
        assert!(!IoPrio(3 << 13).is_ordinary() && !IoPrio(2 << 13 | 6).is_ordinary());
        assert!(!IoPrio::FIRST.is_ordinary());
    }

    #[test]
    fn what_an_old_kernel_tells_of_no_class_can_be_given_back() {
        assert_eq!(IoPrio::told(4), IoPrio(0));
        assert_eq!(IoPrio::told(2 << 13 | 4), IoPrio(2 << 13 | 4));
    }
}
