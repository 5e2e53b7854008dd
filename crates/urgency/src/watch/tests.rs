//! Processes that start, read, sleep and play.

use super::*;

const MS: Duration = Duration::from_millis(1);
const START: Duration = Duration::from_secs(100);

fn rules() -> Rules {
    Rules::new(4 * MS)
}

/// Looks every 20 ms for `looks` times while the process reads `bytes(look)`.
fn run(
    watched: &mut Watched,
    from: Duration,
    looks: u32,
    mut bytes: impl FnMut(u32) -> u64,
) -> Vec<Level> {
    let mut total = watched.bytes;
    (0..looks)
        .map(|look| {
            total += bytes(look);
            watched.look(from + 20 * look * MS, total, &rules())
        })
        .collect()
}

#[test]
fn a_new_program_is_urgent_until_its_time_is_over() {
    let mut watched = Watched::new(START, 0);
    watched.started(START, Duration::ZERO, &rules(), false);
    let levels = run(&mut watched, START, 600, |_| 1_000);
    assert!(levels[..500].iter().all(|&level| level == Level::Interactive));
    assert!(levels[500..].iter().all(|&level| level == Level::None));
}

#[test]
fn a_new_program_is_urgent_until_its_bytes_are_used_up() {
    let mut watched = Watched::new(START, 0);
    watched.started(START, Duration::ZERO, &rules(), false);
    let levels = run(&mut watched, START, 100, |_| 10_000_000);
    let urgent = levels.iter().filter(|&&level| level == Level::Interactive).count();
    assert_eq!(urgent, 6, "6 looks of 10 MB within 61 MB");
}

#[test]
fn who_reads_nothing_is_helped_for_a_moment_only() {
    let mut watched = Watched::new(START, 0);
    watched.started(START, Duration::ZERO, &rules(), false);
    assert_eq!(watched.wants(START + 999 * MS), Level::Interactive);
    assert_eq!(watched.wants(START + 1000 * MS), Level::None);
    assert_eq!(watched.look(START + 5000 * MS, 4096, &rules()), Level::Interactive);
    assert_eq!(watched.wants(START + 5500 * MS), Level::Interactive);
}

#[test]
fn a_process_that_has_run_before_is_not_urgent() {
    let mut watched = Watched::new(START, 5_000_000);
    let levels = run(&mut watched, START, 100, |_| 1_000_000);
    assert!(levels.iter().all(|&level| level == Level::None));
}

#[test]
fn a_process_that_wakes_up_is_urgent() {
    let mut watched = Watched::new(START, 0);
    assert_eq!(watched.look(START + 3000 * MS, 4096, &rules()), Level::Interactive);
}

#[test]
fn a_process_that_was_held_up_at_the_disk_does_not_wake_up() {
    let mut watched = Watched::new(START, 0);
    let rules = rules();
    for look in 0..200 {
        let now = START + 20 * look * MS;
        assert_eq!(watched.look(now, 0, &rules), Level::None);
        if watched.is_in_doubt(now) {
            watched.seen(now, true);
        }
    }
    assert_eq!(watched.look(START + 4000 * MS, 4096, &rules), Level::None);
    assert_eq!(watched.look(START + 4020 * MS, 4096, &rules), Level::None);
    watched.seen(START + 4040 * MS, false);
    assert!(!watched.is_in_doubt(START + 4060 * MS), "it sleeps now");
    assert!(watched.is_in_doubt(START + 4520 * MS), "and may have begun to wait");
    assert_eq!(watched.look(START + 6100 * MS, 8192, &rules), Level::Interactive);
}

#[test]
fn who_is_held_up_at_the_disk_is_helped_until_its_time_is_over() {
    let mut watched = Watched::new(START, 0);
    let rules = rules();
    watched.started(START, Duration::ZERO, &rules, false);
    for look in 0..499 {
        let now = START + 20 * look * MS;
        assert_eq!(watched.look(now, 4096, &rules), Level::Interactive);
        assert_eq!(watched.wants(now), Level::Interactive, "{look}");
        if watched.is_in_doubt(now) {
            watched.seen(now, true);
        }
    }
    assert_eq!(watched.look(START + 10_000 * MS, 4096, &rules), Level::None);
}

/// Starts a program that is looked at for 10 s as often as it wants to be, reads 4 KiB before each
/// look unless it is `away` then (ms after the start), and has used `work` thousandths of the time;
/// returns for how long it was urgent.
fn start(watched: &mut Watched, work: u32, away: impl Fn(u128) -> bool) -> Duration {
    let (rules, before) = (rules(), Duration::from_secs(77));
    let mut now = START;
    while now < START + Duration::from_secs(10) {
        let interval = watched.next_look(now);
        // At multiples of it, as the agent does.
        now += interval;
        let past = (now - START).as_millis() % interval.as_millis();
        now -= u32::try_from(past).expect("less than a second") * MS;
        let bytes = watched.bytes + u64::from(!away((now - START).as_millis())) * 4096;
        watched.look(now, bytes, &rules);
        if watched.is_in_doubt(now) {
            watched.seen(now, false);
        }
        if watched.wants_worked(now, &rules) {
            watched.worked(now, before + (now - START) * work / 1000, &rules);
        }
        if watched.level() != Level::Interactive {
            break;
        }
    }
    now - START
}

