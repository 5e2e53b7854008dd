//! The ring between the worker and the kernel: one system call per turn.
//!
//! Everything that a worker waits for ends in the same completion queue: device I/O, kicks of
//! guests, the bell of the control threads. Kick eventfds are watched by multishot polls and never
//! read: an eventfd wakes its poll on every write, whatever its counter says, so reading it would
//! be a system call for nothing.
//!
//! Not known here: guests, weights, disks. The memory that a transfer points into is kept alive by
//! `slots`.
#![expect(unsafe_code, reason = "entries carry raw addresses to the kernel")]

use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use evenkeel_sched::{Nanos, Tag};
use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use crate::slots::Step;

mod asked;

use asked::Asked;

/// Entries of the submission queue. A turn that has more to say submits in between.
const ENTRIES: u32 = 512;
/// Entries of the completion queue; beyond it the kernel keeps completions for us, more slowly.
const COMPLETIONS: u32 = 4096;
/// Most segments of one transfer (`UIO_MAXIOV`); longer ones go in several.
pub(crate) const IOV_MAX: usize = 1024;

/// Names a poll: a number that the owner chooses, and a generation that tells its successors apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PollId {
    pub(crate) index: u32,
    /// Below 2^24.
    pub(crate) generation: u32,
}

/// What the ring reports.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// A device step ended; negative results are errno.
    Io { tag: Tag, result: i32 },
    /// A watched eventfd was written to. Without `armed` the poll has ended.
    Poll { id: PollId, armed: bool },
}

/// Entries from which on the kernel gives those of one call to the device together, and rings it
/// once; fewer ring it once each (`IO_PLUG_THRESHOLD` of Linux's `io_uring` is 2).
pub(crate) const TOGETHER: usize = 3;
/// Deadlines closer than this are told to the kernel with the wait itself.
const ALARM_LEAST: Nanos = Nanos::from_millis(1);

/// User data: kind in the top byte, generation in the next 24 bits, index in the low half.
const KIND_IO: u64 = 1;
const KIND_POLL: u64 = 2;
const KIND_IGNORED: u64 = 3;
const KIND_ALARM: u64 = 4;

const fn user_data(kind: u64, generation: u32, index: u32) -> u64 {
    kind << 56 | (generation as u64 & 0xff_ffff) << 32 | index as u64
}

fn event(entry: &cqueue::Entry) -> Option<Event> {
    let data = entry.user_data();
    let index = u32::try_from(data & 0xffff_ffff).expect("masked to 32 bits");
    let generation = u32::try_from(data >> 32 & 0xff_ffff).expect("masked to 24 bits");
    match data >> 56 {
        KIND_IO => Some(Event::Io { tag: Tag(index), result: entry.result() }),
        KIND_POLL => Some(Event::Poll {
            id: PollId { index, generation },
            armed: cqueue::more(entry.flags()),
        }),
        _ => None,
    }
}

