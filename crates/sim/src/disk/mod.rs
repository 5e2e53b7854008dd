//! A disk with heads and platters.
//!
//! Long runs are cheap and every change of place costs a seek and half a turn, as on the real
//! thing: that is what an elevator lives from. One command is executed at a time; with native
//! command queueing the disk chooses which.
//!
//! Deliberately absent: bad sectors, spin-down, recalibration, and cached writes that overtake a
//! read in progress.

mod buffer;
mod geometry;
mod mechanics;
mod params;

use std::collections::VecDeque;

use evenkeel_sched::{Nanos, Tag};

use crate::{DeviceModel, Io, ModelError};
use mechanics::Mechanics;
pub(crate) use params::{DiskParams, PARAMETERS, PRESETS};

#[derive(Clone, Copy, Debug)]
struct Waiting {
    arrived: u64,
    tag: Tag,
    io: Io,
}

/// A modelled hard disk; built with [`model`](crate::model).
#[derive(Debug)]
pub struct DiskModel {
    name: &'static str,
    mechanics: Mechanics,
    depth: u32,
    ageing: u64,
    /// The command in execution and the instant at which it finishes.
    active: Option<(u64, Tag)>,
    /// The rest, in order of arrival.
    waiting: VecDeque<Waiting>,
}

impl DiskModel {
    pub(crate) fn new(name: &'static str, params: &DiskParams) -> Result<Self, ModelError> {
        Ok(Self {
            name,
            mechanics: Mechanics::new(name, params)?,
            depth: u32::try_from(params.ncq).expect("at most 32"),
            ageing: params.ageing_ms * 1_000_000,
            active: None,
            waiting: VecDeque::with_capacity(256),
        })
    }

    /// Starts the next command, if the disk is free since `free` and one waits.
    fn start(&mut self, free: u64) {
        let Some(first) = self.waiting.front() else { return };
        let now = first.arrived.max(free);
        let chosen = if self.depth == 1 { 0 } else { self.choose(now) };
        let next = self.waiting.remove(chosen).expect("chosen among those that wait");
        let end = self.mechanics.execute(now, &next.io);
        self.active = Some((end, next.tag));
    }

    /// Returns the command with the shortest positioning time, which counts the less the longer
    /// the command waits, and nothing from the age `ageing` on; the older one among equals.
    fn choose(&self, now: u64) -> usize {
        let slots = usize::try_from(self.depth).expect("at most 32");
        let known = self.waiting.iter().take(slots).take_while(|next| next.arrived <= now);
        let costs = known.enumerate().map(|(index, next)| {
            let left = self.ageing.saturating_sub(now - next.arrived);
            let positioning = self.mechanics.positioning(now, &next.io);
            (u128::from(positioning) * u128::from(left), index)
        });
        costs.min().map_or(0, |(_, index)| index)
    }
}

impl DeviceModel for DiskModel {
    fn depth(&self) -> u32 {
        self.depth
    }

    fn rotational(&self) -> bool {
        true
    }

    fn submit(&mut self, now: Nanos, tag: Tag, io: &Io) {
        self.waiting.push_back(Waiting { arrived: now.0, tag, io: *io });
        if self.active.is_none() {
            self.start(now.0);
        }
    }

    fn next_event(&self) -> Option<Nanos> {
        self.active.map(|(end, _)| Nanos(end))
    }

    fn complete(&mut self, now: Nanos) -> Option<Tag> {
        let (end, tag) = self.active.take_if(|(end, _)| *end <= now.0)?;
        self.start(end);
        Some(tag)
    }

    fn name(&self) -> &str {
        self.name
    }

    fn sectors(&self) -> Option<u64> {
        Some(self.mechanics.sectors())
    }
}
