//! Which reads of a VM belong together because they are near one another.
//!
//! All processes of a guest write the same default priority into their requests, so a file read
//! from end to end, a program that loads its files and a database that reads at random would share
//! one queue: each would wait for all others, and the head would travel between them with every
//! request. The guest's kernel tells them apart by process; we see only where they read. So reads
//! that are nearer to one another than chance explains make a *stream*, which is given a queue of
//! its own for as long as its next reads stay near.
//!
//! What chance explains is measured: it is the usual distance of a read from the nearest place of
//! which it is not the continuation. A read within 1 MiB is remarkable beside a reader that
//! wanders through a terabyte, and means nothing beside one that wanders through 64 MiB. Each read
//! of a track is a test: its *evidence* is log2(1 / p), in bits, where p is how likely a random
//! read would by now have come as near. The sum, less a fixed cost per read, says whether the track
//! is a stream.
//!
//! What is in no stream is told apart by whether somebody has been reading in that
//! [place](places) for long: those who have are the *crowd*, with one queue for all of them, and so
//! a program that starts is not among them, from its first read on.
//!
//! A queue that was silent for long counts as a program that starts. For the queue of a stream that
//! is wrong if its reader was merely held up, or read in another place until now; so each read
//! also tells whether somebody who was there [returns](Reading::returns). A stream that begins is
//! somebody new if it begins where nobody has been for long, and all others have gone on since its
//! first read, or wait: a process that waits for one read does not begin another. Those that have
//! not are where it may have [come from](Reading::came_from): a program that starts reads in many
//! files, and is in the middle of it. If they all go on within a second, they were only slow, and it
//! is somebody new after all. The crowd is never new. Who goes on in the middle of a long file is
//! not new either if others have read meanwhile: a scheduler in the guest may have held him up for
//! them, for a minute. Nor is he in any file where an agent in the guest tells what starts.
//!
//! Deliberately absent: strides, and streams that read backwards; writes, which a guest's page
//! cache has mixed before we see them.
//!
//! Source: the idea that neighbourhood stands for the process is that of sequential-stream
//! detection in disk prefetching (B. S. Gill and L. A. D. Bathen, "AMP: Adaptive Multi-stream
//! Prefetching in a Shared Cache", FAST 2007); the sum is a sequential probability ratio test
//! (A. Wald, "Sequential Tests of Statistical Hypotheses", 1945).

mod places;
mod track;

use evenkeel_sched::Nanos;

use places::{Mib, Places, Reader};
use track::{ABANDONED, BIT, JOIN_AGAIN, Read, TOUCHING_SECTORS, Track, log2};

/// Streams of one VM at a time.
const STREAMS: usize = 8;
/// Places where a stream may begin that are remembered.
const CANDIDATES: usize = 8;
/// For so long a candidate keeps its place before those that have no evidence: while others of the
/// VM, and other VMs, have had their turns.
const KEPT: Nanos = Nanos::from_secs(8);

/// A track with so much evidence is a stream: three reads that touch one another. Among reads at
/// random one in 30 000 gets there.
const BEGIN: i32 = 18 * BIT;
/// log2 of half the sectors that reads are spread over as long as nothing is known: of 2 GiB.
const FIRST_SPREAD: i32 = 21 * BIT;
/// How many reads the spread is averaged over.
const MEMORY: i32 = 16;

/// Reads further apart in time than this do not follow one another: who reads after such a silence
/// may be somebody new.
const SILENCE: Nanos = Nanos::from_secs(2);

/// Names a stream of a VM; none is those of whom nothing is known.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StreamId(pub(crate) Option<u8>);

impl StreamId {
    /// Those who have been reading here and there for long.
    #[expect(clippy::cast_possible_truncation, reason = "there are few streams")]
    pub(crate) const CROWD: Self = Self(Some(STREAMS as u8));
    /// How many names there are.
    pub(crate) const NAMES: usize = STREAMS + 2;
}

/// Streams of a VM, a bit for each, and one for those of whom nothing is known.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StreamSet(u16);

const _: () = assert!(STREAMS < 16, "a bit for each");

impl StreamSet {
    /// Those of whom nothing is known.
    const UNKNOWN: Self = Self(1 << STREAMS);

    fn add(&mut self, stream: u8) {
        self.0 |= 1 << stream;
    }

    fn remove(&mut self, stream: u8) {
        self.0 &= !(1 << stream);
    }

