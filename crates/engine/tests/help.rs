//! A guest asks for help, and the engine's scheduler serves it, within bounds.

use evenkeel_engine::{
    Ask, BlockConfig, DiskId, Engine, EngineConfig, Geometry, HelpPolicy, Precedence, Request,
    Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Urgency, Weight};

/// What a request of this kind carries as its I/O priority: nothing, and best effort 0.
const PLAIN: u32 = 0;
const MARKED: u32 = 0x4000;

/// Time that the device takes for a request; one after the other.
const SERVICE: Nanos = Nanos::from_millis(5);

/// A reader that sends another random read for each that is answered.
#[derive(Clone, Copy, Debug)]
struct Reader {
    disk: usize,
    ioprio: u32,
    /// It sends none by itself.
    pauses: bool,
    done: u64,
}

struct World {
    engine: Engine,
    now: Nanos,
    vms: Vec<GroupId>,
    disks: Vec<DiskId>,
    readers: Vec<Reader>,
    seq: u64,
    marked: bool,
    sector: u64,
    /// Tokens in the order of their completion.
    history: Vec<u64>,
}

impl World {
    fn new(kind: Kind, vms: usize) -> Self {
        Self::tuned(kind, vms, |_| ())
    }

    fn tuned(kind: Kind, vms: usize, tune: impl FnOnce(&mut ElevatorConfig)) -> Self {
        let now = Nanos::from_secs(1000);
        let mut elevator = ElevatorConfig { kind, rotational: true, ..ElevatorConfig::default() };
        tune(&mut elevator);
        let config = EngineConfig { elevator, depth: 1, blocks: BlockConfig::default() };
        let mut engine = Engine::new(now, &config);
        let weight = Weight::new(100).expect("in range");
        let vms: Vec<_> = (0..vms).map(|_| engine.add_group(now, GroupId::ROOT, weight)).collect();
        let geometry = Geometry::plain(1 << 30);
        let disks = vms.iter().map(|&vm| engine.add_disk(vm, geometry)).collect();
        let (readers, history) = (Vec::new(), Vec::new());
        Self { engine, now, vms, disks, readers, seq: 0, marked: false, sector: 0, history }
    }

    fn reader(&mut self, disk: usize, ioprio: u32, outstanding: u32) {
        self.readers.push(Reader { disk, ioprio, pauses: outstanding == 0, done: 0 });
        let reader = self.readers.len() - 1;
        (0..outstanding).for_each(|_| self.submit(reader));
    }

    fn submit(&mut self, reader: usize) {
        let Reader { disk, ioprio, .. } = self.readers[reader];
        self.sector = (self.sector * 6_364_136_223 + 1_442_695_040) % (1 << 29);
        let request = Request {
            op: Op::Read,
            sector: self.sector / 8 * 8,
            nr_sectors: 8,
            segments: 1,
            ioprio,
            unmap: false,
        };
        let token = Token(u64::try_from(reader).expect("few readers"));
        self.engine.submit(self.now, self.disks[disk], token, &request);
    }

    /// Lets the device serve requests for a time.
    fn run_for(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            let Some(command) = self.engine.dispatch(self.now) else {
                let next = self.engine.next_deadline().unwrap_or(end);
                self.now = next.max(self.now + Nanos(1)).min(end);
                continue;
            };
            self.now += SERVICE;
            self.engine.complete(self.now, command.tag, Ok(()));
            while let Some(retired) = self.engine.retire() {
                let reader = usize::try_from(retired.token.0).expect("few readers");
                self.readers[reader].done += 1;
                self.history.push(retired.token.0);
                if !self.readers[reader].pauses {
                    self.submit(reader);
                }
            }
            self.engine.check_invariants();
        }
    }

    fn ask(&mut self, vm: usize, urgency: Urgency) {
        self.seq += 1;
        let lease = Nanos::from_secs(1);
        let ask = Ask { seq: self.seq, urgency, lease, marked: self.marked };
        self.engine.ask_help(self.now, self.vms[vm], ask);
    }

    /// Lets a VM ask twice a second for so many seconds.
    fn cry(&mut self, vm: usize, seconds: u32) {
        (0..2 * seconds).for_each(|_| self.cry_once(vm));
    }

    fn cry_once(&mut self, vm: usize) {
        self.ask(vm, Urgency::Interactive);
        self.run_for(Nanos::from_millis(500));
    }

    fn trust(&mut self, vm: usize) {
        self.engine.set_help_policy(self.now, self.vms[vm], HelpPolicy::default());
    }

    /// Returns what each reader has got since the last call.
    fn take(&mut self) -> Vec<u64> {
        self.readers.iter_mut().map(|reader| core::mem::take(&mut reader.done)).collect()
    }
}

