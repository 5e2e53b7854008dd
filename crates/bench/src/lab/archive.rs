//! Writes initial RAM file systems: cpio archives of the "newc" form, without root and without cpio.
//!
//! Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// An archive that is being written; directories above each entry are made by themselves.
#[derive(Debug)]
pub(super) struct Archive<W> {
    output: W,
    directories: BTreeSet<String>,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(super) const fn new(output: W) -> Self {
        Self { output, directories: BTreeSet::new(), entries: 0 }
    }

    /// Appends a regular file. `path` is absolute inside the guest.
    pub(super) fn file(&mut self, path: &str, executable: bool, content: &[u8]) -> io::Result<()> {
        let mode = if executable { 0o100_755 } else { 0o100_644 };
        self.entry(path, mode, (0, 0), content)
    }

    /// Appends a file of this machine, with its permission to execute.
    pub(super) fn copy(&mut self, path: &str, source: &Path) -> io::Result<()> {
        let executable = fs::metadata(source)?.permissions().mode() & 0o111 != 0;
        self.file(path, executable, &fs::read(source)?)
    }

    /// Appends a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, 0o120_777, (0, 0), target.as_bytes())
    }

    /// Appends a character device node.
    pub(super) fn device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, 0o020_600, (major, minor), &[])
    }

    /// Ends the archive and hands the output back.
    pub(super) fn finish(mut self) -> io::Result<W> {
        self.record("TRAILER!!!", 0, (0, 0), &[])?;
        Ok(self.output)
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) -> io::Result<()> {
        let path = path.trim_start_matches('/');
        for (end, _) in path.match_indices('/') {
            if self.directories.insert(path[..end].to_owned()) {
                self.record(&path[..end], 0o040_755, (0, 0), &[])?;
            }
        }
        self.record(path, mode, device, data)
    }

    fn record(&mut self, name: &str, mode: u32, rdev: (u32, u32), data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len()).map_err(io::Error::other)?;
        let name_size = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
        self.entries += 1;
        write!(self.output, "070701")?;
        // inode, mode, uid, gid, links, time, size, device (2), device node (2), name, checksum
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, rdev.0, rdev.1, name_size, 0_u32];
        for field in fields {
            write!(self.output, "{field:08x}")?;
        }
        self.output.write_all(name.as_bytes())?;
        self.output.write_all(&[0])?;
        self.pad(110 + name.len() + 1)?;
        self.output.write_all(data)?;
        self.pad(data.len())
    }

    fn pad(&mut self, len: usize) -> io::Result<()> {
        self.output.write_all(&[0; 3][..len.next_multiple_of(4) - len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_their_files_and_only_once() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/b/c", false, b"12345").unwrap();
        archive.file("/a/b/d", true, b"").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8(bytes).unwrap();
        let names: Vec<_> = text.split("070701").skip(1).map(|r| &r[104..]).collect();
        let first: Vec<_> = names.iter().map(|n| n.split('\0').next().unwrap()).collect();
        assert_eq!(first, ["a", "a/b", "a/b/c", "a/b/d", "TRAILER!!!"]);
        assert!(names[2].contains("12345"));
    }
}
