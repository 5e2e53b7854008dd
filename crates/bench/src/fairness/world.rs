//! A device of constant rate, and clients that keep their queues busy, in virtual time.

use std::collections::VecDeque;

use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Nanos, Next, Op, QueueId, Request, Scheduler as _, Tag,
    Weight,
};

use super::fluid::Fluid;
use super::scenario::{Queue, Scenario};

/// The device moves a sector in 2 µs: 256 MB/s.
const SECTOR: Nanos = Nanos(2_000);
/// Requests at the device at a time.
const DEPTH: usize = 4;

/// Somebody with a queue.
#[derive(Clone, Debug)]
struct Client {
    queue: QueueId,
    what: Queue,
    pos: u64,
    /// When it ends thinking, for each request that it will send then.
    due: VecDeque<Nanos>,
    free: Vec<Tag>,
}

impl Client {
    /// Returns whether it wants anything now, and when that changes next.
    fn phase(&self, now: Nanos) -> (bool, Nanos) {
        if self.what.asleep == Nanos::ZERO {
            return (true, Nanos(u64::MAX));
        }
        let (awake, round) = (self.what.awake.0, self.what.awake.0 + self.what.asleep.0);
        let at = now.since(Nanos::ORIGIN).0 % round;
        if at < awake { (true, now + Nanos(awake - at)) } else { (false, now + Nanos(round - at)) }
    }
}

/// A competition on its way.
#[derive(Debug)]
pub(super) struct World {
    elevator: Elevator,
    pub(super) fluid: Fluid,
    now: Nanos,
    clients: Vec<Client>,
    /// The client of each tag.
    owners: Vec<usize>,
    /// What the device does, in the order in which it ends.
    at_device: VecDeque<(Nanos, Tag)>,
    /// Sectors sent to the device for each queue.
    pub(super) served: Vec<f64>,
}

impl World {
    pub(super) fn new(config: &ElevatorConfig, scenario: &Scenario) -> Self {
        let now = Nanos::ORIGIN;
        let mut elevator = Elevator::new(now, config);
        let mut groups: Vec<GroupId> = Vec::new();
        for group in &scenario.groups {
            let parent = group.parent.map_or(GroupId::ROOT, |parent| groups[parent]);
            let weight = Weight::new(u64::from(group.weight)).expect("1 to 1000");
            groups.push(elevator.add_group(now, parent, weight));
        }
        let mut world = Self {
            elevator,
            fluid: Fluid::new(config.kind, scenario),
            now,
            clients: Vec::new(),
            owners: Vec::new(),
            at_device: VecDeque::new(),
            served: vec![0.0; scenario.queues.len()],
        };
        for &what in &scenario.queues {
            let group = what.group.map_or(GroupId::ROOT, |group| groups[group]);
            let queue = world.elevator.add_queue(now, group, what.priority, true);
            let first = u32::try_from(world.owners.len()).expect("few tags");
            let free: Vec<Tag> = (first..first + what.depth).map(Tag).collect();
            world.owners.extend(free.iter().map(|_| world.clients.len()));
            let due = free.iter().map(|_| now).collect();
            let pos = u64::from(queue.0) << 32;
            world.clients.push(Client { queue, what, pos, due, free });
        }
        world
    }

    /// Lets so much time pass.
    pub(super) fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            let mut wake = self.arrivals();
            if let Some(then) = self.dispatch() {
                wake = wake.min(then);
            }
            if let Some(&(done, _)) = self.at_device.front() {
                wake = wake.min(done);
            }
            assert!(wake > self.now, "time passes");
            self.now = wake.min(end);
            while let Some(&(done, tag)) = self.at_device.front()
                && done <= self.now
            {
                self.at_device.pop_front();
                self.complete(tag);
            }
        }
    }

    /// Inserts what clients send now; returns when the next one may send something.
    fn arrivals(&mut self) -> Nanos {
        let mut wake = Nanos(u64::MAX);
        for index in 0..self.clients.len() {
            let (is_awake, changes) = self.clients[index].phase(self.now);
            wake = wake.min(changes);
            while let Some(&due) = self.clients[index].due.front() {
                if !is_awake || due > self.now {
                    if is_awake {
                        wake = wake.min(due);
                    }
                    break;
                }
                self.insert(index);
            }
        }
        wake
    }

    fn insert(&mut self, index: usize) {
        let client = &mut self.clients[index];
        client.due.pop_front();
        let tag = client.free.pop().expect("one tag for each request that is due");
        let (pos, nr_sectors) = (client.pos, client.what.nr_sectors);
        // Never adjacent, never far.
        client.pos += u64::from(nr_sectors) + 8;
        let queue = client.queue;
        let request =
            Request { tag, queue, op: Op::Read, pos, nr_sectors, segments: 1, sync: true };
        self.fluid.arrive(index, nr_sectors);
        self.elevator.insert(self.now, request);
    }

    /// Fills the device; returns when the elevator wants to be asked again.
    fn dispatch(&mut self) -> Option<Nanos> {
        while self.at_device.len() < DEPTH {
            let Next::Request(tag) = self.elevator.dispatch(self.now) else { break };
            let index = self.owner(tag);
            let nr_sectors = self.clients[index].what.nr_sectors;
            self.served[index] += f64::from(nr_sectors);
            self.fluid.serve(index, nr_sectors);
            let begins = self.at_device.back().map_or(self.now, |&(done, _)| done);
            let took = Nanos(SECTOR.0 * u64::from(nr_sectors));
            self.at_device.push_back((begins + took, tag));
        }
        self.elevator.next_deadline().filter(|&then| then > self.now)
    }

    fn complete(&mut self, tag: Tag) {
        self.elevator.complete(self.now, tag);
        let index = self.owner(tag);
        let client = &mut self.clients[index];
        client.free.push(tag);
        client.due.push_back(self.now + client.what.think);
    }

    fn owner(&self, tag: Tag) -> usize {
        self.owners[usize::try_from(tag.0).expect("usize has at least 32 bits")]
    }
}
