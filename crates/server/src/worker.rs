//! One pool's worker: the turn.
//!
//! Everything that a request touches happens here, in this order, on one thread without a lock:
//! sleep until a kick, a completion, a control message or a deadline; read the clock once; hand
//! completions to the engine; pop the vrings that were kicked; dispatch; answer; show the answers
//! and interrupt each guest at most once; then one system call submits everything and sleeps again.
//!
//! Deliberately absent: decisions. The engine says what goes next, the guests' vrings say what is
//! there.

use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::mpsc::SyncSender;

use evenkeel_engine::{
    Command as Order, DiskId, Engine, EngineConfig, HelpPolicy, Parsed, Request, SECTOR_BYTES,
    Status, Token, is_block_due, parse, parse_range,
};
use evenkeel_sched::{GroupId, Nanos, Tag, Weight};
use libc::iovec;

use crate::backend::Backend;
use crate::clock::Clock;
use crate::command::{DiskIndex, Inbox};
use crate::copies::COPY_MOST;
use crate::guests::Guests;
use crate::limits::{self, Control};
use crate::model::Modelled;
use crate::polling::Polling;
use crate::priority::IoPriorities;
use crate::slots::{Origin, Progress, Slots};
use crate::trace::Recorder;
use crate::uring::{Event, PollId, Ring, TOGETHER, Wait};
use crate::vring::{Chain, Pop};

mod control;
mod idle;

use idle::RunDelay;

/// The poll of the control threads' bell; vrings count from 0.
const BELL: PollId = PollId { index: u32::MAX, generation: 0 };

/// Bytes that are copied before the answers so far are shown: the guest goes on meanwhile, which is
/// worth its interrupts where copying takes most of a turn.
const COPIED_UNSEEN: u64 = 8 << 10;

/// How often the operator is told that a file system is still full.
const FULL_REMINDER: Nanos = Nanos::from_secs(60);

/// What a worker is made of.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) engine: EngineConfig,
    pub(crate) model: Option<Modelled>,
    /// Whether a governor finds out how much the device needs.
    pub(crate) governs: bool,
    /// How many commands usually are enough for it.
    pub(crate) usual_depth: u32,
    /// Whether reads of one VM at different places may have queues of their own.
    pub(crate) tells_streams_apart: bool,
    /// How long the worker looks for work before it sleeps, at most.
    pub(crate) polls: Nanos,
    /// How long a thread of the kernel waits for more to submit before it sleeps, in ms, if there is
    /// one.
    pub(crate) sqpoll_ms: Option<u32>,
    /// Whether devices that can be are asked for their answers.
    pub(crate) iopoll: bool,
    /// With which priorities commands enter the kernel.
    pub(crate) priorities: IoPriorities,
    pub(crate) trace: Option<Recorder>,
    /// Tenants and VMs, parents before children.
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) vms: Vec<VmPlan>,
    /// Their limits and reservations.
    pub(crate) controls: Vec<Control>,
    pub(crate) disks: Vec<DiskPlan>,
}

/// How far a VM is believed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct VmPlan {
    pub(crate) name: String,
    /// Position in [`Plan::groups`].
    pub(crate) group: usize,
    pub(crate) heeds_priority: bool,
    /// None if it may not ask for help.
    pub(crate) help: Option<HelpPolicy>,
}

/// A node of the pool's tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPlan {
    /// Position in [`Plan::groups`]; none is the pool itself.
    pub(crate) parent: Option<usize>,
    pub(crate) weight: Weight,
}

/// A disk to serve.
#[derive(Debug)]
pub(crate) struct DiskPlan {
    pub(crate) name: Box<str>,
    pub(crate) backend: Backend,
    /// Position of its VM in [`Plan::groups`].
    pub(crate) group: usize,
    /// What the guest reads as the disk's identity.
    pub(crate) serial: [u8; 20],
    pub(crate) write_through: bool,
}

#[derive(Debug)]
struct Disk {
    name: Box<str>,
    backend: Backend,
    id: DiskId,
    /// Position in `Worker::groups`.
    group: usize,
    serial: [u8; 20],
    /// Whether writes are durable before the guest has said anything.
    write_through: bool,
    /// Requests that were answered with an error because they made no sense.
    refused: u64,
    /// Who waits for the disk to be left alone.
    leaving: Vec<SyncSender<()>>,
    /// When the operator was last told that its file system is full.
    full_told: Option<Nanos>,
}

