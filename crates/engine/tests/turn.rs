//! The engine against a device that completes in any order and fails at will.

use std::collections::BTreeMap;

use evenkeel_engine::{
    BlockConfig, BlockFigures, BlockSize, Command, DeviceOp, DiskId, Engine, EngineConfig, Errno,
    Geometry, Request, Responses, Status, Token,
};
use evenkeel_sched::{CfqTunables, ElevatorConfig, GroupId, Kind, Nanos, Op, Tag, Weight};
use proptest::prelude::*;

const SECTORS: u64 = 1 << 20;

fn geometry() -> Geometry {
    Geometry {
        sectors: SECTORS,
        block_bytes: 512,
        read_only: false,
        discard: true,
        write_zeroes: true,
    }
}

fn engine(kind: Kind, depth: u32) -> Engine {
    engine_with_blocks(kind, depth, BlockConfig::default())
}

fn engine_with_blocks(kind: Kind, depth: u32, blocks: BlockConfig) -> Engine {
    let elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
    Engine::new(Nanos::ORIGIN, &EngineConfig { elevator, depth, blocks })
}

fn one_disk(kind: Kind, depth: u32) -> (Engine, DiskId) {
    let mut engine = engine(kind, depth);
    let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
    let disk = engine.add_disk(vm, geometry());
    (engine, disk)
}

fn request(op: Op, sector: u64, nr_sectors: u32) -> Request {
    Request { op, sector, nr_sectors, segments: 1, ioprio: 0x4004, unmap: false }
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

/// One step of the world.
#[derive(Clone, Debug)]
enum Step {
    Submit { disk: usize, op: u8, sector: u64, nr_sectors: u32, ioprio: u32 },
    Flush { disk: usize },
    Complete { which: usize, outcome: u8 },
    Pass { us: u64 },
    Switch { kind: Kind, tuned: bool },
    Tune { tuned: bool },
    Depth { depth: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    let ioprio = prop_oneof![Just(0_u32), Just(0x4004), Just(0x4000), Just(0x2000), Just(0x6007)];
    prop_oneof![
        6 => (0..3_usize, 0..8_u8, 0..200_u64, 1..24_u32, ioprio).prop_map(
            |(disk, op, sector, nr_sectors, ioprio)| Step::Submit { disk, op, sector, nr_sectors, ioprio }
        ),
        1 => (0..3_usize).prop_map(|disk| Step::Flush { disk }),
        5 => (0..64_usize, 0..12_u8).prop_map(|(which, outcome)| Step::Complete { which, outcome }),
        2 => (1..20_000_u64).prop_map(|us| Step::Pass { us }),
    ]
}

fn any_kind() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|index| Kind::ALL[index])
}

/// Steps with another elevator, and another depth, every now and then.
fn step_or_switch() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => step(),
        3 => (any_kind(), any::<bool>()).prop_map(|(kind, tuned)| Step::Switch { kind, tuned }),
        2 => any::<bool>().prop_map(|tuned| Step::Tune { tuned }),
        1 => (1..20_u32).prop_map(|depth| Step::Depth { depth }),
    ]
}

/// Every elevator as far from its defaults as it goes.
fn tuned_config(kind: Kind) -> ElevatorConfig {
    let mut config = ElevatorConfig { kind, ..ElevatorConfig::default() };
    config.deadline.read_expire = Nanos::ZERO;
    config.deadline.write_expire = Nanos::from_millis(1);
    config.deadline.writes_starved = 0;
    config.deadline.fifo_batch = 0;
    config.deadline.front_merges = false;
    config.deadline.prio_aging_expire = Nanos::ZERO;
    config.anticipatory.antic_expire = Nanos::ZERO;
    config.anticipatory.read_expire = Nanos::ZERO;
    config.anticipatory.read_batch_expire = Nanos::from_millis(1);
    config.kyber.read_lat = Nanos::from_micros(1);
    config.cfq = CfqTunables {
        fifo_expire_sync: Nanos::from_millis(1),
        ..CfqTunables::enterprise_storage()
    };
    config.bfq.slice_idle = Nanos::ZERO;
    config.bfq.low_latency = false;
    config.bfq.timeout_sync = Nanos::from_millis(5);
    config
}

