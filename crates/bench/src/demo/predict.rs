//! The demonstration in virtual time, reported as the real one is.

use std::time::{Duration, Instant};

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::demo::{Application, CpuModel, Outcome, Scene, play};

use super::launch::Run;
use super::report::{Report, Row};
use super::scene::Rates;

/// What to predict.
#[derive(Clone, Debug)]
pub struct PredictOptions {
    /// The schedulers, in the order of the rows.
    pub schedulers: Vec<Kind>,
    /// The device.
    pub device: ModelSpec,
    /// Starts on the idle disk, and again as many under load.
    pub starts: u32,
    /// How often the whole is repeated, each time with other chances; at least once.
    pub runs: u32,
    /// Of all that is left to chance.
    pub seed: u64,
    /// The guests' CPUs.
    pub cpu: CpuModel,
}

/// Predicts what [`run`](super::run()) would report on a machine whose guests are emulated.
///
/// # Panics
///
/// Panics if there are no starts or no runs.
#[must_use]
pub fn predict(options: &PredictOptions) -> Report {
    assert!(options.starts > 0 && options.runs > 0, "at least one start is needed");
    let began = Instant::now();
    let row = |&scheduler: &Kind| {
        let scene = Scene {
            scheduler,
            device: options.device.clone(),
            starts: options.starts,
            cpu: options.cpu,
        };
        let seeds = (0..u64::from(options.runs)).map(|run| options.seed.wrapping_add(run << 32));
        let outcomes: Vec<Outcome> = seeds.map(|seed| play(&scene, seed)).collect();
        let runs = |list: fn(&Outcome) -> &[Option<Nanos>]| -> Vec<Run> {
            outcomes.iter().flat_map(list).map(|took| run(*took)).collect()
        };
        let mean = |rate: fn(&Outcome) -> f64| {
            outcomes.iter().map(rate).sum::<f64>() / f64::from(options.runs)
        };
        let rates = Rates {
            sequential_mb_s: mean(|outcome| outcome.sequential_mb_s),
            random_mb_s: mean(|outcome| outcome.random_mb_s),
        };
        let loaded = runs(|outcome| &outcome.loaded);
        Row::new(&scheduler.to_string(), &runs(|outcome| &outcome.idle), &loaded, rates)
    };
    let rows = options.schedulers.iter().map(row).collect();
    let (files, bytes) = Application::new(&CpuModel::EMULATED).size();
    Report {
        rows,
        device: format!("{} (modelled)", options.device),
        accelerator: "model",
        application_files: u32::try_from(files).expect("a few hundred files"),
        application_bytes: bytes,
        measured: Vec::new(),
        notes: notes(options),
        seconds: began.elapsed().as_secs_f64(),
    }
}

fn run(took: Option<Nanos>) -> Run {
    took.map_or(Run::TimedOut, |took| Run::Took(Duration::from_nanos(took.0)))
}

fn notes(options: &PredictOptions) -> Vec<String> {
    let PredictOptions { starts, runs, seed, .. } = options;
    vec![
        "A prediction: engine and schedulers are the daemon's; device, guests, page caches and the \
         application are models, and time is virtual."
            .to_owned(),
        format!(
            "{runs} times, from seed {seed}: guest A starts an application {starts} times on the \
             idle disk, then {starts} times while guest A reads a large file sequentially and one \
             at random (4 KiB), and guest B reads two sequentially and one at random. Both guests \
             drop their caches before each start."
        ),
        "The application runs with the best ordinary I/O priority (ionice -c2 -n0). It loads its \
         libraries one after another, then its other files with eight threads."
            .to_owned(),
        if options.cpu == CpuModel::EMULATED {
            "CPU times are those of an emulated guest on a shared cloud machine. On a faster one idle \
             starts are shorter and ratios larger; --measured takes them from a real demonstration."
                .to_owned()
        } else {
            "CPU times are such that a start on the idle disk takes as long as was measured; what \
             happens under load is predicted."
                .to_owned()
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_has_every_start_of_every_run_and_the_same_seed_repeats_it() {
        let options = PredictOptions {
            schedulers: vec![Kind::Bfq],
            device: "hdd".parse().unwrap(),
            starts: 2,
            runs: 3,
            seed: 7,
            cpu: CpuModel::EMULATED,
        };
        let (report, again) = (predict(&options), predict(&options));
        let row = &report.rows[0];
        assert_eq!((row.idle_runs_ms.len(), row.loaded_runs_ms.len()), (6, 6));
        assert_eq!(row.loaded_runs_ms, again.rows[0].loaded_runs_ms);
        assert!(report.csv().lines().count() == 2, "{}", report.csv());
    }
}
