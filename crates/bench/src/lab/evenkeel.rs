//! The daemon under test as a process: started, waited for, killed, started again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use super::guest::RunDir;
use crate::process::Server;

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

    /// Returns the binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
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
        let run = RunDir(dir);
        let server = self.start(&run.0)?;
        Ok(Daemon { setup: self, server, run })
    }

    fn start(&self, dir: &Path) -> Result<Server> {
        let text = |path: &Path| path.display().to_string();
        let mut args = ["serve", "--socket-dir"].map(str::to_owned).to_vec();
        args.extend([text(dir), "--api".to_owned(), text(&api_path(dir))]);
        args.extend_from_slice(&self.args);
        let disks = self.disks.iter();
        args.extend(disks.map(|(name, image)| format!("{name}={}", image.display())));
        let disks = self.disks.iter().map(|(name, _)| socket_path(dir, name));
        let sockets = disks.chain([api_path(dir)]).collect();
        Server::start(&self.binary, args, sockets, dir.join("daemon.log"))
    }
}

/// A daemon that runs, or did until [`kill`](Self::kill). Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    setup: Evenkeel,
    server: Server,
    run: RunDir,
}

impl Daemon {
    /// Returns the socket of a disk.
    #[must_use]
    pub fn socket(&self, disk: &str) -> PathBuf {
        socket_path(&self.run.0, disk)
    }

    /// Returns the socket by which the agent of a VM is heard.
    #[must_use]
    pub fn agent_socket(&self, vm: &str) -> PathBuf {
        self.run.0.join(format!("{vm}.agent.sock"))
    }

    /// Starts the daemon again after its end. Guests come back to it by themselves.
    ///
    /// # Errors
    ///
    /// As [`Evenkeel::serve`].
    pub fn start(&mut self) -> Result<()> {
        self.server = self.setup.start(&self.run.0)?;
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
        self.server.kill()
    }

    /// Ends the daemon with SIGTERM, as systemd would, and waits for its clean end.
    ///
    /// # Errors
    ///
    /// It does not end within a minute, or not with status 0.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.server.terminate()?;
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
            .arg(api_path(&self.run.0))
            .output()?;
        serde_json::from_slice(&output.stdout).with_context(|| {
            format!("evenkeel status: {}", String::from_utf8_lossy(&output.stderr))
        })
    }

    /// Returns the last lines of the daemon's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.server.log_tail()
    }
}

fn socket_path(dir: &Path, disk: &str) -> PathBuf {
    dir.join(format!("{disk}.sock"))
}

fn api_path(dir: &Path) -> PathBuf {
    dir.join("api")
}
