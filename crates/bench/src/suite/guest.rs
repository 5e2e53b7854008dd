//! The daemon and the guest.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use evenkeel_sim::d36::GuestLoad;

use super::load::{self, Beside, Loads, Workers};
use super::player::Film;
use super::scene::{MovedBytes, RAISED, Scene, Stage, Until, drop_cache_of, start_x_server};
use super::{App, Scenario};
use crate::demo::launch::{self, Launched, PAUSE};
use crate::image::fill_image;
use crate::lab::{Guest, Lab, reader};
use crate::process::{DiskSpec, PoolSpec, Server};

/// The disk of the guest, hence its VM.
const VM: &str = "vm";
/// That disk, as the guest calls it.
const DISK: &str = "/dev/vda";
/// Size of each disk that others read beside the guest.
const BESIDE_BYTES: u64 = 512 << 20;

/// How long a guest may take to write what is in its memory.
const PATIENCE: Duration = Duration::from_secs(120);
/// Who has been reading at random places for so long is known as one who does, where the host tells
/// streams apart.
const FAMILIAR: Duration = Duration::from_secs(20);

/// What the scene consists of.
#[derive(Clone, Debug)]
pub(super) struct Props {
    pub(super) evenkeel: PathBuf,
    /// The agent for the guest, if any scenario needs it.
    pub(super) agent: Option<PathBuf>,
    /// Where configuration, log, sockets and images are.
    pub(super) dir: PathBuf,
    /// The guest's disk.
    pub(super) image: PathBuf,
    /// What the guest needs.
    pub(super) stage: Stage,
    /// Most readers and writers beside the guest.
    pub(super) beside: u64,
}

/// A guest that stays up while the daemon below is restarted with other settings.
#[derive(Debug)]
pub(super) struct GuestScene {
    props: Props,
    server: Server,
    guest: Guest,
    /// What is on.
    scenario: Scenario,
}

impl GuestScene {
    pub(super) fn open(props: Props, scenario: &Scenario) -> Result<Self> {
        let agent = props.agent.as_ref().map(|path| path.display().to_string());
        let programs: Vec<&str> = agent.iter().map(String::as_str).collect();
        let lab = Lab::prepare_with(&Lab::default_dir()?, &programs)?;
        let server = serve(&props, scenario, true)?;
        let guest = lab.guest().name("suite").memory_mib(512).cpus(2);
        let guest = guest.disk(server.socket(0), 2).agent_port(agent_socket(&props.dir)).boot()?;
        guest.run("modprobe -a bfq kyber-iosched")?;
        // How long a program waits for its disk, where the kernel counts that (5.14).
        guest.run("echo 1 >/proc/sys/kernel/task_delayacct")?;
        let scene = Self { props, server, guest, scenario: scenario.clone() };
        if matches!(scene.props.stage, Stage::Programs | Stage::Windows) {
            scene.mount_programs()?;
        }
        if scene.props.stage == Stage::Windows {
            start_x_server(&scene.guest)?;
        }
        scene.prepare_guest(scenario)?;
        Ok(scene)
    }

    /// Read-only, so that no journal and no access times disturb what is measured.
    fn mount_programs(&self) -> Result<()> {
        self.guest.check(
            "mount -o ro,noload /dev/vda /mnt && mount -t tmpfs tmpfs /mnt/tmp && \
             mount -t proc proc /mnt/proc && mount --bind /dev /mnt/dev && mkdir -p /dev/pts && \
             mount -t devpts devpts /dev/pts && mount --bind /dev/pts /mnt/dev/pts && \
             ln -sf pts/ptmx /dev/ptmx",
        )?;
        Ok(())
    }

    fn prepare_guest(&self, scenario: &Scenario) -> Result<()> {
        let turns = u8::from(scenario.device.starts_with("hdd"));
        // By way of none, so that the same scheduler begins afresh. Reading returns when the disk
        // answers again. BFQ takes the first guess of the disk's speed from `rotational`.
        let script = format!(
            "cd /sys/block/vda/queue && echo none >scheduler && echo {turns} >rotational && \
             echo {} >scheduler && dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct",
            scenario.guest_scheduler
        );
        self.guest.check(&script)?;
        if scenario.coordination.has_agent() {
            self.guest.check(
                "evenkeel-agent serve >/tmp/agent.log 2>&1 & n=0; \
                 until evenkeel-agent status 2>/dev/null | grep -qw connected; do \
                 n=$((n + 1)); [ $n -lt 100 ] || { cat /tmp/agent.log; exit 1; }; \
                 usleep 100000; done",
            )?;
        }
        Ok(())
    }

    /// Plays a film in the guest with cold caches; returns what the player prints.
    pub(super) fn play(&self, film: Film) -> Result<String> {
        self.drop_host_caches()?;
        self.guest.check("echo 3 >/proc/sys/vm/drop_caches")?;
        let (through, period) = (self.scenario.coordination.through(), film.period());
        let length = film.pieces() * film.piece_bytes();
        let (pieces, period) = (film.pieces(), period.as_nanos());
        // The player leaves after twice that, but a single piece may take long.
        let limit = Duration::from_secs(u64::from(film.seconds) * 4 + 60);
        let script =
            format!("{through} guest play {DISK} {pieces} {period} {}:{length}", load::FILM_BYTES);
        self.guest.check_within(limit, &script)
    }

