use super::*;
use crate::guest::memfd;

const PAGE: u64 = 4096;

fn place(guest_addr: u64, pages: u64) -> Place {
    Place { guest_addr, bytes: pages * PAGE, user_addr: guest_addr + (1 << 40), file_offset: 0 }
}

/// Two regions that touch, and one apart.
fn memory() -> Memory {
    let places = [place(8 * PAGE, 4), place(0, 4), place(4 * PAGE, 2)];
    Memory::new(places.map(|place| (place, memfd(4 * PAGE)))).unwrap()
}

#[test]
fn a_range_over_a_border_comes_in_pieces() {
    let memory = memory();
    let first = memory.translate(4 * PAGE - 8, 100).unwrap();
    assert_eq!(first.len, 8);
    assert_eq!(memory.translate(4 * PAGE, 92).unwrap().len, 92);
    assert_eq!(memory.translate(6 * PAGE - 1, 100).unwrap().len, 1);
}

#[test]
fn what_is_not_guest_memory_is_not_translated() {
    let memory = memory();
    assert_eq!(memory.translate(6 * PAGE, 1), None);
    assert_eq!(memory.translate(8 * PAGE - 1, 1), None);
    assert_eq!(memory.translate(12 * PAGE, 1), None);
    assert_eq!(memory.translate(u64::MAX, u32::MAX), None);
    assert_eq!(memory.translate(0, 0), None);
    assert_eq!(Memory::default().translate(0, 1), None);
}

#[test]
fn a_window_lies_in_one_region() {
    let memory = memory();
    let user = 1 << 40;
    assert_eq!(memory.window(user + PAGE, 64).unwrap().len(), 64);
    assert!(memory.window(user + 4 * PAGE - 8, 16).is_none());
    assert!(memory.window(user - 1, 2).is_none());
    assert!(memory.window(u64::MAX, usize::MAX).is_none());
    assert!(memory.window(user, usize::MAX).is_none());
}

fn refusal(place: Place) -> Option<MemoryError> {
    memory().with(place, &memfd(4 * PAGE)).err()
}

#[test]
fn hostile_regions_are_refused_by_name() {
    let free = place(1 << 30, 4);
    let guest_addr = free.guest_addr;
    assert_eq!(refusal(free), None);
    assert_eq!(refusal(Place { bytes: 0, ..free }), Some(MemoryError::Empty { guest_addr }));
    let bytes = u64::MAX - 5;
    assert_eq!(refusal(Place { bytes, ..free }), Some(MemoryError::Wraps { guest_addr, bytes }));
    let wraps = Some(MemoryError::Wraps { guest_addr, bytes: free.bytes });
    assert_eq!(refusal(Place { user_addr: u64::MAX - 1, ..free }), wraps);
    assert_eq!(refusal(Place { file_offset: u64::MAX - 1, ..free }), wraps);
    let bytes = GUEST_BYTES_MAX;
    assert_eq!(refusal(Place { bytes, ..free }), Some(MemoryError::TooLarge { guest_addr, bytes }));
    let overlap = MemoryError::Overlap { guest_addr: 3 * PAGE, other_addr: 0 };
    assert_eq!(refusal(place(3 * PAGE, 1)), Some(overlap));
    let misaligned = Place { file_offset: 512, bytes: PAGE, ..free };
    assert_eq!(refusal(misaligned), Some(MemoryError::Misaligned { file_offset: 512 }));
    let small = MemoryError::FileTooSmall { has: 4 * PAGE, needs: 5 * PAGE };
    assert_eq!(refusal(Place { file_offset: PAGE, ..free }), Some(small));
    let null = File::open("/dev/null").unwrap();
    assert_eq!(memory().with(free, &null).err(), Some(MemoryError::NotAFile));
}

#[test]
fn a_guest_has_at_most_509_regions() {
    let file = memfd(PAGE);
    let table = (0..510).map(|at| (place(2 * at * PAGE, 1), file.try_clone().unwrap()));
    assert_eq!(Memory::new(table).err(), Some(MemoryError::TooManyRegions));
}

#[test]
fn a_region_leaves_under_its_own_name_only() {
    let memory = memory();
    let gone = memory.without(place(0, 4)).unwrap();
    assert_eq!(gone.translate(0, 1), None);
    assert!(gone.translate(4 * PAGE, 1).is_some());
    let error = MemoryError::NoSuchRegion { guest_addr: 0 };
    assert_eq!(memory.without(place(0, 3)).err(), Some(error));
    assert_eq!(gone.without(place(0, 4)).err(), Some(error));
}

#[test]
fn a_new_memory_maps_shared_regions_at_the_same_place() {
    let old = memory();
    let new = old.with(place(1 << 30, 4), &memfd(4 * PAGE)).unwrap();
    assert_eq!(old.translate(0, 1).unwrap().ptr, new.translate(0, 1).unwrap().ptr);
}

#[test]
fn a_file_that_shrinks_poisons_its_memory_and_no_other() {
    let file = memfd(8 * PAGE);
    let victim = Memory::new([(place(0, 8), file.try_clone().unwrap())]).unwrap();
    let bystander = memory();
    let window = victim.window(1 << 40, 8 * 4096).unwrap();
    window.store_u64(0, 7);
    window.store_u64(4096, 7);
    rustix::fs::ftruncate(&file, PAGE).unwrap();
    assert_eq!(window.load_u64(0), 7);
    assert!(!victim.is_poisoned());
    assert_eq!(window.load_u64(4096), 0, "a hole reads as zeroes");
    window.store_u64(7 * 4096, 5);
    assert_eq!(window.load_u64(7 * 4096), 5);
    assert!(victim.is_poisoned());
    assert!(!bystander.is_poisoned());
    drop((victim, window));
    assert!(!memory().is_poisoned(), "a line of the table that is used again is clean");
}

#[test]
#[should_panic(expected = "a field outside its window")]
fn a_field_outside_its_window_is_a_bug() {
    Window::map(&memfd(PAGE), 0, 100).unwrap().load_u64(96);
}
