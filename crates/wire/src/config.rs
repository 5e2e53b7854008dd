//! What an operator may ask for. `docs/guide/configuration.md` explains every field.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::blocks::{Block, Responses};
use crate::cpus::Cpus;
use crate::limits::Limits;
use crate::poll::Poll;
use crate::profile::Profile;
use crate::tunables::Tunables;

/// The weight of whoever does not say: the middle of a scale from 1 to [`WEIGHT_MAX`].
pub const DEFAULT_WEIGHT: u32 = 100;
/// The largest weight.
pub const WEIGHT_MAX: u32 = 1000;
/// Vrings that a disk offers. QEMU asks for one per virtual CPU and fails to start if it cannot
/// have them; an unused one costs 2 KiB.
pub const DEFAULT_QUEUES: u16 = 64;
/// The most vrings that one disk may offer: as many as vhost-user messages can number.
pub const QUEUES_MAX: u16 = 256;
/// The longest [`Pool::sqpoll_ms`].
pub(crate) const SQPOLL_MS_MAX: u32 = 10_000;
/// The block size that guests see: the one that every guest can use.
pub const DEFAULT_BLOCK_BYTES: u32 = 512;

/// A whole configuration.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Config {
    /// Where the sockets of the disks are made, as `NAME.sock`. Default: chosen by the program.
    pub socket_dir: Option<PathBuf>,
    /// The socket of the API. Default: `api.sock` in `socket_dir`.
    pub api: Option<PathBuf>,
    /// What to log, in the syntax of `RUST_LOG`: `info`, `evenkeel_server=debug`.
    pub log: Option<String>,
    /// One pool per physical device, by name.
    pub pools: BTreeMap<String, Pool>,
}

/// Disks that share one physical device, and how they share it.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Pool {
    /// Who decides which request goes next. Default: the profile's choice, else `bfq`.
    pub scheduler: Option<Scheduler>,
    /// Settings for a purpose; everything that is written beside it wins.
    pub profile: Option<Profile>,
    /// The most commands at the device at a time. Default: the device's or the model's own.
    pub depth: Option<u32>,
    /// Whether a governor finds out how many of them the device needs, `depth = "auto"`, on any
    /// device and with any scheduler.
    pub governor: bool,
    /// How many requests go to the device together.
    pub block: Block,
    /// How its answers are taken.
    pub responses: Responses,
    /// Whether its worker looks for work before it sleeps.
    pub poll: Poll,
    /// How long a thread of the kernel that takes its worker's requests waits for more before it
    /// sleeps, in ms (`IORING_SETUP_SQPOLL`). Default: there is none.
    pub sqpoll_ms: Option<u32>,
    /// Whether its worker asks the device itself for answers to reads and writes
    /// (`IORING_SETUP_IOPOLL`), where it has queues without interrupts.
    pub iopoll: bool,
    /// The processors that its worker runs on. Default: any.
    pub cpus: Option<Cpus>,
    /// A modelled device whose timing the pool imitates, as in `hdd:rpm=5400`.
    pub model: Option<String>,
    /// Whether seeks cost time on this device.
    pub rotational: Rotational,
    /// The file that every request is recorded in.
    pub trace: Option<PathBuf>,
    /// What the device is known to manage at least, in requests a second: the most that can be
    /// reserved.
    pub capacity_iops: Option<u64>,
    /// The same in bytes a second.
    pub capacity_bps: Option<u64>,
    /// Limits of everything together.
    pub limits: Limits,
    /// Tunables of all elevators, as written.
    pub tunables: Tunables,
    /// How far VMs are believed that say nothing of their own.
    pub trust: Trust,
    /// The I/O priority with which commands enter the host's kernel.
    pub device_priority: DevicePriority,
    /// Whether reads of one VM at different places get queues of their own; none is yes, under
    /// schedulers that profit from it.
    pub streams: Option<bool>,
    /// Tenants or other groups of VMs, of any depth.
    pub groups: BTreeMap<String, Group>,
    /// VMs that need more said than their disks say.
    pub vms: BTreeMap<String, Vm>,
    /// The disks.
    pub disks: BTreeMap<String, Disk>,
}

