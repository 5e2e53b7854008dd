//! Readers of one VM and one priority are told apart by where they read.

use evenkeel_engine::{BlockConfig, DiskId, Engine, EngineConfig, Geometry, Request, Token};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};

const SECTORS: u64 = 1 << 26;
const READ_SECTORS: u32 = 256;

fn engine(kind: Kind) -> (Engine, DiskId) {
    let elevator = ElevatorConfig { kind, rotational: true, ..ElevatorConfig::default() };
    let mut engine = Engine::new(
        Nanos::ORIGIN,
        &EngineConfig { elevator, depth: 1, blocks: BlockConfig::default() },
    );
    let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
    let geometry = Geometry {
        sectors: SECTORS,
        block_bytes: 512,
        read_only: false,
        discard: true,
        write_zeroes: true,
    };
    let disk = engine.add_disk(vm, geometry);
    (engine, disk)
}

fn submit(engine: &mut Engine, now: Nanos, disk: DiskId, reader: u64, sector: u64) {
    let read = Request {
        op: Op::Read,
        sector,
        nr_sectors: READ_SECTORS,
        segments: 1,
        ioprio: 0,
        unmap: false,
    };
    engine.submit(now, disk, Token(reader), &read);
}

/// Lets two processes read a file each, one request at a time; returns how often the device went
/// from one to the other in 1000 reads of 10 ms.
fn changes_of_place(kind: Kind) -> u32 {
    changes_with(kind, true)
}

fn changes_with(kind: Kind, tells_streams_apart: bool) -> u32 {
    let (mut engine, disk) = engine(kind);
    engine.tell_streams_apart(tells_streams_apart);
    let mut now = Nanos::ORIGIN;
    let mut next = [0, SECTORS / 2];
    for (reader, sector) in (0..).zip(next) {
        submit(&mut engine, now, disk, reader, sector);
    }
    let mut changes = 0;
    let mut last = 0;
    for _read in 0..1000 {
        let command = loop {
            match engine.dispatch(now) {
                Some(command) => break command,
                None => now = engine.next_deadline().expect("somebody waits"),
            }
        };
        now += Nanos::from_millis(10);
        engine.complete(now, command.tag, Ok(()));
        let reader = engine.retire().expect("the read is answered").token.0;
        changes += u32::from(reader != last);
        last = reader;
        now += Nanos::from_micros(200);
        let place = if reader == 0 { &mut next[0] } else { &mut next[1] };
        *place += u64::from(READ_SECTORS);
        submit(&mut engine, now, disk, reader, *place);
    }
    changes
}

#[test]
fn two_files_read_from_end_to_end_take_turns_instead_of_alternating() {
    // A slot of 125 ms is 12 reads, so about 80 changes; in one queue every read would be one.
    for kind in [Kind::Bfq, Kind::Cfq] {
        let changes = changes_of_place(kind);
        assert!(changes <= 150, "{kind}: {changes}");
    }
    assert!(changes_of_place(Kind::Noop) > 900, "an elevator without queues cannot know");
}

#[test]
fn an_operator_may_want_one_queue_for_all_that_a_vm_reads() {
    // One queue stays with whoever reads nearby until the other's read is overdue: no turns by slots.
    for kind in [Kind::Bfq, Kind::Cfq] {
        let (one, many) = (changes_with(kind, false), changes_with(kind, true));
        assert!(one < many, "{kind}: {one} changes in one queue, {many} in many");
    }
}
