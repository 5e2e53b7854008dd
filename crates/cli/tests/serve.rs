//! A daemon from start to end: announced, asked, changed, ended.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use evenkeel_bench::client::{Client, Io, IoOp, Options};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const EVENKEEL: &str = env!("CARGO_BIN_EXE_evenkeel");

/// A daemon in a directory of its own; both go away with the test.
struct Daemon {
    dir: PathBuf,
    process: Child,
    announced: String,
}

impl Daemon {
    /// Starts one and waits for the last line of its announcement.
    fn start(name: &str, args: &[&str]) -> Self {
        Self::start_by(Command::new(EVENKEEL), name, args)
    }

    /// The same, by a command that runs it with the arguments that it is given.
    fn start_by(mut command: Command, name: &str, args: &[&str]) -> Self {
        let dir =
            std::env::temp_dir().join(format!("evenkeel-serve-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("the temporary directory is writable");
        let mut process = command
            .arg("serve")
            .arg("--socket-dir")
            .arg(&dir)
            .args(args)
            .current_dir(&dir)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped"));
        let mut announced = String::new();
        while !announced.contains("evenkeel connect") {
            let read = lines.read_line(&mut announced).expect("it prints UTF-8");
            assert_ne!(read, 0, "it ended before it had announced its disks");
        }
        Self { dir, process, announced }
    }

    fn ask(&self, args: &[&str]) -> Output {
        let mut command = Command::new(EVENKEEL);
        command.args(args).arg("--socket-dir").arg(&self.dir).output().expect("it starts")
    }

    fn status(&self) -> Value {
        let output = self.ask(&["status", "--format", "json"]);
        assert_eq!(output.status.code(), Some(0));
        serde_json::from_slice(&output.stdout).expect("it prints one JSON document")
    }

    /// Sends SIGTERM and returns the exit status.
    fn end(&mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), Signal::TERM).expect("it runs");
        self.process.wait().expect("it is ours").code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the directory is there");
    let names = entries.map(|entry| entry.expect("it is readable").file_name());
    let mut names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_disk_is_announced_with_its_socket_and_the_arguments_of_qemu() {
    let daemon = Daemon::start("announce", &["web=null:1G", "db=null:2G"]);
    for name in ["web", "db"] {
        let socket = daemon.dir.join(format!("{name}.sock"));
        let socket = socket.display();
        assert!(daemon.announced.contains(&format!("{name}: {socket}\n")), "{}", daemon.announced);
        let chardev = format!("-chardev socket,id=ek-{name},path={socket},reconnect=1");
        assert!(daemon.announced.contains(&chardev), "{}", daemon.announced);
    }
}

#[test]
fn status_shows_what_serve_was_told() {
    let daemon = Daemon::start(
        "status",
        &["web=null:1G", "db=null:2G", "--weight", "db=300", "--scheduler", "deadline"],
    );
    let status = daemon.status();
    let pool = &status["pools"][0];
    assert_eq!(pool["scheduler"], "deadline");
    assert_eq!(pool["device"], "real");
    let disks = pool["disks"].as_array().unwrap();
    let told = |disk: &Value| {
        (
            disk["name"].as_str().unwrap().to_owned(),
            disk["weight"].as_u64().unwrap(),
            disk["size_bytes"].as_u64().unwrap(),
            disk["connected"].as_bool().unwrap(),
        )
    };
    let mut told: Vec<_> = disks.iter().map(told).collect();
    told.sort();
    assert_eq!(told, [("db".into(), 300, 2 << 30, false), ("web".into(), 100, 1 << 30, false)]);
    let table = daemon.ask(&["status"]).stdout;
    assert_eq!(String::from_utf8(table).unwrap().lines().filter(|l| l.contains("free")).count(), 2);
}

#[test]
fn a_governor_and_polling_are_asked_for_on_the_command_line_and_changed_later() {
    let daemon = Daemon::start("poll", &["--depth", "auto", "--poll", "auto", "d=null:1G"]);
    let pool = daemon.status()["pools"][0].clone();
    assert!(pool["governor"].is_object(), "{pool}");
    assert_eq!(pool["polling"]["most_us"], 200, "{pool}");
    let set = |words: &[&str]| daemon.ask(&[&["set", "--pool", "main"], words].concat());
    let output = set(&["poll_us=70", "depth=8"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("depth 8\n  looks for work for at most 70 us at a time\n"), "{told}");
    assert_eq!(set(&["poll=off"]).status.code(), Some(0));
    let pool = daemon.status()["pools"][0].clone();
    assert_eq!((&pool["governor"], &pool["polling"]), (&Value::Null, &Value::Null), "{pool}");
    assert_eq!(set(&["poll=sometimes"]).status.code(), Some(2));
}

#[test]
fn on_flash_bfq_is_governed_unless_a_depth_is_chosen() {
    let daemon = Daemon::start("governed", &["d=null:1G"]);
    let is_governed = || daemon.status()["pools"][0]["governor"].is_object();
    assert!(is_governed());
    for (wish, expected) in [
        ("depth=32", false),
        ("depth=default", true),
        ("scheduler=none", false),
        ("depth=auto", true),
        ("scheduler=bfq", true),
    ] {
        assert_eq!(daemon.ask(&["set", "--pool", "main", wish]).status.code(), Some(0));
        assert_eq!(is_governed(), expected, "{wish}");
    }
    let turning = Daemon::start("turning", &["--model", "hdd", "d=null:1G"]);
    assert!(turning.status()["pools"][0]["governor"].is_null());
}

#[test]
fn more_disks_are_served_than_the_usual_limit_of_descriptors_allows() {
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -S -n 64 && exec \"$0\" \"$@\"", EVENKEEL]);
    let disks: Vec<String> = (0..100).map(|disk| format!("d{disk}=null:1M")).collect();
    let args: Vec<&str> = disks.iter().map(String::as_str).collect();
    let mut daemon = Daemon::start_by(limited, "limit", &args);
    let status = daemon.status();
    assert_eq!(status["pools"][0]["disks"].as_array().map(Vec::len), Some(100));
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_weight_that_is_set_shows_in_the_status() {
    let daemon = Daemon::start("set", &["web=null:1G"]);
    let output = daemon.ask(&["set", "web", "weight=300"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(daemon.status()["pools"][0]["disks"][0]["weight"], 300);
    let output = daemon.ask(&["set", "nobody", "weight=300"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8(output.stderr).unwrap().contains("evenkeel status lists the disks"));
}

#[test]
fn sigterm_ends_it_cleanly_and_nothing_is_left_behind() {
    let mut daemon = Daemon::start("end", &["--create", "1M", "web=web.img"]);
    assert_eq!(names(&daemon.dir), ["api.sock", "web.img", "web.sock"]);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(names(&daemon.dir), ["web.img"]);
    assert_eq!(fs::metadata(daemon.dir.join("web.img")).unwrap().len(), 1 << 20);
}

#[test]
fn a_wish_told_several_times_still_ends_it_cleanly() {
    let mut daemon = Daemon::start("twofold", &["web=null:1G"]);
    for _ in 0..50 {
        // One that has ended already has been asked often enough.
        let _ = kill_process(Pid::from_child(&daemon.process), Signal::TERM);
    }
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(names(&daemon.dir), [""; 0]);
}

#[test]
fn a_killed_daemon_can_be_followed_by_another_in_the_same_place() {
    let mut first = Daemon::start("again", &["--create", "1M", "web=web.img"]);
    first.process.kill().unwrap();
    first.process.wait().unwrap();
    assert_eq!(names(&first.dir), ["api.sock", "web.img", "web.sock"]);
    let mut second = Daemon::start("again", &["web=web.img"]);
    assert_eq!(second.status()["pools"][0]["disks"][0]["size_bytes"], 1 << 20);
    assert_eq!(second.end(), Some(0));
}

#[test]
fn a_second_daemon_in_the_same_place_is_refused() {
    let daemon = Daemon::start("twice", &["web=null:1G"]);
    let mut second = Command::new(EVENKEEL);
    second.args(["serve", "other=null:1G", "--log", "error", "--socket-dir"]).arg(&daemon.dir);
    let output = second.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("another daemon answers there; stop it"), "{error}");
    assert_eq!(names(&daemon.dir), ["api.sock", "web.sock"]);
    assert_eq!(daemon.status()["pools"][0]["disks"][0]["name"], "web");
}

#[test]
fn sigterm_ends_it_while_it_waits_for_an_image() {
    let daemon = Daemon::start("held", &["--create", "1M", "web=web.img"]);
    let mut second = Command::new(EVENKEEL)
        .args(["serve", "web=web.img", "--socket-dir", "other"])
        .current_dir(&daemon.dir)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(second.stderr.take().unwrap()).lines();
    let waiting = lines.next().unwrap().unwrap();
    assert!(waiting.contains("in use by another process"), "{waiting}");
    kill_process(Pid::from_child(&second), Signal::TERM).unwrap();
    let error = lines.next().unwrap().unwrap();
    assert!(error.contains("web.img") && !error.contains("patience_s"), "{error}");
    assert_eq!(second.wait().unwrap().code(), Some(1));
}

#[test]
fn a_file_describes_everything() {
    let dir = std::env::temp_dir().join(format!("evenkeel-serve-file-toml-{}", std::process::id()));
    fs::write(
        &dir,
        "[pools.slow]\nscheduler = \"noop\"\nmodel = \"sdhc\"\n\
         [pools.slow.groups.gold]\nweight = 300\n[pools.slow.vms.shop]\ngroup = \"gold\"\n\
         [pools.slow.disks.web]\npath = \"null:1G\"\nvm = \"shop\"\n\
         [pools.fast.disks.db]\npath = \"null:1G\"\nweight = 7\n",
    )
    .unwrap();
    let daemon = Daemon::start("file", &["--config", dir.to_str().unwrap()]);
    fs::remove_file(&dir).unwrap();
    let status = daemon.status();
    let pools = status["pools"].as_array().unwrap();
    let told: Vec<_> = pools
        .iter()
        .map(|pool| [&pool["name"], &pool["scheduler"], &pool["device"], &pool["disks"][0]["vm"]])
        .map(|words| words.map(|word| word.as_str().unwrap().to_owned()))
        .collect();
    assert_eq!(told, [["fast", "bfq", "real", "db"], ["slow", "noop", "sdhc", "shop"]]);
    assert_eq!(pools[0]["disks"][0]["weight"], 7);
}

/// The processors that a thread may run on, as the kernel lists them.
fn allowed(status: &str) -> &str {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.expect("the kernel says so").trim()
}

/// What the kernel says of a process's thread of this name.
fn thread_status(process: u32, name: &str) -> String {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("it runs");
    // A thread may end meanwhile.
    let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
    let mut statuses = tasks.filter_map(Result::ok).filter_map(status);
    statuses
        .find(|status| status.contains(&format!("Name:\t{name}\n")))
        .expect("there is such a thread")
}

#[test]
fn a_worker_runs_on_the_processors_that_it_is_given() {
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let last = allowed(&own).rsplit([',', '-']).next().unwrap();
    let file =
        std::env::temp_dir().join(format!("evenkeel-serve-cpus-{}.toml", std::process::id()));
    let pool = |cpus: &str| format!("[pools.p]\ncpus = \"{cpus}\"\ndisks.d.path = \"null:1G\"\n");
    fs::write(&file, pool(last)).unwrap();
    let daemon = Daemon::start("cpus", &["--config", file.to_str().unwrap()]);
    assert_eq!(allowed(&thread_status(daemon.process.id(), "pool-p")), last);
    assert_eq!(daemon.status()["pools"][0]["cpus"], last);
    let told = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
    assert!(told.contains(&format!("worker on processors {last}\n")), "{told}");
    fs::write(&file, pool("1022-1023")).unwrap();
    let refused = daemon.dir.join("second");
    let mut command = Command::new(EVENKEEL);
    command.args(["serve", "--config"]).arg(&file).arg("--socket-dir").arg(&refused);
    let output = command.output().unwrap();
    fs::remove_file(&file).unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("pools.p.cpus: no processor 1022-1023 for this daemon"), "{told}");
    assert_eq!(output.status.code(), Some(1), "{told}");
}

/// What Firecracker and Cloud Hypervisor do when a guest connects to port 17739 of its host.
#[test]
fn an_agent_behind_a_vsock_is_heard() {
    let file = std::env::temp_dir().join(format!("evenkeel-vsock-{}.toml", std::process::id()));
    let vsock = file.with_extension("sock");
    let text = format!(
        "[pools.main.disks.web]\npath = \"null:1G\"\n\
         [pools.main.vms.web]\ntrust = \"interactive\"\nvsock = {vsock:?}\n"
    );
    fs::write(&file, text).unwrap();
    let mut daemon = Daemon::start("vsock", &["--config", file.to_str().unwrap()]);
    fs::remove_file(&file).unwrap();
    assert!(!names(&daemon.dir).contains(&"web.agent.sock".to_owned()));
    let listener = format!("{}_17739", vsock.display());
    let mut agent = UnixStream::connect(&listener).unwrap();
    writeln!(agent, "{{\"type\":\"hello\",\"version\":1,\"agent\":\"0.1.0\"}}").unwrap();
    writeln!(agent, "{{\"type\":\"help\",\"seq\":1,\"level\":\"interactive\",\"lease_ms\":900}}")
        .unwrap();
    let mut heard = BufReader::new(&agent).lines().map(Result::unwrap);
    assert!(heard.any(|line| line.contains("\"grant\"") && line.contains("\"interactive\"")));
    assert_eq!(daemon.end(), Some(0));
    assert!(!Path::new(&listener).exists(), "its socket goes with it");
}

#[test]
fn an_image_that_is_not_there_fails_with_its_name_and_what_to_do() {
    let dir = std::env::temp_dir().join(format!("evenkeel-serve-missing-{}", std::process::id()));
    let mut command = Command::new(EVENKEEL);
    command.args(["serve", "web=no-such-image.img", "--log", "error", "--socket-dir"]);
    let mut child = command.arg(&dir).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut error = String::new();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    fs::remove_dir_all(&dir).unwrap();
    assert!(error.contains("no-such-image.img") && error.contains("create"), "{error}");
}

/// Reads and writes through a disk's socket.
fn load(socket: &Path) {
    let mut client = Client::connect(socket, Options::default()).expect("it is served");
    let mut data = [7; 4096];
    for n in 0..50 {
        let op = if n % 3 == 0 { IoOp::Write } else { IoOp::Read };
        let io = Io::new(op, n * 7919 % 200 * 8, 4096, n);
        assert_eq!(client.call(&io, &mut data).expect("it answers"), 0);
    }
}

#[test]
fn what_a_guest_did_on_one_day_is_replayed_with_other_schedulers_on_the_next() {
    let mut daemon = Daemon::start("trace", &["--trace", "day.trace", "web=null:1M", "db=null:1M"]);
    load(&daemon.dir.join("web.sock"));
    assert_eq!(daemon.status()["pools"][0]["trace"]["dropped"], 0);
    let table = String::from_utf8(daemon.ask(&["status"]).stdout).unwrap();
    assert!(table.contains("\n  trace day.trace: "), "{table}");
    assert_eq!(daemon.end(), Some(0));
    let replay = |args: &[&str]| {
        let mut command = Command::new(EVENKEEL);
        command.args(["sim", "replay", "day.trace", "--device", "hdd"]).args(args);
        let output = command.current_dir(&daemon.dir).output().expect("it starts");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        output.stdout
    };
    let args = ["--scheduler", "noop,deadline", "--scheduler", "bfq", "--format", "json"];
    let report: Value = serde_json::from_slice(&replay(&args)).unwrap();
    let rows: Vec<_> = report["rows"].as_array().unwrap().iter().collect();
    let told: Vec<_> = rows.iter().map(|row| (&row["disk"], &row["scheduler"])).collect();
    let schedulers = ["recorded", "noop", "deadline", "bfq"];
    for (told, (disk, scheduler)) in told.iter().zip(
        ["web", "(all)"].iter().flat_map(|disk| schedulers.map(|scheduler| (*disk, scheduler))),
    ) {
        assert_eq!((told.0.as_str(), told.1.as_str()), (Some(disk), Some(scheduler)));
    }
    assert!(rows.iter().all(|row| row["requests"] == 50), "{report}");
    for more in [&["--format", "table"][..], &["--format", "csv"], &["--closed"]] {
        let args = [&["--scheduler", "bfq"][..], more].concat();
        assert_eq!(replay(&args), replay(&args), "{more:?}");
    }
}
