//! What control threads ask of a worker, and what it tells them.

use std::collections::BTreeMap;
use std::io;

use evenkeel_engine::{Cause, DiskId};
use evenkeel_sched::{GroupId, Nanos, Weight};

use super::Worker;
use crate::command::{Command, Explained, Schedule};
use crate::limits::{self, GateFigures};
use crate::status::{DiskFigures, PoolFigures};

impl Worker {
    /// Obeys a control message.
    pub(super) fn obey(&mut self, now: Nanos, command: Command) -> io::Result<()> {
        match command {
            Command::AskHelp { group, ask, reply } => {
                let report = self.engine.ask_help(now, self.groups[group].0, ask);
                let _nobody_waits = reply.try_send(report);
            }
            Command::ResetHelp { group } => self.engine.reset_help(now, self.groups[group].0),
            Command::Disconnect { disk, reply } => {
                self.guests.stop_all(&mut self.ring, Some(disk))?;
                self.engine.expedite(now, DiskId(disk.0));
                let leaving = &mut self.disks[disk.0 as usize].leaving;
                self.leaving += usize::from(leaving.is_empty());
                leaving.push(reply);
            }
            Command::Drain { reply } => {
                self.guests.stop_all(&mut self.ring, None)?;
                for disk in &self.disks {
                    self.engine.expedite(now, disk.id);
                }
                self.draining = Some(reply);
            }
            Command::Explain { reply } => {
                let _nobody_waits = reply.try_send(self.explain(now));
            }
            Command::Reschedule { schedule, reply } => {
                self.reschedule(now, &schedule);
                let _nobody_waits = reply.try_send(());
            }
            Command::SetCall { disk, index, call } => self.guests.set_call(disk, index, call),
            Command::SetMemory { disk, memory, reply } => {
                self.guests.set_memory(disk, &memory);
                let _nobody_waits = reply.try_send(());
            }
            Command::SetWeight { disk, weight } => {
                self.set_weight(now, self.disks[disk.0 as usize].group, weight);
            }
            Command::SetWriteThrough { disk, write_through, reply } => {
                self.engine.set_write_through(DiskId(disk.0), write_through);
                let _nobody_waits = reply.try_send(());
            }
            Command::Snapshot { reply } => {
                let _nobody_waits = reply.try_send(self.figures(now));
            }
            Command::StartVring { disk, index, vring } => {
                if self.draining.is_none() {
                    self.guests.start(&mut self.ring, disk, index, vring)?;
                }
            }
            Command::StopVring { disk, index, reply } => {
                self.guests.stop(&mut self.ring, disk, index, reply)?;
                self.engine.expedite(now, DiskId(disk.0));
            }
        }
        Ok(())
    }

    fn set_weight(&mut self, now: Nanos, group: usize, weight: Weight) {
        let (group, old) = &mut self.groups[group];
        *old = weight;
        self.engine.set_weight(now, *group, weight);
    }

    fn group_names(&self) -> Vec<GroupId> {
        self.groups.iter().map(|&(group, _)| group).collect()
    }

    fn reschedule(&mut self, now: Nanos, schedule: &Schedule) {
        let names = self.group_names();
        limits::apply(&mut self.engine, now, &names, &schedule.controls);
        if let Some(config) = &schedule.engine {
            self.engine.set_depth(config.depth);
            self.engine.set_elevator(now, &config.elevator);
            self.engine.set_usual_depth(schedule.usual_depth);
            self.engine.govern(schedule.governs);
        }
        self.polling.set_most(schedule.polls);
        for &(group, weight) in &schedule.weights {
            self.set_weight(now, group, weight);
        }
    }

    fn explain(&mut self, now: Nanos) -> Vec<Explained> {
        let groups = self.groups.iter().zip(0..);
        let places: BTreeMap<GroupId, usize> =
            groups.map(|(&(group, _), place)| (group, place)).collect();
        let explained = self.groups.iter().map(|&(group, _)| {
            let explanation = self.engine.explain(now, group);
            let known = |cause: &Cause| *places.get(&cause.vm).expect("VMs are never removed");
            let blamed = explanation.causes.iter().map(known).collect();
            Explained { explanation, blamed, lead: self.engine.lead(now, group) }
        });
        explained.collect()
    }

    fn figures(&self, now: Nanos) -> PoolFigures {
        let in_flight = self.engine.in_flight();
        let exits = self.guests.exits(self.disks.len());
        let disks = self.disks.iter().zip(exits).map(|(disk, exits)| DiskFigures {
            report: self.engine.report(disk.id),
            help: self.engine.help_report(self.groups[disk.group].0),
            exits,
            refused: disk.refused,
            weight: self.groups[disk.group].1,
        });
        PoolFigures {
            governor: self.engine.governor_report(),
            in_flight,
            polling: self.polling,
            waiting: self.engine.outstanding().saturating_sub(in_flight),
            blocks: self.engine.block_figures(),
            precedence: self.engine.precedence_figures(),
            system_calls: self.ring.system_calls() + self.slots.copies(),
            weights: self.groups.iter().map(|&(_, weight)| weight).collect(),
            io: self.groups.iter().map(|&(group, _)| self.engine.group_stats(group)).collect(),
            pool_io: self.engine.group_stats(GroupId::ROOT),
            gate: GateFigures::of(&self.engine, now, &self.group_names(), self.disks.len()),
            disks: disks.collect(),
        }
    }
}
