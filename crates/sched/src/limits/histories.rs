//! Weights behind a common limit, and tags of reservations, in random histories.

use std::collections::VecDeque;
use std::vec::Vec;

use super::*;
use crate::testing::{Random, for_many_seeds};
use crate::{Nanos, Weight};

const START: Nanos = Nanos::ORIGIN;

fn below(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap()
}

/// A node of the gate, and what was released of it since it last had nothing to send.
struct Member {
    id: NodeId,
    above: Option<usize>,
    weight: u64,
    /// Directions of its requests, if it is a leaf; nothing if it is a group.
    ways: Vec<Op>,
    is_limited: bool,
    served: u64,
    requests: u64,
}

/// A tree of groups and leaves under one limit, with some leaves limited themselves.
struct Party {
    random: Random,
    gate: Gate,
    members: Vec<Member>,
    /// By tag: the leaf and the demand.
    inside: Vec<Option<(usize, Demand)>>,
    /// For each pair of siblings that both wait, how far the first was ahead at least and at most.
    pairs: Vec<Pair>,
}

struct Pair {
    members: [usize; 2],
    lead: [i128; 2],
}

/// What a request counts when a limit is shared: 16 KiB besides its length.
const REQUEST: u64 = 32;
/// The longest request, in sectors.
const LONGEST: u64 = 64;

impl Party {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut gate = Gate::new();
        let mut members = Vec::from([Member::new(NodeId::ROOT, None, Weight::default())]);
        let count = 3 + below(&mut random, 6);
        while members.len() < count {
            let above = below(&mut random, members.len().min(4));
            let weight = Weight::new(1 + random.below(1000)).unwrap();
            let id = gate.add(members[above].id, weight);
            members.push(Member::new(id, Some(above), weight));
        }
        for index in 0..count {
            if members.iter().any(|member| member.above == Some(index)) {
                continue;
            }
            let ways: [&[Op]; 3] = [&[Op::Read], &[Op::Write], &[Op::Read, Op::Write]];
            members[index].ways = ways[below(&mut random, 3)].to_vec();
            if random.below(4) == 0 {
                members[index].is_limited = true;
                let total = Rate { per_second: 1 + random.below(50), ..Rate::default() };
                let ops = Rates { total, ..Rates::default() };
                gate.set_limits(START, members[index].id, &Limits { ops, ..Limits::default() });
            }
        }
        let total = Rate { per_second: 100 + random.below(900), ..Rate::default() };
        let rates = Rates { total, ..Rates::default() };
        let limits = match random.below(2) {
            0 => Limits { ops: rates, ..Limits::default() },
            _ => Limits { bytes: rates, ..Limits::default() },
        };
        gate.set_limits(START, NodeId::ROOT, &limits);
        Self { random, gate, members, inside: Vec::new(), pairs: Vec::new() }
    }
}

impl Member {
    fn new(id: NodeId, above: Option<usize>, weight: Weight) -> Self {
        let weight = u64::from(weight.value());
        Self { id, above, weight, ways: Vec::new(), is_limited: false, served: 0, requests: 0 }
    }
}

impl Party {
    /// Lets so many requests wait in each direction of a leaf.
    fn fill(&mut self, now: Nanos, leaf: usize) {
        for op in self.members[leaf].ways.clone() {
            loop {
                let is_one = |held: &&(usize, Demand)| (held.0, held.1.op) == (leaf, op);
                if self.inside.iter().flatten().filter(is_one).count() >= 2 {
                    break;
                }
                let free = self.inside.iter().position(Option::is_none);
                let tag = free.unwrap_or(self.inside.len());
                if tag == self.inside.len() {
                    self.inside.push(None);
                }
                let nr_sectors = u32::try_from(1 + self.random.below(LONGEST)).unwrap();
                let demand = Demand { tag: Tag(u32::try_from(tag).unwrap()), op, nr_sectors };
                if !self.gate.arrive(now, self.members[leaf].id, &demand) {
                    self.inside[tag] = Some((leaf, demand));
                }
            }
        }
    }

    /// Returns whether a node has no limit of its own, nor has anything below it.
    fn is_free(&self, index: usize) -> bool {
        let below = self.members.iter().enumerate();
        let mut below = below.filter(|(_, member)| member.above == Some(index));
        !self.members[index].is_limited && below.all(|(child, _)| self.is_free(child))
    }