/// One thread's ring.
pub(crate) struct Ring {
    uring: IoUring,
    /// Whether a thread of the kernel takes what is queued (`IORING_SETUP_SQPOLL`).
    is_taken: bool,
    /// Whether a descriptor is queued that may be closed after the next call.
    watches: bool,
    /// What had to leave the completion queue before it was asked for.
    early: Vec<Event>,
    system_calls: u64,
    /// Transfers in the submission queue.
    gathered: usize,
    /// When the kernel ends a wait of its own accord.
    alarm: Option<Nanos>,
    /// How long until then; the kernel reads it when the entry is submitted.
    alarm_span: Box<Timespec>,
    /// Transfers of devices that are asked for their answers.
    asked: Option<Asked>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("fd", &self.uring.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Ring {
    /// Makes the ring of this thread; `files` are named by their index from then on, -1 is none.
    /// With `sqpoll_ms` a thread of the kernel takes what is queued, without a call, and sleeps
    /// after so many ms with nothing.
    ///
    /// # Errors
    ///
    /// * What the system says, for example if `io_uring` is switched off
    ///   (`kernel.io_uring_disabled`).
    pub(crate) fn new(files: &[RawFd], sqpoll_ms: Option<u32>) -> io::Result<Self> {
        let build = |modern: bool| {
            let mut builder = IoUring::builder();
            builder.setup_cqsize(COMPLETIONS).dontfork();
            if let Some(idle_ms) = sqpoll_ms {
                builder.setup_sqpoll(idle_ms);
            } else if modern {
                // One thread submits, and completions need not interrupt it: it asks every turn.
                builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag();
            }
            builder.build(ENTRIES)
        };
        let uring = match build(true) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => build(false)?,
            other => other?,
        };
        if !uring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel is older than 5.11: io_uring cannot wait with a deadline",
            ));
        }
        if !files.is_empty() {
            uring.submitter().register_files(files)?;
        }
        let alarm_span = Box::new(Timespec::new());
        Ok(Self {
            uring,
            is_taken: sqpoll_ms.is_some(),
            watches: false,
            early: Vec::new(),
            system_calls: 0,
            gathered: 0,
            alarm: None,
            alarm_span,
            asked: None,
        })
    }

    /// Lets devices be asked for their answers to reads and writes of the registered files for
    /// which `asked` has true. While such a transfer is on its way nobody sleeps.
    ///
    /// # Errors
    ///
    /// * What the system says.
    pub(crate) fn ask_devices(&mut self, files: &[RawFd], asked: Box<[bool]>) -> io::Result<()> {
        if asked.contains(&true) {
            self.asked = Some(Asked::new(files, asked)?);
        }
        Ok(())
    }

    /// Watches an eventfd until [`unwatch`](Self::unwatch).
    ///
    /// The descriptor must stay open until the poll is submitted, that is until the next
    /// [`enter`](Self::enter).
    ///
    /// # Errors
    ///
    /// * What the system says if the queue was full and could not be submitted.
    pub(crate) fn watch(&mut self, id: PollId, fd: RawFd) -> io::Result<()> {
        let readable = u32::try_from(libc::POLLIN).expect("a small constant");
        let fd = io_uring::types::Fd(fd);
        let entry = opcode::PollAdd::new(fd, readable).multi(true).build();
        self.watches = true;
        // SAFETY: the entry refers to no memory.
        unsafe { self.push(&entry.user_data(user_data(KIND_POLL, id.generation, id.index))) }
    }

    /// Ends a poll; its last event, without `armed`, follows.
    ///
    /// # Errors
    ///
    /// * What the system says if the queue was full and could not be submitted.
    pub(crate) fn unwatch(&mut self, id: PollId) -> io::Result<()> {
        let entry = opcode::PollRemove::new(user_data(KIND_POLL, id.generation, id.index)).build();
        // SAFETY: the entry refers to no memory.
        unsafe { self.push(&entry.user_data(user_data(KIND_IGNORED, 0, 0))) }
    }

    /// Sees to it that a wait ends at `deadline` or before; returns how to wait.
    ///
    /// A deadline that follows every request, as that of a scheduler that keeps the device for
    /// somebody, is hardly ever reached: to set a timer for each costs the kernel more than to
    /// look now and then whether the last one is due. So a timer that is set already stays if it
    /// ends the wait in time, perhaps too early, and costs one turn for nothing then.
    ///
    /// # Errors
    ///
    /// * What the system says if the queue was full and could not be submitted.
    pub(crate) fn alarm(&mut self, now: Nanos, deadline: Nanos) -> io::Result<Wait> {
        if self.alarm.is_some_and(|set| set <= deadline) {
            return Ok(Wait::Forever);
        }
        let span = deadline - now;
        if span < ALARM_LEAST {
            return Ok(Wait::For(span));
        }
        *self.alarm_span = timespec(span);
        let name = user_data(KIND_ALARM, 0, 0);
        let entry = match self.alarm.replace(deadline) {
            None => opcode::Timeout::new(&raw const *self.alarm_span).build().user_data(name),
            // It may ring just now: then this one ends in an error, and that is heard.
            Some(_later) => opcode::TimeoutUpdate::new(name, &raw const *self.alarm_span)
                .build()
                .user_data(user_data(KIND_IGNORED, 0, 0)),
        };
        // SAFETY: the span lives as long as the ring, which outlives its queue.
        unsafe { self.push(&entry)? };
        Ok(Wait::Forever)
    }

    /// Queues the next step of a transfer on registered file number `file`.
    ///
    /// # Safety
    ///
    /// The memory behind `step`'s addresses, and the array of segments itself, stay valid and are
    /// not moved until the event of `tag` has been reaped, and no other step of `tag` is on its way.
    ///
    /// # Errors
    ///
    /// * What the system says if the queue was full and could not be submitted.
    pub(crate) unsafe fn transfer(
        &mut self,
        tag: Tag,
        file: u32,
        step: &Step<'_>,
    ) -> io::Result<()> {
        let entry = entry(Fixed(file), step).user_data(user_data(KIND_IO, 0, tag.0));
        self.gathered += 1;
        match self.asked.as_mut().filter(|asked| asked.takes(file, step)) {
            // SAFETY: the caller's promise.
            Some(asked) => unsafe { asked.push(&entry) },
            // SAFETY: the caller's promise.
            None => unsafe { self.push(&entry) },
        }
    }

    /// Makes two transfers enough to be given to the device together. Being rung is what costs a
    /// virtual device most: an exit of the machine that it is in.
    fn pad(&mut self) {
        let pads = self.uring.params().is_feature_skip_cqe_on_success();
        let mut queue = self.uring.submission();
        if pads && self.gathered == TOGETHER - 1 && queue.len() == self.gathered {
            let nothing = opcode::Nop::new().build().user_data(user_data(KIND_IGNORED, 0, 0));
            let nothing = nothing.flags(squeue::Flags::SKIP_SUCCESS);
            // SAFETY: the entry refers to no memory. If there is no room they go one by one.
            let _full = unsafe { queue.push(&nothing) };
        }
        drop(queue);
        self.gathered = 0;
    }

    /// # Safety
    ///
    /// Memory that the entry refers to stays valid until its completion has been reaped.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.uring.submission().push(entry) }.is_ok() {
                return Ok(());
            }
            self.system_calls += 1;
            self.gathered = 0;
            let made_room = match self.is_taken {
                false => self.uring.submit(),
                // The thread may sleep, so it is woken before it is waited for.
                true => self.uring.submit().and_then(|_woken| self.uring.submitter().squeue_wait()),
            };
            match made_room {
                Ok(_submitted) => {}
                // Kernels before 5.19 take nothing while completions do not fit into their queue.
                Err(error) if is_transient(&error) => self.make_room(),
                Err(error) => return Err(error),
            }
        }
    }

    /// Empties the completion queue; [`reap`](Self::reap) finds the events here.
    fn make_room(&mut self) {
        let mut early = std::mem::take(&mut self.early);
        self.take(&mut early);
        self.early = early;
    }

    /// Empties the completion queue into `events`.
    fn take(&mut self, events: &mut Vec<Event>) {
        for entry in self.uring.completion() {
            if entry.user_data() >> 56 == KIND_ALARM {
                self.alarm = None;
            }
            events.extend(event(&entry));
        }
    }

    /// Submits everything queued, and unless `wait` is `None` waits until something completes or
    /// the given time has passed ([`Wait::Forever`] never passes). The one system call of a turn,
    /// unless devices are asked.
    ///
    /// # Errors
    ///
    /// * What the system says; interruptions and passed deadlines are no errors.
    pub(crate) fn enter(&mut self, wait: Wait) -> io::Result<()> {
        if self.asked.as_ref().is_none_or(Asked::is_idle) {
            return self.call(wait);
        }
        let until = match wait {
            Wait::For(span) => Some(Instant::now() + Duration::from_nanos(span.0)),
            Wait::No | Wait::Forever => None,
        };
        self.call(Wait::No)?;
        loop {
            self.ask()?;
            let is_over = wait == Wait::No || until.is_some_and(|until| Instant::now() >= until);
            if is_over || self.has_arrived() {
                return Ok(());
            }
        }
    }

    /// Submits transfers of devices that are asked, and asks once.
    fn ask(&mut self) -> io::Result<()> {
        let Some(asked) = self.asked.as_mut().filter(|asked| !asked.is_idle()) else {
            return Ok(());
        };
        self.system_calls += 1;
        asked.ask()
    }

    /// As [`enter`](Self::enter), without the devices that are asked.
    fn call(&mut self, wait: Wait) -> io::Result<()> {
        let wait = if self.early.is_empty() { wait } else { Wait::No };
        self.pad();
        if self.is_taken {
            self.await_watches()?;
        }
        let mut called = true;
        let entered = match wait {
            Wait::No => {
                let queue = self.uring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return Ok(());
                }
                called = !self.is_taken || queue.need_wakeup() || queue.cq_overflow();
                drop(queue);
                self.uring.submit()
            }
            Wait::Forever => self.uring.submit_and_wait(1),
            Wait::For(span) => {
                let time = timespec(span);
                self.uring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        self.system_calls += u64::from(called);
        match entered {
            Ok(_submitted) => Ok(()),
            Err(error) if is_transient(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Waits until the kernel's thread has taken what is queued, if a descriptor is in it.
    fn await_watches(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.watches) {
            while !self.uring.submission().is_empty() {
                match self.uring.submit() {
                    Err(error) if !is_transient(&error) => return Err(error),
                    _ => std::thread::yield_now(),
                }
            }
        }
        Ok(())
    }

    /// Returns how many transfers wait to be submitted.
    pub(crate) const fn gathered(&self) -> usize {
        self.gathered
    }

    /// Returns whether something has completed, or will when the kernel is entered.
    pub(crate) fn has_news(&mut self) -> bool {
        // What fails now fails again at the next entry, and is told there.
        let _asked = self.ask();
        self.has_arrived()
    }

    fn has_arrived(&mut self) -> bool {
        let answered = self.asked.as_mut().is_some_and(Asked::has_answers);
        if answered || !self.early.is_empty() || !self.uring.completion().is_empty() {
            return true;
        }
        let queue = self.uring.submission();
        queue.taskrun() || queue.cq_overflow()
    }

    /// Returns how often the kernel was entered.
    pub(crate) const fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Moves everything that has completed into `events`.
    pub(crate) fn reap(&mut self, events: &mut Vec<Event>) {
        events.append(&mut self.early);
        self.take(events);
        if let Some(asked) = &mut self.asked {
            asked.take(events);
        }
    }
}

/// How long to sleep in [`Ring::enter`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Wait {
    /// Not at all: there is work.
    No,
    /// At most this long.
    For(Nanos),
    /// Until something happens.
    Forever,
}

/// Returns whether the call did its work, or will when it is repeated after reaping: interrupted,
/// deadline passed, completion queue full, short of memory.
fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN))
}

