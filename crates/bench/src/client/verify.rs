//! Random reads and writes whose every sector is checked against what was written last.
//!
//! Each sector carries its number and a counter that grows with each write. A request is never
//! prepared while another one touches the same sectors, as a guest's page cache would have it, so
//! at any time the content of every sector is known.

use std::io;
use std::time::Duration;

use super::vring::{Completion, RingFault, Token};
use super::{Client, Io, IoOp, Wake};

const SECTOR_BYTES: usize = 512;
/// Longest request in sectors; short ones beside each other are what schedulers merge.
pub const SECTORS_MAX: u32 = 16;
/// How long an answer may take before it counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);

/// Small pseudo-random numbers from a seed (xorshift64*).
///
/// Source: S. Vigna, "An experimental exploration of Marsaglia's xorshift generators, scrambled",
/// 2016.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts a sequence; every seed is allowed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number below `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % limit
    }

    /// Returns the next index below `len`, which is not zero.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("smaller than a usize")
    }
}

/// Why verification failed.
#[derive(Debug)]
pub enum Corruption {
    /// A sector does not hold what was written to it.
    Content {
        /// The sector.
        sector: u64,
        /// Counter that it should carry.
        expected: u32,
        /// Its first 16 bytes.
        found: [u8; 16],
    },
    /// The server answered an honest request with an error.
    Status {
        /// The request's first sector.
        sector: u64,
        /// The status byte.
        status: u8,
    },
    /// The server broke the rules of the ring: an answer came twice or to nobody.
    Ring(RingFault),
    /// Requests in flight were not answered.
    Lost {
        /// How many.
        requests: usize,
    },
    /// The socket failed.
    Socket(io::Error),
}

impl std::fmt::Display for Corruption {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Content { sector, expected, found } => {
                write!(formatter, "sector {sector} should carry {expected}, found {found:02x?}")
            }
            Self::Status { sector, status } => {
                write!(formatter, "request at sector {sector} answered with status {status}")
            }
            Self::Ring(fault) => write!(formatter, "{fault}"),
            Self::Lost { requests } => write!(formatter, "{requests} requests were never answered"),
            Self::Socket(error) => write!(formatter, "socket: {error}"),
        }
    }
}

impl std::error::Error for Corruption {}

/// What a range of sectors holds, and a source of requests on it.
#[derive(Debug)]
pub struct Verifier {
    first: u64,
    /// Counter of the last answered write of each sector; 0 is never written (all zeroes).
    settled: Vec<u32>,
    /// Counter of a write that is in flight or whose client died; 0 is none.
    pending: Vec<u32>,
    /// Whether a request in flight touches the sector.
    busy: Vec<bool>,
    counter: u32,
    random: Random,
    buffer: Vec<u8>,
    answered: u64,
}

impl Verifier {
    /// Verifies `sectors` sectors from `first` on, which hold zeroes now.
    #[must_use]
    pub fn new(first: u64, sectors: u32, seed: u64) -> Self {
        assert!(sectors >= SECTORS_MAX, "a request must fit");
        let len = sectors as usize;
        Self {
            first,
            settled: vec![0; len],
            pending: vec![0; len],
            busy: vec![false; len],
            counter: 0,
            random: Random::new(seed),
            buffer: vec![0; SECTORS_MAX as usize * SECTOR_BYTES],
            answered: 0,
        }
    }

    /// Returns how many requests were answered and found right.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Keeps every vring of `client` full until `until` says otherwise or the server is gone.
    ///
    /// Requests remain in flight at the end.
    ///
    /// # Errors
    ///
    /// [`Corruption`]
    pub fn drive(
        &mut self,
        client: &mut Client,
        vrings: u16,
        mut until: impl FnMut(&Self) -> bool,
    ) -> Result<Wake, Corruption> {
        while !until(self) {
            for vring in 0..vrings {
                self.fill(client, vring);
            }
            client.publish();
            if self.take_answers(client)? == 0 {
                match client.wait(PATIENCE).map_err(Corruption::Socket)? {
                    Wake::Answers => {}
                    Wake::Gone => return Ok(Wake::Gone),
                    Wake::Broken | Wake::Timeout => return Err(lost(client)),
                }
            }
        }
        Ok(Wake::Answers)
    }

    /// Waits for everything in flight, without new requests.
    ///
    /// # Errors
    ///
    /// [`Corruption`]; a server that leaves meanwhile has lost the requests.
    pub fn finish(&mut self, client: &mut Client) -> Result<(), Corruption> {
        while client.outstanding() > 0 {
            if self.take_answers(client)? == 0
                && client.wait(PATIENCE).map_err(Corruption::Socket)? != Wake::Answers
            {
                return Err(lost(client));
            }
        }
        Ok(())
    }

    /// Reads everything and compares.
    ///
    /// # Errors
    ///
    /// [`Corruption`]
    pub fn sweep(&mut self, client: &mut Client) -> Result<(), Corruption> {
        self.finish(client)?;
        let mut at = 0;
        while at < self.settled.len() {
            let len = (self.settled.len() - at).min(SECTORS_MAX as usize);
            let io = self.request(IoOp::Read, at, len);
            client.submit(0, &io).expect("nothing is in flight");
            self.busy[at..at + len].fill(true);
            client.publish();
            self.finish(client)?;
            at += len;
        }
        Ok(())
    }

