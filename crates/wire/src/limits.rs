//! Limits and reservations, in whichever words the operator knows them.
//!
//! Every setting has one name of our own, that of libvirt's `<iotune>`, and those of QEMU's
//! throttling and of `io.max` in cgroups mean the same. Zero, `"max"` and `"none"` are no limit.

use std::collections::BTreeMap;

use crate::config::{Pool, Vm};
use crate::problem::{Problem, join};
use crate::size::{format_size, parse_size};

/// What a setting counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LimitUnit {
    /// Bytes, or bytes a second.
    Bytes,
    /// Requests a second.
    Requests,
    /// Seconds.
    Seconds,
}

/// One setting: a limit, or a part of one.
#[derive(Debug, Eq, PartialEq)]
pub struct LimitKey {
    /// Its name.
    pub name: &'static str,
    /// Its other names.
    pub aliases: &'static [&'static str],
    /// What it counts.
    pub unit: LimitUnit,
}

const fn key(name: &'static str, unit: LimitUnit, aliases: &'static [&'static str]) -> LimitKey {
    LimitKey { name, aliases, unit }
}

use LimitUnit::{Bytes, Requests, Seconds};

/// Every setting. The first six are rates; six further on stands the rate of the burst of each,
/// and another six further on its length.
pub const LIMITS: [LimitKey; 21] = [
    key("total_bytes_sec", Bytes, &["bps-total", "bps_total"]),
    key("read_bytes_sec", Bytes, &["bps-read", "bps_read", "rbps"]),
    key("write_bytes_sec", Bytes, &["bps-write", "bps_write", "wbps"]),
    key("total_iops_sec", Requests, &["iops-total", "iops_total"]),
    key("read_iops_sec", Requests, &["iops-read", "iops_read", "riops"]),
    key("write_iops_sec", Requests, &["iops-write", "iops_write", "wiops"]),
    key("total_bytes_sec_max", Bytes, &["bps-total-max", "bps_total_max"]),
    key("read_bytes_sec_max", Bytes, &["bps-read-max", "bps_read_max"]),
    key("write_bytes_sec_max", Bytes, &["bps-write-max", "bps_write_max"]),
    key("total_iops_sec_max", Requests, &["iops-total-max", "iops_total_max"]),
    key("read_iops_sec_max", Requests, &["iops-read-max", "iops_read_max"]),
    key("write_iops_sec_max", Requests, &["iops-write-max", "iops_write_max"]),
    key("total_bytes_sec_max_length", Seconds, &["bps-total-max-length", "bps_total_max_length"]),
    key("read_bytes_sec_max_length", Seconds, &["bps-read-max-length", "bps_read_max_length"]),
    key("write_bytes_sec_max_length", Seconds, &["bps-write-max-length", "bps_write_max_length"]),
    key("total_iops_sec_max_length", Seconds, &["iops-total-max-length", "iops_total_max_length"]),
    key("read_iops_sec_max_length", Seconds, &["iops-read-max-length", "iops_read_max_length"]),
    key("write_iops_sec_max_length", Seconds, &["iops-write-max-length", "iops_write_max_length"]),
    key("size_iops_sec", Bytes, &["iops-size", "iops_size"]),
    key("min_iops_sec", Requests, &["min_iops"]),
    key("min_bytes_sec", Bytes, &["min_bps"]),
];

/// How many rates there are.
const RATES: usize = 6;
const SIZE: usize = 18;
const MIN_IOPS: usize = 19;
const MIN_BYTES: usize = 20;
/// The largest rate, that of QEMU: 10^15.
pub(crate) const RATE_MAX: u64 = 1_000_000_000_000_000;
/// The longest burst: a day.
const LENGTH_MAX: u64 = 86_400;

/// One limit: 0 is none, and no burst.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LimitRate {
    /// Bytes or requests a second.
    pub rate: u64,
    /// The same during a burst.
    pub burst: u64,
    /// How long a burst lasts, in seconds.
    pub burst_seconds: u32,
}

/// The limits and the reservation of a pool, a group, a VM or a disk. The default is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits([u64; LIMITS.len()]);

