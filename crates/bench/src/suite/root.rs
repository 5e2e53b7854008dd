//! The guest's disk: programs of Debian packages in a file system, and room for loads behind it.
//!
//! Packages are fetched with their dependencies and unpacked below a directory, none is installed,
//! so neither this machine's packages nor its configuration change.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use super::load::DISK_BYTES;
use crate::demo::images::Tree;
use crate::lab::find_program;

/// What every guest disk has.
const BASE: &[&str] = &["bash", "coreutils", "dash", "python3", "util-linux"];
/// What those for programs with windows have as well.
const X: &[&str] = &["xterm", "xvfb"];
/// To be raised when the recipe changes.
const VERSION: u32 = 1;

/// Returns the disk's image below `dir`, made by the first call: tens of seconds, and about
/// 100 MB of packages.
pub(super) fn prepare(dir: &Path, with_x: bool, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let name = name(with_x);
    let image = image_path(dir, with_x);
    if image.exists() {
        return Ok(image);
    }
    let mut packages = BASE.to_vec();
    if with_x {
        packages.extend_from_slice(X);
    }
    say(&format!("fetching {} and what they need", packages.join(", ")));
    let cache = dir.join(format!("packages-{name}"));
    let archives = download(&cache, &packages)?;
    say(&format!("unpacking {} packages into {}", archives.len(), image.display()));
    let tree = Tree::new(dir, name)?;
    merged_usr(tree.path())?;
    for archive in &archives {
        unpack(archive, tree.path())?;
    }
    for place in ["dev", "mnt", "proc", "sys", "tmp"] {
        fs::create_dir_all(tree.path().join(place))?;
    }
    tree.image(&image, DISK_BYTES)?;
    fs::remove_dir_all(&cache)?;
    Ok(image)
}

/// Returns where the guest's disk is looked for below `dir`, with programs for windows or without;
/// one of [`DISK_BYTES`] that was made by other means may be put there, with an ext4 file system at
/// its beginning.
#[must_use]
pub fn image_path(dir: &Path, with_x: bool) -> PathBuf {
    dir.join(format!("root-{}-{VERSION}.img", name(with_x)))
}

fn name(with_x: bool) -> &'static str {
    if with_x { "x" } else { "base" }
}

/// Returns a disk without programs, for loads alone.
pub(super) fn prepare_empty(dir: &Path) -> Result<PathBuf> {
    let image = dir.join("empty.img");
    let file = fs::File::options().create(true).append(true).open(&image)?;
    file.set_len(DISK_BYTES)?;
    Ok(image)
}

/// Fetches packages with all that they depend on, as if nothing were installed.
fn download(cache: &Path, packages: &[&str]) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(cache.join("archives/partial"))?;
    let nothing = cache.join("status");
    fs::write(&nothing, "")?;
    let mut apt = Command::new(find_program("apt-get")?);
    apt.arg("-o").arg(format!("Dir::State::status={}", nothing.display()));
    apt.arg("-o").arg(format!("Dir::Cache={}", cache.display()));
    apt.args(["-o", "Debug::NoLocking=true", "-qq", "-y", "--no-install-recommends"]);
    apt.args(["--download-only", "install"]).args(packages);
    let output = apt.output()?;
    if !output.status.success() {
        bail!(
            "apt-get cannot fetch {}: {}; if its lists are empty or old, run apt-get update",
            packages.join(", "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    let mut archives = Vec::new();
    for entry in fs::read_dir(cache.join("archives"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "deb") {
            archives.push(path);
        }
    }
    archives.sort();
    ensure!(!archives.is_empty(), "apt-get has fetched nothing");
    Ok(archives)
}

/// Makes `/bin` and its like links below `/usr`, as they are on an installed system.
fn merged_usr(tree: &Path) -> Result<()> {
    for name in ["bin", "lib", "lib64", "sbin"] {
        fs::create_dir_all(tree.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), tree.join(name))?;
    }
    Ok(())
}

fn unpack(archive: &Path, tree: &Path) -> Result<()> {
    let mut deb = Command::new(find_program("dpkg-deb")?);
    let mut deb = deb.arg("--fsys-tarfile").arg(archive).stdout(Stdio::piped()).spawn()?;
    let contents = deb.stdout.take().context("no pipe")?;
    let mut tar = Command::new(find_program("tar")?);
    tar.args(["-x", "--keep-directory-symlink", "--no-same-owner", "-C"]).arg(tree);
    let unpacked = tar.stdin(contents).status()?;
    let read = deb.wait()?;
    ensure!(unpacked.success() && read.success(), "cannot unpack {}", archive.display());
    Ok(())
}
