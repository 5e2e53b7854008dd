//! What one process does with its disk, and whether that is urgent.
//!
//! A value without clock and without `/proc`: the caller brings times and counters. The rules are
//! those by which BFQ raises a queue, applied to a process:
//!
//! * *Interactive*: a program has just started, or reads again after it did nothing for long. Who
//!   was held up at the disk for so long did not do nothing.
//! * *Soft real-time*: it reads at a modest rate, in batches with pauses between them that no
//!   greedy reader would make. A batch is all that it reads until it pauses: however often it waits
//!   for the disk meanwhile.
//!
//! Both are bounded in time and in bytes, so a wrong guess costs little. A program that starts
//! computes now and then: one that has been at the disk nearly all the time for seconds, and used next
//! to no processor time, only reads. Who is marked by hand is no guess; as a player he stays one: the
//! host's credit bounds what that costs.
//!
//! Source: P. Valente and A. Avanzini, "Evolution of the BFQ Storage-I/O Scheduler", 2015; the
//! guard against coarse clocks is that of deliverable D3.6 of the vIrtical project, section 3.2.

use std::time::Duration;

use evenkeel_wire::agent::Level;

/// How long after its last read, or its start, a process is helped.
const HELP_AFTER_READ: Duration = Duration::from_secs(1);

/// How often a process is looked at that has just read.
const OFTEN: Duration = Duration::from_millis(20);
/// After such a time without reading it is looked at less often, and then seldom.
const JUST: Duration = Duration::from_millis(250);
const LATELY: Duration = Duration::from_secs(2);

/// A program that starts is at something else than the disk for at least this part of its time, as
/// far as looks tell: whoever has read since the last one counts as at the disk.
const AWAY_SHARE: u32 = 10;
/// Or it computes for at least this part.
const WORK_SHARE: u32 = 20;

/// Bounds of the rules.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rules {
    /// How long a program that starts, or wakes up, is urgent.
    pub interactive: Duration,
    /// And how many bytes it may read meanwhile.
    pub interactive_bytes: u64,
    /// After so long a program that only reads is none that starts.
    pub only_reads: Duration,
    /// After so long without reading a process wakes up when it reads.
    pub idle: Duration,
    /// The highest rate of a player, in bytes per second.
    pub soft_rate: u64,
    /// The shortest pause between two batches of a player. Grows with the clock's granularity: a
    /// greedy reader whose ticks come late looks as if it paused.
    pub soft_pause: Duration,
    /// The pause is at least one so manieth of the time from batch to batch: whoever is kept from
    /// the processor now and then pauses, too. Players that are late pause less.
    pub soft_share: u32,
    /// How long a player stays urgent after its last batch.
    pub soft: Duration,
    /// Batches with such pauses until a process counts as a player; one without counts as two less.
    pub soft_batches: u32,
}

impl Rules {
    /// Returns the rules for a clock that tells times `granularity` apart.
    ///
    /// Time and bytes are those of BFQ for a disk of unknown speed: 10 s and 120 000 sectors, and
    /// 16 384 sectors, 8 MiB, a second for a player: BFQ's 7000 are less than a film may need. The
    /// pause is 20 ms, or four ticks and a wait of 8 ms. Who only reads is found out after 4 s, as
    /// the host does it.
    pub fn new(granularity: Duration) -> Self {
        Self {
            interactive: Duration::from_secs(10),
            interactive_bytes: 120_000 * 512,
            only_reads: Duration::from_secs(4),
            idle: Duration::from_secs(2),
            soft_rate: 16_384 * 512,
            soft_pause: Duration::from_millis(20).max(granularity * 4 + Duration::from_millis(8)),
            soft_share: 8,
            soft: Duration::from_secs(3),
            soft_batches: 4,
        }
    }
}

/// One process.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Bytes that it had read from disks when it was last looked at.
    bytes: u64,
    looked: Duration,
    /// When it last read something, or waited for the disk, as far as seen.
    active: Duration,
    /// Whether it was seen since then to wait for something else.
    seen_asleep: bool,
    /// What is urgent, since when, until when, and at which byte that ends.
    level: Level,
    until: Duration,
    last_byte: u64,
    /// What it has done since it was taken for a program that starts, until it is known to be one.
    start: Option<Start>,
    /// Whether programs started by it are too many to be somebody's wish.
    in_burst: bool,
    /// What somebody asked for; survives the start of the program that is meant.
    by_hand: Option<Level>,
    batch: Batches,
}

