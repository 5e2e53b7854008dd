//! Rings whose driver does not keep to the rules.

use std::time::Duration;

use evenkeel_bench::client::verify::Random;
use evenkeel_bench::client::{Io, IoOp, Options, Wake};

use crate::arena::{Arena, Fate, fate};

#[test]
fn an_available_index_that_jumps_stops_the_vring() {
    let arena = Arena::new("index-jump");
    for index in [65, 1000, 0x8000, u16::MAX] {
        let mut client = arena.connect();
        client.vring(0).set_available(index);
        client.vring(0).kick();
        let before = client.vring(0).used_index();
        assert_eq!(fate(&mut client, before), Fate::Stopped, "index {index}");
    }
    arena.finish();
}

#[test]
fn an_available_index_that_goes_back_stops_the_vring() {
    let arena = Arena::new("index-back");
    let mut client = arena.connect();
    for _request in 0..5 {
        assert_eq!(client.call(&Io::new(IoOp::Read, 0, 4096, 0), &mut [0; 4096]).unwrap(), 0);
    }
    client.vring(0).set_available(3);
    client.vring(0).kick();
    let before = client.vring(0).used_index();
    assert_eq!(fate(&mut client, before), Fate::Stopped);
    drop(client);
    arena.finish();
}

#[test]
fn the_same_head_twice_is_answered_at_most_as_often_as_it_was_sent() {
    let arena = Arena::new("same-head");
    let mut client = arena.connect();
    let before = client.vring(0).used_index();
    client.submit(0, &Io::new(IoOp::Read, 0, 16384, 0)).unwrap();
    for _copy in 0..20 {
        client.vring(0).push_available(0);
    }
    client.publish();
    let fate = fate(&mut client, before);
    assert!([Fate::Stopped, Fate::Status(0)].contains(&fate), "{fate:?}");
    arena.await_witness();
    assert!(client.vring(0).used_index().wrapping_sub(before) <= 21);
    drop(client);
    arena.finish();
}

#[test]
fn a_storm_of_kicks_leaves_the_others_their_turn() {
    let arena = Arena::new("kick-storm");
    let options = Options { vrings: 8, ..Arena::options() };
    let mut client = arena.connect_with(options);
    for _round in 0..20_000 {
        for vring in 0..8 {
            client.vring(vring).kick();
        }
    }
    let read = Io::new(IoOp::Read, 0, 4096, 0);
    assert_eq!(client.call(&read, &mut [0; 4096]).unwrap(), 0, "the vring works on");
    drop(client);
    arena.finish();
}

#[test]
fn rings_of_random_bytes_harm_nobody() {
    let arena = Arena::new("random-rings");
    let mut random = Random::new(0x5eed);
    for round in 0..60 {
        let mut options = Arena::options();
        options.indirect = round % 2 == 0;
        options.event_idx = round % 3 != 0;
        options.inflight = round % 5 != 0;
        let mut client = arena.connect_with(options);
        let layout = *client.vring(0).layout();
        for index in 0..64 {
            // Mostly plausible, so that not everything ends at the first check.
            let slot = u16::try_from(random.below(8)).unwrap();
            let vring = client.vring(0);
            let places = [vring.header_at(slot), vring.data_at(slot)];
            let address = evenkeel_bench::client::GUEST_BASE + places[random.index(2)] as u64;
            let wild = random.below(8) == 0;
            let descriptor = evenkeel_bench::client::vring::Descriptor {
                address: if wild { random.below(u64::MAX) } else { address },
                len: [1, 16, 512, 4096, u32::MAX][random.index(5)],
                flags: u16::try_from(random.below(8)).unwrap(),
                next: u16::try_from(random.below(if wild { 65536 } else { 64 })).unwrap(),
            };
            vring.set_descriptor(layout.descriptors, index, descriptor);
        }
        for slot in 0..8 {
            // Reads, flushes and nonsense; writes only to the hostile client's own sectors.
            let kind = [0, 1, 4, 8, 99][random.index(5)];
            let mut header = [0; 16];
            header[0..4].copy_from_slice(&u32::to_le_bytes(kind));
            header[8..16].copy_from_slice(&random.below(1024).to_le_bytes());
            let at = client.vring(0).header_at(slot);
            client.memory().write(at, &header);
        }
        for _head in 0..64 {
            let head = u16::try_from(random.below(66)).unwrap();
            client.vring(0).push_available(head);
            if random.below(4) == 0 {
                client.publish();
            }
        }
        client.publish();
        client.vring(0).kick();
        let woken = client.wait(Duration::from_secs(20)).unwrap();
        assert_ne!(woken, Wake::Gone, "round {round}");
    }
    arena.finish();
}

#[test]
fn a_client_that_vanishes_with_requests_in_flight_harms_nobody() {
    let arena = Arena::new("vanish");
    for round in 0..50 {
        let mut client = arena.connect();
        for request in 0..8 {
            let op = if request % 2 == 0 { IoOp::Write } else { IoOp::Read };
            client.submit(0, &Io::new(op, request * 32, 16384, 0)).unwrap();
        }
        client.publish();
        if round % 3 == 0 {
            assert_ne!(client.wait(Duration::from_secs(20)).unwrap(), Wake::Timeout);
        }
    }
    arena.finish();
}
