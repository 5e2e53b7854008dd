//! The program as its users meet it: arguments in, text and exit status out.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("evenkeel-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("the temporary directory is writable");
        Self(dir)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("its path is UTF-8").to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn evenkeel(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(args).output().expect("it starts")
}

/// Exit status, standard output, standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = evenkeel(args);
    let text = |bytes| String::from_utf8(bytes).expect("it prints UTF-8");
    (status.code().expect("it is not ended by a signal"), text(stdout), text(stderr))
}

#[test]
fn help_and_version_are_answers_not_errors() {
    let (code, out, err) = run(&["--help"]);
    assert_eq!((code, err.as_str()), (0, ""));
    for word in ["serve", "connect", "status", "set", "bench", "sim", "Examples:"] {
        assert!(out.contains(word), "{word} in {out}");
    }
    for command in ["serve", "connect", "status", "set", "sim"] {
        let (code, out, _) = run(&[command, "--help"]);
        assert_eq!(code, 0);
        assert!(out.contains("Example"), "{command} --help shows an example: {out}");
    }
    let (code, out, _) = run(&["--version"]);
    assert_eq!((code, out.as_str()), (0, concat!("evenkeel ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn wrong_use_ends_with_2_and_says_what_to_write() {
    for (args, hint) in [
        (&["serve"][..], "NAME=PATH"),
        (&["serve", "web"], "web=web.img"),
        (&["serve", "a/b=c"], "letters, digits"),
        (&["serve", "--create", "10X", "web=a"], "10G"),
        (&["serve", "--weight", "web=0", "web=a"], "1 to 1000"),
        (&["serve", "--scheduler", "fair", "web=a"], "kyber, cfq and bfq"),
        (&["serve", "--config", "a.toml", "web=a"], "cannot be used with"),
        (&["connect", "../web"], "letters, digits"),
        (&["connect", "web", "--vmm", "qmeu"], "qemu"),
        (&["set", "web", "colour=red"], "weight=300"),
        (&["sim", "replay", "x.trace", "--device", "tape", "--scheduler", "bfq"], "hdd, sdhc"),
        (&["sim", "replay", "x.trace", "--device", "hdd", "--scheduler", "fair"], "kyber, cfq"),
        (&["sim", "replay", "/nonexistent", "--device=hdd", "--scheduler=bfq"], "cannot read"),
        (
            &["sim", "replay", "Cargo.toml", "--device=hdd", "--scheduler=bfq", "--input-format=x"],
            "blkparse",
        ),
        (&["bench", "startup", "--where", "host", "--device", "hdd"], "--where guest"),
        (&["bench", "throughput", "--where=host", "--scheduler=bfq"], "--guest-scheduler"),
        (&["bench", "player", "--where", "host"], "films are played in guests"),
        (&["statsu"], "status"),
        (&[], "Usage"),
    ] {
        let (code, out, err) = run(args);
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(hint), "{args:?} brings {hint}: {err}");
    }
}

#[test]
fn all_mistakes_of_a_file_come_at_once_with_their_lines() {
    let dir = Dir::new("mistakes");
    let file = dir.path("evenkeel.toml");
    let text = "[pools.main]\nmodel = \"tape\"\nscheduler = \"fair\"\n\
                [pools.main.disks.web]\npath = \"a\"\nweight = 0\nreadonly = true\n";
    fs::write(&file, text).unwrap();
    let (code, out, err) = run(&["serve", "--config", &file, "--socket-dir", &dir.path("s")]);
    assert_eq!((code, out.as_str()), (2, ""));
    let lines: Vec<&str> = err.lines().collect();
    assert_eq!(lines[0], format!("evenkeel: {file}: 4 mistakes in the configuration"), "{err}");
    for (line, start) in lines[1..].iter().zip([
        "  line 2: pools.main.model = \"tape\": ",
        "  line 3: pools.main.scheduler = \"fair\": ",
        "  line 6: pools.main.disks.web.weight = 0: ",
        "  line 7: pools.main.disks.web.readonly = true: unknown key; did you mean read_only?",
    ]) {
        assert!(line.starts_with(start), "{line} starts with {start}");
    }
    assert_eq!(lines.len(), 5, "{err}");
}

#[test]
fn all_mistakes_of_the_arguments_come_at_once() {
    let (code, _, err) = run(&[
        "serve",
        "web=x.img",
        "db=./x.img",
        "--weight",
        "wbe=3",
        "--read-only",
        "bd",
        "--model",
        "tape",
    ]);
    assert_eq!(code, 2);
    for part in ["4 mistakes", "--weight = wbe", "--read-only = bd", "same image", "tape"] {
        assert!(err.contains(part), "{part} in {err}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let (code, _, err) = run(&["serve", "--config", "/nonexistent/evenkeel.toml"]);
    assert_eq!(code, 2);
    assert!(err.contains("/nonexistent/evenkeel.toml"), "{err}");
}

#[test]
fn qemu_gets_shared_memory_and_a_disk_that_reconnects() {
    let (code, out, _) = run(&["connect", "web", "--socket-dir", "/run/ek", "--cpus", "8"]);
    assert_eq!(code, 0);
    let lines: Vec<&str> = out.lines().take_while(|line| !line.starts_with('#')).collect();
    assert_eq!(
        lines,
        [
            "-m 2G -object memory-backend-memfd,id=ek-mem,size=2G,share=on \\",
            "-machine memory-backend=ek-mem \\",
            "-chardev socket,id=ek-web,path=/run/ek/web.sock,reconnect=1 \\",
            "-device vhost-user-blk-pci,chardev=ek-web,num-queues=8",
        ]
    );
}

#[test]
fn a_shell_takes_the_arguments_for_qemu_as_they_are_printed() {
    let dir = Dir::new("paste it's");
    let (_, pasted, err) = run(&["connect", "web", "--socket-dir", &dir.path("")]);
    assert!(err.contains("nobody serves"), "{err}");
    let script = format!("set -e; echo() {{ command printf '%s\\n' \"$@\"; }}\necho \\\n{pasted}");
    let output = Command::new("sh").args(["-c", &script]).output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    let words = String::from_utf8(output.stdout).expect("it prints UTF-8");
    let chardev = format!("socket,id=ek-web,path={},reconnect=1", dir.path("web.sock"));
    let expected = [
        "-m",
        "2G",
        "-object",
        "memory-backend-memfd,id=ek-mem,size=2G,share=on",
        "-machine",
        "memory-backend=ek-mem",
        "-chardev",
        &chardev,
        "-device",
        "vhost-user-blk-pci,chardev=ek-web,num-queues=4",
    ];
    assert_eq!(words.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn the_port_of_an_agent_is_connected_if_the_daemon_has_one_or_the_vm_is_named() {
    let dir = Dir::new("agent");
    let connect = |more: &[&str]| {
        let place = dir.path("");
        run(&[&["connect", "web", "--socket-dir", &place], more].concat()).1
    };
    assert!(!connect(&[]).contains("virtserialport"));
    fs::write(dir.path("web.agent.sock"), "").expect("the directory is writable");
    let (socket, text) = (dir.path("web.agent.sock"), connect(&[]));
    for part in [
        "-device virtio-serial-pci \\\n",
        &format!("-chardev socket,id=ek-agent,path={socket},reconnect=1 \\\n"),
        "-device virtserialport,chardev=ek-agent,name=org.evenkeel.agent.0\n#",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let text = connect(&["--vm", "shop", "--vmm", "libvirt"]);
    for part in [
        &format!("<source mode='connect' path='{}'>", dir.path("shop.agent.sock")),
        "<target type='virtio' name='org.evenkeel.agent.0'/>",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn libvirt_gets_its_two_elements() {
    let (code, out, _) = run(&["connect", "web", "--vmm", "libvirt", "--socket-dir", "/run/ek"]);
    assert_eq!(code, 0);
    for part in [
        "<source type='memfd'/>",
        "<access mode='shared'/>",
        "<disk type='vhostuser' device='disk'>",
        "<driver name='qemu' type='raw' queues='4'/>",
        "<source type='unix' path='/run/ek/web.sock'>",
        "<reconnect enabled='yes' timeout='1'/>",
    ] {
        assert!(out.contains(part), "{part} in {out}");
    }
}

#[test]
fn cloud_hypervisor_and_crosvm_get_their_options() {
    let dir = "--socket-dir=/run/ek";
    let (_, out, _) = run(&["connect", "web", "--vmm", "cloud-hypervisor", dir, "--memory", "1G"]);
    let expected = "--memory size=1G,shared=on \\\n\
                    --disk vhost_user=true,socket=/run/ek/web.sock,num_queues=4,queue_size=256\n";
    assert_eq!(out, expected);
    let (_, out, _) = run(&["connect", "web", "--vmm", "crosvm", dir]);
    assert_eq!(out, "--vhost-user block,socket=/run/ek/web.sock\n");
    let (code, _, err) = run(&["connect", "web", "--vmm", "crosvm", "--socket-dir=/a,b"]);
    assert_eq!(code, 2);
    assert!(err.contains("comma"), "{err}");
}

#[test]
fn without_a_daemon_status_and_set_fail_and_say_so() {
    let dir = Dir::new("nobody");
    for args in [&["status"][..], &["set", "web", "weight=5"]] {
        let api = dir.path("api.sock");
        let (code, out, err) = run(&[args, &["--api", &api]].concat());
        assert_eq!((code, out.as_str()), (1, ""));
        assert!(err.contains(&api) && err.contains("evenkeel serve"), "{err}");
    }
}

#[test]
fn the_modelled_devices_are_printed_with_their_parameters() {
    let (code, out, err) = run(&["sim", "devices"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("`hdd`") && out.contains("| `rpm` | 4200 |"), "{out}");
}

#[test]
fn the_figures_of_adaptive_blocks_come_as_one_json_document() {
    let (code, out, err) = run(&["sim", "blocks", "--format", "json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let report: serde_json::Value = serde_json::from_str(&out).expect("one document");
    let rows = report["rows"].as_array().expect("rows");
    for figure in ["5", "6", "7", "8", "prefetch"] {
        assert!(rows.iter().any(|row| row["figure"] == figure), "figure {figure}");
    }
    assert!(rows.iter().all(|row| row["kiops"].as_f64() > Some(0.0)));
}

#[test]
fn a_seed_of_the_swarm_is_the_same_world_every_time() {
    let args = ["sim", "swarm", "--seed", "3", "--format", "json"];
    let (code, out, _) = run(&args);
    let report: serde_json::Value = serde_json::from_str(&out).expect("one document");
    assert_eq!((code, &report["seeds"]), (0, &serde_json::json!(1)));
    assert_eq!(report["world"]["digest"].as_str().map(str::len), Some(16));
    let again: serde_json::Value = serde_json::from_str(&run(&args).1).expect("one document");
    assert_eq!(report["world"], again["world"]);
    let (code, out, _) = run(&["sim", "swarm", "--seed", "3", "--history"]);
    assert!(code == 0 && out.lines().count() > 100, "{out}");
    assert_eq!(run(&["sim", "swarm", "--hours", "0"]).0, 2);
}

#[test]
fn the_figures_of_best_practice_come_as_one_json_document() {
    let (code, out, err) = run(&["sim", "best-practice", "--span-ms", "5", "--format", "json"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let report: serde_json::Value = serde_json::from_str(&out).expect("one document");
    assert!(report["rows"].as_array().is_some_and(|rows| rows.len() > 100));
    let claims = report["claims"].as_array().expect("claims");
    assert!(claims.iter().all(|claim| claim["stated"].as_f64() > Some(0.0)));
}

#[test]
fn a_log_of_fio_is_replayed_and_a_file_of_no_format_is_refused() {
    let dir = Dir::new("replay");
    let (log, other) = (dir.path("day.iolog"), dir.path("other"));
    fs::write(&log, "fio version 3 iolog\n1 /dev/x add\n9 /dev/x read 0 4096\n").unwrap();
    fs::write(&other, "hello\n").unwrap();
    let on_ssd = ["--device", "ssd", "--scheduler", "noop,kyber", "--format", "csv"];
    let (code, out, err) = run(&[&["sim", "replay", &log][..], &on_ssd].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("disk,scheduler,requests,wait_mean_us,"), "{out}");
    assert!(lines[1].starts_with("\"/dev/x\",noop,1,0.000,"), "{out}");
    assert_eq!(lines.len(), 5, "{out}");
    let (code, out, err) = run(&[&["sim", "replay", &other][..], &on_ssd].concat());
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("none of the formats evenkeel, fio, blktrace, blkparse"), "{err}");
}
