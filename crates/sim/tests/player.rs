//! Soft real time: somebody plays a film in a guest while five programs there read at random, and
//! five more on the host.

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::world::{
    AgentModel, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, Place, Player, Program,
    Reader, World,
};

const MIB: u64 = 2048;
const IMAGE: File = File { start: 256 * MIB, sectors: 4096 * MIB };

/// Returns how many pieces of a quarter of a second the player got in 60 s, and how many of them
/// late.
fn play(model: &str, has_agent: bool, seed: u64) -> (u64, u64) {
    let device = model.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a model");
    let host_model = HostModel::new(HostPath::Evenkeel, Kind::Bfq);
    let mut world = World::new(FaultyDevice::new(device), &host_model, seed);
    let mut guest = GuestModel::new(Kind::None, IMAGE);
    guest.agent = has_agent.then_some(AgentModel::beside(Kind::None));
    let guest = world.add_guest(&guest);
    for index in 0..5 {
        let file = File { start: (1024 + index * 512) * MIB, sectors: 512 * MIB };
        world.start(guest, Program::Reader(Reader::new(file, Order::Random)));
        let begin = IMAGE.start + IMAGE.sectors + (1 + index * 512) * MIB;
        let file = File { start: begin, sectors: 512 * MIB };
        world.start(Place::Host, Program::Reader(Reader::new(file, Order::Random)));
    }
    // Whatever started has been loaded by then.
    world.run_until(Nanos::ORIGIN + Nanos::from_secs(40));
    let mut film = Player::film(File { start: 512 * MIB, sectors: 512 * MIB });
    // 4 MB/s.
    (film.period, film.piece_sectors) = (Nanos::from_millis(250), 2048);
    let player = world.start(guest, Program::Player(film));
    world.run_until(Nanos::ORIGIN + Nanos::from_secs(100));
    let Program::Player(player) = world.program(player) else { unreachable!("a player") };
    player.frames()
}

/// A late piece puts off those after it, so with many late ones there are fewer.
#[test]
fn an_agent_lets_a_film_play_beside_ten_readers() {
    for model in ["hdd", "sdhc", "emmc"] {
        let (pieces, late) = play(model, false, 1);
        println!("{model}, nobody tells: {late} of {pieces} late");
        let (pieces, late) = play(model, true, 1);
        println!("{model}, an agent: {late} of {pieces} late");
        assert!(pieces >= 238 && late <= 1, "{model}");
    }
}
