//! Recorded requests on modelled devices.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use evenkeel_sched::{Nanos, Weight};
use evenkeel_sim::IoOp;
use evenkeel_sim::replay::{
    Arrival, Kind, Pace, ReadError, ReplayDisk, ReplayError, ReplayOptions, Report, ReportRow,
    Taken, Workload, read, run,
};
use evenkeel_wire::trace::{TraceBlock, TraceDisk, TraceHeader, TraceOp, TraceRecord, TraceStatus};

fn options(schedulers: &[Kind], device: &str) -> ReplayOptions {
    ReplayOptions {
        schedulers: schedulers.to_vec(),
        device: device.parse().unwrap(),
        depth: None,
        pace: Pace::Open,
    }
}

fn disk(name: &str, weight: u64) -> ReplayDisk {
    ReplayDisk {
        name: name.to_owned(),
        vm: name.to_owned(),
        weight: Weight::new(weight).unwrap(),
        sectors: 1 << 26,
        heeds_priority: true,
        write_through: false,
    }
}

fn read_at(ms: u64, disk: u32, sector: u64) -> Arrival {
    Arrival {
        at: Nanos::from_millis(ms),
        disk,
        op: IoOp::Read,
        sector,
        nr_sectors: 8,
        ioprio: 0,
        recorded: Some(Taken { wait: Nanos::from_micros(10), service: Nanos::from_micros(90) }),
    }
}

/// A disk that floods another, which reads a little now and then.
fn flood() -> Workload {
    let mut requests = Vec::new();
    for ms in 0..400 {
        for of_ms in 0..4 {
            let sector = (ms * 4 + of_ms) * 7_919_993 % (1 << 25);
            requests.push(read_at(ms, 0, sector / 8 * 8));
        }
        if ms % 50 == 10 {
            requests.push(read_at(ms, 1, ms * 8));
        }
    }
    let source = "a flood".to_owned();
    let disks = vec![disk("flood", 100), disk("small", 100)];
    Workload { source, disks, requests, notes: Vec::new() }
}

fn row<'a>(report: &'a Report, disk: &str, scheduler: &str) -> &'a ReportRow {
    let found = report.rows.iter().find(|row| row.disk == disk && row.scheduler == scheduler);
    found.unwrap()
}

#[test]
fn a_lone_request_takes_what_the_device_takes_and_waits_for_nobody() {
    let workload = Workload {
        disks: vec![disk("web", 100)],
        requests: (0..10).map(|n| read_at(1000 * n, 0, 4096 * n)).collect(),
        ..Workload::default()
    };
    let report = run(&workload, &options(&[Kind::Noop, Kind::Bfq], "ssd")).unwrap();
    for scheduler in ["noop", "bfq"] {
        let row = row(&report, "web", scheduler);
        assert_eq!((row.requests, row.wait.p999_us), (10, 0.0));
        assert!(row.service.mean_us > 10.0 && row.total == row.service, "{row:?}");
    }
    let recorded = row(&report, "web", "recorded");
    assert_eq!((recorded.wait.p50_us, recorded.service.p99_us), (10.0, 90.0));
    assert_eq!(recorded.total.mean_us, 100.0);
    assert_eq!(report.spans[0].seconds, 9.0001);
}

#[test]
fn bfq_spares_a_small_reader_the_flood_that_noop_puts_before_it() {
    let report = run(&flood(), &options(&[Kind::Noop, Kind::Bfq], "hdd")).unwrap();
    let wait = |scheduler| row(&report, "small", scheduler).wait.mean_us;
    assert!(wait("bfq") * 10.0 < wait("noop"), "{} against {}", wait("bfq"), wait("noop"));
    for disk in ["flood", "small", "(all)"] {
        assert_eq!(row(&report, disk, "noop").requests, row(&report, disk, "recorded").requests);
    }
    let disks: Vec<_> = report.rows.iter().map(|row| row.disk.as_str()).collect();
    assert_eq!(disks, [["flood"; 3], ["small"; 3], ["(all)"; 3]].concat());
}

#[test]
fn guests_that_wait_for_answers_never_pile_up() {
    let one_by_one = Workload {
        disks: vec![disk("web", 100)],
        requests: (0..200).map(|n| read_at(n, 0, n * 7_919_993 % (1 << 25))).collect(),
        ..Workload::default()
    };
    let open = run(&one_by_one, &options(&[Kind::Noop], "hdd")).unwrap();
    assert!(row(&open, "web", "noop").wait.p50_us > 100_000.0);
    let closed = ReplayOptions { pace: Pace::Closed, ..options(&[Kind::Noop], "hdd") };
    let closed = run(&one_by_one, &closed).unwrap();
    assert_eq!(row(&closed, "web", "noop").wait.p999_us, 0.0);
    // 0.9 ms of thought before each but the first.
    let service = row(&closed, "web", "noop").service.mean_us / 1e6 * 200.0;
    let span = closed.spans[1].seconds;
    assert!((span - service - 199.0 * 0.0009).abs() < 0.001, "{span} and {service}");
}