/// Two VMs with a greedy reader each, long after anything of them has looked new.
fn settled(kind: Kind) -> World {
    let mut world = World::new(kind, 2);
    world.reader(0, PLAIN, 4);
    world.reader(1, PLAIN, 4);
    world.run_for(Nanos::from_secs(60));
    world.take();
    world
}

#[test]
fn a_helped_vm_is_served_before_others_until_its_lease_ends() {
    let mut world = settled(Kind::Bfq);
    world.trust(0);
    world.cry(0, 10);
    let helped = world.take();
    println!("{helped:?}");
    assert!(helped[0] > 6 * helped[1] && helped[1] > 0);
    // The last lease, and what is left of a slot.
    world.run_for(Nanos::from_secs(2));
    world.take();
    world.run_for(Nanos::from_secs(60));
    let after = world.take();
    println!("{after:?}");
    assert!(after[0].abs_diff(after[1]) * 50 < after[0] + after[1]);
}

#[test]
fn within_a_helped_vm_marked_requests_go_first() {
    for marked in [false, true] {
        let mut world = settled(Kind::Bfq);
        world.trust(0);
        world.marked = marked;
        world.reader(0, MARKED, 1);
        world.run_for(Nanos::from_secs(60));
        world.take();
        if !marked {
            // A guest that does not say that it marks is found out by its first marked request,
            // which may wait for a slot of one that was taken to be meant: 30 times 125 ms.
            world.cry(0, 5);
            world.take();
        }
        world.cry(0, 10);
        let done = world.take();
        println!("said {marked}: {done:?}");
        assert!(done[2] > 5 * (done[0] + done[1]));
    }
}

/// Kernels before 4.10 send no priority, and encryption on the way to the disk forgets it.
#[test]
fn a_guest_whose_marks_never_come_is_helped_as_one_that_marks_nothing() {
    let mut world = settled(Kind::Bfq);
    world.trust(0);
    world.marked = true;
    world.cry(0, 2);
    world.take();
    world.cry(0, 10);
    let lost = world.take();
    println!("{lost:?}");
    assert!(lost[0] > 6 * lost[1]);
    world.reader(0, MARKED, 1);
    world.cry(0, 5);
    world.take();
    world.cry(0, 10);
    let seen = world.take();
    println!("{seen:?}");
    assert!(seen[2] > 5 * (seen[0] + seen[1]), "one mark is enough");
}

/// Lets the guest of the first VM read 128 KiB in order every 50 ms for so many seconds, while its
/// agent says that something else is urgent, or nothing; returns how the last read went out.
fn film(world: &mut World, seconds: u64, is_helped: bool) -> Precedence {
    let mut last = Precedence::Ordinary;
    for frame in 0..20 * seconds {
        if is_helped && frame % 10 == 0 {
            world.ask(0, Urgency::Interactive);
            last = one_read(world, MARKED, 1 << 28);
            assert_eq!(last, Precedence::Interactive);
        }
        world.sector += 256;
        last = one_read(world, PLAIN, world.sector);
        world.now += Nanos::from_millis(40);
    }
    last
}

/// Serves one read of 128 KiB; returns how it went out.
fn one_read(world: &mut World, ioprio: u32, sector: u64) -> Precedence {
    let request =
        Request { op: Op::Read, sector, nr_sectors: 256, segments: 1, ioprio, unmap: false };
    world.engine.submit(world.now, world.disks[0], Token(0), &request);
    let command = loop {
        match world.engine.dispatch(world.now) {
            Some(command) => break command,
            None => world.now = world.engine.next_deadline().expect("it is served some time"),
        }
    };
    world.now += SERVICE;
    world.engine.complete(world.now, command.tag, Ok(()));
    assert!(world.engine.retire().is_some());
    command.precedence
}

