//! Other tunables while requests are under way.

use super::burst::InBurst;
use super::raise::WrKind;
use super::rules::Rules;
use super::{Bfq, BfqTunables, BfqTunablesError};
use crate::Nanos;

impl Bfq {
    /// Puts other tunables in force at once; setting the same ones again changes nothing.
    ///
    /// A slot that has begun keeps its end, a wait that has begun its deadline, and a raise that
    /// has begun its length. A group in service keeps what `kernel_compat` has charged it. Without
    /// `low_latency` all raises end; without `wr_max_softrt_rate` or `large_burst_thresh`, the
    /// raises or marks that it brought about. Weights change when their owners are next queued.
    ///
    /// # Errors
    ///
    /// * What [`BfqTunables::validate`] finds -- then nothing has changed.
    pub fn set_tunables(
        &mut self,
        now: Nanos,
        tunables: BfqTunables,
    ) -> Result<(), BfqTunablesError> {
        tunables.validate()?;
        let now = self.inside(now);
        let before = core::mem::replace(&mut self.tunables, tunables.in_force());
        let after = self.tunables;
        self.is_full = false;
        self.back_seek = after.back_seek();
        if after.kernel_compat != before.kernel_compat {
            self.change_rules(Rules::new(after.kernel_compat));
        }
        self.review_queueing();
        self.limits.set(after.max_budget_sectors);
        let is_automatic = after.max_budget_sectors == 0 && before.max_budget_sectors != 0;
        if is_automatic || after.timeout_sync != before.timeout_sync {
            self.retune();
        }
        if (after.large_burst_thresh, after.burst_interval)
            != (before.large_burst_thresh, before.burst_interval)
        {
            self.restart_bursts();
        }
        if after.merge_queues != before.merge_queues {
            self.review_neighbours();
        }
        self.end_unwanted_raises(now);
        self.renew_coeffs();
        Ok(())
    }

    fn change_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.engine.set_policy(rules.engine);
        self.rate.set_counts_length(rules.rate_counts_length);
        self.merge_rules.limits = self.merge;
        self.retune();
    }

    fn restart_bursts(&mut self) {
        for group in (0..).take(self.groups.len()) {
            self.end_burst(group);
        }
        if self.tunables.large_burst_thresh == 0 {
            for queue in &mut self.queues {
                queue.in_burst = InBurst::No;
            }
        }
    }

    fn end_unwanted_raises(&mut self, now: Nanos) {
        if !self.tunables.low_latency || !self.rules.pauses_are_bridged {
            self.let_go(Nanos(u64::MAX));
        }
        for id in (0..).take(self.queues.len()) {
            if !self.queues[id as usize].used {
                continue;
            }
            if !self.tunables.low_latency {
                self.end_raise(now, id);
            } else if self.tunables.wr_max_softrt_rate == 0
                && self.queues[id as usize].raise.kind == WrKind::SoftRt
            {
                self.lapse(now, id);
            }
        }
    }
}
