//! What may be changed about a pool while it runs.
//!
//! A change is a JSON object with the shape of a pool's table in the configuration; what it does
//! not name stays, and what it names `null` or `"default"` is as if it had never been written
//! (compare RFC 7396, JSON Merge Patch).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::config::{Pool, Scheduler};
use crate::limits::{Limits, LimitsChange, is_limit};
use crate::poll::Poll;
use crate::problem::{Problem, Problems, join};
use crate::profile::Profile;
use crate::read::read_change;
use crate::tunables::{Tunable, Tunables};

/// A change of a running pool; see the module. What is `None` or empty stays as it is.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PoolChange {
    /// The scheduler; `Some(None)` leaves the choice to the profile.
    pub scheduler: Option<Option<Scheduler>>,
    /// The profile; `Some(None)` is none.
    pub profile: Option<Option<Profile>>,
    /// The depth; `Some(None)` is the device's own.
    pub depth: Option<Option<u32>>,
    /// Whether a governor uses less of it.
    pub governor: Option<bool>,
    /// Whether the worker looks for work before it sleeps.
    pub poll: Option<Poll>,
    /// Tunables to set.
    pub tunables: Tunables,
    /// Tunables that get their default again, before the others are set.
    pub reset: Vec<&'static Tunable>,
    /// New weights of groups, by name.
    pub groups: BTreeMap<String, u32>,
    /// New weights of VMs, by name.
    pub vms: BTreeMap<String, u32>,
    /// What the device is known to manage: requests a second.
    pub capacity_iops: Option<u64>,
    /// The same in bytes a second.
    pub capacity_bps: Option<u64>,
    /// Limits of the pool as a whole.
    pub limits: LimitsChange,
    /// Limits and reservations of groups, by name.
    pub group_limits: BTreeMap<String, LimitsChange>,
    /// Limits and reservations of VMs, by name.
    pub vm_limits: BTreeMap<String, LimitsChange>,
    /// Limits and reservations of disks, by name.
    pub disk_limits: BTreeMap<String, LimitsChange>,
}

impl PoolChange {
    /// Reads a change.
    ///
    /// # Errors
    ///
    /// * [`Problems`]: every mistake, with the field's path below the pool and what to write.
    pub fn read(mut change: Value) -> Result<Self, Problems> {
        let mut read = Self::default();
        let mut problems = Vec::new();
        match change.as_object_mut() {
            Some(fields) => {
                read.take_defaults(fields, &mut problems);
                let mut text = String::new();
                for (key, value) in &*fields {
                    let key = quoted(key);
                    let _infallible = writeln!(text, "{key} = {}", toml(value));
                }
                problems.extend(read_change(&text, &mut read));
            }
            None => {
                let remedy = "send an object such as {\"scheduler\": \"cfq\"}";
                let problem = format!("{change} is not an object");
                problems.push(Problem::new("", "", problem, remedy));
            }
        }
        for problem in &mut problems {
            // Lines of a text that nobody has written would only confuse.
            problem.line = None;
        }
        Problems::from_vec(problems).map_or(Ok(read), Err)
    }

    /// Carries out everything that concerns `pool` itself, not its groups and VMs.
    pub fn apply(&self, pool: &mut Pool) {
        pool.scheduler = self.scheduler.unwrap_or(pool.scheduler);
        pool.profile = self.profile.unwrap_or(pool.profile);
        pool.depth = self.depth.unwrap_or(pool.depth);
        pool.governor = self.governor.unwrap_or(pool.governor);
        pool.poll = self.poll.unwrap_or(pool.poll);
        for tunable in &self.reset {
            pool.tunables.reset(tunable);
        }
        pool.tunables.extend(&self.tunables);
    }

    /// Changes limits and reservations of a pool, its groups, VMs and disks. Returns what is wrong
    /// with them then.
    #[must_use]
    pub fn apply_limits(&self, pool: &mut Pool) -> Vec<Problem> {
        pool.limits.apply(&self.limits);
        pool.capacity_iops = self.capacity_iops.or(pool.capacity_iops);
        pool.capacity_bps = self.capacity_bps.or(pool.capacity_bps);
        pool.vms = pool.all_vms();
        let mut problems = Vec::new();
        let groups = pool.groups.iter_mut().map(|(name, group)| (name, &mut group.limits));
        apply_to("groups", &self.group_limits, groups.collect(), &mut problems);
        let vms = pool.vms.iter_mut().map(|(name, vm)| (name, &mut vm.limits));
        apply_to("vms", &self.vm_limits, vms.collect(), &mut problems);
        let disks = pool.disks.iter_mut().map(|(name, disk)| (name, &mut disk.limits));
        apply_to("disks", &self.disk_limits, disks.collect(), &mut problems);
        problems.extend(pool.check_limits());
        problems
    }

