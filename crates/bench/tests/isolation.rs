//! The isolation benchmark on real daemons. What it measures depends on the machine; that victim
//! and aggressor meet, and that everything is reported, does not.
#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_bench::isolation::{IsolationOptions, IsolationReport, name, run};
use evenkeel_bench::process::build_evenkeel;
use evenkeel_bench::target::{Backing, Target};

fn measure(dir: &Path, backing: Backing, targets: Vec<Target>) -> IsolationReport {
    let evenkeel = build_evenkeel().unwrap();
    let mut options = IsolationOptions::new(evenkeel, dir.to_owned(), backing, &[], &[]);
    options.targets = targets;
    options.disk_bytes = 32 << 20;
    options.rounds = 1;
    options.duration = Duration::from_millis(100);
    let report = run(&options, &mut |line| println!("{line}")).unwrap();
    let expected: Vec<(String, String)> = options
        .aggressors
        .iter()
        .flat_map(|shape| options.targets.iter().map(|target| (target.to_string(), name(shape))))
        .collect();
    let pair =
        |row: &evenkeel_bench::isolation::IsolationRow| (row.server.clone(), row.aggressor.clone());
    assert_eq!(report.rows.iter().map(pair).collect::<Vec<_>>(), expected);
    report
}

fn scene(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("isolation-{name}"));
    let _absent = std::fs::remove_dir_all(&dir);
    dir
}

#[test]
fn victim_and_aggressor_are_served_together_on_a_real_file() {
    let dir = scene("real");
    let targets = vec![Target::evenkeel("bfq"), Target::evenkeel("none"), Target::fixed(2)];
    let report = measure(&dir, Backing::Image, targets);
    for row in &report.rows {
        assert!(row.victim_p50_us > 0.0 && row.victim_p50_us <= row.victim_p99_us, "{row:?}");
        assert!(row.victim_alone_p99_us > 0.0 && row.victim_iops > 0.0, "{row:?}");
        assert!(row.aggressor_mb_s > 0.0 && row.aggressor_alone_mb_s > 0.0, "{row:?}");
        assert_eq!((row.cap_mb_s, row.rounds), (None, 1));
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn the_kernels_bfq_is_measured_where_it_is_and_leaves_nothing_behind() {
    let dir = scene("kernel");
    let mut lines = Vec::new();
    let options = |dir: &Path| {
        let evenkeel = build_evenkeel().unwrap();
        let mut options = IsolationOptions::new(evenkeel, dir.to_owned(), Backing::Image, &[], &[]);
        options.targets = vec![Target::evenkeel("none"), Target::KernelBfq];
        options.aggressors.truncate(1);
        (options.disk_bytes, options.rounds) = (32 << 20, 1);
        options.duration = Duration::from_millis(100);
        options
    };
    let report = run(&options(&dir), &mut |line| lines.push(line.to_owned())).unwrap();
    let is_left_out = lines.iter().any(|line| line.starts_with("qsd-kernel-bfq is left out: "));
    assert_eq!(report.rows.len(), if is_left_out { 1 } else { 2 }, "{lines:?}");
    for row in &report.rows {
        assert!(row.victim_p99_us > 0.0 && row.aggressor_mb_s > 0.0, "{row:?}");
    }
    let loops = std::process::Command::new("losetup").arg("--list").output();
    let loops = loops.map_or_else(|_| Vec::new(), |loops| loops.stdout);
    let image = dir.display().to_string();
    assert!(!String::from_utf8_lossy(&loops).contains(&image), "a loop device is left");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_modelled_disk_makes_the_victim_wait_for_its_neighbour() {
    let dir = scene("modelled");
    let targets = vec![Target::evenkeel("none")];
    let report = measure(&dir, Backing::Model("sdhc".to_owned()), targets);
    // 64 KiB writes at random take an SD card tens of milliseconds each; without a scheduler the
    // victim waits behind those that came before it.
    let row = report.rows.iter().find(|row| row.aggressor.starts_with("write")).unwrap();
    assert!(row.victim_p50_us > row.victim_alone_p50_us, "{row:?}");
    assert_eq!(row.io, "sdhc");
    std::fs::remove_dir_all(&dir).unwrap();
}