    fn has(self, stream: u8) -> bool {
        self.0 >> stream & 1 != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = StreamId> {
        let known = (0..).take(STREAMS).filter(move |&stream| self.has(stream)).map(Some);
        let unknown = (self.0 & Self::UNKNOWN.0 != 0).then_some(None);
        known.chain(unknown).map(StreamId)
    }
}

/// Where a read counts: in a stream, or at its place among those in none.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Seat(u8);

impl Seat {
    const AT_A_PLACE: Self = Self(u8::MAX);

    const fn of_stream(stream: u8) -> Self {
        Self(stream)
    }

    fn stream(self) -> Option<u8> {
        (self != Self::AT_A_PLACE).then_some(self.0)
    }
}

/// What a read turns out to be.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reading {
    /// The stream that it belongs to.
    pub(crate) stream: StreamId,
    /// Its queue has long been silent, and yet nothing starts: a reader goes on that was in another
    /// queue meanwhile, or was held up. Or that was doubted of a stream that has begun, and where its
    /// reader comes from is known only now.
    pub(crate) returns: bool,
    /// Where that reader may have been: in the streams that have not gone on; if none of them is left,
    /// among those of whom nothing is known.
    pub(crate) came_from: StreamSet,
    /// It is the first of the crowd, which until now was among those of whom nothing was known, and
    /// keeps their queue: whoever comes next is new.
    pub(crate) settles: bool,
    /// Where it counts until it is [done](Streams::on_done), unless it tells nothing.
    pub(crate) seat: Option<Seat>,
}

impl Reading {
    /// Returns the read with which a stream begins.
    fn begins(stream: u8, returns: bool, came_from: StreamSet) -> Self {
        let seat = Some(Seat::of_stream(stream));
        Self { stream: StreamId(Some(stream)), returns, came_from, seat, ..Self::default() }
    }
}

/// The streams of one VM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    streams: [Track; STREAMS],
    candidates: [Track; CANDIDATES],
    /// Reads so far that did not clearly continue another.
    loose: u64,
    /// log2 of half the sectors that reads are spread over, times [`MEMORY`].
    spread: i32,
    /// The last read.
    last: Option<Nanos>,
    places: Places,
    /// Until then an agent in the guest tells what starts.
    spoken_until: Nanos,
    /// Reads of each stream that are under way. A stream that takes the place of another inherits
    /// its reads.
    under_way: [u32; STREAMS],
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            streams: [Track::UNUSED; STREAMS],
            candidates: [Track::UNUSED; CANDIDATES],
            loose: 0,
            spread: FIRST_SPREAD * MEMORY,
            last: None,
            places: Places::default(),
            spoken_until: Nanos::ZERO,
            under_way: [0; STREAMS],
        }
    }
}

impl Streams {
    /// Returns what a read of `nr_sectors` from `sector` on is, and remembers it.
    ///
    /// Takes constant time. `priority` is a number below 255, equal for equal priorities.
    pub(crate) fn on_read(
        &mut self,
        now: Nanos,
        priority: u8,
        sector: u64,
        nr_sectors: u32,
    ) -> Reading {
        let reading = self.look(now, priority, sector, nr_sectors);
        if let Some(stream) = reading.seat.and_then(Seat::stream) {
            self.under_way[usize::from(stream)] += 1;
        }
        reading
    }

    /// Notes a read that is told apart by its priority; it would have `priority` otherwise.
    pub(crate) fn on_marked(&mut self, now: Nanos, priority: u8, sector: u64) -> Reading {
        self.places.begin_apart(now, priority, Mib::of(sector));
        Reading { seat: Some(Seat::AT_A_PLACE), ..Reading::default() }
    }

    /// Notes that a read at `sector`, or near it, is over.
    pub(crate) fn on_done(&mut self, now: Nanos, seat: Seat, priority: u8, sector: u64) {
        if let Some(stream) = seat.stream() {
            let stream = usize::from(stream);
            // Reads from before streams were forgotten are not counted.
            self.under_way[stream] = self.under_way[stream].saturating_sub(1);
            self.streams[stream].done = now;
        } else {
            self.places.end(now, priority, Mib::of(sector));
        }
    }

