//! A guest for tests: a memfd with one vring in it, and a driver that can also lie.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::EventfdFlags;
use rustix::fs::MemfdFlags;

use crate::inflight::InflightRegion;
use crate::memory::{Memory, Place, Window};
use crate::vring::{Addresses, Setup, Vring};

/// Where the guest's memory starts, for the guest and for its VMM.
pub(crate) const GUEST_ADDR: u64 = 0x1000_0000;
pub(crate) const USER_ADDR: u64 = 0x7f00_0000_0000;
pub(crate) const BYTES: u64 = 0x10_0000;

// Offsets into the memory; the parts fit a vring of 256 descriptors.
pub(crate) const TABLE: u64 = 0;
pub(crate) const AVAIL: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;
/// What is behind this is for headers, data and status bytes.
pub(crate) const DATA: u64 = 0x4000;

// Descriptor flags.
pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) file: File,
    view: Window,
    pub(crate) size: u16,
    pub(crate) event_idx: bool,
    pub(crate) call: OwnedFd,
    pub(crate) kick: OwnedFd,
    avail_idx: u16,
    seen_used: u16,
}

impl Guest {
    pub(crate) fn new(size: u16) -> Self {
        Self::on(memfd(BYTES), size)
    }

    /// A guest whose memory has this content.
    pub(crate) fn with_content(content: &[u8], size: u16) -> Self {
        let guest = Self::new(size);
        guest.file.write_all_at(content, 0).unwrap();
        guest
    }

    fn on(file: File, size: u16) -> Self {
        let view = Window::map(&file, 0, usize::try_from(BYTES).unwrap()).unwrap();
        let (call, kick) = (bell(), bell());
        Self { file, view, size, event_idx: true, call, kick, avail_idx: 0, seen_used: 0 }
    }

    pub(crate) fn place() -> Place {
        Place { guest_addr: GUEST_ADDR, bytes: BYTES, user_addr: USER_ADDR, file_offset: 0 }
    }

    pub(crate) fn memory(&self) -> Arc<Memory> {
        Arc::new(Memory::new([(Self::place(), self.file.try_clone().unwrap())]).unwrap())
    }

    pub(crate) fn setup(&self) -> Setup {
        Setup {
            size: self.size,
            addresses: addresses(),
            base: 0,
            event_idx: self.event_idx,
            indirect: true,
            memory: self.memory(),
            inflight: None,
            index: 0,
            kick: self.kick.try_clone().unwrap(),
            call: Some(self.call.try_clone().unwrap()),
            err: None,
        }
    }

    pub(crate) fn vring(&self) -> Vring {
        Vring::new(self.setup()).unwrap()
    }

