//! The daemon dies again and again under a guest that verifies all it reads.

#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "all of this is test code")]

mod support;

use std::time::{Duration, Instant};

use evenkeel_bench::lab::Guest;
use support::{Space, assert_no_disk_errors, evenkeel, lab_with_fio, turn};

/// Passes of verified random writes until told to stop. Each pass has a seed of its own, which fio
/// puts into every block, so that a block of an older pass is not taken for one of this pass.
const VERIFIED_WRITES: &str = "pass=0; while [ ! -e /tmp/stop ]; do \
    pass=$((pass + 1)); \
    fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 \
        --rw=randwrite --bsrange=4k-32k --size=32M --fsync=64 --randseed=$pass \
        --verify=crc32c --verify_fatal=1 --minimal >/tmp/fio.log 2>&1 || \
        { cat /tmp/fio.log; exit 1; }; \
done; echo $pass";

const KILLS: u32 = 20;

#[test]
fn twenty_kills_of_the_daemon_go_unnoticed_by_a_guest_but_for_pauses() {
    let _turn = turn();
    let space = Space::new("kills");
    let mut daemon =
        evenkeel().disk("vm", space.path("vm.img")).arg("--create=64M").serve().unwrap();
    let guest = lab_with_fio()
        .guest()
        .name("kills")
        .memory_mib(512)
        .cpus(2)
        .disk(daemon.socket("vm"), 2)
        .boot()
        .unwrap();
    let writer = guest.spawn(VERIFIED_WRITES).unwrap();
    for kill in 1..=KILLS {
        // In the middle of work: answers have come since the last start, and fio waits for more.
        wait_for_progress(&guest, kill);
        daemon.kill().unwrap();
        daemon.start().unwrap();
    }
    wait_for_progress(&guest, KILLS + 1);
    guest.check("touch /tmp/stop").unwrap();
    let output = writer.wait(Duration::from_secs(180)).unwrap();
    assert_eq!(output.status, 0, "{output:?}\n{}", daemon.log_tail());
    assert!(output.text().parse::<u32>().unwrap() >= 1);
    assert_no_disk_errors(&guest);
    guest.poweroff().unwrap();
    daemon.stop().unwrap();
}

/// Waits until the guest's disk has answered some requests more, and has some to answer.
fn wait_for_progress(guest: &Guest, kill: u32) {
    let end = Instant::now() + Duration::from_secs(60);
    let (before, _) = answered_and_waiting(guest);
    loop {
        let (answered, waiting) = answered_and_waiting(guest);
        if answered >= before + 20 && waiting > 0 {
            return;
        }
        assert!(Instant::now() < end, "no progress before kill {kill}\n{}", guest.console());
    }
}

/// Source: Linux, Documentation/block/stat.rst.
fn answered_and_waiting(guest: &Guest) -> (u64, u64) {
    let text = guest.check("cat /sys/block/vda/stat").unwrap();
    let fields: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (fields[0] + fields[4], fields[8])
}
