//! One vhost-user connection: what a VMM says about its guest, checked and handed to the worker.
//!
//! A session is the clerk at the door. He notes what the VMM tells him about each vring, in
//! whatever order it comes, and when a vring's papers are complete he sends it in to the worker,
//! who serves it without him. When the VMM asks for a vring back, he waits until it is empty; and
//! when the VMM leaves, however it leaves, he does not go home before the worker has nothing of
//! this disk in hand, so that the next session finds a quiet disk.
//!
//! Messages come from another process and may be wrong in any way. A wrong one ends the session,
//! with two exceptions that leave it alive: a memory region that we refuse, if the VMM asked to be
//! told, and a value that the guest, not the VMM, wrote to the configuration space.
//!
//! Source: vhost-user protocol specification.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, OFlags};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut,
};
use virtio_bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::command::{Command, SessionDisk, WorkerGone};
use crate::features;
use crate::inflight::{InflightError, InflightRegion};
use crate::memory::{Memory, MemoryError, Place, REGIONS_MAX};
use crate::vring::{Addresses, BrokenRing, Setup, VRING_SIZE_MAX, Vring};

/// Serves one connection until the VMM leaves or says something wrong.
///
/// Returns when the worker has let go of everything that belongs to the session. To end a session
/// from outside, shut its socket down through a clone.
pub(crate) fn serve(stream: UnixStream, disk: SessionDisk) {
    let farewell = Farewell(disk.clone());
    let name = Arc::clone(&disk.name);
    if let Err(error) = stream.set_nonblocking(false) {
        tracing::warn!(disk = %name, %error, "the session's socket does not work");
        return;
    }
    let (socket, second) = match (stream.try_clone(), stream.try_clone()) {
        (Ok(socket), Ok(second)) => (socket, second),
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(disk = %name, %error, "no descriptor is left for the session");
            return;
        }
    };
    let session = Session { vmm: Some(second), ..Session::new(disk) };
    let session = Arc::new(Mutex::new(session));
    let mut messages = BackendReqHandler::from_stream(stream, Arc::clone(&session));
    tracing::info!(disk = %name, "a VMM has connected");
    loop {
        if lock(&session).has_stale_memory
            && is_quiet(&socket)
            && lock(&session).hand_over_memory().is_err()
        {
            break;
        }
        match messages.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected | Error::SocketBroken(_)) => {
                tracing::info!(disk = %name, "the VMM has left");
                break;
            }
            Err(error) if std::mem::take(&mut lock(&session).is_pardoned) => {
                tracing::warn!(disk = %name, %error, "a message was refused");
            }
            Err(error) => {
                tracing::warn!(disk = %name, %error, "the session ends with a wrong message");
                break;
            }
        }
    }
    // The VMM sees the end only after the disk is quiet, so a reconnection finds it so.
    drop(farewell);
}

/// Takes the disk back from the worker when a session ends, on whichever way.
struct Farewell(SessionDisk);

impl Drop for Farewell {
    fn drop(&mut self) {
        let disk = self.0.index;
        let gone = self.0.worker.ask(|reply| Command::Disconnect { disk, reply });
        if gone == Err(WorkerGone) {
            tracing::debug!(disk = %self.0.name, "the worker ended before the session");
        }
    }
}

/// Nothing in here is left half-done by a panic that a later message could stumble over.
fn lock(session: &Mutex<Session>) -> MutexGuard<'_, Session> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether no message comes for a while.
fn is_quiet(socket: &UnixStream) -> bool {
    let wait = Timespec { tv_sec: 0, tv_nsec: QUIET_NS };
    rustix::event::poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)) == Ok(0)
}

