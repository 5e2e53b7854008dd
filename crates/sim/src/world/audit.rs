//! Watches an engine at work, and says when it breaks a promise.
//!
//! Picture an auditor at the counter who copies every slip that is handed over, every order that
//! goes to the workshop, and every answer. He knows nothing of how the engine decides; he knows what
//! was promised: each slip is answered once, with what became of it; nothing that overlaps is in
//! the workshop together; a flush is answered when what was answered before it is durable; the
//! workshop does not stand idle while somebody waits; and nobody waits longer than he must.
//!
//! The promises are those of `ARCHITECTURE.md`. What he finds first he keeps, with its instant.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_engine::{Command, DeviceOp, DiskId, Engine, Errno, Limited, Retired, Status, Token};
use evenkeel_sched::{GroupId, Nanos, Tag};

use super::faults::PowerCut;
use super::random::mix;
use crate::{Io, IoOp};

/// A promise that was broken.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Violation {
    /// When, in virtual time.
    pub at: Nanos,
    /// Which promise.
    pub invariant: &'static str,
    /// How it was broken.
    pub detail: String,
}

/// What an auditor may expect of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Most commands at the device.
    pub(crate) depth: u32,
    /// Longest time for which the device is kept idle while somebody waits.
    pub(crate) idle: Nanos,
    /// Whether everything is written down, for people.
    pub(crate) keeps_history: bool,
}

/// A request that was asked for and not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    token: Token,
    disk: DiskId,
    op: IoOp,
    sector: u64,
    nr_sectors: u32,
    at: Nanos,
    /// Whether it is at the device, alone or as a part.
    is_sent: bool,
    /// How much of a request that goes piece by piece is done.
    done_sectors: u32,
    /// What the device has said of it at last, and when.
    verdict: Option<(Status, u64)>,
    /// Whether it was written and may still be lost.
    is_volatile: bool,
    /// For a flush: the last write of the disk that was answered before it.
    needs: u64,
}

#[derive(Debug)]
struct Sent {
    command: Command,
    parts: Vec<Tag>,
    number: u64,
}

/// What is known of a disk.
#[derive(Clone, Copy, Debug, Default)]
struct Watched {
    /// When the last of the answered writes that may be lost was completed.
    answered: u64,
    /// What was completed before this is durable.
    durable: u64,
    /// What was completed up to this was promised to be durable.
    promised: u64,
    /// Whether its writes that wait for room have been given up.
    is_abandoned: bool,
    /// The longest wait of a request that comes after an instant, and the name of that promise.
    bound: Option<(Nanos, Nanos, &'static str)>,
    /// The wait of a request that comes after an instant that is still soon; how many waited
    /// longer, and how many there were.
    soon: Option<(Nanos, Nanos)>,
    late: (u64, u64),
    served_sectors: u64,
}

/// The auditor.
#[derive(Debug)]
pub(crate) struct Audit {
    rules: Rules,
    /// By tag.
    asked: Vec<Option<Asked>>,
    sent: Vec<Sent>,
    /// Requests whose first piece has been sent and whose last one is not done.
    in_pieces: Vec<Tag>,
    spare: Vec<Vec<Tag>>,
    disks: Vec<Watched>,
    /// Writes that were completed and are not durable by themselves: when, disk, where.
    volatile: Vec<(u64, DiskId, u64, u32)>,
    /// Counts what happens at the device.
    events: u64,
    idle_since: Option<Nanos>,
    outstanding: u64,
    requests: u64,
    longest_wait: Nanos,
    digest: u64,
    history: String,
    violation: Option<Violation>,
}

impl Audit {
    pub(crate) const fn new(rules: Rules) -> Self {
        Self {
            rules,
            asked: Vec::new(),
            sent: Vec::new(),
            in_pieces: Vec::new(),
            spare: Vec::new(),
            disks: Vec::new(),
            volatile: Vec::new(),
            events: 0,
            idle_since: None,
            outstanding: 0,
            requests: 0,
            longest_wait: Nanos::ZERO,
            digest: 0,
            history: String::new(),
            violation: None,
        }
    }

    /// Returns the promise that was broken first.
    pub(crate) fn violation(&self) -> Option<Violation> {
        self.violation.clone()
    }

