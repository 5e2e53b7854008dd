//! The daemon under test as a process: started, waited for, killed, started again.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::guest::RunDir;
use super::process::Process;

/// An `evenkeel serve` to be: which binary, which disks, which further arguments.
#[derive(Clone, Debug)]
pub struct Evenkeel {
    binary: PathBuf,
    disks: Vec<(String, PathBuf)>,
    args: Vec<String>,
}

impl Evenkeel {
    /// Finds the binary: `$EVENKEEL_BIN`, else this program itself if it is `evenkeel`, else
    /// `evenkeel` beside it or one directory up (where cargo leaves it for tests), else in
    /// `target/release` and `target/debug` of the checkout.
    ///
    /// # Errors
    ///
    /// There is none; the message says how to build it.
    pub fn new() -> Result<Self> {
        let mut candidates = Vec::new();
        if let Some(path) = std::env::var_os("EVENKEEL_BIN") {
            candidates.push(PathBuf::from(path));
        } else {
            let this = std::env::current_exe()?;
            candidates.extend(this.ancestors().skip(1).take(2).map(|dir| dir.join("evenkeel")));
            if let Ok(root) = super::checkout() {
                candidates.extend(
                    ["release", "debug"]
                        .map(|profile| root.join("target").join(profile).join("evenkeel")),
                );
            }
        }
        let binary = candidates.iter().find(|path| path.is_file());
        let binary = binary.with_context(|| {
            format!("no evenkeel binary ({candidates:?}); build it, or set EVENKEEL_BIN")
        })?;
        Ok(Self { binary: binary.clone(), disks: Vec::new(), args: Vec::new() })
    }

    /// Adds a disk.
    #[must_use]
    pub fn disk(mut self, name: &str, image: impl Into<PathBuf>) -> Self {
        self.disks.push((name.to_owned(), image.into()));
        self
    }

    /// Adds an argument of `evenkeel serve`.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Starts the daemon and waits until it listens on the socket of every disk.
    ///
    /// # Errors
    ///
    /// It ends or does not listen within half a minute; the error has the end of its log.
    pub fn serve(self) -> Result<Daemon> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // Not below the checkout: the path of a Unix socket may have 107 bytes only.
        let dir =
            std::env::temp_dir().join(format!("evenkeel-daemon-{}-{serial}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut daemon = Daemon { setup: self, process: None, run: RunDir(dir) };
        daemon.start()?;
        Ok(daemon)
    }
}

/// A daemon that runs, or did until [`kill`](Self::kill). Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    setup: Evenkeel,
    process: Option<Process>,
    run: RunDir,
}

impl Daemon {
    /// Returns the socket of a disk.
    #[must_use]
    pub fn socket(&self, disk: &str) -> PathBuf {
        self.run.0.join(format!("{disk}.sock"))
    }

    /// Starts the daemon again after its end. Guests come back to it by themselves.
    ///
    /// # Errors
    ///
    /// As [`Evenkeel::serve`].
    pub fn start(&mut self) -> Result<()> {
        for (name, _) in &self.setup.disks {
            // A killed daemon leaves its sockets; without them, seeing one means that it listens.
            let _ = fs::remove_file(self.socket(name));
        }
        let binary = self.setup.binary.to_string_lossy().into_owned();
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_path())?;
        self.process = Some(Process::start(&binary, |command| {
            self.arguments(command);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        })?);
        let end = Instant::now() + START_LIMIT;
        while !self.setup.disks.iter().all(|(name, _)| self.socket(name).exists()) {
            let process = self.process.as_mut().expect("set a few lines above");
            if let Some(status) = process.ended()? {
                bail!("evenkeel serve has ended ({status}):\n{}", self.log_tail());
            }
            if Instant::now() >= end {
                bail!("evenkeel serve does not listen:\n{}", self.log_tail());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Replaces the arguments given by [`Evenkeel::arg`]; they count from the next start on.
    pub fn set_args(&mut self, args: &[&str]) {
        self.setup.args = args.iter().map(|&arg| arg.to_owned()).collect();
    }

    /// Kills the daemon with SIGKILL and waits until it is gone.
    ///
    /// # Errors
    ///
    /// It does not run.
    pub fn kill(&mut self) -> Result<()> {
        self.process.take().context("evenkeel serve does not run")?.kill()
    }

    /// Ends the daemon with SIGTERM, as systemd would, and waits for its clean end.
    ///
    /// # Errors
    ///
    /// It does not end within half a minute, or not with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("evenkeel serve does not run")?;
        process.signal(Signal::TERM)?;
        let status = process.wait(Duration::from_secs(30)).with_context(|| self.log_tail())?;
        if !status.success() {
            bail!("evenkeel serve ended with {status}:\n{}", self.log_tail());
        }
        Ok(())
    }

    /// Returns the daemon's answer to `evenkeel status --format json`.
    ///
    /// # Errors
    ///
    /// It does not answer with a JSON document.
    pub fn status(&self) -> Result<serde_json::Value> {
        let output = Command::new(&self.setup.binary)
            .args(["status", "--format", "json", "--api"])
            .arg(self.api_path())
            .output()?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("evenkeel status: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Returns the process id, if the daemon runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Returns the last lines of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.log_path()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    fn arguments(&self, command: &mut Command) {
        command.args(["serve", "--socket-dir"]).arg(&self.run.0);
        command.arg("--api").arg(self.api_path()).args(&self.setup.args);
        for (name, image) in &self.setup.disks {
            command.arg(format!("{name}={}", image.display()));
        }
    }

    fn api_path(&self) -> PathBuf {
        self.run.0.join("api")
    }

    fn log_path(&self) -> PathBuf {
        self.run.0.join("daemon.log")
    }
}

/// A start takes milliseconds; preallocating an image may take seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
