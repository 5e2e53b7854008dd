//! Runs the setups on several threads.

use std::num::NonZero;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_sched::Kind;
use evenkeel_sim::d36::{Coordination, Effort, Figure, Metric, Outcome, Setup, figures, measure};
use evenkeel_sim::world::App;

use super::rows::{Measured, Report, Row};

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Only these figures; empty: all of them.
    pub figures: Vec<u32>,
    /// What is started, one after another; not empty.
    pub apps: Vec<App>,
    /// Three runs of two starts instead of ten of five.
    pub quick: bool,
    /// Whether to run what the document does not show as well.
    pub extras: bool,
    /// The seed of everything.
    pub seed: u64,
}

/// How far it is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Runs done.
    pub done: usize,
    /// Runs to do.
    pub all: usize,
    /// What is left, if it goes on like this.
    pub left: Duration,
}

/// A setup with what is measured of it.
type Task = (Setup, Metric);

/// Runs the experiments; `progress` is called after every run, from several threads.
pub fn run(options: &Options, progress: impl Fn(Progress) + Sync) -> Report {
    let (effort, runs) = if options.quick { (Effort::QUICK, 3) } else { (Effort::FULL, 10) };
    let wanted =
        |figure: &Figure| options.figures.is_empty() || options.figures.contains(&figure.number);
    let figures: Vec<Figure> = figures()
        .into_iter()
        .filter(wanted)
        .flat_map(|figure| starting(&options.apps, &figure))
        .collect();
    let extras = if options.extras { extras(&figures) } else { Vec::new() };
    let tasks = tasks(figures.iter().chain(&extras));
    let jobs: Vec<(usize, u32)> =
        (0..tasks.len()).flat_map(|task| (0..runs).map(move |run| (task, run))).collect();
    let outcomes = spread(&jobs, &progress, |&(task, run)| {
        let (setup, metric) = &tasks[task];
        measure(setup, *metric, effort, setup.seed(options.seed, run))
    });
    let commands = outcomes.iter().map(|outcome| outcome.commands).sum();
    let mut measured = vec![Measured::default(); tasks.len()];
    for ((task, _), outcome) in jobs.iter().zip(outcomes) {
        measured[*task].outcomes.push(outcome);
    }
    let find = |task: &Task| {
        let place = tasks.iter().position(|other| other == task);
        &measured[place.expect("every setup of a figure is a task")]
    };
    let rows = |figures: &[Figure]| -> Vec<Row> {
        let bars = figures.iter().flat_map(|figure| figure.setups.iter().map(move |s| (figure, s)));
        bars.map(|(figure, setup)| {
            let idle =
                (figure.metric == Metric::StartUp).then(|| find(&(setup.idle(), Metric::StartUp)));
            Row::new(figure, setup, find(&(*setup, figure.metric)), idle)
        })
        .collect()
    };
    Report {
        seed: options.seed,
        quick: options.quick,
        runs,
        commands,
        rows: rows(&figures),
        extra_rows: rows(&extras),
    }
}

/// Returns a figure for each application; one that shows no starts stays as it is.
fn starting(apps: &[App], figure: &Figure) -> Vec<Figure> {
    if figure.metric != Metric::StartUp {
        return vec![figure.clone()];
    }
    let with = |&app: &App| {
        let setups = figure.setups.iter().map(|setup| Setup { app, ..*setup }).collect();
        Figure { setups, ..figure.clone() }
    };
    apps.iter().map(with).collect()
}

/// Returns every setup once, those without load first.
fn tasks<'a>(figures: impl Iterator<Item = &'a Figure>) -> Vec<Task> {
    let mut tasks: Vec<Task> = Vec::new();
    let mut add = |task: Task| {
        if !tasks.contains(&task) {
            tasks.push(task);
        }
    };
    for figure in figures {
        for setup in &figure.setups {
            if figure.metric == Metric::StartUp {
                add((setup.idle(), Metric::StartUp));
            }
            add((*setup, figure.metric));
        }
    }
    tasks
}

/// Returns what the document does not show: deadline and noop in the guest, other elevators in the
/// host, a queue for each thread of QEMU, Evenkeel in the host without help, with help that only the
/// guest's elevator asks for, and with an agent beside other elevators.
fn extras(figures: &[Figure]) -> Vec<Figure> {
    let mut extras = Vec::new();
    for figure in figures.iter().filter(|figure| (8..=10).contains(&figure.number)) {
        let mut setups = Vec::new();
        for setup in figure.setups.iter().filter(|setup| setup.guest == Kind::Bfq) {
            let of = |guest, host, coordination| Setup { guest, host, coordination, ..*setup };
            for guest in [Kind::Deadline, Kind::Noop] {
                setups.push(of(guest, Kind::Bfq, Coordination::None));
            }
            for host in [Kind::Cfq, Kind::Deadline, Kind::Noop] {
                setups.push(of(Kind::Bfq, host, Coordination::None));
            }
            for guest in [Kind::Bfq, Kind::Cfq] {
                setups.push(of(guest, Kind::Bfq, Coordination::Threads));
                setups.push(of(guest, Kind::Bfq, Coordination::Evenkeel));
            }
            setups.push(of(Kind::Bfq, Kind::Bfq, Coordination::Help));
            for guest in [Kind::Cfq, Kind::Deadline, Kind::Noop] {
                setups.push(of(guest, Kind::Bfq, Coordination::Agent));
            }
        }
        extras.push(Figure { setups, ..figure.clone() });
    }
    extras
}

/// Does all jobs on as many threads as there are CPUs; results are in the order of the jobs.
fn spread<J: Sync>(
    jobs: &[J],
    progress: &(impl Fn(Progress) + Sync),
    work: impl Fn(&J) -> Outcome + Sync,
) -> Vec<Outcome> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(jobs.len().max(1));
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let results: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; jobs.len()]);
    let start = Instant::now();
    let worker = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(index) else { return };
            let outcome = work(job);
            results.lock().expect("no worker panics while it holds it")[index] = Some(outcome);
            let done = done.fetch_add(1, Ordering::Relaxed) + 1;
            progress(Progress { done, all: jobs.len(), left: left(start, done, jobs.len()) });
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(worker);
        }
    });
    let results = results.into_inner().expect("all workers have ended well");
    results.into_iter().map(|outcome| outcome.expect("every job was done")).collect()
}

fn left(start: Instant, done: usize, all: usize) -> Duration {
    let per_run = start.elapsed() / u32::try_from(done.max(1)).unwrap_or(u32::MAX);
    per_run * u32::try_from(all - done).unwrap_or(u32::MAX)
}
