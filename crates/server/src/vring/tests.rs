use evenkeel_engine::Status;

use super::*;
use crate::guest::{AVAIL, DATA, GUEST_ADDR, Guest, INDIRECT, NEXT, TABLE, USER_ADDR, WRITE, bell};
use crate::guest::{BYTES, Dice};
use crate::inflight::InflightRegion;
use crate::memory::Place;

/// Pops one chain with its segments.
fn pop(vring: &mut Vring) -> (Pop, Vec<libc::iovec>) {
    let mut segments = Vec::new();
    let pop = vring.pop(&mut segments);
    (pop, segments)
}

fn pop_chain(vring: &mut Vring) -> (Chain, Vec<libc::iovec>) {
    match pop(vring) {
        (Pop::Chain(chain), segments) => (chain, segments),
        (other, _) => panic!("{other:?}"),
    }
}

#[test]
fn a_request_goes_in_and_its_answer_comes_back() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    assert_eq!(pop(&mut vring).0, Pop::Empty);
    let at = guest.chain(3, false);
    guest.offer(3);
    let (chain, segments) = pop_chain(&mut vring);
    assert_eq!((chain.head, chain.shape.header[8]), (3, 3));
    assert_eq!((chain.shape.readable_bytes, chain.shape.writable_bytes), (0, 512));
    assert_eq!((chain.shape.segments, segments[0].iov_len), (1, 512));
    assert_eq!((vring.outstanding(), vring.next_avail()), (1, 1));
    vring.answer(3, Status::Ok, 512);
    assert_eq!((guest.byte(at + 1023), guest.used()), (0, vec![]), "not before it is published");
    vring.publish();
    assert_eq!((guest.used(), guest.interrupts()), (vec![(3, 513)], 1));
    assert_eq!((vring.outstanding(), pop(&mut vring).0), (0, Pop::Empty));
}

#[test]
fn a_write_has_its_data_readable_and_a_status_of_its_own() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    let at = guest.chain(0, true);
    guest.offer(0);
    let (chain, segments) = pop_chain(&mut vring);
    assert_eq!((chain.shape.readable_bytes, chain.shape.writable_bytes), (512, 0));
    assert_eq!((chain.shape.segments, segments.len()), (1, 1));
    vring.answer(0, Status::Unsupported, 0);
    vring.publish();
    assert_eq!((guest.byte(at + 1023), guest.used()), (2, vec![(0, 1)]));
}

#[test]
fn header_and_status_may_be_cut_and_joined_as_the_driver_likes() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    guest.put(DATA, &(0..32).collect::<Vec<u8>>());
    // 5 + 0 + 13 bytes: the header and 2 bytes of data; then 3 bytes: data and status.
    guest.describe(TABLE, 0, (GUEST_ADDR + DATA, 5, NEXT, 1));
    guest.describe(TABLE, 1, (GUEST_ADDR + DATA, 0, NEXT, 2));
    guest.describe(TABLE, 2, (GUEST_ADDR + DATA + 5, 13, NEXT, 3));
    guest.describe(TABLE, 3, (GUEST_ADDR + DATA + 100, 3, WRITE, 0));
    guest.offer(0);
    let (chain, segments) = pop_chain(&mut vring);
    assert_eq!(chain.shape.header, *(0..16).collect::<Vec<u8>>());
    assert_eq!((chain.shape.readable_bytes, chain.shape.writable_bytes), (2, 2));
    assert_eq!(segments.iter().map(|segment| segment.iov_len).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(vring.read_payload(&segments)[..5], [16, 17, 0, 0, 0]);
    vring.answer(0, Status::IoError, 0);
    assert_eq!(guest.byte(DATA + 102), 1);
}

