//! Data through the whole path: what a guest writes is what it reads, and what the image holds.

#![allow(clippy::allow_attributes, clippy::unwrap_used, reason = "all of this is test code")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::{Space, assert_no_disk_errors, evenkeel, host, lab, lab_with_fio, next_random, turn};

#[test]
fn a_guest_sees_the_disk_as_it_was_configured() {
    let _turn = turn();
    let space = Space::new("seen");
    let daemon = evenkeel().disk("vm", space.path("vm.img")).arg("--create=96M").serve().unwrap();
    let guest = lab().guest().name("seen").cpus(2).disk(daemon.socket("vm"), 2).boot().unwrap();
    assert_eq!(guest.check("blockdev --getsize64 /dev/vda").unwrap(), "100663296");
    assert_eq!(guest.check("ls /sys/block/vda/mq | wc -l").unwrap(), "2");
    assert_eq!(guest.check("cat /sys/block/vda/queue/write_cache").unwrap(), "write back");
    // Discard, and zeroes without data: both leave zeroes in the image.
    let fill = "tr '\\0' x </dev/zero | dd of=/dev/vda bs=1M count=8 iflag=fullblock conv=fsync";
    guest.check(fill).unwrap();
    guest.check("blkdiscard -o 1048576 -l 1048576 /dev/vda").unwrap();
    guest.check("blkdiscard -z -o 3145728 -l 1048576 /dev/vda || exit 0").unwrap();
    let sums = "for i in 0 1 2; do dd if=/dev/vda bs=1M skip=$i count=1 2>/dev/null | md5sum; done";
    let sums = guest.check(sums).unwrap();
    let sums: Vec<&str> = sums.lines().collect();
    assert_ne!(sums[0], sums[1]);
    assert_eq!(sums[0], sums[2]);
    let zeroes = guest.check("head -c 1048576 /dev/zero | md5sum").unwrap();
    assert_eq!(sums[1], zeroes);
    assert_no_disk_errors(&guest);
    guest.poweroff().unwrap();
    let content = fs::read(space.path("vm.img")).unwrap();
    assert!(content[..1 << 20].iter().all(|&byte| byte == b'x'));
    assert!(content[1 << 20..2 << 20].iter().all(|&byte| byte == 0));
}

#[test]
fn fio_verifies_random_writes_with_flushes_in_a_guest() {
    let _turn = turn();
    let space = Space::new("fio");
    let daemon = evenkeel().disk("vm", space.path("vm.img")).arg("--create=128M").serve().unwrap();
    let guest = lab_with_fio()
        .guest()
        .name("fio")
        .memory_mib(512)
        .cpus(2)
        .disk(daemon.socket("vm"), 2)
        .boot()
        .unwrap();
    let fio = "fio --name=verify --filename=/dev/vda --direct=1 --ioengine=libaio --iodepth=16 \
               --rw=randwrite --bsrange=4k-64k --size=96M --fsync=32 --randseed=7 \
               --verify=crc32c --verify_fatal=1 --minimal";
    guest.check_within(Duration::from_secs(150), fio).unwrap();
    assert_no_disk_errors(&guest);
    guest.poweroff().unwrap();
}

#[test]
fn a_file_tree_reaches_the_image_as_it_was_written() {
    let _turn = turn();
    let space = Space::new("tree");
    let image = space.path("vm.img");
    let mut daemon = evenkeel().disk("vm", &image).arg("--create=256M").serve().unwrap();
    let guest = lab().guest().name("tree").disk(daemon.socket("vm"), 1).boot().unwrap();
    guest.check("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt && mkdir /mnt/tree").unwrap();
    guest
        .check(
            "cd /mnt/tree && cp -r /lib/modules . && mkdir many && \
             for i in $(seq 300); do head -c $((i * 37)) /dev/urandom >many/$i; done && \
             dd if=/dev/urandom of=large bs=1M count=24 2>/dev/null && ln -s large link && \
             rm -r modules/*/kernel/crypto && sync",
        )
        .unwrap();
    let sums = guest.check("cd /mnt/tree && find . -type f -exec sha256sum {} +").unwrap();
    assert!(sums.lines().count() > 400, "{sums}");
    guest.check("umount /mnt && e2fsck -fn /dev/vda").unwrap();
    assert_no_disk_errors(&guest);
    guest.poweroff().unwrap();
    daemon.stop().unwrap();

    host("/sbin/e2fsck", &["-fn"], &image);
    let copy = space.path("copy");
    fs::create_dir(&copy).unwrap();
    host("/sbin/debugfs", &["-R", &format!("rdump /tree {}", copy.display())], &image);
    fs::write(space.path("sums"), sums).unwrap();
    let check = Command::new("sha256sum")
        .args(["--check", "--quiet", "--strict"])
        .arg(space.path("sums"))
        .current_dir(copy.join("tree"))
        .output()
        .unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stdout));
}

/// Writes files one by one and says which of them `sync` has returned for, beside a writer that
/// never syncs. Each file is named after the hash of its content.
const SYNCED_WRITES: &str = "cd /mnt; \
    (while :; do dd if=/dev/urandom of=noise bs=64k count=40 conv=notrunc 2>/dev/null; done) & \
    while :; do \
        head -c 30000 /dev/urandom >new; sum=$(sha256sum new | cut -c1-64); \
        mv new file-$sum; sync; echo $sum; \
    done";

#[test]
fn nothing_synced_is_lost_when_qemu_is_killed_in_the_middle_of_writes() {
    let _turn = turn();
    let mut seed = 0x5eed_0001;
    eprintln!("seed {seed:#x}");
    let space = Space::new("power");
    let image = space.path("vm.img");
    let mut daemon = evenkeel().disk("vm", &image).arg("--create=512M").serve().unwrap();
    let builder = lab().guest().name("power").disk(daemon.socket("vm"), 1);
    let mut synced: Vec<String> = Vec::new();
    for round in 0..3 {
        let guest = builder.boot().unwrap();
        if round == 0 {
            guest.check("mkfs.ext4 -q /dev/vda").unwrap();
        } else {
            check_recovery(&guest, &synced);
        }
        guest.check("mount /dev/vda /mnt").unwrap();
        let writer = guest.spawn(SYNCED_WRITES).unwrap();
        for _ in 0..10 + next_random(&mut seed) % 20 {
            synced.push(writer.line(Duration::from_secs(60)).unwrap());
        }
        drop(writer);
        guest.kill().unwrap();
    }
    let guest = builder.boot().unwrap();
    check_recovery(&guest, &synced);
    assert_no_disk_errors(&guest);
    guest.poweroff().unwrap();
    daemon.stop().unwrap();
    assert_clean(&image);
}

/// Lets the journal be replayed, as any boot does, then looks for every file and at its content.
fn check_recovery(guest: &evenkeel_bench::lab::Guest, synced: &[String]) {
    // 0: clean, 1: repaired by the journal. Anything more is damage.
    let fsck = guest.run("e2fsck -p /dev/vda").unwrap();
    assert!(fsck.status <= 1, "{fsck:?}");
    let fsck = guest.run("e2fsck -fn /dev/vda").unwrap();
    assert_eq!(fsck.status, 0, "{fsck:?}");
    let list: String = synced.iter().map(|sum| format!("{sum}  file-{sum}\n")).collect();
    let script = format!(
        "mount /dev/vda /mnt && cd /mnt && sha256sum -c -s - <<'END' && cd / && umount /mnt\n\
         {list}END\n"
    );
    guest.check(&script).unwrap();
}

#[track_caller]
fn assert_clean(image: &Path) {
    host("/sbin/e2fsck", &["-fn"], image);
}
