//! The servers that benchmarks compare, by the names that reports give them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cpu::CpuMeter;
use crate::image::{fill_image, has_direct_io};
use crate::process::{DiskSpec, PoolSpec, Server, quoted};
use crate::qsd::{self, QsdDisk, QsdNode};

/// A server to be measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// `evenkeel serve`.
    Evenkeel {
        /// Scheduler by name.
        scheduler: String,
        /// Most commands at the device; `None` is what the daemon chooses.
        depth: Option<u32>,
        /// Another field of the pool, with its value as TOML.
        setting: Option<(String, String)>,
    },
    /// `qemu-storage-daemon`.
    Qsd {
        /// Its way of asynchronous I/O: `io_uring`, `native` or `threads`.
        aio: String,
        /// What the aggressor is held to, in percent of what it gets alone; for
        /// [isolation](crate::isolation) only.
        cap_percent: Option<u32>,
    },
    /// `qemu-storage-daemon` with `null-co`.
    QsdNull,
    /// A server that somebody else has started.
    Other {
        /// Its socket.
        socket: PathBuf,
        /// Its process, for its processor time.
        pid: Option<u32>,
    },
}

impl Target {
    /// Returns `evenkeel serve` with a scheduler and the depth that it chooses.
    #[must_use]
    pub fn evenkeel(scheduler: &str) -> Self {
        Self::Evenkeel { scheduler: scheduler.to_owned(), depth: None, setting: None }
    }

    /// Returns `evenkeel serve` with a scheduler and another field of the pool, whose value is taken
    /// for a number or a truth value where it is one, else for a text.
    #[must_use]
    pub fn evenkeel_with(scheduler: &str, key: &str, value: &str) -> Self {
        let is_plain = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if is_plain { value.to_owned() } else { quoted(&value) };
        let setting = Some((key.to_owned(), value));
        Self::Evenkeel { scheduler: scheduler.to_owned(), depth: None, setting }
    }

    /// Returns `qemu-storage-daemon` with a way of asynchronous I/O.
    #[must_use]
    pub fn qsd(aio: &str) -> Self {
        Self::Qsd { aio: aio.to_owned(), cap_percent: None }
    }

    /// Returns whether it is `qemu-storage-daemon`.
    #[must_use]
    pub const fn is_qsd(&self) -> bool {
        matches!(self, Self::Qsd { .. } | Self::QsdNull)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Evenkeel { scheduler, depth, setting } => {
                write!(f, "evenkeel-{scheduler}")?;
                if let Some(depth) = depth {
                    write!(f, "-depth-{depth}")?;
                }
                if let Some((key, value)) = setting {
                    write!(f, "-{key}-{}", value.trim_matches('"'))?;
                }
                Ok(())
            }
            Self::Qsd { aio, cap_percent: None } => write!(f, "qsd-{aio}"),
            Self::Qsd { aio, cap_percent: Some(percent) } => write!(f, "qsd-{aio}-cap-{percent}"),
            Self::QsdNull => write!(f, "qsd-null-co"),
            Self::Other { socket, .. } => write!(f, "{}", socket.display()),
        }
    }
}

/// What the servers serve.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Backing {
    /// Images written in full, on the disk below the directory.
    Image,
    /// Sparse images with the timing of a model, which only Evenkeel has.
    Model(String),
    /// Nothing: requests are answered without a device.
    Null,
}

/// Where servers are started, and on what.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The `evenkeel` program.
    pub evenkeel: PathBuf,
    /// Where images, sockets and logs go.
    pub dir: PathBuf,
    /// What the disks are.
    pub backing: Backing,
    /// Size of each disk in bytes.
    pub disk_bytes: u64,
    /// Name of the images, before their number.
    pub name: &'static str,
    /// Number of disks.
    pub disks: usize,
    /// Whether images are opened past the page cache; [`prepare`](Self::prepare) finds out.
    pub is_direct: bool,
    /// BFQ's weight raising; `None` is its default.
    pub low_latency: Option<bool>,
}

