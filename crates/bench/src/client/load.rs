//! What a benchmark's client keeps asking: a pattern that fills its vrings for ever.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::verify::Random;
use super::{Client, Io, IoOp, Options, Waiter, Wake};

/// Where the next request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pattern {
    /// Anywhere, aligned to the request's size.
    Random,
    /// Behind the last one, from the start again at the end.
    Sequential,
}

impl Pattern {
    /// Returns its name in reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// One kind of load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    /// Read or write.
    pub op: IoOp,
    /// Where.
    pub pattern: Pattern,
    /// Size of each request in bytes.
    pub block_bytes: u32,
    /// Requests in flight per vring.
    pub depth: u16,
}

impl Shape {
    /// Returns the name of the operation in reports.
    #[must_use]
    pub fn op_name(&self) -> &'static str {
        if self.op == IoOp::Write { "write" } else { "read" }
    }
}

/// A client that keeps its vrings full, and what it has received.
#[derive(Debug)]
pub struct Loader {
    client: Client,
    shape: Shape,
    vrings: u16,
    blocks: u64,
    next_block: u64,
    random: Random,
    started: Instant,
    /// Requests answered.
    pub requests: u64,
    /// Time from submission to answer of each request in ns, while there is room for more.
    pub latencies_ns: Vec<u32>,
}

impl Loader {
    /// Connects to the disk at `socket`; latencies are kept for `latencies` requests at most.
    ///
    /// # Errors
    ///
    /// As [`Client::connect`], and `InvalidInput` if the disk is smaller than one request.
    pub fn connect(
        socket: &Path,
        shape: Shape,
        vrings: u16,
        seed: u64,
        latencies: usize,
    ) -> io::Result<Self> {
        let options = Options {
            vrings,
            size: (shape.depth * 3).next_power_of_two(),
            depth: shape.depth,
            max_bytes: shape.block_bytes,
            ..Options::default()
        };
        let client = Client::connect(socket, options)?;
        let blocks = client.offer().sectors * 512 / u64::from(shape.block_bytes);
        if blocks == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Self {
            client,
            shape,
            vrings,
            blocks,
            next_block: 0,
            random: Random::new(seed),
            started: Instant::now(),
            requests: 0,
            latencies_ns: Vec::with_capacity(latencies),
        })
    }

    /// Returns the connection.
    pub fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Returns how many bytes were moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.requests * u64::from(self.shape.block_bytes)
    }

    /// Forgets what was counted so far.
    pub fn reset(&mut self) {
        self.requests = 0;
        self.latencies_ns.clear();
    }

    /// Takes every answer and fills the vrings again; `true` if there was an answer.
    ///
    /// # Errors
    ///
    /// As [`take`](Self::take).
    pub fn turn(&mut self) -> io::Result<bool> {
        let answered = self.take()?;
        self.fill();
        Ok(answered)
    }

    /// Takes every answer; `true` if there was one.
    ///
    /// # Errors
    ///
    /// If a request failed or the server broke the rules of the ring.
    pub fn take(&mut self) -> io::Result<bool> {
        let before = self.requests;
        while let Some(completion) = self.client.next_completion().map_err(io::Error::other)? {
            if completion.status != 0 {
                let text = format!("a request was answered with status {}", completion.status);
                return Err(io::Error::other(text));
            }
            self.requests += 1;
            if self.latencies_ns.len() < self.latencies_ns.capacity() {
                let latency = self.now_ns().saturating_sub(completion.user);
                self.latencies_ns.push(u32::try_from(latency).unwrap_or(u32::MAX));
            }
        }
        Ok(self.requests != before)
    }

    /// Fills the vrings.
    pub fn fill(&mut self) {
        for vring in 0..self.vrings {
            while self.client.vring(vring).has_room() {
                let io = self.next_io();
                self.client.submit(vring, &io);
            }
        }
        self.client.publish();
    }

    /// Waits for everything in flight and stops the vrings.
    ///
    /// # Errors
    ///
    /// What the socket reports; `TimedOut` if answers are missing.
    pub fn leave(mut self) -> io::Result<()> {
        self.settle()?;
        self.client.stop()
    }

    /// Waits for everything in flight.
    ///
    /// # Errors
    ///
    /// What the socket reports; `TimedOut` if answers are missing.
    pub fn settle(&mut self) -> io::Result<()> {
        while self.client.outstanding() > 0 {
            if self.client.next_completion().map_err(io::Error::other)?.is_none() {
                expect_answers(self.client.wait(PATIENCE)?)?;
            }
        }
        Ok(())
    }

    fn next_io(&mut self) -> Io {
        let block = match self.shape.pattern {
            Pattern::Random => self.random.below(self.blocks),
            Pattern::Sequential => {
                let block = self.next_block;
                self.next_block = (block + 1) % self.blocks;
                block
            }
        };
        let sector = block * u64::from(self.shape.block_bytes / 512);
        Io::new(self.shape.op, sector, self.shape.block_bytes, self.now_ns())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl AsMut<Client> for Loader {
    fn as_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl AsRef<Client> for Loader {
    fn as_ref(&self) -> &Client {
        &self.client
    }
}

/// Drives all `loaders` from this thread for `duration`; returns how long it really was.
///
/// # Errors
///
/// As [`Loader::turn`]; `ConnectionReset` if a server leaves, `TimedOut` if nothing is answered for
/// a minute.
pub fn drive(loaders: &mut [Loader], duration: Duration) -> io::Result<Duration> {
    let start = Instant::now();
    let mut waiter = Waiter::new(loaders)?;
    loop {
        let mut answered = false;
        for loader in loaders.iter_mut() {
            answered |= loader.turn()?;
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return Ok(elapsed);
        }
        if answered {
            continue;
        }
        expect_answers(waiter.wait(loaders, PATIENCE)?)?;
    }
}

/// Drives a loader as somebody who thinks does: all answers, a pause, and the next requests; for
/// `duration` at least. Returns how long it really was.
///
/// # Errors
///
/// As [`drive`].
pub fn drive_thinking(
    loader: &mut Loader,
    think: Duration,
    duration: Duration,
) -> io::Result<Duration> {
    let start = Instant::now();
    loop {
        loader.fill();
        while !loader.take()? {
            expect_answers(loader.client.wait(PATIENCE)?)?;
        }
        let elapsed = start.elapsed();
        if elapsed >= duration {
            return Ok(elapsed);
        }
        std::thread::sleep(think);
    }
}

/// How long nobody answers before that is an error.
const PATIENCE: Duration = Duration::from_secs(60);

fn expect_answers(wake: Wake) -> io::Result<()> {
    match wake {
        Wake::Answers => Ok(()),
        Wake::Broken => Err(io::ErrorKind::InvalidData.into()),
        Wake::Gone => Err(io::ErrorKind::ConnectionReset.into()),
        Wake::Timeout => Err(io::ErrorKind::TimedOut.into()),
    }
}
