//! Flash memory behind a controller: a card, a chip, a drive.
//!
//! Picture a counter with a clerk (the controller), a row of cupboards (the ways) and one door
//! (the link). A small read costs one trip to one cupboard; many reads keep all cupboards busy; a
//! long read fills the door. Writes go into a tray (the cache) that is emptied at the sustained
//! rate, and out-of-order writes make emptying it slower.
//!
//! Deliberately absent: wear, garbage collection beyond a fixed price of random writes, thermal
//! limits, prefetching of small sequential reads.

mod params;

use std::collections::VecDeque;

use evenkeel_sched::{Nanos, Tag};

use crate::events::Events;
use crate::{DeviceModel, Io, IoOp, ModelError};
pub(crate) use params::{FlashParams, PARAMETERS, PRESETS};

/// The request size for which sequential rates are stated, as in the experiments of D3.6.
const STATED_BYTES: u64 = 128 * 1024;

#[derive(Clone, Copy, Debug)]
struct Waiting {
    arrived: u64,
    tag: Tag,
    io: Io,
}

/// An allocation unit that is open for writing.
#[derive(Clone, Copy, Debug)]
struct OpenUnit {
    unit: u64,
    /// The sector behind the last one written.
    next: u64,
    used: u64,
}

/// How fast bytes pass. Most commands are as long as the one before, so the last answer is kept:
/// a division takes longer than the rest of a command.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// In 10^3 bytes per second.
    kbps: u64,
    bytes: u64,
    takes: u64,
}

impl Rate {
    const fn new(kbps: u64) -> Self {
        Self { kbps, bytes: 0, takes: 0 }
    }

    /// Returns the nanoseconds that so many bytes take.
    #[inline]
    fn duration(&mut self, bytes: u64) -> u64 {
        if bytes != self.bytes {
            (self.bytes, self.takes) = (bytes, duration(bytes, self.kbps));
        }
        self.takes
    }
}

/// A number by which much is divided, mostly a power of two.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    value: u64,
    shift: Option<u32>,
}

impl Divisor {
    fn new(value: u64) -> Self {
        Self { value, shift: value.is_power_of_two().then(|| value.trailing_zeros()) }
    }

    /// Returns quotient and remainder.
    #[inline]
    fn divide(self, number: u64) -> (u64, u64) {
        match self.shift {
            Some(shift) => (number >> shift, number & (self.value - 1)),
            None => (number / self.value, number % self.value),
        }
    }
}

/// A modelled flash device; built with [`model`](crate::model).
#[derive(Debug)]
pub struct FlashModel {
    name: &'static str,
    params: FlashParams,
    sectors: u64,
    depth: usize,
    way_rate: Rate,
    link_rate: Rate,
    write_rate: Rate,
    ways: Divisor,
    page_sectors: Divisor,
    /// The time in which a full cache is emptied.
    cache_time: u64,
    /// The instants, in nanoseconds, at which the parts have done all that was given to them.
    controller_free: u64,
    ways_free: Vec<u64>,
    link_free: [u64; 2],
    written: u64,
    open: Vec<OpenUnit>,
    uses: u64,
    /// Commands in execution, by the instant of completion.
    active: Box<Events<Tag>>,
    running: usize,
    started: u64,
    waiting: VecDeque<Waiting>,
}

