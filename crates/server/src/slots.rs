//! What the server keeps per tag: the chain to answer, its memory, and the transfer to the device.
//!
//! Slots are reused; once every tag has been used with its longest list of segments, nothing is
//! allocated any more.
#![expect(unsafe_code, reason = "copies between guest memory and bounce buffers")]

use std::fmt;
use std::io;
use std::os::fd::RawFd;

use evenkeel_engine::{Command, DeviceOp, Errno, SECTOR_BYTES};
use evenkeel_sched::Tag;
use libc::iovec;

use crate::backend::Alignment;
use crate::copies;
use crate::priority::IoPriorities;
use crate::uring::{IOV_MAX, Ring};

/// Bytes of a bounce buffer. Longer misaligned requests go in several pieces, so that what a guest
/// can make the daemon allocate does not depend on what it asks for.
const BOUNCE_BYTES: usize = 1 << 20;
/// Bounce buffers kept for reuse.
const BOUNCE_SPARE: usize = 32;

/// One system operation on the backend's file.
#[derive(Debug)]
pub(crate) enum Step<'a> {
    Read { offset: u64, segments: &'a [iovec], ioprio: u16 },
    Write { offset: u64, segments: &'a [iovec], ioprio: u16, durable: bool },
    Allocate { offset: u64, bytes: u64, mode: i32 },
    Sync,
}

/// What comes after a step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Progress {
    /// The next step.
    Again,
    /// Nothing: this is the outcome.
    Done(Result<(), Errno>),
}

/// Which kind of step a transfer is at.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Stage {
    #[default]
    Read,
    Write,
    /// Give blocks back; the range then reads as zero.
    Punch,
    /// Write zeroes without moving data.
    Zero,
    /// Reserve blocks after punching, for a guest that wants to keep them.
    Reserve,
    /// Put what was done on stable media.
    Sync,
}

/// A page, the alignment that satisfies every device.
#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

/// An aligned piece of memory of [`BOUNCE_BYTES`].
pub(crate) struct Bounce(Box<[Page]>);

impl fmt::Debug for Bounce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bounce")
    }
}

impl Bounce {
    fn new() -> Self {
        Self(vec![Page([0; 4096]); BOUNCE_BYTES / 4096].into_boxed_slice())
    }

    fn start(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// A command on its way through one or more [`Step`]s.
#[derive(Debug)]
pub(crate) struct Transfer {
    op: DeviceOp,
    durable: bool,
    unmap: bool,
    /// The word of its I/O priority.
    ioprio: u16,
    stage: Stage,
    zero_failed: bool,
    punch_failed: bool,
    /// Where the command starts, in bytes.
    offset: u64,
    /// Its length in bytes.
    bytes: u64,
    /// How much is done.
    done: u64,
    /// What is left of its memory, from `first` on.
    segments: Vec<iovec>,
    first: usize,
    bounce: Option<Bounce>,
    /// The piece of the bounce buffer that is at the device.
    piece: [iovec; 1],
}

const NOTHING: iovec = iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

impl Default for Transfer {
    fn default() -> Self {
        Self {
            op: DeviceOp::Flush,
            durable: false,
            unmap: false,
            ioprio: 0,
            stage: Stage::Sync,
            zero_failed: false,
            punch_failed: false,
            offset: 0,
            bytes: 0,
            done: 0,
            segments: Vec::new(),
            first: 0,
            bounce: None,
            piece: [NOTHING],
        }
    }
}

impl Transfer {
    /// Starts over with a command; its memory is added part by part.
    fn begin(&mut self, command: &Command, ioprio: u16) {
        let stage = match command.op {
            DeviceOp::Read => Stage::Read,
            DeviceOp::Write => Stage::Write,
            DeviceOp::Discard => Stage::Punch,
            DeviceOp::WriteZeroes if command.unmap => Stage::Punch,
            DeviceOp::WriteZeroes => Stage::Zero,
            DeviceOp::Flush => Stage::Sync,
        };
        self.op = command.op;
        self.durable = command.durable;
        self.unmap = command.unmap;
        self.ioprio = ioprio;
        self.stage = stage;
        self.zero_failed = false;
        self.punch_failed = false;
        self.offset = command.sector * SECTOR_BYTES;
        self.bytes = u64::from(command.nr_sectors) * SECTOR_BYTES;
        self.done = 0;
        self.segments.clear();
        self.first = 0;
        self.piece = [NOTHING];
    }

    fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.iov_len as u64).sum()
    }

