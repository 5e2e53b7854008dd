//! A pool whose scheduler changes under load, seen by a VMM that checks every sector.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::{fs, thread};

use evenkeel_bench::client::verify::{Random, Verifier};
use evenkeel_bench::client::{Client, Options, Wake};
use evenkeel_server::Daemon;
use evenkeel_server::api::{Api, Client as ApiClient, Control};
use evenkeel_wire::{Config, Disk, Pool, Scheduler, Source};
use serde_json::json;

const FIRST: u64 = 2048;
const SECTORS: u32 = 8192;
const VRINGS: u16 = 2;
const SWITCHES: u32 = 100;

/// Changes the pool a hundred times, and the VMM answers that many requests in between.
fn drive(daemon: &Arc<Daemon>, dir: &Path, seed: u64) -> Verifier {
    let api_path = dir.join("api.sock");
    let _api = Api::start(&api_path, Arc::clone(daemon) as Arc<dyn Control>).unwrap();
    let options = Options {
        vrings: VRINGS,
        size: 128,
        depth: 32,
        max_bytes: 8192,
        segments: 2,
        ..Options::default()
    };
    let mut client = Client::connect(&dir.join("disk.sock"), options).unwrap();
    let mut verifier = Verifier::new(FIRST, SECTORS, seed);
    let (switched, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let api = ApiClient::new(&api_path);
            let mut random = Random::new(seed);
            for _switch in 0..SWITCHES {
                let scheduler = Scheduler::ALL[random.index(Scheduler::ALL.len())];
                let depth = 1 + random.below(32);
                let slice_idle = random.below(3);
                let change = json!({
                    "scheduler": scheduler.as_str(), "depth": depth,
                    "bfq": {"slice_idle": slice_idle}, "cfq": {"slice_idle": slice_idle},
                });
                let pool = api.change_pool("main", &change).unwrap();
                assert_eq!(pool.scheduler, scheduler.as_str());
                assert_eq!(u64::from(pool.depth), depth);
                switched.fetch_add(1, Ordering::Release);
            }
            stop.store(true, Ordering::Release);
        });
        let (mut last, mut since) = (0, 0);
        let woken = verifier.drive(&mut client, VRINGS, |verifier| {
            let now = switched.load(Ordering::Acquire);
            if now != last {
                (last, since) = (now, verifier.answered());
            }
            // Some more work for the last one.
            stop.load(Ordering::Acquire) && verifier.answered() >= since + 1000
        });
        assert_eq!(woken.unwrap(), Wake::Answers);
    });
    verifier.sweep(&mut client).unwrap();
    assert_eq!(client.outstanding(), 0);
    client.stop().unwrap();
    verifier
}

#[test]
fn a_hundred_switches_under_load_lose_repeat_and_spoil_nothing() {
    for (model, sqpoll_ms, seed) in
        [(None, None, 0x5_317c), (Some("emmc"), None, 0x77), (None, Some(1), 0x59)]
    {
        println!("model {model:?}, sqpoll_ms {sqpoll_ms:?}, seed {seed:#x}");
        let dir = std::env::temp_dir().join(format!("evenkeel-switch-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let image = dir.join("disk.img");
        let source = Source::Path(image.clone());
        let disk = Disk { create_bytes: Some(16 << 20), ..Disk::new(source) };
        let pool = Pool {
            model: model.map(str::to_owned),
            sqpoll_ms,
            disks: [("disk".to_owned(), disk)].into(),
            ..Pool::default()
        };
        let config = Config { pools: [("main".to_owned(), pool)].into(), ..Config::default() };
        let daemon = Arc::new(Daemon::start(&config, &dir).unwrap());
        let mut verifier = drive(&daemon, &dir, seed);
        let disk = daemon.status().disk("disk").unwrap().clone();
        assert_eq!((disk.in_flight, disk.waiting, disk.errors), (0, 0, 0));
        daemon.shutdown();
        let bytes = fs::read(&image).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        let first = usize::try_from(FIRST).unwrap() * 512;
        verifier.compare(&bytes[first..]).unwrap();
        println!("{} requests verified", verifier.answered());
    }
}
