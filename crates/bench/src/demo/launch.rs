//! One start of the application in a guest.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::lab::Guest;

/// One start of the application.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Run {
    Took(Duration),
    TimedOut,
    Skipped,
}

impl Run {
    /// Returns whether the application was not ready within the limit.
    pub(crate) fn failed(&self) -> bool {
        !matches!(self, Self::Took(_))
    }

    /// Returns how long it took, in milliseconds; the limit if it failed.
    pub(crate) fn ms(&self) -> f64 {
        let time = if let Self::Took(time) = self { *time } else { LIMIT };
        time.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Took(time) => write!(f, "{:.2} s", time.as_secs_f64()),
            Self::TimedOut => write!(f, "over {} s, failed", LIMIT.as_secs()),
            Self::Skipped => write!(f, "given up"),
        }
    }
}

/// Starts the application once in `guest`, with cold caches. Leave [`PAUSE`] between two starts.
///
/// `through` is what it is started through, such as `ionice -c2 -n0`.
///
/// # Errors
///
/// The guest is gone, or the application failed other than by taking too long.
pub(crate) fn start(guest: &Guest, through: &str) -> Result<Run> {
    let launch = format!("guest launch {} /mnt/app/bin/app app /mnt/app", LIMIT.as_secs());
    Ok(run(guest, through, &launch)?.run)
}

/// One start, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launched {
    pub(crate) run: Run,
    /// For how many ms the program waited for the disk, if the guest could tell.
    pub(crate) disk_ms: Option<f64>,
}

/// Carries out `launch`, a `guest launch` of some program, with cold caches.
///
/// # Errors
///
/// As [`start`].
pub(crate) fn run(guest: &Guest, through: &str, launch: &str) -> Result<Launched> {
    let script = format!("echo 3 >/proc/sys/vm/drop_caches; {through} {launch}");
    let limit = LIMIT + Duration::from_secs(30);
    let output = guest.spawn(&script)?.wait(limit)?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = output.text();
    let mut numbers = text.split(' ').map(str::parse::<u64>);
    let run = match numbers.next() {
        Some(Ok(nanos)) => Run::Took(Duration::from_nanos(nanos)),
        _ if text == "timeout" => Run::TimedOut,
        _ => bail!("the application did not start: {text} {errors}"),
    };
    let disk_ms =
        numbers.find_map(Result::ok).map(|ms| Duration::from_millis(ms).as_secs_f64() * 1e3);
    Ok(Launched { run, disk_ms })
}

/// A start that takes longer has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Between two starts. BFQ takes a queue for freshly started only after 2 s of silence; so does a
/// user who starts a program, looks at it, and starts the next.
pub(crate) const PAUSE: Duration = Duration::from_millis(2_200);
