use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;

use evenkeel_engine::Status;
use rustix::event::EventfdFlags;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::*;
use crate::command::{DiskIndex, Inbox, channel};
use crate::guest::{AVAIL, BYTES, Dice, GUEST_ADDR, Guest, TABLE, USED, USER_ADDR, memfd};
use crate::vring::Pop;

/// A disk with everything switched on, and its worker's end.
pub(crate) fn disk() -> (SessionDisk, Inbox) {
    let (worker, inbox) = channel().unwrap();
    let geometry = evenkeel_engine::Geometry {
        sectors: 2048,
        block_bytes: 512,
        read_only: false,
        discard: true,
        write_zeroes: true,
    };
    let disk = SessionDisk {
        name: "test".into(),
        index: DiskIndex(7),
        geometry,
        write_cache: true,
        seg_max: 254,
        max_vrings: 4,
        worker,
    };
    (disk, inbox)
}

/// A VMM, a session, and a worker that does nothing by itself.
struct World {
    vmm: Frontend,
    guest: Guest,
    kick: EventFd,
    call: EventFd,
    inbox: Inbox,
    session: JoinHandle<()>,
}

impl World {
    /// A session that has agreed on all features.
    fn new() -> Self {
        Self::between(UnixStream::pair().unwrap())
    }

    fn between((ours, theirs): (UnixStream, UnixStream)) -> Self {
        let (disk, inbox) = disk();
        let session = std::thread::spawn(move || serve(ours, disk));
        let mut vmm = Frontend::from_stream(theirs, 5);
        vmm.set_owner().unwrap();
        let features = vmm.get_features().unwrap();
        vmm.set_features(features).unwrap();
        let offered = vmm.get_protocol_features().unwrap();
        assert_eq!(offered, features::protocol_features());
        vmm.set_protocol_features(offered).unwrap();
        vmm.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
        let world = Self { vmm, guest: Guest::new(16), kick, call, inbox, session };
        assert!(!world.write_through());
        world
    }

    /// A session that knows the guest's memory.
    fn with_memory() -> Self {
        let world = Self::new();
        world.vmm.set_mem_table(&[world.region()]).unwrap();
        world
    }

    fn region(&self) -> VhostUserMemoryRegionInfo {
        region(&self.guest.file)
    }

    /// The next command that the worker gets.
    fn command(&self) -> Command {
        self.inbox.receiver.recv().unwrap()
    }

    fn has_no_command(&self) -> bool {
        self.inbox.receiver.try_recv().is_err()
    }

    fn set_up(&self, index: usize) {
        self.vmm.set_vring_num(index, 16).unwrap();
        self.vmm.set_vring_base(index, 0).unwrap();
        self.vmm.set_vring_addr(index, &addresses()).unwrap();
    }

    /// Starts a vring and takes it out of the worker's inbox.
    fn start(&mut self, index: usize) -> Box<Vring> {
        self.set_up(index);
        self.vmm.set_vring_call(index, &self.call).unwrap();
        self.vmm.set_vring_enable(index, true).unwrap();
        self.vmm.set_vring_kick(index, &self.kick).unwrap();
        self.started()
    }

    fn started(&self) -> Box<Vring> {
        match self.command() {
            Command::StartVring { vring, .. } => vring,
            other => panic!("{other:?}"),
        }
    }

    fn write_through(&self) -> bool {
        match self.command() {
            Command::SetWriteThrough { write_through, .. } => write_through,
            other => panic!("{other:?}"),
        }
    }

    /// Lets the VMM act while the worker answers one command.
    fn during<T: Send>(
        &self,
        act: impl FnOnce(Frontend) -> T + Send,
        answer: impl FnOnce(Command),
    ) -> T {
        let vmm = self.vmm.clone();
        std::thread::scope(|scope| {
            let acting = scope.spawn(|| act(vmm));
            answer(self.command());
            acting.join().unwrap()
        })
    }

