//! The header of a trace: what was traced.

use super::{TRACE_MAGIC, TRACE_VERSION, TraceError};

/// What was traced, and under which circumstances.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TraceHeader {
    /// When the trace began, in nanoseconds since 1970; 0 if that is not known.
    pub started_unix_ns: u64,
    /// The pool.
    pub pool: String,
    /// Its scheduler when the trace began.
    pub scheduler: String,
    /// What its commands went to: `real`, or a model as in `hdd:rpm=5400`.
    pub device: String,
    /// The most commands at the device at a time; 0 if that is not known.
    pub depth: u32,
    /// Its disks; records name them by their position.
    pub disks: Vec<TraceDisk>,
}

/// A disk of a traced pool.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TraceDisk {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// The weight of its VM when the trace began.
    pub weight: u32,
    /// Its size in sectors.
    pub sectors: u64,
    /// Whether the I/O priorities that its guest sent counted.
    pub heeds_priority: bool,
    /// Whether writes were answered only when they were durable.
    pub write_through: bool,
}

/// The most bytes of a header: ten thousand disks with the longest names fit.
const HEADER_BYTES_MAX: usize = 4 << 20;
/// Bytes before the part whose length the header tells.
const FIXED_BYTES: usize = 16;
const HEEDS_PRIORITY: u8 = 1;
const WRITE_THROUGH: u8 = 2;

impl TraceHeader {
    /// Returns the first bytes of a trace.
    ///
    /// Texts of more than 65 535 bytes are cut; names of an [admissible](crate::check_name)
    /// configuration are far shorter.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.started_unix_ns.to_le_bytes());
        body.extend(self.depth.to_le_bytes());
        for text in [&self.pool, &self.scheduler, &self.device] {
            put_text(&mut body, text);
        }
        let disks = u32::try_from(self.disks.len()).expect("fewer disks than sectors");
        body.extend(disks.to_le_bytes());
        for disk in &self.disks {
            put_text(&mut body, &disk.name);
            put_text(&mut body, &disk.vm);
            body.extend(disk.weight.to_le_bytes());
            body.extend(disk.sectors.to_le_bytes());
            let heeds = if disk.heeds_priority { HEEDS_PRIORITY } else { 0 };
            body.push(heeds | if disk.write_through { WRITE_THROUGH } else { 0 });
        }
        let mut bytes = TRACE_MAGIC.to_vec();
        bytes.extend(TRACE_VERSION.to_le_bytes());
        bytes.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// Reads a header; returns it with the number of bytes that it takes.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, usize), TraceError> {
        let mut fixed = Cursor { bytes, at: 0 };
        if fixed.take(TRACE_MAGIC.len()).ok() != Some(&TRACE_MAGIC[..]) {
            return Err(TraceError {
                remedy: "give a file that evenkeel serve --trace has written",
                ..TraceError::new(0, "not a trace")
            });
        }
        let version = fixed.number()?;
        if version != TRACE_VERSION {
            return Err(TraceError {
                remedy: "read it with the evenkeel that wrote it, or a newer one",
                ..TraceError::new(8, format!("a trace of version {version}, not {TRACE_VERSION}"))
            });
        }
        let length = fixed.number()? as usize;
        if length > HEADER_BYTES_MAX {
            return Err(TraceError::new(12, format!("a header of {length} bytes")));
        }
        let end = FIXED_BYTES + length;
        let bytes = bytes.get(..end).ok_or_else(|| TraceError::cut(bytes.len()))?;
        let mut body = Cursor { bytes, at: FIXED_BYTES };
        let header = Self::decode_body(&mut body).map_err(|error| TraceError {
            // The end of the header, not that of the file.
            ..TraceError::new(body.at, if error.is_cut { "a short header" } else { "no text" })
        })?;
        Ok((header, end))
    }

    fn decode_body(body: &mut Cursor<'_>) -> Result<Self, TraceError> {
        let mut header = Self {
            started_unix_ns: body.long()?,
            depth: body.number()?,
            pool: body.text()?,
            scheduler: body.text()?,
            device: body.text()?,
            disks: Vec::new(),
        };
        // What is promised is not set aside before it is there.
        for _ in 0..body.number()? {
            let (name, vm) = (body.text()?, body.text()?);
            let (weight, sectors) = (body.number()?, body.long()?);
            let flags = body.take(1)?[0];
            header.disks.push(TraceDisk {
                name,
                vm,
                weight,
                sectors,
                heeds_priority: flags & HEEDS_PRIORITY != 0,
                write_through: flags & WRITE_THROUGH != 0,
            });
        }
        Ok(header)
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    bytes.extend(u16::try_from(end).expect("cut above").to_le_bytes());
    bytes.extend(&text.as_bytes()[..end]);
}

/// A place in bytes that may end at any time.
#[derive(Debug)]
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], TraceError> {
        let end = self.at.checked_add(count);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| TraceError::cut(self.bytes.len()))?;
        self.at += count;
        Ok(taken)
    }

    pub(super) fn number(&mut self) -> Result<u32, TraceError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    pub(super) fn long(&mut self) -> Result<u64, TraceError> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }

    fn text(&mut self) -> Result<String, TraceError> {
        let at = self.at;
        let length = self.take(2)?;
        let length = u16::from_le_bytes(length.try_into().expect("two bytes were taken"));
        let bytes = self.take(usize::from(length))?.to_vec();
        String::from_utf8(bytes).map_err(|_| TraceError::new(at, "no text"))
    }
}
