//! Limits and reservations: from what an operator asked for to what the engine holds, and back to
//! what an operator sees.

use evenkeel_engine::{Engine, Limited};
use evenkeel_sched::{GateReport, GroupId, Limits, Nanos, Rate, Rates, Reservation};
use evenkeel_wire::status::{LimitStatus, PoolStatus};
use evenkeel_wire::{LimitRate, Pool};

use crate::config::GroupNames;

/// Whom limits concern, by position in the pool's lists.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Whom {
    Pool,
    Group(usize),
    Disk(usize),
}

/// What one node of the tree may use, and what it is promised.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Control {
    whom: Whom,
    limits: Limits,
    reservation: Reservation,
}

/// What the gate held up: the whole pool, and each of its groups and disks by position.
#[derive(Clone, Debug)]
pub(crate) struct GateFigures {
    pool: GateReport,
    groups: Vec<GateReport>,
    disks: Vec<GateReport>,
}

/// Returns the limits and reservations of every node of a pool, those without included, in an
/// order that is always the same.
pub(crate) fn controls(settings: &Pool, names: &GroupNames) -> Vec<Control> {
    let vms = settings.all_vms();
    let groups = settings.groups.iter().filter_map(|(name, group)| {
        Some(control(Whom::Group(GroupNames::find(&names.groups, name)?), &group.limits))
    });
    let vms = vms.iter().filter_map(|(name, vm)| {
        Some(control(Whom::Group(GroupNames::find(&names.vms, name)?), &vm.limits))
    });
    let disks = settings.disks.values().enumerate();
    let disks = disks.map(|(index, disk)| control(Whom::Disk(index), &disk.limits));
    let pool = control(Whom::Pool, &settings.limits);
    std::iter::once(pool).chain(groups).chain(vms).chain(disks).collect()
}

/// Returns what changes from one list of controls to another of the same pool.
pub(crate) fn changed(before: &[Control], after: Vec<Control>) -> Vec<Control> {
    let is_new = |control: &Control| !before.contains(control);
    after.into_iter().filter(is_new).collect()
}

fn control(whom: Whom, limits: &evenkeel_wire::Limits) -> Control {
    let [bytes_total, bytes_read, bytes_write, total, read, write] = limits.rates().map(rate);
    let op_bytes = limits.request_bytes();
    let (ops, bytes) = limits.reserved();
    Control {
        whom,
        limits: Limits {
            bytes: Rates { total: bytes_total, read: bytes_read, write: bytes_write },
            ops: Rates { total, read, write },
            op_bytes,
        },
        reservation: Reservation { ops, bytes, op_bytes },
    }
}

const fn rate(limit: LimitRate) -> Rate {
    Rate {
        per_second: limit.rate,
        burst_per_second: limit.burst,
        burst_seconds: limit.burst_seconds,
    }
}

/// Puts controls in force. Group names are given by position; disks are numbered from 0.
pub(crate) fn apply(engine: &mut Engine, now: Nanos, groups: &[GroupId], controls: &[Control]) {
    for control in controls {
        let whom = match control.whom {
            Whom::Pool => Limited::Group(GroupId::ROOT),
            Whom::Group(at) => Limited::Group(groups[at]),
            Whom::Disk(at) => Limited::Disk(disk(at)),
        };
        engine.set_limits(now, whom, &control.limits);
        engine.set_reservation(now, whom, control.reservation);
    }
}

fn disk(at: usize) -> evenkeel_engine::DiskId {
    evenkeel_engine::DiskId(u32::try_from(at).expect("fewer than 2^32 disks"))
}

impl GateFigures {
    /// Asks an engine.
    pub(crate) fn of(engine: &Engine, now: Nanos, groups: &[GroupId], disks: usize) -> Self {
        let report = |whom| engine.gate_report(now, whom);
        Self {
            pool: report(Limited::Group(GroupId::ROOT)),
            groups: groups.iter().map(|&group| report(Limited::Group(group))).collect(),
            disks: (0..disks).map(|at| report(Limited::Disk(disk(at)))).collect(),
        }
    }

    /// Adds the figures to the pool's document.
    pub(crate) fn fill(&self, names: &GroupNames, status: &mut PoolStatus) {
        note(&mut status.limits, &self.pool);
        let lists = [(&names.groups, &mut status.groups), (&names.vms, &mut status.vms)];
        for (names, list) in lists {
            for ((_, at), group) in names.iter().zip(list) {
                note(&mut group.limits, &self.groups[*at]);
            }
        }
        for (disk, report) in status.disks.iter_mut().zip(&self.disks) {
            note(&mut disk.limits, report);
        }
    }
}

fn note(status: &mut LimitStatus, report: &GateReport) {
    status.held = report.waiting;
    status.delayed = report.delayed;
    status.throttled_us = report.throttled.as_micros();
}

/// Adds what is in force to the pool's document.
pub(crate) fn fill_settings(settings: &Pool, status: &mut PoolStatus) {
    status.limits.set = settings.limits.written();
    let vms = settings.all_vms();
    for group in &mut status.groups {
        let limits = settings.groups.get(&group.name).map(|group| group.limits.written());
        group.limits.set = limits.unwrap_or_default();
    }
    for vm in &mut status.vms {
        let limits = vms.get(&vm.name).map(|vm| vm.limits.written());
        vm.limits.set = limits.unwrap_or_default();
    }
    for disk in &mut status.disks {
        let limits = settings.disks.get(&disk.name).map(|disk| disk.limits.written());
        disk.limits.set = limits.unwrap_or_default();
    }
}
