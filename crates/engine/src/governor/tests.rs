//! The governor beside a device that is simple enough to know what it needs.

use super::*;

const KIB: u64 = 1024;
const VM: GroupId = GroupId(1);
const OTHER: GroupId = GroupId(2);

/// A device that works on up to `ways` commands at a time, each of which takes `span`, under
/// somebody who always has `most` of them.
struct Bench {
    governor: Governor,
    now: Nanos,
    /// When each command comes back.
    at_device: std::collections::VecDeque<Nanos>,
    ways: usize,
    span: Nanos,
    most: usize,
    /// Whether somebody waits when all have come back.
    waits: bool,
}

impl Bench {
    fn new(depth: u32, ways: usize) -> Self {
        let mut governor = Governor::new(depth);
        governor.turn(true, true);
        let at_device = std::collections::VecDeque::new();
        let (now, span) = (Nanos::ORIGIN, Nanos::from_micros(100));
        Self { governor, now, at_device, ways, span, most: usize::MAX, waits: true }
    }

    /// Lets commands of a kind and length go round for a while.
    fn run(&mut self, writes: bool, nr_sectors: u32, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            while self.governor.admits(|| self.at_device.len() < self.most)
                && self.at_device.len() < self.most
            {
                self.governor.sent(self.now, writes, nr_sectors);
                let len = self.at_device.len();
                // Whoever finds all ways busy waits for the one that is free first.
                let begins = match len.checked_sub(self.ways) {
                    Some(before) => self.at_device[before],
                    None => self.now,
                };
                self.at_device.push_back(begins.max(self.now) + self.span);
            }
            self.now = self.at_device.pop_front().expect("something is sent");
            self.governor.completed(self.now, writes, nr_sectors, || self.waits);
        }
        while let Some(at) = self.at_device.pop_front() {
            self.now = at;
            self.governor.completed(self.now, writes, nr_sectors, || self.waits);
        }
    }

    fn report(&self) -> GovernorReport {
        self.governor.report().expect("it is on")
    }
}

#[test]
fn it_finds_how_many_short_commands_keep_every_way_busy() {
    for ways in [1, 2, 4, 8, 16, 64] {
        let mut bench = Bench::new(256, ways);
        bench.run(false, 8, Nanos::from_secs(5));
        let found = bench.report().reads.commands as usize;
        assert_eq!(found, ways);
    }
}

#[test]
fn it_finds_how_many_bytes_of_long_commands_are_enough() {
    let mut bench = Bench::new(256, 4);
    bench.run(true, 512, Nanos::from_secs(5));
    assert_eq!(bench.report().writes.bytes, 4 * 256 * KIB);
    assert_eq!(bench.report().reads.commands, 256, "nothing is known of reads");
}

#[test]
fn loads_have_limits_of_their_own_which_last() {
    let mut bench = Bench::new(64, 4);
    bench.run(false, 8, Nanos::from_secs(2));
    bench.run(true, 8, Nanos::from_secs(2));
    bench.run(true, 256, Nanos::from_secs(2));
    let GovernorReport { reads, writes, .. } = bench.report();
    assert_eq!((reads.commands, writes.commands), (4, 4));
    assert_eq!(writes.bytes, 4 * 128 * KIB);
}

#[test]
fn a_device_that_became_faster_gets_more() {
    let mut bench = Bench::new(64, 2);
    bench.run(false, 8, Nanos::from_secs(2));
    assert_eq!(bench.report().reads.commands, 2);
    bench.ways = 16;
    // Nobody can see that at the level found; so it takes until the next search.
    bench.run(false, 8, Nanos::from_secs(120));
    assert_eq!(bench.report().reads.commands, 16);
}

#[test]
fn who_asks_for_more_than_anybody_before_is_not_held_to_that() {
    let mut bench = Bench::new(64, 16);
    bench.most = 4;
    bench.run(false, 8, Nanos::from_secs(300));
    assert_eq!(bench.report().reads.commands, 4);
    bench.most = usize::MAX;
    bench.run(false, 8, Nanos::from_secs(2));
    assert_eq!(bench.report().reads.commands, 16);
}

#[test]
fn beside_somebody_who_waits_a_search_begins_with_what_is_enough_without_him() {
    let mut bench = Bench::new(64, 4);
    bench.run(false, 8, Nanos::from_secs(2));
    assert_eq!(bench.report().reads.commands, 4);
    let (mut lone, mut most) = (0, 0);
    for _ in 0..400 {
        for _ in 0..LONE_MIN {
            bench.governor.arrived(bench.now, VM, 0, true, &mut lone);
        }
        bench.run(false, 8, Nanos::from_millis(5));
        most = most.max(bench.report().reads.commands);
    }
    assert!(bench.report().narrow);
    assert_eq!(most, 4);
}

#[test]
fn a_device_that_became_faster_gets_more_however_long_somebody_waits_for_each_answer() {
    let mut bench = Bench::new(64, 2);
    bench.run(false, 8, Nanos::from_secs(2));
    assert_eq!(bench.report().reads.commands, 2);
    bench.ways = 16;
    let mut lone = 0;
    for _ in 0..2400 {
        for _ in 0..LONE_MIN {
            bench.governor.arrived(bench.now, VM, 0, true, &mut lone);
        }
        bench.run(false, 8, Nanos::from_millis(100));
    }
    assert!(bench.report().narrow);
    assert!(bench.report().reads.commands >= 8);
}

