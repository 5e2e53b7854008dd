//! On which processors a thread runs.

use std::io;

use evenkeel_wire::Cpus;
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Why a thread cannot run on the processors that were chosen.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// Some are not there, are offline, or are not the daemon's to use.
    #[error(
        "no processor {0} for this daemon; lscpu shows which there are, and \
         Cpus_allowed_list in /proc/self/status which a container or a unit leaves it"
    )]
    Missing(Cpus),
    /// The system says so.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// Sees to it that this thread, and those that the kernel starts for it, run on `cpus` only.
///
/// # Errors
///
/// * [`PinError::Missing`]: some cannot be had. The thread may be on the others by then.
/// * [`PinError::System`]: anything else.
pub(crate) fn pin(cpus: &Cpus) -> Result<(), PinError> {
    let mut set = CpuSet::new();
    for &number in cpus.numbers() {
        set.set(usize::from(number));
    }
    match sched_setaffinity(None, &set) {
        Ok(()) => {}
        // Not one of them is there.
        Err(Errno::INVAL) => return Err(PinError::Missing(cpus.clone())),
        Err(errno) => return Err(PinError::System(errno.into())),
    }
    // The kernel leaves out silently what is not there.
    let got = sched_getaffinity(None).map_err(io::Error::from)?;
    let missing = cpus.numbers().iter().copied().filter(|&number| !got.is_set(usize::from(number)));
    Cpus::new(missing).map_or(Ok(()), |missing| Err(PinError::Missing(missing)))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// In a thread of its own, which goes with its processors.
    fn pinned(cpus: &str) -> Result<Vec<usize>, PinError> {
        let cpus: Cpus = cpus.parse().unwrap();
        let pinned = thread::spawn(move || {
            pin(&cpus)?;
            let got = sched_getaffinity(None).unwrap();
            Ok((0..CpuSet::MAX_CPU).filter(|&number| got.is_set(number)).collect())
        });
        pinned.join().unwrap()
    }

    fn allowed() -> usize {
        let allowed = sched_getaffinity(None).unwrap();
        (0..CpuSet::MAX_CPU).find(|&number| allowed.is_set(number)).unwrap()
    }

    #[test]
    fn a_thread_runs_where_it_shall() {
        let one = allowed();
        assert_eq!(pinned(&one.to_string()).unwrap(), [one]);
    }

    #[test]
    fn processors_that_are_not_there_are_named() {
        for (wanted, missing) in [(format!("{},1023", allowed()), "1023"), ("1023".into(), "1023")]
        {
            match pinned(&wanted) {
                Err(PinError::Missing(cpus)) => assert_eq!(cpus.to_string(), missing),
                other => panic!("{wanted}: {other:?}"),
            }
        }
    }
}
