//! Keeps a VMM that shrinks its memory file from taking the daemon down.
//!
//! Touching a page of a file mapping that lies behind the end of the file raises SIGBUS, and the
//! default action ends the process, with everybody's disks. So every mapping of foreign memory is
//! written into a table; a fault inside one of them is answered by putting a page of zeroes in the
//! hole and *poisoning* the mapping. The faulting instruction then finishes, its vring sees the
//! poison and stops, and nobody else notices. A fault anywhere else goes where it went before.
//!
//! The table is fixed in size and consists of atomics, because a signal handler may neither lock
//! nor allocate.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// A line of the table, held for as long as the mapping exists.
#[derive(Debug)]
pub(crate) struct Guard {
    line: &'static Line,
}

impl Guard {
    /// Watches over the mapping of `len` bytes at `start`, a non-zero address; `None` when the
    /// table is full.
    ///
    /// The caller drops the guard before the mapping goes.
    pub(crate) fn new(start: usize, len: usize) -> Option<Self> {
        static CLAIM: Mutex<()> = Mutex::new(());
        install();
        // Nothing is behind this lock but the right to claim a line, so poison means nothing.
        let _claim = CLAIM.lock().unwrap_or_else(PoisonError::into_inner);
        let line = TABLE.iter().find(|line| line.start.load(Ordering::Relaxed) == 0)?;
        line.poisoned.store(false, Ordering::Relaxed);
        line.end.store(start.checked_add(len)?, Ordering::Relaxed);
        line.start.store(start, Ordering::Release);
        Some(Self { line })
    }

    /// Returns whether a page of the mapping was found missing.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        // Almost always the first load decides, and its cache line is shared by all sessions.
        FAULTS.load(Ordering::Relaxed) != 0 && self.line.poisoned.load(Ordering::Relaxed)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.line.start.store(0, Ordering::Release);
    }
}

/// One watched mapping: `start..end`; `start` is 0 in a free line.
#[derive(Debug)]
struct Line {
    start: AtomicUsize,
    end: AtomicUsize,
    poisoned: AtomicBool,
}

/// Room for 64 sessions with the most memory slots that we offer. Untouched lines cost no memory.
const LINES: usize = 64 * 512;

static TABLE: [Line; LINES] = [const {
    Line { start: AtomicUsize::new(0), end: AtomicUsize::new(0), poisoned: AtomicBool::new(false) }
}; LINES];

/// Pages replaced since the start.
static FAULTS: AtomicUsize = AtomicUsize::new(0);

/// What SIGBUS did before we came.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// Page size, read before the handler may need it.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Puts the handler in place, once.
fn install() {
    PREVIOUS.get_or_init(|| {
        PAGE_BYTES.store(rustix::param::page_size(), Ordering::Relaxed);
        let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_sigbus;
        // SAFETY: all fields of a sigaction are integers or an optional function pointer, for
        // which zero is a valid value (no flags, empty mask).
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both pointers are to live values of the right type, and the handler has the
        // signature that SA_SIGINFO asks for.
        let rc = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, previous.as_mut_ptr()) };
        assert_eq!(rc, 0, "SIGBUS can be handled and the pointers are valid");
        // SAFETY: sigaction succeeded and filled it in; it was zeroed, hence valid, before.
        unsafe { previous.assume_init() }
    });
}

/// Repairs a fault inside a watched mapping; hands on every other.
///
/// Async-signal-safe: atomics, one system call, and errno is restored.
extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: errno's address is valid for the calling thread for as long as it runs.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: see above; an aligned int that only this thread touches.
    let saved = unsafe { *errno };
    // SAFETY: with SA_SIGINFO the kernel passes a filled siginfo_t.
    let info_now = unsafe { &*info };
    // SAFETY: SIGBUS fills the address (zero if another process sent the signal).
    let address = unsafe { info_now.si_addr() }.addr();
    // Only faults of the memory manager have a positive code; kill(2) has none.
    let repaired = info_now.si_code > 0 && repair(address);
    // SAFETY: as above.
    unsafe { *errno = saved };
    if !repaired {
        hand_on(signal, info, context);
    }
}

/// Puts zeroes where `address` faulted, if it is watched; returns whether it did.
fn repair(address: usize) -> bool {
    let Some((line, start, end)) = TABLE.iter().find_map(|line| {
        let start = line.start.load(Ordering::Acquire);
        let end = line.end.load(Ordering::Relaxed);
        (start != 0 && (start..end).contains(&address)).then_some((line, start, end))
    }) else {
        return false;
    };
    line.poisoned.store(true, Ordering::Relaxed);
    FAULTS.fetch_add(1, Ordering::Relaxed);
    let page_bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let page = address & !(page_bytes - 1);
    // A mapping of huge pages cannot be replaced in part: then all of it goes.
    zero_map(page, page_bytes) || zero_map(start, end - start)
}

/// Maps private zeroes over `len` bytes at `start`.
fn zero_map(start: usize, len: usize) -> bool {
    // SAFETY: the range lies in a mapping that a `Guard` watches; such mappings are only ever
    // accessed through raw pointers by this room, which expects their content to change at any
    // time. MAP_FIXED replaces the pages in one step.
    let mapped = unsafe {
        libc::mmap(
            ptr::without_provenance_mut(start),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Does what SIGBUS did before: calls the previous handler or takes the default action.
fn hand_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let previous = PREVIOUS.get();
    let handler = previous.map_or(libc::SIG_DFL, |action| action.sa_sigaction);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // The instruction faults again when we return, this time with the default action.
        // SAFETY: the default action is always a valid disposition.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the address was the process's SIGBUS handler, hence a function; the kernel passes
    // three arguments to both kinds of handler, and the one-argument kind ignores the rest.
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(ptr::without_provenance::<()>(handler)) };
    handler(signal, info, context);
}