    /// Leaves of the memory of a request what comes behind `skip` bytes, as long as the command is.
    fn cut(&mut self, skip: u64) {
        let skip = usize::try_from(skip).expect("addresses have 64 bits");
        self.consume(skip);
        self.segments.drain(..std::mem::take(&mut self.first));
        let mut left = self.bytes;
        let mut kept = 0;
        for segment in &mut self.segments {
            if left == 0 {
                break;
            }
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(segment.iov_len);
            segment.iov_len = length;
            left -= length as u64;
            kept += 1;
        }
        self.segments.truncate(kept);
    }

    fn is_aligned(&self, alignment: Alignment) -> bool {
        let (memory, length) = (alignment.memory as usize - 1, alignment.length as usize - 1);
        self.segments
            .iter()
            .all(|segment| segment.iov_base.addr() & memory == 0 && segment.iov_len & length == 0)
    }

    /// Returns the step to do now.
    ///
    /// A misaligned write is copied here: call once per step.
    pub(crate) fn step(&mut self) -> Step<'_> {
        if self.bounce.is_some() && matches!(self.stage, Stage::Read | Stage::Write) {
            self.stage_piece();
        }
        let (offset, bytes) = (self.offset + self.done, self.bytes - self.done);
        let segments = if self.bounce.is_some() {
            &self.piece[..]
        } else {
            let rest = &self.segments[self.first..];
            &rest[..rest.len().min(IOV_MAX)]
        };
        let ioprio = self.ioprio;
        match self.stage {
            Stage::Read => Step::Read { offset, segments, ioprio },
            Stage::Write => Step::Write { offset, segments, ioprio, durable: self.durable },
            Stage::Punch => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                Step::Allocate { offset, bytes, mode }
            }
            Stage::Zero => {
                let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
                Step::Allocate { offset, bytes, mode }
            }
            Stage::Reserve => Step::Allocate { offset, bytes, mode: libc::FALLOC_FL_KEEP_SIZE },
            Stage::Sync => Step::Sync,
        }
    }

    /// Takes the result of the last step, negative for errno, and says what comes next.
    pub(crate) fn advance(&mut self, result: i32) -> Progress {
        match usize::try_from(result) {
            Ok(moved) if matches!(self.stage, Stage::Read | Stage::Write) => self.moved(moved),
            Ok(_zero) => self.next_stage(),
            Err(_) => self.failed(result.saturating_neg()),
        }
    }

    fn moved(&mut self, bytes: usize) -> Progress {
        if bytes == 0 {
            // The image ends before the disk does: somebody has cut it.
            return Progress::Done(Err(Errno(libc::EIO)));
        }
        if self.stage == Stage::Read
            && let Some(bounce) = &mut self.bounce
        {
            // SAFETY: the device has just finished with both sides; `Slots` keeps the segments'
            // memory mapped, and the bounce buffer holds at least the piece of which `bytes` is a
            // part.
            unsafe { copy(bounce.start(), &self.segments[self.first..], bytes, Way::Out) };
        }
        self.consume(bytes);
        self.done += bytes as u64;
        if self.done < self.bytes { Progress::Again } else { Progress::Done(Ok(())) }
    }

    /// Takes `bytes` off the front of the segments.
    fn consume(&mut self, mut bytes: usize) {
        while let Some(segment) = self.segments.get_mut(self.first) {
            if bytes < segment.iov_len {
                segment.iov_base = segment.iov_base.wrapping_byte_add(bytes);
                segment.iov_len -= bytes;
                return;
            }
            bytes -= segment.iov_len;
            self.first += 1;
        }
    }

    fn next_stage(&mut self) -> Progress {
        let reserve = self.stage == Stage::Punch && self.op == DeviceOp::WriteZeroes && !self.unmap;
        self.stage = match self.stage {
            Stage::Punch if reserve => Stage::Reserve,
            Stage::Punch | Stage::Zero | Stage::Reserve if self.durable => Stage::Sync,
            _ => return Progress::Done(Ok(())),
        };
        Progress::Again
    }

    fn failed(&mut self, errno: i32) -> Progress {
        match (errno, self.stage) {
            (libc::EINTR | libc::EAGAIN, _) => return Progress::Again,
            (libc::EPERM, _) if self.ioprio != 0 => {
                // The right to this class was withdrawn: that must not cost the guest its data.
                self.ioprio = 0;
                return Progress::Again;
            }
            (libc::EOPNOTSUPP, Stage::Punch) if self.op == DeviceOp::Discard => {
                // A discard is a hint; a backend that cannot follow it has still done its duty.
                return Progress::Done(Ok(()));
            }
            (libc::EOPNOTSUPP, Stage::Punch) => self.punch_failed = true,
            (libc::EOPNOTSUPP, Stage::Zero) => self.zero_failed = true,
            _ => return Progress::Done(Err(Errno(errno))),
        }
        self.stage = match self.stage {
            Stage::Punch if !self.zero_failed => Stage::Zero,
            Stage::Zero if !self.punch_failed => Stage::Punch,
            _ => return Progress::Done(Err(Errno::EOPNOTSUPP)),
        };
        Progress::Again
    }

    /// Prepares the next piece of the bounce buffer, filled if it is for writing.
    fn stage_piece(&mut self) {
        let Some(bounce) = &mut self.bounce else { return };
        let left = usize::try_from(self.bytes - self.done).unwrap_or(usize::MAX);
        let iov_len = left.min(BOUNCE_BYTES);
        let start = bounce.start();
        if self.stage == Stage::Write {
            // SAFETY: no step of this transfer is at the device; `Slots` keeps the segments'
            // memory mapped, and the bounce buffer holds `BOUNCE_BYTES`, no less than `iov_len`.
            unsafe { copy(start, &self.segments[self.first..], iov_len, Way::In) };
        }
        self.piece = [iovec { iov_base: start.cast(), iov_len }];
    }
}

