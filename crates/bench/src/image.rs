//! Images to be measured on.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::client::verify::Random;

/// Writes an image of pseudo-random bytes, unless one of this size is there already.
///
/// # Errors
///
/// What the file system reports.
pub fn fill_image(path: &Path, bytes: u64) -> anyhow::Result<()> {
    const CHUNK: usize = 1 << 20;
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes) {
        return Ok(());
    }
    // Its name says that it is complete; a run that was cut short leaves another one behind.
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    let mut random = Random::new(bytes);
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&random.below(u64::MAX).to_le_bytes());
        }
        let len = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
        file.write_all(&chunk[..len])?;
        left -= len as u64;
    }
    file.sync_all()?;
    fs::rename(&partial, path)?;
    Ok(())
}

/// Returns whether files in `dir` can be opened past the page cache (`O_DIRECT`). Linux refuses
/// that at the opening of a file, where a file system lacks it: tmpfs had it not before 6.6.
///
/// # Errors
///
/// What the file system reports about anything but that.
pub fn has_direct_io(dir: &Path) -> std::io::Result<bool> {
    let path = dir.join(format!("direct-{}", std::process::id()));
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open(&path, flags | OFlags::DIRECT, Mode::RUSR | Mode::WUSR);
    // Some file systems create it before they refuse.
    let _absent = fs::remove_file(&path);
    match opened {
        Ok(_file) => Ok(true),
        Err(rustix::io::Errno::INVAL) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whether_there_is_direct_io_is_found_out_without_leaving_anything_behind() {
        let dir = std::env::temp_dir().join(format!("evenkeel-direct-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert!(
            has_direct_io(&dir.join("absent"))
                .is_err_and(|error| { error.kind() == std::io::ErrorKind::NotFound })
        );
        let _either = has_direct_io(&dir).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(&dir).unwrap();
    }
}