    pub(crate) const fn is_content(&self) -> bool {
        self.violation.is_none()
    }

    /// Returns the number of requests asked for, and of those not answered.
    pub(crate) const fn requests(&self) -> (u64, u64) {
        (self.requests, self.outstanding)
    }

    pub(crate) const fn longest_wait(&self) -> Nanos {
        self.longest_wait
    }

    /// Returns a number that follows from everything that has happened.
    pub(crate) const fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns what has happened, a line for each.
    pub(crate) fn take_history(&mut self) -> String {
        std::mem::take(&mut self.history)
    }

    pub(crate) fn served_sectors(&self, disk: DiskId) -> u64 {
        self.disks.get(disk.0 as usize).map_or(0, |disk| disk.served_sectors)
    }

    pub(crate) const fn set_depth(&mut self, depth: u32) {
        self.rules.depth = depth;
    }

    /// Allows the device to be kept idle for so long, if it was not already.
    pub(crate) fn allow_idle(&mut self, idle: Nanos) {
        self.rules.idle = self.rules.idle.max(idle);
    }

    /// Says how long requests of a disk that come from now on may wait, by which promise.
    pub(crate) fn bound(&mut self, now: Nanos, disk: DiskId, wait: Nanos, name: &'static str) {
        self.watched(disk).bound = Some((now, wait, name));
    }

    /// Counts from now on which requests of a disk wait longer than `wait`.
    pub(crate) fn expect_soon(&mut self, now: Nanos, disk: DiskId, wait: Nanos) {
        self.watched(disk).soon = Some((now, wait));
    }

    /// Returns how many requests of a disk waited longer than was expected, and of how many.
    pub(crate) fn late(&self, disk: DiskId) -> (u64, u64) {
        self.disks.get(disk.0 as usize).map_or((0, 0), |disk| disk.late)
    }

    /// Says that requests of a disk may wait for ever.
    pub(crate) fn unbound(&mut self, disk: DiskId) {
        self.watched(disk).bound = None;
    }

    /// Says that the writes of a disk that wait for room are given up, now and from now on.
    pub(crate) fn abandon(&mut self, disk: DiskId) {
        self.watched(disk).is_abandoned = true;
    }

    /// Says that the name of a disk means another one.
    pub(crate) fn forget(&mut self, disk: DiskId) {
        *self.watched(disk) = Watched::default();
    }

    /// Notes a broken promise.
    pub(crate) fn broken(&mut self, at: Nanos, invariant: &'static str, detail: String) {
        self.violation.get_or_insert(Violation { at, invariant, detail });
    }

    fn watched(&mut self, disk: DiskId) -> &mut Watched {
        let index = disk.0 as usize;
        if self.disks.len() <= index {
            self.disks.resize(index + 1, Watched::default());
        }
        &mut self.disks[index]
    }

    fn note(&mut self, now: Nanos, what: &str, tag: Tag, figures: [u64; 3]) {
        let all = [now.0, u64::from(tag.0), figures[0], figures[1], figures[2]];
        let word = what.bytes().fold(0, |word, byte| word << 8 | u64::from(byte));
        self.digest = all.iter().fold(self.digest ^ word, |digest, &value| mix(digest ^ value));
        if self.rules.keeps_history {
            let [a, b, c] = figures;
            let at = now.since(Nanos::ORIGIN).0;
            writeln!(self.history, "{at} {what} {} {a} {b} {c}", tag.0)
                .expect("a string takes everything");
        }
    }

    /// Takes note of a request of a guest.
    pub(crate) fn asked(&mut self, now: Nanos, tag: Tag, token: u64, disk: DiskId, io: &Io) {
        self.note(now, "ask", tag, [u64::from(disk.0), io.pos, u64::from(io.nr_sectors)]);
        let place = tag.0 as usize;
        if self.asked.len() <= place {
            self.asked.resize(place + 1, None);
        }
        let asked = Asked {
            token: Token(token),
            disk,
            op: io.op,
            sector: io.pos,
            nr_sectors: io.nr_sectors,
            at: now,
            is_sent: false,
            done_sectors: 0,
            verdict: None,
            is_volatile: false,
            needs: self.watched(disk).answered,
        };
        self.outstanding += 1;
        self.requests += 1;
        if let Some(other) = self.asked[place].replace(asked) {
            self.broken(now, "a tag names one request", format!("{tag:?} is taken by {other:?}"));
        }
    }

