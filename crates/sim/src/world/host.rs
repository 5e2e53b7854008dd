//! What the host puts between requests and the device: its kernel's block layer with the threads of
//! QEMU above it, or Evenkeel's engine.

use evenkeel_engine::{Ask, Engine, EngineConfig, Errno, HelpPolicy};
use evenkeel_sched::{Elevator, ElevatorConfig, GroupId, Nanos, Priority, Tag, Weight};

use super::HostModel;
use super::block::{Bio, BlockLayer, BlockLimits};
use super::daemon::Daemon;
use super::guest::{GuestModel, Word};
use super::program::File;
use super::threads::{Taker, ThreadPool};
use crate::Io;

/// Which software of the host decides what the device does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum HostPath {
    /// The host's kernel: it sees the processes of the host and, for each VM, the threads of QEMU,
    /// one queue each, all alike (D3.6, section 9.2).
    Threads,
    /// The same once the kernel's elevator has merged the queues of a VM's threads into one: CFQ
    /// and BFQ do that with processes that read interleaved parts of the same stream, which these
    /// threads do whenever the guest reads in order.
    MergedThreads,
    /// Evenkeel: each VM is a group of its own, and so is each process of the host.
    Evenkeel,
}

/// Names whose request it is, inside the tokens of the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Owner {
    /// A bio of the host's own system.
    Host(u64),
    /// A request of a guest, by the guest's index and tag.
    Guest { guest: u32, tag: u32 },
    /// A request of a driver, by the driver's index and one of its places.
    Driver { driver: u32, place: u32 },
}

impl Owner {
    const GUEST: u64 = 1 << 63;
    const DRIVER: u64 = 1 << 62;

    pub(crate) const fn token(self) -> u64 {
        match self {
            Self::Host(token) => token,
            Self::Guest { guest, tag } => Self::GUEST | (guest as u64) << 32 | tag as u64,
            Self::Driver { driver, place } => Self::DRIVER | (driver as u64) << 32 | place as u64,
        }
    }

    #[inline]
    fn of(token: u64) -> Self {
        let high = u32::try_from(token >> 32 & 0x3fff_ffff).expect("30 bits");
        let low = u32::try_from(token & 0xffff_ffff).expect("32 bits");
        if token & Self::GUEST != 0 {
            Self::Guest { guest: high, tag: low }
        } else if token & Self::DRIVER != 0 {
            Self::Driver { driver: high, place: low }
        } else {
            Self::Host(token)
        }
    }
}

/// A request on its way from a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GuestRequest {
    pub(crate) guest: u32,
    pub(crate) tag: u32,
    pub(crate) io: Io,
    /// The word of priority in its header.
    pub(crate) ioprio: u32,
}

/// The host's side.
#[derive(Debug)]
pub(crate) enum Host {
    Threads(Box<Threads>),
    Evenkeel(Box<Daemon>),
}

impl Host {
    pub(crate) fn new(
        now: Nanos,
        model: &HostModel,
        elevator: &ElevatorConfig,
        depth: u32,
    ) -> Self {
        match model.path {
            HostPath::Threads | HostPath::MergedThreads => Self::Threads(Box::new(Threads {
                merges: model.path == HostPath::MergedThreads,
                layer: BlockLayer::new(
                    Elevator::new(now, elevator),
                    BlockLimits { slots: 128, depth },
                ),
                vms: Vec::new(),
            })),
            HostPath::Evenkeel => {
                let (elevator, blocks) = (elevator.clone(), model.blocks);
                let mut engine = Engine::new(now, &EngineConfig { elevator, depth, blocks });
                engine.explain_waits(model.explains);
                engine.tell_streams_apart(model.streams);
                Self::Evenkeel(Box::new(Daemon::new(engine)))
            }
        }
    }

