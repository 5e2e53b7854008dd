//! What can be said on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use evenkeel_wire::{
    DEPTH_MAX, Poll, Profile, Scheduler, Source, Trust, WEIGHT_MAX, check_name, parse_size,
};

use crate::measure::{CostArgs, IsolationArgs, RateArgs, ScaleArgs};
use crate::sim::SimArgs;
use crate::suite::{PlayerArgs, StartupArgs, ThroughputArgs};

#[derive(Debug, Parser)]
#[command(
    name = "evenkeel",
    version,
    about = "Virtual disks for KVM guests, scheduled together: fair shares, quick starts",
    after_help = "Examples:\n  \
        evenkeel serve --create 10G web=web.img db=db.img   serve two disks\n  \
        evenkeel connect web --vmm libvirt                  attach one to a VM\n  \
        evenkeel status                                     see what they do\n  \
        evenkeel set web weight=300                         give one a larger share"
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve virtual disks over vhost-user-blk until SIGTERM or SIGINT
    Serve(Box<ServeArgs>),
    /// Print what to paste into a VMM to attach a disk
    Connect(ConnectArgs),
    /// Show what the disks of the running daemon do
    Status(StatusArgs),
    /// Change weights, limits, schedulers and tunables of the running daemon
    Set(SetArgs),
    /// Measure the scheduler, the data path, the shares, and the start of applications
    Bench(BenchArgs),
    /// Run experiments in virtual time: real schedulers and engine, modelled devices and guests
    Sim(SimArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel serve web=/var/lib/vm/web.img db=/dev/vg0/db\n  \
    evenkeel serve --create 10G --weight db=300 web=web.img db=db.img\n  \
    evenkeel serve --model hdd --scheduler deadline scratch=null:60G\n  \
    evenkeel serve --config /etc/evenkeel.toml\n\n\
    Without a configuration file all disks share one pool, hence one physical device.\n\
    docs/guide/configuration.md explains every field of the file.")]
pub(crate) struct ServeArgs {
    /// Disks: NAME=PATH of a raw image or block device, or NAME=null:SIZE
    #[arg(value_name = "NAME=PATH", value_parser = named_source,
          required_unless_present = "config", conflicts_with = "config")]
    pub(crate) disks: Vec<(String, Source)>,
    /// Read everything from a TOML file instead
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "create", "preallocate", "weight", "read_only", "scheduler", "profile", "model", "depth",
        "poll", "trust", "trace"])]
    pub(crate) config: Option<PathBuf>,
    /// Create images that do not exist, with this size (10G, 512M)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) create: Option<u64>,
    /// Reserve the space of created images at once
    #[arg(long, requires = "create")]
    pub(crate) preallocate: bool,
    /// Share of a disk relative to the others, 1 to 1000 [default: 100]
    #[arg(long, value_name = "NAME=W", value_parser = named_weight)]
    pub(crate) weight: Vec<(String, u32)>,
    /// Refuse writes to a disk
    #[arg(long, value_name = "NAME")]
    pub(crate) read_only: Vec<String>,
    /// Who decides which request goes next: none, noop, deadline, deadline-legacy, anticipatory,
    /// kyber, cfq or bfq [default: the profile's, else bfq]
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Scheduler>)]
    pub(crate) scheduler: Option<Scheduler>,
    /// Settings for a purpose: enterprise-storage, desktop, database, batch or streaming
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Profile>)]
    pub(crate) profile: Option<Profile>,
    /// How far guests are believed: none, vm, interactive or soft-real-time. From interactive on
    /// each has a port, NAME.agent.sock, by which its agent asks for help
    #[arg(long, value_name = "LEVEL", default_value = "vm", value_parser = str::parse::<Trust>)]
    pub(crate) trust: Trust,
    /// Imitate the timing of a device: hdd, sdhc, emmc, ssd or nvme, with options (hdd:rpm=5400)
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Most commands at the device at a time; auto: of the device's, as few as give full throughput
    /// [default: auto for bfq on flash, else the device's]
    #[arg(long, value_name = "N|auto", value_parser = depth)]
    pub(crate) depth: Option<Depth>,
    /// Look for work before sleeping while that pays: off, brief (16 us), auto (200 us), or at most
    /// so many microseconds
    #[arg(long, value_name = "US|brief|auto|off", default_value = "brief",
          value_parser = str::parse::<Poll>)]
    pub(crate) poll: Poll,
    /// Record every request in a file, for evenkeel sim replay; one that is there is kept as
    /// FILE.old
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) place: Place,
    /// What to log, as in RUST_LOG: error, info, evenkeel_server=debug [default: info]
    #[arg(long, value_name = "FILTER")]
    pub(crate) log: Option<String>,
}

