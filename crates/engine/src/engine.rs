//! The engine: everything about a request but its bytes.

mod completion;
mod control;
mod dispatch;
mod explain;
mod govern;
mod split;
mod switch;
mod together;

pub use control::Limited;

use std::collections::VecDeque;

use evenkeel_sched::{
    Beside, Elevator, ElevatorConfig, Floors, Gate, GroupId, IoReport, Nanos, NodeId, Op, Priority,
    QueueId, Scheduler, Tag, Weight,
};

use self::govern::{govern_completed, is_short};
use crate::blame::{Aside, Blame};
use crate::blocks::{BlockConfig, Blocks};
use crate::classify;
use crate::coordination::Helps;
use crate::disk::{Disk, DiskId, DiskReport, Durations};
use crate::governor::Governor;
use crate::groups::{Group, Groups};
use crate::pieces::Pieces;
use crate::request::{Geometry, Request, SECTOR_BYTES, Status};
use crate::slots::{
    Carried, DeviceOp, Errno, Links, Parts, Place, Precedence, Retired, Slot, Slots, Token,
};
use crate::streams::Reading;

/// How an engine decides.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The elevator and its tunables.
    pub elevator: ElevatorConfig,
    /// Most commands at the device, at least 1. What is at the device can no longer be scheduled,
    /// so a larger depth buys throughput with everybody's latency.
    pub depth: u32,
    /// How they are handed over.
    pub blocks: BlockConfig,
}

/// All requests of all disks of one pool, from arrival to answer.
///
/// A value without clock and without I/O: the world calls it, in the order of the turn (see the
/// module documentation), and `now` never decreases. Allocates nothing once it has held its
/// largest number of requests.
#[derive(Debug)]
pub struct Engine {
    pub(crate) scheduler: Elevator,
    slots: Slots,
    disks: Vec<Option<Disk>>,
    pub(crate) groups: Groups,
    /// Commands at the device whose elevator is gone.
    carried: Vec<Carried>,
    /// By group, its place in the tree of limits.
    nodes: Vec<NodeId>,
    gate: Gate,
    floors: Floors,
    /// Whether there are limits or reservations; without them, neither of the two is asked.
    is_controlled: bool,
    pub(crate) blame: Blame,
    /// What goes to the device before anything that the scheduler has: flushes, and requests that
    /// have left the scheduler but could not go at once.
    ready: VecDeque<Tag>,
    /// Whether reads of different places get queues of their own, where that helps.
    tells_streams_apart: bool,
    /// Whether they do, with the elevator at work.
    has_streams: bool,
    /// A flush went to the device, and nothing of the scheduler since.
    flushed_last: bool,
    pub(crate) helps: Helps,
    retired: VecDeque<Tag>,
    /// How many of `retired` may be given out; the others wait for the rest of their block.
    shown: usize,
    /// How many answers of all disks wait for others of the same program.
    kept: u32,
    scratch: Vec<Tag>,
    blocks: Blocks,
    pieces: Pieces,
    governor: Governor,
    depth: u32,
    in_flight: u32,
    stalled: u32,
    /// Commands sent so far, by precedence.
    sent_with: [u64; Precedence::COUNT],
    #[cfg(feature = "planted")]
    planted: Option<evenkeel_sched::Planted>,
}

impl Engine {
    /// Makes an engine without disks.
    #[must_use]
    pub fn new(now: Nanos, config: &EngineConfig) -> Self {
        let elevator = ElevatorConfig { depth: config.depth.max(1), ..config.elevator.clone() };
        let mut engine = Self {
            scheduler: Elevator::new(now, &elevator),
            slots: Slots::default(),
            disks: Vec::new(),
            groups: Groups::default(),
            carried: Vec::new(),
            nodes: vec![NodeId::ROOT],
            gate: Gate::new(),
            floors: Floors::new(),
            is_controlled: false,
            blame: Blame::new(now),
            ready: VecDeque::new(),
            tells_streams_apart: true,
            has_streams: false,
            flushed_last: false,
            helps: Helps::default(),
            retired: VecDeque::new(),
            shown: 0,
            kept: 0,
            scratch: Vec::new(),
            blocks: Blocks::new(&config.blocks, config.depth),
            pieces: Pieces::default(),
            governor: Governor::new(config.depth),
            depth: config.depth.max(1),
            in_flight: 0,
            stalled: 0,
            sent_with: [0; Precedence::COUNT],
            #[cfg(feature = "planted")]
            planted: config.elevator.planted,
        };
        engine.look_for_streams();
        engine
    }

