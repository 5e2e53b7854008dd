//! A vhost-user-blk client: the driver's side of a virtual disk, without a guest around it.
//!
//! It connects to the socket of a disk as QEMU would, shares one memfd with the server and drives
//! any number of vrings from one thread. Tests use it to lie, benchmarks to count. Submitting and
//! taking answers allocates nothing.
//!
//! A connection outlives the server: [`Client::reconnect`] takes the vrings as the dead server left
//! them to its successor, with the same in-flight region, exactly as QEMU does.

pub mod channel;
#[expect(unsafe_code, reason = "memory shared with another process is mapped and read by address")]
pub mod memory;
pub mod vring;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use channel::{Channel, longs, message, protocol, words};
use memory::Memory;
use vring::{Completion, Layout, RingFault, Token, Vring};

/// Guest address at which the shared memory begins.
pub const GUEST_BASE: u64 = 1 << 32;
/// Address of the shared memory in the imagined VMM; different, so that mistakes show.
pub const USER_BASE: u64 = 0x7e00_0000_0000;

/// Feature bits of virtio-blk and of the ring.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod feature {
    pub const READ_ONLY: u64 = 1 << 5;
    pub const FLUSH: u64 = 1 << 9;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of vrings.
    pub vrings: u16,
    /// Descriptors per vring, a power of two.
    pub size: u16,
    /// Most requests in flight per vring.
    pub depth: u16,
    /// Largest request in bytes; memory for `depth` of them is set aside per vring.
    pub max_bytes: u32,
    /// Most data segments per request.
    pub segments: u16,
    /// Negotiate EVENT_IDX.
    pub event_idx: bool,
    /// Put every chain into an indirect table.
    pub indirect: bool,
    /// Use the in-flight region if the server offers it.
    pub inflight: bool,
    /// How long to wait for the socket, and for any answer on it.
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            vrings: 1,
            size: 256,
            depth: 32,
            max_bytes: 4096,
            segments: 1,
            event_idx: true,
            indirect: false,
            inflight: true,
            patience: Duration::from_secs(20),
        }
    }
}

impl Options {
    /// Returns the number of descriptors of the longest chain.
    #[must_use]
    pub fn chain_len(&self) -> u16 {
        self.segments + 2
    }

    fn check(&self) -> io::Result<()> {
        let heads = if self.indirect { 1 } else { u32::from(self.chain_len()) };
        let fits = u32::from(self.depth) * heads <= u32::from(self.size);
        let whole = self.size.is_power_of_two() && self.vrings > 0 && self.segments > 0;
        if fits && whole {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "depth does not fit into the vring"))
    }
}

/// What to ask of the disk.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub enum IoOp {
    Read,
    Write,
    Flush,
    GetId,
    Discard,
    WriteZeroes {
        unmap: bool,
    },
    /// Any type number, without data.
    Raw(u32),
}

impl IoOp {
    fn number(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 4,
            Self::GetId => 8,
            Self::Discard => 11,
            Self::WriteZeroes { .. } => 13,
            Self::Raw(number) => number,
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// What to do.
    pub op: IoOp,
    /// First 512-byte sector.
    pub sector: u64,
    /// Bytes of data, or of the range to discard.
    pub bytes: u32,
    /// I/O priority, as Linux guests send it: class in bits 13 to 15, level in the rest; 0 unknown.
    pub ioprio: u32,
    /// The caller's own word, returned with the answer.
    pub user: u64,
}

impl Io {
    /// Returns a request without priority.
    #[must_use]
    pub fn new(op: IoOp, sector: u64, bytes: u32, user: u64) -> Self {
        Self { op, sector, bytes, ioprio: 0, user }
    }

    fn header_sector(&self) -> u64 {
        match self.op {
            IoOp::Read | IoOp::Write | IoOp::Raw(_) => self.sector,
            IoOp::Flush | IoOp::GetId | IoOp::Discard | IoOp::WriteZeroes { .. } => 0,
        }
    }

