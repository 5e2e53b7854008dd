//! One vring seen from the guest's driver.
//!
//! The memory of a vring is divided once: descriptor table, available ring, used ring, then one
//! *slot* per request that can be in flight: its header, status byte, range, indirect table and
//! data. A slot always uses the same descriptors, so that nothing is searched or allocated and the
//! head of a chain names its slot.
//!
//! Source: VIRTIO 1.2, "Split Virtqueues" and "Block Device".

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use rustix::event::{EventfdFlags, eventfd};

use super::memory::Memory;
use super::{GUEST_BASE, Io, IoOp, Options};

/// Descriptor flag: the chain goes on at `next`.
pub const NEXT: u16 = 1;
/// Descriptor flag: the server writes here.
pub const WRITE: u16 = 2;
/// Descriptor flag: this is a table of descriptors.
pub const INDIRECT: u16 = 4;

const HEADER_BYTES: u32 = 16;
const STATUS_AT: usize = 16;
const RANGE_AT: usize = 32;
const TABLE_AT: usize = 64;
const ID_BYTES: u32 = 20;
/// What a status byte holds before the server has written it.
const UNANSWERED: u8 = 0xff;

/// One descriptor, as it lies in memory.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Descriptor {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// [`NEXT`], [`WRITE`], [`INDIRECT`].
    pub flags: u16,
    /// Index of the next descriptor.
    pub next: u16,
}

/// Names a request while it is in flight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Token {
    /// Index of the vring.
    pub vring: u16,
    /// Index of the slot in it.
    pub slot: u16,
}

/// One answered request. Its slot may be used by the next `submit`; read its data before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Completion {
    /// Which request.
    pub token: Token,
    /// The caller's own word of [`Io::user`].
    pub user: u64,
    /// Status byte; 255 if the server has not written it.
    pub status: u8,
    /// Bytes the server says it has written.
    pub written: u32,
}

/// The server broke the rules of the used ring.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum RingFault {
    /// The used index moved further than there are requests in flight.
    Jump {
        /// Where it was.
        from: u16,
        /// Where it is.
        to: u16,
    },
    /// A used element names a head that is not in flight: answered twice, or never sent.
    NotInFlight {
        /// The head.
        head: u32,
    },
}

impl std::fmt::Display for RingFault {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Jump { from, to } => write!(formatter, "used index jumped from {from} to {to}"),
            Self::NotInFlight { head } => write!(formatter, "head {head} is not in flight"),
        }
    }
}

impl std::error::Error for RingFault {}

/// Where the parts of a vring lie, as offsets into the shared memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Descriptor table.
    pub descriptors: usize,
    /// Available ring.
    pub available: usize,
    /// Used ring.
    pub used: usize,
    slots: usize,
    slot_stride: usize,
    data: usize,
    data_stride: usize,
    /// Behind everything.
    pub end: usize,
}

impl Layout {
    /// Places a vring at `start`, which is a multiple of 4096.
    #[must_use]
    pub fn new(start: usize, options: &Options) -> Self {
        let (size, depth) = (usize::from(options.size), usize::from(options.depth));
        let available = start + 16 * size;
        let used = (available + 6 + 2 * size).next_multiple_of(64);
        let slots = (used + 6 + 8 * size).next_multiple_of(4096);
        let slot_stride = (TABLE_AT + 16 * usize::from(options.chain_len())).next_multiple_of(64);
        let data = (slots + slot_stride * depth).next_multiple_of(4096);
        let data_stride = (options.max_bytes as usize).next_multiple_of(4096);
        let end = data + data_stride * depth;
        Self { descriptors: start, available, used, slots, slot_stride, data, data_stride, end }
    }
}

/// The driver's half of one vring.
#[derive(Debug)]
pub struct Vring {
    memory: Rc<Memory>,
    layout: Layout,
    index: u16,
    size: u16,
    chain_len: u16,
    segments: u16,
    indirect: bool,
    event_idx: bool,
    kick: OwnedFd,
    /// Caller's word of each slot; `None` while it is free.
    slots: Box<[Option<u64>]>,
    free: Vec<u16>,
    next_available: u16,
    published: u16,
    last_used: u16,
    /// Where the event index was put out of reach; `None` while interrupts are asked for.
    quiet_since: Option<u16>,
    /// The answer that an interrupt was asked for last.
    armed: Option<u16>,
    /// Kicks written.
    kicks: u64,
}

impl Vring {
    pub(super) fn new(
        memory: &Rc<Memory>,
        index: u16,
        layout: Layout,
        options: &Options,
    ) -> std::io::Result<Self> {
        Ok(Self {
            memory: Rc::clone(memory),
            layout,
            index,
            size: options.size,
            chain_len: options.chain_len(),
            segments: options.segments,
            indirect: options.indirect,
            event_idx: options.event_idx,
            kick: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            slots: vec![None; usize::from(options.depth)].into(),
            free: (0..options.depth).rev().collect(),
            next_available: 0,
            published: 0,
            last_used: 0,
            quiet_since: None,
            armed: None,
            kicks: 0,
        })
    }

