//! The storage figures of two papers on KVM, as shapes: which choice wins, by about how much, why.
//!
//! *Best practices*: IBM, "Kernel Virtual Machine (KVM): Best practices for KVM", first edition,
//! 2010: schedulers above a large array, virtio against an emulated IDE disk, misaligned
//! partitions. *I/O virtualization*: B. Zhang, X. Wang, R. Lai, L. Yang, Z. Wang, Y. Luo and X. Li,
//! "Evaluating and Optimizing I/O Virtualization in Kernel-based Virtual Machine (KVM)", 2010:
//! exits merged, timers, a scheduler below another.
//!
//! Each figure comes from a mechanism: who waits for whom, what takes a processor. One cost was
//! chosen to meet a stated figure, that of a thread for a request; `docs/results/best-practice.md`
//! lists them all.
//!
//! Deliberately absent: file systems (a workload is its requests), networks, memory.

mod alignment;
mod array;
mod claims;
mod world;

use evenkeel_sched::{CfqTunables, ElevatorConfig, Kind, Nanos};
use serde::Serialize;

pub use claims::PracticeClaim;

use crate::ModelSpec;
use array::{ArrayModel, ArrayParams};
use world::{Costs, Layer, Setting, Workload};

/// Requests of the best practices' tests: 8 KiB.
const REQUEST_SECTORS: u32 = 16;
/// Threads of its figures.
const THREADS: [u32; 3] = [1, 8, 16];

/// 192 disks in eight arrays of mirrored pairs, behind four controllers of the entry class.
const ARRAY: ArrayParams = ArrayParams {
    disk: "hdd:capacity_mb=146000,rpm=15000,heads=4,rate_kbps=100000,inner_percent=60,\
           seek_min_us=300,seek_avg_us=3500,seek_max_us=7000,head_switch_us=300,overhead_us=100,\
           interface_kbps=300000,buffer_kib=16384,segments=32,write_cache_kib=0,ncq=8",
    pairs: 96,
    stripe_sectors: 128,
    command: Nanos::from_micros(70),
    ahead: 8,
    read_stripes: 16_384,
    dirty: 65_536,
};

/// The disk of the second paper: SATA, 500 GB.
const SATA: &str = "hdd:capacity_mb=500000,rpm=7200,heads=4,rate_kbps=90000,inner_percent=60,\
                    seek_min_us=1000,seek_avg_us=8500,seek_max_us=18000,head_switch_us=1000,\
                    overhead_us=100,interface_kbps=300000,buffer_kib=8192,segments=16,\
                    write_cache_kib=8192,ncq=32";

/// A thread of the benchmark on the host: two processors and 66 us for each request are the 30 000
/// requests per second at which the stated figures end.
const HOST: Costs =
    Costs { thread_ns: 66_000, guest_submit_ns: 0, guest_complete_ns: 0, emulation_ns: 0 };
/// The same in a guest with virtio: an exit to kick, one to be interrupted, and a ring's work in
/// the emulator.
const VIRTIO: Costs = Costs {
    thread_ns: 66_000,
    guest_submit_ns: EXIT_NS,
    guest_complete_ns: 2 * EXIT_NS,
    emulation_ns: 40_000,
};
/// And with an emulated IDE disk: an exit to the emulator for each register.
const IDE: Costs = Costs {
    thread_ns: 66_000,
    guest_submit_ns: IDE_SUBMIT_EXITS * EXIT_NS,
    guest_complete_ns: IDE_COMPLETE_EXITS * EXIT_NS,
    emulation_ns: 40_000,
};

/// An exit to user space and back.
const EXIT_NS: u64 = 10_000;
/// Writes of registers that start a request: eleven for the command, three for the transfer.
const IDE_SUBMIT_EXITS: u64 = 14;
/// Reads and writes of registers that finish it.
const IDE_COMPLETE_EXITS: u64 = 4;
/// Of the first, those that one call can stand for: the eleven become one.
const IDE_MERGED_EXITS: u64 = 4;
/// What a tick costs a guest: 24.3 s of traps for 607 251 ticks.
const TICK_NS: u64 = 40_000;

