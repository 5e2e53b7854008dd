use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use evenkeel_engine::Status;

use super::*;
use crate::guest::{Dice, Guest, memfd};
use crate::vring::{BrokenRing, Pop, Setup, Vring};

type Watcher = Box<dyn FnMut()>;

thread_local! {
    /// Called between any two stores that are in an order.
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
}

/// Where a kill may strike.
pub(super) fn cut() {
    WATCHER.with_borrow_mut(|watcher| {
        if let Some(watcher) = watcher {
            watcher();
        }
    });
}

const SIZE: u16 = 16;
/// Descriptor table and rings.
const RING_BYTES: usize = 0x3000;

/// What outlives a kill, and what the guest knows by then.
struct Wreck {
    rings: Vec<u8>,
    page: Vec<u8>,
    log: Log,
}

/// Heads that the guest has offered, and those whose answers it has seen, oldest first.
#[derive(Clone, Default)]
struct Log {
    offered: Vec<u16>,
    used: Vec<u16>,
}

fn content(file: &File, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    file.read_exact_at(&mut content, 0).unwrap();
    content
}

fn region(content: &[u8]) -> (File, InflightRegion) {
    let (file, bytes) = InflightRegion::create(1, SIZE).unwrap();
    file.write_all_at(content, 0).unwrap();
    let region = InflightRegion::open(&file, 0, bytes, (1, SIZE)).unwrap();
    (file, region)
}

/// Collects a wreck at every cut while `act` runs.
fn wrecks<T>(
    (rings, page): (&File, &File),
    log: &Rc<RefCell<Log>>,
    act: impl FnOnce() -> T,
) -> (T, Vec<Wreck>) {
    let found = Rc::new(RefCell::new(Vec::new()));
    let (rings, page) = (rings.try_clone().unwrap(), page.try_clone().unwrap());
    let (sink, log) = (Rc::clone(&found), Rc::clone(log));
    let watcher: Watcher = Box::new(move || {
        sink.borrow_mut().push(Wreck {
            rings: content(&rings, RING_BYTES),
            page: content(&page, 16 + 16 * usize::from(SIZE)),
            log: log.borrow().clone(),
        });
    });
    WATCHER.set(Some(watcher));
    let result = act();
    WATCHER.set(None);
    (result, found.take())
}

fn pop_all(vring: &mut Vring) -> Vec<u16> {
    let mut heads = Vec::new();
    loop {
        match vring.pop(&mut Vec::new()) {
            Pop::Chain(chain) => heads.push(chain.head),
            Pop::Empty => return heads,
            Pop::Broken(broken) => panic!("{broken}"),
        }
    }
}

/// Lets a successor take over and checks that each request which the guest has no answer for is
/// served once, oldest first, and no other. Returns the wrecks of successors killed meanwhile.
fn take_over(wreck: &Wreck, start: u16) -> Vec<Wreck> {
    let mut guest = Guest::with_content(&wreck.rings, SIZE);
    let (page, inflight) = region(&wreck.page);
    let mut log = wreck.log.clone();
    guest.used_from(start.wrapping_add(u16::try_from(log.used.len()).unwrap()));
    log.used.extend(guest.used().iter().map(head_of));
    let times = |heads: &[u16], head| heads.iter().filter(|&&other| other == head).count();
    let mut open: Vec<u16> = Vec::new();
    for &head in log.offered.iter().rev() {
        if !open.contains(&head) && times(&log.offered, head) > times(&log.used, head) {
            open.insert(0, head);
        }
    }
    let file = guest.file.try_clone().unwrap();
    let log = Rc::new(RefCell::new(log));
    let (mut vring, again) = wrecks((&file, &page), &log, || guest.tracked_vring(&inflight));
    let heads = pop_all(&mut vring);
    assert_eq!(heads, open, "what is open is served once, in the order of its offers");
    for &head in &heads {
        vring.answer(head, Status::Ok, 0);
    }
    vring.publish();
    assert_eq!(guest.used().iter().map(head_of).collect::<Vec<_>>(), heads);
    let offers = u16::try_from(log.borrow().offered.len()).unwrap();
    assert_eq!(guest.used_idx(), start.wrapping_add(offers));
    again
}

