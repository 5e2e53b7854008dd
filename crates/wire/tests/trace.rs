//! Traces: what is written comes back, and what is damaged is told.

use evenkeel_wire::trace::{
    TRACE_TIME_MAX_NS, TraceBlock, TraceDisk, TraceError, TraceHeader, TraceOp, TraceReader,
    TraceRecord, TraceStatus,
};
use proptest::prelude::*;

fn header() -> TraceHeader {
    let disk = |name: &str, sectors| TraceDisk {
        name: name.to_owned(),
        vm: "shop".to_owned(),
        weight: 300,
        sectors,
        heeds_priority: true,
        write_through: name == "db",
    };
    TraceHeader {
        started_unix_ns: 1_764_000_000_000_000_000,
        pool: "main".to_owned(),
        scheduler: "bfq".to_owned(),
        device: "hdd:rpm=5400".to_owned(),
        depth: 4,
        disks: vec![disk("web", 1 << 30), disk("db", u64::MAX)],
    }
}

fn read() -> TraceRecord {
    TraceRecord {
        arrived_ns: 1_000_000,
        disk: 0,
        queue: 3,
        op: TraceOp::Read,
        status: TraceStatus::Ok,
        sector: 4096,
        nr_sectors: 8,
        ioprio: 0,
        wait_ns: 50_000,
        service_ns: 100_000,
    }
}

/// Writes records into blocks of a size, as the daemon does.
fn write(header: &TraceHeader, records: &[TraceRecord], block_bytes: usize) -> Vec<u8> {
    let mut bytes = header.encode();
    let mut block = TraceBlock::new(block_bytes);
    for record in records {
        if !block.has_room() {
            bytes.extend(block.seal(0, false));
            block.clear();
        }
        block.push(record);
    }
    bytes.extend(block.seal(7, true));
    bytes
}

type Everything = (Vec<TraceRecord>, u64, bool, Option<TraceError>);

/// Reads as far as possible.
fn read_all(bytes: &[u8]) -> Result<Everything, TraceError> {
    let mut reader = TraceReader::new(bytes)?;
    let (mut records, mut error) = (Vec::new(), None);
    for record in &mut reader {
        match record {
            Ok(record) => records.push(record),
            Err(wrong) => error = Some(wrong),
        }
    }
    Ok((records, reader.dropped(), reader.is_complete(), error))
}

#[test]
fn a_header_comes_back_and_records_of_a_steady_load_are_small() {
    let records: Vec<_> = (0..1000)
        .map(|n| TraceRecord { arrived_ns: n * 80_000, sector: 8 * (n * 7919 % 100_000), ..read() })
        .collect();
    let bytes = write(&header(), &records, 4096);
    assert_eq!(TraceReader::new(&bytes).unwrap().header(), &header());
    assert_eq!(read_all(&bytes), Ok((records, 7, true, None)));
    let per_record = (bytes.len() - header().encode().len()) / 1000;
    assert!(per_record <= 15, "{per_record} bytes a record");
}

#[test]
fn a_trace_that_was_cut_is_good_up_to_its_last_whole_block() {
    let records = vec![read(); 20];
    let bytes = write(&header(), &records, 128);
    let whole = read_all(&bytes).unwrap().0.len();
    assert_eq!(whole, 20);
    for end in header().encode().len()..bytes.len() {
        let (good, _, is_complete, error) = read_all(&bytes[..end]).unwrap();
        assert!(good.len() < 20 && !is_complete, "cut at {end}");
        assert!(good.iter().all(|record| *record == read()));
        assert!(error.is_none_or(|error| error.is_cut && error.offset == end as u64));
    }
}

