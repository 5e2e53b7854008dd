//! The suite's measurements in a real guest, each as short as it can be.

#![expect(clippy::unwrap_used, reason = "this is test code, outside of test functions")]

mod support;

use std::fs::{self, File};

use evenkeel_bench::suite::{self, App, Coordination, DISK_BYTES, Film, GuestLoad, Options, Where};
use support::{Space, evenkeel, host, turn};

/// Scenarios on a fast device, where nobody waits for a modelled head.
fn options(space: &Space) -> Options {
    Options {
        place: Where::Guest,
        evenkeel: evenkeel().binary().to_owned(),
        dir: space.path("suite"),
        devices: vec!["ssd".to_owned()],
        guest_loads: vec![GuestLoad::readers(1, true)],
        host_loads: vec![GuestLoad::readers(1, false)],
        guest_schedulers: vec!["mq-deadline".to_owned()],
        schedulers: vec!["deadline".to_owned()],
        coordinations: vec![Coordination::Priority],
        repeats: 1,
    }
}

/// Puts a disk into place whose only program is the shell of every guest: no package is fetched.
fn put_disk(space: &Space) {
    let tree = space.path("tree");
    for dir in ["bin", "dev", "proc", "tmp"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    let busybox = host("sh", &["-c", "command -v busybox; :"], "".as_ref());
    fs::copy(busybox.trim(), tree.join("bin/sh")).unwrap();
    fs::create_dir_all(space.path("suite")).unwrap();
    let image = suite::image_path(&space.path("suite"), false);
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    host("mkfs.ext4", &["-q", "-F", "-d", tree.to_str().unwrap()], &image);
    File::options().write(true).open(&image).unwrap().set_len(DISK_BYTES).unwrap();
}

#[test]
fn a_command_is_started_in_a_guest_beside_loads_that_end_with_the_measurement() {
    let _turn = turn();
    let space = Space::new("suite");
    put_disk(&space);
    let app = App::Command("echo 'it starts'".to_owned());
    let mut lines = Vec::new();
    let mut say = |line: &str| lines.push(line.to_owned());
    let report = suite::startup(&options(&space), &[app], 1, &mut say).unwrap();
    let json = serde_json::json!(report);
    let row = &json["rows"][0];
    assert_eq!((&row["failed_runs"], &row["host_load"]), (&0.into(), &"1r-seq".into()), "{row}");
    for figure in ["idle_mean_ms", "loaded_mean_ms", "ratio", "readers_mb_s"] {
        assert!(row[figure].as_f64().is_some_and(|figure| figure > 0.0), "{figure}: {row}");
    }
    assert!(lines.iter().any(|line| line.contains("repeat 1, echo")), "{lines:?}");
    assert_eq!(report.files().len(), 1);
}

#[test]
fn the_throughput_of_a_guest_is_sampled_every_two_seconds() {
    let _turn = turn();
    let space = Space::new("suite-throughput");
    let report = suite::throughput(&options(&space), 4, &mut |_line| {}).unwrap();
    let row = &serde_json::json!(report)["rows"][0];
    assert_eq!(row["runs"][0]["count"], 2, "{row}");
    assert!(row["runs"][0]["min"].as_f64().unwrap() > 0.0, "{row}");
    assert!(row["host_readers_mb_s"].as_f64().unwrap() > 0.0, "{row}");
}

#[test]
fn a_film_is_played_in_a_guest_and_each_piece_is_timed() {
    let _turn = turn();
    let space = Space::new("suite-player");
    let film = Film { mb_s: 1.0, deadline_ms: 500, seconds: 4 };
    let report = suite::player(&options(&space), film, &mut |_line| {}).unwrap();
    let row = &serde_json::json!(report)["rows"][0];
    // The first of eight starts the clock.
    assert_eq!(row["pieces"], 7, "{row}");
    let (mean, max) = (row["wait_mean_ms"].as_f64().unwrap(), row["wait_max_ms"].as_f64().unwrap());
    assert!(mean > 0.0 && max >= mean, "{row}");
    assert!(row["readers_mb_s"].as_f64().unwrap() > 0.0, "{row}");
}
