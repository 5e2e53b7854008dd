//! What control threads say to a pool's worker, and what they know of a disk.
//!
//! Sessions, the API and the daemon never touch a worker's state. They put a [`Command`] into a
//! bounded channel and ring its bell, an eventfd that the worker waits on in the same place as for
//! kicks and completions. Whoever needs an answer sends the sender of a channel along.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::Duration;

use evenkeel_engine::{Ask, EngineConfig, Explanation, Geometry, HelpReport};
use evenkeel_sched::{Lead, Nanos, Weight};
use rustix::event::EventfdFlags;

use crate::limits::Control;
use crate::memory::Memory;
use crate::status::PoolFigures;
use crate::vring::Vring;

/// Most commands that wait for a worker; senders block beyond that.
const CHANNEL_CAPACITY: usize = 64;

/// How often somebody who waits for a worker looks whether that still makes sense.
const LOOK: Duration = Duration::from_millis(100);

/// Names a disk within its pool's worker: a dense index, fixed for the life of the worker.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(crate) struct DiskIndex(pub(crate) u32);

/// What a control thread asks of a worker.
///
/// A reply channel that nobody reads any more is ignored.
#[derive(Debug)]
pub(crate) enum Command {
    /// Asks for help in the name of a VM, the group at this position of the pool's plan.
    AskHelp { group: usize, ask: Ask, reply: SyncSender<HelpReport> },
    /// Stops all vrings of a disk. Answered when everything that was popped is finished and all
    /// vrings of the disk are dropped; the sender then may admit the next session.
    Disconnect { disk: DiskIndex, reply: SyncSender<()> },
    /// Stops popping everywhere, finishes what was popped, flushes all backends, ends the worker.
    Drain { reply: SyncSender<()> },
    /// Changes how the pool schedules, under load. Answered when it does so.
    Reschedule { schedule: Box<Schedule>, reply: SyncSender<()> },
    /// Asks why requests waited, for each group of the pool; tenants have no requests.
    Explain { reply: SyncSender<Vec<Explained>> },
    /// Replaces the eventfd that interrupts the guest; `None` means that the guest polls.
    SetCall { disk: DiskIndex, index: u16, call: Option<OwnedFd> },
    /// Replaces the guest memory of all vrings of a disk. Requests that were popped before keep
    /// the memory that they point into.
    SetMemory { disk: DiskIndex, memory: Arc<Memory>, reply: SyncSender<()> },
    /// Ends a VM's help: nobody speaks for it any more.
    ResetHelp { group: usize },
    /// Changes the weight of a disk's VM.
    SetWeight { disk: DiskIndex, weight: Weight },
    /// Says whether a write is answered only when it is durable (the guest turned the write cache
    /// off) or as soon as the backend has it. From the answer on it holds for every write that is
    /// dispatched.
    SetWriteThrough { disk: DiskIndex, write_through: bool, reply: SyncSender<()> },
    /// Asks for the figures of the pool.
    Snapshot { reply: SyncSender<PoolFigures> },
    /// Starts serving a vring. A vring of the same index must have been stopped before.
    StartVring { disk: DiskIndex, index: u16, vring: Box<Vring> },
    /// Stops popping a vring and drops it when all its requests are retired; answers with its next
    /// available index. Not answered if there is no such vring, which was sent when the worker was
    /// about to end: nobody knows its index then.
    StopVring { disk: DiskIndex, index: u16, reply: SyncSender<u16> },
}

/// How a pool schedules.
#[derive(Clone, Debug, Default)]
pub(crate) struct Schedule {
    /// Elevator, tunables and depth; `None` leaves them as they are.
    pub(crate) engine: Option<EngineConfig>,
    /// Whether a governor finds out how much the device needs; means nothing without the others.
    pub(crate) governs: bool,
    /// How many commands usually are enough for it.
    pub(crate) usual_depth: u32,
    /// How long the worker looks for work before it sleeps, at most.
    pub(crate) polls: Nanos,
    /// New weights, by position in the pool's list of groups.
    pub(crate) weights: Vec<(usize, Weight)>,
    /// New limits and reservations.
    pub(crate) controls: Vec<Control>,
}