    /// Takes note of a command for the device.
    pub(crate) fn sent(&mut self, now: Nanos, engine: &Engine, command: &Command) {
        let Command { tag, disk, sector, nr_sectors, .. } = *command;
        self.note(now, "send", tag, [u64::from(disk.0), sector, u64::from(nr_sectors)]);
        let meets = |sent: &&Sent| conflict(&sent.command, command);
        if let Some(other) = self.sent.iter().find(meets) {
            let detail = format!("{command:?} meets {:?} at the device", other.command);
            self.broken(now, "what overlaps is not at the device together", detail);
        }
        let mut parts = self.spare.pop().unwrap_or_default();
        parts.clear();
        parts.extend(engine.parts(tag));
        if let Err(detail) = self.check_parts(command, &parts) {
            self.broken(now, "a command is its parts, each at the device once", detail);
        }
        self.check_pieces(now, command, &parts);
        for part in &parts {
            if let Some(Some(asked)) = self.asked.get_mut(part.0 as usize) {
                asked.is_sent = true;
            }
        }
        self.events += 1;
        self.sent.push(Sent { command: *command, parts, number: self.events });
        if self.sent.len() > self.rules.depth as usize {
            let detail = format!("{} commands, depth {}", self.sent.len(), self.rules.depth);
            self.broken(now, "no more than the depth is at the device", detail);
        }
    }

    /// Whoever overlaps a request in pieces sees all of it or nothing: between two of its pieces
    /// nothing that meets any of them goes to the device.
    fn check_pieces(&mut self, now: Nanos, command: &Command, parts: &[Tag]) {
        // A request that is given up lets others pass before it is answered.
        let is_abandoned = self.watched(command.disk).is_abandoned;
        let asked_as = |tag: Tag| self.asked.get(tag.0 as usize).copied().flatten();
        let begun = self.in_pieces.iter().filter(|tag| !parts.contains(tag));
        let cut = begun
            .filter_map(|&tag| asked_as(tag))
            .find(|asked| !is_abandoned && meets(asked, command));
        let is_piece =
            |tag| asked_as(tag).is_some_and(|asked| command.nr_sectors < asked.nr_sectors);
        if let &[tag] = parts
            && is_piece(tag)
            && !self.in_pieces.contains(&tag)
        {
            self.in_pieces.push(tag);
        }
        if let Some(asked) = cut {
            let detail = format!("{command:?} comes between the pieces of {asked:?}");
            self.broken(now, "nothing comes between pieces that it overlaps", detail);
        }
    }

    /// A command is what its parts ask for, in order and without a gap.
    fn check_parts(&self, command: &Command, parts: &[Tag]) -> Result<(), String> {
        let mut end = command.sector;
        for &tag in parts {
            let asked = self.asked.get(tag.0 as usize).copied().flatten();
            let Some(asked) = asked else {
                return Err(format!("{command:?} has {tag:?}, which nobody asked for"));
            };
            let begin = asked.sector + u64::from(command.skip_sectors);
            let wanted = (command.disk, command.op.into(), end);
            if (asked.disk, asked.op, begin) != wanted {
                return Err(format!("{command:?} has the part {asked:?} at {end}"));
            }
            if asked.done_sectors != command.skip_sectors {
                return Err(format!("{command:?} is not the next piece of {asked:?}"));
            }
            if asked.is_sent || asked.verdict.is_some() {
                return Err(format!("{command:?} does {asked:?} again"));
            }
            let is_piece = parts.len() == 1 && command.nr_sectors <= PIECE_SECTORS_MAX;
            let left = asked.nr_sectors - asked.done_sectors;
            end += u64::from(if is_piece { left.min(command.nr_sectors) } else { left });
        }
        if end - command.sector != u64::from(command.nr_sectors) || parts.is_empty() {
            return Err(format!("{command:?} is not as long as its {} parts", parts.len()));
        }
        Ok(())
    }

