//! How much a command matters beside others of the host.

mod common;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{Ask, BlockConfig, DiskId, Engine, HelpPolicy, Precedence, Request, Token};
use evenkeel_sched::{GroupId, Kind, Nanos, Op, Urgency, Weight};

/// Nothing said, best effort 0, idle.
const PLAIN: u32 = 0;
const MARKED: u32 = 0x4000;
const IDLE: u32 = 0x6000;

struct World {
    engine: Engine,
    vm: GroupId,
    disk: DiskId,
    now: Nanos,
    sector: u64,
}

impl World {
    fn new(kind: Kind) -> Self {
        let mut engine = engine_with_blocks(kind, 4, BlockConfig::default());
        let now = Nanos::ORIGIN;
        let vm = engine.add_group(now, GroupId::ROOT, Weight::default());
        let disk = engine.add_disk(vm, geometry());
        engine.set_help_policy(now, vm, HelpPolicy::default());
        Self { engine, vm, disk, now, sector: 0 }
    }

    fn ask(&mut self, urgency: Urgency, marked: bool) {
        let ask = Ask { seq: self.now.0 + 1, urgency, lease: Nanos::from_secs(1), marked };
        self.engine.ask_help(self.now, self.vm, ask);
    }

    /// Sends one request through; returns with which precedence it went to the device.
    fn send(&mut self, op: Op, ioprio: u32) -> Precedence {
        self.now += Nanos::from_millis(1);
        self.sector += 1000;
        let request = Request { ioprio, ..request(op, self.sector, 8) };
        self.engine.submit(self.now, self.disk, Token(0), &request);
        self.pass()
    }

    fn pass(&mut self) -> Precedence {
        while self.engine.in_flight() == 0 {
            if let Some(command) = self.engine.dispatch(self.now) {
                self.engine.complete(self.now, command.tag, Ok(()));
                self.engine.retire().expect("one request is answered");
                return command.precedence;
            }
            self.now = self.engine.next_deadline().expect("a request waits for something");
        }
        unreachable!("one command at a time")
    }
}

#[test]
fn a_priority_of_the_guest_alone_does_not_reach_beyond_its_vm() {
    for kind in [Kind::Noop, Kind::Deadline, Kind::Kyber, Kind::Cfq] {
        let mut world = World::new(kind);
        for ioprio in [PLAIN, MARKED, 0x2000] {
            assert_eq!(world.send(Op::Read, ioprio), Precedence::Ordinary, "{kind} {ioprio:#x}");
        }
    }
}

#[test]
fn write_back_and_the_idle_class_are_background_in_every_elevator() {
    for kind in Kind::ALL {
        let mut world = World::new(kind);
        assert_eq!(world.send(Op::Write, PLAIN), Precedence::Background, "{kind}");
        assert_eq!(world.send(Op::Read, IDLE), Precedence::Background, "{kind}");
        world.engine.set_write_through(world.disk, true);
        assert_ne!(world.send(Op::Write, PLAIN), Precedence::Background, "{kind}");
    }
}

#[test]
fn granted_help_reaches_the_device_with_every_elevator_until_it_ends() {
    for kind in Kind::ALL {
        let mut world = World::new(kind);
        // What starts under help starts without it, too.
        world.send(Op::Read, PLAIN);
        world.ask(Urgency::Interactive, false);
        assert_eq!(world.send(Op::Read, PLAIN), Precedence::Interactive, "{kind}");
        world.ask(Urgency::SoftRealTime, false);
        let granted = world.engine.help_report(world.vm).expect("it may ask").urgency;
        let expected = match granted {
            Urgency::SoftRealTime => Precedence::SoftRealTime,
            _ => Precedence::Interactive,
        };
        assert_eq!(world.send(Op::Read, PLAIN), expected, "{kind}");
        world.engine.reset_help(world.now, world.vm);
        assert_eq!(world.send(Op::Read, PLAIN), Precedence::Ordinary, "{kind}");
    }
}

#[test]
fn only_what_a_guest_marks_is_urgent_once_it_marks() {
    let mut world = World::new(Kind::Deadline);
    world.ask(Urgency::Interactive, true);
    assert_eq!(world.send(Op::Read, PLAIN), Precedence::Ordinary);
    assert_eq!(world.send(Op::Read, MARKED), Precedence::Interactive);
}

#[test]
fn what_bfq_raises_by_itself_is_interactive() {
    let mut world = World::new(Kind::Bfq);
    // Others keep the clock going: two seconds of silence are the mark of a fresh start.
    (0..3000).for_each(|_| assert_eq!(world.send(Op::Write, PLAIN), Precedence::Background));
    assert_eq!(world.send(Op::Read, PLAIN), Precedence::Interactive);
}

#[test]
fn commands_are_counted_by_precedence_and_flushes_are_ordinary() {
    let mut world = World::new(Kind::Noop);
    world.send(Op::Write, PLAIN);
    world.send(Op::Read, PLAIN);
    world.engine.flush(world.now, world.disk, Token(1));
    assert_eq!(world.pass(), Precedence::Ordinary);
    world.ask(Urgency::Interactive, false);
    world.send(Op::Read, PLAIN);
    assert_eq!(world.engine.precedence_figures(), [1, 2, 1, 0]);
}
