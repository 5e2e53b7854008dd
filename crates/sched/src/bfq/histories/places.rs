//! Writes leave places at the device.

use super::*;

/// Floods a device of eight places with write-back, while somebody else reads or nobody does;
/// returns how many writes it holds.
fn writes_at_device(reader: bool, low_latency: bool) -> usize {
    let tunables = BfqTunables { low_latency, slice_idle: Nanos::ZERO, ..BfqTunables::default() };
    let mut world = World::new(Setup { tunables, rotational: false, depth: 8 });
    world.now += Nanos::from_secs(10);
    for at in 0..16 {
        world.insert(1, at * 1000, 8);
    }
    world.step(Step::Dispatch, &mut |_, _, _| ());
    while !world.at_device.is_empty() {
        world.complete(0);
    }
    if reader {
        world.insert(0, 1 << 30, 8);
    }
    world.step(Step::Dispatch, &mut |_, _, _| ());
    world.bfq.check_invariants();
    let is_write = |tag: &&Tag| world.bfq.table.get(**tag).flavour.is_write();
    world.at_device.iter().filter(is_write).count()
}

#[test]
fn write_back_leaves_places_while_others_wait() {
    assert_eq!(writes_at_device(false, false), 8, "alone it may have all");
    assert_eq!(writes_at_device(true, false), 4, "half of them");
    assert_eq!(writes_at_device(true, true), 4, "whoever they are");
}
