//! Builds what a guest boots from: busybox, kernel modules, tools with their libraries, our agent.
//!
//! The result is one file below the lab's directory, named after a hash of everything that went
//! into it; it is built once and reused until an ingredient changes.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};

use super::archive::Archive;

/// The guest's own program; the lab compiles it into one static file.
const GUEST_SOURCE: &str = include_str!("guest/main.rs");
/// The guest's first process.
const INIT_SCRIPT: &str = include_str!("guest/init.sh");

/// How long a file stays that nobody uses.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// Programs that every guest has beside busybox.
const TOOLS: &[&str] = &["mkfs.ext4", "e2fsck", "debugfs"];

/// The files of a lab from which guests boot.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    pub(super) kernel: PathBuf,
    pub(super) initramfs: PathBuf,
    /// The static guest program, also the application that the demo starts.
    pub(super) program: PathBuf,
}

impl Boot {
    /// Builds what is missing below `dir`, where `scripts/setup.sh` has put a kernel.
    ///
    /// `extra` names further programs of this machine to take along, such as `fio`.
    pub(super) fn prepare(dir: &Path, extra: &[&str]) -> Result<Self> {
        let kernel = dir.join("kernel/vmlinuz");
        let version = fs::read_to_string(dir.join("kernel/version"))
            .with_context(|| format!("no guest kernel in {}; run `make setup`", dir.display()))?;
        let program = guest_program(dir)?;
        let mut tools = Vec::new();
        for name in ["busybox"].iter().chain(TOOLS).chain(extra) {
            tools.push(find_program(name)?);
        }
        let mut recipe = format!("{version}{INIT_SCRIPT}{GUEST_SOURCE}");
        for tool in &tools {
            let meta = fs::metadata(tool)?;
            write!(recipe, "{} {} {:?};", tool.display(), meta.len(), meta.modified()?)?;
        }
        let initramfs = dir.join(format!("initramfs-{:016x}.cpio", fnv1a(recipe.as_bytes())));
        if !initramfs.exists() {
            let part = unfinished(&initramfs);
            write_initramfs(&part, dir, version.trim(), &program, &tools)?;
            fs::rename(&part, &initramfs)?;
        }
        let now = SystemTime::now();
        for used in [&initramfs, &program] {
            File::options().append(true).open(used)?.set_modified(now)?;
        }
        prune(dir, now)?;
        Ok(Self { kernel, initramfs, program })
    }
}

/// Removes what no guest has booted from for a day: each file is tens of megabytes.
///
/// The time of a file is that of its last use, so that labs with other recipes, which may be at
/// work in the same directory, keep theirs.
fn prune(dir: &Path, now: SystemTime) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !(name.starts_with("initramfs-") || name.starts_with("guest-")) {
            continue;
        }
        // Another process may prune as well, and be faster.
        let Ok(used) = entry.metadata().and_then(|meta| meta.modified()) else { continue };
        if now.duration_since(used).is_ok_and(|age| age > KEPT) {
            let _gone = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Writes the archive; busybox comes first among the tools and gets no libraries.
fn write_initramfs(
    path: &Path,
    dir: &Path,
    version: &str,
    program: &Path,
    tools: &[PathBuf],
) -> Result<()> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    archive.device("/dev/console", 5, 1)?;
    archive.file("/init", true, INIT_SCRIPT.as_bytes())?;
    archive.copy("/bin/guest", program)?;
    archive.copy("/bin/busybox", &tools[0])?;
    archive.link("/bin/sh", "busybox")?;
    let modules = format!("lib/modules/{version}");
    copy_tree(&mut archive, &dir.join("kernel").join(&modules), &format!("/{modules}"))?;
    let mut libraries = BTreeSet::new();
    for tool in &tools[1..] {
        let name = tool.file_name().context("a program has a name")?.to_string_lossy();
        archive.copy(&format!("/usr/sbin/{name}"), tool)?;
        libraries.extend(libraries_of(tool)?);
    }
    for library in libraries {
        archive.copy(&library, Path::new(&library))?;
    }
    archive.finish()?.into_inner()?.sync_all()?;
    Ok(())
}

fn copy_tree<W: std::io::Write>(archive: &mut Archive<W>, from: &Path, to: &str) -> Result<()> {
    let listing = fs::read_dir(from).with_context(|| format!("no {}", from.display()))?;
    let mut entries = listing.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let target = format!("{to}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            copy_tree(archive, &entry.path(), &target)?;
        } else {
            archive.copy(&target, &entry.path())?;
        }
    }
    Ok(())
}

/// Returns the shared libraries that a program needs, loader included, as absolute paths.
fn libraries_of(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("ldd").arg(program).output().context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("not found") {
        bail!("{} lacks a library:\n{text}", program.display());
    }
    let words = text.lines().filter_map(|line| {
        // "libc.so.6 => /lib/.../libc.so.6 (0x...)" or "/lib64/ld-linux-x86-64.so.2 (0x...)"
        line.split_whitespace().find(|word| word.starts_with('/')).map(str::to_owned)
    });
    Ok(words.collect())
}

/// Compiles the guest's program unless this very source has been compiled already.
pub(super) fn guest_program(dir: &Path) -> Result<PathBuf> {
    let path = dir.join(format!("guest-{:016x}", fnv1a(GUEST_SOURCE.as_bytes())));
    if path.exists() {
        return Ok(path);
    }
    let source = unfinished(&path.with_extension("rs"));
    let part = unfinished(&path);
    fs::write(&source, GUEST_SOURCE)?;
    let output = Command::new("rustc")
        .args(["--edition", "2024", "--crate-name", "guest", "-O", "-C", "panic=abort"])
        .args(["-C", "target-feature=+crt-static", "-C", "strip=symbols", "-o"])
        .args([&part, &source])
        .output()
        .context("cannot run rustc for the guest's program")?;
    if !output.status.success() {
        bail!("the guest's program: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::remove_file(&source)?;
    fs::rename(&part, &path)?;
    Ok(path)
}

/// A name beside `path` that no other process uses, to be renamed when complete. It adds no dot, up to
/// which rustc takes it for the name of its own temporary files.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!("-{}-part", std::process::id()));
    name.into()
}

/// Finds a program on the search path or where only root's path looks.
pub(crate) fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"])
        .map(|dir| Path::new(dir).join(name))
        .find(|candidate| candidate.is_file())
        .with_context(|| format!("{name} is missing; run `make setup`"))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_compile_at_the_same_time_share_no_temporary_files() {
        let part = unfinished(Path::new("lab/guest-1"));
        assert_eq!(part.file_stem(), part.file_name(), "rustc would cut off the rest");
        assert!(part.display().to_string().contains(&std::process::id().to_string()));
    }

    #[test]
    fn only_what_was_not_used_for_a_day_is_removed() {
        let dir = std::env::temp_dir().join(format!("evenkeel-prune-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let now = SystemTime::now();
        let hours = |hours: u64| now - Duration::from_secs(hours * 3600);
        let files = [
            ("initramfs-1.cpio", hours(23)),
            ("initramfs-2.cpio", hours(25)),
            ("guest-3", hours(25)),
            ("guest-3-7-part", hours(1)),
            ("kernel", hours(25)),
        ];
        for (name, used) in files {
            File::create(dir.join(name)).unwrap().set_modified(used).unwrap();
        }
        prune(&dir, now).unwrap();
        let left: BTreeSet<_> =
            fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["guest-3-7-part", "initramfs-1.cpio", "kernel"].map(Into::into).into());
        fs::remove_dir_all(&dir).unwrap();
    }
}