/// The state of one pool. Lives on its worker's thread.
#[derive(Debug)]
pub(crate) struct Worker {
    clock: Clock,
    ring: Ring,
    engine: Engine,
    model: Option<Modelled>,
    /// Where requests are recorded, if they are.
    trace: Option<Recorder>,
    slots: Slots,
    guests: Guests,
    polling: Polling,
    run_delay: RunDelay,
    disks: Vec<Disk>,
    groups: Vec<(GroupId, Weight)>,
    inbox: Inbox,
    /// Disks with somebody in `leaving`.
    leaving: usize,
    /// Who waits for the end.
    draining: Option<SyncSender<()>>,
    events: Vec<Event>,
    segments: Vec<iovec>,
    /// Bytes copied since answers were last shown.
    unseen: u64,
}

impl Worker {
    /// Makes a worker; to be called on its own thread.
    ///
    /// # Errors
    ///
    /// * What the system says if there is no ring to be had.
    pub(crate) fn new(mut plan: Plan, inbox: Inbox) -> io::Result<Self> {
        let files: Vec<_> = plan.disks.iter().map(|disk| disk.backend.raw_fd()).collect();
        let mut ring = Ring::new(&files, plan.sqpoll_ms)?;
        if plan.iopoll {
            let asked = plan.disks.iter().map(|disk| disk.backend.can_be_asked()).collect();
            ring.ask_devices(&files, asked)?;
        }
        ring.watch(BELL, inbox.bell.as_raw_fd())?;
        let mut clock = Clock::new();
        let now = clock.now();
        if let Some(trace) = &mut plan.trace {
            trace.start(now);
        }
        let mut engine = Engine::new(now, &plan.engine);
        engine.tell_streams_apart(plan.tells_streams_apart);
        engine.set_usual_depth(plan.usual_depth);
        engine.govern(plan.governs);
        let mut groups: Vec<(GroupId, Weight)> = Vec::with_capacity(plan.groups.len());
        for group in &plan.groups {
            let parent = group.parent.map_or(GroupId::ROOT, |parent| groups[parent].0);
            groups.push((engine.add_group(now, parent, group.weight), group.weight));
        }
        for vm in &plan.vms {
            let group = groups[vm.group].0;
            engine.heed_priority(group, vm.heeds_priority);
            if let Some(policy) = vm.help {
                engine.set_help_policy(now, group, policy);
            }
        }
        let names: Vec<GroupId> = groups.iter().map(|&(group, _)| group).collect();
        let disks = plan.disks.into_iter().map(|disk| {
            let id = engine.add_disk(groups[disk.group].0, *disk.backend.geometry());
            engine.set_write_through(id, disk.write_through);
            let DiskPlan { name, backend, group, serial, write_through } = disk;
            Disk {
                name,
                backend,
                id,
                group,
                serial,
                write_through,
                refused: 0,
                leaving: Vec::new(),
                full_told: None,
            }
        });
        let disks: Vec<_> = disks.collect();
        limits::apply(&mut engine, now, &names, &plan.controls);
        let in_order = disks.iter().zip(0..).all(|(disk, index)| disk.id == DiskId(index));
        assert!(in_order, "a fresh engine numbers its disks from 0");
        Ok(Self {
            clock,
            ring,
            engine,
            model: plan.model,
            trace: plan.trace,
            slots: Slots::new(plan.priorities),
            guests: Guests::default(),
            polling: Polling::new(plan.polls),
            run_delay: RunDelay::new(),
            disks,
            groups,
            inbox,
            leaving: 0,
            draining: None,
            events: Vec::new(),
            segments: Vec::new(),
            unseen: 0,
        })
    }