/// How many commands may be at the device.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Depth {
    /// As few of the device's as a governor finds enough.
    Auto,
    /// At most so many.
    AtMost(u32),
}

/// Where the daemon's sockets are.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Place {
    /// Directory of the sockets [default: /run/evenkeel as root, else $XDG_RUNTIME_DIR/evenkeel]
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
    /// Socket of the API [default: api.sock in the directory of the sockets]
    #[arg(long, value_name = "PATH")]
    pub(crate) api: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel connect web\n  \
    evenkeel connect web --vmm libvirt --cpus 8")]
pub(crate) struct ConnectArgs {
    /// The disk
    #[arg(value_parser = disk_name)]
    pub(crate) name: String,
    /// The VM, if its name is not that of the disk: the port of its agent is printed as well, as it
    /// is if the daemon has one for a VM named like the disk
    #[arg(long, value_name = "NAME", value_parser = disk_name)]
    pub(crate) vm: Option<String>,
    /// What runs the VM
    #[arg(long, value_enum, default_value_t = Vmm::Qemu)]
    pub(crate) vmm: Vmm,
    /// Virtual CPUs of the VM: the disk gets one vring for each
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) cpus: u16,
    /// Memory of the VM
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size)]
    pub(crate) memory: u64,
    /// Directory of the sockets [default: /run/evenkeel as root, else $XDG_RUNTIME_DIR/evenkeel]
    #[arg(long, value_name = "DIR")]
    pub(crate) socket_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Vmm {
    /// Arguments of qemu-system-*
    Qemu,
    /// Elements of a libvirt domain
    Libvirt,
    /// Arguments of cloud-hypervisor
    CloudHypervisor,
    /// Arguments of crosvm run
    Crosvm,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Table,
    /// One JSON document
    Json,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel status\n  \
    evenkeel status --explain                   who waited for whom, and for how long\n  \
    evenkeel status --format json | jq '.pools[].disks[] | {name, weight, raised}'")]
pub(crate) struct StatusArgs {
    /// Say for each VM how long its requests waited, and for whom
    #[arg(long)]
    pub(crate) explain: bool,
    /// For whom to print
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel set web weight=300                           the VM of a disk\n  \
    evenkeel set --vm shop weight=50                      a VM\n  \
    evenkeel set --group gold weight=500                  a group\n  \
    evenkeel set --pool main scheduler=cfq depth=8        a pool\n  \
    evenkeel set web total_iops_sec=500 total_bytes_sec=10M    limits of a disk\n  \
    evenkeel set --vm shop min_iops=100 iops-total=none       a reservation, and no limit\n  \
    evenkeel set --pool main bfq.slice_idle=0 bfq.low_latency=false\n  \
    evenkeel set --pool main --profile database\n  \
    evenkeel set --pool main bfq.slice_idle=default profile=default\n\n\
    What can be set:\n  \
    of a disk, a VM or a group: weight=N, 1 to 1000; limits and reservations, by the names of\n  \
    libvirt, QEMU or io.max (docs/guide/limits.md); limits of a pool, too\n  \
    of a pool: scheduler=NAME, profile=NAME, depth=N or auto, poll=brief, auto or off, poll_us=N,\n  \
    and every tunable as\n  \
    TABLE.NAME=VALUE (bfq.*, deadline.*, anticipatory.*, kyber.*, cfq.*; docs/guide/configuration.md lists them)\n\n\
    All settings of one call are made together or not at all; the guests' requests go on.\n\
    They last until the daemon ends: write them into the configuration, too.")]
pub(crate) struct SetArgs {
    /// The disk, unless --pool, --vm or --group says what to change; then KEY=VALUE, or several
    #[arg(value_name = "DISK|KEY=VALUE")]
    pub(crate) words: Vec<String>,
    /// Change a pool; may be left out beside the other options if there is only one
    #[arg(long, value_name = "NAME", value_parser = disk_name)]
    pub(crate) pool: Option<String>,
    /// Change a VM of the pool
    #[arg(long, value_name = "NAME", value_parser = disk_name, conflicts_with = "group")]
    pub(crate) vm: Option<String>,
    /// Change a group of the pool
    #[arg(long, value_name = "NAME", value_parser = disk_name)]
    pub(crate) group: Option<String>,
    /// The same as scheduler=NAME
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Scheduler>,
          conflicts_with_all = ["vm", "group"])]
    pub(crate) scheduler: Option<Scheduler>,
    /// The same as profile=NAME
    #[arg(long, value_name = "NAME", value_parser = str::parse::<Profile>,
          conflicts_with_all = ["vm", "group"])]
    pub(crate) profile: Option<Profile>,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    evenkeel bench startup --app xterm --host-load 1r-seq --format html > startup.html\n  \
    evenkeel bench sched --format json\n  \
    evenkeel bench shares --model hdd --visitor\n  \
    evenkeel bench rate --dir /var/tmp/bench")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) what: Bench,
    /// For whom to print; html and suite are for startup, throughput and player
    #[arg(long, value_enum, default_value_t = BenchFormat::Table, global = true)]
    pub(crate) format: BenchFormat,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum BenchFormat {
    /// For people
    Table,
    /// One JSON document
    Json,
    /// A page with bars
    Html,
    /// Minimum, maximum, mean, deviation and confidence below a line for each scenario
    Suite,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Bench {
    /// Start of applications in a guest, or on the host, beside loads in both, in any combination
    Startup(StartupArgs),
    /// Throughput of a guest beside loads in the host, or of the host, in any combination
    Throughput(ThroughputArgs),
    /// A film in a guest beside loads in guest and host: how many of its pieces come late
    Player(PlayerArgs),
    /// Cost of one request in each scheduler, by the number of busy queues
    Sched,
    /// Where the time of a request goes, stage by stage
    Cost(CostArgs),
    /// Shares beside those of an ideal fluid server, in virtual time, without I/O
    Fairness,
    /// Requests per second, latency and processor time, beside qemu-storage-daemon
    Rate(RateArgs),
    /// Latency of a small reader beside a heavy neighbour, and what is left of the neighbour's rate
    Isolation(IsolationArgs),
    /// Many busy disks in one pool beside one of them, and what a thousand idle ones cost
    Scale(ScaleArgs),
    /// Shares of two disks with weights 100 and 300 that saturate one pool
    Shares {
        /// Where images and logs go; the disk below it is the one that is shared
        #[arg(long, value_name = "DIR", default_value = "target/bench")]
        dir: PathBuf,
        /// Imitate the timing of a device, as in evenkeel serve --model
        #[arg(long, value_name = "NAME")]
        model: Option<String>,
        /// Let a third disk come and go meanwhile
        #[arg(long)]
        visitor: bool,
    },
    /// Latency of what is urgent below the daemon, by the kernel's scheduler and device_priority
    Downwards {
        /// Where the file behind a loop device, sockets and logs go
        #[arg(long, value_name = "DIR", default_value = "target/bench")]
        dir: PathBuf,
        /// Schedulers of the kernel for the loop device
        #[arg(
            long,
            value_name = "NAMES",
            value_delimiter = ',',
            default_value = "mq-deadline,bfq"
        )]
        schedulers: Vec<String>,
        /// How long each run is measured
        #[arg(long, value_name = "N", default_value_t = 5,
              value_parser = clap::value_parser!(u32).range(1..=15))]
        seconds: u32,
        /// Runs for each scheduler and priority
        #[arg(long, value_name = "N", default_value_t = 3,
              value_parser = clap::value_parser!(u32).range(1..=100))]
        repetitions: u32,
    },
    /// Start of an application in a guest while another hammers the disk
    Demo {
        /// Schedulers of the pool, a row each
        #[arg(long, value_name = "NAMES", value_delimiter = ',',
              default_value = "noop,deadline,bfq",
              value_parser = |name: &str| name.parse::<Scheduler>())]
        scheduler: Vec<Scheduler>,
        /// Imitate the timing of a device, as in evenkeel serve --model
        #[arg(long, value_name = "NAME", default_value = "hdd")]
        model: String,
        /// Starts on the idle disk, and again as many under load
        #[arg(long, value_name = "N", default_value_t = 5,
              value_parser = clap::value_parser!(u32).range(1..=100))]
        starts: u32,
        /// Where images and results go [default: target/demo of the checkout]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
    /// Shares, throughput and starts in a guest, beside its own kernel's schedulers
    Kernel {
        /// Imitate the timing of a device, as in evenkeel serve --model
        #[arg(long, value_name = "NAME", default_value = "hdd")]
        model: String,
        /// How long readers are counted in each run
        #[arg(long, value_name = "N", default_value_t = 8,
              value_parser = clap::value_parser!(u32).range(1..=600))]
        seconds: u32,
        /// How many times each job runs
        #[arg(long, value_name = "N", default_value_t = 3,
              value_parser = clap::value_parser!(u32).range(1..=100))]
        repetitions: u32,
        /// Where bench-kernel.json and the measured part of bench-kernel.md are written
        #[arg(long, value_name = "DIR")]
        results: Option<PathBuf>,
    },
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| {
        format!("{error}; write bytes, or a number with K, M, G or T, such as 10G")
    })
}