impl Stage {
    /// Makes the directory and the images.
    ///
    /// # Errors
    ///
    /// What the file system reports.
    pub fn prepare(&mut self) -> Result<()> {
        let dir = &self.dir;
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        self.is_direct = self.backing != Backing::Null
            && has_direct_io(dir).with_context(|| format!("cannot write in {}", dir.display()))?;
        if self.backing == Backing::Image {
            for index in 0..self.disks {
                let image = self.image(index);
                fill_image(&image, self.disk_bytes)
                    .with_context(|| format!("cannot write {}", image.display()))?;
            }
        }
        Ok(())
    }

    /// Returns in a word how the disks are reached, for reports: `direct`, `page cache`, `null`, or
    /// the model.
    #[must_use]
    pub fn io(&self) -> &str {
        match &self.backing {
            Backing::Model(model) => model,
            Backing::Null => "null",
            Backing::Image if self.is_direct => "direct",
            Backing::Image => "page cache",
        }
    }

    /// Says why a server cannot be measured here, if so.
    #[must_use]
    pub fn refusal(&self, target: &Target) -> Option<&'static str> {
        match (target, &self.backing) {
            (Target::Qsd { .. } | Target::QsdNull, Backing::Model(_)) => {
                Some("it cannot imitate a device")
            }
            (Target::Qsd { aio, .. }, Backing::Image) if aio == "native" && !self.is_direct => {
                Some("aio=native needs direct I/O, which this file system does not have")
            }
            (Target::Qsd { .. }, Backing::Null) | (Target::QsdNull, Backing::Image) => {
                Some("it serves something else")
            }
            _ => None,
        }
    }

    /// Starts a server. With `cap_bytes_s` all disks of `qemu-storage-daemon` but the first are
    /// held to so much.
    ///
    /// # Errors
    ///
    /// As [`Server::evenkeel`], and if nothing listens at the socket of another one.
    pub fn start(&self, target: &Target, vrings: u16, cap_bytes_s: Option<u64>) -> Result<Running> {
        let server = match target {
            Target::Evenkeel { scheduler, depth, setting } => {
                let depth = depth.map(|depth| ("depth".to_owned(), depth.to_string()));
                self.start_evenkeel(scheduler, depth.into_iter().chain(setting.clone()).collect())?
            }
            Target::Qsd { aio, .. } => self.start_qsd(vrings, cap_bytes_s, |index| {
                QsdNode::File { path: self.image(index), aio: aio.clone(), direct: self.is_direct }
            })?,
            Target::QsdNull => {
                self.start_qsd(vrings, cap_bytes_s, |_| QsdNode::Null { bytes: self.disk_bytes })?
            }
            Target::Other { socket, pid } => {
                ensure!(socket.exists(), "there is no socket {}", socket.display());
                return Ok(Running {
                    server: None,
                    is_evenkeel: false,
                    sockets: vec![socket.clone()],
                    pid: *pid,
                });
            }
        };
        let sockets = (0..self.disks).map(|index| server.socket(index).to_owned()).collect();
        let is_evenkeel = matches!(target, Target::Evenkeel { .. });
        Ok(Running { pid: Some(server.pid()), is_evenkeel, sockets, server: Some(server) })
    }

    fn image(&self, index: usize) -> PathBuf {
        self.dir.join(format!("{}-{index}.img", self.name))
    }

    fn start_evenkeel(&self, scheduler: &str, settings: Vec<(String, String)>) -> Result<Server> {
        let disk = |index| {
            let mut disk =
                DiskSpec::image(&format!("disk{index}"), &self.image(index), self.disk_bytes);
            match self.backing {
                Backing::Model(_) => {}
                Backing::Image => disk.create_bytes = None,
                Backing::Null => {
                    disk.create_bytes = None;
                    disk.source = format!("null:{}", self.disk_bytes);
                }
            }
            disk
        };
        let model = match &self.backing {
            Backing::Model(model) => Some(model.clone()),
            Backing::Image | Backing::Null => None,
        };
        let pool = PoolSpec {
            scheduler: scheduler.to_owned(),
            model,
            low_latency: self.low_latency.filter(|_| scheduler == "bfq"),
            settings,
            disks: (0..self.disks).map(disk).collect(),
        };
        Server::evenkeel(&self.evenkeel, &self.dir, &pool)
    }

    fn start_qsd(
        &self,
        vrings: u16,
        cap_bytes_s: Option<u64>,
        node: impl Fn(usize) -> QsdNode,
    ) -> Result<Server> {
        let disk = |index| {
            let cap_bytes_s = cap_bytes_s.filter(|_| index > 0);
            QsdDisk { node: node(index), cap_bytes_s }
        };
        let disks: Vec<QsdDisk> = (0..self.disks).map(disk).collect();
        qsd::start(&self.dir, &disks, vrings)
    }
}

