//! What the paper states, held against the points.

use serde::Serialize;

use super::BlocksRow;

/// A statement, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Claim {
    /// Where it stands: figure or section of the paper, or `ours`.
    pub source: &'static str,
    /// The statement, in short.
    pub statement: &'static str,
    /// What the points say.
    pub simulated: String,
    /// Whether they bear it out.
    pub holds: bool,
}

/// Points of one experiment.
struct Points<'a> {
    rows: Vec<&'a BlocksRow>,
}

impl<'a> Points<'a> {
    fn of(rows: &'a [BlocksRow], wanted: impl Fn(&BlocksRow) -> bool) -> Self {
        Self { rows: rows.iter().filter(|row| wanted(row)).collect() }
    }

    fn only(&self, wanted: impl Fn(&BlocksRow) -> bool) -> Self {
        Self { rows: self.rows.iter().copied().filter(|row| wanted(row)).collect() }
    }

    fn kiops(&self) -> Vec<f64> {
        self.rows.iter().map(|row| row.kiops).collect()
    }

    fn latency(&self) -> Vec<f64> {
        self.rows.iter().map(|row| row.latency_mean_us).collect()
    }

    fn best(&self) -> f64 {
        self.kiops().into_iter().fold(0.0, f64::max)
    }

    fn quickest(&self) -> f64 {
        self.latency().into_iter().fold(f64::INFINITY, f64::min)
    }
}

fn rises(figures: &[f64]) -> bool {
    figures.windows(2).all(|pair| pair[1] > pair[0])
}