    /// Adds a group, a tenant or a VM, below `parent`.
    pub fn add_group(&mut self, now: Nanos, parent: GroupId, weight: Weight) -> GroupId {
        let above = self.groups.get(parent).known_as;
        let known_as = self.scheduler.add_group(now, above, weight);
        let group = self.groups.add(Group::new(parent, weight, known_as));
        self.add_node(parent, group, weight);
        self.blame.add(group);
        group
    }

    /// Removes a group that has neither disks nor groups below it.
    pub fn remove_group(&mut self, now: Nanos, group: GroupId) {
        self.helps.forget(group);
        let node = self.nodes[group.0 as usize];
        self.blame.remove(group);
        let group = self.groups.remove(group);
        for queue in group.queues.iter() {
            self.scheduler.remove_queue(now, queue);
        }
        self.scheduler.remove_group(now, group.known_as);
        self.remove_node(now, node);
    }

    /// Says whether the I/O priorities that a VM's guest sends order its requests. They do unless
    /// told otherwise, and never beyond the VM.
    pub fn heed_priority(&mut self, vm: GroupId, heeds: bool) {
        self.groups.get_mut(vm).queues.heeds_priority = heeds;
    }

    /// Says whether reads of one VM at different places get queues of their own under elevators
    /// that profit from it. They do unless told otherwise. To be said before the first request.
    pub fn tell_streams_apart(&mut self, tells: bool) {
        self.tells_streams_apart = tells;
        self.look_for_streams();
    }

    /// Finds out whether reads of different places get queues of their own.
    fn look_for_streams(&mut self) {
        let profits = self.scheduler.profits_from_streams(self.depth);
        self.has_streams = self.tells_streams_apart && profits;
    }

    /// Changes the weight of a group.
    pub fn set_weight(&mut self, now: Nanos, group: GroupId, weight: Weight) {
        self.gate.set_weight(self.nodes[group.0 as usize], weight);
        let group = self.groups.get_mut(group);
        group.weight = weight;
        self.scheduler.set_weight(now, group.known_as, weight);
    }

    /// Adds a disk of the VM `vm`, and gives it a place on the pool's address space.
    pub fn add_disk(&mut self, vm: GroupId, geometry: Geometry) -> DiskId {
        let base = self.place(geometry.sectors);
        let node = self.add_leaf(vm);
        let mut disk = Disk::new(vm, node, base, geometry);
        disk.claims.make_room(self.depth);
        let disk = Some(disk);
        let index = match self.disks.iter().position(Option::is_none) {
            Some(index) => {
                self.disks[index] = disk;
                index
            }
            None => {
                self.disks.push(disk);
                self.disks.len() - 1
            }
        };
        DiskId(u32::try_from(index).expect("fewer disks than sectors"))
    }

    /// Removes a disk.
    ///
    /// # Panics
    ///
    /// Panics if the disk has requests outstanding; drain it first.
    pub fn remove_disk(&mut self, now: Nanos, disk: DiskId) {
        assert_eq!(self.disk(disk).outstanding, 0, "disk {disk:?} is not drained");
        self.remove_node(now, self.disk(disk).node);
        self.disks[disk.0 as usize] = None;
    }

    /// Returns the shape of a disk, for [`parse`](crate::parse).
    #[must_use]
    pub fn geometry(&self, disk: DiskId) -> &Geometry {
        &self.disk(disk).geometry
    }

