//! `evenkeel bench fairness`: how close does an elevator come to ideal shares?
//!
//! Queues compete for a device of constant rate, in virtual time and without I/O: every run gives
//! the same figures. Beside each elevator runs an ideal fluid server, which gives everybody with
//! requests its part at every instant. Nobody is raised: a raise changes shares on purpose.

mod fluid;
mod scenario;
mod world;

use evenkeel_sched::{BfqTunables, ElevatorConfig, Kind, MergeLimits};
use serde::Serialize;

use scenario::Scenario;
use world::World;

/// Largest budget in sectors: what bounds depend on.
const BUDGET: u32 = 1024;

/// One elevator in one competition.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairnessRow {
    /// Who competes.
    pub scenario: &'static str,
    /// The name of the elevator.
    pub scheduler: String,
    /// Whether BFQ's `kernel_compat` is on.
    pub kernel_compat: bool,
    /// What the fluid server gave to the queue (or the group, where groups are
    /// compared) that the elevator treated least like that, as a part of all.
    pub expected_share: f64,
    /// What the elevator gave to the same.
    pub share: f64,
    /// The most that any queue lagged behind the fluid server, in sectors.
    pub worst_lag_sectors: f64,
    /// The most that the theory allows; none where it says nothing.
    pub bound_sectors: Option<f64>,
}

/// What `evenkeel bench fairness --format json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FairnessReport {
    /// Competitions outermost.
    pub rows: Vec<FairnessRow>,
}

/// Runs every competition with every elevator that has something to say about it; calls `progress`
/// with the name of each competition.
pub fn run(mut progress: impl FnMut(&str)) -> FairnessReport {
    let mut rows = Vec::new();
    for scenario in Scenario::all() {
        progress(scenario.name);
        rows.push(compete(&scenario, Kind::Bfq, false));
        rows.push(compete(&scenario, Kind::Bfq, true));
        rows.push(compete(&scenario, Kind::Cfq, false));
        if scenario.is_for_all {
            let others = Kind::ALL.iter().filter(|kind| !matches!(kind, Kind::Bfq | Kind::Cfq));
            rows.extend(others.map(|&kind| compete(&scenario, kind, false)));
        }
    }
    FairnessReport { rows }
}

fn compete(scenario: &Scenario, kind: Kind, kernel_compat: bool) -> FairnessRow {
    let bfq = BfqTunables {
        kernel_compat,
        low_latency: false,
        max_budget_sectors: BUDGET,
        ..BfqTunables::default()
    };
    let merge = MergeLimits { max_sectors: 1, max_segments: 1 };
    let config = ElevatorConfig { kind, bfq, merge, ..ElevatorConfig::default() };
    let mut world = World::new(&config, scenario);
    let bound = (kind == Kind::Bfq && scenario.has_bound).then(|| world.fluid.bound(BUDGET));
    world.run(scenario.span);
    let all: f64 = world.served.iter().sum();
    let by_group = |of: &[f64]| -> Vec<f64> {
        if !scenario.by_group {
            return of.to_vec();
        }
        let mut sums = vec![0.0; scenario.groups.len()];
        for (queue, part) in scenario.queues.iter().zip(of) {
            sums[queue.group.expect("every queue is in a group")] += part;
        }
        sums
    };
    let (served, due) = (by_group(&world.served), by_group(&world.fluid.got));
    let shares = served.iter().zip(&due).map(|(got, due)| (got / all, due / all));
    let worst = shares.max_by(|one, other| {
        let [one, other] = [one, other].map(|(got, due)| (got - due).abs());
        one.total_cmp(&other)
    });
    let (share, expected_share) = worst.expect("every competition has queues");
    FairnessRow {
        scenario: scenario.name,
        scheduler: kind.to_string(),
        kernel_compat,
        expected_share,
        share,
        worst_lag_sectors: world.fluid.worst_lag,
        bound_sectors: bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Scenario {
        let mut scenario = Scenario::all().into_iter().find(|it| it.name == name).expect(name);
        scenario.span = scenario.span.min(evenkeel_sched::Nanos::from_secs(5));
        scenario
    }

    #[test]
    fn bfq_keeps_shares_and_bounds_in_every_competition() {
        for scenario in Scenario::all() {
            let row = compete(&named(scenario.name), Kind::Bfq, false);
            println!("{row:?}");
            assert!((row.share - row.expected_share).abs() < 0.01, "{row:?}");
            assert!(
                row.bound_sectors.is_none_or(|bound| row.worst_lag_sectors <= bound),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_group_with_visitors_pays_twice_where_the_kernels_errors_are_restored() {
        let scenario = named("equal groups, one with visitors");
        let [ours, kernel] = [false, true].map(|compat| compete(&scenario, Kind::Bfq, compat));
        let off = |row: &FairnessRow| (row.share - row.expected_share).abs();
        assert!(off(&ours) < 0.005, "{ours:?}");
        assert!(off(&kernel) > 0.02, "{kernel:?}");
    }

    #[test]
    fn noop_gives_shares_by_the_size_of_requests() {
        let row = compete(&named("requests of 4 and 256 KiB"), Kind::Noop, false);
        assert!(
            (row.expected_share - 0.5).abs() < 0.01 && (row.share - 0.5).abs() > 0.4,
            "{row:?}"
        );
        assert_eq!(row.bound_sectors, None);
    }
}