    pub(crate) fn tracked_vring(&self, inflight: &InflightRegion) -> Vring {
        Vring::new(Setup { inflight: Some(inflight.clone()), ..self.setup() }).unwrap()
    }

    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) {
        for (at, &byte) in bytes.iter().enumerate() {
            self.view.store_u8(usize::try_from(offset).unwrap() + at, byte);
        }
    }

    pub(crate) fn byte(&self, offset: u64) -> u8 {
        self.view.load_u8(usize::try_from(offset).unwrap())
    }

    pub(crate) fn u16(&self, offset: u64) -> u16 {
        self.view.load_u16(usize::try_from(offset).unwrap(), Ordering::Acquire)
    }

    fn u32(&self, offset: u64) -> u32 {
        u32::from(self.u16(offset)) | u32::from(self.u16(offset + 2)) << 16
    }

    /// Writes descriptor `at` of the table at `table`: (guest address, length, flags, next).
    pub(crate) fn describe(&self, table: u64, at: u16, link: (u64, u32, u16, u16)) {
        let (addr, len, flags, next) = link;
        let offset = table + 16 * u64::from(at);
        self.put(offset, &addr.to_le_bytes());
        self.put(offset + 8, &len.to_le_bytes());
        self.put(offset + 12, &flags.to_le_bytes());
        self.put(offset + 14, &next.to_le_bytes());
    }

    /// Links three descriptors from `head` on into a request of one 512-byte segment: a write if
    /// `is_write`. Header, data and status lie in a kibibyte of their own, which is returned.
    pub(crate) fn chain(&self, head: u16, is_write: bool) -> u64 {
        let at = DATA + 1024 * u64::from(head);
        let kind = u32::from(is_write);
        self.put(at, &kind.to_le_bytes());
        self.put(at + 8, &u64::from(head).to_le_bytes());
        self.put(at + 1023, &[0xff]);
        let data_flags = if is_write { NEXT } else { NEXT | WRITE };
        self.describe(TABLE, head, (GUEST_ADDR + at, 16, NEXT, head + 1));
        self.describe(TABLE, head + 1, (GUEST_ADDR + at + 16, 512, data_flags, head + 2));
        self.describe(TABLE, head + 2, (GUEST_ADDR + at + 1023, 1, WRITE, 0));
        at
    }

    /// Links two descriptors from `head` on into a request without data.
    pub(crate) fn bare_chain(&self, head: u16) {
        let at = GUEST_ADDR + DATA + 1024 * u64::from(head);
        self.describe(TABLE, head, (at, 16, NEXT, head + 1));
        self.describe(TABLE, head + 1, (at + 1023, 1, WRITE, 0));
    }

    /// Begins with both rings at this index.
    pub(crate) fn start_at(&mut self, idx: u16) {
        (self.avail_idx, self.seen_used) = (idx, idx);
        self.set_avail_idx(idx);
        self.put(USED + 2, &idx.to_le_bytes());
    }

    /// Makes a chain available.
    pub(crate) fn offer(&mut self, head: u16) {
        let slot = u64::from(self.avail_idx % self.size);
        self.put(AVAIL + 4 + 2 * slot, &head.to_le_bytes());
        self.avail_idx = self.avail_idx.wrapping_add(1);
        self.set_avail_idx(self.avail_idx);
    }

    pub(crate) fn set_avail_idx(&self, idx: u16) {
        self.view.store_u16(usize::try_from(AVAIL).unwrap() + 2, idx, Ordering::Release);
    }

    pub(crate) fn set_used_event(&self, idx: u16) {
        self.put(AVAIL + 4 + 2 * u64::from(self.size), &idx.to_le_bytes());
    }

    pub(crate) fn avail_event(&self) -> u16 {
        self.u16(USED + 4 + 8 * u64::from(self.size))
    }

    pub(crate) fn used_idx(&self) -> u16 {
        self.u16(USED + 2)
    }

    /// Forgets the answers before this index.
    pub(crate) fn used_from(&mut self, idx: u16) {
        self.seen_used = idx;
    }

    /// Takes what was answered since the last call: (head, length).
    pub(crate) fn used(&mut self) -> Vec<(u32, u32)> {
        let mut used = Vec::new();
        while self.seen_used != self.used_idx() {
            let at = USED + 4 + 8 * u64::from(self.seen_used % self.size);
            used.push((self.u32(at), self.u32(at + 4)));
            self.seen_used = self.seen_used.wrapping_add(1);
        }
        used
    }

    /// Takes the number of interrupts since the last call.
    pub(crate) fn interrupts(&self) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(&self.call, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(_empty) => 0,
        }
    }
}

/// Where the vring is, for the VMM.
pub(crate) fn addresses() -> Addresses {
    Addresses { table: USER_ADDR + TABLE, avail: USER_ADDR + AVAIL, used: USER_ADDR + USED }
}

pub(crate) fn bell() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

pub(crate) fn memfd(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    File::from(fd)
}

/// Marsaglia's xorshift64, for histories that a printed seed repeats.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.roll() % limit
    }

    /// Returns an index below `limit`, or, once in `risk` times, `limit`.
    pub(crate) fn index(&mut self, limit: u16, risk: u64) -> u16 {
        let limit = u64::from(limit) + u64::from(self.below(risk) == 0);
        u16::try_from(self.below(limit)).unwrap()
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        let limit = u64::try_from(choices.len()).unwrap();
        choices[usize::try_from(self.below(limit)).unwrap()]
    }

    pub(crate) fn draw<T>(&mut self, from: &mut Vec<T>) -> T {
        let limit = u64::try_from(from.len()).unwrap();
        from.swap_remove(usize::try_from(self.below(limit)).unwrap())
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.roll().to_le_bytes()[3]).collect()
    }
}