/// What a program that starts, by all that is known, has done since.
#[derive(Clone, Copy, Debug)]
struct Start {
    since: Duration,
    /// Its processor time before; none if it is to be told first.
    worked: Option<Duration>,
    /// Time before the looks that have found it at something else than the disk.
    away: Duration,
    /// Time before the last look.
    interval: Duration,
}

/// The rhythm in which a process reads.
#[derive(Clone, Copy, Debug, Default)]
struct Batches {
    /// When the present one began, and its bytes so far.
    began: Option<Duration>,
    bytes: u64,
    /// Batches that looked like a player's, less two for each other, up to twice the number that is
    /// needed.
    good: u32,
}

impl Watched {
    /// Begins to watch a process that has read `bytes` so far. It is not urgent: it may have run
    /// for hours.
    pub fn new(now: Duration, bytes: u64) -> Self {
        Self {
            bytes,
            looked: now,
            active: now,
            seen_asleep: false,
            level: Level::None,
            until: now,
            last_byte: bytes,
            start: None,
            in_burst: false,
            by_hand: None,
            batch: Batches::default(),
        }
    }

    /// Says that the process, which has used so much processor time, has begun a new program. One of a
    /// burst is nobody's wish.
    pub fn started(&mut self, now: Duration, worked: Duration, rules: &Rules, in_burst: bool) {
        self.in_burst = in_burst;
        self.batch = Batches::default();
        self.start = None;
        if in_burst {
            self.level = Level::None;
        } else {
            self.raise(now, rules);
            self.doubt(now, Some(worked));
        }
    }

    /// Says that somebody wants the process, and the program that it becomes, to be urgent: like one
    /// that starts, or as a player for as long as it lives.
    pub fn marked(&mut self, now: Duration, rules: &Rules, level: Level) {
        self.raise(now, rules);
        self.start = None;
        self.level = level;
        self.by_hand = Some(level);
        if self.is_player_by_hand() {
            self.until = Duration::MAX;
            self.last_byte = u64::MAX;
        }
    }

    /// Begins anew with a process that goes on as another program, or by another name, and has read
    /// `bytes` so far: only what was asked for by hand still holds.
    #[must_use]
    pub fn renewed(&self, now: Duration, bytes: u64, rules: &Rules) -> Self {
        let mut renewed = Self { by_hand: self.by_hand, ..Self::new(now, bytes) };
        if self.is_player_by_hand() {
            renewed.marked(now, rules, Level::SoftRealTime);
        }
        renewed
    }

    /// Looks at its counter; returns what is urgent now.
    pub fn look(&mut self, now: Duration, bytes: u64, rules: &Rules) -> Level {
        // A counter may go back: the process has become another one.
        let read = bytes.saturating_sub(self.bytes);
        // Certain is only the time between the last look that found it at the disk and the last that
        // did not.
        let paused = self.looked.saturating_sub(self.active);
        self.bytes = bytes;
        if read > 0 {
            if now.saturating_sub(self.active) > rules.idle
                && !self.in_burst
                && self.level == Level::None
            {
                self.raise(now, rules);
                self.doubt(now, None);
            }
            self.active = now;
            self.seen_asleep = false;
        }
        if let Some(start) = &mut self.start {
            start.interval = now.saturating_sub(self.looked);
            if self.seen_asleep {
                start.away += start.interval;
            }
        }
        self.looked = now;
        self.rhythm(now, read, paused, rules);
        if self.level != Level::None && (now >= self.until || bytes > self.last_byte) {
            self.end(now, rules);
        }
        self.level
    }

    /// Ends what was urgent; who has been found to play while it started goes on as a player.
    fn end(&mut self, now: Duration, rules: &Rules) {
        let was_starting = self.level == Level::Interactive;
        (self.level, self.start) = (Level::None, None);
        // In the midst of a batch, which must not wait for the next one to be noticed.
        let lately = self.batch.began.is_some_and(|began| now.saturating_sub(began) < rules.idle);
        if was_starting && lately && self.batch.good >= rules.soft_batches {
            self.play(now, rules);
        }
    }

    /// Returns whether it matters whether it sleeps or waits for the disk: it has just ceased to
    /// read, or has read nothing for long.
    pub fn is_in_doubt(&self, now: Duration) -> bool {
        let idle = now.saturating_sub(self.active);
        !idle.is_zero() && (!self.seen_asleep || idle >= HELP_AFTER_READ / 2)
    }

    /// Says whether it waits for the disk. Who does is not asleep, and makes no pause.
    pub fn seen(&mut self, now: Duration, held_up: bool) {
        if let Some(start) = self.start.as_mut().filter(|_| !held_up && !self.seen_asleep) {
            start.away += start.interval;
        }
        self.seen_asleep = !held_up;
        if held_up {
            self.active = now;
        }
    }

