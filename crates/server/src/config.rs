//! From what an operator asked for to what pools are made of.
//!
//! `wire` has checked every field by itself; what is left are the rules of other rooms: models,
//! scheduler tunables, sockets. All mistakes are collected, as everywhere.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use evenkeel_engine::{BlockConfig, BlockSize, HelpPolicy};
use evenkeel_sched::{BfqTunables, DeadlineTunables, ElevatorConfig, Kind, Nanos, Urgency, Weight};
use evenkeel_sim::ModelSpec;
use evenkeel_wire::{
    Block, Config, Disk, Pool, Problem, Problems, Responses, Rotational, Scheduler, Source, Trust,
    Vm,
};

use crate::backend;
use crate::worker::{GroupPlan, VmPlan};

/// Commands at a device of flash at a time, unless the configuration says otherwise: about where
/// more no longer adds throughput, and each one waits in a queue that nobody can schedule.
const DEPTH_FLASH: u32 = 32;
/// The same for a device that turns; it picks the nearest of those it has.
const DEPTH_ROTATIONAL: u32 = 4;

/// A configuration that can be carried out, as far as can be known without doing it.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) socket_dir: PathBuf,
    pub(crate) pools: Vec<PoolPlan>,
}

/// A pool to start.
#[derive(Clone, Debug)]
pub(crate) struct PoolPlan {
    pub(crate) name: String,
    pub(crate) elevator: ElevatorConfig,
    pub(crate) model: Option<ModelSpec>,
    /// What the operator says; otherwise the model or the devices decide.
    pub(crate) rotational: Option<bool>,
    pub(crate) depth: Option<u32>,
    pub(crate) blocks: BlockPlan,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) vms: Vec<VmPlan>,
    pub(crate) disks: Vec<DiskPlan>,
}

impl PoolPlan {
    /// Returns the depth, given what is known of the device.
    pub(crate) fn depth(&self, rotational: bool, model_depth: Option<u32>) -> u32 {
        let usual = if rotational { DEPTH_ROTATIONAL } else { DEPTH_FLASH };
        self.depth.or(model_depth).unwrap_or(usual)
    }
}

/// How requests are handed to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlan {
    pub(crate) size: Block,
    pub(crate) responses: Responses,
}

impl BlockPlan {
    /// Returns what the engine makes of it. One that answers each command takes the next as soon
    /// as it has a place: the kernel's queue is not the one block of a paper's interface.
    pub(crate) const fn config(self) -> BlockConfig {
        BlockConfig {
            size: match self.size {
                Block::Dynamic => BlockSize::Dynamic,
                Block::Static(size) => BlockSize::Static(size),
            },
            responses: match self.responses {
                Responses::Each => evenkeel_engine::Responses::Each,
                Responses::Block => evenkeel_engine::Responses::Block,
                Responses::Subset(size) => evenkeel_engine::Responses::Subset(size),
            },
            one_at_a_time: false,
        }
    }
}

/// A disk to serve.
#[derive(Clone, Debug)]
pub(crate) struct DiskPlan {
    pub(crate) name: String,
    /// The name of its VM.
    pub(crate) vm: String,
    /// Its VM's position in [`PoolPlan::groups`].
    pub(crate) group: usize,
    pub(crate) source: backend::Source,
    /// As an operator writes it.
    pub(crate) source_text: String,
    pub(crate) read_only: bool,
    pub(crate) queues: u16,
    pub(crate) block_bytes: u32,
    pub(crate) write_cache: bool,
    /// What the guest reads as the identity, padded with zeroes.
    pub(crate) serial: [u8; 20],
}

/// Turns a configuration into plans.
///
/// # Errors
///
/// * [`Problems`]: every mistake, with the field's path, the value, and what to do.
pub(crate) fn plan(config: &Config, default_socket_dir: &Path) -> Result<Plan, Problems> {
    let mut problems = config.check();
    let pools = plan_pools(config, &mut problems);
    match Problems::from_vec(problems) {
        Some(problems) => Err(problems),
        None => Ok(Plan {
            socket_dir: config.socket_dir.clone().unwrap_or_else(|| default_socket_dir.to_owned()),
            pools,
        }),
    }
}

/// Returns the mistakes in a configuration that only those who build devices and schedulers see:
/// unknown models, parameters out of range. [`Config::check`] finds the others.
#[must_use]
pub fn check_devices(config: &Config) -> Vec<Problem> {
    let mut problems = Vec::new();
    plan_pools(config, &mut problems);
    one_image_twice(config, &mut problems);
    problems
}