fn entry(file: Fixed, step: &Step<'_>) -> squeue::Entry {
    let sync = |durable| if durable { libc::RWF_DSYNC } else { 0 };
    match *step {
        Step::Read { offset, segments: [one], ioprio } => {
            opcode::Read::new(file, one.iov_base.cast(), length(one.iov_len))
                .offset(offset)
                .ioprio(ioprio)
                .build()
        }
        Step::Read { offset, segments, ioprio } => {
            opcode::Readv::new(file, segments.as_ptr(), count(segments))
                .offset(offset)
                .ioprio(ioprio)
                .build()
        }
        Step::Write { offset, segments: [one], ioprio, durable } => {
            opcode::Write::new(file, one.iov_base.cast_const().cast(), length(one.iov_len))
                .offset(offset)
                .ioprio(ioprio)
                .rw_flags(sync(durable))
                .build()
        }
        Step::Write { offset, segments, ioprio, durable } => {
            opcode::Writev::new(file, segments.as_ptr(), count(segments))
                .offset(offset)
                .ioprio(ioprio)
                .rw_flags(sync(durable))
                .build()
        }
        Step::Allocate { offset, bytes, mode } => {
            opcode::Fallocate::new(file, bytes).offset(offset).mode(mode).build()
        }
        Step::Sync => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
    }
}

