//! The lab itself, with a disk that QEMU serves: what fails here is no fault of Evenkeel.

mod support;

use std::time::Duration;

use evenkeel_bench::lab::Output;
use support::{Space, lab, lab_with_fio, turn};

#[test]
fn a_guest_runs_commands_and_reports_output_and_status() {
    let _turn = turn();
    let space = Space::new("lab");
    let image = space.path("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let guest = lab().guest().name("commands").plain_disk(&image).boot().unwrap();

    let output = guest.run("echo out; echo err >&2; exit 7").unwrap();
    let expected = Output { status: 7, stdout: b"out\n".into(), stderr: b"err\n".into() };
    assert_eq!(output, expected);

    // Every byte value, and more of them than any buffer on the way holds.
    let bytes = guest
        .run("i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %o $i)\"; i=$((i+1)); done")
        .unwrap();
    assert_eq!(bytes.stdout, (0..=255).collect::<Vec<u8>>());
    let many = guest.run("dd if=/dev/zero bs=1M count=3 2>/dev/null").unwrap();
    assert_eq!(many.stdout, vec![0; 3 << 20]);

    // A job that runs does not hold up others, and its children die with it.
    let sleeper = guest.spawn("sleep 1000 & sleep 1000").unwrap();
    assert_eq!(guest.check("blockdev --getsize64 /dev/vda").unwrap(), "67108864");
    sleeper.kill().unwrap();
    assert_eq!(sleeper.wait(Duration::from_secs(20)).unwrap().status, 256 + 9);
    assert_eq!(guest.run("pidof sleep").unwrap().status, 1);

    let error = guest.run_within(Duration::from_millis(100), "echo here; sleep 1000").unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("guest commands: QEMU runs") && text.contains("here"), "{text}");
    guest.poweroff().unwrap();
}

#[test]
fn a_guest_has_the_kernels_schedulers_and_the_tools() {
    let _turn = turn();
    let space = Space::new("tools");
    let image = space.path("disk");
    std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let guest =
        lab_with_fio().guest().name("tools").memory_mib(512).plain_disk(&image).boot().unwrap();
    let schedulers = "modprobe -a bfq kyber-iosched; cat /sys/block/vda/queue/scheduler";
    assert_eq!(guest.check(schedulers).unwrap(), "[mq-deadline] bfq kyber none");
    guest.check("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && umount /mnt").unwrap();
    guest.check("e2fsck -fn /dev/vda").unwrap();
    guest.check("ionice -c2 -n0 taskset 1 fio --version").unwrap();
}
