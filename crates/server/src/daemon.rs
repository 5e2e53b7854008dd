//! The whole daemon: pools, sockets, and who comes and goes.
//!
//! One thread accepts for all disks. A disk has one session at a time: while it is connected, the
//! next VMM waits in the socket's backlog, which is what a restarted VMM wants whose predecessor
//! still finishes its last requests.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use evenkeel_sched::Weight;
use evenkeel_wire::agent::vsock_listener;
use evenkeel_wire::status::{Explain, Status};
use evenkeel_wire::{Config, PoolChange, Problems};
use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::agents::{self, Home, Port};
use crate::api::{Control, ControlError};
use crate::command::Command;
use crate::config;
use crate::pool::{Pool, PoolError, Served};
use crate::session;

/// Stack of a session's thread: it handles short messages, one at a time.
const SESSION_STACK_BYTES: usize = 256 << 10;

/// How long to wait after a VMM could not be admitted.
const ADMIT_RETRY: Duration = Duration::from_millis(100);

/// The daemon could not be started. Nothing keeps running.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be carried out.
    #[error(transparent)]
    Config(#[from] Problems),
    /// A pool could not be started.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A disk's socket could not be made.
    #[error("{}: {problem}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What is wrong, and what to do.
        problem: SocketProblem,
    },
    /// No thread, no descriptor.
    #[error("cannot start: {0}")]
    System(#[from] io::Error),
}

/// What keeps a socket from being made.
#[derive(Debug, thiserror::Error)]
pub enum SocketProblem {
    /// Somebody answers there.
    #[error("another process serves this socket; stop it, or choose another directory")]
    Alive,
    /// There is no directory for the sockets.
    #[error("cannot make this directory: {0}; make it, or choose another with --socket-dir")]
    Directory(io::Error),
    /// A file that is no socket is in the way.
    #[error("is there and is not a socket; move it away, or choose another directory")]
    InTheWay,
    /// The system refuses.
    #[error("cannot listen: {0}")]
    System(#[from] io::Error),
}

/// What a running daemon serves, for messages and tests.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskInfo {
    /// The disk's name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Where a VMM connects.
    pub socket: PathBuf,
    /// Most vrings.
    pub queues: u16,
}

/// A running daemon.
///
/// Dropping it without [`shutdown`](Self::shutdown) leaves everything running until the process
/// ends.
#[derive(Debug)]
pub struct Daemon {
    started: Instant,
    shared: Arc<Shared>,
    pools: Mutex<Vec<Pool>>,
    acceptor: Mutex<Option<JoinHandle<()>>>,
    agents: Mutex<Option<Agents>>,
}

/// The thread that listens to guests' agents, and what ends it.
#[derive(Debug)]
struct Agents {
    stop: OwnedFd,
    thread: JoinHandle<()>,
}

/// What the acceptor, the sessions and the daemon share.
#[derive(Debug)]
struct Shared {
    /// Rung when a session has ended, or the daemon shall.
    bell: OwnedFd,
    stopping: AtomicBool,
    /// Live sessions by the disk's socket.
    sessions: Mutex<BTreeMap<PathBuf, Session>>,
}

#[derive(Debug)]
struct Session {
    disk: Arc<Served>,
    /// For ending it from here.
    stream: UnixStream,
    thread: JoinHandle<()>,
}

impl Daemon {
    /// Checks the configuration, opens all images, starts all pools, and listens for VMMs.
    ///
    /// # Errors
    ///
    /// * [`StartError`]; mistakes of one kind are reported together.
    pub fn start(config: &Config, default_socket_dir: &Path) -> Result<Self, StartError> {
        let plan = config::plan(config, default_socket_dir)?;
        fs::create_dir_all(&plan.socket_dir).map_err(|error| StartError::Socket {
            path: plan.socket_dir.clone(),
            problem: SocketProblem::Directory(error),
        })?;
        let mut doors = Vec::new();
        let mut pools = Vec::new();
        let started =
            start_pools(&plan, &mut pools, &mut doors).and_then(|()| start_agents(&plan, &pools));
        let shared = Arc::new(Shared {
            bell: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(io::Error::from)?,
            stopping: AtomicBool::new(false),
            sessions: Mutex::default(),
        });
        let agents = match started {
            Ok(agents) => agents,
            Err(error) => {
                stop_pools(pools);
                doors.iter().for_each(Door::remove);
                return Err(error);
            }
        };
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("acceptor".to_owned())
                .spawn(move || accept(&shared, &doors))?
        };
        Ok(Self {
            started: Instant::now(),
            shared,
            pools: Mutex::new(pools),
            acceptor: Mutex::new(Some(acceptor)),
            agents: Mutex::new(agents),
        })
    }

    /// Returns all disks, by pool and name.
    #[must_use]
    pub fn disks(&self) -> Vec<DiskInfo> {
        let pools = lock(&self.pools);
        let disks = pools.iter().flat_map(|pool| pool.disks.iter().map(move |disk| (pool, disk)));
        disks
            .map(|(pool, disk)| DiskInfo {
                name: disk.session.name.to_string(),
                pool: pool.name.clone(),
                socket: disk.socket.clone(),
                queues: disk.session.max_vrings,
            })
            .collect()
    }

    /// Ends the daemon: takes nothing more from guests, finishes what they have asked for, makes it
    /// durable, ends their sessions, removes the sockets. Does nothing the second time.
    pub fn shutdown(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.ring();
        if let Some(acceptor) = lock(&self.acceptor).take()
            && acceptor.join().is_err()
        {
            tracing::error!("the acceptor ended by a panic");
        }
        if let Some(agents) = lock(&self.agents).take() {
            let _rung = rustix::io::write(&agents.stop, &1_u64.to_ne_bytes());
            if agents.thread.join().is_err() {
                tracing::error!("the agents' thread ended by a panic");
            }
        }
        stop_pools_with(std::mem::take(&mut *lock(&self.pools)), || self.shared.end_sessions());
    }
}

