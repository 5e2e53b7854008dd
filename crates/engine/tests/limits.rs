//! Limits and reservations around every elevator, under random histories.

mod common;

use std::collections::BTreeMap;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{BlockConfig, Command, DeviceOp, DiskId, Engine, Limited, Token};
use evenkeel_sched::{GroupId, Kind, Limits, Nanos, Op, Rate, Rates, Reservation, Weight};
use proptest::prelude::*;

const START: Nanos = Nanos::ORIGIN;

fn rate(per_second: u64) -> Rate {
    Rate { per_second, ..Rate::default() }
}

fn total_ops(per_second: u64) -> Limits {
    Limits { ops: Rates { total: rate(per_second), ..Rates::default() }, ..Limits::default() }
}

/// A tenant with two VMs, and a VM beside it; a disk each.
fn engine(kind: Kind, depth: u32) -> (Engine, Vec<Limited>, Vec<DiskId>) {
    let mut engine = engine_with_blocks(kind, depth, BlockConfig::default());
    let tenant = engine.add_group(START, GroupId::ROOT, Weight::new(300).expect("in range"));
    let mut nodes = vec![Limited::Group(GroupId::ROOT), Limited::Group(tenant)];
    let mut disks = Vec::new();
    for parent in [tenant, tenant, GroupId::ROOT] {
        let vm = engine.add_group(START, parent, Weight::default());
        let disk = engine.add_disk(vm, geometry());
        nodes.extend([Limited::Group(vm), Limited::Disk(disk)]);
        disks.push(disk);
    }
    (engine, nodes, disks)
}

fn dispatched(engine: &mut Engine, now: Nanos) -> Vec<Command> {
    std::iter::from_fn(|| engine.dispatch(now)).collect()
}

fn tokens(engine: &mut Engine) -> Vec<u64> {
    std::iter::from_fn(|| engine.retire()).map(|retired| retired.token.0).collect()
}

#[test]
fn a_request_over_its_limit_goes_when_the_deadline_comes() {
    for kind in Kind::ALL {
        let (mut engine, nodes, disks) = engine(kind, 32);
        engine.set_limits(START, Limited::Disk(disks[0]), &total_ops(10));
        for token in 0..4 {
            let read = request(Op::Read, 1000 * token, 8);
            engine.submit(START, disks[0], Token(token), &read);
        }
        engine.submit(START, disks[1], Token(9), &request(Op::Read, 0, 8));
        let mut now = START;
        let mut went = Vec::new();
        while engine.outstanding() > 0 {
            for command in dispatched(&mut engine, now) {
                engine.complete(now, command.tag, Ok(()));
            }
            went.extend(tokens(&mut engine).into_iter().map(|token| (token, now - START)));
            now = engine.next_deadline().unwrap_or(now);
        }
        let at = |token| went.iter().find(|(other, _)| *other == token).map(|(_, then)| *then);
        // Some elevators keep the device a while for somebody else.
        let most = if matches!(kind, Kind::Cfq | Kind::Bfq) { 500 } else { 20 };
        for (token, ms) in [(0, 0), (1, 0), (2, 100), (3, 200), (9, 0)] {
            let then = at(token).expect("answered").as_millis();
            assert!((ms..ms + most).contains(&then), "{kind}: {token} after {then} ms");
        }
        let report = engine.gate_report(now, nodes[2]);
        assert_eq!((report.delayed, report.waiting), (2, 0));
        assert_eq!(report.throttled, Nanos::from_millis(200));
        assert_eq!(engine.gate_report(now, nodes[4]).delayed, 0);
    }
}

#[test]
fn a_flush_passes_what_limits_hold_up() {
    let (mut engine, _, disks) = engine(Kind::Bfq, 4);
    engine.set_limits(START, Limited::Disk(disks[0]), &total_ops(1));
    for token in 0..3 {
        let write = request(Op::Write, 1000 * token, 8);
        engine.submit(START, disks[0], Token(token), &write);
    }
    engine.flush(START, disks[0], Token(10));
    let mut ops: Vec<_> = dispatched(&mut engine, START).iter().map(|c| c.op).collect();
    ops.sort_unstable_by_key(|&op| op == DeviceOp::Flush);
    assert_eq!(ops, [DeviceOp::Write, DeviceOp::Flush]);
}

