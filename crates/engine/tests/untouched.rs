//! With coordination off, an elevator decides as it would without any of it: the same trace, given to
//! it directly, goes to the device in the same order.

use evenkeel_engine::{BlockConfig, Engine, EngineConfig, Geometry, HelpPolicy, Request, Token};
use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Kind, Nanos, Next, Op, Priority, QueueId, Scheduler as _,
    Tag, Weight,
};

const VMS: usize = 3;
const DISK_SECTORS: u64 = 1 << 28;
/// From one disk to the next on the pool's address space.
const STRIDE: u64 = DISK_SECTORS + 2048;
/// What the device needs for a command.
const SERVICE: Nanos = Nanos::from_millis(5);
const START: Nanos = Nanos::from_secs(1000);

/// One request of a trace.
#[derive(Clone, Copy, Debug)]
struct Traced {
    at: Nanos,
    vm: usize,
    sector: u64,
    nr_sectors: u32,
    ioprio: u32,
}

/// Returns a trace of readers at random places and in order, of any I/O priority, with bursts and
/// with silences after which something seems to start.
fn trace(seed: u64) -> Vec<Traced> {
    let mut state = seed;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % bound
    };
    let (mut at, mut ends) = (START, [0_u64; VMS]);
    let mut all = Vec::new();
    while all.len() < 4000 {
        at += match below(40) {
            0 => Nanos::from_millis(2500),
            1..20 => Nanos::ZERO,
            _ => Nanos::from_micros(below(8000)),
        };
        let vm = usize::try_from(below(VMS as u64)).expect("few");
        let nr_sectors = if below(2) == 0 { 8 } else { 256 };
        let is_next = below(3) > 0 && ends[vm] + 256 <= DISK_SECTORS;
        let sector = if is_next { ends[vm] } else { below(DISK_SECTORS / 256) * 256 };
        ends[vm] = sector + u64::from(nr_sectors);
        let ioprio = [0, 0x4000, 0x4007, 0x2000, 0x6000][usize::try_from(below(5)).expect("few")];
        all.push(Traced { at, vm, sector, nr_sectors, ioprio });
    }
    all
}

/// What a device with room for so many commands asks of whoever decides.
trait Decides {
    fn insert(&mut self, now: Nanos, index: usize, request: &Traced);
    /// Names the command that goes next.
    fn dispatch(&mut self, now: Nanos) -> Option<Tag>;
    /// Returns the requests that a finished command stood for, in order.
    fn complete(&mut self, now: Nanos, tag: Tag) -> Vec<u64>;
    fn deadline(&self) -> Option<Nanos>;
}

struct ByEngine {
    engine: Engine,
    disks: Vec<evenkeel_engine::DiskId>,
}

impl Decides for ByEngine {
    fn insert(&mut self, now: Nanos, index: usize, traced: &Traced) {
        let Traced { vm, sector, nr_sectors, ioprio, .. } = *traced;
        let request =
            Request { op: Op::Read, sector, nr_sectors, segments: 1, ioprio, unmap: false };
        self.engine.submit(now, self.disks[vm], Token(index as u64), &request);
    }

    fn dispatch(&mut self, now: Nanos) -> Option<Tag> {
        self.engine.dispatch(now).map(|command| command.tag)
    }

    fn complete(&mut self, now: Nanos, tag: Tag) -> Vec<u64> {
        self.engine.complete(now, tag, Ok(()));
        let retired = std::iter::from_fn(|| self.engine.retire());
        let mut tokens: Vec<u64> = retired.map(|retired| retired.token.0).collect();
        tokens.sort_unstable();
        tokens
    }

    fn deadline(&self) -> Option<Nanos> {
        self.engine.next_deadline()
    }
}

struct Directly {
    elevator: Elevator,
    vms: Vec<GroupId>,
    queues: [Option<QueueId>; VMS],
}

impl Decides for Directly {
    fn insert(&mut self, now: Nanos, index: usize, traced: &Traced) {
        let Traced { vm, sector, nr_sectors, .. } = *traced;
        let (elevator, group) = (&mut self.elevator, self.vms[vm]);
        let new = || elevator.add_queue(now, group, Priority::default(), true);
        let queue = *self.queues[vm].get_or_insert_with(new);
        let tag = Tag(u32::try_from(index).expect("few"));
        let pos = STRIDE * vm as u64 + sector;
        let (op, segments, sync) = (Op::Read, 1, true);
        let request = evenkeel_sched::Request { tag, queue, op, pos, nr_sectors, segments, sync };
        self.elevator.insert(now, request);
    }

