//! The scene on which each scheduler plays: one daemon, two guests, readers, and the starts.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::images::Images;
use super::launch::{self, LIMIT, PAUSE, Run};
use super::progress::Progress;
use super::report::Row;
use crate::lab::{Daemon, Evenkeel, Guest, Job, Lab, reader};

/// The daemon and its guests. The guests stay up while the daemon changes its scheduler by a
/// restart: they reconnect, as they would after an update.
#[derive(Debug)]
pub(super) struct Scene {
    daemon: Daemon,
    /// The argument that names the scheduler which is on.
    scheduler: String,
    a: Guest,
    b: Guest,
}

impl Scene {
    pub(super) fn open(
        lab: &Lab,
        evenkeel: Evenkeel,
        images: &Images,
        arguments: [String; 2],
        progress: &Progress,
    ) -> Result<Self> {
        progress.step("starting the daemon and two guests");
        let [scheduler, model] = arguments;
        let setup = evenkeel.disk("a", &images.a).disk("b", &images.b);
        let daemon = setup.arg(&scheduler).arg(model).serve()?;
        let a = lab.guest().name("a").cpus(2).disk(daemon.socket("a"), 2).start()?;
        let b = lab.guest().name("b").cpus(1).disk(daemon.socket("b"), 1).start()?;
        for guest in [&a, &b] {
            guest.ready()?;
            // Read-only, so that no journal and no access times disturb what is measured.
            // Scheduler none: what the guest asks for first reaches the host first.
            guest.check(
                "echo none >/sys/block/vda/queue/scheduler && mount -o ro,noload /dev/vda /mnt",
            )?;
        }
        Ok(Self { daemon, scheduler, a, b })
    }

    /// Changes the scheduler, if it is another one, by a restart of the daemon.
    pub(super) fn switch(
        &mut self,
        scheduler: &str,
        model: &str,
        progress: &Progress,
    ) -> Result<()> {
        let arguments = arguments(scheduler, model);
        if arguments[0] == self.scheduler {
            return Ok(());
        }
        progress.step(&format!("{scheduler}: restarting the daemon, guests reconnect"));
        self.daemon.stop()?;
        self.daemon.set_args(&arguments.each_ref().map(String::as_str));
        self.daemon.start()?;
        [self.scheduler, _] = arguments;
        for guest in [&self.a, &self.b] {
            // Returns only when the disk answers again.
            guest.check("echo 3 >/proc/sys/vm/drop_caches; ls -R /mnt/big >/dev/null")?;
        }
        Ok(())
    }

    /// Plays the whole scene with the scheduler that is on.
    pub(super) fn measure(
        &mut self,
        scheduler: &str,
        starts: u32,
        progress: &Progress,
    ) -> Result<Row> {
        let mut idle = Vec::new();
        for number in 1..=starts {
            let (run, took) = self.start_application()?;
            progress.idle_done(took);
            progress.step(&format!("{scheduler}: idle disk, start {number} of {starts}: {run}"));
            idle.push(run);
        }
        let readers = self.start_readers()?;
        progress.step(&format!("{scheduler}: readers at work, waiting until they are settled"));
        reader::settle(scheduler == "bfq", || self.daemon.status())?;
        progress.warmed_up();
        let mut loaded = Vec::new();
        for number in 1..=starts {
            // Two failures in a row tell enough, and a third would cost another minute.
            let hopeless = loaded.len() >= 2 && loaded.iter().rev().take(2).all(Run::failed);
            let (run, took) =
                if hopeless { (Run::Skipped, Duration::ZERO) } else { self.start_application()? };
            progress.loaded_done(took);
            progress.step(&format!("{scheduler}: under load, start {number} of {starts}: {run}"));
            loaded.push(run);
        }
        let rates = self.stop_readers(readers)?;
        Ok(Row::new(scheduler, &idle, &loaded, rates))
    }

    pub(super) fn close(mut self) -> Result<()> {
        for guest in [self.a, self.b] {
            guest.check("umount /mnt")?;
            guest.poweroff()?;
        }
        self.daemon.stop()
    }

    /// Starts the application once with cold caches; returns how long that took, and the whole.
    fn start_application(&self) -> Result<(Run, Duration)> {
        let began = Instant::now();
        thread::sleep(PAUSE);
        // The other guest's readers shall find nothing in its cache either.
        self.b.check("echo 3 >/proc/sys/vm/drop_caches")?;
        let run = launch::start(&self.a, "ionice -c2 -n0")?;
        Ok((run, began.elapsed()))
    }

    fn start_readers(&self) -> Result<Vec<(Job<'_>, Kind)>> {
        self.a.check("rm -f /tmp/stop")?;
        self.b.check("rm -f /tmp/stop")?;
        let mut readers = Vec::new();
        for (guest, kind, script) in [
            (&self.a, Kind::Sequential, "guest read-sequential /mnt/big/0 /tmp/stop"),
            (&self.a, Kind::Random, "guest read-random /mnt/big/0 /tmp/stop 11"),
            (&self.b, Kind::Sequential, "guest read-sequential /mnt/big/0 /tmp/stop"),
            (&self.b, Kind::Sequential, "guest read-sequential /mnt/big/1 /tmp/stop"),
            (&self.b, Kind::Random, "guest read-random /mnt/big/1 /tmp/stop 13"),
        ] {
            readers.push((guest.spawn(script)?, kind));
        }
        Ok(readers)
    }

    /// Stops the readers; returns the rates of the sequential and of the random ones, summed.
    fn stop_readers(&self, readers: Vec<(Job<'_>, Kind)>) -> Result<Rates> {
        self.a.check("touch /tmp/stop")?;
        self.b.check("touch /tmp/stop")?;
        let mut rates = Rates::default();
        for (job, kind) in readers {
            let mb_s = reader::finish(&job, LIMIT)?;
            match kind {
                Kind::Sequential => rates.sequential_mb_s += mb_s,
                Kind::Random => rates.random_mb_s += mb_s,
            }
        }
        Ok(rates)
    }
}

/// What the readers got, in megabytes (10^6) per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) sequential_mb_s: f64,
    pub(super) random_mb_s: f64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Sequential,
    Random,
}

/// Returns what `evenkeel serve` is told beside the disks.
pub(super) fn arguments(scheduler: &str, model: &str) -> [String; 2] {
    [format!("--scheduler={scheduler}"), format!("--model={model}")]
}