fn woken() -> Watched {
    let mut watched = Watched::new(START - Duration::from_secs(3), 0);
    assert_eq!(watched.look(START, 4096, &rules()), Level::Interactive);
    watched
}

#[test]
fn who_only_reads_is_none_that_starts() {
    let (short, long) = (4000 * MS, 10_000 * MS);
    assert_eq!(start(&mut woken(), 10, |_| false), short);
    assert_eq!(start(&mut woken(), 10, |ms| ms % 400 == 0), short, "hardly ever away");
    assert_eq!(start(&mut woken(), 60, |_| false), long, "it computes");
    assert_eq!(start(&mut woken(), 10, |ms| ms % 160 == 0), long, "it does something else");
    // It is looked at less often meanwhile.
    let sleeps = |until: u128| start(&mut woken(), 10, move |ms| (1000..until).contains(&ms));
    assert_eq!((sleeps(1340), sleeps(1460)), (short, long), "a tenth is 400 ms");
}

#[test]
fn a_player_that_is_found_as_its_start_is_doubted_plays_on() {
    let mut watched = woken();
    let rules = rules();
    // Batches of 160 ms with pauses of 80 ms, then one that does not end.
    for look in 1..=200 {
        let (now, pauses) = (START + 20 * look * MS, look % 12 > 8 && look < 180);
        let bytes = watched.bytes + u64::from(!pauses) * 40_000;
        watched.look(now, bytes, &rules);
        if watched.is_in_doubt(now) {
            watched.seen(now, !pauses);
        }
    }
    watched.start.as_mut().expect("it is doubted").away = Duration::ZERO;
    watched.worked(START + 4000 * MS, Duration::ZERO, &rules);
    watched.start.as_mut().expect("it is doubted").worked = Some(Duration::ZERO);
    watched.worked(START + 4000 * MS, Duration::ZERO, &rules);
    assert_eq!(watched.level(), Level::SoftRealTime);
}

#[test]
fn processor_time_counts_from_the_start_on() {
    let (before, end) = (Duration::from_secs(3), START + 4000 * MS);
    let mut program = Watched::new(START, 0);
    program.started(START, before, &rules(), false);
    assert!(!program.wants_worked(START, &rules()), "it was told");
    assert!(program.wants_worked(end, &rules()));
    let mut other = program.clone();
    program.worked(end, before + 199 * MS, &rules());
    assert_eq!(program.level(), Level::None);
    other.worked(end, before + 200 * MS, &rules());
    assert_eq!(other.level(), Level::Interactive);
    assert!(!other.wants_worked(end + 1000 * MS, &rules()), "once");
}

#[test]
fn who_was_marked_by_hand_may_only_read() {
    let mut watched = woken();
    watched.marked(START, &rules(), Level::Interactive);
    assert_eq!(start(&mut watched, 0, |_| false), 10_000 * MS);
}

#[test]
fn programs_of_a_burst_are_not_urgent_and_do_not_wake_up() {
    let mut watched = Watched::new(START, 0);
    watched.started(START, Duration::ZERO, &rules(), true);
    assert_eq!(watched.look(START + 20 * MS, 4096, &rules()), Level::None);
    assert_eq!(watched.look(START + 4000 * MS, 8192, &rules()), Level::None);
}

#[test]
fn a_player_is_found_within_five_batches_and_forgotten_when_it_stops() {
    // 400 KB every 200 ms is 2 MB/s.
    let mut watched = Watched::new(START, 0);
    let levels = run(&mut watched, START, 200, |look| u64::from(look % 10 == 0) * 400_000);
    let first = levels.iter().position(|&level| level == Level::SoftRealTime);
    assert!(first.is_some_and(|look| look <= 50), "{first:?}");
    assert!(levels[60..].iter().all(|&level| level == Level::SoftRealTime));
    let after = run(&mut watched, START + 4000 * MS, 200, |_| 0);
    assert!(after[160..].iter().all(|&level| level == Level::None));
}

/// Plays pieces of 1 MB, one each 250 ms, of which it waits for the disk in the first `held_up`
/// looks of 20 ms, each time for two looks.
fn play(watched: &mut Watched, from: Duration, pieces: u32, held_up: u32) -> Level {
    let rules = rules();
    let mut level = watched.level();
    for look in 0..pieces * 12 {
        let now = from + 20 * look * MS;
        let reads = look % 12 < held_up;
        let bytes = watched.bytes + u64::from(reads && look % 2 == 0) * 250_000;
        level = watched.look(now, bytes, &rules);
        if watched.is_in_doubt(now) {
            watched.seen(now, reads);
        }
    }
    level
}

#[test]
fn a_player_that_waits_for_the_disk_within_its_batches_is_one() {
    let mut watched = Watched::new(START, 0);
    assert_eq!(play(&mut watched, START, 8, 7), Level::SoftRealTime);
}

