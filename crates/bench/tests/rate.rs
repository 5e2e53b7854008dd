//! The rate benchmark on real daemons. What it measures depends on the machine; that it measures
//! everything it was asked for does not.
#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_bench::client::IoOp;
use evenkeel_bench::process::{DiskSpec, PoolSpec, Server, build_evenkeel};
use evenkeel_bench::rate::{RateOptions, run};
use evenkeel_bench::target::{Backing, Target};

fn scene(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("rate-{name}"));
    let _absent = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn short(dir: &Path, backing: Backing) -> RateOptions {
    let mut options = RateOptions::new(build_evenkeel().unwrap(), dir.to_owned(), backing);
    options.targets.retain(|target| !target.is_qsd());
    options.disk_bytes = 16 << 20;
    options.rounds = 2;
    options.duration = Duration::from_millis(30);
    options
}

#[test]
fn every_server_is_measured_at_every_load_in_every_round() {
    let dir = scene("file");
    let mut options = short(&dir, Backing::Image);
    (options.depths, options.blocks) = (vec![1, 8], vec![512, 65_536]);
    let report = run(&options, &mut |line| println!("{line}")).unwrap();
    assert_eq!(report.rows.len(), 2 * 2 * 2 * 2 * 2, "servers, ops, blocks, vrings, depths");
    for row in &report.rows {
        assert!(row.iops_min > 0.0 && row.iops_min <= row.iops_max, "{row:?}");
        assert!(row.p50_us > 0.0 && row.p50_us <= row.p99_us, "{row:?}");
        assert!(row.server_cpu_us_per_request.is_some_and(|cpu| cpu > 0.0), "{row:?}");
        assert!(row.kicks_per_request.is_some_and(|kicks| kicks > 0.0), "{row:?}");
        assert!(row.interrupts_per_request.is_some_and(|count| count <= 1.01), "{row:?}");
        assert_eq!((row.rounds, row.ratio_to_qsd), (2, None), "{row:?}");
    }
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_server_that_is_there_already_is_measured_and_left_alone() {
    let dir = scene("other");
    let mut disk = DiskSpec::image("x", &dir.join("x"), 0);
    (disk.create_bytes, disk.source) = (None, "null:1G".to_owned());
    let pool = PoolSpec {
        scheduler: "none".to_owned(),
        model: None,
        low_latency: None,
        settings: Vec::new(),
        disks: vec![disk],
    };
    let mut server = Server::evenkeel(&build_evenkeel().unwrap(), &dir, &pool).unwrap();
    let mut options = short(&dir, Backing::Image);
    (options.ops, options.depths, options.vrings) = (vec![IoOp::Read], vec![8], vec![1]);
    let socket = server.socket(0).to_owned();
    for pid in [None, Some(server.pid())] {
        options.targets = vec![Target::Other { socket: socket.clone(), pid }];
        let mut said = Vec::new();
        let report = run(&options, &mut |line| said.push(line.to_owned())).unwrap();
        assert_eq!(said.len(), 2, "one line for each round and nothing about images: {said:?}");
        let row = &report.rows[0];
        assert!(row.iops > 0.0, "{row:?}");
        assert_eq!(row.server_cpu_us_per_request.is_some(), pid.is_some());
    }
    assert!(server.is_alive());
    let images = std::fs::read_dir(&dir).unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "img"))
    });
    assert_eq!(images.count(), 0, "nothing is written for a server of somebody else");
    assert!(server.terminate().unwrap().success());
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_socket_that_is_not_there_is_named() {
    let dir = scene("nobody");
    let mut options = short(&dir, Backing::Image);
    options.targets = vec![Target::Other { socket: dir.join("nobody.sock"), pid: None }];
    let error = run(&options, &mut |_| ()).unwrap_err();
    assert!(format!("{error:#}").contains("nobody.sock"), "{error:#}");
    std::fs::remove_dir_all(&dir).unwrap();
}
