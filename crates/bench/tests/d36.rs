//! The report on D3.6: rows, statistics and pages, on two of its figures.

use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_bench::d36::{Options, Report, run};
use evenkeel_sim::world::App;

fn report() -> Report {
    let apps = vec![App::Xterm];
    let options = Options { figures: vec![2, 4], apps, quick: true, extras: false, seed: 3 };
    let most = AtomicUsize::new(0);
    let report = run(&options, |progress| {
        assert!(progress.done <= progress.all);
        most.fetch_max(progress.done, Ordering::Relaxed);
    });
    // Eight bars in each figure, and the start without load for each of the two schedulers.
    assert_eq!(most.into_inner(), 3 * 18);
    report
}

#[test]
fn every_bar_is_a_row_with_its_statistics_and_the_same_seed_gives_the_same_rows() {
    let report = report();
    assert_eq!(report, self::report());
    assert_eq!((report.rows.len(), report.extra_rows.len()), (16, 0));
    for row in &report.rows {
        assert_eq!(row.runs.len(), 3);
        assert_eq!(row.throughput_mb_s.is_some(), row.figure == 2, "{row:?}");
        assert_eq!(row.failed, row.failed_runs >= 2, "{row:?}");
        assert_eq!(row.ratio.is_some(), row.figure == 4 && !row.failed, "{row:?}");
        assert!(row.idle_mean_s.is_none_or(|idle| (1.7..2.0).contains(&idle)), "{row:?}");
        if let Some(ratio) = row.ratio {
            assert_eq!(row.startup_mean_s.zip(row.idle_mean_s).map(|(a, b)| a / b), Some(ratio));
        }
    }
}

#[test]
fn the_report_is_told_as_table_csv_json_and_page() {
    let report = report();
    let table = report.table();
    assert!(table.contains("| figure | device |") && table.contains("| 4      | hdd    | 1r-seq"));
    assert_eq!(report.csv().lines().count(), 17);
    let commas = |line: &str| line.split('"').step_by(2).map(|s| s.matches(',').count()).sum();
    let counts: Vec<usize> = report.csv().lines().map(commas).collect();
    assert!(counts.iter().all(|&count| count == counts[0]), "{counts:?}");
    let json = serde_json::to_value(&report).expect("it has no maps with odd keys");
    let first = &json["rows"][0];
    for field in ["figure", "device", "guest_load", "host_load", "guest_scheduler"] {
        assert!(!first[field].is_null(), "{field}");
    }
    assert!(first["startup_mean_s"].is_null() && first["throughput_mb_s"].is_f64());
    let page = report.html().expect("a picture in memory");
    assert_eq!(page.matches("<svg").count(), 2);
    assert!(page.contains("Figure 4.") && !page.contains("Figure 5."));
}