    fn look(&mut self, now: Nanos, priority: u8, sector: u64, nr_sectors: u32) -> Reading {
        let (end, reach) = (sector + u64::from(nr_sectors), self.spread / MEMORY);
        let mut read = Read { now, priority, sector, nr_sectors, end, reach, loose: self.loose };
        let in_stream = read.best(&self.streams);
        let found = in_stream.or_else(|| read.best(&self.candidates));
        let (evidence, place) = found.unwrap_or_default();
        let continued = found.map(|_| if in_stream.is_some() { place } else { STREAMS + place });
        self.learn(&read, continued);
        if evidence < JOIN_AGAIN {
            self.loose += 1;
            read.loose += 1;
        }
        let somebody_reads = is_within(self.last.replace(now), now);
        if in_stream.is_some() {
            let track = &self.streams[place];
            let silent = !is_within(Some(track.last), now);
            let was_there = || self.waits(place) || is_within(Some(track.done), now);
            let was_held_up = || {
                (somebody_reads && (was_there() || self.goes_on_in_long_file(place, &read)))
                    || self.goes_on_where_agent_speaks(place, &read)
            };
            let returns = silent && was_held_up();
            if silent && somebody_reads && !returns && !self.do_all_wait(place, priority, now) {
                return self.doubt(&read, place);
            }
            let came_from = self.go_on(now, index(place));
            let track = &mut self.streams[place];
            // Somebody else's may be near by chance, and its reader waits for this one no longer.
            let may_be_chance = track.is_in_order() && track.distance(sector) > 0;
            let seat = (!may_be_chance).then_some(Seat::of_stream(index(place)));
            read.join(track, evidence);
            if track.score < 0 {
                *track = Track::UNUSED;
            }
            let stream = StreamId(Some(index(place)));
            let returns = returns || !came_from.is_empty();
            return Reading { stream, returns, came_from, seat, ..Reading::default() };
        }
        if found.is_some() {
            let track = &mut self.candidates[place];
            read.join(track, evidence);
            track.score = track.score.max(0);
            if track.score >= BEGIN {
                let begun = core::mem::replace(track, Track::UNUSED);
                if let Some(stream) = self.begin(now, begun) {
                    if self.places.is_familiar(priority, Mib::of(sector)) {
                        return Reading::begins(stream, somebody_reads, StreamSet::default());
                    }
                    let came_from = self.left_for(stream);
                    let is_new = came_from.is_empty();
                    self.streams[usize::from(stream)].suspects = (!is_new).then_some(came_from);
                    return Reading::begins(stream, somebody_reads && !is_new, came_from);
                }
            }
        } else {
            self.remember(&read, 0);
        }
        self.leave_to_rest(&read)
    }

    /// Says that until then an agent in the guest tells what starts.
    pub(crate) fn speak_until(&mut self, until: Nanos) {
        self.spoken_until = until;
    }

    /// Returns whether a read goes on in the middle of a file where an agent tells what starts: the
    /// guest itself may have held its reader up for long.
    fn goes_on_where_agent_speaks(&self, place: usize, read: &Read) -> bool {
        let track = &self.streams[place];
        read.now < self.spoken_until && track.is_in_order() && track.distance(read.sector) == 0
    }

    /// Returns whether a read goes on in the middle of a long file, so that only who was held up in the
    /// guest is likely to be there.
    fn goes_on_in_long_file(&self, place: usize, read: &Read) -> bool {
        let track = &self.streams[place];
        track.may_be_held_up(read.now) && track.goes_on_in_file(read.sector)
    }

    /// Puts a read to those in no stream: to the crowd where somebody has been reading for long.
    fn leave_to_rest(&mut self, read: &Read) -> Reading {
        let (now, priority, at) = (read.now, read.priority, Mib::of(read.sector));
        let seat = Some(Seat::AT_A_PLACE);
        match self.places.begin(now, priority, at) {
            Reader::Unknown => Reading { seat, ..Reading::default() },
            Reader::Crowd { returns, settles } => {
                Reading { stream: StreamId::CROWD, returns, settles, seat, ..Reading::default() }
            }
        }
    }

    /// Takes a read that goes on where a stream ended long ago for the first of a stream that may
    /// begin: whether it is somebody new will be seen by who else reads meanwhile.
    fn doubt(&mut self, read: &Read, place: usize) -> Reading {
        self.streams[place] = Track::UNUSED;
        self.remember(read, BEGIN - JOIN_AGAIN);
        self.leave_to_rest(read)
    }

    /// Returns whether a stream waits for a read.
    const fn waits(&self, stream: usize) -> bool {
        self.under_way[stream] > 0
    }

    /// Returns whether all streams that have read lately, but for the one at `place`, wait.
    fn do_all_wait(&self, place: usize, priority: u8, now: Nanos) -> bool {
        let mut others = self.streams.iter().zip(0..).filter(|(_, other)| *other != place);
        others.all(|(track, other)| {
            track.priority != priority
                || !is_within(Some(track.last.max(track.done)), now)
                || self.waits(other)
        })
    }