fn both(wanted: impl Fn(&'static str) -> bool) -> bool {
    ["read", "write"].into_iter().all(wanted)
}

/// Holds all statements against the points of a complete run.
pub(super) fn check(rows: &[BlocksRow]) -> Vec<Claim> {
    let mut claims = figure_5(rows);
    claims.extend(figure_6(rows));
    claims.extend(figure_7(rows));
    claims.extend(figure_8(rows));
    claims.push(prefetching(rows));
    claims
}

fn figure_5(rows: &[BlocksRow]) -> Vec<Claim> {
    let points = |op, response, engines| {
        Points::of(rows, |row| {
            let same = (row.op, row.response, row.dma_engines) == (op, response, engines);
            row.figure == "5" && same
        })
    };
    let grows = |op| rises(&points(op, "block", 1).kiops());
    let answers = |op| {
        [("each", 1), ("each", 2), ("block", 1)]
            .map(|(response, engines)| points(op, response, engines).best())
    };
    let (reads, writes) = (answers("read"), answers("write"));
    let ordered = |best: [f64; 3]| rises(&best);
    let fewer = |op| {
        let pairs = points(op, "each", 1).kiops().into_iter().zip(points(op, "block", 1).kiops());
        pairs.skip(1).all(|(each, block)| each < block)
    };
    vec![
        Claim {
            source: "figure 5",
            statement: "the larger the block, the higher the throughput",
            simulated: format!(
                "block 1 to 32: read {:.0} to {:.0}, write {:.0} to {:.0} kIOPS",
                points("read", "block", 1).kiops()[0],
                reads[2],
                points("write", "block", 1).kiops()[0],
                writes[2]
            ),
            holds: both(grows),
        },
        Claim {
            source: "figure 5",
            statement: "reads reach the highest throughput; writes take significantly longer",
            simulated: format!("best write is {:.2} of the best read", writes[2] / reads[2]),
            holds: writes[2] < 0.8 * reads[2],
        },
        Claim {
            source: "figure 5",
            statement: "more transactions for the same commands, less throughput: one answer for \
                        each command is slower than one for the block",
            simulated: format!(
                "each is {:.2} of block for reads, {:.2} for writes",
                reads[0] / reads[2],
                writes[0] / writes[2]
            ),
            holds: both(fewer),
        },
        Claim {
            source: "section IV",
            statement: "a DMA engine for descriptors alone takes away what holds up the data",
            simulated: format!(
                "each with two engines is {:.2} of block for reads, {:.2} for writes",
                reads[1] / reads[2],
                writes[1] / writes[2]
            ),
            holds: ordered(reads) && ordered(writes),
        },
    ]
}

fn figure_6(rows: &[BlocksRow]) -> Vec<Claim> {
    let points =
        |op, block| Points::of(rows, |row| row.figure == "6" && row.op == op && row.block == block);
    // With one thread more than the block there is a full block only if the others are quick.
    let flat = |op| {
        [1, 2, 4, 8, 16, 32].into_iter().all(|block| {
            let late = points(op, block).only(|row| row.threads >= 2 * block).kiops();
            let least = late.iter().copied().fold(f64::INFINITY, f64::min);
            points(op, block).best() <= 1.02 * least
        })
    };
    let needs_more = |op| {
        [4, 8, 16, 32].into_iter().all(|block| {
            let equal = points(op, block).only(|row| row.threads == block).best();
            equal < 0.95 * points(op, block).best()
        })
    };
    let trade = |op| {
        let of = |block| points(op, block).only(|row| row.threads == 32);
        let small = of(4);
        let large = of(32);
        (small.best(), large.best())
    };
    let at_block = |block| points("read", block).only(|row| row.threads == block);
    let latencies: Vec<f64> = [1, 4, 16, 32].map(|block| at_block(block).quickest()).to_vec();
    vec![
        Claim {
            source: "figure 6",
            statement: "more threads than fill the next block add no throughput",
            simulated: "from twice the block on, within 2 % for every block size".to_owned(),
            holds: both(flat),
        },
        Claim {
            source: "figure 6",
            statement: "the maximum needs more threads than a block has descriptors",
            simulated: "as many threads as the block reach less than 95 % (blocks of 4 to 32)"
                .to_owned(),
            holds: both(needs_more),
        },
        Claim {
            source: "figure 6",
            statement: "larger blocks raise throughput, and latency too",
            simulated: format!(
                "32 threads: blocks of 4 {:.0}, of 32 {:.0} kIOPS; latency with as many threads \
                 as the block, 1 to 32: {:.0} to {:.0} us",
                trade("read").0,
                trade("read").1,
                latencies[0],
                latencies[3]
            ),
            holds: rises(&latencies)
                && both(|op| rises(&[4, 8, 16, 32].map(|block| points(op, block).best()))),
        },
    ]
}

/// The worst ratio of dynamic to the best static throughput over all loads.
fn worst_ratio(rows: &[BlocksRow], op: &str) -> (f64, u32) {
    let dynamic =
        Points::of(rows, |row| row.figure == "7" && row.op == op && row.response == "block");
    let ratios = dynamic.rows.iter().map(|row| {
        let same = |other: &BlocksRow| {
            other.figure == "6" && other.op == op && other.threads == row.threads
        };
        (row.kiops / Points::of(rows, same).best(), row.threads)
    });
    ratios.fold((f64::INFINITY, 0), |worst, next| if next.0 < worst.0 { next } else { worst })
}

fn figure_7(rows: &[BlocksRow]) -> Vec<Claim> {
    let dynamic =
        |op| Points::of(rows, |row| row.figure == "7" && row.op == op && row.response == "block");
    let single = |figure, op| {
        Points::of(rows, |row| {
            row.figure == figure && row.op == op && row.threads == 1 && row.response == "block"
        })
    };
    let blocks = |op: &'static str| -> Vec<f64> {
        dynamic(op).rows.iter().map(|row| row.commands_per_block).collect()
    };
    let grows = |op| blocks(op).windows(2).all(|pair| pair[1] >= 0.98 * pair[0]);
    let worst = ["read", "write"].map(|op| worst_ratio(rows, op));
    let latency = |op| single("7", op).quickest() / single("6", op).quickest();
    let beyond = |op| {
        let latencies = dynamic(op).only(|row| row.threads >= 64);
        latencies.latency()[1] / latencies.latency()[0]
    };
    let throughput = |op| {
        let many = dynamic(op).only(|row| row.threads >= 64).kiops();
        many[1] / many[0]
    };
    vec![
        Claim {
            source: "figure 7",
            statement: "the block follows the load",
            simulated: format!(
                "1 to 96 threads: {:.1} to {:.1} reads in a block",
                blocks("read")[0],
                blocks("read").last().copied().unwrap_or(0.0)
            ),
            holds: both(grows),
        },
        Claim {
            source: "figure 7",
            statement: "the maximum throughput is achieved at every load: at least 98 % of the \
                        best static block",
            simulated: format!(
                "worst: read {:.3} at {} threads, write {:.3} at {} threads",
                worst[0].0, worst[0].1, worst[1].0, worst[1].1
            ),
            holds: worst.iter().all(|(ratio, _)| *ratio >= 0.98),
        },
        Claim {
            source: "figure 7",
            statement: "light load keeps the lowest latency: at most 105 % of static blocks of one",
            simulated: format!(
                "one thread: read {:.3}, write {:.3}",
                latency("read"),
                latency("write")
            ),
            holds: both(|op| latency(op) <= 1.05),
        },
        Claim {
            source: "figure 7",
            statement: "beyond the device's capability latency grows exponentially",
            simulated: format!(
                "64 to 96 threads: throughput times {:.2}, latency times {:.2}: in proportion to \
                 the threads, as in any closed loop",
                throughput("read"),
                beyond("read")
            ),
            // 96 threads are half as many again as 64.
            holds: beyond("read") > 1.6,
        },
    ]
}