fn timespec(span: Nanos) -> Timespec {
    let nanos = u32::try_from(span.0 % 1_000_000_000).expect("below 2^30");
    Timespec::new().sec(span.0 / 1_000_000_000).nsec(nanos)
}

fn count(segments: &[libc::iovec]) -> u32 {
    u32::try_from(segments.len().min(IOV_MAX)).expect("at most 1024")
}

fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).expect("a segment's length is a u32 in the ring")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eventfd() -> std::os::fd::OwnedFd {
        rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap()
    }

    impl Ring {
        fn queued(&mut self) -> usize {
            self.uring.submission().len()
        }
    }

    /// Returns a ring that is entered, and one whose entries a thread of the kernel takes.
    fn rings() -> [Ring; 2] {
        [None, Some(1)].map(|sqpoll_ms| Ring::new(&[], sqpoll_ms).unwrap())
    }

    fn reaped(ring: &mut Ring, wait: Wait) -> Vec<Event> {
        ring.enter(wait).unwrap();
        let mut events = Vec::new();
        ring.reap(&mut events);
        events
    }

    #[test]
    fn every_write_to_a_watched_eventfd_is_reported_though_nobody_reads_it() {
        for mut ring in rings() {
            let bell = eventfd();
            let id = PollId { index: 7, generation: 3 };
            ring.watch(id, bell.as_raw_fd()).unwrap();
            assert_eq!(reaped(&mut ring, Wait::No), []);
            for _ in 0..3 {
                rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
                assert_eq!(reaped(&mut ring, Wait::Forever), [Event::Poll { id, armed: true }]);
            }
        }
    }

    #[test]
    fn a_thread_of_the_kernel_takes_what_is_queued_without_a_call_and_after_a_sleep() {
        let pause = Duration::from_millis;
        for (idle_ms, naps, calls) in [(1000, 0, 10), (1, 10, 50)] {
            let mut ring = Ring::new(&[], Some(idle_ms)).unwrap();
            for tag in 0..50 {
                if tag < naps {
                    std::thread::sleep(pause(3));
                }
                send_nothing(&mut ring, tag);
                ring.enter(Wait::No).unwrap();
                while !ring.has_news() {
                    std::thread::yield_now();
                }
                let failed = Event::Io { tag: Tag(tag), result: -libc::EBADF };
                assert_eq!(reaped(&mut ring, Wait::No), [failed]);
            }
            let made = ring.system_calls();
            assert!(made <= calls, "{made} calls for 50 transfers, asleep after {idle_ms} ms");
        }
    }

    #[test]
    fn a_watched_descriptor_has_been_taken_when_the_call_returns() {
        for mut ring in rings() {
            for index in 0..100 {
                let bell = eventfd();
                ring.watch(PollId { index, generation: 0 }, bell.as_raw_fd()).unwrap();
                ring.enter(Wait::No).unwrap();
                rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
                drop(bell);
                let id = PollId { index, generation: 0 };
                assert_eq!(reaped(&mut ring, Wait::Forever), [Event::Poll { id, armed: true }]);
            }
        }
    }

    #[test]
    fn news_are_seen_without_a_system_call() {
        let (mut ring, bell) = (Ring::new(&[], None).unwrap(), eventfd());
        let id = PollId { index: 1, generation: 0 };
        ring.watch(id, bell.as_raw_fd()).unwrap();
        assert_eq!(reaped(&mut ring, Wait::No), []);
        let calls = ring.system_calls();
        assert!(!ring.has_news());
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        assert!(ring.has_news());
        assert_eq!(ring.system_calls(), calls);
        assert_eq!(reaped(&mut ring, Wait::No), [Event::Poll { id, armed: true }]);
        assert!(!ring.has_news());
    }

    /// A transfer of nothing from nowhere: it fails.
    fn send_nothing(ring: &mut Ring, tag: u32) {
        // SAFETY: the step refers to no memory.
        unsafe { ring.transfer(Tag(tag), 0, &Step::Sync).unwrap() };
    }

    #[test]
    fn two_transfers_are_made_three_and_only_they_are_reported() {
        let mut ring = Ring::new(&[], None).unwrap();
        for transfers in [1, 2, 3, 2] {
            (0..transfers).for_each(|tag| send_nothing(&mut ring, tag));
            assert_eq!(ring.gathered(), transfers as usize);
            ring.pad();
            let padded = if transfers == 2 { 3 } else { transfers };
            assert_eq!((ring.queued(), ring.gathered()), (padded as usize, 0));
            // The kernel's threads try them, in whatever order.
            let mut events = Vec::new();
            while events.len() < transfers as usize {
                events.extend(reaped(&mut ring, Wait::Forever));
            }
            assert_eq!((events.len(), reaped(&mut ring, Wait::No)), (transfers as usize, vec![]));
            for tag in (0..transfers).map(Tag) {
                assert!(events.contains(&Event::Io { tag, result: -libc::EBADF }), "{events:?}");
            }
        }
    }

    #[test]
    fn an_alarm_that_is_set_serves_every_later_deadline() {
        let mut ring = Ring::new(&[], None).unwrap();
        let now = Nanos::ORIGIN;
        let at = |ms| now + Nanos::from_millis(ms);
        assert_eq!(ring.alarm(now, now + Nanos(999_999)).unwrap(), Wait::For(Nanos(999_999)));
        assert_eq!((ring.queued(), ring.alarm(now, at(3_600_000)).unwrap()), (0, Wait::Forever));
        assert_eq!(ring.queued(), 1);
        ring.enter(Wait::No).unwrap();
        // Nearer than the one that is set: that is moved.
        assert_eq!((ring.alarm(now, at(2)).unwrap(), ring.queued()), (Wait::Forever, 1));
        assert_eq!((ring.alarm(now, at(5)).unwrap(), ring.queued()), (Wait::Forever, 1));
        assert_eq!(reaped(&mut ring, Wait::Forever), [], "the move itself");
        while ring.alarm.is_some() {
            assert_eq!(reaped(&mut ring, Wait::Forever), [], "after 2 ms, not after an hour");
        }
        assert_eq!((ring.alarm(at(2), at(5)).unwrap(), ring.queued()), (Wait::Forever, 1));
        assert_eq!(reaped(&mut ring, Wait::Forever), []);
        assert_eq!(ring.alarm, None);
    }

    #[test]
    fn an_unwatched_eventfd_reports_its_end_once() {
        let (mut ring, bell) = (Ring::new(&[], None).unwrap(), eventfd());
        let id = PollId { index: u32::MAX, generation: 0xff_ffff };
        ring.watch(id, bell.as_raw_fd()).unwrap();
        ring.unwatch(id).unwrap();
        assert_eq!(reaped(&mut ring, Wait::Forever), [Event::Poll { id, armed: false }]);
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        assert_eq!(reaped(&mut ring, Wait::For(Nanos::from_millis(1))), []);
    }

    #[test]
    fn what_made_room_is_reported_without_another_wait() {
        let (mut ring, bell) = (Ring::new(&[], None).unwrap(), eventfd());
        rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        let [first, second] = [0, 1].map(|index| PollId { index, generation: 0 });
        ring.watch(first, bell.as_raw_fd()).unwrap();
        ring.enter(Wait::Forever).unwrap();
        ring.make_room();
        ring.watch(second, bell.as_raw_fd()).unwrap();
        let both = [first, second].map(|id| Event::Poll { id, armed: true });
        assert_eq!(reaped(&mut ring, Wait::Forever), both);
    }

    #[test]
    fn a_full_queue_is_submitted_and_filled_again() {
        for mut ring in rings() {
            let bell = eventfd();
            rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
            let polls = ENTRIES + 10;
            for index in 0..polls {
                ring.watch(PollId { index, generation: 0 }, bell.as_raw_fd()).unwrap();
            }
            // A kernel thread that takes from the queue may have taken a part of it only.
            let mut fired = 0;
            while fired < polls as usize {
                let more = reaped(&mut ring, Wait::For(Nanos::from_secs(30))).len();
                assert_ne!(more, 0, "{fired} of {polls} polls have fired, and no more do");
                fired += more;
            }
            assert_eq!(reaped(&mut ring, Wait::For(Nanos::from_millis(1))), []);
        }
    }
}
