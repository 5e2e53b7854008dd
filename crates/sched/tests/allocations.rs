//! Once warm, no elevator allocates for a request.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use evenkeel_sched::{
    Class, Elevator, ElevatorConfig, GroupId, Kind, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag, Weight,
};

const QUEUES: u32 = 30;
const REQUESTS_PER_QUEUE: u32 = 8;

/// An elevator with tenants, machines in them, and queues of every class in those.
fn busy_pool(kind: Kind) -> (Elevator, Vec<QueueId>) {
    let config = ElevatorConfig { kind, ..ElevatorConfig::default() };
    let now = Nanos::ORIGIN;
    let mut elevator = Elevator::new(now, &config);
    let mut queues = Vec::new();
    for tenant in 0..3 {
        let weight = Weight::new(100 * (tenant + 1)).unwrap();
        let tenant = elevator.add_group(now, GroupId::ROOT, weight);
        for machine in 0..2 {
            let machine = elevator.add_group(now, tenant, Weight::new(50 + machine).unwrap());
            for class in [Class::RealTime, Class::BestEffort, Class::Idle] {
                let priority = Priority { class, level: 4 };
                queues.push(elevator.add_queue(now, machine, priority, true));
            }
            for level in [2, 6] {
                let priority = Priority { class: Class::BestEffort, level };
                queues.push(elevator.add_queue(now, machine, priority, level == 2));
            }
        }
    }
    assert_eq!(queues.len(), QUEUES as usize);
    (elevator, queues)
}

/// Passes a round of requests through: random, sequential and merging ones, at varying depth.
fn round(elevator: &mut Elevator, queues: &[QueueId], now: &mut Nanos, salt: u64) -> u32 {
    for index in 0..QUEUES * REQUESTS_PER_QUEUE {
        let queue = index % QUEUES;
        let step = u64::from(index / QUEUES);
        let scattered = (u64::from(index) * 7_919 + salt * 104_729) % 100_000;
        let pos = u64::from(queue) * 1_000_000
            + if queue.is_multiple_of(2) { salt * 64 + step * 8 } else { scattered * 8 };
        let op = if queue.is_multiple_of(3) { Op::Write } else { Op::Read };
        let (tag, queue) = (Tag(index), queues[queue as usize]);
        let request = Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
        elevator.insert(*now, request);
        *now += Nanos::from_micros(3);
    }
    let mut came_out = 0;
    let mut at_device = [None; 4];
    let mut slot = 0;
    while elevator.queued() + elevator.in_flight() > 0 {
        *now += Nanos::from_micros(50);
        slot = (slot + 1) % at_device.len();
        if let Some(tag) = at_device[slot].take() {
            elevator.complete(*now, tag);
        }
        match elevator.dispatch(*now) {
            Next::Request(tag) => {
                let first = elevator.first_part(tag);
                let parts = core::iter::successors(Some(first), |&tag| elevator.next_part(tag));
                came_out += u32::try_from(parts.count()).unwrap();
                at_device[slot] = Some(tag);
            }
            Next::NotBefore(then) => *now = then,
            Next::Empty => {}
        }
        assert!(elevator.next_deadline().is_none_or(|then| then > Nanos::ORIGIN));
    }
    came_out
}

fn allocates_nothing_once_warm(kind: Kind) {
    let (mut elevator, queues) = busy_pool(kind);
    let mut now = Nanos::ORIGIN;
    for salt in 0..20 {
        round(&mut elevator, &queues, &mut now, salt);
    }
    let mut came_out = 0;
    let info = allocation_counter::measure(|| {
        for salt in 20..60 {
            came_out += round(&mut elevator, &queues, &mut now, salt);
        }
    });
    assert_eq!(came_out, 40 * QUEUES * REQUESTS_PER_QUEUE);
    assert_eq!(info.count_total, 0, "{kind} allocated: {info:?}");
}

#[test]
fn none_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::None);
}

#[test]
fn noop_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Noop);
}

#[test]
fn deadline_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Deadline);
}

#[test]
fn legacy_deadline_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::DeadlineLegacy);
}

#[test]
fn anticipatory_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Anticipatory);
}

#[test]
fn kyber_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Kyber);
}

#[test]
fn cfq_with_groups_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Cfq);
}

#[test]
fn bfq_with_groups_allocates_nothing_once_warm() {
    allocates_nothing_once_warm(Kind::Bfq);
}

/// X5: machines come and go, and leave nothing behind.
#[test]
fn comings_and_goings_take_no_memory_that_was_not_there() {
    for kind in Kind::ALL {
        let config = ElevatorConfig { kind, ..ElevatorConfig::default() };
        let now = Nanos::ORIGIN;
        let mut elevator = Elevator::new(now, &config);
        let visit = |elevator: &mut Elevator| {
            let group = elevator.add_group(now, GroupId::ROOT, Weight::default());
            let queues = [1, 4].map(|level| {
                let priority = Priority { class: Class::BestEffort, level };
                elevator.add_queue(now, group, priority, level == 4)
            });
            for (tag, queue) in (0..).zip(queues) {
                let (tag, pos) = (Tag(tag), u64::from(tag) << 20);
                let op = Op::Write;
                let request =
                    Request { tag, queue, op, pos, nr_sectors: 8, segments: 1, sync: true };
                elevator.insert(now, request);
            }
            let mut then = now;
            while elevator.queued() + elevator.in_flight() > 0 {
                match elevator.dispatch(then) {
                    Next::Request(tag) => elevator.complete(then, tag),
                    Next::NotBefore(deadline) => then = deadline,
                    Next::Empty => unreachable!("{kind} forgets a request"),
                }
            }
            queues.into_iter().for_each(|queue| elevator.remove_queue(then, queue));
            elevator.remove_group(then, group);
        };
        for _ in 0..100 {
            visit(&mut elevator);
        }
        let info = allocation_counter::measure(|| (0..10_000).for_each(|_| visit(&mut elevator)));
        assert_eq!(info.bytes_current, 0, "{kind}: {info:?}");
        elevator.check_invariants();
    }
}

#[test]
fn the_counter_counts() {
    let info = allocation_counter::measure(|| drop(busy_pool(Kind::Noop)));
    assert!(info.count_total > 0);
}
