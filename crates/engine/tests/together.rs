//! What a program that starts has asked for at once is answered together, if others of its VM wait.

mod common;

use common::{engine_with_blocks, geometry, request};
use evenkeel_engine::{Ask, BlockConfig, Command, DiskId, Engine, HelpPolicy, Token};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Urgency, Weight};

/// Where a reader of the VM is at work, and another one.
const READER: u64 = 1 << 19;
const OTHER_READER: u64 = 1 << 21;

struct World {
    engine: Engine,
    vm: GroupId,
    disk: DiskId,
    now: Nanos,
    reader_at: u64,
    other_at: u64,
}

impl World {
    /// Returns one with two readers in order that have been at work for 40 s; one has a read waiting if
    /// it `goes_on`.
    fn new(goes_on: bool) -> Self {
        let mut engine = engine_with_blocks(Kind::Bfq, 1, BlockConfig::default());
        let config = ElevatorConfig { rotational: true, ..ElevatorConfig::default() };
        engine.set_elevator(Nanos::ORIGIN, &config);
        let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        let disk = engine.add_disk(vm, geometry());
        let mut world = Self {
            engine,
            vm,
            disk,
            now: Nanos::ORIGIN,
            reader_at: READER,
            other_at: OTHER_READER,
        };
        for _ in 0..2000 {
            for read_on in [Self::other_reads_on, Self::read_on] {
                read_on(&mut world);
                assert_eq!((world.serve(), world.answers()), (0, vec![0]));
            }
        }
        if goes_on {
            world.read_on();
        }
        world
    }

    fn submit(&mut self, token: u64, sector: u64) {
        self.engine.submit(self.now, self.disk, Token(token), &request(Op::Read, sector, 8));
    }

    fn read_on(&mut self) {
        let sector = self.reader_at;
        self.reader_at += 8;
        self.submit(0, sector);
    }

    fn other_reads_on(&mut self) {
        let sector = self.other_at;
        self.other_at += 8;
        self.submit(0, sector);
    }

    fn dispatch(&mut self) -> Command {
        loop {
            match self.engine.dispatch(self.now) {
                Some(command) => return command,
                None => self.now = self.engine.next_deadline().expect("somebody waits"),
            }
        }
    }

    /// Ten milliseconds later the device is done with a command.
    fn complete(&mut self, command: Command) {
        self.now += Nanos::from_millis(10);
        self.engine.complete(self.now, command.tag, Ok(()));
        self.engine.check_invariants();
    }

    /// Serves the next one; returns whose it was.
    fn serve(&mut self) -> u64 {
        let command = self.dispatch();
        self.complete(command);
        if command.sector >= READER { 0 } else { command.sector / 1000 }
    }

    /// Serves the next one of the program, and the reader while that has to wait, who is answered at
    /// once and reads on; returns which it was.
    fn serve_program(&mut self) -> u64 {
        loop {
            match self.serve() {
                0 => assert_eq!(self.answers(), [0]),
                program => return program,
            }
            self.read_on();
        }
    }

    fn answers(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.engine.retire()).map(|retired| retired.token.0).collect()
    }

    /// A program starts with three reads at once.
    fn start(&mut self) {
        for token in 1..=3 {
            self.submit(token, token * 1000);
        }
    }
}

#[test]
fn a_program_gets_what_it_asked_for_at_once_together() {
    let mut world = World::new(true);
    world.start();
    for _ in 0..3 {
        assert_eq!(world.answers(), [0_u64; 0]);
        world.serve_program();
    }
    let mut answers = world.answers();
    answers.sort_unstable();
    assert_eq!(answers, [1, 2, 3]);
}

/// The guest may be holding up its readers for the program.
#[test]
fn who_has_read_lately_counts_as_one_who_waits() {
    let mut world = World::new(false);
    world.now += Nanos::from_secs(9);
    world.start();
    for _ in 0..3 {
        assert_eq!(world.answers(), [0_u64; 0]);
        world.serve();
    }
    assert_eq!(world.answers().len(), 3);
}

#[test]
fn where_nobody_else_reads_each_answer_is_given_at_once() {
    let mut world = World::new(false);
    world.now += Nanos::from_secs(11);
    world.start();
    for _ in 0..3 {
        let program = world.serve();
        assert_eq!(world.answers(), [program]);
    }
}

/// In a pause of the program the others of its VM are answered together, so that many request slots
/// come free at once; it may be waiting for one.
#[test]
fn readers_are_answered_together_while_a_program_pauses() {
    let mut world = World::new(true);
    world.start();
    while world.serve_program() != 3 {}
    assert_eq!(world.answers().len(), 3);
    world.other_reads_on();
    world.serve();
    assert_eq!(world.answers(), [0_u64; 0]);
    world.serve();
    assert_eq!(world.answers(), [0, 0]);
    // Not if that takes long.
    world.read_on();
    world.other_reads_on();
    world.serve();
    assert_eq!(world.answers(), [0_u64; 0]);
    let command = world.dispatch();
    let kept_until = world.engine.next_deadline().expect("until then it is kept");
    assert!(kept_until <= world.now + Nanos::from_millis(150));
    world.now = kept_until;
    assert!(world.engine.dispatch(world.now).is_none(), "one at a time");
    assert_eq!(world.answers(), [0]);
    world.complete(command);
}

/// That lasts for as long as a program that pauses may be on its way.
#[test]
fn readers_get_each_answer_at_once_when_nothing_starts_any_more() {
    let mut world = World::new(true);
    world.start();
    while world.serve_program() != 3 {}
    assert_eq!(world.answers().len(), 3);
    world.serve();
    assert_eq!(world.answers(), [0]);
    world.now += Nanos::from_secs(4);
    world.read_on();
    world.other_reads_on();
    for _ in 0..2 {
        world.serve();
        assert_eq!(world.answers(), [0]);
    }
}

#[test]
fn an_answer_waits_for_a_moment_only() {
    let mut world = World::new(true);
    world.start();
    let first = world.serve_program();
    assert_eq!(world.answers(), [0_u64; 0]);
    // The device needs very long for the next one.
    let command = world.dispatch();
    let kept_until = world.engine.next_deadline().expect("until then it is kept");
    assert!(kept_until <= world.now + Nanos::from_millis(30));
    world.now = kept_until;
    assert!(world.engine.dispatch(world.now).is_none(), "one at a time");
    assert_eq!(world.answers(), [first]);
    world.engine.check_invariants();
    world.complete(command);
}

/// Its agent gives the program's reads a class of their own, which have their own slots in the guest.
#[test]
fn who_is_helped_gets_each_answer_at_once() {
    let mut world = World::new(true);
    let (urgency, lease) = (Urgency::Interactive, Nanos::from_secs(5));
    let policy = HelpPolicy { lease, ..HelpPolicy::default() };
    world.engine.set_help_policy(world.now, world.vm, policy);
    world.engine.ask_help(world.now, world.vm, Ask { seq: 1, urgency, lease, marked: false });
    world.start();
    for _ in 0..3 {
        let program = world.serve_program();
        assert_eq!(world.answers(), [program]);
    }
}
