//! Virtual time around the production schedulers and the production engine.
//!
//! Think of a model railway: the engines are real, the landscape is not. Guests with processes, page
//! caches and elevators of their own stand on one side, a modelled device on the other, and between
//! them what the host runs. Nothing happens but events, each at its instant; the same seed gives the
//! same history to the last byte.
//!
//! A [`World`] has one device, one host and any number of guests. Programs run as processes of the
//! host or of a guest. Time passes with [`World::run_until`] and the like; figures are read in
//! between.
//!
//! Deliberately absent: data, wall clocks, threads, networks; CPU time of the kernels but for fixed
//! delays; the host's page cache for the images of VMs (the experiments drop it).

mod agent;
pub(crate) mod audit;
mod block;
mod cache;
mod clock;
mod daemon;
pub(crate) mod driver;
mod faults;
mod guest;
mod host;
mod os;
mod program;
mod random;
mod readahead;
mod stage;
mod threads;
mod writeback;

use evenkeel_engine::BlockConfig;
use evenkeel_sched::{ElevatorConfig, Kind, Nanos, Priority, Queueing, Tag};

pub use agent::AgentModel;
pub use clock::ClockModel;
pub use driver::Client;
pub use faults::{FaultPlan, FaultyDevice, PowerCut, Sectors};
pub use guest::GuestModel;
pub use host::HostPath;
pub use os::{Life, OsModel};
pub use program::{App, Database, File, Loader, Order, Player, Program, Reader, Startup, Writer};
pub use random::Random;
pub use writeback::WritebackModel;

use crate::DeviceModel as _;
use crate::events::Events;
use driver::Driver;
use guest::{Guest, Word};
use host::{GuestRequest, Host, Owner};
use os::Os;

/// The instant of what does not happen.
const NEVER: Nanos = Nanos(u64::MAX);
const _: () = assert!(size_of::<Event>() <= 12, "what is copied so often is small");
/// How often the flushers look for old data.
const AGEING: Nanos = Nanos::from_secs(5);
/// A guest's message takes so long to the host.
const MESSAGE: Nanos = Nanos::from_micros(200);

/// Whose process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Place {
    /// A process of the host itself.
    Host,
    /// A process of the guest with this index, counted from 0 as they were added.
    Guest(u32),
}

/// Names a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ProcessId {
    /// Where it runs.
    pub place: Place,
    index: u32,
}

/// How a host is set up.
#[derive(Clone, Debug)]
pub struct HostModel {
    /// Which software decides.
    pub path: HostPath,
    /// Its elevator; whether the device rotates and queues is filled in.
    pub elevator: ElevatorConfig,
    /// Most commands at the device; none: as many as the device works on at once.
    pub depth: Option<u32>,
    /// How Evenkeel hands them over.
    pub blocks: BlockConfig,
    /// Whether Evenkeel keeps books of who made whom wait. A world has nobody who would ask for them,
    /// but [`World::check_invariants`] checks them.
    pub explains: bool,
    /// Whether Evenkeel tells the streams of a guest apart.
    pub streams: bool,
    /// Its own processes, memory, write-back.
    pub os: OsModel,
}

impl HostModel {
    /// Returns a host of two CPUs and 512 MiB for files.
    #[must_use]
    pub fn new(path: HostPath, kind: Kind) -> Self {
        let elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
        let (depth, blocks) = (None, BlockConfig::default());
        let os = OsModel::new(2, 512);
        Self { path, elevator, depth, blocks, explains: false, streams: true, os }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A process of a guest has waited long enough.
    GuestTimer {
        guest: u32,
        process: u32,
    },
    HostTimer {
        process: u32,
    },
    /// A request of a guest reaches the host; its place among those on their way.
    Arrive(u32),
    /// A guest hears that its request is finished.
    Answer {
        guest: u32,
        tag: u32,
    },
    /// A guest's elevator asked to be called.
    Call {
        guest: u32,
    },
    /// A guest's message about urgency reaches the host.
    Ask {
        guest: u32,
        word: Word,
    },
    /// A place of a driver has thought for long enough.
    Drive {
        driver: u32,
        place: u32,
    },
    /// The flushers look for old data.
    Age,
}

/// One device, one host, any number of guests, in virtual time.
#[derive(Debug)]
pub struct World {
    now: Nanos,
    events: Events<Event>,
    device: FaultyDevice,
    host: Host,
    os: Os,
    guests: Vec<Guest>,
    random: Random,
    /// Requests of guests on their way to the host, and the places that are free.
    arriving: Vec<GuestRequest>,
    arrived: Vec<u32>,
    /// The host's instant of [`Host::next_deadline`].
    host_deadline: Nanos,
    completed: u64,
    drivers: Vec<Driver>,
    /// Whether nobody submits anything any more.
    is_quiet: bool,
}

impl World {
    /// Returns a world without guests and processes.
    #[must_use]
    pub fn new(device: FaultyDevice, host: &HostModel, seed: u64) -> Self {
        let now = Nanos::ORIGIN;
        let mut random = Random::new(seed);
        let mut elevator = host.elevator.clone();
        let model = device.model();
        elevator.rotational = model.rotational();
        let depth = host.depth.unwrap_or_else(|| model.depth());
        elevator.depth = depth;
        elevator.bfq.queueing = if model.depth() > 1 { Queueing::Yes } else { Queueing::No };
        let mut side = Host::new(now, host, &elevator, depth);
        // Added first, so that for Evenkeel its positions are those of the device.
        let flusher = side.add_process(now, File { start: 0, sectors: 2048 }, false);
        let mut events = Events::default();
        events.add(now + AGEING, Event::Age);
        Self {
            now,
            events,
            device,
            host: side,
            os: Os::new(host.os, random.fork(), flusher),
            guests: Vec::new(),
            random,
            arriving: Vec::new(),
            arrived: Vec::new(),
            host_deadline: NEVER,
            completed: 0,
            drivers: Vec::new(),
            is_quiet: false,
        }
    }