#[test]
fn who_leaves_need_not_wait_for_its_limits() {
    let (mut engine, nodes, disks) = engine(Kind::Deadline, 64);
    engine.set_limits(START, nodes[1], &total_ops(1));
    for token in 0..20 {
        engine.submit(START, disks[0], Token(token), &request(Op::Read, 1000 * token, 8));
    }
    assert_eq!(dispatched(&mut engine, START).len(), 1);
    engine.expedite(START, disks[0]);
    assert_eq!(dispatched(&mut engine, START).len(), 19);
    // The tenant's other VM pays for it.
    engine.submit(START, disks[1], Token(99), &request(Op::Read, 0, 8));
    assert_eq!(dispatched(&mut engine, START), []);
    let second = engine.next_deadline().map(|then| (then - START).as_millis());
    assert_eq!(second, Some(19_900));
}

#[test]
fn a_reservation_comes_before_a_thousandfold_weight() {
    for kind in Kind::ALL {
        let (mut engine, nodes, disks) = engine(kind, 1);
        engine.set_weight(START, GroupId(1), Weight::MAX);
        let promised = Reservation { ops: 100, ..Reservation::default() };
        engine.set_reservation(START, nodes[6], promised);
        for token in 0..400 {
            engine.submit(START, disks[0], Token(token), &request(Op::Read, 8 * token, 8));
            let far = request(Op::Read, 16 * token, 8);
            engine.submit(START, disks[2], Token(1000 + token), &far);
        }
        let mut now = START;
        let mut served = 0;
        let end = START + Nanos::from_millis(200);
        while now < end {
            let Some(command) = engine.dispatch(now) else {
                now = engine.next_deadline().expect("somebody is waited for");
                continue;
            };
            now += Nanos::from_millis(2);
            engine.complete(now, command.tag, Ok(()));
            served += tokens(&mut engine).iter().filter(|&&token| token >= 1000).count();
            engine.check_invariants();
        }
        assert!(served >= 18, "{kind}: {served} of 20 promised");
    }
}

/// One step of the world.
#[derive(Clone, Debug)]
enum Step {
    Submit { disk: usize, op: u8, sector: u64, nr_sectors: u32 },
    Flush { disk: usize },
    Complete { which: usize },
    Pass { us: u64 },
    Limit { node: usize, limits: Limits },
    Reserve { node: usize, reservation: Reservation },
    Expedite { disk: usize },
}

fn any_rate() -> impl Strategy<Value = Rate> {
    prop_oneof![
        3 => Just(Rate::default()),
        2 => (1..100_000_u64).prop_map(rate),
        1 => (1..100_000_u64, 1..4_u64, 0..5_u32).prop_map(|(per_second, factor, burst_seconds)| {
            Rate { per_second, burst_per_second: per_second * factor, burst_seconds }
        }),
    ]
}

fn any_rates() -> impl Strategy<Value = Rates> {
    (any_rate(), any_rate(), any_rate()).prop_map(|(total, read, write)| Rates {
        total,
        read,
        write,
    })
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let op_bytes = prop_oneof![Just(0), Just(4096_u64)];
    (any_rates(), any_rates(), op_bytes).prop_map(|(bytes, ops, op_bytes)| Limits {
        bytes,
        ops,
        op_bytes,
    })
}

fn step() -> impl Strategy<Value = Step> {
    let reservation = (0..2_u64, 0..500_u64, 0..2_u64, 0..1_000_000_u64).prop_map(
        |(has_ops, ops, has_bytes, bytes)| Reservation {
            ops: has_ops * ops,
            bytes: has_bytes * bytes,
            op_bytes: 0,
        },
    );
    prop_oneof![
        8 => (0..3_usize, 0..8_u8, 0..200_u64, 1..24_u32).prop_map(
            |(disk, op, sector, nr_sectors)| Step::Submit { disk, op, sector, nr_sectors }
        ),
        1 => (0..3_usize).prop_map(|disk| Step::Flush { disk }),
        5 => (0..64_usize).prop_map(|which| Step::Complete { which }),
        3 => (1..50_000_u64).prop_map(|us| Step::Pass { us }),
        1 => (0..8_usize, any_limits()).prop_map(|(node, limits)| Step::Limit { node, limits }),
        1 => (0..8_usize, reservation)
            .prop_map(|(node, reservation)| Step::Reserve { node, reservation }),
        1 => (0..3_usize).prop_map(|disk| Step::Expedite { disk }),
    ]
}