    /// Adds a source for a process of the host that uses `file`.
    pub(crate) fn add_process(&mut self, now: Nanos, file: File, sync: bool) -> u32 {
        match self {
            Self::Threads(host) => host.layer.add_source(now, Priority::default(), sync),
            Self::Evenkeel(host) => {
                let group = host.engine.add_group(now, GroupId::ROOT, Weight::default());
                host.add_disk(group, file)
            }
        }
    }

    /// Says that a process of the host has ended.
    pub(crate) fn remove_process(&mut self, now: Nanos, source: u32) {
        if let Self::Threads(host) = self {
            host.layer.remove_source(now, source);
        }
    }

    /// Adds the guest with the next index, with a disk that lies at its image on the device.
    pub(crate) fn add_guest(&mut self, now: Nanos, model: &GuestModel) {
        let image = model.image;
        match self {
            Self::Threads(host) => {
                let layer = &mut host.layer;
                let merged = host.merges.then(|| layer.add_source(now, Priority::default(), true));
                let (pool, requests) = (ThreadPool::default(), Vec::new());
                host.vms.push(ThreadedVm { image, pool, requests, merged });
            }
            Self::Evenkeel(host) => {
                let engine = &mut host.engine;
                let group = model.vm.unwrap_or_else(|| {
                    let group = engine.add_group(now, GroupId::ROOT, model.weight);
                    engine.set_help_policy(now, group, HelpPolicy::default());
                    group
                });
                let source = host.add_disk(group, image);
                host.vms.push((group, source));
            }
        }
    }

    /// Takes a bio of a process of the host.
    pub(crate) fn submit(&mut self, now: Nanos, bio: Bio) {
        match self {
            Self::Threads(host) => {
                host.layer.submit(now, Bio { token: Owner::Host(bio.token).token(), ..bio });
            }
            Self::Evenkeel(host) => {
                let io =
                    Io { op: bio.op, pos: bio.pos, nr_sectors: bio.nr_sectors, durable: false };
                let token = Owner::Host(bio.token).token();
                host.submit_at(now, bio.source, token, &io);
            }
        }
    }

    /// Takes a request of a guest.
    pub(crate) fn arrive(&mut self, now: Nanos, request: &GuestRequest) {
        match self {
            Self::Threads(host) => host.arrive(now, request),
            Self::Evenkeel(host) => {
                let token = Owner::Guest { guest: request.guest, tag: request.tag }.token();
                let source = host.vms[request.guest as usize].1;
                host.submit(now, source, token, &request.io, request.ioprio);
            }
        }
    }

    /// Returns the next command for the device.
    #[inline]
    pub(crate) fn dispatch(&mut self, now: Nanos) -> Option<(Tag, Io)> {
        match self {
            Self::Threads(host) => host.layer.dispatch(now),
            Self::Evenkeel(host) => host.dispatch(now),
        }
    }

    /// Says what became of a command.
    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        match self {
            Self::Threads(host) => host.layer.complete(now, tag),
            Self::Evenkeel(host) => host.complete(now, tag, outcome),
        }
    }

    /// Returns whose request is finished; call until `None`.
    #[inline]
    pub(crate) fn retire(&mut self, now: Nanos) -> Option<Owner> {
        match self {
            Self::Evenkeel(host) => host.retire(now).map(Owner::of),
            Self::Threads(host) => {
                let owner = Owner::of(host.layer.retire()?);
                if let Owner::Guest { guest, tag } = owner {
                    host.finish(now, guest, tag);
                }
                Some(owner)
            }
        }
    }

    /// Takes a guest's word on whether somebody in it is urgent. The kernel's path has no ear.
    pub(crate) fn ask(&mut self, now: Nanos, guest: u32, word: Word) {
        if let Self::Evenkeel(host) = self {
            host.asked += 1;
            let Word { urgency, marked } = word;
            let ask = Ask { seq: host.asked, urgency, lease: Nanos::from_secs(1), marked };
            host.engine.ask_help(now, host.vms[guest as usize].0, ask);
        }
    }

    /// Returns Evenkeel, if that is what the host runs.
    #[inline]
    pub(crate) fn daemon(&mut self) -> Option<&mut Daemon> {
        match self {
            Self::Threads(_) => None,
            Self::Evenkeel(host) => Some(host),
        }
    }

    /// Returns whether the elevator has raised somebody.
    pub(crate) fn is_anybody_raised(&self) -> bool {
        match self {
            Self::Threads(host) => host.layer.report().raised,
            Self::Evenkeel(host) => host.is_anybody_raised(),
        }
    }

    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        match self {
            Self::Threads(host) => host.layer.next_deadline(),
            Self::Evenkeel(host) => host.engine.next_deadline(),
        }
    }

    pub(crate) fn check_invariants(&self) {
        match self {
            Self::Threads(host) => host.layer.check_invariants(),
            Self::Evenkeel(host) => host.engine.check_invariants(),
        }
    }
}

