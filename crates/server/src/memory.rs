//! Guest memory as this process sees it, and the only way to touch it.
//!
//! A VMM hands over files and says which part of them is which part of the guest. A [`Memory`] is
//! one such statement: immutable, and replaced as a whole when the VMM changes its mind. Mappings
//! are shared between successive memories, so whoever holds an old one may finish what it began.
//!
//! The guest writes while we read. So nothing here makes a reference to guest memory: single
//! fields go through atomics, in the byte order of virtio (little endian), and bulk data only
//! through pointers for the kernel. Every access is checked against the mapping it goes to; all
//! unsafe code of the ring edge is in this file and in `sigbus`.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::fs::FileType;
use rustix::mm::{MapFlags, ProtFlags};

use crate::sigbus::Guard;

/// Most regions of one guest; also the number of memory slots that we announce.
///
/// Source: 509 is what QEMU's KVM slots leave for others and what the peers offer.
pub(crate) const REGIONS_MAX: usize = 509;

/// Most bytes of one guest (16 TiB): the address space is shared with all other guests.
const GUEST_BYTES_MAX: u64 = 1 << 44;

/// The guest memory of one session at one time.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// By guest address, without overlap.
    regions: Vec<Region>,
}

/// Where the VMM says that a region is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Place {
    /// First guest-physical address.
    pub(crate) guest_addr: u64,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Address in the VMM's own address space; vring addresses are given in it.
    pub(crate) user_addr: u64,
    /// Where the region starts in its file.
    pub(crate) file_offset: u64,
}

/// A piece of guest memory that is contiguous for us, too.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Piece {
    /// For the kernel; valid as long as the memory that made it lives.
    pub(crate) ptr: *mut u8,
    /// Length in bytes, at least 1.
    pub(crate) len: u32,
    spot: Spot,
}

/// The name of one byte of a [`Memory`]; keeps nothing alive.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Spot {
    region: u16,
    offset: usize,
}

impl Piece {
    /// Returns the piece without its first `bytes`, of which it has so many.
    pub(crate) fn skip(self, bytes: u32) -> Self {
        let step = usize::try_from(bytes).expect("a u32 fits a usize");
        let spot = Spot { offset: self.spot.offset + step, ..self.spot };
        Self { ptr: self.ptr.wrapping_add(step), len: self.len - bytes, spot }
    }

    /// Returns the name of the last byte.
    pub(crate) fn last_byte(self) -> Spot {
        self.skip(self.len - 1).spot
    }
}

