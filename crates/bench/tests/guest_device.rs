//! Devices of kinds that a host may not have, in guests that have them. The daemon runs there, and
//! beside it a VMM that checks every sector.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::io::Write as _;
use std::time::Duration;

use evenkeel_bench::client::verify::Verifier;
use evenkeel_bench::client::{Client, Options, Wake};
use evenkeel_bench::lab::{Guest, GuestBuilder, Lab};
use support::{Space, evenkeel, turn};

const SECTORS: u32 = 8192;
const REQUESTS: u64 = 5000;
const LIMIT: Duration = Duration::from_secs(120);

/// Returns a guest in which the daemon can run, and this program.
fn guest(name: &str) -> GuestBuilder {
    let this = std::env::current_exe().unwrap();
    let daemon = evenkeel();
    let programs = [daemon.binary().to_str().unwrap(), this.to_str().unwrap()];
    let lab = Lab::prepare_with(&Lab::default_dir().unwrap(), &programs).unwrap();
    lab.guest().name(name).memory_mib(1024).cpus(2).ticks()
}

/// Returns an empty image of 64 MiB.
fn image(space: &Space) -> std::path::PathBuf {
    let image = space.path("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    image
}

/// Serves a device of the guest with this setting, and lets the VMM there work from sector `first` on;
/// returns what the daemon has logged.
fn serve(guest: &Guest, device: &str, setting: &str, first: u64) -> String {
    let serve = format!(
        "printf '[pools.main]\n{setting}\n[pools.main.disks.d]\npath = \"{device}\"\n' >/tmp/e.toml; \
         exec evenkeel serve --config /tmp/e.toml --socket-dir /tmp/{first} 2>/tmp/log"
    );
    let daemon = guest.spawn(&serve).unwrap();
    let this = std::env::current_exe().unwrap();
    let program = this.file_name().unwrap().to_str().unwrap();
    let work = format!(
        "tries=0; while [ ! -S /tmp/{first}/d.sock ] && [ $tries -lt 100 ]; do usleep 100000; \
         tries=$((tries+1)); done; \
         EVENKEEL_SOCKET=/tmp/{first}/d.sock EVENKEEL_FIRST={first} \
         {program} --ignored --exact a_vmm_in_the_guest --nocapture || {{ cat /tmp/log; exit 1; }}"
    );
    println!("{device}, {setting}: {}", guest.check_within(LIMIT, &work).unwrap());
    guest.check("killall evenkeel").unwrap();
    let ended = daemon.wait(LIMIT).unwrap();
    let log = guest.check("cat /tmp/log").unwrap();
    assert_eq!(ended.status, 0, "{log}");
    log
}

/// Returns how often the disk interrupts as it is served.
fn interrupts(guest: &Guest, iopoll: bool) -> u64 {
    let count = || -> u64 {
        let sum =
            "awk '/virtio.*-req/ { for (i = 2; i <= 3; i++) sum += $i } END { print sum + 0 }'";
        guest.check(&format!("{sum} /proc/interrupts")).unwrap().parse().unwrap()
    };
    let before = count();
    let first = if iopoll { 2048 } else { 65536 };
    let log = serve(guest, "/dev/vda", &format!("iopoll = {iopoll}"), first);
    assert!(!log.contains("iopoll:"), "the device has such a queue, and does not refuse: {log}");
    count() - before
}

#[test]
fn a_device_that_is_asked_answers_right_and_does_not_interrupt() {
    let _turn = turn();
    let space = Space::new("iopoll");
    let guest = guest("iopoll").plain_disk(image(&space)).boot().unwrap();
    let asked = "rmmod virtio_blk && modprobe virtio_blk poll_queues=1 && sleep 1 && \
                 cat /sys/block/vda/queue/io_poll";
    assert_eq!(guest.check(asked).unwrap(), "1");
    let [heard, asked] = [false, true].map(|iopoll| interrupts(&guest, iopoll));
    println!("{REQUESTS} requests: {heard} interrupts, {asked} when the device is asked");
    // Flushes have no other way.
    assert!(asked < heard / 2, "{asked} interrupts, {heard} when it is not asked");
    guest.poweroff().unwrap();
}

#[test]
fn a_card_gets_one_command_at_a_time() {
    let _turn = turn();
    let space = Space::new("card");
    let image = image(&space);
    let mut boot_sector = [0; 512];
    // One partition for Linux, which begins at 1 MiB and has 32.
    boot_sector[446..][..16]
        .copy_from_slice(&[0, 0, 0, 0, 0x83, 0, 0, 0, 0x00, 0x08, 0, 0, 0x00, 0x00, 0x01, 0]);
    boot_sector[510..].copy_from_slice(&[0x55, 0xaa]);
    std::fs::File::options().write(true).open(&image).unwrap().write_all(&boot_sector).unwrap();
    let guest = guest("card").card(image).boot().unwrap();
    guest.check("modprobe -a sdhci-pci mmc_block && sleep 2 && ls /dev/mmcblk0p1").unwrap();
    for (device, first) in [("/dev/mmcblk0", 65536), ("/dev/mmcblk0p1", 2048)] {
        let log = serve(&guest, device, "scheduler = \"bfq\"", first);
        assert!(log.contains("depth=1 rotational=false"), "{device}: {log}");
    }
    let log = serve(&guest, "/dev/mmcblk0", "depth = 4", 32768);
    assert!(log.contains("depth=4"), "what the operator says goes first: {log}");
    guest.poweroff().unwrap();
}

#[test]
#[ignore = "runs in the guests of the other tests"]
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