impl Control for Daemon {
    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.started.elapsed().as_secs(),
            pools: lock(&self.pools).iter().map(Pool::status).collect(),
        }
    }

    fn explain(&self) -> Explain {
        Explain { pools: lock(&self.pools).iter().map(Pool::explain).collect() }
    }

    fn set_weight(&self, disk: &str, weight: u32) -> Result<(), ControlError> {
        let weight = Weight::new(u64::from(weight)).expect("the API checks the range");
        let pools = lock(&self.pools);
        if pools.is_empty() {
            return Err(ControlError::Stopping);
        }
        let (pool, served) = pools
            .iter()
            .find_map(|pool| {
                let served = pool.disks.iter().find(|served| *served.session.name == *disk)?;
                Some((pool, served))
            })
            .ok_or(ControlError::NoSuchDisk)?;
        pool.worker
            .send(Command::SetWeight { disk: served.session.index, weight })
            .map_err(|_gone| ControlError::Stopping)
    }

    fn change_pool(&self, name: &str, change: &PoolChange) -> Result<(), ControlError> {
        let pools = lock(&self.pools);
        if pools.is_empty() {
            return Err(ControlError::Stopping);
        }
        let pool = pools.iter().find(|pool| pool.name == name);
        pool.ok_or(ControlError::NoSuchPool)?.change(change)
    }
}

/// Nothing that is done under these locks leaves a mess behind when it panics.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_pools(
    plan: &config::Plan,
    pools: &mut Vec<Pool>,
    doors: &mut Vec<Door>,
) -> Result<(), StartError> {
    for pool in &plan.pools {
        let pool = Pool::start(pool, &plan.socket_dir)?;
        let disks = pool.disks.clone();
        pools.push(pool);
        for disk in disks {
            doors.push(Door::open(disk)?);
        }
    }
    Ok(())
}

/// Listens to the agents of all VMs that may ask for help; none if there are no such VMs.
fn start_agents(plan: &config::Plan, pools: &[Pool]) -> Result<Option<Agents>, StartError> {
    let mut homes: BTreeMap<&str, Vec<Home>> = BTreeMap::new();
    for (pool, running) in plan.pools.iter().zip(pools) {
        for vm in pool.vms.iter().filter(|vm| vm.help.is_some()) {
            let home = Home { worker: running.worker.clone(), group: vm.group };
            homes.entry(&vm.name).or_default().push(home);
        }
    }
    if homes.is_empty() {
        return Ok(None);
    }
    let ports = homes.into_iter().map(|(vm, homes)| {
        let path = agent_socket(plan, vm);
        match listen(&path) {
            Ok(listener) => Ok(Port::new(vm, path, listener, homes)),
            Err(problem) => Err(StartError::Socket { path, problem }),
        }
    });
    let ports = ports.collect::<Result<Vec<_>, _>>()?;
    let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?;
    let thread = agents::spawn(ports, stop.try_clone()?)?;
    Ok(Some(Agents { stop, thread }))
}

/// Returns the socket by which the agent of a VM is heard.
fn agent_socket(plan: &config::Plan, vm: &str) -> PathBuf {
    let mut vms = plan.pools.iter().filter_map(|pool| pool.settings.vms.get(vm));
    match vms.find_map(|vm| vm.vsock.as_deref()) {
        Some(vsock) => vsock_listener(vsock),
        None => plan.socket_dir.join(format!("{vm}.agent.sock")),
    }
}

fn stop_pools(pools: Vec<Pool>) {
    stop_pools_with(pools, || {});
}

/// Ends all pools at the same time, then what was on them.
fn stop_pools_with(pools: Vec<Pool>, then: impl FnOnce()) {
    thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(|| pool.drain());
        }
    });
    then();
    for pool in pools {
        pool.join();
    }
}

/// A disk and the socket that leads to it.
#[derive(Debug)]
struct Door {
    disk: Arc<Served>,
    listener: UnixListener,
}

