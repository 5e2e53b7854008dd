//! Closed loops over one device.

use std::collections::BTreeMap;

use evenkeel_sched::{Nanos, Tag};
use evenkeel_sim::{DeviceModel, Io, IoOp, Model, ModelSpec};

pub(crate) fn build(spec: &str) -> Model {
    spec.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("a valid specification")
}

pub(crate) fn io(op: IoOp, pos: u64, nr_sectors: u32) -> Io {
    Io { op, pos, nr_sectors, durable: false }
}

/// A seeded generator (xorshift64*).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// What a closed loop measured.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) elapsed: Nanos,
    pub(crate) bytes: u64,
    pub(crate) requests: u64,
    /// Instants and tags of all completions.
    pub(crate) history: Vec<(Nanos, Tag)>,
}

impl Measured {
    pub(crate) fn mbps(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.elapsed.0 as f64
    }

    pub(crate) fn iops(&self) -> f64 {
        self.requests as f64 * 1e9 / self.elapsed.0 as f64
    }

    pub(crate) fn mean_us(&self) -> f64 {
        1e6 / self.iops()
    }
}

/// Keeps `depth` commands at the device until `next` has no more; checks the contract.
pub(crate) fn run(
    device: &mut Model,
    start: Nanos,
    depth: usize,
    mut next: impl FnMut(Nanos) -> Option<Io>,
) -> Measured {
    let mut outstanding = BTreeMap::new();
    let mut measured = Measured { elapsed: Nanos(0), bytes: 0, requests: 0, history: Vec::new() };
    let (mut now, mut tag) = (start, 0);
    loop {
        while outstanding.len() < depth {
            let Some(io) = next(now) else { break };
            device.submit(now, Tag(tag), &io);
            outstanding.insert(tag, io);
            tag += 1;
        }
        let Some(at) = device.next_event() else { break };
        assert!(at >= now, "the event at {at:?} lies before {now:?}");
        if at > now {
            assert_eq!(device.complete(Nanos(at.0 - 1)), None, "completed before its instant");
        }
        now = at;
        let done = device.complete(now).expect("next_event promised a completion");
        let io = outstanding.remove(&done.0).expect("completed once, and only what was submitted");
        measured.bytes += u64::from(io.nr_sectors) * 512;
        measured.requests += 1;
        measured.history.push((now, done));
    }
    assert_eq!(outstanding.len(), 0, "commands that never completed");
    measured.elapsed = now - start;
    measured
}

/// Reads or writes sequentially from `pos`.
pub(crate) fn sequential(
    device: &mut Model,
    op: IoOp,
    depth: usize,
    size: u32,
    count: u64,
) -> Measured {
    let mut left = count;
    let mut pos = 1_000_000;
    run(device, Nanos::ORIGIN, depth, |_| {
        left = left.checked_sub(1)?;
        let io = io(op, pos, size);
        pos += u64::from(size);
        Some(io)
    })
}

/// Reads or writes 4 KiB at random positions of the whole device.
pub(crate) fn random(device: &mut Model, op: IoOp, depth: usize, count: u64) -> Measured {
    let blocks = device.sectors().expect("every model has a capacity") / 8;
    let (mut left, mut draw) = (count, Random(0x00e7_e21c_ee15));
    run(device, Nanos::ORIGIN, depth, |_| {
        left = left.checked_sub(1)?;
        Some(io(op, draw.below(blocks) * 8, 8))
    })
}