#[test]
fn an_indirect_table_is_a_chain_like_any_other() {
    let mut guest = Guest::new(4);
    let mut vring = guest.vring();
    // Unaligned on purpose: virtio demands nothing of indirect tables.
    let table = DATA + 0x1004;
    guest.describe(TABLE, 2, (GUEST_ADDR + table, 16 * 12, INDIRECT, 9));
    guest.describe(table, 0, (GUEST_ADDR + DATA, 16, NEXT, 1));
    for at in 1..11 {
        guest.describe(table, at, (GUEST_ADDR + DATA + 4096, 4096, NEXT | WRITE, at + 1));
    }
    guest.describe(table, 11, (GUEST_ADDR + DATA, 1, WRITE, 0));
    guest.offer(2);
    let (chain, segments) = pop_chain(&mut vring);
    assert_eq!((chain.head, chain.shape.segments, segments.len()), (2, 10, 10));
    assert_eq!(chain.shape.writable_bytes, 40960);
}

#[test]
fn a_segment_over_a_border_of_regions_becomes_two() {
    let guest = Guest::new(8);
    let (half, file) = (BYTES / 2, || guest.file.try_clone().unwrap());
    let low = Place { bytes: half, ..Guest::place() };
    let high = Place {
        guest_addr: GUEST_ADDR + half,
        bytes: half,
        user_addr: USER_ADDR + half,
        file_offset: half,
    };
    let memory = Arc::new(Memory::new([(low, file()), (high, file())]).unwrap());
    let mut vring = Vring::new(Setup { memory, ..guest.setup() }).unwrap();
    let mut guest = guest;
    guest.describe(TABLE, 0, (GUEST_ADDR + DATA, 16, NEXT, 1));
    guest.describe(TABLE, 1, (GUEST_ADDR + half - 100, 512, NEXT | WRITE, 2));
    guest.describe(TABLE, 2, (GUEST_ADDR + DATA, 1, WRITE, 0));
    guest.offer(0);
    let (chain, segments) = pop_chain(&mut vring);
    assert_eq!((chain.shape.segments, chain.shape.writable_bytes), (2, 512));
    assert_eq!((segments[0].iov_len, segments[1].iov_len), (100, 412));
}

#[test]
fn the_identity_fills_what_room_there_is() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    let at = guest.chain(0, false);
    guest.offer(0);
    let (_, mut segments) = pop_chain(&mut vring);
    assert_eq!(vring.write_id(&segments, b"12345678901234567890"), 20);
    assert_eq!((guest.byte(at + 16), guest.byte(at + 35), guest.byte(at + 36)), (b'1', b'0', 0));
    segments[0].iov_len = 3;
    assert_eq!(vring.write_id(&segments, &[7; 20]), 3);
    let mut own = [0_u8; 20];
    segments[0].iov_base = own.as_mut_ptr().cast();
    assert_eq!(vring.write_id(&segments, &[7; 20]), 0, "memory that is not the guest's");
    assert_eq!(own, [0; 20]);
}

/// Offers head 0 as it was described; returns what pop says, the answer, and the status byte at
/// the place where `Guest::chain` puts it.
fn verdict(guest: &mut Guest) -> (Pop, Vec<(u32, u32)>, u8) {
    let mut vring = guest.vring();
    guest.offer(0);
    let mut segments = Vec::new();
    let pop = vring.pop(&mut segments);
    assert!(segments.is_empty() || matches!(pop, Pop::Chain(_)), "segments without a chain");
    vring.publish();
    (pop, guest.used(), guest.byte(DATA + 1023))
}

/// A guest with a sound read request at head 0.
fn sound() -> Guest {
    let guest = Guest::new(16);
    guest.chain(0, false);
    guest
}

#[test]
fn requests_that_make_no_sense_get_an_error_status() {
    let data = GUEST_ADDR + DATA;
    let cases = [
        ("a header of 15 bytes", 0, (data, 15, NEXT, 1)),
        ("no header", 0, (data, 16, NEXT | WRITE, 1)),
        ("a header outside memory", 0, (0, 16, NEXT, 1)),
        ("data outside memory", 1, (GUEST_ADDR + BYTES, 512, NEXT | WRITE, 2)),
        ("data that leaves memory", 1, (GUEST_ADDR + BYTES - 8, 512, NEXT | WRITE, 2)),
        ("data that wraps around", 1, (u64::MAX - 8, 512, NEXT | WRITE, 2)),
        ("data of 4 GiB", 1, (data, u32::MAX, NEXT | WRITE, 2)),
    ];
    for (story, at, link) in cases {
        let mut guest = sound();
        guest.describe(TABLE, at, link);
        assert_eq!(verdict(&mut guest), (Pop::Empty, vec![(0, 1)], 1), "{story}");
    }
}

