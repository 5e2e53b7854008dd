//! The ports by which guests' agents ask for help, all on one thread.
//!
//! A port is a Unix socket, `VM.agent.sock`, to which QEMU connects a virtio-serial port of that
//! VM; whoever speaks there is that guest. What comes is hostile: lines have a limit, and a
//! connection is read at most every few milliseconds, so one that floods only fills its own
//! buffers. What is asked goes to the workers of all pools in which the VM has disks.

use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenkeel_engine::{Ask, HelpReport};
use evenkeel_sched::{Nanos, Urgency};
use evenkeel_wire::agent::{FromGuest, FromHost, LEASE_MS_MAX, Level, Lines, VERSION};
use rustix::event::{PollFd, PollFlags, poll};

use crate::command::{Command, WorkerHandle};

/// A connection is read at most once in this time, [`CHUNK_BYTES`] at a time. An agent sends a few
/// lines a second.
const READ_INTERVAL: Duration = Duration::from_millis(5);
const CHUNK_BYTES: usize = 4096;

/// Where a VM is known: a pool's worker, and its position among that pool's groups.
#[derive(Clone, Debug)]
pub(crate) struct Home {
    pub(crate) worker: WorkerHandle,
    pub(crate) group: usize,
}

/// One VM's port.
#[derive(Debug)]
pub(crate) struct Port {
    vm: String,
    path: PathBuf,
    listener: UnixListener,
    homes: Vec<Home>,
    guest: Option<Guest>,
}

/// Who speaks at a port.
#[derive(Debug)]
struct Guest {
    stream: UnixStream,
    lines: Lines,
    /// Not read before then.
    rests_until: Instant,
}

impl Port {
    pub(crate) fn new(vm: &str, path: PathBuf, listener: UnixListener, homes: Vec<Home>) -> Self {
        Self { vm: vm.to_owned(), path, listener, homes, guest: None }
    }

    /// Takes whoever connects; one at a time.
    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.guest.is_some() {
                tracing::warn!(vm = self.vm, "a second connection to the agent's port is refused");
                continue;
            }
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            tracing::debug!(vm = self.vm, "agent's port connected");
            let rests_until = Instant::now();
            self.guest = Some(Guest { stream, lines: Lines::default(), rests_until });
            self.answer(&FromHost::Hello { version: VERSION, lease_max_ms: LEASE_MS_MAX });
        }
    }

    /// Reads what has come.
    fn read(&mut self, now: Instant) {
        let Some(guest) = &mut self.guest else { return };
        let mut chunk = [0; CHUNK_BYTES];
        let length = match guest.stream.read(&mut chunk) {
            Ok(0) => return self.hang_up(),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return,
            Err(_broken) => return self.hang_up(),
        };
        guest.rests_until = now + READ_INTERVAL;
        // Only the newest request counts, so that a flood costs one question to the workers.
        let (mut hello, mut asked) = (false, None);
        guest.lines.push(&chunk[..length], |line| match serde_json::from_slice(line) {
            Ok(FromGuest::Hello { .. }) => (hello, asked) = (true, None),
            Ok(help @ FromGuest::Help { .. }) => asked = Some(help),
            Err(_garbage) => {}
        });
        if hello {
            // The agent has started anew, and counts from anywhere.
            self.reset();
            self.answer(&FromHost::Hello { version: VERSION, lease_max_ms: LEASE_MS_MAX });
        }
        if let Some(FromGuest::Help { seq, level, lease_ms, marked, reason }) = asked {
            let lease = Nanos::from_millis(u64::from(lease_ms.min(LEASE_MS_MAX)));
            let report = self.ask(Ask { seq, urgency: urgency(level), lease, marked });
            let granted = self::level(report.urgency);
            tracing::debug!(vm = self.vm, asked = %level, %granted, reason, "help");
            let lease_ms = if granted == Level::None { 0 } else { lease_ms.min(LEASE_MS_MAX) };
            let credit_ms = report.credit.as_millis();
            self.answer(&FromHost::Grant { seq, level: granted, lease_ms, credit_ms });
        }
    }

    /// Asks all workers; returns the most that one granted, and the least credit.
    fn ask(&self, ask: Ask) -> HelpReport {
        let reports = self.homes.iter().filter_map(|Home { worker, group }| {
            let group = *group;
            worker.ask(|reply| Command::AskHelp { group, ask, reply }).ok()
        });
        let merge = |a: HelpReport, b: HelpReport| HelpReport {
            urgency: a.urgency.max(b.urgency),
            credit: a.credit.min(b.credit),
            ..a
        };
        reports.reduce(merge).unwrap_or_default()
    }

    fn reset(&self) {
        for Home { worker, group } in &self.homes {
            // A worker that has ended helps nobody any more.
            let _ended = worker.send(Command::ResetHelp { group: *group });
        }
    }

    /// Sends a line; one that finds no room is dropped, the guest will ask again.
    fn answer(&mut self, message: &FromHost) {
        let Some(guest) = &mut self.guest else { return };
        let mut line = serde_json::to_vec(message).expect("plain data");
        line.push(b'\n');
        match guest.stream.write(&line) {
            Ok(length) if length == line.len() => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Half a line would spoil the next one.
            Ok(_) | Err(_) => self.hang_up(),
        }
    }

    fn hang_up(&mut self) {
        if self.guest.take().is_some() {
            tracing::debug!(vm = self.vm, "agent's port disconnected");
            self.reset();
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.path);
    }
}

