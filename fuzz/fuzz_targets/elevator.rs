//! Whatever is asked of an elevator, every request comes out exactly once and nothing contradicts
//! itself.
//!
//! The first byte chooses the elevator; the variable `FUZZ_ELEVATOR` holds on to one by its name.
#![no_main]

mod tuning;

use std::sync::LazyLock;

use arbitrary::Arbitrary;
use evenkeel_sched::{
    Class, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits, Nanos, Next, Op,
    Priority, QueueId, Request, Scheduler, Tag, Urgency, Weight,
};
use libfuzzer_sys::fuzz_target;

/// Most requests at once; a step that wants more is left out.
const TAGS: usize = 64;
/// Where requests begin: near each other, and far apart.
const AREAS: [u64; 5] = [0, 1 << 12, 1 << 18, 1 << 30, 1 << 50];
/// Most groups and queues over a history.
const NODES: usize = 24;

/// The elevator that `FUZZ_ELEVATOR` names.
static FIXED: LazyLock<Option<Kind>> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_ELEVATOR").ok()?;
    Some(name.parse().expect("FUZZ_ELEVATOR names an elevator"))
});

#[derive(Arbitrary, Debug)]
struct History {
    kind: u8,
    rotational: bool,
    depth: u8,
    max_sectors: u16,
    max_segments: u8,
    /// What is tuned before the start.
    tunables: Vec<Tuned>,
    steps: Vec<Step>,
}

/// One tunable, and its value.
#[derive(Arbitrary, Debug)]
struct Tuned {
    field: u8,
    raw: u16,
}

#[derive(Arbitrary, Debug)]
enum Step {
    AddGroup { parent: u8, weight: u16 },
    RemoveGroup { group: u8 },
    SetWeight { group: u8, weight: u16 },
    AddQueue { group: u8, class: u8, level: u8, sync: bool },
    RemoveQueue { queue: u8 },
    SetUrgency { queue: u8, urgency: u8 },
    DenyStart { queue: u8 },
    Tune(Tuned),
    SetDepth { depth: u8 },
    Insert { queue: u8, op: u8, area: u8, place: u8, nr_sectors: u8, segments: u8, sync: bool },
    Dispatch,
    Pull { which: u8 },
    Complete { which: u8 },
    Wait { us: u16 },
    WaitLong { ms: u16 },
    WaitForDeadline,
    SetBounded { bounded: bool },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    /// Went to the device as a part of this request.
    Dispatched(Tag),
}

#[derive(Debug)]
struct Group {
    id: GroupId,
    parent: usize,
    alive: bool,
}

#[derive(Debug)]
struct Queue {
    id: QueueId,
    group: usize,
    removed: bool,
}

#[derive(Debug)]
struct World {
    config: ElevatorConfig,
    elevator: Elevator,
    now: Nanos,
    groups: Vec<Group>,
    queues: Vec<Queue>,
    /// By tag: the request, the index of its queue, and where it is.
    requests: Vec<Option<(Request, usize, State)>>,
}

fuzz_target!(|history: History| {
    let kind = (*FIXED).unwrap_or(Kind::ALL[usize::from(history.kind) % Kind::ALL.len()]);
    let merge = MergeLimits {
        max_sectors: u32::try_from(tuning::between(history.max_sectors, 1, u32::MAX.into()))
            .expect("32 bits"),
        max_segments: u16::from(history.max_segments).max(1),
    };
    let (rotational, depth) = (history.rotational, u32::from(history.depth));
    let mut config = ElevatorConfig { kind, merge, rotational, depth, ..Default::default() };
    for Tuned { field, raw } in &history.tunables {
        tuning::tune(&mut config, *field, *raw);
    }
    let mut world = World::new(config);
    for step in &history.steps {
        world.step(step);
        world.check();
    }
    world.drain();
});

fn pick(which: u8, count: usize) -> Option<usize> {
    usize::from(which).checked_rem(count)
}

fn weight(raw: u16) -> Weight {
    Weight::new(u64::from(raw % 1000) + 1).expect("1 to 1000")
}

