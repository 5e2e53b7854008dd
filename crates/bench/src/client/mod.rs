//! A vhost-user-blk client: the driver's side of a virtual disk, without a guest around it.
//!
//! It connects to the socket of a disk as QEMU would, shares one memfd with the server and drives
//! any number of vrings from one thread. Tests use it to lie, benchmarks to count. Submitting and
//! taking answers allocates nothing.
//!
//! A connection outlives the server: [`Client::reconnect`] takes the vrings as the dead server left
//! them to its successor, with the same in-flight region, exactly as QEMU does.

pub mod channel;
mod handshake;
pub mod load;
#[expect(unsafe_code, reason = "memory shared with another process is mapped and read by address")]
pub mod memory;
mod request;
pub mod verify;
pub mod vring;
mod wait;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use channel::{Channel, message, words};
pub use handshake::feature;
use memory::Memory;
pub use request::{Io, IoOp, Options};
use vring::{Completion, Layout, RingFault, Token, Vring};
pub use wait::{Waiter, Wake};

/// Guest address at which the shared memory begins.
pub const GUEST_BASE: u64 = 1 << 32;
/// Address of the shared memory in the imagined VMM; different, so that mistakes show.
pub const USER_BASE: u64 = 0x7e00_0000_0000;

/// What the server said about the disk and itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Device features that it offers.
    pub features: u64,
    /// Protocol features that it offers.
    pub protocol: u64,
    /// Most vrings.
    pub vrings_max: u64,
    /// Capacity in 512-byte sectors.
    pub sectors: u64,
    /// Logical block size in bytes.
    pub block_bytes: u32,
}

#[derive(Debug)]
struct Inflight {
    fd: OwnedFd,
    /// The message's payload: mmap size and offset, number of vrings, their size.
    description: Vec<u8>,
}

/// A driver with its vrings, connected to one disk.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    options: Options,
    channel: Channel,
    memory: Rc<Memory>,
    vrings: Vec<Vring>,
    call: OwnedFd,
    err: OwnedFd,
    inflight: Option<Inflight>,
    offer: Offer,
    next_vring: usize,
}

impl Client {
    /// Connects to the disk at `path` and starts the vrings.
    ///
    /// # Errors
    ///
    /// * `InvalidInput` -- `options` contradict themselves;
    /// * `Unsupported` -- the server lacks something that `options` ask for;
    /// * otherwise what the socket reports, after [`Options::patience`].
    pub fn connect(path: &Path, options: Options) -> io::Result<Self> {
        options.check()?;
        let mut layouts = Vec::new();
        let mut end = 0;
        for _vring in 0..options.vrings {
            let layout = Layout::new(end, &options);
            end = layout.end;
            layouts.push(layout);
        }
        let memory = Rc::new(Memory::new(end.next_multiple_of(1 << 21))?);
        let vrings = (0..)
            .zip(layouts)
            .map(|(index, layout)| Vring::new(&memory, index, layout, &options))
            .collect::<io::Result<Vec<_>>>()?;
        let mut client = Self {
            path: path.to_owned(),
            channel: connect_patiently(path, options.patience)?,
            options,
            memory,
            vrings,
            call: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            err: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            inflight: None,
            offer: Offer::default(),
            next_vring: 0,
        };
        client.start()?;
        Ok(client)
    }

    /// Connects to the next server at the same socket and goes on where the last one ended.
    ///
    /// Requests in flight stay in flight: the in-flight region tells the new server which they are.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect).
    pub fn reconnect(&mut self) -> io::Result<()> {
        let deadline = Instant::now() + self.options.patience;
        loop {
            // A server that dies (or still starts) in the middle of the handshake is tried again.
            let remaining = deadline.saturating_duration_since(Instant::now());
            let attempt = connect_patiently(&self.path, remaining).and_then(|channel| {
                self.channel = channel;
                self.start()
            });
            match attempt {
                Err(error) if is_gone(&error) && Instant::now() < deadline => {}
                other => return other,
            }
        }
    }

    /// Prepares a request on `vring`; `None` if all its slots are in flight.
    ///
    /// The server sees it after [`publish`](Self::publish); until then its data can be filled in.
    pub fn submit(&mut self, vring: u16, io: &Io) -> Option<Token> {
        self.vrings[usize::from(vring)].submit(io)
    }

    /// Shows the server everything that was submitted, with at most one kick per vring.
    pub fn publish(&mut self) {
        self.vrings.iter_mut().for_each(Vring::publish);
    }

