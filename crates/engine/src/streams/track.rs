//! One track: a place that is read, where it may go on, and what says that a read belongs to it.

use evenkeel_sched::Nanos;

use super::StreamSet;

/// How far from the end of the last read the next one may begin, in sectors: 4 MiB. Covers deep
/// read-ahead that arrives out of order, and the small files of a program.
const NEAR_SECTORS: u64 = 8192;
/// Reads nearer than this, in sectors, are equally near: 32 KiB.
pub(super) const TOUCHING_SECTORS: u64 = 64;
/// A read that begins where the last one ended is nearer than that: a block of 4 KiB.
const BLOCK_SECTORS: u64 = 8;
/// Reads that prove that a stream lasts.
const PROOF: u8 = 8;
/// So many reads where the one before ended, more than elsewhere, are of a file read in order.
const IN_ORDER: u8 = 4;
/// Who has read so many sectors of a file in order goes on in it, as a rule: 2 MiB. A program that
/// starts may as well begin where another one stopped reading a short one.
const LONG_FILE_SECTORS: u32 = 4_096;
/// For at most so many sectors, 512 KiB, before its end it is read again.
const AGAIN_SECTORS: u64 = 1024;
/// For at most so long a guest holds up who does. BFQ in Linux 6.1 held one up for 37 s.
const HELD_UP: Nanos = Nanos::from_secs(60);
/// A stream that has not read for so long is over, unless a read continues it closely; it may give
/// its place to another.
pub(super) const ABANDONED: Nanos = Nanos::from_secs(1);

/// Evidence and distances on a logarithmic scale: sixteenths of a bit.
pub(super) const BIT: i32 = 16;
/// Least evidence of a read that joins a track.
const JOIN: i32 = 2 * BIT;
/// The same if the track has been silent for [`ABANDONED`].
pub(super) const JOIN_AGAIN: i32 = 8 * BIT;
/// What each read costs: reads that join by chance bring 3.4 bits on average (2, and 1.4 because
/// the rest is distributed exponentially), so their sum falls.
const COST: i32 = 4 * BIT + BIT / 2;
/// More than this is not counted, so that what has ended is forgotten.
const MOST: i32 = 24 * BIT;
/// Most evidence of one read: chance alone must not make a stream of two.
const MOST_AT_ONCE: i32 = 15 * BIT;

/// A place that has been read, and where it may go on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    /// Sector behind the last read; of a file read in order, behind the last one in order.
    pub(super) end: u64,
    /// Sector behind the last read that left that order: its reader may go on there, or it was
    /// somebody else's.
    pub(super) aside: u64,
    /// When it was, and when one of the reads of a stream was last done.
    pub(super) last: Nanos,
    pub(super) done: Nanos,
    /// When the first read was.
    pub(super) first: Nanos,
    /// Loose reads of the VM up to the last read.
    pub(super) loose: u64,
    /// Evidence that the reads belong together.
    pub(super) score: i32,
    /// Reads so far, as far as they can be counted.
    pub(super) reads: u8,
    /// How many more of them began where the one before ended than elsewhere, up to twice
    /// [`IN_ORDER`].
    pub(super) in_order: u8,
    /// Sectors of the file that were read like that, as far as they can be counted.
    pub(super) ordered_sectors: u32,
    /// Priority of the reads, as a number: streams do not mix them.
    pub(super) priority: u8,
    /// Of a stream of which it is not certain that it is somebody new's: the streams that its reader
    /// may have left for it, as far as they have not gone on.
    pub(super) suspects: Option<StreamSet>,
}

impl Track {
    /// A place that is near nothing.
    pub(super) const UNUSED: Self = Self {
        end: u64::MAX / 2,
        aside: u64::MAX / 2,
        last: Nanos::ORIGIN,
        done: Nanos::ORIGIN,
        first: Nanos::ORIGIN,
        loose: 0,
        score: 0,
        reads: 0,
        in_order: 0,
        ordered_sectors: 0,
        priority: u8::MAX,
        suspects: None,
    };

    pub(super) fn is_used(&self) -> bool {
        self.priority != u8::MAX
    }

    pub(super) fn is_proved(&self) -> bool {
        self.reads >= PROOF
    }

    pub(super) fn distance(&self, sector: u64) -> u64 {
        let from_end = if self.goes_on_in_file(sector) { 0 } else { self.end.abs_diff(sector) };
        from_end.min(self.aside.abs_diff(sector))
    }

