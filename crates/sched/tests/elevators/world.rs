//! An elevator together with a ledger of everything that went in and came out.

use evenkeel_sched::{
    Class, Elevator, ElevatorConfig, GroupId, Insertion, Kind, MergeLimits, Nanos, Next, Op,
    Priority, QueueId, Request, Scheduler, Tag, Weight,
};

use crate::random::Random;

/// Where a tag is, as the caller knows it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Place {
    Free,
    Waiting,
    /// At the device, dispatched under this tag.
    Out(Tag),
}

struct Group {
    id: GroupId,
    /// Index of the parent.
    parent: usize,
    is_used: bool,
    service_sectors: u64,
}

struct Queue {
    id: QueueId,
    group: usize,
    outstanding: u32,
    is_removed: bool,
}

pub(crate) struct World {
    pub(crate) elevator: Elevator,
    pub(crate) now: Nanos,
    pub(crate) random: Random,
    kind: Kind,
    limits: MergeLimits,
    groups: Vec<Group>,
    queues: Vec<Queue>,
    /// Per tag: where it is, its request, and the index of its queue.
    tags: Vec<(Place, Option<Request>, usize)>,
    dispatched: Vec<Tag>,
    pub(crate) inserted: u64,
    pub(crate) came_out: u64,
    pub(crate) merged: u64,
}

const TAGS: usize = 48;
const GROUPS: usize = 6;
const QUEUES: usize = 8;

