//! `evenkeel bench startup`, `throughput` and `player`: the experiments of D3.6 in real guests, and
//! without virtualization on the host.
//!
//! A guest has a load of its own, others read beside it from the same device, and either an
//! application is started again and again, or the guest's throughput is sampled, or a film played.
//! Schedulers of guest and host, the device, and what guest and host tell each other are chosen
//! freely; every combination is a scenario.
//!
//! One *single run* is a series of starts (five), or a time of load with a sample every two
//! seconds; it gives minimum, maximum, mean, deviation and confidence. Runs are repeated, and the
//! same five figures are taken of their means. A start that takes more than 60 seconds aborts its
//! run.

mod app;
mod guest;
mod host;
mod html;
mod load;
mod names;
mod place;
mod player;
mod root;
mod rows;
mod scene;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
pub use evenkeel_sim::d36::GuestLoad;

pub use self::app::App;
use self::guest::{GuestScene, Props};
use self::host::HostScene;
pub use self::load::{DISK_BYTES, parse as parse_load};
pub use self::place::Where;
pub use self::player::{Film, Player, PlayerRow, player};
pub use self::root::image_path;
pub use self::rows::{Measured, Startup, StartupRow, Throughput, ThroughputRow};
use self::scene::{Scene, Stage, Until};
use crate::demo::launch::Launched;

/// Distance between two samples of throughput.
const SAMPLE: Duration = Duration::from_secs(2);

/// What guest and host tell each other, and what the host finds out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Coordination {
    /// Nothing: the plain elevator with one queue per VM.
    Off,
    /// The guest starts the application with a better I/O priority.
    Priority,
    /// The guest's agent asks for help.
    Help,
    /// The host tells the guest's readers apart by where they read.
    Infer,
    /// Help and inference.
    All,
}

impl Coordination {
    /// Every one, from the least on.
    pub const ALL: [Self; 5] = [Self::Off, Self::Priority, Self::Help, Self::Infer, Self::All];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Priority => "priority",
            Self::Help => "help",
            Self::Infer => "infer",
            Self::All => "all",
        }
    }

    /// Returns how far the daemon trusts the guest: no further than what is measured needs.
    const fn trust(self, stage: Stage) -> &'static str {
        match (self, stage) {
            (Self::Off | Self::Infer, _) => "none",
            (Self::Priority, _) => "vm",
            (Self::Help | Self::All, Stage::Film) => "soft-real-time",
            (Self::Help | Self::All, _) => "interactive",
        }
    }

    const fn has_streams(self) -> bool {
        matches!(self, Self::Infer | Self::All)
    }

    const fn has_agent(self) -> bool {
        matches!(self, Self::Help | Self::All)
    }

    /// Returns what applications are started through.
    const fn through(self) -> &'static str {
        if matches!(self, Self::Priority) { "ionice -c2 -n0" } else { "" }
    }
}

impl fmt::Display for Coordination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Coordination {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|known| known.as_str() == name)
            .ok_or("no such coordination; there are off, priority, help, infer and all")
    }
}

/// Everything that distinguishes two measurements but the application.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Where it is measured.
    pub place: Where,
    /// A model, as `evenkeel serve --model` takes it, or `real`.
    pub device: String,
    /// What runs in the guest, or on the host.
    pub guest_load: GuestLoad,
    /// What runs beside it.
    pub host_load: GuestLoad,
    /// The guest's scheduler, or the host's, by its name in the kernel.
    pub guest_scheduler: String,
    /// Ours.
    pub scheduler: String,
    /// What they tell each other.
    pub coordination: Coordination,
}

impl Scenario {
    /// Returns what only a restart of the daemon changes.
    fn daemon(&self) -> (&str, &str, Coordination) {
        (&self.device, &self.scheduler, self.coordination)
    }

    /// Returns the same without load.
    fn idle(&self) -> Self {
        Self { guest_load: GuestLoad::NONE, host_load: GuestLoad::NONE, ..self.clone() }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, guest_load, host_load, guest_scheduler, scheduler, .. } = self;
        let coordination = self.coordination;
        if self.place == Where::Host {
            return write!(f, "{device}, on the host, {guest_load} under {guest_scheduler}");
        }
        write!(
            f,
            "{device}, guest {guest_load} under {guest_scheduler}, host {host_load} under \
             {scheduler}, coordination {coordination}"
        )
    }
}

/// What to measure: every combination of what is listed.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it is measured; [`check`](Self::check) tells what there is not on the host.
    pub place: Where,
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where images, sockets and logs go.
    pub dir: PathBuf,
    /// Devices.
    pub devices: Vec<String>,
    /// Loads in the guest.
    pub guest_loads: Vec<GuestLoad>,
    /// Loads beside it.
    pub host_loads: Vec<GuestLoad>,
    /// Schedulers of the guest.
    pub guest_schedulers: Vec<String>,
    /// Schedulers of the daemon.
    pub schedulers: Vec<String>,
    /// Coordinations.
    pub coordinations: Vec<Coordination>,
    /// Times that each single run is repeated.
    pub repeats: u32,
}

