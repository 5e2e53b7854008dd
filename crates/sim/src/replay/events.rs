//! From events of a block layer to requests.

use std::collections::BTreeMap;

use evenkeel_sched::Nanos;

use super::{Arrival, Taken, Workload, foreign};
use crate::IoOp;

/// What happened to an extent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Step {
    Queued,
    Issued,
    Completed,
}

/// One event.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Event {
    pub(super) at: Nanos,
    pub(super) device: u64,
    pub(super) step: Step,
    /// A flush may have sectors: it is then a write that a flush goes before.
    pub(super) op: IoOp,
    pub(super) sector: u64,
    pub(super) nr_sectors: u32,
}

/// All events of a recording.
#[derive(Debug, Default)]
pub(super) struct Events {
    events: Vec<Event>,
    notes: Vec<String>,
}

/// A request that is not completed.
#[derive(Clone, Copy, Debug)]
struct Pending {
    /// Its position among the requests.
    index: usize,
    issued: Option<Nanos>,
    /// Sectors that are still to come.
    left: u32,
}

/// A device and what is under way there.
#[derive(Debug, Default)]
struct Device {
    disk: u32,
    /// By first sector; of one sector the oldest first.
    pending: BTreeMap<u64, Vec<Pending>>,
    flushes: Vec<Pending>,
}

impl Events {
    pub(super) fn add(&mut self, event: Event) -> Result<(), &'static str> {
        let end = event.sector.checked_add(u64::from(event.nr_sectors));
        if end.is_none_or(|end| end > u64::MAX >> 12) {
            return Err("an extent behind the end of every disk");
        }
        self.events.push(event);
        Ok(())
    }

    pub(super) fn note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    /// Makes requests of the events; `name` names their devices.
    pub(super) fn finish(mut self, source: &str, name: impl Fn(u64) -> String) -> Workload {
        // Each processor has a file of its own, in an order of its own.
        self.events.sort_by_key(|event| event.at);
        let start = self.events.first().map_or(Nanos::ZERO, |event| event.at);
        let mut devices: BTreeMap<u64, Device> = BTreeMap::new();
        let mut requests: Vec<Arrival> = Vec::new();
        let mut ends: Vec<(u64, u64)> = Vec::new();
        for event in &self.events {
            let is_new = !devices.contains_key(&event.device);
            if is_new && event.step != Step::Queued {
                // It was queued before the recording began.
                continue;
            }
            let device = devices.entry(event.device).or_default();
            if is_new {
                device.disk = u32::try_from(ends.len()).expect("fewer devices than events");
                ends.push((event.device, 0));
            }
            let end = &mut ends[device.disk as usize].1;
            *end = (*end).max(event.sector + u64::from(event.nr_sectors));
            device.take(event, start, &mut requests);
        }
        let unknown = requests.iter().filter(|request| request.recorded.is_none()).count();
        if unknown > 0 {
            self.notes.push(format!(
                "{unknown} of {} requests were not seen to their end.",
                requests.len()
            ));
        }
        self.notes.push(
            "The recording does not tell how large the disks are: they end where the requests end."
                .to_owned(),
        );
        let disks = ends.iter().map(|&(device, end)| foreign::disk(&name(device), end));
        let disks = disks.collect();
        Workload { source: source.to_owned(), disks, requests, notes: self.notes }
    }
}

impl Device {
    fn take(&mut self, event: &Event, start: Nanos, requests: &mut Vec<Arrival>) {
        let is_flush = event.op == IoOp::Flush;
        match event.step {
            Step::Queued => {
                if is_flush {
                    let pending = self.queue(event, IoOp::Flush, start, requests);
                    self.flushes.push(pending);
                }
                if event.nr_sectors > 0 {
                    let op = if is_flush { IoOp::Write } else { event.op };
                    let pending = self.queue(event, op, start, requests);
                    self.pending.entry(event.sector).or_default().push(pending);
                }
            }
            Step::Issued if event.nr_sectors > 0 => {
                self.each(event, requests, |pending| pending.issued.is_none());
            }
            Step::Completed if event.nr_sectors > 0 => {
                self.each(event, requests, |pending| pending.issued.is_some());
            }
            Step::Issued if is_flush => {
                for flush in &mut self.flushes {
                    flush.issued.get_or_insert(event.at);
                }
            }
            Step::Completed if is_flush => {
                // Those that came meanwhile wait for the next.
                self.flushes.retain(|flush| {
                    let Some(issued) = flush.issued else { return true };
                    end(&mut requests[flush.index], start, issued, event.at);
                    false
                });
            }
            // The end of a request whose flush has ended already.
            Step::Issued | Step::Completed => {}
        }
        if event.step == Step::Completed && event.nr_sectors > 0 {
            self.retire(event, start, requests);
        }
    }

    fn queue(&self, event: &Event, op: IoOp, start: Nanos, requests: &mut Vec<Arrival>) -> Pending {
        let (sector, nr_sectors) =
            if op == IoOp::Flush { (0, 0) } else { (event.sector, event.nr_sectors) };
        requests.push(Arrival {
            at: event.at - start,
            disk: self.disk,
            op,
            sector,
            nr_sectors,
            ioprio: 0,
            recorded: None,
        });
        Pending { index: requests.len() - 1, issued: None, left: nr_sectors }
    }

    /// Returns where requests begin that an event may be about: within its extent, or, if the
    /// kernel has split a request, before it.
    fn starts(&self, event: &Event) -> (u64, u64) {
        let before = self.pending.range(..event.sector).next_back();
        let first = before.map_or(event.sector, |(sector, _)| *sector);
        (first, event.sector + u64::from(event.nr_sectors))
    }

    /// Notes an event at the oldest request of each first sector that it can be about.
    fn each(&mut self, event: &Event, requests: &[Arrival], can_be: impl Fn(&Pending) -> bool) {
        let (first, end) = self.starts(event);
        for (&sector, all) in self.pending.range_mut(first..end) {
            let found = all.iter_mut().find(|pending| {
                let request = &requests[pending.index];
                let is_same =
                    request.op == event.op || request.op == IoOp::Write && event.op == IoOp::Flush;
                is_same && can_be(pending)
            });
            let Some(pending) = found else { continue };
            let request_end = sector + u64::from(requests[pending.index].nr_sectors);
            let overlap = end.min(request_end).saturating_sub(sector.max(event.sector));
            if overlap == 0 {
                continue;
            }
            if event.step == Step::Issued {
                pending.issued = Some(event.at);
            } else {
                let overlap = u32::try_from(overlap).unwrap_or(u32::MAX);
                pending.left = pending.left.saturating_sub(overlap);
            }
        }
    }

    /// Takes away what is completed.
    fn retire(&mut self, event: &Event, start: Nanos, requests: &mut [Arrival]) {
        let (first, last) = self.starts(event);
        let mut empty = Vec::new();
        for (&sector, all) in self.pending.range_mut(first..last) {
            all.retain(|pending| {
                let (Some(issued), 0) = (pending.issued, pending.left) else { return true };
                end(&mut requests[pending.index], start, issued, event.at);
                false
            });
            if all.is_empty() {
                empty.push(sector);
            }
        }
        for sector in empty {
            self.pending.remove(&sector);
        }
    }
}

fn end(request: &mut Arrival, start: Nanos, issued: Nanos, completed: Nanos) {
    let wait = (issued - start) - request.at;
    request.recorded = Some(Taken { wait, service: completed - issued });
}
