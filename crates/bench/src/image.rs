//! Images to be measured on.

use std::fs::{self, File};
use std::io::Write as _;
use std::ops::Range;
use std::path::Path;

use rustix::fs::{Mode, OFlags, SeekFrom, seek};

use crate::client::verify::Random;

/// Writes an image of pseudo-random bytes, unless one of this size is there already.
///
/// # Errors
///
/// What the file system reports.
pub fn fill_image(path: &Path, bytes: u64) -> anyhow::Result<()> {
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() == bytes) {
        return Ok(());
    }
    // Its name says that it is complete; a run that was cut short leaves another one behind.
    let partial = path.with_extension("part");
    let mut file = File::create(&partial)?;
    write_random(&mut file, bytes)?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    Ok(())
}

/// Writes pseudo-random bytes into a part of an image, from the first place on that was never
/// written.
///
/// # Errors
///
/// What the file system reports.
pub(crate) fn fill_holes(path: &Path, part: Range<u64>) -> anyhow::Result<()> {
    let mut file = File::options().write(true).open(path)?;
    if part.is_empty() {
        return Ok(());
    }
    let hole = seek(&file, SeekFrom::Hole(part.start))?;
    if hole < part.end {
        seek(&file, SeekFrom::Start(hole))?;
        write_random(&mut file, part.end - hole)?;
        file.sync_all()?;
    }
    Ok(())
}

fn write_random(file: &mut File, bytes: u64) -> anyhow::Result<()> {
    const CHUNK: usize = 1 << 20;
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

    #[test]
    fn a_part_that_was_never_written_is_filled_once_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("evenkeel-holes-{}", std::process::id()));
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        fill_holes(&path, 1 << 20..2 << 20).unwrap();
        let bytes = fs::read(&path).unwrap();
        let is_zero = |from: usize| bytes[from << 20..(from + 1) << 20].iter().all(|&b| b == 0);
        assert_eq!([0, 1, 2, 3].map(is_zero), [true, false, true, true]);
        fs::write(&path, vec![1; 4 << 20]).unwrap();
        fill_holes(&path, 1 << 20..2 << 20).unwrap();
        assert!(fs::read(&path).unwrap().iter().all(|&byte| byte == 1));
        fs::remove_file(&path).unwrap();
    }
}
