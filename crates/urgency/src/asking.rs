//! When the guest asks the host for help, and when it stops.
//!
//! The host is told a level, not events: what is most urgent now. It is told again before the lease
//! ends, and told at once when the level rises; when it falls, a moment later, so that many
//! short-lived programs do not make a storm of messages.

use std::time::Duration;

use evenkeel_wire::agent::{FromGuest, LEASE_MS_MAX, Level};

/// How long a level is still asked for after it was last needed.
const LINGER: Duration = Duration::from_millis(100);

/// The shortest time between two messages, those that raise the level aside.
const SPACING: Duration = Duration::from_millis(50);

/// What the host was told, and when it must be told again.
#[derive(Clone, Debug)]
pub struct Asking {
    seq: u64,
    /// Whether urgent processes have an I/O priority that the host can see.
    pub marked: bool,
    told: Level,
    /// When, if at all on this connection.
    told_at: Option<Duration>,
    /// When what was told was last needed.
    needed: Duration,
    /// What the host has granted last.
    pub granted: Level,
    /// The lease of the host; ours are never longer.
    lease: Duration,
}

impl Asking {
    /// Begins; `seq` is a number above all that this guest has used, such as the time in ns.
    pub fn new(seq: u64) -> Self {
        Self {
            seq,
            marked: false,
            told: Level::None,
            told_at: None,
            needed: Duration::ZERO,
            granted: Level::None,
            lease: Duration::from_millis(u64::from(LEASE_MS_MAX)),
        }
    }

    /// The connection is new: nobody knows anything.
    pub fn connected(&mut self) {
        self.told = Level::None;
        self.told_at = None;
        self.granted = Level::None;
    }

    /// The host has said how long its leases are.
    pub fn set_lease(&mut self, lease_max_ms: u32) {
        self.lease = Duration::from_millis(u64::from(lease_max_ms.clamp(1, LEASE_MS_MAX)));
    }

    /// Returns what to tell the host now, if anything. `level` is what is most urgent, `reason`
    /// says why.
    pub fn review(
        &mut self,
        now: Duration,
        level: Level,
        reason: impl FnOnce() -> String,
    ) -> Option<FromGuest> {
        if level >= self.told {
            self.needed = now;
        }
        let since = self.told_at.map(|at| now.saturating_sub(at));
        let is_due = if level > self.told {
            true
        } else if level < self.told {
            now >= self.needed + LINGER && since.is_none_or(|since| since >= SPACING)
        } else {
            level != Level::None && since.is_none_or(|since| since >= self.lease / 2)
        };
        // While it lingers the lease must hold, too.
        let lingers = level < self.told && since.is_none_or(|since| since >= self.lease / 2);
        if !is_due && !lingers {
            return None;
        }
        if is_due {
            self.told = level;
        }
        self.told_at = Some(now);
        self.seq += 1;
        let lease_ms = if self.told == Level::None { Duration::ZERO } else { self.lease };
        Some(FromGuest::Help {
            seq: self.seq,
            level: self.told,
            lease_ms: u32::try_from(lease_ms.as_millis()).unwrap_or(LEASE_MS_MAX),
            marked: self.marked,
            reason: if self.told == Level::None { String::new() } else { reason() },
        })
    }

    /// Returns when [`review`](Self::review) is due if nothing changes.
    pub fn next_review(&self, level: Level) -> Option<Duration> {
        let at = self.told_at?;
        if level < self.told {
            Some((self.needed + LINGER).max(at + SPACING).min(at + self.lease / 2))
        } else {
            (level != Level::None).then_some(at + self.lease / 2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn told(message: Option<FromGuest>) -> Option<(Level, u32)> {
        message.map(|message| match message {
            FromGuest::Help { level, lease_ms, .. } => (level, lease_ms),
            FromGuest::Hello { .. } => unreachable!("asking says no hello"),
        })
    }

    fn review(asking: &mut Asking, now: Duration, level: Level) -> Option<(Level, u32)> {
        told(asking.review(now, level, || "test".to_owned()))
    }

    #[test]
    fn help_is_asked_for_at_once_and_renewed_twice_per_lease() {
        let mut asking = Asking::new(1);
        assert_eq!(review(&mut asking, MS, Level::None), None);
        let on = Some((Level::Interactive, 1000));
        assert_eq!(review(&mut asking, 2 * MS, Level::Interactive), on);
        let messages =
            (3..2002).filter(|&ms| review(&mut asking, ms * MS, Level::Interactive).is_some());
        assert_eq!(messages.count(), 3, "after 500, 1000 and 1500 ms");
    }

    #[test]
    fn help_is_given_up_a_moment_later() {
        let mut asking = Asking::new(1);
        review(&mut asking, Duration::ZERO, Level::Interactive);
        let off = (1..1000)
            .find_map(|ms| review(&mut asking, ms * MS, Level::None).map(|message| (ms, message)));
        assert_eq!(off, Some((100, (Level::None, 0))));
    }

    #[test]
    fn short_lived_programs_make_no_storm() {
        let mut asking = Asking::new(1);
        let mut messages = 0;
        for ms in 0..10_000 {
            let level = if ms % 20 < 10 { Level::Interactive } else { Level::None };
            messages += u32::from(review(&mut asking, ms * MS, level).is_some());
        }
        assert!(messages <= 21, "{messages}: one per half lease");
    }

    #[test]
    fn a_new_connection_is_told_again() {
        let mut asking = Asking::new(1);
        assert!(review(&mut asking, MS, Level::SoftRealTime).is_some());
        assert!(review(&mut asking, 2 * MS, Level::SoftRealTime).is_none());
        asking.connected();
        assert!(review(&mut asking, 3 * MS, Level::SoftRealTime).is_some());
    }

    #[test]
    fn sequence_numbers_grow() {
        let mut asking = Asking::new(7);
        let mut last = 7;
        for ms in 0..5000 {
            let level = if ms / 700 % 2 == 0 { Level::Interactive } else { Level::None };
            if let Some(FromGuest::Help { seq, .. }) =
                asking.review(ms * MS, level, || "test".to_owned())
            {
                assert!(seq > last);
                last = seq;
            }
        }
        assert!(last > 10);
    }

    #[test]
    fn the_next_review_is_never_missed() {
        let mut asking = Asking::new(1);
        let mut now = Duration::ZERO;
        for step in 0..200_u32 {
            let level = if step % 50 < 25 { Level::Interactive } else { Level::None };
            review(&mut asking, now, level);
            let Some(next) = asking.next_review(level) else {
                now += 10 * MS;
                continue;
            };
            assert!(next > now, "step {step}");
            assert_eq!(review(&mut asking, next - Duration::from_nanos(1), level), None);
            now = next;
        }
    }
}
