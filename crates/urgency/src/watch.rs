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
mod tests;