fn head_of(&(head, _): &(u32, u32)) -> u16 {
    u16::try_from(head).unwrap()
}

/// Plays a random history of offers, pops, answers out of order and batches; returns its wrecks.
fn history(seed: u64, start: u16) -> Vec<Wreck> {
    let mut dice = Dice(seed);
    let mut guest = Guest::new(SIZE);
    guest.start_at(start);
    let (page, inflight) = region(&[]);
    let mut vring = guest.tracked_vring(&inflight);
    let mut free: Vec<u16> = (0..SIZE).step_by(2).collect();
    free.iter().for_each(|&head| guest.bare_chain(head));
    let log = Rc::new(RefCell::new(Log::default()));
    let file = guest.file.try_clone().unwrap();
    let (mut taken, mut found) = (Vec::new(), Vec::new());
    for _ in 0..60 {
        match dice.below(4) {
            0 | 1 if !free.is_empty() => {
                let head = dice.draw(&mut free);
                log.borrow_mut().offered.push(head);
                guest.offer(head);
            }
            2 => {
                let (heads, wrecks) = wrecks((&file, &page), &log, || pop_all(&mut vring));
                taken.extend(heads);
                found.extend(wrecks);
            }
            _ => {
                let batch = dice.below(u64::try_from(taken.len()).unwrap() + 1);
                let ((), wrecks) = wrecks((&file, &page), &log, || {
                    for _ in 0..batch {
                        vring.answer(dice.draw(&mut taken), Status::Ok, 0);
                    }
                    vring.publish();
                });
                found.extend(wrecks);
                let used: Vec<u16> = guest.used().iter().map(head_of).collect();
                log.borrow_mut().used.extend(&used);
                free.extend(used);
            }
        }
    }
    found
}

#[test]
fn a_kill_between_any_two_stores_loses_nothing_and_doubles_nothing() {
    for seed in 1..=6 {
        for start in [0, u16::MAX - 9] {
            println!("seed {seed}, start {start}");
            let wrecks = history(seed, start);
            assert!(wrecks.len() > 100, "the history has only {} cuts", wrecks.len());
            for wreck in &wrecks {
                for wreck in take_over(wreck, start) {
                    // The successor was killed while it took over.
                    take_over(&wreck, start);
                }
            }
        }
    }
}

#[test]
fn requests_are_resumed_in_the_order_in_which_they_were_taken() {
    let mut guest = Guest::new(SIZE);
    let (page, inflight) = region(&[]);
    let mut vring = guest.tracked_vring(&inflight);
    for head in [6, 2, 10, 4] {
        guest.bare_chain(head);
        guest.offer(head);
    }
    assert_eq!(pop_all(&mut vring), [6, 2, 10, 4]);
    vring.answer(2, Status::Ok, 0);
    vring.publish();
    // No drain: this is a kill.
    let (_, inflight) = region(&content(&page, 272));
    let mut vring = guest.tracked_vring(&inflight);
    assert!(vring.is_resuming());
    assert_eq!(vring.next_avail(), 4);
    assert_eq!(pop_all(&mut vring), [6, 10, 4]);
    assert!(!vring.is_resuming());
}

#[test]
fn a_successor_interrupts_for_answers_that_its_predecessor_may_not_have_announced() {
    let mut guest = Guest::new(SIZE);
    let (_, inflight) = region(&[]);
    drop(guest.tracked_vring(&inflight));
    assert_eq!(guest.interrupts(), 0, "a new vring has nothing to announce");
    guest.start_at(3);
    let mut silent = Setup { call: None, ..guest.setup() };
    silent.inflight = Some(inflight.clone());
    let mut vring = Vring::new(silent).unwrap();
    vring.set_call(Some(guest.call.try_clone().unwrap()));
    assert_eq!(guest.interrupts(), 1);
}

