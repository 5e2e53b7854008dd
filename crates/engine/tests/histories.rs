//! Random histories of an engine and a device that completes in any order and fails at will.

mod common;

use std::collections::BTreeMap;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{
    BlockConfig, BlockSize, Command, DeviceOp, DiskId, Engine, Errno, Request, Responses, Status,
    Token,
};
use evenkeel_sched::{CfqTunables, ElevatorConfig, GroupId, Kind, Nanos, Op, Tag, Weight};
use proptest::prelude::*;

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
    Govern { governs: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let ioprio = prop_oneof![Just(0_u32), Just(0x4004), Just(0x4000), Just(0x2000), Just(0x6007)];
    prop_oneof![
        6 => (0..3_usize, 0..8_u8, 0..200_u64, 1..24_u32, ioprio).prop_map(
            |(disk, op, sector, nr_sectors, ioprio)| Step::Submit { disk, op, sector, nr_sectors, ioprio }
        ),
        1 => (0..3_usize, 0..6_u8, 0..3000_u64, 2049..9000_u32).prop_map(
            |(disk, op, sector, nr_sectors)| Step::Submit { disk, op, sector, nr_sectors, ioprio: 0 }
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
        1 => any::<bool>().prop_map(|governs| Step::Govern { governs }),
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
    /// How many of its sectors the device has done.
    done: u32,
    /// Whether the device has refused it, or a piece of it, for good.
    refused: bool,
}

impl Asked {
    /// Whether it must not be at the device together with another, or between pieces of it.
    fn conflicts(&self, other: &Self) -> bool {
        let reads = |asked: &Self| asked.op == DeviceOp::Read;
        let ends = |asked: &Self| asked.sector + u64::from(asked.nr_sectors);
        self.disk == other.disk
            && ![self.op, other.op].contains(&DeviceOp::Flush)
            && !(reads(self) && reads(other))
            && self.sector < ends(other)
            && other.sector < ends(self)
    }
}

/// A command at the device.
struct Sent {
    command: Command,
    parts: Vec<Tag>,
    /// Of how many requests it consists; flushes share one without being parts.
    requests: usize,
    /// Counts commands.
    number: u64,
}

/// Why the requests of a disk waited, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    all: u64,
    /// For others of the same disk.
    behind: u64,
    /// While the device was empty.
    idled: u64,
    /// About while each disk held it.
    held: [f64; 3],
    /// How far `held` may be off: less than a nanosecond for each command is shared out in turn.
    slack: f64,
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
    /// For each disk, which has a VM of its own: its group, and why its requests waited.
    vms: Vec<GroupId>,
    waits: [Waits; 3],
    /// For each disk the flushes that the one under way answers, and those that come after it.
    flushes: [[usize; 2]; 3],
    holds_answers: bool,
    gathers: bool,
}

impl World {
    fn new(kind: Kind, depth: u32, blocks: BlockConfig) -> Self {
        let mut engine = engine_with_blocks(kind, depth, blocks);
        let tenant =
            engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::new(300).expect("in range"));
        let vms = [tenant, tenant, GroupId::ROOT]
            .map(|parent| engine.add_group(Nanos::ORIGIN, parent, Weight::default()))
            .to_vec();
        let disks = vms.iter().map(|&vm| engine.add_disk(vm, geometry())).collect();
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
            vms,
            waits: [Waits::default(); 3],
            flushes: [[0; 2]; 3],
            holds_answers: blocks.responses != Responses::Each,
            gathers: blocks.size != BlockSize::Dynamic,
        }
    }

    /// Lets time pass; whoever is neither at the device nor kept for want of room waits meanwhile.
    fn pass(&mut self, span: Nanos) {
        let mut commands = [0; 3];
        let mut at_device = [0; 3];
        for sent in &self.at_device {
            let disk = self.tags[&sent.command.tag].disk;
            commands[disk] += 1;
            at_device[disk] += sent.requests;
        }
        let all: u32 = commands.iter().sum();
        for (disk, waits) in self.waits.iter_mut().enumerate() {
            let id = self.disks[disk];
            let unanswered = self.unanswered.values().filter(|asked| asked.disk == disk).count();
            let waiting = unanswered - at_device[disk] - self.engine.stalled_of(id);
            let behind = self.engine.held_back_of(id);
            waits.all += count(waiting) * span.0;
            waits.behind += count(behind) * span.0;
            let time = count(waiting - behind) * span.0;
            if all == 0 {
                waits.idled += time;
                continue;
            }
            for (held, commands) in waits.held.iter_mut().zip(commands) {
                *held += time as f64 * f64::from(commands) / f64::from(all);
            }
            waits.slack += (count(waiting - behind) * u64::from(all)) as f64;
        }
        self.now += span;
    }

    /// Every nanosecond of every wait is blamed on who is to blame. (Answers that are held back for
    /// the rest of their block are no waits, which the world does not know.)
    fn check_blames(&mut self) {
        if self.holds_answers {
            return;
        }
        for (disk, waits) in self.waits.iter().enumerate() {
            let explained = self.engine.explain(self.now, self.vms[disk]);
            let told = explained.causes.iter().map(|cause| cause.held.0).sum::<u64>();
            let told = told + explained.own.0 + explained.idled.0 + explained.gathered.0;
            assert_eq!((explained.waited.0, told), (waits.all, waits.all));
            assert_eq!((explained.limited, explained.others), (Nanos::ZERO, Nanos::ZERO));
            for (other, vm) in self.vms.iter().enumerate() {
                let cause = explained.causes.iter().find(|cause| cause.vm == *vm);
                let held = match cause {
                    _ if other == disk => explained.own.0 - waits.behind,
                    cause => cause.map_or(0, |cause| cause.held.0),
                };
                let error = (held as f64 - waits.held[other]).abs();
                assert!(error <= waits.slack + 1.0, "{disk} waited, {other} held: {error} ns off");
            }
            assert_eq!(explained.idled.0 + explained.gathered.0, waits.idled);
            assert!(self.gathers || explained.gathered == Nanos::ZERO);
        }
    }

    fn ask(&mut self, disk: usize, op: DeviceOp, sector: u64, nr_sectors: u32) -> Token {
        let token = self.next_token;
        self.next_token += 1;
        let after = self.sent;
        let asked = Asked { disk, op, sector, nr_sectors, after, done: 0, refused: false };
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
                // Those that come while one is under way share the next.
                let is_under_way = self.flushes[disk][0] > 0;
                self.flushes[disk][usize::from(is_under_way)] += 1;
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
            Step::Pass { us } => self.pass(Nanos::from_micros(us)),
            Step::Switch { kind, tuned } => {
                self.kind = kind;
                self.set_elevator(tuned);
            }
            Step::Tune { tuned } => self.set_elevator(tuned),
            Step::Depth { depth } => {
                self.depth = depth;
                self.engine.set_depth(depth);
            }
            Step::Govern { governs } => self.engine.govern(governs),
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
        let Sent { command, parts, number, .. } = self.at_device.swap_remove(which);
        assert_eq!(self.engine.parts(command.tag).collect::<Vec<_>>(), parts, "parts are kept");
        if command.op == DeviceOp::Flush {
            let disk = self.tags[&command.tag].disk;
            self.flushed[disk] = number.max(self.flushed[disk]);
            self.flushes[disk] = [self.flushes[disk][1], 0];
        }
        let retries = outcome == Err(Errno::ENOSPC) && command.op == DeviceOp::Write;
        for &tag in &parts {
            let asked = self.tags.get_mut(&tag).expect("it is at the device");
            let piece = if parts.len() == 1 { command.nr_sectors } else { asked.nr_sectors };
            match outcome {
                Ok(()) => asked.done += piece,
                Err(_) => asked.refused |= parts.len() == 1 && !retries,
            }
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
            for (other, asked) in &self.tags {
                let is_between = (1..asked.nr_sectors).contains(&asked.done) && !asked.refused;
                let meets = |tag| asked.conflicts(&self.tags[tag]);
                assert!(
                    !is_between || parts.contains(other) || !parts.iter().any(meets),
                    "{command:?} comes between pieces of {asked:?}"
                );
            }
            self.sent += 1;
            let flush = command.op == DeviceOp::Flush;
            let disk = self.tags[&command.tag].disk;
            let requests = if flush { self.flushes[disk][0] } else { parts.len() };
            self.at_device.push(Sent { command, parts, requests, number: self.sent });
            assert!(self.at_device.len() <= self.depth as usize, "more than the depth");
        }
        while let Some(answer) = self.engine.retire() {
            let asked = self.unanswered.remove(&answer.token.0);
            let asked = asked.expect("answered twice, or never asked");
            assert_eq!(self.disks[asked.disk], answer.disk);
            let served = self.tags.remove(&answer.tag).expect("it was asked for");
            if asked.op != DeviceOp::Flush {
                let is_whole = served.done == asked.nr_sectors;
                assert!(is_whole != served.refused, "{served:?} was answered");
                assert_eq!(answer.status == Status::Ok, is_whole, "{served:?}");
            }
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
            let skip = u64::from(command.skip_sectors);
            assert_eq!(asked.sector + skip, sector, "{command:?} has a gap");
            assert_eq!(asked.done, command.skip_sectors, "{command:?} is not the next piece");
            assert!(asked.nr_sectors <= 2048 || parts.len() == 1, "pieces are merged with nobody");
            let left = asked.nr_sectors - asked.done;
            let is_split = asked.nr_sectors > 2048 && asked.op != DeviceOp::Discard;
            let length = if is_split { left.min(command.nr_sectors) } else { left };
            assert!(!is_split || length <= 2048, "{command:?} is too long");
            sector += u64::from(length);
        }
        assert_eq!(sector - command.sector, u64::from(command.nr_sectors));
        parts
    }

    fn finish(mut self) {
        for _ in 0..100_000 {
            if self.unanswered.is_empty() {
                assert_eq!(self.engine.outstanding(), 0);
                self.check_blames();
                return;
            }
            if let Some(last) = self.at_device.len().checked_sub(1) {
                self.complete(last, Ok(()));
            } else {
                let deadline = self.engine.next_deadline();
                let deadline =
                    deadline.expect("requests wait, nothing is at the device, no deadline");
                self.pass(deadline - self.now);
            }
            self.turn();
        }
        assert!(self.unanswered.is_empty(), "never answered: {:?}", self.unanswered);
    }
}

fn count(requests: usize) -> u64 {
    u64::try_from(requests).expect("few")
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