    /// Says whether writes must be durable when they complete: the guest has switched the write
    /// cache off, or never learned how to flush it.
    pub fn set_write_through(&mut self, disk: DiskId, write_through: bool) {
        self.disk_mut(disk).write_through = write_through;
    }

    /// Takes a request. The caller owes the engine nothing more until the device is involved;
    /// the engine owes the caller one [`retire`](Self::retire) with `token`.
    ///
    /// The tag is a dense index, free again once the request is retired.
    pub fn submit(&mut self, now: Nanos, disk_id: DiskId, token: Token, request: &Request) -> Tag {
        let disk = self.disks[disk_id.0 as usize].as_mut().expect(KNOWN_DISK);
        let others = disk.outstanding;
        disk.outstanding += 1;
        let sync = match request.op {
            Op::Read => true,
            Op::Write => disk.habit.on_write() || disk.write_through,
            Op::Discard | Op::WriteZeroes => disk.write_through,
        };
        let vm = disk.vm;
        let is_short = is_short(sync, request.nr_sectors);
        self.governor.arrived(now, vm, others, is_short, &mut disk.lone);
        let priority = if request.ioprio != 0 && self.groups.get(vm).queues.heeds_priority {
            classify::priority(request.ioprio)
        } else {
            Priority::default()
        };
        if self.helps.is_any_on() && sync {
            if classify::is_preferred(priority) {
                self.note_preferred(now, vm);
            } else if request.op == Op::Read {
                self.note_unmarked(now, vm);
            }
        }
        let tag = self.slots.take(Slot {
            sector: request.sector,
            whole_sector: request.sector,
            whole_sectors: request.nr_sectors,
            nr_sectors: request.nr_sectors,
            piece_sectors: self.pieces.first(request),
            unmap: request.unmap,
            segments: request.segments,
            priority,
            sync,
            ..Slot::new(now, token, disk_id, request.op.into())
        });
        self.blame.wait(now, vm, 1);
        if self.is_controlled {
            self.admit(now, tag);
        } else {
            self.schedule(now, tag);
        }
        tag
    }

    /// Takes a flush. It goes to the device at once, past the scheduler; flushes that arrive while
    /// one of the same disk is there become one behind it, so a guest that floods the pool with
    /// flushes keeps at most one there. Between two flushes the scheduler has its turn, so that
    /// endless flushes do not take all of a device of little depth.
    pub fn flush(&mut self, now: Nanos, disk_id: DiskId, token: Token) -> Tag {
        let tag = self.slots.take(Slot::new(now, token, disk_id, DeviceOp::Flush));
        let disk = self.disk_mut(disk_id);
        disk.outstanding += 1;
        disk.habit.on_flush();
        #[cfg(feature = "planted")]
        if self.planted == Some(evenkeel_sched::Planted::FlushesEarly)
            && let Some(first) = self.disk(disk_id).flush_in_flight
        {
            self.slots.get_mut(tag).next = self.slots.get(first).next;
            self.slots.get_mut(first).next = Some(tag);
            return tag;
        }
        let disk = self.disk_mut(disk_id);
        let (vm, is_behind) = (disk.vm, disk.flush_in_flight.is_some());
        if is_behind {
            disk.flushes_waiting.push(tag);
        } else {
            disk.flush_in_flight = Some(tag);
            self.ready.push_back(tag);
        }
        self.blame.wait(now, vm, 1);
        if is_behind {
            self.blame.step_aside(now, vm, Aside::Own, 1);
        }
        tag
    }