    /// Takes note of what the device says of a command.
    pub(crate) fn completed(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        let errno = outcome.err().map_or(0, |Errno(errno)| errno.unsigned_abs());
        self.note(now, "done", tag, [u64::from(errno), 0, 0]);
        self.events += 1;
        let number = self.events;
        let place = self.sent.iter().position(|sent| sent.command.tag == tag);
        let sent = self.sent.swap_remove(place.expect("the device answers what it was given"));
        let Command { disk, op, durable, sector: _, pos, nr_sectors, .. } = sent.command;
        let op = IoOp::from(op);
        let grows = matches!(op, IoOp::Write | IoOp::WriteZeroes);
        let verdict = match outcome {
            Ok(()) => Some(Status::Ok),
            // Each part is tried again alone; a write that finds no room is tried again, too.
            Err(_) if sent.parts.len() > 1 => None,
            Err(errno) if grows && errno.is_full() => None,
            Err(Errno::EOPNOTSUPP) if op != IoOp::Flush => Some(Status::Unsupported),
            Err(_) => Some(Status::IoError),
        };
        let is_volatile = grows && outcome.is_ok() && !durable;
        if is_volatile {
            self.volatile.push((number, disk, pos, nr_sectors));
        }
        if op == IoOp::Flush && outcome.is_ok() {
            let watched = self.watched(disk);
            watched.durable = watched.durable.max(sent.number);
        }
        for part in &sent.parts {
            if let Some(Some(asked)) = self.asked.get_mut(part.0 as usize) {
                asked.is_sent = false;
                if outcome.is_ok() && sent.parts.len() == 1 && nr_sectors < asked.nr_sectors {
                    asked.done_sectors += nr_sectors;
                    if asked.done_sectors < asked.nr_sectors {
                        continue;
                    }
                }
                if verdict.is_some() {
                    self.in_pieces.retain(|tag| tag != part);
                }
                asked.verdict = verdict.map(|status| (status, number));
                asked.is_volatile = is_volatile;
            }
        }
        self.spare.push(sent.parts);
    }

    /// Takes note of an answer.
    pub(crate) fn answered(&mut self, now: Nanos, retired: &Retired) {
        let Retired { token, tag, disk, status, arrived, dispatched, completed } = *retired;
        self.note(now, "answer", tag, [u64::from(disk.0), status as u64, 0]);
        let Some(asked) = self.asked.get_mut(tag.0 as usize).and_then(Option::take) else {
            let detail = format!("{retired:?} was answered before, or never asked");
            self.broken(now, "each request is answered once", detail);
            return;
        };
        self.outstanding -= 1;
        // Who is given up has no verdict.
        self.in_pieces.retain(|&other| other != tag);
        let times = [asked.at, arrived, dispatched, completed, now];
        if arrived != asked.at || !times.is_sorted() {
            let detail = format!("{retired:?} answers {asked:?}");
            self.broken(now, "the times of an answer are those of its request", detail);
        }
        if (asked.token, asked.disk) != (token, disk) {
            let detail = format!("{retired:?} answers {asked:?}");
            self.broken(now, "an answer goes to who asked", detail);
        }
        if asked.op == IoOp::Flush {
            self.check_flush(now, &asked, status);
        } else {
            self.check_answer(now, &asked, status);
        }
        let wait = now.since(asked.at);
        self.longest_wait = self.longest_wait.max(wait);
        let watched = self.watched(disk);
        if let Some((since, soon)) = watched.soon
            && asked.at >= since
        {
            watched.late.0 += u64::from(wait > soon);
            watched.late.1 += 1;
        }
        if let Some((since, bound, name)) = watched.bound
            && asked.at >= since
            && wait > bound
        {
            let detail = format!("{asked:?} waited {} ms, {} allowed", ms(wait), ms(bound));
            self.broken(now, name, detail);
        }
    }

    fn check_answer(&mut self, now: Nanos, asked: &Asked, status: Status) {
        let watched = self.watched(asked.disk);
        let is_given_up = watched.is_abandoned && status == Status::IoError;
        if let Some((verdict, number)) = asked.verdict
            && verdict == status
        {
            watched.served_sectors += u64::from(asked.nr_sectors);
            if asked.is_volatile {
                watched.answered = watched.answered.max(number);
            }
        } else if asked.verdict.is_some() || !is_given_up {
            let detail = format!("{asked:?} was answered with {status:?}");
            self.broken(now, "the answer is what the device said", detail);
        }
    }

