//! What belongs together, and who is new.

use super::*;

const MIB: u64 = 2048;

fn at_ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Lets somebody read whose reads are done before anybody else's come.
fn look(streams: &mut Streams, now: Nanos, sector: u64, nr_sectors: u32) -> Reading {
    let reading = streams.on_read(now, 12, sector, nr_sectors);
    done(streams, now, reading);
    reading
}

fn done(streams: &mut Streams, now: Nanos, reading: Reading) {
    if let Some(seat) = reading.seat {
        streams.on_done(now, seat);
    }
}

/// Reads 128 KiB at each of `places`, 1 ms apart.
fn read(streams: &mut Streams, from_ms: u64, places: &[u64]) -> Vec<Option<u8>> {
    let reads = places.iter().zip(from_ms..);
    reads.map(|(&sector, ms)| look(streams, at_ms(ms), sector, 256).stream.0).collect()
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
            let id = look(&mut streams, at_ms(turn * 1_500 + read), sector, 256).stream.0;
            ids.push(id);
        }
        for read in 0..150 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let sector = 400 * MIB + (random >> 32) % (320 * MIB / 8) * 8;
            look(&mut streams, at_ms(turn * 1_500 + 5 + read * 9), sector, 8);
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
                look(&mut streams, at_ms(read * 10), sector, 8).stream != StreamId(None)
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
            look(&mut streams, at_ms(read * 10), sector, 8).stream != StreamId(None)
        })
        .count();
    assert!(told_apart < 100, "{told_apart} of 20 000");
}

#[test]
fn a_program_that_loads_its_files_beside_random_readers_becomes_a_stream() {
    let (mut streams, mut random) = (Streams::default(), dice(5));
    for read in 0..1000 {
        look(&mut streams, at_ms(read * 10), random(320 * MIB / 8) * 8, 8);
    }
    let mut told_apart = 0;
    for read in 0..200 {
        for other in 0..2 {
            let at = at_ms(10_000 + read * 50 + other * 10);
            look(&mut streams, at, random(320 * MIB / 8) * 8, 8);
        }
        let file = 600 * MIB + random(2 * MIB / 8) * 8;
        let id = look(&mut streams, at_ms(10_000 + read * 50 + 49), file, 32).stream;
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
            look(&mut streams, at_ms(2000 + read * 10), sector, 8).stream != StreamId(None)
        })
        .count();
    assert!(revived < 20, "{revived} of 10 000");
}

#[test]
fn a_reader_that_is_held_up_for_long_goes_on_where_it_was() {
    let mut streams = Streams::default();
    for index in 0..50 {
        let id = look(&mut streams, at_ms(index * 10_000), index * 256, 256).stream;
        assert_eq!(id.0, (index > 1).then_some(0), "read {index}");
    }
}

#[test]
fn who_is_held_up_and_who_turns_to_another_file_starts_nothing() {
    let mut streams = Streams::default();
    // Two readers, each of its own file; whoever comes first is somebody new.
    for index in 0..50 {
        assert!(!look(&mut streams, at_ms(index * 20), index * 256, 256).returns, "read {index}");
        let second = 1000 * MIB + index * 256;
        assert!(!look(&mut streams, at_ms(index * 20 + 10), second, 256).returns, "read {index}");
    }
    // The second is held up for 5 s, and goes on.
    let held_up = streams.on_read(at_ms(991), 12, 1000 * MIB + 50 * 256, 256);
    for index in 50..300 {
        assert!(!look(&mut streams, at_ms(index * 20), index * 256, 256).returns, "read {index}");
    }
    done(&mut streams, at_ms(6000), held_up);
    let second = look(&mut streams, at_ms(6001), 1000 * MIB + 51 * 256, 256);
    assert!(second.returns && second.stream == StreamId(Some(1)));
    // It turns to another file while the first goes on.
    let (first, second): (Vec<_>, Vec<_>) = (0..10)
        .map(|index| {
            let (ms, place) = (6020 + index * 20, index * 256);
            let first = look(&mut streams, at_ms(ms), 300 * 256 + place, 256);
            (first, look(&mut streams, at_ms(ms + 10), 3000 * MIB + place, 256))
        })
        .unzip();
    assert!(first.iter().all(|read| !read.returns));
    let begun = second.iter().find(|read| read.stream.0.is_some());
    assert!(begun.is_some_and(|read| read.returns), "the queue is new, its reader is not");
}

/// Lets two readers read a file each in order, for forty seconds; returns the
/// last read of the second, which is still under way.
fn two_readers(streams: &mut Streams) -> Reading {
    for index in 0..2000 {
        look(streams, at_ms(1000 + index * 20), index * 256, 256);
        look(streams, at_ms(1010 + index * 20), 1000 * MIB + index * 256, 256);
    }
    streams.on_read(at_ms(41_005), 12, 1000 * MIB + 2000 * 256, 256)
}

#[test]
fn who_reads_while_all_others_wait_starts_with_the_first_read() {
    let mut streams = Streams::default();
    two_readers(&mut streams);
    // The first reader may be the one that reads elsewhere now.
    let elsewhere = look(&mut streams.clone(), at_ms(41_010), 3000 * MIB, 8);
    assert_eq!(elsewhere.stream, StreamId(None));
    streams.on_read(at_ms(41_015), 12, 2000 * 256, 256);
    let start = look(&mut streams, at_ms(41_020), 6000 * MIB, 8);
    assert!(start.stream == StreamId(Some(2)) && !start.returns);
    // A second one so soon is too much to believe.
    assert_eq!(look(&mut streams, at_ms(41_030), 9000 * MIB, 8).stream, StreamId(None));
}

