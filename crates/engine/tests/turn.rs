//! The turn of the engine, step by step: merging, failing, flushing, switching, blocks.

mod common;

use common::{SECTORS, engine_with_blocks, geometry, request};
use evenkeel_engine::{
    BlockConfig, BlockFigures, Command, DeviceOp, DiskId, Engine, Errno, Geometry, Responses,
    Status, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Weight};

fn engine(kind: Kind, depth: u32) -> Engine {
    engine_with_blocks(kind, depth, BlockConfig::default())
}

fn one_disk(kind: Kind, depth: u32) -> (Engine, DiskId) {
    let mut engine = engine(kind, depth);
    let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
    let disk = engine.add_disk(vm, geometry());
    (engine, disk)
}

fn dispatched(engine: &mut Engine, now: Nanos) -> Vec<Command> {
    std::iter::from_fn(|| engine.dispatch(now)).collect()
}

fn retired(engine: &mut Engine) -> Vec<(u64, Status)> {
    std::iter::from_fn(|| engine.retire()).map(|r| (r.token.0, r.status)).collect()
}

#[test]
fn adjacent_requests_go_as_one_and_are_answered_apart() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let now = Nanos::ORIGIN;
    let tags: Vec<_> =
        (0..3).map(|i| engine.submit(now, disk, Token(i), &request(Op::Read, 8 * i, 8))).collect();
    let commands = dispatched(&mut engine, now);
    assert_eq!(commands.len(), 1);
    assert_eq!((commands[0].sector, commands[0].nr_sectors), (0, 24));
    assert_eq!(engine.parts(commands[0].tag).collect::<Vec<_>>(), tags);
    engine.complete(now, commands[0].tag, Ok(()));
    assert_eq!(retired(&mut engine), [(0, Status::Ok), (1, Status::Ok), (2, Status::Ok)]);
    assert_eq!(engine.outstanding(), 0);
    assert_eq!(engine.report(disk).merged, 2);
}

#[test]
fn an_answer_says_when_its_request_came_went_and_was_done() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let at = |us| Nanos::ORIGIN + Nanos::from_micros(us);
    engine.submit(at(1), disk, Token(0), &request(Op::Read, 0, 8));
    engine.submit(at(3), disk, Token(1), &request(Op::Read, 8, 8));
    engine.flush(at(4), disk, Token(2));
    let commands = dispatched(&mut engine, at(10));
    assert_eq!(commands.iter().map(|c| c.nr_sectors).collect::<Vec<_>>(), [0, 16]);
    for (command, us) in commands.iter().zip([40, 70]) {
        engine.complete(at(us), command.tag, Ok(()));
    }
    let times = std::iter::from_fn(|| engine.retire())
        .map(|r| (r.token.0, r.arrived, r.dispatched, r.completed))
        .collect::<Vec<_>>();
    assert_eq!(
        times,
        [(2, at(4), at(10), at(40)), (0, at(1), at(10), at(70)), (1, at(3), at(10), at(70))]
    );
}

#[test]
fn a_failed_part_fails_alone() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let now = Nanos::ORIGIN;
    for i in 0..3 {
        engine.submit(now, disk, Token(i), &request(Op::Write, 8 * i, 8));
    }
    let whole = dispatched(&mut engine, now);
    engine.complete(now, whole[0].tag, Err(Errno(5)));
    assert_eq!(retired(&mut engine), []);
    let singles = dispatched(&mut engine, now);
    assert_eq!(
        singles.iter().map(|c| (c.sector, c.nr_sectors)).collect::<Vec<_>>(),
        [(0, 8), (8, 8), (16, 8)]
    );
    for (command, outcome) in singles.iter().zip([Ok(()), Err(Errno(5)), Ok(())]) {
        engine.complete(now, command.tag, outcome);
    }
    assert_eq!(retired(&mut engine), [(0, Status::Ok), (1, Status::IoError), (2, Status::Ok)]);
}