/// Who decides which request of a pool goes next.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Scheduler {
    /// First come, first served.
    None,
    /// First come, first served, with merging.
    Noop,
    /// Ascending sectors in batches, with a time limit for each request (mq-deadline).
    Deadline,
    /// The same by the rules before mq-deadline: no classes, no wrap.
    DeadlineLegacy,
    /// Ascending sectors, and a short wait after a read for the next one nearby.
    Anticipatory,
    /// Few requests at the device, by latency targets; for fast devices.
    Kyber,
    /// Time slices by weight and I/O priority.
    Cfq,
    /// Shares by weight, low latency for interactive and soft real-time work.
    #[default]
    Bfq,
}

impl Scheduler {
    /// Every scheduler, in the order of the documentation.
    pub const ALL: [Self; 8] = [
        Self::None,
        Self::Noop,
        Self::Deadline,
        Self::DeadlineLegacy,
        Self::Anticipatory,
        Self::Kyber,
        Self::Cfq,
        Self::Bfq,
    ];

    /// Returns its name, as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Noop => "noop",
            Self::Deadline => "deadline",
            Self::DeadlineLegacy => "deadline-legacy",
            Self::Anticipatory => "anticipatory",
            Self::Kyber => "kyber",
            Self::Cfq => "cfq",
            Self::Bfq => "bfq",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Scheduler {
    type Err = &'static str;

    /// Parses a name; `mq-deadline` is another name of `deadline`, `as` of `anticipatory`.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let name = match name {
            "mq-deadline" => "deadline",
            "as" => "anticipatory",
            name => name,
        };
        Self::ALL.into_iter().find(|scheduler| scheduler.as_str() == name).ok_or(
            "no such scheduler; there are none, noop, deadline, deadline-legacy, \
                 anticipatory, kyber, cfq and bfq",
        )
    }
}

/// How far a VM's own word about its requests is believed.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum Trust {
    /// Not at all: I/O priorities are ignored, and it has no port to ask for help.
    None,
    /// Within itself: I/O priorities order its own requests; it has no port to ask for help.
    #[default]
    Vm,
    /// It may also ask that an application which starts is served before other VMs, within its
    /// credit.
    Interactive,
    /// And that a player keeps its pace.
    SoftRealTime,
}

impl Trust {
    /// Every level, from the least on.
    pub const ALL: [Self; 4] = [Self::None, Self::Vm, Self::Interactive, Self::SoftRealTime];

    /// Returns its name, as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Vm => "vm",
            Self::Interactive => "interactive",
            Self::SoftRealTime => "soft-real-time",
        }
    }
}

impl fmt::Display for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Trust {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|trust| trust.as_str() == name)
            .ok_or("no such trust; there are none, vm, interactive and soft-real-time")
    }
}

/// The I/O priority with which a pool's urgent commands enter the host's kernel, so that its
/// scheduler for the device continues the chain.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum DevicePriority {
    /// None: every command has the daemon's own.
    #[default]
    None,
    /// The best level of the best-effort class.
    BestEffort,
    /// The real-time class: before everybody else's on that device. Needs `CAP_SYS_NICE`.
    RealTime,
}

impl DevicePriority {
    /// Every value, from the least on.
    pub const ALL: [Self; 3] = [Self::None, Self::BestEffort, Self::RealTime];

    /// Returns its name, as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::BestEffort => "best-effort",
            Self::RealTime => "real-time",
        }
    }
}

impl fmt::Display for DevicePriority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether seeks cost time.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Rotational {
    /// Ask the model or the kernel.
    #[default]
    Auto,
    /// A disk that turns.
    Yes,
    /// Flash.
    No,
}

/// A group of VMs, or of other groups.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    /// The group above; none is the pool itself.
    pub parent: Option<String>,
    /// Its share among its siblings.
    pub weight: u32,
    /// Its limits and its reservation.
    pub limits: Limits,
}

/// A VM: the owner of one or more disks of a pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Vm {
    /// The group above; none is the pool itself.
    pub group: Option<String>,
    /// Its share among its siblings.
    pub weight: u32,
    /// How far it is believed; none is as the pool says.
    pub trust: Option<Trust>,
    /// Time of the device with help that it earns per minute, in seconds.
    pub help_seconds_per_minute: Option<u32>,
    /// Data with help that it earns per minute, in MiB.
    pub help_mib_per_minute: Option<u32>,
    /// The VMM's vsock socket, by which its agent comes instead of a virtio-serial port.
    pub vsock: Option<PathBuf>,
    /// Its limits and its reservation, all its disks together.
    pub limits: Limits,
}