#[test]
fn every_request_of_every_kind_is_answered_by_every_scheduler_on_every_device() {
    let ops = [IoOp::Read, IoOp::Write, IoOp::Flush, IoOp::Discard, IoOp::WriteZeroes];
    let requests = (0..600_u64).map(|n| {
        let op = ops[usize::try_from(n % 5).unwrap()];
        let (sector, nr_sectors) =
            if op == IoOp::Flush { (0, 0) } else { (n * 104_729 % 5000, 1 + 8 * (n % 3) as u32) };
        let ioprio = if n % 7 == 0 { 0x6000 } else { 0 };
        let request = read_at(n / 20, u32::from(n % 3 == 0), sector);
        Arrival { op, nr_sectors, ioprio, ..request }
    });
    let disks = vec![disk("a", 1), ReplayDisk { write_through: true, ..disk("b", 1000) }];
    let workload = Workload { disks, requests: requests.collect(), ..Workload::default() };
    for device in evenkeel_sim::MODELS {
        for pace in [Pace::Open, Pace::Closed] {
            let options = ReplayOptions { pace, ..options(&Kind::ALL, device) };
            let report = run(&workload, &options).unwrap();
            let all = report.rows.iter().filter(|row| row.disk == "(all)");
            assert!(all.clone().all(|row| row.requests == 600));
            assert_eq!(all.count(), 1 + Kind::ALL.len());
        }
    }
}

#[test]
fn the_same_requests_give_the_same_report_to_the_last_byte() {
    let report = || run(&flood(), &options(&Kind::ALL, "hdd")).unwrap();
    let (first, second) = (report(), report());
    assert_eq!((first.table(), first.csv()), (second.table(), second.csv()));
    assert_eq!(first, second);
}

fn trace(records: &[TraceRecord]) -> Vec<u8> {
    let disk = |name: &str| TraceDisk {
        name: name.to_owned(),
        vm: "shop".to_owned(),
        weight: 300,
        sectors: 1 << 20,
        heeds_priority: false,
        write_through: true,
    };
    let header = TraceHeader {
        pool: "main".to_owned(),
        scheduler: "bfq".to_owned(),
        device: "real".to_owned(),
        disks: vec![disk("web"), disk("db\n")],
        ..TraceHeader::default()
    };
    let mut bytes = header.encode();
    let mut block = TraceBlock::new(4096);
    records.iter().for_each(|record| block.push(record));
    bytes.extend(block.seal(3, false));
    bytes
}

#[test]
fn a_trace_becomes_a_workload_in_the_order_of_arrival() {
    let record = |arrived_ns, op, sector, nr_sectors| TraceRecord {
        arrived_ns,
        disk: 1,
        queue: 0,
        op,
        status: TraceStatus::Ok,
        sector,
        nr_sectors,
        ioprio: 0x4002,
        wait_ns: 5,
        service_ns: 7,
    };
    let bytes = trace(&[
        record(900, TraceOp::Flush, 0, 0),
        record(100, TraceOp::Write, 8, 16),
        record(500, TraceOp::Discard, 64, 8),
    ]);
    let workload = read(&bytes, None).unwrap();
    assert_eq!(workload.source, "pool main (recorded with bfq on real)");
    let db = &workload.disks[1];
    assert_eq!((db.name.as_str(), db.vm.as_str(), db.weight.value()), ("db?", "shop", 300));
    assert!(db.write_through && !db.heeds_priority);
    let requests: Vec<_> =
        workload.requests.iter().map(|r| (r.at.0, r.op, r.sector, r.nr_sectors)).collect();
    assert_eq!(
        requests,
        [(100, IoOp::Write, 8, 16), (500, IoOp::Discard, 64, 8), (900, IoOp::Flush, 0, 0)]
    );
    let taken = Taken { wait: Nanos(5), service: Nanos(7) };
    assert!(workload.requests.iter().all(|r| r.recorded == Some(taken) && r.ioprio == 0x4002));
    assert_eq!(workload.notes.len(), 2, "{:?}", workload.notes);
    let report = run(&workload, &options(&[Kind::Deadline], "nvme")).unwrap();
    assert!(report.table().contains("3 requests are missing"), "{}", report.table());
}

#[test]
fn what_cannot_be_replayed_is_refused_with_what_to_do() {
    let error = read(b"hello", None).unwrap_err();
    assert!(error.to_string().starts_with("none of the formats evenkeel"), "{error}");
    let mut bytes = trace(&[]);
    let options = options(&[Kind::Noop], "ssd");
    let nothing = run(&read(&bytes, None).unwrap(), &options).unwrap_err();
    assert_eq!(nothing, ReplayError::Nothing);
    bytes.push(b'?');
    bytes.extend([0; 40]);
    let ReadError::Trace(error) = read(&bytes, None).unwrap_err() else { unreachable!("a trace") };
    assert_eq!(error.problem, "no block begins here");
    let mut unknown = flood();
    unknown.requests.iter_mut().for_each(|request| request.recorded = None);
    let closed = ReplayOptions { pace: Pace::Closed, ..options };
    let error = run(&unknown, &closed).unwrap_err();
    assert!(error.to_string().ends_with("replay it without --closed"), "{error}");
    unknown.disks[0].sectors = u64::MAX;
    assert_eq!(run(&unknown, &closed).unwrap_err(), ReplayError::TooLarge);
}
