//! Which reads of a VM belong together because they are near one another.
//!
//! All processes of a guest write the same default priority into their requests, so a file read
//! from end to end, a program that loads its files and a database that reads at random would share
//! one queue: each would wait for all others, and the head would travel between them with every
//! request. The guest's kernel tells them apart by process; we see only where they read. So three
//! reads in a row near one another make a *stream*, which is given a queue of its own for as long
//! as its next reads stay near. Everything else stays together in one queue: nothing is known of it.
//!
//! Deliberately absent: strides, and streams that read backwards; writes, which a guest's page cache has mixed before we see them.
//!
//! Source: the idea that neighbourhood stands for the process is that of sequential-stream
//! detection in disk prefetching (B. S. Gill and L. A. D. Bathen, "AMP: Adaptive Multi-stream
//! Prefetching in a Shared Cache", FAST 2007).

use evenkeel_sched::Nanos;

/// Streams of one VM at a time.
pub(crate) const STREAMS: usize = 8;
/// Places where a stream may begin that are remembered.
const CANDIDATES: usize = 8;
/// How far from the end of the last read the next one may begin, in sectors: 4 MiB. Covers deep
/// read-ahead that arrives out of order, and the small files of a program; two random reads in 4
/// GiB are as near as this once in 500 times.
const NEAR_SECTORS: u64 = 8192;
/// Reads in a row near one another that make a stream. A random reader of a small file would
/// become one by chance if two were enough.
const READS: u8 = 3;
/// Reads that prove that a stream is one. Two random reads after another one may be near by chance.
const PROOF: u8 = 8;
/// A stream that has proved to be one and has not read for so long may give its place to another.
const ABANDONED: Nanos = Nanos::from_secs(1);

/// Names a stream of a VM; none is the rest.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StreamId(pub(crate) Option<u8>);

/// The streams of one VM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streams {
    streams: [Track; STREAMS],
    candidates: [Track; CANDIDATES],
    /// The candidate that is overwritten next.
    oldest: u8,
}

/// A place that has been read, and where it may go on.
#[derive(Clone, Copy, Debug)]
struct Track {
    /// Sector behind the last read.
    end: u64,
    /// When it was.
    last: Nanos,
    /// Reads so far, up to [`PROOF`].
    reads: u8,
    /// Priority of the reads, as a number: streams do not mix them.
    priority: u8,
}

impl Track {
    /// A place that is near nothing.
    const UNUSED: Self =
        Self { end: u64::MAX / 2, last: Nanos::ORIGIN, reads: 0, priority: u8::MAX };

    fn is_used(&self) -> bool {
        self.priority != u8::MAX
    }

    fn is_proved(&self) -> bool {
        self.reads >= PROOF
    }

    fn read(&mut self, now: Nanos, end: u64) {
        (self.end, self.last) = (end, now);
        self.reads = PROOF.min(self.reads + 1);
    }

    fn goes_on(&self, priority: u8, sector: u64) -> bool {
        self.priority == priority && self.end.abs_diff(sector) <= NEAR_SECTORS
    }
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            streams: [Track::UNUSED; STREAMS],
            candidates: [Track::UNUSED; CANDIDATES],
            oldest: 0,
        }
    }
}

impl Streams {
    /// Returns the stream of a read of `nr_sectors` from `sector` on, and remembers the read.
    ///
    /// Takes constant time. `priority` is a number below 255, equal for equal priorities.
    pub(crate) fn on_read(
        &mut self,
        now: Nanos,
        priority: u8,
        sector: u64,
        nr_sectors: u32,
    ) -> StreamId {
        let end = sector + u64::from(nr_sectors);
        for (track, id) in self.streams.iter_mut().zip(0..) {
            if track.goes_on(priority, sector) {
                track.read(now, end);
                return StreamId(Some(id));
            }
        }
        let known = self.candidates.iter_mut().find(|track| track.goes_on(priority, sector));
        let Some(track) = known else {
            let place = usize::from(self.oldest);
            self.candidates[place] = Track { end, last: now, reads: 1, priority };
            self.oldest = u8::try_from((place + 1) % CANDIDATES).expect("fewer than 256");
            return StreamId(None);
        };
        track.read(now, end);
        if track.reads < READS {
            return StreamId(None);
        }
        let begun = core::mem::replace(track, Track::UNUSED);
        self.begin(now, begun)
    }

    /// Gives a new stream a place that was never used, or of one that has proved nothing, or was
    /// abandoned; if there is none, it has to wait, and its reads are forgotten.
    fn begin(&mut self, now: Nanos, begun: Track) -> StreamId {
        let places = self.streams.iter_mut().zip(0..);
        let key = |(track, _): &(&mut Track, u8)| (track.is_used(), track.is_proved(), track.last);
        let (place, id) = places.min_by_key(key).expect("there are places");
        if place.is_proved() && now.since(place.last) <= ABANDONED {
            return StreamId(None);
        }
        *place = begun;
        StreamId(Some(id))
    }
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
        reads.map(|(&sector, ms)| streams.on_read(at_ms(ms), 12, sector, 256).0).collect()
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
    fn priorities_do_not_mix() {
        let mut streams = Streams::default();
        for (index, priority) in [(0, 1), (1, 2), (2, 1), (3, 2)] {
            let id = streams.on_read(at_ms(index), priority, index * 256, 256);
            assert_eq!(id, StreamId(None));
        }
        assert_eq!(streams.on_read(at_ms(4), 1, 4 * 256, 256), StreamId(Some(0)));
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

    #[test]
    fn the_ends_of_the_address_space_are_far_apart() {
        let mut streams = Streams::default();
        let places = [u64::MAX - 256, 0, u64::MAX - 256];
        assert_eq!(read(&mut streams, 0, &places), [None, None, None]);
    }
}
