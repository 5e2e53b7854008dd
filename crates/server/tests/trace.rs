//! A trace holds every request that a client sent, and nothing else.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_bench::client::{Client, Io, IoOp, Options, Wake};
use evenkeel_server::Daemon;
use evenkeel_server::api::Control as _;
use evenkeel_wire::trace::{TraceOp, TraceReader, TraceRecord, TraceStatus};
use evenkeel_wire::{Config, Disk, Pool, Scheduler, Source, Trust, Vm};

const DISK_BYTES: u64 = 8 << 20;
const ROUNDS: u64 = 40;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn pool(dir: &Path, scheduler: Scheduler) -> Pool {
    let disk = |name: &str| Disk {
        create_bytes: Some(DISK_BYTES),
        ..Disk::new(Source::Path(dir.join(name)))
    };
    let db = Disk { vm: Some("shop".to_owned()), write_cache: false, ..disk("db.img") };
    let shop = Vm { weight: 300, trust: Some(Trust::None), ..Vm::default() };
    Pool {
        scheduler: Some(scheduler),
        trace: Some(dir.join("main.trace")),
        vms: [("shop".to_owned(), shop)].into(),
        disks: [("db".to_owned(), db), ("web".to_owned(), disk("web.img"))].into(),
        ..Pool::default()
    }
}

/// What the client knows of a request: vring, operation, sector, sectors, priority, status.
type Sent = (u16, TraceOp, u64, u32, u32, TraceStatus);

/// Sends reads, writes and the rest through every vring, many at a time, some of them side by side
/// so that they are merged; returns what it sent, sorted.
fn load(client: &mut Client, vrings: u16) -> Vec<Sent> {
    let mut sent = Vec::new();
    for round in 0..ROUNDS {
        for vring in 0..vrings {
            let base = (round * 97 + u64::from(vring) * 4001) % 12_000 * 8 % 16_000;
            let ios = [
                (IoOp::Write, TraceOp::Write, base, 4096, 0x4002),
                (IoOp::Read, TraceOp::Read, base + 8, 512, 0),
                (IoOp::Read, TraceOp::Read, base + 9, 1024, 0),
                (IoOp::WriteZeroes { unmap: true }, TraceOp::WriteZeroes, base + 64, 8192, 0),
                (IoOp::Discard, TraceOp::Discard, base + 128, 65_536, 0x6000),
                (IoOp::Flush, TraceOp::Flush, 0, 0, 0),
            ];
            for (op, recorded, sector, bytes, ioprio) in ios {
                let io = Io { ioprio, ..Io::new(op, sector, bytes, 0) };
                client.submit(vring, &io).unwrap();
                sent.push((vring, recorded, sector, bytes / 512, ioprio, TraceStatus::Ok));
            }
            // Not requests that a scheduler sees.
            client.submit(vring, &Io::new(IoOp::Read, DISK_BYTES / 512, 512, 0)).unwrap();
            client.submit(vring, &Io::new(IoOp::GetId, 0, 20, 0)).unwrap();
        }
        client.publish();
        let mut left = u64::from(vrings) * 8;
        while left > 0 {
            while client.next_completion().unwrap().is_some() {
                left -= 1;
            }
            if left > 0 && !client.arm() {
                assert_eq!(client.wait(Duration::from_secs(60)).unwrap(), Wake::Answers);
            }
        }
    }
    sent.sort_by_key(|sent| format!("{sent:?}"));
    sent
}

fn recorded(records: &[TraceRecord], disk: u32) -> Vec<Sent> {
    let of_disk = records.iter().filter(|record| record.disk == disk);
    let mut sent: Vec<Sent> =
        of_disk.map(|r| (r.queue, r.op, r.sector, r.nr_sectors, r.ioprio, r.status)).collect();
    sent.sort_by_key(|sent| format!("{sent:?}"));
    sent
}

