//! Waiting for the signals that ask the daemon to end.
#![expect(unsafe_code, reason = "signal sets have no safe interface")]

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread;
use std::time::Duration;

/// Signals within this time of the first one are not another wish.
const SAME_WISH: Duration = Duration::from_secs(1);

/// The signals that ask the daemon to end, kept from ending it by themselves.
///
/// Made before the first thread is started, so that every thread inherits it.
pub struct Signals {
    set: libc::sigset_t,
}

impl fmt::Debug for Signals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signals").finish_non_exhaustive()
    }
}

impl Signals {
    /// Holds back SIGTERM and SIGINT from this thread and all that it starts from now on.
    ///
    /// # Errors
    ///
    /// * What the system says.
    pub fn hold() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `set` is room for a set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: `sigemptyset` has made it a set; this cannot fail for a valid signal.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM) };
        // SAFETY: as before.
        unsafe { libc::sigaddset(set.as_mut_ptr(), libc::SIGINT) };
        // SAFETY: as before.
        let signals = Self { set: unsafe { set.assume_init() } };
        signals.mask(libc::SIG_BLOCK)?;
        Ok(signals)
    }

    /// Sleeps until one of them arrives, and returns its name.
    ///
    /// One that comes a second or more later ends the process at once: whoever is in a hurry asks
    /// again. Before that it is the same wish told twice, as by `timeout`, which signals its child
    /// and then its group.
    ///
    /// # Errors
    ///
    /// * What the system says.
    pub fn wait(self) -> io::Result<&'static str> {
        let mut signal = 0;
        // SAFETY: both are valid for the call.
        let errno = unsafe { libc::sigwait(&raw const self.set, &raw mut signal) };
        if errno != 0 {
            return Err(io::Error::from_raw_os_error(errno));
        }
        thread::Builder::new().name("signals".to_owned()).spawn(move || self.admit_another())?;
        Ok(if signal == libc::SIGINT { "SIGINT" } else { "SIGTERM" })
    }

    /// Returns whether one of them has arrived and waits for [`wait`](Self::wait).
    ///
    /// For those who wait for something else before: always `false` where nobody holds them back.
    pub(crate) fn arrived() -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `set` is room for a set.
        if unsafe { libc::sigpending(set.as_mut_ptr()) } != 0 {
            return false;
        }
        // SAFETY: the call has filled it.
        let set = unsafe { set.assume_init() };
        [libc::SIGTERM, libc::SIGINT]
            .into_iter()
            // SAFETY: it is a set, and the signal is valid.
            .any(|signal| unsafe { libc::sigismember(&raw const set, signal) } == 1)
    }

    /// Lets the next signal end the process, forgetting those that have come in the first second.
    fn admit_another(&self) {
        thread::sleep(SAME_WISH);
        let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time are valid, and nobody wants to know more of the signal.
        while unsafe {
            libc::sigtimedwait(&raw const self.set, ptr::null_mut(), &raw const at_once)
        } > 0
        {}
        // It is enough that one thread takes them.
        if let Err(error) = self.mask(libc::SIG_UNBLOCK) {
            tracing::warn!(%error, "a second signal will not be heard");
        }
        loop {
            thread::park();
        }
    }

    fn mask(&self, how: libc::c_int) -> io::Result<()> {
        // SAFETY: the set is valid, and nobody wants to know the old mask.
        let errno = unsafe { libc::pthread_sigmask(how, &raw const self.set, ptr::null_mut()) };
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
    }
}
