//! What is known of whoever issues requests: how long it thinks, how far it moves.

use crate::average::Average;
use crate::{Nanos, Request};

/// Longer pauses are no thinking; samples are capped here.
const THINK_MAX: Nanos = Nanos::from_millis(19);
/// What a seek may exceed four times the mean by, in sectors: at first, and later.
const SEEK_SLACK: [u64; 2] = [2 << 20, 2 << 16];

/// Half, in the fixed point of probabilities.
pub(super) const HALF: u32 = 128;

/// One queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Issuer {
    /// Time from the completion of a request to the next one, in nanoseconds.
    pub(super) think: Average,
    /// Distance from one request to the next, in sectors.
    pub(super) seek: Average,
    /// When a request that somebody waits for completed last.
    pub(super) last_end: Option<Nanos>,
    /// Sector behind the last such request.
    last_pos: Option<u64>,
    pub(super) queued: u32,
    pub(super) in_flight: u32,
    /// Nothing comes from it any more.
    pub(super) is_gone: bool,
}

/// What all issuers together teach about those of whom nothing is known. Probabilities: 256 = 1.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lessons {
    /// How likely an issuer ends while it is waited for.
    pub(super) exit_prob: u32,
    /// How likely nobody else comes with a near request after an issuer ended.
    pub(super) exit_no_coop: u32,
    new_think_total: u64,
    new_seek_total: u64,
}

impl Lessons {
    /// Returns how long issuers think before their second request, in nanoseconds.
    pub(super) const fn new_think_mean(&self) -> u64 {
        self.new_think_total / 256
    }

    /// Returns how far issuers move to their second request, in sectors.
    pub(super) const fn new_seek_mean(&self) -> u64 {
        self.new_seek_total / 256
    }

    pub(super) const fn more_exits(&mut self) {
        self.exit_prob = (7 * self.exit_prob + 256) / 8;
    }

    pub(super) const fn less_cooperation(&mut self) {
        self.exit_no_coop = (7 * self.exit_no_coop + 256) / 8;
    }

    pub(super) const fn more_cooperation(&mut self) {
        self.exit_no_coop = 7 * self.exit_no_coop / 8;
    }
}

impl Issuer {
    /// Learns from a request that somebody waits for, of this issuer or of one that stands in.
    pub(super) fn observe(&mut self, now: Nanos, request: &Request, lessons: &mut Lessons) {
        if let Some(last_pos) = self.last_pos {
            let pauses = self.queued == 0 && self.in_flight == 0;
            let think = self.last_end.filter(|_| pauses).map_or(Nanos::ZERO, |end| now.since(end));
            self.observe_think(think.min(THINK_MAX), lessons);
            self.observe_seek(request.pos.abs_diff(last_pos), lessons);
        }
        self.last_pos = Some(request.end());
    }

    fn observe_think(&mut self, think: Nanos, lessons: &mut Lessons) {
        if self.think.samples() == 0 {
            lessons.new_think_total = (7 * lessons.new_think_total + 256 * think.0) / 8;
            // Who issues a second request did not end after the first.
            lessons.exit_prob = 7 * lessons.exit_prob / 8;
        }
        self.think.add(think.0);
    }

    fn observe_seek(&mut self, sectors: u64, lessons: &mut Lessons) {
        if self.seek.samples() == 0 {
            let seek = sectors.saturating_mul(256);
            lessons.new_seek_total = (7 * lessons.new_seek_total).saturating_add(seek) / 8;
        }
        let slack = SEEK_SLACK[usize::from(self.seek.samples() > 60)];
        self.seek.add(sectors.min(4 * self.seek.mean() + slack));
    }
}
