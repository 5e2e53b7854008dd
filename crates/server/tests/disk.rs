//! Disks as a VMM sees them: one body, run against every kind of backend.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use evenkeel_bench::client::{Client, Io, IoOp, Options, Wake};
use evenkeel_server::Daemon;
use evenkeel_server::api::Control as _;
use evenkeel_wire::status::PoolStatus;
use evenkeel_wire::{Config, Disk, Poll, Pool, PoolChange, Scheduler, Source};

const DISK_BYTES: usize = 4 << 20;
const SECTOR: usize = 512;
/// Statuses of virtio-blk.
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// A directory of its own for a test, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(parent: &Path, name: &str) -> Self {
        let path = parent.join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn image(&self) -> PathBuf {
        self.0.join("image")
    }

    fn socket(&self) -> PathBuf {
        self.0.join("disk.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn pool(disk: Disk) -> Pool {
    Pool {
        scheduler: Some(Scheduler::Noop),
        disks: [("disk".to_owned(), disk)].into(),
        ..Pool::default()
    }
}

fn start(scratch: &Scratch, pool: Pool) -> Daemon {
    let config = Config { pools: [("pool".to_owned(), pool)].into(), ..Config::default() };
    Daemon::start(&config, &scratch.0).unwrap()
}

fn file_disk(scratch: &Scratch) -> Disk {
    Disk { create_bytes: Some(DISK_BYTES as u64), ..Disk::new(Source::Path(scratch.image())) }
}

fn options() -> Options {
    Options { vrings: 4, max_bytes: 64 << 10, segments: 4, ..Options::default() }
}

/// Numbers that look random and are the same in every run: a seed is printed with each failure.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % end
    }
}

/// What a disk should hold; `None` where a discard left it to chance.
type Mirror = Vec<Option<u8>>;

fn check(expected: &[Option<u8>], bytes: &[u8], what: &str) {
    let same = expected.iter().zip(bytes).all(|(want, have)| want.is_none_or(|want| want == *have));
    assert!(same && expected.len() == bytes.len(), "{what}");
}

/// Does one random thing and compares.
fn step(client: &mut Client, mirror: &mut Mirror, dice: &mut Dice, seed: u64) {
    let sectors = 1 + dice.below(128);
    let sector = dice.below(DISK_BYTES / SECTOR - sectors);
    let range = sector * SECTOR..(sector + sectors) * SECTOR;
    let bytes = u32::try_from(sectors * SECTOR).unwrap();
    let io = |op| Io::new(op, sector as u64, bytes, 0);
    let mut data = vec![0; sectors * SECTOR];
    match dice.below(8) {
        0..=2 => {
            data.iter_mut().for_each(|byte| *byte = u8::try_from(dice.below(256)).unwrap());
            assert_eq!(client.call(&io(IoOp::Write), &mut data).unwrap(), OK);
            mirror[range].iter_mut().zip(data).for_each(|(to, from)| *to = Some(from));
        }
        3..=5 => {
            assert_eq!(client.call(&io(IoOp::Read), &mut data).unwrap(), OK);
            check(&mirror[range.clone()], &data, &format!("seed {seed}: bytes {range:?} differ"));
        }
        6 => {
            let unmap = dice.below(2) == 0;
            let status = client.call(&io(IoOp::WriteZeroes { unmap }), &mut []).unwrap();
            assert_eq!(status, OK);
            mirror[range].fill(Some(0));
        }
        _ => {
            assert_eq!(client.call(&io(IoOp::Discard), &mut []).unwrap(), OK);
            mirror[range].fill(None);
            assert_eq!(client.call(&Io::new(IoOp::Flush, 0, 0, 0), &mut []).unwrap(), OK);
        }
    }
}

