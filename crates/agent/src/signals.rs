//! Being asked to end: whatever was changed is put back first.
#![expect(unsafe_code, reason = "signal sets have no safe interface")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

/// SIGTERM and SIGINT, as something that one can wait for beside other things.
#[derive(Debug)]
pub(crate) struct Ending(OwnedFd);

impl Ending {
    /// Keeps them from ending the process at once.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub(crate) fn hold() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `set` is room for a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: `sigemptyset` has made it a set.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
        // SAFETY: as before.
        let set = unsafe { set.assume_init() };
        // SAFETY: the set is valid, and nobody wants the old one.
        let errno =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        // SAFETY: the set is valid.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and belongs to nobody else.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns whether one of them has come.
    pub(crate) fn is_due(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; size_of::<libc::signalfd_siginfo>()]).is_ok()
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
