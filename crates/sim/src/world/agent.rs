//! The agent in a guest: it judges processes, gives urgent ones an I/O priority and asks for help.
//!
//! The judgement is that of the program `evenkeel-agent`, by the same code; here is what surrounds
//! it there: when it looks at whom, and what it does with the verdict.
//!
//! Deliberately absent: bursts of programs, programs marked by hand, and the CPU time of
//! the agent.

use core::time::Duration;

use evenkeel_sched::{Class, Kind, Nanos, Priority, Urgency};
use evenkeel_urgency::{Asking, Rules, Watched};
use evenkeel_wire::agent::{FromGuest, Level};

use super::os::Life;

/// From the start of a program to its priority: the kernel tells, the agent wakes up and looks.
const HEARS: Nanos = Nanos::from_millis(1);
/// What the guest's clock tells apart.
const GRANULARITY: Duration = Duration::from_millis(4);
const SECTOR_BYTES: u64 = 512;

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

#[derive(Clone, Debug)]
struct Process {
    number: u32,
    watched: Watched,
    next_look: Nanos,
    /// Its ordinary queue, while it has another.
    ordinary: Option<u32>,
}

/// The agent of one guest.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) priority: Priority,
    rules: Rules,
    processes: Vec<Process>,
    asking: Asking,
    looks_at: Option<Nanos>,
}

impl Agent {
    pub(crate) fn new(now: Nanos, model: AgentModel) -> Self {
        let mut asking = Asking::new(now.0);
        asking.connected();
        Self {
            priority: model.priority,
            rules: Rules::new(GRANULARITY),
            processes: Vec::new(),
            asking,
            looks_at: None,
        }
    }

    /// Takes note of a process that starts.
    pub(crate) fn started(&mut self, now: Nanos, number: u32) {
        let mut watched = Watched::new(since_start(now), 0);
        watched.started(since_start(now), Duration::ZERO, &self.rules, false);
        let next_look = now + HEARS;
        self.processes.push(Process { number, watched, next_look, ordinary: None });
        self.looks_at = Some(self.looks_at.map_or(next_look, |planned| planned.min(next_look)));
    }

    /// Returns when it wants to look.
    pub(crate) const fn looks_at(&self) -> Option<Nanos> {
        self.looks_at
    }

    /// Looks at the processes that are due, each of which has a life and may be waiting for the
    /// disk; returns what is to be done. Who is told to mark says so with
    /// [`marked`](Self::marked).
    pub(crate) fn look(
        &mut self,
        now: Nanos,
        seen: impl Fn(u32) -> (Life, bool),
    ) -> Vec<(u32, Verdict)> {
        let mut verdicts = Vec::new();
        let rules = self.rules;
        self.processes.retain_mut(|process| {
            let (life, waits) = seen(process.number);
            let has_ended = life.ended.is_some();
            if now < process.next_look && !has_ended {
                return true;
            }
            let verdict = process.look(now, life, waits, &rules);
            if verdict != Verdict::Leave {
                verdicts.push((process.number, verdict));
            }
            !has_ended
        });
        self.plan();
        verdicts
    }

    /// Takes note that a process has a queue with the priority instead of its ordinary one.
    pub(crate) fn marked(&mut self, number: u32, ordinary: u32) {
        let process = self.processes.iter_mut().find(|process| process.number == number);
        process.expect("it was looked at").ordinary = Some(ordinary);
    }

    /// Returns what to tell the host now, if anything: how urgent it is.
    pub(crate) fn news(&mut self, now: Nanos) -> Option<Urgency> {
        let level = self.level(now);
        let message = self.asking.review(since_start(now), level, String::new);
        let review = self.asking.next_review(level).map(nanos);
        self.plan();
        self.looks_at = [self.looks_at, review].into_iter().flatten().min();
        match message? {
            FromGuest::Help { level, .. } => Some(urgency(level)),
            FromGuest::Hello { .. } => None,
        }
    }

    fn level(&self, now: Nanos) -> Level {
        let now = since_start(now);
        let levels = self.processes.iter().map(|process| process.watched.wants(now));
        levels.max().unwrap_or(Level::None)
    }

    fn plan(&mut self) {
        self.looks_at = self.processes.iter().map(|process| process.next_look).min();
    }
}

impl Process {
    fn look(&mut self, now: Nanos, life: Life, waits: bool, rules: &Rules) -> Verdict {
        let time = since_start(now);
        self.watched.look(time, life.read_sectors * SECTOR_BYTES, rules);
        if self.watched.is_in_doubt(time) {
            self.watched.seen(time, waits);
        }
        if self.watched.wants_worked(time, rules) {
            self.watched.worked(time, Duration::from_nanos(life.computed.0), rules);
        }
        let mut level = self.watched.level();
        if life.ended.is_some() {
            level = Level::None;
        }
        self.next_look = now + nanos(self.watched.next_look(time));
        match (level, self.ordinary) {
            (Level::None, Some(ordinary)) => {
                self.ordinary = None;
                Verdict::Restore(ordinary)
            }
            (Level::None, None) | (_, Some(_)) => Verdict::Leave,
            (_, None) => Verdict::Mark,
        }
    }
}

const fn urgency(level: Level) -> Urgency {
    match level {
        Level::None => Urgency::None,
        Level::Interactive => Urgency::Interactive,
        Level::SoftRealTime => Urgency::SoftRealTime,
    }
}

const fn since_start(now: Nanos) -> Duration {
    Duration::from_nanos(now.0)
}

fn nanos(time: Duration) -> Nanos {
    Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
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
        Life { started: START, ended, computed: Nanos::ZERO, read_sectors, written_sectors: 0 }
    }

    /// Looks when the agent wants to while a process reads so many sectors between looks, and computes
    /// for a tenth of the time; returns for how many milliseconds it was marked, and for how many the
    /// host was asked.
    fn watch(looks: u32, sectors: impl Fn(u32) -> u64, waits: impl Fn(u32) -> bool) -> (u64, u64) {
        watch_who_computes(looks, 10, sectors, waits)
    }

    /// The same for one who computes for one part in so many.
    fn watch_who_computes(
        looks: u32,
        part: u64,
        sectors: impl Fn(u32) -> u64,
        waits: impl Fn(u32) -> bool,
    ) -> (u64, u64) {
        let mut agent = agent();
        let (mut total, mut marked, mut asked) = (0, None, None);
        let (mut marked_ms, mut asked_ms) = (0, 0);
        for look in 0..looks {
            let now = agent.looks_at().expect("it watches");
            total += sectors(look);
            let life = Life { computed: Nanos((now - START).0 / part), ..life(total, None) };
            for (process, verdict) in agent.look(now, |_| (life, waits(look))) {
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
    fn who_only_reads_is_marked_for_four_seconds() {
        let (marked, asked) = watch_who_computes(600, 100, |_| 8, |_| false);
        assert_eq!(marked, 4_000);
        assert!((4_060..=4_120).contains(&asked), "{asked}");
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
        // The level lingers for so long.
        let later = end + Nanos::from_millis(100);
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