impl FlashModel {
    pub(crate) fn new(name: &'static str, params: &FlashParams) -> Result<Self, ModelError> {
        let fixed = (params.command_us + params.latency_us) * 1_000;
        let way_kbps = match params.way_kbps {
            0 => derived_rate(params.read_kbps, fixed + params.sense_us * 1_000).ok_or(
                ModelError::Contradiction {
                    model: name,
                    keys: &["command_us", "latency_us", "sense_us", "read_kbps"],
                    rule: "with way_kbps=0, 128 KiB at read_kbps must take longer than the three \
                           delays",
                },
            )?,
            rate => rate,
        };
        let write_kbps = match params.cache_kib {
            0 => derived_rate(params.write_kbps, fixed).ok_or(ModelError::Contradiction {
                model: name,
                keys: &["command_us", "latency_us", "write_kbps"],
                rule: "without a cache, 128 KiB at write_kbps must take longer than the two \
                           delays",
            })?,
            _ => params.write_kbps,
        };
        let link_kbps =
            if params.depth == 1 { way_kbps.max(params.read_kbps) } else { params.read_kbps };
        let depth = usize::try_from(params.depth).expect("at most 4096");
        let open = (0..params.open_units).map(|_| OpenUnit { unit: u64::MAX, next: 0, used: 0 });
        Ok(Self {
            name,
            params: *params,
            sectors: params.capacity_mb * 1_000_000 / 512,
            depth,
            way_rate: Rate::new(way_kbps),
            link_rate: Rate::new(link_kbps),
            write_rate: Rate::new(write_kbps),
            ways: Divisor::new(params.ways),
            page_sectors: Divisor::new(params.page_kib * 2),
            cache_time: duration(params.cache_kib * 1024, write_kbps),
            controller_free: 0,
            ways_free: (0..params.ways).map(|_| 0).collect(),
            link_free: [0; 2],
            written: 0,
            open: open.collect(),
            uses: 0,
            active: Box::default(),
            running: 0,
            started: 0,
            waiting: VecDeque::with_capacity(256),
        })
    }

    fn start(&mut self, now: u64, tag: Tag, io: &Io) {
        self.controller_free = self.controller_free.max(now) + self.params.command_us * 1_000;
        let at = self.controller_free + self.params.latency_us * 1_000;
        let end = match io.op {
            IoOp::Read => self.read(at, io),
            IoOp::Write => self.write(at, io),
            IoOp::Discard | IoOp::WriteZeroes => {
                let unit = self.params.unit_kib * 2;
                let last = io.pos.saturating_add(u64::from(io.nr_sectors.max(1)) - 1);
                let units = last / unit - io.pos / unit + 1;
                at + units * self.params.discard_us * 1_000
            }
            IoOp::Flush => {
                self.written.max(self.link_free[1]).max(at) + self.params.flush_us * 1_000
            }
        };
        self.active.add(Nanos(end), tag);
        self.running += 1;
        self.started += 1;
    }

    /// Returns when the last byte has passed the link, if the first could from `at` on. The link
    /// is never idle while something is due, so its load is a number and not a list.
    fn pass_link(&mut self, at: u64, bytes: u64, direction: usize) -> u64 {
        let link = if self.params.duplex == 1 { direction } else { 0 };
        let free = &mut self.link_free[link];
        *free = (*free).max(at) + self.link_rate.duration(bytes);
        let end = *free;
        if self.params.duplex == 0 {
            self.link_free[1] = end;
        }
        end
    }

    /// Returns the way that holds a page: each run of as many pages as there are ways touches
    /// every way once, beginning with a random one.
    fn way(&self, page: u64) -> usize {
        let (run, _) = self.ways.divide(page);
        let (_, first) = self.ways.divide(hash(run));
        let (_, way) = self.ways.divide(page + first);
        usize::try_from(way).expect("at most 256")
    }

    fn read(&mut self, at: u64, io: &Io) -> u64 {
        let end_sector = io.pos.saturating_add(u64::from(io.nr_sectors));
        let (mut sector, mut fetched) = (io.pos, at);
        while sector < end_sector {
            let (page, _) = self.page_sectors.divide(sector);
            let page_end = (page + 1).saturating_mul(self.page_sectors.value).min(end_sector);
            let next = if self.params.ways == 1 { end_sector } else { page_end };
            let way = self.way(page);
            let busy = self.params.sense_us * 1_000 + self.way_rate.duration((next - sector) * 512);
            let mut from = self.ways_free[way].max(at);
            if self.written > from && self.params.program_us > 0 {
                // The chip is writing a page; how far it has come is anybody's guess.
                from += hash(page ^ self.started) % (self.params.program_us * 1_000);
                self.written += busy / self.params.ways;
            }
            self.ways_free[way] = from + busy;
            fetched = fetched.max(from + busy);
            sector = next;
        }
        let bytes = u64::from(io.nr_sectors) * 512;
        let passed = self.pass_link(at, bytes, 0);
        // The last 4 KiB cannot pass the link before they are there.
        let last = if self.depth == 1 { 0 } else { self.link_rate.duration(bytes.min(4_096)) };
        passed.max(fetched + last)
    }

