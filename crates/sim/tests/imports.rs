//! Recordings of other programs. The samples are real: fio 3.33 wrote the log; the kernel's blk
//! tracer (Linux 6.18, a loop device) wrote the binary events, of which whole ranges of time and
//! those of plugging were left out; blkparse 1.2.0 printed these as the text.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use evenkeel_sched::Nanos;
use evenkeel_sim::IoOp;
use evenkeel_sim::replay::{
    Arrival, InputFormat, Kind, Pace, ReadError, ReplayError, ReplayOptions, Taken, Workload, read,
    run,
};
use proptest::prelude::*;

const FIO: &[u8] = include_bytes!("samples/fio-3.iolog");
const BINARY: &[u8] = include_bytes!("samples/loop.blktrace");
const TEXT: &[u8] = include_bytes!("samples/loop.blkparse");

fn options(pace: Pace) -> ReplayOptions {
    let schedulers = vec![Kind::Deadline, Kind::Bfq];
    ReplayOptions { schedulers, device: "hdd".parse().unwrap(), depth: None, pace }
}

fn count(workload: &Workload, op: IoOp) -> usize {
    workload.requests.iter().filter(|request| request.op == op).count()
}

fn taken(wait: u64, service: u64) -> Option<Taken> {
    Some(Taken { wait: Nanos(wait), service: Nanos(service) })
}

#[test]
fn a_log_of_fio_is_recognised_and_replayed() {
    let workload = read(FIO, None).unwrap();
    assert_eq!([IoOp::Read, IoOp::Write, IoOp::Flush].map(|op| count(&workload, op)), [10, 6, 4]);
    let first = workload.requests[0];
    assert_eq!((first.at, first.op), (Nanos::from_micros(307), IoOp::Read));
    assert_eq!((first.sector, first.nr_sectors), (4_046_848 / 512, 8));
    assert_eq!(workload.disks.len(), 1);
    assert_eq!(workload.disks[0].name, "x.img");
    let report = run(&workload, &options(Pace::Open)).unwrap();
    assert!(report.rows.iter().all(|row| row.requests == 20 && row.scheduler != "recorded"));
    let source = "a log of fio".to_owned();
    let error = run(&workload, &options(Pace::Closed)).unwrap_err();
    assert_eq!(error, ReplayError::NoDurations { source });
}

#[test]
fn events_of_the_kernel_become_requests_with_their_times() {
    let workload = read(BINARY, None).unwrap();
    assert_eq!(workload.requests.len(), 29);
    let of = |op| workload.requests.iter().filter(move |request| request.op == op);
    let first = workload.requests[0];
    let expected = Arrival {
        at: Nanos::ZERO,
        disk: 0,
        op: IoOp::Read,
        sector: 7904,
        nr_sectors: 8,
        ioprio: 0,
        recorded: taken(26_232, 40_924),
    };
    assert_eq!(first, expected);
    // The kernel merged sixteen writes into one command.
    let merged: Vec<_> = of(IoOp::Write).filter(|write| write.sector < 128).collect();
    assert_eq!(merged.len(), 16);
    let issued = Nanos(267_606_472);
    for write in merged {
        assert_eq!(write.recorded, taken((issued - write.at).0, 269_985_038 - issued.0));
    }
    let discards: Vec<_> = of(IoOp::Discard).map(|d| (d.nr_sectors, d.recorded)).collect();
    assert_eq!(discards, [(2048, taken(17_468, 5_790_032))]);
    // The end of the second flush is in what was left out.
    let flushes: Vec<_> = of(IoOp::Flush).map(|flush| flush.recorded).collect();
    assert_eq!(flushes, [taken(26_427, 5_628_381), None]);
    let disk = &workload.disks[0];
    assert_eq!((disk.name.as_str(), workload.disks.len()), ("7,0", 1));
    assert!(workload.notes[0].starts_with("1 of 29 requests"), "{:?}", workload.notes);
    for pace in [Pace::Open, Pace::Closed] {
        let report = run(&workload, &options(pace)).unwrap();
        let all: Vec<_> = report.rows.iter().filter(|row| row.disk == "(all)").collect();
        assert_eq!(all.iter().map(|row| row.requests).collect::<Vec<_>>(), [28, 29, 29]);
    }
}