    /// Compares the bytes of an image, from the first verified sector on.
    ///
    /// # Errors
    ///
    /// [`Corruption::Content`] of the first sector that is wrong.
    pub fn compare(&mut self, image: &[u8]) -> Result<(), Corruption> {
        for index in 0..self.settled.len() {
            self.check_sector(index, &image[index * SECTOR_BYTES..][..SECTOR_BYTES])?;
        }
        Ok(())
    }

    /// Accounts for the death of the client: of each write in flight, every sector holds either
    /// what it held before or what was written; the first read tells.
    pub fn client_died(&mut self) {
        self.busy.fill(false);
    }

    /// Submits requests until the vring is full.
    fn fill(&mut self, client: &mut Client, vring: u16) {
        // A busy range is tried a few times elsewhere; then the ring is as full as it gets.
        for _attempt in 0..64 {
            let len = self.random.index(SECTORS_MAX as usize) + 1;
            let at = self.random.index(self.settled.len() - len + 1);
            // Writes whose outcome nobody knows are read before they are written again.
            let unknown = self.pending[at..at + len].iter().any(|counter| *counter != 0);
            if self.busy[at..at + len].iter().any(|busy| *busy) {
                continue;
            }
            let op = if unknown || self.random.below(3) == 0 { IoOp::Read } else { IoOp::Write };
            let io = self.request(op, at, len);
            let Some(token) = client.submit(vring, &io) else { return };
            self.busy[at..at + len].fill(true);
            if op == IoOp::Write {
                self.prepare(client, token, at, len);
            }
        }
    }

    fn request(&self, op: IoOp, at: usize, len: usize) -> Io {
        let write = u64::from(op == IoOp::Write);
        let bytes = u32::try_from(len * SECTOR_BYTES).expect("at most SECTORS_MAX sectors");
        Io::new(op, self.first + at as u64, bytes, write << 63 | (len as u64) << 32 | at as u64)
    }

    fn prepare(&mut self, client: &Client, token: Token, at: usize, len: usize) {
        self.counter += 1;
        for index in 0..len {
            self.pending[at + index] = self.counter;
            let sector = pattern(self.first + (at + index) as u64, self.counter);
            self.buffer[index * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&sector);
        }
        client.write_data(token, 0, &self.buffer[..len * SECTOR_BYTES]);
    }

    fn take_answers(&mut self, client: &mut Client) -> Result<u64, Corruption> {
        let before = self.answered;
        while let Some(completion) = client.next_completion().map_err(Corruption::Ring)? {
            self.take(client, &completion)?;
            self.answered += 1;
        }
        Ok(self.answered - before)
    }

    fn take(&mut self, client: &Client, completion: &Completion) -> Result<(), Corruption> {
        let at = (completion.user & 0xffff_ffff) as usize;
        let len = (completion.user >> 32 & 0xffff) as usize;
        if completion.status != 0 {
            let sector = self.first + at as u64;
            return Err(Corruption::Status { sector, status: completion.status });
        }
        self.busy[at..at + len].fill(false);
        if completion.user >> 63 != 0 {
            self.settled[at..at + len].copy_from_slice(&self.pending[at..at + len]);
            self.pending[at..at + len].fill(0);
            return Ok(());
        }
        let mut data = std::mem::take(&mut self.buffer);
        client.read_data(completion.token, 0, &mut data[..len * SECTOR_BYTES]);
        let outcome = (0..len).try_for_each(|index| {
            self.check_sector(at + index, &data[index * SECTOR_BYTES..][..SECTOR_BYTES])
        });
        self.buffer = data;
        outcome
    }

    fn check_sector(&mut self, index: usize, bytes: &[u8]) -> Result<(), Corruption> {
        let sector = self.first + index as u64;
        let pending = std::mem::take(&mut self.pending[index]);
        if pending != 0 && bytes == pattern(sector, pending) {
            self.settled[index] = pending;
        }
        let expected = self.settled[index];
        if bytes == pattern(sector, expected) {
            return Ok(());
        }
        let found = bytes[..16].try_into().expect("sixteen bytes");
        Err(Corruption::Content { sector, expected, found })
    }
}

/// Returns what a sector holds after the write with this counter; zeroes before the first.
fn pattern(sector: u64, counter: u32) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    if counter != 0 {
        let salt = u64::from(counter).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (index, word) in (0_u64..).zip(bytes.chunks_exact_mut(8)) {
            word.copy_from_slice(&(salt ^ sector.rotate_left(32) ^ index).to_le_bytes());
        }
        bytes[..8].copy_from_slice(&sector.to_le_bytes());
        bytes[8..12].copy_from_slice(&counter.to_le_bytes());
    }
    bytes
}

fn lost(client: &Client) -> Corruption {
    Corruption::Lost { requests: client.outstanding() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_sector_is_found_and_an_unknown_one_may_hold_either() {
        let mut verifier = Verifier::new(8, 16, 1);
        let mut image = vec![0; 16 * SECTOR_BYTES];
        verifier.compare(&image).unwrap();
        verifier.settled[3] = 5;
        let missing = verifier.compare(&image).unwrap_err();
        assert_eq!(
            missing.to_string(),
            format!("sector 11 should carry 5, found {:02x?}", [0; 16])
        );
        verifier.pending[3] = 6;
        image[3 * SECTOR_BYTES..4 * SECTOR_BYTES].copy_from_slice(&pattern(11, 6));
        verifier.compare(&image).unwrap();
        // It has been seen now: going back would be a loss.
        image[3 * SECTOR_BYTES..4 * SECTOR_BYTES].copy_from_slice(&pattern(11, 5));
        assert!(verifier.compare(&image).is_err());
    }
}
