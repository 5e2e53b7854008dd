//! Sockets whose other end is no VMM.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_bench::client::channel::{Channel, FDS_MAX, longs, message, protocol, words};
use evenkeel_bench::client::verify::Random;
use evenkeel_bench::client::{Client, Io, IoOp, feature};

use crate::arena::Arena;

const PATIENCE: Duration = Duration::from_secs(20);

/// Connects, waiting a while for a place in the listener's queue.
fn knock(socket: &Path) -> Channel {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Channel::connect(socket, PATIENCE) {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline =>
            {
                std::thread::yield_now();
            }
            other => return other.unwrap(),
        }
    }
}

/// Returns a session with features negotiated and nothing else.
pub(crate) fn opening(socket: &Path) -> Channel {
    let mut channel = knock(socket);
    let features = channel.ask(message::GET_FEATURES, &[]).unwrap().to_u64().unwrap();
    assert_ne!(features & feature::PROTOCOL, 0);
    let accepted = feature::VERSION_1 | feature::PROTOCOL;
    let offered = channel.ask(message::GET_PROTOCOL_FEATURES, &[]).unwrap().to_u64().unwrap();
    let wanted = protocol::MQ
        | protocol::REPLY_ACK
        | protocol::CONFIG
        | protocol::INFLIGHT_SHMFD
        | protocol::CONFIGURE_MEM_SLOTS;
    channel.tell(message::SET_PROTOCOL_FEATURES, &longs(&[offered & wanted]), &[]).unwrap();
    channel.set_acknowledged(offered & protocol::REPLY_ACK != 0);
    channel.tell(message::SET_OWNER, &[], &[]).unwrap();
    channel.tell(message::SET_FEATURES, &longs(&[accepted]), &[]).unwrap();
    channel
}

#[test]
fn a_session_may_end_after_any_message() {
    let arena = Arena::new("any-message");
    // Everything an honest client sends until its vring runs, one message more each time.
    let steps: [(u32, Vec<u8>); 9] = [
        (message::GET_FEATURES, vec![]),
        (message::GET_PROTOCOL_FEATURES, vec![]),
        (message::SET_PROTOCOL_FEATURES, longs(&[protocol::MQ | protocol::INFLIGHT_SHMFD])),
        (message::GET_QUEUE_NUM, vec![]),
        (message::SET_OWNER, vec![]),
        (message::SET_FEATURES, longs(&[feature::VERSION_1 | feature::PROTOCOL])),
        (message::GET_INFLIGHT_FD, [longs(&[0, 0]), words(&[1 | 64 << 16, 0])].concat()),
        (message::SET_VRING_NUM, words(&[0, 64])),
        (message::SET_VRING_BASE, words(&[0, 0])),
    ];
    for last in 0..=steps.len() {
        let mut channel = knock(arena.socket());
        for (number, payload) in &steps[..last] {
            channel.send(*number, 0, payload, &[]).unwrap();
        }
    }
    // The rest of the way: an honest start, left by a closed socket at once.
    for _session in 0..10 {
        drop(arena.connect());
    }
    arena.finish();
}

#[test]
fn half_a_message_harms_nobody() {
    let arena = Arena::new("half-message");
    let whole = [words(&[message::SET_FEATURES, 1, 8]), longs(&[feature::VERSION_1])].concat();
    for len in 1..whole.len() {
        let mut channel = knock(arena.socket());
        channel.send_raw(&whole[..len]).unwrap();
        channel.shut_write().unwrap();
        assert_eq!(channel.read_to_end().unwrap(), 0, "{len} bytes: the session ends silently");
    }
    arena.finish();
}

#[test]
fn a_message_in_single_bytes_is_a_message() {
    let arena = Arena::new("slow-message");
    let mut channel = knock(arena.socket());
    for byte in words(&[message::GET_FEATURES, 1, 0]) {
        channel.send_raw(&[byte]).unwrap();
        std::thread::yield_now();
    }
    // Whether it is answered or the session ended, it does not hang.
    let _answer_or_end = channel.receive(message::GET_FEATURES);
    drop(channel);
    arena.finish();
}

