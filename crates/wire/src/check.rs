//! Mistakes that only show when fields are compared with one another.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::agent::vsock_listener;
use crate::blocks::{Block, Responses};
use crate::config::{Config, DEFAULT_QUEUES, Disk, Pool, QUEUES_MAX, Source, Trust, WEIGHT_MAX};
use crate::limits::check_limits;
use crate::problem::{Problem, join};

/// The longest name of a pool, group, VM or disk, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// The longest path of a Unix socket, in bytes: `sun_path` of 108 with its closing zero.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// The longest serial number that virtio-blk can tell, in bytes.
const SERIAL_BYTES_MAX: usize = 20;

/// Returns whether `name` may name a pool, group, VM or disk; if not, what is wrong with it.
///
/// A disk's name becomes a file name (`NAME.sock`), and every name may stand in a URL, so:
/// 1 to 64 letters, digits, dots, underscores and hyphens of ASCII, no dot in front.
///
/// # Errors
///
/// What is wrong, as half a sentence.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    let possible = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match name {
        "" => Err("an empty name"),
        name if name.len() > NAME_BYTES_MAX => Err("a name of more than 64 bytes"),
        name if !name.bytes().all(possible) => Err("a name with a character that is not possible"),
        name if name.starts_with(['.', '-']) => Err("a name that begins with a dot or a hyphen"),
        // Its socket would be that of a VM's agent.
        name if name.ends_with(".agent") => Err("a name that ends in .agent"),
        _ => Ok(()),
    }
}

/// Returns what is wrong with a socket whose path would have so many bytes, if anything is.
fn too_long_for_a_socket(bytes: usize) -> Option<String> {
    (bytes > SOCKET_PATH_BYTES_MAX).then(|| {
        format!("its socket's path would have {bytes} bytes, {SOCKET_PATH_BYTES_MAX} are possible")
    })
}

impl Config {
    /// Returns everything that is wrong with the fields taken together.
    ///
    /// The values themselves are also checked again, since a configuration may come from a command
    /// line instead of [`Document`](crate::Document).
    #[must_use]
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.pools.values().all(|pool| pool.disks.is_empty()) {
            let remedy = "add a table such as [pools.main.disks.web] with path = \"web.img\"";
            problems.push(Problem::new("pools", "", "no disk to serve", remedy));
        }
        for (name, pool) in &self.pools {
            let path = join("pools", name);
            name_problem(&path, name, &mut problems);
            check_pool(&path, pool, &mut problems);
        }
        self.check_twins(&mut problems);
        self.check_traces(&mut problems);
        self.check_sockets(&mut problems);
        self.check_vsocks(&mut problems);
        problems
    }

    /// Disks of all pools, with the path of each in the configuration.
    fn disks(&self) -> impl Iterator<Item = (String, &str, &Disk)> {
        self.pools.iter().flat_map(|(pool, settings)| {
            settings.disks.iter().map(move |(name, disk)| {
                let path = format!("{}.disks", join("pools", pool));
                (join(&path, name), name.as_str(), disk)
            })
        })
    }

    /// Two disks of one name would share a socket; two of one image would destroy it.
    fn check_twins(&self, problems: &mut Vec<Problem>) {
        let mut names: BTreeMap<&str, String> = BTreeMap::new();
        let mut images: BTreeMap<PathBuf, (String, bool)> = BTreeMap::new();
        for (path, name, disk) in self.disks() {
            if let Some(first) = names.insert(name, path.clone()) {
                let problem = format!("{first} has the same name, hence the same socket");
                problems.push(Problem::new(&path, "", problem, "rename one of the two"));
            }
            let Source::Path(image) = &disk.source else { continue };
            let seen = images.insert(normal(image), (path.clone(), disk.read_only));
            if let Some((first, read_only)) = seen
                && !(read_only && disk.read_only)
            {
                let problem = format!("{first} has the same image; two writers destroy it");
                let remedy = "give each disk its own image, or set read_only = true on both";
                problems.push(Problem::new(format!("{path}.path"), quoted(image), problem, remedy));
            }
        }
    }

    /// Two traces in one file are none, and one in an image destroys it.
    fn check_traces(&self, problems: &mut Vec<Problem>) {
        let images = self.disks().filter_map(|(path, _, disk)| match &disk.source {
            Source::Path(image) => Some((normal(image), path)),
            Source::Null { .. } => None,
        });
        let mut taken: BTreeMap<PathBuf, String> = images.collect();
        for (name, pool) in &self.pools {
            let Some(trace) = &pool.trace else { continue };
            let path = format!("{}.trace", join("pools", name));
            if let Some(first) = taken.insert(normal(trace), path.clone()) {
                let problem = format!("{first} is the same file");
                let remedy = "give each trace a file of its own";
                problems.push(Problem::new(path, quoted(trace), problem, remedy));
            }
        }
    }

    /// An agent must be believed to be heard, and its socket must be its own.
    fn check_vsocks(&self, problems: &mut Vec<Problem>) {
        let mut taken: BTreeMap<PathBuf, String> = BTreeMap::new();
        let vms = self.pools.iter().flat_map(|(name, pool)| {
            pool.vms.iter().map(move |(vm, settings)| (name, pool.trust, vm, settings))
        });
        for (pool, pool_trust, vm, settings) in vms {
            let Some(vsock) = &settings.vsock else { continue };
            let path = join(&format!("{}.vms", join("pools", pool)), vm);
            let mut report = |problem: String, remedy: &str| {
                let path = format!("{path}.vsock");
                problems.push(Problem::new(path, quoted(vsock), problem, remedy));
            };
            if settings.trust.unwrap_or(pool_trust) < Trust::Interactive {
                let problem = "its agent is not heard, since it is not believed".to_owned();
                report(problem, "set trust = \"interactive\", or take vsock away");
            }
            let bytes = vsock_listener(vsock).as_os_str().len();
            if let Some(problem) = too_long_for_a_socket(bytes) {
                report(problem, "use a shorter path");
            }
            // A VM may have disks in several pools.
            if let Some(first) = taken.insert(normal(vsock), vm.clone()).filter(|first| first != vm)
            {
                report(format!("{first} has the same"), "give each VM a vsock socket of its own");
            }
        }
    }

    fn check_sockets(&self, problems: &mut Vec<Problem>) {
        // Where nobody has chosen a directory yet, any will do for the comparison.
        let dir = self.socket_dir.clone().unwrap_or_default();
        let api = self.api.clone().unwrap_or_else(|| dir.join("api.sock"));
        for (path, name, _) in self.disks() {
            if normal(&dir.join(format!("{name}.sock"))) == normal(&api) {
                let problem = "its socket would be that of the API";
                let remedy = "rename the disk, or set api to another path";
                problems.push(Problem::new(path, "", problem, remedy));
            }
        }
        if let Some(api) = &self.api
            && api.as_os_str().len() > SOCKET_PATH_BYTES_MAX
        {
            let bytes = api.as_os_str().len();
            let problem = format!("a path of {bytes} bytes, {SOCKET_PATH_BYTES_MAX} are possible");
            problems.push(Problem::new("api", quoted(api), problem, "use a shorter path"));
        }
        let Some(dir) = &self.socket_dir else { return };
        for (path, name, _) in self.disks() {
            let bytes = dir.as_os_str().len() + "/.sock".len() + name.len();
            if let Some(problem) = too_long_for_a_socket(bytes) {
                let remedy = "shorten socket_dir or the name of the disk";
                problems.push(Problem::new(path, "", problem, remedy));
            }
        }
    }
}

