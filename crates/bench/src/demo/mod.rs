//! The demonstration: how long an application takes to start while others hammer the same disk.
//!
//! Picture one slow disk and two tenants. Tenant A starts an application; a few hundred small
//! files must come off the disk before it is usable. Meanwhile other processes of A and all of
//! tenant B read files from end to end and at random. Each scheduler gets the same scene: five
//! starts on the idle disk, five under load, caches dropped before each.
//!
//! What is real: the guests, their file systems and page caches, the requests, the daemon, the
//! data (every byte that the application reads is checked). What is modelled: the time that the
//! disk takes. What is helped: the application runs with the best I/O priority (`ionice -c2 -n0`)
//! that an unprivileged process may have, and the guest's kernel passes it on in every request.
//! With any other scheduler than bfq it has the same priority, to no effect.

pub(crate) mod images;
pub(crate) mod launch;
mod measured;
mod page;
mod predict;
mod progress;
mod report;
mod scene;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};

pub use self::measured::{Comparison, Measured};
pub use self::predict::{PredictOptions, predict};
use self::progress::Progress;
pub use self::report::{Report, Row};
use self::scene::{Scene, arguments};
use crate::lab::{self, Evenkeel, Lab};

/// What the demonstration shall show.
#[derive(Clone, Debug)]
pub struct Options {
    /// The schedulers, in the order of the rows; names as `evenkeel serve --scheduler` takes them.
    pub schedulers: Vec<String>,
    /// The device, as `evenkeel serve --model` takes it.
    pub model: String,
    /// Starts on the idle disk, and again as many under load.
    pub starts: u32,
    /// Where images and results go; `target/demo` of the checkout unless told.
    pub dir: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schedulers: ["noop", "deadline", "bfq"].map(str::to_owned).to_vec(),
            model: "hdd".to_owned(),
            starts: 5,
            dir: None,
        }
    }
}

/// Runs the demonstration, reports progress on standard error, and writes `result.json` and
/// `report.html` into the directory of the options.
///
/// Takes less than four minutes with the default options; the images are made by the first run.
///
/// # Errors
///
/// The lab is not set up, a guest or the daemon fails, or the application read wrong data. A start
/// that takes too long is no error but a failed run of its row.
pub fn run(options: &Options) -> Result<Report> {
    ensure!(options.starts > 0, "at least one start is needed");
    let began = Instant::now();
    let dir = match &options.dir {
        Some(dir) => dir.clone(),
        None => lab::checkout()?.join("target/demo"),
    };
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let evenkeel = Evenkeel::new()?;
    let progress = Progress::new(options.schedulers.len(), options.starts);
    progress.say("preparing guests and disk images");
    let lab = Lab::prepare(&Lab::default_dir()?)?;
    let images = images::prepare(&dir, lab.guest_program())?;
    let mut rows = Vec::new();
    let first = options.schedulers.first().context("at least one scheduler is needed")?;
    let mut scene =
        Scene::open(&lab, evenkeel, &images, arguments(first, &options.model), &progress)?;
    for scheduler in &options.schedulers {
        scene.switch(scheduler, &options.model, &progress)?;
        rows.push(scene.measure(scheduler, options.starts, &progress)?);
    }
    scene.close()?;
    let report = Report::new(rows, options, &images, began.elapsed());
    report.write(&dir)?;
    progress.say(&format!("done; see {}", dir.join("report.html").display()));
    Ok(report)
}