const fn urgency(level: Level) -> Urgency {
    match level {
        Level::None => Urgency::None,
        Level::Interactive => Urgency::Interactive,
        Level::SoftRealTime => Urgency::SoftRealTime,
    }
}

pub(crate) const fn level(urgency: Urgency) -> Level {
    match urgency {
        Urgency::None => Level::None,
        Urgency::Interactive => Level::Interactive,
        Urgency::SoftRealTime => Level::SoftRealTime,
    }
}

/// Listens at all ports on a thread of its own, until `stop` becomes readable.
///
/// # Errors
///
/// * No thread is to be had.
pub(crate) fn spawn(mut ports: Vec<Port>, stop: OwnedFd) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name("agents".to_owned()).spawn(move || {
        while let Err(errno) = serve(&mut ports, &stop) {
            tracing::error!(%errno, "cannot wait for agents; trying again");
            thread::sleep(Duration::from_secs(1));
        }
    })
}

fn serve(ports: &mut [Port], stop: &OwnedFd) -> rustix::io::Result<()> {
    loop {
        let now = Instant::now();
        // In this order: the stop, every listener, then the guests that are not resting.
        let mut fds = vec![PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN)];
        fds.extend(ports.iter().map(|port| PollFd::new(&port.listener, PollFlags::IN)));
        let resting = |guest: &Guest| guest.rests_until > now;
        let mut wakes: Option<Duration> = None;
        let mut readers = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            let Some(guest) = &port.guest else { continue };
            if resting(guest) {
                let rest = guest.rests_until - now;
                wakes = Some(wakes.map_or(rest, |wakes| wakes.min(rest)));
            } else {
                readers.push(index);
                fds.push(PollFd::new(&guest.stream, PollFlags::IN));
            }
        }
        let timeout = wakes.map(|wakes| wakes.try_into().expect("a few milliseconds"));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        if ready[0] {
            return Ok(());
        }
        let (listeners, streams) = ready[1..].split_at(ports.len());
        for (port, _) in ports.iter_mut().zip(listeners).filter(|(_, ready)| **ready) {
            port.accept();
        }
        for (&index, _) in readers.iter().zip(streams).filter(|(_, ready)| **ready) {
            ports[index].read(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::command::{self, Inbox};

    /// What the worker of a test heard.
    #[derive(Debug, Eq, PartialEq)]
    enum Heard {
        Ask(Ask),
        Reset,
    }

    struct Stage {
        stop: OwnedFd,
        path: PathBuf,
        thread: Option<JoinHandle<()>>,
        heard: Receiver<Heard>,
    }

    /// A port whose worker grants whatever is asked.
    fn stage(name: &str) -> Stage {
        let pid = std::process::id();
        let path = std::env::temp_dir().join(format!("evenkeel-agents-{pid}-{name}.sock"));
        let _old = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (worker, inbox) = command::channel().unwrap();
        let (tell, heard) = mpsc::channel();
        thread::spawn(move || grant_everything(&inbox, &tell));
        let homes = vec![Home { worker, group: 3 }];
        let port = Port::new("web", path.clone(), listener, homes);
        let stop = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let thread = spawn(vec![port], stop.try_clone().unwrap()).unwrap();
        Stage { stop, path, thread: Some(thread), heard }
    }

    fn grant_everything(inbox: &Inbox, tell: &mpsc::Sender<Heard>) {
        while let Ok(command) = inbox.receiver.recv() {
            match command {
                Command::AskHelp { group: 3, ask, reply } => {
                    let credit = Nanos::from_secs(7);
                    let report =
                        HelpReport { urgency: ask.urgency, credit, ..HelpReport::default() };
                    let _nobody_waits = reply.try_send(report);
                    let _test_over = tell.send(Heard::Ask(ask));
                }
                Command::ResetHelp { group: 3 } => {
                    let _test_over = tell.send(Heard::Reset);
                }
                other => unreachable!("an agent's port sends no {other:?}"),
            }
        }
    }

    impl Drop for Stage {
        fn drop(&mut self) {
            rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
            self.thread.take().unwrap().join().unwrap();
            assert!(!self.path.exists(), "the socket is removed");
        }
    }

    fn line(reader: &mut impl io::BufRead) -> FromHost {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    const HELP: &[u8] =
        b"{\"type\":\"help\",\"seq\":7,\"level\":\"interactive\",\"lease_ms\":500,\"marked\":true}\n";

    fn asked() -> Heard {
        let lease = Nanos::from_millis(500);
        Heard::Ask(Ask { seq: 7, urgency: Urgency::Interactive, lease, marked: true })
    }

    #[test]
    fn a_request_for_help_reaches_the_worker_and_is_answered() {
        let stage = stage("ask");
        let mut guest = UnixStream::connect(&stage.path).unwrap();
        let mut host = BufReader::new(guest.try_clone().unwrap());
        let hello = FromHost::Hello { version: VERSION, lease_max_ms: LEASE_MS_MAX };
        assert_eq!(line(&mut host), hello);
        guest.write_all(HELP).unwrap();
        let level = Level::Interactive;
        let grant = FromHost::Grant { seq: 7, level, lease_ms: 500, credit_ms: 7000 };
        assert_eq!(line(&mut host), grant);
        assert_eq!(stage.heard.recv(), Ok(asked()));
    }

    #[test]
    fn a_closed_port_ends_the_help_and_the_next_agent_is_heard() {
        let stage = stage("close");
        let mut guest = UnixStream::connect(&stage.path).unwrap();
        guest.write_all(HELP).unwrap();
        assert_eq!(stage.heard.recv(), Ok(asked()));
        drop(guest);
        assert_eq!(stage.heard.recv(), Ok(Heard::Reset));
        let mut guest = UnixStream::connect(&stage.path).unwrap();
        guest.write_all(HELP).unwrap();
        assert_eq!(stage.heard.recv(), Ok(asked()));
    }

    #[test]
    fn a_hello_starts_a_new_count() {
        let stage = stage("hello");
        let mut guest = UnixStream::connect(&stage.path).unwrap();
        guest.write_all(b"{\"type\":\"hello\",\"version\":1}\n").unwrap();
        assert_eq!(stage.heard.recv(), Ok(Heard::Reset));
    }

    #[test]
    fn garbage_is_skipped_and_a_flood_reaches_the_worker_as_little() {
        let stage = stage("flood");
        let mut guest = UnixStream::connect(&stage.path).unwrap();
        for _ in 0..200 {
            guest.write_all(&[b'x'; 3000]).unwrap();
            guest.write_all(b"\n\xff\0{}\n[]\n").unwrap();
        }
        let flood = HELP.repeat(2000);
        guest.write_all(&flood).unwrap();
        drop(guest);
        let heard: Vec<_> = stage.heard.iter().take_while(|heard| *heard != Heard::Reset).collect();
        let chunks = flood.len() / CHUNK_BYTES;
        assert!(!heard.is_empty() && heard.len() <= chunks * 2, "{} asks", heard.len());
        assert!(heard.iter().all(|heard| *heard == asked()));
    }

    #[test]
    fn a_second_connection_is_refused_while_the_first_is_open() {
        let stage = stage("second");
        let mut first = UnixStream::connect(&stage.path).unwrap();
        let mut host = BufReader::new(first.try_clone().unwrap());
        line(&mut host);
        let mut second = UnixStream::connect(&stage.path).unwrap();
        assert_eq!(second.read(&mut [0; 16]).unwrap(), 0);
        first.write_all(HELP).unwrap();
        assert_eq!(stage.heard.recv(), Ok(asked()));
    }
}
