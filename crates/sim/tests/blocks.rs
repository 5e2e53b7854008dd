//! The adaptive blocks do what the paper promises of them.

use evenkeel_sched::Nanos;
use evenkeel_sim::blocks::{BlocksOptions, BlocksReport, run};

fn report() -> BlocksReport {
    run(&BlocksOptions { span: Nanos::from_millis(20) })
}

#[test]
fn dynamic_blocks_reach_the_best_static_throughput_at_every_load_and_the_lowest_latency() {
    let report = report();
    let points = |figure: &'static str, op: &'static str| {
        let wanted = move |row: &&_| {
            let row: &evenkeel_sim::blocks::BlocksRow = row;
            row.figure == figure && row.op == op && row.response == "block"
        };
        report.rows.iter().filter(wanted)
    };
    for op in ["read", "write"] {
        for dynamic in points("7", op) {
            let threads = dynamic.threads;
            let statics = || points("6", op).filter(|row| row.threads == threads);
            let best = statics().map(|row| row.kiops).fold(0.0, f64::max);
            assert!(dynamic.kiops >= 0.98 * best, "{op}, {threads} threads: {dynamic:?}, {best}");
            if threads == 1 {
                let least = statics().map(|row| row.latency_mean_us).fold(f64::INFINITY, f64::min);
                assert!(dynamic.latency_mean_us <= 1.05 * least, "{op}: {dynamic:?}, {least}");
            }
        }
    }
}

#[test]
fn what_the_paper_states_holds_but_for_exponential_latency() {
    let report = report();
    let differs: Vec<&str> =
        report.claims.iter().filter(|claim| !claim.holds).map(|claim| claim.statement).collect();
    assert_eq!(
        differs,
        ["beyond the device's capability latency grows exponentially"],
        "{:#?}",
        report.claims
    );
}

#[test]
fn the_same_run_twice_gives_the_same_report_in_every_form() {
    let reports = [report(), report()];
    assert_eq!(reports[0], reports[1]);
    let csv = reports[0].csv();
    assert_eq!(csv.lines().count(), reports[0].rows.len() + 1);
    let columns = |line: &str| line.split(',').count();
    assert!(csv.lines().all(|line| columns(line) == columns(csv.lines().next().unwrap_or(""))));
    let page = reports[0].html();
    assert_eq!(page.matches("<svg").count(), 8);
    for claim in &reports[0].claims {
        assert!(page.contains(claim.statement), "{}", claim.statement);
    }
}
