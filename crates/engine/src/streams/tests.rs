//! What belongs together, and who is new.

use super::*;

const MIB: u64 = 2048;

fn at_ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// Lets somebody read whose reads are done before anybody else's come.
fn look(streams: &mut Streams, now: Nanos, sector: u64, nr_sectors: u32) -> Reading {
    let reading = streams.on_read(now, 12, sector, nr_sectors);
    done(streams, now, reading, sector);
    reading
}

fn done(streams: &mut Streams, now: Nanos, reading: Reading, sector: u64) {
    if let Some(seat) = reading.seat {
        streams.on_done(now, seat, 12, sector);
    }
}

/// Returns whether a read belongs to a stream, so to neither the crowd nor the unknown.
fn is_in_stream(reading: Reading) -> bool {
    reading.stream != StreamId(None) && reading.stream != StreamId::CROWD
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
fn a_file_read_in_order_goes_on_after_many_small_files_beside_one_another() {
    let mut streams = Streams::default();
    let mut random = dice(1);
    let mut ids = Vec::new();
    for turn in 0..20 {
        for read in 0..8 {
            let sector = 8000 * MIB + (turn * 8 + read) * 256;
            let id = look(&mut streams, at_ms(turn * 900 + read), sector, 256).stream.0;
            ids.push(id);
        }
        for file in 0..300 {
            let sector = 400 * MIB + random(500) * 24;
            look(&mut streams, at_ms(turn * 900 + 10 + file * 2), sector, 16);
        }
    }
    assert!(ids[2..].iter().all(|&id| id == ids[2]), "{ids:?}");
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
fn readers_take_the_places_that_others_have_left_and_not_one_anothers() {
    let mut streams = Streams::default();
    for file in 0..8 {
        let reads: Vec<u64> = (0..8).map(|index| file * 100 * MIB + index * 256).collect();
        read(&mut streams, file * 8, &reads);
    }
    let mut ids = std::collections::BTreeMap::new();
    for index in 0..100 {
        for reader in 0..5 {
            let sector = (50_000 + reader * 1000) * MIB + index * 256;
            let at = look(&mut streams, at_ms(10_000 + index * 50 + reader), sector, 256);
            if index >= 2 {
                assert!(is_in_stream(at), "reader {reader}, read {index}: {at:?}");
                assert_eq!(*ids.entry(reader).or_insert(at.stream.0), at.stream.0);
            }
        }
    }
    assert_eq!(ids.into_values().collect::<std::collections::BTreeSet<_>>().len(), 5);
}

#[test]
fn a_stream_that_waits_keeps_its_place_however_long_it_takes() {
    let mut streams = Streams::default();
    let places = u64::try_from(STREAMS).unwrap();
    let file = |stream: u64, read: u64| stream * 100 * MIB + read * 256;
    for stream in 0..places {
        let reads: Vec<u64> = (0..8).map(|index| file(stream, index)).collect();
        read(&mut streams, stream * 8, &reads);
    }
    let waiting: Vec<Reading> =
        (0..places).map(|stream| streams.on_read(at_ms(70), 12, file(stream, 8), 256)).collect();
    let other = |read: u64| 9000 * MIB + read * 256;
    assert_eq!(read(&mut streams, 5000, &[other(0), other(1), other(2)]), [None; 3]);
    // Nor does it go to others in the moment in which it has been served.
    for (stream, reading) in (0..).zip(waiting) {
        done(&mut streams, at_ms(6000), reading, file(stream, 8));
    }
    assert_eq!(read(&mut streams, 6001, &[other(3), other(4)]), [None; 2]);
    assert_eq!(read(&mut streams, 6003, &[file(3, 9)]), [Some(3)]);
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
                is_in_stream(look(&mut streams, at_ms(read * 10), sector, 8))
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
            is_in_stream(look(&mut streams, at_ms(read * 10), sector, 8))
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
        let reading = look(&mut streams, at_ms(10_000 + read * 50 + 49), file, 32);
        told_apart += u32::from(is_in_stream(reading));
    }
    assert!(told_apart > 150, "{told_apart} of 200");
}

#[test]
fn a_program_of_which_a_few_reads_are_served_at_a_time_becomes_a_stream() {
    let (mut streams, mut random) = (Streams::default(), dice(7));
    let mut found = Vec::new();
    for turn in 0..4 {
        // Between its turns a crowd at random places has many more.
        for read in 0..20 {
            look(&mut streams, at_ms(turn * 3000 + read * 50), random(1 << 24) * 8, 8);
        }
        for read in 0..2 {
            let file = 40 * MIB + random(MIB / 8) * 8;
            let at = at_ms(turn * 3000 + 1000 + read * 60);
            found.push(is_in_stream(look(&mut streams, at, file, 256)));
        }
    }
    assert_eq!(found[..2], [false, false]);
    assert_eq!(found[3..], [true; 5]);
}

#[test]
fn where_a_stream_has_ended_a_random_read_does_not_revive_it() {
    let (mut streams, mut random) = (Streams::default(), dice(3));
    let reads: Vec<u64> = (0..100).map(|read| 100 * MIB + read * 256).collect();
    assert_eq!(read(&mut streams, 0, &reads)[99], Some(0));
    let revived = (0..10_000)
        .filter(|read| {
            let sector = random(320 * MIB / 8) * 8;
            is_in_stream(look(&mut streams, at_ms(2000 + read * 10), sector, 8))
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
    done(&mut streams, at_ms(6000), held_up, 1000 * MIB);
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
    let begun = begun.expect("it reads in order");
    assert!(begun.returns, "the queue is new, its reader is not");
    assert_eq!(begun.came_from.iter().collect::<Vec<_>>(), [StreamId(Some(1))]);
}

#[test]
fn who_only_thought_while_somebody_new_began_did_not_leave_for_that() {
    let mut streams = Streams::default();
    let third = |streams: &mut Streams, ms, index: u64| {
        look(streams, at_ms(ms), 3000 * MIB + index * 256, 256)
    };
    let both = |streams: &mut Streams, ms, index: u64| {
        [0, 1000 * MIB].map(|file| look(streams, at_ms(ms), file + index * 256, 256))
    };
    for index in 0..50 {
        both(&mut streams, index * 20, index);
    }
    // The first one goes on while the third begins, the second one does not.
    third(&mut streams, 1001, 0);
    look(&mut streams, at_ms(1002), 50 * 256, 256);
    third(&mut streams, 1003, 1);
    let begun = third(&mut streams, 1005, 2);
    assert!(begun.returns, "it may be the second one");
    assert_eq!(begun.came_from.iter().collect::<Vec<_>>(), [StreamId(Some(1))]);
    assert!(!third(&mut streams, 1006, 3).returns);
    // It is not: there he is.
    assert!(both(&mut streams, 1007, 51).iter().all(|read| !read.returns));
    let cleared = third(&mut streams, 1008, 4);
    assert!(cleared.returns);
    assert_eq!(cleared.came_from.iter().collect::<Vec<_>>(), [StreamId(None)]);
    assert!(!third(&mut streams, 1009, 5).returns, "that is said once");
}

#[test]
fn who_goes_on_a_second_later_may_have_left_meanwhile() {
    let mut streams = Streams::default();
    for index in 0..50 {
        look(&mut streams, at_ms(index * 20), index * 256, 256);
    }
    let reads: Vec<Reading> = (0..3)
        .map(|index| look(&mut streams, at_ms(1001 + index), 3000 * MIB + index * 256, 256))
        .collect();
    assert_eq!(reads[2].came_from.iter().collect::<Vec<_>>(), [StreamId(Some(0))]);
    look(&mut streams, at_ms(2100), 50 * 256, 256);
    assert!(!look(&mut streams, at_ms(2101), 3000 * MIB + 3 * 256, 256).returns);
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

/// Lets four programs read at random for half a minute, one read each at a time, at `sector` of a
/// number that looks random; returns their last reads, which are still under way.
fn four_at_random(
    streams: &mut Streams,
    sector: impl Fn(u64) -> u64,
) -> std::collections::VecDeque<(u64, Reading)> {
    let (mut random, mut under_way) = (dice(2), std::collections::VecDeque::new());
    let mut settled = 0;
    for read in 0..3000 {
        let now = at_ms(read * 10);
        if under_way.len() == 4 {
            let (sector, oldest) = under_way.pop_front().expect("four");
            done(streams, now, oldest, sector);
        }
        let sector = sector(random(u64::MAX));
        let reading = streams.on_read(now, 12, sector, 8);
        let expected = [StreamId::CROWD, StreamId(None)];
        assert!(expected.contains(&reading.stream), "read {read}: {reading:?}");
        assert!(read < 1600 || reading.stream == StreamId::CROWD, "read {read}: {reading:?}");
        settled += u32::from(reading.settles);
        under_way.push_back((sector, reading));
    }
    assert_eq!(settled, 1, "they take their queue with them once");
    under_way
}

#[test]
fn who_reads_where_nobody_was_is_not_of_the_crowd_however_long_that_is_held_up() {
    let mut streams = Streams::default();
    // Two files of 1 GiB.
    let crowd =
        |number: u64| (number % 2 * 8192 + 10_000) * MIB + number / 2 % (1024 * MIB / 8) * 8;
    let under_way = four_at_random(&mut streams, crowd);
    // For five seconds nobody but the program that starts is served.
    let mut random = dice(9);
    for read in 0..100 {
        let at = look(&mut streams, at_ms(30_000 + read * 50), random(8192 * MIB / 8) * 8, 8);
        assert!(at.stream != StreamId::CROWD && !at.returns, "read {read}: {at:?}");
    }
    for (sector, reading) in under_way {
        done(&mut streams, at_ms(35_000), reading, sector);
        let next = streams.on_read(at_ms(35_000), 12, crowd(sector), 8);
        assert_eq!(next.stream, StreamId::CROWD);
    }
}

#[test]
fn the_crowd_that_comes_back_to_its_queue_starts_nothing() {
    let mut streams = Streams::default();
    let crowd = |number: u64| 10_000 * MIB + number % (1024 * MIB / 8) * 8;
    for (sector, reading) in four_at_random(&mut streams, crowd) {
        done(&mut streams, at_ms(30_000), reading, sector);
    }
    let back = look(&mut streams, at_ms(33_001), crowd(77), 8);
    assert!(back.stream == StreamId::CROWD && back.returns && !back.settles);
    let next = look(&mut streams, at_ms(33_002), crowd(7777), 8);
    assert!(next.stream == StreamId::CROWD && !next.returns);
}

#[test]
fn who_was_marked_goes_on_and_does_not_start() {
    let mut streams = Streams::default();
    let file = |index: u64| 5000 * MIB + index * 256;
    for index in 0..240 {
        let marked = streams.on_marked(at_ms(index * 50), 12, file(index));
        done(&mut streams, at_ms(index * 50 + 20), marked, file(index));
    }
    let back = |streams: &mut Streams, index| look(streams, at_ms(index * 50), file(index), 256);
    let first = back(&mut streams, 240);
    assert!(first.returns && first.settles, "{first:?}");
    let begun = (241..250).map(|index| back(&mut streams, index)).find(|&at| is_in_stream(at));
    assert!(begun.is_some_and(|at| at.returns && at.came_from == StreamSet::default()));
}

#[test]
fn who_was_marked_comes_back_to_a_crowd_that_was_silent_meanwhile_and_does_not_start() {
    let mut streams = Streams::default();
    let crowd = |number: u64| 10_000 * MIB + number % (1024 * MIB / 8) * 8;
    for (sector, reading) in four_at_random(&mut streams, crowd) {
        done(&mut streams, at_ms(30_000), reading, sector);
    }
    for index in 0..200 {
        let sector = crowd(index * 7919 * 8);
        let marked = streams.on_marked(at_ms(30_000 + index * 50), 12, sector);
        done(&mut streams, at_ms(30_020 + index * 50), marked, sector);
    }
    let first = look(&mut streams, at_ms(40_000), crowd(77), 8);
    assert!(first.stream == StreamId::CROWD && first.returns && !first.settles, "{first:?}");
    let next = look(&mut streams, at_ms(40_013), crowd(7777), 8);
    assert!(next.stream == StreamId::CROWD && !next.returns, "{next:?}");
}

#[test]
fn who_reads_all_over_a_large_disk_becomes_the_crowd() {
    let mut streams = Streams::default();
    let crowd = |number: u64| number % (4_000_000 * MIB / 8) * 8;
    let mut random = dice(3);
    let told_apart = |streams: &mut Streams,
                      random: &mut dyn FnMut(u64) -> u64,
                      reads: core::ops::Range<u64>| {
        let all = reads.end - reads.start;
        let reads = reads.map(|read| look(streams, at_ms(read * 10), crowd(random(u64::MAX)), 8));
        all - reads.filter(|read| read.stream == StreamId::CROWD).count() as u64
    };
    told_apart(&mut streams, &mut random, 0..3000);
    let unknown = told_apart(&mut streams, &mut random, 3000..6000);
    assert!(unknown < 300, "{unknown} of 3000");
}

#[test]
fn a_guest_of_many_priorities_has_them_mixed_up_and_nothing_else() {
    let (mut streams, mut random) = (Streams::default(), dice(6));
    for ms in 0..60_000 {
        let priority = u8::try_from(random(24)).expect("below 24");
        let sector = random(100_000 * MIB / 8) * 8;
        let reading = streams.on_read(at_ms(ms), priority, sector, 8);
        if let Some(seat) = reading.seat {
            streams.on_done(at_ms(ms), seat, priority, sector);
        }
    }
}

#[test]
fn a_place_is_forgotten_when_nobody_has_read_there_for_a_while() {
    let mut streams = Streams::default();
    let crowd = |number: u64| 10_000 * MIB + number % (1024 * MIB / 8) * 8;
    for (sector, reading) in four_at_random(&mut streams, crowd) {
        done(&mut streams, at_ms(30_000), reading, sector);
    }
    let later = look(&mut streams, at_ms(60_000), crowd(1), 8);
    assert!(later.stream == StreamId(None) && !later.returns);
}

#[test]
fn where_a_stream_ended_long_ago_somebody_new_begins_one() {
    let mut streams = Streams::default();
    let again = |index| 5000 * MIB + (14 + index) * 256;
    for index in 0..14 {
        look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
    }
    two_readers(&mut streams);
    // Who it is shows when the others have read as well.
    let first = look(&mut streams, at_ms(41_010), again(0), 256);
    assert_eq!((first.stream, first.returns), (StreamId(None), false));
    look(&mut streams, at_ms(41_020), 2000 * 256, 256);
    let reads: Vec<Reading> =
        (1..3).map(|index| look(&mut streams, at_ms(41_020 + index), again(index), 256)).collect();
    assert!(reads.iter().all(|read| !read.returns));
    assert!(reads[1].stream.0.is_some());
    // One of the others is no news there, whichever reads on.
    let mut streams = Streams::default();
    for index in 0..14 {
        look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
    }
    let held_up = two_readers(&mut streams);
    done(&mut streams, at_ms(41_006), held_up, 1000 * MIB);
    let reads: Vec<Reading> =
        (0..4).map(|index| look(&mut streams, at_ms(41_010 + index), again(index), 256)).collect();
    let begun = reads.iter().find(|read| read.stream.0.is_some());
    assert!(begun.is_some_and(|read| read.returns));
}

#[test]
fn a_file_read_in_order_goes_on_after_a_long_silence_if_it_is_long_or_an_agent_tells_what_starts() {
    for (reads, is_spoken_for) in [(14, false), (14, true), (16, false), (17, false), (17, true)] {
        let mut streams = Streams::default();
        for index in 0..reads {
            look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
        }
        two_readers(&mut streams);
        streams.speak_until(at_ms(if is_spoken_for { 42_000 } else { 41_000 }));
        let read = look(&mut streams, at_ms(41_010), 5000 * MIB + reads * 256, 256);
        // The first read is not counted.
        let goes_on = is_spoken_for || reads > 16;
        assert_eq!((is_in_stream(read), read.returns), (goes_on, goes_on), "{reads} reads");
        assert_eq!(read.came_from, StreamSet::default());
    }
}

/// A guest that drops what it has read ahead reads it again.
#[test]
fn a_long_file_goes_on_where_it_was_left_and_a_little_before() {
    for (reads, before, goes_on) in
        [(100, 248, true), (100, 1024, true), (100, 1032, false), (14, 248, false)]
    {
        let mut streams = Streams::default();
        for index in 0..reads {
            look(&mut streams, at_ms(index), 5000 * MIB + index * 256, 256);
        }
        two_readers(&mut streams);
        let again = 5000 * MIB + reads * 256 - before;
        let read = look(&mut streams, at_ms(41_010), again, 256);
        let case = format!("{before} sectors before the end, after {reads} reads");
        assert_eq!((is_in_stream(read), read.returns), (goes_on, goes_on), "{case}");
        let next = look(&mut streams, at_ms(41_015), again + 256, 256);
        assert_eq!(is_in_stream(next) && next.stream == read.stream, goes_on, "{case}");
    }
}

#[test]
fn who_goes_on_in_a_long_file_is_new_where_nothing_can_have_held_him_up() {
    let long = |streams: &mut Streams| {
        for index in 0..100 {
            look(streams, at_ms(index), 5000 * MIB + index * 256, 256);
        }
    };
    let end = 5000 * MIB + 100 * 256;
    // Nobody else reads.
    let mut streams = Streams::default();
    long(&mut streams);
    assert!(!look(&mut streams, at_ms(5_000), end, 256).returns);
    // After a minute.
    let mut streams = Streams::default();
    long(&mut streams);
    look(&mut streams, at_ms(65_000), 1000 * MIB, 256);
    assert!(!look(&mut streams, at_ms(65_010), end, 256).returns);
    // Many short files are none that is long.
    let mut streams = Streams::default();
    long(&mut streams);
    for file in 1..20 {
        for index in 0..3 {
            let at = end + file * 1024 + index * 256;
            look(&mut streams, at_ms(100 + file * 10 + index), at, 256);
        }
    }
    let end = end + 19 * 1024 + 3 * 256;
    look(&mut streams, at_ms(5_000), 1000 * MIB, 256);
    assert!(!look(&mut streams, at_ms(5_010), end, 256).returns);
}

#[test]
fn a_place_is_taken_of_who_is_not_in_the_middle_of_a_file() {
    let mut streams = Streams::default();
    let places = u64::try_from(STREAMS).unwrap();
    // The first to fall silent is in the middle of a file; the others read small ones.
    for file in 0..places {
        let stride = if file == 0 { 256 } else { 280 };
        let reads: Vec<u64> = (0..8).map(|index| file * 100 * MIB + index * stride).collect();
        read(&mut streams, file * 8, &reads);
    }
    let more: Vec<u64> = (0..8).map(|index| 9000 * MIB + index * 256).collect();
    assert_eq!(read(&mut streams, 1500, &more)[7], Some(1));
    let again = look(&mut streams, at_ms(1510), 8 * 256, 256);
    assert_eq!(again.stream, StreamId(Some(0)));
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
    assert_eq!(scattered, Reading { seat: scattered.seat, ..Reading::default() });
}
