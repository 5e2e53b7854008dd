//! The suite's measurements on the host, each as short as it can be: they need root, as loop devices
//! and mounts do.

#![expect(clippy::unwrap_used, reason = "this is test code, outside of test functions")]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use evenkeel_bench::suite::{self, App, Coordination, GuestLoad, Options, Where};
use support::{Space, evenkeel, turn};

fn options(space: &Space) -> Options {
    Options {
        place: Where::Host,
        evenkeel: evenkeel().binary().to_owned(),
        dir: space.path("suite"),
        devices: vec!["real".to_owned()],
        guest_loads: vec![GuestLoad::readers(1, true)],
        host_loads: vec![GuestLoad::NONE],
        guest_schedulers: vec!["mq-deadline".to_owned()],
        schedulers: vec!["none".to_owned()],
        coordinations: vec![Coordination::Off],
        repeats: 1,
    }
}

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root may attach a loop device and mount it");
    }
    is_root
}

/// Returns the loop devices whose files are below `dir`. One that is mounted or open anywhere is
/// among them: the kernel lets go of its file last.
fn loops_below(dir: &Path) -> Vec<String> {
    let dir = dir.canonicalize().unwrap();
    let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
    let is_below = |block: &Path| {
        let backing = fs::read_to_string(block.join("loop/backing_file"));
        backing.is_ok_and(|file| Path::new(file.trim_end()).starts_with(&dir))
    };
    names.filter(|block| is_below(block)).map(|block| block.display().to_string()).collect()
}

/// Fails if a loop device of this test or any mount is left.
#[track_caller]
fn assert_nothing_is_left(space: &Space, mounts: &str) {
    assert_eq!(loops_below(&space.path("")), Vec::<String>::new());
    assert_eq!(loop_mounts(), mounts);
}

/// Returns what this process sees mounted of loop devices.
fn loop_mounts() -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    mounts.lines().filter(|line| line.starts_with("/dev/loop")).collect()
}

#[test]
fn python3_of_debian_is_started_on_the_host_beside_a_reader() {
    let _turn = turn();
    if !is_root() {
        return;
    }
    let (space, mounts) = (Space::new("host-startup"), loop_mounts());
    let mut lines = Vec::new();
    let mut say = |line: &str| lines.push(line.to_owned());
    let report = match suite::startup(&options(&space), &[App::Python3], 1, &mut say) {
        Err(error) if error.to_string().contains("apt-get cannot fetch") => {
            eprintln!("skipped: {error}");
            return;
        }
        other => other.unwrap(),
    };
    assert_nothing_is_left(&space, &mounts);
    let json = serde_json::json!(report);
    let row = &json["rows"][0];
    for (field, value) in [
        ("app", "python3"),
        ("where", "host"),
        ("device", "real"),
        ("guest_load", "1r-rand"),
        ("host_load", "none"),
        ("guest_scheduler", "mq-deadline"),
        ("scheduler", "none"),
        ("coordination", "off"),
    ] {
        assert_eq!(row[field], value, "{field}: {row}");
    }
    assert_eq!(row["failed_runs"], 0, "{row}");
    for figure in ["idle_mean_ms", "loaded_mean_ms", "ratio", "readers_mb_s"] {
        assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row}");
    }
    assert!(row["loaded_ci95_ms"].is_number(), "{row}");
    assert!(lines.iter().any(|line| line.contains("repeat 1, python3, start 1 of 1")), "{lines:?}");
    assert_eq!(report.files()[0].0, "mq-deadline-1r0w-rand-python3-real-startup-1.txt");
}

#[test]
fn the_hosts_throughput_is_sampled_and_a_killed_benchmark_leaves_nothing_behind() {
    let _turn = turn();
    if !is_root() {
        return;
    }
    let (space, mounts) = (Space::new("host-throughput"), loop_mounts());
    let report = suite::throughput(&options(&space), 4, &mut |_line| {}).unwrap();
    assert_nothing_is_left(&space, &mounts);
    let row = &serde_json::json!(report)["rows"][0];
    assert_eq!((&row["where"], &row["runs"][0]["count"]), (&"host".into(), &2.into()), "{row}");
    assert!(row["runs"][0]["min"].as_f64().unwrap() > 0.0, "{row}");
    assert_eq!(row["host_readers_mb_s"], 0.0, "{row}");

    let mut bench = Command::new(evenkeel().binary());
    bench.args(["bench", "throughput", "--where", "host", "--guest-load", "1r1w-seq", "--dir"]);
    bench.arg(space.path("suite")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = bench.spawn().unwrap();
    let is_attached = || !loops_below(&space.path("")).is_empty();
    assert!(comes(is_attached), "no loop device: {:?}", bench.try_wait());
    // It is to be killed in the middle of its work, not as it begins.
    thread::sleep(Duration::from_secs(2));
    assert!(is_attached());
    bench.kill().unwrap();
    bench.wait().unwrap();
    assert!(comes(|| !is_attached()), "{:?}", loops_below(&space.path("")));
    assert_nothing_is_left(&space, &mounts);
}

/// Waits for something that comes soon, but not at once.
fn comes(mut is_there: impl FnMut() -> bool) -> bool {
    (0..3_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        is_there()
    })
}

#[test]
fn what_there_is_not_on_the_host_is_refused_before_anything_is_made() {
    let space = Space::new("host-refusals");
    let modelled = Options { devices: vec!["hdd".to_owned()], ..options(&space) };
    let problem = suite::throughput(&modelled, 4, &mut |_line| {}).unwrap_err().to_string();
    assert!(problem.starts_with("--device hdd: "), "{problem}");
    let film = suite::Film { mb_s: 1.0, deadline_ms: 500, seconds: 4 };
    let problem = suite::player(&options(&space), film, &mut |_line| {}).unwrap_err().to_string();
    assert!(problem.starts_with("--where host: "), "{problem}");
    assert!(!space.path("suite").exists());
}
