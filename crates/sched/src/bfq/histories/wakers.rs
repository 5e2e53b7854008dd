//! Who wakes whom, and what comes of it.

use super::*;
use crate::bfq::NOBODY;

/// A queue that reads when another one was served, in the same group or in another.
struct Pair {
    world: World,
    sleeper: QueueId,
    waker: QueueId,
}

impl Pair {
    fn new(same_group: bool) -> Self {
        let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
        let mut world = World::new(Setup { tunables, rotational: true, depth: 4 });
        let now = world.now;
        let [one, other] =
            [(); 2].map(|()| world.bfq.add_group(now, GroupId::ROOT, Weight::default()));
        let sleeper = world.bfq.add_queue(now, one, Priority::default(), true);
        let group = if same_group { one } else { other };
        let waker = world.bfq.add_queue(now, group, Priority::default(), true);
        Self { world, sleeper, waker }
    }

    fn insert(&mut self, queue: QueueId) -> Tag {
        let tag = self.world.free.pop().unwrap();
        let pos = u64::from(tag.0) * 1_000_000;
        let (op, sync) = (Op::Read, true);
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync };
        self.world.bfq.insert(self.world.now, request);
        tag
    }

    /// A request of a queue, served in a millisecond as soon as nobody else is waited for.
    fn serve(&mut self, queue: QueueId) {
        let before = self.world.at_device.len();
        self.insert(queue);
        self.world.step(Step::Dispatch, &mut |_, _, _| ());
        if self.world.at_device.len() == before {
            self.world.now = self.world.bfq.next_deadline().unwrap();
            self.world.step(Step::Dispatch, &mut |_, _, _| ());
        }
        self.world.now += Nanos::from_millis(1);
        self.world.complete(before);
    }

    fn rounds(&mut self, count: u32) {
        for _ in 0..count {
            self.world.now += Nanos::from_millis(30);
            self.world.step(Step::Dispatch, &mut |_, _, _| ());
            let (waker, sleeper) = (self.waker, self.sleeper);
            self.serve(waker);
            self.serve(sleeper);
            self.world.bfq.check_invariants();
        }
    }

    fn waker_of_sleeper(&self) -> u32 {
        self.world.bfq.queues[self.sleeper.0 as usize].ties.waker
    }

    /// Lets the waker, or the sleeper, be waited for while a request of the other comes; returns
    /// whether that goes to the device at once, though its limit allows nothing.
    fn is_let_in(&mut self, held: QueueId, comes: QueueId) -> bool {
        self.world.now += Nanos::from_millis(30);
        // Somebody in another group has a request at the device, so rights differ.
        self.world.insert(6, 1 << 40, 8);
        self.world.step(Step::Dispatch, &mut |_, _, _| ());
        self.serve(held);
        let held = held.0;
        assert_eq!(self.world.bfq.holder, Some(held), "it is waited for");
        self.world.bfq.queues[held as usize].inject.most = 0;
        let tag = self.insert(comes);
        let next = self.world.bfq.dispatch(self.world.now);
        assert_eq!(self.world.bfq.holder, Some(held), "still");
        self.world.bfq.check_invariants();
        next == Next::Request(tag)
    }
}

#[test]
fn who_comes_three_times_after_another_is_woken_by_it() {
    let mut pair = Pair::new(true);
    // Until its think time is known, it counts as short.
    pair.rounds(4);
    assert_eq!(pair.waker_of_sleeper(), NOBODY);
    pair.rounds(3);
    assert_eq!(pair.waker_of_sleeper(), pair.waker.0);
    let mut other = Pair::new(false);
    other.rounds(20);
    assert_eq!(other.waker_of_sleeper(), NOBODY, "a neighbour is no waker");
}

#[test]
fn who_has_more_to_do_is_no_waker() {
    let mut pair = Pair::new(true);
    for _ in 0..20 {
        pair.world.now += Nanos::from_millis(30);
        pair.world.step(Step::Dispatch, &mut |_, _, _| ());
        let (waker, sleeper) = (pair.waker, pair.sleeper);
        pair.serve(waker);
        let more = pair.insert(waker);
        assert_eq!(pair.world.bfq.dispatch(pair.world.now), Next::Request(more));
        pair.world.at_device.push(more);
        pair.insert(sleeper);
        pair.world.now += Nanos::from_millis(1);
        while !pair.world.at_device.is_empty() {
            pair.world.complete(0);
            pair.world.now += Nanos::from_millis(9);
            pair.world.step(Step::Dispatch, &mut |_, _, _| ());
        }
        pair.world.bfq.check_invariants();
    }
    assert_eq!(pair.waker_of_sleeper(), NOBODY);
}

#[test]
fn a_waker_without_which_the_other_comes_is_given_up() {
    let mut pair = Pair::new(true);
    pair.rounds(20);
    for _ in 0..6 {
        assert_eq!(pair.waker_of_sleeper(), pair.waker.0);
        pair.world.now += Nanos::from_millis(30);
        pair.world.step(Step::Dispatch, &mut |_, _, _| ());
        let sleeper = pair.sleeper;
        pair.serve(sleeper);
        pair.world.bfq.check_invariants();
    }
    assert_eq!(pair.waker_of_sleeper(), NOBODY);
}

#[test]
fn a_waker_is_served_while_the_other_is_waited_for_and_the_other_way_round() {
    let mut pair = Pair::new(true);
    pair.rounds(10);
    let (waker, sleeper) = (pair.waker, pair.sleeper);
    assert!(pair.is_let_in(sleeper, waker));
    let mut pair = Pair::new(true);
    pair.rounds(10);
    assert!(pair.is_let_in(waker, sleeper));
    let mut pair = Pair::new(false);
    pair.rounds(10);
    assert!(!pair.is_let_in(sleeper, waker), "the limit holds for strangers");
}

#[test]
fn a_removed_waker_is_forgotten() {
    let mut pair = Pair::new(true);
    pair.rounds(10);
    let waker = pair.waker;
    pair.world.now += Nanos::from_millis(30);
    pair.world.step(Step::Dispatch, &mut |_, _, _| ());
    pair.world.bfq.remove_queue(pair.world.now, waker);
    assert_eq!(pair.waker_of_sleeper(), NOBODY);
    pair.world.bfq.check_invariants();
}