/// Why the requests of a group waited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explained {
    pub(crate) explanation: Explanation,
    /// For each of its causes, in order, the position of the blamed VM in the pool's list of groups.
    pub(crate) blamed: Vec<usize>,
    /// What it has ahead of its share.
    pub(crate) lead: Option<Lead>,
}

/// The worker has ended; nothing of its disks is served any more.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the pool's worker has ended")]
pub(crate) struct WorkerGone;

/// The sending end towards one worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerHandle {
    bell: Arc<OwnedFd>,
    sender: SyncSender<Command>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) bell: Arc<OwnedFd>,
    pub(crate) receiver: Receiver<Command>,
}

/// Returns both ends of a worker's channel.
///
/// # Errors
///
/// * Whatever the system says if it has no eventfd left.
pub(crate) fn channel() -> rustix::io::Result<(WorkerHandle, Inbox)> {
    let bell = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = mpsc::sync_channel(CHANNEL_CAPACITY);
    Ok((WorkerHandle { bell: Arc::clone(&bell), sender }, Inbox { bell, receiver }))
}

impl WorkerHandle {
    /// Hands over a command; blocks while the channel is full.
    ///
    /// # Errors
    ///
    /// * [`WorkerGone`] if the worker has ended.
    pub(crate) fn send(&self, command: Command) -> Result<(), WorkerGone> {
        self.sender.send(command).map_err(|_gone| WorkerGone)?;
        // A full counter (EAGAIN) means that the bell rings already.
        let _rung = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Hands over a command that carries a reply channel, and waits for the answer.
    ///
    /// # Errors
    ///
    /// * [`WorkerGone`] if the worker has ended or ends before it answers.
    pub(crate) fn ask<T>(
        &self,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Result<T, WorkerGone> {
        Ok(self.ask_while(|| true, command)?.expect("always wanted"))
    }

    /// As [`ask`](Self::ask), but gives up, with `None`, when the answer is no longer wanted.
    ///
    /// # Errors
    ///
    /// * [`WorkerGone`] if the worker has ended or ends before it answers.
    pub(crate) fn ask_while<T>(
        &self,
        is_wanted: impl Fn() -> bool,
        command: impl FnOnce(SyncSender<T>) -> Command,
    ) -> Result<Option<T>, WorkerGone> {
        let (reply, answer) = mpsc::sync_channel(1);
        self.send(command(reply))?;
        loop {
            match answer.recv_timeout(LOOK) {
                Ok(answer) => return Ok(Some(answer)),
                Err(RecvTimeoutError::Disconnected) => return Err(WorkerGone),
                Err(RecvTimeoutError::Timeout) if is_wanted() => {}
                Err(RecvTimeoutError::Timeout) => return Ok(None),
            }
        }
    }
}

/// What a session knows of the disk that it serves.
#[derive(Clone, Debug)]
pub(crate) struct SessionDisk {
    /// The disk's name, for messages.
    pub(crate) name: Arc<str>,
    /// Names it towards the worker.
    pub(crate) index: DiskIndex,
    /// Size and abilities, for the feature bits and the configuration space.
    pub(crate) geometry: Geometry,
    /// Whether writes may stay in the device's cache until the guest flushes, before the guest has
    /// said anything.
    pub(crate) write_cache: bool,
    /// Most data segments of one request, for the configuration space.
    pub(crate) seg_max: u32,
    /// Most vrings that a session may start.
    pub(crate) max_vrings: u16,
    /// The worker of the disk's pool.
    pub(crate) worker: WorkerHandle,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_to_an_ended_worker_is_refused() {
        let (handle, inbox) = channel().unwrap();
        drop(inbox);
        assert_eq!(handle.ask(|reply| Command::Drain { reply }), Err(WorkerGone));
    }

    #[test]
    fn an_asker_hears_when_the_worker_ends_without_an_answer() {
        let (handle, inbox) = channel().unwrap();
        let worker = std::thread::spawn(move || drop(inbox.receiver.recv()));
        assert_eq!(handle.ask(|reply| Command::Drain { reply }), Err(WorkerGone));
        worker.join().unwrap();
    }
}