    /// Returns the requests that a command consists of, in ascending sector order. Valid until the
    /// command is completed.
    #[must_use]
    pub fn parts(&self, tag: Tag) -> Parts<'_> {
        let (first, links) = match self.slots.get(tag).place {
            Place::Scheduled => (self.scheduler.first_part(tag), Links::Scheduler(&self.scheduler)),
            Place::Carried => (self.first_carried(tag), Links::Slots(&self.slots)),
            _ => (tag, Links::Single),
        };
        Parts { next: Some(first), links }
    }

    /// Says what became of a command.
    ///
    /// When a command of several parts fails, each part is tried again on its own, so that only
    /// those fail that must. Writes that find the file system full are kept and tried again every
    /// second; the guest sees a pause, not an error.
    ///
    /// # Panics
    ///
    /// Panics if the command is not at the device: the caller has lost count.
    pub fn complete(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        let slot = self.slots.get_mut(tag);
        slot.is_sent = false;
        self.pieces.completed(now, slot);
        let scheduler = &self.scheduler;
        govern_completed(&mut self.governor, now, slot, || scheduler.queued() > 0);
        self.in_flight -= 1;
        let disk = self.disks[slot.disk.0 as usize].as_mut().expect(KNOWN_DISK);
        disk.in_flight -= 1;
        self.blame.complete(now, disk.vm, slot.parts);
        let (id, place, first) = (slot.disk, slot.place, self.retired.len());
        let beside = self.beside(now, tag);
        match (place, outcome) {
            (Place::Flush, outcome) => self.complete_flush(now, tag, outcome),
            (Place::Scheduled | Place::Carried, Ok(())) => self.complete_whole(now, tag),
            (Place::Scheduled | Place::Carried, Err(errno)) => self.fail_whole(now, tag, errno),
            (Place::Alone, outcome) => self.complete_single(now, tag, outcome),
            (Place::Free | Place::Gated | Place::Retired, _) => {
                unreachable!("the device completed {tag:?}, which it does not have")
            }
        }
        if beside != Beside::Nothing {
            self.keep_together(now, id, first, beside);
        }
        self.give_out(now);
        if self.blocks.completed() {
            self.show_answers();
        }
    }

    /// Returns the next answer for a guest; the caller asks until there is none. The tag is free
    /// from here on.
    #[inline]
    pub fn retire(&mut self) -> Option<Retired> {
        self.shown = self.shown.checked_sub(1)?;
        let tag = self.retired.pop_front().expect("what is shown is there");
        let Slot { token, disk, status, arrived, dispatched, completed, .. } = *self.slots.get(tag);
        let retired = Retired { token, tag, disk, status, arrived, dispatched, completed };
        self.slots.give_back(tag);
        self.disk_mut(retired.disk).outstanding -= 1;
        Some(retired)
    }

    /// Answers the writes of a disk that wait for room with an error: nobody is left who could
    /// wait for them. Other requests are not touched.
    pub fn abandon_stalled(&mut self, now: Nanos, disk: DiskId) {
        let stalled = core::mem::take(&mut self.disk_mut(disk).stalled);
        self.disk_mut(disk).retry_at = None;
        for tag in stalled {
            self.stalled -= 1;
            self.release(now, tag);
            self.finish(now, tag, tag, Status::IoError);
        }
        self.show_answers();
    }

    /// Returns the number of requests taken and not answered, of all disks.
    #[must_use]
    pub const fn outstanding(&self) -> u32 {
        self.slots.used()
    }

    /// Returns the number of requests of a disk taken and not answered.
    #[must_use]
    pub fn outstanding_of(&self, disk: DiskId) -> u32 {
        self.disk(disk).outstanding
    }

    /// Returns the number of requests that nobody but the scheduler, or a full device, holds back.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.scheduler.queued().saturating_add(saturated(self.ready.len()))
    }

    /// Returns the number of writes, of all disks, that wait for room on their file system.
    #[must_use]
    pub const fn stalled(&self) -> u32 {
        self.stalled
    }

    /// Returns whether all that is left are writes that wait for room on their file system and
    /// requests that wait for those: nothing moves before somebody makes room.
    #[must_use]
    pub fn waits_only_for_room(&self) -> bool {
        let held: u32 = self.disks.iter().flatten().map(|disk| disk.claims.held()).sum();
        self.in_flight == 0 && self.outstanding() == self.stalled + held
    }

    /// Returns the number of writes of a disk that wait for room on its file system.
    #[must_use]
    pub fn stalled_of(&self, disk: DiskId) -> usize {
        self.disk(disk).stalled.len()
    }

    /// Returns the number of commands at the device.
    #[must_use]
    pub const fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns the figures of a disk. Walks its histograms: not for every turn.
    #[must_use]
    pub fn report(&self, disk: DiskId) -> DiskReport {
        let disk = self.disk(disk);
        let vm = self.scheduler.group_report(self.groups.get(disk.vm).known_as);
        let figures = &disk.figures;
        DiskReport {
            reads: figures.reads,
            writes: figures.writes,
            discards: figures.discards,
            flushes: figures.flushes,
            read_bytes: figures.read_sectors * SECTOR_BYTES,
            written_bytes: figures.written_sectors * SECTOR_BYTES,
            merged: figures.merged,
            errors: figures.errors,
            stalls: figures.stalls,
            outstanding: disk.outstanding,
            in_flight: disk.in_flight,
            stalled: saturated(disk.stalled.len()),
            queue_time: Durations::from(&figures.queue_time),
            service_time: Durations::from(&figures.service_time),
            raised: vm.raised,
            vm_service_sectors: self.served_sectors(disk.vm),
        }
    }

    /// Returns what a group and all below it requested and got, since the group was added; nothing
    /// unless the elevator keeps books, as BFQ does. What was at the device when one elevator took
    /// over from another is in nobody's books. Walks all groups and queues: not for every turn.
    #[must_use]
    pub fn group_stats(&self, group: GroupId) -> Option<IoReport> {
        let group = self.groups.get(group);
        let mut io = self.scheduler.group_stats(group.known_as)?.recursive;
        io += group.earlier_io;
        Some(io)
    }

    /// Panics if the state contradicts itself. For tests and the simulator.
    pub fn check_invariants(&self) {
        self.scheduler.check_invariants();
        self.gate.check_invariants();
        self.floors.check_invariants();
        let is_controlled = !self.gate.is_open() || self.floors.is_any();
        assert_eq!(self.is_controlled, is_controlled);
        self.blame.check();
        let disks = || self.disks.iter().flatten();
        assert_eq!(disks().map(|disk| disk.outstanding).sum::<u32>(), self.slots.used());
        assert_eq!(disks().map(|disk| disk.in_flight).sum::<u32>(), self.in_flight);
        assert!(self.shown <= self.retired.len());
        assert_eq!(disks().map(|disk| saturated(disk.kept.len())).sum::<u32>(), self.kept);
        for carried in &self.carried {
            assert_eq!(self.slots.get(carried.whole).place, Place::Carried);
            assert_eq!(self.slots.get(carried.first).place, Place::Carried);
        }
        assert!(saturated(self.carried.len()) + self.scheduler.in_flight() <= self.in_flight);
        let stalled: usize = disks().map(|disk| disk.stalled.len()).sum();
        assert_eq!(stalled, self.stalled as usize);
        for disk in disks() {
            assert_eq!(disk.stalled.is_empty(), disk.retry_at.is_none());
            assert!(disk.flush_in_flight.is_some() || disk.flushes_waiting.is_empty());
        }
    }
}

