//! What the kernel tells of processes, and which of their programs somebody waits for.

use std::collections::HashMap;
use std::time::Duration;

use super::{Agent, BY_HAND, Past, Unwatched};
use crate::events::Event;

/// Programs that one process begins within [`BURST_WINDOW`] beyond this number are a job, such as
/// a build or a boot, not something that somebody waits for.
const BURST_PROGRAMS: usize = 8;
pub(super) const BURST_WINDOW: Duration = Duration::from_millis(180);

impl Agent {
    /// Hears what the kernel has told meanwhile.
    pub(super) fn hear_kernel(&mut self, now: Duration) {
        let Ok(events) = &mut self.events else { return };
        let mut heard = Vec::new();
        if let Err(error) = events.drain(|event| heard.push(event)) {
            self.events = Err(error.to_string());
            self.next_scan = now;
        }
        self.handle(now, &heard);
    }

    /// Handles what the kernel has told.
    pub(super) fn handle(&mut self, now: Duration, heard: &[Event]) {
        // Where each process ends for good: one that goes on as another program seems to end before
        // that, if it is begun by a thread that is not the first.
        let ends = heard.iter().enumerate().filter_map(|(at, event)| match event {
            Event::Exit { pid } => Some((*pid, at)),
            _ => None,
        });
        let ends: HashMap<u32, usize> = ends.collect();
        for (at, &event) in heard.iter().enumerate() {
            let has_ended = |pid: u32| ends.get(&pid).is_some_and(|&end| end > at);
            match event {
                Event::Exec { pid } if has_ended(pid) => {
                    if let Some(&parent) = self.parents.get(&pid) {
                        self.count_start(now, parent);
                    }
                }
                Event::Exec { pid } => {
                    // The next scan tells whom nobody can watch.
                    let _unwatched = self.began(now, pid);
                }
                Event::Fork { parent, child } => {
                    self.parents.insert(child, parent);
                    self.raised.forked(parent, child, has_ended(child));
                }
                Event::Exit { pid } => self.ended(pid),
                Event::Lost => self.next_scan = now,
            }
        }
    }

    /// The first thread of a process has ended, and so has the process unless it has others.
    fn ended(&mut self, pid: u32) {
        self.parents.remove(&pid);
        let is_known = self.processes.contains_key(&pid) || self.raised.has(pid);
        if is_known && self.proc.has_ended(pid) {
            self.processes.remove(&pid);
            self.raised.forget(pid);
        }
    }

    /// Counts a program that a process has begun; returns whether it is one of too many.
    fn count_start(&mut self, now: Duration, parent: u32) -> bool {
        while self.starts.front().is_some_and(|start| start.0 + BURST_WINDOW < now) {
            self.starts.pop_front();
        }
        self.starts.push_back((now, parent));
        self.starts.iter().filter(|start| start.1 == parent).count() > BURST_PROGRAMS
    }

    /// A process has begun a new program.
    pub(super) fn began(&mut self, now: Duration, pid: u32) -> Result<(), Unwatched> {
        let Past { parent, worked } = self.watch(now, pid)?;
        let in_burst = self.count_start(now, parent);
        let rules = self.rules;
        if let Some(process) = self.processes.get_mut(&pid) {
            match process.watched.by_hand() {
                Some(level) => {
                    process.watched.marked(now, &rules, level);
                    process.reason = BY_HAND;
                }
                None => {
                    process.watched.started(now, worked, &rules, in_burst);
                    process.reason = "a program has started";
                }
            }
            process.next_look = now;
        }
        Ok(())
    }
}