fn figure_8(rows: &[BlocksRow]) -> Vec<Claim> {
    let points = |op, threads| {
        Points::of(rows, |row| {
            let page = row.request_bytes >= 4_096;
            row.figure == "8" && row.op == op && row.threads == threads && page
        })
    };
    let single = |op| rises(&points(op, 1).kiops()) && rises(&points(op, 1).latency());
    let of = |op| (points(op, 1).kiops(), points(op, 1).latency());
    let (kiops, latency) = of("read");
    let gain = |threads| points("read", threads).best() / points("read", threads).kiops()[0];
    vec![
        Claim {
            source: "figure 8",
            statement: "large requests of one thread raise throughput, and latency too",
            simulated: format!(
                "read, 4 to 128 KiB: {:.0} to {:.0} kIOPS, {:.0} to {:.0} us",
                kiops[0],
                kiops.last().copied().unwrap_or(0.0),
                latency[0],
                latency.last().copied().unwrap_or(0.0)
            ),
            holds: both(single),
        },
        Claim {
            source: "figure 8",
            statement: "with many threads the size of requests matters less",
            simulated: format!(
                "the gain of 1, 4, 16 threads: {:.1}, {:.1}, {:.1}",
                gain(1),
                gain(4),
                gain(16)
            ),
            holds: gain(16) < gain(4) && gain(4) < gain(1),
        },
    ]
}

fn prefetching(rows: &[BlocksRow]) -> Claim {
    let best = |op, generation, fetched: bool| {
        Points::of(rows, |row| {
            let same = (row.op, row.pcie_generation, row.prefetch > 0);
            row.figure == "prefetch" && same == (op, generation, fetched)
        })
        .best()
    };
    let gain = |op, generation| best(op, generation, true) / best(op, generation, false);
    Claim {
        source: "section II",
        statement: "prefetching the next block's first commands helps, on Gen 3 more",
        simulated: format!(
            "at most load: Gen 2 read {:.3}, write {:.3}; Gen 3 read {:.3}, write {:.3}",
            gain("read", 2),
            gain("write", 2),
            gain("read", 3),
            gain("write", 3)
        ),
        holds: both(|op| gain(op, 2) > 1.0 && gain(op, 3) > gain(op, 2)),
    }
}