#[test]
fn a_full_file_system_delays_writes_and_loses_none() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let mut now = Nanos::ORIGIN;
    engine.submit(now, disk, Token(1), &request(Op::Write, 0, 8));
    let command = dispatched(&mut engine, now)[0];
    engine.complete(now, command.tag, Err(Errno::ENOSPC));
    assert_eq!(retired(&mut engine), []);
    assert_eq!(engine.report(disk).stalled, 1);
    // A read of the same sectors waits behind the write, others pass.
    engine.submit(now, disk, Token(2), &request(Op::Read, 4, 1));
    engine.submit(now, disk, Token(3), &request(Op::Read, 100, 1));
    let passed = dispatched(&mut engine, now);
    assert_eq!(passed.iter().map(|c| c.sector).collect::<Vec<_>>(), [100]);
    assert!(!engine.waits_only_for_room());
    engine.complete(now, passed[0].tag, Ok(()));
    assert!(!engine.waits_only_for_room(), "an answer is due");
    assert_eq!(retired(&mut engine), [(3, Status::Ok)]);
    assert!(engine.waits_only_for_room());
    now = engine.next_deadline().unwrap();
    let again = dispatched(&mut engine, now);
    assert!(!engine.waits_only_for_room());
    assert_eq!(again.iter().map(|c| (c.op, c.sector)).collect::<Vec<_>>(), [(DeviceOp::Write, 0)]);
    engine.complete(now, again[0].tag, Ok(()));
    let read = dispatched(&mut engine, now);
    assert_eq!(read.iter().map(|c| c.sector).collect::<Vec<_>>(), [4]);
    engine.complete(now, read[0].tag, Ok(()));
    assert_eq!(retired(&mut engine), [(1, Status::Ok), (2, Status::Ok)]);
    assert!(engine.waits_only_for_room(), "nothing is left at all");
}

#[test]
fn abandoned_writes_fail_and_those_behind_them_go_on() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let now = Nanos::ORIGIN;
    engine.submit(now, disk, Token(1), &request(Op::Write, 0, 8));
    let command = dispatched(&mut engine, now)[0];
    engine.complete(now, command.tag, Err(Errno::EDQUOT));
    engine.submit(now, disk, Token(2), &request(Op::Read, 0, 1));
    assert_eq!(dispatched(&mut engine, now), []);
    engine.abandon_stalled(now, disk);
    assert_eq!(retired(&mut engine), [(1, Status::IoError)]);
    assert_eq!(dispatched(&mut engine, now).len(), 1);
    engine.check_invariants();
}

#[test]
fn flushes_of_a_disk_share_the_next_one_and_pass_waiting_requests() {
    let (mut engine, disk) = one_disk(Kind::Noop, 1);
    let now = Nanos::ORIGIN;
    engine.submit(now, disk, Token(0), &request(Op::Read, 0, 8));
    engine.submit(now, disk, Token(1), &request(Op::Read, 800, 8));
    let read = dispatched(&mut engine, now);
    for token in 10..13 {
        engine.flush(now, disk, Token(token));
    }
    engine.complete(now, read[0].tag, Ok(()));
    let first = dispatched(&mut engine, now);
    assert_eq!(first.iter().map(|c| c.op).collect::<Vec<_>>(), [DeviceOp::Flush]);
    engine.complete(now, first[0].tag, Ok(()));
    assert_eq!(retired(&mut engine), [(0, Status::Ok), (10, Status::Ok)]);
    // The next one does not pass the read again.
    let read = dispatched(&mut engine, now);
    assert_eq!(read.iter().map(|c| c.sector).collect::<Vec<_>>(), [800]);
    engine.complete(now, read[0].tag, Ok(()));
    assert_eq!(retired(&mut engine), [(1, Status::Ok)]);
    let second = dispatched(&mut engine, now);
    assert_eq!(second.iter().map(|c| c.op).collect::<Vec<_>>(), [DeviceOp::Flush]);
    engine.complete(now, second[0].tag, Err(Errno(5)));
    let mut answers = retired(&mut engine);
    answers.sort_unstable_by_key(|answer| answer.0);
    assert_eq!(answers, [(11, Status::IoError), (12, Status::IoError)]);
    assert_eq!(engine.outstanding(), 0);
}

#[test]
fn endless_flushes_leave_every_other_command_to_the_rest() {
    let (mut engine, disk) = one_disk(Kind::Bfq, 1);
    let mut now = Nanos::ORIGIN;
    for read in 0..10 {
        engine.submit(now, disk, Token(read), &request(Op::Read, 1000 * read, 8));
    }
    engine.flush(now, disk, Token(100));
    engine.flush(now, disk, Token(101));
    let mut ops = Vec::new();
    for token in 102..122 {
        let command = dispatched(&mut engine, now)[0];
        ops.push(command.op);
        now += Nanos::from_micros(100);
        engine.complete(now, command.tag, Ok(()));
        // There is always one behind the one that has just begun.
        engine.flush(now, disk, Token(token));
        retired(&mut engine);
    }
    for pair in ops.chunks(2) {
        assert_eq!(pair, [DeviceOp::Flush, DeviceOp::Read]);
    }
}

#[test]
fn with_the_write_cache_off_every_write_is_durable() {
    let (mut engine, disk) = one_disk(Kind::Noop, 4);
    let now = Nanos::ORIGIN;
    engine.submit(now, disk, Token(0), &request(Op::Write, 0, 8));
    assert!(!dispatched(&mut engine, now)[0].durable);
    engine.set_write_through(disk, true);
    engine.submit(now, disk, Token(1), &request(Op::Write, 80, 8));
    engine.submit(now, disk, Token(2), &request(Op::Read, 160, 8));
    let durable: Vec<_> = dispatched(&mut engine, now).iter().map(|c| (c.op, c.durable)).collect();
    assert_eq!(durable, [(DeviceOp::Write, true), (DeviceOp::Read, false)]);
}