    /// Returns whether it is to be told how much processor time the process has used.
    pub fn wants_worked(&self, now: Duration, rules: &Rules) -> bool {
        let is_due = |start: Start| start.worked.is_none() || now >= start.since + rules.only_reads;
        self.level == Level::Interactive && self.start.is_some_and(is_due)
    }

    /// Says how much processor time the process has used in its life; who only reads ceases to be
    /// urgent.
    pub fn worked(&mut self, now: Duration, time: Duration, rules: &Rules) {
        let Some(start) = &mut self.start else { return };
        let Some(before) = start.worked else {
            start.worked = Some(time);
            return;
        };
        let span = now.saturating_sub(start.since);
        if span < rules.only_reads {
            return;
        }
        let works = time.saturating_sub(before) * WORK_SHARE >= span;
        let is_away = start.away * AWAY_SHARE >= span;
        self.start = None;
        if !works && !is_away && self.level == Level::Interactive {
            self.end(now, rules);
        }
    }

    /// Returns what was urgent when it was last looked at.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns what the host should help with: who is urgent but wants nothing from the disk needs
    /// no help, and would use up the guest's credit.
    pub fn wants(&self, now: Duration) -> Level {
        let is_active = now.saturating_sub(self.active) < HELP_AFTER_READ;
        if is_active { self.level } else { Level::None }
    }

    /// Returns what somebody has asked for by hand.
    pub fn by_hand(&self) -> Option<Level> {
        self.by_hand
    }

    /// Returns how soon it must be looked at again: soon while it reads, seldom while it sleeps. No
    /// rhythm has pauses of two seconds.
    pub fn next_look(&self, now: Duration) -> Duration {
        let idle = now.saturating_sub(self.active);
        if idle < JUST {
            OFTEN
        } else if idle < LATELY {
            3 * OFTEN
        } else if idle < Duration::from_secs(60) {
            Duration::from_millis(250)
        } else {
            Duration::from_secs(1)
        }
    }

    /// Returns whether it has read nothing for long, so that it is looked at seldom.
    pub fn is_asleep(&self, now: Duration) -> bool {
        now.saturating_sub(self.active) >= LATELY
    }

    fn is_player_by_hand(&self) -> bool {
        self.by_hand == Some(Level::SoftRealTime)
    }

    fn raise(&mut self, now: Duration, rules: &Rules) {
        self.active = now;
        self.level = Level::Interactive;
        self.until = now + rules.interactive;
        self.last_byte = self.bytes.saturating_add(rules.interactive_bytes);
    }

    /// Begins to look whether it is a program that starts; it has used so much processor time.
    fn doubt(&mut self, now: Duration, worked: Option<Duration>) {
        let (away, interval) = (Duration::ZERO, Duration::ZERO);
        self.start = Some(Start { since: now, worked, away, interval });
    }

    /// Follows the batches: a player reads a little, pauses, and reads again.
    fn rhythm(&mut self, now: Duration, read: u64, paused: Duration, rules: &Rules) {
        let is_player = self.level == Level::SoftRealTime;
        let batch = &mut self.batch;
        if read == 0 {
            return;
        }
        if batch.began.is_some() && paused < rules.soft_pause {
            batch.bytes += read;
            return;
        }
        let period = batch.began.map(|began| now.saturating_sub(began));
        let is_good = period.is_some_and(|period| {
            let allowed = period.as_secs_f64() * to_f64(rules.soft_rate);
            let is_rhythm = paused * rules.soft_share >= period && period < rules.idle;
            to_f64(batch.bytes) <= allowed && (is_player || is_rhythm)
        });
        // A single pause that the disk left no time for does not undo a rhythm.
        let good = if is_good { batch.good + 1 } else { batch.good.saturating_sub(2) };
        let good = good.min(2 * rules.soft_batches);
        *batch = Batches { began: Some(now), bytes: read, good };
        // A program that starts reads in batches, too, and has more time as what it is.
        let starts = self.level == Level::Interactive && now < self.until;
        let may_play = !self.in_burst && !starts && !self.is_player_by_hand();
        if good >= rules.soft_batches && may_play {
            self.play(now, rules);
        }
    }

    fn play(&mut self, now: Duration, rules: &Rules) {
        self.level = Level::SoftRealTime;
        self.until = now + rules.soft;
        self.last_byte = self.bytes.saturating_add(rules.soft_rate * 4);
    }
}

/// Bytes and rates are far below 2^52, where this begins to round.
#[expect(clippy::cast_precision_loss, reason = "a rate needs no exact bytes")]
fn to_f64(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
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
}
