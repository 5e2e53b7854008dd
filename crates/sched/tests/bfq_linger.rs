//! A program that starts in a guest with a scheduler of its own waits there for the guest's other
//! readers, and pauses here.

mod bfq_world;

use bfq_world::{Client, Device, World};
use evenkeel_sched::{BfqTunables, GroupId, Nanos, QueueId, Queueing, Scheduler, Urgency};

const DISK: Device = Device::Serial { per_sector: 50_000, seek: 10_000_000 };
const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// A greedy random reader in each of two groups; in the first one a program starts after a while
/// that reads little, at least once, and pauses for so long after every read.
fn pausing(tunables: BfqTunables, pause: Nanos) -> World {
    pausing_on(true, tunables, pause)
}

/// The same on a device that is said to turn or not to.
fn pausing_on(rotational: bool, tunables: BfqTunables, pause: Nanos) -> World {
    let mut world = World::tuned(tunables, rotational, DISK, 1);
    for group in [(); 2].map(|()| world.group(GroupId::ROOT, 100)) {
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 2, 8, true));
    }
    world.run_for(ms(60_000));
    let queue = world.queue(GroupId(1));
    let mut program = Client::new(queue, 1, 8, true);
    (program.from, program.think, program.left) =
        (world.now, pause, (4000 / pause.as_millis()).max(1));
    world.clients.push(program);
    world.check = true;
    world.forget();
    world
}

/// The same where somebody outside says that the program starts; returns its queue, too.
fn urged(pause: Nanos) -> (World, QueueId) {
    let mut world = pausing(BfqTunables::default(), pause);
    world.bfq.set_spoken_for(world.now, GroupId(1), true);
    let queue = world.clients.last().expect("the program").queue;
    world.bfq.set_urgency(world.now, queue, Urgency::Interactive);
    (world, queue)
}

/// Returns the part that the reader beside the program got of what both readers moved.
fn part(world: &World) -> f64 {
    let [beside, other] = [0, 1].map(|at| world.clients[at].sectors as f64);
    beside / (beside + other)
}

#[test]
fn what_is_beside_a_start_that_pauses_goes_first_meanwhile() {
    let mut world = pausing(BfqTunables::default(), ms(200));
    world.run_for(ms(4_000));
    let meanwhile = part(&world);
    let worst = world.clients[1].worst;
    world.forget();
    world.run_for(ms(20_000));
    let afterwards = part(&world);
    println!("{meanwhile:.3}, worst {} ms, then {afterwards:.3}", worst.as_millis());
    assert!((0.8..0.96).contains(&meanwhile), "first, but for relief");
    assert!(worst < ms(2_000), "of a read of the other one");
    assert!(afterwards < 0.5, "and gets back what it missed");
}

/// Others have slots of 125 ms, and the guest's next reads may be what the program waits for.
#[test]
fn what_is_beside_a_start_that_pauses_sits_out_no_slot_of_others() {
    let mut world = pausing(BfqTunables::default(), ms(600));
    world.clients[0].outstanding = 1;
    (world.clients[1].nr_sectors, world.clients[1].random) = (256, false);
    world.run_for(ms(1_000));
    let slots = world.clients[1].sectors / 2560;
    println!("{slots} slots of others in a second");
    assert!(slots < 3);
}

/// As fast as a card: 70 MB/s, 0.3 ms to get anywhere.
const CARD: Device = Device::Serial { per_sector: 7_000, seek: 300_000 };

/// Adds clients to a group.
type Prepare = fn(&mut World, GroupId);

/// In one group a program reads once, and pauses; beside it are those whom `prepare` adds. Those
/// of five other groups always have something, and slots of 125 ms.
fn starting_on_card(prepare: Prepare) -> World {
    starting_on(false, prepare)
}

/// The same on a device that is said to turn or not.
fn starting_on(rotational: bool, prepare: Prepare) -> World {
    let one_by_one = BfqTunables { queueing: Queueing::No, ..BfqTunables::default() };
    let mut world = World::tuned(one_by_one, rotational, CARD, 1);
    let groups = [(); 6].map(|()| world.group(GroupId::ROOT, 100));
    prepare(&mut world, groups[0]);
    for &group in &groups[1..] {
        let queue = world.queue(group);
        world.clients.push(Client::new(queue, 2, 256, false));
    }
    world.run_for(ms(60_000));
    let queue = world.queue(groups[0]);
    let mut program = Client::new(queue, 1, 8, true);
    (program.from, program.left) = (world.now, 1);
    world.clients.push(program);
    world.check = true;
    world
}

/// The same once it has read.
fn pausing_on_card(prepare: Prepare) -> World {
    let mut world = starting_on_card(prepare);
    read_once(&mut world);
    world
}

fn read_once(world: &mut World) {
    while world.clients.last().is_some_and(|program| program.requests == 0) {
        world.run_for(ms(1));
    }
}

/// Two readers whom their guest answers together: both come every 20 ms, for 8 ms of the device.
fn two_in_order(world: &mut World, group: GroupId) {
    for _ in 0..2 {
        let queue = world.queue(group);
        let mut reader = Client::new(queue, 1, 512, false);
        (reader.until, reader.period) = (Nanos::ORIGIN + ms(1), ms(20));
        world.clients.push(reader);
    }
}

/// One who comes 20 ms after each answer, when others have been let in.
fn one_in_order(world: &mut World, group: GroupId) {
    let queue = world.queue(group);
    let mut reader = Client::new(queue, 1, 512, false);
    reader.think = ms(20);
    world.clients.push(reader);
}

/// One who always has something.
fn greedy_one(world: &mut World, group: GroupId) {
    let queue = world.queue(group);
    world.clients.push(Client::new(queue, 2, 256, false));
}