fn depth(text: &str) -> Result<Depth, String> {
    if text == "auto" {
        return Ok(Depth::Auto);
    }
    let depth = text.parse().ok().filter(|depth| (1..=DEPTH_MAX).contains(depth));
    depth.map(Depth::AtMost).ok_or_else(|| format!("use auto, or 1 to {DEPTH_MAX}"))
}

fn disk_name(name: &str) -> Result<String, String> {
    check_name(name).map(|()| name.to_owned()).map_err(|problem| {
        format!("{problem}; use 1 to 64 letters, digits, dots, underscores and hyphens")
    })
}

/// Splits `NAME=…`, for arguments that concern one disk.
fn named<'a>(text: &'a str, form: &str) -> Result<(String, &'a str), String> {
    let (name, rest) = text.split_once('=').ok_or_else(|| format!("write {form}"))?;
    if rest.is_empty() {
        return Err(format!("write {form}"));
    }
    Ok((disk_name(name)?, rest))
}

fn named_source(text: &str) -> Result<(String, Source), String> {
    let (name, source) = named(text, "NAME=PATH, such as web=web.img")?;
    let source = source.parse().map_err(|error| format!("{error}; write NAME=null:10G"))?;
    Ok((name, source))
}

fn named_weight(text: &str) -> Result<(String, u32), String> {
    let (name, number) = named(text, "NAME=W, such as web=300")?;
    Ok((name, weight(number)?))
}