impl Door {
    fn open(disk: Arc<Served>) -> Result<Self, StartError> {
        match listen(&disk.socket) {
            Ok(listener) => Ok(Self { disk, listener }),
            Err(problem) => Err(StartError::Socket { path: disk.socket.clone(), problem }),
        }
    }

    fn remove(&self) {
        let _gone_already = fs::remove_file(&self.disk.socket);
    }
}

/// Listens at `path`; replaces a socket that nobody serves.
fn listen(path: &Path) -> Result<UnixListener, SocketProblem> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => return Err(SocketProblem::InTheWay),
        Ok(_socket) => match UnixStream::connect(path) {
            Ok(_alive) => return Err(SocketProblem::Alive),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path)?;
            }
            // Somebody else's, perhaps alive.
            Err(error) => return Err(error.into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Admits VMMs until the daemon stops, then removes the sockets.
fn accept(shared: &Arc<Shared>, doors: &[Door]) {
    while !shared.stopping.load(Ordering::Relaxed) {
        let open: Vec<_> =
            doors.iter().filter(|door| !door.disk.connected.load(Ordering::Acquire)).collect();
        let mut waiting: Vec<_> =
            open.iter().map(|door| PollFd::new(&door.listener, PollFlags::IN)).collect();
        waiting.push(PollFd::from_borrowed_fd(shared.bell.as_fd(), PollFlags::IN));
        match rustix::event::poll(&mut waiting, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => {
                tracing::error!(%errno, "cannot wait for VMMs any more");
                break;
            }
        }
        let mut count = [0; 8];
        if rustix::io::read(&shared.bell, &mut count).is_ok() {
            bury(shared);
        }
        let ready: Vec<_> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (door, _) in open.iter().zip(ready).filter(|(_, ready)| *ready) {
            if let Err(error) = admit(shared, door) {
                tracing::error!(disk = %door.disk.session.name, %error, "cannot admit a VMM");
                // It is still at the door: no descriptor is left, most likely.
                thread::sleep(ADMIT_RETRY);
            }
        }
    }
    doors.iter().for_each(Door::remove);
}

/// Lets go of the threads and descriptors of sessions that have ended.
fn bury(shared: &Shared) {
    let has_left = |session: &Session| !session.disk.connected.load(Ordering::Acquire);
    let mut sessions = lock(&shared.sessions);
    let sockets: Vec<PathBuf> = sessions
        .iter()
        .filter(|(_, session)| has_left(session))
        .map(|(at, _)| at.clone())
        .collect();
    let ended: Vec<_> = sockets.iter().filter_map(|socket| sessions.remove(socket)).collect();
    drop(sessions);
    for session in ended {
        // It has ended but for its last few instructions.
        let _panicked = session.thread.join();
    }
}

fn admit(shared: &Arc<Shared>, door: &Door) -> io::Result<()> {
    let stream = match door.listener.accept() {
        Ok((stream, _)) => stream,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
        Err(error) => return Err(error),
    };
    stream.set_nonblocking(false)?;
    let ours = stream.try_clone()?;
    let disk = Arc::clone(&door.disk);
    let seat = Seat::take(Arc::clone(shared), Arc::clone(&disk), stream.try_clone()?);
    // The predecessor's thread has ended but for its last few instructions.
    if let Some(session) = lock(&shared.sessions).remove(&disk.socket) {
        let _panicked = session.thread.join();
    }
    let (socket, served) = (disk.socket.clone(), Arc::clone(&disk));
    let thread = thread::Builder::new()
        .name(format!("vm-{}", disk.session.name))
        .stack_size(SESSION_STACK_BYTES)
        .spawn(move || {
            let _seat = seat;
            session::serve(stream, disk.session.clone());
        })?;
    lock(&shared.sessions).insert(socket, Session { disk: served, stream: ours, thread });
    Ok(())
}

/// Keeps a disk to one session, and tells the acceptor when it is free again.
#[derive(Debug)]
struct Seat {
    shared: Arc<Shared>,
    disk: Arc<Served>,
    /// Hung up at the end: a VMM whose session we ended comes back only if it sees that, and
    /// closing is not enough while others hold clones.
    stream: UnixStream,
}

impl Seat {
    fn take(shared: Arc<Shared>, disk: Arc<Served>, stream: UnixStream) -> Self {
        disk.connected.store(true, Ordering::Release);
        Self { shared, disk, stream }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let _hung_up_already = self.stream.shutdown(Shutdown::Both);
        self.disk.connected.store(false, Ordering::Release);
        self.shared.ring();
    }
}

impl Shared {
    fn ring(&self) {
        // A full counter (EAGAIN) means that it rings already.
        let _rung = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Hangs up on all VMMs and waits for their threads.
    fn end_sessions(&self) {
        for (_, session) in std::mem::take(&mut *lock(&self.sessions)) {
            let _hung_up_already = session.stream.shutdown(Shutdown::Both);
            let _panicked = session.thread.join();
        }
    }
}
