//! One split vring: takes chains from a guest and gives answers back.
//!
//! Think of a letter box with a hostile sender. Letters are taken in order, each envelope is read
//! exactly once, every address on it is looked up before anybody goes there, and the sender may
//! scribble on all of it meanwhile. Three things can be wrong with a letter, and each has its own
//! answer: a request that makes no sense gets an error status; one without a place for the status
//! comes back with length 0; and a sender who lies about the box itself (an index that runs away,
//! a loop, a letter that is already here) finds the box closed until the device is reset.
//!
//! This walks the rings directly instead of through `virtio_queue::Queue`, which looks up the
//! ring addresses again for every field, ends a malformed chain in silence, and publishes each
//! answer by itself, where the in-flight protocol needs the stores of a batch in a given order.
//!
//! What a request means is not decided here; see `evenkeel_engine::parse`.
//!
//! Source: VIRTIO 1.2, "Split Virtqueues".

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use evenkeel_engine::{Shape, Status};

use crate::chain::{self, Walked};
use crate::inflight::{Inflight, InflightRegion};
use crate::memory::{Memory, Spot, Window};
use rings::{FLAGS, IDX, RING, Rings};

mod broken;
mod rings;

pub(crate) use broken::BrokenRing;

/// Largest vring.
///
/// Source: VIRTIO 1.2, "Virtqueues": "The maximum Queue Size value is 32768".
pub(crate) const VRING_SIZE_MAX: u16 = 1 << 15;

/// Most steps of chains before the worker looks at somebody else: about 100 us, and 100 requests
/// of 32 segments.
const STEPS_MAX: u32 = 8192;

/// Everything that is known about a vring when it starts.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Number of descriptors.
    pub(crate) size: u16,
    pub(crate) addresses: Addresses,
    /// Next available index, by the VMM's account.
    pub(crate) base: u16,
    pub(crate) event_idx: bool,
    pub(crate) indirect: bool,
    pub(crate) memory: Arc<Memory>,
    pub(crate) inflight: Option<InflightRegion>,
    /// Index of this vring, which selects its in-flight page.
    pub(crate) index: u16,
    pub(crate) kick: OwnedFd,
    pub(crate) call: Option<OwnedFd>,
    /// Told when the vring breaks.
    pub(crate) err: Option<OwnedFd>,
}

/// Where the three parts of a vring are, in the VMM's address space.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Addresses {
    pub(crate) table: u64,
    pub(crate) avail: u64,
    pub(crate) used: u64,
}

/// One vring of one disk, owned by the worker.
///
/// Allocates nothing after [`Vring::new`], changes of memory aside.
#[derive(Debug)]
pub(crate) struct Vring {
    size: u16,
    addresses: Addresses,
    rings: Rings,
    event_idx: bool,
    indirect: bool,
    /// The current memory last; before it those that requests still point into.
    generations: VecDeque<Generation>,
    /// Number of the first of `generations`.
    first_generation: u32,
    inflight: Option<Inflight>,
    /// Heads that a predecessor took, oldest first.
    resubmit: VecDeque<u16>,
    heads: Box<[Head]>,
    /// Answered and not yet published.
    batch: Vec<u16>,
    outstanding: u16,
    /// Next entry of the available ring.
    next_avail: u16,
    /// The guest's available index when last read.
    known_avail: u16,
    /// Next entry of the used ring.
    next_used: u16,
    /// The used index that the guest sees.
    published_used: u16,
    /// Steps of chains since the last pop that found nothing.
    steps: u32,
    /// An answer was published while nobody could be interrupted.
    owes_interrupt: bool,
    /// The vring is not in the current memory.
    is_parked: bool,
    broken: Option<BrokenRing>,
    kick: OwnedFd,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    counts: Counts,
}

/// What [`Vring::pop`] found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Pop {
    /// A chain to parse; exactly one [`Vring::answer`] is due.
    Chain(Chain),
    /// Nothing now, or enough for one turn; [`Vring::enable_kicks`] says which.
    Empty,
    /// The vring is closed until it is set up anew. Chains that were taken may still be answered.
    Broken(BrokenRing),
}

