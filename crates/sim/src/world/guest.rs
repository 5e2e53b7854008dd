//! A guest: an operating system, its elevator in front of the virtqueue, its clock.

use evenkeel_sched::{
    Class, Elevator, ElevatorConfig, GroupId, Kind, Nanos, Priority, Tag, Urgency, Weight,
};

use super::agent::{Agent, AgentModel, Verdict};
use super::block::{BlockLayer, BlockLimits};
use super::clock::{ClockModel, GuestClock};
use super::os::{Os, OsModel};
use super::program::{File, Program};
use super::random::Random;

/// After so long a guest asks again for help that it still needs.
const REPEAT: Nanos = Nanos::from_millis(400);

/// How a guest is set up.
#[derive(Clone, Debug)]
pub struct GuestModel {
    /// Where its disk lies on the device.
    pub image: File,
    /// Its share of the device, where the host has shares.
    pub weight: Weight,
    /// The VM of Evenkeel that its disk belongs to; none: one of its own. A VM with several disks
    /// is several guests of one VM.
    pub vm: Option<GroupId>,
    /// Its elevator.
    pub elevator: ElevatorConfig,
    /// Requests that the virtqueue holds.
    pub virtqueue: u32,
    /// Request slots of its block layer, the kernel's `nr_requests`.
    pub slots: u32,
    /// Its clock.
    pub clock: ClockModel,
    /// Processes, memory, write-back.
    pub os: OsModel,
    /// From the guest's request to the host's: exit, wake-up of the host's thread.
    pub kick: Nanos,
    /// From the end of the host's request to the guest's: interrupt, entry, handler.
    pub interrupt: Nanos,
    /// How many in a thousand interrupts find the virtual CPU not running.
    pub absent_per_mille: u32,
    /// The longest that it does not run then.
    pub absent: Nanos,
    /// Whether the host learns when the guest's elevator has somebody raised; for how long that
    /// holds after he was last seen.
    pub help: Option<Nanos>,
    /// Its agent, which then is the one that tells the host.
    pub agent: Option<AgentModel>,
}

/// What a guest tells the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Word {
    /// How urgent somebody in it is.
    pub(crate) urgency: Urgency,
    /// Whether the requests that are meant have an I/O priority.
    pub(crate) marked: bool,
}

impl GuestModel {
    /// Returns a guest with `kind` as its elevator: two virtual CPUs, 256 MiB for files, a
    /// virtqueue of 128 as QEMU's, and a clock of 100 Hz that halts. A virtual disk says that it
    /// rotates, whatever it lies on, as virtio-blk of Linux does.
    #[must_use]
    pub fn new(kind: Kind, image: File) -> Self {
        let elevator = ElevatorConfig { kind, rotational: true, ..ElevatorConfig::default() };
        Self {
            image,
            weight: Weight::default(),
            vm: None,
            elevator,
            virtqueue: 128,
            slots: 128,
            clock: ClockModel::halting(100),
            os: OsModel::new(2, 256),
            kick: Nanos::from_micros(60),
            interrupt: Nanos::from_micros(40),
            absent_per_mille: 5,
            absent: Nanos::from_millis(10),
            help: None,
            agent: None,
        }
    }
}

/// The guest.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) os: Os,
    pub(crate) layer: BlockLayer,
    pub(crate) clock: GuestClock,
    pub(crate) kick: Nanos,
    interrupt: Nanos,
    absent_per_mille: u64,
    absent: Nanos,
    help: Option<Nanos>,
    agent: Option<Agent>,
    raised_at: Option<Nanos>,
    /// What it last told the host, and when.
    asks: bool,
    told_at: Nanos,
    /// The instant for which a call is already planned, if that is not too late.
    pub(crate) planned: Option<Nanos>,
    /// By source: the word that the headers of its requests carry.
    words: Vec<u32>,
    random: Random,
}

impl Guest {
    pub(crate) fn new(now: Nanos, model: &GuestModel, mut random: Random) -> Self {
        let clock = GuestClock::new(model.clock, random.bits());
        let config = ElevatorConfig { depth: model.virtqueue, ..model.elevator.clone() };
        let elevator = Elevator::new(clock.read(now), &config);
        let limits = BlockLimits { slots: model.slots, depth: model.virtqueue };
        let mut layer = BlockLayer::new(elevator, limits);
        let flusher = layer.add_source(clock.read(now), Priority::default(), false);
        Self {
            os: Os::new(model.os, random.fork(), flusher),
            layer,
            clock,
            kick: model.kick,
            interrupt: model.interrupt,
            absent_per_mille: u64::from(model.absent_per_mille),
            absent: model.absent,
            help: model.help,
            agent: model.agent.map(|agent| Agent::new(now, agent)),
            raised_at: None,
            asks: false,
            told_at: now,
            planned: None,
            words: Vec::new(),
            random,
        }
    }