/// The steps behind the calls above.
impl Engine {
    fn disk(&self, disk: DiskId) -> &Disk {
        self.disks[disk.0 as usize].as_ref().expect(KNOWN_DISK)
    }

    /// Returns the VM that a disk belongs to.
    pub(crate) fn vm_of(&self, disk: DiskId) -> GroupId {
        self.disk(disk).vm
    }

    fn disk_mut(&mut self, disk: DiskId) -> &mut Disk {
        self.disks[disk.0 as usize].as_mut().expect(KNOWN_DISK)
    }

    /// Returns the lowest free stretch of the pool's address space, with a gap on both sides so
    /// that requests of different disks never touch.
    fn place(&self, sectors: u64) -> u64 {
        let mut taken: Vec<(u64, u64)> =
            self.disks.iter().flatten().map(|disk| (disk.base, disk.end())).collect();
        taken.sort_unstable();
        let mut base = 0;
        for (start, end) in taken {
            if base + sectors + GAP_SECTORS <= start {
                break;
            }
            base = (end + GAP_SECTORS).next_multiple_of(GAP_SECTORS);
        }
        base
    }

    /// Gives a request to the scheduler.
    fn schedule(&mut self, now: Nanos, tag: Tag) {
        let slot = self.slots.get_mut(tag);
        let disk = self.disks[slot.disk.0 as usize].as_ref().expect(KNOWN_DISK);
        let (vm, pos) = (disk.vm, disk.base + slot.sector + u64::from(slot.done_sectors));
        let queues = &mut self.groups.get_mut(vm).queues;
        // Of an earlier piece.
        if let Some(seat) = slot.seat {
            queues.read_is_done(now, seat, slot.priority, pos);
        }
        let (op, priority, sync) = (slot.op.scheduled(), slot.priority, slot.sync);
        let reading = if self.has_streams && op == Op::Read {
            queues.stream(now, priority, pos, slot.piece_sectors)
        } else {
            Reading::default()
        };
        slot.seat = reading.seat;
        // The memory of a piece is no whole request's: it is merged with nobody.
        let segments = if slot.is_split() { u16::MAX } else { slot.segments };
        let nr_sectors = slot.piece_cost_sectors();
        let queue = match *queues.slot(priority, sync, reading.stream) {
            Some(queue) if !reading.returns => queue,
            _ => self.open_queue(now, vm, (priority, sync), reading),
        };
        let request = evenkeel_sched::Request { tag, queue, op, pos, nr_sectors, segments, sync };
        self.scheduler.insert(now, request);
    }