#[test]
fn garbage_ends_the_session() {
    let arena = Arena::new("garbage");
    let mut random = Random::new(0x6a5b);
    for _session in 0..64 {
        let len = random.index(600) + 12;
        let bytes: Vec<u8> = (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
        let mut channel = knock(arena.socket());
        // The server may have closed the connection before everything was sent.
        let _closed = channel.send_raw(&bytes);
        let _closed = channel.shut_write();
        channel.read_to_end().unwrap();
    }
    arena.finish();
}

#[test]
fn unknown_and_untimely_messages_harm_nobody() {
    let arena = Arena::new("messages");
    for number in (0..64).chain([100, 255, 1 << 16, 1 << 31, u32::MAX]) {
        for payload in [vec![], longs(&[0]), vec![0xff; 40]] {
            for flags in [0, 8] {
                let mut channel = knock(arena.socket());
                let _closed = channel.send(number, flags, &payload, &[]);
                let _closed = channel.shut_write();
                channel.read_to_end().unwrap();
            }
        }
    }
    arena.finish();
}

#[test]
fn messages_with_nonsense_inside_a_running_session_harm_nobody() {
    let arena = Arena::new("running-messages");
    let mut random = Random::new(0xbeef);
    for number in (0..45).chain([255, u32::MAX]) {
        let mut client = arena.connect();
        client.submit(0, &Io::new(IoOp::Read, 0, 16384, 0)).unwrap();
        client.publish();
        let len = random.index(64);
        let payload: Vec<u8> = (0..len).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
        let _closed = client.channel().send(number, 8, &payload, &[]);
        let _closed = client.channel().shut_write();
        client.channel().read_to_end().unwrap();
    }
    arena.finish();
}

#[test]
fn a_message_that_lies_about_its_size_ends_the_session() {
    let arena = Arena::new("sizes");
    for size in [1, 7, 9, 4096, 0x1001, 1 << 20, 1 << 31, u32::MAX] {
        let mut channel = knock(arena.socket());
        let _closed = channel.send_raw(&words(&[message::SET_FEATURES, 1, size]));
        let _closed = channel.send_raw(&longs(&[0]));
        let _closed = channel.shut_write();
        channel.read_to_end().unwrap();
    }
    for flags in [0, 2, 3, 5, u32::MAX] {
        let mut channel = knock(arena.socket());
        let _closed = channel.send_raw(&words(&[message::GET_FEATURES, flags, 0]));
        let _closed = channel.shut_write();
        channel.read_to_end().unwrap();
    }
    arena.finish();
}

#[test]
fn descriptors_where_none_belong_harm_nobody() {
    let arena = Arena::new("descriptors");
    let null = std::fs::File::open("/dev/null").unwrap();
    let fds = [null.as_fd(); FDS_MAX];
    for _session in 0..40 {
        let mut channel = knock(arena.socket());
        for count in [1, FDS_MAX] {
            for number in [message::GET_FEATURES, message::SET_OWNER, message::SET_VRING_NUM] {
                let _closed = channel.send(number, 0, &[], &fds[..count]);
            }
        }
        let _closed = channel.shut_write();
        channel.read_to_end().unwrap();
    }
    arena.finish();
}

#[test]
fn hundreds_of_connections_harm_nobody() {
    let arena = Arena::new("connections");
    for _connection in 0..500 {
        drop(knock(arena.socket()));
    }
    for _wave in 0..3 {
        // What does not fit into the listener's queue is refused, which is an answer too.
        let open: Vec<_> = (0..200)
            .map_while(|_| std::os::unix::net::UnixStream::connect(arena.socket()).ok())
            .collect();
        arena.await_witness();
        drop(open);
    }
    arena.finish();
}

#[test]
fn a_second_vmm_on_the_same_disk_does_not_disturb_the_first() {
    let arena = Arena::new("second-vmm");
    let mut first = arena.connect();
    let mut options = Arena::options();
    options.patience = Duration::from_secs(1);
    let second = Client::connect(arena.socket(), options);
    let read = Io::new(IoOp::Read, 0, 4096, 0);
    assert_eq!(first.call(&read, &mut [0; 4096]).unwrap(), 0);
    assert!(second.is_err(), "two VMMs would write over each other");
    drop(first);
    arena.finish();
}

#[test]
fn sessions_start_and_stop_as_often_as_they_like() {
    let arena = Arena::new("restarts");
    let mut client = arena.connect();
    let mut data = [0; 4096];
    for round in 0_u8..50 {
        data.fill(round);
        assert_eq!(client.call(&Io::new(IoOp::Write, 8, 4096, 0), &mut data).unwrap(), 0);
        client.restart().unwrap();
        data.fill(0xff);
        assert_eq!(client.call(&Io::new(IoOp::Read, 8, 4096, 0), &mut data).unwrap(), 0);
        assert_eq!(data, [round; 4096]);
    }
    drop(client);
    arena.finish();
}
