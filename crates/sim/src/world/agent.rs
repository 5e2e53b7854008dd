//! The agent in a guest: it judges processes, gives urgent ones an I/O priority and asks for help.
//!
//! A model of the program `evenkeel-agent`, whose rules it has: a process that starts, or reads
//! again after it wanted nothing for two seconds, is urgent for ten seconds or 120 000 sectors; one
//! that reads in batches, at a modest rate and with pauses, for a second after each. While it is, its
//! requests have a priority that the host sees, and while it reads as well, the host is asked for
//! help.
//!
//! Deliberately absent: bursts of programs, programs marked by hand, and the CPU time of
//! the agent.

use evenkeel_sched::{Class, Kind, Nanos, Priority, Urgency};

use super::os::Life;

/// From the start of a program to its priority: the kernel tells, the agent wakes up and looks.
const HEARS: Nanos = Nanos::from_millis(1);
/// How long, and for how many sectors, who has started is urgent.
const URGENT: Nanos = Nanos::from_secs(10);
const URGENT_SECTORS: u64 = 120_000;
/// Who reads after such a silence has woken up.
const IDLE: Nanos = Nanos::from_secs(2);
/// A player reads at most so many sectors a second, pauses for so long between two batches, and has
/// done so for so many batches in a row; it is urgent for so long after each.
const PLAYER_RATE: u64 = 16_384;
const PLAYER_PAUSE: Nanos = Nanos::from_millis(24);
const PLAYER_BATCHES: u32 = 4;
const PLAYER_URGENT: Nanos = Nanos::from_secs(1);
/// Help is asked for those who have read so recently.
const HELP_AFTER_READ: Nanos = Nanos::from_secs(1);
/// Help is given up so much later than it was last needed.
const LINGER: Nanos = Nanos::from_millis(100);
/// How often the host is told what it knows already: twice in a lease.
const REPEAT: Nanos = Nanos::from_millis(500);
/// How often a process is looked at: one that reads, one that has slept for a while, one that
/// sleeps.
const LOOKS: [(Nanos, Nanos); 3] = [
    (Nanos::from_secs(5), Nanos::from_millis(20)),
    (Nanos::from_secs(60), Nanos::from_millis(250)),
    (Nanos(u64::MAX), Nanos::from_secs(1)),
];

/// How a guest's agent is set up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AgentModel {
    /// The I/O priority of urgent processes.
    pub priority: Priority,
}

impl AgentModel {
    /// Returns the agent of a guest with this elevator. Beside BFQ it takes the lowest level of the
    /// real-time class, otherwise the best one of best effort.
    #[must_use]
    pub const fn beside(kind: Kind) -> Self {
        let priority = match kind {
            Kind::Bfq => Priority { class: Class::RealTime, level: 7 },
            _ => Priority { class: Class::BestEffort, level: 0 },
        };
        Self { priority }
    }
}

/// What is to be done with a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing.
    Leave,
    /// Give it the priority.
    Mark,
    /// Give it back the queue that it had before.
    Restore(u32),
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    process: u32,
    sectors: u64,
    /// When it was last seen to have read, or started.
    active: Nanos,
    /// When it was last looked at.
    looked: Nanos,
    /// How urgent it is, until when and up to which sector.
    urgent: Option<Urgent>,
    batch: Batch,
    /// Its ordinary queue, while it has another.
    ordinary: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Urgent {
    urgency: Urgency,
    until: Nanos,
    last_sector: u64,
}

/// What a process reads without a pause, and how many of those in a row were a player's.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    began: Option<Nanos>,
    sectors: u64,
    is_going_on: bool,
    good: u32,
}

/// The agent of one guest.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) priority: Priority,
    watched: Vec<Watched>,
    looks_at: Option<Nanos>,
    asks: Urgency,
    told_at: Nanos,
    needed_at: Nanos,
}

impl Agent {
    pub(crate) fn new(now: Nanos, model: AgentModel) -> Self {
        Self {
            priority: model.priority,
            watched: Vec::new(),
            looks_at: None,
            asks: Urgency::None,
            told_at: now,
            needed_at: now,
        }
    }

    /// Takes note of a process that starts.
    pub(crate) fn started(&mut self, now: Nanos, process: u32) {
        self.watched.push(Watched {
            process,
            sectors: 0,
            active: now,
            looked: now,
            urgent: Some(Urgent::starts(now, 0)),
            batch: Batch::default(),
            ordinary: None,
        });
        let at = now + HEARS;
        self.looks_at = Some(self.looks_at.map_or(at, |planned| planned.min(at)));
    }

    /// Returns when it wants to look.
    pub(crate) const fn looks_at(&self) -> Option<Nanos> {
        self.looks_at
    }