    /// Returns the streams that somebody may have left for the one that has just begun: they have
    /// not gone on since its first read, and do not wait. If there is none, it is somebody new.
    fn left_for(&self, begun: u8) -> StreamSet {
        let begun = &self.streams[usize::from(begun)];
        let mut left = StreamSet::default();
        for (track, stream) in self.streams.iter().zip(0..) {
            let was_there = track.priority == begun.priority && track.first < begun.first;
            if was_there
                && is_within(Some(track.last), begun.first)
                && track.last < begun.first
                && !self.waits(usize::from(stream))
            {
                left.add(stream);
            }
        }
        left
    }

    /// Takes note that a stream goes on: its reader has not left it for one that began since. Returns
    /// where the reader of this one was before it began, if all have now gone on that may have left
    /// for it: among those of whom nothing is known, so it is somebody new after all.
    fn go_on(&mut self, now: Nanos, stream: u8) -> StreamSet {
        for suspects in self.streams.iter_mut().filter_map(|track| track.suspects.as_mut()) {
            suspects.remove(stream);
        }
        let waits = self.waits(usize::from(stream));
        let track = &mut self.streams[usize::from(stream)];
        let is_cleared = track.suspects.is_some_and(StreamSet::is_empty);
        if waits || !is_cleared {
            return StreamSet::default();
        }
        track.suspects = None;
        if now.since(track.first) <= ABANDONED { StreamSet::UNKNOWN } else { StreamSet::default() }
    }

    /// Learns from a read how far apart reads are that have nothing to do with one another.
    ///
    /// Of n places at random on U sectors the nearest is U / 2n away on average, the second nearest
    /// twice as far; the mean of a logarithm lies 0.83 bits below the logarithm of the mean.
    fn learn(&mut self, read: &Read, continued: Option<usize>) {
        let (mut places, mut nearest) = (0_u64, u64::MAX);
        for (track, place) in self.streams.iter().chain(&self.candidates).zip(0..) {
            if track.priority == read.priority && continued != Some(place) {
                places += 1;
                nearest = nearest.min(track.distance(read.sector));
            }
        }
        if places > 0 {
            let second = if continued.is_some() { BIT } else { 0 };
            let nearest = log2(nearest.max(TOUCHING_SECTORS)) - second;
            self.spread += nearest + log2(places) + BIT * 83 / 100 - self.spread / MEMORY;
        }
    }

    /// Makes a read that is near nothing a candidate, in the place of the one read longest ago. One
    /// that has evidence stays for a while: reads at random that go first may be many.
    fn remember(&mut self, read: &Read, score: i32) {
        let Read { now, priority, end, loose, .. } = *read;
        let candidates = self.candidates.iter_mut();
        let is_likely = |track: &Track| track.score > 0 && now.since(track.last) < KEPT;
        let longest_ago =
            candidates.min_by_key(|track| (track.is_used(), is_likely(track), track.last));
        *longest_ago.expect("there are places") = Track {
            end,
            aside: end,
            last: now,
            done: now,
            first: now,
            loose,
            score,
            reads: 1,
            priority,
            ..Track::UNUSED
        };
    }

    /// Gives a new stream a place that was never used, or abandoned, or of one that has proved nothing;
    /// if there is none, it has to wait, and its reads are forgotten.
    fn begin(&mut self, now: Nanos, begun: Track) -> Option<u8> {
        let places = self.streams.iter_mut().zip(self.under_way).enumerate();
        let keys = places.map(|(place, (track, waiting))| {
            let last = track.last.max(track.done);
            // Who waits has not gone, however long it takes.
            let is_there = track.is_used() && (waiting > 0 || now.since(last) <= ABANDONED);
            // One who reads in order may be held up in the guest, and go on.
            let may_go_on = track.is_used() && track.is_in_order();
            let hope = (may_go_on, track.may_be_held_up(now));
            let key = (is_there, is_there && track.is_proved(), hope, track.is_used(), last);
            (key, place, track)
        });
        let ((_, is_kept, ..), place, track) =
            keys.min_by_key(|&(key, ..)| key).expect("there are places");
        if is_kept {
            return None;
        }
        *track = begun;
        // Who left that place for another one does not go on there.
        for track in &mut self.streams {
            track.suspects = track.suspects.filter(|suspects| !suspects.has(index(place)));
        }
        Some(index(place))
    }
}

/// Returns whether `earlier` was and is no more than a [`SILENCE`] before `now`.
fn is_within(earlier: Option<Nanos>, now: Nanos) -> bool {
    earlier.is_some_and(|earlier| now.since(earlier) <= SILENCE)
}

fn index(place: usize) -> u8 {
    u8::try_from(place).expect("fewer than 256")
}

#[cfg(test)]
mod tests;
