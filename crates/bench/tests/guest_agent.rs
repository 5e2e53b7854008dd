//! The agent in a real guest, and what it gets from the daemon.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is test code, outside of test functions"
)]

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use evenkeel_bench::lab::{Daemon, Guest, Lab};
use support::{Space, evenkeel, turn};

/// The agent of the sources as they are now.
fn agent_binary() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let found = BUILT.get_or_init(|| {
        if let Some(evenkeel) = std::env::var_os("EVENKEEL_BIN") {
            return PathBuf::from(evenkeel).with_file_name("evenkeel-agent");
        }
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--package", "evenkeel-agent"]);
        assert!(build.status().unwrap().success(), "evenkeel-agent does not build");
        let test = std::env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("evenkeel-agent")
    });
    assert!(found.is_file(), "{} is missing; run `make build`", found.display());
    found.clone()
}

fn lab_with_agent() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    LAB.get_or_init(|| {
        let agent = agent_binary();
        let programs = [agent.to_str().expect("the checkout's path is UTF-8")];
        Lab::prepare_with(&Lab::default_dir().unwrap(), &programs).unwrap()
    })
}

/// What the daemon says of the VM's help.
fn help(daemon: &Daemon) -> serde_json::Value {
    daemon.status().unwrap()["pools"][0]["disks"][0]["help"].clone()
}

/// Waits until the daemon's figures satisfy `is_so`; returns them.
fn wait_for(
    daemon: &Daemon,
    what: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    for _ in 0..600 {
        let figures = help(daemon);
        if is_so(&figures) {
            return figures;
        }
        thread::sleep(Duration::from_millis(100));
    }
    panic!("{what} did not come: {}", help(daemon));
}

fn number(figures: &serde_json::Value, field: &str) -> u64 {
    figures[field].as_u64().unwrap_or_else(|| panic!("no {field} in {figures}"))
}

struct Stage {
    _space: Space,
    daemon: Daemon,
    guest: Guest,
}

/// A guest whose disk is served by a daemon that trusts it, with a running agent. The disk is that
/// of a slow card: nobody reads so fast there that he has soon read all that he may with help.
fn stage(name: &str) -> Stage {
    let space = Space::new(name);
    let daemon = evenkeel()
        .disk("desk", space.path("desk.img"))
        .arg("--create=256M")
        .arg("--trust=interactive")
        .arg("--model=sdhc")
        .serve()
        .unwrap();
    let guest = lab_with_agent()
        .guest()
        .name(name)
        .disk(daemon.socket("desk"), 1)
        .agent_port(daemon.agent_socket("desk"))
        .reboots()
        .boot()
        .unwrap();
    guest.check("mkdir -p /run && evenkeel-agent serve >/tmp/agent.log 2>&1 & sleep 1").unwrap();
    Stage { _space: space, daemon, guest }
}

#[test]
fn a_program_that_starts_in_a_guest_is_helped_and_then_no_more() {
    let _turn = turn();
    let Stage { daemon, guest, .. } = stage("agent");
    let status = guest.check("evenkeel-agent status").unwrap();
    assert!(status.contains("connected") && status.contains("told by the kernel"), "{status}");
    // The guest's own start is over.
    let quiet = wait_for(&daemon, "quiet", |figures| figures["level"] == "none");
    let marked = "evenkeel-agent run -- \
                  sh -c 'ionice; dd if=/dev/vda of=/dev/null bs=4k count=500 iflag=direct 2>&1'";
    let marked = guest.check(marked).unwrap();
    assert!(marked.contains("best-effort: prio 0"), "{marked}");
    let before = number(&quiet, "helped_bytes");
    let during = wait_for(&daemon, "help", |figures| number(figures, "helped_bytes") > before);
    assert!(number(&during, "messages") > 0);
    let after = wait_for(&daemon, "the end of help", |figures| figures["level"] == "none");
    assert!(number(&after, "helped_ms") > 0, "{after}");
    // Whoever ends the agent finds priorities as they were.
    let ended = "evenkeel-agent run -- sleep 1000 >/dev/null 2>&1 & sleep 1; ionice -p $!; \
                 kill $(pidof evenkeel-agent); sleep 1; ionice -p $!; kill $!";
    let ended = guest.check(ended).unwrap();
    let lines: Vec<&str> = ended.lines().collect();
    assert!(
        lines.len() == 2 && lines[0] == "best-effort: prio 0" && lines[1] != lines[0],
        "{ended}"
    );
    guest.poweroff().unwrap();
}