fn every_request_is_in_the_trace(scheduler: Scheduler) {
    let scratch = Scratch::new(&format!("trace-{scheduler}"));
    let config = Config {
        pools: [("main".to_owned(), pool(&scratch.0, scheduler))].into(),
        ..Config::default()
    };
    let daemon = Daemon::start(&config, &scratch.0).unwrap();
    let connect = |name: &str, vrings| {
        let options = Options { vrings, max_bytes: 64 << 10, ..Options::default() };
        Client::connect(&scratch.0.join(name), options).unwrap()
    };
    let (mut web, mut db) = (connect("web.sock", 3), connect("db.sock", 1));
    let (sent_web, sent_db) = (load(&mut web, 3), load(&mut db, 1));
    let status = daemon.status();
    assert_eq!(status.pools[0].trace.as_ref().unwrap().dropped, 0);
    daemon.shutdown();

    let bytes = fs::read(scratch.0.join("main.trace")).unwrap();
    let mut reader = TraceReader::new(&bytes).unwrap();
    let records = reader.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    assert!(reader.is_complete() && reader.dropped() == 0);
    let header = reader.header();
    assert_eq!((header.pool.as_str(), header.scheduler.as_str()), ("main", scheduler.as_str()));
    assert_eq!((header.device.as_str(), header.depth > 0), ("real", true));
    let disks: Vec<_> = header
        .disks
        .iter()
        .map(|d| (d.name.as_str(), d.vm.as_str(), d.weight, d.heeds_priority, d.write_through))
        .collect();
    assert_eq!(disks, [("db", "shop", 300, false, true), ("web", "web", 100, true, false)]);
    assert!(header.disks.iter().all(|disk| disk.sectors == DISK_BYTES / 512));

    assert_eq!(recorded(&records, 1), sent_web);
    assert_eq!(recorded(&records, 0), sent_db);
    // Times are those of the daemon's own figures.
    for (name, disk) in [("db", 0), ("web", 1)] {
        let of_disk = || records.iter().filter(move |record| record.disk == disk);
        let count = of_disk().count() as u64;
        let figures = status.disk(name).unwrap();
        assert_eq!(figures.requests, count);
        let mean = |sum: u64| sum / count;
        let told = |mean_us: f64| Duration::from_secs_f64(mean_us / 1e6).as_nanos();
        let wait = mean(of_disk().map(|record| record.wait_ns).sum());
        let service = mean(of_disk().map(|record| record.service_ns).sum());
        assert_eq!(u128::from(wait), told(figures.queue_time.mean_us));
        assert_eq!(u128::from(service), told(figures.service_time.mean_us));
    }
}

#[test]
fn every_request_is_in_the_trace_with_noop() {
    every_request_is_in_the_trace(Scheduler::Noop);
}

#[test]
fn every_request_is_in_the_trace_with_bfq() {
    every_request_is_in_the_trace(Scheduler::Bfq);
}

#[test]
fn a_daemon_without_a_trace_tells_of_none_and_writes_none() {
    let scratch = Scratch::new("trace-none");
    let pool = Pool { trace: None, ..pool(&scratch.0, Scheduler::Noop) };
    let config = Config { pools: [("main".to_owned(), pool)].into(), ..Config::default() };
    let daemon = Daemon::start(&config, &scratch.0).unwrap();
    assert_eq!(daemon.status().pools[0].trace, None);
    daemon.shutdown();
    let names = fs::read_dir(&scratch.0).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["db.img", "web.img"]);
}

#[test]
fn a_trace_that_cannot_be_written_is_refused_before_anything_is_served() {
    let scratch = Scratch::new("trace-refused");
    let trace = Some(scratch.0.join("nowhere/main.trace"));
    let pool = Pool { trace, ..pool(&scratch.0, Scheduler::Noop) };
    let config = Config { pools: [("main".to_owned(), pool)].into(), ..Config::default() };
    let error = Daemon::start(&config, &scratch.0).unwrap_err().to_string();
    assert!(error.starts_with("pool main: cannot write the trace"), "{error}");
    assert!(error.contains("choose a directory that is there"), "{error}");
}