#[test]
fn something_readable_after_something_writable_is_an_error() {
    let mut guest = sound();
    guest.describe(TABLE, 2, (GUEST_ADDR + DATA + 1023, 1, WRITE | NEXT, 3));
    guest.describe(TABLE, 3, (GUEST_ADDR + DATA, 16, 0, 0));
    assert_eq!(verdict(&mut guest), (Pop::Empty, vec![(0, 1)], 1));
}

#[test]
fn a_chain_without_a_place_for_its_status_is_used_with_length_0() {
    let cases = [
        ("nothing writable", 1, (GUEST_ADDR + DATA, 512, 0, 0)),
        ("a status of no bytes", 1, (GUEST_ADDR + DATA, 0, WRITE, 0)),
        ("a status outside memory", 2, (7, 1, WRITE, 0)),
    ];
    for (story, at, link) in cases {
        let mut guest = sound();
        guest.describe(TABLE, at, link);
        assert_eq!(verdict(&mut guest), (Pop::Empty, vec![(0, 0)], 0xff), "{story}");
    }
}

#[test]
fn more_segments_than_the_kernel_takes_are_an_error() {
    let mut guest = Guest::new(4);
    let mut many = |segments: u16| {
        guest.describe(TABLE, 0, (GUEST_ADDR + DATA, 16 * u32::from(segments + 2), INDIRECT, 0));
        guest.describe(DATA, 0, (GUEST_ADDR + DATA, 16, NEXT, 1));
        for at in 1..=segments {
            guest.describe(DATA, at, (GUEST_ADDR, 1, NEXT | WRITE, at + 1));
        }
        guest.describe(DATA, segments + 1, (GUEST_ADDR + BYTES - 1, 1, WRITE, 0));
        let mut vring = Vring::new(Setup { base: guest.used_idx(), ..guest.setup() }).unwrap();
        guest.offer(0);
        let popped = pop(&mut vring).0;
        if let Pop::Chain(chain) = popped {
            vring.answer(chain.head, Status::Ok, 0);
        }
        vring.publish();
        popped
    };
    assert!(matches!(many(1022), Pop::Chain(Chain { shape: Shape { segments: 1022, .. }, .. })));
    assert_eq!(many(1023), Pop::Broken(BrokenRing::IndirectSize { bytes: 1025 * 16 }));
}

#[test]
fn links_that_lie_close_the_vring() {
    let data = GUEST_ADDR + DATA;
    let indirect = |bytes| BrokenRing::IndirectSize { bytes };
    let cases = [
        ("next outside", 0, (data, 16, NEXT, 16), BrokenRing::NextRange { next: 16 }),
        ("next far outside", 0, (data, 16, NEXT, 65535), BrokenRing::NextRange { next: 65535 }),
        ("a loop of one", 0, (data, 16, NEXT, 0), BrokenRing::Loop),
        ("a loop of three", 2, (data, 16, NEXT, 0), BrokenRing::Loop),
        ("indirect and next", 0, (data, 32, INDIRECT | NEXT, 1), BrokenRing::IndirectNext),
        ("an empty table", 0, (data, 0, INDIRECT, 0), indirect(0)),
        ("half a descriptor", 0, (data, 24, INDIRECT, 0), indirect(24)),
        ("a huge table", 0, (data, 1025 * 16, INDIRECT, 0), indirect(1025 * 16)),
        ("a table of 4 GiB", 0, (data, 0xffff_fff0, INDIRECT, 0), indirect(0xffff_fff0)),
        ("a table outside", 0, (8, 32, INDIRECT, 0), BrokenRing::IndirectUnmapped),
        (
            "a table half outside",
            0,
            (GUEST_ADDR + BYTES - 16, 32, INDIRECT, 0),
            BrokenRing::IndirectUnmapped,
        ),
    ];
    for (story, at, link, broken) in cases {
        let mut guest = sound();
        guest.describe(TABLE, at, link);
        assert_eq!(verdict(&mut guest), (Pop::Broken(broken), vec![], 0xff), "{story}");
    }
}