    /// Takes turns until a [`Drain`](crate::command::Command::Drain) is done.
    ///
    /// # Errors
    ///
    /// * What the system says if the ring fails; nothing can be served without it.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut wait = Wait::No;
        loop {
            self.ring.enter(wait)?;
            let now = self.clock.now();
            self.polling.wake(now);
            self.reap(now)?;
            if self.draining.is_none() {
                self.pull(now)?;
            }
            let now = self.work(now)?;
            let awaited = self.awaited();
            let window = self.window(awaited);
            // A guest that is looked at need not say that it has more.
            self.guests.publish(window.is_some());
            self.guests.settle();
            self.say_goodbye();
            if self.is_drained() {
                self.end();
                return Ok(());
            }
            wait = self.rest(now, awaited, window)?;
        }
    }

    /// Takes completions, kicks and control messages.
    fn reap(&mut self, now: Nanos) -> io::Result<()> {
        let mut events = std::mem::take(&mut self.events);
        self.ring.reap(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Io { tag, result } => match self.slots.reap(tag, result) {
                    Progress::Again => self.slots.send(&mut self.ring, tag)?,
                    Progress::Done(_) => self.finish(now, tag),
                },
                Event::Poll { id: BELL, armed } => {
                    if !armed {
                        self.ring.watch(BELL, self.inbox.bell.as_raw_fd())?;
                    }
                    while let Ok(command) = self.inbox.receiver.try_recv() {
                        self.obey(now, command)?;
                    }
                }
                Event::Poll { id, armed } => self.guests.polled(&mut self.ring, id, armed)?,
            }
        }
        self.events = events;
        Ok(())
    }

    /// Pops everything that the kicked vrings have: at most their size, each.
    fn pull(&mut self, now: Nanos) -> io::Result<()> {
        let mut at = 0;
        while at < self.guests.kicked() {
            self.pull_vring(now, at)?;
            at += 1;
        }
        Ok(())
    }

    fn pull_vring(&mut self, now: Nanos, at: usize) -> io::Result<()> {
        let Some((place, disk, _)) = self.guests.kicked_vring(at) else { return Ok(()) };
        loop {
            self.segments.clear();
            let Some((_, _, vring)) = self.guests.kicked_vring(at) else { break };
            match vring.pop(&mut self.segments) {
                Pop::Chain(chain) => self.take(now, place, disk, &chain),
                Pop::Empty => break,
                Pop::Broken(why) => {
                    let name = &self.disks[disk.0 as usize].name;
                    self.guests.broke(&mut self.ring, place, name, why)?;
                    break;
                }
            }
        }
        // Chains without a request in them were answered by the vring itself.
        self.guests.touch(place);
        Ok(())
    }

    /// Takes one chain: to the engine, or answered at once.
    fn take(&mut self, now: Nanos, place: u32, index: DiskIndex, chain: &Chain) {
        let disk = &mut self.disks[index.0 as usize];
        let mut origin = Origin { vring: place, head: chain.head, written: 0 };
        let token = Token(u64::from(place) << 16 | u64::from(chain.head));
        let geometry = self.engine.geometry(disk.id);
        let parsed = match parse(&chain.shape, geometry) {
            Ok(Parsed::Range(kind)) => {
                let payload = self.guests.read_payload(place, &self.segments);
                let ioprio = ioprio(&chain.shape.header);
                parse_range(kind, ioprio, payload, geometry).map(Parsed::Io)
            }
            other => other,
        };
        let (tag, request) = match parsed {
            Ok(Parsed::Io(request)) => {
                origin.written = written(&request, chain);
                (self.engine.submit(now, disk.id, token, &request), Some(request))
            }
            Ok(Parsed::Flush) => (self.engine.flush(now, disk.id, token), None),
            Ok(Parsed::Id) => {
                origin.written = self.guests.write_id(place, &self.segments, &disk.serial);
                return self.guests.answer(origin, Status::Ok);
            }
            Ok(Parsed::Range(_)) => unreachable!("a range's payload was parsed above"),
            Err(malformed) => {
                disk.refused += 1;
                tracing::debug!(disk = %disk.name, %malformed, "request refused");
                return self.guests.answer(origin, malformed.status());
            }
        };
        if let Some(trace) = &mut self.trace {
            let ioprio = ioprio(&chain.shape.header);
            trace.submitted(tag, request.as_ref(), ioprio, self.guests.index(place));
        }
        self.slots.open(tag, origin, &mut self.segments);
    }

    /// Dispatches and answers until nothing moves any more; returns when that was.
    fn work(&mut self, mut now: Nanos) -> io::Result<Nanos> {
        self.mind_full_disks(now);
        self.reap_model(now);
        loop {
            let mut moved = false;
            while let Some(order) = self.engine.dispatch(now) {
                now = self.push(now, &order)?;
                moved = true;
                if self.unseen >= COPIED_UNSEEN {
                    break;
                }
            }
            while let Some(retired) = self.engine.retire() {
                let origin = self.slots.close(retired.tag);
                self.guests.answer(origin, retired.status);
                if let Some(trace) = &mut self.trace
                    && !trace.answered(&retired)
                {
                    self.trace = None;
                }
                moved = true;
            }
            if self.unseen >= COPIED_UNSEEN {
                self.unseen = 0;
                self.guests.show();
            }
            if !moved {
                return Ok(now);
            }
        }
    }

    /// Sends a command to the backend and to the model; returns when it is on its way.
    fn push(&mut self, now: Nanos, order: &Order) -> io::Result<Nanos> {
        let backend = &self.disks[order.disk.0 as usize].backend;
        let parts = self.engine.parts(order.tag);
        self.slots.begin(order, parts, backend.alignment(), self.model.is_some());
        if let Some(model) = &mut self.model {
            model.submit(now, order);
        }
        if backend.is_null() {
            self.finish(now, order.tag);
            return Ok(now);
        }
        if let Some(file) = backend.copied()
            && u64::from(order.nr_sectors) * SECTOR_BYTES <= COPY_MOST
            && self.slots.copy(file, order.tag)
        {
            // Unlike a device's, this time is the worker's own.
            self.unseen += u64::from(order.nr_sectors) * SECTOR_BYTES;
            let now = self.clock.now();
            self.finish(now, order.tag);
            return Ok(now);
        }
        // A block goes when one more command comes behind it: the last one goes with the wait.
        let gathered = self.ring.gathered();
        if gathered >= TOGETHER && is_block_due(gathered, self.engine.in_flight()) {
            self.ring.enter(Wait::No)?;
        }
        self.slots.send(&mut self.ring, order.tag)?;
        Ok(now)
    }

    fn reap_model(&mut self, now: Nanos) {
        while let Some(tag) = self.model.as_mut().and_then(|model| model.complete(now)) {
            self.slots.modelled(tag);
            self.finish(now, tag);
        }
    }

    /// Tells the engine of a command that nobody works on any more.
    fn finish(&mut self, now: Nanos, tag: Tag) {
        if let Some(outcome) = self.slots.outcome(tag) {
            self.engine.complete(now, tag, outcome);
        }
    }

    /// Tells the operator of writes that wait for room, and gives up those whose VMM has left.
    fn mind_full_disks(&mut self, now: Nanos) {
        if self.engine.stalled() == 0 {
            return;
        }
        for disk in &mut self.disks {
            let writes = self.engine.stalled_of(disk.id);
            let told_lately = disk.full_told.is_some_and(|told| now - told < FULL_REMINDER);
            if writes > 0 && !told_lately {
                disk.full_told = Some(now);
                tracing::warn!(disk = %disk.name, writes,
                    "the file system below the disk is full; its writes wait until there is room");
            }
        }
        for disk in self.disks.iter().filter(|disk| !disk.leaving.is_empty()) {
            self.engine.abandon_stalled(now, disk.id);
        }
    }

    /// Answers those who wait for a disk that has no vring left.
    fn say_goodbye(&mut self) {
        // There may be a thousand disks, and turns are many.
        if self.leaving == 0 {
            return;
        }
        for (disk, index) in self.disks.iter_mut().zip(0..) {
            if !disk.leaving.is_empty() && self.guests.count(DiskIndex(index)) == 0 {
                self.engine.set_write_through(disk.id, disk.write_through);
                self.leaving -= 1;
                for reply in disk.leaving.drain(..) {
                    let _nobody_waits = reply.try_send(());
                }
            }
        }
    }

    /// Returns whether everything is finished but writes that wait for room, and what waits for
    /// those; the next daemon finds them in the in-flight regions.
    fn is_drained(&self) -> bool {
        self.draining.is_some() && self.engine.waits_only_for_room()
    }

    fn end(&mut self) {
        for disk in &self.disks {
            if let Err(error) = disk.backend.flush() {
                tracing::error!(disk = %disk.name, %error, "the last flush failed");
            }
            if let Err(error) = disk.backend.unlock() {
                tracing::warn!(disk = %disk.name, %error, "the image stays locked for a while");
            }
        }
        if let Some(trace) = self.trace.take() {
            trace.finish();
        }
        if let Some(reply) = self.draining.take() {
            let _nobody_waits = reply.try_send(());
        }
    }
}

/// Returns the priority word of a header, for ranges, whose parsing takes two steps.
fn ioprio(header: &[u8; 16]) -> u32 {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]])
}

/// Returns how many bytes of data the guest gets if the request succeeds.
fn written(request: &Request, chain: &Chain) -> u32 {
    if request.op.is_write() {
        return 0;
    }
    u32::try_from(chain.shape.writable_bytes).unwrap_or(u32::MAX)
}