impl Memory {
    /// Maps all regions of a memory table.
    ///
    /// # Errors
    ///
    /// * The [`MemoryError`] of the first region that is not acceptable; nothing stays mapped.
    pub(crate) fn new(table: impl IntoIterator<Item = (Place, File)>) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        for (place, file) in table {
            memory.admit(place)?;
            memory.insert(Region::map(place, &file)?);
        }
        Ok(memory)
    }

    /// Returns this memory and one region more.
    ///
    /// # Errors
    ///
    /// * A [`MemoryError`] if the region is not acceptable beside the others.
    pub(crate) fn with(&self, place: Place, file: &File) -> Result<Self, MemoryError> {
        self.admit(place)?;
        let mut memory = Self { regions: self.regions.clone() };
        memory.insert(Region::map(place, file)?);
        Ok(memory)
    }

    /// Returns this memory without the region at `place` (whose file offset does not matter).
    ///
    /// # Errors
    ///
    /// * [`MemoryError::NoSuchRegion`] if there is none with these addresses and size.
    pub(crate) fn without(&self, place: Place) -> Result<Self, MemoryError> {
        let mut regions = self.regions.clone();
        let at = regions
            .iter()
            .position(|region| {
                let place = Place { file_offset: region.place.file_offset, ..place };
                region.place == place
            })
            .ok_or(MemoryError::NoSuchRegion { guest_addr: place.guest_addr })?;
        regions.remove(at);
        Ok(Self { regions })
    }

    /// Translates the start of a guest range: as many of `len` bytes as are contiguous for us.
    ///
    /// `None` if `len` is 0 or the first byte is not guest memory.
    #[inline]
    pub(crate) fn translate(&self, guest_addr: u64, len: u32) -> Option<Piece> {
        let after = self.regions.partition_point(|region| region.place.guest_addr <= guest_addr);
        let at = after.checked_sub(1)?;
        let region = self.regions.get(at)?;
        let offset = guest_addr - region.place.guest_addr;
        let room = region.place.bytes.checked_sub(offset)?;
        let len = u32::try_from(room).map_or(len, |room| len.min(room));
        if len == 0 {
            return None;
        }
        let spot = Spot { region: u16::try_from(at).ok()?, offset: usize::try_from(offset).ok()? };
        Some(Piece { ptr: region.window.at(spot.offset, 1), len, spot })
    }

    /// Returns the window of `len` bytes at an address of the VMM, if one region holds them all.
    pub(crate) fn window(&self, user_addr: u64, len: usize) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let offset = user_addr.checked_sub(region.place.user_addr)?;
            region.window.part(usize::try_from(offset).ok()?, len)
        })
    }

    /// Copies 16 bytes from `offset` on of a piece that this memory made.
    ///
    /// # Panics
    ///
    /// Panics if the piece does not hold them: a bug of the caller.
    #[inline]
    pub(crate) fn read_16(&self, piece: Piece, offset: usize) -> [u8; 16] {
        self.regions[usize::from(piece.spot.region)].window.read_16(piece.spot.offset + offset)
    }

    /// Copies as much as fits from a piece of this memory to the front of `bytes`; returns how
    /// much.
    pub(crate) fn read(&self, piece: Piece, bytes: &mut [u8]) -> usize {
        let window = &self.regions[usize::from(piece.spot.region)].window;
        let len = usize::try_from(piece.len).map_or(bytes.len(), |len| bytes.len().min(len));
        for (at, byte) in bytes.iter_mut().take(len).enumerate() {
            *byte = window.load_u8(piece.spot.offset + at);
        }
        len
    }

    /// Writes the byte at `spot`, which this memory must have made.
    #[inline]
    pub(crate) fn write_byte(&self, spot: Spot, byte: u8) {
        self.regions[usize::from(spot.region)].window.store_u8(spot.offset, byte);
    }

    /// Returns the window behind a pointer that an earlier [`Piece`] carried, if it still is one.
    pub(crate) fn window_at(&self, ptr: *const u8, len: usize) -> Option<Window> {
        self.regions.iter().find_map(|region| {
            let offset = ptr.addr().checked_sub(region.window.ptr.addr())?;
            region.window.part(offset, len)
        })
    }

    /// Returns whether the VMM took away pages that it had promised (see `sigbus`).
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.regions.iter().any(|region| region.window.is_poisoned())
    }

    /// Checks a place by itself and beside the regions that are here.
    fn admit(&self, place: Place) -> Result<(), MemoryError> {
        let Place { guest_addr, bytes, .. } = place;
        if self.regions.len() >= REGIONS_MAX {
            return Err(MemoryError::TooManyRegions);
        }
        if bytes == 0 {
            return Err(MemoryError::Empty { guest_addr });
        }
        let wraps = |start: u64| start.checked_add(bytes).is_none();
        if wraps(guest_addr) || wraps(place.user_addr) || wraps(place.file_offset) {
            return Err(MemoryError::Wraps { guest_addr, bytes });
        }
        let total: u64 = self.regions.iter().map(|region| region.place.bytes).sum();
        if bytes > GUEST_BYTES_MAX - total {
            return Err(MemoryError::TooLarge { guest_addr, bytes });
        }
        let overlaps = |other: &Place| {
            guest_addr < other.guest_addr + other.bytes && other.guest_addr < guest_addr + bytes
        };
        match self.regions.iter().find(|region| overlaps(&region.place)) {
            Some(other) => {
                Err(MemoryError::Overlap { guest_addr, other_addr: other.place.guest_addr })
            }
            None => Ok(()),
        }
    }

    /// Puts an admitted region where it belongs.
    fn insert(&mut self, region: Region) {
        let guest_addr = region.place.guest_addr;
        let at = self.regions.partition_point(|other| other.place.guest_addr < guest_addr);
        self.regions.insert(at, region);
    }
}

