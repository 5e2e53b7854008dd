//! Guests without an operating system: so many requests on the way, whatever comes of them.
//!
//! What the programs of a guest do has gone through a page cache and an elevator before the host
//! sees it. A driver is what a hostile or an odd guest looks like from the host: requests that
//! overlap, floods of flushes, discards, priorities at random.

use evenkeel_sched::Nanos;

use super::program::{File, Order};
use super::random::Random;
use crate::{Io, IoOp};

/// A VM that keeps requests on the way: reads of 4 KiB anywhere in its disk.
///
/// What an asynchronous benchmark in a guest without page cache and elevator looks like from the
/// host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Client {
    /// Its disk.
    pub file: File,
    /// Reads on the way at a time, at least 1.
    pub depth: u32,
    /// From an answer to the next read in its place, at least 1 ns.
    pub think: Nanos,
}

impl Client {
    pub(crate) fn model(&self) -> DriverModel {
        DriverModel {
            window: self.depth.max(1),
            reads_per_mille: 1000,
            flushes_per_mille: 0,
            ranges_per_mille: 0,
            sectors: (8, 8),
            order: Order::Random,
            area: File { start: 0, sectors: self.file.sectors },
            think: (self.think, self.think),
            ioprios: vec![0],
        }
    }
}

/// What a driver asks for.
#[derive(Clone, Debug)]
pub(crate) struct DriverModel {
    /// Requests on the way at a time.
    pub(crate) window: u32,
    /// Of a thousand requests so many are reads; the others write.
    pub(crate) reads_per_mille: u64,
    /// So many are flushes.
    pub(crate) flushes_per_mille: u64,
    /// So many are discards or write-zeroes.
    pub(crate) ranges_per_mille: u64,
    /// Shortest and longest request, in sectors.
    pub(crate) sectors: (u64, u64),
    /// The order.
    pub(crate) order: Order,
    /// The part of its disk that it touches; a small one makes requests overlap.
    pub(crate) area: File,
    /// Shortest and longest time from an answer to the next request of the same place.
    pub(crate) think: (Nanos, Nanos),
    /// Words of priority in the requests' headers, one of them each time; at least one.
    pub(crate) ioprios: Vec<u32>,
}

/// A driver at work.
#[derive(Debug)]
pub(crate) struct Driver {
    model: DriverModel,
    /// Its disk.
    pub(crate) source: u32,
    at: u64,
    pub(crate) is_stopped: bool,
    /// Whether it is a client's: reads of 4 KiB at multiples of that.
    is_plain: bool,
    random: Random,
}

impl Driver {
    pub(crate) const fn new(model: DriverModel, source: u32, random: Random) -> Self {
        Self { model, source, at: 0, is_stopped: false, is_plain: false, random }
    }

    pub(crate) fn client(client: &Client, source: u32, random: Random) -> Self {
        Self { is_plain: true, ..Self::new(client.model(), source, random) }
    }

    pub(crate) const fn window(&self) -> u32 {
        self.model.window
    }

    /// Returns how long a place pauses.
    #[inline]
    pub(crate) fn pause(&mut self) -> Nanos {
        let (shortest, longest) = self.model.think;
        if self.is_plain {
            return shortest;
        }
        Nanos(self.random.within(shortest.0, longest.0))
    }

    /// Returns the next request, and its word of priority.
    #[inline]
    pub(crate) fn next(&mut self) -> (Io, u32) {
        if !self.is_plain {
            return self.next_of_many_kinds();
        }
        let File { start, sectors } = self.model.area;
        let pos = start + self.random.below(sectors / 8) * 8;
        (Io { op: IoOp::Read, pos, nr_sectors: 8, durable: false }, 0)
    }

    fn next_of_many_kinds(&mut self) -> (Io, u32) {
        let random = &mut self.random;
        let model = &self.model;
        let choices = u64::try_from(model.ioprios.len()).expect("few");
        let choice = usize::try_from(random.below(choices)).expect("an index");
        let ioprio = model.ioprios[choice];
        if random.per_mille(model.flushes_per_mille) {
            return (Io { op: IoOp::Flush, pos: 0, nr_sectors: 0, durable: false }, ioprio);
        }
        let op = if random.per_mille(model.ranges_per_mille) {
            if random.per_mille(500) { IoOp::Discard } else { IoOp::WriteZeroes }
        } else if random.per_mille(model.reads_per_mille) {
            IoOp::Read
        } else {
            IoOp::Write
        };
        let length = random.within(model.sectors.0, model.sectors.1).min(model.area.sectors);
        let room = model.area.sectors - length;
        let offset = match model.order {
            Order::Random => random.within(0, room),
            Order::Sequential | Order::Strided(_) => {
                let offset = if self.at > room { 0 } else { self.at };
                let step = if let Order::Strided(stride) = model.order { stride } else { length };
                self.at = offset + step;
                offset
            }
        };
        let nr_sectors = u32::try_from(length).expect("requests are short");
        (Io { op, pos: model.area.start + offset, nr_sectors, durable: false }, ioprio)
    }
}
