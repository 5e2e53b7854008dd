//! Server and client die in the middle of verified writes, and nothing is lost.
#![expect(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot set its scene has failed"
)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use evenkeel_bench::client::verify::{Corruption, Random, Verifier};
use evenkeel_bench::client::{Client, Options, Wake};
use evenkeel_bench::process::{DiskSpec, PoolSpec, Server, build_evenkeel};

const DISK_BYTES: u64 = 16 << 20;
const FIRST: u64 = 2048;
const SECTORS: u32 = 8192;
const VRINGS: u16 = 2;
const CRASHES: u32 = 20;

struct Scene {
    server: Server,
    image: PathBuf,
    random: Random,
    verifier: Verifier,
}

impl Scene {
    fn new(name: &str, model: Option<&str>, seed: u64) -> Self {
        static BINARY: OnceLock<PathBuf> = OnceLock::new();
        let binary = BINARY.get_or_init(|| build_evenkeel().unwrap());
        println!("seed {seed:#x}");
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("recovery-{name}"));
        let _absent = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let image = dir.join("disk.img");
        let pool = PoolSpec {
            scheduler: "bfq".to_owned(),
            model: model.map(str::to_owned),
            low_latency: None,
            settings: Vec::new(),
            disks: vec![DiskSpec::image("disk", &image, DISK_BYTES)],
        };
        let server = Server::evenkeel(binary, &dir, &pool).unwrap();
        let verifier = Verifier::new(FIRST, SECTORS, seed);
        Self { server, image, random: Random::new(seed), verifier }
    }

    fn connect(&self, indirect: bool) -> Client {
        let options = Options {
            vrings: VRINGS,
            size: 128,
            depth: 32,
            max_bytes: 8192,
            segments: 2,
            indirect,
            ..Options::default()
        };
        Client::connect(self.server.socket(0), options).unwrap()
    }

    /// Works for up to `requests` requests, and then some instructions more.
    fn work(&mut self, client: &mut Client, requests: u64) -> Wake {
        let goal = self.verifier.answered() + 1 + self.random.below(requests);
        let woken = self.verifier.drive(client, VRINGS, |verifier| verifier.answered() >= goal);
        for _moment in 0..self.random.below(200_000) {
            std::hint::spin_loop();
        }
        woken.unwrap_or_else(|error| self.fail(&error))
    }

    /// Everything is answered, everything is right, on the wire and in the image.
    fn finish(mut self, mut client: Client) {
        let swept = self.verifier.sweep(&mut client);
        swept.unwrap_or_else(|error| self.fail(&error));
        assert_eq!(client.outstanding(), 0);
        client.stop().unwrap();
        drop(client);
        assert!(self.server.terminate().unwrap().success());
        let image = std::fs::read(&self.image).unwrap();
        let first = usize::try_from(FIRST * 512).unwrap();
        self.verifier.compare(&image[first..]).unwrap_or_else(|error| self.fail(&error));
    }

    fn fail(&self, error: &Corruption) -> ! {
        panic!("{error}; log:\n{}", self.server.log_tail())
    }
}

fn crash_again_and_again(mut scene: Scene, indirect: bool, requests: u64) {
    let mut client = scene.connect(indirect);
    assert!(client.inflight_fd().is_some(), "the server tracks requests");
    let mut taken_along = 0;
    for _crash in 0..CRASHES {
        assert_eq!(scene.work(&mut client, requests), Wake::Answers);
        taken_along += client.outstanding();
        scene.server.kill().unwrap();
        scene.server.restart().unwrap();
        client.reconnect().unwrap();
    }
    assert!(taken_along >= CRASHES as usize, "the crashes came while requests were in flight");
    assert_eq!(scene.work(&mut client, requests), Wake::Answers);
    scene.finish(client);
}

#[test]
fn twenty_crashes_of_the_server_lose_and_repeat_nothing() {
    crash_again_and_again(Scene::new("crash", None, 0x0c4a_54e5), false, 3000);
}

#[test]
fn twenty_crashes_with_indirect_chains_lose_and_repeat_nothing() {
    crash_again_and_again(Scene::new("crash-indirect", None, 0x1d12_ec75), true, 3000);
}

#[test]
fn twenty_crashes_on_a_slow_disk_lose_and_repeat_nothing() {
    crash_again_and_again(Scene::new("crash-slow", Some("emmc"), 0x510e), false, 300);
}

#[test]
fn a_server_that_is_told_to_leave_in_the_middle_loses_nothing() {
    let mut scene = Scene::new("terminate", None, 0x7e12);
    let mut client = scene.connect(false);
    for _time in 0..10 {
        assert_eq!(scene.work(&mut client, 2000), Wake::Answers);
        assert!(scene.server.terminate().unwrap().success());
        scene.server.restart().unwrap();
        client.reconnect().unwrap();
    }
    scene.finish(client);
}

#[test]
fn a_client_that_dies_in_the_middle_leaves_whole_sectors_to_the_next() {
    let mut scene = Scene::new("client-death", None, 0xdead);
    for _time in 0..30 {
        let mut client = scene.connect(false);
        assert_eq!(scene.work(&mut client, 1000), Wake::Answers);
        drop(client);
        scene.verifier.client_died();
    }
    let client = scene.connect(false);
    scene.finish(client);
}