#[test]
fn help_ends_by_itself_when_the_agent_is_killed_or_the_guest_floods_its_port() {
    let _turn = turn();
    let Stage { daemon, guest, .. } = stage("killed");
    // Killed while a program that it helps reads.
    let kill = "evenkeel-agent run -- dd if=/dev/vda of=/dev/null bs=4k iflag=direct \
                >/dev/null 2>&1 & sleep 2; killall -9 evenkeel-agent; killall dd; true";
    guest.check(kill).unwrap();
    let after = wait_for(&daemon, "the end of help", |figures| figures["level"] == "none");
    assert!(number(&after, "helped_ms") > 0, "{after}");
    assert!(number(&after, "expired") > 0, "the lease ended it: {after}");

    let messages = number(&after, "messages");
    let flood = "port=/dev/$(grep -l org.evenkeel.agent.0 /sys/class/virtio-ports/*/name | \
                 cut -d/ -f5); yes garbage | head -c 4000000 > $port; \
                 head -c 1000000 /dev/urandom > $port; echo done";
    assert_eq!(guest.check(flood).unwrap(), "done");
    let flooded = help(&daemon);
    assert_eq!((number(&flooded, "messages"), &flooded["level"]), (messages, &"none".into()));
    // The disk has not noticed, and the next agent is heard.
    guest.check("dd if=/dev/vda of=/dev/null bs=1M count=16 iflag=direct").unwrap();
    guest.check("evenkeel-agent serve >/tmp/agent.log 2>&1 & sleep 1").unwrap();
    guest.check("evenkeel-agent run -- true").unwrap();
    wait_for(&daemon, "help for the next agent", |figures| number(figures, "messages") > messages);
    guest.poweroff().unwrap();
}

/// Starts the agent and a program that it helps, which reads until somebody ends it.
const HELPED: &str = "mkdir -p /run; evenkeel-agent serve >/tmp/agent.log 2>&1 & sleep 1; \
     evenkeel-agent run -- dd if=/dev/vda of=/dev/null bs=4k iflag=direct >/dev/null 2>&1 & true";

#[test]
fn help_ends_by_itself_when_the_guest_pauses_or_reboots() {
    let _turn = turn();
    let Stage { daemon, guest, .. } = stage("paused");
    guest.check("killall evenkeel-agent").unwrap();
    for what in ["pauses", "reboots"] {
        guest.check(HELPED).unwrap();
        wait_for(&daemon, "help", |figures| figures["level"] == "interactive");
        let before = number(&help(&daemon), "expired");
        let since = Instant::now();
        match what {
            "pauses" => guest.pause().unwrap(),
            _ => guest.reboot().unwrap(),
        }
        let after = wait_for(&daemon, "the end of help", |figures| figures["level"] == "none");
        println!("{what}: help ended within {:?}", since.elapsed());
        match what {
            "pauses" => {
                assert!(number(&after, "expired") > before, "the lease ended it: {after}");
                guest.resume().unwrap();
                // It goes on as if nothing had been.
                guest.check("killall dd; killall evenkeel-agent").unwrap();
            }
            _ => guest.ready().unwrap(),
        }
    }
    // The agent of the new start counts from the beginning, and is heard.
    guest.check(HELPED).unwrap();
    wait_for(&daemon, "help after the reboot", |figures| figures["level"] == "interactive");
    guest.check("dd if=/dev/vda of=/dev/null bs=1M count=16 iflag=direct").unwrap();
    guest.poweroff().unwrap();
}

#[test]
fn the_agent_takes_little_of_the_processor() {
    let _turn = turn();
    let Stage { daemon: _served, guest, .. } = stage("frugal");
    let busy = "for reader in 1 2 3 4 5; do \
                (while :; do dd if=/dev/vda of=/dev/null bs=4k count=2000 iflag=direct; done) \
                >/dev/null 2>&1 & done; true";
    // An emulated processor is some thirty times slower at this than a real one, and may be busy
    // with something else: a yardstick of the same kind of work runs beside the agent, a little of
    // it each second. A step took 10.6 us of a real processor, so that 940 a second were 1 %.
    let yardstick = "sh -c 'for second in $(seq 20); do i=0; while [ $i -lt 100 ]; do \
                     read x < /proc/1/io; i=$((i+1)); done; sleep 1; done; times'";
    let agent = "cat /proc/$(pidof evenkeel-agent)/schedstat /proc/uptime";
    for (what, load) in [("idle", "true"), ("beside five readers", busy)] {
        guest.check(load).unwrap();
        let text = guest.check(&format!("{agent}; {yardstick}; {agent}")).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let first = |line: &str| line.split(' ').next().unwrap().parse::<f64>().unwrap();
        let seconds = first(lines[5]) - first(lines[1]);
        let agent = (first(lines[4]) - first(lines[0])) / 1e9 / seconds;
        // The shell's own user and system time; that of its children is in the next line.
        let shell: f64 = lines[2].split(' ').map(minutes_and_seconds).sum();
        let steps = agent / (shell / 2_000.0);
        println!(
            "{what}: the agent takes {:.3} % of the processor, as much as {steps:.0} steps of \
             the yardstick a second",
            agent * 100.0
        );
        assert!(steps < 500.0, "{what}: {text}");
    }
    guest.kill().unwrap();
}

/// Reads a time as `times` prints it, `0m1.25s`; returns seconds.
fn minutes_and_seconds(text: &str) -> f64 {
    let (minutes, seconds) = text.trim_end_matches('s').split_once('m').unwrap();
    minutes.parse::<f64>().unwrap() * 60.0 + seconds.parse::<f64>().unwrap()
}
