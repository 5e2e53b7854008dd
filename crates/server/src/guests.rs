//! The vrings of all disks of a pool, as their worker sees them.
//!
//! A vring is *serving*, *broken* (its guest lied; nothing more is taken until it is set up anew)
//! or *stopping* (nothing more is taken, and whoever asked learns when everything taken is
//! answered). It leaves the table when it is stopping, empty, and its kick eventfd is no longer
//! watched: only then may the descriptor close and its number be reused.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use evenkeel_engine::Status;
use libc::iovec;

use crate::command::DiskIndex;
use crate::memory::Memory;
use crate::slots::Origin;
use crate::uring::{PollId, Ring};
use crate::vring::{BrokenRing, Vring};

/// What a vring in the table is doing.
#[derive(Debug)]
enum State {
    Serving,
    Broken,
    /// The sender is for the next available index; a disconnected session needs none.
    Stopping(Option<SyncSender<u16>>),
}

#[derive(Debug)]
struct Guest {
    vring: Box<Vring>,
    disk: DiskIndex,
    index: u16,
    poll: PollId,
    /// Whether the poll is on its way or active.
    armed: bool,
    state: State,
    /// Whether it is in `kicked`.
    kicked: bool,
    /// Whether it is in `dirty`.
    dirty: bool,
    /// Kicks heard.
    kicks: u64,
}

/// All vrings of a worker.
#[derive(Debug, Default)]
pub(crate) struct Guests {
    table: Vec<Option<Guest>>,
    /// Vrings to pop.
    kicked: Vec<u32>,
    /// Vrings with answers to publish.
    dirty: Vec<u32>,
    /// Spare list, so that lists can be walked while they grow.
    walk: Vec<u32>,
    generation: u32,
    stopping: u32,
    /// By disk: those of vrings that are gone.
    exits: Vec<Exits>,
}

/// How often guest and worker woke each other.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Exits {
    /// Kicks that the worker heard of: each is an exit of the guest. Several while it was busy are
    /// one.
    pub(crate) kicks: u64,
    /// Interrupts of the guest.
    pub(crate) interrupts: u64,
}

impl Exits {
    fn add(&mut self, guest: &Guest) {
        self.kicks += guest.kicks;
        self.interrupts += guest.vring.counts().interrupts;
    }
}

