//! Whether, for whom and how long the device is kept idle.

use super::issuer::HALF;
use super::{Anticipatory, SYNC};
use crate::{Nanos, QueueId, Request, Tag};

/// What is near, in sectors, when a wait begins; twice as far after each millisecond.
const NEAR: u64 = 8192;
/// After so many milliseconds of waiting everything is near.
const EVERYTHING_NEAR_MS: u64 = 20;

/// Whether the device is kept idle.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Status {
    /// Nobody was waited for since the last request went to the device.
    Off,
    /// It is, until this instant.
    Waiting(Nanos),
    /// It was, and no longer.
    Finished,
}

/// The wait for the issuer of the last request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anticipation {
    pub(super) status: Status,
    /// Who issued the last request that went to the device; nobody if it was write-back, or if
    /// that queue and its name are gone.
    pub(super) issuer: Option<QueueId>,
    /// When a request of this issuer completed since; the wait counts from there.
    pub(super) since: Option<Nanos>,
}

impl Anticipatory {
    /// Ends a wait whose time has passed, and learns from it.
    #[inline]
    pub(super) fn end_overdue_wait(&mut self, now: Nanos) {
        let Status::Waiting(until) = self.wait.status else { return };
        if now < until {
            return;
        }
        self.wait.status = Status::Finished;
        let Some(issuer) = self.wait.issuer else { return };
        let issuer = &self.issuers[issuer.0 as usize];
        if issuer.think.samples() == 0 {
            self.lessons.more_exits();
        }
        if issuer.is_gone {
            self.lessons.less_cooperation();
        }
    }

    /// Returns until when to wait for a better request than `candidate`, if that is promising.
    ///
    /// It never is while the issuer has a request at the device: so a wait begins after a
    /// completion, and every wait has an end.
    pub(super) fn anticipate(&mut self, now: Nanos, candidate: Option<Tag>) -> Option<Nanos> {
        self.wait.issuer?;
        if self.wait.status == Status::Finished {
            return None;
        }
        let candidate = candidate.map(|tag| self.request_of(tag));
        if self.may_break(now, candidate.as_ref()) {
            return None;
        }
        let since = self.wait.since.expect("nothing of the issuer is at the device");
        Some(since + self.tunables.antic_expire)
    }

    /// Returns whether there is no reason to wait any longer, given the request that could go.
    pub(super) fn may_break(&mut self, now: Nanos, candidate: Option<&Request>) -> bool {
        let Some(id) = self.wait.issuer else { return false };
        if candidate.is_some_and(|request| request.queue == id) {
            return true;
        }
        if self.wait.since.is_some_and(|since| now >= since + self.tunables.antic_expire) {
            return true;
        }
        let issuer = self.issuers[id.0 as usize];
        if issuer.queued > 0 || issuer.in_flight > 0 {
            return true;
        }
        let is_new = issuer.think.samples() == 0;
        if issuer.is_gone && is_new {
            self.lessons.more_exits();
        }
        if let Some(request) = candidate.filter(|request| self.is_near(now, request, id)) {
            if issuer.is_gone {
                self.lessons.more_cooperation();
            }
            self.issuers[id.0 as usize].observe(now, request, &mut self.lessons);
            return true;
        }
        if issuer.is_gone && self.lessons.exit_no_coop > HALF {
            return true;
        }
        let longest = self.tunables.antic_expire.0;
        if !is_new {
            return issuer.think.mean() > longest;
        }
        let vanishes = self.lessons.exit_prob * self.lessons.exit_no_coop;
        self.lessons.new_think_mean() > longest || vanishes > HALF * 256
    }

    /// Returns whether a request that somebody waits for is as good as one of the issuer.
    fn is_near(&self, now: Nanos, request: &Request, issuer: QueueId) -> bool {
        if !request.sync {
            return false;
        }
        let since = self.wait.since.filter(|_| self.wait.status != Status::Off);
        let waited_ms = since.map_or(0, |since| now.since(since).as_millis());
        if waited_ms > self.tunables.antic_expire.as_millis().min(EVERYTHING_NEAR_MS) {
            return true;
        }
        let near = NEAR << waited_ms;
        let (last, next) = (self.sides[SYNC].last_sector, request.pos);
        if last <= next + near / 2 && next <= last + near {
            return true;
        }
        let seek = &self.issuers[issuer.0 as usize].seek;
        let usual = if seek.samples() == 0 { self.lessons.new_seek_mean() } else { seek.mean() };
        last.abs_diff(next) < usual
    }
}