    /// Takes the fields out that get their default again.
    fn take_defaults(&mut self, fields: &mut Map<String, Value>, problems: &mut Vec<Problem>) {
        lift_limits(fields);
        for list in ["groups", "vms", "disks"] {
            let list = fields.get_mut(list).and_then(Value::as_object_mut);
            for (_, node) in list.into_iter().flatten() {
                node.as_object_mut().into_iter().for_each(lift_limits);
            }
        }
        fields.retain(|key, value| match key.as_str() {
            "scheduler" if is_default(value) => take(&mut self.scheduler),
            "profile" if is_default(value) => take(&mut self.profile),
            "depth" if is_default(value) => {
                self.governor = Some(false);
                take(&mut self.depth)
            }
            "poll" | "poll_us" if is_default(value) => {
                self.poll = Some(Poll::default());
                false
            }
            _ => true,
        });
        for (table, value) in fields {
            let Some(values) = value.as_object_mut() else { continue };
            values.retain(|name, value| {
                if !is_default(value) {
                    return true;
                }
                match Tunable::find(table, name) {
                    Some(tunable) => self.reset.push(tunable),
                    None => problems.push(Problem::new(
                        join(table, name),
                        "",
                        "nothing that has a default",
                        "see docs/guide/configuration.md for what can be tuned",
                    )),
                }
                false
            });
        }
    }
}

/// Notes that a field gets its default; it is not kept among those that are read.
const fn take<T>(field: &mut Option<Option<T>>) -> bool
where
    T: Copy,
{
    *field = Some(None);
    false
}

/// Changes the limits of everybody whom a change names.
fn apply_to(
    list: &str,
    changes: &BTreeMap<String, LimitsChange>,
    mut all: BTreeMap<&String, &mut Limits>,
    problems: &mut Vec<Problem>,
) {
    for (name, change) in changes {
        if let Some(limits) = all.get_mut(name) {
            limits.apply(change);
        } else {
            let known: Vec<_> = all.keys().map(|name| name.as_str()).collect();
            let remedy = match known[..] {
                [] => format!("the pool has no {list}"),
                _ => format!("the pool has {}", known.join(", ")),
            };
            problems.push(Problem::new(join(list, name), "", "not in this pool", remedy));
        }
    }
}

/// Writes that there is no limit where a limit gets its default.
fn lift_limits(fields: &mut Map<String, Value>) {
    for (_, value) in fields.iter_mut().filter(|(name, value)| is_limit(name) && is_default(value))
    {
        *value = Value::from(0);
    }
}

fn is_default(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("default")
}

