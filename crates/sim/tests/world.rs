//! The world: what its mechanisms do together.

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::world::{
    App, Database, FaultPlan, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, Place,
    Player, Program, Reader, Startup, World, Writer,
};

const MIB: u64 = 2048;
const IMAGE: File = File { start: 256 * MIB, sectors: 4096 * MIB };
const SYSTEM: File = File { start: 0, sectors: 1024 * MIB };

fn device(name: &str) -> FaultyDevice {
    FaultyDevice::new(name.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model"))
}

fn file(index: u64) -> File {
    File { start: (1024 + index * 512) * MIB, sectors: 512 * MIB }
}

/// A world with one guest, where both sides have the elevator `kind`.
fn world(model: &str, path: HostPath, kind: Kind, seed: u64) -> (World, Place) {
    let mut world = World::new(device(model), &HostModel::new(path, kind), seed);
    let guest = world.add_guest(&GuestModel::new(kind, IMAGE));
    (world, guest)
}

fn seconds(s: u64) -> Nanos {
    Nanos::ORIGIN + Nanos::from_secs(s)
}

fn reader(index: u64, order: Order) -> Program {
    Program::Reader(Reader::new(file(index), order))
}

/// Megabytes per second that the guest's processes read within 20 s.
fn throughput(world: &mut World, guest: Place) -> u64 {
    let (before, from) = (world.read_sectors(guest), world.now());
    world.run_until(from + Nanos::from_secs(20));
    (world.read_sectors(guest) - before) * 512 / 20_000_000
}

#[test]
fn a_sequential_reader_gets_what_the_device_has() {
    for path in [HostPath::MergedThreads, HostPath::Evenkeel] {
        for (model, least) in [("hdd", 9), ("sdhc", 15), ("emmc", 60)] {
            let (mut world, guest) = world(model, path, Kind::Bfq, 1);
            world.start(guest, reader(0, Order::Sequential));
            let rate = throughput(&mut world, guest);
            assert!(rate >= least, "{model} through {path:?}: {rate} MB/s");
            world.check_invariants();
        }
    }
}

#[test]
fn reading_again_what_is_in_memory_needs_no_device_until_caches_are_dropped() {
    let (mut world, guest) = world("hdd", HostPath::Evenkeel, Kind::Noop, 1);
    let start = |world: &mut World| {
        let before = world.completed();
        let process = world.start(guest, Program::Startup(Startup::new(App::Bash, SYSTEM)));
        assert!(world.run_process(process, world.now() + Nanos::from_secs(60)));
        let life = world.life(process);
        (world.completed() - before, life.ended.expect("it has ended") - life.started)
    };
    let (cold, cold_time) = start(&mut world);
    let (warm, warm_time) = start(&mut world);
    world.drop_caches();
    let (dropped, _) = start(&mut world);
    assert!(cold > 10 && cold == dropped && warm == 0, "{cold}, {warm}, {dropped}");
    assert!(warm_time.0 * 3 < cold_time.0, "{warm_time:?}, {cold_time:?}");
}

#[test]
fn applications_start_in_the_order_of_their_sizes() {
    let times = App::ALL.map(|app| {
        let (mut world, guest) = world("hdd", HostPath::Threads, Kind::Bfq, 1);
        let process = world.start(guest, Program::Startup(Startup::new(app, SYSTEM)));
        assert!(world.run_process(process, seconds(60)));
        world.life(process).ended.expect("it has ended") - Nanos::ORIGIN
    });
    assert!(times[0].0 * 3 < times[1].0 && times[1].0 * 3 < times[2].0, "{times:?}");
    // A little less than 2 s on this disk (D3.6, section 8.3).
    assert!((1_700..2_000).contains(&times[1].as_millis()), "{times:?}");
}

#[test]
fn writers_are_throttled_to_the_speed_of_the_device_once_memory_is_full() {
    let (mut world, guest) = world("emmc", HostPath::Evenkeel, Kind::Bfq, 1);
    let writer = world.start(guest, Program::Writer(Writer::new(file(0), false)));
    world.run_until(seconds(1));
    let early = world.life(writer).written_sectors;
    world.run_until(seconds(41));
    let before = world.life(writer).written_sectors;
    world.run_until(seconds(61));
    let rate = (world.life(writer).written_sectors - before) * 512 / 20_000_000;
    assert!(early * 512 > 40_000_000, "memory takes {early} sectors in the first second");
    assert!((15..=20).contains(&rate), "{rate} MB/s");
    world.check_invariants();
}

#[test]
fn a_player_is_on_time_alone_and_late_beside_readers_that_noop_does_not_hold_back() {
    let late = |kind, readers| {
        let (mut world, guest) = world("hdd", HostPath::Evenkeel, kind, 1);
        for index in 0..readers {
            world.start(guest, reader(index, Order::Sequential));
        }
        world.run_until(seconds(5));
        let film = File { start: 512 * MIB, sectors: 512 * MIB };
        let player = world.start(guest, Program::Player(Player::film(film)));
        world.run_until(seconds(35));
        let Program::Player(player) = world.program(player) else { unreachable!("a player") };
        let (frames, late) = player.frames();
        (frames, late)
    };
    let (frames, alone) = late(Kind::Bfq, 0);
    assert!(frames > 740 && alone < 8, "{alone} of {frames}");
    let (_, noop) = late(Kind::Noop, 4);
    assert!(noop > 100, "late under noop: {noop}");
}

#[test]
fn a_database_commits_durably_and_a_stall_shows_in_its_longest_transaction() {
    let transactions = |stalls: Vec<(Nanos, Nanos)>| {
        let plan = FaultPlan { stalls, ..FaultPlan::default() };
        let model = "ssd".parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
        let device = FaultyDevice::with_faults(model, plan);
        let host = HostModel::new(HostPath::Evenkeel, Kind::Bfq);
        let mut world = World::new(device, &host, 1);
        let guest = world.add_guest(&GuestModel::new(Kind::Bfq, IMAGE));
        let log = File { start: 512 * MIB, sectors: 64 * MIB };
        let database = world.start(guest, Program::Database(Database::new(file(0), log)));
        world.run_until(seconds(20));
        world.check_invariants();
        let Program::Database(database) = world.program(database) else {
            unreachable!("a database")
        };
        database.transactions()
    };
    let (count, longest) = transactions(Vec::new());
    assert!(count > 1000 && longest < Nanos::from_millis(200), "{count}, {longest:?}");
    let (fewer, longest) = transactions(vec![(seconds(5), Nanos::from_secs(3))]);
    assert!(fewer < count && longest >= Nanos::from_secs(3), "{fewer}, {longest:?}");
}

/// A bit of everything; returns a digest of what happened.
fn history(seed: u64) -> Vec<u64> {
    let (mut world, guest) = world("emmc", HostPath::Threads, Kind::Bfq, seed);
    world.start(guest, reader(0, Order::Sequential));
    world.start(guest, reader(1, Order::Random));
    world.start(guest, Program::Writer(Writer::new(file(2), false)));
    let host = File { start: IMAGE.start + IMAGE.sectors + MIB, sectors: 512 * MIB };
    world.start(Place::Host, Program::Reader(Reader::new(host, Order::Strided(4096))));
    let mut digest = Vec::new();
    for second in 1..=20 {
        world.run_until(seconds(second));
        if second == 10 {
            world.drop_caches();
            world.start(guest, Program::Startup(Startup::new(App::Xterm, SYSTEM)));
        }
        digest.extend([
            world.completed(),
            world.read_sectors(guest),
            world.read_sectors(Place::Host),
        ]);
    }
    digest
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_seed_another() {
    let first = history(7);
    assert_eq!(first, history(7));
    assert_ne!(first, history(8));
}

#[test]
fn with_help_applications_start_sooner_than_behind_the_threads_of_qemu() {
    let start = |path, hold: Option<Nanos>| {
        let host = HostModel::new(path, Kind::Bfq);
        let mut world = World::new(device("hdd"), &host, 3);
        let mut model = GuestModel::new(Kind::Bfq, IMAGE);
        model.help = hold;
        let guest = world.add_guest(&model);
        world.run_until(seconds(5));
        world.start(guest, reader(0, Order::Sequential));
        for index in 0..5 {
            let begin = IMAGE.start + IMAGE.sectors + (1 + index * 512) * MIB;
            let file = File { start: begin, sectors: 512 * MIB };
            world.start(Place::Host, Program::Reader(Reader::new(file, Order::Sequential)));
        }
        world.run_until(seconds(10));
        let process = world.start(guest, Program::Startup(Startup::new(App::Xterm, SYSTEM)));
        assert!(world.run_process(process, seconds(120)));
        world.life(process).ended.expect("it has ended") - seconds(10)
    };
    let without = start(HostPath::MergedThreads, None);
    let with = start(HostPath::Evenkeel, Some(Nanos::from_millis(100)));
    assert!(with.0 * 5 < without.0 * 4, "without {without:?}, with {with:?}");
}