    fn dispatch(&mut self, now: Nanos) -> Option<Tag> {
        match self.elevator.dispatch(now) {
            Next::Request(tag) => Some(tag),
            Next::NotBefore(_) | Next::Empty => None,
        }
    }

    fn complete(&mut self, now: Nanos, tag: Tag) -> Vec<u64> {
        let first = Some(self.elevator.first_part(tag));
        let parts = std::iter::successors(first, |&part| self.elevator.next_part(part));
        let mut tokens: Vec<u64> = parts.map(|part| part.0.into()).collect();
        tokens.sort_unstable();
        self.elevator.complete(now, tag);
        tokens
    }

    fn deadline(&self) -> Option<Nanos> {
        self.elevator.next_deadline()
    }
}

/// Plays a trace on a device that serves one command after the other; returns what each stood for,
/// in the order in which they went.
fn play(trace: &[Traced], depth: usize, decides: &mut dyn Decides) -> Vec<(Nanos, Vec<u64>)> {
    let (mut now, mut history) = (START, Vec::new());
    let mut coming = trace.iter().enumerate().peekable();
    let mut at_device = std::collections::VecDeque::new();
    let mut served = 0;
    while served < trace.len() {
        while let Some((index, request)) = coming.next_if(|(_, request)| request.at <= now) {
            decides.insert(now, index, request);
        }
        while at_device.len() < depth
            && let Some(tag) = decides.dispatch(now)
        {
            let free = at_device.back().map_or(now, |&(_, ends): &(Tag, Nanos)| ends.max(now));
            at_device.push_back((tag, free + SERVICE));
        }
        let done = at_device.front().map(|&(_, ends)| ends);
        let next = [done, coming.peek().map(|(_, request)| request.at), decides.deadline()];
        let next = next.into_iter().flatten().min().expect("something is always to come");
        now = next.max(now + Nanos(u64::from(done != Some(next) && next <= now)));
        if let Some(&(tag, ends)) = at_device.front()
            && ends <= now
        {
            at_device.pop_front();
            let tokens = decides.complete(now, tag);
            served += tokens.len();
            history.push((now, tokens));
        }
    }
    history
}

#[test]
fn with_coordination_off_every_elevator_decides_as_without_the_feature() {
    for kind in Kind::ALL {
        for (depth, seed) in [(1, 1), (4, 2)] {
            let trace = trace(seed);
            let rotational = depth == 1;
            let elevator = ElevatorConfig { kind, rotational, depth, ..ElevatorConfig::default() };
            let mut raw = Elevator::new(START, &elevator);
            let weight = Weight::default();
            let vms = (0..VMS).map(|_| raw.add_group(START, GroupId::ROOT, weight)).collect();
            let mut directly = Directly { elevator: raw, vms, queues: [None; VMS] };

            let config = EngineConfig { elevator, depth, blocks: BlockConfig::default() };
            let mut engine = Engine::new(START, &config);
            engine.tell_streams_apart(false);
            let vms = (0..VMS).map(|_| engine.add_group(START, GroupId::ROOT, weight));
            let vms: Vec<_> = vms.collect();
            for &vm in &vms {
                engine.heed_priority(vm, false);
            }
            let geometry = Geometry::plain(DISK_SECTORS);
            let disks: Vec<_> = vms.iter().map(|&vm| engine.add_disk(vm, geometry)).collect();
            let mut engine = ByEngine { engine, disks };

            let depth = usize::try_from(depth).expect("few");
            let expected = play(&trace, depth, &mut directly);
            assert_eq!(play(&trace, depth, &mut engine), expected, "{kind}, depth {depth}");
        }
    }
}

#[test]
fn with_priorities_and_streams_bfq_decides_otherwise() {
    let trace = trace(1);
    let [off, on] = [false, true].map(|is_on| {
        let elevator =
            ElevatorConfig { kind: Kind::Bfq, rotational: true, ..ElevatorConfig::default() };
        let config = EngineConfig { elevator, depth: 1, blocks: BlockConfig::default() };
        let mut engine = Engine::new(START, &config);
        engine.tell_streams_apart(is_on);
        let mut disks = Vec::new();
        for _ in 0..VMS {
            let vm = engine.add_group(START, GroupId::ROOT, Weight::default());
            engine.heed_priority(vm, is_on);
            engine.set_help_policy(START, vm, HelpPolicy::default());
            disks.push(engine.add_disk(vm, Geometry::plain(DISK_SECTORS)));
        }
        play(&trace, 1, &mut ByEngine { engine, disks })
    });
    assert_ne!(off, on, "or the test above could not fail");
}