    /// Returns the instant that it is.
    #[must_use]
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Returns how many commands the device has completed.
    #[must_use]
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// Adds a guest.
    pub fn add_guest(&mut self, model: &GuestModel) -> Place {
        let guest = Guest::new(self.now, model, self.random.fork());
        self.host.add_guest(self.now, model);
        self.guests.push(guest);
        Place::Guest(u32::try_from(self.guests.len() - 1).expect("fewer than 2^30 guests"))
    }

    /// Starts a process. Positions of a guest's files count from the beginning of its disk.
    pub fn start(&mut self, place: Place, program: Program) -> ProcessId {
        self.start_with(place, program, Priority::default())
    }

    /// Starts a process with an I/O priority, as `ionice` does. In a guest it orders requests
    /// where the guest's elevator heeds it, and Evenkeel learns of it; processes of the host have
    /// none.
    pub fn start_with(&mut self, place: Place, program: Program, priority: Priority) -> ProcessId {
        let now = self.now;
        let index = match place {
            Place::Host => {
                let span = program.file();
                let file = File { start: span.start, sectors: span.len() };
                let source = self.host.add_process(now, file, true);
                self.os.start(now, program, source)
            }
            Place::Guest(guest) => self.guests[guest as usize].start(now, program, priority),
        };
        self.settle(place);
        ProcessId { place, index }
    }

    /// Ends a process.
    pub fn kill(&mut self, process: ProcessId) {
        let now = self.now;
        self.os_mut(process.place).kill(now, process.index);
        self.settle(process.place);
    }

    /// Drops what is clean from the page caches of the host and of all guests.
    pub fn drop_caches(&mut self) {
        self.os.drop_caches();
        for guest in &mut self.guests {
            guest.os.drop_caches();
        }
    }

    /// Returns what has become of a process.
    #[must_use]
    pub fn life(&self, process: ProcessId) -> Life {
        self.os(process.place).life(process.index)
    }

    /// Returns a process's program, with the figures that it keeps.
    #[must_use]
    pub fn program(&self, process: ProcessId) -> &Program {
        self.os(process.place).program(process.index)
    }

    /// Returns the sectors that all processes of a place have read.
    #[must_use]
    pub fn read_sectors(&self, place: Place) -> u64 {
        self.os(place).read_sectors()
    }

    fn os(&self, place: Place) -> &Os {
        match place {
            Place::Host => &self.os,
            Place::Guest(guest) => &self.guests[guest as usize].os,
        }
    }

    fn os_mut(&mut self, place: Place) -> &mut Os {
        match place {
            Place::Host => &mut self.os,
            Place::Guest(guest) => &mut self.guests[guest as usize].os,
        }
    }

    /// Returns whether the elevator of the host or of a guest takes anybody for an application that
    /// starts, or a player.
    #[must_use]
    pub fn is_anybody_raised(&self) -> bool {
        let mut guests = self.guests.iter();
        self.host.is_anybody_raised() || guests.any(|guest| guest.layer.report().raised)
    }

    /// Lets time pass up to an instant.
    pub fn run_until(&mut self, until: Nanos) {
        while self.step(until) {}
        self.now = self.now.max(until);
    }

    /// Lets time pass until a process ends, or up to an instant; returns whether it has ended.
    pub fn run_process(&mut self, process: ProcessId, until: Nanos) -> bool {
        while self.life(process).ended.is_none() {
            if !self.step(until) {
                self.now = self.now.max(until);
                return false;
            }
        }
        true
    }

    /// Does what happens at the next instant; false if that lies behind `until`.
    pub(crate) fn step(&mut self, until: Nanos) -> bool {
        let next = self.events.next_or_never().min(self.device.next_or_never());
        let next = next.min(self.host_deadline);
        if next == NEVER || next > until {
            return false;
        }
        self.now = self.now.max(next);
        let mut is_host_called = self.host_deadline <= self.now;
        while let Some((tag, outcome)) = self.device.complete(self.now) {
            self.completed += 1;
            self.host.complete(self.now, tag, outcome);
            is_host_called = true;
        }
        while let Some(event) = self.events.due(self.now) {
            is_host_called |= self.handle(event);
        }
        if is_host_called || !self.os.bios.is_empty() {
            self.settle_host();
        }
        true
    }

