//! What an elevator costs: time and allocations of one request on its way through.
//!
//! A number of queues, spread over the groups of virtual machines, all have requests waiting. In
//! each turn of the loop one request is dispatched, some virtual time passes, it completes, and
//! the same queue gets a new one: insert + dispatch + complete, in a steady state. Requests are
//! 4 KiB at random places and never adjacent, so that nothing merges and every request pays for
//! its whole way.
//!
//! The clock is read around many requests; what the loop itself needs (a random number and a few
//! additions) is in the figure.
//!
//! Groups are nested once or three times: tenants of racks of virtual machines. What an idle queue
//! and an idle group weigh is counted by the allocator while thousands of them are made.

use std::time::{Duration, Instant};

use evenkeel_sched::{
    Elevator, ElevatorConfig, GroupId, Kind, Nanos, Next, Op, Priority, QueueId, Request,
    Scheduler, Tag, Weight,
};
use serde::Serialize;

use crate::allocations;

/// Requests that each queue keeps outstanding: enough to stay busy while one is at the device.
const PER_QUEUE: u32 = 4;
/// Queues of one virtual machine, machines of a rack, racks of a tenant.
const FANOUT: u32 = 10;
/// Queues or groups that are made to weigh one: a little less than a power of two, so that almost
/// all of what grows by doubling is used.
const WEIGHED: u32 = 4090;
/// Virtual time that the device spends on one request.
const SERVICE: Nanos = Nanos::from_micros(50);
/// Sectors in a request: 4 KiB.
const REQUEST_SECTORS: u32 = 8;

/// How much to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// The elevators.
    pub kinds: Vec<Kind>,
    /// The numbers of busy queues.
    pub queues: Vec<u32>,
    /// The numbers of levels of groups above the queues; at least 1.
    pub levels: Vec<u32>,
    /// Requests in one repetition; at least four times as many as wait are taken.
    pub requests: u32,
    /// Repetitions, of which the median counts; at least 1.
    pub repetitions: u32,
}

impl Default for Options {
    /// All elevators with 1 to 10 000 queues, 1 and 3 levels, 9 times 200 000 requests each: two
    /// minutes.
    fn default() -> Self {
        Self {
            kinds: Kind::ALL.to_vec(),
            queues: vec![1, 10, 100, 1_000, 10_000],
            levels: vec![1, 3],
            requests: 200_000,
            repetitions: 9,
        }
    }
}

/// One elevator with one number of queues.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The name of the elevator.
    pub scheduler: String,
    /// Busy queues.
    pub queues: u32,
    /// Levels of groups above them.
    pub levels: u32,
    /// Nanoseconds for insert, dispatch and complete of one request: the median.
    pub ns_per_request: f64,
    /// Allocations for one request, once warm.
    pub allocations_per_request: f64,
    /// The largest less the smallest repetition, in nanoseconds for one request.
    pub spread_ns: f64,
    /// Memory that an idle queue takes.
    pub bytes_per_queue: u64,
    /// Memory that an idle group takes, without queues.
    pub bytes_per_group: u64,
}

/// What `evenkeel bench sched --format json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// In the order of the options, elevators outermost, queues innermost.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns the report as a table for people.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<15} {:>6} {:>7} {:>12} {:>10} {:>17} {:>13} {:>13}\n",
            "scheduler",
            "levels",
            "queues",
            "ns/request",
            "spread ns",
            "allocations/req",
            "bytes/queue",
            "bytes/group"
        );
        for row in &self.rows {
            let Row { scheduler, queues, levels, ns_per_request, spread_ns, .. } = row;
            let Row { allocations_per_request, bytes_per_queue, bytes_per_group, .. } = row;
            text.push_str(&format!(
                "{scheduler:<15} {levels:>6} {queues:>7} {ns_per_request:>12.1} {spread_ns:>10.1} \
                 {allocations_per_request:>17.4} {bytes_per_queue:>13} {bytes_per_group:>13}\n"
            ));
        }
        text
    }
}

/// Measures all elevators; calls `progress` with each row when it is known.
pub fn run(options: &Options, mut progress: impl FnMut(&Row)) -> Report {
    let mut rows = Vec::new();
    for &kind in &options.kinds {
        let bytes = weigh(kind);
        for &levels in &options.levels {
            for &queues in &options.queues {
                let row = measure(Load::new(kind, queues, levels), bytes, options);
                progress(&row);
                rows.push(row);
            }
        }
    }
    Report { rows }
}

/// Returns how many bytes an idle queue and an idle group take.
fn weigh(kind: Kind) -> [u64; 2] {
    let now = Nanos::ORIGIN;
    let one = |add: fn(&mut Elevator)| {
        let mut elevator = Elevator::new(now, &ElevatorConfig { kind, ..Default::default() });
        let counted = allocations::count(|| (0..WEIGHED).for_each(|_| add(&mut elevator)));
        counted.bytes_kept / u64::from(WEIGHED)
    };
    [
        one(|elevator| {
            elevator.add_queue(Nanos::ORIGIN, GroupId::ROOT, Priority::default(), true);
        }),
        one(|elevator| {
            elevator.add_group(Nanos::ORIGIN, GroupId::ROOT, Weight::default());
        }),
    ]
}