    /// Lets the VMM act while the worker stops a vring whose next available index is `base`.
    fn stopping<T: Send>(&self, base: u16, act: impl FnOnce(Frontend) -> T + Send) -> T {
        self.during(act, |command| match command {
            Command::StopVring { reply, .. } => reply.send(base).unwrap(),
            other => panic!("{other:?}"),
        })
    }

    /// Lets the VMM act while the worker gets a new memory, which is returned.
    fn remapping<T: Send>(&self, act: impl FnOnce(Frontend) -> T + Send) -> Arc<Memory> {
        let mut got = None;
        self.during(act, |command| match command {
            Command::SetMemory { memory, reply, .. } => {
                reply.send(()).unwrap();
                got = Some(memory);
            }
            other => panic!("{other:?}"),
        });
        got.unwrap()
    }

    /// Sees the session off: the next command must be its last one, and it must wait for the
    /// answer.
    fn see_off(self) {
        match self.command() {
            Command::Disconnect { reply, disk } => {
                assert_eq!(disk, DiskIndex(7));
                assert!(!self.session.is_finished(), "the session waits for the worker");
                reply.send(()).unwrap();
            }
            other => panic!("{other:?}"),
        }
        self.session.join().unwrap();
    }

    /// Lets the VMM leave, and sees the session off.
    fn leave(mut self) {
        let (stranger, _none) = UnixStream::pair().unwrap();
        self.vmm = Frontend::from_stream(stranger, 1);
        self.see_off();
    }
}

fn region(file: &File) -> VhostUserMemoryRegionInfo {
    VhostUserMemoryRegionInfo {
        guest_phys_addr: GUEST_ADDR,
        memory_size: BYTES,
        userspace_addr: USER_ADDR,
        mmap_offset: 0,
        mmap_handle: file.as_raw_fd(),
    }
}

fn addresses() -> VringConfigData {
    VringConfigData {
        queue_max_size: 256,
        queue_size: 16,
        flags: 0,
        desc_table_addr: USER_ADDR + TABLE,
        used_ring_addr: USER_ADDR + USED,
        avail_ring_addr: USER_ADDR + AVAIL,
        log_addr: None,
    }
}

#[test]
fn a_vring_starts_when_its_papers_are_complete_and_serves_the_guest() {
    let mut world = World::with_memory();
    assert_eq!(world.vmm.get_queue_num().unwrap(), 4);
    world.set_up(1);
    world.vmm.set_vring_kick(1, &world.kick).unwrap();
    world.vmm.set_vring_call(1, &world.call).unwrap();
    assert!(world.has_no_command(), "it is not enabled");
    world.vmm.set_vring_enable(1, true).unwrap();
    let mut vring = match world.command() {
        Command::StartVring { disk: DiskIndex(7), index: 1, vring } => vring,
        other => panic!("{other:?}"),
    };
    world.guest.chain(0, false);
    world.guest.offer(0);
    assert!(matches!(vring.pop(&mut Vec::new()), Pop::Chain(_)));
    vring.answer(0, Status::Ok, 512);
    vring.publish();
    assert_eq!((world.call.read().unwrap(), world.guest.used()), (1, vec![(0, 513)]));
    world.leave();
}

#[test]
fn the_call_descriptor_may_come_after_the_kick() {
    let mut world = World::with_memory();
    world.set_up(0);
    world.vmm.set_vring_enable(0, true).unwrap();
    world.vmm.set_vring_kick(0, &world.kick).unwrap();
    world.started();
    world.vmm.set_vring_call(0, &world.call).unwrap();
    assert!(matches!(world.command(), Command::SetCall { index: 0, call: Some(_), .. }));
    world.leave();
}