    /// Returns the queue of a request for which there is none yet, or whose reader returns to it.
    #[cold]
    fn open_queue(
        &mut self,
        now: Nanos,
        vm: GroupId,
        (priority, sync): (Priority, bool),
        reading: Reading,
    ) -> QueueId {
        let group = self.groups.get_mut(vm);
        let came_from = group.queues.of_streams(priority, reading.came_from);
        let place = group.queues.slot(priority, sync, reading.stream);
        let is_new = place.is_none();
        let scheduler = &mut self.scheduler;
        let queue =
            *place.get_or_insert_with(|| scheduler.add_queue(now, group.known_as, priority, sync));
        if reading.returns {
            self.scheduler.deny_start(now, queue, &came_from);
        }
        if is_new && self.helps.is_any_on() {
            self.apply_help(now, vm);
        }
        queue
    }

    /// Gives up a claim; who was held behind it goes next.
    #[inline]
    fn release(&mut self, now: Nanos, tag: Tag) {
        let disk = self.slots.get(tag).disk;
        let disk = self.disks[disk.0 as usize].as_mut().expect(KNOWN_DISK);
        disk.claims.release(tag, |freed| {
            self.blame.step_back(now, disk.vm, Aside::Own, 1);
            self.ready.push_back(freed);
        });
    }

    /// Sends writes that waited for room once more.
    fn revive(&mut self, now: Nanos) {
        for disk in self.disks.iter_mut().flatten() {
            if disk.retry_at.is_some_and(|at| at <= now) {
                disk.retry_at = None;
                let stalled = u32::try_from(disk.stalled.len()).expect("counted in u32");
                self.stalled -= stalled;
                self.blame.wait(now, disk.vm, stalled);
                self.ready.extend(disk.stalled.drain(..));
            }
        }
    }
}

/// Why a disk is there.
const KNOWN_DISK: &str = "the caller names a disk that it added";

fn saturated(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Distance between disks on the pool's address space: 1 MiB, which also aligns them.
const GAP_SECTORS: u64 = 2048;

/// How often writes that found the file system full are tried again. An operator who makes room
/// sees the guest go on within a second; a full disk costs one failed write a second.
const RETRY_INTERVAL: Nanos = Nanos::from_secs(1);