#[test]
fn tables_in_indirect_tables_are_checked_as_well() {
    let data = GUEST_ADDR + DATA;
    let cases = [
        ("nested", (data, 16, INDIRECT, 0), BrokenRing::IndirectNested),
        ("next outside", (data, 16, NEXT, 2), BrokenRing::NextRange { next: 2 }),
        ("a loop", (data, 16, NEXT, 0), BrokenRing::Loop),
    ];
    for (story, link, broken) in cases {
        let mut guest = sound();
        guest.describe(TABLE, 0, (data, 32, INDIRECT, 0));
        guest.describe(DATA, 0, link);
        assert_eq!(verdict(&mut guest).0, Pop::Broken(broken), "{story}");
    }
    let mut guest = sound();
    guest.describe(TABLE, 0, (data, 32, INDIRECT, 0));
    guest.offer(0);
    let mut vring = Vring::new(Setup { indirect: false, ..guest.setup() }).unwrap();
    assert_eq!(pop(&mut vring).0, Pop::Broken(BrokenRing::IndirectNotNegotiated));
}

#[test]
fn a_vring_that_lies_is_closed_and_says_so_once() {
    let mut guest = sound();
    let err = bell();
    let setup = Setup { err: Some(err.try_clone().unwrap()), ..guest.setup() };
    let mut vring = Vring::new(setup).unwrap();
    guest.offer(0);
    assert!(matches!(pop(&mut vring).0, Pop::Chain(_)));
    guest.set_avail_idx(18);
    let broken = BrokenRing::AvailIndex { ahead: 17 };
    assert_eq!(pop(&mut vring).0, Pop::Broken(broken));
    guest.set_avail_idx(1);
    assert_eq!(pop(&mut vring).0, Pop::Broken(broken), "closed until it is set up anew");
    assert_eq!((vring.broken, vring.enable_kicks()), (Some(broken), false));
    let mut count = [0; 8];
    rustix::io::read(&err, &mut count).unwrap();
    assert_eq!(u64::from_ne_bytes(count), 1);
    // What was taken before is answered all the same.
    vring.answer(0, Status::Ok, 512);
    vring.publish();
    assert_eq!(guest.used(), [(0, 513)]);
}

#[test]
fn a_head_must_be_in_the_table_and_not_here_already() {
    let mut guest = sound();
    let mut vring = guest.vring();
    guest.offer(0);
    guest.offer(0);
    assert!(matches!(pop(&mut vring).0, Pop::Chain(_)));
    assert_eq!(pop(&mut vring).0, Pop::Broken(BrokenRing::HeadInFlight { head: 0 }));
    let mut guest = sound();
    let mut vring = guest.vring();
    guest.offer(16);
    assert_eq!(pop(&mut vring).0, Pop::Broken(BrokenRing::HeadRange));
}

#[test]
fn a_guest_that_offers_refused_chains_for_ever_is_stopped_by_its_own_vring() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    for _ in 0..16 {
        guest.offer(0);
    }
    guest.describe(TABLE, 0, (0, 0, 0, 0));
    assert_eq!(pop(&mut vring).0, Pop::Broken(BrokenRing::HeadInFlight { head: 0 }));
    assert_eq!(vring.counts().unanswerable, 1);
}

