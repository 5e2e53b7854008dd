//! What the agent says of itself.

use std::io;

use evenkeel_wire::agent::Level;

use super::{Agent, Allowed};
use crate::status::{Status, Urgent};

impl Agent {
    /// Returns what it does, and why.
    pub(super) fn status(&self) -> Status {
        let mut urgent: Vec<Urgent> = self
            .processes
            .iter()
            .filter(|(_, process)| process.watched.level() != Level::None)
            .map(|(&pid, process)| Urgent {
                pid,
                name: process.name.clone(),
                level: process.watched.level(),
                reason: process.reason.to_owned(),
            })
            .collect();
        urgent.sort_unstable_by_key(|urgent| urgent.pid);
        let host = match (&self.options.way, &self.channel) {
            (None, _) => "help is switched off".to_owned(),
            (Some(_), Ok(channel)) => channel.name().to_owned(),
            (Some(_), Err(why)) => why.clone(),
        };
        let programs = match &self.events {
            Ok(_) => "told by the kernel".to_owned(),
            Err(why) => format!("looked for every 100 ms; the kernel does not tell: {why}"),
        };
        let counters = match &self.unread {
            None => "all are read".to_owned(),
            Some((_, error)) if error.kind() == io::ErrorKind::NotFound => {
                "none, so nobody is helped: the kernel does not count what a process reads \
                 (CONFIG_TASK_IO_ACCOUNTING)"
                    .to_owned()
            }
            Some((count, why)) => {
                format!("processes not to be read, nor helped: {count}, last: {why}")
            }
        };
        let undo = match self.raised.written_down() {
            Ok(path) => format!("in {}, should the agent be killed", path.display()),
            Err(why) => format!("not if the agent is killed: its file cannot be written: {why}"),
        };
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host,
            connected: self.channel.is_ok(),
            granted: self.asking.granted,
            credit_ms: self.credit_ms,
            messages: self.messages,
            programs,
            counters,
            priorities: self.priorities(),
            undo,
            clock_granularity_us: u64::try_from(self.granularity.as_micros()).unwrap_or(u64::MAX),
            processes: self.processes.len(),
            urgent,
        }
    }

    fn priorities(&self) -> String {
        if !self.options.priorities {
            return "left alone".to_owned();
        }
        let Allowed { once, refused, why } = &self.allowed;
        let usual = self.high.describe();
        match (refused, once) {
            (0, _) => usual.to_owned(),
            (_, false) => format!("not allowed: {why} (processes refused: {refused})"),
            (_, true) => format!("{usual}; processes refused: {refused}, last: {why}"),
        }
    }
}
