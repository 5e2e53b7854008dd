//! Files of single runs, and the summary over them, for `--format suite`.
//!
//! Names follow the scheme that D3.6, section 7.4, asks for: a function of the parameters of the
//! scenario, those of a benchmark without virtualization first and unchanged, so that tools that
//! only know them read a prefix; scheduler and load of the host come behind.

use std::fmt::Write as _;

use evenkeel_sim::d36::GuestLoad;

use super::{Measured, Scenario, Where};
use crate::stats::Summary;

/// Returns the name of the file of one single run.
pub(super) fn file(scenario: &Scenario, subject: &str, figure: &str, repeat: usize) -> String {
    let Scenario { device, guest_scheduler, scheduler, coordination, .. } = scenario;
    let subject = if subject.is_empty() { String::new() } else { format!("-{}", plain(subject)) };
    let own = format!("{guest_scheduler}-{}{subject}", counts(scenario.guest_load));
    if scenario.place == Where::Host {
        return format!("{own}-{}-{figure}-{repeat}.txt", plain(device));
    }
    format!(
        "{own}-host-{scheduler}-{}-{}-{coordination}-{figure}-{repeat}.txt",
        counts(scenario.host_load),
        plain(device)
    )
}

/// Returns readers, writers and order, always all three: `5r0w-rand`.
fn counts(load: GuestLoad) -> String {
    let order = if load.random { "rand" } else { "seq" };
    format!("{}r{}w-{order}", load.readers, load.writers)
}

/// Returns text that may stand in a file's name.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for char in text.chars() {
        let is_plain = char.is_ascii_alphanumeric() || char == '.' || char == '=';
        let char = if is_plain { char } else { '_' };
        if char != '_' || !plain.ends_with('_') {
            plain.push(char);
        }
    }
    plain.chars().take(40).collect()
}

/// Returns the line that describes a scenario.
pub(super) fn title(scenario: &Scenario, subject: &str) -> String {
    let Scenario { device, guest_load, host_load, guest_scheduler, scheduler, .. } = scenario;
    let subject = if subject.is_empty() { String::new() } else { format!("{subject}, ") };
    let own = format!("{subject}{device}: scheduler {guest_scheduler}, workload {guest_load}");
    if scenario.place == Where::Host {
        return format!("{own}; on the host");
    }
    let coordination = scenario.coordination;
    format!(
        "{own}; host scheduler {scheduler}, host workload {host_load}; coordination {coordination}"
    )
}

/// Returns the text of a single run: its samples, then their statistics.
pub(super) fn single(title: &str, run: &Measured, unit: &str) -> String {
    let mut text = format!("{title}\n");
    for (number, sample) in (1..).zip(&run.samples) {
        let _infallible = writeln!(text, "{number:>4}: {sample:.3} {unit}");
    }
    text.push_str(&match run.summary() {
        Some(summary) => figures(&summary, unit),
        None => "aborted: more than 60 s\n".to_owned(),
    });
    text
}

/// Returns the statistics over all repetitions of a scenario.
pub(super) fn overall(title: &str, runs: &[Measured], unit: &str) -> String {
    let means: Vec<f64> =
        runs.iter().filter_map(Measured::summary).map(|summary| summary.mean).collect();
    let aborted = runs.iter().filter(|run| run.failed).count();
    let mut text = format!("{title}\n{} repetitions, {aborted} aborted\n", runs.len());
    match Summary::of(&means) {
        Some(summary) => text.push_str(&figures(&summary, unit)),
        None => text.push_str("no repetition was completed\n"),
    }
    text.push('\n');
    text
}

fn figures(summary: &Summary, unit: &str) -> String {
    let Summary { min, max, mean, deviation, ci95, .. } = summary;
    format!(
        "{:>12}{:>12}{:>12}{:>12}{:>12}  {unit}\n\
         {min:>12.3}{max:>12.3}{mean:>12.3}{deviation:>12.3}{ci95:>12.3}\n",
        "min", "max", "avg", "std_dev", "conf95%"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::Coordination;

    fn scenario() -> Scenario {
        Scenario {
            place: Where::Guest,
            device: "hdd:rpm=5400".to_owned(),
            guest_load: GuestLoad::readers(5, true),
            host_load: GuestLoad::NONE,
            guest_scheduler: "mq-deadline".to_owned(),
            scheduler: "bfq".to_owned(),
            coordination: Coordination::All,
        }
    }

    #[test]
    fn a_file_is_named_by_everything_that_tells_its_scenario_from_others() {
        let name = |subject| file(&scenario(), subject, "startup", 3);
        assert_eq!(
            name("xterm"),
            "mq-deadline-5r0w-rand-xterm-host-bfq-0r0w-seq-hdd_rpm=5400-all-startup-3.txt"
        );
        assert!(name("sort ../../etc/passwd").contains("-sort_.._.._etc_passwd-"));
        assert!(file(&scenario(), "", "throughput", 1).starts_with("mq-deadline-5r0w-rand-host-"));
    }

    #[test]
    fn on_the_host_nothing_is_named_that_only_virtualization_has() {
        let scenario = Scenario { place: Where::Host, device: "real".to_owned(), ..scenario() };
        let name = file(&scenario, "xterm", "startup", 3);
        assert_eq!(name, "mq-deadline-5r0w-rand-xterm-real-startup-3.txt");
        let title = title(&scenario, "xterm");
        assert_eq!(title, "xterm, real: scheduler mq-deadline, workload 5r-rand; on the host");
    }

    #[test]
    fn overall_statistics_are_those_of_the_means_below_a_line_about_the_host() {
        let run = |samples: &[f64]| Measured { samples: samples.to_vec(), ..Measured::default() };
        let aborted = Measured { samples: vec![1.0], failed: true, ..Measured::default() };
        let runs = [run(&[1.0, 3.0]), aborted, run(&[3.0, 5.0])];
        let text = overall(&title(&scenario(), "xterm"), &runs, "ms");
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("host scheduler bfq, host workload none"), "{text}");
        assert_eq!(lines[1], "3 repetitions, 1 aborted");
        let figures: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(figures[..3], ["2.000", "4.000", "3.000"]);
    }
}