#[test]
fn a_vmm_that_dies_while_a_vring_cannot_end_leaves_the_disk_to_the_next() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let socket = theirs.try_clone().unwrap();
    let mut world = World::between((ours, theirs));
    world.vmm.set_mem_table(&[world.region()]).unwrap();
    world.start(0);
    let World { vmm, inbox, session, .. } = world;
    let vmm = std::thread::spawn(move || vmm.get_vring_base(0).unwrap_err());
    let Command::StopVring { reply: never_used, .. } = inbox.receiver.recv().unwrap() else {
        panic!("the vring is running")
    };
    socket.shutdown(std::net::Shutdown::Both).unwrap();
    vmm.join().unwrap();
    let Command::Disconnect { reply, .. } = inbox.receiver.recv().unwrap() else {
        panic!("the session has nothing else to say")
    };
    reply.send(()).unwrap();
    session.join().unwrap();
    drop(never_used);
}

#[test]
fn without_protocol_features_a_kick_is_enough() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (disk, inbox) = disk();
    let session = std::thread::spawn(move || serve(ours, disk));
    let vmm = Frontend::from_stream(theirs, 4);
    let features = vmm.get_features().unwrap();
    vmm.set_features(features & !VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()).unwrap();
    let (kick, call) = (EventFd::new(0).unwrap(), EventFd::new(0).unwrap());
    let world = World { vmm, guest: Guest::new(16), kick, call, inbox, session };
    world.vmm.set_mem_table(&[world.region()]).unwrap();
    world.set_up(0);
    world.vmm.set_vring_kick(0, &world.kick).unwrap();
    assert!(!world.write_through());
    world.started();
    world.leave();
}

#[test]
fn a_vring_goes_through_many_cycles() {
    let mut world = World::with_memory();
    for cycle in 0..3 {
        world.start(2);
        assert_eq!(world.stopping(cycle, |vmm| vmm.get_vring_base(2).unwrap()), u32::from(cycle));
        assert_eq!(world.vmm.get_vring_base(2).unwrap(), u32::from(cycle), "also when idle");
    }
    world.leave();
}

#[test]
fn a_disabled_vring_stops_and_goes_on_where_it_was() {
    let mut world = World::with_memory();
    world.start(0);
    world.stopping(5, |mut vmm| vmm.set_vring_enable(0, false).unwrap());
    world.vmm.set_vring_enable(0, true).unwrap();
    assert_eq!(world.started().next_avail(), 5);
    world.leave();
}

#[test]
fn a_new_kick_descriptor_replaces_the_old_one() {
    let mut world = World::with_memory();
    world.start(0);
    let other = EventFd::new(0).unwrap();
    world.stopping(9, |vmm| vmm.set_vring_kick(0, &other).unwrap());
    assert_eq!(world.started().next_avail(), 9);
    world.leave();
}

#[test]
fn the_configuration_space_can_be_read_and_its_switch_written() {
    let mut world = World::new();
    let flags = VhostUserConfigFlags::WRITABLE;
    let mut get = |offset, size: u32| {
        let room = vec![0; usize::try_from(size).unwrap()];
        world.vmm.get_config(offset, size, flags, &room).unwrap().1
    };
    assert_eq!(get(0, 8), 2048_u64.to_le_bytes());
    assert_eq!(get(32, 4), [1, 0, 4, 0]);
    assert_eq!(get(56, 40)[..5], [1, 0, 0, 0, 0]);
    world.during(
        |mut vmm| vmm.set_config(32, flags, &[0]).unwrap(),
        |command| match command {
            Command::SetWriteThrough { write_through: true, reply, .. } => reply.send(()).unwrap(),
            other => panic!("{other:?}"),
        },
    );
    let mut get = |offset, size| world.vmm.get_config(offset, size, flags, &[0]).unwrap().1;
    assert_eq!(get(32, 1), [0]);
    // The guest chose this value, so the session goes on.
    world.vmm.set_config(32, flags, &[2]).unwrap_err();
    world.vmm.set_config(0, flags, &[1; 8]).unwrap_err();
    assert_eq!(world.vmm.get_config(32, 1, flags, &[0]).unwrap().1, [0]);
    world.leave();
}

#[test]
fn a_guest_that_cannot_flush_gets_durable_writes() {
    let (disk, inbox) = disk();
    let mut session = Session::new(disk);
    let all = session.get_features().unwrap();
    session.set_features(all & !(1 << VIRTIO_BLK_F_FLUSH)).unwrap();
    let command = inbox.receiver.recv().unwrap();
    assert!(matches!(command, Command::SetWriteThrough { write_through: true, .. }));
}