/// How long experiments take.
#[derive(Clone, Copy, Debug)]
pub struct PracticeOptions {
    /// Virtual time of each in ms, after a quarter of it that does not count.
    pub span_ms: u64,
}

impl Default for PracticeOptions {
    fn default() -> Self {
        Self { span_ms: 1_000 }
    }
}

/// One point of one figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PracticeRow {
    /// `schedulers`, `guest-schedulers`, `virtio`, `alignment`, `exits`, `timer`, `two-schedulers`.
    pub figure: &'static str,
    /// What is compared, such as `cfq-tuned`.
    pub variant: &'static str,
    /// `create`, `sequential-read`, `random-read`, `random-write`, `mail`.
    pub workload: &'static str,
    /// Threads, each with one request at a time.
    pub threads: u32,
    /// 10^6 bytes per second; 0 where only operations are counted.
    pub mb_per_second: f64,
    /// From a thread's system call to its return; 0 where only operations are counted.
    pub latency_mean_us: f64,
    /// Operations of the device for each of the guest; 1 where they are the same.
    pub amplification: f64,
}

/// All points, and what they say about the papers' statements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PracticeReport {
    /// The points.
    pub rows: Vec<PracticeRow>,
    /// Statements and whether the points bear them out.
    pub claims: Vec<PracticeClaim>,
}

const WORKLOADS: [Workload; 5] = [
    Workload::Create,
    Workload::SequentialRead,
    Workload::RandomRead,
    Workload::RandomWrite,
    Workload::Mail,
];

/// Runs all experiments. A function of its options.
#[must_use]
pub fn run(options: &PracticeOptions) -> PracticeReport {
    let mut rows = Vec::new();
    for threads in THREADS {
        for workload in WORKLOADS {
            for (variant, elevator) in elevators() {
                let host =
                    Setting { host: layer(&elevator), ..setting(options, workload, threads) };
                rows.push(array_row("schedulers", variant, &host));
                let guest = Setting { guest: Some(layer(&elevator)), costs: VIRTIO, ..host };
                rows.push(array_row("guest-schedulers", variant, &guest));
            }
            for (variant, costs, depth) in [("virtio", VIRTIO, 128), ("ide", IDE, 1)] {
                let guest = Some(Layer { depth, ..layer(&elevators()[0].1) });
                let setting = Setting { guest, costs, ..setting(options, workload, threads) };
                rows.push(array_row("virtio", variant, &setting));
            }
        }
    }
    alignment_rows(&mut rows);
    second_paper(options, &mut rows);
    let claims = claims::check(&rows);
    PracticeReport { rows, claims }
}

