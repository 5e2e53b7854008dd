//! The agent itself: one thread, asleep unless something happens.

mod report;
#[cfg(test)]
mod tests;
mod told;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_urgency::{Asking, Rules, Watched};
use evenkeel_wire::agent::{FromGuest, FromHost, Level, VERSION};
use rustix::event::{PollFd, PollFlags, poll};

use crate::channel::{Channel, Way};
use crate::clock;
use crate::events::Events;
use crate::ioprio::IoPrio;
use crate::procfs::{Counters, Proc};
use crate::raised::Raised;
use crate::signals::Ending;
use crate::status::{Listener, Peer, Reply, Request};

/// For so long what the kernel tells is gathered once it begins: a program that has ended by then, as
/// most of a script have, is not looked at.
const GATHER: Duration = Duration::from_millis(2);

/// How often `/proc` is looked through without process events, and with them.
const SCAN_WITHOUT_EVENTS: Duration = Duration::from_millis(100);
const SCAN_WITH_EVENTS: Duration = Duration::from_secs(10);

/// How soon an urgent process is searched for threads that were born as its priority was set, and
/// how often for others: these have inherited it.
const THREADS_SOON: Duration = Duration::from_millis(100);
const THREADS_AGAIN: Duration = Duration::from_secs(1);

/// How often, at most, the schedulers of the disks are looked at.
const SCHEDULERS_AGAIN: Duration = Duration::from_secs(10);

/// How often a lost connection is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Why a process is urgent.
const AWAKE: &str = "it reads again after a pause";
const BY_HAND: &str = "it was marked by hand";

/// How the agent runs.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// The way to the host; none asks for no help.
    pub(crate) way: Option<Way>,
    /// Whether I/O priorities are set.
    pub(crate) priorities: bool,
    pub(crate) socket: PathBuf,
    /// Where the kernel shows its disks, and their schedulers.
    pub(crate) disks: PathBuf,
}

/// A process that is watched.
#[derive(Debug)]
struct Process {
    name: String,
    /// Tells it from a later one with the same number.
    started: u64,
    counters: Counters,
    watched: Watched,
    reason: &'static str,
    next_look: Duration,
    /// When its threads are given the priority again, once they were, and whether that was refused.
    next_raise: Option<Duration>,
    is_refused: bool,
}

/// What a process was before it was watched.
#[derive(Clone, Copy, Debug)]
struct Past {
    parent: u32,
    /// Processor time.
    worked: Duration,
}

/// Why a process is not watched.
#[derive(Debug)]
enum Unwatched {
    /// It is gone, a kernel thread, or the agent itself.
    Nobody,
    /// Its counters cannot be read.
    Unread(io::Error),
}

/// What became of the priorities that were to be set.
#[derive(Debug, Default)]
struct Allowed {
    /// Whether one was ever set.
    once: bool,
    /// Processes for which that was refused, and the last reason.
    refused: u64,
    why: String,
}

struct Agent {
    options: Options,
    proc: Proc,
    rules: Rules,
    granularity: Duration,
    events: Result<Events, String>,
    channel: Result<Channel, String>,
    next_connect: Duration,
    next_scan: Duration,
    processes: HashMap<u32, Process>,
    /// Who was forked, as far as told, and by whom.
    parents: HashMap<u32, u32>,
    /// Latest starts of programs, with the process that began them.
    starts: VecDeque<(Duration, u32)>,
    /// How many processes the last scan could not watch, and why.
    unread: Option<(usize, io::Error)>,
    raised: Raised,
    allowed: Allowed,
    high: IoPrio,
    /// When the schedulers are looked at again.
    next_disks: Duration,
    asking: Asking,
    credit_ms: u64,
    messages: u64,
}

/// Runs until it is killed.
///
/// # Errors
///
/// The status socket cannot be made, or signals cannot be waited for.
pub(crate) fn serve(options: &Options) -> anyhow::Result<()> {
    let listener = Listener::bind(&options.socket)
        .with_context(|| format!("cannot listen on {}", options.socket.display()))?;
    let ending = Ending::hold().context("cannot wait for signals")?;
    let mut agent = Agent::new(options.clone(), Proc::new("/proc"));
    loop {
        agent.connect(clock::now());
        let timeout = agent.next_wakeup(clock::now());
        let ready = agent.sleep(&listener, &ending, timeout)?;
        if ready.ending && ending.is_due() {
            return Ok(());
        }
        if ready.listener {
            listener.serve(|peer, request| agent.answer(clock::now(), peer, request));
        }
        if ready.kernel {
            std::thread::sleep(GATHER);
        }
        agent.turn(clock::now(), ready);
    }
}

