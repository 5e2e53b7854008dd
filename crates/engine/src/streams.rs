//! Which reads of a VM belong together because they are near one another.
//!
//! All processes of a guest write the same default priority into their requests, so a file read
//! from end to end, a program that loads its files and a database that reads at random would share
//! one queue: each would wait for all others, and the head would travel between them with every
//! request. The guest's kernel tells them apart by process; we see only where they read. So reads
//! that are nearer to one another than chance explains make a *stream*, which is given a queue of
//! its own for as long as its next reads stay near. Everything else stays together in one queue:
//! nothing is known of it.
//!
//! What chance explains is measured: it is the usual distance of a read from the nearest place of
//! which it is not the continuation. A read within 1 MiB is remarkable beside a reader that
//! wanders through a terabyte, and means nothing beside one that wanders through 64 MiB. Each read
//! of a track is a test: its *evidence* is log2(1 / p), in bits, where p is how likely a random
//! read would by now have come as near. The sum, less a fixed cost per read, says whether the track
//! is a stream.
//!
//! Deliberately absent: strides, and streams that read backwards; writes, which a guest's page
//! cache has mixed before we see them.
//!
//! Source: the idea that neighbourhood stands for the process is that of sequential-stream
//! detection in disk prefetching (B. S. Gill and L. A. D. Bathen, "AMP: Adaptive Multi-stream
//! Prefetching in a Shared Cache", FAST 2007); the sum is a sequential probability ratio test
//! (A. Wald, "Sequential Tests of Statistical Hypotheses", 1945).

use evenkeel_sched::Nanos;

/// Streams of one VM at a time.
pub(crate) const STREAMS: usize = 8;
/// Places where a stream may begin that are remembered.
const CANDIDATES: usize = 8;
/// How far from the end of the last read the next one may begin, in sectors: 4 MiB. Covers deep
/// read-ahead that arrives out of order, and the small files of a program.
const NEAR_SECTORS: u64 = 8192;
/// Reads nearer than this, in sectors, are equally near: 32 KiB.
const TOUCHING_SECTORS: u64 = 64;
/// A read that begins where the last one ended is nearer than that: a block of 4 KiB.
const BLOCK_SECTORS: u64 = 8;
/// Reads that prove that a stream lasts.
const PROOF: u8 = 8;
/// So many reads where the one before ended, more than elsewhere, are of a file read in order.
const IN_ORDER: u8 = 4;
/// A stream that has not read for so long is over, unless a read continues it closely; it may give
/// its place to another.
const ABANDONED: Nanos = Nanos::from_secs(1);

/// Evidence and distances on a logarithmic scale: sixteenths of a bit.
const BIT: i32 = 16;
/// Least evidence of a read that joins a track.
const JOIN: i32 = 2 * BIT;
/// The same if the track has been silent for [`ABANDONED`].
const JOIN_AGAIN: i32 = 8 * BIT;
/// What each read costs: reads that join by chance bring 3.4 bits on average (2, and 1.4 because
/// the rest is distributed exponentially), so their sum falls.
const COST: i32 = 4 * BIT + BIT / 2;
/// A track with so much evidence is a stream: three reads that touch one another. Among reads at
/// random one in 30 000 gets there.
const BEGIN: i32 = 18 * BIT;
/// More than this is not counted, so that what has ended is forgotten.
const MOST: i32 = 24 * BIT;
/// Most evidence of one read: chance alone must not make a stream of two.
const MOST_AT_ONCE: i32 = 15 * BIT;
/// log2 of half the sectors that reads are spread over as long as nothing is known: of 2 GiB.
const FIRST_SPREAD: i32 = 21 * BIT;
/// How many reads the spread is averaged over.
const MEMORY: i32 = 16;

/// Reads further apart in time than this do not follow one another: who reads after such a silence
/// may be somebody new.
const SILENCE: Nanos = Nanos::from_secs(2);

/// Names a stream of a VM; none is the rest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StreamId(pub(crate) Option<u8>);

/// What a read turns out to be.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Reading {
    /// The stream that it belongs to.
    pub(crate) stream: StreamId,
    /// Its queue has long been silent, and yet nothing starts: a reader goes on that was in another
    /// queue meanwhile, or was held up.
    pub(crate) returns: bool,
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
    /// Reads so far that belonged to no stream, and the last of those that still do not.
    rest: u64,
    last_of_rest: Option<Nanos>,
}

