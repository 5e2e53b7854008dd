//! What the two papers state, held against the points.

use serde::Serialize;

use super::PracticeRow;

/// A stated ratio, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PracticeClaim {
    /// Where it stands.
    pub source: &'static str,
    /// What is divided by what.
    pub statement: &'static str,
    /// The paper's ratio.
    pub stated: f64,
    /// Ours.
    pub simulated: f64,
    /// Whether the logarithm of ours is that of the paper's to a third of it, or to 3 %.
    pub near: bool,
}

/// One point by name: figure, variant, workload, threads.
type Name = (&'static str, &'static str, &'static str, u32);

struct Ratio {
    source: &'static str,
    statement: &'static str,
    stated: f64,
    above: Name,
    below: Name,
}

const RATIOS: [Ratio; 11] = [
    Ratio {
        source: "best practices, virtio_blk",
        statement: "virtio against emulated IDE, random writes, 8 threads",
        stated: 85.8 / 19.0,
        above: ("virtio", "virtio", "random-write", 8),
        below: ("virtio", "ide", "random-write", 8),
    },
    Ratio {
        source: "best practices, deadline on the host",
        statement: "deadline against CFQ, sequential reads, 16 threads",
        stated: 237.0 / 77.8,
        above: ("schedulers", "deadline", "sequential-read", 16),
        below: ("schedulers", "cfq", "sequential-read", 16),
    },
    Ratio {
        source: "best practices, deadline in a guest",
        statement: "deadline against CFQ, random writes, 8 threads",
        stated: 79.8 / 23.1,
        above: ("guest-schedulers", "deadline", "random-write", 8),
        below: ("guest-schedulers", "cfq", "random-write", 8),
    },
    Ratio {
        source: "best practices, CFQ tuned",
        statement: "deadline against CFQ, large file creation, 16 threads",
        stated: 104.0 / 18.9,
        above: ("schedulers", "deadline", "create", 16),
        below: ("schedulers", "cfq", "create", 16),
    },
    Ratio {
        source: "best practices, CFQ tuned",
        statement: "CFQ with quantum 32 and slice_idle 0 against CFQ, large file creation, 16 \
                    threads",
        stated: 80.9 / 18.9,
        above: ("schedulers", "cfq-tuned", "create", 16),
        below: ("schedulers", "cfq", "create", 16),
    },
    Ratio {
        source: "best practices, CFQ tuned",
        statement: "deadline against tuned CFQ, large file creation, 16 threads",
        stated: 104.0 / 80.9,
        above: ("schedulers", "deadline", "create", 16),
        below: ("schedulers", "cfq-tuned", "create", 16),
    },
    Ratio {
        source: "I/O virtualization, 3.1.1",
        statement: "successive I/O instructions merged, sequential writes: \"nearly the same\"",
        stated: 1.0,
        above: ("exits", "merged", "create", 1),
        below: ("exits", "separate", "create", 1),
    },
    Ratio {
        source: "I/O virtualization, 3.1.2",
        statement: "timer of 100 Hz against 1000 Hz, sequential writes: up to 15 %",
        stated: 1.15,
        above: ("timer", "100-hz", "create", 1),
        below: ("timer", "1000-hz", "create", 1),
    },
    Ratio {
        source: "I/O virtualization, 3.2.1",
        statement: "no scheduler in the guest, block writes",
        stated: 1.0601,
        above: ("two-schedulers", "guest-none", "create", 1),
        below: ("two-schedulers", "guest-cfq", "create", 1),
    },
    Ratio {
        source: "I/O virtualization, 3.2.1",
        statement: "no scheduler in the guest, block reads",
        stated: 1.0564,
        above: ("two-schedulers", "guest-none", "sequential-read", 1),
        below: ("two-schedulers", "guest-cfq", "sequential-read", 1),
    },
    Ratio {
        source: "ours",
        statement: "no scheduler in the guest, block reads, four threads",
        stated: 1.0,
        above: ("two-schedulers", "guest-none", "sequential-read", 4),
        below: ("two-schedulers", "guest-cfq", "sequential-read", 4),
    },
];

fn point(rows: &[PracticeRow], (figure, variant, workload, threads): Name) -> &PracticeRow {
    let name = |row: &&PracticeRow| {
        (row.figure, row.variant, row.workload, row.threads) == (figure, variant, workload, threads)
    };
    rows.iter().find(name).expect("a complete run has all points")
}

fn claim(
    source: &'static str,
    statement: &'static str,
    stated: f64,
    simulated: f64,
) -> PracticeClaim {
    let near = (simulated / stated).ln().abs() <= (stated.ln().abs() / 3.0).max(0.03);
    let [stated, simulated] = [stated, simulated].map(super::rounded);
    PracticeClaim { source, statement, stated, simulated, near }
}

/// Holds all statements against the points of a complete run.
pub(super) fn check(rows: &[PracticeRow]) -> Vec<PracticeClaim> {
    let ratio = |ratio: &Ratio| {
        let [above, below] = [ratio.above, ratio.below].map(|name| point(rows, name).mb_per_second);
        claim(ratio.source, ratio.statement, ratio.stated, above / below)
    };
    let mut claims: Vec<PracticeClaim> = RATIOS.iter().map(ratio).collect();
    let operations = point(rows, ("alignment", "sector-63", "random-write", 1)).amplification;
    claims.push(claim(
        "best practices, partitions",
        "operations for each random write to a partition that begins at sector 63",
        4.0,
        operations,
    ));
    claims
}
