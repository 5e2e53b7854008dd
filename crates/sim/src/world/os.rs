//! An operating system above its block layer: processes, page cache, read-ahead, write-back.
//!
//! The same for guests and for the host. It says what it wants of the block layer in
//! [`Os::bios`] and when it wants to be called in [`Os::timers`]; whoever holds it carries both
//! away after each call. Processes that compute share the CPUs.

use std::collections::VecDeque;

use evenkeel_sched::Nanos;

use super::block::Bio;
use super::cache::{PageCache, Span};
use super::program::{Program, Step};
use super::random::Random;
use super::readahead::Readahead;
use super::writeback::{Writeback, WritebackModel};
use crate::IoOp;

/// How an operating system is set up.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct OsModel {
    /// CPUs that its processes share.
    pub cpus: u32,
    /// Memory for its page cache, in sectors.
    pub cache_sectors: u64,
    /// Its write-back.
    pub writeback: WritebackModel,
    /// From the end of a read to the next instruction of who waited for it.
    pub wakeup: Nanos,
}

impl OsModel {
    /// Returns a system of so many CPUs with so much memory for files, in MiB.
    #[must_use]
    pub const fn new(cpus: u32, memory_mib: u64) -> Self {
        let cache_sectors = memory_mib * 2048;
        Self {
            cpus,
            cache_sectors,
            writeback: WritebackModel::of_memory(cache_sectors),
            wakeup: Nanos::from_micros(20),
        }
    }
}

/// What a process waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    /// The end of a computation or of a pause.
    Time {
        computes: bool,
    },
    /// These sectors in memory.
    Data(Span),
    /// Its own requests.
    Requests,
    /// Room for dirty data.
    Room,
    /// What it wrote, and then a flush.
    Durable {
        flushes: bool,
    },
    Gone,
}

/// What has become of a process.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Life {
    /// When it was started.
    pub started: Nanos,
    /// When it ended; none while it runs.
    pub ended: Option<Nanos>,
    /// Processor time that it has used, or has begun to use.
    pub computed: Nanos,
    /// Sectors that it has got, from memory or from the disk.
    pub read_sectors: u64,
    /// Sectors that it has written, into memory or to the disk.
    pub written_sectors: u64,
}

#[derive(Debug)]
struct Process {
    program: Program,
    file: Span,
    /// Its queue in the block layer.
    source: u32,
    readahead: Readahead,
    state: State,
    /// Reads of it that are under way.
    pending: Vec<Span>,
    /// Direct reads and synchronous writes under way.
    outstanding: u32,
    life: Life,
}

/// What a bio was for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Read { process: u32, span: Span },
    Direct { process: u32 },
    Flusher(Span),
    Sync { process: u32, span: Span },
    Flush { process: u32 },
}

/// The system.
#[derive(Debug)]
pub(crate) struct Os {
    model: OsModel,
    random: Random,
    processes: Vec<Process>,
    cache: PageCache,
    writeback: Writeback,
    flusher: u32,
    computing: u32,
    purposes: Vec<Purpose>,
    free: Vec<u64>,
    /// To be submitted.
    pub(crate) bios: VecDeque<Bio>,
    /// Processes to be called at an instant.
    pub(crate) timers: Vec<(Nanos, u32)>,
    /// Sources of processes that have ended.
    pub(crate) ended: Vec<u32>,
}

