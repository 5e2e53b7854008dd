//! Starts that nobody announces: the host has to notice them by where they read.

use evenkeel_sched::{Kind, Nanos, Priority};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::demo::{Application, CpuModel, start};
use evenkeel_sim::world::{
    AgentModel, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, OsModel, Place,
    Program, Random, Reader, World,
};

const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;
const CPU: CpuModel = CpuModel::EMULATED;

/// Returns the mean start-up time beside `readers` in the guest, and others `beside` it, as a multiple
/// of that on the idle disk.
fn ratio(model: &str, has_agent: bool, readers: &[Order], beside: &[Order], seed: u64) -> f64 {
    let mut random = Random::new(seed);
    let device = model.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
    let host = HostModel::new(HostPath::Evenkeel, Kind::Bfq);
    let mut world = World::new(FaultyDevice::new(device), &host, random.bits());
    let mut guest = GuestModel::new(Kind::None, File { start: 0, sectors: 64 * GIB });
    guest.os = OsModel { wakeup: CPU.wakeup, ..OsModel::new(2, 160) };
    (guest.kick, guest.interrupt) = (CPU.kick, CPU.interrupt);
    guest.agent = has_agent.then_some(AgentModel::beside(Kind::None));
    let guest = world.add_guest(&guest);
    let application = Application::new(&CPU);
    let mut mean = |world: &mut World| {
        let starts: Vec<f64> = (0..3)
            .map(|_| start(world, guest, &application, Priority::default(), &mut random))
            .map(|took| took.map_or(60.0, |took| took.0 as f64 / 1e9))
            .collect();
        starts.iter().sum::<f64>() / 3.0
    };
    let idle = mean(&mut world);
    for (&order, index) in readers.iter().zip(0..) {
        let file = File { start: (8 + 8 * index) * GIB, sectors: 4 * GIB };
        let mut reader = Reader::new(file, order);
        reader.direct = true;
        reader.piece_sectors = if order == Order::Sequential { 256 } else { 8 };
        reader.think = CPU.of_read(reader.piece_sectors);
        world.start(guest, Program::Reader(reader));
    }
    for (&order, index) in beside.iter().zip(0..) {
        let file = File { start: (65 + 8 * index) * GIB, sectors: 4 * GIB };
        let mut reader = Reader::new(file, order);
        reader.direct = true;
        reader.piece_sectors = if order == Order::Sequential { 256 } else { 8 };
        world.start(Place::Host, Program::Reader(reader));
    }
    world.run_until(world.now() + Nanos::from_secs(26));
    mean(&mut world) / idle
}

/// As long as on the idle disk is 1. With nobody beside the guest, a fifth goes on the ways of the head
/// between readers and application.
#[test]
fn a_start_beside_readers_is_noticed() {
    let (seq, rand) = (Order::Sequential, Order::Random);
    for (readers, beside, most) in [
        (&[seq][..], &[][..], 1.2),
        (&[rand], &[], 1.4),
        (&[seq, seq], &[], 1.2),
        (&[rand, rand], &[], 1.4),
        (&[seq, rand], &[], 1.4),
        (&[seq, seq, rand, rand], &[], 1.3),
        (&[seq; 4], &[], 1.2),
        (&[rand; 5], &[], 1.4),
        (&[], &[rand; 5], 1.2),
        (&[], &[seq; 5], 1.2),
        (&[seq; 5], &[rand; 5], 1.3),
        (&[seq; 5], &[seq; 5], 1.4),
        (&[rand], &[rand; 5], 1.5),
        (&[rand; 5], &[rand; 5], 1.6),
        (&[rand; 5], &[seq; 5], 1.5),
        (&[seq, seq, rand, rand], &[rand], 1.4),
        (&[seq, seq, rand, rand], &[seq; 5], 1.7),
    ] {
        let ratios: Vec<f64> =
            (1..=12).map(|seed| ratio("hdd", false, readers, beside, seed)).collect();
        let mean = ratios.iter().sum::<f64>() / 12.0;
        println!("{readers:?} beside {beside:?}: {mean:.2}, {ratios:.2?}");
        assert!(mean < most, "{readers:?} beside {beside:?}: {ratios:.2?}");
    }
}

/// The readers were marked when they began, and are not any more.
#[test]
fn an_agent_that_takes_a_mark_back_starts_nothing() {
    let (seq, rand) = (Order::Sequential, Order::Random);
    for (readers, beside, most) in [
        (&[seq, seq][..], &[][..], 1.3),
        (&[rand; 5], &[], 1.3),
        (&[seq, seq, rand, rand], &[], 1.4),
        (&[seq; 5], &[rand; 5], 1.6),
        (&[rand], &[seq; 5], 1.6),
        (&[seq], &[rand; 5], 1.4),
    ] {
        let ratios: Vec<f64> =
            (1..=12).map(|seed| ratio("hdd", true, readers, beside, seed)).collect();
        let mean = ratios.iter().sum::<f64>() / 12.0;
        println!("{readers:?} beside {beside:?}, an agent: {mean:.2}, {ratios:.2?}");
        assert!(mean < most, "{readers:?} beside {beside:?}: {ratios:.2?}");
    }
}

/// No head has to move, but everybody waits for everybody all the same.
#[test]
fn a_start_beside_readers_on_a_card_is_noticed() {
    let (seq, rand) = (Order::Sequential, Order::Random);
    for model in ["sdhc", "emmc"] {
        for (readers, beside, most) in [
            (&[seq][..], &[][..], 1.2),
            (&[rand; 5], &[], 1.2),
            (&[seq; 5], &[rand; 5], 1.3),
            (&[seq; 5], &[seq; 5], 1.3),
            (&[rand; 5], &[rand; 5], 1.3),
            (&[rand; 5], &[seq; 5], 1.3),
            (&[seq, seq, rand, rand], &[seq; 5], 1.3),
        ] {
            let ratios: Vec<f64> =
                (1..=12).map(|seed| ratio(model, false, readers, beside, seed)).collect();
            let mean = ratios.iter().sum::<f64>() / 12.0;
            println!("{model}: {readers:?} beside {beside:?}: {mean:.2}, {ratios:.2?}");
            assert!(mean < most, "{model}: {readers:?} beside {beside:?}: {ratios:.2?}");
        }
    }
}