/// A chain that can be answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Chain {
    /// Names the chain towards [`Vring::answer`].
    pub(crate) head: u16,
    /// What the engine's parser needs.
    pub(crate) shape: Shape,
}

/// What a vring has seen since it started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counts {
    /// Chains answered here with an error, because their data or header could not be reached.
    pub(crate) refused: u64,
    /// Chains without a place for a status; used with length 0.
    pub(crate) unanswerable: u64,
    /// Times that the guest was interrupted.
    pub(crate) interrupts: u64,
}

impl Vring {
    /// Checks a set-up and takes over where the guest, or a dead predecessor, left off.
    ///
    /// With an in-flight region the position follows from the used ring and the region, as the
    /// VMM cannot know it after a crash; otherwise it is the VMM's base. The guest is interrupted
    /// once if it may wait for an interrupt that a predecessor owed.
    ///
    /// # Errors
    ///
    /// * A [`BrokenRing`] that says what is wrong with the set-up.
    pub(crate) fn new(setup: Setup) -> Result<Self, BrokenRing> {
        let Setup { size, addresses, base, event_idx, indirect, .. } = setup;
        if !size.is_power_of_two() || size > VRING_SIZE_MAX {
            return Err(BrokenRing::Size(size));
        }
        let rings = Rings::map(&setup.memory, addresses, size, event_idx)?;
        let used_idx = rings.used_idx();
        let mut resubmit = Vec::new();
        let mut next_avail = base;
        let mut inflight = None;
        if let Some(region) = setup.inflight {
            let page = region.page(setup.index).filter(|_| size <= region.states());
            let page = page.ok_or(BrokenRing::NoInflightPage)?;
            let (page, heads) =
                Inflight::recover(page, region.states(), used_idx).map_err(BrokenRing::Inflight)?;
            if heads.iter().any(|&head| head >= size) {
                return Err(BrokenRing::HeadRange);
            }
            let taken = u16::try_from(heads.len()).expect("fewer heads than states");
            next_avail = used_idx.wrapping_add(taken);
            (inflight, resubmit) = (Some(page), heads);
        }
        let mut vring = Self {
            size,
            addresses,
            rings,
            event_idx,
            indirect,
            generations: VecDeque::from([Generation { memory: setup.memory, outstanding: 0 }]),
            first_generation: 0,
            inflight,
            resubmit: resubmit.into(),
            heads: vec![Head::Free; usize::from(size)].into(),
            batch: Vec::with_capacity(usize::from(size)),
            outstanding: 0,
            next_avail,
            known_avail: next_avail,
            next_used: used_idx,
            published_used: used_idx,
            steps: 0,
            owes_interrupt: used_idx != 0,
            is_parked: false,
            broken: None,
            kick: setup.kick,
            call: setup.call,
            err: setup.err,
            counts: Counts::default(),
        };
        vring.pay_interrupt();
        Ok(vring)
    }

    /// Takes the next chain and appends its data segments, readable ones first, to `segments`.
    ///
    /// Chains that cannot become a request are answered here; so call [`Self::publish`] after a
    /// round of pops even if none returned a chain. Takes at most as many chains as the vring has
    /// descriptors before something is published, whatever the guest does, and no more in a row
    /// than can be walked in a moment: chains may share their descriptors and so be as long as the
    /// table, each.
    pub(crate) fn pop(&mut self, segments: &mut Vec<libc::iovec>) -> Pop {
        loop {
            // What a predecessor took must all be popped at once: the vring may be stopping.
            if self.steps >= STEPS_MAX && self.resubmit.is_empty() {
                self.steps = 0;
                return Pop::Empty;
            }
            let start = segments.len();
            let popped = match self.broken {
                Some(broken) => Err(broken),
                None => self.next_head().and_then(|head| match head {
                    Some(head) => self.take(head, segments).map(Some),
                    None => Ok(None),
                }),
            };
            match popped {
                Ok(Some(Some(chain))) => return Pop::Chain(chain),
                Ok(Some(None)) => segments.truncate(start),
                Ok(None) => {
                    self.steps = 0;
                    return Pop::Empty;
                }
                Err(broken) => {
                    segments.truncate(start);
                    self.close(broken);
                    return Pop::Broken(broken);
                }
            }
        }
    }

