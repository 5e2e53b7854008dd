//! Arm, platters, buffer and cache of a disk: how long one command takes.
//!
//! All is computed lazily: what head and platters did while nobody looked (read ahead, write back)
//! is caught up with when the next command starts.

use super::DiskParams;
use super::buffer::{Extent, Segments, WriteCache};
use super::geometry::Geometry;
use crate::{Io, IoOp, ModelError};

/// Most sectors that are written back in one go, so that a read does not wait for all of a long
/// run: 128 KiB, the size of a large request.
const WRITE_BACK_SECTORS: u64 = 256;

/// The head goes on reading behind the last read command.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    segment: usize,
    /// The sector that begins to pass under the head at the instant `at`.
    from: u64,
    at: u64,
    /// Where it will stop.
    limit: u64,
}

/// How a read can be served.
#[derive(Clone, Copy, Debug)]
enum Reading {
    /// From the read buffer or the write cache.
    Buffered(Option<usize>),
    /// The head is on its way there by itself and will have read all of it at this instant.
    Following(usize, u64),
    /// The head must be sent to this sector; a segment may hold what lies before it.
    Seeking(Option<usize>, u64),
}

/// All of a disk but its queue; times in nanoseconds.
#[derive(Debug)]
pub(crate) struct Mechanics {
    geometry: Geometry,
    segments: Segments,
    cache: WriteCache,
    /// What was written back last; it can still be read from the cache.
    written_back: Extent,
    overhead: u64,
    interface_kbps: u64,
    /// Where the head has been since `free`, if it does not read ahead.
    cylinder: u64,
    free: u64,
    ahead: Option<Ahead>,
    /// The instant up to which all is caught up.
    settled: u64,
}

impl Mechanics {
    pub(crate) fn new(model: &'static str, params: &DiskParams) -> Result<Self, ModelError> {
        Ok(Self {
            geometry: Geometry::new(model, params)?,
            segments: Segments::new(params.segments, params.buffer_kib * 2 / params.segments),
            cache: WriteCache::new(params.write_cache_kib * 2),
            written_back: Extent::default(),
            overhead: params.overhead_us * 1_000,
            interface_kbps: params.interface_kbps,
            cylinder: 0,
            free: 0,
            ahead: None,
            settled: 0,
        })
    }

    pub(crate) fn sectors(&self) -> u64 {
        self.geometry.sectors
    }

    /// Returns the sector of the disk for a sector of the address space.
    fn wrap(&self, sector: u64) -> u64 {
        sector % self.geometry.sectors
    }

    /// Returns the time to move sectors between buffer and host.
    fn transfer(&self, nr_sectors: u64) -> u64 {
        nr_sectors * 512 * 1_000_000 / self.interface_kbps
    }

    /// Returns the time from the beginning of the first to the end of the last sector, at least 1
    /// sector; what would lie behind the end of the disk is left away.
    fn stream(&self, extent: &Extent) -> u64 {
        let first = self.wrap(extent.start);
        let last = first.saturating_add(extent.len().max(1) - 1).min(self.geometry.sectors - 1);
        self.geometry.along_end(last) - self.geometry.along(first)
    }

    /// Returns the sector behind the last one that reading ahead has got by `now`.
    fn reached(&self, ahead: &Ahead, now: u64) -> u64 {
        let (mut got, mut not) = (ahead.from, ahead.limit + 1);
        while got + 1 < not {
            let middle = got.midpoint(not);
            let extent = Extent { start: ahead.from, end: middle };
            if ahead.at + self.stream(&extent) <= now { got = middle } else { not = middle }
        }
        got
    }

    /// Lets the head read ahead from `from`, which it meets at `at`.
    fn read_ahead(&mut self, segment: usize, from: u64, at: u64, consumed: u64) {
        let room = self.geometry.sectors - self.wrap(from);
        let limit = (consumed + self.segments.size).min(from + room);
        self.ahead = (from < limit).then_some(Ahead { segment, from, at, limit });
        self.cylinder = self.geometry.cylinder(self.wrap(from.saturating_sub(1)));
        self.free = at;
    }

    /// Stops reading ahead at `now` and keeps what was read.
    fn stop_reading_ahead(&mut self, now: u64) {
        let Some(ahead) = self.ahead.take() else { return };
        let end = self.reached(&ahead, now);
        if end > ahead.from {
            self.segments.extend(ahead.segment, end);
            self.cylinder = self.geometry.cylinder(self.wrap(end - 1));
        }
        self.free = now;
    }

