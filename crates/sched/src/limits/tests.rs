//! Vectors and properties of buckets, the gate and the floors by themselves.

use std::vec::Vec;

use super::*;
use crate::testing::Random;
use crate::{Nanos, Weight};

const START: Nanos = Nanos::ORIGIN;
const MS: u64 = 1_000_000;

fn at(ms: u64) -> Nanos {
    START + Nanos::from_millis(ms)
}

fn read(tag: u32, nr_sectors: u32) -> Demand {
    Demand { tag: Tag(tag), op: Op::Read, nr_sectors }
}

fn write(tag: u32, nr_sectors: u32) -> Demand {
    Demand { tag: Tag(tag), op: Op::Write, nr_sectors }
}

fn rate(per_second: u64) -> Rate {
    Rate { per_second, ..Rate::default() }
}

fn total_ops(per_second: u64) -> Limits {
    Limits { ops: Rates { total: rate(per_second), ..Rates::default() }, ..Limits::default() }
}

/// A gate with one leaf below the root.
fn one_leaf(limits: &Limits) -> (Gate, NodeId) {
    let mut gate = Gate::new();
    let leaf = gate.add(NodeId::ROOT, Weight::default());
    gate.set_limits(START, leaf, limits);
    (gate, leaf)
}

/// Returns when each of `count` requests that arrive at once passes, in ms.
fn passes(gate: &mut Gate, leaf: NodeId, count: u32, nr_sectors: u32) -> Vec<u64> {
    let mut passed = Vec::new();
    for tag in 0..count {
        if gate.arrive(START, leaf, &read(tag, nr_sectors)) {
            passed.push(0);
        }
    }
    while let Some(now) = gate.next_release() {
        assert!(now > START, "what may pass has passed");
        while gate.release(now).is_some() {
            passed.push((now - START).0 / MS);
        }
        gate.check_invariants();
    }
    passed
}

#[test]
fn without_a_burst_a_tenth_of_a_second_passes_at_once_then_one_at_a_time() {
    let (mut gate, leaf) = one_leaf(&total_ops(20));
    // Two fill the bucket to the brim, a third passes because it is not over the brim yet.
    assert_eq!(passes(&mut gate, leaf, 7, 8), [0, 0, 0, 50, 100, 150, 200]);
    assert!(!gate.is_open(), "there is a limit");
    assert_eq!(gate.waiting(), 0);
}

#[test]
fn a_large_request_counts_as_many() {
    let limits = Limits { op_bytes: 4096, ..total_ops(20) };
    let (mut gate, leaf) = one_leaf(&limits);
    // 12 KiB are three requests; the second one passes at the brim and is paid for afterwards.
    assert_eq!(passes(&mut gate, leaf, 4, 24), [0, 50, 200, 350]);
    let (mut gate, leaf) = one_leaf(&limits);
    assert_eq!(passes(&mut gate, leaf, 4, 1), [0, 0, 0, 50], "a small one is one");
}

#[test]
fn a_burst_lasts_as_long_as_it_says_at_its_rate_and_is_earned_back() {
    let burst = Rate { per_second: 10, burst_per_second: 100, burst_seconds: 3 };
    let limits = Limits { ops: Rates { total: burst, ..Rates::default() }, ..Limits::default() };
    let (mut gate, leaf) = one_leaf(&limits);
    let passed = passes(&mut gate, leaf, 400, 8);
    let before = |ms: u64| passed.iter().filter(|&&then| then < ms).count();
    // 300 and what leaks meanwhile, at 100 a second, of which a tenth of a second's at once.
    assert_eq!(before(1), 11);
    assert_eq!(before(1000), 110);
    assert_eq!(before(3000), 310);
    // The bucket is full at 3.23 s: 10 x 3.23 leaked, 300 left.
    assert_eq!(before(5000) - before(4000), 10);
    // Ten seconds earn a hundred back.
    let now = START + Nanos(passed[399] * MS) + Nanos::from_secs(10);
    let again = (0..200).filter(|&tag| gate.arrive(now, leaf, &read(tag, 8))).count();
    assert_eq!(again, 11, "at the rate of bursts");
    let second = now + Nanos::from_secs(2);
    let mut count = again;
    while let Some(then) = gate.next_release().filter(|&then| then <= second) {
        count += core::iter::from_fn(|| gate.release(then)).count();
    }
    assert!((110..=125).contains(&count), "{count}");
}