impl Default for Vm {
    fn default() -> Self {
        Self {
            group: None,
            weight: DEFAULT_WEIGHT,
            trust: None,
            help_seconds_per_minute: None,
            help_mib_per_minute: None,
            vsock: None,
            limits: Limits::default(),
        }
    }
}

/// Where a disk's data lives.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// A raw image or a block device.
    Path(PathBuf),
    /// Nowhere: writes are forgotten, reads leave the guest's memory alone. Written `null:SIZE`.
    Null {
        /// What the guest sees.
        size_bytes: u64,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Null { size_bytes } => write!(f, "null:{}", crate::format_size(*size_bytes)),
        }
    }
}

impl FromStr for Source {
    type Err = crate::SizeError;

    /// Parses a path or `null:SIZE`. A file whose name begins so is written `./null:…`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_prefix("null:") {
            Some(size) => Ok(Self::Null { size_bytes: crate::parse_size(size)? }),
            None => Ok(Self::Path(PathBuf::from(text))),
        }
    }
}

/// One virtual disk.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Disk {
    /// Where its data lives.
    pub source: Source,
    /// Creates the image with this size in bytes if it does not exist.
    pub create_bytes: Option<u64>,
    /// Reserves the space of a created image at once.
    pub preallocate: bool,
    /// The VM that it belongs to; none is a VM of its own, with the disk's name.
    pub vm: Option<String>,
    /// The weight of that own VM.
    pub weight: Option<u32>,
    /// Refuses writes.
    pub read_only: bool,
    /// Vrings offered.
    pub queues: u16,
    /// What the guest reads as the serial number; none is the disk's name.
    pub serial: Option<String>,
    /// The block size that the guest sees: 512 or 4096.
    pub block_bytes: u32,
    /// Whether the guest may leave writes in the device's cache until it flushes.
    pub write_cache: bool,
    /// Its limits and its reservation.
    pub limits: Limits,
}

impl Disk {
    /// Returns a disk with every other field at its default.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            source,
            create_bytes: None,
            preallocate: false,
            vm: None,
            weight: None,
            read_only: false,
            queues: DEFAULT_QUEUES,
            serial: None,
            block_bytes: DEFAULT_BLOCK_BYTES,
            write_cache: true,
            limits: Limits::default(),
        }
    }
}

impl Pool {
    /// Returns the scheduler: as written, else as the profile chooses.
    #[must_use]
    pub fn scheduler(&self) -> Scheduler {
        let chosen = self.profile.map(Profile::scheduler);
        self.scheduler.or(chosen).unwrap_or_default()
    }

    /// Returns the tunables: as written, else as the profile sets them.
    #[must_use]
    pub fn effective_tunables(&self) -> Tunables {
        let mut tunables = self.profile.map(Profile::tunables).unwrap_or_default();
        tunables.extend(&self.tunables);
        tunables
    }

    /// Returns every VM of the pool: those of `vms`, and one for each disk that names none.
    ///
    /// Every [`vm_of`](Self::vm_of) is a key of it if the configuration has no problems.
    #[must_use]
    pub fn all_vms(&self) -> BTreeMap<String, Vm> {
        let mut vms = self.vms.clone();
        for (name, disk) in self.disks.iter().filter(|(_, disk)| disk.vm.is_none()) {
            vms.entry(name.clone()).or_insert_with(|| Vm {
                weight: disk.weight.unwrap_or(DEFAULT_WEIGHT),
                ..Vm::default()
            });
        }
        vms
    }

    /// Returns the name of the VM that disk `name` belongs to.
    #[must_use]
    pub fn vm_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.disks.get(name).and_then(|disk| disk.vm.as_deref()).unwrap_or(name)
    }

    /// Returns the groups with every parent before its children, so that they can be made in order.
    ///
    /// Groups of a cycle, or below an unknown parent, are left out.
    #[must_use]
    pub fn groups_top_down(&self) -> Vec<(&str, &Group)> {
        let mut order: Vec<(&str, &Group)> = Vec::new();
        loop {
            let ready: Vec<_> = self
                .groups
                .iter()
                .map(|(name, group)| (name.as_str(), group))
                .filter(|(name, _)| order.iter().all(|(made, _)| made != name))
                .filter(|(_, group)| match &group.parent {
                    Some(parent) => order.iter().any(|(made, _)| made == parent),
                    None => true,
                })
                .collect();
            if ready.is_empty() {
                return order;
            }
            order.extend(ready);
        }
    }
}
