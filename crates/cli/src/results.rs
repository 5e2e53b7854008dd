//! Keeps what a benchmark measured: a JSON document, and a page with its table.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;

use crate::args::Format;
use crate::bench::{show, table};
use crate::failure::{Failure, Outcome};

/// Prints a report, and writes it into `dir` if there is one: `bench-NAME.json`, `bench-NAME.md`.
pub(crate) fn finish(
    name: &str,
    format: Format,
    report: &impl Serialize,
    dir: Option<&Path>,
) -> Outcome<()> {
    if let Some(dir) = dir {
        write(name, report, dir).map_err(Failure::Work)?;
    }
    show(format, report, table)
}

fn write(name: &str, report: &impl Serialize, dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    let page =
        page(name, &command(env::args()), &machine(), &table(&serde_json::to_value(report)?));
    for (end, text) in [("json", json), ("md", page)] {
        let path = dir.join(format!("bench-{name}.{end}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn page(name: &str, command: &str, machine: &str, table: &str) -> String {
    let rows: String = table.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "# evenkeel bench {name}\n\nWritten by `{command}` on {machine}.\n\
         [performance.md](../performance.md) says what the columns mean, and how to measure.\n\n{rows}"
    )
}

/// Returns the command line, with the program by its name alone.
fn command(arguments: impl Iterator<Item = String>) -> String {
    ["evenkeel".to_owned()].into_iter().chain(arguments.skip(1)).collect::<Vec<_>>().join(" ")
}

/// Says in a few words what the machine is, and how busy it was in the last quarter of an hour: one
/// that was busy makes figures that are worth little.
fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu_info = read("/proc/cpuinfo");
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let model = model.trim_start_matches([' ', '\t', ':']);
    let kernel = read("/proc/sys/kernel/osrelease");
    let loads = read("/proc/loadavg");
    let load = loads.split(' ').nth(2).unwrap_or("unknown");
    let kernel = kernel.trim();
    format!("{cpus} CPUs ({model}), Linux {kernel}, load average of the last 15 minutes {load}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_tells_how_its_table_came_about() {
        let words = ["/x/y/evenkeel", "bench", "rate"].map(str::to_owned);
        let command = command(words.into_iter());
        assert_eq!(command, "evenkeel bench rate");
        let page = page("rate", &command, "2 CPUs", "server  iops\n  none     1\n");
        assert!(page.contains("`evenkeel bench rate` on 2 CPUs."), "{page}");
        assert!(page.ends_with("\n\n    server  iops\n      none     1\n"), "{page}");
    }

    #[test]
    fn the_machine_is_described_in_one_line() {
        let machine = machine();
        assert!(machine.contains(" CPUs") && machine.contains("Linux "), "{machine}");
        assert_eq!(machine.lines().count(), 1);
    }
}