#[test]
fn a_burst_of_one_second_may_pass_at_once() {
    let burst = Rate { per_second: 10, burst_per_second: 50, burst_seconds: 0 };
    let limits = Limits { ops: Rates { total: burst, ..Rates::default() }, ..Limits::default() };
    let (mut gate, leaf) = one_leaf(&limits);
    let passed = passes(&mut gate, leaf, 60, 8);
    assert_eq!(passed.iter().filter(|&&then| then == 0).count(), 51);
    assert_eq!(passed[51..54], [100, 200, 300]);
}

#[test]
fn a_limit_of_reads_leaves_writes_alone_and_that_of_both_holds_both() {
    let reads = Rates { read: rate(10), ..Rates::default() };
    let (mut gate, leaf) = one_leaf(&Limits { ops: reads, ..Limits::default() });
    let tags = 0..100;
    assert_eq!(tags.clone().filter(|&tag| gate.arrive(START, leaf, &write(tag, 8))).count(), 100);
    assert_eq!(tags.filter(|&tag| gate.arrive(START, leaf, &read(tag, 8))).count(), 2);
    let (mut gate, leaf) = one_leaf(&total_ops(10));
    for tag in 0..20 {
        let demand = if tag % 2 == 0 { read(tag, 8) } else { write(tag, 8) };
        gate.arrive(START, leaf, &demand);
    }
    let mut writes = 0;
    for _ in 0..10 {
        let now = gate.next_release().unwrap();
        let tags: Vec<_> = core::iter::from_fn(|| gate.release(now)).collect();
        assert_eq!(tags.len(), 1);
        writes += tags[0].0 % 2;
    }
    assert_eq!(writes, 5, "both directions have their turn");
}

#[test]
fn all_limits_up_to_the_root_hold_at_once() {
    let mut gate = Gate::new();
    gate.set_limits(START, NodeId::ROOT, &total_ops(30));
    let group = gate.add(NodeId::ROOT, Weight::default());
    gate.set_limits(START, group, &total_ops(20));
    let leaves = [gate.add(group, Weight::default()), gate.add(group, Weight::default())];
    let outside = gate.add(NodeId::ROOT, Weight::default());
    gate.set_limits(START, leaves[0], &total_ops(5));
    let mut passed = [0; 3];
    for (slot, leaf) in (0..).zip([leaves[0], leaves[1], outside]) {
        for tag in 0..500 {
            if gate.arrive(START, leaf, &read(slot * 1000 + tag, 8)) {
                passed[slot as usize] += 1;
            }
        }
    }
    let end = START + Nanos::from_secs(10);
    while let Some(now) = gate.next_release().filter(|&now| now <= end) {
        while let Some(tag) = gate.release(now) {
            passed[(tag.0 / 1000) as usize] += 1;
        }
    }
    gate.check_invariants();
    // 30 a second, of which 15 for each child of the root; in the group 5 and the rest.
    assert!((50..=52).contains(&passed[0]), "{passed:?}");
    assert!((98..=103).contains(&passed[1]), "{passed:?}");
    assert!((148..=155).contains(&passed[2]), "{passed:?}");
}

#[test]
fn a_new_limit_holds_at_once_and_gives_no_second_burst() {
    let (mut gate, leaf) = one_leaf(&total_ops(1));
    for tag in 0..200 {
        gate.arrive(START, leaf, &read(tag, 8));
    }
    assert_eq!(gate.waiting(), 199);
    gate.set_limits(at(10), leaf, &total_ops(100));
    let mut passed = core::iter::from_fn(|| gate.release(at(10))).count();
    assert!((8..=11).contains(&passed), "{passed}");
    gate.set_limits(at(10), leaf, &total_ops(101));
    let more = core::iter::from_fn(|| gate.release(at(10))).count();
    assert!(more <= 1, "a brim, not a burst");
    passed += more;
    gate.set_limits(at(11), leaf, &Limits::default());
    assert_eq!(core::iter::from_fn(|| gate.release(at(11))).count(), 199 - passed);
    assert!(gate.is_open());
    let figures = gate.report(at(12), leaf);
    assert_eq!((figures.waiting, figures.delayed), (0, 199));
    assert_eq!(figures.throttled, Nanos::from_millis(11));
}

#[test]
fn who_is_let_through_pays_later() {
    let (mut gate, leaf) = one_leaf(&total_ops(10));
    for tag in 0..12 {
        gate.arrive(START, leaf, &read(tag, 8));
    }
    let order: Vec<_> =
        core::iter::from_fn(|| gate.expedite(START, leaf)).map(|tag| tag.0).collect();
    assert_eq!(order, (2..12).collect::<Vec<_>>());
    gate.check_invariants();
    assert!(!gate.arrive(at(999), leaf, &read(0, 8)));
    assert_eq!(gate.next_release(), Some(at(1100)));
}

