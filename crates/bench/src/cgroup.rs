//! Control groups, by which the kernel's BFQ weighs processes.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Where systems have the hierarchy of version 2, and of version 1 that of block devices.
const UNIFIED: &str = "/sys/fs/cgroup";
const BLKIO: &str = "/sys/fs/cgroup/blkio";

/// A control group with a weight for BFQ; removed when dropped, by when its processes must be gone.
#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Returns whether this system has control groups for block devices.
    pub(crate) fn is_there() -> bool {
        hierarchy().is_some()
    }

    /// Makes a group.
    pub(crate) fn new(name: &str, weight: u32) -> Result<Self> {
        let (root, field) = hierarchy().context("no control groups for block devices here")?;
        if field == "io.bfq.weight" {
            let file = root.join("cgroup.subtree_control");
            fs::write(&file, "+io").with_context(|| format!("cannot write {}", file.display()))?;
        }
        let path = root.join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let group = Self { path };
        let file = group.path.join(field);
        fs::write(&file, weight.to_string())
            .with_context(|| format!("cannot write {}; is BFQ at work?", file.display()))?;
        Ok(group)
    }

    /// Takes a process in, with all its threads.
    pub(crate) fn add(&self, pid: u32) -> Result<()> {
        let file = self.path.join("cgroup.procs");
        fs::write(&file, pid.to_string())
            .with_context(|| format!("cannot write {}", file.display()))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Ignored: an empty group costs nothing, and the next run has another name for its own.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Returns the root of the hierarchy that block devices are in, and the field of BFQ's weight.
fn hierarchy() -> Option<(&'static Path, &'static str)> {
    let controllers = fs::read_to_string(Path::new(UNIFIED).join("cgroup.controllers"));
    if controllers.is_ok_and(|names| names.split_whitespace().any(|name| name == "io")) {
        return Some((Path::new(UNIFIED), "io.bfq.weight"));
    }
    let is_there = Path::new(BLKIO).join("cgroup.procs").exists();
    is_there.then_some((Path::new(BLKIO), "blkio.bfq.weight"))
}