    /// Answers a chain: writes the status byte and the used element, which the guest sees after
    /// [`Self::publish`]. `written` counts the data bytes written, without the status.
    ///
    /// # Panics
    ///
    /// Panics if `head` was not popped or is answered already: a bug of the worker.
    pub(crate) fn answer(&mut self, head: u16, status: Status, written: u32) {
        let taken = std::mem::replace(&mut self.heads[usize::from(head)], Head::Answered);
        let Head::Taken { status: spot, generation } = taken else {
            unreachable!("every chain is answered once, after it was popped");
        };
        let at = usize::try_from(generation.wrapping_sub(self.first_generation))
            .expect("a u32 fits a usize");
        let memory = &mut self.generations[at];
        memory.memory.write_byte(spot, status as u8);
        memory.outstanding -= 1;
        self.outstanding -= 1;
        self.drop_old_generations();
        self.put_used(head, written.saturating_add(1));
    }

    /// Shows all answers to the guest and interrupts it at most once, if it wants that.
    pub(crate) fn publish(&mut self) {
        if self.next_used == self.published_used {
            return;
        }
        let before = std::mem::replace(&mut self.published_used, self.next_used);
        // Release: status bytes, data and used elements come before the index.
        self.rings.used.store_u16(IDX, self.next_used, Ordering::Release);
        if let Some(inflight) = &mut self.inflight {
            inflight.settle_batch(&self.batch, self.next_used);
        }
        for head in self.batch.drain(..) {
            self.heads[usize::from(head)] = Head::Free;
        }
        // The guest writes its wish, then looks at the index; we wrote the index and now look at
        // the wish. Only with a full fence on both sides does one of us see the other.
        fence(Ordering::SeqCst);
        if self.wants_interrupt(before) {
            self.owes_interrupt = true;
            self.pay_interrupt();
        }
    }

    /// Asks the guest not to kick while the worker looks anyway.
    pub(crate) fn disable_kicks(&mut self) {
        // With EVENT_IDX the guest kicks when it passes the index that it was given last; an old
        // one is as good as none.
        if !self.event_idx {
            self.rings.used.store_u16(FLAGS, USED_F_NO_NOTIFY, Ordering::Relaxed);
        }
    }

    /// As [`disable_kicks`](Self::disable_kicks), where the guest has not kicked since it was asked
    /// to. To be called before its answers are published: it looks for this when it has seen them.
    pub(crate) fn mute_kicks(&mut self) {
        if self.event_idx {
            // An index that the guest passes again after 65,536 chains only.
            let at = self.rings.avail_event_offset();
            self.rings.used.store_u16(at, self.next_avail.wrapping_sub(1), Ordering::Relaxed);
        }
    }

    /// Returns whether the guest has made chains available.
    pub(crate) fn has_offers(&self) -> bool {
        !self.is_parked && self.rings.avail_idx() != self.next_avail
    }

    /// Asks for a kick with the next chain; returns whether one is there already, in which case
    /// the worker must pop again before it waits.
    pub(crate) fn enable_kicks(&mut self) -> bool {
        if self.broken.is_some() || self.is_parked {
            return false;
        }
        if self.event_idx {
            let at = self.rings.avail_event_offset();
            self.rings.used.store_u16(at, self.next_avail, Ordering::Relaxed);
        } else {
            self.rings.used.store_u16(FLAGS, 0, Ordering::Relaxed);
        }
        // As in `publish`, with the roles exchanged.
        fence(Ordering::SeqCst);
        !self.resubmit.is_empty() || self.rings.avail_idx() != self.next_avail
    }

    /// Replaces the guest memory. Chains that were popped keep the memory that they point into.
    ///
    /// If the vring itself is not in the new memory, nothing more is popped until it is in a later
    /// one: a VMM that changes its memory in several steps may pass through such a state.
    pub(crate) fn set_memory(&mut self, memory: &Arc<Memory>) {
        match Rings::map(memory, self.addresses, self.size, self.event_idx) {
            Ok(rings) => {
                self.rings = rings;
                self.is_parked = false;
            }
            // Answers still go to the old place; it is the guest's memory as long as we hold it.
            Err(_elsewhere) => self.is_parked = true,
        }
        self.generations.push_back(Generation { memory: Arc::clone(memory), outstanding: 0 });
        self.drop_old_generations();
    }

