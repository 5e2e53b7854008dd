//! Keeps the books of each group: a few additions per request, sums only when somebody asks.

use super::Bfq;
use crate::group_stats::{GroupStats, IoReport, IoStats};
use crate::table::Flavour;
use crate::{GroupId, Nanos};

/// Statistics by flavour, see [`Flavour::index`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Books([IoStats; 8]);

impl Books {
    fn add(&mut self, other: &Self) {
        for (cell, more) in self.0.iter_mut().zip(&other.0) {
            *cell += *more;
        }
    }

    fn report(&self, queued: u32) -> IoReport {
        let mut report = IoReport { queued, ..IoReport::default() };
        for (index, cell) in self.0.iter().enumerate() {
            let by_kind = match index / 2 {
                0 => &mut report.reads,
                1 => &mut report.writes,
                _ => &mut report.discards,
            };
            *by_kind += *cell;
            *if index % 2 == 1 { &mut report.sync } else { &mut report.write_back } += *cell;
        }
        report
    }
}

/// The books of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Account {
    own: Books,
    /// Of the groups that were below it.
    gone: Books,
}

impl Account {
    /// Books a completed request.
    #[inline]
    pub(super) fn book_service(&mut self, flavour: Flavour, nr_sectors: u32, took: Nanos) {
        let cell = self.cell(flavour);
        cell.serviced += 1;
        cell.sectors += u64::from(nr_sectors);
        cell.service_time += took;
    }

    #[inline]
    pub(super) fn cell(&mut self, flavour: Flavour) -> &mut IoStats {
        &mut self.own.0[flavour.index()]
    }
}

impl Bfq {
    /// Returns the statistics of a group. O(groups and queues).
    pub(super) fn stats_of(&self, group: GroupId) -> GroupStats {
        let queued = |is_counted: &dyn Fn(u32) -> bool| {
            let counted = self.queues.iter().filter(|queue| queue.used && is_counted(queue.group));
            counted.map(|queue| queue.list.len()).sum()
        };
        // Most groups have none below them; they are many.
        let is_parent = self.groups.iter().any(|other| other.used && other.parent == group.0);
        let is_parent = is_parent || group == GroupId::ROOT;
        let is_below = |at: u32| at == group.0 || (is_parent && self.is_within(at, group));
        let mut all = Books::default();
        for at in (0..).take(self.groups.len()) {
            if self.groups[at as usize].used && is_below(at) {
                let account = &self.accounts[at as usize];
                all.add(&account.own);
                all.add(&account.gone);
            }
        }
        GroupStats {
            own: self.accounts[group.0 as usize].own.report(queued(&|at| at == group.0)),
            recursive: all.report(queued(&is_below)),
        }
    }

    /// Opens the books of a new group.
    pub(super) fn open_account(&mut self, group: u32) {
        if self.accounts.len() <= group as usize {
            self.accounts.resize(group as usize + 1, Account::default());
        }
        self.accounts[group as usize] = Account::default();
    }

    /// Closes the books of a group that goes; its parent keeps the sums.
    pub(super) fn close_account(&mut self, group: u32) {
        let Account { own, gone } = self.accounts[group as usize];
        let parent = &mut self.accounts[self.groups[group as usize].parent as usize];
        parent.gone.add(&own);
        parent.gone.add(&gone);
    }
}
