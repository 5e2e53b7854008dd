//! Soft real time: players and recorders, which need little, but need it in time.
//!
//! They request a batch, wait until all of it is there, work with it for a while, and request the
//! next one; over all, they are slow. Somebody greedy may look like that for a moment, if the CPU
//! is busy or the clock jumps. So a batch counts only if it comes later than
//!
//! * all that was sent since the queue had nothing last would have taken at the greatest rate of a
//!   soft real-time application;
//! * the longest time that a queue is waited for, and a guard on top for uneven clocks, after the
//!   last completion: a greedy application would have answered;
//! * whatever the same two rules said about earlier batches.
//!
//! Source: P. Valente and A. Avanzini, "Evolution of the BFQ Storage-I/O Scheduler", 2015; vIrtical
//! deliverable D3.6, section 2.4 and the guard of four ticks.

use super::BfqTunables;
use crate::Nanos;

/// What a queue must keep to, to be soft real-time.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoftRtRules {
    /// Most sectors per second; zero: nobody is soft real-time.
    rate: u32,
    /// Longest pause of somebody greedy.
    pause: Nanos,
}

impl SoftRtRules {
    pub(super) fn new(tunables: &BfqTunables) -> Self {
        let pause = tunables.slice_idle + tunables.soft_rt_guard;
        Self { rate: tunables.wr_max_softrt_rate, pause }
    }
}

/// The batches of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batches {
    /// Until when a batch is too early.
    next_start: Nanos,
    /// When the queue had nothing last, and then got a request.
    began: Nanos,
    /// Sent since, in sectors, without charges for time.
    pub(super) service: u64,
}

impl Batches {
    /// Takes note of an arrival at a queue with nothing waiting and nothing in flight, whose last
    /// request completed at `ended`; returns whether it comes late enough.
    pub(super) fn next(&mut self, now: Nanos, ended: Option<Nanos>, rules: SoftRtRules) -> bool {
        let is_late = ended.is_some_and(|ended| {
            self.next_start = self.earliest(ended, rules);
            rules.rate > 0 && now > self.next_start
        });
        (self.began, self.service) = (now, 0);
        is_late
    }

    /// Forgives what was requested so far: loading an application says nothing about what it does
    /// when it is loaded.
    pub(super) fn forgive(&mut self, now: Nanos) {
        self.next_start = now;
    }

    /// Returns until when the next batch is too early if the last one was complete at `ended`.
    fn earliest(&self, ended: Nanos, rules: SoftRtRules) -> Nanos {
        let least = self.next_start.max(ended + rules.pause);
        if rules.rate == 0 {
            return least;
        }
        // Most batches are far below the rate, and a division costs more than all the rest.
        let ns = self.service.saturating_mul(1_000_000_000);
        if ns <= least.since(self.began).0.saturating_mul(u64::from(rules.rate)) {
            return least;
        }
        least.max(self.began + Nanos(ns / u64::from(rules.rate)))
    }
}