    fn check_flush(&mut self, now: Nanos, asked: &Asked, status: Status) {
        let watched = self.watched(asked.disk);
        if status != Status::Ok {
            return;
        }
        let Watched { durable, .. } = *watched;
        watched.promised = watched.promised.max(asked.needs);
        if asked.needs > 0 && durable <= asked.needs {
            let detail = format!("{asked:?} was answered; durable is what was done by {durable}");
            self.broken(now, "a flush is answered when what came before is durable", detail);
        }
    }

    /// Looks at an engine that has nothing to do until something happens.
    pub(crate) fn settled(&mut self, now: Nanos, engine: &Engine) {
        let deadline = engine.next_deadline();
        if let Some(deadline) = deadline
            && deadline <= now
        {
            let detail = format!("{} ns late", now.since(deadline).0);
            self.broken(now, "a deadline lies in the future", detail);
        }
        if engine.in_flight() > 0 || engine.waiting() == 0 {
            self.idle_since = None;
            let is_stuck = engine.in_flight() == 0 && engine.outstanding() > 0;
            if is_stuck && deadline.is_none() {
                let detail = format!("{} requests wait for nothing", engine.outstanding());
                self.broken(now, "whatever waits is waited for", detail);
            }
            return;
        }
        let idle = now.since(*self.idle_since.get_or_insert(now));
        if idle > self.rules.idle || deadline.is_none() {
            let waiting = engine.waiting();
            let gated = engine.gate_report(now, Limited::Group(GroupId::ROOT)).waiting;
            let detail = format!(
                "{waiting} requests wait, and {gated} at the gate; the device has been idle for {} \
                 us, next deadline {deadline:?}",
                idle.as_micros()
            );
            self.broken(now, "the device works while somebody waits", detail);
        }
    }

    /// Looks at what is left when all load has gone.
    pub(crate) fn finished(&mut self, now: Nanos) {
        if let Some(asked) = self.asked.iter().flatten().next() {
            let detail = format!("{} requests, such as {asked:?}", self.outstanding);
            self.broken(now, "every request is answered", detail);
        }
    }

    /// Looks at what a power cut may have lost.
    pub(crate) fn power_cut(&mut self, now: Nanos, cut: &PowerCut) {
        let mut unpromised: BTreeMap<(u64, u32), usize> = BTreeMap::new();
        for &(number, disk, pos, nr_sectors) in &self.volatile {
            let promised = self.disks[disk.0 as usize].promised;
            *unpromised.entry((pos, nr_sectors)).or_default() += usize::from(number > promised);
        }
        for write in &cut.volatile {
            match unpromised.get_mut(write) {
                Some(left) if *left > 0 => *left -= 1,
                _ => {
                    let detail = format!("{write:?} may be lost after it was flushed");
                    self.broken(now, "what was flushed survives a power cut", detail);
                }
            }
        }
    }
}

/// The longest piece of a request that does not go at once.
const PIECE_SECTORS_MAX: u32 = 2048;

fn conflict(one: &Command, other: &Command) -> bool {
    let is_flush = |command: &Command| command.op == DeviceOp::Flush;
    let ends = |command: &Command| command.sector + u64::from(command.nr_sectors);
    one.disk == other.disk
        && (one.op != DeviceOp::Read || other.op != DeviceOp::Read)
        && !is_flush(one)
        && !is_flush(other)
        && one.sector < ends(other)
        && other.sector < ends(one)
}

/// Returns whether a command and a request touch the same sectors, and one of them changes them.
fn meets(asked: &Asked, command: &Command) -> bool {
    asked.disk == command.disk
        && (asked.op != IoOp::Read || command.op != DeviceOp::Read)
        && command.op != DeviceOp::Flush
        && asked.sector < command.sector + u64::from(command.nr_sectors)
        && command.sector < asked.sector + u64::from(asked.nr_sectors)
}

fn ms(time: Nanos) -> u64 {
    time.0 / 1_000_000
}