/// Returns `path` without `.` and doubled slashes. Links are not followed: the lock on the image
/// catches those.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}

fn quoted(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

fn name_problem(path: &str, name: &str, problems: &mut Vec<Problem>) {
    if let Err(problem) = check_name(name) {
        let remedy = "use 1 to 64 letters, digits, dots, underscores and hyphens, \
                      and begin with a letter, digit or underscore";
        problems.push(Problem::new(path, "", problem, remedy));
    }
}

fn weight_problem(path: &str, weight: u32, problems: &mut Vec<Problem>) {
    if !(1..=WEIGHT_MAX).contains(&weight) {
        problems.push(Problem::new(
            format!("{path}.weight"),
            weight.to_string(),
            "out of range",
            format!("use a whole number from 1 to {WEIGHT_MAX}"),
        ));
    }
}

fn check_pool(path: &str, pool: &Pool, problems: &mut Vec<Problem>) {
    check_blocks(path, pool, problems);
    for (name, group) in &pool.groups {
        let path = join(&format!("{path}.groups"), name);
        name_problem(&path, name, problems);
        weight_problem(&path, group.weight, problems);
        let parent = group.parent.as_deref();
        group_problem(&format!("{path}.parent"), parent, pool, problems);
    }
    check_cycles(path, pool, problems);
    check_limits(path, pool, problems);
    for (name, vm) in &pool.vms {
        let path = join(&format!("{path}.vms"), name);
        name_problem(&path, name, problems);
        weight_problem(&path, vm.weight, problems);
        group_problem(&format!("{path}.group"), vm.group.as_deref(), pool, problems);
    }
    for (name, disk) in &pool.disks {
        let path = join(&format!("{path}.disks"), name);
        name_problem(&path, name, problems);
        check_owner(&path, name, disk, pool, problems);
        check_disk(&path, disk, problems);
    }
}

/// A block that does not fit into the device would never be full.
fn check_blocks(path: &str, pool: &Pool, problems: &mut Vec<Problem>) {
    let Some(depth) = pool.depth else { return };
    let mut report = |key: &str, value: String| {
        let problem = format!("more than the device takes at a time, depth = {depth}");
        let remedy = format!("use at most {depth}, or raise depth");
        problems.push(Problem::new(format!("{path}.{key}"), value, problem, remedy));
    };
    if matches!(pool.block, Block::Static(size) if size > depth) {
        report("block", format!("\"{}\"", pool.block));
    }
    if matches!(pool.responses, Responses::Subset(size) if size > depth) {
        report("responses", format!("\"{}\"", pool.responses));
    }
}

fn group_problem(path: &str, group: Option<&str>, pool: &Pool, problems: &mut Vec<Problem>) {
    let Some(group) = group.filter(|group| !pool.groups.contains_key(*group)) else { return };
    let remedy = listed("use one of the groups of this pool", pool.groups.keys());
    problems.push(Problem::new(path, format!("{group:?}"), "no such group", remedy));
}

fn listed<'a>(remedy: &str, names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.map(String::as_str).collect();
    match names.as_slice() {
        [] => "add it to the pool, or leave the key out".to_owned(),
        names => format!("{remedy} ({}), or add it", names.join(", ")),
    }
}