/// The world around an engine, and what it must never see.
struct World {
    engine: Engine,
    nodes: Vec<Limited>,
    disks: Vec<DiskId>,
    now: Nanos,
    at_device: Vec<Command>,
    unanswered: BTreeMap<u64, usize>,
    next_token: u64,
    /// Every command in the order in which the device saw it.
    seen: Vec<(Nanos, Command)>,
}

impl World {
    fn new(kind: Kind, depth: u32) -> Self {
        let (engine, nodes, disks) = engine(kind, depth);
        Self {
            engine,
            nodes,
            disks,
            now: START,
            at_device: Vec::new(),
            unanswered: BTreeMap::new(),
            next_token: 0,
            seen: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            &Step::Submit { disk, op, sector, nr_sectors } => {
                let op = match op {
                    0..4 => Op::Read,
                    4..7 => Op::Write,
                    _ => Op::Discard,
                };
                let request = request(op, sector, nr_sectors);
                self.engine.submit(self.now, self.disks[disk], Token(self.next_token), &request);
                self.unanswered.insert(self.next_token, disk);
                self.next_token += 1;
            }
            &Step::Flush { disk } => {
                self.engine.flush(self.now, self.disks[disk], Token(self.next_token));
                self.unanswered.insert(self.next_token, disk);
                self.next_token += 1;
            }
            &Step::Complete { which } if which < self.at_device.len() => {
                let command = self.at_device.swap_remove(which);
                self.engine.complete(self.now, command.tag, Ok(()));
            }
            Step::Complete { .. } => {}
            &Step::Pass { us } => self.now += Nanos::from_micros(us),
            Step::Limit { node, limits } => {
                self.engine.set_limits(self.now, self.nodes[*node], limits);
            }
            &Step::Reserve { node, reservation } => {
                self.engine.set_reservation(self.now, self.nodes[node], reservation);
            }
            &Step::Expedite { disk } => self.engine.expedite(self.now, self.disks[disk]),
        }
        self.turn();
    }

    fn turn(&mut self) {
        while let Some(command) = self.engine.dispatch(self.now) {
            self.seen.push((self.now, command));
            self.at_device.push(command);
        }
        while let Some(answer) = self.engine.retire() {
            let disk = self.unanswered.remove(&answer.token.0);
            let disk = disk.expect("answered twice, or never asked");
            assert_eq!(self.disks[disk], answer.disk);
        }
        self.engine.check_invariants();
        if let Some(deadline) = self.engine.next_deadline() {
            assert!(deadline > self.now, "a deadline that dispatch has handled");
        }
    }

    fn finish(&mut self) {
        for _ in 0..100_000 {
            if self.unanswered.is_empty() {
                assert_eq!(self.engine.outstanding(), 0);
                return;
            }
            if let Some(command) = self.at_device.pop() {
                self.engine.complete(self.now, command.tag, Ok(()));
            } else {
                let deadline = self.engine.next_deadline();
                self.now = deadline.expect("requests wait, nothing is at the device, no deadline");
            }
            self.turn();
        }
        assert!(self.unanswered.is_empty(), "never answered: {:?}", self.unanswered);
    }
}

fn any_kind() -> impl Strategy<Value = Kind> {
    (0..Kind::ALL.len()).prop_map(|index| Kind::ALL[index])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn every_request_is_answered_exactly_once(
        kind in any_kind(),
        depth in 1..20_u32,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(kind, depth);
        for step in &steps {
            world.apply(step);
        }
        world.finish();
    }

    #[test]
    fn limits_above_the_usage_change_nothing_at_all(
        kind in any_kind(),
        depth in 1..20_u32,
        steps in proptest::collection::vec(step(), 1..80),
    ) {
        let unused = rate(u64::MAX / 4);
        let all = Rates { total: unused, read: unused, write: unused };
        let high = Limits { bytes: all, ops: all, op_bytes: 512 };
        let mut worlds = [World::new(kind, depth), World::new(kind, depth)];
        for node in worlds[1].nodes.clone() {
            worlds[1].engine.set_limits(START, node, &high);
        }
        for step in steps.iter().filter(|step| !matches!(step, Step::Limit { .. } | Step::Reserve { .. })) {
            for world in &mut worlds {
                world.apply(step);
            }
        }
        worlds.iter_mut().for_each(World::finish);
        prop_assert_eq!(&worlds[0].seen, &worlds[1].seen);
    }
}