/// Who has something to say.
#[derive(Clone, Copy, Debug)]
struct Ready {
    listener: bool,
    ending: bool,
    kernel: bool,
    host: bool,
}

impl Agent {
    fn new(options: Options, proc: Proc) -> Self {
        let granularity = clock::granularity();
        let now = clock::now();
        let seq = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut journal = options.socket.clone().into_os_string();
        journal.push(".raised");
        let raised = Raised::new(proc.clone(), journal.into());
        let mut agent = Self {
            options,
            unread: None,
            raised,
            allowed: Allowed::default(),
            proc,
            rules: Rules::new(granularity),
            granularity,
            events: Events::subscribe().map_err(|error| error.to_string()),
            channel: Err("not tried yet".to_owned()),
            next_connect: now,
            next_scan: now,
            processes: HashMap::new(),
            parents: HashMap::new(),
            starts: VecDeque::new(),
            high: IoPrio::HIGH,
            next_disks: now,
            asking: Asking::new(seq),
            credit_ms: 0,
            messages: 0,
        };
        // Who is there already has started long ago.
        agent.scan(now, false);
        agent
    }

    fn connect(&mut self, now: Duration) {
        let Some(way) = &self.options.way else { return };
        if self.channel.is_ok() || now < self.next_connect {
            return;
        }
        self.next_connect = now + RETRY;
        self.channel = Channel::open(way).map_err(|error| error.to_string());
        self.asking.connected();
        self.say_hello();
    }

    fn say_hello(&mut self) {
        let agent = env!("CARGO_PKG_VERSION").to_owned();
        self.send(&FromGuest::Hello { version: VERSION, agent });
    }

    fn send(&mut self, message: &FromGuest) {
        let Ok(channel) = &mut self.channel else { return };
        self.messages += 1;
        if let Err(error) = channel.send(message) {
            self.channel = Err(error.to_string());
            self.asking.connected();
        }
    }