impl Limits {
    /// Returns a setting by any of its names; 0 if it is not set, or if there is none.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        find(name).map_or(0, |index| self.0[index])
    }

    /// Returns whether nothing is set.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Returns everything that is set, by its own name.
    #[must_use]
    pub fn written(&self) -> BTreeMap<String, u64> {
        let set = LIMITS.iter().zip(self.0).filter(|(_, value)| *value > 0);
        set.map(|(key, value)| (key.name.to_owned(), value)).collect()
    }

    /// Returns the limits in the order total, read, write: of bytes, then of requests.
    #[must_use]
    pub fn rates(&self) -> [LimitRate; RATES] {
        std::array::from_fn(|index| LimitRate {
            rate: self.0[index],
            burst: self.0[index + RATES],
            burst_seconds: u32::try_from(self.0[index + 2 * RATES]).unwrap_or(u32::MAX),
        })
    }

    /// Returns how many bytes count as one request; 0 if size does not matter.
    #[must_use]
    pub const fn request_bytes(&self) -> u64 {
        self.0[SIZE]
    }

    /// Returns what is reserved: requests and bytes a second.
    #[must_use]
    pub const fn reserved(&self) -> (u64, u64) {
        (self.0[MIN_IOPS], self.0[MIN_BYTES])
    }

    /// Changes what `change` names.
    pub fn apply(&mut self, change: &LimitsChange) {
        for (value, change) in self.0.iter_mut().zip(change.0) {
            *value = change.unwrap_or(*value);
        }
        // Without its limit a burst is nothing, and would only be in the way of a new one.
        for index in 0..RATES {
            if self.0[index] == 0 && change.0[index].is_some() {
                for part in [index + RATES, index + 2 * RATES] {
                    self.0[part] = change.0[part].unwrap_or(0);
                }
            }
        }
    }

    fn named(&self, index: usize) -> String {
        format_limit(LIMITS[index].name, self.0[index])
    }

    /// Writes down what does not fit together.
    fn check(&self, path: &str, problems: &mut Vec<Problem>) {
        let mut report = |index: usize, problem: String, remedy: String| {
            let path = join(path, LIMITS[index].name);
            problems.push(Problem::new(path, self.named(index), problem, remedy));
        };
        for (index, LimitKey { name, .. }) in LIMITS.iter().enumerate().take(RATES) {
            let (burst, length) = (index + RATES, index + 2 * RATES);
            let rate = self.0[index];
            if self.0[burst] > 0 && rate == 0 {
                report(burst, "a burst above no limit".to_owned(), format!("set {name} as well"));
            } else if self.0[burst] > 0 && self.0[burst] < rate {
                let problem = format!("a burst slower than {name}, {}", self.named(index));
                report(burst, problem, "use a larger burst, or leave it out".to_owned());
            }
            if self.0[length] > 0 && self.0[burst] == 0 {
                let remedy = format!("set {} as well", LIMITS[burst].name);
                report(length, "the length of no burst".to_owned(), remedy);
            }
        }
        let counts = self.0[3..RATES].iter().any(|&rate| rate > 0) || self.0[MIN_IOPS] > 0;
        if self.0[SIZE] > 0 && !counts {
            let remedy = "set a limit such as total_iops_sec, or min_iops_sec, as well";
            report(SIZE, "nothing here counts requests".to_owned(), remedy.to_owned());
        }
    }

    /// Returns the limits of everything together, as a reservation counts it: requests and bytes.
    fn ceilings(&self) -> [Option<u64>; 2] {
        [3, 0].map(|first| {
            let [total, read, write] = [first, first + 1, first + 2].map(|index| self.0[index]);
            let both = (read > 0 && write > 0).then(|| read.saturating_add(write));
            [(total > 0).then_some(total), both].into_iter().flatten().min()
        })
    }
}

/// A change of limits: what is named gets a value, 0 for none; the rest stays.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LimitsChange([Option<u64>; LIMITS.len()]);

impl LimitsChange {
    /// Sets one setting, by its place in [`LIMITS`].
    pub(crate) fn set(&mut self, index: usize, value: u64) {
        self.0[index] = Some(value);
    }

    /// Returns whether nothing changes.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl From<LimitsChange> for Limits {
    fn from(change: LimitsChange) -> Self {
        let mut limits = Self::default();
        limits.apply(&change);
        limits
    }
}

