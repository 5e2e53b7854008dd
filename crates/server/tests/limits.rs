//! Limits and reservations of a running daemon, as VMMs without patience see them.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_bench::client::IoOp;
use evenkeel_bench::client::load::{Loader, Pattern, Shape, drive};
use evenkeel_server::Daemon;
use evenkeel_server::api::{Api, Client, ClientError, Control};
use evenkeel_wire::Document;
use serde_json::{Value, json};

const DISK_BYTES: u64 = 64 << 20;

/// One daemon at a time: what they measure is time.
static ALONE: Mutex<()> = Mutex::new(());

/// A daemon with the disks `a` and `b` on files, each of a VM of its own.
struct Scene {
    dir: PathBuf,
    daemon: Arc<Daemon>,
    _api: Api,
    client: Client,
    _alone: MutexGuard<'static, ()>,
}

impl Scene {
    fn new(name: &str, pool: &str) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        let _absent = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let disk = |name: &str| {
            let path = dir.join(format!("{name}.img"));
            format!("[pools.p.disks.{name}]\npath = {path:?}\ncreate = \"{DISK_BYTES}\"\n")
        };
        let text = format!("socket_dir = {dir:?}\n[pools.p]\n{pool}\n{}{}", disk("a"), disk("b"));
        let config = Document::read(&text).finish().unwrap();
        let daemon = Arc::new(Daemon::start(&config, &dir).unwrap());
        let api = Api::start(&dir.join("api.sock"), Arc::clone(&daemon) as Arc<dyn Control>);
        let client = Client::new(&dir.join("api.sock"));
        Self { dir, daemon, _api: api.unwrap(), client, _alone: alone }
    }

    fn change(&self, change: &Value) {
        self.client.change_pool("p", change).unwrap();
    }

    fn loader(&self, disk: &str, block_bytes: u32, depth: u16) -> Loader {
        let shape = Shape { op: IoOp::Read, pattern: Pattern::Random, block_bytes, depth };
        Loader::connect(&self.dir.join(format!("{disk}.sock")), shape, 1, 7, 0).unwrap()
    }

    /// Reads from `a` for some seconds; returns the requests and the seconds.
    fn measure(&self, block_bytes: u32, seconds: u64) -> (u64, f64) {
        let mut loaders = [self.loader("a", block_bytes, 16)];
        let took = drive(&mut loaders, Duration::from_secs(seconds)).unwrap();
        let requests = loaders[0].requests;
        loaders.into_iter().for_each(|loader| loader.leave().unwrap());
        (requests, took.as_secs_f64())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.daemon.shutdown();
        let _left = fs::remove_dir_all::<&Path>(&self.dir);
    }
}

/// Compares `count` with what `rate` allows in `seconds` plus `burst`. More is never possible; how
/// much less depends on how busy this machine is.
#[expect(clippy::cast_precision_loss, reason = "thousands of requests")]
fn assert_rate(what: &str, (count, seconds): (u64, f64), rate: f64, burst: f64) {
    let most = rate * seconds + burst;
    let percent = count as f64 / most * 100.0;
    println!("{what}: {count} in {seconds:.2} s, {percent:.1} % of {most:.0}");
    assert!(count as f64 <= most + 1.0, "{what}: {count} of {most}");
    assert!(count as f64 >= most * 0.8, "{what}: {count} of {most}");
}

#[test]
fn limits_hold_are_reached_and_change_while_requests_wait() {
    let scene = Scene::new("limits", "");
    scene.change(&json!({"disks": {"a": {"total_iops_sec": 500}}}));
    assert_rate("500 requests a second", scene.measure(4096, 3), 500.0, 51.0);
    scene.change(&json!({"disks": {"a": {"iops-total": null}}, "vms": {"a": {"rbps": "10M"}}}));
    let (blocks, burst) = (f64::from(10 << 20) / 65536.0, 17.0);
    assert_rate("10 MiB a second", scene.measure(65536, 3), blocks, burst);
    let status = scene.client.pool("p").unwrap();
    assert_eq!(status.vms[0].limits.set["read_bytes_sec"], 10 << 20);
    assert_eq!(status.disks[0].limits.set.len(), 0);
    assert!(status.vms[0].limits.throttled_us > 3_000_000, "{:?}", status.vms[0]);
    assert_eq!(status.vms[1].limits.delayed, 0);
    // A burst of two seconds at five times the rate, then the rate.
    scene.change(&json!({
        "vms": {"a": {"rbps": "none"}},
        "total_iops_sec": 200, "total_iops_sec_max": 1000, "total_iops_sec_max_length": 2,
    }));
    let since = Instant::now();
    let (burst, seconds) = scene.measure(4096, 4);
    assert_rate("a burst of 2000", (burst, seconds), 200.0, 2001.0);
    // However long the machine slept in between, there is one burst in all.
    let (after, _) = scene.measure(4096, 2);
    assert!(after >= 320, "the rate goes on: {after}");
    assert_rate("and no other", (burst + after, since.elapsed().as_secs_f64()), 200.0, 2001.0);
    let error = scene.client.change_pool("p", &json!({"vms": {"b": {"min_iops": 201}}}));
    let Err(ClientError::Refused { code: 400, error }) = error else {
        unreachable!("more than the pool's limit is refused: {error:?}")
    };
    assert!(error.error.contains("201 requests a second") && error.error.contains("200"));
}

#[test]
fn a_reservation_is_kept_beside_a_greedy_neighbour() {
    let scene = Scene::new("floor", "model = \"hdd\"\ncapacity_iops = 80");
    scene.change(&json!({"vms": {"a": {"weight": 1}, "b": {"weight": 1000}}}));
    let run = || {
        let mut loaders = [scene.loader("a", 4096, 8), scene.loader("b", 4096, 64)];
        let took = drive(&mut loaders, Duration::from_secs(6)).unwrap();
        let requests = [loaders[0].requests, loaders[1].requests];
        loaders.into_iter().for_each(|loader| loader.leave().unwrap());
        (requests, took.as_secs_f64())
    };
    let (before, _) = run();
    scene.change(&json!({"vms": {"a": {"min_iops": 30}}}));
    let (after, seconds) = run();
    println!("without {before:?}, with 30 reserved {after:?} in {seconds:.2} s");
    #[expect(clippy::cast_precision_loss, reason = "hundreds of requests")]
    let rate = after[0] as f64 / seconds;
    assert!(rate >= 0.9 * 30.0, "{rate}");
    assert!(after[1] > 100, "the neighbour gets the rest");
}