#[test]
fn disks_lie_apart_and_their_places_are_reused() {
    let mut engine = engine(Kind::Noop, 8);
    let now = Nanos::ORIGIN;
    let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
    let disks: Vec<_> = (0..3).map(|_| engine.add_disk(vm, geometry())).collect();
    let position = |engine: &mut Engine, disk| {
        engine.submit(now, disk, Token(0), &request(Op::Read, SECTORS - 1, 1));
        let command = dispatched(engine, now)[0];
        engine.complete(now, command.tag, Ok(()));
        while engine.retire().is_some() {}
        command.pos
    };
    let ends: Vec<_> = disks.iter().map(|&disk| position(&mut engine, disk)).collect();
    assert!(ends[1] - ends[0] > SECTORS && ends[2] - ends[1] > SECTORS);
    engine.remove_disk(now, disks[1]);
    let again = engine.add_disk(vm, geometry());
    assert_eq!(position(&mut engine, again), ends[1]);
}

fn switch(engine: &mut Engine, now: Nanos, kind: Kind) {
    engine.set_elevator(now, &ElevatorConfig { kind, ..ElevatorConfig::default() });
    engine.check_invariants();
}

#[test]
fn a_command_at_the_device_outlives_its_elevator_with_all_parts() {
    for kind in Kind::ALL {
        let (mut engine, disk) = one_disk(Kind::Bfq, 1);
        let now = Nanos::ORIGIN;
        for i in 0..3 {
            engine.submit(now, disk, Token(i), &request(Op::Write, 8 * i, 8));
        }
        let whole = dispatched(&mut engine, now);
        assert_eq!(whole[0].nr_sectors, 24);
        switch(&mut engine, now, kind);
        switch(&mut engine, now, Kind::Noop);
        assert_eq!(engine.parts(whole[0].tag).count(), 3);
        // Whoever overlaps still waits for it.
        engine.set_depth(2);
        engine.submit(now, disk, Token(9), &request(Op::Write, 4, 1));
        assert_eq!(dispatched(&mut engine, now), []);
        engine.complete(now, whole[0].tag, Err(Errno(5)));
        let mut alone = Vec::new();
        while let Some(single) = engine.dispatch(now) {
            alone.push((single.sector, single.nr_sectors));
            engine.complete(now, single.tag, Ok(()));
        }
        alone.sort_unstable();
        assert_eq!(alone, [(0, 8), (4, 1), (8, 8), (16, 8)]);
        let mut answers = retired(&mut engine);
        answers.sort_unstable_by_key(|answer| answer.0);
        assert_eq!(answers, [0, 1, 2, 9].map(|token| (token, Status::Ok)), "{kind}");
    }
}

#[test]
fn what_waits_reaches_the_new_elevator_in_the_order_of_arrival() {
    for kind in Kind::ALL {
        let (mut engine, disk) = one_disk(kind, 1);
        let now = Nanos::ORIGIN;
        engine.submit(now, disk, Token(0), &request(Op::Read, 0, 8));
        let first = dispatched(&mut engine, now)[0];
        let sectors = [900, 100, 908, 500, 92];
        for (token, sector) in (1..).zip(sectors) {
            engine.submit(now, disk, Token(token), &request(Op::Read, sector, 8));
        }
        switch(&mut engine, now, Kind::None);
        engine.complete(now, first.tag, Ok(()));
        for sector in sectors {
            let next = dispatched(&mut engine, now)[0];
            assert_eq!((next.sector, next.nr_sectors), (sector, 8), "{kind}");
            engine.complete(now, next.tag, Ok(()));
        }
    }
}