#[test]
fn a_set_up_that_is_wrong_is_refused() {
    let refusal = |change: fn(&mut Setup)| {
        let guest = Guest::new(16);
        let mut setup = guest.setup();
        change(&mut setup);
        Vring::new(setup).err()
    };
    assert_eq!(refusal(|_| ()), None);
    assert_eq!(refusal(|setup| setup.size = 0), Some(BrokenRing::Size(0)));
    assert_eq!(refusal(|setup| setup.size = 3), Some(BrokenRing::Size(3)));
    assert_eq!(refusal(|setup| setup.size = 65535), Some(BrokenRing::Size(65535)));
    assert_eq!(refusal(|setup| setup.size = 32768), None);
    assert_eq!(refusal(|setup| setup.addresses.table += 8), Some(BrokenRing::Misaligned));
    assert_eq!(refusal(|setup| setup.addresses.avail += 1), Some(BrokenRing::Misaligned));
    assert_eq!(refusal(|setup| setup.addresses.used += 2), Some(BrokenRing::Misaligned));
    assert_eq!(refusal(|setup| setup.addresses.table = 0), Some(BrokenRing::Unmapped));
    assert_eq!(refusal(|setup| setup.addresses.avail = u64::MAX), Some(BrokenRing::Unmapped));
    let end = |setup: &mut Setup| setup.addresses.used = USER_ADDR + BYTES - 8;
    assert_eq!(refusal(end), Some(BrokenRing::Unmapped));
    assert_eq!(refusal(|setup| setup.memory = Arc::default()), Some(BrokenRing::Unmapped));
}

#[test]
fn indices_wrap_around() {
    let mut guest = Guest::new(16);
    guest.start_at(u16::MAX - 2);
    let mut vring = Vring::new(Setup { base: u16::MAX - 2, ..guest.setup() }).unwrap();
    guest.interrupts();
    guest.chain(0, false);
    for round in 0..10 {
        guest.set_used_event(guest.used_idx());
        assert!(!vring.enable_kicks(), "round {round}");
        guest.offer(0);
        assert!(vring.enable_kicks(), "round {round}");
        pop_chain(&mut vring);
        vring.answer(0, Status::Ok, 0);
        vring.publish();
        assert_eq!((guest.used(), guest.interrupts()), (vec![(0, 1)], 1), "round {round}");
    }
}

#[test]
fn one_interrupt_is_enough_for_many_answers_and_none_for_unwanted_ones() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    let mut serve = |guest: &mut Guest, heads: &[u16]| {
        for &head in heads {
            guest.chain(head, false);
            guest.offer(head);
        }
        for &head in heads {
            pop_chain(&mut vring);
            vring.answer(head, Status::Ok, 0);
        }
        vring.publish();
        assert_eq!(guest.used().len(), heads.len());
        guest.interrupts()
    };
    assert_eq!(serve(&mut guest, &[0, 3, 6]), 1, "the wish was index 0");
    assert_eq!(serve(&mut guest, &[0]), 0, "the wish is passed");
    guest.set_used_event(5);
    assert_eq!(serve(&mut guest, &[0]), 0, "index 4 is not yet the wish");
    assert_eq!(serve(&mut guest, &[0]), 1, "index 5 is the wish");
}

#[test]
fn without_event_idx_flags_say_who_wants_to_be_woken() {
    let mut guest = Guest::new(16);
    guest.event_idx = false;
    let mut vring = guest.vring();
    guest.chain(0, false);
    vring.disable_kicks();
    assert_eq!(guest.u16(crate::guest::USED), 1);
    guest.offer(0);
    assert!(vring.enable_kicks());
    assert_eq!(guest.u16(crate::guest::USED), 0);
    pop_chain(&mut vring);
    guest.put(AVAIL, &[1, 0]);
    vring.answer(0, Status::Ok, 0);
    vring.publish();
    assert_eq!(guest.interrupts(), 0, "NO_INTERRUPT");
}

#[test]
fn the_guest_is_asked_to_kick_with_the_next_chain() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    guest.chain(0, false);
    guest.offer(0);
    pop_chain(&mut vring);
    assert!(!vring.enable_kicks());
    assert_eq!(guest.avail_event(), 1);
}

