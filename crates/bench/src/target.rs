//! The servers that benchmarks compare, by the names that reports give them.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use evenkeel_wire::DEFAULT_WEIGHT;

use crate::cgroup::Cgroup;
use crate::cpu::CpuMeter;
use crate::image::{fill_image, has_direct_io};
use crate::loop_device::LoopDevice;
use crate::process::{DiskSpec, PoolSpec, Server, quoted};
use crate::qsd::{self, QsdDisk, QsdNode};

/// A server to be measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Target {
    /// `evenkeel serve`.
    Evenkeel {
        /// Scheduler by name.
        scheduler: String,
        /// So many commands at the device at most, without a governor and without keeping the
        /// device idle for anybody; `None` is what the daemon chooses.
        fixed_depth: Option<u32>,
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
    /// A `qemu-storage-daemon` for each disk, in a control group of its own with equal weight; the
    /// disks are parts of one loop device, which the kernel's BFQ schedules.
    KernelBfq,
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
        Self::Evenkeel { scheduler: scheduler.to_owned(), fixed_depth: None, setting: None }
    }

    /// Returns `evenkeel serve` with BFQ and a fixed depth.
    #[must_use]
    pub fn fixed(depth: u32) -> Self {
        Self::Evenkeel { scheduler: "bfq".to_owned(), fixed_depth: Some(depth), setting: None }
    }

    /// Returns `evenkeel serve` with a scheduler and another field of the pool, whose value is taken
    /// for a number or a truth value where it is one, else for a text.
    #[must_use]
    pub fn evenkeel_with(scheduler: &str, key: &str, value: &str) -> Self {
        let is_plain = value.parse::<i64>().is_ok() || value.parse::<bool>().is_ok();
        let value = if is_plain { value.to_owned() } else { quoted(&value) };
        let setting = Some((key.to_owned(), value));
        Self::Evenkeel { scheduler: scheduler.to_owned(), fixed_depth: None, setting }
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
            Self::Evenkeel { scheduler, fixed_depth, setting } => {
                write!(f, "evenkeel-{scheduler}")?;
                if let Some(depth) = fixed_depth {
                    write!(f, "-fixed-{depth}")?;
                }
                if let Some((key, value)) = setting {
                    write!(f, "-{key}-{}", value.trim_matches('"'))?;
                }
                Ok(())
            }
            Self::Qsd { aio, cap_percent: None } => write!(f, "qsd-{aio}"),
            Self::Qsd { aio, cap_percent: Some(percent) } => write!(f, "qsd-{aio}-cap-{percent}"),
            Self::QsdNull => write!(f, "qsd-null-co"),
            Self::KernelBfq => write!(f, "qsd-kernel-bfq"),
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
            (Target::Qsd { .. } | Target::QsdNull | Target::KernelBfq, Backing::Model(_)) => {
                Some("it cannot imitate a device")
            }
            (Target::KernelBfq, Backing::Image) if !LoopDevice::offers("bfq") => {
                Some("this kernel has no loop devices with BFQ")
            }
            (Target::KernelBfq, Backing::Image) if !rustix::process::geteuid().is_root() => {
                Some("a loop device needs root")
            }
            (Target::KernelBfq, Backing::Image) if !Cgroup::is_there() => {
                Some("this system has no control groups for block devices")
            }
            (Target::Qsd { aio, .. }, Backing::Image) if aio == "native" && !self.is_direct => {
                Some("aio=native needs direct I/O, which this file system does not have")
            }
            (Target::Qsd { .. } | Target::KernelBfq, Backing::Null)
            | (Target::QsdNull, Backing::Image) => Some("it serves something else"),
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
            Target::Evenkeel { scheduler, fixed_depth, setting } => {
                let mut settings: Vec<_> = setting.iter().cloned().collect();
                if let Some(depth) = fixed_depth {
                    settings.push(("depth".to_owned(), depth.to_string()));
                    settings.push((format!("{scheduler}.slice_idle"), "0".to_owned()));
                }
                self.start_evenkeel(scheduler, settings)?
            }
            Target::Qsd { aio, .. } => self.start_qsd(vrings, cap_bytes_s, |index| {
                QsdNode::File { path: self.image(index), aio: aio.clone(), direct: self.is_direct }
            })?,
            Target::QsdNull => {
                self.start_qsd(vrings, cap_bytes_s, |_| QsdNode::Null { bytes: self.disk_bytes })?
            }
            Target::KernelBfq => return self.start_kernel_bfq(vrings),
            Target::Other { socket, pid } => {
                ensure!(socket.exists(), "there is no socket {}", socket.display());
                return Ok(Running {
                    servers: Vec::new(),
                    is_evenkeel: false,
                    sockets: vec![socket.clone()],
                    pid: *pid,
                    _below: None,
                });
            }
        };
        let sockets = (0..self.disks).map(|index| server.socket(index).to_owned()).collect();
        let is_evenkeel = matches!(target, Target::Evenkeel { .. });
        let pid = Some(server.pid());
        Ok(Running { servers: vec![server], is_evenkeel, sockets, pid, _below: None })
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

    /// Starts a daemon for each part of a loop device that the kernel's BFQ schedules; its tunables
    /// are the kernel's, but for raising.
    fn start_kernel_bfq(&self, vrings: u16) -> Result<Running> {
        let image = self.dir.join(format!("{}-loop.img", self.name));
        fill_image(&image, self.disk_bytes * self.disks as u64)
            .with_context(|| format!("cannot write {}", image.display()))?;
        let device = LoopDevice::attach(&image)?;
        device.set_scheduler("bfq")?;
        if let Some(low_latency) = self.low_latency {
            device.tune("low_latency", if low_latency { "1" } else { "0" })?;
        }
        let (mut groups, mut servers, mut sockets) = (Vec::new(), Vec::new(), Vec::new());
        for index in 0..self.disks {
            let name = format!("part{index}");
            let group = Cgroup::new(&name, DEFAULT_WEIGHT)?;
            let offset = self.disk_bytes * index as u64;
            let (device, bytes) = (device.path().to_owned(), self.disk_bytes);
            let node = QsdNode::Part { device, offset, bytes };
            let server =
                qsd::start(&self.dir, &name, &[QsdDisk { node, cap_bytes_s: None }], vrings)?;
            group.add(server.pid())?;
            sockets.push(server.socket(0).to_owned());
            groups.push(group);
            servers.push(server);
        }
        let below = Below { _device: device, _groups: groups };
        Ok(Running { servers, is_evenkeel: false, sockets, pid: None, _below: Some(below) })
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
        qsd::start(&self.dir, "qsd", &disks, vrings)
    }
}

