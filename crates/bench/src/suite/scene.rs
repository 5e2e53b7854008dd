//! What every place of measuring has: loads, starts, and what is switched between two scenarios.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use rustix::fs::{Advice, fadvise};

use super::load::Loads;
use super::{App, Scenario};
use crate::demo::launch::Launched;
use crate::lab::Guest;

/// For at most 25 s the BFQ of Linux takes who begins for a program that starts: until then he is
/// raised as the program is that is measured beside him. The rest is to spare.
pub(super) const RAISED: Duration = Duration::from_secs(30);

/// What is needed before something is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stage {
    /// The disk as it is.
    Disk,
    /// The same, and the right to soft real time.
    Film,
    /// The programs on it.
    Programs,
    /// An X server as well.
    Windows,
}

/// For how long loads run before something is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Until {
    /// All that they do is measured: what they get ahead as they begin, and what they give back for
    /// it afterwards.
    Begun,
    /// They are in full swing, and nobody takes them for programs that start.
    Settled,
}

/// Something to measure in.
pub(super) trait Scene {
    /// Turns to another scenario; its loads are not started yet.
    fn switch(&mut self, scenario: &Scenario) -> Result<()>;

    /// Has written what writers have left in memory: it would go on through whatever is measured
    /// next.
    fn rest(&mut self) -> Result<()>;

    /// Starts all loads, with cold caches.
    fn start_loads(&self, until: Until) -> Result<Loads<'_>>;

    /// Starts an application once, with cold caches.
    fn launch(&self, app: &App) -> Result<Launched>;

    /// Returns how many bytes the disks have moved since some time before.
    fn moved_bytes(&self) -> Result<MovedBytes>;

    /// Ends everything.
    fn close(self: Box<Self>) -> Result<()>;
}

/// What the application's disk has moved, and those beside it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MovedBytes {
    pub(super) guest: f64,
    pub(super) beside: f64,
}

/// Its pages are in use for as long as it runs, so dropping caches leaves it alone.
pub(super) fn start_x_server(guest: &Guest) -> Result<()> {
    guest.check(
        "mkdir -p -m 1777 /mnt/tmp/.X11-unix && \
         { chroot /mnt /usr/bin/Xvfb :7 -noreset -screen 0 1024x768x24 >/tmp/x.log 2>&1 & } ; \
         n=0; until [ -S /mnt/tmp/.X11-unix/X7 ]; do \
         n=$((n + 1)); [ $n -lt 500 ] || { cat /tmp/x.log; exit 1; }; usleep 100000; done",
    )?;
    Ok(())
}

/// Drops what the host caches of an image.
pub(super) fn drop_cache_of(image: &Path) -> Result<()> {
    Ok(fadvise(&File::open(image)?, 0, None, Advice::DontNeed)?)
}