#[test]
fn as_many_at_random_as_ever_are_nobody_new() {
    let mut streams = Streams::default();
    let mut random = dice(2);
    let mut under_way = std::collections::VecDeque::new();
    for ms in 0..30_000 {
        if under_way.len() == 4 {
            let oldest = under_way.pop_front().expect("four");
            done(&mut streams, at_ms(ms), oldest);
        }
        let reading = streams.on_read(at_ms(ms), 12, random(4096 * MIB / 8) * 8, 8);
        assert!(reading.stream == StreamId(None), "at {ms} ms");
        under_way.push_back(reading);
    }
    // A fifth one at a time is.
    let fifth = streams.on_read(at_ms(30_000), 12, 100_000 * MIB, 8);
    assert!(fifth.stream == StreamId(Some(0)) && !fifth.returns);
}

#[test]
fn a_start_is_noticed_after_all_have_waited_for_long() {
    let mut streams = Streams::default();
    let mut random = dice(5);
    let mut under_way = std::collections::VecDeque::new();
    let mut ms = 0;
    for round in 0..20_000 {
        // For five seconds nobody is served.
        ms += if round == 19_990 { 5_000 } else { 1 };
        if under_way.len() == 4 {
            let oldest = under_way.pop_front().expect("four");
            done(&mut streams, at_ms(ms), oldest);
        }
        let sector = (4096 * MIB + random(1024 * MIB / 8)) * 8;
        under_way.push_back(streams.on_read(at_ms(ms), 12, sector, 8));
    }
    let start = streams.on_read(at_ms(ms + 10), 12, 0, 8);
    assert_eq!((start.stream, start.returns), (StreamId(Some(0)), false));
}

#[test]
fn a_guest_that_asks_for_very_much_at_a_time_is_counted_right() {
    let mut streams = Streams::default();
    let mut random = dice(4);
    let readings: Vec<Reading> = (0..100_000)
        .map(|_| streams.on_read(at_ms(1), 12, random(100_000 * MIB / 8) * 8, 8))
        .collect();
    assert!(streams.waiting.rest() > 90_000);
    readings.into_iter().for_each(|reading| done(&mut streams, at_ms(2), reading));
    assert_eq!(streams.waiting.rest(), 0);
}

#[test]
fn where_a_stream_ended_long_ago_somebody_new_begins_one() {
    let mut streams = Streams::default();
    for index in 0..20 {
        look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
    }
    two_readers(&mut streams);
    // Who it is shows when the others have read as well.
    let again = |index| 5000 * MIB + (20 + index) * 256;
    let first = look(&mut streams, at_ms(41_010), again(0), 256);
    assert_eq!((first.stream, first.returns), (StreamId(None), false));
    look(&mut streams, at_ms(41_020), 2000 * 256, 256);
    let reads: Vec<Reading> =
        (1..3).map(|index| look(&mut streams, at_ms(41_020 + index), again(index), 256)).collect();
    assert!(reads.iter().all(|read| !read.returns));
    assert!(reads[1].stream.0.is_some());
    // One of the others is no news there, whichever reads on.
    let mut streams = Streams::default();
    for index in 0..20 {
        look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
    }
    let held_up = two_readers(&mut streams);
    done(&mut streams, at_ms(41_006), held_up);
    let reads: Vec<Reading> =
        (0..4).map(|index| look(&mut streams, at_ms(41_010 + index), again(index), 256)).collect();
    let begun = reads.iter().find(|read| read.stream.0.is_some());
    assert!(begun.is_some_and(|read| read.returns));
}

#[test]
fn a_read_near_a_file_read_in_order_does_not_lead_its_reader_astray() {
    let mut streams = Streams::default();
    for index in 0..20 {
        // Others read so far apart that what is near is no chance.
        look(&mut streams, at_ms(index * 10 + 5), (1000 + index * 977) * MIB, 8);
        look(&mut streams, at_ms(index * 10), index * 256, 256);
    }
    let near = look(&mut streams, at_ms(200), 20 * 256 + 2000, 8);
    assert_eq!(near.stream, StreamId(Some(0)));
    assert_eq!(look(&mut streams, at_ms(210), 20 * 256, 256).stream, StreamId(Some(0)));
    // It may as well have been its own.
    let near = look(&mut streams, at_ms(220), 21 * 256 + 4000, 256);
    assert_eq!(near.stream, StreamId(Some(0)));
    assert_eq!(look(&mut streams, at_ms(230), 22 * 256 + 4000, 256).stream, StreamId(Some(0)));
    assert_eq!(streams.streams[0].end, 23 * 256 + 4000);
}

#[test]
fn who_reads_beside_all_others_is_somebody_new() {
    let mut streams = Streams::default();
    for index in 0..100 {
        look(&mut streams, at_ms(index * 10), index * 256, 256);
    }
    for index in 100..110 {
        look(&mut streams, at_ms(index * 10), index * 256, 256);
        let read = look(&mut streams, at_ms(index * 10 + 5), 1000 * MIB + index * 256, 256);
        let is_stream = read.stream == StreamId(Some(1));
        assert_eq!(is_stream, index >= 102, "read {index}");
        assert!(!read.returns || !is_stream, "read {index}");
    }
    // And who reads after everybody else has long been silent.
    let read = look(&mut streams, at_ms(20_000), 5000 * MIB, 256);
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

#[test]
fn who_comes_beside_a_reader_of_a_file_starts_with_the_first_read() {
    let mut streams = Streams::default();
    for index in 0..400 {
        look(&mut streams, at_ms(index * 10), index * 256, 256);
    }
    let scattered = look(&mut streams, at_ms(4000), 3000 * MIB, 8);
    assert_eq!(scattered, Reading { stream: StreamId(None), returns: false, seat: scattered.seat });
}