    /// Takes the next answer, from each vring in turn.
    ///
    /// # Errors
    ///
    /// [`RingFault`] if the server broke the rules.
    pub fn next_completion(&mut self) -> Result<Option<Completion>, RingFault> {
        for _vring in 0..self.vrings.len() {
            if let Some(completion) = self.vrings[self.next_vring].next_completion()? {
                return Ok(Some(completion));
            }
            self.next_vring = (self.next_vring + 1) % self.vrings.len();
        }
        Ok(None)
    }

    /// Declares that this client polls: the server need not interrupt.
    pub fn disarm(&mut self) {
        self.vrings.iter_mut().for_each(Vring::disarm);
    }

    /// Asks for interrupts; `true` if there are answers already.
    pub fn arm(&mut self) -> bool {
        self.vrings.iter_mut().fold(false, |ready, vring| vring.arm() | ready)
    }

    /// Submits one request on vring 0 and waits for its answer, which must be the only one.
    ///
    /// # Errors
    ///
    /// * `TimedOut`, `ConnectionReset` -- no answer came;
    /// * `InvalidData` -- the server broke the rules of the ring.
    pub fn call(&mut self, io: &Io, data: &mut [u8]) -> io::Result<u8> {
        let token = self.submit(0, io).ok_or(io::ErrorKind::WouldBlock)?;
        if io.op == IoOp::Write {
            self.write_data(token, 0, data);
        }
        self.publish();
        loop {
            if let Some(completion) = self.next_completion().map_err(io::Error::other)? {
                if matches!(io.op, IoOp::Read | IoOp::GetId) {
                    self.read_data(completion.token, 0, data);
                }
                return Ok(completion.status);
            }
            match self.wait(self.options.patience)? {
                Wake::Answers => {}
                Wake::Broken => return Err(io::ErrorKind::InvalidData.into()),
                Wake::Gone => return Err(io::ErrorKind::ConnectionReset.into()),
                Wake::Timeout => return Err(io::ErrorKind::TimedOut.into()),
            }
        }
    }

    /// Copies `bytes` into the data of a request that was submitted and not yet published.
    pub fn write_data(&self, token: Token, offset: usize, bytes: &[u8]) {
        let vring = &self.vrings[usize::from(token.vring)];
        self.memory.write(vring.data_at(token.slot) + offset, bytes);
    }

    /// Copies the data of an answered request to `bytes`.
    pub fn read_data(&self, token: Token, offset: usize, bytes: &mut [u8]) {
        let vring = &self.vrings[usize::from(token.vring)];
        self.memory.read(vring.data_at(token.slot) + offset, bytes);
    }

    /// Stops every vring, as a driver that leaves does; the server finishes what it has begun.
    ///
    /// # Errors
    ///
    /// What the socket reports.
    pub fn stop(&mut self) -> io::Result<()> {
        for index in 0..u32::from(self.options.vrings) {
            self.channel.ask(message::GET_VRING_BASE, &words(&[index, 0]))?;
        }
        Ok(())
    }

    /// Resets the vrings and starts them again on the same connection, as a rebooting guest does.
    ///
    /// # Errors
    ///
    /// What the socket reports.
    pub fn restart(&mut self) -> io::Result<()> {
        self.stop()?;
        self.vrings.iter_mut().for_each(Vring::reset);
        self.inflight = None;
        self.start_vrings()
    }

    /// Returns the requests in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.vrings.iter().map(Vring::outstanding).sum()
    }

    /// Returns what the server offered.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.offer
    }

    /// Returns the shared memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Returns the in-flight region's file, if one is in use.
    #[must_use]
    pub fn inflight_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inflight.as_ref().map(|inflight| inflight.fd.as_fd())
    }

    /// Returns the kick descriptor of a vring.
    #[must_use]
    pub fn kick_fd(&self, vring: u16) -> BorrowedFd<'_> {
        self.vrings[usize::from(vring)].kick_fd()
    }

    /// Returns a vring to be abused.
    pub fn vring(&mut self, index: u16) -> &mut Vring {
        &mut self.vrings[usize::from(index)]
    }

    /// Returns the socket to be abused.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}

/// Connects as soon as somebody listens.
fn connect_patiently(path: &Path, patience: Duration) -> io::Result<Channel> {
    let deadline = Instant::now() + patience;
    loop {
        match Channel::connect(path, patience.max(Duration::from_secs(1))) {
            Err(error) if is_gone(&error) && Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Says whether the server may come back: nobody listens, or it died while we talked.
fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof];
    kinds.contains(&error.kind())
}
