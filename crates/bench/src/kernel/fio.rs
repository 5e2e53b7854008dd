//! The readers: fio's arguments, and what it says.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};

/// One reader. All read with one request in flight, past the guest's page cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader {
    /// 128 KiB from begin to end, or 4 KiB at random.
    pub(super) sequential: bool,
    /// Level of its best-effort I/O priority; none is the default, 4.
    pub(super) level: Option<u8>,
}

/// Four levels, half of all there are, so that neighbours differ well.
const LEVELS: [u8; 4] = [0, 2, 4, 6];
/// Where the first reader's own area begins, behind the application's file system.
const FIRST_GIB: usize = 8;
/// Distance between the areas of two readers.
const STEP_GIB: usize = 8;
/// Size of an area.
const AREA_GIB: usize = 4;

/// Returns four readers of four priorities.
pub(super) fn weighted(sequential: bool) -> [Reader; 4] {
    LEVELS.map(|level| Reader { sequential, level: Some(level) })
}

/// Returns two sequential readers and two random ones, all of the default priority.
pub(super) fn mixed() -> [Reader; 4] {
    [true, true, false, false].map(|sequential| Reader { sequential, level: None })
}

/// Returns the part of the device that each of the [`weighted`] readers is entitled to.
///
/// Level l has weight 8 - l, in Linux and here.
pub(super) fn entitled() -> [f64; 4] {
    let weights = LEVELS.map(|level| f64::from(8 - level));
    let all: f64 = weights.iter().sum();
    weights.map(|weight| weight / all)
}

/// Returns the command that runs `readers` on `device`: `ramp` seconds uncounted, then `seconds`.
pub(super) fn command(device: &str, readers: &[Reader], ramp: u32, seconds: u32) -> String {
    let mut command = format!(
        "fio --output-format=json --filename={device} --direct=1 --ioengine=psync --time_based \
         --ramp_time={ramp} --runtime={seconds} --size={AREA_GIB}g --norandommap --randrepeat=1"
    );
    for (index, reader) in readers.iter().enumerate() {
        let (rw, block) = if reader.sequential { ("read", "128k") } else { ("randread", "4k") };
        let offset = FIRST_GIB + index * STEP_GIB;
        let _infallible =
            write!(command, " --name=r{index} --rw={rw} --bs={block} --offset={offset}g");
        if let Some(level) = reader.level {
            let _infallible = write!(command, " --prioclass=2 --prio={level}");
        }
    }
    command
}

/// Returns each reader's rate in megabytes (10^6) per second, out of fio's JSON.
pub(super) fn rates(output: &str, readers: usize) -> Result<Vec<f64>> {
    // Warnings come before the document.
    let begin = output.find('{').with_context(|| format!("fio said: {output}"))?;
    let document: serde_json::Value =
        serde_json::from_str(&output[begin..]).with_context(|| format!("fio said: {output}"))?;
    let jobs = document["jobs"].as_array().context("fio lists no jobs")?;
    ensure!(jobs.len() == readers, "fio ran {} readers instead of {readers}", jobs.len());
    jobs.iter()
        .map(|job| {
            ensure!(job["error"] == 0, "a reader failed: {job}");
            let rate = job["read"]["bw_bytes"].as_f64().context("fio tells no rate")?;
            Ok(rate / 1e6)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_entitled_to_shares_in_proportion_to_eight_less_the_level() {
        assert_eq!(entitled(), [0.4, 0.3, 0.2, 0.1]);
    }

    #[test]
    fn each_reader_has_an_area_and_a_priority_of_its_own() {
        let command = command("/dev/vda", &weighted(false), 2, 8);
        assert!(command.contains("--ramp_time=2 --runtime=8"), "{command}");
        let last = "--name=r3 --rw=randread --bs=4k --offset=32g --prioclass=2 --prio=6";
        assert!(command.ends_with(last), "{command}");
        assert!(!super::command("/dev/vda", &mixed(), 2, 8).contains("--prio"), "{command}");
    }

    #[test]
    fn rates_are_read_behind_warnings() {
        let job = r#"{"error": 0, "read": {"bw_bytes": 2500000}}"#;
        let output = format!("note: slow\n{{\"jobs\": [{job}, {job}]}}");
        assert_eq!(rates(&output, 2).unwrap(), [2.5, 2.5]);
        assert_eq!(rates(&output, 3).unwrap_err().to_string(), "fio ran 2 readers instead of 3");
        let silent = rates("no such file", 1).unwrap_err();
        assert_eq!(silent.to_string(), "fio said: no such file");
    }
}
