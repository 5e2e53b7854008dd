//! Requests as large as a guest can make them, beside those of a neighbour, in virtual time.

use super::closed::{Got, Load, World};
use evenkeel_sched::{Kind, Nanos};

/// The largest read that a chain can describe, about 4 GiB, over and over.
const HUGE: Load = Load::random(8_388_600, 1);

/// Returns what a neighbour gets in ten seconds, without and with somebody who reads gigabytes at
/// a time; after a second in which pieces find their length.
fn neighbour(device: &str, kind: Kind) -> [Got; 2] {
    let loads = [Load::VICTIM, HUGE];
    [1, 2].map(|clients| {
        let mut world = World::new(device, kind, &loads[..clients]);
        world.run_for(Nanos::from_secs(1));
        world.run_for(Nanos::from_secs(10)).swap_remove(0)
    })
}

#[test]
fn a_neighbour_waits_for_one_piece_and_not_for_the_whole() {
    // How long a piece holds the device: a mebibyte at its rate, or 30 ms.
    let devices = [("sdhc", 32_000), ("emmc", 18_000), ("ssd", 2_400), ("nvme", 600)];
    for (device, piece_us) in devices {
        for kind in [Kind::None, Kind::Noop] {
            let [alone, beside] = neighbour(device, kind).map(|got| got.longest());
            let bound = alone + Nanos::from_micros(piece_us);
            assert!(beside <= bound, "{kind} on {device}: {beside:?} beside, {alone:?} alone");
        }
    }
}

#[test]
fn no_elevator_lets_a_neighbour_wait_for_the_whole() {
    for kind in Kind::ALL {
        // The whole takes nine seconds.
        let [_, beside] = neighbour("ssd", kind);
        assert!(beside.longest() <= Nanos::from_millis(130), "{kind}: {:?}", beside.longest());
        assert!(beside.bytes_per_s > 30_000.0, "{kind}: {} bytes/s", beside.bytes_per_s);
    }
}