    /// Returns whether a read at `sector` goes on in the file: where it was left, or, in a long one, a
    /// bit before, since a guest that is short of memory drops what it has read ahead.
    pub(super) fn goes_on_in_file(&self, sector: u64) -> bool {
        let again = self.end.checked_sub(sector);
        again == Some(0) || (self.is_long() && again.is_some_and(|again| again <= AGAIN_SECTORS))
    }

    fn is_long(&self) -> bool {
        self.is_in_order() && self.ordered_sectors >= LONG_FILE_SECTORS
    }

    pub(super) fn is_in_order(&self) -> bool {
        self.in_order >= IN_ORDER
    }

    /// Returns whether the guest may be holding up who reads a long file.
    pub(super) fn may_be_held_up(&self, now: Nanos) -> bool {
        self.is_long() && now.since(self.last) <= HELD_UP
    }
}

/// A read, as the tracks see it.
#[derive(Clone, Copy)]
pub(super) struct Read {
    pub(super) now: Nanos,
    pub(super) priority: u8,
    pub(super) sector: u64,
    pub(super) nr_sectors: u32,
    pub(super) end: u64,
    /// log2 of the distance within which a random read falls with certainty.
    pub(super) reach: i32,
    /// Loose reads so far.
    pub(super) loose: u64,
}

impl Read {
    /// Returns the evidence that this read goes on where `track` has stopped, if it may.
    fn evidence(&self, track: &Track) -> Option<i32> {
        let distance = track.distance(self.sector);
        if track.priority != self.priority || distance > NEAR_SECTORS {
            return None;
        }
        let trials = log2(self.loose - track.loose + 1);
        // Who reads a file in order may wait while others have the device, and goes on where it
        // stopped. Another read near there is somebody else's unless there is much to say for it:
        // behind that reader it would wait as long, and then look like one that starts.
        let continues = distance == 0;
        let nearest = if continues { BLOCK_SECTORS } else { TOUCHING_SECTORS };
        let mut evidence = self.reach - log2(distance.max(nearest)) - trials;
        if continues && track.is_in_order() {
            // However near one another all the files are that a program reads which starts meanwhile:
            // they tell nothing of chance here.
            evidence = evidence.max(JOIN_AGAIN);
        }
        let is_silent = self.now.since(track.last) > ABANDONED;
        let is_doubtful = !continues && (is_silent || track.is_in_order());
        let needed = if is_doubtful { JOIN_AGAIN } else { JOIN };
        (evidence >= needed).then_some(evidence.min(MOST_AT_ONCE))
    }

    /// Returns which of `tracks` it goes on with the best evidence, and how good that is.
    pub(super) fn best(&self, tracks: &[Track]) -> Option<(i32, usize)> {
        let tests = tracks.iter().enumerate();
        tests.filter_map(|(place, track)| Some((self.evidence(track)?, place))).max()
    }

    pub(super) fn join(&self, track: &mut Track, evidence: i32) {
        track.score = MOST.min(track.score + evidence - COST);
        track.reads = track.reads.saturating_add(1);
        let continues = track.distance(self.sector) == 0;
        if !track.goes_on_in_file(self.sector) && (continues || !track.is_in_order()) {
            // It is another file.
            track.ordered_sectors = 0;
        }
        if track.goes_on_in_file(self.sector) {
            // What is read again does not take back how far its reader is.
            track.end = track.end.max(self.end);
        } else if continues || !track.is_in_order() {
            track.end = self.end;
        }
        track.aside = self.end;
        if continues {
            track.in_order = (2 * IN_ORDER).min(track.in_order + 1);
            track.ordered_sectors = track.ordered_sectors.saturating_add(self.nr_sectors);
        } else {
            track.in_order = track.in_order.saturating_sub(1);
        }
        (track.last, track.loose) = (self.now, self.loose);
    }
}

/// Returns the logarithm in sixteenths of a bit, the fraction interpolated; that of 0 is 0.
pub(super) fn log2(number: u64) -> i32 {
    let number = number.max(1);
    let whole = number.ilog2();
    let fraction = ((number << (63 - whole)) >> 59) & 15;
    let sixteenths = u64::from(whole) * 16 + fraction;
    i32::try_from(sixteenths).expect("below 1024")
}