impl Options {
    /// Returns every scenario, those that share a daemon one after another.
    #[must_use]
    pub fn scenarios(&self) -> Vec<Scenario> {
        let mut scenarios = Vec::new();
        for device in &self.devices {
            for scheduler in &self.schedulers {
                for &coordination in &self.coordinations {
                    for guest_scheduler in &self.guest_schedulers {
                        for &guest_load in &self.guest_loads {
                            for &host_load in &self.host_loads {
                                scenarios.push(Scenario {
                                    place: self.place,
                                    device: device.clone(),
                                    guest_load,
                                    host_load,
                                    guest_scheduler: guest_scheduler.clone(),
                                    scheduler: scheduler.clone(),
                                    coordination,
                                });
                            }
                        }
                    }
                }
            }
        }
        scenarios
    }

    fn open(
        &self,
        stage: Stage,
        say: &mut dyn FnMut(&str),
    ) -> Result<(Box<dyn Scene>, Vec<Scenario>)> {
        if self.place == Where::Guest {
            let (scene, scenarios) = self.open_guest(stage, say)?;
            return Ok((Box::new(scene), scenarios));
        }
        self.check()?;
        ensure!(
            rustix::process::geteuid().is_root(),
            "--where host: a loop device and mounts need root; run it with sudo"
        );
        let scenarios = self.scenarios();
        let first = scenarios.first().context("nothing to measure")?;
        let image = self.image(stage, say)?;
        let workers = most_workers(&self.guest_loads);
        say("writing what readers are to read, where it is not there yet, and mounting the disk");
        let scene = HostScene::open(image, stage, workers, first)?;
        Ok((Box::new(scene), scenarios))
    }

    fn open_guest(
        &self,
        stage: Stage,
        say: &mut dyn FnMut(&str),
    ) -> Result<(GuestScene, Vec<Scenario>)> {
        let scenarios = self.scenarios();
        let first = scenarios.first().context("nothing to measure")?;
        let has_agent = self.coordinations.iter().any(|coordination| coordination.has_agent());
        let agent = if has_agent { Some(agent(&self.evenkeel)?) } else { None };
        let image = self.image(stage, say)?;
        let dir = self.dir.canonicalize()?;
        let beside = most_workers(&self.host_loads);
        let evenkeel = self.evenkeel.clone();
        say("starting the daemon and the guest");
        let scene = GuestScene::open(Props { evenkeel, agent, dir, image, stage, beside }, first)?;
        Ok((scene, scenarios))
    }

    /// Makes the disk, unless it is there.
    fn image(&self, stage: Stage, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
        std::fs::create_dir_all(&self.dir)?;
        let dir = self.dir.canonicalize()?;
        match stage {
            Stage::Disk | Stage::Film => root::prepare_empty(&dir),
            Stage::Programs => root::prepare(&dir, false, say),
            Stage::Windows => root::prepare(&dir, true, say),
        }
    }
}

/// Returns how many readers and writers the largest of some loads has.
fn most_workers(loads: &[GuestLoad]) -> u64 {
    loads.iter().map(|load| load.readers + load.writers).max().unwrap_or(0)
}

/// Finds the agent: beside the program, or one directory up, where cargo leaves it for tests.
fn agent(evenkeel: &Path) -> Result<PathBuf> {
    let mut places = evenkeel.ancestors().skip(1).take(2).map(|dir| dir.join("evenkeel-agent"));
    places
        .find(|path| path.is_file())
        .with_context(|| format!("no evenkeel-agent beside {}; run make build", evenkeel.display()))
}

/// Starts in a fresh guest that do not count. The very first one leaves behind what later ones find,
/// such as a cache of fonts; and on an emulated processor the first two or three take two thirds of
/// the time of all others, loaded or not: memory that has never held a program is cheaper there.
const SETTLING_STARTS: u32 = 3;

/// Measures the start of each application in each scenario; `runs` starts make a single run.
/// `say` is told one line at each step.
///
/// # Errors
///
/// The lab is not set up, packages cannot be fetched, a guest or the daemon fails, or an
/// application ends before it is ready; on the host as [`Options::check`], and if this is not root
/// or the kernel lacks a scheduler. A start that takes too long is no error.
pub fn startup(
    options: &Options,
    apps: &[App],
    runs: u32,
    say: &mut dyn FnMut(&str),
) -> Result<Startup> {
    ensure!(runs > 0 && options.repeats > 0 && !apps.is_empty(), "nothing to measure");
    let has_windows = apps.iter().any(App::needs_x);
    let stage = if has_windows { Stage::Windows } else { Stage::Programs };
    let (mut scene, scenarios) = options.open(stage, say)?;
    let mut rows: Vec<StartupRow> = Vec::new();
    let all = scenarios.len() * apps.len();
    for (app, time) in apps.iter().flat_map(|app| (1..=SETTLING_STARTS).map(move |n| (app, n))) {
        let run = scene.launch(app)?.run;
        say(&format!("{app}, start {time} of {SETTLING_STARTS} that do not count: {run}"));
    }
    for scenario in &scenarios {
        scene.switch(scenario)?;
        for app in apps {
            let mut tell = progress(say, rows.len() + 1, all, scenario);
            let mut row = StartupRow::new(app, scenario);
            for repeat in 1..=options.repeats {
                let mut run = |scene: &dyn Scene, what: &str| {
                    single_run(scene, app, runs, &mut |text| {
                        tell(&format!("repeat {repeat}, {what}{text}"));
                    })
                };
                // Each time anew: how fast a machine is that others use as well changes by the minute.
                scene.switch(&scenario.idle())?;
                let idle = run(&*scene, "idle, ")?;
                scene.switch(scenario)?;
                let loads = scene.start_loads(Until::Settled)?;
                let loaded = run(&*scene, "")?;
                let (guest, beside) = loads.stop()?;
                scene.rest()?;
                row.add(idle, loaded, guest + beside);
            }
            rows.push(row);
        }
    }
    scene.close()?;
    Ok(Startup { rows, runs })
}