    fn write(&mut self, at: u64, io: &Io) -> u64 {
        let bytes = u64::from(io.nr_sectors) * 512;
        let received = self.pass_link(at, bytes, 1);
        let cost = self.write_rate.duration(bytes) + self.unit_price(io);
        self.written = self.written.max(at) + cost;
        if self.cache_time == 0 {
            return self.written.max(received);
        }
        if io.durable {
            return received.max(at + cost) + self.params.program_us * 1_000;
        }
        let room = self.written.saturating_sub(self.cache_time);
        received.max(room) + self.params.write_us * 1_000
    }

    /// Returns what a write costs beyond its bytes, and opens the unit that it ends in.
    ///
    /// A stream that goes on costs nothing more, even into the next unit: full units are closed
    /// without copying, which is part of the sequential rate.
    fn unit_price(&mut self, io: &Io) -> u64 {
        let unit_sectors = self.params.unit_kib * 2;
        let next = io.pos.saturating_add(u64::from(io.nr_sectors));
        let (first, last) = (io.pos / unit_sectors, next.saturating_sub(1) / unit_sectors);
        let continued = self.open.iter().position(|open| open.next == io.pos && open.used > 0);
        let place = continued.or_else(|| self.open.iter().position(|open| open.unit == first));
        let price = match (continued, place) {
            (Some(_), _) => 0,
            (None, Some(_)) => self.params.rewrite_us * 1_000,
            (None, None) => self.params.open_us * 1_000,
        };
        let oldest = || (0..self.open.len()).min_by_key(|&index| self.open[index].used);
        let place = place.or_else(oldest).expect("at least one unit is open");
        self.uses += 1;
        self.open[place] = OpenUnit { unit: last, next, used: self.uses };
        price
    }
}

impl DeviceModel for FlashModel {
    fn depth(&self) -> u32 {
        u32::try_from(self.depth).expect("at most 4096")
    }

    fn rotational(&self) -> bool {
        false
    }

    #[inline]
    fn submit(&mut self, now: Nanos, tag: Tag, io: &Io) {
        if self.running < self.depth {
            self.start(now.0, tag, io);
        } else {
            self.waiting.push_back(Waiting { arrived: now.0, tag, io: *io });
        }
    }

    #[inline]
    fn next_event(&self) -> Option<Nanos> {
        self.active.next_at()
    }

    #[inline]
    fn complete(&mut self, now: Nanos) -> Option<Tag> {
        let end = self.active.next_at()?;
        let tag = self.active.due(now)?;
        self.running -= 1;
        if let Some(next) = self.waiting.pop_front() {
            self.start(end.0.max(next.arrived), next.tag, &next.io);
        }
        Some(tag)
    }

    fn name(&self) -> &str {
        self.name
    }

    fn sectors(&self) -> Option<u64> {
        Some(self.sectors)
    }
}

/// Returns the nanoseconds that `bytes` take at a rate in 10^3 bytes per second.
fn duration(bytes: u64, kbps: u64) -> u64 {
    bytes * 1_000_000 / kbps
}

/// Returns the rate at which 128 KiB and a fixed delay in nanoseconds together reach `kbps`.
fn derived_rate(kbps: u64, delay: u64) -> Option<u64> {
    let left = duration(STATED_BYTES, kbps).checked_sub(delay).filter(|left| *left > 0)?;
    Some(STATED_BYTES * 1_000_000 / left)
}

/// Returns 64 well-mixed bits.
///
/// Source: G. L. Steele, D. Lea and C. H. Flood, "Fast Splittable Pseudorandom Number Generators",
/// 2014 (the finaliser of SplitMix64).
fn hash(value: u64) -> u64 {
    let mut bits = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
