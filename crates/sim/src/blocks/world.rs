//! Threads, driver and device in virtual time; the driver is the engine.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use evenkeel_engine::{
    BlockConfig, BlockSize, DiskId, Engine, EngineConfig, Geometry, Request, Responses, Token,
};
use evenkeel_sched::{ElevatorConfig, GroupId, Kind, Nanos, Op, Tag, Weight};

use super::device::{Device, Direction, PAGE_BYTES};
use super::params::PcieParams;

/// One experiment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub params: PcieParams,
    pub direction: Direction,
    pub size: BlockSize,
    pub responses: Responses,
    pub dma_engines: u32,
    /// Commands of the next block that the device fetches while it works on this one; 0: none.
    pub prefetch: u32,
    pub threads: u32,
    /// Pages of a request.
    pub pages: u32,
    /// How long to measure, after a tenth of it that does not count.
    pub span: Nanos,
}

/// What came out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// Pages per second.
    pub pages_per_second: f64,
    /// From a thread's system call to its return.
    pub latency_mean_ns: f64,
    pub commands_per_block: f64,
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// The driver gets a page of a thread's request; so many more follow.
    Page { thread: u32, more: u32 },
    /// The device has only the last command of its block left.
    Last,
    /// The device interrupts the host, with so many answers.
    Interrupt { answers: u32, last: bool },
    /// The driver's handler is at those answers.
    Handle { answers: u32, last: bool },
}

/// A thread that has one request outstanding, always.
#[derive(Clone, Copy, Debug, Default)]
struct Thread {
    started: u64,
    pages_left: u32,
}

#[derive(Debug)]
struct World {
    setting: Setting,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    sequence: u64,
    engine: Engine,
    disk: DiskId,
    next_page: u64,
    threads: Vec<Thread>,
    /// When the processor that handles interrupts is free.
    host: u64,
    device: Device,
    /// Commands at the device, in order.
    at_device: VecDeque<Tag>,
    /// Commands of the block, and how many the device has not begun.
    block: u32,
    to_begin: u32,
    /// How many are executed and not answered.
    unanswered: u32,
    /// Of the next block, already at the device.
    ahead: u32,
    busy: bool,
    counts_from: u64,
    pages: u64,
    blocks: u64,
    requests: u64,
    latency: u64,
}

/// Runs an experiment.
pub(crate) fn run(setting: &Setting) -> Outcome {
    let mut world = World::new(setting);
    let end = setting.span.0;
    world.run_until(end / 10);
    (world.pages, world.blocks, world.requests, world.latency) = (0, 0, 0, 0);
    world.counts_from = world.now;
    world.run_until(world.counts_from + end);
    world.engine.check_invariants();
    world.outcome()
}