    /// Drops what the host caches of the images. The daemon reads past the cache; whoever else has
    /// touched them, such as the program that made them, did not.
    fn drop_host_caches(&self) -> Result<()> {
        let beside = (1..=self.props.beside).map(|index| beside_image(&self.props.dir, index));
        for image in beside.chain([self.props.image.clone()]).filter(|image| image.exists()) {
            drop_cache_of(&image)?;
        }
        Ok(())
    }
}

impl Scene for GuestScene {
    fn switch(&mut self, scenario: &Scenario) -> Result<()> {
        let is_other_daemon = self.scenario.daemon() != scenario.daemon();
        if is_other_daemon {
            self.guest.run("killall -q evenkeel-agent")?;
            self.server.terminate()?;
            self.server = serve(&self.props, scenario, true)?;
        }
        if is_other_daemon || self.scenario.guest_scheduler != scenario.guest_scheduler {
            self.prepare_guest(scenario)?;
        }
        self.scenario = scenario.clone();
        Ok(())
    }

    /// As fast as the image takes it: on a modelled disk that would take minutes.
    fn rest(&mut self) -> Result<()> {
        if self.scenario.guest_load.writers == 0 {
            return Ok(());
        }
        self.guest.run("killall -q evenkeel-agent")?;
        for is_modelled in [false, true] {
            self.server.terminate()?;
            self.server = serve(&self.props, &self.scenario, is_modelled)?;
            self.guest.check_within(PATIENCE, "sync")?;
        }
        self.prepare_guest(&self.scenario)
    }

    fn start_loads(&self, until: Until) -> Result<Loads<'_>> {
        self.drop_host_caches()?;
        self.guest.check("echo 3 >/proc/sys/vm/drop_caches")?;
        let Scenario { guest_load, host_load, .. } = self.scenario;
        let sockets: Vec<&Path> = (1..=self.props.beside)
            .map(|index| self.server.socket(usize::try_from(index).unwrap_or(usize::MAX)))
            .collect();
        let beside = Beside::start(host_load, &sockets);
        let guest = Workers::start(&self.guest, DISK, guest_load)?;
        let is_any = guest_load != GuestLoad::NONE || host_load != GuestLoad::NONE;
        if is_any && until == Until::Settled {
            guest.wait_until_under_way()?;
            let began = Instant::now();
            reader::settle(true, || self.server.status())?;
            let in_host = self.scenario.coordination.has_streams().then_some(FAMILIAR);
            let has_bfq = self.scenario.guest_scheduler == "bfq" && guest_load != GuestLoad::NONE;
            let in_guest = has_bfq.then_some(RAISED);
            let longest = in_host.max(in_guest).unwrap_or_default();
            thread::sleep(longest.saturating_sub(began.elapsed()));
        }
        Ok(Loads { guest, beside, forget: None })
    }

    fn launch(&self, app: &App) -> Result<Launched> {
        thread::sleep(PAUSE);
        self.drop_host_caches()?;
        let through = self.scenario.coordination.through();
        launch::run(&self.guest, through, &app.launch())
            .with_context(|| format!("{app}; log of the daemon:\n{}", self.server.log_tail()))
    }

    fn moved_bytes(&self) -> Result<MovedBytes> {
        let status = self.server.status()?;
        let disks = status["pools"][0]["disks"].as_array().context("no disks in the status")?;
        let mut moved = MovedBytes::default();
        for disk in disks {
            let bytes = disk["bytes"].as_f64().context("no bytes of a disk in the status")?;
            *(if disk["name"] == VM { &mut moved.guest } else { &mut moved.beside }) += bytes;
        }
        Ok(moved)
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        self.guest.kill()?;
        let status = self.server.terminate()?;
        ensure!(status.success(), "the daemon left with {status}");
        Ok(())
    }
}

fn beside_image(dir: &Path, index: u64) -> PathBuf {
    dir.join(format!("beside-{index}.img"))
}

fn agent_socket(dir: &Path) -> PathBuf {
    dir.join(format!("{VM}.agent.sock"))
}

/// Starts the daemon for a scenario; a disk that is not `is_modelled` has its image's own speed.
fn serve(props: &Props, scenario: &Scenario, is_modelled: bool) -> Result<Server> {
    let is_real = scenario.device == "real";
    let mut disks = vec![disk(VM, props.image.display().to_string())];
    for index in 1..=props.beside {
        let source = if is_real {
            // Written in full: holes cost the device nothing.
            fill_image(&beside_image(&props.dir, index), BESIDE_BYTES)?;
            beside_image(&props.dir, index).display().to_string()
        } else {
            format!("null:{BESIDE_BYTES}")
        };
        disks.push(disk(&format!("beside-{index}"), source));
    }
    let pool = PoolSpec {
        scheduler: scenario.scheduler.clone(),
        model: (!is_real && is_modelled).then(|| scenario.device.clone()),
        low_latency: None,
        settings: vec![
            ("trust".to_owned(), format!("\"{}\"", scenario.coordination.trust(props.stage))),
            ("streams".to_owned(), scenario.coordination.has_streams().to_string()),
            // Starts follow one another without a rest, which nobody does who works there.
            ("vms".to_owned(), format!("{{ {VM} = {{ help_seconds_per_minute = 60 }} }}")),
        ],
        disks,
    };
    Server::evenkeel(&props.evenkeel, &props.dir, &pool)
}

fn disk(name: &str, source: String) -> DiskSpec {
    DiskSpec { name: name.to_owned(), source, weight: 100, create_bytes: None }
}