    /// Sleeps until something happens, or `timeout` has passed.
    fn sleep(
        &mut self,
        listener: &Listener,
        ending: &Ending,
        timeout: Duration,
    ) -> anyhow::Result<Ready> {
        let fds = [listener.as_fd(), ending.as_fd()];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).to_vec();
        if let Ok(events) = &self.events {
            fds.push(PollFd::from_borrowed_fd(events.as_fd(), PollFlags::IN));
        }
        if let Ok(channel) = &self.channel {
            fds.push(PollFd::from_borrowed_fd(channel.as_fd(), PollFlags::IN));
        }
        let timeout = timeout.try_into().context("a wait of more than centuries")?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno).context("cannot wait"),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = |is_asked: bool| is_asked && ready.next().unwrap_or(false);
        let (listener, ending) = (next(true), next(true));
        let (kernel, host) = (next(self.events.is_ok()), next(self.channel.is_ok()));
        Ok(Ready { listener, ending, kernel, host })
    }

    fn next_wakeup(&self, now: Duration) -> Duration {
        let looks = self.processes.values().map(|process| process.next_look).min();
        let review = self.asking.next_review(self.level(now)).filter(|_| self.channel.is_ok());
        let connect =
            (self.options.way.is_some() && self.channel.is_err()).then_some(self.next_connect);
        let all = [Some(self.next_scan), looks, review, connect];
        let next = all.into_iter().flatten().min().expect("a scan is always due some time");
        next.saturating_sub(now)
    }

    fn turn(&mut self, now: Duration, ready: Ready) {
        if ready.host {
            self.hear_host();
        }
        let is_due = now >= self.next_scan;
        if ready.kernel || is_due {
            self.hear_kernel(now);
        }
        if is_due {
            self.scan(now, true);
        }
        self.look(now);
        self.raised.write_down();
        self.ask_host(now);
    }

    fn hear_host(&mut self) {
        let Ok(channel) = &mut self.channel else { return };
        let (asking, credit_ms) = (&mut self.asking, &mut self.credit_ms);
        let heard = channel.receive(|message| match message {
            FromHost::Hello { lease_max_ms, .. } => {
                asking.set_lease(lease_max_ms);
                asking.connected();
            }
            FromHost::Grant { level, credit_ms: credit, .. } => {
                asking.granted = level;
                *credit_ms = credit;
            }
        });
        if let Err(error) = heard {
            self.channel = Err(format!("the host has closed the connection: {error}"));
            self.asking.connected();
        }
    }

    /// Begins to watch a process.
    fn watch(&mut self, now: Duration, pid: u32) -> Result<Past, Unwatched> {
        let identity = self.proc.identity(pid).filter(|identity| !identity.is_kernel);
        let identity = identity.filter(|_| pid != std::process::id()).ok_or(Unwatched::Nobody)?;
        let mut counters = self.proc.counters(pid);
        let bytes = counters.read_bytes().map_err(|error| {
            // Who is not allowed to read something knows that it is there.
            let is_there = error.kind() == io::ErrorKind::PermissionDenied
                || self.proc.identity(pid).is_some();
            if is_there { Unwatched::Unread(error) } else { Unwatched::Nobody }
        })?;
        // What was asked for by hand holds for the same process, not for one with its number.
        let known = self.processes.get(&pid).filter(|known| known.started == identity.started);
        let watched = known.map_or_else(
            || Watched::new(now, bytes),
            |known| known.watched.renewed(now, bytes, &self.rules),
        );
        let is_by_hand = watched.level() != Level::None;
        let process = Process {
            name: identity.name,
            started: identity.started,
            counters,
            watched,
            reason: if is_by_hand { BY_HAND } else { AWAKE },
            next_look: now,
            next_raise: None,
            is_refused: false,
        };
        self.processes.insert(pid, process);
        Ok(Past { parent: identity.parent, worked: identity.worked })
    }

    /// Looks through `/proc` for processes that nobody told of, and forgets those that are gone.
    fn scan(&mut self, now: Duration, is_new_urgent: bool) {
        let interval = if self.events.is_ok() { SCAN_WITH_EVENTS } else { SCAN_WITHOUT_EVENTS };
        self.next_scan = now + interval;
        if now >= self.next_disks {
            self.next_disks = now + SCHEDULERS_AGAIN;
            self.high = IoPrio::urgent(&self.options.disks);
        }
        let mut there = self.proc.processes();
        there.sort_unstable();
        self.processes.retain(|pid, _| there.binary_search(pid).is_ok());
        self.parents.retain(|pid, _| there.binary_search(pid).is_ok());
        let mut unread: Option<(usize, io::Error)> = None;
        for &pid in &there {
            let identity = self.proc.identity(pid).filter(|identity| !identity.is_kernel);
            let Some(identity) = identity else { continue };
            let known = self.processes.get(&pid);
            if known.is_some_and(|known| known.started != identity.started) {
                self.raised.forget(pid);
            } else if known.is_some_and(|known| known.name == identity.name) {
                continue;
            }
            // Before it is raised itself: what it has inherited is not its own.
            self.raised.forked(identity.parent, pid, false);
            let watched = if is_new_urgent && self.events.is_err() {
                self.began(now, pid)
            } else {
                self.watch(now, pid).map(|_past| ())
            };
            if let Err(Unwatched::Unread(error)) = watched {
                let others = unread.map_or(0, |(others, _)| others);
                unread = Some((others + 1, error));
            }
        }
        self.unread = unread;
        self.raised.scanned(&there);
    }

    /// Looks at the processes that are due.
    fn look(&mut self, now: Duration) {
        let mut gone = Vec::new();
        for (&pid, process) in &mut self.processes {
            if process.next_look > now {
                continue;
            }
            let before = process.watched.level();
            let Ok(bytes) = process.counters.read_bytes() else {
                gone.push(pid);
                continue;
            };
            process.watched.look(now, bytes, &self.rules);
            if process.watched.is_in_doubt(now) {
                process.watched.seen(now, process.counters.is_held_up());
            }
            if process.watched.wants_worked(now, &self.rules)
                && let Some(time) = process.counters.worked()
            {
                process.watched.worked(now, time, &self.rules);
            }
            let level = process.watched.level();
            let interval = process.watched.next_look(now);
            process.next_look = at_multiple(now + interval, interval);
            if process.watched.is_asleep(now) {
                process.counters.close();
            }
            match level {
                Level::None => process.reason = AWAKE,
                Level::SoftRealTime if process.watched.by_hand() != Some(level) => {
                    process.reason = "it reads at a steady, modest rate";
                }
                Level::SoftRealTime | Level::Interactive => {}
            }
            if !self.options.priorities {
                continue;
            }
            if level != Level::None {
                // Again while it lasts: it may have new threads.
                let pause = process.next_raise.map_or(THREADS_SOON, |_| THREADS_AGAIN);
                if process.next_raise.is_none_or(|at| now >= at) {
                    process.next_raise = Some(now + pause);
                    let raised = self.raised.raise(pid, self.high);
                    self.allowed.once |= raised.is_ok() && self.raised.has(pid);
                    // Once for each process, though it is tried again and again.
                    self.allowed.refused += u64::from(raised.is_err() && !process.is_refused);
                    process.is_refused = raised.is_err();
                    if let Err(error) = raised {
                        self.allowed.why = error.to_string();
                    }
                }
                continue;
            }
            process.next_raise = None;
            if before != Level::None || self.raised.has(pid) {
                self.raised.restore(pid);
            }
        }
        for pid in gone {
            self.processes.remove(&pid);
            if self.proc.identity(pid).is_some() {
                // Its counters are no longer ours to see.
                self.raised.restore(pid);
            } else {
                self.raised.forget(pid);
            }
        }
    }

    /// Returns the highest urgency of all processes that want something from the disk.
    fn level(&self, now: Duration) -> Level {
        let wants = self.processes.values().map(|process| process.watched.wants(now));
        wants.max().unwrap_or_default()
    }

    fn ask_host(&mut self, now: Duration) {
        if self.channel.is_err() {
            return;
        }
        let level = self.level(now);
        let processes = &self.processes;
        if level != Level::None {
            // If nobody may be marked, all that the guest reads is meant.
            let mut urgent =
                processes.values().filter(|process| process.watched.wants(now) == level);
            self.asking.marked =
                self.options.priorities && urgent.any(|process| !process.is_refused);
        }
        let reason = || {
            let urgent = processes.values().find(|process| process.watched.wants(now) == level);
            urgent.map_or_else(String::new, |process| {
                // A name may hold anything; a line has a limit.
                let name: String = process.name.chars().filter(|c| !c.is_control()).collect();
                format!("{name}: {}", process.reason)
            })
        };
        if let Some(message) = self.asking.review(now, level, reason) {
            self.send(&message);
        }
    }

    fn answer(&mut self, now: Duration, peer: Peer, request: Request) -> Reply {
        match request {
            Request::Status => Reply::Status(Box::new(self.status())),
            Request::Mark { level: Level::None } => {
                Reply::Refused("a command is interactive or soft-real-time".to_owned())
            }
            Request::Mark { level } => {
                let pid = peer.pid;
                if let Err(why) = peer.may_mark(self.proc.owner(pid)) {
                    return Reply::Refused(why);
                }
                if let Err(unwatched) = self.watch(now, pid) {
                    let why = match unwatched {
                        Unwatched::Nobody => String::new(),
                        Unwatched::Unread(error) => format!(": {error}"),
                    };
                    return Reply::Refused(format!("process {pid} cannot be watched{why}"));
                }
                let rules = self.rules;
                let process = self.processes.get_mut(&pid).expect("it was inserted above");
                process.watched.marked(now, &rules, level);
                process.reason = BY_HAND;
                self.look(now);
                self.ask_host(now);
                Reply::Marked
            }
        }
    }
}

/// Returns the last multiple of `interval` up to `time`: processes are looked at together, since
/// each time costs a wake-up.
fn at_multiple(time: Duration, interval: Duration) -> Duration {
    let past = time.as_nanos() % interval.as_nanos();
    time.saturating_sub(Duration::from_nanos(u64::try_from(past).unwrap_or(0)))
}