    /// Returns where the parts lie.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns the number of requests in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Says whether another request can be submitted.
    #[must_use]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns how many kicks were written so far.
    #[must_use]
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Returns the kick descriptor.
    #[must_use]
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Returns the guest address of a byte of the shared memory.
    #[must_use]
    pub fn address(offset: usize) -> u64 {
        GUEST_BASE + offset as u64
    }

    /// Returns the offset of a slot's header in the shared memory; the status byte follows at +16.
    #[must_use]
    pub fn header_at(&self, slot: u16) -> usize {
        self.layout.slots + usize::from(slot) * self.layout.slot_stride
    }

    /// Returns the offset of a slot's data in the shared memory.
    #[must_use]
    pub fn data_at(&self, slot: u16) -> usize {
        self.layout.data + usize::from(slot) * self.layout.data_stride
    }

    /// Prepares a request without showing it to the server; `None` if every slot is in flight.
    ///
    /// # Panics
    ///
    /// Panics if the request is larger than [`Options::max_bytes`].
    pub fn submit(&mut self, io: &Io) -> Option<Token> {
        assert!(io.bytes as usize <= self.layout.data_stride, "request larger than max_bytes");
        let slot = self.free.pop()?;
        self.slots[usize::from(slot)] = Some(io.user);
        let header = self.header_at(slot);
        let mut bytes = [0; STATUS_AT + 1];
        bytes[0..4].copy_from_slice(&io.op.number().to_le_bytes());
        bytes[4..8].copy_from_slice(&io.ioprio.to_le_bytes());
        bytes[8..16].copy_from_slice(&io.header_sector().to_le_bytes());
        bytes[STATUS_AT] = UNANSWERED;
        self.memory.write(header, &bytes);
        let head = self.build(slot, io);
        self.push_available(head);
        Some(Token { vring: self.index, slot })
    }

    /// Appends `head` to the available ring without moving its index.
    pub fn push_available(&mut self, head: u16) {
        let at = self.layout.available + 4 + 2 * usize::from(self.next_available % self.size);
        self.memory.store_u16(at, head, Ordering::Relaxed);
        self.next_available = self.next_available.wrapping_add(1);
    }

    /// Shows the server what was submitted and kicks it if it asked for that.
    pub fn publish(&mut self) {
        let (old, new) = (self.published, self.next_available);
        if old == new {
            return;
        }
        self.set_available(new);
        self.published = new;
        let needed = if self.event_idx {
            let at = self.layout.used + 4 + 8 * usize::from(self.size);
            let event = self.memory.load_u16(at, Ordering::Relaxed);
            new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
        } else {
            self.memory.load_u16(self.layout.used, Ordering::Relaxed) & 1 == 0
        };
        if needed {
            self.kick();
        }
    }