#[test]
fn the_in_flight_region_goes_to_the_vmm_and_comes_back() {
    let mut world = World::with_memory();
    let wish = VhostUserInflight::new(0, 0, 2, 128);
    let (region, file) = world.vmm.get_inflight_fd(&wish).unwrap();
    assert_eq!((region.mmap_size, region.num_queues, region.queue_size), (2 * 2112, 2, 128));
    world.vmm.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    let mut vring = world.start(1);
    world.guest.chain(3, false);
    world.guest.offer(3);
    assert!(matches!(vring.pop(&mut Vec::new()), Pop::Chain(_)));
    // The worker dies; a successor gets the region from the VMM.
    let mut successor = World::new();
    std::mem::swap(&mut world.guest, &mut successor.guest);
    world.leave();
    let mut world = successor;
    world.vmm.set_mem_table(&[world.region()]).unwrap();
    world.vmm.set_inflight_fd(&region, file.as_raw_fd()).unwrap();
    let mut vring = world.start(1);
    assert!(vring.is_resuming());
    assert!(matches!(vring.pop(&mut Vec::new()), Pop::Chain(chain) if chain.head == 3));
    world.leave();
}

#[test]
fn memory_is_exchanged_under_running_vrings() {
    let mut world = World::with_memory();
    let mut vring = world.start(0);
    let other = memfd(BYTES);
    let mut second = region(&other);
    second.guest_phys_addr = GUEST_ADDR + BYTES;
    second.userspace_addr = USER_ADDR + BYTES;
    let memory = world.remapping(|mut vmm| vmm.add_mem_region(&second).unwrap());
    assert!(memory.translate(GUEST_ADDR + BYTES, 1).is_some());
    vring.set_memory(&memory);
    world.guest.chain(0, false);
    world.guest.offer(0);
    assert!(matches!(vring.pop(&mut Vec::new()), Pop::Chain(_)));
    let all = [world.region(), second];
    assert!(
        world.remapping(|vmm| vmm.set_mem_table(&all).unwrap()).translate(GUEST_ADDR, 1).is_some()
    );
    assert_eq!(world.vmm.get_max_mem_slots().unwrap(), 509);
    world.leave();
}

#[test]
fn a_region_that_leaves_and_returns_in_other_bounds_is_missed_by_nobody() {
    let mut world = World::with_memory();
    world.start(0);
    let whole = world.region();
    world.vmm.remove_mem_region(&whole).unwrap();
    let half = VhostUserMemoryRegionInfo { memory_size: BYTES / 2, ..whole };
    let memory = world.remapping(|mut vmm| vmm.add_mem_region(&half).unwrap());
    assert!(memory.translate(GUEST_ADDR, 1).is_some(), "the first thing that the worker hears");
    // If nothing follows, the removal takes effect by itself.
    world.vmm.remove_mem_region(&half).unwrap();
    assert_eq!(world.remapping(|_| ()).translate(GUEST_ADDR, 1), None);
    world.leave();
}

#[test]
fn a_memory_region_that_is_refused_does_not_end_the_session() {
    let mut world = World::with_memory();
    world.vmm.add_mem_region(&world.region()).unwrap_err();
    let far = VhostUserMemoryRegionInfo { guest_phys_addr: 1 << 40, ..world.region() };
    world
        .vmm
        .add_mem_region(&VhostUserMemoryRegionInfo { memory_size: 1 << 50, ..far })
        .unwrap_err();
    world.vmm.remove_mem_region(&far).unwrap_err();
    world.vmm.set_mem_table(&[world.region(), world.region()]).unwrap_err();
    world.start(0);
    world.leave();
}

/// Does one wrong thing in a session with memory and sees it end, not more.
fn end_of(story: &str, act: impl FnOnce(&mut World)) {
    println!("{story}");
    let mut world = World::with_memory();
    act(&mut world);
    world.see_off();
}