    /// Replaces the interrupt's eventfd, and uses it at once if an interrupt is owed.
    pub(crate) fn set_call(&mut self, call: Option<OwnedFd>) {
        self.call = call;
        self.pay_interrupt();
    }

    /// Returns the first 16 data bytes of a popped chain (the payload of a range request);
    /// zeroes where `segments` are shorter or not of this vring.
    pub(crate) fn read_payload(&self, segments: &[libc::iovec]) -> [u8; 16] {
        let mut payload = [0; 16];
        let bytes = self.data_bytes(segments);
        for (byte, (window, offset)) in payload.iter_mut().zip(bytes) {
            *byte = window.load_u8(offset);
        }
        payload
    }

    /// Writes the disk's identity to the data of a popped chain; returns the bytes written.
    pub(crate) fn write_id(&self, segments: &[libc::iovec], id: &[u8; 20]) -> u32 {
        let bytes = self.data_bytes(segments);
        let written = id.iter().zip(bytes).map(|(&byte, (window, offset))| {
            window.store_u8(offset, byte);
        });
        u32::try_from(written.count()).expect("at most 20")
    }

    /// Returns whether chains that a predecessor took wait to be popped. They must be before the
    /// vring is stopped: to the guest they are taken, and after a reset nobody would know that
    /// they are stale.
    pub(crate) fn is_resuming(&self) -> bool {
        !self.resubmit.is_empty()
    }

    /// Returns the eventfd that the guest kicks.
    pub(crate) fn kick_fd(&self) -> RawFd {
        self.kick.as_raw_fd()
    }

    /// Returns the next available index, which is what a VMM calls the base.
    pub(crate) fn next_avail(&self) -> u16 {
        self.next_avail
    }

    /// Returns the number of chains that were popped and are not answered.
    pub(crate) fn outstanding(&self) -> u16 {
        self.outstanding
    }

    /// Returns what the vring has counted.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the head of the next chain.
    fn next_head(&mut self) -> Result<Option<u16>, BrokenRing> {
        if self.is_parked {
            return Ok(None);
        }
        if self.memory().is_poisoned() || self.inflight.as_ref().is_some_and(Inflight::is_poisoned)
        {
            return Err(BrokenRing::MemoryGone);
        }
        if let Some(&head) = self.resubmit.front() {
            return Ok(Some(head));
        }
        if self.known_avail == self.next_avail {
            self.known_avail = self.rings.avail_idx();
            let ahead = self.known_avail.wrapping_sub(self.next_avail);
            if ahead > self.size {
                return Err(BrokenRing::AvailIndex { ahead });
            }
            if ahead == 0 {
                return Ok(None);
            }
        }
        let slot = usize::from(self.next_avail & (self.size - 1));
        let head = self.rings.avail.load_u16(RING + 2 * slot, Ordering::Relaxed);
        if head >= self.size {
            return Err(BrokenRing::HeadRange);
        }
        if self.heads[usize::from(head)] != Head::Free {
            return Err(BrokenRing::HeadInFlight { head });
        }
        Ok(Some(head))
    }

