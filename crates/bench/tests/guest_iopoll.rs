//! A device that is asked for its answers instead of interrupting: in a guest, whose virtual disk
//! has a queue for that. The daemon runs there, and beside it a VMM that checks every sector.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use evenkeel_bench::client::verify::Verifier;
use evenkeel_bench::client::{Client, Options, Wake};
use evenkeel_bench::lab::{Guest, Lab};
use support::{Space, evenkeel, turn};

const SECTORS: u32 = 8192;
const REQUESTS: u64 = 5000;
const LIMIT: Duration = Duration::from_secs(120);

/// Serves the disk in the guest and lets the VMM there work; returns how often the disk interrupted.
fn interrupts(guest: &Guest, iopoll: bool, program: &str) -> u64 {
    let count = || -> u64 {
        let sum =
            "awk '/virtio.*-req/ { for (i = 2; i <= 3; i++) sum += $i } END { print sum + 0 }'";
        guest.check(&format!("{sum} /proc/interrupts")).unwrap().parse().unwrap()
    };
    let before = count();
    let serve = format!(
        "printf '[pools.main]\niopoll = {iopoll}\n[pools.main.disks.d]\npath = \"/dev/vda\"\n' >/tmp/e.toml; \
         exec evenkeel serve --config /tmp/e.toml --socket-dir /tmp/{iopoll} 2>/tmp/log"
    );
    let daemon = guest.spawn(&serve).unwrap();
    let first = if iopoll { 2048 } else { 65536 };
    let work = format!(
        "tries=0; while [ ! -S /tmp/{iopoll}/d.sock ] && [ $tries -lt 100 ]; do usleep 100000; \
         tries=$((tries+1)); done; \
         EVENKEEL_SOCKET=/tmp/{iopoll}/d.sock EVENKEEL_FIRST={first} \
         {program} --ignored --exact a_vmm_in_the_guest --nocapture || {{ cat /tmp/log; exit 1; }}"
    );
    println!("iopoll {iopoll}: {}", guest.check_within(LIMIT, &work).unwrap());
    guest.check("killall evenkeel").unwrap();
    let ended = daemon.wait(LIMIT).unwrap();
    let log = guest.check("cat /tmp/log").unwrap();
    assert_eq!(ended.status, 0, "{log}");
    assert!(!log.contains("iopoll:"), "the device has such a queue, and does not refuse: {log}");
    count() - before
}

#[test]
fn a_device_that_is_asked_answers_right_and_does_not_interrupt() {
    let _turn = turn();
    let space = Space::new("iopoll");
    let image = space.path("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let this = std::env::current_exe().unwrap();
    let daemon = evenkeel();
    let programs = [daemon.binary().to_str().unwrap(), this.to_str().unwrap()];
    let lab = Lab::prepare_with(&Lab::default_dir().unwrap(), &programs).unwrap();
    let guest = lab.guest().name("iopoll").memory_mib(1024).cpus(2).plain_disk(&image);
    let guest = guest.boot().unwrap();
    let asked = "rmmod virtio_blk && modprobe virtio_blk poll_queues=1 && sleep 1 && \
                 cat /sys/block/vda/queue/io_poll";
    assert_eq!(guest.check(asked).unwrap(), "1");
    let program = this.file_name().unwrap().to_str().unwrap();
    let [heard, asked] = [false, true].map(|iopoll| interrupts(&guest, iopoll, program));
    println!("{REQUESTS} requests: {heard} interrupts, {asked} when the device is asked");
    // Flushes have no other way.
    assert!(asked < heard / 2, "{asked} interrupts, {heard} when it is not asked");
    guest.poweroff().unwrap();
}

#[test]
#[ignore = "runs in the guest of the other test"]
fn a_vmm_in_the_guest() {
    let variable = |name| std::env::var(name).unwrap();
    let options = Options {
        vrings: 1,
        size: 128,
        depth: 32,
        max_bytes: 8192,
        segments: 2,
        ..Options::default()
    };
    let mut client = Client::connect(variable("EVENKEEL_SOCKET").as_ref(), options).unwrap();
    let mut verifier = Verifier::new(variable("EVENKEEL_FIRST").parse().unwrap(), SECTORS, 0x10);
    let woken = verifier.drive(&mut client, 1, |verifier| verifier.answered() >= REQUESTS);
    assert_eq!(woken.unwrap(), Wake::Answers);
    verifier.sweep(&mut client).unwrap();
    println!("{} requests verified", verifier.answered());
}