pub(crate) fn weight(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|weight| (1..=WEIGHT_MAX).contains(weight))
        .ok_or_else(|| format!("a weight is a whole number from 1 to {WEIGHT_MAX}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_of_the_arguments_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_disk_is_a_name_and_where_its_data_lives() {
        assert_eq!(
            named_source("web=a=b.img"),
            Ok(("web".to_owned(), Source::Path(PathBuf::from("a=b.img"))))
        );
        let null = Source::Null { size_bytes: 1 << 30 };
        assert_eq!(named_source("n=null:1G"), Ok(("n".to_owned(), null)));
        for wrong in ["web", "web=", "=a.img", "a/b=c", "n=null:"] {
            assert_eq!(named_source(wrong).map_err(|_| ()), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_depth_is_a_number_or_left_to_the_governor() {
        assert_eq!((depth("auto"), depth("1024")), (Ok(Depth::Auto), Ok(Depth::AtMost(1024))));
        for wrong in ["0", "1025", "", "-1", "deep"] {
            assert_eq!(depth(wrong), Err("use auto, or 1 to 1024".to_owned()), "{wrong}");
        }
    }

    #[test]
    fn a_weight_is_a_number_from_1_to_1000() {
        assert_eq!(weight("1000"), Ok(1000));
        for wrong in ["0", "1001", "", "-1", "x"] {
            assert_eq!(weight(wrong).map_err(|_| ()), Err(()), "{wrong}");
        }
    }
}
