//! Tells the one who waits what is going on and how long it may take, on standard error.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Counts the starts that are still to come.
#[derive(Debug)]
pub(super) struct Progress {
    began: Instant,
    idle_left: Cell<u32>,
    loaded_left: Cell<u32>,
    warm_ups_left: Cell<u32>,
    /// What one start takes, pauses included; a guess until one has been seen.
    idle: Cell<Duration>,
    loaded: Cell<Duration>,
}

impl Progress {
    pub(super) fn new(schedulers: usize, starts: u32) -> Self {
        let schedulers = u32::try_from(schedulers).unwrap_or(u32::MAX);
        Self {
            began: Instant::now(),
            idle_left: Cell::new(schedulers.saturating_mul(starts)),
            loaded_left: Cell::new(schedulers.saturating_mul(starts)),
            warm_ups_left: Cell::new(schedulers),
            idle: Cell::new(Duration::from_secs(4)),
            loaded: Cell::new(Duration::from_secs(8)),
        }
    }

    /// Prints a line with the time since the begin.
    pub(super) fn say(&self, what: &str) {
        eprintln!("[{:>3} s] {what}", self.began.elapsed().as_secs());
    }

    /// Prints a line, and a guess how much longer it will take.
    pub(super) fn step(&self, what: &str) {
        let left = self.idle.get() * self.idle_left.get()
            + self.loaded.get() * self.loaded_left.get()
            + WARM_UP * self.warm_ups_left.get();
        self.say(&format!("{what:<58} (about {} s left)", left.as_secs()));
    }

    pub(super) fn idle_done(&self, took: Duration) {
        self.idle_left.set(self.idle_left.get().saturating_sub(1));
        self.idle.set(took);
    }

    pub(super) fn loaded_done(&self, took: Duration) {
        self.loaded_left.set(self.loaded_left.get().saturating_sub(1));
        // Half the old guess: what comes next may run under another scheduler.
        self.loaded.set((self.loaded.get() + took) / 2);
    }

    pub(super) fn warmed_up(&self) {
        self.warm_ups_left.set(self.warm_ups_left.get().saturating_sub(1));
    }
}

const WARM_UP: Duration = Duration::from_secs(10);