impl World {
    fn new(config: ElevatorConfig) -> Self {
        let now = Nanos::ORIGIN;
        Self {
            elevator: Elevator::new(now, &config),
            config,
            now,
            groups: vec![Group { id: GroupId::ROOT, parent: 0, alive: true }],
            queues: Vec::new(),
            requests: vec![None; TAGS],
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::AddGroup { parent, weight: raw } => self.add_group(parent, weight(raw)),
            Step::RemoveGroup { group } => self.remove_group(group),
            Step::SetWeight { group, weight: raw } => {
                let group = &self.groups[usize::from(group) % self.groups.len()];
                if group.alive && group.id != GroupId::ROOT {
                    self.elevator.set_weight(self.now, group.id, weight(raw));
                }
            }
            Step::AddQueue { group, class, level, sync } => {
                let class =
                    [Class::RealTime, Class::BestEffort, Class::Idle][usize::from(class % 3)];
                self.add_queue(group, Priority { class, level: level % 8 }, sync);
            }
            Step::RemoveQueue { queue } => {
                let Some(index) = pick(queue, self.queues.len()) else { return };
                let queue = &mut self.queues[index];
                if !core::mem::replace(&mut queue.removed, true) {
                    self.elevator.remove_queue(self.now, queue.id);
                }
            }
            Step::SetUrgency { queue, urgency } => {
                let urgencies = [Urgency::None, Urgency::Interactive, Urgency::SoftRealTime];
                if let Some(queue) = self.live_queue(queue) {
                    let urgency = urgencies[usize::from(urgency % 3)];
                    self.elevator.set_urgency(self.now, queue, urgency);
                }
            }
            Step::DenyStart { queue } => {
                if let Some(queue) = self.live_queue(queue) {
                    self.elevator.deny_start(self.now, queue);
                }
            }
            Step::Tune(Tuned { field, raw }) => self.tune(field, raw),
            Step::SetBounded { bounded } => self.elevator.set_bounded(bounded),
            Step::SetDepth { depth } => self.elevator.set_depth(u32::from(depth)),
            Step::Insert { queue, op, area, place, nr_sectors, segments, sync } => {
                let op = match op % 8 {
                    0..3 => Op::Read,
                    3..6 => Op::Write,
                    6 => Op::Discard,
                    _ => Op::WriteZeroes,
                };
                let request = Request {
                    tag: Tag(0),
                    queue: QueueId(0),
                    op,
                    pos: AREAS[usize::from(area) % AREAS.len()] + u64::from(place) * 8,
                    nr_sectors: u32::from(nr_sectors % 8 + 1) * 8,
                    segments: u16::from(segments % 4) + 1,
                    sync,
                };
                self.insert(queue, request);
            }
            Step::Dispatch => {
                self.dispatch();
            }
            Step::Pull { which } => self.pull(which),
            Step::Complete { which } => self.complete(which),
            Step::Wait { us } => self.now += Nanos::from_micros(u64::from(us)),
            Step::WaitLong { ms } => self.now += Nanos::from_millis(u64::from(ms)),
            Step::WaitForDeadline => {
                self.now =
                    self.elevator.next_deadline().map_or(self.now, |then| self.now.max(then));
            }
        }
    }

    fn live_queue(&self, which: u8) -> Option<QueueId> {
        let queue = &self.queues[pick(which, self.queues.len())?];
        (!queue.removed).then_some(queue.id)
    }

    fn tune(&mut self, field: u8, raw: u16) {
        tuning::tune(&mut self.config, field, raw);
        assert!(self.elevator.set_tunables(self.now, &self.config));
        let kind = if self.config.kind == Kind::Noop { Kind::None } else { Kind::Noop };
        let other = ElevatorConfig { kind, ..self.config.clone() };
        assert!(!self.elevator.set_tunables(self.now, &other), "it is another elevator");
    }

    fn add_group(&mut self, parent: u8, weight: Weight) {
        let parent = usize::from(parent) % self.groups.len();
        if self.groups[parent].alive && self.groups.len() < NODES {
            let id = self.elevator.add_group(self.now, self.groups[parent].id, weight);
            assert!(self.groups.iter().all(|group| !group.alive || group.id != id));
            self.groups.push(Group { id, parent, alive: true });
        }
    }

    /// Removes a group that has no children, and no queue in use.
    fn remove_group(&mut self, group: u8) {
        let index = usize::from(group) % self.groups.len();
        let childless = !self.groups.iter().any(|group| group.alive && group.parent == index);
        let unused = (0..self.queues.len()).all(|queue| {
            let Queue { group, removed, .. } = self.queues[queue];
            group != index || (removed && self.holds(queue) == 0)
        });
        if index != 0 && self.groups[index].alive && childless && unused {
            self.elevator.remove_group(self.now, self.groups[index].id);
            self.groups[index].alive = false;
        }
    }

    /// Returns how many requests of a queue are not completed.
    fn holds(&self, queue: usize) -> usize {
        self.requests.iter().flatten().filter(|(_, of, _)| *of == queue).count()
    }

    fn add_queue(&mut self, group: u8, priority: Priority, sync: bool) {
        let group = usize::from(group) % self.groups.len();
        if self.groups[group].alive && self.queues.len() < NODES {
            let id = self.elevator.add_queue(self.now, self.groups[group].id, priority, sync);
            let taken = (0..self.queues.len()).any(|other| {
                let Queue { id: theirs, removed, .. } = self.queues[other];
                theirs == id && !removed
            });
            assert!(!taken, "{id:?} is still in use");
            self.queues.push(Queue { id, group, removed: false });
        }
    }

    fn insert(&mut self, queue: u8, request: Request) {
        let Some(free) = self.requests.iter().position(Option::is_none) else { return };
        let Some(index) = pick(queue, self.queues.len()) else { return };
        if self.queues[index].removed {
            return;
        }
        let tag = Tag(u32::try_from(free).expect("few tags"));
        let request = Request { tag, queue: self.queues[index].id, ..request };
        let queued = self.elevator.queued();
        match self.elevator.insert(self.now, request) {
            Insertion::Queued => assert_eq!(self.elevator.queued(), queued + 1),
            Insertion::Merged(into) => {
                let held = self.requests[usize::try_from(into.0).expect("few tags")];
                let (other, _, state) = held.expect("merged into a request that exists");
                assert_eq!((state, other.op), (State::Waiting, request.op));
                assert!(self.elevator.queued() <= queued);
            }
        }
        self.requests[free] = Some((request, index, State::Waiting));
    }

