//! Servers as child processes: started, killed, and gone when their owner is.
//!
//! Tests, benchmarks and the demo start `evenkeel serve` with a configuration made here.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use evenkeel_wire::DEFAULT_WEIGHT;
use rustix::process::Signal;

use crate::child::Process;

/// How long a server may take until its sockets exist. A successor waits for the image's lock;
/// preallocating an image may take seconds.
const START_PATIENCE: Duration = Duration::from_secs(40);
/// How long it may take to leave.
const LEAVE_PATIENCE: Duration = Duration::from_secs(60);

/// One disk of a configuration.
#[derive(Clone, Debug)]
pub struct DiskSpec {
    /// Its name, and that of its socket.
    pub name: String,
    /// Path of the image, or `null:SIZE`.
    pub source: String,
    /// Weight of its VM.
    pub weight: u32,
    /// Creates the image sparse with this size in bytes if it is not there.
    pub create_bytes: Option<u64>,
}

impl DiskSpec {
    /// Describes an image at `path` that is created sparse.
    #[must_use]
    pub fn image(name: &str, path: &Path, bytes: u64) -> Self {
        let source = path.display().to_string();
        Self { name: name.to_owned(), source, weight: 100, create_bytes: Some(bytes) }
    }
}

/// A configuration with one pool.
#[derive(Clone, Debug)]
pub struct PoolSpec {
    /// Scheduler by name.
    pub scheduler: String,
    /// Model by name and parameters; `None` is the real device.
    pub model: Option<String>,
    /// BFQ's weight raising; `None` is its default.
    pub low_latency: Option<bool>,
    /// Other fields of the pool, each with its value as TOML.
    pub settings: Vec<(String, String)>,
    /// The disks.
    pub disks: Vec<DiskSpec>,
}

impl PoolSpec {
    /// Returns the configuration file that describes this pool.
    #[must_use]
    pub fn to_toml(&self, socket_dir: &Path) -> String {
        let mut text = format!("socket_dir = {}\n[pools.main]\n", quoted(&socket_dir.display()));
        let _infallible = writeln!(text, "scheduler = {}", quoted(&self.scheduler));
        if let Some(model) = &self.model {
            let _infallible = writeln!(text, "model = {}", quoted(model));
        }
        for (field, value) in &self.settings {
            let _infallible = writeln!(text, "{field} = {value}");
        }
        if let Some(low_latency) = self.low_latency {
            let _infallible = writeln!(text, "bfq.low_latency = {low_latency}");
        }
        for disk in &self.disks {
            let (name, path, weight) = (&disk.name, quoted(&disk.source), disk.weight);
            let _infallible = writeln!(text, "[pools.main.disks.{name}]\npath = {path}");
            // A VM with a section of its own has its weight there.
            if weight != DEFAULT_WEIGHT {
                let _infallible = writeln!(text, "weight = {weight}");
            }
            if let Some(bytes) = disk.create_bytes {
                let _infallible = writeln!(text, "create = \"{bytes}\"");
            }
        }
        text
    }
}

/// A server at work; killed when dropped, and by the kernel if this process is killed.
#[derive(Debug)]
pub struct Server {
    process: Process,
    binary: PathBuf,
    arguments: Vec<String>,
    /// Of its disks, in their order; behind them, what else must be there.
    sockets: Vec<PathBuf>,
    log: PathBuf,
}

impl Server {
    /// Starts `evenkeel serve` for one pool; configuration, log and sockets are put into `dir`.
    ///
    /// Returns when every socket exists.
    ///
    /// # Errors
    ///
    /// If the program does not start or ends at once; the message holds the end of its log.
    pub fn evenkeel(binary: &Path, dir: &Path, pool: &PoolSpec) -> anyhow::Result<Self> {
        let config = dir.join("evenkeel.toml");
        fs::write(&config, pool.to_toml(dir))
            .with_context(|| format!("cannot write {}", config.display()))?;
        let arguments = ["serve", "--config", &config.display().to_string()].map(String::from);
        let disks = pool.disks.iter().map(|disk| dir.join(format!("{}.sock", disk.name)));
        // Its own is the last that the daemon opens.
        let sockets = disks.chain([dir.join("api.sock")]).collect();
        Self::start(binary, arguments.to_vec(), sockets, dir.join("evenkeel.log"))
    }

    /// Starts `binary`, whose output goes to the end of `log`, and waits for `sockets`.
    pub(crate) fn start(
        binary: &Path,
        arguments: Vec<String>,
        sockets: Vec<PathBuf>,
        log: PathBuf,
    ) -> anyhow::Result<Self> {
        for socket in &sockets {
            // One of an earlier run would look like readiness.
            let _absent = fs::remove_file(socket);
        }
        let process = spawn(binary, &arguments, &log)?;
        let mut server = Self { process, binary: binary.to_owned(), arguments, sockets, log };
        server.wait_ready()?;
        Ok(server)
    }

