//! The host in the place of the guest: the same disk, behind a loop device, and nothing virtual.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use evenkeel_sim::d36::GuestLoad;

use super::load::{self, Beside, Forget, Loads, Workers};
use super::scene::{MovedBytes, RAISED, Scene, Stage, Until, drop_cache_of, start_x_server};
use super::{App, Scenario};
use crate::demo::launch::{self, Launched, PAUSE};
use crate::image::fill_holes;
use crate::lab::{Guest, Lab, on_host, reader};
use crate::loop_device::LoopDevice;

/// What a block device counts by in `/sys/block`, whatever its own sectors are.
const SECTOR_BYTES: f64 = 512.0;

/// A loop device, and a shell that has it mounted where nobody else sees it.
#[derive(Debug)]
pub(super) struct HostScene {
    // Dropped in this order: the device is free when nothing is mounted any more.
    guest: Guest,
    device: LoopDevice,
    image: PathBuf,
    /// What is on.
    scenario: Scenario,
}

impl HostScene {
    /// Opens the scene on an image, for at most `workers` readers and writers.
    pub(super) fn open(
        image: PathBuf,
        stage: Stage,
        workers: u64,
        scenario: &Scenario,
    ) -> Result<Self> {
        // Holes cost the device nothing.
        fill_holes(&image, load::areas(workers))
            .with_context(|| format!("cannot write {}", image.display()))?;
        let device = LoopDevice::attach(&image)?;
        ensure!(
            device.has_direct_io()?,
            "no direct I/O on {}; choose another file system by --dir",
            image.display()
        );
        let guest = on_host(&Lab::default_dir()?)?;
        let scene = Self { guest, device, image, scenario: scenario.clone() };
        if matches!(stage, Stage::Programs | Stage::Windows) {
            scene.mount_programs()?;
        }
        if stage == Stage::Windows {
            start_x_server(&scene.guest)?;
        }
        scene.set_scheduler()?;
        Ok(scene)
    }

    /// As in a guest, whose devices are the host's here.
    fn mount_programs(&self) -> Result<()> {
        self.guest.check(&format!(
            "mount -t ext4 -o ro,noload {} /mnt && mount -t tmpfs tmpfs /mnt/tmp && \
             mount -t proc proc /mnt/proc && mount --rbind /dev /mnt/dev",
            self.device.path().display()
        ))?;
        Ok(())
    }

    /// By way of none, so that the same scheduler begins afresh.
    fn set_scheduler(&self) -> Result<()> {
        self.device.set_scheduler("none")?;
        self.device.set_scheduler(&self.scenario.guest_scheduler)
    }

    fn drop_caches(&self) -> Result<()> {
        drop_cache_of(&self.image)?;
        self.guest.check("echo 3 >/proc/sys/vm/drop_caches").map(drop)
    }
}

impl Scene for HostScene {
    fn switch(&mut self, scenario: &Scenario) -> Result<()> {
        let is_other = self.scenario.guest_scheduler != scenario.guest_scheduler;
        self.scenario = scenario.clone();
        if is_other { self.set_scheduler() } else { Ok(()) }
    }

    fn rest(&mut self) -> Result<()> {
        if self.scenario.guest_load.writers > 0 {
            File::open(self.device.path())?.sync_all()?;
        }
        Ok(())
    }

    fn start_loads(&self, until: Until) -> Result<Loads<'_>> {
        self.drop_caches()?;
        let load = self.scenario.guest_load;
        let forget = Forget::start(self.device.path(), load.readers)?;
        let guest = Workers::start(&self.guest, &self.device.path().display().to_string(), load)?;
        if load != GuestLoad::NONE && until == Until::Settled {
            guest.wait_until_under_way()?;
            let began = Instant::now();
            thread::sleep(reader::SETTLE);
            if self.scenario.guest_scheduler == "bfq" {
                thread::sleep(RAISED.saturating_sub(began.elapsed()));
            }
        }
        Ok(Loads { guest, beside: Beside::start(GuestLoad::NONE, &[]), forget: Some(forget) })
    }

    fn launch(&self, app: &App) -> Result<Launched> {
        thread::sleep(PAUSE);
        drop_cache_of(&self.image)?;
        launch::run(&self.guest, "", &app.launch()).with_context(|| app.to_string())
    }

    fn moved_bytes(&self) -> Result<MovedBytes> {
        let file = self.device.stat()?;
        let text = fs::read_to_string(&file)?;
        let sectors = moved_sectors(&text);
        let sectors = sectors.with_context(|| format!("odd figures in {}", file.display()))?;
        Ok(MovedBytes { guest: sectors * SECTOR_BYTES, beside: 0.0 })
    }

    fn close(self: Box<Self>) -> Result<()> {
        let Self { guest, device, .. } = *self;
        guest.kill()?;
        device.detach()
    }
}

/// Returns how many sectors a block device has read and written.
///
/// Source: Linux, `Documentation/block/stat.rst`.
fn moved_sectors(stat: &str) -> Option<f64> {
    let mut fields = stat.split_ascii_whitespace();
    let (read, written) = (fields.nth(2)?, fields.nth(3)?);
    Some(read.parse::<f64>().ok()? + written.parse::<f64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_device_has_moved_is_what_it_has_read_and_written() {
        let stat = "  100  2  800  30  7  0  56  9  0  11  40  0  0  0  0  0  0\n";
        assert_eq!(moved_sectors(stat), Some(856.0));
        for wrong in ["", "1 2 3", "1 2 x 4 5 6 7"] {
            assert_eq!(moved_sectors(wrong), None, "{wrong}");
        }
    }
}
