//! Reading what may be damaged or made up.

use super::encode::Before;
use super::header::Cursor;
use super::varint;
use super::{
    BLOCK_HEADER_BYTES, BLOCK_LAST, BLOCK_MAGIC, HAS_IOPRIO, HAS_PLACE, TRACE_BLOCK_BYTES_MAX,
    TRACE_TIME_MAX_NS, TraceError, TraceHeader, TraceOp, TraceRecord, TraceStatus,
};

/// The records of a trace, in the order of the file. Ends at the first error.
///
/// Whatever the bytes are: nothing panics, and nothing is set aside that is not there. A record
/// that comes out lies within its disk, and its times within
/// [`TRACE_TIME_MAX_NS`].
#[derive(Clone, Debug)]
pub struct TraceReader<'a> {
    header: TraceHeader,
    bytes: &'a [u8],
    at: usize,
    /// Where the block that is read ends.
    block_end: usize,
    /// Records of it that are still to come.
    left: u32,
    before: Before,
    dropped: u64,
    is_complete: bool,
    failed: bool,
}

impl<'a> TraceReader<'a> {
    /// Reads the header of a trace.
    ///
    /// # Errors
    ///
    /// * [`TraceError`] if it is no trace, or of another version, or ends within the header.
    pub fn new(bytes: &'a [u8]) -> Result<Self, TraceError> {
        let (header, at) = TraceHeader::decode(bytes)?;
        Ok(Self {
            header,
            bytes,
            at,
            block_end: at,
            left: 0,
            before: Before::default(),
            dropped: 0,
            is_complete: false,
            failed: false,
        })
    }

    /// Returns what was traced.
    #[must_use]
    pub const fn header(&self) -> &TraceHeader {
        &self.header
    }

    /// Returns the number of requests that are missing in what was read so far: they came faster
    /// than the file could be written.
    #[must_use]
    pub const fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns whether the end that the daemon wrote was reached; without it the daemon was
    /// killed, or the disk below the file was full.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Enters the next block; false at the end of the trace.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        if self.at != self.block_end {
            return Err(TraceError::new(self.at, "more bytes than records in a block"));
        }
        if self.at == self.bytes.len() {
            return Ok(false);
        }
        if self.is_complete {
            return Err(TraceError::new(self.at, "bytes behind the end of the trace"));
        }
        let start = self.at;
        let mut cursor = Cursor { bytes: self.bytes, at: start };
        if cursor.take(BLOCK_MAGIC.len())? != BLOCK_MAGIC {
            return Err(TraceError::new(start, "no block begins here"));
        }
        let (body, records, flags) = (cursor.number()?, cursor.number()?, cursor.number()?);
        let dropped = cursor.long()?;
        if body as usize > TRACE_BLOCK_BYTES_MAX - BLOCK_HEADER_BYTES {
            return Err(TraceError::new(start + 4, format!("a block of {body} bytes")));
        }
        if records > body {
            let problem = format!("{records} records in {body} bytes");
            return Err(TraceError::new(start + 8, problem));
        }
        if flags & !BLOCK_LAST != 0 {
            return Err(TraceError::new(start + 12, format!("unknown flags {flags:#x}")));
        }
        let end = cursor.at + body as usize;
        if end > self.bytes.len() {
            return Err(TraceError::cut(self.bytes.len()));
        }
        self.at = cursor.at;
        self.block_end = end;
        self.left = records;
        self.before = Before::default();
        self.dropped = self.dropped.saturating_add(dropped);
        self.is_complete = flags & BLOCK_LAST != 0;
        Ok(true)
    }

    fn number(&mut self) -> Result<u64, TraceError> {
        let rest = self.bytes.get(self.at..self.block_end).unwrap_or_default();
        let (value, length) = varint::get(rest)
            .ok_or_else(|| TraceError::new(self.at, "no number within this block"))?;
        self.at += length;
        Ok(value)
    }

    fn record(&mut self) -> Result<TraceRecord, TraceError> {
        let start = self.at;
        let wrong = |problem: &str| TraceError::new(start, problem);
        let rest = self.bytes.get(start..self.block_end).unwrap_or_default();
        let &kind = rest.first().ok_or_else(|| wrong("fewer bytes than records in a block"))?;
        self.at += 1;
        let op = TraceOp::ALL.get(usize::from(kind & 7)).copied();
        let op = op.ok_or_else(|| wrong("an unknown operation"))?;
        let status = TraceStatus::ALL.get(usize::from(kind >> 3 & 3)).copied();
        let status = status.ok_or_else(|| wrong("an unknown status"))?;
        if kind >> 7 != 0 {
            return Err(wrong("an unknown flag"));
        }
        let Before { arrived_ns, sector, mut disk, mut queue } = self.before;
        if kind & HAS_PLACE != 0 {
            disk = u32::try_from(self.number()?).map_err(|_| wrong("no such disk"))?;
            queue = u16::try_from(self.number()?).map_err(|_| wrong("no such queue"))?;
        }
        let ioprio = if kind & HAS_IOPRIO != 0 { self.number()? } else { 0 };
        let record = TraceRecord {
            disk,
            queue,
            op,
            status,
            ioprio: u32::try_from(ioprio).map_err(|_| wrong("no priority"))?,
            arrived_ns: varint::unfold(arrived_ns, self.number()?),
            sector: varint::unfold(sector, self.number()?),
            nr_sectors: u32::try_from(self.number()?).map_err(|_| wrong("too long a request"))?,
            wait_ns: self.number()?,
            service_ns: self.number()?,
        };
        self.check(&record).map_err(wrong)?;
        self.before = Before::after(&record);
        Ok(record)
    }

    /// Returns what is wrong with a record, as half a sentence.
    fn check(&self, record: &TraceRecord) -> Result<(), &'static str> {
        let disk = self.header.disks.get(record.disk as usize).ok_or("no such disk")?;
        let is_flush = record.op == TraceOp::Flush;
        if is_flush != (record.nr_sectors == 0) || is_flush && record.sector != 0 {
            return Err("a length that its operation cannot have");
        }
        let end = record.sector.checked_add(u64::from(record.nr_sectors));
        if end.is_none_or(|end| end > disk.sectors) {
            return Err("a request behind the end of its disk");
        }
        let times = [record.wait_ns, record.service_ns].into_iter();
        let end = times.fold(record.arrived_ns, u64::saturating_add);
        if end > TRACE_TIME_MAX_NS { Err("an impossible time") } else { Ok(()) }
    }

    fn step(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        while self.left == 0 {
            if !self.next_block()? {
                return Ok(None);
            }
        }
        self.left -= 1;
        self.record().map(Some)
    }
}

impl Iterator for TraceReader<'_> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}
