//! A device with faults: stalls, slow and bad sectors, answers out of order, power cuts.
//!
//! It wraps a model and changes when its answers arrive and what they say, never what it works on.
//! Everything follows from the plan and its seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_engine::Errno;
use evenkeel_sched::{Nanos, Tag};

use super::random::mix;
use crate::{DeviceModel, Io, IoOp, Model};

/// Sectors, `start..end`.
pub type Sectors = std::ops::Range<u64>;

/// The instant of what does not happen.
const NEVER: Nanos = Nanos(u64::MAX);

/// What goes wrong.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// From an instant on, for so long, nothing is answered.
    pub stalls: Vec<(Nanos, Nanos)>,
    /// Whoever touches these sectors waits so much longer.
    pub slow: Vec<(Sectors, Nanos)>,
    /// Reads and writes of these sectors fail.
    pub bad: Vec<(Sectors, Errno)>,
    /// From an instant on, for so long, writes to these sectors find the file system full.
    pub full: Vec<(Nanos, Nanos, Sectors)>,
    /// Every answer is late by a random time up to this, so that they overtake each other.
    pub disorder: Nanos,
    /// Power may be cut: writes that are not durable are remembered.
    pub power_cuts: bool,
    /// For the randomness of `disorder`.
    pub seed: u64,
}

impl FaultPlan {
    fn is_empty(&self) -> bool {
        self.stalls.is_empty()
            && self.slow.is_empty()
            && self.bad.is_empty()
            && self.full.is_empty()
            && self.disorder == Nanos::ZERO
            && !self.power_cuts
    }
}

/// What a command with the device is.
#[derive(Clone, Copy, Debug)]
struct Underway {
    io: Io,
    outcome: Result<(), Errno>,
}

/// What a power cut did.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PowerCut {
    /// Commands that were never answered: done, half done or not at all.
    pub unanswered: Vec<Tag>,
    /// Writes that were answered since the last flush was, and were not durable: each may be lost.
    pub volatile: Vec<(u64, u32)>,
}

/// A modelled device, and what goes wrong with it.
#[derive(Debug)]
pub struct FaultyDevice {
    model: Model,
    plan: FaultPlan,
    is_plain: bool,
    /// By tag; of a device without faults nothing.
    underway: Vec<Option<Underway>>,
    /// Answers that the model has given and that are on their way.
    late: BinaryHeap<Reverse<(Nanos, u64, Tag)>>,
    answers: u64,
    /// When the next answer arrives, never if all have.
    next: Nanos,
    /// Writes answered and not flushed.
    volatile: Vec<(u64, u32)>,
    /// How many of those were answered when each flush under way began.
    flushing: Vec<(Tag, usize)>,
}

impl FaultyDevice {
    /// Returns a device without faults.
    #[must_use]
    pub fn new(model: Model) -> Self {
        Self {
            model,
            plan: FaultPlan::default(),
            is_plain: true,
            underway: Vec::new(),
            late: BinaryHeap::new(),
            answers: 0,
            next: NEVER,
            volatile: Vec::new(),
            flushing: Vec::new(),
        }
    }

    /// Returns the device with the faults of a plan.
    #[must_use]
    pub fn with_faults(model: Model, plan: FaultPlan) -> Self {
        let is_plain = plan.is_empty();
        Self { plan, is_plain, ..Self::new(model) }
    }

    /// Returns the modelled device.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// Hands a command to the device.
    #[inline]
    pub fn submit(&mut self, now: Nanos, tag: Tag, io: &Io) {
        if self.is_plain {
            self.model.submit(now, tag, io);
            self.next = self.model.next_event().unwrap_or(NEVER);
        } else {
            self.submit_watched(now, tag, io);
        }
    }

    fn submit_watched(&mut self, now: Nanos, tag: Tag, io: &Io) {
        let place = tag.0 as usize;
        if self.underway.len() <= place {
            self.underway.resize(place + 1, None);
        }
        let outcome = self.outcome(now, io);
        self.underway[place] = Some(Underway { io: *io, outcome });
        if io.op == IoOp::Flush {
            self.flushing.push((tag, self.volatile.len()));
        }
        self.model.submit(now, tag, io);
        self.look_ahead();
    }

    /// Ends all faults that have not hit yet: somebody has repaired the device and made room.
    pub(crate) fn repair(&mut self) {
        let FaultPlan { power_cuts, seed, .. } = self.plan;
        self.plan = FaultPlan { power_cuts, seed, ..FaultPlan::default() };
    }

