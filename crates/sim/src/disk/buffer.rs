//! What the electronics of a disk remember: segments of read data, and data not yet written.

/// A run of sectors, `start..end`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Extent {
    pub start: u64,
    pub end: u64,
}

impl Extent {
    pub(crate) fn of(pos: u64, nr_sectors: u32) -> Self {
        Self { start: pos, end: pos.saturating_add(u64::from(nr_sectors)) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    pub(crate) fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end && self.start < self.end
    }

    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Segment {
    extent: Extent,
    used: u64,
}

/// The read buffer: a few sliding windows, the least recently used of which is given away.
#[derive(Debug)]
pub(crate) struct Segments {
    segments: Vec<Segment>,
    /// Size of one segment in sectors.
    pub size: u64,
    uses: u64,
}

impl Segments {
    pub(crate) fn new(count: u64, size: u64) -> Self {
        Self { segments: (0..count).map(|_| Segment::default()).collect(), size, uses: 0 }
    }

    /// Returns the segment that holds the sector, or ends right before it.
    pub(crate) fn find(&self, sector: u64) -> Option<usize> {
        let holds = |segment: &Segment| {
            let Extent { start, end } = segment.extent;
            start < end && start <= sector && sector <= end
        };
        // A segment that holds it beats one that only ends there.
        let holding = self.segments.iter().position(|s| holds(s) && sector < s.extent.end);
        holding.or_else(|| self.segments.iter().position(holds))
    }

    pub(crate) fn extent(&self, segment: usize) -> Extent {
        self.segments[segment].extent
    }

    /// Marks the segment as used just now.
    pub(crate) fn touch(&mut self, segment: usize) {
        self.uses += 1;
        self.segments[segment].used = self.uses;
    }

    /// Moves the end of a segment forward; what no longer fits falls out at the start.
    pub(crate) fn extend(&mut self, segment: usize, end: u64) {
        let extent = &mut self.segments[segment].extent;
        extent.end = extent.end.max(end);
        extent.start = extent.start.max(extent.end.saturating_sub(self.size));
    }

    /// Gives the least recently used segment to new data.
    pub(crate) fn replace(&mut self, extent: Extent) -> usize {
        let oldest = (0..self.segments.len())
            .min_by_key(|&segment| self.segments[segment].used)
            .expect("a disk has at least one segment");
        let start = extent.start.max(extent.end.saturating_sub(self.size));
        self.segments[oldest].extent = Extent { start, end: extent.end };
        self.touch(oldest);
        oldest
    }

    /// Forgets all segments that hold a sector of `extent`; returns whether `watched` is one.
    pub(crate) fn invalidate(&mut self, extent: &Extent, watched: Option<usize>) -> bool {
        let mut hit = false;
        for (index, segment) in self.segments.iter_mut().enumerate() {
            if segment.extent.overlaps(extent) {
                *segment = Segment::default();
                hit |= watched == Some(index);
            }
        }
        hit
    }
}

/// Most runs that the write cache tells apart; one more write waits for a run to be written.
const MAX_EXTENTS: usize = 64;

/// Written data that is not on the platter yet.
#[derive(Debug)]
pub(crate) struct WriteCache {
    pub extents: Vec<Extent>,
    sectors: u64,
    pub capacity: u64,
}

impl WriteCache {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { extents: Vec::with_capacity(MAX_EXTENTS), sectors: 0, capacity }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Returns whether `extent` can be taken in now.
    pub(crate) fn has_room(&self, extent: &Extent) -> bool {
        self.sectors + extent.len() <= self.capacity && self.extents.len() < MAX_EXTENTS
    }

    pub(crate) fn add(&mut self, extent: Extent) {
        if self.extents.iter().any(|dirty| dirty.contains(&extent)) {
            return;
        }
        self.sectors += extent.len();
        if let Some(dirty) = self.extents.iter_mut().find(|dirty| dirty.end == extent.start) {
            dirty.end = extent.end;
        } else {
            self.extents.push(extent);
        }
    }

    /// Takes up to `most` sectors off the front of a run.
    pub(crate) fn take(&mut self, index: usize, most: u64) -> Extent {
        let dirty = &mut self.extents[index];
        let taken = Extent { start: dirty.start, end: dirty.end.min(dirty.start + most) };
        dirty.start = taken.end;
        if dirty.start == dirty.end {
            self.extents.swap_remove(index);
        }
        self.sectors -= taken.len();
        taken
    }
}
