//! Many disks on a real daemon. How fast they are depends on the machine; that each is served, and
//! that none leaves anything behind, does not.
#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_bench::process::build_evenkeel;
use evenkeel_bench::scale::{ScaleOptions, run};
use evenkeel_bench::target::Backing;

fn scene(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scale-{name}"));
    let _absent = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

#[test]
fn sixty_four_busy_disks_of_one_pool_are_all_served() {
    let dir = scene("busy");
    let mut options = ScaleOptions::new(build_evenkeel().unwrap(), dir.clone(), Backing::Null);
    (options.idle, options.rounds) = (0, 1);
    options.duration = Duration::from_millis(100);
    let report = run(&options, &mut |line| println!("{line}")).unwrap();
    let [one, many] = &report.rows[..] else { panic!("two rows: {report:?}") };
    assert_eq!((one.disks, one.vrings, one.depth), (1, 4, 256));
    assert_eq!((many.disks, many.vrings, many.depth), (64, 4, 4));
    assert_eq!((one.share_min, one.share_max, one.ratio_to_one), (1.0, 1.0, 1.0));
    assert!(many.share_min > 0.0 && many.share_max < 64.0, "somebody got nothing: {many:?}");
    assert!(report.idle.is_empty());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn disks_that_come_and_go_leave_no_descriptor_behind() {
    let dir = scene("idle");
    let mut options = ScaleOptions::new(build_evenkeel().unwrap(), dir.clone(), Backing::Image);
    (options.idle, options.busy, options.rounds) = (150, 1, 1);
    options.duration = Duration::from_millis(20);
    let report = run(&options, &mut |line| println!("{line}")).unwrap();
    let [idle] = &report.idle[..] else { panic!("one row: {report:?}") };
    assert_eq!((idle.disks, idle.descriptors_leaked), (150, 0), "{idle:?}");
    assert!(idle.descriptors > 2 * 150, "an image and a socket each: {idle:?}");
    assert!(idle.threads < 20, "no thread for a disk that nobody uses: {idle:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}