    fn range(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[0..8].copy_from_slice(&self.sector.to_le_bytes());
        bytes[8..12].copy_from_slice(&(self.bytes / 512).to_le_bytes());
        let unmap = u32::from(matches!(self.op, IoOp::WriteZeroes { unmap: true }));
        bytes[12..16].copy_from_slice(&unmap.to_le_bytes());
        bytes
    }
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// There may be answers.
    Answers,
    /// The server closed the connection.
    Gone,
    /// Nothing happened in time.
    Timeout,
}

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

    /// Sleeps until there are answers, the server is gone, or `timeout` is over.
    ///
    /// # Errors
    ///
    /// What poll reports.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Wake> {
        wait_for(&mut [self], timeout).map(|(wake, _index)| wake)
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

    /// Returns a vring to be abused.
    pub fn vring(&mut self, index: u16) -> &mut Vring {
        &mut self.vrings[usize::from(index)]
    }

    /// Returns the socket to be abused.
    pub fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    /// Negotiates, shares the memory and starts every vring, in QEMU's order.
    fn start(&mut self) -> io::Result<()> {
        self.negotiate()?;
        self.start_vrings()
    }

    fn negotiate(&mut self) -> io::Result<()> {
        let features = self.channel.ask(message::GET_FEATURES, &[])?.to_u64()?;
        let wanted_protocol = protocol::MQ
            | protocol::REPLY_ACK
            | protocol::CONFIG
            | if self.options.inflight { protocol::INFLIGHT_SHMFD } else { 0 };
        let offered = self.channel.ask(message::GET_PROTOCOL_FEATURES, &[])?.to_u64()?;
        let agreed = offered & wanted_protocol;
        self.channel.tell(message::SET_PROTOCOL_FEATURES, &longs(&[agreed]), &[])?;
        self.channel.set_acknowledged(agreed & protocol::REPLY_ACK != 0);
        self.offer = Offer { features, protocol: offered, ..self.offer };
        self.offer.vrings_max = 1;
        if agreed & protocol::MQ != 0 {
            self.offer.vrings_max = self.channel.ask(message::GET_QUEUE_NUM, &[])?.to_u64()?;
        }
        if u64::from(self.options.vrings) > self.offer.vrings_max {
            return Err(unsupported("the server has fewer vrings"));
        }
        self.channel.tell(message::SET_OWNER, &[], &[])?;
        if agreed & protocol::CONFIG != 0 {
            self.read_config()?;
        }
        let wanted = feature::VERSION_1 | feature::PROTOCOL | feature::FLUSH;
        let optional = feature::MQ | feature::DISCARD | feature::WRITE_ZEROES | feature::READ_ONLY;
        let ring = if self.options.event_idx { feature::EVENT_IDX } else { 0 }
            | if self.options.indirect { feature::INDIRECT } else { 0 };
        if features & ring != ring {
            return Err(unsupported("the server lacks a ring feature"));
        }
        let accepted = features & (wanted | optional) | ring;
        self.channel.tell(message::SET_FEATURES, &longs(&[accepted]), &[])
    }