#[test]
fn tags_follow_the_vector() {
    let mut floors = Floors::new();
    let vm = NodeId(1);
    floors.add(vm, NodeId::ROOT);
    floors.set(vm, Reservation { ops: 100, ..Reservation::default() });
    for tag in 0..3 {
        floors.enter(START, vm, &read(tag, 8));
    }
    // Served because they are due: 0, 10, 20 ms.
    for (tag, due) in [(0, at(0)), (1, at(10)), (2, at(20))] {
        assert_eq!((floors.due_of(vm), floors.overdue(due)), (Some(due), Some(Tag(tag))));
        assert_eq!(floors.overdue(Nanos(due.0 - 1)), None);
        floors.leave(due, Tag(tag), true);
        floors.check_invariants();
    }
    // The first is chosen by the elevator: the others move up, to 0 and 10 ms.
    let mut floors = Floors::new();
    floors.add(vm, NodeId::ROOT);
    floors.set(vm, Reservation { ops: 100, ..Reservation::default() });
    for tag in 0..3 {
        floors.enter(START, vm, &read(tag, 8));
    }
    floors.leave(START, Tag(0), false);
    assert_eq!((floors.due_of(vm), floors.overdue(START)), (Some(START), Some(Tag(1))));
    floors.leave(START, Tag(1), true);
    assert_eq!((floors.due_of(vm), floors.next_due()), (Some(at(10)), Some(at(10))));
}

#[test]
fn a_large_request_takes_as_much_of_a_reservation_as_it_gives_back() {
    let mut floors = Floors::new();
    let vm = NodeId(1);
    floors.add(vm, NodeId::ROOT);
    floors.set(vm, Reservation { ops: 100, op_bytes: 4096, ..Reservation::default() });
    floors.enter(START, vm, &read(0, 8));
    floors.enter(START, vm, &read(1, 80));
    floors.enter(START, vm, &read(2, 8));
    floors.leave(START, Tag(0), true);
    assert_eq!(floors.due_of(vm), Some(at(100)), "ten times 10 ms");
    floors.leave(at(1), Tag(1), false);
    assert_eq!(floors.due_of(vm), Some(at(10)));
    let promised = Reservation { ops: 0, bytes: 409_600, op_bytes: 0 };
    floors.set(vm, promised);
    floors.leave(at(10), Tag(2), true);
    floors.enter(at(10), vm, &read(3, 80));
    assert_eq!(floors.due_of(vm), Some(at(100)));
}

#[test]
fn an_idle_client_collects_no_reservation() {
    let mut floors = Floors::new();
    let vm = NodeId(1);
    floors.add(vm, NodeId::ROOT);
    floors.set(vm, Reservation { ops: 10, ..Reservation::default() });
    floors.enter(START, vm, &read(0, 8));
    floors.leave(START, Tag(0), true);
    let later = START + Nanos::from_secs(3600);
    for tag in 0..3 {
        floors.enter(later, vm, &read(tag, 8));
    }
    floors.leave(later, Tag(0), true);
    assert_eq!(floors.due_of(vm), Some(later + Nanos::from_millis(100)));
}

#[test]
fn nested_reservations_share_their_requests() {
    let mut floors = Floors::new();
    let (tenant, vm, other) = (NodeId(1), NodeId(2), NodeId(3));
    floors.add(tenant, NodeId::ROOT);
    floors.add(vm, tenant);
    floors.add(other, tenant);
    floors.set(vm, Reservation { ops: 10, ..Reservation::default() });
    floors.enter(START, vm, &read(7, 8));
    // A deeper nesting moves what waits already.
    floors.set(tenant, Reservation { ops: 20, ..Reservation::default() });
    floors.check_invariants();
    floors.enter(START, vm, &read(8, 8));
    floors.enter(START, other, &read(9, 8));
    floors.check_invariants();
    assert_eq!(floors.overdue(START), Some(Tag(7)));
    floors.leave(START, Tag(7), true);
    assert_eq!((floors.due_of(vm), floors.due_of(tenant)), (Some(at(100)), Some(at(0))));
    floors.leave(START, Tag(8), true);
    assert_eq!((floors.due_of(vm), floors.due_of(tenant)), (None, Some(at(50))));
    floors.set(tenant, Reservation::default());
    assert_eq!((floors.due_of(tenant), floors.next_due(), floors.is_any()), (None, None, true));
    floors.set(vm, Reservation::default());
    assert!(!floors.is_any());
    floors.check_invariants();
}

