//! Writing: one block at a time, into memory that is used again.

use super::varint;
use super::{
    BLOCK_HEADER_BYTES, BLOCK_LAST, BLOCK_MAGIC, HAS_IOPRIO, HAS_PLACE, RECORD_BYTES_MAX,
    TRACE_BLOCK_BYTES_MAX, TraceRecord,
};

/// What the numbers of the next record are differences to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Before {
    pub(super) arrived_ns: u64,
    /// The sector behind the last one.
    pub(super) sector: u64,
    pub(super) disk: u32,
    pub(super) queue: u16,
}

impl Before {
    pub(super) const fn after(record: &TraceRecord) -> Self {
        Self {
            arrived_ns: record.arrived_ns,
            sector: record.sector.wrapping_add(record.nr_sectors as u64),
            disk: record.disk,
            queue: record.queue,
        }
    }
}

/// Records on their way into a file. Allocates nothing after [`new`](Self::new).
#[derive(Debug)]
pub struct TraceBlock {
    bytes: Vec<u8>,
    capacity: usize,
    records: u32,
    before: Before,
}

impl TraceBlock {
    /// Sets memory aside for a block of at most `capacity` bytes, which is brought within 128 and
    /// [`TRACE_BLOCK_BYTES_MAX`].
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(BLOCK_HEADER_BYTES + RECORD_BYTES_MAX, TRACE_BLOCK_BYTES_MAX);
        let mut block = Self {
            bytes: Vec::with_capacity(capacity),
            capacity,
            records: 0,
            before: Before::default(),
        };
        block.clear();
        block
    }

    /// Forgets all records.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.extend([0; BLOCK_HEADER_BYTES]);
        self.records = 0;
        self.before = Before::default();
    }

    /// Returns whether another record fits, whatever it is.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.bytes.len() + RECORD_BYTES_MAX <= self.capacity
    }

    /// Returns the number of records.
    #[must_use]
    pub const fn records(&self) -> u32 {
        self.records
    }

    /// Adds a record. The caller asks [`has_room`](Self::has_room) before.
    ///
    /// # Panics
    ///
    /// Panics if there is no room.
    #[inline]
    pub fn push(&mut self, record: &TraceRecord) {
        assert!(self.has_room(), "a record does not fit; ask before");
        let Before { arrived_ns, sector, disk, queue } = self.before;
        let has_place = record.disk != disk || record.queue != queue;
        let has_ioprio = record.ioprio != 0;
        let kind = record.op.number() | record.status.number() << 3;
        let ioprio_flag = if has_ioprio { HAS_IOPRIO } else { 0 };
        let place_flag = if has_place { HAS_PLACE } else { 0 };
        let bytes = &mut self.bytes;
        bytes.push(kind | ioprio_flag | place_flag);
        if has_place {
            varint::put(bytes, u64::from(record.disk));
            varint::put(bytes, u64::from(record.queue));
        }
        if has_ioprio {
            varint::put(bytes, u64::from(record.ioprio));
        }
        varint::put(bytes, varint::fold(arrived_ns, record.arrived_ns));
        varint::put(bytes, varint::fold(sector, record.sector));
        varint::put(bytes, u64::from(record.nr_sectors));
        varint::put(bytes, record.wait_ns);
        varint::put(bytes, record.service_ns);
        self.records += 1;
        self.before = Before::after(record);
    }

    /// Completes the block and returns its bytes. `dropped` counts the requests since the block
    /// before that are in none; `is_last` says that the trace ends here.
    pub fn seal(&mut self, dropped: u64, is_last: bool) -> &[u8] {
        let body = self.bytes.len() - BLOCK_HEADER_BYTES;
        let body = u32::try_from(body).expect("bounded by the capacity");
        let flags = if is_last { BLOCK_LAST } else { 0 };
        let words = [u32::from_le_bytes(BLOCK_MAGIC), body, self.records, flags];
        let (fixed, _records) = self.bytes.split_at_mut(BLOCK_HEADER_BYTES);
        let (head, tail) = fixed.split_at_mut(16);
        for (place, word) in head.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        tail.copy_from_slice(&dropped.to_le_bytes());
        &self.bytes
    }

    /// Returns the bytes of a block that was sealed.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
