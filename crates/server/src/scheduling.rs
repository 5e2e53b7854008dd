//! How a pool schedules, as control threads know and change it.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_engine::EngineConfig;
use evenkeel_sched::{Queueing, Weight};
use evenkeel_wire::status::{BlameStatus, GroupStatus, PoolStatus, VmExplain};
use evenkeel_wire::{Pool, PoolChange, Problem, Problems};

use crate::command::{Explained, Schedule};
use crate::config::{GroupNames, PoolPlan, blocks, depth, governs, polls, usual_depth};
use crate::elevator::{check_elevator, elevator};
use crate::limits::{self, Control, GateFigures};
use crate::status::{self, PoolFigures};

/// What the device says about scheduling.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) rotational: bool,
    /// How many commands it takes at once, if it says so: a modelled one, or a card.
    pub(crate) takes: Option<u32>,
}

/// The settings of a running pool.
#[derive(Debug)]
pub(crate) struct Scheduling {
    device: Device,
    names: GroupNames,
    settings: Mutex<Pool>,
}

impl Scheduling {
    /// Returns the settings of a pool that starts.
    pub(crate) fn new(plan: &PoolPlan, device: Device) -> Self {
        let settings = Mutex::new(plan.settings.clone());
        Self { device, names: plan.names.clone(), settings }
    }

    /// Returns what an engine needs to know of some settings.
    pub(crate) fn engine(&self, settings: &Pool) -> EngineConfig {
        let Device { rotational, takes } = self.device;
        let depth = depth(settings, rotational, takes);
        let mut elevator = elevator(settings);
        elevator.rotational = rotational;
        elevator.bfq.queueing = if depth > 1 { Queueing::Yes } else { Queueing::No };
        EngineConfig { elevator, depth, blocks: blocks(settings) }
    }

    /// Returns how many commands are usually enough for the device.
    pub(crate) fn usual_depth(&self, settings: &Pool) -> u32 {
        usual_depth(settings, self.device.takes)
    }

    /// Returns the limits and reservations of a pool that starts.
    pub(crate) fn controls(&self) -> Vec<Control> {
        limits::controls(&self.lock(), &self.names)
    }

    /// Returns the settings after a change, and what the worker must do about it.
    ///
    /// # Errors
    ///
    /// * [`Problems`]: every mistake; nothing is changed.
    pub(crate) fn plan(&self, change: &PoolChange) -> Result<(Pool, Schedule), Problems> {
        let before = self.lock().clone();
        let mut settings = before.clone();
        change.apply(&mut settings);
        // Looking for work is not the engine's business, which would start to learn anew.
        let is_rescheduled = Pool { poll: before.poll, ..settings.clone() } != before;
        let mut problems = check_elevator("", &elevator(&settings));
        problems.extend(change.apply_limits(&mut settings));
        let mut weights = Vec::new();
        let lists =
            [("groups", &self.names.groups, &change.groups), ("vms", &self.names.vms, &change.vms)];
        for (list, names, changes) in lists {
            weigh(list, names, changes, &mut weights, &mut problems);
        }
        if let Some(problems) = Problems::from_vec(problems) {
            return Err(problems);
        }
        let engine = is_rescheduled.then(|| self.engine(&settings));
        let controls = limits::changed(
            &limits::controls(&before, &self.names),
            limits::controls(&settings, &self.names),
        );
        let governs = governs(&settings, self.device.rotational);
        let usual_depth = self.usual_depth(&settings);
        let polls = polls(&settings);
        let schedule = Schedule { engine, governs, usual_depth, polls, weights, controls };
        Ok((settings, schedule))
    }

    /// Notes that the worker has done what was planned.
    pub(crate) fn settle(&self, settings: Pool) {
        *self.lock() = settings;
    }

    /// Adds the settings to the pool's document.
    pub(crate) fn fill(&self, status: &mut PoolStatus) {
        let settings = self.lock();
        let Device { rotational, takes } = self.device;
        status.scheduler = settings.scheduler().to_string();
        status.profile = settings.profile.map(|profile| profile.to_string());
        status.tunables = settings.effective_tunables().written();
        status.cpus = settings.cpus.as_ref().map(ToString::to_string);
        status.depth = depth(&settings, rotational, takes);
        status.block = settings.block.to_string();
        status.device_priority = settings.device_priority.to_string();
        status.responses = settings.responses.to_string();
    }

    /// Adds the groups, with their weights and books, to the pool's document.
    pub(crate) fn fill_groups(&self, document: &mut PoolStatus, figures: &PoolFigures) {
        let PoolFigures { weights, io, .. } = figures;
        let list = |names: &[(String, usize)]| {
            let named = names.iter().map(|(name, at)| GroupStatus {
                name: name.clone(),
                weight: weights.get(*at).map_or(0, |weight| u32::from(weight.value())),
                io: io.get(*at).and_then(Option::as_ref).map(status::io),
                ..GroupStatus::default()
            });
            named.collect()
        };
        document.groups = list(&self.names.groups);
        document.vms = list(&self.names.vms);
        limits::fill_settings(&self.lock(), document);
    }

    /// Adds what limits held up to the pool's document; its groups are known.
    pub(crate) fn fill_gate(&self, status: &mut PoolStatus, figures: &GateFigures) {
        figures.fill(&self.names, status);
    }

    /// Names what the worker says about waits; the disks of each VM are added by the caller.
    pub(crate) fn explain(&self, explained: &[Explained]) -> Vec<VmExplain> {
        let vms = &self.names.vms;
        let names: BTreeMap<usize, &str> = vms.iter().map(|(name, at)| (*at, &**name)).collect();
        let vm = |(vm, at): &(String, usize)| {
            let Explained { explanation, blamed, lead } = explained.get(*at)?;
            let lead = lead.unwrap_or_default();
            let causes = explanation.causes.iter().zip(blamed);
            let mut blames: Vec<_> = causes
                .map(|(cause, at)| BlameStatus {
                    vm: names.get(at).copied().unwrap_or_default().to_owned(),
                    held_ns: cause.held.0,
                })
                .collect();
            blames.sort_by_key(|blame| Reverse(blame.held_ns));
            Some(VmExplain {
                name: vm.clone(),
                waited_ns: explanation.waited.0,
                blames,
                others_ns: explanation.others.0,
                own_ns: explanation.own.0,
                limited_ns: explanation.limited.0,
                idled_ns: explanation.idled.0,
                gathered_ns: explanation.gathered.0,
                served_ns: explanation.served.0,
                kept_ns: explanation.kept.0,
                ahead_ns: lead.ahead.0,
                owes: lead.is_spent,
                disks: Vec::new(),
            })
        };
        vms.iter().filter_map(vm).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds the groups of one list whose weights change.
fn weigh(
    list: &str,
    names: &[(String, usize)],
    changes: &BTreeMap<String, u32>,
    weights: &mut Vec<(usize, Weight)>,
    problems: &mut Vec<Problem>,
) {
    for (name, &weight) in changes {
        let weight = Weight::new(u64::from(weight)).expect("the reader checks the range");
        match GroupNames::find(names, name) {
            Some(at) => weights.push((at, weight)),
            None => {
                let known: Vec<_> = names.iter().map(|(name, _)| name.as_str()).collect();
                let remedy = match known[..] {
                    [] => format!("the pool has no {list}"),
                    _ => format!("the pool has {}", known.join(", ")),
                };
                let path = format!("{list}.{name}");
                problems.push(Problem::new(path, "", "not in this pool", remedy));
            }
        }
    }
}