/// A request of a guest that a thread has, or will have.
#[derive(Clone, Copy, Debug)]
struct Held {
    io: Io,
    source: u32,
}

#[derive(Debug)]
struct ThreadedVm {
    image: File,
    pool: ThreadPool,
    /// By tag.
    requests: Vec<Option<Held>>,
    /// The queue of all threads, where their queues have been merged.
    merged: Option<u32>,
}

/// A kernel, and QEMU's threads.
#[derive(Debug)]
pub(crate) struct Threads {
    /// Whether the threads of a VM share a queue.
    merges: bool,
    layer: BlockLayer,
    vms: Vec<ThreadedVm>,
}

impl Threads {
    fn arrive(&mut self, now: Nanos, request: &GuestRequest) {
        let GuestRequest { guest, tag, io, .. } = *request;
        let vm = &mut self.vms[guest as usize];
        while let Some(source) = vm.pool.ended(now) {
            if vm.merged.is_none() {
                self.layer.remove_source(now, source);
            }
        }
        let place = tag as usize;
        if vm.requests.len() <= place {
            vm.requests.resize(place + 1, None);
        }
        let source = match vm.pool.submit(tag) {
            Taker::Thread(source) => source,
            Taker::New => {
                vm.pool.starts();
                vm.merged.unwrap_or_else(|| self.layer.add_source(now, Priority::default(), true))
            }
            Taker::Later => {
                vm.requests[place] = Some(Held { io, source: 0 });
                return;
            }
        };
        self.hand_over(now, guest, tag, Held { io, source });
    }

    /// Lets a thread make its system call.
    fn hand_over(&mut self, now: Nanos, guest: u32, tag: u32, held: Held) {
        let vm = &mut self.vms[guest as usize];
        vm.requests[tag as usize] = Some(held);
        let Held { io: Io { op, pos, nr_sectors, .. }, source } = held;
        let token = Owner::Guest { guest, tag }.token();
        let pos = vm.image.start + pos;
        self.layer.submit(now, Bio { token, source, op, pos, nr_sectors, sync: true });
    }

    fn finish(&mut self, now: Nanos, guest: u32, tag: u32) {
        let vm = &mut self.vms[guest as usize];
        let held = vm.requests[tag as usize].take().expect("a thread has what is finished");
        if let Some(next) = vm.pool.done(now, held.source) {
            let io = vm.requests[next as usize].expect("it waits for a thread").io;
            self.hand_over(now, guest, next, Held { io, source: held.source });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_tell_the_host_from_its_guests() {
        for owner in [
            Owner::Host(0),
            Owner::Host(u64::from(u32::MAX)),
            Owner::Guest { guest: 0, tag: 0 },
            Owner::Guest { guest: 0x3fff_ffff, tag: u32::MAX },
            Owner::Driver { driver: 0x3fff_ffff, place: u32::MAX },
        ] {
            assert_eq!(Owner::of(owner.token()), owner);
        }
    }
}
