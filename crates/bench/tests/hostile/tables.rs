//! Memory, rings and descriptors that are not what the messages say.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use evenkeel_bench::client::channel::{Channel, FDS_MAX, longs, message, words};
use evenkeel_bench::client::memory::Memory;
use evenkeel_bench::client::{Client, GUEST_BASE, Io, IoOp, USER_BASE};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::arena::Arena;
use crate::sessions::opening;

/// Sends a memory table of these regions: guest address, size, user address, offset in the file.
fn send_table(channel: &mut Channel, regions: &[[u64; 4]], fds: &[BorrowedFd<'_>]) -> bool {
    let count = u32::try_from(regions.len()).unwrap();
    let payload = [words(&[count, 0]), longs(regions.as_flattened())].concat();
    channel.tell(message::SET_MEM_TABLE, &payload, fds).is_ok()
}

/// Sends a table on a fresh session, and to vrings at work.
fn send_everywhere(arena: &Arena, regions: &[[u64; 4]], fds: &[BorrowedFd<'_>]) -> [bool; 2] {
    let fresh = send_table(&mut opening(arena.socket()), regions, fds);
    let mut client = arena.connect();
    let live = send_table(client.channel(), regions, fds);
    // The session may be over, or the vring stopped; what counts is that nobody else notices.
    client.submit(0, &Io::new(IoOp::Read, 0, 4096, 0));
    client.publish();
    arena.await_witness();
    [fresh, live]
}

fn file(bytes: u64) -> OwnedFd {
    let fd = memfd_create("evenkeel-hostile", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, bytes).unwrap();
    fd
}

#[test]
fn a_memory_table_without_regions_harms_nobody() {
    let arena = Arena::new("table-empty");
    send_everywhere(&arena, &[], &[]);
    arena.finish();
}

#[test]
fn a_region_of_no_size_is_refused() {
    let arena = Arena::new("table-zero");
    let fd = file(4096);
    let refused = send_everywhere(&arena, &[[GUEST_BASE, 0, USER_BASE, 0]], &[fd.as_fd()]);
    assert_eq!(refused, [false, false]);
    arena.finish();
}

#[test]
fn a_region_larger_than_its_file_or_the_world_harms_nobody() {
    let arena = Arena::new("table-huge");
    let fd = file(1 << 20);
    for size in [1 << 21, 1 << 40, 1 << 47, 1 << 62, 1 << 63, u64::MAX - 4095, u64::MAX] {
        send_everywhere(&arena, &[[GUEST_BASE, size, USER_BASE, 0]], &[fd.as_fd()]);
    }
    for (guest, user) in [(u64::MAX - 4095, USER_BASE), (GUEST_BASE, u64::MAX - 4095)] {
        let region = [guest, 1 << 20, user, 0];
        assert_eq!(send_everywhere(&arena, &[region], &[fd.as_fd()]), [false, false]);
    }
    arena.finish();
}

#[test]
fn a_region_at_a_wild_offset_of_its_file_harms_nobody() {
    let arena = Arena::new("table-offset");
    let fd = file(1 << 20);
    for offset in [1, 511, 4095, 1 << 20, 1 << 40, 1 << 63, u64::MAX - 4095, u64::MAX] {
        send_everywhere(&arena, &[[GUEST_BASE, 1 << 20, USER_BASE, offset]], &[fd.as_fd()]);
    }
    arena.finish();
}

#[test]
fn regions_that_overlap_are_refused() {
    let arena = Arena::new("table-overlap");
    let fd = file(1 << 20);
    for second in [GUEST_BASE, GUEST_BASE + 4096, GUEST_BASE - 4096] {
        let regions =
            [[GUEST_BASE, 1 << 20, USER_BASE, 0], [second, 1 << 20, USER_BASE + (1 << 30), 0]];
        let refused = send_everywhere(&arena, &regions, &[fd.as_fd(), fd.as_fd()]);
        assert_eq!(refused, [false, false], "second region at {second:#x}");
    }
    arena.finish();
}

#[test]
fn more_or_fewer_descriptors_than_regions_are_refused() {
    let arena = Arena::new("table-count");
    let fd = file(1 << 20);
    let regions: Vec<[u64; 4]> =
        (0..9).map(|at| [GUEST_BASE + (at << 30), 1 << 20, USER_BASE + (at << 30), 0]).collect();
    let fds = [fd.as_fd(); FDS_MAX];
    for (count, descriptors) in [(2, 1), (1, 2), (1, 0), (8, 1), (9, 8), (1, 8)] {
        let refused = send_everywhere(&arena, &regions[..count], &fds[..descriptors]);
        assert_eq!(refused, [false, false], "{count} regions, {descriptors} descriptors");
    }
    let lying = [words(&[u32::MAX, 0]), longs(&[GUEST_BASE, 1 << 20, USER_BASE, 0])].concat();
    let mut channel = opening(arena.socket());
    assert!(channel.tell(message::SET_MEM_TABLE, &lying, &fds[..1]).is_err());
    drop(channel);
    arena.finish();
}

#[test]
fn a_region_that_is_no_memory_is_refused() {
    let arena = Arena::new("table-no-memory");
    let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for fd in [socket.as_fd(), pipe.as_fd(), null.as_fd()] {
        let refused = send_everywhere(&arena, &[[GUEST_BASE, 4096, USER_BASE, 0]], &[fd]);
        assert_eq!(refused, [false, false]);
    }
    arena.finish();
}

#[test]
fn memory_cut_off_under_the_rings_harms_nobody() {
    let arena = Arena::new("truncated-rings");
    for request in [IoOp::Read, IoOp::Write, IoOp::Flush] {
        let mut client = arena.connect();
        client.submit(0, &Io::new(request, 0, 4096, 0)).unwrap();
        client.publish();
        client.memory().truncate(0).unwrap();
        kick_alone(&client);
        arena.await_witness();
    }
    arena.finish();
}

#[test]
fn memory_cut_off_under_the_data_harms_nobody() {
    let arena = Arena::new("truncated-data");
    for request in [IoOp::Read, IoOp::Write, IoOp::GetId] {
        let mut client = arena.connect();
        let kept = client.vring(0).data_at(0) as u64;
        client.memory().truncate(kept).unwrap();
        for at in 0..8 {
            client.submit(0, &Io::new(request, at * 32, 16384, 0)).unwrap();
        }
        client.publish();
        // Every request is answered in some way, or the vring is stopped.
        client.wait(Duration::from_secs(20)).unwrap();
        arena.await_witness();
    }
    arena.finish();
}

#[test]
fn memory_cut_off_while_requests_run_harms_nobody() {
    let arena = Arena::new("truncated-in-flight");
    for round in 0..20 {
        let mut client = arena.connect();
        let kept = client.vring(0).data_at(0) as u64;
        for at in 0..8 {
            let op = if (at + round) % 2 == 0 { IoOp::Write } else { IoOp::Read };
            client.submit(0, &Io::new(op, at * 32, 16384, 0)).unwrap();
        }
        client.publish();
        client.memory().truncate(if round % 2 == 0 { 0 } else { kept }).unwrap();
        kick_alone(&client);
        arena.await_witness();
    }
    arena.finish();
}

/// Kicks without a look at the rings, which this client must not touch any more either.
fn kick_alone(client: &Client) {
    let _full = rustix::io::write(client.kick_fd(0), &1_u64.to_ne_bytes());
}

#[test]
fn an_inflight_region_that_is_cut_off_or_lies_harms_nobody() {
    let arena = Arena::new("inflight");
    let mut client = arena.connect();
    let fd =
        client.inflight_fd().expect("the server tracks requests").try_clone_to_owned().unwrap();
    client.submit(0, &Io::new(IoOp::Write, 0, 16384, 0)).unwrap();
    // Sealed: the server's own writes to it cannot be made to fault.
    assert_eq!(ftruncate(&fd, 0), Err(rustix::io::Errno::PERM));
    client.publish();
    arena.await_witness();
    drop(client);
    let small = file(64);
    let noise = Memory::new(1 << 16).unwrap();
    noise.write(0, &[0xff; 1 << 16]);
    for (size, offset, vrings, ring) in [
        (1 << 40, 0, 1, 64),
        (1 << 16, 1 << 40, 1, 64),
        (1 << 16, u64::MAX, 1, 64),
        (1 << 16, 0, 1, 64),
        (0, 0, 1, 64),
        (16, 0, 1, 64),
        (1 << 16, 0, u16::MAX, u16::MAX),
        (1 << 16, 0, 0, 0),
        (1 << 16, 3, 1, 64),
    ] {
        for fd in [small.as_fd(), noise.fd()] {
            let mut client = arena.connect();
            let shape = words(&[u32::from(vrings) | u32::from(ring) << 16, 0]);
            let payload = [longs(&[size, offset]), shape].concat();
            let _refused = client.channel().tell(message::SET_INFLIGHT_FD, &payload, &[fd]);
            let _ended = client.restart();
            client.submit(0, &Io::new(IoOp::Read, 0, 4096, 0));
            client.publish();
            arena.await_witness();
        }
    }
    arena.finish();
}

#[test]
fn rings_outside_the_memory_harm_nobody() {
    let arena = Arena::new("ring-addresses");
    let end = USER_BASE + (1 << 21);
    for at in [0, 1, 4096, USER_BASE - 4096, USER_BASE + 1, end - 16, end, u64::MAX - 15, u64::MAX]
    {
        for part in 0..3 {
            let mut client = arena.connect();
            let _stopped = client.channel().ask(message::GET_VRING_BASE, &words(&[0, 0]));
            let mut addresses = [USER_BASE, USER_BASE + 4096, USER_BASE + 8192, 0];
            addresses[part] = at;
            let payload = [words(&[0, 0]), longs(&addresses)].concat();
            let _refused = client.channel().tell(message::SET_VRING_ADDR, &payload, &[]);
            start_again(&mut client);
        }
    }
    arena.await_witness();
    arena.finish();
}

/// Kicks a stopped vring into work again, whatever was sent before.
fn start_again(client: &mut Client) {
    let kick = client.vring(0).kick_fd().try_clone_to_owned().unwrap();
    let _refused = client.channel().tell(message::SET_VRING_KICK, &longs(&[0]), &[kick.as_fd()]);
    let _refused = client.channel().tell(message::SET_VRING_ENABLE, &words(&[0, 1]), &[]);
    client.vring(0).kick();
}

#[test]
fn vrings_of_impossible_sizes_and_numbers_harm_nobody() {
    let arena = Arena::new("ring-sizes");
    for size in [0, 1, 3, 63, 65, 32768, 32769, 65535, 65536, 1 << 20, u32::MAX] {
        let mut client = arena.connect();
        let _stopped = client.channel().ask(message::GET_VRING_BASE, &words(&[0, 0]));
        let _refused = client.channel().tell(message::SET_VRING_NUM, &words(&[0, size]), &[]);
        start_again(&mut client);
    }
    for index in [1, 63, 64, 255, 256, 65535, u32::MAX] {
        for number in [
            message::SET_VRING_NUM,
            message::SET_VRING_BASE,
            message::SET_VRING_ENABLE,
            message::GET_VRING_BASE,
        ] {
            let mut client = arena.connect();
            let _refused = client.channel().tell(number, &words(&[index, 1]), &[]);
        }
        let mut client = arena.connect();
        let call = file(8);
        for number in [message::SET_VRING_KICK, message::SET_VRING_CALL, message::SET_VRING_ERR] {
            let payload = longs(&[index.into()]);
            let _refused = client.channel().tell(number, &payload, &[call.as_fd()]);
        }
    }
    arena.await_witness();
    arena.finish();
}

#[test]
fn kick_and_call_descriptors_that_are_no_eventfds_harm_nobody() {
    let arena = Arena::new("no-eventfds");
    let plain = file(8);
    let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
    drop(other);
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    for fd in [plain.as_fd(), socket.as_fd(), reader.as_fd(), writer.as_fd(), null.as_fd()] {
        for number in [message::SET_VRING_KICK, message::SET_VRING_CALL, message::SET_VRING_ERR] {
            let mut client = arena.connect();
            let _refused = client.channel().tell(number, &longs(&[0]), &[fd]);
            for at in 0..8 {
                client.submit(0, &Io::new(IoOp::Read, at * 32, 16384, 0));
            }
            client.publish();
            arena.await_witness();
        }
    }
    arena.finish();
}

#[test]
fn a_full_call_eventfd_does_not_hold_the_server_up() {
    let arena = Arena::new("full-eventfd");
    let mut client = arena.connect();
    // Blocking on purpose: a server that writes to it without a look would sleep for ever.
    let call = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&call, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    client.channel().tell(message::SET_VRING_CALL, &longs(&[0]), &[call.as_fd()]).unwrap();
    client.arm();
    client.submit(0, &Io::new(IoOp::Read, 0, 16384, 0)).unwrap();
    client.publish();
    arena.await_witness();
    assert_eq!(client.vring(0).used_index(), 1, "the request is answered all the same");
    drop(client);
    arena.finish();
}

#[test]
fn regions_added_and_removed_at_work_harm_nobody() {
    let arena = Arena::new("mem-slots");
    let fd = file(1 << 20);
    for region in [
        [GUEST_BASE, 1 << 20, USER_BASE, 0],
        [GUEST_BASE - (1 << 20), 1 << 20, USER_BASE - (1 << 20), 0],
        [0, u64::MAX, 0, 0],
        [1 << 50, 1 << 20, 1 << 50, u64::MAX],
    ] {
        let payload = [longs(&[0]), longs(&region)].concat();
        for number in [message::ADD_MEM_REG, message::REM_MEM_REG] {
            for fds in [&[fd.as_fd()][..], &[]] {
                let mut client = arena.connect();
                let _refused = client.channel().tell(number, &payload, fds);
                client.submit(0, &Io::new(IoOp::Read, 0, 16384, 0));
                client.publish();
                arena.await_witness();
            }
        }
    }
    // The client's own memory goes while its requests run.
    let mut client = arena.connect();
    let own = [longs(&[0, GUEST_BASE, client.memory().len() as u64, USER_BASE, 0])].concat();
    for at in 0..8 {
        client.submit(0, &Io::new(IoOp::Write, at * 32, 16384, 0)).unwrap();
    }
    client.publish();
    let _refused = client.channel().tell(message::REM_MEM_REG, &own, &[]);
    arena.await_witness();
    drop(client);
    arena.finish();
}