#[test]
fn what_looks_like_a_film_is_none_while_the_agent_says_what_is_urgent() {
    let mut world = World::new(Kind::Bfq, 1);
    world.trust(0);
    world.marked = true;
    assert_eq!(film(&mut world, 60, false), Precedence::SoftRealTime);
    assert_eq!(film(&mut world, 10, true), Precedence::Ordinary);
    assert_eq!(film(&mut world, 10, false), Precedence::SoftRealTime, "after the lease");
}

#[test]
fn the_first_read_of_a_program_is_helped_before_anybody_can_mark_it() {
    let waits = |is_asked: bool| {
        let lasts = Nanos::from_secs(3);
        let mut world = World::tuned(Kind::Bfq, 6, |elevator| elevator.bfq.wr_max_time = lasts);
        (1..6).for_each(|disk| world.reader(disk, PLAIN, 4));
        world.trust(0);
        world.marked = true;
        world.run_for(Nanos::from_secs(60));
        world.take();
        // Not silent for so long that it counts as a program that starts any more, and not there for
        // so long that it is known.
        world.reader(0, PLAIN, 1);
        world.run_for(Nanos::from_secs(8));
        world.history.clear();
        if is_asked {
            world.ask(0, Urgency::Interactive);
        }
        world.run_for(Nanos::from_secs(1));
        world.history.iter().filter(|&&reader| reader == 5).count()
    };
    let (alone, helped) = (waits(false), waits(true));
    println!("{alone} and {helped}");
    assert!(helped > 3 * alone);
}

#[test]
fn a_vm_that_may_not_ask_is_not_helped() {
    let mut world = settled(Kind::Bfq);
    world.cry(0, 20);
    let done = world.take();
    assert!(done[0].abs_diff(done[1]) * 20 < done[0] + done[1], "{done:?}");
}

#[test]
fn a_vm_that_always_asks_gets_its_share_in_the_long_run() {
    let mut world = settled(Kind::Bfq);
    world.trust(0);
    world.cry(0, 300);
    let first = world.take();
    world.cry(0, 600);
    let later = world.take();
    println!("{first:?} {later:?}");
    assert!(later[0] * 100 < (later[0] + later[1]) * 55, "{later:?}");
}

/// What is urgent pauses all the time, and the VM is served first meanwhile, all of it.
#[test]
fn a_vm_whose_urgent_program_pauses_all_the_time_gets_its_share_in_the_long_run() {
    let mut world = settled(Kind::Bfq);
    world.trust(0);
    world.marked = true;
    world.reader(0, MARKED, 0);
    let mut cry = |seconds: u32| {
        for _ in 0..2 * seconds {
            world.submit(2);
            world.cry_once(0);
        }
        world.take()
    };
    let (first, later) = (cry(300), cry(600));
    println!("{first:?} {later:?}");
    assert!(later[0] * 100 < (later[0] + later[1]) * 55, "{later:?}");
}

#[test]
fn a_closed_channel_ends_help_at_once() {
    let mut world = settled(Kind::Bfq);
    world.trust(0);
    world.ask(0, Urgency::SoftRealTime);
    let vm = world.vms[0];
    let urgency = |world: &World| world.engine.help_report(vm).map(|report| report.urgency);
    assert_eq!(urgency(&world), Some(Urgency::SoftRealTime));
    world.engine.reset_help(world.now, vm);
    assert_eq!(urgency(&world), Some(Urgency::None));
    assert!(!world.engine.report(world.disks[0]).raised);
}

#[test]
fn policies_that_nobody_uses_change_no_decision() {
    for kind in Kind::ALL {
        let mut plain = settled(kind);
        let mut trusted = settled(kind);
        trusted.trust(0);
        trusted.trust(1);
        plain.run_for(Nanos::from_secs(20));
        trusted.run_for(Nanos::from_secs(20));
        assert_eq!(plain.history, trusted.history, "{kind}");
    }
}

#[test]
fn elevators_without_urgency_are_not_disturbed_by_it() {
    for kind in Kind::ALL.into_iter().filter(|&kind| kind != Kind::Bfq) {
        let mut plain = settled(kind);
        let mut helped = settled(kind);
        helped.trust(0);
        for _ in 0..20 {
            helped.ask(0, Urgency::Interactive);
            plain.run_for(Nanos::from_millis(500));
            helped.run_for(Nanos::from_millis(500));
        }
        assert_eq!(plain.history, helped.history, "{kind}");
    }
}