/// Reports images that two disks reach by different paths, through links. [`Config::check`] finds
/// those of one path, and the lock on an image those of other processes.
fn one_image_twice(config: &Config, problems: &mut Vec<Problem>) {
    let mut seen: Vec<(FileId, &Path, &str, bool)> = Vec::new();
    for (pool, name, disk) in config.pools.iter().flat_map(|(pool, settings)| {
        settings.disks.iter().map(move |(name, disk)| (pool, name, disk))
    }) {
        let Source::Path(path) = &disk.source else { continue };
        // One that is not there is reported, or made, when it is opened.
        let Ok(id) = file_id(path) else { continue };
        let first = seen.iter().find(|(other, other_path, ..)| *other == id && other_path != path);
        if let Some((_, _, first, read_only)) = first
            && !(*read_only && disk.read_only)
        {
            problems.push(Problem::new(
                format!("pools.{pool}.disks.{name}.path"),
                format!("{:?}", path.display().to_string()),
                format!("leads to the image of disk {first}; two writers destroy it"),
                "give each disk its own image, or set read_only = true on both",
            ));
        }
        seen.push((id, path, name, disk.read_only));
    }
}

/// What tells one file from another: device and inode, or the device that a special file stands
/// for.
type FileId = (u64, u64);

fn file_id(path: &Path) -> io::Result<FileId> {
    let there = fs::metadata(path)?;
    Ok(match there.file_type().is_block_device() {
        true => (there.rdev(), 0),
        false => (there.dev(), there.ino()),
    })
}

fn plan_pools(config: &Config, problems: &mut Vec<Problem>) -> Vec<PoolPlan> {
    config.pools.iter().map(|(name, pool)| plan_pool(name, pool, problems)).collect()
}

fn plan_pool(name: &str, pool: &Pool, problems: &mut Vec<Problem>) -> PoolPlan {
    let path = format!("pools.{name}");
    let model = pool.model.as_ref().and_then(|text| {
        let parsed = text.parse::<ModelSpec>();
        parsed.map_err(|error| problems.push(model_problem(&path, text, &error))).ok()
    });
    let bfq = bfq(&pool.bfq);
    if let Err(error) = bfq.validate() {
        let what = "these values do not work together";
        problems.push(Problem::new(format!("{path}.bfq"), "", what, error.to_string()));
    }
    let (groups, vms) = plan_groups(pool);
    let disks = pool.disks.iter().map(|(disk_name, disk)| {
        let vm = pool.vm_of(disk_name);
        // A VM that does not exist is among `problems` already.
        let group = vms.iter().find(|(known, _)| known == vm).map_or(0, |&(_, group)| group);
        plan_disk(disk_name, disk, vm, group)
    });
    let all_vms = pool.all_vms();
    let plan_vm = |(vm, group): (String, usize)| {
        let settings = all_vms.get(&vm).expect("planned from the same VMs");
        plan_vm(vm, group, settings, pool.trust)
    };
    PoolPlan {
        name: name.to_owned(),
        elevator: ElevatorConfig {
            kind: kind(pool.scheduler),
            deadline: deadline(&pool.deadline),
            bfq,
            ..ElevatorConfig::default()
        },
        rotational: match pool.rotational {
            Rotational::Auto => None,
            Rotational::Yes => Some(true),
            Rotational::No => Some(false),
        },
        depth: pool.depth,
        blocks: BlockPlan { size: pool.block, responses: pool.responses },
        groups,
        disks: disks.collect(),
        vms: vms.into_iter().map(plan_vm).collect(),
        model,
    }
}

fn model_problem(path: &str, text: &str, error: &evenkeel_sim::ModelError) -> Problem {
    Problem::new(
        format!("{path}.model"),
        format!("{text:?}"),
        error.to_string(),
        "see docs/devices.md for models and their parameters",
    )
}

/// Returns the pool's tree in an order in which it can be made, and where each VM is in it.
fn plan_groups(pool: &Pool) -> (Vec<GroupPlan>, Vec<(String, usize)>) {
    let mut plans = Vec::new();
    let mut tenants: Vec<(&str, usize)> = Vec::new();
    let at = |tenants: &[(&str, usize)], parent: &Option<String>| {
        let parent = parent.as_deref()?;
        tenants.iter().find(|(name, _)| *name == parent).map(|&(_, at)| at)
    };
    for (name, group) in pool.groups_top_down() {
        let parent = at(&tenants, &group.parent);
        tenants.push((name, plans.len()));
        plans.push(GroupPlan { parent, weight: weight(group.weight) });
    }
    let mut vms = Vec::new();
    for (name, vm) in pool.all_vms() {
        let parent = at(&tenants, &vm.group);
        vms.push((name, plans.len()));
        plans.push(GroupPlan { parent, weight: weight(vm.weight) });
    }
    (plans, vms)
}

