//! The guest lab: real Linux guests under QEMU, made from Debian packages, driven by programs.
//!
//! Think of it as a workbench with a drawer of small computers: take one out, plug disks in, tell
//! it what to run, read the answer, and pull the plug if that is what the experiment asks for.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use evenkeel_bench::lab::{Evenkeel, Lab};
//!
//! let lab = Lab::prepare(&Lab::default_dir()?)?;
//! let daemon = Evenkeel::new()?.disk("web", "web.img").arg("--create=1G").serve()?;
//! let guest = lab.guest().name("web").disk(daemon.socket("web"), 1).boot()?;
//! assert_eq!(guest.run("blockdev --getsize64 /dev/vda")?.text(), "1073741824");
//! guest.poweroff()
//! # }
//! ```
//!
//! Guests run on KVM where it works and are emulated elsewhere; they have no network. Every wait
//! has a limit, and errors carry the end of the guest's console. Nothing outlives the lab's
//! process: guests and daemons are killed when dropped, and by the kernel if we are killed.

mod archive;
mod channel;
mod evenkeel;
mod guest;
mod host;
mod initramfs;
pub(crate) mod reader;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

pub use self::channel::Output;
pub use self::evenkeel::{Daemon, Evenkeel};
pub use self::guest::{Guest, GuestBuilder, Job, kvm_works};
pub(crate) use self::host::on_host;
use self::initramfs::Boot;
pub(crate) use self::initramfs::find_program;

/// A directory with a kernel and an initial RAM file system from which guests boot.
#[derive(Clone, Debug)]
pub struct Lab {
    boot: Boot,
}

impl Lab {
    /// Builds what is missing below `dir`: about a second the first time, nothing later.
    ///
    /// # Errors
    ///
    /// The guest kernel or a program is missing; the message says to run `make setup`.
    pub fn prepare(dir: &Path) -> Result<Self> {
        Self::prepare_with(dir, &[])
    }

    /// Does what [`prepare`](Self::prepare) does, for guests that also have `programs` of this
    /// machine, with their libraries, in `/usr/sbin`.
    ///
    /// # Errors
    ///
    /// As [`prepare`](Self::prepare).
    pub fn prepare_with(dir: &Path, programs: &[&str]) -> Result<Self> {
        let boot = Boot::prepare(dir, programs).context("cannot prepare the guest lab")?;
        Ok(Self { boot })
    }

    /// Returns where `scripts/setup.sh` puts the lab: `$EVENKEEL_LAB_DIR`, else `target/lab` of
    /// the checkout around the current directory.
    ///
    /// # Errors
    ///
    /// The current directory is not inside a checkout.
    pub fn default_dir() -> Result<PathBuf> {
        match std::env::var_os("EVENKEEL_LAB_DIR") {
            Some(dir) => Ok(dir.into()),
            None => Ok(checkout()?.join("target/lab")),
        }
    }

    /// Describes a new guest: one CPU, 256 MiB, no disks.
    #[must_use]
    pub fn guest(&self) -> GuestBuilder {
        GuestBuilder::new(self.boot.clone())
    }

    /// Returns the static program that guests have as `/bin/guest`.
    #[must_use]
    pub fn guest_program(&self) -> &Path {
        &self.boot.program
    }
}

/// Returns the root of the checkout around the current directory.
///
/// # Errors
///
/// The current directory is not inside one.
pub fn checkout() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    here.ancestors()
        .find(|dir| dir.join("scripts/setup.sh").is_file() && dir.join("Cargo.toml").is_file())
        .map(Path::to_owned)
        .context("not inside a checkout of Evenkeel; change into it, or set EVENKEEL_LAB_DIR")
}