#[test]
fn groups_keep_their_names_weights_and_figures_across_switches() {
    let mut engine = engine(Kind::None, 1);
    // Their reads of one place after the other would count as starts, ahead of the weights.
    engine.tell_streams_apart(false);
    let mut now = Nanos::ORIGIN;
    let gone = engine.add_group(now, GroupId::ROOT, Weight::default());
    let tenant = engine.add_group(now, GroupId::ROOT, Weight::new(300).expect("in range"));
    engine.remove_group(now, gone);
    // Takes the free name, so that the child stands before its parent.
    let rich = engine.add_group(now, tenant, Weight::default());
    let poor = engine.add_group(now, GroupId::ROOT, Weight::default());
    assert_eq!(rich, gone);
    let disks = [rich, poor].map(|vm| engine.add_disk(vm, geometry()));
    for disk in disks {
        for token in 0..4 {
            engine.submit(now, disk, Token(token), &request(Op::Read, 1000 * token, 8));
        }
    }
    switch(&mut engine, now, Kind::Cfq);
    switch(&mut engine, now, Kind::Bfq);
    let mut served = [0_u64; 2];
    for _request in 0..40_000 {
        let command = dispatched(&mut engine, now)[0];
        served[command.disk.0 as usize] += u64::from(command.nr_sectors);
        now += Nanos::from_micros(100);
        engine.complete(now, command.tag, Ok(()));
        while let Some(answer) = engine.retire() {
            let far = 8 * (served[0] + served[1]);
            engine.submit(now, answer.disk, answer.token, &request(Op::Read, far, 8));
        }
    }
    let share = 1000 * served[0] / (served[0] + served[1]);
    assert!((730..=770).contains(&share), "{served:?}");
    switch(&mut engine, now, Kind::Deadline);
    for (disk, served) in disks.into_iter().zip(served) {
        assert_eq!(engine.report(disk).vm_service_sectors, served);
    }
}

#[test]
fn with_one_request_at_a_time_nothing_waits_for_a_block() {
    for kind in [Kind::None, Kind::Noop, Kind::Deadline, Kind::Bfq] {
        for responses in [Responses::Each, Responses::Block, Responses::Subset(8)] {
            let blocks = BlockConfig { responses, ..BlockConfig::default() };
            let mut engine = engine_with_blocks(kind, 32, blocks);
            let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
            let disk = engine.add_disk(vm, geometry());
            let mut now = Nanos::ORIGIN;
            for token in 0..1000 {
                let read = request(Op::Read, token * 37 % 5000, 8);
                engine.submit(now, disk, Token(token), &read);
                let command = engine.dispatch(now).expect("an idle device takes it at once");
                assert_eq!(engine.dispatch(now), None);
                now += Nanos::from_micros(80);
                engine.complete(now, command.tag, Ok(()));
                assert_eq!(retired(&mut engine), [(token, Status::Ok)], "{kind}, {responses:?}");
                now += Nanos::from_micros(token % 7);
            }
            let figures = engine.block_figures();
            assert_eq!(figures, BlockFigures { blocks: 1000, commands: 1000 });
        }
    }
}

#[test]
fn under_load_a_block_is_all_that_gathered_and_its_answers_come_together() {
    let blocks = BlockConfig { responses: Responses::Block, ..BlockConfig::default() };
    let mut engine = engine_with_blocks(Kind::None, 8, blocks);
    let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
    let disk = engine.add_disk(vm, geometry());
    let now = Nanos::ORIGIN;
    let submit = |engine: &mut Engine, token| {
        engine.submit(now, disk, Token(token), &request(Op::Read, 1000 * token, 8));
    };
    submit(&mut engine, 0);
    let first = dispatched(&mut engine, now);
    assert_eq!(first.len(), 1);
    (1..12).for_each(|token| submit(&mut engine, token));
    assert_eq!(dispatched(&mut engine, now), []);
    engine.complete(now, first[0].tag, Ok(()));
    assert_eq!(retired(&mut engine), [(0, Status::Ok)]);
    let second = dispatched(&mut engine, now);
    assert_eq!(second.len(), 8);
    for command in &second[1..] {
        engine.complete(now, command.tag, Ok(()));
        assert_eq!(retired(&mut engine), []);
    }
    engine.complete(now, second[0].tag, Ok(()));
    assert_eq!(retired(&mut engine).len(), 8);
    assert_eq!(dispatched(&mut engine, now).len(), 3);
    assert_eq!(engine.block_figures(), BlockFigures { blocks: 3, commands: 12 });
}

#[test]
fn the_largest_request_that_a_chain_can_describe_is_served() {
    for kind in Kind::ALL {
        let mut engine = engine(kind, 2);
        let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        let disk = engine.add_disk(vm, Geometry { sectors: 1 << 40, ..geometry() });
        let mut now = Nanos::ORIGIN;
        for token in 0..3 {
            let far = (token << 30) | 8;
            engine.submit(now, disk, Token(token), &request(Op::Write, far, 1 << 23));
            engine.submit(now, disk, Token(10 + token), &request(Op::Read, far + 1, 1 << 23));
        }
        let mut served = 0;
        while served < 6 << 23 {
            let Some(command) = engine.dispatch(now) else {
                now = engine.next_deadline().expect("requests wait");
                continue;
            };
            assert!(command.nr_sectors <= 2048, "piece by piece");
            engine.complete(now, command.tag, Ok(()));
            served += u64::from(command.nr_sectors);
        }
        assert_eq!((served, retired(&mut engine).len()), (6 << 23, 6), "{kind}");
        engine.check_invariants();
    }
}
