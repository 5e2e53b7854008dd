//! A loop device, which gives a file one of the kernel's schedulers.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::lab::find_program;

/// How long the last user of a device may take to let go of it: what it has written has to be on
/// the disk.
const PATIENCE: Duration = Duration::from_secs(30);

/// A loop device with direct I/O on its file; detached when dropped, or, if this process is killed,
/// by the kernel.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    path: PathBuf,
    image: PathBuf,
    /// Open for as long as the device is to stay.
    file: Option<File>,
}

impl LoopDevice {
    /// Returns whether the kernel has loop devices and this scheduler for them.
    pub(crate) fn offers(scheduler: &str) -> bool {
        let known = fs::read_to_string("/sys/block/loop0/queue/scheduler").unwrap_or_default();
        known.split_whitespace().any(|name| name.trim_matches(['[', ']']) == scheduler)
    }

    pub(crate) fn attach(image: &Path) -> Result<Self> {
        let image = image.canonicalize()?;
        let mut losetup = Command::new(find_program("losetup")?);
        losetup.args(["--find", "--show", "--direct-io=on"]).arg(&image);
        let output = losetup.output().context("losetup")?;
        if !output.status.success() {
            bail!("losetup: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let path = String::from_utf8(output.stdout)?.trim().into();
        let mut device = Self { path, image, file: None };
        device.file = Some(File::open(&device.path)?);
        // The kernel does that when the last user has closed it, however he ends.
        device.ask_to_detach();
        Ok(device)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it reads past the cache of its file, which it does where the file can.
    pub(crate) fn has_direct_io(&self) -> Result<bool> {
        Ok(fs::read_to_string(self.block()?.join("loop/dio"))?.trim() == "1")
    }

    /// Returns the file in which the kernel counts what the device does.
    pub(crate) fn stat(&self) -> Result<PathBuf> {
        Ok(self.block()?.join("stat"))
    }

    pub(crate) fn set_scheduler(&self, name: &str) -> Result<()> {
        let file = self.block()?.join("queue/scheduler");
        fs::write(&file, name).with_context(|| {
            let known = fs::read_to_string(&file).unwrap_or_default();
            format!("this kernel has no scheduler {name} for loop devices, but {}", known.trim())
        })
    }

    /// Sets a tunable of the scheduler.
    pub(crate) fn tune(&self, name: &str, value: &str) -> Result<()> {
        let file = self.block()?.join("queue/iosched").join(name);
        fs::write(&file, value).with_context(|| format!("cannot write {}", file.display()))
    }

    /// Detaches it, and waits until that is done.
    ///
    /// # Errors
    ///
    /// Somebody still uses it.
    pub(crate) fn detach(mut self) -> Result<()> {
        ensure!(self.let_go(), "{} is still in use", self.path.display());
        Ok(())
    }

    /// Returns whether it is detached then.
    fn let_go(&mut self) -> bool {
        drop(self.file.take());
        let end = Instant::now() + PATIENCE;
        while self.is_attached() {
            if Instant::now() >= end {
                return false;
            }
            self.ask_to_detach();
            thread::sleep(Duration::from_millis(10));
        }
        true
    }

    /// By its file: another process may have its number by now.
    fn is_attached(&self) -> bool {
        let file = self.block().map(|block| block.join("loop/backing_file"));
        let backing = file.ok().and_then(|file| fs::read_to_string(file).ok());
        backing.is_some_and(|backing| Path::new(backing.trim_end()) == self.image)
    }

    fn ask_to_detach(&self) {
        // Ignored: who needs to know looks whether it is attached.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).output();
    }

    fn block(&self) -> Result<PathBuf> {
        let device = self.path.file_name().context("a loop device has a name")?;
        Ok(Path::new("/sys/block").join(device))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        self.let_go();
    }
}