/// Writes every `stride`th block from the first on, through every slot of every vring at the same
/// time.
fn crowd(client: &mut Client, mirror: &mut Mirror, stride: u64) {
    let options = options();
    let mut count = 0;
    for vring in 0..options.vrings {
        for _slot in 0..options.depth {
            let io = Io::new(IoOp::Write, count * stride * 8, 4096, count);
            let token = client.submit(vring, &io).unwrap();
            client.write_data(token, 0, &[u8::try_from(count % 251).unwrap(); 4096]);
            count += 1;
        }
    }
    client.publish();
    let mut answered = 0;
    while answered < count {
        while let Some(completion) = client.next_completion().unwrap() {
            assert_eq!(completion.status, OK);
            answered += 1;
        }
        if answered < count && !client.arm() {
            assert_eq!(client.wait(Duration::from_secs(60)).unwrap(), Wake::Answers);
        }
    }
    let blocks = mirror.chunks_mut(4096).step_by(usize::try_from(stride).unwrap());
    for (block, bytes) in blocks.take(usize::try_from(count).unwrap()).enumerate() {
        bytes.fill(Some(u8::try_from(block % 251).unwrap()));
    }
}

/// What every backend that keeps data must do, however its worker waits. Returns what the daemon
/// told at the end.
fn conformance(parent: &Path, name: &str, poll: Poll) -> PoolStatus {
    let scratch = Scratch::new(parent, name);
    let daemon = start(&scratch, Pool { poll, ..pool(file_disk(&scratch)) });
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    assert_eq!(client.offer().sectors, (DISK_BYTES / SECTOR) as u64);
    let mut mirror = vec![Some(0); DISK_BYTES];
    let seed = 0x9e37_79b9_7f4a_7c15;
    let mut dice = Dice(seed);
    for _step in 0..400 {
        step(&mut client, &mut mirror, &mut dice, seed);
    }
    crowd(&mut client, &mut mirror, 1);
    for _step in 0..100 {
        step(&mut client, &mut mirror, &mut dice, seed);
    }

    let mut id = [0; 20];
    assert_eq!(client.call(&Io::new(IoOp::GetId, 0, 20, 0), &mut id).unwrap(), OK);
    assert_eq!(&id[..5], b"disk\0");
    let behind = (DISK_BYTES / SECTOR) as u64;
    let outside = Io::new(IoOp::Read, behind, 512, 0);
    assert_eq!(client.call(&outside, &mut [0; 512]).unwrap(), IO_ERROR);
    let unknown = Io::new(IoOp::Raw(77), 0, 0, 0);
    assert_eq!(client.call(&unknown, &mut []).unwrap(), UNSUPPORTED);

    let status = daemon.status();
    let disk = status.disk("disk").unwrap();
    assert!(disk.connected && disk.errors == 2, "{disk:?}");
    assert!(disk.read.requests > 100 && disk.write.requests > 228 && disk.flush.requests > 10);
    assert_eq!((disk.in_flight, disk.waiting), (0, 0));
    daemon.shutdown();
    assert!(!scratch.socket().exists(), "the socket goes with the daemon");
    check(&mirror, &fs::read(scratch.image()).unwrap(), "the image differs");
    assert!(disk.kicks > 0 && disk.interrupts > 0, "{disk:?}");
    status.pools[0].clone()
}

#[test]
fn a_file_past_the_page_cache_is_a_disk() {
    let status = conformance(&std::env::temp_dir(), "direct", Poll::Off);
    assert_eq!(status.polling, None);
}

#[test]
fn a_file_in_memory_is_a_disk() {
    conformance(Path::new("/dev/shm"), "tmpfs", Poll::Off);
}

