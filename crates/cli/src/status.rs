//! `evenkeel status`: the running daemon, seen through its API.

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_server::api::Client;
use evenkeel_wire::agent::Level;
use evenkeel_wire::status::{
    DiskStatus, FlightStatus, GovernorStatus, Latency, LimitStatus, LooksStatus, PollingStatus,
    PoolStatus, PrecedenceStatus, Status, TraceStatus,
};
use evenkeel_wire::{format_limit, format_size};

use crate::args::{Format, StatusArgs};
use crate::failure::{Failure, Outcome};
use crate::{explain, place, print};

pub(crate) fn run(args: &StatusArgs) -> Outcome<()> {
    let client = Client::new(&place::api(&args.place)?);
    if args.explain {
        return explain::run(&client, args.format);
    }
    let status = client.status().map_err(Failure::work)?;
    print(&match args.format {
        Format::Json => serde_json::to_string_pretty(&status).map_err(Failure::work)? + "\n",
        Format::Table => table(&status),
    })
}

/// The columns: heading and width. Names go left, figures right.
const COLUMNS: [(&str, usize); 11] = [
    ("DISK", 16),
    ("VM", 16),
    ("STATE", 9),
    ("SIZE", 8),
    ("WEIGHT", 8),
    ("REQUESTS", 11),
    ("MIB", 10),
    ("ERRORS", 7),
    ("NOW", 9),
    ("QUEUE µs", 17),
    ("SERVICE µs", 17),
];
/// So many columns are names.
const NAMES: usize = 3;

fn table(status: &Status) -> String {
    let mut text = String::new();
    for pool in &status.pools {
        heading(&mut text, pool);
        row(&mut text, &COLUMNS.map(|(name, _)| name.to_owned()));
        for disk in &pool.disks {
            row(&mut text, &cells(disk));
        }
        limit_rows(&mut text, pool);
        full_rows(&mut text, pool);
        trace_row(&mut text, pool);
        text.push('\n');
    }
    text.push_str(
        "NOW: at the device + waiting. WEIGHT*: raised now; !: its agent asked. \
         QUEUE, SERVICE: median / 99 %.\n",
    );
    text
}

fn heading(text: &mut String, pool: &PoolStatus) {
    let PoolStatus { name, scheduler, device, depth, in_flight, waiting, .. } = pool;
    let PoolStatus { block, responses, commands_per_block, requests_per_system_call, .. } = pool;
    let profile = pool.profile.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let _infallible = writeln!(
        text,
        "pool {name}: {scheduler}{profile} on {device}, {in_flight} of {depth} at the device, \
         {waiting} waiting\n\
         blocks {block}, answers {responses}: {commands_per_block:.1} commands per block, \
         {requests_per_system_call:.1} requests per system call"
    );
    let PoolStatus { kicks_per_request, interrupts_per_request, .. } = pool;
    let _infallible = writeln!(
        text,
        "exits: {kicks_per_request:.2} kicks and {interrupts_per_request:.2} interrupts per request"
    );
    if let Some(cpus) = &pool.cpus {
        let _infallible = writeln!(text, "worker on processors {cpus}");
    }
    if let Some(governor) = &pool.governor {
        let _infallible = writeln!(text, "{}", governor_line(governor));
    }
    if let Some(polling) = &pool.polling {
        let _infallible = writeln!(text, "{}", polling_line(polling));
    }
    if pool.device_priority != "none" && !pool.device_priority.is_empty() {
        let PrecedenceStatus { soft_real_time, interactive, ordinary, background } = pool.commands;
        let _infallible = writeln!(
            text,
            "device priority {}: commands {soft_real_time} soft real-time, {interactive} \
             interactive, {ordinary} ordinary, {background} background",
            pool.device_priority
        );
    }
    if !pool.tunables.is_empty() {
        let set: Vec<_> =
            pool.tunables.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let _infallible = writeln!(text, "  {}", set.join(" "));
    }
}

fn governor_line(governor: &GovernorStatus) -> String {
    let flight = |flight: &FlightStatus| {
        let FlightStatus { commands, bytes } = *flight;
        format!("{commands} short or {} KiB of long", bytes >> 10)
    };
    let GovernorStatus { reads, writes, narrow, alone, searches } = governor;
    let why = match (narrow, alone) {
        (true, _) => ", narrow for who waits for each answer",
        (false, true) => ", wide for who is alone",
        (false, false) => "",
    };
    format!(
        "governor, {searches} searches: at a time reads {}, writes {}{why}",
        flight(reads),
        flight(writes)
    )
}

fn polling_line(polling: &PollingStatus) -> String {
    let looks = |LooksStatus { window_us, looks, paid, time_us, .. }: LooksStatus| {
        let seconds = Duration::from_micros(time_us).as_secs_f64();
        format!("{window_us} us, {paid} of {looks} paid, {seconds:.1} s")
    };
    let PollingStatus { most_us, device, guest } = *polling;
    format!(
        "polling, at most {most_us} us: for the device {}; for guests {}",
        looks(device),
        looks(guest)
    )
}