/// Reports every cycle of parents once, at its first member by name.
fn check_cycles(path: &str, pool: &Pool, problems: &mut Vec<Problem>) {
    for start in pool.groups.keys() {
        let mut chain = vec![start];
        let mut at = start;
        // A chain longer than there are groups runs in a circle that `start` is not part of.
        while chain.len() <= pool.groups.len() {
            let Some(parent) = pool.groups.get(at).and_then(|group| group.parent.as_ref()) else {
                break;
            };
            chain.push(parent);
            at = parent;
            if at == start {
                break;
            }
        }
        if chain.len() > 1 && at == start && chain.iter().min() == Some(&start) {
            let names: Vec<&str> = chain.iter().map(|name| name.as_str()).collect();
            problems.push(Problem::new(
                join(&format!("{path}.groups"), start) + ".parent",
                format!("{:?}", names[1]),
                format!("a circle: {}", names.join(" -> ")),
                "let one of them have no parent",
            ));
        }
    }
}

/// The weight of a disk is that of the VM that it implies, so it must imply one.
fn check_owner(path: &str, name: &str, disk: &Disk, pool: &Pool, problems: &mut Vec<Problem>) {
    let owner = disk.vm.as_deref().unwrap_or(name);
    // A disk that names no VM is one, and another disk may name that.
    let is_vm = |name: &str| pool.disks.get(name).is_some_and(|disk| disk.vm.is_none());
    if !pool.vms.contains_key(owner) && !is_vm(owner) {
        let remedy = listed("use one of the VMs of this pool", pool.all_vms().keys());
        problems.push(Problem::new(
            format!("{path}.vm"),
            format!("{owner:?}"),
            "no such VM",
            remedy,
        ));
    }
    let Some(weight) = disk.weight else { return };
    weight_problem(path, weight, problems);
    if disk.vm.is_some() || pool.vms.contains_key(owner) {
        problems.push(Problem::new(
            format!("{path}.weight"),
            weight.to_string(),
            format!("the disk belongs to VM {owner}, which has a weight of its own"),
            "leave it out here and set the weight of the VM",
        ));
    }
}

fn check_disk(path: &str, disk: &Disk, problems: &mut Vec<Problem>) {
    let mut report = |key: &str, value: String, problem: &str, remedy: &str| {
        problems.push(Problem::new(format!("{path}.{key}"), value, problem, remedy));
    };
    let size = match (&disk.source, disk.create_bytes) {
        (Source::Null { size_bytes }, created) => {
            if created.is_some() {
                let remedy = "leave create out; the size stands in null:SIZE";
                report("create", String::new(), "there is nothing to create for null", remedy);
            }
            Some((*size_bytes, "path", format!("\"{}\"", disk.source)))
        }
        (Source::Path(_), created) => created.map(|bytes| (bytes, "create", bytes.to_string())),
    };
    if disk.create_bytes.is_some() && disk.read_only {
        let remedy = "leave out create or read_only";
        report("create", String::new(), "a new image that nobody can write to", remedy);
    }
    if disk.preallocate && disk.create_bytes.is_none() {
        let remedy = "add create = SIZE, or leave preallocate out";
        report("preallocate", "true".to_owned(), "only new images can be preallocated", remedy);
    }
    if !matches!(disk.block_bytes, 512 | 4096) {
        let value = disk.block_bytes.to_string();
        report("block_bytes", value, "not a block size", "use 512 or 4096");
    } else if let Some((bytes, key, value)) = size
        && bytes % u64::from(disk.block_bytes) != 0
    {
        let problem = "not a whole number of blocks";
        let remedy = format!("use a multiple of block_bytes, {}", disk.block_bytes);
        report(key, value, problem, &remedy);
    }
    if !(1..=QUEUES_MAX).contains(&disk.queues) {
        let remedy = format!("use 1 to {QUEUES_MAX}; {DEFAULT_QUEUES} suits most");
        report("queues", disk.queues.to_string(), "out of range", &remedy);
    }
    if let Some(serial) = &disk.serial
        && (serial.len() > SERIAL_BYTES_MAX || !serial.bytes().all(|byte| byte.is_ascii_graphic()))
    {
        let problem = "not a serial number that virtio-blk can tell";
        let remedy = "use at most 20 visible ASCII characters without spaces";
        report("serial", format!("{serial:?}"), problem, remedy);
    }
}