/// A ring would take all of a turn with one call, and hand each to a thread of the kernel's.
#[test]
fn the_worker_copies_what_lies_in_memory_itself() {
    let scratch = Scratch::new(Path::new("/dev/shm"), "copied");
    let daemon = start(&scratch, pool(file_disk(&scratch)));
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    let mut mirror = vec![Some(0); DISK_BYTES];
    crowd(&mut client, &mut mirror, 2);
    let status = daemon.status();
    let writes = status.disk("disk").unwrap().write.requests;
    let per_call = status.pools[0].requests_per_system_call;
    assert!(writes >= 32 && per_call < 1.0, "{writes} writes, {per_call} a call");
    daemon.shutdown();
    check(&mirror, &fs::read(scratch.image()).unwrap(), "the image differs");
}

#[test]
fn a_worker_that_polls_serves_the_same_disk() {
    let status = conformance(&std::env::temp_dir(), "polled", Poll::AtMost(1000));
    let polling = status.polling.unwrap();
    assert_eq!(polling.most_us, 1000);
    let looks = [polling.device, polling.guest];
    assert!(looks.iter().any(|looks| looks.looks > 0), "{polling:?}");
    assert!(looks.iter().all(|looks| looks.paid <= looks.looks), "{polling:?}");
}

#[test]
fn polling_can_be_turned_on_and_off_while_a_disk_is_served() {
    let scratch = Scratch::new(&std::env::temp_dir(), "poll");
    let daemon = start(&scratch, pool(Disk::new(Source::Null { size_bytes: 1 << 20 })));
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    let most_us = || daemon.status().pools[0].polling.map(|polling| polling.most_us);
    for (poll, most) in [
        (Poll::AtMost(70), Some(70)),
        (Poll::Auto, Some(200)),
        (Poll::Brief, Some(16)),
        (Poll::Off, None),
    ] {
        let change = PoolChange { poll: Some(poll), ..PoolChange::default() };
        daemon.change_pool("pool", &change).unwrap();
        assert_eq!(most_us(), most);
        for sector in 0..100 {
            let io = Io::new(IoOp::Read, 8 * sector, 4096, 0);
            assert_eq!(client.call(&io, &mut [0; 4096]).unwrap(), OK);
        }
    }
    daemon.shutdown();
}

#[test]
fn a_null_disk_answers_everything() {
    let scratch = Scratch::new(&std::env::temp_dir(), "null");
    let daemon = start(&scratch, pool(Disk::new(Source::Null { size_bytes: 1 << 30 })));
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    for op in [IoOp::Write, IoOp::Read, IoOp::Flush, IoOp::Discard] {
        let bytes = if op == IoOp::Flush { 0 } else { 4096 };
        assert_eq!(client.call(&Io::new(op, 8, bytes, 0), &mut [0; 4096]).unwrap(), OK, "{op:?}");
    }
    daemon.shutdown();
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let scratch = Scratch::new(&std::env::temp_dir(), "readonly");
    fs::write(scratch.image(), vec![3; 1 << 20]).unwrap();
    let disk = Disk { read_only: true, ..Disk::new(Source::Path(scratch.image())) };
    let daemon = start(&scratch, pool(disk));
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    let mut data = [0; 4096];
    assert_eq!(client.call(&Io::new(IoOp::Write, 0, 4096, 0), &mut data).unwrap(), IO_ERROR);
    assert_eq!(client.call(&Io::new(IoOp::Read, 0, 4096, 0), &mut data).unwrap(), OK);
    assert_eq!(data, [3; 4096]);
    daemon.shutdown();
}

