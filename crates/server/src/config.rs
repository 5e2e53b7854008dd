//! From what an operator asked for to what pools are made of.
//!
//! `wire` has checked every field by itself; what is left are the rules of other rooms: models,
//! scheduler tunables, sockets. All mistakes are collected, as everywhere.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use evenkeel_engine::{BlockConfig, BlockSize, HelpPolicy};
use evenkeel_sched::{Nanos, Urgency, Weight};
use evenkeel_sim::ModelSpec;
use evenkeel_wire::{
    Block, Config, Disk, Poll, Pool, Problem, Problems, Responses, Rotational, Scheduler, Source,
    Trust, Vm,
};

use crate::backend;
use crate::elevator::{check_elevator, elevator};
use crate::worker::{GroupPlan, VmPlan};

/// Commands at a device of flash at a time, unless the configuration says otherwise: about where
/// more no longer adds throughput, and each one waits in a queue that nobody can schedule.
const DEPTH_FLASH: u32 = 32;
/// The same where nothing is held back, and for who is alone.
const DEPTH_FLASH_MOST: u32 = 128;
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
    pub(crate) model: Option<ModelSpec>,
    /// What the operator says; otherwise the model or the devices decide.
    pub(crate) rotational: Option<bool>,
    /// As the operator wrote it, for changes while it runs.
    pub(crate) settings: Pool,
    pub(crate) groups: Vec<GroupPlan>,
    pub(crate) vms: Vec<VmPlan>,
    pub(crate) names: GroupNames,
    pub(crate) disks: Vec<DiskPlan>,
}

/// Where the groups and VMs of a pool are in its list of groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupNames {
    /// Groups, parents before children.
    pub(crate) groups: Vec<(String, usize)>,
    /// VMs, in the order of their names.
    pub(crate) vms: Vec<(String, usize)>,
}

impl GroupNames {
    /// Returns the position of a name in one of the two lists.
    pub(crate) fn find(names: &[(String, usize)], name: &str) -> Option<usize> {
        names.iter().find(|(known, _)| known == name).map(|&(_, at)| at)
    }
}

/// Returns how the engine of a pool hands requests to the device. One that answers each command
/// takes the next as soon as it has a place: the kernel's queue is not the one block of a paper's
/// interface.
pub(crate) const fn blocks(pool: &Pool) -> BlockConfig {
    BlockConfig {
        size: match pool.block {
            Block::Dynamic => BlockSize::Dynamic,
            Block::Static(size) => BlockSize::Static(size),
        },
        responses: match pool.responses {
            Responses::Each => evenkeel_engine::Responses::Each,
            Responses::Block => evenkeel_engine::Responses::Block,
            Responses::Subset(size) => evenkeel_engine::Responses::Subset(size),
        },
        one_at_a_time: false,
    }
}

/// Returns the depth of a pool, given what is known of the device, and how many commands it takes if
/// it says so.
pub(crate) fn depth(pool: &Pool, rotational: bool, takes: Option<u32>) -> u32 {
    let holds_nothing_back = matches!(pool.scheduler(), Scheduler::None | Scheduler::Noop);
    let usual = match rotational {
        true => DEPTH_ROTATIONAL,
        false if holds_nothing_back || governs(pool, rotational) => DEPTH_FLASH_MOST,
        false => DEPTH_FLASH,
    };
    pool.depth.or(takes).unwrap_or(usual)
}

/// Returns how many commands are usually enough for the device: what a governor gives a load that it
/// has not looked into.
pub(crate) fn usual_depth(pool: &Pool, takes: Option<u32>) -> u32 {
    pool.depth.or(takes).unwrap_or(DEPTH_FLASH)
}

/// Returns whether a governor finds out how much of the depth of a pool its device needs.
///
/// It does if the operator wants it; and if he has said nothing, where it is worth most: on a
/// device that works on many requests at a time, under a scheduler that serves those who wait for
/// each answer first. It does not if he has said how requests go together.
pub(crate) fn governs(pool: &Pool, rotational: bool) -> bool {
    let is_usual = pool.depth.is_none() && !rotational && pool.scheduler() == Scheduler::Bfq;
    let is_wanted = pool.governor || is_usual;
    is_wanted && pool.block == Block::Dynamic && pool.responses == Responses::Each
}