/// As `end_of`, for messages that get no reply: the VMM hears only that the socket is closed.
fn silent_end_of(story: &str, act: impl FnOnce(Frontend) + Send + 'static) {
    println!("{story}");
    let world = World::with_memory();
    let vmm = world.vmm.clone();
    let acting = std::thread::spawn(|| act(vmm));
    world.see_off();
    acting.join().unwrap();
}

#[test]
fn wrong_messages_end_the_session_and_nothing_else() {
    end_of("a vring that is not there", |world| {
        world.vmm.set_vring_num(4, 16).unwrap_err();
    });
    end_of("a vring of 15 descriptors", |world| {
        world.vmm.set_vring_num(0, 15).unwrap_err();
    });
    end_of("a vring outside memory", |world| {
        world.set_up(0);
        let away = VringConfigData { used_ring_addr: 0x1000, ..addresses() };
        world.vmm.set_vring_addr(0, &away).unwrap();
        world.vmm.set_vring_enable(0, true).unwrap();
        world.vmm.set_vring_kick(0, &world.kick).unwrap_err();
    });
    silent_end_of("a vring that is not aligned", |vmm| {
        let away = VringConfigData { used_ring_addr: USER_ADDR + USED + 1, ..addresses() };
        vmm.set_vring_addr(0, &away).unwrap_err();
    });
    end_of("another size while it runs", |world| {
        world.start(0);
        world.vmm.set_vring_num(0, 8).unwrap_err();
    });
    end_of("other features while it runs", |world| {
        world.start(0);
        world.vmm.set_features(1 << 30).unwrap_err();
    });
    end_of("features that were not offered", |world| {
        let features = world.vmm.get_features().unwrap();
        world.vmm.set_features(features | 1 << 3).unwrap_err();
    });
    silent_end_of("an in-flight region for more vrings than there are", |mut vmm| {
        assert!(vmm.get_inflight_fd(&VhostUserInflight::new(0, 0, 5, 128)).is_err());
    });
    end_of("an in-flight region that is too short", |world| {
        let region = VhostUserInflight::new(1 << 40, 0, 4, 1024);
        world.vmm.set_inflight_fd(&region, memfd(4096).as_raw_fd()).unwrap_err();
    });
}

#[test]
fn only_an_eventfd_is_taken_for_one_and_it_does_not_block() {
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    eventfd(File::from(pipe)).unwrap_err();
    eventfd(memfd(4096)).unwrap_err();
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    eventfd(File::from(epoll)).unwrap_err();
    let bell = eventfd(File::from(rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap()));
    let full = (u64::MAX - 1).to_ne_bytes();
    let bell = bell.unwrap();
    rustix::io::write(&bell, &full).unwrap();
    assert_eq!(rustix::io::write(&bell, &full), Err(rustix::io::Errno::AGAIN));
}

#[test]
fn the_vmm_may_die_at_any_point() {
    World::new().leave();
    World::with_memory().leave();
    let mut world = World::with_memory();
    world.start(0);
    world.start(3);
    world.leave();
}

#[test]
fn noise_on_the_socket_ends_the_session_and_nothing_else() {
    for seed in 1..=200 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (disk, inbox) = disk();
        let session = std::thread::spawn(move || serve(ours, disk));
        for _ in 0..dice.below(20) {
            // A header that is nearly right, and a body that is not.
            let size = dice.pick(&[0_u32, 4, 8, 12, 40, 56, 4096]);
            let request = u32::from(dice.index(45, 2));
            let body = dice.bytes(usize::try_from(size).unwrap());
            let header = [request, dice.pick(&[1, 9]), size].map(u32::to_le_bytes).concat();
            if theirs.write_all(&header).and_then(|()| theirs.write_all(&body)).is_err() {
                break;
            }
        }
        drop(theirs);
        loop {
            match inbox.receiver.recv().unwrap() {
                Command::Disconnect { reply, .. } => break reply.send(()).unwrap(),
                Command::SetWriteThrough { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        session.join().unwrap();
    }
}