impl Guests {
    /// Starts to serve a vring.
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(crate) fn start(
        &mut self,
        ring: &mut Ring,
        disk: DiskIndex,
        index: u16,
        vring: Box<Vring>,
    ) -> io::Result<()> {
        let free = self.table.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() - 1
        });
        let place = u32::try_from(at).expect("a few vrings per disk");
        self.generation = (self.generation + 1) & 0xff_ffff;
        let poll = PollId { index: place, generation: self.generation };
        ring.watch(poll, vring.kick_fd())?;
        self.table[at] = Some(Guest {
            vring,
            disk,
            index,
            poll,
            armed: true,
            state: State::Serving,
            kicked: false,
            dirty: false,
            kicks: 0,
        });
        // What a predecessor left behind, and what came before the poll, is there without a kick.
        self.kick(place);
        Ok(())
    }

    fn get(&mut self, place: u32) -> Option<&mut Guest> {
        self.table.get_mut(place as usize)?.as_mut()
    }

    fn kick(&mut self, place: u32) {
        let Some(guest) = self.get(place) else { return };
        if matches!(guest.state, State::Serving) && !guest.kicked {
            guest.kicked = true;
            guest.vring.disable_kicks();
            self.kicked.push(place);
        }
    }

    /// As `kick`, of a vring whose guest was told to kick.
    fn watch(&mut self, place: u32) {
        let Some(guest) = self.get(place) else { return };
        if matches!(guest.state, State::Serving) && !guest.kicked {
            guest.vring.mute_kicks();
            self.kick(place);
        }
    }

    /// Takes the report of a poll.
    ///
    /// # Errors
    ///
    /// * What the ring says when a poll that the kernel ended is renewed.
    pub(crate) fn polled(&mut self, ring: &mut Ring, id: PollId, armed: bool) -> io::Result<()> {
        let Some(guest) = self.get(id.index).filter(|guest| guest.poll == id) else {
            return Ok(());
        };
        guest.armed = armed;
        guest.kicks += u64::from(armed);
        match (&guest.state, armed) {
            (State::Serving, false) => {
                ring.watch(id, guest.vring.kick_fd())?;
                guest.armed = true;
            }
            // The kernel does not end a poll that is just being reported (EALREADY); this is that
            // report, so ask again, or whoever waits for the vring's end waits for ever.
            (State::Broken | State::Stopping(_), true) => ring.unwatch(id)?,
            (State::Serving, true) | (State::Broken | State::Stopping(_), false) => {}
        }
        self.kick(id.index);
        Ok(())
    }

    /// Returns whether vrings wait to be popped.
    pub(crate) const fn has_kicked(&self) -> bool {
        !self.kicked.is_empty()
    }

    /// Returns whether one of them has something to pop.
    pub(crate) fn has_offers(&self) -> bool {
        self.kicked.iter().any(|&place| {
            let guest = self.table.get(place as usize).and_then(Option::as_ref);
            guest.is_some_and(|guest| {
                matches!(guest.state, State::Serving) && guest.vring.has_offers()
            })
        })
    }

    /// Returns the number of vrings that wait to be popped.
    pub(crate) const fn kicked(&self) -> usize {
        self.kicked.len()
    }

    /// Returns the vring at a position of the list of those to pop, with its disk.
    pub(crate) fn kicked_vring(&mut self, at: usize) -> Option<(u32, DiskIndex, &mut Vring)> {
        let place = *self.kicked.get(at)?;
        let guest = self.get(place).filter(|guest| match guest.state {
            State::Serving => true,
            State::Broken => false,
            // Nobody would know of what a predecessor took once the vring is reset.
            State::Stopping(_) => guest.vring.is_resuming(),
        })?;
        Some((place, guest.disk, &mut guest.vring))
    }

    /// Returns the index of a vring within its disk.
    pub(crate) fn index(&self, place: u32) -> u16 {
        let guest = self.table.get(place as usize).and_then(Option::as_ref);
        guest.expect("it was popped a moment ago").index
    }

    /// Closes a vring whose guest lied.
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(crate) fn broke(
        &mut self,
        ring: &mut Ring,
        place: u32,
        disk: &str,
        why: BrokenRing,
    ) -> io::Result<()> {
        let guest = self.get(place).expect("it was popped a moment ago");
        tracing::warn!(disk, vring = guest.index, %why,
            "the guest broke its vring; it is not served until it is set up anew");
        if matches!(guest.state, State::Serving) {
            guest.state = State::Broken;
            // Its kicks are not heard any more, so that it cannot keep the worker busy.
            ring.unwatch(guest.poll)?;
        }
        Ok(())
    }

    /// Returns the first 16 data bytes of a chain that was just popped.
    pub(crate) fn read_payload(&mut self, place: u32, segments: &[iovec]) -> [u8; 16] {
        let guest = self.get(place).expect("it was popped a moment ago");
        guest.vring.read_payload(segments)
    }

    /// Writes a disk's identity into a chain that was just popped; returns the bytes written.
    pub(crate) fn write_id(&mut self, place: u32, segments: &[iovec], id: &[u8; 20]) -> u32 {
        let guest = self.get(place).expect("it was popped a moment ago");
        guest.vring.write_id(segments, id)
    }

    /// Answers a chain; the guest sees it after [`publish`](Self::publish).
    pub(crate) fn answer(&mut self, origin: Origin, status: Status) {
        let guest =
            self.get(origin.vring).expect("a vring stays until all its chains are answered");
        let written = if status == Status::Ok { origin.written } else { 0 };
        guest.vring.answer(origin.head, status, written);
        self.touch(origin.vring);
    }

    /// Notes that a vring has something to publish.
    pub(crate) fn touch(&mut self, place: u32) {
        let Some(guest) = self.get(place) else { return };
        if !guest.dirty {
            guest.dirty = true;
            self.dirty.push(place);
        }
    }

    /// Shows all answers to their guests, with at most one interrupt per vring. With `watch` these
    /// vrings are popped in the next turn, too: the worker looks at them, and their guests need
    /// not kick.
    pub(crate) fn publish(&mut self, watch: bool) {
        let mut walk = std::mem::take(&mut self.dirty);
        for place in walk.drain(..) {
            if watch {
                self.watch(place);
            }
            if let Some(guest) = self.get(place) {
                guest.dirty = false;
                guest.vring.publish();
            }
        }
        self.dirty = walk;
    }

    /// Shows the answers that there are in the middle of a turn: their guests can go on meanwhile.
    pub(crate) fn show(&mut self) {
        for &place in &self.dirty {
            if let Some(guest) = self.table.get_mut(place as usize).and_then(Option::as_mut) {
                guest.vring.publish();
            }
        }
    }

    /// Asks all popped vrings for kicks again; those that have more already stay in the list.
    pub(crate) fn enable_kicks(&mut self) {
        let mut walk = std::mem::replace(&mut self.kicked, std::mem::take(&mut self.walk));
        for place in walk.drain(..) {
            if let Some(guest) = self.get(place) {
                guest.kicked = false;
                if matches!(guest.state, State::Serving) && guest.vring.enable_kicks() {
                    self.kick(place);
                }
            }
        }
        self.walk = walk;
    }

    fn of_disk(&mut self, disk: DiskIndex) -> impl Iterator<Item = &mut Guest> {
        self.table.iter_mut().flatten().filter(move |guest| guest.disk == disk)
    }

    /// Returns the number of vrings of a disk.
    pub(crate) fn count(&self, disk: DiskIndex) -> usize {
        self.table.iter().flatten().filter(|guest| guest.disk == disk).count()
    }

    /// Stops a vring; the reply follows from [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(crate) fn stop(
        &mut self,
        ring: &mut Ring,
        disk: DiskIndex,
        index: u16,
        reply: SyncSender<u16>,
    ) -> io::Result<()> {
        // A vring that came when the worker was about to end is not here. Without an answer the
        // session ends; a made-up index would have the VMM go on in the wrong place.
        let Some(guest) = self.of_disk(disk).find(|guest| guest.index == index) else {
            return Ok(());
        };
        if begin_stop(ring, guest, Some(reply))? {
            self.stopping += 1;
        }
        Ok(())
    }

    /// Stops all vrings of a disk, or of all disks if there is none given.
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(crate) fn stop_all(&mut self, ring: &mut Ring, disk: Option<DiskIndex>) -> io::Result<()> {
        let wanted = |guest: &Guest| disk.is_none_or(|disk| guest.disk == disk);
        for guest in self.table.iter_mut().flatten().filter(|guest| wanted(guest)) {
            if begin_stop(ring, guest, None)? {
                self.stopping += 1;
            }
        }
        Ok(())
    }

    /// Drops vrings that are stopping and empty, and answers those who wait for that. Call when
    /// everything is published.
    pub(crate) fn settle(&mut self) {
        if self.stopping == 0 {
            return;
        }
        for place in &mut self.table {
            let done = place.as_ref().is_some_and(|guest| {
                matches!(guest.state, State::Stopping(_))
                    && !guest.armed
                    && !guest.dirty
                    && guest.vring.outstanding() == 0
            });
            if done && let Some(guest) = place.take() {
                self.stopping -= 1;
                of_disk(&mut self.exits, guest.disk).add(&guest);
                tracing::debug!(disk = guest.disk.0, vring = guest.index,
                    counts = ?guest.vring.counts(), "vring stopped");
                if let State::Stopping(Some(reply)) = guest.state {
                    let _nobody_waits = reply.try_send(guest.vring.next_avail());
                }
            }
        }
    }

    /// Returns how often the guests of so many disks and the worker woke each other.
    pub(crate) fn exits(&self, disks: usize) -> Vec<Exits> {
        let mut exits = self.exits.clone();
        exits.resize(disks, Exits::default());
        for guest in self.table.iter().flatten() {
            of_disk(&mut exits, guest.disk).add(guest);
        }
        exits
    }

    /// Gives a disk's vrings another memory, and looks at those again that were not in the old one.
    pub(crate) fn set_memory(&mut self, disk: DiskIndex, memory: &Arc<Memory>) {
        for place in 0..u32::try_from(self.table.len()).expect("a few vrings per disk") {
            if let Some(guest) = self.get(place).filter(|guest| guest.disk == disk) {
                guest.vring.set_memory(memory);
                self.kick(place);
            }
        }
    }

    /// Gives a vring another interrupt.
    pub(crate) fn set_call(
        &mut self,
        disk: DiskIndex,
        index: u16,
        call: Option<std::os::fd::OwnedFd>,
    ) {
        if let Some(guest) = self.of_disk(disk).find(|guest| guest.index == index) {
            guest.vring.set_call(call);
        }
    }
}

/// Returns the figures of a disk in a list that grows as needed.
fn of_disk(exits: &mut Vec<Exits>, disk: DiskIndex) -> &mut Exits {
    let at = disk.0 as usize;
    if at >= exits.len() {
        exits.resize(at + 1, Exits::default());
    }
    &mut exits[at]
}

/// Returns whether the vring was not stopping before. The first who asks gets the reply.
fn begin_stop(
    ring: &mut Ring,
    guest: &mut Guest,
    reply: Option<SyncSender<u16>>,
) -> io::Result<bool> {
    match &mut guest.state {
        State::Stopping(waiting) => {
            if waiting.is_none() {
                *waiting = reply;
            }
            return Ok(false);
        }
        State::Serving => ring.unwatch(guest.poll)?,
        State::Broken => {}
    }
    guest.state = State::Stopping(reply);
    Ok(true)
}
