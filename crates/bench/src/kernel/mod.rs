//! `evenkeel bench kernel`: beside the schedulers of the guest's own kernel.
//!
//! One guest, one modelled disk, the same jobs twice. Once the guest's kernel schedules (bfq or
//! mq-deadline) and Evenkeel passes its requests on in their order (noop); once the guest does not
//! schedule (none) and Evenkeel does. So the kernel's scheduler has every advantage of its place:
//! it knows which process each request comes from, and no other guest disturbs it. Evenkeel sees
//! requests with an I/O priority and nothing else.
//!
//! Four jobs: sequential readers of four I/O priorities, random readers of four I/O priorities,
//! two sequential readers beside two random ones, and the start of an application beside those.
//! The first three measure shares and throughput, with the raising of interactive queues off on
//! both sides; the last one measures answers, with it on.

mod fio;
mod metric;
mod report;
mod scene;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

pub use self::report::{Cell, Report, Row, Verdict};
use self::scene::Scene;
use crate::lab::{self, Lab};

/// What to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Images, sockets and logs go here; `target/bench/kernel` of the checkout unless told.
    pub dir: Option<PathBuf>,
    /// The device, as `evenkeel serve --model` takes it.
    pub model: String,
    /// How long each job of readers is counted, in seconds.
    pub seconds: u32,
    /// How many times each job runs, and the application starts.
    pub repetitions: u32,
}

impl Options {
    /// Returns the standard comparison: a hard disk, 8 s, three repetitions.
    #[must_use]
    pub fn new(evenkeel: PathBuf) -> Self {
        Self { evenkeel, dir: None, model: "hdd".to_owned(), seconds: 8, repetitions: 3 }
    }
}

/// Who schedules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Contestant {
    /// Its name in reports.
    pub(crate) name: &'static str,
    /// The scheduler of the guest's kernel.
    pub(crate) guest: &'static str,
    /// The scheduler of Evenkeel.
    pub(crate) host: &'static str,
}

impl Contestant {
    /// Returns whether it shares by weight and raises what starts.
    pub(crate) fn is_bfq(self) -> bool {
        self.guest == "bfq" || self.host == "bfq"
    }
}

/// Pairs: the kernel's scheduler, then ours of the same kind.
pub(crate) const CONTESTANTS: [Contestant; 4] = [
    Contestant { name: "kernel bfq", guest: "bfq", host: "noop" },
    Contestant { name: "evenkeel bfq", guest: "none", host: "bfq" },
    Contestant { name: "kernel mq-deadline", guest: "mq-deadline", host: "noop" },
    Contestant { name: "evenkeel deadline", guest: "none", host: "deadline" },
];

/// Runs all jobs with all schedulers; `progress` is told what comes next.
///
/// Takes less than ten minutes with the standard options.
///
/// # Errors
///
/// The lab is not set up, a guest or the daemon fails, or the application read wrong data.
pub fn run(options: &Options, progress: &mut dyn FnMut(&str)) -> Result<Report> {
    ensure!(options.repetitions > 0, "at least one repetition is needed");
    ensure!(options.seconds > 0, "at least one second is needed");
    let began = Instant::now();
    let dir = match &options.dir {
        Some(dir) => dir.clone(),
        None => lab::checkout()?.join("target/bench/kernel"),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let lab = Lab::prepare_with(&Lab::default_dir()?, &["fio"])?;
    progress("preparing the guest and its disk");
    let mut scene = Scene::open(&lab, options, &dir)?;
    let mut report = Report::new(options, scene.kernel()?);
    for (index, contestant) in CONTESTANTS.iter().enumerate() {
        let mut say = |what: &str| {
            let seconds = began.elapsed().as_secs();
            progress(&format!("[{seconds:>3} s] {}: {what}", contestant.name));
        };
        scene.measure(*contestant, options, &mut |what| say(what), &mut |sample| {
            report.add(index, sample);
        })?;
    }
    scene.close()?;
    report.finish(began.elapsed().as_secs_f64());
    Ok(report)
}
