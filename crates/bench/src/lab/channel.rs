//! The wire to a guest's agent: commands go in, what they print and their status come out.
//!
//! Frames, both ways: `id: u32, kind: u8, len: u32`, little-endian, then `len` bytes. An id names
//! one command from [`Channel::spawn`] on; any number run at once.
//!
//! | kind | from | payload |
//! |---|---|---|
//! | 0 hello | both | nothing; the agent says it once when it is ready |
//! | 1 run | host | a shell script |
//! | 2 kill | host | nothing; SIGKILL to the command's process group |
//! | 3 stdout, 4 stderr | guest | bytes as printed |
//! | 5 exit | guest | `i32`: the exit status, or 256 + the signal that ended it |

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// The host's end of one guest's command port.
#[derive(Debug)]
pub(super) struct Channel {
    stream: UnixStream,
    jobs: Jobs,
    next_id: u32,
}

impl Channel {
    /// Takes over a connection; the returned job ends its first wait when the agent is ready.
    pub(super) fn new(stream: UnixStream) -> Result<(Self, Wire)> {
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let mut input = stream.try_clone()?;
        let (sender, events) = channel();
        let jobs: Jobs = Arc::new(Mutex::new(Some(HashMap::from([(0, sender)]))));
        let shared = Arc::clone(&jobs);
        thread::spawn(move || {
            while let Ok((id, event)) = read_frame(&mut input) {
                let mut jobs = shared.lock().expect("no holder panics");
                let Some(jobs) = jobs.as_mut() else { break };
                let last = matches!(event, Event::Exit(_));
                if let Some(job) = jobs.get(&id) {
                    // Ignored: the job was dropped, nobody wants its output.
                    let _ = job.send(event);
                }
                if last {
                    jobs.remove(&id);
                }
            }
            // Every job that still waits learns that the guest has gone.
            shared.lock().expect("no holder panics").take();
        });
        Ok((Self { stream, jobs, next_id: 1 }, Wire::new(0, events)))
    }

    /// Starts a shell script in the guest.
    pub(super) fn spawn(&mut self, script: &str) -> Result<Wire> {
        let id = self.next_id;
        self.next_id += 1;
        let (sender, events) = channel();
        match self.jobs.lock().expect("no holder panics").as_mut() {
            Some(jobs) => jobs.insert(id, sender),
            None => bail!("the guest has gone"),
        };
        self.send(id, RUN, script.as_bytes())?;
        Ok(Wire::new(id, events))
    }

    /// Kills a command and all its children.
    pub(super) fn kill(&mut self, id: u32) -> Result<()> {
        self.send(id, KILL, &[])
    }

    fn send(&mut self, id: u32, kind: u8, payload: &[u8]) -> Result<()> {
        let mut frame = id.to_le_bytes().to_vec();
        frame.push(kind);
        frame.extend_from_slice(&u32::try_from(payload.len())?.to_le_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).context("the guest takes no commands")
    }
}

/// The receiving end of one command.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) id: u32,
    events: Receiver<Event>,
    /// Output that has come in and was not handed out yet.
    output: Mutex<Output>,
}

impl Wire {
    fn new(id: u32, events: Receiver<Event>) -> Self {
        Self { id, events, output: Mutex::default() }
    }

    /// Waits until the agent has said hello.
    pub(super) fn hello(&self, limit: Duration) -> Result<()> {
        match self.events.recv_timeout(limit) {
            Ok(Event::Hello) => Ok(()),
            Ok(other) => bail!("expected hello, the agent sent {other:?}"),
            Err(RecvTimeoutError::Timeout) => {
                bail!("no answer from the guest within {} s", limit.as_secs())
            }
            Err(RecvTimeoutError::Disconnected) => bail!("the guest ended while it booted"),
        }
    }

    /// Collects output until the command has ended, and hands out what [`line`](Self::line) left.
    pub(super) fn wait(&self, limit: Duration) -> Result<Output> {
        let mut output = self.output.lock().expect("no holder panics");
        let end = Instant::now() + limit;
        while !self.collect(&mut output, end)? {}
        Ok(std::mem::take(&mut *output))
    }

    /// Waits for the next whole line of standard output.
    pub(super) fn line(&self, limit: Duration) -> Result<String> {
        let mut output = self.output.lock().expect("no holder panics");
        let end = Instant::now() + limit;
        loop {
            if let Some(place) = output.stdout.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = output.stdout.drain(..=place).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if self.collect(&mut output, end)? {
                bail!("ended with status {} before the next line", output.status);
            }
        }
    }

    /// Takes in one event; returns whether it was the last.
    fn collect(&self, output: &mut Output, end: Instant) -> Result<bool> {
        match self.events.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(Event::Stdout(bytes)) => output.stdout.extend_from_slice(&bytes),
            Ok(Event::Stderr(bytes)) => output.stderr.extend_from_slice(&bytes),
            Ok(Event::Exit(status)) => {
                output.status = status;
                return Ok(true);
            }
            Ok(Event::Hello) => {}
            Err(RecvTimeoutError::Timeout) => bail!(
                "still running when its time was over; printed so far: {}{}",
                output.text(),
                String::from_utf8_lossy(&output.stderr)
            ),
            Err(RecvTimeoutError::Disconnected) => bail!("the guest ended before the command"),
        }
        Ok(false)
    }
}

/// What a command in a guest printed and how it ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Output {
    /// Exit status 0 to 255, or 256 plus the number of the signal that ended the command.
    pub status: i32,
    /// What it wrote to its standard output, byte by byte.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

impl Output {
    /// Returns standard output as text, without white space around it.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim().to_owned()
    }
}

/// Senders by command id; `None` once the connection has ended.
type Jobs = Arc<Mutex<Option<HashMap<u32, Sender<Event>>>>>;

#[derive(Debug)]
enum Event {
    Hello,
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Exit(i32),
}

fn read_frame(input: &mut impl Read) -> Result<(u32, Event)> {
    let mut head = [0; 9];
    input.read_exact(&mut head)?;
    let id = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
    let len = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
    let mut payload = vec![0; usize::try_from(len)?];
    input.read_exact(&mut payload)?;
    let event = match head[4] {
        HELLO => Event::Hello,
        STDOUT => Event::Stdout(payload),
        STDERR => Event::Stderr(payload),
        EXIT => Event::Exit(i32::from_le_bytes(payload.as_slice().try_into()?)),
        other => bail!("unknown kind of frame {other}"),
    };
    Ok((id, event))
}

/// A guest that does not take a command for so long is taken for dead.
const WRITE_LIMIT: Duration = Duration::from_secs(30);

const HELLO: u8 = 0;
const RUN: u8 = 1;
const KILL: u8 = 2;
const STDOUT: u8 = 3;
const STDERR: u8 = 4;
const EXIT: u8 = 5;