#[test]
fn what_blkparse_prints_says_the_same_as_what_it_read() {
    let mut text = read(TEXT, None).unwrap();
    assert_eq!(text.source, "output of blkparse");
    text.source = "a recording of blktrace".to_owned();
    assert_eq!(text, read(BINARY, None).unwrap());
}

#[test]
fn files_of_several_processors_may_stand_behind_one_another_in_any_order() {
    let (first, second) = BINARY.split_at(48 * 31);
    let turned = [second, first].concat();
    assert_eq!(read(&turned, None), read(BINARY, None));
}

#[test]
fn big_endian_events_say_the_same() {
    let mut turned = BINARY.to_vec();
    for event in turned.chunks_exact_mut(48) {
        for (start, length) in
            [(0, 4), (4, 4), (8, 8), (16, 8), (24, 4), (28, 4), (32, 4), (36, 4), (40, 4)]
        {
            event[start..start + length].reverse();
        }
        event[44..46].reverse();
        event[46..48].reverse();
    }
    assert_eq!(read(&turned, None), read(BINARY, None));
}

#[test]
fn damage_is_told_with_its_place() {
    let mut bytes = BINARY.to_vec();
    bytes[48] = 6;
    let ReadError::Trace(error) = read(&bytes, None).unwrap_err() else { unreachable!("bytes") };
    assert_eq!((error.offset, error.problem.as_str()), (48, "an event of another version than 7"));
    bytes[51] = 0;
    let ReadError::Trace(error) = read(&bytes, None).unwrap_err() else { unreachable!("bytes") };
    assert_eq!(error.problem, "no event of blktrace begins here");
    let cut = read(&BINARY[..BINARY.len() - 5], None).unwrap();
    assert!(cut.notes.iter().any(|note| note.contains("is cut")), "{:?}", cut.notes);
    let text = String::from_utf8(TEXT.to_vec()).unwrap().replacen("0.000000000", "soon", 1);
    let ReadError::Line(error) = read(text.as_bytes(), None).unwrap_err() else {
        unreachable!("a text")
    };
    assert_eq!(error.to_string(), "line 1: no time; give the default output of blkparse");
    let forced = read(TEXT, Some(InputFormat::Fio)).unwrap_err();
    assert!(forced.to_string().contains("fio --write_iolog"), "{forced}");
}

#[test]
fn a_split_request_ends_with_its_last_part() {
    let text = "8,0 0 1 0.000000000 1 Q W 100 + 16 [a b]\n8,0 0 2 0.000001000 1 D W 100 + 8 [x]\n\
                8,0 0 3 0.000002000 1 D W 108 + 8 [x]\n8,0 0 4 0.000005000 0 C W 108 + 8 [0]\n\
                8,0 0 5 0.000009000 0 C W 100 + 8 [0]\n";
    let workload = read(text.as_bytes(), None).unwrap();
    let requests: Vec<_> = workload.requests.iter().map(|request| request.recorded).collect();
    assert_eq!(requests, [taken(1000, 8000)]);
}

#[test]
fn two_reads_of_one_place_are_told_apart() {
    let text = "8,0 0 1 0.000000000 1 Q R 100 + 8 [a]\n8,0 0 2 0.000001000 1 D R 100 + 8 [a]\n\
                8,0 0 3 0.000002000 1 Q R 100 + 8 [b]\n8,0 0 4 0.000005000 1 D R 100 + 8 [b]\n\
                8,0 0 5 0.000006000 0 C R 100 + 8 [0]\n8,0 0 6 0.000009000 0 C R 100 + 8 [0]\n";
    let workload = read(text.as_bytes(), None).unwrap();
    let requests: Vec<_> = workload.requests.iter().map(|request| request.recorded).collect();
    assert_eq!(requests, [taken(1000, 5000), taken(3000, 4000)]);
}

proptest! {
    #[test]
    fn hostile_recordings_never_panic_and_what_comes_out_can_be_replayed(
        which in 0..3_usize,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
    ) {
        let (sample, format) = [
            (FIO, InputFormat::Fio), (BINARY, InputFormat::Blktrace), (TEXT, InputFormat::Blkparse),
        ][which];
        let mut bytes = sample.to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(workload) = read(&bytes, Some(format)) {
            for request in &workload.requests {
                let end = request.sector + u64::from(request.nr_sectors);
                prop_assert!(end <= workload.disks[request.disk as usize].sectors);
            }
            let _refused_or_not = run(&workload, &options(Pace::Open));
        }
    }
}