/// How often a server and its guests wake each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exits {
    pub(crate) kicks_per_request: f64,
    pub(crate) interrupts_per_request: f64,
}

/// A server at work. One that was started here is killed when dropped.
#[derive(Debug)]
pub struct Running {
    server: Option<Server>,
    is_evenkeel: bool,
    sockets: Vec<PathBuf>,
    pid: Option<u32>,
}

impl Running {
    /// Returns the socket of a disk.
    #[must_use]
    pub fn socket(&self, index: usize) -> &Path {
        &self.sockets[index]
    }

    /// Begins to count its processor time; `None` if nobody said which process it is.
    ///
    /// # Errors
    ///
    /// If there is no such process.
    pub(crate) fn cpu_meter(&self) -> Result<Option<CpuMeter>> {
        self.pid.map(CpuMeter::start).transpose()
    }

    /// Returns how often it and the guests of its pool have woken each other so far; only Evenkeel
    /// tells.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub(crate) fn exits(&self) -> Result<Option<Exits>> {
        let Some(server) = self.server.as_ref().filter(|_| self.is_evenkeel) else {
            return Ok(None);
        };
        let status = server.status()?;
        let figure = |name| status["pools"][0][name].as_f64().context(name);
        Ok(Some(Exits {
            kicks_per_request: figure("kicks_per_request")?,
            interrupts_per_request: figure("interrupts_per_request")?,
        }))
    }

    /// Adds the end of its log to an error.
    ///
    /// # Errors
    ///
    /// That of `result`.
    pub(crate) fn explain<T, E>(&self, result: Result<T, E>) -> Result<T>
    where
        Result<T, E>: anyhow::Context<T, E>,
    {
        match &self.server {
            Some(server) => result.with_context(|| format!("log:\n{}", server.log_tail())),
            None => result.context("the server"),
        }
    }

    /// Ends it, if it was started here.
    ///
    /// # Errors
    ///
    /// If it does not leave when asked to.
    pub fn leave(self) -> Result<()> {
        if let Some(mut server) = self.server {
            server.terminate()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_server_has_a_name_of_its_own() {
        let capped = Target::Qsd { aio: "io_uring".to_owned(), cap_percent: Some(50) };
        let deep = Target::Evenkeel { scheduler: "bfq".to_owned(), depth: Some(4), setting: None };
        let polls = Target::evenkeel_with("none", "poll", "auto");
        let targets = [Target::evenkeel("bfq"), deep, polls, Target::qsd("io_uring"), capped];
        let names = targets.each_ref().map(ToString::to_string);
        let expected = [
            "evenkeel-bfq",
            "evenkeel-bfq-depth-4",
            "evenkeel-none-poll-auto",
            "qsd-io_uring",
            "qsd-io_uring-cap-50",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_server_that_cannot_serve_what_is_asked_says_why() {
        let mut stage = Stage {
            evenkeel: PathBuf::new(),
            dir: PathBuf::new(),
            backing: Backing::Image,
            disk_bytes: 1,
            name: "none",
            disks: 1,
            is_direct: false,
            low_latency: None,
        };
        let why = stage.refusal(&Target::qsd("native")).unwrap();
        assert!(why.contains("direct I/O"), "{why}");
        assert_eq!(stage.refusal(&Target::qsd("io_uring")), None);
        assert_eq!(stage.io(), "page cache");
        stage.backing = Backing::Model("hdd".to_owned());
        assert_eq!(stage.refusal(&Target::evenkeel("bfq")), None);
        assert!(stage.refusal(&Target::qsd("io_uring")).is_some());
        stage.backing = Backing::Null;
        assert_eq!((stage.refusal(&Target::QsdNull), stage.io()), (None, "null"));
    }
}