    /// Looks at the processes, each of which has a life and may be waiting for the disk; returns
    /// what is to be done. Who is told to mark says so with [`marked`](Self::marked).
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        seen: impl Fn(u32) -> (Life, bool),
    ) -> Vec<(u32, Verdict)> {
        let mut verdicts = Vec::new();
        self.watched.retain_mut(|watched| {
            let (life, waits) = seen(watched.process);
            let verdict = watched.look(now, life, waits);
            if verdict != Verdict::Leave {
                verdicts.push((watched.process, verdict));
            }
            life.ended.is_none()
        });
        let next = self.watched.iter().map(|watched| {
            let idle = now - watched.active;
            let look = LOOKS.iter().find(|look| idle < look.0);
            now + look.map_or(LOOKS[2].1, |look| look.1)
        });
        self.looks_at = next.min();
        if self.looks_at.is_none() && self.asks != Urgency::None {
            self.looks_at = Some(now + LOOKS[0].1);
        }
        verdicts
    }

    /// Takes note that a process has a queue with the priority instead of its ordinary one.
    pub(crate) fn marked(&mut self, process: u32, ordinary: u32) {
        let watched = self.watched.iter_mut().find(|watched| watched.process == process);
        watched.expect("it was looked at").ordinary = Some(ordinary);
    }

    /// Returns what to tell the host now, if anything: how urgent it is.
    pub(crate) fn news(&mut self, now: Nanos) -> Option<Urgency> {
        let needed = self.watched.iter().map(|watched| watched.wants(now)).max();
        let needed = needed.unwrap_or_default();
        if needed != Urgency::None {
            self.needed_at = now;
        }
        let lingers = needed == Urgency::None && now < self.needed_at + LINGER;
        let asks = if lingers { self.asks } else { needed };
        let is_due = asks != Urgency::None && now >= self.told_at + REPEAT;
        if asks == self.asks && !is_due {
            return None;
        }
        (self.asks, self.told_at) = (asks, now);
        Some(asks)
    }
}

impl Urgent {
    fn starts(now: Nanos, sectors: u64) -> Self {
        let (until, last_sector) = (now + URGENT, sectors + URGENT_SECTORS);
        Self { urgency: Urgency::Interactive, until, last_sector }
    }

    fn plays(now: Nanos, sectors: u64) -> Self {
        let (until, last_sector) = (now + PLAYER_URGENT, sectors + 2 * PLAYER_RATE);
        Self { urgency: Urgency::SoftRealTime, until, last_sector }
    }
}

impl Watched {
    fn look(&mut self, now: Nanos, life: Life, waits: bool) -> Verdict {
        let read = life.read_sectors - self.sectors;
        let paused = self.looked.since(self.active);
        if read > 0 {
            if now - self.active > IDLE && self.urgent.is_none() {
                self.urgent = Some(Urgent::starts(now, self.sectors));
            }
            self.active = now;
        } else if waits {
            // Held up, not asleep.
            self.active = now;
        }
        (self.sectors, self.looked) = (life.read_sectors, now);
        if self.batch.follow(now, read, paused) {
            self.urgent = Some(Urgent::plays(now, self.sectors));
        }
        let is_over = |urgent: Urgent| now >= urgent.until || self.sectors > urgent.last_sector;
        if life.ended.is_some() || self.urgent.is_some_and(is_over) {
            self.urgent = None;
        }
        match (self.urgent, self.ordinary) {
            (Some(_), None) => Verdict::Mark,
            (None, Some(_)) => self.ordinary.take().map_or(Verdict::Leave, Verdict::Restore),
            _ => Verdict::Leave,
        }
    }

    fn wants(&self, now: Nanos) -> Urgency {
        let is_active = now - self.active < HELP_AFTER_READ;
        self.urgent.filter(|_| is_active).map_or(Urgency::None, |urgent| urgent.urgency)
    }
}