/// Adds a line for each part of the pool with limits or reservations, or which others held up.
fn limit_rows(text: &mut String, pool: &PoolStatus) {
    let groups = pool.groups.iter().map(|group| ("group ", group.name.as_str(), &group.limits));
    let vms = pool.vms.iter().map(|vm| ("VM ", vm.name.as_str(), &vm.limits));
    let disks = pool.disks.iter().map(|disk| ("disk ", disk.name.as_str(), &disk.limits));
    let all = [("pool ", pool.name.as_str(), &pool.limits)];
    for (kind, name, limits) in all.into_iter().chain(groups).chain(vms).chain(disks) {
        if limits.set.is_empty() && limits.delayed == 0 {
            continue;
        }
        let set =
            limits.set.iter().map(|(key, value)| format!(" {key}={}", format_limit(key, *value)));
        let LimitStatus { held, delayed, throttled_us, .. } = limits;
        let seconds = Duration::from_micros(*throttled_us).as_secs_f64();
        let _infallible = writeln!(
            text,
            "  {kind}{name}:{} (throttled {seconds:.1} s, {delayed} requests; {held} now)",
            set.collect::<String>()
        );
    }
}

/// Adds a line for each disk whose writes found the file system full.
fn full_rows(text: &mut String, pool: &PoolStatus) {
    for DiskStatus { name, path, no_room, .. } in &pool.disks {
        if *no_room > 0 {
            let _infallible = writeln!(
                text,
                "  disk {name}: {no_room} writes wait for room on the file system of {path}; \
                 make some, and they go on"
            );
        }
    }
}

/// Adds a line on the trace that the pool's requests are recorded in.
fn trace_row(text: &mut String, pool: &PoolStatus) {
    let Some(TraceStatus { path, requests, dropped, bytes, ended }) = &pool.trace else { return };
    let mib = bytes >> 20;
    let _infallible = write!(text, "  trace {path}: {requests} requests, {mib} MiB");
    if *dropped > 0 {
        let _infallible = write!(text, ", {dropped} dropped: its disk is too slow");
    }
    if let Some(why) = ended {
        let _infallible = write!(text, ", ended early: {why}");
    }
    text.push('\n');
}

fn cells(disk: &DiskStatus) -> [String; COLUMNS.len()] {
    let raised = if disk.raised { "*" } else { "" };
    let helped = disk.help.as_ref().is_some_and(|help| help.level != Level::None);
    let helped = if helped { "!" } else { "" };
    [
        disk.name.clone(),
        disk.vm.clone(),
        if disk.connected { "connected" } else { "free" }.to_owned(),
        format_size(disk.size_bytes),
        format!("{}{raised}{helped}", disk.weight),
        disk.requests.to_string(),
        (disk.bytes >> 20).to_string(),
        disk.errors.to_string(),
        format!("{}+{}", disk.in_flight, disk.waiting),
        pair(&disk.queue_time),
        pair(&disk.service_time),
    ]
}

fn pair(latency: &Latency) -> String {
    format!("{:.0} / {:.0}", latency.p50_us, latency.p99_us)
}

