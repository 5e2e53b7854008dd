//! A disk array: mirrored pairs behind a controller with a cache.
//!
//! The address space is cut into stripes that go round the pairs. A write is answered when it is in
//! the controller's cache, which a battery keeps; it reaches both disks of its pair later. A read
//! that continues another makes the controller fetch the next stripes early. What is left of the
//! disks is their number: many commands at once keep many of them busy, one at a time keeps one.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use evenkeel_sched::{Nanos, Tag};

use crate::{DeviceModel, Io, IoOp, Model, ModelSpec};

/// What an array is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct ArrayParams {
    /// One disk, as `hdd:key=value`.
    pub disk: &'static str,
    /// Pairs of disks.
    pub pairs: u64,
    /// What lies on one pair before the next takes over.
    pub stripe_sectors: u64,
    /// From the host's adapter to the controller's cache and back.
    pub command: Nanos,
    /// Stripes fetched ahead of a sequential stream; 0: none.
    pub ahead: u64,
    /// Stripes of fetched data that the cache holds.
    pub read_stripes: usize,
    /// Writes that wait for their disks before a new one has to wait as well.
    pub dirty: usize,
}

/// Who waits for a command of a disk.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Answer(Tag),
    /// A stripe for the cache.
    Fetch(u64),
    /// A cached write on one of its two disks.
    Destage,
}

#[derive(Debug)]
enum Stripe {
    Coming(Vec<Tag>),
    Here,
}

/// A modelled array.
#[derive(Debug)]
pub(super) struct ArrayModel {
    params: ArrayParams,
    disks: Vec<Model>,
    disk_sectors: u64,
    waiting: Vec<usize>,
    /// When a disk has something to say; an entry counts if it is the one noted last.
    noted: Vec<Option<Nanos>>,
    events: BinaryHeap<Reverse<(Nanos, usize)>>,
    purposes: Vec<Option<Purpose>>,
    free: Vec<usize>,
    stripes: BTreeMap<u64, Stripe>,
    order: VecDeque<u64>,
    /// Where streams will go on.
    streams: VecDeque<u64>,
    destages: usize,
    held: VecDeque<(Tag, Io)>,
    done: BinaryHeap<Reverse<(Nanos, u32)>>,
}

/// Streams that the controller tells apart.
const STREAMS: usize = 64;

impl ArrayModel {
    pub(super) fn new(params: &ArrayParams) -> Self {
        let disk = || {
            let spec = params.disk.parse::<ModelSpec>();
            spec.and_then(|spec| spec.build()).expect("the parameters are ours and tested")
        };
        let disks: Vec<Model> = (0..params.pairs * 2).map(|_| disk()).collect();
        let disk_sectors = disks[0].sectors().expect("a disk has a capacity");
        Self {
            params: *params,
            waiting: vec![0; disks.len()],
            noted: vec![None; disks.len()],
            disks,
            disk_sectors,
            events: BinaryHeap::new(),
            purposes: Vec::new(),
            free: Vec::new(),
            stripes: BTreeMap::new(),
            order: VecDeque::new(),
            streams: VecDeque::new(),
            destages: 0,
            held: VecDeque::new(),
            done: BinaryHeap::new(),
        }
    }

    /// Returns the pair of a sector, and where it lies on both disks.
    fn place(&self, sector: u64) -> (usize, u64) {
        let stripe = sector / self.params.stripe_sectors;
        let row = stripe / self.params.pairs;
        let pos = row * self.params.stripe_sectors + sector % self.params.stripe_sectors;
        let pair = usize::try_from(stripe % self.params.pairs).expect("hundreds of disks");
        (pair, pos % (self.disk_sectors - self.params.stripe_sectors))
    }

    fn command(&mut self, now: Nanos, disk: usize, io: &Io, purpose: Purpose) {
        let index = self.free.pop().unwrap_or(self.purposes.len());
        if index == self.purposes.len() {
            self.purposes.push(None);
        }
        self.purposes[index] = Some(purpose);
        let tag = Tag(u32::try_from(index).expect("bounded by what is outstanding"));
        self.disks[disk].submit(now, tag, io);
        self.waiting[disk] += 1;
        self.note(disk);
    }

    fn note(&mut self, disk: usize) {
        let next = self.disks[disk].next_event();
        if next != self.noted[disk] {
            self.noted[disk] = next;
            self.events.extend(next.map(|at| Reverse((at, disk))));
        }
    }

    /// Reads from the disk of the pair that has less to do.
    fn read(&mut self, now: Nanos, sector: u64, nr_sectors: u32, purpose: Purpose) {
        let (pair, pos) = self.place(sector);
        let [first, second] = [2 * pair, 2 * pair + 1];
        let disk = if self.waiting[second] < self.waiting[first] { second } else { first };
        self.command(now, disk, &Io { op: IoOp::Read, pos, nr_sectors, durable: false }, purpose);
    }