/// What stands between servers and the disk of the host.
#[derive(Debug)]
struct Below {
    _device: LoopDevice,
    _groups: Vec<Cgroup>,
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
    /// One, several that make one together, or none if somebody else has started it.
    servers: Vec<Server>,
    is_evenkeel: bool,
    sockets: Vec<PathBuf>,
    pid: Option<u32>,
    /// Ends after the servers: fields are dropped in this order.
    _below: Option<Below>,
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
        let Some(server) = self.servers.first().filter(|_| self.is_evenkeel) else {
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
        let logs: Vec<String> = self.servers.iter().map(Server::log_tail).collect();
        if logs.is_empty() {
            return result.context("the server");
        }
        result.with_context(|| format!("log:\n{}", logs.join("\n")))
    }

    /// Ends it, if it was started here.
    ///
    /// # Errors
    ///
    /// If it does not leave when asked to.
    pub fn leave(mut self) -> Result<()> {
        for server in &mut self.servers {
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
        let fixed = Target::fixed(4);
        let polls = Target::evenkeel_with("none", "poll", "auto");
        let qsd = Target::qsd("io_uring");
        let targets = [Target::evenkeel("bfq"), fixed, polls, qsd, capped, Target::KernelBfq];
        let names = targets.each_ref().map(ToString::to_string);
        let expected = [
            "evenkeel-bfq",
            "evenkeel-bfq-fixed-4",
            "evenkeel-none-poll-auto",
            "qsd-io_uring",
            "qsd-io_uring-cap-50",
            "qsd-kernel-bfq",
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
        assert!(stage.refusal(&Target::KernelBfq).is_some());
        stage.backing = Backing::Null;
        assert_eq!((stage.refusal(&Target::QsdNull), stage.io()), (None, "null"));
    }
}