/// A place that has been read, and where it may go on.
#[derive(Clone, Copy, Debug)]
struct Track {
    /// Sector behind the last read.
    end: u64,
    /// When it was.
    last: Nanos,
    /// When the first read was.
    first: Nanos,
    /// Whether other reads belonged to no stream in the [`SILENCE`] before, and how many up to then.
    had_company: bool,
    rest_at_first: u64,
    /// Loose reads of the VM up to the last read.
    loose: u64,
    /// Evidence that the reads belong together.
    score: i32,
    /// Reads so far, as far as they can be counted.
    reads: u8,
    /// How many more of them began where the one before ended than elsewhere, up to twice
    /// [`IN_ORDER`].
    in_order: u8,
    /// Priority of the reads, as a number: streams do not mix them.
    priority: u8,
}

impl Track {
    /// A place that is near nothing.
    const UNUSED: Self = Self {
        end: u64::MAX / 2,
        last: Nanos::ORIGIN,
        first: Nanos::ORIGIN,
        had_company: false,
        rest_at_first: 0,
        loose: 0,
        score: 0,
        reads: 0,
        in_order: 0,
        priority: u8::MAX,
    };

    fn is_used(&self) -> bool {
        self.priority != u8::MAX
    }

    fn is_proved(&self) -> bool {
        self.reads >= PROOF
    }

    fn distance(&self, sector: u64) -> u64 {
        self.end.abs_diff(sector)
    }
}

/// A read, as the tracks see it.
#[derive(Clone, Copy)]
struct Read {
    now: Nanos,
    priority: u8,
    sector: u64,
    end: u64,
    /// log2 of the distance within which a random read falls with certainty.
    reach: i32,
    /// Loose reads so far.
    loose: u64,
}

impl Read {
    /// Returns the evidence that this read goes on where `track` has stopped, if it may.
    fn evidence(&self, track: &Track) -> Option<i32> {
        let distance = track.distance(self.sector);
        if track.priority != self.priority || distance > NEAR_SECTORS {
            return None;
        }
        let trials = log2(self.loose - track.loose + 1);
        // Who reads a file in order may wait while others have the device; he goes on where he was.
        // Another read near him is somebody else's unless there is much to say for it: behind him
        // it would wait as long as he does, and then look like one that starts.
        let continues = distance == 0;
        let nearest = if continues { BLOCK_SECTORS } else { TOUCHING_SECTORS };
        let evidence = self.reach - log2(distance.max(nearest)) - trials;
        let is_silent = self.now.since(track.last) > ABANDONED;
        let is_doubtful = !continues && (is_silent || track.in_order >= IN_ORDER);
        let needed = if is_doubtful { JOIN_AGAIN } else { JOIN };
        (evidence >= needed).then_some(evidence.min(MOST_AT_ONCE))
    }

    /// Returns which of `tracks` it goes on with the best evidence, and how good that is.
    fn best(&self, tracks: &[Track]) -> Option<(i32, usize)> {
        let tests = tracks.iter().enumerate();
        tests.filter_map(|(place, track)| Some((self.evidence(track)?, place))).max()
    }