    /// Starts a process whose requests have an I/O priority, here and, as the kernel passes it on,
    /// in the host.
    pub(crate) fn start(&mut self, now: Nanos, program: Program, priority: Priority) -> u32 {
        let source = self.add_source(now, priority);
        let process = self.os.start(now, program, source);
        if let Some(agent) = &mut self.agent {
            agent.started(now, process);
        }
        process
    }

    fn add_source(&mut self, now: Nanos, priority: Priority) -> u32 {
        let source = self.layer.add_source(self.clock.read(now), priority, true);
        let place = source as usize;
        if self.words.len() <= place {
            self.words.resize(place + 1, 0);
        }
        self.words[place] = word(priority);
        source
    }

    /// Lets the agent look at the processes, if it is time. A process whose priority changes has
    /// another queue from then on.
    pub(crate) fn look(&mut self, now: Nanos) {
        let Some(agent) = &mut self.agent else { return };
        if agent.looks_at().is_none_or(|at| now < at) {
            return;
        }
        let (os, priority) = (&self.os, agent.priority);
        let verdicts = agent.look(now, |process| (os.life(process), os.waits_for_disk(process)));
        for (process, verdict) in verdicts {
            match verdict {
                Verdict::Leave => {}
                Verdict::Mark => {
                    let source = self.add_source(now, priority);
                    let ordinary = self.os.set_source(process, source);
                    let agent = self.agent.as_mut().expect("it has just looked");
                    agent.marked(process, ordinary);
                }
                Verdict::Restore(ordinary) if self.os.life(process).ended.is_some() => {
                    // The queue that it had last went with it.
                    self.layer.remove_source(self.clock.read(now), ordinary);
                }
                Verdict::Restore(ordinary) => {
                    let time = self.clock.read(now);
                    self.layer.goes_on(time, ordinary);
                    let marked = self.os.set_source(process, ordinary);
                    self.layer.remove_source(time, marked);
                }
            }
        }
    }

    /// Returns the word of priority of a request; 0, which says nothing, for write-back.
    pub(crate) fn ioprio(&self, tag: Tag) -> u32 {
        self.words.get(self.layer.source(tag) as usize).copied().unwrap_or(0)
    }

    /// Returns when the guest hears of a request that is finished at `now`.
    pub(crate) fn hears(&mut self, now: Nanos) -> Nanos {
        let mut at = now + self.interrupt;
        if self.random.per_mille(self.absent_per_mille) {
            at += Nanos(self.random.below(self.absent.0 + 1));
        }
        at
    }

    /// Takes note that the host has finished a request.
    pub(crate) fn answered(&mut self, now: Nanos, tag: u32) {
        self.layer.complete(self.clock.read(now), Tag(tag));
        while let Some(token) = self.layer.retire() {
            self.os.finished(now, token);
        }
    }

    /// Hands what the processes want to the elevator.
    pub(crate) fn submit(&mut self, now: Nanos) {
        let time = self.clock.read(now);
        while let Some(bio) = self.os.bios.pop_front() {
            self.layer.submit(time, bio);
        }
        while let Some(source) = self.os.ended.pop() {
            self.layer.remove_source(time, source);
        }
    }

    /// Returns when the elevator must be asked again even if nothing happens.
    pub(crate) fn next_deadline(&self, now: Nanos) -> Option<Nanos> {
        let elevator = self.layer.next_deadline().map(|time| self.clock.reads(time, now));
        let agent = self.agent.as_ref().and_then(Agent::looks_at);
        [elevator, agent].into_iter().flatten().min()
    }

    /// Returns what to tell the host now: whether somebody in the guest is raised. A raise is told
    /// again and again, as long as it lasts.
    pub(crate) fn news(&mut self, now: Nanos) -> Option<Word> {
        if let Some(agent) = &mut self.agent {
            return agent.news(now).map(|urgency| Word { urgency, marked: true });
        }
        let hold = self.help?;
        if self.layer.report().raised {
            self.raised_at = Some(now);
        }
        let is_urgent = self.raised_at.is_some_and(|at| now <= at + hold);
        let is_known = is_urgent == self.asks;
        if is_known && !(is_urgent && now > self.told_at + REPEAT) {
            return None;
        }
        self.asks = is_urgent;
        self.told_at = now;
        let urgency = if is_urgent { Urgency::Interactive } else { Urgency::None };
        Some(Word { urgency, marked: false })
    }
}

/// Returns the word by which virtio-blk passes a priority on.
///
/// Source: `include/uapi/linux/ioprio.h` for the encoding.
fn word(priority: Priority) -> u32 {
    let class = match priority.class {
        Class::RealTime => 1,
        Class::BestEffort => 2,
        Class::Idle => 3,
    };
    class << 13 | u32::from(priority.level)
}