impl World {
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let limits = random.pick(&[
            MergeLimits::default(),
            MergeLimits { max_sectors: 16, max_segments: 6 },
            MergeLimits { max_sectors: 1, max_segments: 1 },
            MergeLimits { max_sectors: u32::MAX, max_segments: u16::MAX },
        ]);
        let mut config = ElevatorConfig { kind, merge: limits, ..ElevatorConfig::default() };
        config.rotational = random.chance(50);
        config.deadline.front_merges = random.chance(80);
        config.deadline.fifo_batch = random.pick(&[0, 1, 2, 16]);
        config.deadline.writes_starved = random.pick(&[0, 1, 2]);
        if kind == Kind::Anticipatory {
            let pick = |random: &mut Random| Nanos::from_millis(random.pick(&[0, 1, 6, 100, 500]));
            config.anticipatory.antic_expire = pick(&mut random);
            config.anticipatory.read_batch_expire = pick(&mut random);
            config.anticipatory.write_batch_expire = pick(&mut random);
        }
        if kind == Kind::Cfq {
            config.cfq.quantum = random.pick(&[1, 2, 8]);
            config.cfq.slice_idle = Nanos::from_millis(random.pick(&[0, 8, 100]));
            config.cfq.group_idle = Nanos::from_millis(random.pick(&[0, 8]));
            config.cfq.slice_sync = Nanos::from_millis(random.pick(&[1, 20, 100]));
            config.cfq.low_latency = random.chance(70);
        }
        config.bfq.kernel_compat = random.chance(25);
        let now = Nanos::ORIGIN;
        let root = Group { id: GroupId::ROOT, parent: 0, is_used: true, service_sectors: 0 };
        let elevator = Elevator::new(now, &config);
        let tags = vec![(Place::Free, None, 0); TAGS];
        let mut world = Self {
            elevator,
            now,
            random,
            kind,
            limits,
            groups: vec![root],
            queues: Vec::new(),
            tags,
            dispatched: Vec::new(),
            inserted: 0,
            came_out: 0,
            merged: 0,
        };
        world.add_queue();
        world
    }

    /// Does one random thing and checks what can be checked.
    pub(crate) fn step(&mut self) {
        match self.random.below(100) {
            0..=3 => self.add_group(),
            4..=6 => self.remove_group(),
            7..=9 => self.add_queue(),
            10..=12 => self.remove_queue(),
            13..=14 => self.set_weight(),
            15..=54 => self.insert(),
            55..=71 => drop(self.dispatch()),
            72..=74 => self.pull(),
            75..=89 => self.complete(),
            _ => self.let_time_pass(),
        }
        self.check();
    }

    /// Serves everything until nothing is left.
    pub(crate) fn drain(&mut self) {
        let mut idle_steps = 0;
        while self.inserted > self.came_out || !self.dispatched.is_empty() {
            idle_steps += 1;
            assert!(idle_steps < 10_000, "the elevator makes progress");
            match self.dispatch() {
                Next::Request(_) => idle_steps = 0,
                Next::NotBefore(then) if self.random.chance(50) => self.now = then,
                Next::NotBefore(_) => self.complete(),
                Next::Empty => {
                    let stuck = self.dispatched.is_empty() && self.inserted > self.came_out;
                    assert!(!stuck, "waiting requests come out of an idle device");
                    self.complete();
                }
            }
            self.check();
        }
        assert_eq!((self.elevator.queued(), self.elevator.in_flight()), (0, 0));
    }

    fn add_group(&mut self) {
        if self.groups.iter().filter(|group| group.is_used).count() >= GROUPS {
            return;
        }
        let parent = self.some_group();
        let weight = Weight::new(1 + self.random.below(1000)).unwrap();
        let id = self.elevator.add_group(self.now, self.groups[parent].id, weight);
        let is_new = |group: &Group| !group.is_used || group.id != id;
        assert!(self.groups.iter().all(is_new), "names are unique");
        self.groups.push(Group { id, parent, is_used: true, service_sectors: 0 });
    }

    fn remove_group(&mut self) {
        let index = self.some_group();
        let is_parent = |group: &Group| group.is_used && group.parent == index;
        let holds =
            |queue: &Queue| queue.group == index && (!queue.is_removed || queue.outstanding > 0);
        if index != 0 && !self.groups.iter().any(is_parent) && !self.queues.iter().any(holds) {
            self.elevator.remove_group(self.now, self.groups[index].id);
            self.groups[index].is_used = false;
        }
    }

    fn set_weight(&mut self) {
        let index = self.some_group();
        if index != 0 {
            let weight = Weight::new(1 + self.random.below(1000)).unwrap();
            self.elevator.set_weight(self.now, self.groups[index].id, weight);
        }
    }

    fn add_queue(&mut self) {
        if self.queues.iter().filter(|queue| !queue.is_removed).count() >= QUEUES {
            return;
        }
        let group = self.some_group();
        let classes = [Class::RealTime, Class::BestEffort, Class::BestEffort, Class::Idle];
        let class = self.random.pick(&classes);
        let level = u8::try_from(self.random.below(10)).unwrap();
        let priority = Priority { class, level };
        let sync = self.random.chance(70);
        let id = self.elevator.add_queue(self.now, self.groups[group].id, priority, sync);
        assert!(self.queues.iter().all(|queue| queue.id != id || queue.is_removed));
        self.queues.push(Queue { id, group, outstanding: 0, is_removed: false });
    }

    fn remove_queue(&mut self) {
        if let Some(index) = self.some_queue() {
            self.elevator.remove_queue(self.now, self.queues[index].id);
            self.queues[index].is_removed = true;
        }
    }

    fn insert(&mut self) {
        let free: Vec<usize> = (0..TAGS).filter(|&tag| self.tags[tag].0 == Place::Free).collect();
        let Some(index) = self.some_queue().filter(|_| !free.is_empty()) else { return };
        let tag = self.random.pick(&free);
        let request = self.draw_request(Tag(u32::try_from(tag).unwrap()), index);
        self.tags[tag] = (Place::Waiting, Some(request), index);
        self.queues[index].outstanding += 1;
        self.inserted += 1;
        if let Insertion::Merged(into) = self.elevator.insert(self.now, request) {
            self.merged += 1;
            assert_ne!(self.kind, Kind::None, "none merges nothing");
            let (place, other, _) = self.tags[into.0 as usize];
            assert_eq!(place, Place::Waiting, "merged into a waiting request");
            assert!(other.unwrap().queue == request.queue && into != request.tag);
        }
    }

    /// Draws a request, more often than not adjacent to one that waits.
    fn draw_request(&mut self, tag: Tag, queue: usize) -> Request {
        let waiting: Vec<Request> = self
            .tags
            .iter()
            .filter(|slot| slot.0 == Place::Waiting)
            .map(|slot| slot.1.unwrap())
            .collect();
        let nr_sectors = match self.random.below(20) {
            0 => self.limits.max_sectors.clamp(1, 1 << 22),
            1 => self.limits.max_sectors.clamp(1, 1 << 22).div_ceil(2),
            _ => u32::try_from(1 + self.random.below(8)).unwrap(),
        };
        let pos = if !waiting.is_empty() && self.random.chance(70) {
            let near = self.random.pick(&waiting);
            let before = near.pos.saturating_sub(u64::from(nr_sectors));
            if self.random.chance(50) { near.end() } else { before }
        } else {
            let origin = self.random.pick(&[0, 40, 1 << 20, 1 << 50]);
            origin + self.random.below(64)
        };
        let ops = [Op::Read, Op::Read, Op::Read, Op::Write, Op::Write, Op::Write];
        let op = match self.random.below(12) {
            0 => Op::Discard,
            1 => Op::WriteZeroes,
            _ => self.random.pick(&ops),
        };
        let segments = u16::try_from(1 + self.random.below(4)).unwrap();
        let sync = op == Op::Read || self.random.chance(30);
        Request { tag, queue: self.queues[queue].id, op, pos, nr_sectors, segments, sync }
    }

    pub(crate) fn dispatch(&mut self) -> Next {
        let next = self.elevator.dispatch(self.now);
        match next {
            Next::Request(tag) => self.take_out(tag),
            Next::NotBefore(then) => {
                assert!(then > self.now, "the promised instant lies ahead");
                let deadline = self.elevator.next_deadline().expect("somebody asks again");
                assert!(deadline <= then, "early enough");
            }
            Next::Empty => {
                let is_stuck = self.dispatched.is_empty() && self.elevator.queued() > 0;
                assert!(!is_stuck, "an idle device is kept for an instant, not for ever");
            }
        }
        if !matches!(next, Next::Request(_)) {
            let handled = self.elevator.next_deadline().is_none_or(|then| then > self.now);
            assert!(handled, "deadlines that have passed are handled");
        }
        next
    }

    /// Sends any waiting request, or part of one, out of turn.
    fn pull(&mut self) {
        let waiting: Vec<u32> = (0..)
            .zip(&self.tags)
            .filter(|(_, slot)| slot.0 == Place::Waiting)
            .map(|(tag, _)| tag)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let tag = Tag(self.random.pick(&waiting));
        let whole = self.elevator.pull(self.now, tag);
        self.take_out(whole);
        assert!(matches!(self.tags[tag.0 as usize].0, Place::Out(_)), "it went with its whole");
    }

    /// Checks a dispatched request against everything known of its parts.
    fn take_out(&mut self, tag: Tag) {
        let whole = self.tags[tag.0 as usize].1.expect("only known tags come out");
        let (mut end, mut sectors, mut segments, mut parts) = (None, 0_u64, 0_u64, 0);
        let mut met_itself = false;
        let mut at = Some(self.elevator.first_part(tag));
        while let Some(part) = at {
            let (place, request, queue) = &mut self.tags[part.0 as usize];
            assert_eq!(*place, Place::Waiting, "every request comes out once");
            *place = Place::Out(tag);
            let request = request.unwrap();
            let (same_queue, same_op) = (request.queue == whole.queue, request.op == whole.op);
            assert!(same_queue && same_op && request.sync == whole.sync, "nothing is mixed");
            assert!(end.is_none_or(|end| end == request.pos), "parts ascend without gaps");
            end = Some(request.end());
            sectors += u64::from(request.nr_sectors);
            segments += u64::from(request.segments);
            parts += 1;
            met_itself |= part == tag;
            if part != tag {
                self.queues[*queue].outstanding -= 1;
            }
            at = self.elevator.next_part(part);
        }
        assert!(met_itself, "a request is one of its parts");
        let within = sectors <= u64::from(self.limits.max_sectors)
            && segments <= u64::from(self.limits.max_segments);
        assert!(parts == 1 || within, "merging keeps to its limits");
        assert!(parts == 1 || whole.op.is_mergeable(), "only reads and writes merge");
        self.came_out += parts;
        self.dispatched.push(tag);
        let mut group = self.queues[self.tags[tag.0 as usize].2].group;
        loop {
            self.groups[group].service_sectors += sectors;
            if group == 0 {
                break;
            }
            group = self.groups[group].parent;
        }
    }

    pub(crate) fn complete(&mut self) {
        if self.dispatched.is_empty() {
            return;
        }
        let index = self.random.index(self.dispatched.len());
        let tag = self.dispatched.swap_remove(index);
        self.elevator.complete(self.now, tag);
        self.queues[self.tags[tag.0 as usize].2].outstanding -= 1;
        for slot in self.tags.iter_mut().filter(|slot| slot.0 == Place::Out(tag)) {
            slot.0 = Place::Free;
        }
    }

    fn let_time_pass(&mut self) {
        let span = match self.random.below(12) {
            0..=3 => Nanos::from_micros(self.random.below(100)),
            4..=7 => Nanos::from_millis(self.random.below(20)),
            8..=9 => Nanos::from_millis(self.random.below(700)),
            10 => Nanos::from_secs(self.random.below(15)),
            _ => self.elevator.next_deadline().map_or(Nanos::ZERO, |then| then - self.now),
        };
        self.now += span;
    }

    pub(crate) fn check(&self) {
        self.elevator.check_invariants();
        let waiting = self.tags.iter().filter(|slot| slot.0 == Place::Waiting).count();
        let queued = self.elevator.queued() as usize;
        assert!(queued <= waiting && (queued == 0) == (waiting == 0));
        assert_eq!(self.elevator.in_flight() as usize, self.dispatched.len());
        for group in self.groups.iter().filter(|group| group.is_used) {
            let report = self.elevator.group_report(group.id);
            assert_eq!(report.service_sectors, group.service_sectors, "service adds up");
        }
        let root = self.elevator.group_report(GroupId::ROOT);
        assert_eq!(root.queued as usize, queued, "the root counts everything");
    }

    fn some_group(&mut self) -> usize {
        loop {
            let index = self.random.index(self.groups.len());
            if self.groups[index].is_used {
                return index;
            }
        }
    }

    fn some_queue(&mut self) -> Option<usize> {
        let used: Vec<usize> =
            (0..self.queues.len()).filter(|&index| !self.queues[index].is_removed).collect();
        (!used.is_empty()).then(|| self.random.pick(&used))
    }
}