fn measure(mut load: Load, bytes: [u64; 2], options: &Options) -> Row {
    let requests = options.requests.max(4 * load.outstanding());
    load.serve(requests);
    let allocated = allocations::count(|| load.serve(requests)).calls;
    let mut times: Vec<f64> = (0..options.repetitions.max(1))
        .map(|_| {
            let start = Instant::now();
            load.serve(requests);
            per_request(start.elapsed(), requests)
        })
        .collect();
    times.sort_by(f64::total_cmp);
    Row {
        scheduler: load.kind.to_string(),
        queues: load.outstanding() / PER_QUEUE,
        levels: load.levels,
        ns_per_request: times[times.len() / 2],
        allocations_per_request: ratio(allocated, requests),
        spread_ns: times[times.len() - 1] - times[0],
        bytes_per_queue: bytes[0],
        bytes_per_group: bytes[1],
    }
}

fn per_request(elapsed: Duration, requests: u32) -> f64 {
    elapsed.as_secs_f64() * 1e9 / f64::from(requests)
}

#[expect(clippy::cast_precision_loss, reason = "a count for display, exact up to 2^53")]
fn ratio(count: u64, requests: u32) -> f64 {
    count as f64 / f64::from(requests)
}

/// An elevator with busy queues, in virtual time.
#[derive(Debug)]
struct Load {
    kind: Kind,
    levels: u32,
    elevator: Elevator,
    now: Nanos,
    /// The queue of each tag.
    queues: Vec<QueueId>,
    /// State of a xorshift generator.
    random: u64,
}

impl Load {
    fn new(kind: Kind, queues: u32, levels: u32) -> Self {
        let now = Nanos::ORIGIN;
        let mut elevator = Elevator::new(now, &ElevatorConfig { kind, ..Default::default() });
        // The group of each level that the next queue belongs to, the topmost first.
        let mut path = Vec::new();
        let mut tags = Vec::new();
        for index in 0..queues {
            for level in 1..=levels {
                if index.is_multiple_of(FANOUT.pow(levels + 1 - level)) {
                    path.truncate(usize::try_from(level - 1).expect("few levels"));
                    let parent = path.last().copied().unwrap_or(GroupId::ROOT);
                    path.push(elevator.add_group(now, parent, Weight::default()));
                }
            }
            let vm = path.last().copied().unwrap_or(GroupId::ROOT);
            let queue = elevator.add_queue(now, vm, Priority::default(), true);
            tags.extend((0..PER_QUEUE).map(|_| queue));
        }
        let random = 0x2545_f491_4f6c_dd1d;
        let mut load = Self { kind, levels, elevator, now, queues: tags, random };
        for tag in 0..load.outstanding() {
            load.insert(Tag(tag));
        }
        load
    }

    fn outstanding(&self) -> u32 {
        u32::try_from(self.queues.len()).expect("tags are u32")
    }

    fn queue_of(&self, tag: Tag) -> QueueId {
        self.queues[usize::try_from(tag.0).expect("usize has at least 32 bits")]
    }

    fn insert(&mut self, tag: Tag) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let queue = self.queue_of(tag);
        // Every queue has a region of 8 GiB; places are twice as far apart as requests are long.
        let place = (self.random >> 44) * 16;
        let pos = (u64::from(queue.0) << 24) + place;
        let request = Request {
            tag,
            queue,
            op: Op::Read,
            pos,
            nr_sectors: REQUEST_SECTORS,
            segments: 1,
            sync: true,
        };
        self.elevator.insert(self.now, request);
    }

    /// Lets so many requests through.
    fn serve(&mut self, requests: u32) {
        for _ in 0..requests {
            let tag = loop {
                match self.elevator.dispatch(self.now) {
                    Next::Request(tag) => break tag,
                    Next::NotBefore(then) => self.now = then,
                    Next::Empty => unreachable!("every queue has requests waiting"),
                }
            };
            self.now += SERVICE;
            self.elevator.complete(self.now, tag);
            self.insert(tag);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warm_elevator_allocates_nothing() {
        for kind in Kind::ALL {
            for queues in [1, 10, 300] {
                let mut load = Load::new(kind, queues, 3);
                load.serve(20_000);
                let counted = allocations::count(|| load.serve(20_000));
                assert_eq!(counted.calls, 0, "{kind} with {queues} queues");
            }
        }
    }

    #[test]
    fn the_load_is_a_steady_state() {
        for kind in Kind::ALL {
            let mut load = Load::new(kind, 25, 1);
            load.serve(1_000);
            assert_eq!((load.elevator.queued(), load.elevator.in_flight()), (100, 0), "{kind}");
            load.elevator.check_invariants();
        }
    }

    #[test]
    fn the_report_has_one_row_for_each_elevator_number_of_levels_and_of_queues() {
        let options = Options {
            kinds: vec![Kind::Noop, Kind::Deadline],
            queues: vec![1, 3],
            levels: vec![1, 3],
            requests: 100,
            repetitions: 3,
        };
        let mut seen = 0;
        let report = run(&options, |_| seen += 1);
        assert_eq!(seen, 8);
        let json = serde_json::to_value(&report).unwrap();
        let last = &json["rows"][7];
        assert_eq!(last["levels"], 3);
        assert!(last["bytes_per_queue"].as_u64().is_some_and(|bytes| bytes > 0));
        assert!(last["bytes_per_group"].as_u64().is_some_and(|bytes| bytes > 0));
        assert_eq!((&last["scheduler"], &last["queues"]), (&"deadline".into(), &3.into()));
        assert_eq!(last["allocations_per_request"], 0.0);
        assert!(last["ns_per_request"].is_f64() && last["spread_ns"].is_f64());
        assert_eq!(report.table().lines().count(), 9);
    }
}