    /// Counts a head whose chain was walked as taken; from here on it must be answered.
    fn begin(&mut self, head: u16) {
        if self.resubmit.pop_front().is_some() {
            return;
        }
        if let Some(inflight) = &mut self.inflight {
            inflight.begin(head);
        }
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// Walks a chain; answers it at once if it cannot become a request.
    fn take(
        &mut self,
        head: u16,
        segments: &mut Vec<libc::iovec>,
    ) -> Result<Option<Chain>, BrokenRing> {
        let memory = &self.generations[self.generations.len() - 1].memory;
        let source = chain::Source { table: &self.rings.table, memory, indirect: self.indirect };
        let Walked { shape, status, steps } = chain::walk(&source, head, segments)?;
        self.steps = self.steps.saturating_add(steps);
        self.begin(head);
        let Some(spot) = status else {
            self.counts.unanswerable += 1;
            self.heads[usize::from(head)] = Head::Answered;
            self.put_used(head, 0);
            return Ok(None);
        };
        let last = self.generations.len() - 1;
        let generation = u32::try_from(last).expect("few memories at a time");
        let generation = self.first_generation.wrapping_add(generation);
        self.heads[usize::from(head)] = Head::Taken { status: spot, generation };
        self.generations[last].outstanding += 1;
        self.outstanding += 1;
        if shape.is_none() {
            self.counts.refused += 1;
            self.answer(head, Status::IoError, 0);
        }
        Ok(shape.map(|shape| Chain { head, shape }))
    }

    /// Writes a used element and adds the head to the batch.
    fn put_used(&mut self, head: u16, len: u32) {
        let at = RING + 8 * usize::from(self.next_used & (self.size - 1));
        self.rings.used.store_u32(at, u32::from(head));
        self.rings.used.store_u32(at + 4, len);
        if let Some(inflight) = &mut self.inflight {
            inflight.link(head);
        }
        self.batch.push(head);
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Returns whether the guest wants to hear of the answers from `before` on.
    fn wants_interrupt(&self, before: u16) -> bool {
        if self.event_idx {
            let wish = self.rings.used_event();
            let new = self.published_used;
            new.wrapping_sub(wish).wrapping_sub(1) < new.wrapping_sub(before)
        } else {
            self.rings.avail.load_u16(FLAGS, Ordering::Relaxed) & AVAIL_F_NO_INTERRUPT == 0
        }
    }

    /// Interrupts the guest if that is owed and possible.
    fn pay_interrupt(&mut self) {
        if let Some(call) = &self.call
            && self.owes_interrupt
        {
            ring_bell(call);
            self.owes_interrupt = false;
            self.counts.interrupts += 1;
        }
    }

    /// Closes the vring for good and tells the VMM.
    fn close(&mut self, broken: BrokenRing) {
        if self.broken.is_none() {
            self.broken = Some(broken);
            // Nobody will serve these any more, and after a reset their heads mean something else.
            if let Some(inflight) = &mut self.inflight {
                self.resubmit.drain(..).for_each(|head| inflight.forget(head));
            }
            if let Some(err) = &self.err {
                ring_bell(err);
            }
        }
    }

    /// Returns the current memory.
    fn memory(&self) -> &Memory {
        &self.generations[self.generations.len() - 1].memory
    }

    /// Lets go of memories that no request points into.
    fn drop_old_generations(&mut self) {
        while self.generations.len() > 1 && self.generations[0].outstanding == 0 {
            self.generations.pop_front();
            self.first_generation = self.first_generation.wrapping_add(1);
        }
    }

    /// Lists the bytes of data segments that this vring's chains may point to.
    fn data_bytes(&self, segments: &[libc::iovec]) -> impl Iterator<Item = (Window, usize)> {
        segments.iter().flat_map(|segment| {
            let ptr = segment.iov_base.cast_const().cast();
            let windows = self.generations.iter().map(|old| &old.memory);
            let window = windows.rev().find_map(|memory| memory.window_at(ptr, segment.iov_len));
            window
                .into_iter()
                .flat_map(|window| (0..segment.iov_len).map(move |offset| (window.clone(), offset)))
        })
    }
}

/// A memory, and how many requests point into it.
#[derive(Debug)]
struct Generation {
    memory: Arc<Memory>,
    outstanding: u16,
}

/// What became of a descriptor that heads a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Head {
    /// The guest's.
    Free,
    /// Popped; the answer's status goes to `status` of the memory of `generation`.
    Taken { status: Spot, generation: u32 },
    /// In the used ring, not yet published.
    Answered,
}

/// Adds 1 to an eventfd that does not block. A full counter is as good as a rung bell.
fn ring_bell(eventfd: &OwnedFd) {
    let _full = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

/// Source: VIRTIO 1.2, `VIRTQ_AVAIL_F_NO_INTERRUPT`.
const AVAIL_F_NO_INTERRUPT: u16 = 1;
/// Source: VIRTIO 1.2, `VIRTQ_USED_F_NO_NOTIFY`.
const USED_F_NO_NOTIFY: u16 = 1;

#[cfg(test)]
mod tests;