    /// Returns whether the host has something new to decide.
    #[inline]
    fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Drive { driver, place } => self.drive(driver, place),
            _ => self.handle_other(event),
        }
    }

    fn handle_other(&mut self, event: Event) -> bool {
        let now = self.now;
        match event {
            // Nobody wants anything any more; computing on would only cost time.
            Event::GuestTimer { .. } | Event::HostTimer { .. } if self.is_quiet => false,
            Event::GuestTimer { guest, process } => {
                self.guests[guest as usize].os.timer(now, process);
                self.settle_guest(guest);
                false
            }
            Event::HostTimer { process } => {
                self.os.timer(now, process);
                self.carry_host_timers();
                !self.os.bios.is_empty()
            }
            Event::Arrive(place) => {
                self.arrived.push(place);
                self.host.arrive(now, &self.arriving[place as usize]);
                true
            }
            Event::Answer { guest, tag } => {
                self.guests[guest as usize].answered(now, tag);
                self.settle_guest(guest);
                false
            }
            Event::Call { guest } => {
                self.guests[guest as usize].planned = None;
                self.settle_guest(guest);
                false
            }
            Event::Ask { guest, word } => {
                self.host.ask(now, guest, word);
                true
            }
            Event::Drive { .. } => unreachable!("its own case"),
            Event::Age => {
                self.os.age(now);
                for guest in (0..).take(self.guests.len()) {
                    self.guests[guest as usize].os.age(now);
                    self.settle_guest(guest);
                }
                self.events.add(now + AGEING, Event::Age);
                true
            }
        }
    }

    fn settle(&mut self, place: Place) {
        match place {
            Place::Host => {
                self.carry_host_timers();
                self.settle_host();
            }
            Place::Guest(guest) => self.settle_guest(guest),
        }
    }

    #[inline]
    fn carry_host_timers(&mut self) {
        if self.os.timers.is_empty() {
            return;
        }
        for (at, process) in self.os.timers.drain(..) {
            self.events.add(at, Event::HostTimer { process });
        }
    }

    /// Lets a guest's elevator decide, and carries away what it wants.
    fn settle_guest(&mut self, index: u32) {
        let now = self.now;
        let guest = &mut self.guests[index as usize];
        for (at, process) in guest.os.timers.drain(..) {
            self.events.add(at, Event::GuestTimer { guest: index, process });
        }
        guest.submit(now);
        guest.look(now);
        if let Some(word) = guest.news(now) {
            self.events.add(now + MESSAGE, Event::Ask { guest: index, word });
        }
        if self.is_quiet {
            return;
        }
        let time = guest.clock.read(now);
        while let Some((Tag(tag), io)) = guest.layer.dispatch(time) {
            let ioprio = guest.ioprio(Tag(tag));
            let request = GuestRequest { guest: index, tag, io, ioprio };
            let place = self.arrived.pop().unwrap_or_else(|| {
                self.arriving.push(request);
                u32::try_from(self.arriving.len() - 1).expect("fewer than 2^32 requests")
            });
            self.arriving[place as usize] = request;
            self.events.add(now + guest.kick, Event::Arrive(place));
        }
        if let Some(at) = guest.next_deadline(now)
            && guest.planned.is_none_or(|planned| at < planned)
        {
            guest.planned = Some(at);
            self.events.add(at.max(now + Nanos(1)), Event::Call { guest: index });
        }
    }

    /// Lets the host decide, and carries its answers away.
    fn settle_host(&mut self) {
        let now = self.now;
        while let Some(owner) = self.host.retire(now) {
            match owner {
                Owner::Host(token) => self.os.finished(now, token),
                Owner::Guest { guest, tag } => {
                    let at = self.guests[guest as usize].hears(now);
                    self.events.add(at, Event::Answer { guest, tag });
                }
                Owner::Driver { driver, place } => self.think(driver, place),
            }
        }
        self.carry_host_timers();
        while !self.is_quiet
            && let Some(bio) = self.os.bios.pop_front()
        {
            self.host.submit(now, bio);
        }
        while let Some(source) = self.os.ended.pop() {
            self.host.remove_process(now, source);
        }
        while let Some((tag, io)) = &self.host.dispatch(now) {
            self.device.submit(now, *tag, io);
        }
        if let Some(daemon) = self.host.daemon() {
            daemon.settled(now);
        }
        let deadline = self.host.next_deadline();
        self.host_deadline = deadline.map_or(NEVER, |at| at.max(now + Nanos(1)));
    }

    /// Panics if somebody's state contradicts itself.
    pub fn check_invariants(&self) {
        self.host.check_invariants();
        for guest in &self.guests {
            guest.layer.check_invariants();
        }
    }
}
