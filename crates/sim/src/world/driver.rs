//! Guests without an operating system: so many requests on the way, whatever comes of them.
//!
//! What the programs of a guest do has gone through a page cache and an elevator before the host
//! sees it. A driver is what a hostile or an odd guest looks like from the host: requests that
//! overlap, floods of flushes, discards, priorities at random.

use evenkeel_sched::Nanos;

use super::program::{File, Order};
use super::random::Random;
use crate::{Io, IoOp};

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
    random: Random,
}

impl Driver {
    pub(crate) const fn new(model: DriverModel, source: u32, random: Random) -> Self {
        Self { model, source, at: 0, is_stopped: false, random }
    }

    pub(crate) const fn window(&self) -> u32 {
        self.model.window
    }

    /// Returns how long a place pauses.
    pub(crate) fn pause(&mut self) -> Nanos {
        let (shortest, longest) = self.model.think;
        Nanos(self.random.within(shortest.0, longest.0))
    }

    /// Returns the next request, and its word of priority.
    pub(crate) fn next(&mut self) -> (Io, u32) {
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