    /// Starts the same program with the same arguments again, after [`kill`](Self::kill) or
    /// [`terminate`](Self::terminate). Sockets that a dead one left behind are its business.
    ///
    /// # Errors
    ///
    /// As [`evenkeel`](Self::evenkeel).
    pub fn restart(&mut self) -> anyhow::Result<()> {
        self.process = spawn(&self.binary, &self.arguments, &self.log)?;
        self.wait_ready()
    }

    /// Returns the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Returns the path of the socket of the disk with this index.
    #[must_use]
    pub fn socket(&self, index: usize) -> &Path {
        &self.sockets[index]
    }

    /// Says whether the process still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.process.ended(), Ok(None))
    }

    /// Ends the process at once, as a crash would.
    ///
    /// # Errors
    ///
    /// What the kernel reports.
    pub fn kill(&mut self) -> anyhow::Result<()> {
        self.process.kill()
    }

    /// Asks the process to leave (SIGTERM) and waits for it.
    ///
    /// # Errors
    ///
    /// If it does not leave within a minute.
    pub fn terminate(&mut self) -> anyhow::Result<ExitStatus> {
        self.process.signal(Signal::TERM)?;
        let status = self.process.wait(LEAVE_PATIENCE);
        status.with_context(|| format!("SIGTERM is ignored; log:\n{}", self.log_tail()))
    }

    /// Returns the daemon's answer to `evenkeel status --format json`.
    ///
    /// # Errors
    ///
    /// If it does not answer with a JSON document.
    pub fn status(&self) -> anyhow::Result<serde_json::Value> {
        let dir = self.log.parent().context("the log lies in a directory")?;
        let mut status = Command::new(&self.binary);
        let status = status.args(["status", "--format", "json", "--socket-dir"]).arg(dir);
        let output = status.output().context("evenkeel status")?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("evenkeel status: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Returns the end of what the process logged.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }

    fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while !self.sockets.iter().all(|socket| socket.exists()) {
            if let Some(status) = self.process.ended()? {
                bail!("{} ended with {status}; log:\n{}", self.binary.display(), self.log_tail());
            }
            if Instant::now() > deadline {
                bail!("{} opens no socket; log:\n{}", self.binary.display(), self.log_tail());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

/// Builds the `evenkeel` program of this workspace as the calling test was built, and returns it.
///
/// Cargo builds programs of the test's own package only; a stale one would be worse than none.
/// `EVENKEEL_BIN` names one that is to be tested as it is.
///
/// # Errors
///
/// If this is not a test run by cargo, or the build fails.
pub fn build_evenkeel() -> anyhow::Result<PathBuf> {
    if let Some(binary) = std::env::var_os("EVENKEEL_BIN") {
        return Ok(binary.into());
    }
    let test = std::env::current_exe()?;
    let profile = test.ancestors().nth(2).context("not run by cargo")?;
    let target = profile.parent().context("not run by cargo")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--package", "evenkeel", "--bin", "evenkeel"]);
    build.arg("--target-dir").arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let built = build.status().context("cannot start cargo")?;
    anyhow::ensure!(built.success(), "the evenkeel program cannot be built");
    Ok(profile.join("evenkeel"))
}

fn spawn(binary: &Path, arguments: &[String], log: &Path) -> anyhow::Result<Process> {
    let log = File::options().create(true).append(true).open(log)?;
    let errors = log.try_clone()?;
    Process::start(&binary.to_string_lossy(), |command| {
        command.args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
    })
}

/// Returns `text` as a string of TOML.
pub(crate) fn quoted(text: &dyn std::fmt::Display) -> String {
    serde_json::Value::String(text.to_string()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_made_here_is_one_that_the_server_reads() {
        let mut pool = PoolSpec {
            scheduler: "bfq".to_owned(),
            model: Some("hdd".to_owned()),
            low_latency: Some(false),
            settings: Vec::new(),
            disks: vec![DiskSpec::image("a", Path::new("a\"b.img"), 1 << 20)],
        };
        pool.disks[0].weight = 300;
        let text = pool.to_toml(Path::new("run"));
        let config = evenkeel_wire::Document::read(&text).finish().unwrap();
        let disk = &config.pools["main"].disks["a"];
        assert_eq!(disk.source.to_string(), "a\"b.img");
        assert_eq!((disk.weight, disk.create_bytes), (Some(300), Some(1 << 20)));
        assert_eq!(config.pools["main"].tunables.get("bfq", "low_latency"), Some(0));
    }
}