    /// Stores an available index, honest or not, and orders it before whatever is read next.
    pub fn set_available(&self, index: u16) {
        self.memory.store_u16(self.layout.available + 2, index, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Kicks the server whether it asked for that or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        // A full counter (EAGAIN) is a kick that has not been read yet: as good as this one.
        let _full = rustix::io::write(&self.kick, &1_u64.to_ne_bytes());
    }

    /// Takes the next answer off the used ring.
    ///
    /// # Errors
    ///
    /// [`RingFault`] if the server broke the rules; the vring is of no use then.
    pub fn next_completion(&mut self) -> Result<Option<Completion>, RingFault> {
        let index = self.used_index();
        let ready = index.wrapping_sub(self.last_used);
        if ready == 0 {
            return Ok(None);
        }
        if usize::from(ready) > self.outstanding() {
            return Err(RingFault::Jump { from: self.last_used, to: index });
        }
        let (head, written) = self.used_element(self.last_used);
        self.last_used = self.last_used.wrapping_add(1);
        let fault = RingFault::NotInFlight { head };
        let slot = self.slot_of(head).ok_or(fault)?;
        let user = self.slots[usize::from(slot)].take().ok_or(fault)?;
        self.free.push(slot);
        let mut status = [0];
        self.memory.read(self.header_at(slot) + STATUS_AT, &mut status);
        let token = Token { vring: self.index, slot };
        Ok(Some(Completion { token, user, status: status[0], written }))
    }

    /// Returns the server's used index.
    #[must_use]
    pub fn used_index(&self) -> u16 {
        self.memory.load_u16(self.layout.used + 2, Ordering::Acquire)
    }

    /// Returns the used element at `index`: head and length, without taking it.
    #[must_use]
    pub fn used_element(&self, index: u16) -> (u32, u32) {
        let mut element = [0; 8];
        self.memory.read(self.layout.used + 4 + 8 * usize::from(index % self.size), &mut element);
        let [head, len] = [0, 4].map(|at: usize| {
            u32::from_le_bytes(element[at..at + 4].try_into().expect("four bytes"))
        });
        (head, len)
    }

    /// Asks for an interrupt at the next answer; `true` if one has come already.
    pub fn arm(&mut self) -> bool {
        if self.armed != Some(self.last_used) {
            self.set_interrupts(self.last_used, 0);
            self.quiet_since = None;
            self.armed = Some(self.last_used);
        }
        self.used_index() != self.last_used
    }

    /// Asks for no interrupts. Cheap enough for every turn of a polling loop.
    pub fn disarm(&mut self) {
        // The event index lies behind us until 65,536 answers later; renewed well before.
        let behind = self.last_used.wrapping_sub(1);
        let is_quiet = self.quiet_since.is_some_and(|since| behind.wrapping_sub(since) < 0x4000);
        if !is_quiet {
            self.set_interrupts(behind, 1);
            self.quiet_since = Some(behind);
            self.armed = None;
        }
    }

    /// Forgets every request in flight and begins at index 0, as a driver does after a reset.
    pub(super) fn reset(&mut self) {
        self.memory.write(self.layout.available, &[0; 4]);
        self.memory.write(self.layout.used, &[0; 4]);
        self.slots.fill(None);
        self.free.clear();
        self.free.extend((0..u16::try_from(self.slots.len()).expect("depth is 16 bits")).rev());
        (self.next_available, self.published, self.last_used) = (0, 0, 0);
        (self.quiet_since, self.armed) = (None, None);
    }

    /// Writes one descriptor of the table at `table` (an offset into the shared memory).
    pub fn set_descriptor(&self, table: usize, index: u16, descriptor: Descriptor) {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&descriptor.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&descriptor.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&descriptor.flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&descriptor.next.to_le_bytes());
        self.memory.write(table + 16 * usize::from(index), &bytes);
    }

    fn set_interrupts(&self, event: u16, flag: u16) {
        if self.event_idx {
            let at = self.layout.available + 4 + 2 * usize::from(self.size);
            self.memory.store_u16(at, event, Ordering::Relaxed);
        } else {
            self.memory.store_u16(self.layout.available, flag, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    fn slot_of(&self, head: u32) -> Option<u16> {
        let head = u16::try_from(head).ok()?;
        let slot = if self.indirect { head } else { head / self.chain_len };
        let is_head = self.indirect || head.is_multiple_of(self.chain_len);
        (is_head && usize::from(slot) < self.slots.len()).then_some(slot)
    }

    /// Writes the descriptors of a request and returns its head.
    fn build(&self, slot: u16, io: &Io) -> u16 {
        let header = self.header_at(slot);
        let (table, first) = if self.indirect {
            (header + TABLE_AT, 0)
        } else {
            (self.layout.descriptors, slot * self.chain_len)
        };
        let mut index = first;
        let mut link = |at: usize, len: u32, flags: u16| {
            let next = index + 1;
            let address = Self::address(at);
            self.set_descriptor(table, index, Descriptor { address, len, flags, next });
            index = next;
        };
        link(header, HEADER_BYTES, NEXT);
        match io.op {
            IoOp::Read | IoOp::Write => {
                let flags = if io.op == IoOp::Read { NEXT | WRITE } else { NEXT };
                self.data_pieces(slot, io.bytes, |at, len| link(at, len, flags));
            }
            IoOp::GetId => link(self.data_at(slot), ID_BYTES, NEXT | WRITE),
            IoOp::Discard | IoOp::WriteZeroes { .. } => {
                self.memory.write(header + RANGE_AT, &io.range());
                link(header + RANGE_AT, 16, NEXT);
            }
            IoOp::Flush | IoOp::Raw(_) => {}
        }
        link(header + STATUS_AT, 1, WRITE);
        if !self.indirect {
            return first;
        }
        let len = u32::from(index) * 16;
        let address = Self::address(table);
        let whole = Descriptor { address, len, flags: INDIRECT, next: 0 };
        self.set_descriptor(self.layout.descriptors, slot, whole);
        slot
    }

    /// Cuts the data of a slot into at most `segments` pieces of whole sectors.
    fn data_pieces(&self, slot: u16, bytes: u32, mut piece: impl FnMut(usize, u32)) {
        let each = (bytes / u32::from(self.segments)).next_multiple_of(512).max(512);
        let mut done = 0;
        while done < bytes {
            let len = each.min(bytes - done);
            piece(self.data_at(slot) + done as usize, len);
            done += len;
        }
    }
}