fn below(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap()
}

/// When a request passed, at which leaf, and what it was.
type Passed = (Nanos, usize, Demand);
/// Which requests a limit concerns, and what one of them costs.
type Concerns = fn(&Demand) -> bool;
type Cost<'a> = &'a dyn Fn(&Demand) -> u128;

/// One history: arrivals and releases at random, with a tree of limits of all kinds.
fn history(seed: u64) {
    let mut random = Random::new(seed);
    let mut gate = Gate::new();
    let mut nodes = Vec::from([(NodeId::ROOT, None)]);
    for index in 1..8_usize {
        let above = below(&mut random, index) % 4;
        let parent: NodeId = nodes[above].0;
        let weight = Weight::new(1 + random.below(1000)).unwrap();
        nodes.push((gate.add(parent, weight), Some(above)));
    }
    let mut limits = Vec::new();
    for &(node, _) in &nodes {
        let mut any = |most: u64| {
            if random.below(3) == 0 { rate(1 + random.below(most)) } else { Rate::default() }
        };
        let ops = Rates { total: any(200), read: any(100), write: any(100) };
        let bytes = Rates { total: any(1 << 22), read: any(1 << 21), write: any(1 << 21) };
        let own = Limits { ops, bytes, op_bytes: random.below(3) * 4096 };
        gate.set_limits(START, node, &own);
        limits.push(own);
    }
    let is_leaf = |index: usize| nodes.iter().all(|(_, above)| *above != Some(index));
    let leaves: Vec<usize> = (0..nodes.len()).filter(|&index| is_leaf(index)).collect();
    let mut now = START;
    let mut passed: Vec<Passed> = Vec::new();
    let mut inside: Vec<Option<(usize, Demand)>> = Vec::new();
    for tag in 0..60 {
        now += Nanos(random.below(20 * MS));
        while let Some(tag) = gate.release(now) {
            let (leaf, demand) = inside[tag.0 as usize].take().expect("it came out once");
            passed.push((now, leaf, demand));
        }
        let leaf = leaves[below(&mut random, leaves.len())];
        let nr_sectors = 1 + u32::try_from(random.below(64)).unwrap();
        let demand =
            if random.below(2) == 0 { read(tag, nr_sectors) } else { write(tag, nr_sectors) };
        if gate.arrive(now, nodes[leaf].0, &demand) {
            passed.push((now, leaf, demand));
            inside.push(None);
        } else {
            inside.push(Some((leaf, demand)));
        }
        gate.check_invariants();
    }
    while let Some(then) = gate.next_release() {
        assert!(then > now || gate.release(now).is_none(), "a deadline is not in the past");
        now = then;
        let before = passed.len();
        while let Some(tag) = gate.release(now) {
            let (leaf, demand) = inside[tag.0 as usize].take().expect("it came out once");
            passed.push((now, leaf, demand));
        }
        gate.check_invariants();
        assert!(passed.len() > before || gate.next_release().is_none_or(|next| next > now));
    }
    assert_eq!(passed.len(), 60, "nothing is lost");
    for (index, limits) in limits.iter().enumerate() {
        let is_below = |mut at: usize| loop {
            if at == index {
                return true;
            }
            let Some(above) = nodes[at].1 else { return false };
            at = above;
        };
        let here: Vec<_> = passed.iter().filter(|(_, leaf, _)| is_below(*leaf)).collect();
        check_windows(&here, limits);
    }
}

