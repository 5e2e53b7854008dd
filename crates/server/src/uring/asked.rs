//! The ring of devices that are asked for their answers, instead of interrupting
//! (`IORING_SETUP_IOPOLL`). It takes reads and writes, and nothing else.
//!
//! A write that must be durable at once is not among them: that takes a second command behind it.

use std::io;
use std::os::fd::RawFd;

use io_uring::{IoUring, squeue};

use super::{COMPLETIONS, ENTRIES, Event, event, is_transient};
use crate::slots::Step;

pub(super) struct Asked {
    uring: IoUring,
    /// Registered files whose device can be asked.
    files: Box<[bool]>,
    /// Transfers whose answer nobody has taken yet.
    open: usize,
}

impl Asked {
    pub(super) fn new(numbers: &[RawFd], files: Box<[bool]>) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        let uring = builder.setup_iopoll().setup_cqsize(COMPLETIONS).dontfork().build(ENTRIES)?;
        uring.submitter().register_files(numbers)?;
        Ok(Self { uring, files, open: 0 })
    }

    /// Returns whether a step on this registered file goes by this ring.
    pub(super) fn takes(&self, file: u32, step: &Step<'_>) -> bool {
        let moves = matches!(step, Step::Read { .. } | Step::Write { durable: false, .. });
        moves && self.files[file as usize]
    }

    /// Queues a transfer.
    ///
    /// # Safety
    ///
    /// Memory that the entry refers to stays valid until its event has been taken.
    pub(super) unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's promise.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            self.ask()?;
        }
        self.open += 1;
        Ok(())
    }

    /// Returns whether no transfer is on its way.
    pub(super) const fn is_idle(&self) -> bool {
        self.open == 0
    }

    /// Submits what is queued and asks the device once.
    pub(super) fn ask(&mut self) -> io::Result<()> {
        match self.uring.submit() {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns whether there is something to take.
    pub(super) fn has_answers(&mut self) -> bool {
        !self.uring.completion().is_empty()
    }

    /// Moves all answers into `events`.
    pub(super) fn take(&mut self, events: &mut Vec<Event>) {
        for entry in self.uring.completion() {
            self.open -= 1;
            match event(&entry) {
                // It cannot be asked after all: from now on by interrupts, this one as well.
                Some(Event::Io { tag, result }) if result == -libc::EOPNOTSUPP => {
                    if self.files.contains(&true) {
                        tracing::warn!(
                            "iopoll: the device refuses to be asked; its disks are served by interrupts"
                        );
                    }
                    self.files.fill(false);
                    events.push(Event::Io { tag, result: -libc::EAGAIN });
                }
                event => events.extend(event),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use evenkeel_sched::Tag;

    use super::*;
    use crate::uring::{Ring, Wait};

    /// Reads the first page of the first file, and returns what the ring says.
    fn read(ring: &mut Ring, tag: Tag, page: &mut [u8; 4096]) -> Event {
        let iov_base = page.as_mut_ptr().cast();
        let segments = [libc::iovec { iov_base, iov_len: page.len() }];
        let step = Step::Read { offset: 0, segments: &segments, ioprio: 0 };
        // SAFETY: page and segments outlive this function's loop.
        unsafe { ring.transfer(tag, 0, &step).unwrap() };
        let mut events = Vec::new();
        while events.is_empty() {
            ring.enter(Wait::Forever).unwrap();
            ring.reap(&mut events);
        }
        assert_eq!(events.len(), 1);
        events[0]
    }

    #[test]
    fn a_device_that_refuses_to_be_asked_is_served_by_interrupts() {
        // A file in memory has no device.
        let file = rustix::fs::memfd_create("asked", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, &[7; 4096], 0).unwrap();
        let mut ring = Ring::new(&[file.as_raw_fd()], None).unwrap();
        ring.ask_devices(&[file.as_raw_fd()], [true].into()).unwrap();
        let mut page = [0; 4096];
        let again = Event::Io { tag: Tag(3), result: -libc::EAGAIN };
        assert_eq!(read(&mut ring, Tag(3), &mut page), again);
        for _ in 0..2 {
            let done = Event::Io { tag: Tag(3), result: 4096 };
            assert_eq!(read(&mut ring, Tag(3), &mut page), done);
            assert_eq!(page, [7; 4096]);
        }
    }
}
