//! How much processor time another process uses.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Processor time of a process from a moment on, all its threads, user and system.
///
/// The kernel tells it in nanoseconds for each thread (`/proc/PID/task/TID/schedstat`), where it
/// was built with that; in clock ticks for the whole process (`/proc/PID/stat`) elsewhere, which is
/// too coarse for measurements of less than a second. A thread that ends in between is not counted
/// by the former.
#[derive(Debug)]
pub(crate) struct CpuMeter {
    pid: u32,
    before: Times,
}

#[derive(Debug)]
enum Times {
    /// By thread.
    Nanos(BTreeMap<u32, u64>),
    Ticks(Duration),
}

impl CpuMeter {
    /// Begins to count.
    ///
    /// # Errors
    ///
    /// If there is no such process.
    pub(crate) fn start(pid: u32) -> Result<Self> {
        let before = match threads(pid)? {
            Some(threads) => Times::Nanos(threads),
            None => Times::Ticks(ticks(pid)?),
        };
        Ok(Self { pid, before })
    }

    /// Returns what was used since the start.
    ///
    /// # Errors
    ///
    /// If the process is gone.
    pub(crate) fn used(&self) -> Result<Duration> {
        match &self.before {
            Times::Ticks(before) => Ok(ticks(self.pid)?.saturating_sub(*before)),
            Times::Nanos(before) => {
                let now = threads(self.pid)?.context("the process is gone")?;
                let used = |(thread, nanos): (u32, u64)| {
                    nanos.saturating_sub(before.get(&thread).copied().unwrap_or(0))
                };
                Ok(Duration::from_nanos(now.into_iter().map(used).sum()))
            }
        }
    }
}

/// Returns the time of each thread in ns; `None` where the kernel does not tell.
fn threads(pid: u32) -> Result<Option<BTreeMap<u32, u64>>> {
    let tasks = format!("/proc/{pid}/task");
    let tasks = fs::read_dir(&tasks).with_context(|| format!("there is no process {pid}"))?;
    let mut times = BTreeMap::new();
    for task in tasks.flatten() {
        // A thread may end while this looks at it.
        let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
        let thread: Option<u32> = task.file_name().to_str().and_then(|name| name.parse().ok());
        let nanos: Option<u64> =
            text.split_ascii_whitespace().next().and_then(|nanos| nanos.parse().ok());
        times.extend(thread.zip(nanos));
    }
    Ok((!times.is_empty()).then_some(times))
}

fn ticks(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))
        .with_context(|| format!("there is no process {pid}"))?;
    // The name is in parentheses and may hold anything; utime and stime are fields 14 and 15.
    let (_name, rest) = stat.rsplit_once(')').context("stat without a name")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next().and_then(|field| field.parse::<u64>().ok());
    let (user, system) = (ticks().context("no utime")?, ticks().context("no stime")?);
    let per_second = rustix::param::clock_ticks_per_second();
    Ok(Duration::from_nanos((user + system) * (1_000_000_000 / per_second)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_tell_the_time_of_this_process() {
        let pid = std::process::id();
        let coarse = ticks(pid).unwrap();
        let meter = CpuMeter::start(pid).unwrap();
        // The kernel writes down what a thread uses when it is interrupted or sleeps, not before.
        let is_told = (0..1000).any(|_| {
            let sum = (0..5_000_000_u64).fold(0, |sum, n| std::hint::black_box(sum ^ n));
            assert!(std::hint::black_box(sum) < u64::MAX);
            meter.used().unwrap() > Duration::from_micros(100)
        });
        assert!(is_told);
        assert!(ticks(pid).unwrap() >= coarse);
    }

    #[test]
    fn a_process_that_does_not_exist_is_named() {
        let error = CpuMeter::start(u32::MAX).unwrap_err();
        assert_eq!(error.to_string(), format!("there is no process {}", u32::MAX));
    }
}
