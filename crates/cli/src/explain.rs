//! `evenkeel status --explain`: who waited for whom.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_server::api::Client;
use evenkeel_wire::status::{DiskExplain, Explain, Latency, PoolExplain, VmExplain};

use crate::args::Format;
use crate::failure::{Failure, Outcome};
use crate::print;

pub(crate) fn run(client: &Client, format: Format) -> Outcome<()> {
    let explain = client.explain().map_err(Failure::work)?;
    print(&match format {
        Format::Json => serde_json::to_string_pretty(&explain).map_err(Failure::work)? + "\n",
        Format::Table => table(&explain),
    })
}

fn table(explain: &Explain) -> String {
    let mut text = String::new();
    explain.pools.iter().for_each(|pool| pool_rows(&mut text, pool));
    text.push_str(
        "Since the start. WAITED, SERVED: sums over all requests, so ten that wait together for 1 s \
         waited 10 s.\nBECAUSE OF: a VM while it held the device; own requests while they held it \
         or were in the way of another.\ndisk: half within / 99 % within / all together.\n",
    );
    text
}

fn pool_rows(text: &mut String, pool: &PoolExplain) {
    let PoolExplain { name, scheduler, vms } = pool;
    let _infallible = writeln!(text, "pool {name}: {scheduler}");
    row(text, ["VM", "WAITED", "SERVED", "BECAUSE OF", "TIME", "SHARE"]);
    for vm in vms {
        vm_rows(text, vm);
    }
    for vm in vms {
        for disk in &vm.disks {
            disk_row(text, disk);
        }
        if vm.kept_ns > 0 {
            let kept = time(vm.kept_ns);
            let _infallible = writeln!(text, "  VM {}: device kept idle {kept} for it", vm.name);
        }
        if vm.ahead_ns > 0 {
            let ahead = time(vm.ahead_ns);
            let until = if vm.owes { ", raised for short starts alone until less is" } else { "" };
            let _infallible = writeln!(
                text,
                "  VM {}: ahead of its share by {ahead} now, to be given back{until}",
                vm.name
            );
        }
    }
    text.push('\n');
}

/// Adds a line for each cause of a VM's waits, the longest first.
fn vm_rows(text: &mut String, vm: &VmExplain) {
    let mut causes: Vec<(String, u64)> = vec![
        ("own requests".to_owned(), vm.own_ns),
        ("limits".to_owned(), vm.limited_ns),
        ("device kept idle".to_owned(), vm.idled_ns),
        ("block not full yet".to_owned(), vm.gathered_ns),
        ("other VMs, together".to_owned(), vm.others_ns),
    ];
    causes.extend(vm.blames.iter().map(|blame| (format!("VM {}", blame.vm), blame.held_ns)));
    causes.retain(|(_, ns)| *ns > 0);
    causes.sort_by_key(|(_, ns)| Reverse(*ns));
    let (waited, served) = (time(vm.waited_ns), time(vm.served_ns));
    let mut head = [&*vm.name, &*waited, &*served];
    if causes.is_empty() {
        row(text, [head[0], head[1], head[2], "-", "", ""]);
    }
    for (cause, ns) in &causes {
        row(text, [head[0], head[1], head[2], cause, &time(*ns), &share(*ns, vm.waited_ns)]);
        head = [""; 3];
    }
}

fn row(text: &mut String, [vm, waited, served, cause, time, share]: [&str; 6]) {
    let line = format!("{vm:<16} {waited:>10} {served:>10}  {cause:<24} {time:>10} {share:>8}");
    text.push_str(line.trim_end());
    text.push('\n');
}

fn disk_row(text: &mut String, disk: &DiskExplain) {
    let DiskExplain { name, requests, queue_time, service_time } = disk;
    let (waited, served) = (spread(queue_time), spread(service_time));
    let _infallible =
        writeln!(text, "  disk {name}: {requests} requests waited {waited}, were served {served}");
}

fn spread(latency: &Latency) -> String {
    let micros = |us: f64| {
        time(u64::try_from(Duration::from_secs_f64(us / 1e6).as_nanos()).unwrap_or(u64::MAX))
    };
    let Latency { p50_us, p99_us, total_us, .. } = latency;
    format!("{} / {} / {}", micros(*p50_us), micros(*p99_us), micros(*total_us))
}

/// Returns a share in per cent.
fn share(part: u64, whole: u64) -> String {
    let per_mille = u128::from(part) * 1000 / u128::from(whole.max(1));
    format!("{}.{} %", per_mille / 10, per_mille % 10)
}

/// Returns a time with about three digits.
fn time(ns: u64) -> String {
    let seconds = Duration::from_nanos(ns).as_secs_f64();
    match ns {
        0 => "0".to_owned(),
        1..1_000_000 => format!("{:.0} µs", (seconds * 1e6).ceil()),
        1_000_000..1_000_000_000 => format!("{:.1} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_wire::status::BlameStatus;

    use super::*;

    #[test]
    fn a_vm_gets_a_line_for_each_cause_with_the_longest_first() {
        let blame = |vm: &str, held_ns| BlameStatus { vm: vm.to_owned(), held_ns };
        let latency =
            |p50_us, p99_us, total_us| Latency { p50_us, p99_us, total_us, ..Latency::default() };
        let web = VmExplain {
            name: "web".to_owned(),
            waited_ns: 12_300_000_000,
            limited_ns: 5_000,
            served_ns: 1_500_000,
            own_ns: 900_000_000,
            idled_ns: 299_995_000,
            kept_ns: 70_000_000,
            ahead_ns: 12_500_000_000,
            blames: vec![blame("db", 9_100_000_000), blame("backup", 2_000_000_000)],
            disks: vec![DiskExplain {
                name: "root".to_owned(),
                requests: 12,
                queue_time: latency(1_000_000.0, 2_000_000.0, 12_300_000.0),
                service_time: latency(125.0, 130.0, 1500.0),
            }],
            ..VmExplain::default()
        };
        let (name, ahead_ns) = ("idle".to_owned(), 40_000_000_000);
        let idle = VmExplain { name, ahead_ns, owes: true, ..VmExplain::default() };
        let pool = PoolExplain {
            name: "main".to_owned(),
            scheduler: "bfq".to_owned(),
            vms: vec![idle, web],
        };
        let mut text = String::new();
        pool_rows(&mut text, &pool);
        assert_eq!(
            text,
            "\
pool main: bfq
VM                   WAITED     SERVED  BECAUSE OF                     TIME    SHARE
idle                      0          0  -
web                  12.3 s     1.5 ms  VM db                         9.1 s   73.9 %
                                        VM backup                     2.0 s   16.2 %
                                        own requests               900.0 ms    7.3 %
                                        device kept idle           300.0 ms    2.4 %
                                        limits                         5 µs    0.0 %
  VM idle: ahead of its share by 40.0 s now, to be given back, raised for short starts alone until less is
  disk root: 12 requests waited 1.0 s / 2.0 s / 12.3 s, were served 125 µs / 130 µs / 1.5 ms
  VM web: device kept idle 70.0 ms for it
  VM web: ahead of its share by 12.5 s now, to be given back

"
        );
    }
}