    /// Lets pass the time until `now`, in which no command was executed.
    fn catch_up(&mut self, now: u64) {
        let since = core::mem::replace(&mut self.settled, now);
        if !self.cache.is_empty() {
            self.stop_reading_ahead(since);
            while self.free.max(since) < now && !self.cache.is_empty() {
                self.write_back(since);
            }
        }
        let Some(ahead) = self.ahead else { return };
        let end = self.reached(&ahead, now);
        if end > ahead.from {
            self.segments.extend(ahead.segment, end);
        }
        if end == ahead.limit {
            let end = ahead.at + self.stream(&Extent { start: ahead.from, end });
            self.stop_reading_ahead(end);
        }
    }

    /// Writes back the run of the cache that the head reaches first.
    fn write_back(&mut self, not_before: u64) {
        let at = self.free.max(not_before);
        let nearest = (0..self.cache.extents.len()).min_by_key(|&index| {
            let sector = self.wrap(self.cache.extents[index].start);
            self.geometry.arrive(at, self.cylinder, sector)
        });
        let nearest = nearest.expect("the caller found data to write back");
        let extent = self.cache.take(nearest, WRITE_BACK_SECTORS);
        self.written_back = extent;
        self.pass_over(at, &extent);
    }

    /// Sends the head over an extent and returns when it has passed.
    fn pass_over(&mut self, at: u64, extent: &Extent) -> u64 {
        let at = self.geometry.arrive(at, self.cylinder, self.wrap(extent.start));
        self.free = at + self.stream(extent);
        let last = self.wrap(extent.start).saturating_add(extent.len().max(1) - 1);
        self.cylinder = self.geometry.cylinder(last.min(self.geometry.sectors - 1));
        self.free
    }

    fn is_in_cache(&self, extent: &Extent) -> bool {
        self.written_back.contains(extent)
            || self.cache.extents.iter().any(|dirty| dirty.contains(extent))
    }

    fn reading(&self, extent: &Extent) -> Reading {
        if self.is_in_cache(extent) {
            return Reading::Buffered(None);
        }
        let found = self.segments.find(extent.start);
        if let Some(ahead) = &self.ahead {
            let held = self.segments.extent(ahead.segment);
            let near = held.start <= extent.start && extent.start < ahead.limit;
            if near && extent.end > held.end {
                let way = Extent { start: ahead.from, end: extent.end };
                return Reading::Following(ahead.segment, ahead.at + self.stream(&way));
            }
        }
        match found {
            Some(segment) if self.segments.extent(segment).contains(extent) => {
                Reading::Buffered(Some(segment))
            }
            Some(segment) if extent.start < self.segments.extent(segment).end => {
                Reading::Seeking(Some(segment), self.segments.extent(segment).end)
            }
            _ => Reading::Seeking(None, extent.start),
        }
    }

    /// Returns the time after which the first missing sector of a command would pass under the
    /// head, if it started now; 0 if nothing is missing.
    pub(crate) fn positioning(&self, now: u64, io: &Io) -> u64 {
        let sector = match io.op {
            IoOp::Flush | IoOp::Discard => return 0,
            IoOp::Write if self.caches(io) => return 0,
            IoOp::Write | IoOp::WriteZeroes => io.pos,
            IoOp::Read => match self.reading(&Extent::of(io.pos, io.nr_sectors)) {
                Reading::Seeking(_, sector) => sector,
                Reading::Buffered(_) | Reading::Following(..) => return 0,
            },
        };
        let cylinder = self.ahead.map_or(self.cylinder, |ahead| {
            self.geometry.cylinder(self.wrap(self.reached(&ahead, now).max(1) - 1))
        });
        let at = if self.ahead.is_some() { now } else { self.free.max(now) };
        self.geometry.arrive(at, cylinder, self.wrap(sector)) - now
    }

    /// Returns whether a write is complete as soon as it is in the cache.
    fn caches(&self, io: &Io) -> bool {
        !io.durable && u64::from(io.nr_sectors) <= self.cache.capacity
    }