/// Returns a value as it would stand in a configuration.
fn toml(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        Value::String(text) => quoted(text),
        Value::Array(values) => {
            let values: Vec<_> = values.iter().map(toml).collect();
            format!("[{}]", values.join(", "))
        }
        Value::Object(fields) => {
            let field =
                |(key, value): (&String, &Value)| format!("{} = {}", quoted(key), toml(value));
            let fields: Vec<_> = fields.iter().map(field).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Returns a text as TOML's basic string.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for char in text.chars() {
        let _infallible = match char {
            '"' | '\\' => write!(out, "\\{char}"),
            char if char.is_control() => write!(out, "\\u{:04X}", u32::from(char)),
            char => write!(out, "{char}"),
        };
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problems(change: Value) -> Vec<String> {
        let problems = PoolChange::read(change).map(|_| ()).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_change_has_the_shape_of_the_configuration() {
        let change = PoolChange::read(json!({
            "scheduler": "as", "profile": "batch", "depth": 7,
            "bfq": {"slice_idle": 0, "low_latency": false}, "cfq": {"quantum": 32},
            "groups": {"gold": {"weight": 50}}, "vms": {"shop": {"weight": 1000}},
        }));
        let change = change.unwrap();
        assert_eq!(change.scheduler, Some(Some(Scheduler::Anticipatory)));
        assert_eq!(change.profile, Some(Some(Profile::Batch)));
        assert_eq!(change.depth, Some(Some(7)));
        assert_eq!(change.tunables.get("bfq", "slice_idle"), Some(0));
        assert_eq!(change.tunables.get("bfq", "low_latency"), Some(0));
        assert_eq!(change.tunables.get("cfq", "quantum"), Some(32));
        assert_eq!((change.groups["gold"], change.vms["shop"]), (50, 1000));
    }

    #[test]
    fn what_is_null_or_default_is_as_if_never_written_and_the_rest_stays() {
        let mut pool = Pool::default();
        let apply = |pool: &mut Pool, change| PoolChange::read(change).unwrap().apply(pool);
        apply(&mut pool, json!({"scheduler": "cfq", "depth": 3, "cfq": {"quantum": 1}}));
        apply(&mut pool, json!({"bfq": {"slice_idle": 2}, "profile": "desktop"}));
        assert_eq!((pool.scheduler, pool.depth), (Some(Scheduler::Cfq), Some(3)));
        apply(&mut pool, json!({"scheduler": null, "cfq": {"quantum": "default"}}));
        assert_eq!((pool.scheduler, pool.depth), (None, Some(3)));
        apply(&mut pool, json!({"depth": "auto"}));
        assert_eq!((pool.depth, pool.governor), (None, true));
        apply(&mut pool, json!({"depth": 3}));
        assert_eq!((pool.depth, pool.governor), (Some(3), false));
        apply(&mut pool, json!({"depth": "auto"}));
        apply(&mut pool, json!({"poll": "auto"}));
        assert_eq!((pool.depth, pool.poll), (None, Poll::Auto));
        apply(&mut pool, json!({"poll_us": 70}));
        assert_eq!((pool.governor, pool.poll), (true, Poll::AtMost(70)));
        assert_eq!(pool.profile, Some(Profile::Desktop));
        apply(
            &mut pool,
            json!({"profile": "default", "depth": null, "bfq": {"slice_idle_us": null}, "poll": null}),
        );
        assert_eq!(pool, Pool::default());
    }

    #[test]
    fn every_mistake_is_reported_with_its_path_and_remedy() {
        let all = problems(json!({
            "schedular": "cfq", "profile": "games", "depth": 0,
            "bfq": {"slice_idle": -1, "low_latency": "maybe", "tea": null},
            "cfq": {"quantum": 1.5}, "kyber": 3,
            "groups": {"gold": {"weight": 0}}, "vms": {"shop": {"wait": 1}},
        }));
        let starts = [
            "bfq.low_latency = \"maybe\": neither true nor false",
            "bfq.slice_idle = -1: out of range; use a whole number from 0 to 1000",
            "bfq.tea: nothing that has a default",
            "cfq.quantum = 1.5: not a whole number",
            "depth = 0: out of range; use a whole number from 1 to 1024",
            "groups.gold.weight = 0: out of range",
            "kyber = 3: not a table",
            "profile = \"games\": not one of the possible values",
            "schedular = \"cfq\": unknown key; did you mean scheduler?",
            "vms.shop.wait = 1: unknown key; possible here: weight",
        ];
        for (problem, start) in all.iter().zip(starts) {
            assert!(problem.starts_with(start), "{problem} starts with {start}");
        }
        assert_eq!(all.len(), starts.len(), "{all:?}");
        assert_eq!(
            problems(json!([1]))[0],
            "[1] is not an object; send an object such as {\"scheduler\": \"cfq\"}"
        );
    }

    #[test]
    fn hostile_text_stays_text() {
        let all = problems(json!({"scheduler": "cfq\"\ndepth = 7 #\\\u{7f}"}));
        assert_eq!(all.len(), 1, "{all:?}");
        assert!(all[0].starts_with("scheduler = "), "{all:?}");
        let all = problems(json!({"a\"]\n[b": 1}));
        assert_eq!(all.len(), 1, "{all:?}");
    }

    #[test]
    fn limits_change_one_by_one_and_null_lifts_them() {
        let config = crate::Document::read(
            "[pools.p]\ncapacity_iops = 1000\n[pools.p.groups.g]\niops-total = 500\n\
             [pools.p.disks.d]\npath = \"null:1G\"\nrbps = \"1M\"\n",
        );
        let mut pool = config.finish().unwrap().pools["p"].clone();
        let apply = |pool: &mut Pool, change| PoolChange::read(change).unwrap().apply_limits(pool);
        let change = json!({
            "bps-total": "10M", "groups": {"g": {"iops-total": null}},
            "vms": {"d": {"min_iops": 900}}, "disks": {"d": {"wiops": 7}},
        });
        assert_eq!(apply(&mut pool, change), []);
        assert_eq!(pool.limits.get("total_bytes_sec"), 10 << 20);
        assert!(pool.groups["g"].limits.is_none());
        assert_eq!(pool.vms["d"].limits.reserved(), (900, 0));
        assert_eq!(pool.disks["d"].limits.written().len(), 2);
        let problems = apply(
            &mut pool,
            json!({"disks": {"d": {"min_iops": 1001}}, "vms": {"x": {"rbps": 1}}}),
        );
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(
            (problems[0].path.as_str(), problems[1].path.as_str()),
            ("vms.x", "min_iops_sec")
        );
        let all =
            self::problems(json!({"disks": {"d": {"rbps": "1M", "bps-read": 5, "weight": 3}}}));
        assert_eq!(all.len(), 2, "{all:?}");
    }
}
