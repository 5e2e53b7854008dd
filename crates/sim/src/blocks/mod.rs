//! The experiments of the adaptive block driver: a PCIe device that takes blocks of descriptors.
//!
//! A driver sends a block of descriptors, the device fetches it, moves a page for each, and sends
//! the descriptors back. Per block that costs a few trips across the link and one interrupt; large
//! blocks share them, small ones do not wait for company. [`run`] repeats the paper's figures with
//! the engine's own block policy in the driver's place.
//!
//! Source: E. Bougioukou, A. Ntalla, A. Palli, M. Varsamou and T. Antonakopoulos, "Prototyping and
//! Performance Evaluation of a Dynamically Adaptable Block Device Driver for PCIe-based SSDs",
//! 2014; "the paper" below. The times of link, processor and host are in `docs/devices.md`.
//!
//! Deliberately absent: the memory chips (the prototype had none either), errors, and the cost of
//! threads to each other: every thread has a processor of its own.

mod claims;
mod device;
mod html;
mod params;
mod world;

use evenkeel_engine::{BlockSize, Responses};
use evenkeel_sched::Nanos;
use serde::Serialize;

pub use claims::Claim;
pub use device::Direction;
pub(crate) use params::{PARAMETERS, PRESET};

use device::PAGE_BYTES;
use world::{Outcome, Setting};

/// Sizes of static blocks.
const BLOCKS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Threads of the figures with threads.
const THREADS: [u32; 14] = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96];
/// Threads of the figure with request sizes.
const FEW_THREADS: [u32; 3] = [1, 4, 16];
/// Sizes of requests; below a page the rest is padding.
const REQUEST_BYTES: [u64; 7] = [1_024, 4_096, 8_192, 16_384, 32_768, 65_536, 131_072];
/// Commands of the next block that a device with prefetching fetches early.
const PREFETCH: u32 = 8;

/// How long experiments take.
#[derive(Clone, Copy, Debug)]
pub struct BlocksOptions {
    /// Virtual time of each, after a tenth of it that does not count.
    pub span: Nanos,
}

impl Default for BlocksOptions {
    fn default() -> Self {
        Self { span: Nanos::from_millis(100) }
    }
}

/// One point of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlocksRow {
    /// `5` to `8` as in the paper, or `prefetch`.
    pub figure: &'static str,
    /// `static` or `dynamic`.
    pub mode: &'static str,
    /// The block, or the largest one if it is dynamic.
    pub block: u32,
    /// Threads, each with one request at a time.
    pub threads: u32,
    /// `read` or `write`.
    pub op: &'static str,
    /// `block`, `each` or `subset 4`.
    pub response: &'static str,
    /// One for all transfers, or another one for descriptors.
    pub dma_engines: u32,
    /// Size of a request.
    pub request_bytes: u64,
    /// Pages of 4 KiB moved, in thousands per second.
    pub kiops: f64,
    /// From a thread's system call to its return.
    pub latency_mean_us: f64,
    /// What the driver sent at a time.
    pub commands_per_block: f64,
    /// Commands of the next block fetched early; 0: none.
    pub prefetch: u32,
    /// Generation of the link.
    pub pcie_generation: u64,
}

/// All points, and what they say about the paper's statements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlocksReport {
    /// The points.
    pub rows: Vec<BlocksRow>,
    /// Statements of the paper and whether the points bear them out.
    pub claims: Vec<Claim>,
}

impl BlocksReport {
    /// Returns the points as comma-separated values with a heading.
    #[must_use]
    pub fn csv(&self) -> String {
        let mut text = "figure,mode,block,threads,op,response,dma_engines,request_bytes,kiops,\
                        latency_mean_us,commands_per_block,prefetch,pcie_generation\n"
            .to_owned();
        for row in &self.rows {
            let BlocksRow { figure, mode, block, threads, op, response, .. } = row;
            let BlocksRow { dma_engines, request_bytes, kiops, latency_mean_us, .. } = row;
            let BlocksRow { commands_per_block, prefetch, pcie_generation, .. } = row;
            text += &format!(
                "{figure},{mode},{block},{threads},{op},{response},{dma_engines},{request_bytes},\
                 {kiops},{latency_mean_us},{commands_per_block},{prefetch},{pcie_generation}\n"
            );
        }
        text
    }

    /// Returns a page with the figures drawn.
    #[must_use]
    pub fn html(&self) -> String {
        html::page(self)
    }
}