fn plan_vm(name: String, group: usize, vm: &Vm, pool_trust: Trust) -> VmPlan {
    let trust = vm.trust.unwrap_or(pool_trust);
    let default = HelpPolicy::default();
    let help = HelpPolicy {
        most: match trust {
            Trust::None | Trust::Vm => Urgency::None,
            Trust::Interactive => Urgency::Interactive,
            Trust::SoftRealTime => Urgency::SoftRealTime,
        },
        time_per_minute: vm
            .help_seconds_per_minute
            .map_or(default.time_per_minute, |seconds| Nanos::from_secs(u64::from(seconds))),
        sectors_per_minute: vm
            .help_mib_per_minute
            .map_or(default.sectors_per_minute, |mib| u64::from(mib) * 2048),
        ..default
    };
    VmPlan {
        name,
        group,
        heeds_priority: trust > Trust::None,
        help: (help.most > Urgency::None).then_some(help),
    }
}

fn plan_disk(name: &str, disk: &Disk, vm: &str, group: usize) -> DiskPlan {
    let source = match &disk.source {
        Source::Path(path) => backend::Source::Path {
            path: path.clone(),
            create: disk.create_bytes,
            preallocate: disk.preallocate,
        },
        Source::Null { size_bytes } => backend::Source::Null { bytes: *size_bytes },
    };
    let mut serial = [0; 20];
    for (to, from) in serial.iter_mut().zip(disk.serial.as_deref().unwrap_or(name).bytes()) {
        *to = from;
    }
    DiskPlan {
        name: name.to_owned(),
        vm: vm.to_owned(),
        group,
        source,
        source_text: disk.source.to_string(),
        read_only: disk.read_only,
        queues: disk.queues,
        block_bytes: disk.block_bytes,
        write_cache: disk.write_cache,
        serial,
    }
}

/// Returns a weight; one out of range is among the problems already.
fn weight(value: u32) -> Weight {
    Weight::new(u64::from(value)).unwrap_or_default()
}

const fn kind(scheduler: Scheduler) -> Kind {
    match scheduler {
        Scheduler::None => Kind::None,
        Scheduler::Noop => Kind::Noop,
        Scheduler::Deadline => Kind::Deadline,
        Scheduler::DeadlineLegacy => Kind::DeadlineLegacy,
        Scheduler::Anticipatory => Kind::Anticipatory,
        Scheduler::Kyber => Kind::Kyber,
        Scheduler::Cfq => Kind::Cfq,
        Scheduler::Bfq => Kind::Bfq,
    }
}

fn millis(value: Option<u32>, default: Nanos) -> Nanos {
    value.map_or(default, |ms| Nanos::from_millis(u64::from(ms)))
}

fn deadline(wire: &evenkeel_wire::Deadline) -> DeadlineTunables {
    let default = DeadlineTunables::default();
    DeadlineTunables {
        read_expire: millis(wire.read_expire_ms, default.read_expire),
        write_expire: millis(wire.write_expire_ms, default.write_expire),
        writes_starved: wire.writes_starved.unwrap_or(default.writes_starved),
        fifo_batch: wire.fifo_batch.unwrap_or(default.fifo_batch),
        front_merges: wire.front_merges.unwrap_or(default.front_merges),
        prio_aging_expire: millis(wire.prio_aging_expire_ms, default.prio_aging_expire),
        ..default
    }
}