    /// Begins to watch all pairs of siblings that only the common limit holds up.
    fn watch(&mut self) {
        for first in 1..self.members.len() {
            for second in first + 1..self.members.len() {
                let are_siblings = self.members[first].above == self.members[second].above;
                if are_siblings && self.is_free(first) && self.is_free(second) {
                    self.pairs.push(Pair { members: [first, second], lead: [0; 2] });
                }
            }
        }
    }

    fn count(&mut self, tag: Tag) -> usize {
        let (leaf, demand) = self.inside[tag.0 as usize].take().expect("it came out once");
        let mut at = Some(leaf);
        while let Some(index) = at {
            self.members[index].served += REQUEST + u64::from(demand.nr_sectors);
            self.members[index].requests += 1;
            at = self.members[index].above;
        }
        leaf
    }

    /// T8.3: by how much either of two was ahead of its share of the other, from the start on, is
    /// never more than a request of each.
    fn check(&mut self) {
        for pair in &mut self.pairs {
            let [one, other] = pair.members.map(|index| &self.members[index]);
            let share = |of: &Member, by: u64| i128::from(of.served) * i128::from(by);
            let lead = share(one, other.weight) - share(other, one.weight);
            pair.lead = [pair.lead[0].min(lead), pair.lead[1].max(lead)];
            let largest = i128::from((REQUEST + LONGEST) * (one.weight + other.weight));
            // Virtual time has twelve fractional bits: each request is rounded by less than one.
            let rounding = (one.requests + other.requests) * one.weight * other.weight;
            let rounding = i128::from(rounding / 4096 + 1);
            let spread = pair.lead[1] - pair.lead[0];
            assert!(spread <= largest + rounding, "T8.3: {spread} of {largest} + {rounding}");
        }
    }
}

/// T8.3: siblings that only a limit above both holds up share it by weight, whatever they do.
#[test]
fn who_shares_a_limit_shares_it_by_weight_a_request_more_or_less() {
    for_many_seeds(10_000, |seed| {
        let mut party = Party::new(seed);
        let leaves: Vec<usize> =
            (0..party.members.len()).filter(|&it| !party.members[it].ways.is_empty()).collect();
        leaves.iter().for_each(|&leaf| party.fill(START, leaf));
        party.gate.check_invariants();
        party.watch();
        let mut released = 0;
        while released < 100 {
            let now = party.gate.next_release().expect("all wait").max(START);
            while let Some(tag) = party.gate.release(now) {
                let leaf = party.count(tag);
                party.fill(now, leaf);
                party.check();
                released += 1;
            }
            party.gate.check_invariants();
        }
    });
}

/// What happened to reservations, in order.
#[derive(Clone, Copy)]
enum Event {
    Enter(usize, Demand),
    /// A request left; with how it was due at its leaf and at the tenant, where it was the oldest.
    Leave {
        tag: Tag,
        was_due: bool,
        due: [Option<Nanos>; 2],
    },
}

/// A tenant and its clients, each with a reservation; some of it may be zero.
struct Tenant {
    promised: Vec<Reservation>,
    floors: Floors,
    /// Per node the waiting requests, oldest first; the tenant's are those of all.
    lines: Vec<VecDeque<Tag>>,
    demands: Vec<(usize, Demand)>,
}

/// The tenant's node; those of its clients follow.
const TENANT: usize = 1;

impl Tenant {
    fn new(promised: &[Reservation]) -> Self {
        let mut floors = Floors::new();
        for (index, &reservation) in (1..).zip(promised) {
            let node = NodeId(index);
            let tenant = NodeId(u32::try_from(TENANT).unwrap());
            floors.add(node, if node == tenant { NodeId::ROOT } else { tenant });
            floors.set(node, reservation);
        }
        let lines = std::vec![VecDeque::new(); promised.len() + 1];
        Self { promised: promised.to_vec(), floors, lines, demands: Vec::new() }
    }

    fn node(index: usize) -> NodeId {
        NodeId(u32::try_from(index).unwrap())
    }

    fn enter(&mut self, now: Nanos, client: usize, demand: Demand) {
        self.floors.enter(now, Self::node(client), &demand);
        self.lines[TENANT].push_back(demand.tag);
        self.lines[client].push_back(demand.tag);
        let place = demand.tag.0 as usize;
        self.demands.resize(self.demands.len().max(place + 1), (client, demand));
        self.demands[place] = (client, demand);
    }

    /// Lets a request leave; returns how it was due at its client and at the tenant, as far as it
    /// was the oldest there.
    fn leave(&mut self, now: Nanos, tag: Tag, was_due: bool) -> [Option<Nanos>; 2] {
        let client = self.demands[tag.0 as usize].0;
        let due = [client, TENANT].map(|node| {
            let is_oldest = self.lines[node].front() == Some(&tag);
            self.lines[node].retain(|&other| other != tag);
            if is_oldest { self.floors.due_of(Self::node(node)) } else { None }
        });
        self.floors.leave(now, tag, was_due);
        self.floors.check_invariants();
        due
    }
}