    fn join(&self, track: &mut Track, evidence: i32) {
        track.score = MOST.min(track.score + evidence - COST);
        track.reads = track.reads.saturating_add(1);
        let continues = track.end == self.sector;
        track.in_order = if continues {
            (2 * IN_ORDER).min(track.in_order + 1)
        } else {
            track.in_order.saturating_sub(1)
        };
        (track.end, track.last, track.loose) = (self.end, self.now, self.loose);
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            streams: [Track::UNUSED; STREAMS],
            candidates: [Track::UNUSED; CANDIDATES],
            loose: 0,
            spread: FIRST_SPREAD * MEMORY,
            last: None,
            rest: 0,
            last_of_rest: None,
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
        let (end, reach) = (sector + u64::from(nr_sectors), self.spread / MEMORY);
        let mut read = Read { now, priority, sector, end, reach, loose: self.loose };
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
            let track = &mut self.streams[place];
            let returns = somebody_reads && !is_within(Some(track.last), now);
            read.join(track, evidence);
            if track.score < 0 {
                *track = Track::UNUSED;
            }
            return Reading { stream: StreamId(Some(index(place))), returns };
        }
        if found.is_some() {
            let track = &mut self.candidates[place];
            read.join(track, evidence);
            track.score = track.score.max(0);
            if track.score >= BEGIN {
                let begun = core::mem::replace(track, Track::UNUSED);
                if let Some(stream) = self.begin(now, begun) {
                    let returns = somebody_reads && !self.is_somebody_new(stream);
                    // As far as we know it was the only one there.
                    self.last_of_rest = None;
                    return Reading { stream: StreamId(Some(stream)), returns };
                }
            }
        } else {
            self.remember(&read);
        }
        self.rest += 1;
        let before = self.last_of_rest.replace(now);
        let returns = somebody_reads && !is_within(before, now);
        Reading { stream: StreamId(None), returns }
    }

    /// Returns whether the stream that has just begun is read by somebody who did not read before:
    /// all who did have gone on since its first read. Otherwise one of them has turned to another
    /// file.
    fn is_somebody_new(&self, begun: u8) -> bool {
        let begun = &self.streams[usize::from(begun)];
        let has_gone_on = |track: &Track| {
            let was_there = track.priority == begun.priority && track.first < begun.first;
            !was_there || !is_within(Some(track.last), begun.first) || track.last >= begun.first
        };
        let rest = self.rest - begun.rest_at_first;
        let rest_has_gone_on = !begun.had_company || rest >= u64::from(begun.reads);
        rest_has_gone_on && self.streams.iter().all(has_gone_on)
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

    /// Makes a read that is near nothing a candidate, in the place of the one read longest ago.
    fn remember(&mut self, read: &Read) {
        let Read { now, priority, end, loose, .. } = *read;
        let had_company = is_within(self.last_of_rest, now);
        let place = self.candidates.iter_mut().min_by_key(|track| (track.is_used(), track.last));
        *place.expect("there are places") = Track {
            end,
            last: now,
            first: now,
            had_company,
            rest_at_first: self.rest,
            loose,
            score: 0,
            reads: 1,
            in_order: 0,
            priority,
        };
    }

    /// Gives a new stream a place that was never used, or of one that has proved nothing, or was
    /// abandoned; if there is none, it has to wait, and its reads are forgotten.
    fn begin(&mut self, now: Nanos, begun: Track) -> Option<u8> {
        let places = self.streams.iter_mut().enumerate();
        let key =
            |(_, track): &(usize, &mut Track)| (track.is_used(), track.is_proved(), track.last);
        let (place, track) = places.min_by_key(key).expect("there are places");
        if track.is_proved() && now.since(track.last) <= ABANDONED {
            return None;
        }
        *track = begun;
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

/// Returns the logarithm in sixteenths of a bit, the fraction interpolated; that of 0 is 0.
fn log2(number: u64) -> i32 {
    let number = number.max(1);
    let whole = number.ilog2();
    let fraction = ((number << (63 - whole)) >> 59) & 15;
    let sixteenths = u64::from(whole) * 16 + fraction;
    i32::try_from(sixteenths).expect("below 1024")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 2048;

    fn at_ms(ms: u64) -> Nanos {
        Nanos::from_millis(ms)
    }

    /// Reads 128 KiB at each of `places`, 1 ms apart.
    fn read(streams: &mut Streams, from_ms: u64, places: &[u64]) -> Vec<Option<u8>> {
        let reads = places.iter().zip(from_ms..);
        reads.map(|(&sector, ms)| streams.on_read(at_ms(ms), 12, sector, 256).stream.0).collect()
    }

    #[test]
    fn the_third_read_in_a_row_makes_a_stream() {
        let mut streams = Streams::default();
        let places: Vec<u64> = (0..5).map(|index| index * 256).collect();
        assert_eq!(read(&mut streams, 0, &places), [None, None, Some(0), Some(0), Some(0)]);
    }

    #[test]
    fn streams_are_told_apart_from_one_another_and_from_random_reads() {
        let mut streams = Streams::default();
        let mut places = Vec::new();
        for index in 0..20 {
            places.extend([index * 256, 1000 * MIB + index * 256, 5000 * MIB + index * 97 * MIB]);
        }
        let found = read(&mut streams, 0, &places);
        for triple in found[6..].chunks(3) {
            assert_eq!(triple, [Some(0), Some(1), None]);
        }
    }

    #[test]
    fn read_ahead_that_arrives_out_of_order_stays_in_its_stream() {
        let mut streams = Streams::default();
        let order = [0, 256, 512, 1024, 768, 1280, 2048, 1536, 1792];
        assert!(read(&mut streams, 0, &order)[2..].iter().all(|&id| id == Some(0)));
    }

    #[test]
    fn a_file_read_in_order_goes_on_after_a_second_of_random_reads() {
        let mut streams = Streams::default();
        let mut random = 1_u64;
        let mut ids = Vec::new();
        for turn in 0..20 {
            for read in 0..4 {
                let sector = (turn * 4 + read) * 256;
                let id = streams.on_read(at_ms(turn * 1_500 + read), 12, sector, 256).stream.0;
                ids.push(id);
            }
            for read in 0..150 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let sector = 400 * MIB + (random >> 32) % (320 * MIB / 8) * 8;
                streams.on_read(at_ms(turn * 1_500 + 5 + read * 9), 12, sector, 8);
            }
        }
        assert!(ids[2..].iter().all(|&id| id == Some(0)), "{ids:?}");
    }

    #[test]
    fn priorities_do_not_mix() {
        let mut streams = Streams::default();
        for (index, priority) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
            let id = streams.on_read(at_ms(index), priority, index * 256, 256).stream;
            assert_eq!(id, StreamId(None));
        }
        assert_eq!(streams.on_read(at_ms(4), 1, 2 * 256, 256).stream, StreamId(Some(0)));
        assert_eq!(streams.on_read(at_ms(4), 2, 2 * 256, 256).stream, StreamId(Some(1)));
    }

    #[test]
    fn a_stream_keeps_its_place_until_it_is_abandoned() {
        let mut streams = Streams::default();
        let places = u64::try_from(STREAMS).unwrap();
        for stream in 0..places {
            let reads: Vec<u64> = (0..8).map(|read| stream * 100 * MIB + read * 256).collect();
            read(&mut streams, stream, &reads);
        }
        let more = [9000 * MIB, 9000 * MIB + 256, 9000 * MIB + 512];
        assert_eq!(read(&mut streams, 100, &more), [None; 3]);
        // The first one was the first to fall silent.
        assert_eq!(read(&mut streams, 2000, &more), [None, None, Some(0)]);
    }

    #[test]
    fn what_came_near_by_chance_takes_no_place_from_a_stream() {
        let mut streams = Streams::default();
        let reads: Vec<u64> = (0..8).map(|read| read * 256).collect();
        read(&mut streams, 0, &reads);
        for chance in 1..100 {
            let base = chance * 100 * MIB;
            let found = read(&mut streams, 8 + chance, &[base, base + 256, base + 512])[2];
            assert!(found.is_some_and(|id| id != 0), "{found:?}");
        }
        assert_eq!(read(&mut streams, 200, &[8 * 256]), [Some(0)]);
    }

    /// Yields numbers that look random; the same for the same seed.
    fn dice(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |sides| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % sides
        }
    }

    #[test]
    fn reads_at_random_make_hardly_a_stream_however_small_the_file() {
        for mib in [16, 64, 320, 4096, 100_000] {
            let (mut streams, mut random) = (Streams::default(), dice(mib));
            let told_apart = (0..20_000)
                .filter(|read| {
                    let sector = random(mib * MIB / 8) * 8;
                    streams.on_read(at_ms(read * 10), 12, sector, 8).stream != StreamId(None)
                })
                .count();
            assert!(told_apart < 40, "{mib} MiB: {told_apart} of 20 000");
        }
    }

    #[test]
    fn two_readers_at_random_far_apart_make_hardly_a_stream() {
        let (mut streams, mut random) = (Streams::default(), dice(7));
        let told_apart = (0..20_000)
            .filter(|read| {
                let sector = (read % 2) * 100_000 * MIB + random(64 * MIB / 8) * 8;
                streams.on_read(at_ms(read * 10), 12, sector, 8).stream != StreamId(None)
            })
            .count();
        assert!(told_apart < 100, "{told_apart} of 20 000");
    }

    #[test]
    fn a_program_that_loads_its_files_beside_random_readers_becomes_a_stream() {
        let (mut streams, mut random) = (Streams::default(), dice(5));
        for read in 0..1000 {
            streams.on_read(at_ms(read * 10), 12, random(320 * MIB / 8) * 8, 8);
        }
        let mut told_apart = 0;
        for read in 0..200 {
            for other in 0..2 {
                let at = at_ms(10_000 + read * 50 + other * 10);
                streams.on_read(at, 12, random(320 * MIB / 8) * 8, 8);
            }
            let file = 600 * MIB + random(2 * MIB / 8) * 8;
            let id = streams.on_read(at_ms(10_000 + read * 50 + 49), 12, file, 32).stream;
            told_apart += u32::from(id != StreamId(None));
        }
        assert!(told_apart > 150, "{told_apart} of 200");
    }

    #[test]
    fn where_a_stream_has_ended_a_random_read_does_not_revive_it() {
        let (mut streams, mut random) = (Streams::default(), dice(3));
        let reads: Vec<u64> = (0..100).map(|read| 100 * MIB + read * 256).collect();
        assert_eq!(read(&mut streams, 0, &reads)[99], Some(0));
        let revived = (0..10_000)
            .filter(|read| {
                let sector = random(320 * MIB / 8) * 8;
                streams.on_read(at_ms(2000 + read * 10), 12, sector, 8).stream != StreamId(None)
            })
            .count();
        assert!(revived < 20, "{revived} of 10 000");
    }

    #[test]
    fn a_reader_that_is_held_up_for_long_goes_on_where_it_was() {
        let mut streams = Streams::default();
        for index in 0..50 {
            let id = streams.on_read(at_ms(index * 10_000), 12, index * 256, 256).stream;
            assert_eq!(id.0, (index > 1).then_some(0), "read {index}");
        }
    }

    #[test]
    fn who_is_held_up_and_who_turns_to_another_file_starts_nothing() {
        let mut streams = Streams::default();
        let mut reading = |ms, sector| streams.on_read(at_ms(ms), 12, sector, 256);
        // Two readers, each of its own file; whoever comes first is somebody new.
        for index in 0..50 {
            assert!(!reading(index * 20, index * 256).returns, "read {index}");
            assert!(!reading(index * 20 + 10, 1000 * MIB + index * 256).returns, "read {index}");
        }
        // The second is held up for 5 s, and goes on.
        for index in 50..300 {
            assert!(!reading(index * 20, index * 256).returns, "read {index}");
        }
        assert!(reading(6001, 1000 * MIB + 50 * 256).returns);
        // It turns to another file while the first goes on.
        let (first, second): (Vec<_>, Vec<_>) = (0..10)
            .map(|index| {
                let (ms, place) = (6020 + index * 20, index * 256);
                (reading(ms, 300 * 256 + place), reading(ms + 10, 3000 * MIB + place))
            })
            .unzip();
        assert!(first.iter().all(|read| !read.returns));
        let begun = second.iter().find(|read| read.stream.0.is_some());
        assert!(begun.is_some_and(|read| read.returns), "the queue is new, its reader is not");
    }

    #[test]
    fn who_reads_beside_all_others_is_somebody_new() {
        let mut streams = Streams::default();
        for index in 0..100 {
            streams.on_read(at_ms(index * 10), 12, index * 256, 256);
        }
        for index in 100..110 {
            streams.on_read(at_ms(index * 10), 12, index * 256, 256);
            let read = streams.on_read(at_ms(index * 10 + 5), 12, 1000 * MIB + index * 256, 256);
            let is_stream = read.stream == StreamId(Some(1));
            assert_eq!(is_stream, index >= 102, "read {index}");
            assert!(!read.returns || !is_stream, "read {index}");
        }
        // And who reads after everybody else has long been silent.
        let read = streams.on_read(at_ms(20_000), 12, 5000 * MIB, 256);
        assert!(!read.returns);
    }

    #[test]
    fn logarithms_have_a_fraction() {
        assert_eq!([0, 1, 2, 3, 4, 6, 64].map(log2), [0, 0, 16, 24, 32, 40, 96]);
        assert_eq!(log2(u64::MAX), 63 * 16 + 15);
    }

    #[test]
    fn the_ends_of_the_address_space_are_far_apart() {
        let mut streams = Streams::default();
        let places = [u64::MAX - 256, 0, u64::MAX - 256];
        assert_eq!(read(&mut streams, 0, &places), [None, None, None]);
    }
}