/// Why a memory region is refused. Nothing changes then; the message goes to the VMM's operator.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum MemoryError {
    #[error("the region at {guest_addr:#x} is empty")]
    Empty { guest_addr: u64 },
    #[error("the region at {guest_addr:#x} wraps around: {bytes:#x} bytes")]
    Wraps { guest_addr: u64, bytes: u64 },
    #[error("the region at {guest_addr:#x} with {bytes:#x} bytes is more than a guest may have")]
    TooLarge { guest_addr: u64, bytes: u64 },
    #[error("the region at {guest_addr:#x} overlaps the one at {other_addr:#x}")]
    Overlap { guest_addr: u64, other_addr: u64 },
    #[error("a guest may have {REGIONS_MAX} memory regions, this is one more")]
    TooManyRegions,
    #[error("there is no region at {guest_addr:#x} with these addresses and size")]
    NoSuchRegion { guest_addr: u64 },
    #[error("file offset {file_offset:#x} is not a multiple of the page size")]
    Misaligned { file_offset: u64 },
    #[error("memory must come as a regular file or memfd")]
    NotAFile,
    #[error("the file has {has:#x} bytes, the region needs {needs:#x}")]
    FileTooSmall { has: u64, needs: u64 },
    #[error("too many mappings in this process")]
    TooManyMappings,
    #[error("the file cannot be mapped: {0}")]
    System(rustix::io::Errno),
}

/// A place and its window.
#[derive(Clone, Debug)]
struct Region {
    place: Place,
    window: Window,
}

impl Region {
    fn map(place: Place, file: &File) -> Result<Self, MemoryError> {
        let bytes = usize::try_from(place.bytes)
            .map_err(|_big| MemoryError::System(rustix::io::Errno::NOMEM))?;
        Ok(Self { place, window: Window::map(file, place.file_offset, bytes)? })
    }
}

/// A range of shared memory, readable and writable field by field.
///
/// Offsets are in bytes from its start. An access outside the window, or one that is not aligned
/// to its own size, is a bug of the caller and panics: offsets follow from checked sizes, never
/// from what a guest wrote.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    ptr: *mut u8,
    len: usize,
    mapping: Arc<Mapping>,
}

// SAFETY: the pointer is to a shared mapping that lives as long as the `Arc` beside it and may be
// accessed from every thread; all accesses are atomic.
unsafe impl Send for Window {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for Window {}

impl Window {
    /// Maps `bytes` of `file` from `file_offset` on.
    ///
    /// # Errors
    ///
    /// * A [`MemoryError`] if the file does not hold them or cannot be mapped.
    pub(crate) fn map(file: &File, file_offset: u64, bytes: usize) -> Result<Self, MemoryError> {
        let stat = rustix::fs::fstat(file).map_err(MemoryError::System)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(MemoryError::NotAFile);
        }
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        if !file_offset.is_multiple_of(page) {
            return Err(MemoryError::Misaligned { file_offset });
        }
        let has = u64::try_from(stat.st_size).unwrap_or(0);
        let needs = u64::try_from(bytes).ok().and_then(|bytes| file_offset.checked_add(bytes));
        if needs.is_none_or(|needs| needs > has) {
            return Err(MemoryError::FileTooSmall { has, needs: needs.unwrap_or(u64::MAX) });
        }
        // Huge pages can only be mapped whole; a region may begin in the middle of one.
        let align = huge_page_bytes(file).unwrap_or(page);
        let skip = file_offset % align;
        let whole = usize::try_from(skip).ok().and_then(|skip| bytes.checked_add(skip));
        let whole = whole
            .and_then(|len| len.checked_next_multiple_of(usize::try_from(align).ok()?))
            .and_then(NonZeroUsize::new)
            .ok_or(MemoryError::System(rustix::io::Errno::NOMEM))?;
        let mapping = Mapping::new(file, file_offset - skip, whole)?;
        let Span { ptr, len } = mapping.span;
        let whole = Self { ptr, len, mapping: Arc::new(mapping) };
        let skip = usize::try_from(skip).unwrap_or(0);
        Ok(whole.part(skip, bytes).expect("the mapping was made long enough"))
    }

    /// Returns the part of `len` bytes from `offset` on, if it lies inside.
    pub(crate) fn part(&self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len || offset >= self.len {
            return None;
        }
        let ptr = self.ptr.wrapping_add(offset);
        Some(Self { ptr, len, mapping: Arc::clone(&self.mapping) })
    }

    /// Returns the size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the window starts at a multiple of `bytes`.
    pub(crate) fn is_aligned(&self, bytes: usize) -> bool {
        self.ptr.addr().is_multiple_of(bytes)
    }

    /// Returns whether the VMM took away pages of the mapping.
    #[inline]
    pub(crate) fn is_poisoned(&self) -> bool {
        self.mapping.guard.is_poisoned()
    }