/// Returns which part of the device's time those beside the program have, in each of five times 200 ms.
fn parts(world: &mut World) -> [f64; 5] {
    let count = world.clients.len() - 6;
    let parts = [(); 5].map(|()| {
        world.forget();
        world.run_for(ms(200));
        let sectors: u64 = world.clients[..count].iter().map(|client| client.sectors).sum();
        (sectors * 7_000) as f64 / ms(200).0 as f64
    });
    println!("{parts:.2?} parts");
    parts
}

#[test]
fn readers_beside_a_start_that_has_just_paused_go_before_other_groups_each_time_they_come() {
    for (prepare, alone) in
        [(two_in_order as Prepare, 0.36), (one_in_order, 0.15), (greedy_one, 1.0)]
    {
        let part = parts(&mut pausing_on_card(prepare))[0];
        assert!(part > 0.8 * alone, "of {alone} without the others");
    }
}

#[test]
fn that_ends_before_the_group_is_let_go() {
    let [at_first, rest @ ..] = parts(&mut pausing_on_card(two_in_order));
    assert!(rest.iter().sum::<f64>() / 4.0 < 0.7 * at_first, "the others have slots, too");
}

#[test]
fn they_do_not_on_a_disk_that_turns() {
    let mut world = starting_on(true, greedy_one);
    read_once(&mut world);
    assert!(parts(&mut world)[0] < 0.5, "others have a slot");
}

#[test]
fn nor_beside_a_start_that_somebody_urges() {
    let mut world = starting_on_card(greedy_one);
    let queue = world.clients.last().expect("the program").queue;
    world.bfq.set_spoken_for(world.now, GroupId(1), true);
    world.bfq.set_urgency(world.now, queue, Urgency::Interactive);
    read_once(&mut world);
    assert!(parts(&mut world)[0] < 0.5, "that is all that is meant");
}

#[test]
fn nor_do_they_go_before_what_starts_elsewhere() {
    let mut world = pausing_on_card(two_in_order);
    let (began, queue) = (world.now, world.queue(GroupId(2)));
    let mut program = Client::new(queue, 1, 64, true);
    (program.from, program.left, program.think) = (began, 20, ms(2));
    world.clients.push(program);
    while world.clients.last().is_some_and(|program| program.requests < 20) {
        world.run_for(ms(1));
    }
    let took = world.now - began;
    println!("{} ms", took.as_millis());
    assert!(took < ms(65), "20 times 0.8 and 2 ms, and 8 ms at most of who has the device");
}

#[test]
fn a_pause_of_more_than_a_moment_is_an_end() {
    for (rotational, moment) in [(true, ms(3_000)), (false, ms(1_000))] {
        let mut world = pausing_on(rotational, BfqTunables::default(), ms(6_000));
        world.run_for(moment);
        let lifted = part(&world);
        world.run_for(ms(200));
        world.forget();
        world.run_for(ms(1_800));
        let rest = part(&world);
        println!("{lifted:.3}, then {rest:.3}");
        assert!(lifted > 0.7);
        assert!(rest < 0.5);
    }
}

/// The reader beside the program waits, too, and is served: nobody is relieved of his own slot.
#[test]
fn who_is_beside_a_start_that_pauses_needs_no_relief() {
    let mut world = pausing(BfqTunables::default(), ms(1_500));
    world.clients[0].outstanding = 1;
    world.clients[1].left = 0;
    world.run_for(ms(6_000));
    println!("{} sectors", world.clients[0].sectors);
    assert!(world.clients[0].sectors > 8 * 300, "all but the whole disk");
}

#[test]
fn what_only_looks_like_a_start_is_let_go_where_somebody_says_what_is_urgent() {
    let mut world = pausing(BfqTunables::default(), ms(200));
    world.bfq.set_spoken_for(world.now, GroupId(1), true);
    world.run_for(ms(4_000));
    println!("{:.3}", part(&world));
    assert!(part(&world) < 0.6);
}

#[test]
fn what_is_beside_a_start_that_somebody_urges_goes_first_as_well() {
    let (mut world, queue) = urged(ms(200));
    world.run_for(ms(4_000));
    let meanwhile = part(&world);
    world.bfq.set_urgency(world.now, queue, Urgency::None);
    world.forget();
    world.run_for(ms(20_000));
    let afterwards = part(&world);
    println!("{meanwhile:.3}, then {afterwards:.3}");
    assert!((0.8..0.96).contains(&meanwhile));
    assert!((0.45..0.55).contains(&afterwards), "who urges it has paid");
}

#[test]
fn it_ends_with_the_urgency() {
    let (mut world, queue) = urged(ms(4_000));
    world.run_for(ms(200));
    let meanwhile = part(&world);
    world.bfq.set_urgency(world.now, queue, Urgency::None);
    world.forget();
    world.run_for(ms(800));
    println!("{meanwhile:.3}, then {:.3}", part(&world));
    assert!(meanwhile > 0.7 && part(&world) < 0.6);
}

#[test]
fn it_ends_at_once_when_nothing_is_raised_any_more() {
    let mut world = pausing(BfqTunables::default(), ms(4_000));
    world.run_for(ms(200));
    assert!(part(&world) > 0.7);
    let plain = BfqTunables { low_latency: false, ..BfqTunables::default() };
    assert_eq!(world.bfq.set_tunables(world.now, plain), Ok(()));
    world.forget();
    world.run_for(ms(800));
    println!("{:.3}", part(&world));
    assert!(part(&world) < 0.6);
}

#[test]
fn the_kernel_lets_the_group_go() {
    let tunables = BfqTunables { kernel_compat: true, ..BfqTunables::default() };
    let mut world = pausing(tunables, ms(200));
    world.run_for(ms(4_000));
    println!("{:.3}", part(&world));
    assert!(part(&world) < 0.6);
}