    fn outcome(&self, now: Nanos, io: &Io) -> Result<(), Errno> {
        let grows = matches!(io.op, IoOp::Write | IoOp::WriteZeroes);
        let is_full = |(begins, lasts, sectors): &(Nanos, Nanos, Sectors)| {
            now >= *begins && now < *begins + *lasts && touches(io, sectors)
        };
        if grows && self.plan.full.iter().any(is_full) {
            return Err(Errno::ENOSPC);
        }
        let bad = self.plan.bad.iter().find(|(sectors, _)| touches(io, sectors));
        bad.map_or(Ok(()), |&(_, errno)| Err(errno))
    }

    /// Returns the instant at which [`complete`](Self::complete) has something to return.
    #[must_use]
    #[inline]
    pub fn next_event(&self) -> Option<Nanos> {
        (self.next != NEVER).then_some(self.next)
    }

    /// Returns the same, the last instant there is if there is none.
    #[inline]
    pub(crate) const fn next_or_never(&self) -> Nanos {
        self.next
    }

    /// Finds out when the next answer arrives, or the model has one.
    fn look_ahead(&mut self) {
        let late = self.late.peek().map_or(NEVER, |Reverse((at, _, _))| *at);
        self.next = self.model.next_event().unwrap_or(NEVER).min(late);
    }

    /// Returns a command that has finished by `now`, and what became of it; call until `None`.
    #[inline]
    pub fn complete(&mut self, now: Nanos) -> Option<(Tag, Result<(), Errno>)> {
        if now < self.next || self.next == NEVER {
            return None;
        }
        if self.is_plain {
            let tag = self.model.complete(now);
            self.next = self.model.next_event().unwrap_or(NEVER);
            return tag.map(|tag| (tag, Ok(())));
        }
        let tag = self.next_late(now);
        self.look_ahead();
        tag.map(|tag| self.answer(tag))
    }

    /// Returns a command whose answer has arrived by now, in spite of all faults.
    fn next_late(&mut self, now: Nanos) -> Option<Tag> {
        while let Some(at) = self.model.next_event().filter(|at| *at <= now) {
            let tag = self.model.complete(at).expect("the event is due");
            let late = self.lateness(at, tag);
            self.late.push(Reverse((late, self.answers, tag)));
            self.answers += 1;
        }
        let Reverse((at, _, tag)) = *self.late.peek()?;
        if at > now {
            return None;
        }
        self.late.pop();
        Some(tag)
    }

    /// Returns when an answer of the model at `at` really arrives.
    fn lateness(&self, at: Nanos, tag: Tag) -> Nanos {
        let io = self.underway[tag.0 as usize].expect("it is under way").io;
        let slow = self.plan.slow.iter().filter(|(sectors, _)| touches(&io, sectors));
        let mut late = slow.fold(at, |at, &(_, more)| at + more);
        if self.plan.disorder > Nanos::ZERO {
            late += Nanos(mix(self.plan.seed ^ self.answers) % (self.plan.disorder.0 + 1));
        }
        for &(begins, lasts) in &self.plan.stalls {
            if late >= begins && late < begins + lasts {
                late = begins + lasts;
            }
        }
        late
    }

    fn answer(&mut self, tag: Tag) -> (Tag, Result<(), Errno>) {
        let Underway { io, outcome } =
            self.underway[tag.0 as usize].take().expect("it was under way");
        let may_be_lost = self.plan.power_cuts && outcome.is_ok() && !io.durable;
        match io.op {
            IoOp::Write | IoOp::WriteZeroes if may_be_lost => {
                self.volatile.push((io.pos, io.nr_sectors));
            }
            IoOp::Flush => self.flushed(tag),
            _ => {}
        }
        (tag, outcome)
    }

    /// What was answered before a flush began is durable once the flush is answered.
    fn flushed(&mut self, tag: Tag) {
        let place = self.flushing.iter().position(|(flush, _)| *flush == tag);
        let (_, count) = self.flushing.remove(place.expect("it is under way"));
        self.volatile.drain(..count.min(self.volatile.len()));
        for (_, other) in &mut self.flushing {
            *other = other.saturating_sub(count);
        }
    }