/// The elevators of the first paper's figures.
fn elevators() -> [(&'static str, ElevatorConfig); 3] {
    let deadline = ElevatorConfig {
        kind: Kind::DeadlineLegacy,
        rotational: true,
        ..ElevatorConfig::default()
    };
    let cfq = ElevatorConfig { kind: Kind::Cfq, ..deadline.clone() };
    let tuned = ElevatorConfig { cfq: CfqTunables::enterprise_storage(), ..cfq.clone() };
    [("deadline", deadline), ("cfq", cfq), ("cfq-tuned", tuned)]
}

fn layer(elevator: &ElevatorConfig) -> Layer {
    Layer { elevator: elevator.clone(), depth: 128 }
}

fn setting(options: &PracticeOptions, workload: Workload, threads: u32) -> Setting {
    Setting {
        workload,
        threads,
        request_sectors: REQUEST_SECTORS,
        costs: HOST,
        thread_processors: 2,
        guest: None,
        host: layer(&elevators()[0].1),
        span: Nanos::from_millis(options.span_ms),
    }
}

fn array_row(figure: &'static str, variant: &'static str, setting: &Setting) -> PracticeRow {
    row(figure, variant, setting, &world::run(setting, ArrayModel::new(&ARRAY)))
}

fn row(
    figure: &'static str,
    variant: &'static str,
    setting: &Setting,
    outcome: &world::Outcome,
) -> PracticeRow {
    PracticeRow {
        figure,
        variant,
        workload: match setting.workload {
            Workload::Create => "create",
            Workload::SequentialRead => "sequential-read",
            Workload::RandomRead => "random-read",
            Workload::RandomWrite => "random-write",
            Workload::Mail => "mail",
        },
        threads: setting.threads,
        mb_per_second: rounded(outcome.mb_per_second),
        latency_mean_us: rounded(outcome.latency_mean_us),
        amplification: 1.0,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a hundred thousand operations")]
fn alignment_rows(rows: &mut Vec<PracticeRow>) {
    for (variant, offset) in [("aligned", 64), ("sector-63", 63)] {
        for (workload, random) in [("create", false), ("random-write", true)] {
            let done = alignment::write(offset, random);
            rows.push(PracticeRow {
                figure: "alignment",
                variant,
                workload,
                threads: 1,
                mb_per_second: 0.0,
                latency_mean_us: 0.0,
                amplification: rounded((done.reads + done.writes) as f64 / done.blocks as f64),
            });
        }
    }
}

/// One guest with an emulated IDE disk on a SATA disk, reading and writing files in sequence.
fn second_paper(options: &PracticeOptions, rows: &mut Vec<PracticeRow>) {
    let [_, (_, cfq), _] = elevators();
    let noop = ElevatorConfig { kind: Kind::Noop, ..cfq.clone() };
    for workload in [Workload::Create, Workload::SequentialRead] {
        let guest = |elevator: &ElevatorConfig| Some(Layer { depth: 1, ..layer(elevator) });
        let base = Setting {
            // Write-back and read-ahead make larger requests than the application's.
            request_sectors: 256,
            costs: IDE,
            thread_processors: 1,
            guest: guest(&cfq),
            host: layer(&cfq),
            ..setting(options, workload, 1)
        };
        let exits = IDE_MERGED_EXITS;
        let merged = Costs { guest_submit_ns: exits * EXIT_NS, ..IDE };
        for (variant, costs) in [("separate", IDE), ("merged", merged)] {
            rows.push(sata_row("exits", variant, &Setting { costs, ..base.clone() }));
        }
        // Small requests, so that the processor is what ends first.
        let small = Setting { request_sectors: 8, ..base.clone() };
        for (variant, hertz) in [("1000-hz", 1_000), ("100-hz", 100)] {
            let setting = Setting { costs: ticking(IDE, hertz), ..small.clone() };
            rows.push(sata_row("timer", variant, &setting));
        }
        for threads in [1, 4] {
            for (variant, elevator) in [("guest-cfq", &cfq), ("guest-none", &noop)] {
                let setting = Setting { threads, guest: guest(elevator), ..base.clone() };
                rows.push(sata_row("two-schedulers", variant, &setting));
            }
        }
    }
}

/// Returns costs stretched by what ticks take of the processor.
fn ticking(costs: Costs, hertz: u64) -> Costs {
    let left = 1_000_000_000 - hertz * TICK_NS;
    let stretched = |ns: u64| ns * 1_000_000_000 / left;
    Costs {
        thread_ns: stretched(costs.thread_ns),
        guest_submit_ns: stretched(costs.guest_submit_ns),
        guest_complete_ns: stretched(costs.guest_complete_ns),
        ..costs
    }
}

fn sata_row(figure: &'static str, variant: &'static str, setting: &Setting) -> PracticeRow {
    let spec = SATA.parse::<ModelSpec>().and_then(|spec| spec.build());
    let disk = spec.expect("the parameters are ours and tested");
    row(figure, variant, setting, &world::run(setting, disk))
}

/// Returns a figure with as many digits as anybody reads.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}
