//! What a worker does when it has nothing to do: look around for a while if that pays, then sleep.

use std::io;
use std::os::fd::OwnedFd;

use evenkeel_sched::Nanos;
use rustix::fs::{Mode, OFlags};

use super::Worker;
use crate::model::Modelled;
use crate::polling::Awaited;
use crate::uring::Wait;

/// Looks between two readings of the clock: about a microsecond.
const LOOKS_PER_READING: u32 = 16;
/// A worker that finds so much time gone between two readings was not running meanwhile.
const GAP: Nanos = Nanos::from_micros(50);
/// Most vrings that are looked at. With more a look takes long itself, and those whose guests have
/// fallen silent meanwhile must be let go of: then the worker sleeps once, or takes a turn.
const WATCHED_MAX: usize = 32;
/// Looks between two questions to the kernel whether others want the processor.
const LOOKS_PER_QUESTION: u32 = 32;
/// They do if the worker had to wait for it for more than this part of the time.
const CROWD: u64 = 20;

/// How long this thread was ready to run and did not: what others made it wait for a processor.
#[derive(Debug)]
pub(super) struct RunDelay {
    /// Running and waiting times of the thread; none where the kernel does not tell.
    file: Option<OwnedFd>,
    /// Looks until it is asked.
    looks: u32,
    /// When it was asked last, and the answer.
    last: (Nanos, u64),
}

impl RunDelay {
    /// Opens the figures of the calling thread.
    pub(super) fn new() -> Self {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::open("/proc/thread-self/schedstat", flags, Mode::empty()).ok();
        Self { file, looks: 0, last: (Nanos::ZERO, 0) }
    }

    /// Returns whether others wanted the processor since the last question. To be asked after each
    /// look.
    fn is_crowded(&mut self, now: Nanos) -> bool {
        self.looks += 1;
        if self.looks < LOOKS_PER_QUESTION {
            return false;
        }
        self.looks = 0;
        let Some(delay) = self.read() else { return false };
        let (since, before) = std::mem::replace(&mut self.last, (now, delay));
        since > Nanos::ZERO && delay.saturating_sub(before) * CROWD > (now - since).0
    }

    /// Returns the second field of the file: nanoseconds on a run queue.
    fn read(&self) -> Option<u64> {
        let mut bytes = [0; 64];
        let length = rustix::io::pread(self.file.as_ref()?, &mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes[..length]).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    }
}

/// How a look ended.
enum Look {
    Found,
    /// Nothing there, and its time is over.
    Missed,
    /// Nothing there, and somebody else wants the processor.
    Crowded,
}

impl Worker {
    /// Returns what there is to wait for.
    pub(super) fn awaited(&self) -> Awaited {
        if self.engine.in_flight() > 0 { Awaited::Device } else { Awaited::Guest }
    }

    /// Returns how long to look for work before the wait that begins now; none is not at all.
    pub(super) fn window(&mut self, awaited: Awaited) -> Option<Nanos> {
        let window = self.polling.window(awaited)?;
        (self.draining.is_none() && self.guests.kicked() <= WATCHED_MAX).then_some(window)
    }

    /// Ends a turn that began at `now`: looks for work for `window` if there is one, and returns
    /// how long to sleep.
    ///
    /// # Errors
    ///
    /// * What the ring says.
    pub(super) fn rest(
        &mut self,
        now: Nanos,
        awaited: Awaited,
        window: Option<Nanos>,
    ) -> io::Result<Wait> {
        if let Some(window) = window {
            self.ring.enter(Wait::No)?;
            // What is there already needs no look, and would have needed no sleep.
            if self.is_there_work() || self.look(awaited, window) {
                return Ok(Wait::No);
            }
        }
        self.guests.enable_kicks();
        let wait = self.wait(now)?;
        if wait != Wait::No {
            self.polling.sleep(awaited, now);
        }
        Ok(wait)
    }

    fn is_there_work(&mut self) -> bool {
        self.ring.has_news() || self.guests.has_offers()
    }

    /// Looks for work for `window`, or until the engine wants a turn; returns whether there is any.
    fn look(&mut self, awaited: Awaited, window: Nanos) -> bool {
        let start = self.clock.now();
        let until = self.deadline().map_or(start + window, |due| due.min(start + window));
        let mut last = start;
        let look = loop {
            if (0..LOOKS_PER_READING).any(|_| {
                std::hint::spin_loop();
                self.is_there_work()
            }) {
                break Look::Found;
            }
            let now = self.clock.now();
            let gap = now - last;
            last = now;
            if gap > GAP {
                break Look::Crowded;
            }
            if now >= until {
                break Look::Missed;
            }
        };
        match look {
            Look::Found => self.polling.found(awaited, last - start),
            Look::Missed => self.polling.missed(awaited, last - start),
            Look::Crowded => {
                self.polling.missed(awaited, last - start);
                self.polling.crowded();
            }
        }
        if self.run_delay.is_crowded(last) {
            self.polling.crowded();
        }
        matches!(look, Look::Found)
    }

    /// Returns when the engine or the model wants a turn.
    fn deadline(&self) -> Option<Nanos> {
        let model = self.model.as_ref().and_then(Modelled::next_event);
        [self.engine.next_deadline(), model].into_iter().flatten().min()
    }

    fn wait(&mut self, now: Nanos) -> io::Result<Wait> {
        if self.guests.has_kicked() && self.draining.is_none() {
            return Ok(Wait::No);
        }
        match self.deadline() {
            Some(deadline) => self.ring.alarm(now, deadline),
            None => Ok(Wait::Forever),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_how_long_a_thread_waited_for_a_processor() {
        let mut delay = RunDelay::new();
        assert!(delay.read().is_some(), "Linux with CONFIG_SCHED_INFO, as all distributions have");
        let now = Nanos::ORIGIN;
        let asked = |delay: &mut RunDelay, at: Nanos| {
            (0..LOOKS_PER_QUESTION).filter(|_| delay.is_crowded(at)).count()
        };
        assert_eq!(asked(&mut delay, now), 0, "nothing to compare with yet");
        // In a thousand years nobody waits for a twentieth of the time.
        assert_eq!(asked(&mut delay, now + Nanos::from_secs(1 << 34)), 0);
        delay.last = (now, 0);
        let waited = delay.read().unwrap();
        let expected = usize::from(waited > 0);
        assert_eq!(asked(&mut delay, now), expected, "all of no time is too much");
    }
}