    fn submit_read(&mut self, now: Nanos, tag: Tag, io: &Io) {
        let end = io.pos + u64::from(io.nr_sectors);
        let stripe = io.pos / self.params.stripe_sectors;
        let stream = self.streams.iter().position(|next| *next == io.pos);
        if let Some(stream) = stream {
            self.streams.remove(stream);
        } else if self.streams.len() == STREAMS {
            self.streams.pop_front();
        }
        self.streams.push_back(end);
        if stream.is_some() {
            for next in stripe + 1..=stripe + self.params.ahead {
                self.fetch(now, next);
            }
        }
        match self.stripes.get_mut(&stripe) {
            Some(Stripe::Here) => self.answer(now, tag),
            Some(Stripe::Coming(waiters)) => waiters.push(tag),
            None => self.read(now, io.pos, io.nr_sectors, Purpose::Answer(tag)),
        }
    }

    fn fetch(&mut self, now: Nanos, stripe: u64) {
        if self.stripes.contains_key(&stripe) {
            return;
        }
        if self.order.len() == self.params.read_stripes
            && let Some(oldest) = self.order.pop_front()
        {
            let oldest_stripe = self.stripes.remove(&oldest);
            if let Some(coming @ Stripe::Coming(_)) = oldest_stripe {
                // Somebody may wait for it; it goes to the end of the line.
                self.stripes.insert(oldest, coming);
                self.order.push_back(oldest);
                return;
            }
        }
        self.stripes.insert(stripe, Stripe::Coming(Vec::new()));
        self.order.push_back(stripe);
        let sectors = self.params.stripe_sectors;
        let nr_sectors = u32::try_from(sectors).expect("a stripe is small");
        self.read(now, stripe * sectors, nr_sectors, Purpose::Fetch(stripe));
    }

    fn submit_write(&mut self, now: Nanos, tag: Tag, io: &Io) {
        if self.destages >= self.params.dirty {
            self.held.push_back((tag, *io));
            return;
        }
        let (pair, pos) = self.place(io.pos);
        for disk in [2 * pair, 2 * pair + 1] {
            self.destages += 1;
            self.command(now, disk, &Io { pos, ..*io }, Purpose::Destage);
        }
        self.answer(now, tag);
    }

    fn answer(&mut self, now: Nanos, tag: Tag) {
        self.done.push(Reverse((now + self.params.command, tag.0)));
    }

    /// Catches up with one disk at the instant at which it has something to say.
    fn step(&mut self, at: Nanos, disk: usize) {
        if self.noted[disk] != Some(at) {
            return;
        }
        self.noted[disk] = None;
        while let Some(tag) = self.disks[disk].complete(at) {
            self.waiting[disk] -= 1;
            let index = tag.0 as usize;
            let purpose = self.purposes[index].take().expect("a disk completes what it was given");
            self.free.push(index);
            match purpose {
                Purpose::Answer(tag) => self.answer(at, tag),
                Purpose::Fetch(stripe) => {
                    if let Some(Stripe::Coming(waiters)) = self.stripes.insert(stripe, Stripe::Here)
                    {
                        waiters.into_iter().for_each(|tag| self.answer(at, tag));
                    }
                }
                Purpose::Destage => {
                    self.destages -= 1;
                    if self.destages < self.params.dirty
                        && let Some((tag, io)) = self.held.pop_front()
                    {
                        self.submit_write(at, tag, &io);
                    }
                }
            }
        }
        self.note(disk);
    }
}

impl DeviceModel for ArrayModel {
    fn depth(&self) -> u32 {
        // What the adapter's driver allows.
        128
    }

    fn rotational(&self) -> bool {
        true
    }

    fn submit(&mut self, now: Nanos, tag: Tag, io: &Io) {
        match io.op {
            IoOp::Read => self.submit_read(now, tag, io),
            // Everything else is a write to a controller with a battery.
            IoOp::Write => self.submit_write(now, tag, io),
            IoOp::Discard | IoOp::WriteZeroes | IoOp::Flush => self.answer(now, tag),
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        let disks = self.events.peek().map(|Reverse((at, _))| *at);
        let done = self.done.peek().map(|Reverse((at, _))| *at);
        [disks, done].into_iter().flatten().min()
    }

    fn complete(&mut self, now: Nanos) -> Option<Tag> {
        loop {
            let done = self.done.peek().map(|Reverse((at, _))| *at);
            let disks = self.events.peek().map(|Reverse((at, _))| *at);
            match (done, disks) {
                (done, Some(at)) if at <= now && done.is_none_or(|done| at <= done) => {
                    let Reverse((at, disk)) = self.events.pop().expect("it was there");
                    self.step(at, disk);
                }
                (Some(at), _) if at <= now => {
                    return self.done.pop().map(|Reverse((_, tag))| Tag(tag));
                }
                _ => return None,
            }
        }
    }

    fn name(&self) -> &str {
        "array"
    }

    fn sectors(&self) -> Option<u64> {
        Some(self.disk_sectors * self.params.pairs)
    }
}