    fn read_config(&mut self) -> io::Result<()> {
        const CONFIG_BYTES: usize = 60;
        let payload = [words(&[0, 60, 0]), vec![0; CONFIG_BYTES]].concat();
        let reply = self.channel.ask(message::GET_CONFIG, &payload)?;
        let space = reply.payload.get(12..12 + CONFIG_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        self.offer.sectors = u64::from_le_bytes(space[0..8].try_into().expect("eight bytes"));
        self.offer.block_bytes = u32::from_le_bytes(space[20..24].try_into().expect("four bytes"));
        Ok(())
    }

    fn start_vrings(&mut self) -> io::Result<()> {
        if self.options.inflight && self.offer.protocol & protocol::INFLIGHT_SHMFD != 0 {
            self.share_inflight()?;
        }
        let size = self.memory.len() as u64;
        let table = [words(&[1, 0]), longs(&[GUEST_BASE, size, USER_BASE, 0])].concat();
        self.channel.tell(message::SET_MEM_TABLE, &table, &[self.memory.fd()])?;
        for index in 0..self.options.vrings {
            self.start_vring(index)?;
        }
        // Whatever is already in the rings has been kicked to somebody else.
        self.vrings.iter_mut().for_each(Vring::kick);
        Ok(())
    }

    fn start_vring(&mut self, index: u16) -> io::Result<()> {
        let vring = &self.vrings[usize::from(index)];
        let (layout, number) = (vring.layout(), u32::from(index));
        let user = |offset: usize| USER_BASE + offset as u64;
        let addresses = [user(layout.descriptors), user(layout.used), user(layout.available), 0];
        let addresses = [words(&[number, 0]), longs(&addresses)].concat();
        let base = u32::from(vring.used_index());
        let channel = &mut self.channel;
        channel.tell(message::SET_VRING_NUM, &words(&[number, self.options.size.into()]), &[])?;
        channel.tell(message::SET_VRING_BASE, &words(&[number, base]), &[])?;
        channel.tell(message::SET_VRING_ADDR, &addresses, &[])?;
        let whom = longs(&[number.into()]);
        channel.tell(message::SET_VRING_KICK, &whom, &[vring.kick_fd()])?;
        channel.tell(message::SET_VRING_CALL, &whom, &[self.call.as_fd()])?;
        channel.tell(message::SET_VRING_ENABLE, &words(&[number, 1]), &[])
    }

    fn share_inflight(&mut self) -> io::Result<()> {
        let Options { vrings, size, .. } = self.options;
        if self.inflight.is_none() {
            let shape = u32::from(vrings) | u32::from(size) << 16;
            let payload = [longs(&[0, 0]), words(&[shape, 0])].concat();
            let mut reply = self.channel.ask(message::GET_INFLIGHT_FD, &payload)?;
            let fd = reply.fds.pop().ok_or_else(|| unsupported("no in-flight descriptor came"))?;
            // The two 16-bit fields are ours, as in QEMU.
            let mut description = reply.payload;
            if description.len() < 20 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            description[16..20].copy_from_slice(&shape.to_le_bytes());
            self.inflight = Some(Inflight { fd, description });
        }
        let inflight = self.inflight.as_ref().expect("it was just set");
        let fds = [inflight.fd.as_fd()];
        self.channel.tell(message::SET_INFLIGHT_FD, &inflight.description, &fds)
    }
}

/// Sleeps until one of `clients` has answers or lost its server, and says which by its index.
///
/// # Errors
///
/// What poll reports.
///
/// # Panics
///
/// Panics at more than 16 clients.
pub fn wait_for(clients: &mut [&mut Client], timeout: Duration) -> io::Result<(Wake, usize)> {
    const CLIENTS_MAX: usize = 16;
    assert!(clients.len() <= CLIENTS_MAX, "one thread drives at most {CLIENTS_MAX} clients");
    for (index, client) in clients.iter_mut().enumerate() {
        if client.arm() {
            return Ok((Wake::Answers, index));
        }
    }
    let stand_in = clients[0].channel.socket();
    let mut fds: [PollFd<'_>; 2 * CLIENTS_MAX] =
        std::array::from_fn(|_slot| PollFd::from_borrowed_fd(stand_in, PollFlags::empty()));
    for (pair, client) in fds.chunks_mut(2).zip(clients.iter()) {
        pair[0] = PollFd::new(&client.call, PollFlags::IN);
        pair[1] = PollFd::from_borrowed_fd(client.channel.socket(), PollFlags::IN);
    }
    let timeout = Timespec::try_from(timeout).expect("timeouts are short");
    match poll(&mut fds[..2 * clients.len()], Some(&timeout)) {
        Ok(0) => return Ok((Wake::Timeout, 0)),
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((Wake::Answers, 0)),
        Err(error) => return Err(error.into()),
    }
    let mut gone = None;
    for (index, pair) in fds.chunks(2).take(clients.len()).enumerate() {
        if !pair[0].revents().is_empty() {
            let mut count = [0; 8];
            // Somebody else may have read it meanwhile; the answers are in the ring anyway.
            let _empty = rustix::io::read(&clients[index].call, &mut count);
            return Ok((Wake::Answers, index));
        }
        if !pair[1].revents().is_empty() {
            gone = gone.or(Some(index));
        }
    }
    Ok(gone.map_or((Wake::Timeout, 0), |index| (Wake::Gone, index)))
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

fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}