impl World {
    fn new(setting: &Setting) -> Self {
        let prefetches = setting.prefetch > 0;
        let max = u32::try_from(setting.params.max_block).expect("at most 1024");
        let elevator = ElevatorConfig { kind: Kind::None, ..ElevatorConfig::default() };
        let config = EngineConfig {
            elevator,
            // With prefetching the device has a block and the first commands of the next; when it
            // answers is its own matter then.
            depth: if prefetches { max + setting.prefetch } else { max },
            blocks: BlockConfig {
                size: setting.size,
                responses: if prefetches { Responses::Each } else { setting.responses },
                one_at_a_time: !prefetches,
            },
        };
        let mut engine = Engine::new(Nanos::ORIGIN, &config);
        engine.explain_waits(false);
        let vm = engine.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        let geometry = Geometry::plain(1 << 50);
        let disk = engine.add_disk(vm, geometry);
        let mut world = Self {
            setting: *setting,
            now: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            engine,
            disk,
            next_page: 0,
            threads: vec![Thread::default(); setting.threads as usize],
            host: 0,
            device: Device::new(&setting.params, setting.direction, setting.dma_engines),
            at_device: VecDeque::new(),
            block: 0,
            to_begin: 0,
            unanswered: 0,
            ahead: 0,
            busy: false,
            counts_from: 0,
            pages: 0,
            blocks: 0,
            requests: 0,
            latency: 0,
        };
        for thread in 0..setting.threads {
            // They do not start at the same nanosecond.
            world.start(thread, u64::from(thread) * 100);
        }
        world
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((at, self.sequence, event)));
    }

    /// A thread makes its system call.
    fn start(&mut self, thread: u32, at: u64) {
        let pages = self.setting.pages;
        self.threads[thread as usize] = Thread { started: at, pages_left: pages };
        self.schedule(at + self.setting.params.submit_ns, Event::Page { thread, more: pages - 1 });
    }

    fn run_until(&mut self, end: u64) {
        while let Some(&Reverse((at, _, event))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.now = at;
            match event {
                Event::Page { thread, more } => self.page(thread, more),
                Event::Last => self.last(),
                Event::Interrupt { answers, last } => {
                    self.host = self.host.max(at) + self.setting.params.handler_ns;
                    self.schedule(self.host, Event::Handle { answers, last });
                }
                Event::Handle { answers, last } => self.handle(answers, last),
            }
        }
        self.now = end;
    }

    fn page(&mut self, thread: u32, more: u32) {
        let request = Request {
            op: match self.setting.direction {
                Direction::Read => Op::Read,
                Direction::Write => Op::Write,
            },
            sector: self.next_page * (PAGE_BYTES / 512) % (1 << 49),
            nr_sectors: u32::try_from(PAGE_BYTES / 512).expect("eight"),
            segments: 1,
            ioprio: 0x4004,
            unmap: false,
        };
        self.next_page += 1;
        self.engine.submit(Nanos(self.now), self.disk, Token(thread.into()), &request);
        if more > 0 {
            let at = self.now + self.setting.params.page_ns;
            self.schedule(at, Event::Page { thread, more: more - 1 });
        }
        if !self.busy {
            self.dispatch();
        }
    }

    /// Takes up to `most` commands from the engine.
    fn take(&mut self, most: u32) -> u32 {
        let mut taken = 0;
        while taken < most
            && let Some(command) = self.engine.dispatch(Nanos(self.now))
        {
            self.at_device.push_back(command.tag);
            taken += 1;
        }
        taken
    }

    /// The driver sends the next block, if there is one.
    fn dispatch(&mut self) {
        let most = u32::try_from(self.setting.params.max_block).expect("at most 1024");
        let rest = self.take(most - self.ahead);
        self.block = self.ahead + rest;
        self.busy = self.block > 0;
        if !self.busy {
            return;
        }
        self.blocks += 1;
        self.ahead = 0;
        let params = &self.setting.params;
        self.host =
            self.host.max(self.now) + u64::from(rest) * params.build_ns + params.doorbell_ns;
        self.device.notice(self.host);
        if rest > 0 {
            self.device.fetch(rest.into());
        }
        self.to_begin = rest;
        while self.to_begin > 1 {
            self.begin();
        }
        self.schedule(self.device.free().max(self.now), Event::Last);
    }

    /// The device begins a command; before that it answers those of which enough are done.
    fn begin(&mut self) {
        let group = match self.setting.responses {
            Responses::Each => 1,
            Responses::Subset(group) => group,
            Responses::Block => u32::MAX,
        };
        let answers = if self.unanswered >= group { self.unanswered } else { 0 };
        if let Some(at) = self.device.command(answers.into()) {
            self.unanswered -= answers;
            self.interrupt(at, answers, false);
        }
        self.unanswered += 1;
        self.to_begin = self.to_begin.saturating_sub(1);
    }

    fn interrupt(&mut self, at: u64, answers: u32, last: bool) {
        let at = at + self.setting.params.interrupt_ns;
        self.schedule(at, Event::Interrupt { answers, last });
    }

    /// The device finishes its block, having perhaps fetched the beginning of the next.
    fn last(&mut self) {
        let ahead = if self.setting.prefetch > 0 { self.take(self.setting.prefetch) } else { 0 };
        if ahead > 0 {
            self.device.prefetch(ahead.into());
        }
        if self.to_begin > 0 {
            self.begin();
        }
        let answers = self.unanswered;
        let at = self.device.look(answers.into()).expect("a block has at least one command");
        self.unanswered = 0;
        self.interrupt(at, answers, true);
        self.ahead = ahead;
        for _ in 0..ahead {
            self.device.command(0);
            self.unanswered += 1;
        }
    }

    /// The driver sends the next block and then answers this one.
    fn handle(&mut self, answers: u32, last: bool) {
        for tag in self.at_device.drain(..answers as usize) {
            self.engine.complete(Nanos(self.now), tag, Ok(()));
        }
        if last {
            self.busy = false;
            self.dispatch();
        }
        while let Some(retired) = self.engine.retire() {
            let params = self.setting.params;
            self.host = self.host.max(self.now) + params.answer_ns;
            self.pages += 1;
            let thread = u32::try_from(retired.token.0).expect("threads are numbered in u32");
            let Thread { started, pages_left } = &mut self.threads[thread as usize];
            *pages_left -= 1;
            if *pages_left == 0 {
                let awake = self.host + params.wake_ns;
                self.requests += 1;
                self.latency += awake - *started;
                self.start(thread, awake);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of one second stay far below 2^53")]
    fn outcome(&self) -> Outcome {
        let seconds = (self.now - self.counts_from) as f64 / 1e9;
        Outcome {
            pages_per_second: self.pages as f64 / seconds,
            latency_mean_ns: self.latency as f64 / self.requests.max(1) as f64,
            commands_per_block: self.pages as f64 / self.blocks.max(1) as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::PRESET;
    use super::*;

    fn rate(size: BlockSize, quick: bool) -> f64 {
        let mut params = PRESET.params;
        if quick {
            (params.wake_ns, params.submit_ns, params.answer_ns) = (0, 500, 100);
        }
        let setting = Setting {
            params,
            direction: Direction::Read,
            size,
            responses: Responses::Block,
            dma_engines: 1,
            prefetch: 0,
            threads: 8,
            pages: 1,
            span: Nanos::from_millis(20),
        };
        run(&setting).pages_per_second
    }

    #[test]
    fn only_threads_that_are_back_before_the_next_block_make_a_full_static_one_faster() {
        let ratio = |quick| {
            let [dynamic, full] =
                [BlockSize::Dynamic, BlockSize::Static(8)].map(|size| rate(size, quick));
            dynamic / full
        };
        let (usual, quick) = (ratio(false), ratio(true));
        println!("dynamic against full static blocks: usual {usual:.3}, quick {quick:.3}");
        assert!(usual > 1.05, "{usual}");
        assert!((0.75..0.95).contains(&quick), "{quick}");
    }
}