/// How long a worker looks for work at most unless the operator says more: what it costs about to
/// sleep and to be woken, so a look that finds nothing loses no more than one that pays wins.
const POLL_BRIEF: Nanos = Nanos::from_micros(16);

/// How long a worker looks for work at most where the operator leaves that to the daemon: longer
/// than devices of flash take for a short read, and KVM's own limit for halted processors.
const POLL_AUTO: Nanos = Nanos::from_micros(200);

/// Returns how long the worker of a pool looks for work before it sleeps, at most; 0 is never.
pub(crate) fn polls(pool: &Pool) -> Nanos {
    match pool.poll {
        Poll::Off => Nanos::ZERO,
        Poll::Brief => POLL_BRIEF,
        Poll::Auto => POLL_AUTO,
        Poll::AtMost(us) => Nanos::from_micros(u64::from(us)),
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
    problems.extend(check_elevator(&path, &elevator(pool)));
    let (groups, names) = plan_groups(pool);
    let disks = pool.disks.iter().map(|(disk_name, disk)| {
        let vm = pool.vm_of(disk_name);
        // A VM that does not exist is among `problems` already.
        let group = GroupNames::find(&names.vms, vm).unwrap_or(0);
        plan_disk(disk_name, disk, vm, group)
    });
    let disks = disks.collect();
    let all_vms = pool.all_vms();
    let plan_vm = |(vm, group): &(String, usize)| {
        let settings = all_vms.get(vm).expect("planned from the same VMs");
        plan_vm(vm.clone(), *group, settings, pool.trust)
    };
    PoolPlan {
        name: name.to_owned(),
        rotational: match pool.rotational {
            Rotational::Auto => None,
            Rotational::Yes => Some(true),
            Rotational::No => Some(false),
        },
        settings: pool.clone(),
        groups,
        vms: names.vms.iter().map(plan_vm).collect(),
        names,
        disks,
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

/// Returns the pool's tree in an order in which it can be made, and where everybody is in it.
fn plan_groups(pool: &Pool) -> (Vec<GroupPlan>, GroupNames) {
    let mut plans = Vec::new();
    let mut names = GroupNames::default();
    let at = |names: &GroupNames, parent: &Option<String>| {
        GroupNames::find(&names.groups, parent.as_deref()?)
    };
    for (name, group) in pool.groups_top_down() {
        let parent = at(&names, &group.parent);
        names.groups.push((name.to_owned(), plans.len()));
        plans.push(GroupPlan { parent, weight: weight(group.weight) });
    }
    for (name, vm) in pool.all_vms() {
        let parent = at(&names, &vm.group);
        names.vms.push((name, plans.len()));
        plans.push(GroupPlan { parent, weight: weight(vm.weight) });
    }
    (plans, names)
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
        let pool = |scheduler, depth| Pool { scheduler, depth, ..Pool::default() };
        let usual = pool(None, None);
        assert_eq!(depth(&usual, false, None), DEPTH_FLASH_MOST, "a governor uses what it needs");
        assert_eq!(usual_depth(&usual, None), DEPTH_FLASH);
        assert_eq!(usual_depth(&usual, Some(9)), 9);
        assert_eq!(usual_depth(&pool(None, Some(64)), Some(9)), 64);
        assert_eq!(depth(&pool(Some(Scheduler::None), None), false, None), DEPTH_FLASH_MOST);
        assert_eq!(depth(&pool(Some(Scheduler::Kyber), None), false, None), DEPTH_FLASH);
        assert_eq!(depth(&usual, true, None), DEPTH_ROTATIONAL);
        assert_eq!(depth(&usual, true, Some(1)), 1);
        assert_eq!(depth(&pool(None, Some(9)), true, Some(1)), 9);
    }
}