/// What a guest asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    disk: usize,
    op: DeviceOp,
    sector: u64,
    nr_sectors: u32,
    /// Commands dispatched before it came.
    after: u64,
}

/// A command at the device.
struct Sent {
    command: Command,
    parts: Vec<Tag>,
    /// Counts commands.
    number: u64,
}

/// The world around an engine, and what it must never see.
struct World {
    engine: Engine,
    disks: Vec<DiskId>,
    now: Nanos,
    kind: Kind,
    depth: u32,
    at_device: Vec<Sent>,
    unanswered: BTreeMap<u64, Asked>,
    /// What each tag stands for.
    tags: BTreeMap<Tag, Asked>,
    /// For each disk the number of the last flush that is done.
    flushed: [u64; 3],
    sent: u64,
    next_token: u64,
}

impl World {
    fn new(kind: Kind, depth: u32, blocks: BlockConfig) -> Self {
        let mut engine = engine_with_blocks(kind, depth, blocks);
        let tenant =
            engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::new(300).expect("in range"));
        let disks = [tenant, tenant, GroupId::ROOT]
            .map(|parent| {
                let vm = engine.add_group(Nanos::ORIGIN, parent, Weight::default());
                engine.add_disk(vm, geometry())
            })
            .to_vec();
        Self {
            engine,
            disks,
            now: Nanos::ORIGIN,
            kind,
            depth,
            at_device: vec![],
            unanswered: BTreeMap::new(),
            tags: BTreeMap::new(),
            flushed: [0; 3],
            sent: 0,
            next_token: 0,
        }
    }

    fn ask(&mut self, disk: usize, op: DeviceOp, sector: u64, nr_sectors: u32) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        let asked = Asked { disk, op, sector, nr_sectors, after: self.sent };
        self.unanswered.insert(token, asked);
        Token(token)
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Submit { disk, op, sector, nr_sectors, ioprio } => {
                let op = match op {
                    0..4 => Op::Read,
                    4..7 => Op::Write,
                    _ => Op::Discard,
                };
                let request = Request { ioprio, ..request(op, sector, nr_sectors) };
                let token = self.ask(disk, op.into(), sector, nr_sectors);
                let tag = self.engine.submit(self.now, self.disks[disk], token, &request);
                self.tags.insert(tag, self.unanswered[&token.0]);
            }
            Step::Flush { disk } => {
                let token = self.ask(disk, DeviceOp::Flush, 0, 0);
                let tag = self.engine.flush(self.now, self.disks[disk], token);
                self.tags.insert(tag, self.unanswered[&token.0]);
            }
            Step::Complete { which, outcome } if which < self.at_device.len() => {
                let outcome = match outcome {
                    0 => Err(Errno(5)),
                    1 => Err(Errno::ENOSPC),
                    2 => Err(Errno::EOPNOTSUPP),
                    _ => Ok(()),
                };
                self.complete(which, outcome);
            }
            Step::Complete { .. } => {}
            Step::Pass { us } => self.now += Nanos::from_micros(us),
            Step::Switch { kind, tuned } => {
                self.kind = kind;
                self.set_elevator(tuned);
            }
            Step::Tune { tuned } => self.set_elevator(tuned),
            Step::Depth { depth } => {
                self.depth = depth;
                self.engine.set_depth(depth);
            }
        }
        self.turn();
    }

    fn set_elevator(&mut self, tuned: bool) {
        let config = match tuned {
            true => tuned_config(self.kind),
            false => ElevatorConfig { kind: self.kind, ..ElevatorConfig::default() },
        };
        self.engine.set_elevator(self.now, &config);
        self.engine.check_invariants();
    }

    fn complete(&mut self, which: usize, outcome: Result<(), Errno>) {
        let Sent { command, parts, number } = self.at_device.swap_remove(which);
        assert_eq!(self.engine.parts(command.tag).collect::<Vec<_>>(), parts, "parts are kept");
        if command.op == DeviceOp::Flush {
            let flushed = &mut self.flushed[self.tags[&command.tag].disk];
            *flushed = number.max(*flushed);
        }
        self.engine.complete(self.now, command.tag, outcome);
    }

    fn turn(&mut self) {
        while let Some(command) = self.engine.dispatch(self.now) {
            for Sent { command: other, .. } in &self.at_device {
                let apart = other.disk != command.disk
                    || (other.op == DeviceOp::Read && command.op == DeviceOp::Read)
                    || other.op == DeviceOp::Flush
                    || command.op == DeviceOp::Flush
                    || other.sector + u64::from(other.nr_sectors) <= command.sector
                    || command.sector + u64::from(command.nr_sectors) <= other.sector;
                assert!(apart, "{command:?} meets {other:?}");
            }
            let parts = self.check_parts(&command);
            self.sent += 1;
            self.at_device.push(Sent { command, parts, number: self.sent });
            assert!(self.at_device.len() <= self.depth as usize, "more than the depth");
        }
        while let Some(answer) = self.engine.retire() {
            let asked = self.unanswered.remove(&answer.token.0);
            let asked = asked.expect("answered twice, or never asked");
            assert_eq!(self.disks[asked.disk], answer.disk);
            self.tags.remove(&answer.tag);
            let is_flushed = self.flushed[asked.disk] > asked.after;
            assert!(asked.op != DeviceOp::Flush || is_flushed, "answered before it was flushed");
        }
        self.engine.check_invariants();
        if let Some(deadline) = self.engine.next_deadline() {
            assert!(deadline > self.now, "a deadline that dispatch has handled");
        }
    }

    /// A command is what its parts ask for, without a gap.
    fn check_parts(&self, command: &Command) -> Vec<Tag> {
        let parts: Vec<_> = self.engine.parts(command.tag).collect();
        let mut sector = command.sector;
        for tag in &parts {
            let asked = self.tags[tag];
            assert_eq!((self.disks[asked.disk], asked.op), (command.disk, command.op));
            assert_eq!(asked.sector, sector, "{command:?} has a gap");
            sector += u64::from(asked.nr_sectors);
        }
        assert_eq!(sector - command.sector, u64::from(command.nr_sectors));
        parts
    }

    fn finish(mut self) {
        for _ in 0..100_000 {
            if self.unanswered.is_empty() {
                assert_eq!(self.engine.outstanding(), 0);
                return;
            }
            if let Some(last) = self.at_device.len().checked_sub(1) {
                self.complete(last, Ok(()));
            } else {
                let deadline = self.engine.next_deadline();
                self.now = deadline.expect("requests wait, nothing is at the device, no deadline");
            }
            self.turn();
        }
        assert!(self.unanswered.is_empty(), "never answered: {:?}", self.unanswered);
    }
}