#[test]
fn an_interrupt_that_nobody_could_take_is_sent_when_the_call_descriptor_comes() {
    let mut guest = sound();
    let mut vring = Vring::new(Setup { call: None, ..guest.setup() }).unwrap();
    guest.offer(0);
    pop_chain(&mut vring);
    vring.answer(0, Status::Ok, 0);
    vring.publish();
    vring.set_call(Some(guest.call.try_clone().unwrap()));
    assert_eq!(guest.interrupts(), 1);
    vring.set_call(Some(guest.call.try_clone().unwrap()));
    assert_eq!(guest.interrupts(), 0);
}

#[test]
fn a_chain_keeps_the_memory_that_it_was_popped_from() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    let at = guest.chain(0, false);
    guest.offer(0);
    let (_, segments) = pop_chain(&mut vring);
    let first = Arc::downgrade(&vring.generations[0].memory);
    for _ in 0..3 {
        vring.set_memory(&guest.memory());
    }
    guest.chain(3, false);
    guest.offer(3);
    pop_chain(&mut vring);
    assert!(first.upgrade().is_some(), "a request points into it");
    assert_eq!(vring.write_id(&segments, &[9; 20]), 20);
    assert_eq!(guest.byte(at + 16), 9);
    vring.answer(3, Status::Ok, 0);
    vring.answer(0, Status::Unsupported, 0);
    assert_eq!(guest.byte(at + 1023), 2);
    assert!(first.upgrade().is_none() && vring.generations.len() == 1);
    vring.publish();
    assert_eq!(guest.used(), [(3, 1), (0, 1)]);
}

#[test]
fn a_vring_that_is_out_of_memory_for_a_while_waits() {
    let mut guest = sound();
    let mut vring = guest.vring();
    guest.offer(0);
    vring.set_memory(&Arc::default());
    assert_eq!((pop(&mut vring).0, vring.enable_kicks()), (Pop::Empty, false));
    vring.set_memory(&guest.memory());
    assert!(matches!(pop(&mut vring).0, Pop::Chain(_)));
}

#[test]
fn a_vmm_that_takes_its_memory_away_closes_its_vring() {
    let mut guest = sound();
    let mut vring = guest.vring();
    guest.offer(0);
    rustix::fs::ftruncate(&guest.file, 0).unwrap();
    // The rings read as zeroes now: no chain. The poison is seen at the latest with the next pop.
    vring.pop(&mut Vec::new());
    assert_eq!(pop(&mut vring).0, Pop::Broken(BrokenRing::MemoryGone));
    vring.publish();
}

/// Fills the whole of the vring and its neighbourhood with noise, of which a part is plausible,
/// and pops until nothing comes: no panic, and no segment outside the guest.
fn survive(seed: u64) {
    let mut dice = Dice(seed);
    let mut guest = Guest::new(1 << dice.below(9));
    let (file, bytes) = InflightRegion::create(1, 256).unwrap();
    let inflight = InflightRegion::open(&file, 0, bytes, (1, 256)).unwrap();
    let addresses = [GUEST_ADDR, GUEST_ADDR + DATA, GUEST_ADDR + BYTES - 40, 0, u64::MAX - 100];
    for at in 0..256 {
        for table in [TABLE, DATA] {
            let addr = dice.pick(&addresses) + dice.below(64);
            let len = dice.pick(&[0, 1, 16, 64, 512, u32::MAX]);
            let flags = dice.index(8, u64::MAX) & dice.pick(&[7, 3, 3, 3]);
            let next = dice.index(guest.size, 40);
            guest.describe(table, at, (addr, len, flags, next));
        }
    }
    let mut vring = guest.tracked_vring(&inflight);
    let whole = vring.memory().translate(GUEST_ADDR, 1).unwrap().ptr.addr();
    for _ in 0..dice.below(20) {
        let head = dice.index(guest.size, 20);
        guest.offer(head);
        let mut segments = Vec::new();
        let popped = vring.pop(&mut segments);
        for segment in &segments {
            let start = segment.iov_base.addr();
            let end = usize::try_from(BYTES).unwrap() + whole;
            assert!(start >= whole && start + segment.iov_len <= end && segment.iov_len > 0);
        }
        if let Pop::Chain(chain) = popped {
            let bytes: usize = segments.iter().map(|segment| segment.iov_len).sum();
            let shape = chain.shape;
            assert_eq!(u64::try_from(bytes).unwrap(), shape.readable_bytes + shape.writable_bytes);
            assert_eq!(segments.len(), usize::from(shape.segments));
            vring.answer(chain.head, Status::Ok, 1);
        }
        vring.publish();
    }
    assert_eq!(vring.outstanding(), 0);
}