impl Batch {
    /// Takes note of what was read since the last look, before which it had `paused`; returns
    /// whether a batch of a player begins.
    fn follow(&mut self, now: Nanos, read: u64, paused: Nanos) -> bool {
        if read == 0 {
            self.is_going_on = false;
            return false;
        }
        if self.is_going_on {
            self.sectors += read;
            return false;
        }
        let is_good = self.began.is_some_and(|began| {
            let period = now - began;
            let is_modest = self.sectors * 1_000_000_000 <= period.0 * PLAYER_RATE;
            is_modest && paused >= PLAYER_PAUSE && period < IDLE
        });
        let good = if is_good { self.good + 1 } else { 0 };
        *self = Self { began: Some(now), sectors: read, is_going_on: true, good };
        good >= PLAYER_BATCHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_secs(1);
    const MS: u64 = 1_000_000;

    fn agent() -> Agent {
        let mut agent = Agent::new(START, AgentModel::beside(Kind::Bfq));
        agent.started(START, 7);
        agent
    }

    fn life(read_sectors: u64, ended: Option<Nanos>) -> Life {
        Life { started: START, ended, read_sectors, written_sectors: 0 }
    }

    /// Looks when the agent wants to while a process reads so many sectors between looks; returns
    /// for how many milliseconds it was marked, and for how many the host was asked.
    fn watch(looks: u32, sectors: impl Fn(u32) -> u64, waits: impl Fn(u32) -> bool) -> (u64, u64) {
        let mut agent = agent();
        let (mut total, mut marked, mut asked) = (0, None, None);
        let (mut marked_ms, mut asked_ms) = (0, 0);
        for look in 0..looks {
            let now = agent.looks_at().expect("it watches");
            total += sectors(look);
            for (process, verdict) in agent.look(now, |_| (life(total, None), waits(look))) {
                match verdict {
                    Verdict::Mark => {
                        agent.marked(process, 3);
                        marked = Some(now);
                    }
                    Verdict::Restore(3) => {
                        marked_ms += (now - marked.take().expect("it was marked")).0 / MS;
                    }
                    other => unreachable!("{other:?}"),
                }
            }
            match agent.news(now) {
                Some(Urgency::None) => asked_ms += (now - asked.take().expect("it asked")).0 / MS,
                Some(_) if asked.is_none() => asked = Some(now),
                _ => {}
            }
        }
        (marked_ms, asked_ms)
    }

    #[test]
    fn who_starts_is_marked_for_ten_seconds_and_helped_while_he_reads() {
        let (marked, asked) = watch(600, |_| 8, |_| false);
        assert_eq!(marked, 10_000);
        assert!((10_060..=10_120).contains(&asked), "100 ms longer, seen every 20 ms: {asked}");
        let (marked, asked) = watch(600, |look| u64::from(look < 50) * 8, |_| false);
        assert!((10_000..=10_250).contains(&marked), "{marked}");
        assert!((2_050..2_150).contains(&asked), "a second after the last read: {asked}");
    }

    #[test]
    fn who_reads_much_is_urgent_until_his_sectors_are_used_up() {
        let (marked, _) = watch(600, |_| 1_200, |_| false);
        assert!((2_000..=2_020).contains(&marked), "{marked}");
    }

    #[test]
    fn who_reads_after_a_silence_is_urgent_again() {
        let reads = |look| u64::from(!(10..=1_000).contains(&look)) * 8;
        let (marked, _) = watch(2_000, reads, |_| false);
        // Who sleeps is looked at every 250 ms.
        assert!((20_000..=20_250).contains(&marked), "{marked}");
    }

    #[test]
    fn who_was_held_up_at_the_disk_has_not_slept() {
        let reads = |look| u64::from(!(10..=1_000).contains(&look)) * 8;
        let (marked, _) = watch(2_000, reads, |look| (10..=1_000).contains(&look));
        assert_eq!(marked, 10_000);
    }

    #[test]
    fn who_has_ended_gets_back_his_queue_and_nothing_is_asked_for_him() {
        let mut agent = agent();
        let at = agent.looks_at().expect("somebody starts");
        assert_eq!(agent.look(at, |_| (life(8, None), true)), [(7, Verdict::Mark)]);
        agent.marked(7, 3);
        assert_eq!(agent.news(at), Some(Urgency::Interactive));
        let end = agent.looks_at().expect("it watches");
        assert_eq!(agent.look(end, |_| (life(8, Some(end)), false)), [(7, Verdict::Restore(3))]);
        assert_eq!(agent.news(end), None, "it lingers");
        let later = end + LINGER;
        assert!(agent.look(later, |_| unreachable!("nobody is left")).is_empty());
        assert_eq!(agent.news(later), Some(Urgency::None));
        assert_eq!(agent.look(later, |_| (life(0, None), false)), []);
        assert_eq!(agent.looks_at(), None);
    }

    #[test]
    fn who_reads_in_batches_is_a_player_and_who_reads_all_the_time_is_none() {
        let plays = |sectors: fn(u32) -> u64| {
            let (mut agent, mut total, mut urgency) = (agent(), 0, Urgency::None);
            for look in 0..1_000 {
                let now = agent.looks_at().expect("it watches");
                total += sectors(look);
                for (process, verdict) in agent.look(now, |_| (life(total, None), false)) {
                    if verdict == Verdict::Mark {
                        agent.marked(process, 3);
                    }
                }
                urgency = agent.news(now).unwrap_or(urgency);
            }
            urgency
        };
        // Looks are 20 ms apart: 2048 sectors each 250 ms, and 1 MiB/s without a pause.
        assert_eq!(plays(|look| if look % 12 < 2 { 1_024 } else { 0 }), Urgency::SoftRealTime);
        assert_eq!(plays(|_| 40), Urgency::None);
    }
}
