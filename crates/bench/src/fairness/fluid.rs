//! What an ideal fluid server would have given.

use evenkeel_sched::{Class, Kind};

use super::scenario::{Queue, Scenario};

/// Returns what a queue wants before it has asked for anything: those that never pause, everything.
fn wanted(queue: &Queue) -> f64 {
    if queue.pauses() { 0.0 } else { f64::INFINITY }
}

/// Returns the weight of a queue among its siblings.
fn weight(kind: Kind, queue: &Queue) -> f64 {
    let level = f64::from(queue.priority.level);
    match kind {
        // The lengths of its slices.
        Kind::Cfq => 9.0 - level,
        _ => 8.0 - level,
    }
}

/// The fluid server of a competition: everybody with requests shares all service by weight, and who
/// has none leaves its part to its siblings.
///
/// Who pauses brings as much as it asks for, and is done when the fluid has served that; the others
/// always want more.
///
/// Source: A. Parekh and R. Gallager, "A Generalized Processor Sharing Approach to Flow Control in
/// Integrated Services Networks", 1993.
#[derive(Clone, Debug)]
pub(super) struct Fluid {
    kind: Kind,
    scenario: Scenario,
    /// What each queue still wants, in sectors.
    backlog: Vec<f64>,
    /// The part of each queue, zero while it has nothing.
    parts: Vec<f64>,
    /// What each queue has got.
    pub(super) got: Vec<f64>,
    /// By how much the elevator lags behind for each queue, in sectors.
    lag: Vec<f64>,
    /// The most that anybody lagged.
    pub(super) worst_lag: f64,
}

impl Fluid {
    pub(super) fn new(kind: Kind, scenario: &Scenario) -> Self {
        let count = scenario.queues.len();
        let mut fluid = Self {
            kind,
            scenario: scenario.clone(),
            backlog: scenario.queues.iter().map(wanted).collect(),
            parts: vec![0.0; count],
            got: vec![0.0; count],
            lag: vec![0.0; count],
            worst_lag: 0.0,
        };
        fluid.share_out();
        fluid
    }

    /// Takes note that a queue asks for so much.
    pub(super) fn arrive(&mut self, queue: usize, sectors: u32) {
        let was_idle = self.backlog[queue] <= 0.0;
        self.backlog[queue] += f64::from(sectors);
        if was_idle {
            self.share_out();
        }
    }

    /// Takes note that `queue` has received `sectors` from the elevator, and everybody else nothing.
    pub(super) fn serve(&mut self, queue: usize, sectors: u32) {
        let mut left = f64::from(sectors);
        self.lag[queue] -= left;
        while left > 0.0 {
            // Until somebody has all that it wants.
            let ends = self.backlog.iter().zip(&self.parts).filter(|(_, part)| **part > 0.0);
            let step = ends.map(|(backlog, part)| backlog / part).fold(left, f64::min);
            for other in 0..self.parts.len() {
                let part = step * self.parts[other];
                self.got[other] += part;
                self.lag[other] += part;
                self.backlog[other] -= part;
            }
            left -= step;
            if left > 0.0 {
                self.end_finished();
            }
        }
        let worst = self.lag.iter().copied().fold(0.0, f64::max);
        self.worst_lag = self.worst_lag.max(worst);
    }

    /// Returns by how much the theory lets anybody lag, if no budget exceeds `budget`: on each
    /// level by one budget, counted by its part of what that level shares; and by as much again if
    /// it left while it was ahead.
    pub(super) fn bound(&self, budget: u32) -> f64 {
        let sleeps = self.scenario.queues.iter().any(Queue::pauses);
        let mut worst = 0.0_f64;
        for queue in 0..self.parts.len() {
            // Where nobody competes nobody lags.
            let alone = |part: f64| part >= 1.0;
            let mut part = self.own_part(queue);
            let mut sum = if alone(part) { 0.0 } else { 1.0 };
            let mut group = self.scenario.queues[queue].group;
            while let Some(index) = group {
                let own = self.group_part(index);
                sum += if alone(own) { 0.0 } else { part };
                part *= own;
                group = self.scenario.groups[index].parent;
            }
            worst = worst.max(sum);
        }
        worst * f64::from(budget) * if sleeps { 2.0 } else { 1.0 }
    }

    /// Lets those go who have all that they want.
    fn end_finished(&mut self) {
        for queue in 0..self.parts.len() {
            // What is left of a request after rounding is nothing.
            if self.parts[queue] > 0.0 && self.backlog[queue] < 1e-6 {
                self.backlog[queue] = 0.0;
            }
        }
        self.share_out();
    }

    fn is_busy(&self, queue: usize) -> bool {
        self.backlog[queue] > 0.0
    }

    fn share_out(&mut self) {
        for queue in 0..self.parts.len() {
            self.parts[queue] = self.part(queue);
        }
    }

    /// Returns the part of a queue of all service.
    fn part(&self, queue: usize) -> f64 {
        if !self.is_busy(queue) {
            return 0.0;
        }
        let mut part = self.own_part(queue);
        let mut group = self.scenario.queues[queue].group;
        while let Some(index) = group {
            part *= self.group_part(index);
            group = self.scenario.groups[index].parent;
        }
        part
    }

    /// Returns the part of a queue of what its group receives.
    fn own_part(&self, queue: usize) -> f64 {
        let own = &self.scenario.queues[queue];
        let siblings = || {
            let all = self.scenario.queues.iter().enumerate();
            all.filter(|(index, other)| self.is_busy(*index) && other.group == own.group)
        };
        // Classes in strict order.
        let best = siblings().map(|(_, other)| other.priority.class).min();
        if best.is_some_and(|best| best < own.priority.class) {
            return 0.0;
        }
        let equals = siblings().filter(|(_, other)| other.priority.class == own.priority.class);
        let queues: f64 = equals.map(|(_, other)| weight(self.kind, other)).sum();
        let groups = (0..self.scenario.groups.len()).filter(|&index| {
            self.scenario.groups[index].parent == own.group && self.is_active(index)
        });
        let is_rivalled = own.priority.class == Class::BestEffort;
        let groups: f64 = groups.map(|index| self.group_weight(index)).sum();
        weight(self.kind, own) / (queues + if is_rivalled { groups } else { 0.0 })
    }

    /// Returns the part of a group of what the group above it receives. No scenario has queues
    /// beside groups.
    fn group_part(&self, group: usize) -> f64 {
        let parent = self.scenario.groups[group].parent;
        let siblings = (0..self.scenario.groups.len())
            .filter(|&index| self.scenario.groups[index].parent == parent && self.is_active(index));
        self.group_weight(group) / siblings.map(|index| self.group_weight(index)).sum::<f64>()
    }

    fn group_weight(&self, group: usize) -> f64 {
        f64::from(self.scenario.groups[group].weight)
    }

    fn is_active(&self, group: usize) -> bool {
        let mut own = self.scenario.queues.iter().enumerate();
        let below = |index: usize| {
            self.scenario.groups[index].parent == Some(group) && self.is_active(index)
        };
        own.any(|(index, queue)| queue.group == Some(group) && self.is_busy(index))
            || (0..self.scenario.groups.len()).any(below)
    }
}