/// A point before it is measured.
#[derive(Clone, Copy, Debug)]
struct Point {
    figure: &'static str,
    setting: Setting,
    request_bytes: u64,
}

/// Runs all experiments. A function of its options; takes seconds.
#[must_use]
pub fn run(options: &BlocksOptions) -> BlocksReport {
    let mut points = Vec::new();
    for direction in [Direction::Read, Direction::Write] {
        let base = Setting {
            params: PRESET.params,
            direction,
            size: BlockSize::Dynamic,
            responses: Responses::Block,
            dma_engines: 1,
            prefetch: 0,
            threads: 1,
            pages: 1,
            span: options.span,
        };
        figure_5(&base, &mut points);
        figures_6_and_7(&base, &mut points);
        figure_8(&base, &mut points);
        prefetching(&base, &mut points);
    }
    let rows: Vec<BlocksRow> =
        points.iter().map(|point| row(point, &world::run(&point.setting))).collect();
    let claims = claims::check(&rows);
    BlocksReport { rows, claims }
}

/// Throughput by block size, the driver always having more than a block.
fn figure_5(base: &Setting, points: &mut Vec<Point>) {
    let answers = [
        (Responses::Block, 1),
        (Responses::Subset(4), 1),
        (Responses::Each, 1),
        (Responses::Each, 2),
    ];
    for (responses, dma_engines) in answers {
        for block in BLOCKS {
            let size = BlockSize::Static(block);
            let setting = Setting { size, responses, dma_engines, threads: 3 * block, ..*base };
            points.push(Point { figure: "5", setting, request_bytes: PAGE_BYTES });
        }
    }
}

/// Throughput and latency by threads: static blocks, of which fewer threads than a block get
/// nothing done, and dynamic ones.
fn figures_6_and_7(base: &Setting, points: &mut Vec<Point>) {
    for threads in THREADS {
        for block in BLOCKS.into_iter().filter(|block| *block <= threads) {
            let setting = Setting { size: BlockSize::Static(block), threads, ..*base };
            points.push(Point { figure: "6", setting, request_bytes: PAGE_BYTES });
        }
        for responses in [Responses::Block, Responses::Each] {
            let setting = Setting { threads, responses, ..*base };
            points.push(Point { figure: "7", setting, request_bytes: PAGE_BYTES });
        }
    }
}

/// Requests of several pages.
fn figure_8(base: &Setting, points: &mut Vec<Point>) {
    for threads in FEW_THREADS {
        for request_bytes in REQUEST_BYTES {
            let pages = u32::try_from(request_bytes.div_ceil(PAGE_BYTES)).expect("at most 32");
            let setting = Setting { threads, pages, ..*base };
            points.push(Point { figure: "8", setting, request_bytes });
        }
    }
}

/// The announced enhancement, on the prototype's link and on the next generation.
fn prefetching(base: &Setting, points: &mut Vec<Point>) {
    for pcie_generation in [2, 3] {
        for prefetch in [0, PREFETCH] {
            for threads in THREADS {
                let mut setting = Setting { threads, prefetch, dma_engines: 2, ..*base };
                setting.params.pcie_generation = pcie_generation;
                points.push(Point { figure: "prefetch", setting, request_bytes: PAGE_BYTES });
            }
        }
    }
}

fn row(point: &Point, outcome: &Outcome) -> BlocksRow {
    let setting = &point.setting;
    let (mode, block) = match setting.size {
        BlockSize::Static(block) => ("static", block),
        BlockSize::Dynamic => {
            ("dynamic", u32::try_from(setting.params.max_block).expect("at most 1024"))
        }
    };
    BlocksRow {
        figure: point.figure,
        mode,
        block,
        threads: setting.threads,
        op: match setting.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        },
        response: match setting.responses {
            Responses::Block => "block",
            Responses::Each => "each",
            Responses::Subset(_) => "subset 4",
        },
        dma_engines: setting.dma_engines,
        request_bytes: point.request_bytes,
        kiops: rounded(outcome.pages_per_second / 1e3),
        latency_mean_us: rounded(outcome.latency_mean_ns / 1e3),
        commands_per_block: rounded(outcome.commands_per_block),
        prefetch: setting.prefetch,
        pcie_generation: setting.params.pcie_generation,
    }
}

/// Returns a figure with as many digits as anybody reads.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}
