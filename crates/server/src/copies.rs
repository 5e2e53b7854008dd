//! Transfers that are copies: from and to files whose file system is memory.
//!
//! There is no device to wait for, and `io_uring` hands each transfer to a thread of the kernel's,
//! because such a file system cannot promise not to wait: two switches for a copy of a
//! microsecond. The worker copies itself instead, with the one system call that a copy takes.
#![expect(unsafe_code, reason = "system calls on addresses of guest memory")]

use std::io;
use std::os::fd::RawFd;

use libc::iovec;

use crate::slots::Step;
use crate::uring::IOV_MAX;

/// Longest transfer that the worker makes itself, in bytes. Longer ones would keep other guests
/// waiting, and the switches of a thread of the kernel's do not count beside them.
pub(crate) const COPY_MOST: u64 = 64 << 10;

/// Reads or writes, and returns the bytes moved, or a negative errno; None for steps that are no
/// copies.
///
/// # Safety
///
/// The memory behind the step's addresses is mapped.
pub(crate) unsafe fn copy(file: RawFd, step: &Step<'_>) -> Option<i32> {
    let moved = match *step {
        Step::Read { offset, segments, ioprio: _ } => {
            // SAFETY: the caller's promise; an address that is not mapped ends in EFAULT.
            unsafe { libc::preadv(file, segments.as_ptr(), count(segments), signed(offset)) }
        }
        Step::Write { offset, segments, ioprio: _, durable } => {
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            let offset = signed(offset);
            // SAFETY: as above.
            unsafe { libc::pwritev2(file, segments.as_ptr(), count(segments), offset, flags) }
        }
        Step::Allocate { .. } | Step::Sync => return None,
    };
    Some(match i32::try_from(moved) {
        Ok(moved) if moved >= 0 => moved,
        Ok(_) => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        Err(_) => unreachable!("the kernel moves at most 2 GiB less a page"),
    })
}

fn count(segments: &[iovec]) -> libc::c_int {
    i32::try_from(segments.len().min(IOV_MAX)).expect("at most 1024")
}

fn signed(offset: u64) -> libc::off_t {
    i64::try_from(offset).expect("a file ends before 2^63")
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    fn file() -> std::os::fd::OwnedFd {
        rustix::fs::memfd_create("copies", rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }

    fn segments(buffers: &mut [[u8; 512]]) -> Vec<iovec> {
        let segment = |buffer: &mut [u8; 512]| iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        };
        buffers.iter_mut().map(segment).collect()
    }

    #[test]
    fn what_was_written_is_read_up_to_the_end_of_the_file() {
        let (file, mut written, mut read) = (file(), [[1; 512], [2; 512]], [[0; 512]; 3]);
        for durable in [false, true] {
            let from = segments(&mut written);
            let step = Step::Write { offset: 512, segments: &from, ioprio: 0, durable };
            // SAFETY: the buffers live to the end of the test.
            assert_eq!(unsafe { copy(file.as_raw_fd(), &step) }, Some(1024));
        }
        let to = segments(&mut read);
        let step = Step::Read { offset: 1024, segments: &to, ioprio: 0 };
        // SAFETY: as above.
        assert_eq!(unsafe { copy(file.as_raw_fd(), &step) }, Some(512));
        assert_eq!(read, [[2; 512], [0; 512], [0; 512]]);
    }

    #[test]
    fn what_the_system_says_comes_back_and_other_steps_are_refused() {
        let file = file();
        let nowhere = [iovec { iov_base: std::ptr::without_provenance_mut(8), iov_len: 512 }];
        let step = Step::Write { offset: 0, segments: &nowhere, ioprio: 0, durable: false };
        // SAFETY: the kernel refuses the address.
        assert_eq!(unsafe { copy(file.as_raw_fd(), &step) }, Some(-libc::EFAULT));
        // SAFETY: no address in it.
        assert_eq!(unsafe { copy(file.as_raw_fd(), &Step::Sync) }, None);
    }
}