fn row(text: &mut String, cells: &[String; COLUMNS.len()]) {
    let mut line = String::new();
    for (index, (cell, (_, width))) in cells.iter().zip(COLUMNS).enumerate() {
        let _infallible = if index < NAMES {
            write!(line, "{cell:width$} ")
        } else {
            write!(line, "{cell:>width$} ")
        };
    }
    text.push_str(line.trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use evenkeel_wire::TunableValue;
    use evenkeel_wire::status::GroupStatus;

    use super::*;

    #[test]
    fn how_the_worker_polls_has_a_line() {
        let device =
            LooksStatus { window_us: 64, looks: 10, paid: 9, time_us: 1_250_000, rests: 1 };
        let polling = PollingStatus { most_us: 200, device, guest: LooksStatus::default() };
        let line = "polling, at most 200 us: for the device 64 us, 9 of 10 paid, 1.2 s; \
                    for guests 0 us, 0 of 0 paid, 0.0 s";
        assert_eq!(polling_line(&polling), line);
    }

    #[test]
    fn what_the_governor_has_decided_has_a_line() {
        let flight = |commands, bytes| FlightStatus { commands, bytes };
        let governor = GovernorStatus {
            reads: flight(32, 256 << 10),
            writes: flight(4, 1 << 20),
            narrow: true,
            alone: false,
            searches: 7,
        };
        assert_eq!(
            governor_line(&governor),
            "governor, 7 searches: at a time reads 32 short or 256 KiB of long, writes 4 short or \
             1024 KiB of long, narrow for who waits for each answer"
        );
        let wide = GovernorStatus { narrow: false, alone: true, ..governor };
        assert!(governor_line(&wide).ends_with("of long, wide for who is alone"));
        let pool = PoolStatus { governor: Some(governor), ..PoolStatus::default() };
        let text = table(&Status { pools: vec![pool], ..Status::default() });
        assert!(text.contains("\ngovernor, 7 searches"), "{text}");
    }

    #[test]
    fn the_table_has_a_line_for_each_disk() {
        let disk = DiskStatus {
            name: "web".to_owned(),
            vm: "shop".to_owned(),
            size_bytes: 10 << 30,
            weight: 300,
            raised: true,
            connected: true,
            requests: 12,
            bytes: 3 << 20,
            in_flight: 2,
            waiting: 5,
            queue_time: Latency { p50_us: 10.4, p99_us: 99.6, ..Latency::default() },
            ..DiskStatus::default()
        };
        let pool = PoolStatus {
            name: "main".to_owned(),
            scheduler: "bfq".to_owned(),
            device: "hdd".to_owned(),
            depth: 32,
            block: "dynamic".to_owned(),
            responses: "each".to_owned(),
            commands_per_block: 3.26,
            requests_per_system_call: 2.0,
            kicks_per_request: 0.966,
            interrupts_per_request: 0.03,
            disks: vec![disk],
            ..PoolStatus::default()
        };
        let set = PoolStatus {
            profile: Some("batch".to_owned()),
            tunables: [("bfq.low_latency".to_owned(), TunableValue::Flag(false))].into(),
            ..pool.clone()
        };
        let text = table(&Status { pools: vec![set], ..Status::default() });
        assert!(text.starts_with("pool main: bfq (batch) on hdd, "), "{text}");
        assert!(text.contains("\n  bfq.low_latency=false\n"), "{text}");
        let text = table(&Status { pools: vec![pool], ..Status::default() });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "pool main: bfq on hdd, 0 of 32 at the device, 0 waiting");
        assert_eq!(
            lines[1],
            "blocks dynamic, answers each: 3.3 commands per block, 2.0 requests per system call"
        );
        assert_eq!(lines[2], "exits: 0.97 kicks and 0.03 interrupts per request");
        let words: Vec<&str> = lines[4].split_whitespace().collect();
        assert_eq!(
            words,
            [
                "web",
                "shop",
                "connected",
                "10G",
                "300*",
                "12",
                "3",
                "0",
                "2+5",
                "10",
                "/",
                "100",
                "0",
                "/",
                "0"
            ]
        );
    }

    #[test]
    fn a_full_file_system_has_a_line_with_what_to_do() {
        let disk = |name: &str, no_room| DiskStatus {
            name: name.to_owned(),
            path: format!("/images/{name}.img"),
            no_room,
            ..DiskStatus::default()
        };
        let pool =
            PoolStatus { disks: vec![disk("web", 3), disk("db", 0)], ..PoolStatus::default() };
        let text = table(&Status { pools: vec![pool], ..Status::default() });
        let lines: Vec<_> = text.lines().filter(|line| line.contains("wait for room")).collect();
        assert_eq!(
            lines,
            ["  disk web: 3 writes wait for room on the file system of /images/web.img; \
              make some, and they go on"]
        );
    }

    #[test]
    fn a_trace_has_a_line_that_tells_what_is_missing() {
        let trace = TraceStatus {
            path: "/var/log/main.trace".to_owned(),
            requests: 120_000,
            bytes: 3 << 20,
            ..TraceStatus::default()
        };
        let line = |trace: &TraceStatus| {
            let trace = Some(trace.clone());
            let mut text = String::new();
            trace_row(&mut text, &PoolStatus { trace, ..PoolStatus::default() });
            text
        };
        let good = "  trace /var/log/main.trace: 120000 requests, 3 MiB";
        assert_eq!(line(&trace), format!("{good}\n"));
        let ended = Some("No space left on device (os error 28)".to_owned());
        assert_eq!(
            line(&TraceStatus { dropped: 7, ended, ..trace }),
            format!(
                "{good}, 7 dropped: its disk is too slow, \
                 ended early: No space left on device (os error 28)\n"
            )
        );
    }

    #[test]
    fn limits_have_a_line_with_what_they_held_up() {
        let shop = GroupStatus {
            name: "shop".to_owned(),
            limits: LimitStatus {
                set: [("total_bytes_sec".to_owned(), 10 << 20)].into(),
                held: 3,
                delayed: 70,
                throttled_us: 1_520_000,
            },
            ..GroupStatus::default()
        };
        let limited = PoolStatus { vms: vec![shop], ..PoolStatus::default() };
        let text = table(&Status { pools: vec![limited], ..Status::default() });
        let line = "\n  VM shop: total_bytes_sec=10M (throttled 1.5 s, 70 requests; 3 now)\n";
        assert!(text.contains(line), "{text}");
    }
}