/// The direction of a copy, seen from the daemon.
#[derive(Clone, Copy)]
enum Way {
    In,
    Out,
}

/// Copies `bytes` between `buffer` and the front of `segments`.
///
/// # Safety
///
/// `buffer` holds `bytes`; every segment is mapped, writable for [`Way::Out`], and does not overlap
/// the buffer. The guest may change its side meanwhile: it then gets what it deserves, as with a
/// device that reads memory by DMA.
unsafe fn copy(buffer: *mut u8, segments: &[iovec], mut bytes: usize, way: Way) {
    let mut buffer = buffer;
    for segment in segments {
        let length = segment.iov_len.min(bytes);
        let guest = segment.iov_base.cast::<u8>();
        let (from, to) = match way {
            Way::In => (guest.cast_const(), buffer),
            Way::Out => (buffer.cast_const(), guest),
        };
        // SAFETY: the caller's promise, for the part of it that is this segment.
        unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
        buffer = buffer.wrapping_add(length);
        bytes -= length;
        if bytes == 0 {
            return;
        }
    }
}

/// The chain that a tag answers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    /// The vring's place in the worker's table.
    pub(crate) vring: u32,
    /// The chain's head in it.
    pub(crate) head: u16,
    /// Bytes of data that the device writes for the guest, if it succeeds.
    pub(crate) written: u32,
}

/// What is kept per tag.
#[derive(Debug, Default)]
struct Slot {
    origin: Option<Origin>,
    /// The request's memory; its vring keeps it mapped until the request is answered.
    segments: Vec<iovec>,
    /// The command that this tag leads.
    transfer: Transfer,
    /// The registered file that it goes to.
    file: u32,
    /// Whether a step is on its way.
    at_backend: bool,
    /// Whether the modelled device still works on it.
    at_model: bool,
    /// What the backend said, while the model still works.
    outcome: Option<Errno>,
}

/// All tags.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    priorities: IoPriorities,
    slots: Vec<Slot>,
    spare: Vec<Bounce>,
    at_backend: usize,
    copies: u64,
}

impl Slots {
    /// Makes a table without tags, of a pool whose commands have these priorities.
    pub(crate) fn new(priorities: IoPriorities) -> Self {
        Self { priorities, slots: Vec::new(), spare: Vec::new(), at_backend: 0, copies: 0 }
    }