    /// Cuts the power: all commands under way are gone and will never be answered.
    ///
    /// # Panics
    ///
    /// Panics unless the plan says that power may be cut.
    pub fn cut_power(&mut self, fresh: Model) -> PowerCut {
        assert!(self.plan.power_cuts, "nothing was remembered that a power cut might lose");
        let taken = self.underway.iter_mut().enumerate().filter_map(|(tag, underway)| {
            underway.take()?;
            u32::try_from(tag).ok().map(Tag)
        });
        let unanswered = taken.collect();
        self.model = fresh;
        self.late.clear();
        self.flushing.clear();
        self.look_ahead();
        PowerCut { unanswered, volatile: core::mem::take(&mut self.volatile) }
    }
}

fn touches(io: &Io, sectors: &Sectors) -> bool {
    io.nr_sectors > 0
        && io.pos < sectors.end
        && sectors.start < io.pos.saturating_add(u64::from(io.nr_sectors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelSpec;

    fn model() -> Model {
        "ssd".parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model")
    }

    fn io(op: IoOp, pos: u64) -> Io {
        Io { op, pos, nr_sectors: if op == IoOp::Flush { 0 } else { 8 }, durable: false }
    }

    /// Submits reads of consecutive blocks at once; returns tags, instants and outcomes.
    fn answers(plan: FaultPlan, count: u32) -> Vec<(u32, Nanos, Result<(), Errno>)> {
        let mut device = FaultyDevice::with_faults(model(), plan);
        for tag in 0..count {
            device.submit(Nanos::ORIGIN, Tag(tag), &io(IoOp::Read, u64::from(tag) * 8));
        }
        let mut answers = Vec::new();
        while let Some(at) = device.next_event() {
            while let Some((tag, outcome)) = device.complete(at) {
                answers.push((tag.0, at, outcome));
            }
        }
        assert_eq!(answers.len(), count as usize, "each is answered once");
        answers
    }

    #[test]
    fn bad_sectors_fail_and_their_neighbours_do_not() {
        let plan = FaultPlan { bad: vec![(8..9, Errno(5))], ..FaultPlan::default() };
        for (tag, _, outcome) in answers(plan, 3) {
            assert_eq!(outcome, if tag == 1 { Err(Errno(5)) } else { Ok(()) });
        }
    }

    #[test]
    fn nothing_is_answered_during_a_stall_and_all_of_it_after() {
        let (begins, lasts) = (Nanos::ORIGIN, Nanos::from_secs(3));
        let plan = FaultPlan { stalls: vec![(begins, lasts)], ..FaultPlan::default() };
        assert!(answers(plan, 9).iter().all(|(_, at, _)| *at == begins + lasts));
    }

    #[test]
    fn slow_sectors_and_disorder_let_answers_overtake_each_other() {
        let ms = Nanos::from_millis;
        let plan = FaultPlan { slow: vec![(0..8, ms(500))], ..FaultPlan::default() };
        assert_eq!(answers(plan, 5).last().map(|answer| answer.0), Some(0));
        let plan = FaultPlan { disorder: ms(50), seed: 1, ..FaultPlan::default() };
        let order = |plan: &FaultPlan| -> Vec<u32> {
            answers(plan.clone(), 20).iter().map(|answer| answer.0).collect()
        };
        assert!(order(&plan).windows(2).any(|pair| pair[1] < pair[0]));
        assert_eq!(order(&plan), order(&plan), "the same plan, the same order");
    }

    #[test]
    fn a_power_cut_may_lose_what_was_answered_after_the_last_flush_began() {
        let plan = FaultPlan { power_cuts: true, ..FaultPlan::default() };
        let mut device = FaultyDevice::with_faults(model(), plan);
        let mut now = Nanos::ORIGIN;
        let mut run = |device: &mut FaultyDevice, tag, op, pos| {
            device.submit(now, Tag(tag), &io(op, pos));
            now = device.next_event().expect("it is under way");
            device.complete(now).expect("it is due").0
        };
        run(&mut device, 0, IoOp::Write, 100);
        run(&mut device, 1, IoOp::Flush, 0);
        run(&mut device, 2, IoOp::Write, 200);
        device.submit(now, Tag(3), &io(IoOp::Write, 300));
        let cut = device.cut_power(model());
        assert_eq!(cut, PowerCut { unanswered: vec![Tag(3)], volatile: vec![(200, 8)] });
        assert_eq!(device.next_event(), None);
    }
}
