//! What readers that begin cost those beside them: they are taken for programs that start, by the
//! guest's agent and by the host, and lead for as long as they are.

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::demo::CpuModel;
use evenkeel_sim::world::{
    AgentModel, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, OsModel, Place,
    Program, Random, Reader, World,
};

const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;
const CPU: CpuModel = CpuModel::EMULATED;
/// What D3.6 measures, section 8.
const SECONDS: u64 = 60;

/// Returns what the five readers of a guest, and five processes of the host beside them, read in
/// their first minute, in MB/s.
fn rates(coordinates: bool, readers: Order, beside: Order, seed: u64) -> [f64; 2] {
    let mut random = Random::new(seed);
    let device = "hdd".parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
    let mut host = HostModel::new(HostPath::Evenkeel, Kind::Bfq);
    host.streams = coordinates;
    let mut world = World::new(FaultyDevice::new(device), &host, random.bits());
    let mut guest = GuestModel::new(Kind::None, File { start: 0, sectors: 64 * GIB });
    guest.os = OsModel { wakeup: CPU.wakeup, ..OsModel::new(2, 160) };
    (guest.kick, guest.interrupt) = (CPU.kick, CPU.interrupt);
    guest.agent = coordinates.then_some(AgentModel::beside(Kind::None));
    let guest = world.add_guest(&guest);
    world.run_until(world.now() + Nanos::from_secs(5));
    for (place, order, start) in [(guest, readers, 3 * GIB), (Place::Host, beside, 65 * GIB)] {
        for index in 0..5 {
            let file = File { start: start + index * 640 * MIB, sectors: 640 * MIB };
            let mut reader = Reader::new(file, order);
            reader.direct = true;
            reader.piece_sectors = if order == Order::Sequential { 256 } else { 8 };
            reader.think = CPU.of_read(reader.piece_sectors);
            world.start(place, Program::Reader(reader));
        }
    }
    world.run_until(world.now() + Nanos::from_secs(SECONDS));
    let rate = |place| world.read_sectors(place) as f64 * 512.0 / 1e6 / SECONDS as f64;
    [rate(guest), rate(Place::Host)]
}

/// While the agent helped who only reads for ten seconds, too, readers at random places beside readers
/// in order had 1.29 of what they have without, and all together 0.965.
#[test]
fn readers_that_begin_cost_others_little() {
    const SEEDS: u64 = 8;
    let (seq, rand) = (Order::Sequential, Order::Random);
    for (readers, beside) in [(rand, seq), (rand, rand), (seq, seq), (seq, rand)] {
        let mean = |coordinates| {
            let all = (1..=SEEDS).map(|seed| rates(coordinates, readers, beside, seed));
            all.fold([0.0; 2], |sum, rates| [sum[0] + rates[0], sum[1] + rates[1]])
                .map(|sum| sum / SEEDS as f64)
        };
        let (off, all) = (mean(false), mean(true));
        let sums = (all[0] + all[1]) / (off[0] + off[1]);
        println!("{readers:?} beside {beside:?}: {off:.3?}, then {all:.3?} MB/s, {sums:.3}");
        assert!(sums > 0.98, "{readers:?} beside {beside:?}: all together");
        assert!(all[1] > 0.92 * off[1], "{readers:?} beside {beside:?}: those beside");
        if readers == rand {
            assert!(all[0] < 1.15 * off[0], "{beside:?}: at random, in order they seek less");
        }
    }
}
