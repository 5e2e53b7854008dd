//! The two disk images: an application with its files, and large files to read meanwhile.
//!
//! Contents are pseudo-random, so that nothing on the way can compress or deduplicate them, and
//! the same in every run. An image is made once; its name carries a hash of the recipe.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// The images, and what the application reads at its start.
#[derive(Clone, Debug)]
pub(super) struct Images {
    pub(super) a: PathBuf,
    pub(super) b: PathBuf,
    /// Files that the application opens.
    pub(super) files: u32,
    /// Bytes in them.
    pub(super) bytes: u64,
}

/// Makes the images below `dir` unless they are there; `program` becomes the application.
pub(super) fn prepare(dir: &Path, program: &Path) -> Result<Images> {
    let application = Application::new(program)?;
    let images = Images {
        a: application.image_path(dir, "a"),
        b: application.image_path(dir, "b"),
        files: u32::try_from(application.files.len())?,
        bytes: application.bytes(),
    };
    remove_others(dir, &[&images.a, &images.b])?;
    if !images.a.exists() {
        let tree = Tree::new(dir, "a")?;
        application.write(&tree)?;
        tree.write_large("big/0", 2)?;
        tree.image(&images.a, 0)?;
    }
    if !images.b.exists() {
        let tree = Tree::new(dir, "b")?;
        tree.write_large("big/0", 3)?;
        tree.write_large("big/1", 4)?;
        tree.image(&images.b, 0)?;
    }
    Ok(images)
}

/// Makes an image with the application alone on a device of `bytes`, most of it a hole behind the
/// file system, unless it is there; returns its path.
pub(crate) fn prepare_application(dir: &Path, program: &Path, bytes: u64) -> Result<PathBuf> {
    let application = Application::new(program)?;
    let image = application.image_path(dir, &format!("application-{bytes}"));
    remove_others(dir, &[&image])?;
    if !image.exists() {
        let tree = Tree::new(dir, "application")?;
        application.write(&tree)?;
        tree.image(&image, bytes)?;
    }
    Ok(image)
}

/// The application and its files, in memory.
struct Application {
    code: Vec<u8>,
    manifest: String,
    files: Vec<(String, Vec<u8>)>,
}

impl Application {
    fn new(program: &Path) -> Result<Self> {
        let code = fs::read(program)?;
        let mut manifest = String::new();
        let mut files = Vec::new();
        let mut random = Random::new(1);
        for (directory, count, smallest, largest) in LAYOUT {
            for index in 0..*count {
                let len = smallest + random.next() % (largest - smallest);
                let content = random.bytes(usize::try_from(len)?);
                let path = format!("{directory}/{index:03}");
                writeln!(manifest, "{path} {len} {:016x}", fnv1a(&content))?;
                files.push((path, content));
            }
        }
        Ok(Self { code, manifest, files })
    }

    fn image_path(&self, dir: &Path, name: &str) -> PathBuf {
        let key = fnv1a(&self.code) ^ fnv1a(self.manifest.as_bytes()) ^ VERSION;
        dir.join(format!("{name}-{key:016x}.img"))
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, content)| u64::try_from(content.len()).unwrap_or(0)).sum()
    }

    fn write(&self, tree: &Tree) -> Result<()> {
        tree.write("app/bin/app", &self.code)?;
        make_executable(&tree.0.join("app/bin/app"))?;
        tree.write("app/manifest", self.manifest.as_bytes())?;
        for (path, content) in &self.files {
            tree.write(&format!("app/{path}"), content)?;
        }
        Ok(())
    }
}

/// Removes images of former recipes; each holds several hundred megabytes.
fn remove_others(dir: &Path, keep: &[&PathBuf]) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "img") && !keep.contains(&&path) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// A directory that becomes a file system; removed when dropped.
pub(crate) struct Tree(PathBuf);

impl Tree {
    pub(crate) fn new(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(format!("tree-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().context("files lie below the tree")?)?;
        fs::write(path, content)?;
        Ok(())
    }

    fn write_large(&self, path: &str, seed: u64) -> Result<()> {
        self.write(path, &[])?;
        let mut output = BufWriter::new(File::create(self.0.join(path))?);
        let mut random = Random::new(seed);
        for _ in 0..LARGE_MIB {
            output.write_all(&random.bytes(1 << 20))?;
        }
        Ok(output.into_inner()?.sync_all()?)
    }

    /// Makes an ext4 image of the tree under a temporary name, grows it to `bytes` if that is more
    /// than the file system, then gives it its own.
    pub(crate) fn image(&self, image: &Path, bytes: u64) -> Result<()> {
        let part = image.with_extension("part");
        let mut mkfs = Command::new(crate::lab::find_program("mkfs.ext4")?);
        mkfs.args(["-q", "-F", "-m", "0", "-E", "root_owner=0:0,lazy_itable_init=0", "-d"]);
        let output = mkfs.arg(&self.0).arg(&part).arg(IMAGE_SIZE).output()?;
        if !output.status.success() {
            bail!("mkfs.ext4: {}", String::from_utf8_lossy(&output.stderr));
        }
        let file = File::options().write(true).open(&part)?;
        file.set_len(file.metadata()?.len().max(bytes))?;
        file.sync_all()?;
        fs::rename(&part, image)?;
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Ignored: left-overs take space below target/ and nothing else.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

/// Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    const fn new(seed: u64) -> Self {
        // An odd multiplier keeps different seeds apart and none of them 0.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len.next_multiple_of(8));
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

/// The hash of the application's manifest; the guest's program has the same function.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What the application reads, in this order: directory, files, least and most bytes of each.
/// A few libraries first, one after another, then plug-ins, themes and settings by several
/// threads, as a desktop program does.
const LAYOUT: &[(&str, u32, u64, u64)] = &[
    ("lib", 4, 60 << 10, 200 << 10),
    ("plugins", 16, 8 << 10, 48 << 10),
    ("theme", 104, 1 << 10, 8 << 10),
    ("conf", 80, 200, 4 << 10),
];
/// Each large file exceeds what a guest can cache beside its programs.
const LARGE_MIB: u32 = 320;
const IMAGE_SIZE: &str = "2G";
/// To be raised when the recipe changes in a way that the manifest does not show.
const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_are_the_same_for_the_same_seed_only() {
        assert_eq!(Random::new(1).bytes(13), Random::new(1).bytes(13));
        assert_ne!(Random::new(1).bytes(13), Random::new(2).bytes(13));
    }
}
