//! Where a disk's data lives: a raw file, a block device, or nowhere.
//!
//! A backend is opened for direct I/O where the file system has it, locked for the life of the
//! daemon, and never changed in size. The lock sits on the open file description: the ring of a
//! killed daemon keeps that alive until its last write has ended, so a successor that waits for
//! the lock cannot be overtaken by a stale write.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_engine::{Geometry, SECTOR_BYTES};
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, StatxFlags,
};
use rustix::io::Errno;

use crate::signals::Signals;

/// How long to wait for another process's lock on an image.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(30);
/// A predecessor that has just ended lets go within this time: nothing to tell.
const LOCK_USUAL: Duration = Duration::from_millis(500);
/// How often to try meanwhile.
const LOCK_RETRY: Duration = Duration::from_millis(50);
/// `STATX_DIOALIGN` of `linux/stat.h`.
const STATX_DIOALIGN: u32 = 0x2000;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` of `linux/magic.h`.
const IN_MEMORY: [rustix::fs::FsWord; 2] = [0x0102_1994, 0x8584_58f6];

/// What backs a disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Source {
    /// A raw image or a block device.
    Path {
        /// Where it is.
        path: PathBuf,
        /// Size in bytes of the file to create if there is none.
        create: Option<u64>,
        /// Whether a created file gets its blocks at once, rather than when first written.
        preallocate: bool,
    },
    /// Answers at once and keeps nothing: for measuring ceilings.
    Null {
        /// Size in bytes.
        bytes: u64,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path { path, .. } => write!(f, "{}", path.display()),
            Self::Null { bytes } => write!(f, "null ({bytes} bytes)"),
        }
    }
}

/// A backend could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct OpenError {
    /// The image.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: OpenProblem,
}

/// What keeps a backend from being opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenProblem {
    /// The device wants larger blocks than guests understand.
    #[error("direct I/O needs blocks of {0} bytes, and guests know 512 and 4096 only")]
    Alignment(u32),
    /// The image is there already, in another size.
    #[error(
        "is {actual} bytes, not the {wanted} asked for; an existing image is never resized: leave \
         the size out to use it as it is, or name another file"
    )]
    OtherSize {
        /// Bytes it has.
        actual: u64,
        /// Bytes asked for.
        wanted: u64,
    },
    /// Somebody else has it.
    #[error("is in use by another process; stop that one, or name another image")]
    Locked,
    /// Nothing there.
    #[error("does not exist; give a size to create it (`--create SIZE`)")]
    Missing,
    /// A directory, a pipe, a socket.
    #[error("is neither a regular file nor a block device")]
    NotAnImage,
    /// Too small to hold a block.
    #[error("is {bytes} bytes, less than one block of {block_bytes}")]
    Tiny {
        /// Bytes it has.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The system refuses.
    #[error("cannot {action}: {source}")]
    System {
        /// What was tried.
        action: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenProblem {
    fn system(action: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { action, source: errno.into() }
    }
}

/// What direct I/O demands. One byte each where there is no direct I/O.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Alignment {
    /// Of addresses in memory, in bytes, a power of two.
    pub(crate) memory: u32,
    /// Of offsets and lengths, in bytes, a power of two.
    pub(crate) length: u32,
}

impl Alignment {
    /// No demands.
    pub(crate) const NONE: Self = Self { memory: 1, length: 1 };
    /// Enough for every file system of this time.
    const SAFE: Self = Self { memory: 4096, length: 512 };
}

/// An open backend.
#[derive(Debug)]
pub(crate) struct Backend {
    file: Option<OwnedFd>,
    geometry: Geometry,
    alignment: Alignment,
    rotational: bool,
    takes_one: bool,
    in_memory: bool,
    can_be_asked: bool,
}

impl Backend {
    /// Opens, creates if asked to, and locks what backs a disk.
    ///
    /// # Errors
    ///
    /// * [`OpenError`], which names the file, what is wrong and what to do.
    pub(crate) fn open(
        source: &Source,
        read_only: bool,
        patience: Duration,
    ) -> Result<Self, OpenError> {
        match source {
            Source::Null { bytes } => Ok(Self::null(*bytes, read_only)),
            Source::Path { path, create, preallocate } => {
                let create = create.map(|bytes| Create { bytes, preallocate: *preallocate });
                open_path(path, create, read_only, patience)
                    .map_err(|problem| OpenError { path: path.clone(), problem })
            }
        }
    }

    fn null(bytes: u64, read_only: bool) -> Self {
        let geometry = Geometry {
            sectors: bytes / SECTOR_BYTES,
            block_bytes: 512,
            read_only,
            discard: true,
            write_zeroes: true,
        };
        Self {
            file: None,
            geometry,
            alignment: Alignment::NONE,
            rotational: false,
            takes_one: false,
            in_memory: false,
            can_be_asked: false,
        }
    }

    /// Shows guests blocks of at least this size, 512 or 4096 bytes.
    #[must_use]
    pub(crate) fn with_block_bytes(mut self, block_bytes: u32) -> Self {
        let block_bytes = self.geometry.block_bytes.max(block_bytes);
        let sectors_per_block = u64::from(block_bytes) / SECTOR_BYTES;
        self.geometry.block_bytes = block_bytes;
        self.geometry.sectors -= self.geometry.sectors % sectors_per_block;
        self
    }

    /// Returns the descriptor for the ring, -1 if there is no file.
    pub(crate) fn raw_fd(&self) -> RawFd {
        self.file.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Returns whether requests are answered without a device.
    pub(crate) const fn is_null(&self) -> bool {
        self.file.is_none()
    }

    /// Returns the file if it lies in memory: a transfer is a copy, and waits for no device.
    pub(crate) fn copied(&self) -> Option<RawFd> {
        self.file.as_ref().filter(|_| self.in_memory).map(AsRawFd::as_raw_fd)
    }

    pub(crate) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    pub(crate) const fn alignment(&self) -> Alignment {
        self.alignment
    }

    pub(crate) const fn rotational(&self) -> bool {
        self.rotational
    }

    /// Returns whether the device is a card that works on one command at a time.
    pub(crate) const fn takes_one(&self) -> bool {
        self.takes_one
    }

    /// Returns whether the device has queues without interrupts, and can be asked for its answers.
    pub(crate) const fn can_be_asked(&self) -> bool {
        self.can_be_asked
    }

    /// Makes everything written durable. Blocks; for shutdown only.
    ///
    /// # Errors
    ///
    /// * What the system says.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.file {
            Some(file) if !self.geometry.read_only => Ok(rustix::fs::fdatasync(file)?),
            _ => Ok(()),
        }
    }

    /// Lets another process have the image. Only when no I/O is on its way any more: a ring keeps
    /// its files open until the kernel has taken it apart, which it does at its leisure after the
    /// process has ended, and a successor would wait for that.
    ///
    /// # Errors
    ///
    /// * What the system says.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        match &self.file {
            Some(file) => Ok(rustix::fs::flock(file, FlockOperation::Unlock)?),
            None => Ok(()),
        }
    }
}

/// A file to create.
#[derive(Clone, Copy)]
struct Create {
    bytes: u64,
    preallocate: bool,
}

fn open_path(
    path: &Path,
    create: Option<Create>,
    read_only: bool,
    patience: Duration,
) -> Result<Backend, OpenProblem> {
    if let Some(create) = create {
        create_image(path, create)?;
    }
    let (file, direct) = open_direct(path, read_only)?;
    lock(&file, path, read_only, patience)?;
    let stat = rustix::fs::fstat(&file).map_err(OpenProblem::system("examine it"))?;
    let (is_block, device) = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => (false, stat.st_dev),
        FileType::BlockDevice => (true, stat.st_rdev),
        _ => return Err(OpenProblem::NotAnImage),
    };
    wait_for_the_device(&file).map_err(OpenProblem::system("set it up"))?;
    let bytes =
        rustix::fs::seek(&file, SeekFrom::End(0)).map_err(OpenProblem::system("measure it"))?;
    if let Some(create) = create
        && create.bytes != bytes
    {
        return Err(OpenProblem::OtherSize { actual: bytes, wanted: create.bytes });
    }
    let alignment = if direct { direct_alignment(file.as_fd()) } else { Alignment::NONE };
    let logical = if is_block { rustix::fs::ioctl_blksszget(&file).unwrap_or(512) } else { 512 };
    let block_bytes = match alignment.length.max(logical) {
        0..=512 => 512,
        513..=4096 => 4096,
        larger => return Err(OpenProblem::Alignment(larger)),
    };
    let sectors = bytes / u64::from(block_bytes) * (u64::from(block_bytes) / SECTOR_BYTES);
    if sectors == 0 {
        return Err(OpenProblem::Tiny { bytes, block_bytes });
    }
    if sectors * SECTOR_BYTES != bytes {
        tracing::warn!(image = %path.display(), bytes, block_bytes,
            "not a whole number of blocks; the guest does not see the rest");
    }
    let discard = !read_only
        && if is_block {
            queue_attribute(device, "discard_max_bytes") > 0
        } else {
            punches(&file, bytes)
        };
    let geometry = Geometry {
        sectors,
        block_bytes,
        read_only,
        discard,
        // Zeroes that the kernel would have to write one by one cost what writes cost, and are not
        // charged as such.
        write_zeroes: !read_only
            && if is_block {
                queue_attribute(device, "write_zeroes_max_bytes") > 0
            } else {
                discard
            },
    };
    // Virtual disks say that they turn, knowing nothing.
    let rotational = queue_attribute(device, "rotational") == 1 && !is_on_bus(device, "virtio");
    let takes_one = is_on_bus(device, "mmc") && attribute(device, "device/cmdq_en") != 1;
    let in_memory = !is_block && is_in_memory(&file);
    let can_be_asked = direct && queue_attribute(device, "io_poll") == 1;
    let file = Some(file);
    Ok(Backend { file, geometry, alignment, rotational, takes_one, in_memory, can_be_asked })
}

/// Creates an image unless there is something already.
fn create_image(path: &Path, create: Create) -> Result<(), OpenProblem> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR | Mode::RGRP) {
        Ok(file) => file,
        Err(Errno::EXIST) => return Ok(()),
        Err(errno) => return Err(OpenProblem::system("create it")(errno)),
    };
    let sized = rustix::fs::ftruncate(&file, create.bytes)
        .and_then(|()| match create.preallocate {
            true => rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, create.bytes),
            false => Ok(()),
        })
        .and_then(|()| rustix::fs::fsync(&file));
    if let Err(errno) = sized {
        // Half a new image would be taken for somebody's own at the next start.
        let _removed = fs::remove_file(path);
        return Err(OpenProblem::system("create it in this size")(errno));
    }
    Ok(())
}

/// Opens past the page cache where the file system can; the flag says whether it could.
fn open_direct(path: &Path, read_only: bool) -> Result<(OwnedFd, bool), OpenProblem> {
    let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    match open(flags | OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(Errno::INVAL) => {
            let file = open(flags).map_err(OpenProblem::system("open it"))?;
            tracing::info!(image = %path.display(),
                "the file system has no direct I/O; going through the page cache");
            Ok((file, false))
        }
        Err(Errno::NOENT) => Err(OpenProblem::Missing),
        Err(errno) => Err(OpenProblem::system("open it")(errno)),
    }
}

/// Undoes what kept `open` from waiting for the other end of a pipe. With it, a ring does not wait
/// for a device that cannot promise to answer at once (`dm`, `md`): each request ends in EAGAIN.
fn wait_for_the_device(file: &OwnedFd) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags.difference(OFlags::NONBLOCK))
}

/// Takes the lock that lasts as long as the open file description.
fn lock(
    file: &OwnedFd,
    path: &Path,
    read_only: bool,
    patience: Duration,
) -> Result<(), OpenProblem> {
    let operation = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    let started = Instant::now();
    let mut told = false;
    loop {
        match rustix::fs::flock(file, operation) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if started.elapsed() < patience && !Signals::arrived() => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenProblem::Locked),
            Err(errno) => return Err(OpenProblem::system("lock it")(errno)),
        }
        if !told && started.elapsed() > LOCK_USUAL {
            told = true;
            tracing::warn!(image = %path.display(), patience_s = patience.as_secs(),
                "in use by another process; waiting for it to let go");
        }
        std::thread::sleep(LOCK_RETRY);
    }
}

/// Asks the kernel, or tries where the kernel is too old to tell.
fn direct_alignment(file: BorrowedFd<'_>) -> Alignment {
    let wanted = StatxFlags::from_bits_retain(STATX_DIOALIGN);
    if let Ok(stat) = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)
        && stat.stx_mask & STATX_DIOALIGN != 0
        && stat.stx_dio_mem_align.is_power_of_two()
        && stat.stx_dio_offset_align.is_power_of_two()
    {
        return Alignment { memory: stat.stx_dio_mem_align, length: stat.stx_dio_offset_align };
    }
    let mut bytes = vec![0_u8; 8192];
    let start = bytes.as_ptr().align_offset(4096).min(4096);
    match rustix::io::pread(file, &mut bytes[start..start + 512], 0) {
        Err(Errno::INVAL) => Alignment { memory: 4096, length: 4096 },
        _ => Alignment::SAFE,
    }
}

/// Returns whether the file system can give blocks back. Tried behind the end, where nothing is.
fn punches(file: &OwnedFd, bytes: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, bytes.next_multiple_of(4096), 4096).is_ok()
}

/// Returns whether a file's file system is memory (`statfs(2)`).
fn is_in_memory(file: &OwnedFd) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| IN_MEMORY.contains(&system.f_type))
}

/// Returns whether the device of a disk or a partition is on such a bus: "virtio", "mmc".
fn is_on_bus(device: u64, bus: &str) -> bool {
    places(device, "device/subsystem")
        .iter()
        .any(|place| fs::read_link(place).is_ok_and(|subsystem| subsystem.ends_with(bus)))
}

/// Reads a number about the queue of a device.
fn queue_attribute(device: u64, name: &str) -> u64 {
    attribute(device, &format!("queue/{name}"))
}

/// Reads a number about a device, about the whole disk for a partition; 0 if there is none.
fn attribute(device: u64, name: &str) -> u64 {
    places(device, name)
        .iter()
        .find_map(|place| fs::read_to_string(place).ok())
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Returns where the kernel tells about a disk, or about that of a partition.
fn places(device: u64, name: &str) -> [String; 2] {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    ["", "../"].map(|up| format!("/sys/dev/block/{major}:{minor}/{up}{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of its own for a test, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn source(&self, create: Option<u64>) -> Source {
            Source::Path { path: self.0.join("image"), create, preallocate: false }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn open(source: &Source) -> Result<Backend, OpenError> {
        Backend::open(source, false, Duration::ZERO)
    }

    #[test]
    fn files_in_memory_are_known_and_no_others() {
        let disk = Path::new("/dev/shm").join(format!("evenkeel-copied-{}", std::process::id()));
        let source = Source::Path { path: disk.clone(), create: Some(1 << 20), preallocate: false };
        let in_memory = open(&source).map(|backend| backend.copied().is_some());
        fs::remove_file(disk).unwrap();
        assert!(in_memory.unwrap(), "/dev/shm is a tmpfs");
        assert_eq!(Backend::null(1 << 20, false).copied(), None);
        let elsewhere = fs::File::open("/proc/self/stat").unwrap();
        assert!(!is_in_memory(&elsewhere.into()));
    }

    #[test]
    fn an_image_is_created_in_the_size_asked_for_and_used_again() {
        let scratch = Scratch::new("create");
        let source = scratch.source(Some(1 << 20));
        let first = open(&source).unwrap();
        assert_eq!(first.geometry().sectors, 2048);
        rustix::io::pwrite(first.file.as_ref().unwrap(), &Page([7; 4096]).0, 4096).unwrap();
        drop(first);
        drop(open(&source).unwrap());
        assert_eq!(fs::read(scratch.0.join("image")).unwrap()[4096..8192], [7; 4096]);
    }

    #[test]
    fn the_ring_may_wait_for_an_image() {
        let scratch = Scratch::new("wait");
        let backend = open(&scratch.source(Some(1 << 20))).unwrap();
        let flags = rustix::fs::fcntl_getfl(backend.file.as_ref().unwrap()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
        assert_eq!(flags.contains(OFlags::DIRECT), backend.alignment() != Alignment::NONE);
    }

    #[repr(align(4096))]
    struct Page([u8; 4096]);

    #[test]
    fn an_image_of_another_size_is_left_alone() {
        let scratch = Scratch::new("size");
        fs::write(scratch.0.join("image"), [5; 8192]).unwrap();
        let error = open(&scratch.source(Some(1 << 20))).unwrap_err();
        assert!(matches!(
            error.problem,
            OpenProblem::OtherSize { actual: 8192, wanted: 0x10_0000 }
        ));
        assert_eq!(fs::read(scratch.0.join("image")).unwrap(), [5; 8192]);
    }

    #[test]
    fn an_image_that_somebody_has_is_refused_and_free_again_afterwards() {
        let scratch = Scratch::new("lock");
        let source = scratch.source(Some(1 << 20));
        let holder = open(&source).unwrap();
        assert!(matches!(open(&source).unwrap_err().problem, OpenProblem::Locked));
        drop(holder);
        drop(open(&source).unwrap());
    }

    #[test]
    fn readers_share_an_image() {
        let scratch = Scratch::new("share");
        drop(open(&scratch.source(Some(1 << 20))).unwrap());
        let source = scratch.source(None);
        let first = Backend::open(&source, true, Duration::ZERO).unwrap();
        let second = Backend::open(&source, true, Duration::ZERO).unwrap();
        assert!(first.geometry().read_only && !second.geometry().discard);
        assert!(matches!(open(&source).unwrap_err().problem, OpenProblem::Locked));
    }

    #[test]
    fn what_is_no_image_is_named_with_a_remedy() {
        let scratch = Scratch::new("nothing");
        let missing = open(&scratch.source(None)).unwrap_err();
        assert!(missing.to_string().contains("--create"), "{missing}");
        fs::write(scratch.0.join("image"), [0; 100]).unwrap();
        let tiny = open(&scratch.source(None)).unwrap_err();
        assert!(matches!(tiny.problem, OpenProblem::Tiny { bytes: 100, .. }), "{tiny}");
        let device = Source::Path { path: "/dev/null".into(), create: None, preallocate: false };
        assert!(matches!(open(&device).unwrap_err().problem, OpenProblem::NotAnImage));
    }

    #[test]
    fn larger_blocks_cut_the_end_that_they_do_not_fill() {
        let disk = Backend::null(4096 * 3 + 512, false).with_block_bytes(4096);
        assert_eq!((disk.geometry().block_bytes, disk.geometry().sectors), (4096, 24));
    }
}