/// Draws a history: requests come, go because they are due, or are chosen by the elevator.
fn tenant_history(random: &mut Random, promised: &[Reservation]) -> Vec<(Nanos, Event)> {
    let mut tenant = Tenant::new(promised);
    let (mut now, mut events, mut tags) = (START, Vec::new(), 0);
    for _ in 0..80 {
        now += Nanos(random.below(15_000_000));
        if random.below(2) == 0 {
            let client = TENANT + 1 + below(random, promised.len() - 1);
            let nr_sectors = 1 + u32::try_from(random.below(300)).unwrap();
            let demand = Demand { tag: Tag(tags), op: Op::Read, nr_sectors };
            tags += 1;
            tenant.enter(now, client, demand);
            events.push((now, Event::Enter(client, demand)));
            continue;
        }
        let overdue = tenant.floors.overdue(now).filter(|_| random.below(4) > 0);
        let line = &tenant.lines[TENANT];
        let any = (!line.is_empty()).then(|| line[below(random, line.len())]);
        let Some(tag) = overdue.or(any) else { continue };
        let was_due = overdue.is_some();
        let due = tenant.leave(now, tag, was_due);
        events.push((now, Event::Leave { tag, was_due, due }));
    }
    events
}

/// T8.6: the tags of those that were due never fall, but lie as far apart as the later one costs.
fn check_spacing(
    promised: &Reservation,
    demand: &Demand,
    due: Nanos,
    previous: &mut Option<Nanos>,
) {
    let bytes = u128::from(demand.bytes());
    let op_bytes = if promised.op_bytes == 0 { 64 * 1024 } else { promised.op_bytes };
    let span = match *promised {
        Reservation { ops, bytes: 0, .. } => {
            bucket::ops_cost(demand.bytes(), op_bytes) / u128::from(ops)
        }
        Reservation { ops: 0, bytes: rate, .. } => bytes * 1_000_000_000 / u128::from(rate),
        // Of two kinds only the earlier tag is known.
        _ => 0,
    };
    let is_one_kind = promised.ops == 0 || promised.bytes == 0;
    let least = previous.map_or(Nanos::ZERO, |last| last + Nanos(u64::try_from(span).unwrap()));
    assert!(!is_one_kind || due >= least, "T8.6: {due:?} after {previous:?}, {span} ns apart");
    *previous = Some(due);
}

/// T8.6: tags fall by what the elevator served by itself, and by nothing else: those that are due
/// are due as though what it chose had never been.
#[test]
fn tags_of_what_is_due_never_fall_and_what_the_elevator_chose_leaves_no_trace() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let mut draw = |_| Reservation {
            ops: random.below(3) * (1 + random.below(100)),
            bytes: (1 + random.below(2)) * (1 + random.below(1 << 22)),
            op_bytes: random.below(3) * 4096,
        };
        let mut promised: Vec<Reservation> = (0..4).map(&mut draw).collect();
        for reservation in promised.iter_mut().filter(|it| it.ops > 0 && it.bytes % 4 > 0) {
            reservation.bytes = 0;
        }
        let events = tenant_history(&mut random, &promised);
        let chosen = |tag: Tag| {
            let is_it = |event: &(Nanos, Event)| match event.1 {
                Event::Leave { tag: other, was_due, .. } => other == tag && !was_due,
                Event::Enter(..) => false,
            };
            events.iter().any(is_it)
        };
        let mut twin = Tenant::new(&promised);
        let mut previous = [None; 5];
        for &(now, event) in &events {
            match event {
                Event::Enter(client, demand) if !chosen(demand.tag) => {
                    twin.enter(now, client, demand);
                }
                Event::Leave { tag, was_due: true, due } => {
                    let (client, demand) = twin.demands[tag.0 as usize];
                    let as_twin = twin.leave(now, tag, true);
                    for ((node, due), twins) in [client, TENANT].into_iter().zip(due).zip(as_twin) {
                        let Some(due) = due else { continue };
                        assert_eq!(Some(due), twins, "T8.6: what was chosen left a trace");
                        if due <= now {
                            let promised = &twin.promised[node - 1];
                            check_spacing(promised, &demand, due, &mut previous[node]);
                        }
                    }
                }
                _ => {}
            }
        }
    });
}
