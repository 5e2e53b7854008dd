//! A loop device, which gives a file one of the kernel's schedulers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::lab::find_program;

/// A loop device with direct I/O on its file; detached when dropped.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Returns whether the kernel has loop devices and this scheduler for them.
    pub(crate) fn offers(scheduler: &str) -> bool {
        let known = fs::read_to_string("/sys/block/loop0/queue/scheduler").unwrap_or_default();
        known.split_whitespace().any(|name| name.trim_matches(['[', ']']) == scheduler)
    }

    pub(crate) fn attach(image: &Path) -> Result<Self> {
        let mut losetup = Command::new(find_program("losetup")?);
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(image);
        let output = losetup.output().context("losetup")?;
        if !output.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let path = String::from_utf8(output.stdout)?.trim().into();
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn set_scheduler(&self, name: &str) -> Result<()> {
        let file = self.queue()?.join("scheduler");
        fs::write(&file, name).with_context(|| {
            let known = fs::read_to_string(&file).unwrap_or_default();
            format!("this kernel has no scheduler {name} for loop devices, but {}", known.trim())
        })
    }

    /// Sets a tunable of the scheduler.
    pub(crate) fn tune(&self, name: &str, value: &str) -> Result<()> {
        let file = self.queue()?.join("iosched").join(name);
        fs::write(&file, value).with_context(|| format!("cannot write {}", file.display()))
    }

    fn queue(&self) -> Result<PathBuf> {
        let device = self.path.file_name().context("a loop device has a name")?;
        Ok(Path::new("/sys/block").join(device).join("queue"))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Ignored: it is detached with the last of its users at the latest.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).output();
    }
}
