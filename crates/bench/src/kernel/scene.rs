//! The guest, its disk, and the jobs that every scheduler gets.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::fio::{self, Reader};
use super::metric::{Metric, Sample};
use super::{Contestant, Options};
use crate::demo::images;
use crate::demo::launch::{self, PAUSE};
use crate::lab::{Guest, Lab};
use crate::process::{DiskSpec, PoolSpec, Server};

/// The daemon and its guest, which stays up while the daemon is restarted.
#[derive(Debug)]
pub(super) struct Scene {
    evenkeel: PathBuf,
    dir: PathBuf,
    image: PathBuf,
    model: String,
    server: Server,
    guest: Guest,
}

impl Scene {
    pub(super) fn open(lab: &Lab, options: &Options, dir: &Path) -> Result<Self> {
        let image = images::prepare_application(dir, lab.guest_program(), DISK_BYTES)?;
        let pool = pool(&image, &options.model, "noop", true);
        let server = Server::evenkeel(&options.evenkeel, dir, &pool)?;
        let builder = lab.guest().name("kernel").memory_mib(512).cpus(2);
        let guest = builder.disk(server.socket(0), 2).boot()?;
        guest.check("modprobe -a bfq && mount -o ro,noload /dev/vda /mnt")?;
        Ok(Self {
            evenkeel: options.evenkeel.clone(),
            dir: dir.to_owned(),
            image,
            model: options.model.clone(),
            server,
            guest,
        })
    }

    /// Returns the release of the guest's kernel.
    pub(super) fn kernel(&self) -> Result<String> {
        self.guest.check("uname -r")
    }

    /// Runs every job with one scheduler; `add` takes what was measured.
    pub(super) fn measure(
        &mut self,
        contestant: Contestant,
        options: &Options,
        say: &mut dyn FnMut(&str),
        add: &mut dyn FnMut(Sample),
    ) -> Result<()> {
        say("starting the application");
        self.switch(contestant, true)?;
        self.starts(contestant, options, say, add)?;
        self.switch(contestant, false)?;
        for number in 1..=options.repetitions {
            say(&format!("readers, {number} of {}", options.repetitions));
            for sequential in [true, false] {
                let readers = fio::weighted(sequential);
                let rates = self.read(&readers, options.seconds)?;
                Metric::of_shares(sequential, &rates).into_iter().for_each(&mut *add);
            }
            let rates = self.read(&fio::mixed(), options.seconds)?;
            Metric::of_mixture(&rates).into_iter().for_each(&mut *add);
        }
        Ok(())
    }

    pub(super) fn close(mut self) -> Result<()> {
        self.guest.check("umount /mnt")?;
        self.guest.poweroff()?;
        self.server.terminate().map(drop)
    }

    /// Gives the device to another scheduler, on a fresh daemon.
    fn switch(&mut self, contestant: Contestant, low_latency: bool) -> Result<()> {
        self.server.terminate()?;
        let pool = pool(&self.image, &self.model, contestant.host, low_latency);
        self.server = Server::evenkeel(&self.evenkeel, &self.dir, &pool)?;
        let turns = if self.model.starts_with("hdd") { 1 } else { 0 };
        // By way of none, so that the same scheduler begins afresh. Reading returns when the disk
        // answers again. BFQ takes the first guess of the disk's speed from `rotational`.
        let mut script = format!(
            "cd /sys/block/vda/queue && echo none >scheduler && echo {turns} >rotational && \
             echo {} >scheduler && dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct",
            contestant.guest
        );
        if contestant.guest == "bfq" {
            let value = u8::from(low_latency);
            script.push_str(&format!(" && echo {value} >iosched/low_latency"));
        }
        self.guest.check(&script).map(drop)
    }

    /// Starts the application on the idle disk, then beside readers.
    fn starts(
        &self,
        contestant: Contestant,
        options: &Options,
        say: &mut dyn FnMut(&str),
        add: &mut dyn FnMut(Sample),
    ) -> Result<()> {
        let mut idle = 0.0;
        for _ in 0..options.repetitions {
            let seconds = self.start("")?;
            idle += seconds / f64::from(options.repetitions);
            add((Metric::StartIdle, seconds));
        }
        let command = fio::command("/dev/vda", &fio::mixed(), 0, ENDLESS_SECONDS);
        let readers = self.guest.spawn(&command)?;
        // BFQ takes the readers for starting programs too, for up to 25 s.
        thread::sleep(if contestant.is_bfq() { LONGEST_RAISE } else { SETTLE });
        for (metric, ratio, through) in [
            (Metric::StartPlain, Metric::StartPlainRatio, ""),
            (Metric::StartPreferred, Metric::StartPreferredRatio, "ionice -c2 -n0"),
        ] {
            if metric == Metric::StartPreferred && !contestant.is_bfq() {
                continue;
            }
            for number in 1..=options.repetitions {
                let seconds = self.start(through)?;
                say(&format!("{metric}, start {number}: {seconds:.2} s"));
                add((metric, seconds));
                add((ratio, seconds / idle));
            }
        }
        self.guest.check("killall -INT fio")?;
        let output = readers.wait(Duration::from_secs(60))?;
        let rates = fio::rates(&output.text(), fio::mixed().len())?;
        add((Metric::StartReaders, rates.iter().sum()));
        Ok(())
    }

    fn start(&self, through: &str) -> Result<f64> {
        thread::sleep(PAUSE);
        Ok(launch::start(&self.guest, through)?.ms() / 1e3)
    }

    fn read(&self, readers: &[Reader], seconds: u32) -> Result<Vec<f64>> {
        let command = fio::command("/dev/vda", readers, RAMP_SECONDS, seconds);
        let limit = Duration::from_secs(u64::from(RAMP_SECONDS + seconds) + 60);
        let output = self.guest.check_within(limit, &command)?;
        fio::rates(&output, readers.len())
            .with_context(|| format!("log of the server:\n{}", self.server.log_tail()))
    }
}

fn pool(image: &Path, model: &str, scheduler: &str, low_latency: bool) -> PoolSpec {
    PoolSpec {
        scheduler: scheduler.to_owned(),
        model: Some(model.to_owned()),
        low_latency: (scheduler == "bfq").then_some(low_latency),
        settings: Vec::new(),
        disks: vec![DiskSpec {
            name: "vm".to_owned(),
            source: image.display().to_string(),
            weight: 100,
            create_bytes: None,
        }],
    }
}

/// Most of the modelled disk: readers are far from one another and from the application.
const DISK_BYTES: u64 = 40 << 30;
/// Until the readers are in full swing.
const RAMP_SECONDS: u32 = 2;
/// The same where nothing is counted but starts.
const SETTLE: Duration = Duration::from_secs(3);
/// The longest time for which BFQ raises a queue as interactive.
const LONGEST_RAISE: Duration = Duration::from_secs(26);
/// Readers beside the starts are told to end.
const ENDLESS_SECONDS: u32 = 3600;