#[test]
fn noise_in_table_and_rings_is_survived() {
    for seed in 1..=2_000 {
        println!("seed {seed}");
        survive(seed);
    }
}

#[test]
fn pure_noise_is_survived() {
    for seed in 1..=300 {
        println!("seed {seed}");
        let mut dice = Dice(seed);
        let noise = dice.bytes(0x4000);
        let guest = Guest::with_content(&noise, 256);
        let mut vring = guest.vring();
        guest.set_avail_idx(dice.index(300, u64::MAX));
        let mut segments = Vec::new();
        while let Pop::Chain(chain) = vring.pop(&mut segments) {
            vring.answer(chain.head, Status::Ok, 0);
        }
        vring.publish();
    }
}

#[test]
fn nothing_is_allocated_for_segments_once_warm() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    let mut segments = Vec::with_capacity(4);
    let before = (segments.as_ptr(), vring.batch.capacity(), vring.generations.capacity());
    for _ in 0..100 {
        guest.chain(0, false);
        guest.offer(0);
        segments.clear();
        assert!(matches!(vring.pop(&mut segments), Pop::Chain(_)));
        vring.answer(0, Status::Ok, 0);
        vring.publish();
    }
    let after = (segments.as_ptr(), vring.batch.capacity(), vring.generations.capacity());
    assert_eq!(before, after);
}

#[test]
fn a_guest_with_endless_chains_is_left_in_between() {
    let mut guest = Guest::new(256);
    let mut vring = guest.vring();
    // 128 heads share one tail of 127 data descriptors and a status.
    for tail in 128..256 {
        let next = if tail == 255 { (WRITE, 0) } else { (WRITE | NEXT, tail + 1) };
        guest.describe(TABLE, tail, (GUEST_ADDR + DATA, 4, next.0, next.1));
    }
    for head in 0..128 {
        guest.describe(TABLE, head, (GUEST_ADDR + DATA, 16, NEXT, 128));
        guest.offer(head);
    }
    let (mut rounds, mut popped) = (0, 0);
    loop {
        let mut segments = Vec::new();
        while let Pop::Chain(_) = vring.pop(&mut segments) {
            popped += 1;
            segments.clear();
        }
        rounds += 1;
        if !vring.enable_kicks() {
            break;
        }
    }
    assert_eq!((popped, rounds), (128, 4));
}

#[test]
fn a_guest_that_is_looked_at_is_not_asked_to_kick_until_the_worker_sleeps() {
    let mut guest = Guest::new(16);
    let mut vring = guest.vring();
    assert!(!vring.enable_kicks() && !vring.has_offers());
    assert_eq!(guest.avail_event(), 0, "the first chain is to kick");
    vring.mute_kicks();
    // A guest kicks when the event index is among those that it has passed: 0 is not.
    let asks = |event: u16, old: u16, new: u16| {
        new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
    };
    assert!(!asks(guest.avail_event(), 0, 1));
    guest.chain(0, false);
    guest.offer(0);
    assert!(vring.has_offers());
    pop_chain(&mut vring);
    assert!(!vring.has_offers() && !asks(guest.avail_event(), 1, 16));
    assert!(!vring.enable_kicks());
    assert!(asks(guest.avail_event(), 1, 2));
}
