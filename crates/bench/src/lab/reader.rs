//! Readers and writers in guests: what they got, and when they are in full swing.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::Job;

/// Enough for every reader to be in full swing.
pub(crate) const SETTLE: Duration = Duration::from_secs(3);
/// The longest time for which BFQ raises a queue as interactive.
const LONGEST_RAISE: Duration = Duration::from_secs(26);
/// Between two looks at who is raised.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// So many looks in a row must find nobody: who is raised waits or pauses now and then, and is not
/// seen by a single one.
const CALM_LOOKS: u32 = 4;

/// Waits for the end of a `guest read-…` or `guest write-…`, at most for `patience`; returns what
/// it got in megabytes (10^6 bytes) per second.
///
/// # Errors
///
/// As [`Job::wait`], and if it printed anything but bytes and nanoseconds.
pub(crate) fn finish(job: &Job<'_>, patience: Duration) -> Result<f64> {
    let output = job.wait(patience)?;
    let text = output.text();
    mb_s(&text).with_context(|| {
        format!("a reader said {text:?} {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// Reads `BYTES NANOSECONDS`; returns megabytes per second.
fn mb_s(text: &str) -> Option<f64> {
    let (bytes, nanos) = text.split_once(' ')?;
    let (bytes, nanos): (f64, f64) = (bytes.parse().ok()?, nanos.parse().ok()?);
    // Bytes per nanosecond are gigabytes per second.
    (nanos > 0.0).then(|| bytes / nanos * 1e3)
}

/// Waits until readers no longer count as freshly started programs: BFQ raises whatever begins to
/// read after a silence, readers too. Measuring in that time would compare an application with
/// programs that also seem to be starting.
///
/// `raises` says whether the scheduler does that at all; `status` asks the daemon.
///
/// # Errors
///
/// As `status`, and if its answer has no disks.
pub(crate) fn settle(raises: bool, status: impl Fn() -> Result<Value>) -> Result<()> {
    thread::sleep(SETTLE);
    let end = Instant::now() + LONGEST_RAISE;
    let mut calm = 0;
    while raises && calm < CALM_LOOKS && Instant::now() < end {
        calm = if is_any_raised(&status()?)? { 0 } else { calm + 1 };
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

fn is_any_raised(status: &Value) -> Result<bool> {
    let disks = status.pointer("/pools/0/disks").and_then(Value::as_array);
    let disks = disks.context("no disks in the daemon's status")?;
    Ok(disks.iter().any(|disk| disk["raised"] == true))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reader_says_bytes_and_nanoseconds_and_nothing_else() {
        assert_eq!(mb_s("2000000 1000000000"), Some(2.0));
        for wrong in ["", "2000000", "2000000 0", "2000000 1s", "read: No such file"] {
            assert_eq!(mb_s(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn one_raised_disk_is_enough_to_wait_for() {
        let status = |raised: [bool; 2]| json!({"pools": [{"disks": raised.map(|raised| json!({"raised": raised}))}]});
        assert!(is_any_raised(&status([false, true])).unwrap());
        assert!(!is_any_raised(&status([false, false])).unwrap());
        is_any_raised(&json!({"pools": []})).unwrap_err();
    }
}