#[test]
fn a_modelled_disk_keeps_real_data_and_takes_the_models_time() {
    let scratch = Scratch::new(&std::env::temp_dir(), "model");
    let mut pool = pool(file_disk(&scratch));
    pool.model = Some("hdd".to_owned());
    let daemon = start(&scratch, pool);
    let mut client = Client::connect(&scratch.socket(), options()).unwrap();
    let mut data = [0; 4096];
    for (round, sector) in [4000, 16, 7000, 2000].into_iter().enumerate() {
        let mark = u8::try_from(round).unwrap() + 1;
        let status = client.call(&Io::new(IoOp::Write, sector, 4096, 0), &mut [mark; 4096]);
        assert_eq!(status.unwrap(), OK);
        assert_eq!(client.call(&Io::new(IoOp::Flush, 0, 0, 0), &mut []).unwrap(), OK);
        assert_eq!(client.call(&Io::new(IoOp::Read, sector, 4096, 0), &mut data).unwrap(), OK);
        assert_eq!(data, [mark; 4096]);
    }
    let status = daemon.status();
    assert_eq!(status.pools[0].device, "hdd");
    // Flushes have to wait for the platter; the file alone would take a hundredth of that.
    assert!(status.disk("disk").unwrap().service_time.p99_us > 1000.0, "{status:?}");
    daemon.shutdown();
}

#[test]
fn a_disk_serves_one_vmm_after_the_other() {
    let scratch = Scratch::new(&std::env::temp_dir(), "turns");
    let daemon = start(&scratch, pool(file_disk(&scratch)));
    for round in 0..5_u8 {
        let mut client = Client::connect(&scratch.socket(), options()).unwrap();
        let mut data = [0; 512];
        assert_eq!(client.call(&Io::new(IoOp::Read, 0, 512, 0), &mut data).unwrap(), OK);
        assert_eq!(data, [round; 512]);
        // The last write is still on its way when this VMM is gone.
        let token = client.submit(1, &Io::new(IoOp::Write, 0, 512, 0)).unwrap();
        client.write_data(token, 0, &[round + 1; 512]);
        client.publish();
        while client.next_completion().unwrap().is_none() {
            if !client.arm() {
                assert_eq!(client.wait(Duration::from_secs(60)).unwrap(), Wake::Answers);
            }
        }
    }
    daemon.shutdown();
}

#[test]
fn a_daemon_that_ends_leaves_its_images_and_sockets_to_the_next() {
    let scratch = Scratch::new(&std::env::temp_dir(), "next");
    let mut client = None;
    for round in 0..3 {
        let daemon = start(&scratch, pool(file_disk(&scratch)));
        let client = match &mut client {
            Some(client) => {
                Client::reconnect(client).unwrap();
                client
            }
            none => none.insert(Client::connect(&scratch.socket(), options()).unwrap()),
        };
        let io = Io::new(IoOp::Write, round * 8, 4096, 0);
        assert_eq!(client.call(&io, &mut [7; 4096]).unwrap(), OK);
        daemon.shutdown();
        daemon.shutdown();
        assert!(!scratch.socket().exists());
    }
    assert_eq!(fs::read(scratch.image()).unwrap()[..3 * 4096], [7; 3 * 4096]);
}

#[test]
fn a_socket_that_another_daemon_serves_is_refused_and_a_dead_one_is_replaced() {
    let scratch = Scratch::new(&std::env::temp_dir(), "socket");
    let null = || pool(Disk::new(Source::Null { size_bytes: 1 << 20 }));
    drop(std::os::unix::net::UnixListener::bind(scratch.socket()).unwrap());
    let first = start(&scratch, null());
    let config = Config { pools: [("pool".to_owned(), null())].into(), ..Config::default() };
    let error = Daemon::start(&config, &scratch.0).unwrap_err();
    assert!(error.to_string().contains("another process serves this socket"), "{error}");
    assert!(scratch.socket().exists(), "the refusal must not take the living one's socket");
    drop(Client::connect(&scratch.socket(), options()).unwrap());
    first.shutdown();
}

#[test]
fn weights_can_be_changed_while_disks_are_served() {
    let scratch = Scratch::new(&std::env::temp_dir(), "weight");
    let daemon = start(&scratch, pool(Disk::new(Source::Null { size_bytes: 1 << 20 })));
    daemon.set_weight("disk", 250).unwrap();
    assert_eq!(daemon.status().disk("disk").unwrap().weight, 250);
    assert!(daemon.set_weight("nobody", 250).is_err());
    daemon.shutdown();
    assert!(daemon.set_weight("disk", 100).is_err());
}