impl Os {
    /// `flusher` is the source of the write-back.
    pub(crate) fn new(model: OsModel, random: Random, flusher: u32) -> Self {
        Self {
            model,
            random,
            processes: Vec::new(),
            cache: PageCache::new(model.cache_sectors),
            writeback: Writeback::new(model.writeback),
            flusher,
            computing: 0,
            purposes: Vec::new(),
            free: Vec::new(),
            bios: VecDeque::new(),
            timers: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Starts a process now.
    pub(crate) fn start(&mut self, now: Nanos, program: Program, source: u32) -> u32 {
        let file = program.file();
        self.processes.push(Process {
            program,
            file,
            source,
            readahead: Readahead::default(),
            state: State::Time { computes: false },
            pending: Vec::new(),
            outstanding: 0,
            life: Life {
                started: now,
                ended: None,
                computed: Nanos::ZERO,
                read_sectors: 0,
                written_sectors: 0,
            },
        });
        let process = u32::try_from(self.processes.len() - 1).expect("fewer than 2^32 processes");
        self.timers.push((now, process));
        process
    }

    /// Gives a process another queue for what it asks for from now on; returns the one before.
    pub(crate) fn set_source(&mut self, process: u32, source: u32) -> u32 {
        std::mem::replace(&mut self.processes[process as usize].source, source)
    }

    /// Ends a process, whatever it waits for.
    pub(crate) fn kill(&mut self, now: Nanos, process: u32) {
        let State::Time { computes } = self.processes[process as usize].state else {
            self.end(now, process);
            return;
        };
        self.computing -= u32::from(computes);
        self.end(now, process);
    }

    fn end(&mut self, now: Nanos, process: u32) {
        let process = &mut self.processes[process as usize];
        if process.state != State::Gone {
            process.state = State::Gone;
            process.life.ended = Some(now);
            self.ended.push(process.source);
        }
    }

    /// Drops what is clean from memory.
    pub(crate) fn drop_caches(&mut self) {
        self.cache.clear();
    }

    pub(crate) fn life(&self, process: u32) -> Life {
        self.processes[process as usize].life
    }

    /// Returns whether a process waits for the disk, the kernel's state D.
    pub(crate) fn waits_for_disk(&self, process: u32) -> bool {
        !matches!(self.processes[process as usize].state, State::Time { .. } | State::Gone)
    }

    pub(crate) fn program(&self, process: u32) -> &Program {
        &self.processes[process as usize].program
    }

    /// Returns the sectors that all processes together have read.
    pub(crate) fn read_sectors(&self) -> u64 {
        self.processes.iter().map(|process| process.life.read_sectors).sum()
    }

    /// Takes note that the time has come that a process waited for.
    pub(crate) fn timer(&mut self, now: Nanos, process: u32) {
        let State::Time { computes } = self.processes[process as usize].state else { return };
        self.computing -= u32::from(computes);
        self.run(now, process);
    }

    /// Lets a process go on until it waits for something.
    fn run(&mut self, now: Nanos, id: u32) {
        loop {
            let process = &mut self.processes[id as usize];
            let step = process.program.next(now, &mut self.random);
            let state = match step {
                Step::Compute(time) => {
                    self.compute(now, id, time);
                    return;
                }
                Step::Pause(time) => {
                    self.timers.push((now + time, id));
                    Some(State::Time { computes: false })
                }
                Step::Read(span) => {
                    process.life.read_sectors += span.len();
                    let windows = process.readahead.access(span, process.file);
                    for window in windows {
                        self.request(id, window);
                    }
                    self.need(id, span)
                }
                Step::Fault(span) => {
                    process.life.read_sectors += span.len();
                    self.need(id, span)
                }
                Step::Direct(span) => {
                    process.life.read_sectors += span.len();
                    process.outstanding += 1;
                    self.submit(id, IoOp::Read, span, Purpose::Direct { process: id });
                    Some(State::Requests)
                }
                Step::Write(span) => self.write(now, id, span),
                Step::Sync => Some(self.sync(id)),
                Step::Exit => {
                    self.end(now, id);
                    return;
                }
            };
            if let Some(state) = state {
                self.processes[id as usize].state = state;
                return;
            }
        }
    }

    /// Lets a process compute; more processes than CPUs take turns.
    fn compute(&mut self, now: Nanos, id: u32, time: Nanos) {
        self.computing += 1;
        let share = u64::from(self.computing.div_ceil(self.model.cpus.max(1)));
        self.timers.push((now + Nanos(time.0 * share), id));
        let process = &mut self.processes[id as usize];
        process.life.computed += time;
        process.state = State::Time { computes: true };
    }

    /// Sees to it that sectors come into memory; returns what to wait for if they are not there.
    fn need(&mut self, id: u32, span: Span) -> Option<State> {
        if self.cache.holds(span) {
            return None;
        }
        self.request(id, span);
        Some(State::Data(span))
    }

    /// Reads what is missing of some sectors and not on its way to this process already.
    fn request(&mut self, id: u32, span: Span) {
        let mut at = span.start;
        while let Some(gap) = self.cache.first_gap(Span { start: at, end: span.end }) {
            at = gap.end;
            let process = &mut self.processes[id as usize];
            let mut missing = gap;
            // What is under way lies before or behind, as readers are in order.
            for pending in &process.pending {
                if pending.start <= missing.start && pending.end > missing.start {
                    missing.start = pending.end.min(missing.end);
                } else if pending.start < missing.end && pending.start > missing.start {
                    missing.end = pending.start;
                    at = at.min(pending.end);
                }
            }
            if !missing.is_empty() {
                process.pending.push(missing);
                let purpose = Purpose::Read { process: id, span: missing };
                self.submit(id, IoOp::Read, missing, purpose);
            }
        }
    }

    fn write(&mut self, now: Nanos, id: u32, span: Span) -> Option<State> {
        self.processes[id as usize].life.written_sectors += span.len();
        self.cache.insert(span);
        self.writeback.dirty(now, id, span);
        self.flush_dirty(now);
        self.writeback.is_full().then_some(State::Room)
    }

    fn sync(&mut self, id: u32) -> State {
        while let Some(span) = self.writeback.take_of(id) {
            self.processes[id as usize].outstanding += 1;
            self.submit(id, IoOp::Write, span, Purpose::Sync { process: id, span });
        }
        if self.processes[id as usize].outstanding > 0 {
            return State::Durable { flushes: false };
        }
        self.submit(id, IoOp::Flush, Span::default(), Purpose::Flush { process: id });
        State::Durable { flushes: true }
    }

    /// Lets the flusher write.
    fn flush_dirty(&mut self, now: Nanos) {
        while let Some(span) = self.writeback.next(now) {
            let token = self.token(Purpose::Flusher(span));
            self.bios.push_back(bio(token, self.flusher, IoOp::Write, span, false));
        }
    }

    fn submit(&mut self, id: u32, op: IoOp, span: Span, purpose: Purpose) {
        let source = self.processes[id as usize].source;
        let token = self.token(purpose);
        self.bios.push_back(bio(token, source, op, span, true));
    }

    fn token(&mut self, purpose: Purpose) -> u64 {
        if let Some(token) = self.free.pop() {
            self.purposes[usize::try_from(token).expect("an index")] = purpose;
            return token;
        }
        self.purposes.push(purpose);
        u64::try_from(self.purposes.len() - 1).expect("usize has at most 64 bits")
    }

    /// Takes note that the block layer has finished a bio.
    pub(crate) fn finished(&mut self, now: Nanos, token: u64) {
        let purpose = self.purposes[usize::try_from(token).expect("an index")];
        self.free.push(token);
        match purpose {
            Purpose::Read { process: id, span } => {
                self.cache.insert(span);
                let process = &mut self.processes[id as usize];
                process.pending.retain(|pending| *pending != span);
                if let State::Data(wanted) = process.state {
                    if self.cache.holds(wanted) {
                        self.wake(now, id);
                    } else {
                        // Memory was short or dropped meanwhile: ask again for what is gone.
                        self.request(id, wanted);
                    }
                }
            }
            Purpose::Direct { process } => self.count_down(now, process),
            Purpose::Flusher(span) => {
                self.writeback.written(span, true);
                self.flush_dirty(now);
                self.let_writers_on(now);
            }
            Purpose::Sync { process: id, span } => {
                self.writeback.written(span, false);
                self.let_writers_on(now);
                self.count_down(now, id);
            }
            Purpose::Flush { process } => {
                if self.processes[process as usize].state == (State::Durable { flushes: true }) {
                    self.wake(now, process);
                }
            }
        }
    }

    fn count_down(&mut self, now: Nanos, id: u32) {
        let process = &mut self.processes[id as usize];
        process.outstanding -= 1;
        if process.outstanding > 0 {
            return;
        }
        match process.state {
            State::Requests => self.wake(now, id),
            State::Durable { flushes: false } => {
                process.state = State::Durable { flushes: true };
                self.submit(id, IoOp::Flush, Span::default(), Purpose::Flush { process: id });
            }
            _ => {}
        }
    }

    /// Lets a process go on. If what it does first is to compute, and there is a CPU for everybody,
    /// that is one wait with the way there.
    fn wake(&mut self, now: Nanos, id: u32) {
        let has_cpu = self.processes.len() <= self.model.cpus as usize;
        let process = &mut self.processes[id as usize];
        process.state = State::Time { computes: false };
        let think = if has_cpu { process.program.take_think() } else { Nanos::ZERO };
        process.life.computed += think;
        self.timers.push((now + self.model.wakeup + think, id));
    }

    fn let_writers_on(&mut self, now: Nanos) {
        if self.writeback.is_full() {
            return;
        }
        for id in (0..).take(self.processes.len()) {
            if self.processes[id as usize].state == State::Room {
                self.wake(now, id);
            }
        }
    }

    /// Lets the flusher look for old data.
    pub(crate) fn age(&mut self, now: Nanos) {
        self.flush_dirty(now);
    }
}

fn bio(token: u64, source: u32, op: IoOp, span: Span, sync: bool) -> Bio {
    let nr_sectors = u32::try_from(span.len()).expect("a read or write of a process is short");
    Bio { token, source, op, pos: span.start, nr_sectors, sync }
}
