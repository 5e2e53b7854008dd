//! The shapes of the papers on KVM come out of the mechanisms.

use evenkeel_sim::practice::{PracticeOptions, run};

#[test]
fn schedulers_devices_and_partitions_rank_as_in_the_papers() {
    let report = run(&PracticeOptions { span_ms: 200 });
    let rate = |figure: &str, variant: &str, workload: &str, threads: u32| {
        let wanted = (figure, variant, workload, threads);
        let mut rows = report.rows.iter();
        let row = rows.find(|row| (row.figure, row.variant, row.workload, row.threads) == wanted);
        row.expect("a complete run has it").mb_per_second
    };
    for threads in [8, 16] {
        for figure in ["schedulers", "guest-schedulers"] {
            for workload in ["create", "sequential-read"] {
                let of = |variant| rate(figure, variant, workload, threads);
                let [deadline, cfq, tuned] = [of("deadline"), of("cfq"), of("cfq-tuned")];
                let what = format!("{figure}, {workload}, {threads}: {deadline} {cfq} {tuned}");
                assert!(deadline > 1.5 * cfq, "{what}");
                assert!(tuned > 1.5 * cfq && tuned <= 1.02 * deadline, "{what}");
            }
        }
        for workload in ["create", "sequential-read", "random-read", "random-write", "mail"] {
            let of = |variant| rate("virtio", variant, workload, threads);
            assert!(of("virtio") > 1.5 * of("ide"), "{workload}, {threads} threads");
        }
    }
}