fn bfq(wire: &evenkeel_wire::Bfq) -> BfqTunables {
    let default = BfqTunables::default();
    BfqTunables {
        slice_idle: wire
            .slice_idle_us
            .map_or(default.slice_idle, |us| Nanos::from_micros(u64::from(us))),
        strict_guarantees: wire.strict_guarantees.unwrap_or(default.strict_guarantees),
        kernel_compat: wire.kernel_compat.unwrap_or(default.kernel_compat),
        injection: wire.injection.unwrap_or(default.injection),
        merge_queues: wire.merge_queues.unwrap_or(default.merge_queues),
        stable_merge: wire.stable_merge.unwrap_or(default.stable_merge),
        back_seek_max_kib: wire.back_seek_max_kib.unwrap_or(default.back_seek_max_kib),
        back_seek_penalty: wire.back_seek_penalty.unwrap_or(default.back_seek_penalty),
        fifo_expire_sync: millis(wire.fifo_expire_sync_ms, default.fifo_expire_sync),
        fifo_expire_async: millis(wire.fifo_expire_async_ms, default.fifo_expire_async),
        timeout_sync: millis(wire.timeout_sync_ms, default.timeout_sync),
        max_budget_sectors: wire.max_budget_sectors.unwrap_or(default.max_budget_sectors),
        low_latency: wire.low_latency.unwrap_or(default.low_latency),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        evenkeel_wire::Document::read(text).finish().unwrap()
    }

    #[test]
    fn all_mistakes_are_reported_at_once_with_their_paths() {
        let config = config(
            "[pools.a]\nmodel = \"tape\"\n[pools.a.disks.x]\npath = \"x.img\"\n\
             [pools.b]\nmodel = \"hdd:rpm=0\"\n[pools.b.disks.y]\npath = \"y.img\"\n",
        );
        let problems = plan(&config, Path::new("/run/evenkeel")).unwrap_err();
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["pools.a.model", "pools.b.model"]);
        assert!(problems.to_string().contains("tape"), "{problems}");
        assert_eq!(check_devices(&config).len(), 2);
    }

    #[test]
    fn an_image_that_two_disks_reach_through_a_link_is_reported() {
        let dir = std::env::temp_dir().join(format!("evenkeel-twice-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("x.img"), [0; 512]).unwrap();
        fs::hard_link(dir.join("x.img"), dir.join("hard.img")).unwrap();
        std::os::unix::fs::symlink("x.img", dir.join("soft.img")).unwrap();
        let text = ["x", "hard", "soft"].map(|name| {
            format!("[pools.p.disks.{name}]\npath = \"{}/{name}.img\"\n", dir.display())
        });
        let problems = |text: &str| -> Vec<String> {
            check_devices(&config(text)).into_iter().map(|problem| problem.path).collect()
        };
        let twice = problems(&text.concat());
        let readers = problems(&text.map(|disk| disk + "read_only = true\n").concat());
        fs::remove_dir_all(&dir).unwrap();
        assert_eq!(twice, ["pools.p.disks.soft.path", "pools.p.disks.x.path"]);
        assert_eq!(readers, [""; 0]);
    }

    #[test]
    fn the_tree_is_planned_with_parents_before_children() {
        let config = config(
            "[pools.p.groups.inner]\nparent = \"outer\"\nweight = 200\n\
             [pools.p.groups.outer]\nweight = 300\n\
             [pools.p.vms.web]\ngroup = \"inner\"\nweight = 7\n\
             [pools.p.disks.root]\npath = \"root.img\"\nvm = \"web\"\n\
             [pools.p.disks.alone]\npath = \"null:1G\"\nweight = 50\nserial = \"S1\"\n",
        );
        let plan = plan(&config, Path::new("/run/evenkeel")).unwrap();
        let pool = &plan.pools[0];
        let weight_and_parent = |at: usize| {
            let group = pool.groups[at];
            (group.weight.value(), group.parent.map(|parent| pool.groups[parent].weight.value()))
        };
        for (at, group) in pool.groups.iter().enumerate() {
            assert!(group.parent.is_none_or(|parent| parent < at));
        }
        let [alone, root] = &pool.disks[..] else { panic!("two disks: {pool:?}") };
        assert_eq!(weight_and_parent(alone.group), (50, None));
        assert_eq!(weight_and_parent(root.group), (7, Some(200)));
        assert_eq!(alone.source, backend::Source::Null { bytes: 1 << 30 });
        assert_eq!(&alone.serial[..3], b"S1\0");
        assert_eq!(&root.serial[..5], b"root\0");
    }

    #[test]
    fn the_depth_comes_from_the_operator_then_the_model_then_the_device() {
        let mut config = config("[pools.p.disks.x]\npath = \"x.img\"\n");
        let depth = |config: &Config, rotational, model| {
            plan(config, Path::new("/run")).unwrap().pools[0].depth(rotational, model)
        };
        assert_eq!(depth(&config, false, None), DEPTH_FLASH);
        assert_eq!(depth(&config, true, None), DEPTH_ROTATIONAL);
        assert_eq!(depth(&config, true, Some(1)), 1);
        config.pools.get_mut("p").unwrap().depth = Some(9);
        assert_eq!(depth(&config, true, Some(1)), 9);
    }
}