#[test]
fn other_files_and_other_versions_are_refused_with_what_to_do() {
    let error = TraceReader::new(b"fio version 2 iolog\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "byte 0: not a trace; give a file that evenkeel serve --trace has written"
    );
    let mut bytes = write(&header(), &[], 128);
    bytes[8] = 2;
    let error = TraceReader::new(&bytes).unwrap_err();
    assert_eq!(
        error.to_string(),
        "byte 8: a trace of version 2, not 1; read it with the evenkeel that wrote it, or a newer \
         one"
    );
}

#[test]
fn damage_is_told_with_its_place() {
    let start = header().encode().len();
    let good = write(&header(), &[read()], 128);
    let record = start + 24;
    let problem = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        let error = read_all(&bytes).unwrap().3.unwrap();
        assert!(!error.is_cut, "{error}");
        (error.offset, error.problem)
    };
    assert_eq!(problem(start, b'X'), (start as u64, "no block begins here".to_owned()));
    assert_eq!(problem(start + 6, 0xff).0, start as u64 + 4);
    assert_eq!(problem(start + 12, 2).1, "unknown flags 0x2");
    assert_eq!(problem(start + 8, 0).1, "more bytes than records in a block");
    assert_eq!(problem(start + 8, 2).1, "fewer bytes than records in a block");
    assert_eq!(problem(record, 7), (record as u64, "an unknown operation".to_owned()));
    assert_eq!(problem(record, 3 << 3 | 1 << 6).1, "an unknown status");
    assert_eq!(problem(record + 1, 2).1, "no such disk");
    let behind = [good, vec![0]].concat();
    assert_eq!(read_all(&behind).unwrap().3.unwrap().problem, "bytes behind the end of the trace");
}

fn any_record() -> impl Strategy<Value = TraceRecord> {
    let place = (0..2_u32, any::<u16>(), 0..5_usize, 0..3_usize);
    let extent = (0..u64::MAX / 2, 1..=u32::MAX, any::<u32>());
    let time = 0..=TRACE_TIME_MAX_NS / 3;
    (place, extent, (time.clone(), time.clone(), time), any::<bool>()).prop_map(
        |((disk, queue, op, status), (sector, nr_sectors, ioprio), times, has_ioprio)| {
            let op = TraceOp::ALL[op];
            let is_flush = op == TraceOp::Flush;
            let sector = if disk == 0 { sector % ((1 << 30) - (1 << 20)) } else { sector };
            let nr_sectors = if disk == 0 { nr_sectors % (1 << 20) + 1 } else { nr_sectors };
            TraceRecord {
                arrived_ns: times.0,
                disk,
                queue,
                op,
                status: TraceStatus::ALL[status],
                sector: if is_flush { 0 } else { sector },
                nr_sectors: if is_flush { 0 } else { nr_sectors },
                ioprio: if has_ioprio { ioprio } else { 0 },
                wait_ns: times.1,
                service_ns: times.2,
            }
        },
    )
}

proptest! {
    #[test]
    fn every_record_comes_back(
        records in prop::collection::vec(any_record(), 0..200),
        block_bytes in 0..5000_usize,
    ) {
        let bytes = write(&header(), &records, block_bytes);
        prop_assert_eq!(read_all(&bytes), Ok((records, 7, true, None)));
    }

    #[test]
    fn hostile_bytes_never_panic_and_what_comes_out_lies_within_its_disk(
        records in prop::collection::vec(any_record(), 0..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = write(&header(), &records, 512);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        if let Ok(mut reader) = TraceReader::new(&bytes) {
            let disks = reader.header().disks.clone();
            for record in reader.by_ref().flatten() {
                let end = record.sector + u64::from(record.nr_sectors);
                prop_assert!(end <= disks[record.disk as usize].sectors);
                let times = record.arrived_ns + record.wait_ns + record.service_ns;
                prop_assert!(times <= TRACE_TIME_MAX_NS);
            }
        }
    }

    #[test]
    fn bytes_without_any_sense_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let forged = [&header().encode()[..], &bytes].concat();
        let _not_a_panic = (read_all(&bytes), read_all(&forged));
    }
}
