//! Memory that the client shares with the server: one memfd, mapped once.
//!
//! It plays the part of a guest's RAM. The other side may write to it at any moment, so nothing
//! here hands out a reference: bytes are copied in and out, indices are atomic. It stays on the
//! thread that made it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A shared anonymous file and its mapping in this process.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
    base: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Maps `len` bytes of zeroes.
    ///
    /// # Errors
    ///
    /// What memfd_create, ftruncate or mmap reports.
    pub fn new(len: usize) -> io::Result<Self> {
        let fd = memfd_create("evenkeel-client", MemfdFlags::CLOEXEC)?;
        ftruncate(&fd, len as u64)?;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the kernel chooses the address, so that no mapping of ours is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, &fd, 0) }?;
        let base = NonNull::new(base.cast()).expect("mmap never returns address zero");
        Ok(Self { fd, base, len })
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether there is nothing in it; never the case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the file, to be sent to the server.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Cuts the file to `len` bytes, as a hostile VMM might.
    ///
    /// Whoever touches the rest of a mapping afterwards gets SIGBUS, this client included.
    ///
    /// # Errors
    ///
    /// What ftruncate reports.
    pub fn truncate(&self, len: u64) -> io::Result<()> {
        Ok(ftruncate(&self.fd, len)?)
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    ///
    /// Panics if the range leaves the memory.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.at(offset, bytes.len());
        // SAFETY: `at` checked that the target lies within the mapping, and a slice of this
        // process cannot overlap it, since no references to the mapping exist.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Fills `bytes` from `offset`.
    ///
    /// # Panics
    ///
    /// Panics if the range leaves the memory.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.at(offset, bytes.len());
        // SAFETY: `at` checked that the source lies within the mapping, and a slice of this
        // process cannot overlap it, since no references to the mapping exist.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Reads the little-endian 16-bit value at the even `offset`.
    ///
    /// # Panics
    ///
    /// Panics if it is misaligned or outside.
    #[must_use]
    pub fn load_u16(&self, offset: usize, ordering: Ordering) -> u16 {
        u16::from_le(self.atomic(offset).load(ordering))
    }

    /// Writes the little-endian 16-bit value at the even `offset`.
    ///
    /// # Panics
    ///
    /// Panics if it is misaligned or outside.
    pub fn store_u16(&self, offset: usize, value: u16, ordering: Ordering) {
        self.atomic(offset).store(value.to_le(), ordering);
    }

    fn atomic(&self, offset: usize) -> &AtomicU16 {
        assert!(offset.is_multiple_of(2), "16-bit values of a vring lie at even addresses");
        let address: *mut u16 = self.at(offset, 2).cast();
        // SAFETY: in bounds by `at`, aligned by the assertion above (the mapping starts at a page),
        // alive as long as `self`; the bytes are only ever accessed as a whole while shared.
        unsafe { AtomicU16::from_ptr(address) }
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len),
            "range {offset}+{len} leaves the shared memory"
        );
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the range is exactly what mmap returned, and no pointer into it outlives `self`.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_indices_are_little_endian() {
        let memory = Memory::new(4096).unwrap();
        memory.write(100, &[1, 2, 3, 4]);
        let mut bytes = [0; 4];
        memory.read(100, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(memory.load_u16(102, Ordering::Relaxed), 0x0403);
    }

    #[test]
    #[should_panic(expected = "leaves the shared memory")]
    fn a_range_beyond_the_end_is_refused() {
        Memory::new(4096).unwrap().write(4090, &[0; 7]);
    }
}