    fn at(&mut self, tag: Tag) -> &mut Slot {
        let index = tag.0 as usize;
        if index >= self.slots.len() {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    /// Gives a tag to a chain, and takes its segments in exchange for an empty list.
    pub(crate) fn open(&mut self, tag: Tag, origin: Origin, segments: &mut Vec<iovec>) {
        let slot = self.at(tag);
        debug_assert!(slot.origin.is_none(), "the engine gives a tag once");
        slot.origin = Some(origin);
        std::mem::swap(&mut slot.segments, segments);
        segments.clear();
    }

    /// Returns the chain that a retired tag answers; the tag is free from here on.
    pub(crate) fn close(&mut self, tag: Tag) -> Origin {
        let slot = self.at(tag);
        assert!(!slot.at_backend, "the engine retires what the device has finished");
        slot.segments.clear();
        slot.origin.take().expect("a tag is retired once")
    }

    /// Prepares a command from the memory of its parts, for the backend, a model, or both.
    pub(crate) fn begin(
        &mut self,
        command: &Command,
        parts: impl Iterator<Item = Tag>,
        alignment: Alignment,
        at_model: bool,
    ) {
        let mut transfer = std::mem::take(&mut self.at(command.tag).transfer);
        transfer.begin(command, self.priorities.of(command.precedence));
        if matches!(command.op, DeviceOp::Read | DeviceOp::Write) {
            for part in parts {
                transfer.segments.extend_from_slice(&self.at(part).segments);
            }
            if transfer.memory_bytes() != transfer.bytes {
                transfer.cut(u64::from(command.skip_sectors) * SECTOR_BYTES);
            }
            let bytes = transfer.memory_bytes();
            assert_eq!(bytes, transfer.bytes, "the parts' memory is as long as the command");
            if !transfer.is_aligned(alignment) {
                transfer.bounce = Some(self.spare.pop().unwrap_or_else(Bounce::new));
            }
        }
        let slot = self.at(command.tag);
        slot.transfer = transfer;
        slot.file = command.disk.0;
        slot.at_model = at_model;
        slot.outcome = None;
    }

    /// Queues the next step of a command.
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(crate) fn send(&mut self, ring: &mut Ring, tag: Tag) -> io::Result<()> {
        let slot = self.at(tag);
        assert!(!slot.at_backend, "one step of a command at a time");
        slot.at_backend = true;
        let step = slot.transfer.step();
        // SAFETY: guest memory stays mapped until the chain is answered, which is after `close`,
        // and `close` refuses tags at the backend; the array of segments and the bounce buffer are
        // on the heap and untouched until `reap` sees the step's end (`drop` leaks them if that
        // never comes). The assertion above keeps steps apart.
        unsafe { ring.transfer(tag, slot.file, &step)? };
        self.at_backend += 1;
        Ok(())
    }

    /// Takes the result of the step that was on its way.
    pub(crate) fn reap(&mut self, tag: Tag, result: i32) -> Progress {
        let slot = self.at(tag);
        assert!(slot.at_backend, "the ring reports every step once");
        slot.at_backend = false;
        self.at_backend -= 1;
        self.advance(tag, result)
    }

    /// Does a whole command at once, on a file in memory. Returns false if it is no copy, and has
    /// to be [sent](Self::send).
    pub(crate) fn copy(&mut self, file: RawFd, tag: Tag) -> bool {
        loop {
            let slot = self.at(tag);
            assert!(!slot.at_backend, "one step of a command at a time");
            // SAFETY: guest memory stays mapped until the chain is answered, which is later.
            let Some(result) = (unsafe { copies::copy(file, &slot.transfer.step()) }) else {
                return false;
            };
            self.copies += 1;
            if let Progress::Done(_) = self.advance(tag, result) {
                return true;
            }
        }
    }

    /// Returns how many system calls [`copy`](Self::copy) made.
    pub(crate) const fn copies(&self) -> u64 {
        self.copies
    }

    /// Takes the result of a step.
    fn advance(&mut self, tag: Tag, result: i32) -> Progress {
        let slot = self.at(tag);
        let progress = slot.transfer.advance(result);
        if let Progress::Done(outcome) = progress {
            slot.outcome = outcome.err();
            let bounce = slot.transfer.bounce.take();
            if self.spare.len() < BOUNCE_SPARE {
                self.spare.extend(bounce);
            }
        }
        progress
    }

    /// Notes that the model has finished a command.
    pub(crate) fn modelled(&mut self, tag: Tag) {
        self.at(tag).at_model = false;
    }

    /// Returns the outcome of a command that neither the backend nor the model works on any more.
    /// Valid between the steps of a command only for those that are done.
    pub(crate) fn outcome(&mut self, tag: Tag) -> Option<Result<(), Errno>> {
        let slot = self.at(tag);
        (!slot.at_backend && !slot.at_model).then(|| slot.outcome.map_or(Ok(()), Err))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.at_backend > 0 {
            // The kernel may still write into this memory.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

#[cfg(test)]
mod tests;