fn blocks() -> impl Strategy<Value = BlockConfig> {
    let size = prop_oneof![
        2 => Just(BlockSize::Dynamic),
        1 => (1..12_u32).prop_map(BlockSize::Static),
    ];
    let responses = prop_oneof![
        Just(Responses::Each),
        Just(Responses::Block),
        (1..5_u32).prop_map(Responses::Subset),
    ];
    (size, responses, any::<bool>()).prop_map(|(size, responses, one_at_a_time)| BlockConfig {
        size,
        responses,
        one_at_a_time,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_request_is_answered_exactly_once(
        kind in any_kind(),
        depth in 1..20_u32,
        blocks in blocks(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(kind, depth, blocks);
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn no_switch_loses_repeats_or_reorders_anything(
        kind in any_kind(),
        depth in 1..20_u32,
        blocks in blocks(),
        steps in proptest::collection::vec(step_or_switch(), 1..120),
    ) {
        let mut world = World::new(kind, depth, blocks);
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }
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
        while served < 6 {
            let Some(command) = engine.dispatch(now) else {
                now = engine.next_deadline().expect("requests wait");
                continue;
            };
            assert_eq!(command.nr_sectors, 1 << 23);
            engine.complete(now, command.tag, Ok(()));
            served += 1;
        }
        assert_eq!((served, retired(&mut engine).len()), (6, 6), "{kind}");
        engine.check_invariants();
    }
}