/// Returns where a setting of that name stands in [`LIMITS`].
fn find(name: &str) -> Option<usize> {
    LIMITS.iter().position(|key| key.name == name || key.aliases.contains(&name))
}

/// Returns whether limits have a setting of that name.
#[must_use]
pub fn is_limit(name: &str) -> bool {
    find(name).is_some()
}

/// Returns the value of a setting as an operator would write it.
#[must_use]
pub fn format_limit(name: &str, value: u64) -> String {
    match find(name).map(|index| LIMITS[index].unit) {
        Some(Bytes) => format_size(value),
        _ => value.to_string(),
    }
}

impl LimitKey {
    /// Reads a value.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what to write.
    pub(crate) fn parse(&self, text: &str) -> Result<u64, (String, String)> {
        if matches!(text, "0" | "max" | "none") {
            return Ok(0);
        }
        let most = if self.unit == Seconds { LENGTH_MAX } else { RATE_MAX };
        let remedy = match self.unit {
            Bytes => "write bytes, or a number with K, M, G or T, such as \"10M\"; 0 is no limit",
            Requests => "write a whole number up to 10^15; 0 is no limit",
            Seconds => "write a whole number of seconds from 1 to 86400",
        };
        let value = match self.unit {
            Bytes => parse_size(text).map_err(|error| error.to_string()),
            Requests | Seconds => {
                text.parse().map_err(|_not| "not a whole number in range".to_owned())
            }
        };
        let value =
            value.and_then(
                |value| {
                    if value > most { Err("out of range".to_owned()) } else { Ok(value) }
                },
            );
        value.map_err(|problem| (problem, remedy.to_owned()))
    }
}

/// The tree of a pool as reservations see it.
struct Tree<'a> {
    pool: &'a Pool,
    vms: BTreeMap<String, Vm>,
    problems: &'a mut Vec<Problem>,
}

impl Pool {
    /// Returns which limits make no sense, and which reservations nobody can keep.
    #[must_use]
    pub fn check_limits(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        check_limits("", self, &mut problems);
        problems
    }
}

/// Reports limits that make no sense, and reservations that nobody can keep.
pub(crate) fn check_limits(path: &str, pool: &Pool, problems: &mut Vec<Problem>) {
    pool.limits.check(path, problems);
    let (iops, bytes) = pool.limits.reserved();
    for (name, value) in [("min_iops_sec", iops), ("min_bytes_sec", bytes)] {
        if value > 0 {
            let problem = "a pool has nobody who could take anything from it";
            let remedy = "reserve for its groups, VMs or disks";
            problems.push(Problem::new(join(path, name), value.to_string(), problem, remedy));
        }
    }
    let lists = [
        ("groups", pool.groups.iter().map(|(name, group)| (name, &group.limits)).collect()),
        ("vms", pool.vms.iter().map(|(name, vm)| (name, &vm.limits)).collect()),
        ("disks", pool.disks.iter().map(|(name, disk)| (name, &disk.limits)).collect::<Vec<_>>()),
    ];
    for (list, all) in lists {
        for (name, limits) in all {
            limits.check(&join(&join(path, list), name), problems);
        }
    }
    let mut tree = Tree { pool, vms: pool.all_vms(), problems };
    tree.check(path);
}

/// Requests and bytes a second.
type Pair = [u64; 2];
const KINDS: [(&str, &str); 2] = [("min_iops_sec", "requests"), ("min_bytes_sec", "bytes")];

