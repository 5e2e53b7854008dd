//! Where files lie.

use crate::world::File;

const MIB: u64 = 2048;
/// The guest's system: the applications' files lie here.
const SYSTEM: u64 = 1536 * MIB;
/// A file of a reader or writer: larger than the memory for files, so that nobody finds in it what
/// he read a round ago.
const FILE: u64 = 448 * MIB;
/// Where the guest's disk begins on the device.
const IMAGE: u64 = 256 * MIB;
/// Most readers and writers in the guest.
const GUEST_FILES: u64 = 7;

/// The files of the experiments: the guest's disk with its system and the files of its loads, and
/// behind it those of the host. All of it fits on the smallest device, of 8 GB.
#[derive(Clone, Copy, Debug)]
pub struct Layout;

impl Layout {
    /// Returns where the guest's disk lies on the device.
    #[must_use]
    pub const fn image() -> File {
        File { start: IMAGE, sectors: SYSTEM + GUEST_FILES * FILE }
    }

    /// Returns where the guest's system lies on its disk.
    #[must_use]
    pub const fn system() -> File {
        File { start: 0, sectors: SYSTEM }
    }

    /// Returns where the file number `index` of the guest's load lies on its disk.
    ///
    /// # Panics
    ///
    /// Panics if `index` is not below 7.
    #[must_use]
    pub fn guest_file(index: u64) -> File {
        assert!(index < GUEST_FILES, "loads have seven files at most");
        File { start: SYSTEM + index * FILE, sectors: FILE }
    }

    /// Returns where the file number `index` of the host's load lies on the device.
    #[must_use]
    pub const fn host_file(index: u64) -> File {
        let image = Self::image();
        // What lies behind the image belongs to the host; a gap keeps requests apart.
        File { start: image.start + image.sectors + MIB + index * FILE, sectors: FILE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_fits_on_the_smallest_device() {
        let last = Layout::host_file(4);
        assert!((last.start + last.sectors) * 512 < 8_000_000_000);
        let guest = Layout::guest_file(6);
        assert_eq!(guest.start + guest.sectors, Layout::image().sectors);
    }
}