/// Returns whether the VMM has hung up.
fn has_left(socket: &UnixStream) -> bool {
    let mut poll = [PollFd::new(socket, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut poll, Some(&now)).is_ok() && !poll[0].revents().is_empty()
}

/// How long a VMM may take between the two halves of a change of its memory (100 ms).
const QUIET_NS: i64 = 100_000_000;

/// What the VMM has said so far.
#[derive(Debug)]
struct Session {
    disk: SessionDisk,
    /// For seeing whether the VMM is still there while the worker is asked for something.
    vmm: Option<UnixStream>,
    virtio_features: u64,
    protocol_features: u64,
    memory: Arc<Memory>,
    /// Running vrings still use a memory with regions that are gone. QEMU removes a region and
    /// adds it again in other bounds while the guest runs; in between nothing may be missing.
    has_stale_memory: bool,
    inflight: Option<InflightRegion>,
    vrings: Vec<Papers>,
    /// The guest's write cache switch.
    is_writeback: bool,
    /// The error that is being returned does not end the session.
    is_pardoned: bool,
}

/// What is known about one vring.
#[derive(Debug, Default)]
struct Papers {
    size: u16,
    addresses: Option<Addresses>,
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    err: Option<OwnedFd>,
    is_enabled: bool,
    /// The worker has it.
    is_running: bool,
}

impl Session {
    fn new(disk: SessionDisk) -> Self {
        let vrings = (0..disk.max_vrings).map(|_| Papers::default()).collect();
        Self {
            is_writeback: disk.write_cache,
            disk,
            vmm: None,
            virtio_features: 0,
            protocol_features: 0,
            memory: Arc::default(),
            has_stale_memory: false,
            inflight: None,
            vrings,
            is_pardoned: false,
        }
    }

    /// Sends a vring to the worker if all that is needed is known.
    fn start_if_complete(&mut self, index: u16) -> Result<()> {
        let needs_enable = self.has_virtio(VhostUserVirtioFeatures::PROTOCOL_FEATURES);
        let papers = &mut self.vrings[usize::from(index)];
        let Papers { size, addresses: Some(addresses), kick: Some(kick), .. } = &*papers else {
            return Ok(());
        };
        if papers.is_running || *size == 0 || (needs_enable && !papers.is_enabled) {
            return Ok(());
        }
        let clone = |fd: &Option<OwnedFd>| fd.as_ref().map(OwnedFd::try_clone).transpose();
        let setup = Setup {
            size: *size,
            addresses: *addresses,
            base: papers.base,
            event_idx: features::has(self.virtio_features, VIRTIO_RING_F_EVENT_IDX),
            indirect: features::has(self.virtio_features, VIRTIO_RING_F_INDIRECT_DESC),
            memory: Arc::clone(&self.memory),
            inflight: self.inflight.clone(),
            index,
            kick: kick.try_clone().map_err(Error::ReqHandlerError)?,
            call: clone(&papers.call).map_err(Error::ReqHandlerError)?,
            err: clone(&papers.err).map_err(Error::ReqHandlerError)?,
        };
        let vring = Box::new(Vring::new(setup).map_err(|broken| refuse(index, broken))?);
        papers.is_running = true;
        self.send(Command::StartVring { disk: self.disk.index, index, vring })
    }

    /// Takes a vring back from the worker, empty, if it is there.
    ///
    /// That takes as long as its requests, for ever if one waits for room. So if the VMM leaves
    /// meanwhile, the session ends: then such requests are given up, and the next VMM can come.
    fn stop(&mut self, index: u16) -> Result<()> {
        if self.vrings[usize::from(index)].is_running {
            let disk = self.disk.index;
            let is_here = || self.vmm.as_ref().is_none_or(|vmm| !has_left(vmm));
            let stop = |reply| Command::StopVring { disk, index, reply };
            let base = self.disk.worker.ask_while(is_here, stop).map_err(handler_error)?;
            let base = base.ok_or(Error::Disconnected)?;
            let papers = &mut self.vrings[usize::from(index)];
            papers.base = base;
            papers.is_running = false;
        }
        Ok(())
    }

    /// Makes running vrings use the memory that the VMM stated last.
    fn hand_over_memory(&mut self) -> Result<()> {
        self.has_stale_memory = false;
        if self.vrings.iter().any(|papers| papers.is_running) {
            let (disk, memory) = (self.disk.index, Arc::clone(&self.memory));
            self.ask(|reply| Command::SetMemory { disk, memory, reply })?;
        }
        Ok(())
    }

    /// Takes note of a new memory, or of the reason why there is none.
    fn accept_memory(&mut self, memory: std::result::Result<Memory, MemoryError>) -> Result<()> {
        match memory {
            Ok(memory) => {
                self.memory = Arc::new(memory);
                Ok(())
            }
            Err(error) => {
                let reply_ack = VhostUserProtocolFeatures::REPLY_ACK.bits();
                self.is_pardoned = self.protocol_features & reply_ack != 0;
                Err(handler_error(error))
            }
        }
    }

    /// Says whether writes must be durable: the guest turned the cache off, or it will never flush
    /// because it does not know how.
    fn set_write_through(&self, reply: SyncSender<()>) -> Command {
        let can_flush = features::has(self.virtio_features, VIRTIO_BLK_F_FLUSH);
        let write_through = !(can_flush && self.is_writeback);
        Command::SetWriteThrough { disk: self.disk.index, write_through, reply }
    }

    /// Returns the number and the papers of a vring that the VMM names.
    fn papers(&mut self, index: u32) -> Result<(u16, &mut Papers)> {
        let at = u16::try_from(index).map_err(|_big| Error::InvalidParam)?;
        let papers = self.vrings.get_mut(usize::from(at)).ok_or(Error::InvalidParam)?;
        Ok((at, papers))
    }

    /// As `papers`, for a change that a running vring does not allow.
    fn idle_papers(&mut self, index: u32) -> Result<&mut Papers> {
        let (_, papers) = self.papers(index)?;
        if papers.is_running {
            return Err(Error::InvalidOperation("the vring is running"));
        }
        Ok(papers)
    }

    fn has_virtio(&self, feature: VhostUserVirtioFeatures) -> bool {
        self.virtio_features & feature.bits() != 0
    }

    fn is_any_running(&self) -> bool {
        self.vrings.iter().any(|papers| papers.is_running)
    }

    fn send(&self, command: Command) -> Result<()> {
        self.disk.worker.send(command).map_err(handler_error)
    }

    fn ask<T>(&self, command: impl FnOnce(SyncSender<T>) -> Command) -> Result<T> {
        self.disk.worker.ask(command).map_err(handler_error)
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    /// Deprecated: "should be ignored".
    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features::virtio_features(&self.disk.geometry))
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !features::virtio_features(&self.disk.geometry) != 0 {
            return Err(Error::InvalidParam);
        }
        if features != self.virtio_features && self.is_any_running() {
            return Err(Error::InvalidOperation("features cannot change while a vring runs"));
        }
        self.virtio_features = features;
        // No vring is served yet, and the worker hears of them later than of this.
        let (reply, _nobody_waits) = sync_channel(1);
        self.send(self.set_write_through(reply))
    }

    fn set_mem_table(
        &mut self,
        table: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        let memory = Memory::new(table.iter().map(place).zip(files));
        self.accept_memory(memory)?;
        self.hand_over_memory()?;
        Ok(None)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let memory = self.memory.with(place(region), &file);
        self.accept_memory(memory)?;
        self.hand_over_memory()?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let memory = self.memory.without(place(region));
        self.accept_memory(memory)?;
        self.has_stale_memory = true;
        Ok(())
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        u64::try_from(REGIONS_MAX).map_err(|_big| Error::BackendInternalError)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).map_err(|_big| Error::InvalidParam)?;
        if !size.is_power_of_two() || size > VRING_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        self.idle_papers(index)?.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        table: u64,
        used: u64,
        avail: u64,
        _log: u64,
    ) -> Result<()> {
        let addresses = Some(Addresses { table, avail, used });
        if self.papers(index)?.1.addresses == addresses {
            return Ok(());
        }
        self.idle_papers(index)?.addresses = addresses;
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let base = u16::try_from(base).map_err(|_big| Error::InvalidParam)?;
        self.idle_papers(index)?.base = base;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let (at, _) = self.papers(index)?;
        self.stop(at)?;
        let (_, papers) = self.papers(index)?;
        // The vring starts again with the next kick descriptor.
        papers.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(papers.base)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let Some(fd) = fd else {
            return Err(Error::InvalidOperation("a vring without a kick descriptor"));
        };
        let kick = eventfd(fd)?;
        let (at, _) = self.papers(u32::from(index))?;
        self.stop(at)?;
        self.vrings[usize::from(at)].kick = Some(kick);
        self.start_if_complete(at)
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = fd.map(eventfd).transpose()?;
        let copy = call.as_ref().map(OwnedFd::try_clone).transpose();
        let copy = copy.map_err(Error::ReqHandlerError)?;
        let (at, papers) = self.papers(u32::from(index))?;
        papers.call = call;
        if papers.is_running {
            self.send(Command::SetCall { disk: self.disk.index, index: at, call: copy })?;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let err = fd.map(eventfd).transpose()?;
        self.papers(u32::from(index))?.1.err = err;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(features::protocol_features())
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !features::protocol_features().bits() != 0 {
            return Err(Error::InvalidParam);
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(u64::from(self.disk.max_vrings))
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let (at, papers) = self.papers(index)?;
        papers.is_enabled = enable;
        if enable { self.start_if_complete(at) } else { self.stop(at) }
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let space = features::config_space(&self.disk, self.is_writeback);
        features::read_config(&space, offset, size).ok_or(Error::InvalidParam)
    }

    fn set_config(
        &mut self,
        offset: u32,
        bytes: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        let Some(is_writeback) = features::written_writeback(offset, bytes) else {
            self.is_pardoned = true;
            return Err(Error::InvalidParam);
        };
        self.is_writeback = is_writeback;
        // The guest takes its next write for durable as soon as we answer.
        self.ask(|reply| self.set_write_through(reply))
    }

    fn get_inflight_fd(&mut self, wish: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (vrings, states) = self.inflight_shape(wish)?;
        let (file, bytes) = InflightRegion::create(vrings, states).map_err(handler_error)?;
        Ok((VhostUserInflight::new(bytes, 0, vrings, states), file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        let shape = self.inflight_shape(region)?;
        if self.is_any_running() {
            return Err(Error::InvalidOperation("the in-flight region of a running vring"));
        }
        let VhostUserInflight { mmap_offset, mmap_size, .. } = *region;
        let region = InflightRegion::open(&file, mmap_offset, mmap_size, shape);
        self.inflight = Some(region.map_err(handler_error::<InflightError>)?);
        Ok(())
    }

    fn set_gpu_socket(&mut self, _socket: GpuBackend) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(NOT_OFFERED)
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        Err(NOT_OFFERED)
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(NOT_OFFERED)
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(NOT_OFFERED)
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(NOT_OFFERED)
    }
}

impl Session {
    /// Returns how many vrings of how many descriptors an in-flight region is for.
    fn inflight_shape(&self, inflight: &VhostUserInflight) -> Result<(u16, u16)> {
        let VhostUserInflight { num_queues, queue_size, .. } = *inflight;
        let is_known = (1..=self.disk.max_vrings).contains(&num_queues);
        if !is_known || !(1..=VRING_SIZE_MAX).contains(&queue_size) {
            return Err(Error::InvalidParam);
        }
        Ok((num_queues, queue_size))
    }
}

/// A message of a feature that is not offered.
const NOT_OFFERED: Error = Error::InvalidOperation("not offered");

/// Says where the VMM puts a region.
fn place(region: &VhostUserMemoryRegion) -> Place {
    Place {
        guest_addr: region.guest_phys_addr,
        bytes: region.memory_size,
        user_addr: region.user_addr,
        file_offset: region.mmap_offset,
    }
}

/// Takes a descriptor that must be an eventfd, and makes sure that the worker never blocks on it.
///
/// Anonymous inodes have no file type; pipes, sockets and files, on which a write could block or
/// do worse, have one. Others than eventfds, which could keep the ring busy or not let themselves
/// be watched, are known by their name where there is `/proc`. The flag is shared with the VMM, which could take it away again: a VMM (not
/// a guest) can so hold up the worker, which is why sockets are only for trusted VMMs.
fn eventfd(file: File) -> Result<OwnedFd> {
    let stat = rustix::fs::fstat(&file).map_err(system_error)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Unknown {
        return Err(Error::IncorrectFds);
    }
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    if link.is_ok_and(|name| name.as_os_str() != "anon_inode:[eventfd]") {
        return Err(Error::IncorrectFds);
    }
    let flags = rustix::fs::fcntl_getfl(file.as_fd()).map_err(system_error)?;
    rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK).map_err(system_error)?;
    Ok(OwnedFd::from(file))
}

fn system_error(error: rustix::io::Errno) -> Error {
    Error::ReqHandlerError(error.into())
}

fn handler_error<E: std::error::Error + Send + Sync + 'static>(error: E) -> Error {
    Error::ReqHandlerError(io::Error::other(error))
}

fn refuse(index: u16, broken: BrokenRing) -> Error {
    Error::ReqHandlerError(io::Error::other(format!("vring {index}: {broken}")))
}

#[cfg(test)]
pub(crate) mod tests;