/// In any window what passed is at most what leaks in it, a tenth of a second's worth, and one
/// request.
fn check_windows(passed: &[&Passed], limits: &Limits) {
    let all = |_: &Demand| true;
    let reads = |demand: &Demand| demand.op == Op::Read;
    let writes = |demand: &Demand| demand.op == Op::Write;
    let kinds: [(Concerns, Rate, Rate); 3] = [
        (all, limits.ops.total, limits.bytes.total),
        (reads, limits.ops.read, limits.bytes.read),
        (writes, limits.ops.write, limits.bytes.write),
    ];
    let ops = |demand: &Demand| bucket::ops_cost(demand.bytes(), limits.op_bytes);
    let bytes = |demand: &Demand| u128::from(demand.bytes()) * 1_000_000_000;
    for (concerns, ops_rate, bytes_rate) in kinds {
        let costs: [(Cost<'_>, Rate); 2] = [(&ops, ops_rate), (&bytes, bytes_rate)];
        for (cost, rate) in costs.into_iter().filter(|(_, rate)| rate.per_second > 0) {
            let here: Vec<_> = passed.iter().filter(|(.., demand)| concerns(demand)).collect();
            let largest = here.iter().map(|(.., demand)| cost(demand)).max().unwrap_or(0);
            for (first, (begin, ..)) in here.iter().enumerate() {
                let mut sum = 0;
                for (end, _, demand) in &here[first..] {
                    sum += cost(demand);
                    let leaked = u128::from(rate.per_second) * u128::from((*end - *begin).0);
                    let burst = u128::from(rate.per_second) * 100_000_000;
                    assert!(sum <= leaked + burst + largest, "{rate:?}");
                }
            }
        }
    }
}

/// T8.2.
#[test]
fn in_every_window_every_limit_holds_and_nothing_is_lost() {
    crate::testing::for_many_seeds(10_000, history);
}

/// How many requests of a client wait while it is awake: more than are late at once, since no
/// request is due before it came.
const WAITING: usize = 10;

/// A client of a device that serves one request after the other.
struct Client {
    node: NodeId,
    reserved: u64,
    /// Since when it waits without a pause; none while it sleeps.
    since: Option<Nanos>,
    /// When requests went because they were due, since then.
    due: Vec<Nanos>,
}

/// T8.1: while it waits, what is due to a client is served at its rate, a request late at most, and
/// a service time for each client: who is due goes in the order of tags, so one request of each may
/// be in the way, and one that was not due. T8.7: not more than that, however long it slept. T8.5: somebody is overdue
/// exactly when the next one is due.
fn reserved_history(seed: u64) {
    let mut random = Random::new(seed);
    let service = Nanos(MS + random.below(9 * MS));
    let mut left = 1_000_000_000 / service.0;
    let mut floors = Floors::new();
    let mut clients = Vec::new();
    for index in 1..=2 + u32::try_from(random.below(4)).unwrap() {
        let node = NodeId(index);
        floors.add(node, NodeId::ROOT);
        let reserved = random.below(left + 1);
        left -= reserved;
        floors.set(node, Reservation { ops: reserved, ..Reservation::default() });
        clients.push(Client { node, reserved, since: None, due: Vec::new() });
    }
    let mut now = START;
    // The owners of the requests that wait, oldest first.
    let mut waiting: Vec<(usize, Tag)> = Vec::new();
    let mut tags = 0;
    for _ in 0..200 {
        let at = below(&mut random, clients.len());
        let sleeps = random.below(8) == 0;
        for (index, client) in clients.iter_mut().enumerate() {
            if index == at && sleeps != client.since.is_none() {
                client.since = (!sleeps).then_some(now);
                client.due.clear();
            }
            let own = waiting.iter().filter(|(owner, _)| *owner == index).count();
            for _ in own..if client.since.is_some() { WAITING } else { 0 } {
                floors.enter(now, client.node, &read(tags, 8));
                waiting.push((index, Tag(tags)));
                tags += 1;
            }
        }
        let overdue = floors.overdue(now);
        assert_eq!(overdue.is_some(), floors.next_due().is_some_and(|due| due <= now), "T8.5");
        let any = |random: &mut Random| waiting.get(below(random, waiting.len().max(1))).copied();
        let Some(tag) = overdue.or_else(|| any(&mut random).map(|(_, tag)| tag)) else {
            now += service;
            continue;
        };
        let owner = waiting.iter().position(|(_, waits)| *waits == tag).unwrap();
        let (owner, _) = waiting.remove(owner);
        floors.leave(now, tag, overdue.is_some());
        floors.check_invariants();
        if overdue.is_some() {
            clients[owner].due.push(now);
        }
        now += service;
        let latest = Nanos(service.0 * (clients.len() as u64 + 1));
        clients.iter().for_each(|client| check_reserved(client, now, latest));
    }
}

/// `latest`: by how much a request may be late.
fn check_reserved(client: &Client, now: Nanos, latest: Nanos) {
    let Some(since) = client.since else { return };
    let earned = |span: Nanos| client.reserved * span.0 / 1_000_000_000;
    let served = u64::try_from(client.due.len()).unwrap();
    let due = earned(now.since(since + latest));
    assert!(served + 1 >= due, "T8.1: {served} of {due}");
    for (first, begin) in client.due.iter().enumerate() {
        let here = u64::try_from(client.due.len() - first).unwrap();
        assert!(here <= earned(now.since(*begin) + latest) + 2, "T8.7: {here}");
    }
}

#[test]
fn reservations_are_kept_while_somebody_waits_and_collected_by_nobody_who_sleeps() {
    crate::testing::for_many_seeds(10_000, reserved_history);
}
