//! A queue that stands for a whole guest holds reads of several programs, and the one that reads in
//! order always has the nearest of them.

use evenkeel_sched::{
    Bfq, BfqTunables, GroupId, MergeLimits, Nanos, Next, Op, Priority, QueueId, Request, Scheduler,
    Tag, Weight,
};

/// A read in order: 128 KiB, as long as a microSDHC card takes for it.
const LENGTH: u32 = 256;
const TAKES: Nanos = Nanos::from_millis(8);
/// Tags of the reads that wait elsewhere.
const FAR: u32 = 1000;

struct Rig {
    bfq: Bfq,
    now: Nanos,
    group: GroupId,
    queue: QueueId,
    tag: u32,
    pos: u64,
}

impl Rig {
    /// One guest, one queue, a device that takes one request at a time and does not rotate. The
    /// reader in order has read for so long.
    fn new(tunables: BfqTunables, span: Nanos) -> Self {
        // Long enough that a queue without a past counts as new.
        let now = Nanos::ORIGIN + Nanos::from_secs(3);
        let mut bfq = Bfq::new(Nanos::ORIGIN, tunables, MergeLimits::default(), false);
        let group = bfq.add_group(now, GroupId::ROOT, Weight::default());
        let queue = bfq.add_queue(now, group, Priority::default(), true);
        let mut rig = Self { bfq, now, group, queue, tag: 0, pos: 1 << 20 };
        rig.read_on();
        rig.run(now + span);
        rig
    }

    fn insert(&mut self, tag: u32, pos: u64) {
        let request = Request {
            tag: Tag(tag),
            queue: self.queue,
            op: Op::Read,
            pos,
            nr_sectors: LENGTH,
            segments: 1,
            sync: true,
        };
        self.bfq.insert(self.now, request);
    }

    fn read_on(&mut self) {
        self.tag = (self.tag + 1) % FAR;
        self.insert(self.tag, self.pos);
        self.pos += u64::from(LENGTH);
    }

    /// Lets the reader read until an instant; returns when which of the reads elsewhere went. While
    /// one of its reads is at the device it asks for the next one.
    fn run(&mut self, until: Nanos) -> Vec<(u32, Nanos)> {
        let mut gone = Vec::new();
        while self.now < until {
            let next = self.bfq.dispatch(self.now);
            let Next::Request(tag) = next else { unreachable!("the reader has more: {next:?}") };
            if tag.0 >= FAR {
                gone.push((tag.0 - FAR, self.now));
            } else {
                self.now += Nanos::from_micros(200);
                self.read_on();
            }
            self.now += TAKES;
            self.bfq.complete(self.now, tag);
            self.bfq.check_invariants();
        }
        gone
    }
}

#[test]
fn an_overdue_read_goes_before_those_that_continue_to_arrive_nearer() {
    let tunables = BfqTunables { low_latency: false, ..BfqTunables::default() };
    let longest = tunables.fifo_expire_sync + tunables.timeout_sync + tunables.timeout_sync;
    let mut rig = Rig::new(tunables, Nanos::from_secs(2));
    rig.insert(FAR, 0);
    let asked = rig.now;
    let gone = rig.run(asked + Nanos::from_secs(2));
    let waits: Vec<Nanos> = gone.iter().map(|&(_, at)| at.since(asked)).collect();
    assert!(waits.len() == 1 && waits[0] <= longest, "{waits:?}, {longest:?} allowed");
}

#[test]
fn a_slot_of_many_timeouts_serves_an_overdue_read_in_each_of_them() {
    let tunables = BfqTunables::default();
    let (expire, timeout) = (tunables.fifo_expire_sync, tunables.timeout_sync);
    // It is raised, and has the device for itself.
    let mut rig = Rig::new(tunables, Nanos::from_millis(500));
    assert!(rig.bfq.group_report(rig.group).raised);
    for index in 0..4 {
        rig.insert(FAR + index, u64::from(index) << 12);
    }
    let asked = rig.now;
    let gone = rig.run(asked + Nanos::from_secs(3));
    let order: Vec<u32> = gone.iter().map(|&(index, _)| index).collect();
    assert_eq!(order, [0, 1, 2, 3], "the oldest first");
    for (place, &(_, at)) in (2..).zip(&gone) {
        let longest = expire + Nanos(place * timeout.0) + TAKES + TAKES;
        assert!(at.since(asked) <= longest, "{gone:?}, {asked:?}");
    }
}

#[test]
fn with_kernel_compat_what_arrives_nearer_goes_before_an_overdue_read() {
    let tunables =
        BfqTunables { low_latency: false, kernel_compat: true, ..BfqTunables::default() };
    let mut rig = Rig::new(tunables, Nanos::from_secs(2));
    rig.insert(FAR, 0);
    assert_eq!(rig.run(rig.now + Nanos::from_secs(5)), []);
}