/// A file system of a given size, for root only.
struct Small(Scratch);

impl Small {
    fn mount(name: &str, kib: u32) -> Option<Self> {
        let scratch = Scratch::new(&std::env::temp_dir(), name);
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "evenkeel"])
            .arg(&scratch.0)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(Self(scratch))
    }

    fn grow(&self, kib: u32) {
        let option = format!("remount,size={kib}k");
        let status = Command::new("mount").args(["-o", &option]).arg(&self.0.0).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0.0).status();
    }
}

/// Takes answers until all other of so many requests wait for room, and nothing moves any more.
///
/// A write that went to the device with others may be answered late: each is tried once more alone.
fn wait_until_full(daemon: &Daemon, client: &mut Client, answered: &mut u64, requests: u64) {
    loop {
        let status = daemon.status();
        let disk = status.disk("disk").unwrap();
        while let Some(completion) = client.next_completion().unwrap() {
            assert_eq!(completion.status, OK);
            *answered += 1;
        }
        let settled = disk.in_flight == 0 && disk.no_room > 0;
        if settled && u64::from(disk.waiting) + *answered == requests {
            return;
        }
    }
}

#[test]
fn a_write_that_finds_the_file_system_full_waits_for_room() {
    let Some(small) = Small::mount("full", 1024) else {
        eprintln!("skipped: only root may mount a small file system");
        return;
    };
    let daemon = start(&small.0, pool(file_disk(&small.0)));
    let mut client = Client::connect(&small.0.socket(), options()).unwrap();
    let blocks = 2 * (1 << 20) / (64 << 10);
    for block in 0..blocks {
        let io = Io::new(IoOp::Write, block * 128, 64 << 10, block);
        let token = client.submit(0, &io).unwrap();
        client.write_data(token, 0, &vec![u8::try_from(block).unwrap() + 1; 64 << 10]);
    }
    client.publish();
    let mut answered = 0;
    // Half of it fits; the rest is kept, and nothing is at the device.
    wait_until_full(&daemon, &mut client, &mut answered, blocks);
    small.grow(8192);
    while answered < blocks {
        while let Some(completion) = client.next_completion().unwrap() {
            assert_eq!(completion.status, OK);
            answered += 1;
        }
        if answered < blocks && !client.arm() {
            assert_eq!(client.wait(Duration::from_secs(60)).unwrap(), Wake::Answers);
        }
    }
    daemon.shutdown();
    let image = fs::read(small.0.image()).unwrap();
    for (block, bytes) in image.chunks(64 << 10).take(usize::try_from(blocks).unwrap()).enumerate()
    {
        assert!(bytes.iter().all(|&byte| usize::from(byte) == block + 1), "block {block}");
    }
}

#[test]
fn a_daemon_ends_though_requests_wait_for_room() {
    let Some(small) = Small::mount("drain", 1024) else {
        eprintln!("skipped: only root may mount a small file system");
        return;
    };
    let daemon = start(&small.0, pool(file_disk(&small.0)));
    let mut client = Client::connect(&small.0.socket(), options()).unwrap();
    let blocks = 2 * (1 << 20) / (64 << 10);
    for block in 0..blocks {
        client.submit(0, &Io::new(IoOp::Write, block * 128, 64 << 10, block)).unwrap();
    }
    client.publish();
    let mut answered = 0;
    wait_until_full(&daemon, &mut client, &mut answered, blocks);
    // The last block found no room; a read of it waits behind the write. It comes by a vring of
    // its own: if all writes went to the device as one, none is answered and theirs is full.
    let last = Io::new(IoOp::Read, (blocks - 1) * 128, 512, blocks);
    client.submit(1, &last).unwrap();
    client.publish();
    wait_until_full(&daemon, &mut client, &mut answered, blocks + 1);
    daemon.shutdown();
}
