//! `evenkeel serve`: from arguments or a file to a running daemon.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use evenkeel_server::api::{self, Api, Control};
use evenkeel_server::{Daemon, DiskInfo, Signals, StartError};
use evenkeel_wire::{Config, Disk, Document, Pool, Problem, Problems, Source};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::args::{Depth, Place, ServeArgs};
use crate::failure::{Failure, Outcome};
use crate::{connect, place, print};

/// The pool of disks that come from the command line.
const POOL: &str = "main";

pub(crate) fn run(args: &ServeArgs) -> Outcome<()> {
    let mut config = match &args.config {
        Some(file) => read(file)?,
        None => from_arguments(args)?,
    };
    let dir = settle_places(&mut config, &args.place)?;
    log_to_stderr(args.log.as_deref(), config.log.as_deref())?;
    raise_descriptor_limit();
    // Before the first thread, so that no thread is ended by them.
    let signals = Signals::hold().map_err(Failure::work)?;
    // Before the images: those of a daemon that runs here already are locked, and waited for.
    api(&config, api::check_free)?;
    let daemon = Arc::new(Daemon::start(&config, &dir).map_err(started)?);
    let outcome = answer(&config, &daemon, signals);
    daemon.shutdown();
    outcome
}

/// Answers the API, says where everything is, and waits to be ended.
fn answer(config: &Config, daemon: &Arc<Daemon>, signals: Signals) -> Outcome<()> {
    let _api = api(config, |path| Api::start(path, Arc::clone(daemon) as Arc<dyn Control>))?;
    print(&announcement(&daemon.disks()))?;
    let signal = signals.wait().map_err(Failure::work)?;
    tracing::info!(signal, "finishing what the guests have asked for");
    Ok(())
}

/// Does something with the API's socket.
fn api<T>(config: &Config, with: impl FnOnce(&Path) -> io::Result<T>) -> Outcome<T> {
    let path = config.api.as_deref().expect("settle_places puts one in");
    with(path)
        .with_context(|| format!("cannot answer the API at {}", path.display()))
        .map_err(Failure::work)
}

fn started(error: StartError) -> Failure {
    match error {
        StartError::Config(problems) => Failure::wrong_use(problems),
        error => Failure::work(error),
    }
}

fn read(file: &Path) -> Outcome<Config> {
    let text = fs::read_to_string(file)
        .with_context(|| format!("cannot read the configuration {}", file.display()))
        .map_err(Failure::wrong_use)?;
    let mut document = Document::read(&text);
    let more = evenkeel_server::check_devices(&document.config);
    document.problems.extend(more);
    document
        .finish()
        .map_err(|problems| Failure::wrong_use(anyhow!("{}: {problems}", file.display())))
}

fn from_arguments(args: &ServeArgs) -> Outcome<Config> {
    let mut problems = Vec::new();
    let mut pool = Pool {
        scheduler: args.scheduler,
        profile: args.profile,
        depth: match args.depth {
            Some(Depth::AtMost(depth)) => Some(depth),
            Some(Depth::Auto) | None => None,
        },
        governor: args.depth == Some(Depth::Auto),
        poll: args.poll,
        model: args.model.clone(),
        trust: args.trust,
        trace: args.trace.clone(),
        ..Pool::default()
    };
    for (name, source) in &args.disks {
        if pool.disks.insert(name.clone(), disk(args, source)).is_some() {
            problems.push(Problem::new(name, "", "two disks of this name", "rename one of them"));
        }
    }
    let mut on_disk =
        |option: &str, name: &str, change: &dyn Fn(&mut Disk)| match pool.disks.get_mut(name) {
            Some(disk) => change(disk),
            None => problems.push(Problem::new(
                option,
                name,
                "no disk of this name",
                format!("add {name}=PATH, or correct the name"),
            )),
        };
    for (name, weight) in &args.weight {
        on_disk("--weight", name, &|disk| disk.weight = Some(*weight));
    }
    for name in &args.read_only {
        // Only what can be written to is worth creating.
        on_disk("--read-only", name, &|disk| {
            disk.read_only = true;
            disk.create_bytes = None;
            disk.preallocate = false;
        });
    }
    let config = Config {
        socket_dir: args.place.socket_dir.clone(),
        pools: [(POOL.to_owned(), pool)].into(),
        ..Config::default()
    };
    problems.extend(config.check());
    problems.extend(evenkeel_server::check_devices(&config));
    match Problems::from_vec(problems) {
        Some(problems) => Err(Failure::wrong_use(problems)),
        None => Ok(config),
    }
}

fn disk(args: &ServeArgs, source: &Source) -> Disk {
    let mut disk = Disk::new(source.clone());
    if matches!(source, Source::Path(_)) {
        disk.create_bytes = args.create;
        disk.preallocate = args.preallocate;
    }
    disk
}

/// Puts in the places that neither file nor arguments name. Returns the directory of the sockets.
fn settle_places(config: &mut Config, chosen: &Place) -> Outcome<PathBuf> {
    let dir = chosen.socket_dir.as_deref().or(config.socket_dir.as_deref());
    let dir = place::socket_dir(dir)?;
    if let Some(api) = &chosen.api {
        config.api = Some(api.clone());
    }
    config.api.get_or_insert_with(|| dir.join("api.sock"));
    config.socket_dir = Some(dir.clone());
    // The directory may only be known now, and with it whether the sockets' paths are too long.
    match Problems::from_vec(config.check()) {
        Some(problems) => Err(Failure::wrong_use(problems)),
        None => Ok(dir),
    }
}

/// Sends logs to standard error: `--log`, else `RUST_LOG`, else the configuration, else `info`.
fn log_to_stderr(chosen: Option<&str>, configured: Option<&str>) -> Outcome<()> {
    let env = env::var("RUST_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = chosen.or(env.as_deref()).or(configured).unwrap_or("info");
    let filter = EnvFilter::try_new(filter)
        .with_context(|| format!("{filter:?} is not a log filter; try info"))
        .map_err(Failure::wrong_use)?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
    Ok(())
}

/// Lets the daemon open as many descriptors as the system allows: a thousand disks with their
/// VMMs need several thousand, and shells usually allow 1,024 unless asked for more.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    if let Err(errno) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%errno, current = limit.current, "cannot raise the limit of descriptors");
    }
}

/// Says where each disk is, and how QEMU attaches it.
fn announcement(disks: &[DiskInfo]) -> String {
    let mut text = String::new();
    for disk in disks {
        let socket = disk.socket.display().to_string();
        let [chardev, device] = connect::qemu_device(&disk.name, &socket, 4.min(disk.queues));
        let _infallible = writeln!(text, "{}: {socket}\n  {chardev} \\\n  {device}", disk.name);
    }
    text.push_str(
        "QEMU also needs shared memory, other VMMs other words: evenkeel connect NAME --help\n",
    );
    text
}