/// Starts an application a few times; a start that takes too long ends the run.
fn single_run(
    scene: &dyn Scene,
    app: &App,
    runs: u32,
    tell: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let mut measured = Measured::default();
    for number in 1..=runs {
        let Launched { run, disk_ms } = scene.launch(app)?;
        tell(&format!("{app}, start {number} of {runs}: {run}"));
        if run.failed() {
            measured.failed = true;
            break;
        }
        measured.samples.push(run.ms());
        measured.disk_ms.extend(disk_ms);
    }
    Ok(measured)
}

/// Measures the throughput of the guest, or of the host's disk, in each scenario, for the first
/// `seconds` of its load in each single run.
///
/// # Errors
///
/// As [`startup`].
pub fn throughput(
    options: &Options,
    seconds: u32,
    say: &mut dyn FnMut(&str),
) -> Result<Throughput> {
    ensure!(seconds >= 4 && options.repeats > 0, "nothing to measure");
    let (mut scene, scenarios) = options.open(Stage::Disk, say)?;
    let mut rows = Vec::new();
    for scenario in &scenarios {
        scene.switch(scenario)?;
        let mut tell = progress(say, rows.len() + 1, scenarios.len(), scenario);
        let mut row = ThroughputRow::new(scenario);
        for repeat in 1..=options.repeats {
            let loads = scene.start_loads(Until::Begun)?;
            let (samples, beside) = sample(&*scene, seconds)?;
            loads.stop()?;
            scene.rest()?;
            let measured = Measured { samples, ..Measured::default() };
            let mean = measured.summary().map_or(0.0, |summary| summary.mean);
            tell(&format!("repeat {repeat}: {mean:.2} MB/s"));
            row.add(measured, beside);
        }
        rows.push(row);
    }
    scene.close()?;
    Ok(Throughput { rows, seconds })
}

/// Returns the guest's throughput in MB/s, a sample every two seconds, and that of all beside it in
/// the same time.
fn sample(scene: &dyn Scene, seconds: u32) -> Result<(Vec<f64>, f64)> {
    let mut samples = Vec::new();
    let (first, began) = (scene.moved_bytes()?, Instant::now());
    let (mut before, mut at) = (first, began);
    for _ in 0..seconds / 2 {
        thread::sleep(SAMPLE.saturating_sub(at.elapsed()));
        let (moved, now) = (scene.moved_bytes()?, Instant::now());
        samples.push((moved.guest - before.guest) / 1e6 / (now - at).as_secs_f64());
        (before, at) = (moved, now);
    }
    let beside = (before.beside - first.beside) / 1e6 / (at - began).as_secs_f64();
    Ok((samples, beside))
}

/// Returns what puts the place in the whole before a line.
fn progress<'a>(
    say: &'a mut dyn FnMut(&str),
    number: usize,
    all: usize,
    scenario: &Scenario,
) -> impl FnMut(&str) + use<'a> {
    let place = format!("[{number}/{all}] {scenario}");
    move |text| say(&format!("{place}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Options {
            place: Where::Guest,
            evenkeel: PathBuf::new(),
            dir: PathBuf::new(),
            devices: names(&["hdd", "ssd"]),
            guest_loads: vec![GuestLoad::readers(5, true)],
            host_loads: vec![GuestLoad::NONE, GuestLoad::readers(1, false)],
            guest_schedulers: names(&["bfq"]),
            schedulers: names(&["bfq", "cfq"]),
            coordinations: vec![Coordination::Off, Coordination::All],
            repeats: 1,
        }
    }

    #[test]
    fn every_combination_is_a_scenario_and_the_daemon_changes_as_rarely_as_possible() {
        let scenarios = options().scenarios();
        assert_eq!(scenarios.len(), 16);
        let changes = scenarios.windows(2).filter(|pair| pair[0].daemon() != pair[1].daemon());
        assert_eq!(changes.count(), 7);
    }

    #[test]
    fn coordinations_survive_a_round_trip_and_others_are_refused() {
        for coordination in Coordination::ALL {
            assert_eq!(coordination.to_string().parse(), Ok(coordination));
        }
        assert!("some".parse::<Coordination>().unwrap_err().contains("infer"));
    }
}