    #[inline]
    pub(crate) fn load_u8(&self, offset: usize) -> u8 {
        // SAFETY: `at` checked bounds; the mapping lives as long as `self`.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn store_u8(&self, offset: usize, value: u8) {
        // SAFETY: as in `load_u8`.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }.store(value, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_u16(&self, offset: usize, order: Ordering) -> u16 {
        let ptr = self.at(offset, 2).cast();
        // SAFETY: `at` checked bounds and alignment; the mapping lives as long as `self`.
        u16::from_le(unsafe { AtomicU16::from_ptr(ptr) }.load(order))
    }

    #[inline]
    pub(crate) fn store_u16(&self, offset: usize, value: u16, order: Ordering) {
        let ptr = self.at(offset, 2).cast();
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(ptr) }.store(value.to_le(), order);
    }

    #[inline]
    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        let ptr = self.at(offset, 4).cast();
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU32::from_ptr(ptr) }.store(value.to_le(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn load_u64(&self, offset: usize) -> u64 {
        let ptr = self.at(offset, 8).cast();
        // SAFETY: as in `load_u16`.
        u64::from_le(unsafe { AtomicU64::from_ptr(ptr) }.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn store_u64(&self, offset: usize, value: u64) {
        let ptr = self.at(offset, 8).cast();
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(ptr) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// Copies 16 bytes: a descriptor or a request header.
    #[inline]
    pub(crate) fn read_16(&self, offset: usize) -> [u8; 16] {
        let mut bytes = [0; 16];
        if self.ptr.wrapping_add(offset).addr().is_multiple_of(8) {
            let (low, high) = bytes.split_at_mut(8);
            low.copy_from_slice(&self.load_u64(offset).to_le_bytes());
            high.copy_from_slice(&self.load_u64(offset + 8).to_le_bytes());
        } else {
            for (at, byte) in bytes.iter_mut().enumerate() {
                *byte = self.load_u8(offset + at);
            }
        }
        bytes
    }

    /// Returns the address of a field of `bytes` bytes, checked.
    #[inline]
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        let fits = self.len.checked_sub(bytes).is_some_and(|last| offset <= last);
        let ptr = self.ptr.wrapping_add(offset);
        assert!(fits && ptr.addr() & (bytes - 1) == 0, "a field outside its window");
        ptr
    }
}

/// A mapped range of a foreign file, with its guard against holes.
#[derive(Debug)]
struct Mapping {
    /// Declared, and so dropped, before the span: another mapping may get the same addresses.
    guard: Guard,
    span: Span,
}

impl Mapping {
    fn new(file: &File, file_offset: u64, len: NonZeroUsize) -> Result<Self, MemoryError> {
        let len = len.get();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that nobody uses, so nothing is overwritten.
        let ptr = unsafe {
            rustix::mm::mmap(ptr::null_mut(), len, protection, flags, file.as_fd(), file_offset)
        };
        let span = Span { ptr: ptr.map_err(MemoryError::System)?.cast(), len };
        let guard = Guard::new(span.ptr.addr(), len).ok_or(MemoryError::TooManyMappings)?;
        Ok(Self { guard, span })
    }
}

/// A range of our address space that is unmapped in the end.
#[derive(Debug)]
struct Span {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Span {}
// SAFETY: shared access only reads the fields; what lies behind `ptr` is `Window`'s business.
unsafe impl Sync for Span {}

impl Drop for Span {
    fn drop(&mut self) {
        // SAFETY: `Mapping::new` mapped the range and made this its only owner. Windows hold the
        // owner in an `Arc`, and pieces are only used while their memory is held.
        let unmapped = unsafe { rustix::mm::munmap(self.ptr.cast(), self.len) };
        assert_eq!(unmapped, Ok(()), "a whole mapping can be unmapped");
    }
}

/// Returns the page size of a file on hugetlbfs, `None` for any other.
fn huge_page_bytes(file: &File) -> Option<u64> {
    /// Source: statfs(2), `HUGETLBFS_MAGIC`.
    const HUGETLBFS: rustix::fs::FsWord = 0x9584_58f6;
    let stat = rustix::fs::fstatfs(file).ok()?;
    if stat.f_type != HUGETLBFS {
        return None;
    }
    u64::try_from(stat.f_bsize).ok().filter(|bytes| bytes.is_power_of_two())
}

#[cfg(test)]
mod tests;