#[test]
fn a_player_that_is_late_stays_one_until_it_has_caught_up() {
    let mut watched = Watched::new(START, 0);
    play(&mut watched, START, 8, 6);
    // For two seconds it does not pause at all.
    assert_eq!(play(&mut watched, START + 2000 * MS, 8, 12), Level::SoftRealTime);
    // Then it pauses little.
    assert_eq!(play(&mut watched, START + 4000 * MS, 20, 10), Level::SoftRealTime);
    // Who reads as if there were no end of it is something else.
    assert_eq!(play(&mut watched, START + 9000 * MS, 20, 12), Level::None);
}

#[test]
fn a_program_that_starts_in_batches_is_not_taken_for_a_player_before_its_time_is_over() {
    let mut watched = Watched::new(START, 0);
    watched.started(START, Duration::ZERO, &rules(), false);
    assert_eq!(play(&mut watched, START, 40, 6), Level::Interactive);
    // From the very moment on.
    for look in 0..30 {
        let now = START + (9600 + 20 * look) * MS;
        let bytes = watched.bytes + u64::from(look % 12 < 6) * 80_000;
        let level = watched.look(now, bytes, &rules());
        let expected = if look < 20 { Level::Interactive } else { Level::SoftRealTime };
        assert_eq!(level, expected, "{look}");
    }
}

#[test]
fn a_player_that_was_marked_by_hand_stays_one_whatever_it_does() {
    let mut watched = Watched::new(START, 0);
    watched.marked(START, &rules(), Level::SoftRealTime);
    let levels = run(&mut watched, START, 600, |_| 10_000_000);
    assert!(levels.iter().all(|&level| level == Level::SoftRealTime));
    // It is found to play, too, and pauses then.
    assert_eq!(play(&mut watched, START + 12_000 * MS, 20, 6), Level::SoftRealTime);
    let later = START + Duration::from_secs(3600);
    assert_eq!(watched.look(later, watched.bytes, &rules()), Level::SoftRealTime);
    assert_eq!(watched.wants(later), Level::None, "and costs nothing meanwhile");
    let renewed = watched.renewed(later, 0, &rules());
    assert_eq!((renewed.level(), renewed.until), (Level::SoftRealTime, Duration::MAX));
}

#[test]
fn who_was_marked_as_interactive_is_until_his_time_is_over() {
    let mut watched = Watched::new(START, 0);
    watched.marked(START, &rules(), Level::Interactive);
    assert_eq!(watched.look(START + 9_999 * MS, 0, &rules()), Level::Interactive);
    assert_eq!(watched.look(START + 10_000 * MS, 0, &rules()), Level::None);
    let renewed = watched.renewed(START, 0, &rules());
    assert_eq!((renewed.level(), renewed.by_hand()), (Level::None, Some(Level::Interactive)));
}

#[test]
fn a_greedy_reader_that_is_kept_from_the_processor_now_and_then_is_no_player() {
    // 40 ms of each 400 ms.
    let mut watched = Watched::new(START, 0);
    let levels = run(&mut watched, START, 500, |look| u64::from(look % 20 > 1) * 8192);
    assert!(levels.iter().all(|&level| level == Level::None));
}

#[test]
fn a_greedy_reader_is_no_player_even_if_it_is_slow() {
    // 100 reads of 4 KiB a second, seen in most looks.
    let mut watched = Watched::new(START, 0);
    let levels = run(&mut watched, START, 500, |look| u64::from(look % 7 != 0) * 8192);
    assert!(levels.iter().all(|&level| level == Level::None));
}

#[test]
fn a_reader_whose_pauses_are_waits_for_the_disk_is_no_player() {
    // A read of 4 KiB, served after half a second.
    let mut watched = Watched::new(START, 0);
    for look in 0..1_000 {
        let now = START + 20 * look * MS;
        let bytes = u64::from(look / 25) * 4_096;
        assert_eq!(watched.look(now, bytes, &rules()), Level::None, "{look}");
        if watched.is_in_doubt(now) {
            watched.seen(now, true);
        }
    }
}

#[test]
fn a_reader_with_pauses_but_a_high_rate_is_no_player() {
    let mut watched = Watched::new(START, 0);
    let levels = run(&mut watched, START, 500, |look| u64::from(look % 10 == 0) * 4_000_000);
    assert!(levels.iter().all(|&level| level == Level::None));
}

#[test]
fn coarse_clocks_need_longer_pauses() {
    assert_eq!(Rules::new(MS).soft_pause, 20 * MS);
    assert_eq!(Rules::new(10 * MS).soft_pause, 48 * MS);
}

#[test]
fn sleepers_are_looked_at_seldom() {
    let watched = Watched::new(START, 0);
    assert_eq!(watched.next_look(START + 249 * MS), 20 * MS);
    assert_eq!(watched.next_look(START + 250 * MS), 60 * MS);
    assert!(!watched.is_asleep(START + 1999 * MS) && watched.is_asleep(START + 2000 * MS));
    assert!(watched.next_look(START) < watched.next_look(START + 10_000 * MS));
    assert!(watched.next_look(START + 10_000 * MS) < watched.next_look(START + 90_000 * MS));
}