    fn dispatch(&mut self) -> Next {
        let next = self.elevator.dispatch(self.now);
        match next {
            Next::Request(tag) => self.take_out(tag),
            Next::NotBefore(then) => {
                assert!(then > self.now, "told to wait for the past");
                let deadline = self.elevator.next_deadline().expect("somebody asks again");
                assert!(deadline <= then, "early enough");
            }
            Next::Empty => {
                // What is at the device brings the next one.
                let brings = self.elevator.in_flight() > 0;
                assert!(brings || self.elevator.queued() == 0, "requests are stuck");
            }
        }
        next
    }

    /// Notes that a request has gone to the device, with all its parts.
    fn take_out(&mut self, tag: Tag) {
        let mut part = Some(self.elevator.first_part(tag));
        let (mut end, mut found, mut parts) = (None, false, 0);
        let (mut sectors, mut segments) = (0, 0);
        while let Some(current) = part {
            let index = usize::try_from(current.0).expect("few tags");
            let held = self.requests[index].as_mut();
            let (request, _, state) = held.expect("dispatched what was inserted");
            assert_eq!(*state, State::Waiting, "{current:?} came out twice");
            assert!(end.is_none_or(|end| end == request.pos), "parts are not adjacent");
            *state = State::Dispatched(tag);
            end = Some(request.end());
            found |= current == tag;
            parts += 1;
            sectors += request.nr_sectors;
            segments += request.segments;
            part = self.elevator.next_part(current);
        }
        assert!(found, "a request is not among its own parts");
        let MergeLimits { max_sectors, max_segments } = self.config.merge;
        let is_within = sectors <= max_sectors && segments <= max_segments;
        assert!(parts == 1 || is_within, "merged beyond the limits");
    }

    /// Sends any waiting request, or part of one, out of turn.
    fn pull(&mut self, which: u8) {
        let waiting = self.requests.iter().flatten();
        let waiting = waiting.filter(|(_, _, state)| *state == State::Waiting);
        let waiting: Vec<Tag> = waiting.map(|(request, ..)| request.tag).collect();
        let Some(index) = pick(which, waiting.len()) else { return };
        let whole = self.elevator.pull(self.now, waiting[index]);
        self.take_out(whole);
        let held = self.requests[usize::try_from(waiting[index].0).expect("few tags")];
        let (_, _, state) = held.expect("it is at the device");
        assert_eq!(state, State::Dispatched(whole), "it went with its whole");
    }

    /// Returns the tags at the device, without parts.
    fn in_flight(&self) -> Vec<Tag> {
        let held = self.requests.iter().flatten();
        held.filter(|(request, _, state)| *state == State::Dispatched(request.tag))
            .map(|(request, _, _)| request.tag)
            .collect()
    }

    fn complete(&mut self, which: u8) {
        let in_flight = self.in_flight();
        let Some(index) = pick(which, in_flight.len()) else { return };
        let tag = in_flight[index];
        self.elevator.complete(self.now, tag);
        for held in &mut self.requests {
            if held.is_some_and(|(_, _, state)| state == State::Dispatched(tag)) {
                *held = None;
            }
        }
    }

    fn check(&self) {
        self.elevator.check_invariants();
        let waiting = self.requests.iter().flatten();
        let waiting = waiting.filter(|(_, _, state)| *state == State::Waiting).count();
        let queued = usize::try_from(self.elevator.queued()).expect("few tags");
        assert!(queued <= waiting && (queued > 0 || waiting == 0), "{queued} of {waiting}");
        let in_flight = usize::try_from(self.elevator.in_flight()).expect("few tags");
        let at_device = self.in_flight();
        assert_eq!(in_flight, at_device.len());
        for tag in at_device {
            let urgency = self.elevator.urgency(tag);
            assert!(self.config.kind == Kind::Bfq || urgency == Urgency::None);
        }
        let root = self.elevator.group_report(GroupId::ROOT);
        assert_eq!(root.queued, self.elevator.queued(), "the root counts everything");
        for group in self.groups.iter().filter(|group| group.alive) {
            assert!(self.elevator.group_report(group.id).service_sectors <= root.service_sectors);
            let keeps = self.elevator.group_stats(group.id).is_some();
            assert_eq!(keeps, self.config.kind == Kind::Bfq, "only bfq keeps statistics");
        }
    }

    /// Lets everything out; the device always has room.
    fn drain(&mut self) {
        for _ in 0..16 * TAGS {
            match self.dispatch() {
                Next::Request(_) => self.complete(0),
                Next::NotBefore(then) => {
                    self.complete(0);
                    self.now = then;
                }
                Next::Empty if self.in_flight().is_empty() => break,
                Next::Empty => self.complete(0),
            }
            self.check();
        }
        assert!(self.requests.iter().all(Option::is_none), "lost: {:?}", self.requests);
    }
}
