//! The governor of what is at the device, on modelled devices in virtual time.

use super::closed::{Got, Load, World};
use evenkeel_sched::{Kind, Nanos, Op};

/// A device, how long the governor has to find its knee, and how long is measured.
type Device = (&'static str, Nanos, Nanos);

const SSD: Device = ("ssd", Nanos::from_secs(10), Nanos::from_secs(3));
const NVME: Device = ("nvme", Nanos::from_secs(10), Nanos::from_secs(1));
const HDD: Device = ("hdd", Nanos::from_secs(60), Nanos::from_secs(200));
const HDD_NCQ: Device = ("hdd:ncq=32", Nanos::from_secs(60), Nanos::from_secs(200));

const LARGE_READS: Load = Load::random(256, 64);

/// Returns how much of the best fixed depth's throughput a governed pool reaches.
fn throughput(device: Device, load: Load) -> f64 {
    let (name, warm, span) = device;
    let mut best = 0.0_f64;
    for depth in [1, 4, 16, 32, 256] {
        let mut world = World::with_depth(name, Kind::Bfq, &[load], depth);
        world.run_for(Nanos::from_secs(1));
        best = best.max(world.run_for(span)[0].bytes_per_s);
    }
    let mut world = World::new(name, Kind::Bfq, &[load]).governed();
    world.run_for(warm);
    let governed = world.run_for(span + span + span)[0].bytes_per_s / best;
    println!("{name}, {load:?}: {governed:.3} of the best, {:?}", world.decided());
    governed
}

/// Returns the longest of 99 % of the waits of somebody who waits for each answer, in those that
/// he has alone, and what is left of the throughput of large reads beside him.
fn beside(device: Device, governs: bool) -> (f64, f64) {
    let (name, warm, span) = device;
    let run = |loads: &[Load], governs: bool| -> Vec<Got> {
        let world = World::new(name, Kind::Bfq, loads);
        let mut world = if governs { world.governed() } else { world };
        world.run_for(warm);
        world.run_for(span)
    };
    let alone = run(&[Load::VICTIM], false)[0].p99();
    let full = run(&[LARGE_READS], false)[0].bytes_per_s;
    let both = run(&[Load::VICTIM, LARGE_READS], governs);
    let wait = both[0].p99().0 as f64 / alone.0 as f64;
    let rate = both[1].bytes_per_s / full;
    println!("{name}, governed {governs}: waits {wait:.1} times as long, beside {rate:.2}");
    (wait, rate)
}

#[test]
fn what_it_finds_is_within_three_per_cent_of_the_best_depth() {
    let writes = |load: Load| Load { op: Op::Write, ..load };
    let sequential = Load { is_sequential: true, ..LARGE_READS };
    let small = Load::random(8, 256);
    let all = [LARGE_READS, small, writes(small), writes(sequential), Load::random(32, 16)];
    for (device, loads) in [(SSD, &all[..]), (NVME, &all[..2]), (HDD, &all), (HDD_NCQ, &all)] {
        for &load in loads {
            assert!(throughput(device, load) >= 0.97, "{device:?}, {load:?}");
        }
    }
}

#[test]
fn on_an_ssd_whoever_waits_for_each_answer_hardly_notices_large_reads_nor_do_they() {
    let (wait, rate) = beside(SSD, true);
    assert!(wait <= 5.0 && rate >= 0.9, "{wait}, {rate}");
}

#[test]
fn on_nvme_waits_become_six_times_shorter_and_large_reads_gain() {
    let (before, without) = beside(NVME, false);
    let (wait, rate) = beside(NVME, true);
    assert!(wait <= 5.1 && wait * 6.0 <= before, "{wait}, {before} without");
    assert!(rate >= 0.9 && rate > without, "{rate}, {without} without");
}