#[test]
fn bursts_that_leave_the_device_idle_are_served_as_fast_as_it_can() {
    let mut bench = Bench::new(64, 8);
    bench.waits = false;
    for _ in 0..1000 {
        // A millisecond of work, and three without.
        bench.run(false, 8, Nanos::from_millis(1));
        bench.now += Nanos::from_millis(3);
    }
    assert_eq!(bench.report().reads.commands, 64);
    assert_eq!(bench.report().searches, 0);
}

#[test]
fn it_is_narrow_only_while_somebody_waits_for_each_answer() {
    let mut bench = Bench::new(64, 4);
    let mut lone = 0;
    for _ in 0..40 {
        for _ in 0..LONE_MIN {
            bench.governor.arrived(bench.now, VM, 0, true, &mut lone);
        }
        bench.run(false, 8, Nanos::from_millis(100));
    }
    assert!(bench.report().narrow);
    bench.run(false, 8, Nanos::from_secs(2));
    assert!(!bench.report().narrow);
}

#[test]
fn who_waits_for_each_answer_meets_hardly_a_search_once_one_was_confirmed() {
    let mut bench = Bench::new(64, 4);
    let (mut lone, mut steps, mut searching) = (0, 0, 0);
    let searches = 3;
    while bench.report().searches < searches {
        for _ in 0..LONE_MIN {
            bench.governor.arrived(bench.now, VM, 0, true, &mut lone);
        }
        bench.run(false, 8, Nanos::from_millis(5));
        // From the end of the search that confirmed the first one to that of the next.
        if bench.report().searches == searches - 1 {
            steps += 1;
            searching += u32::from(bench.governor.phase != Phase::Hold);
        }
    }
    assert!(bench.report().narrow);
    assert!(searching > 0 && searching * 100 < steps, "{searching} of {steps}");
}

#[test]
fn who_asks_for_much_at_a_time_is_no_reason_to_be_narrow() {
    let mut bench = Bench::new(64, 4);
    let mut lone = 0;
    for _ in 0..100 {
        for others in 0..8 {
            bench.governor.arrived(bench.now, VM, others, true, &mut lone);
        }
        bench.governor.arrived(bench.now, VM, 0, false, &mut lone);
    }
    bench.run(false, 8, Nanos::from_millis(500));
    assert!(!bench.report().narrow);
}

#[test]
fn who_is_alone_has_all_of_the_device_until_somebody_comes() {
    let mut bench = Bench::new(128, 4);
    bench.governor.set_usual(32);
    let mut lone = 0;
    bench.governor.arrived(bench.now, VM, 9, true, &mut lone);
    bench.run(false, 8, Nanos::from_secs(2));
    let found = bench.report();
    assert!(found.alone);
    assert_eq!((found.reads.commands, found.writes.commands, found.searches), (128, 128, 0));

    bench.governor.arrived(bench.now, OTHER, 9, true, &mut lone);
    let found = bench.report();
    assert_eq!((found.alone, found.writes.commands), (false, 32), "at once; nobody writes");
    for _ in 0..20 {
        bench.governor.arrived(bench.now, VM, 9, true, &mut lone);
        bench.governor.arrived(bench.now, OTHER, 9, true, &mut lone);
        bench.run(false, 8, Nanos::from_millis(100));
    }
    assert_eq!((bench.report().alone, bench.report().reads.commands), (false, 4));
    bench.run(false, 8, Nanos::from_secs(2));
    assert_eq!((bench.report().alone, bench.report().reads.commands), (true, 128));
}

#[test]
fn who_is_alone_with_long_commands_or_waits_for_each_answer_is_given_what_he_needs() {
    let mut bench = Bench::new(128, 4);
    bench.governor.set_usual(32);
    bench.run(false, 256, Nanos::from_secs(2));
    assert_eq!((bench.report().alone, bench.report().reads.bytes), (false, 4 * 128 * KIB));
    bench.run(false, 8, Nanos::from_secs(1));
    assert!(bench.report().alone);
    for _ in 0..20 {
        bench.governor.favour(bench.now);
        bench.run(false, 8, Nanos::from_millis(100));
    }
    assert_eq!((bench.report().alone, bench.report().reads.commands), (false, 4));
}

#[test]
fn kinds_share_the_device_by_what_each_needs() {
    let mut governor = Governor::new(8);
    governor.turn(true, false);
    for _ in 0..4 {
        assert!(governor.admits(|| true));
        governor.sent(Nanos::ORIGIN, false, 8);
    }
    for _ in 0..4 {
        assert!(governor.admits(|| true));
        governor.sent(Nanos::ORIGIN, true, 8);
    }
    assert!(!governor.admits(|| true), "four eighths and four eighths are all of it");
    governor.completed(Nanos::ORIGIN, true, 8, || true);
    assert!(governor.admits(|| true));
}

#[test]
fn one_command_always_goes_however_long_it_is() {
    let mut governor = Governor::new(1);
    governor.turn(true, false);
    assert!(governor.admits(|| true));
    governor.sent(Nanos::ORIGIN, false, 1 << 23);
    assert!(!governor.admits(|| true));
    governor.turn(false, false);
    assert!(governor.admits(|| true), "switched off, it bounds nothing");
}