#[test]
fn a_page_follows_the_layout_of_the_specification() {
    let mut guest = Guest::new(SIZE);
    let (page, inflight) = region(&[]);
    let mut vring = guest.tracked_vring(&inflight);
    for head in [4, 2] {
        guest.bare_chain(head);
        guest.offer(head);
    }
    pop_all(&mut vring);
    let bytes = content(&page, 16 + 16 * usize::from(SIZE));
    assert_eq!(bytes[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 16, 0, 0, 0, 0, 0]);
    assert_eq!((bytes[16 + 4 * 16], bytes[16 + 2 * 16]), (1, 1));
    assert!(bytes[16 + 4 * 16 + 8] < bytes[16 + 2 * 16 + 8], "counters rise");
    vring.answer(4, Status::Ok, 0);
    vring.answer(2, Status::Ok, 0);
    vring.publish();
    let bytes = content(&page, 16 + 16 * usize::from(SIZE));
    assert_eq!(bytes[12..16], [2, 0, 2, 0], "last batch head and used index");
    assert_eq!(bytes[16 + 2 * 16 + 6], 4, "the batch is chained, newest first");
    assert_eq!((bytes[16 + 4 * 16], bytes[16 + 2 * 16]), (0, 0));
    // 2,064 bytes and alignment, as measured with QEMU.
    assert_eq!(InflightRegion::create(1, 128).unwrap().1, 2112);
}

#[test]
fn the_region_cannot_be_shrunk() {
    let (file, _) = InflightRegion::create(2, 256).unwrap();
    assert_eq!(rustix::fs::ftruncate(&file, 0), Err(rustix::io::Errno::PERM));
}

#[test]
fn hostile_regions_are_refused() {
    let file = memfd(8192);
    let open = |bytes, shape| InflightRegion::open(&file, 0, bytes, shape).err();
    assert_eq!(open(2111, (1, 128)), Some(InflightError::TooSmall { has: 2111, needs: 2112 }));
    let small = MemoryError::FileTooSmall { has: 8192, needs: 4 * 2112 };
    assert_eq!(open(u64::MAX, (4, 128)), Some(InflightError::Memory(small)));
    let region = InflightRegion::open(&file, 0, 8192, (1, 128)).unwrap();
    assert!(region.page(1).is_none());
    let guest = Guest::new(256);
    let vring = Vring::new(Setup { inflight: Some(region), ..guest.setup() });
    assert_eq!(vring.err(), Some(BrokenRing::NoInflightPage));
}

#[test]
fn a_page_of_another_layout_is_refused() {
    for (version, desc_num) in [(2_u16, SIZE), (1, SIZE + 1), (1, u16::MAX)] {
        let mut bytes = [0; 16];
        bytes[8..10].copy_from_slice(&version.to_le_bytes());
        bytes[10..12].copy_from_slice(&desc_num.to_le_bytes());
        let (_, inflight) = region(&bytes);
        let guest = Guest::new(SIZE);
        let vring = Vring::new(Setup { inflight: Some(inflight), ..guest.setup() });
        let foreign = InflightError::Foreign { version, desc_num, states: SIZE };
        assert_eq!(vring.err(), Some(BrokenRing::Inflight(foreign)));
    }
}

#[test]
fn random_pages_are_survived() {
    for seed in 1..=500 {
        let mut dice = Dice(seed);
        let mut bytes = dice.bytes(272);
        bytes[8..12].copy_from_slice(&[1, 0, 16, 0]);
        let (_, inflight) = region(&bytes);
        let mut guest = Guest::new(SIZE);
        guest.start_at(dice.index(u16::MAX, 2));
        let mut vring = guest.tracked_vring(&inflight);
        while let Pop::Chain(chain) = vring.pop(&mut Vec::new()) {
            vring.answer(chain.head, Status::Ok, 0);
        }
        vring.publish();
    }
}
