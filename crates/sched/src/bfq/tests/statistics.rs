//! The books of the groups.

use super::{Rig, ms};
use crate::{GroupId, Insertion, IoStats, Nanos, Op, Priority, Scheduler, Weight};

#[test]
fn a_request_is_booked_by_what_it_does_and_by_who_waits_for_it() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    let write_back = rig.bfq.add_queue(rig.now, group, Priority::default(), false);
    rig.read(queue, 8);
    rig.pass(ms(3));
    rig.serve_all(ms(2));
    rig.insert(write_back, Op::Write, 8, false);
    rig.insert(write_back, Op::Discard, 8, false);
    rig.insert(write_back, Op::WriteZeroes, 8, false);
    let before = rig.bfq.group_stats(group).expect("bfq keeps books");
    assert_eq!(before.own.queued, 3);
    rig.serve_all(ms(1));
    let own = rig.bfq.group_stats(group).expect("bfq keeps books").own;
    let read =
        IoStats { sectors: 8, serviced: 1, merged: 0, wait_time: ms(3), service_time: ms(2) };
    assert_eq!(own.reads, read);
    assert_eq!(own.sync, read);
    assert_eq!((own.writes.serviced, own.discards.serviced), (1, 2));
    assert_eq!((own.write_back.serviced, own.write_back.sectors), (3, 24));
    assert_eq!(own.total().service_time, ms(5));
    assert_eq!(own.queued, 0);
}

#[test]
fn nothing_gets_lost_between_insertion_and_completion() {
    let mut rig = Rig::flash();
    let group = rig.group();
    let queue = rig.queue(group);
    let mut glued = 0;
    for i in 0..40 {
        let stride = if i % 5 == 0 { 1000 } else { 8 };
        glued += u64::from(matches!(rig.read(queue, stride), Insertion::Merged(_)));
    }
    assert!(glued > 0);
    rig.serve_all(Nanos(1));
    let total = rig.bfq.group_stats(group).expect("bfq keeps books").own.total();
    assert_eq!((total.serviced + total.merged, total.merged), (40, glued), "X1");
    assert_eq!(total.sectors, 320);
}

#[test]
fn sums_go_up_to_the_root_and_outlive_their_groups() {
    let mut rig = Rig::flash();
    let tenant = rig.group();
    let machine = rig.bfq.add_group(rig.now, tenant, Weight::default());
    let queues = [tenant, machine].map(|group| rig.queue(group));
    for queue in queues {
        rig.once(queue);
    }
    rig.read(queues[1], 8);
    let stats = |rig: &Rig, group| rig.bfq.group_stats(group).expect("bfq keeps books");
    assert_eq!(stats(&rig, tenant).own.reads.serviced, 1);
    assert_eq!(stats(&rig, tenant).recursive.reads.serviced, 2);
    assert_eq!(stats(&rig, tenant).own.queued, 0);
    assert_eq!(stats(&rig, tenant).recursive.queued, 1);
    assert_eq!(stats(&rig, GroupId::ROOT).own.reads.serviced, 0);
    assert_eq!(stats(&rig, GroupId::ROOT).recursive.reads.serviced, 2);
    rig.serve_all(ms(1));
    rig.bfq.remove_queue(rig.now, queues[1]);
    rig.bfq.remove_group(rig.now, machine);
    assert_eq!(stats(&rig, tenant).recursive.reads.serviced, 3, "what was, was");
    let next = rig.bfq.add_group(rig.now, tenant, Weight::default());
    assert_eq!(next, machine, "the name is used again");
    assert_eq!(stats(&rig, next).recursive.reads.serviced, 0);
    assert_eq!(stats(&rig, tenant).recursive.reads.serviced, 3);
}