    /// Executes a command that starts at `start`, which is not before the end of the last one.
    /// Returns when it has finished.
    pub(crate) fn execute(&mut self, start: u64, io: &Io) -> u64 {
        let now = start + self.overhead;
        self.catch_up(now);
        let extent = Extent::of(io.pos, io.nr_sectors);
        let end = match io.op {
            IoOp::Read => self.read(now, extent),
            IoOp::Write if self.caches(io) => self.write_cached(now, extent),
            IoOp::Write => self.write_through(now, extent).max(now + self.transfer(extent.len())),
            IoOp::WriteZeroes => self.write_through(now, extent),
            // A disk has nothing to forget with.
            IoOp::Discard => now,
            IoOp::Flush => {
                self.clean(now, |_| true);
                if self.ahead.is_some() { now } else { self.free.max(now) }
            }
        };
        self.settled = end;
        end
    }

    /// Writes back all runs that `wanted` points out, and whatever lies nearer on the way.
    fn clean(&mut self, now: u64, wanted: impl Fn(&Extent) -> bool) {
        while self.cache.extents.iter().any(&wanted) {
            self.stop_reading_ahead(now);
            self.write_back(now);
        }
    }

    fn read(&mut self, now: u64, extent: Extent) -> u64 {
        if !self.is_in_cache(&extent) {
            self.clean(now, |dirty| dirty.overlaps(&extent));
        }
        let moved = now + self.transfer(extent.len());
        match self.reading(&extent) {
            Reading::Buffered(None) => moved,
            Reading::Buffered(Some(segment)) => {
                self.segments.touch(segment);
                self.consume(now, segment, extent.end);
                moved
            }
            Reading::Following(segment, at) => {
                self.segments.extend(segment, extent.end);
                self.segments.touch(segment);
                self.read_ahead(segment, extent.end, at, extent.end);
                at.max(moved)
            }
            Reading::Seeking(segment, sector) => {
                self.stop_reading_ahead(now);
                let missing = Extent { start: sector, end: extent.end };
                let at = self.pass_over(self.free.max(now), &missing);
                let segment = match segment {
                    Some(segment) => {
                        self.segments.extend(segment, extent.end);
                        self.segments.touch(segment);
                        segment
                    }
                    None => self.segments.replace(extent),
                };
                self.read_ahead(segment, extent.end, at, extent.end);
                at.max(moved)
            }
        }
    }

    /// Lets the head read further ahead after the host has taken data up to `end` from a segment:
    /// at once if it is still reading, or when half of the segment is free.
    fn consume(&mut self, now: u64, segment: usize, end: u64) {
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.segment == segment) {
            let room = self.geometry.sectors - ahead.from % self.geometry.sectors;
            ahead.limit = ahead.limit.max((end + self.segments.size).min(ahead.from + room));
            return;
        }
        let held = self.segments.extent(segment);
        let stopped = self.ahead.is_none() && self.free <= now && self.cache.is_empty();
        if stopped && held.end - end <= self.segments.size / 2 {
            let next = self.wrap(held.end);
            let at = self.geometry.arrive(now, self.cylinder, next);
            self.read_ahead(segment, held.end, at, end);
        }
    }

    fn forget(&mut self, now: u64, extent: &Extent) {
        let watched = self.ahead.map(|ahead| ahead.segment);
        let reading = self
            .ahead
            .is_some_and(|ahead| extent.overlaps(&Extent { start: ahead.from, end: ahead.limit }));
        if self.segments.invalidate(extent, watched) || reading {
            // The window is gone, or would soon hold old data: the head stays where it is.
            if let Some(ahead) = self.ahead.take() {
                let last = self.reached(&ahead, now).max(1) - 1;
                self.cylinder = self.geometry.cylinder(self.wrap(last));
                self.free = now;
            }
        }
    }

    fn write_cached(&mut self, now: u64, extent: Extent) -> u64 {
        self.forget(now, &extent);
        let mut at = now;
        while !self.cache.has_room(&extent) {
            self.stop_reading_ahead(now);
            self.write_back(now);
            at = self.free.max(now);
        }
        self.cache.add(extent);
        at.max(now + self.transfer(extent.len()))
    }

    fn write_through(&mut self, now: u64, extent: Extent) -> u64 {
        self.forget(now, &extent);
        self.stop_reading_ahead(now);
        // Older data for the same sectors must not be written over the new.
        self.clean(now, |dirty| dirty.overlaps(&extent));
        self.pass_over(self.free.max(now), &extent)
    }
}