impl Tree<'_> {
    fn check(&mut self, path: &str) {
        let top = self.children(path, None);
        let capacity =
            [(self.pool.capacity_iops, "capacity_iops"), (self.pool.capacity_bps, "capacity_bps")];
        let own = self.pool.limits.ceilings();
        for (kind, (capacity, name)) in capacity.into_iter().enumerate() {
            self.compare(path, kind, top[kind], own[kind], "the limit of the pool");
            let known = format!("{name} of the pool");
            self.compare(path, kind, top[kind], capacity, &known);
        }
    }

    /// Returns what is reserved below a group, or below the pool.
    fn children(&mut self, path: &str, parent: Option<&str>) -> Pair {
        let mut sum = [0_u64; 2];
        let mut add = |more: Pair| {
            sum = [0, 1].map(|kind: usize| sum[kind].saturating_add(more[kind]));
        };
        let pool = self.pool;
        for (name, group) in pool.groups_top_down() {
            if group.parent.as_deref() == parent {
                let own = join(&join(path, "groups"), name);
                let below = self.children(path, Some(name));
                add(self.node(&own, &group.limits, below));
            }
        }
        for (name, vm) in self.vms.clone() {
            if vm.group.as_deref() == parent {
                let own = join(&join(path, "vms"), &name);
                let below = self.disks(path, &name);
                add(self.node(&own, &vm.limits, below));
            }
        }
        sum
    }

    fn disks(&mut self, path: &str, vm: &str) -> Pair {
        let pool = self.pool;
        let mut sum = [0_u64; 2];
        for (name, disk) in pool.disks.iter().filter(|(name, _)| pool.vm_of(name) == vm) {
            let own = join(&join(path, "disks"), name);
            let more = self.node(&own, &disk.limits, [0; 2]);
            sum = [0, 1].map(|kind: usize| sum[kind].saturating_add(more[kind]));
        }
        sum
    }

    /// Returns what a node needs: what is promised to itself, or to those below, whichever is more.
    fn node(&mut self, path: &str, limits: &Limits, below: Pair) -> Pair {
        let (iops, bytes) = limits.reserved();
        let own = [iops, bytes];
        let ceilings = limits.ceilings();
        for kind in [0, 1] {
            self.compare(path, kind, own[kind], ceilings[kind], "its own limit");
            if below[kind] > own[kind] {
                self.compare(path, kind, below[kind], ceilings[kind], "its own limit");
            }
        }
        [0, 1].map(|kind: usize| own[kind].max(below[kind]))
    }

    fn compare(&mut self, path: &str, kind: usize, sum: u64, most: Option<u64>, whose: &str) {
        let Some(most) = most.filter(|&most| sum > most) else { return };
        let (name, unit) = KINDS[kind];
        let problem =
            format!("{sum} {unit} a second are reserved here and below, more than {whose}, {most}");
        let remedy = format!("reserve at most {most} together, or raise that");
        self.problems.push(Problem::new(join(path, name), "", problem, remedy));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Config, Document};

    use super::*;

    fn read(text: &str) -> Result<Config, Vec<String>> {
        let problems =
            |problems: crate::Problems| problems.iter().map(ToString::to_string).collect();
        Document::read(text).finish().map_err(problems)
    }

    fn pool(text: &str) -> Result<Config, Vec<String>> {
        read(&format!("[pools.p]\n{text}\n[pools.p.disks.d]\npath = \"null:1G\"\n"))
    }

    #[test]
    fn every_name_means_the_same_and_says_so_when_written_twice() {
        for (index, key) in LIMITS.iter().enumerate().filter(|(index, _)| *index < RATES) {
            for name in [key.name].into_iter().chain(key.aliases.iter().copied()) {
                let config = pool(&format!("{name} = \"max\"")).unwrap();
                assert_eq!(config.pools["p"].limits, Limits::default());
                let config = pool(&format!("{name} = 5000")).unwrap();
                assert_eq!(config.pools["p"].limits.rates()[index].rate, 5000, "{name}");
                assert_eq!(config.pools["p"].limits.written()[key.name], 5000);
            }
            for alias in key.aliases {
                let text = pool(&format!("{} = 1\n{alias} = 2", key.name)).unwrap_err();
                let both = format!("keep {} or {alias}, not both", key.name);
                assert!(text[0].starts_with("line 3: ") && text[0].contains(&both), "{text:?}");
            }
        }
        let names: std::collections::BTreeSet<_> = LIMITS
            .iter()
            .flat_map(|key| [key.name].into_iter().chain(key.aliases.iter().copied()))
            .collect();
        let all: usize = LIMITS.iter().map(|key| 1 + key.aliases.len()).sum();
        assert_eq!(names.len(), all, "no name has two meanings");
    }

    #[test]
    fn a_burst_belongs_to_its_limit_and_sizes_may_have_units() {
        let limits = pool(
            "bps-total = \"10M\"\ntotal_bytes_sec_max = \"20M\"\nbps_total_max_length = 30\n\
             riops = 7\niops-size = \"8K\"",
        );
        let limits = limits.unwrap().pools["p"].limits;
        let rates = limits.rates();
        assert_eq!(rates[0], LimitRate { rate: 10 << 20, burst: 20 << 20, burst_seconds: 30 });
        assert_eq!((rates[4].rate, limits.request_bytes()), (7, 8192));
        // Lifting the limit lifts its burst.
        let mut lifted = limits;
        let mut change = LimitsChange::default();
        change.set(0, 0);
        lifted.apply(&change);
        assert_eq!(lifted.rates()[0], LimitRate::default());
        assert_eq!(lifted.rates()[4].rate, 7);
    }

    #[test]
    fn what_does_not_fit_together_is_told_with_value_and_remedy() {
        let problems = pool(
            "rbps = \"fast\"\ntotal_iops_sec_max = 5\nbps-total = \"10M\"\nbps-total-max = 9\n\
             write_iops_sec_max_length = 3\nmin_iops = 5\nread_iops_sec = -1\ntotal_iop_sec = 4",
        );
        let problems = problems.unwrap_err();
        let starts = [
            "line 2: pools.p.rbps = \"fast\": not a size; write bytes",
            "line 3: pools.p.total_iops_sec_max = 5: a burst above no limit; set total_iops_sec",
            "line 5: pools.p.total_bytes_sec_max = 9: a burst slower than total_bytes_sec, 10M",
            "line 6: pools.p.write_iops_sec_max_length = 3: the length of no burst",
            "line 7: pools.p.min_iops_sec = 5: a pool has nobody who could take anything",
            "line 8: pools.p.read_iops_sec = -1: not a whole number in range",
            "line 9: pools.p.total_iop_sec = 4: unknown key; did you mean total_iops_sec?",
        ];
        for (problem, start) in problems.iter().zip(starts) {
            assert!(problem.starts_with(start), "{problem}");
        }
        assert_eq!(problems.len(), starts.len(), "{problems:?}");
        let size = pool("iops-size = 4096").unwrap_err();
        assert!(size[0].contains("nothing here counts requests"), "{size:?}");
    }

    #[test]
    fn reservations_that_nobody_can_keep_are_refused_with_sum_and_capacity() {
        let tree = |pool: &str, group: &str, one: &str, other: &str| {
            read(&format!(
                "[pools.p]\n{pool}\n[pools.p.groups.g]\n{group}\n[pools.p.vms.a]\ngroup = \"g\"\n\
                 {one}\n[pools.p.disks.a]\npath = \"null:1G\"\nvm = \"a\"\n\
                 [pools.p.disks.b]\npath = \"null:1G\"\n{other}\n"
            ))
            .map(|_| ())
        };
        assert_eq!(
            tree("capacity_iops = 300", "min_iops = 100", "min_iops = 200", "min_iops = 100"),
            Ok(())
        );
        let all = tree("capacity_iops = 299", "", "min_iops = 200", "min_iops = 100").unwrap_err();
        assert_eq!(all.len(), 1);
        assert!(
            all[0].contains("300 requests a second are reserved here and below, more than capacity_iops of the pool, 299"),
            "{all:?}"
        );
        let all = tree("capacity_bps = \"1M\"", "", "min_bps = \"2M\"", "").unwrap_err();
        assert!(all[0].contains("2097152 bytes"), "{all:?}");
        let all = tree("", "total_iops_sec = 150", "min_iops = 200", "").unwrap_err();
        assert!(all[0].starts_with("line 3: pools.p.groups.g"), "{all:?}");
        assert!(all[0].contains("200 requests a second") && all[0].contains("150"), "{all:?}");
        let all = tree("riops = 10\nwiops = 20", "", "min_iops = 31", "").unwrap_err();
        assert!(all[0].contains("more than the limit of the pool, 30"), "{all:?}");
        let all = tree("", "", "", "min_iops = 31\niops-total = 30").unwrap_err();
        assert!(all[0].contains("disks.b.min_iops_sec"), "{all:?}");
    }
}
