//! `evenkeel set`: the running daemon, changed through its API.

use anyhow::anyhow;
use evenkeel_server::api::{Client, ClientError};
use evenkeel_wire::status::{GroupStatus, LimitStatus, PoolStatus};
use evenkeel_wire::{format_limit, is_limit};
use serde_json::{Map, Value, json};

use crate::args::{self, SetArgs};
use crate::failure::{Failure, Outcome};
use crate::{place, print};

pub(crate) fn run(args: &SetArgs) -> Outcome<()> {
    let (disk, settings) = split(args)?;
    if let Some(disk) = disk {
        return set_disk(args, disk, &settings);
    }
    let change = change(args, &settings)?;
    let client = Client::new(&place::api(&args.place)?);
    let pool = match &args.pool {
        Some(pool) => pool.clone(),
        None => only_pool(&client)?,
    };
    let status = client.change_pool(&pool, &change).map_err(refused)?;
    print(&report(args, &status))
}

fn set_disk(args: &SetArgs, disk: &str, settings: &[(&str, &str)]) -> Outcome<()> {
    let mut limits = node(settings)?;
    let weight = limits.remove("weight");
    let client = Client::new(&place::api(&args.place)?);
    let disk = client.disk(disk).map_err(refused)?;
    let mut change = Map::new();
    if let Some(weight) = weight {
        change.insert("vms".to_owned(), json!({ &disk.vm: { "weight": weight } }));
    }
    if !limits.is_empty() {
        change.insert("disks".to_owned(), json!({ &disk.name: limits }));
    }
    let status = client.status().map_err(Failure::work)?;
    let holds = |pool: &&PoolStatus| pool.disks.iter().any(|other| other.name == disk.name);
    let pool = status.pools.iter().find(holds).ok_or_else(|| {
        wrong(format!("no disk has the name {}; evenkeel status lists the disks", disk.name))
    })?;
    let pool = client.change_pool(&pool.name, &Value::Object(change)).map_err(refused)?;
    let disk = pool.disks.iter().find(|other| other.name == disk.name).unwrap_or(&disk);
    let mut text = format!("{}: VM {} has weight {}\n", disk.name, disk.vm, disk.weight);
    text += &limit_lines(&disk.limits);
    print(&text)
}

fn refused(error: ClientError) -> Failure {
    match error {
        // The daemon says that the call itself was wrong.
        ClientError::Refused { code: 400..=499, .. } => Failure::wrong_use(error),
        _ => Failure::work(error),
    }
}

/// The name of the disk, if one is to be changed, and what comes after it, as key and value.
type Words<'a> = (Option<&'a str>, Vec<(&'a str, &'a str)>);

/// Tells the disk's name from the settings.
fn split(args: &SetArgs) -> Outcome<Words<'_>> {
    let options = [&args.pool, &args.vm, &args.group].into_iter().any(Option::is_some);
    let is_pool = options || args.scheduler.is_some() || args.profile.is_some();
    let mut words = args.words.iter();
    let disk = match is_pool {
        true => None,
        false => Some(words.next().ok_or_else(|| {
            wrong("say what to change: a disk, or --pool, --vm or --group".to_owned())
        })?),
    };
    if let Some(setting) = disk.filter(|disk| disk.contains('=')) {
        let text = format!("what shall get {setting}? name a disk, or --pool, --vm or --group");
        return Err(wrong(text));
    }
    if let Some(name) = disk {
        evenkeel_wire::check_name(name).map_err(|problem| {
            let remedy = "use 1 to 64 letters, digits, dots, underscores and hyphens";
            wrong(format!("{name}: {problem}; {remedy}"))
        })?;
    }
    let settings = words.map(|word| match word.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key, value)),
        _ => Err(wrong(format!("{word} is not KEY=VALUE; write weight=300, for example"))),
    });
    let settings = settings.collect::<Outcome<Vec<_>>>()?;
    if settings.is_empty() && args.scheduler.is_none() && args.profile.is_none() {
        return Err(wrong("say what it shall get, such as weight=300".to_owned()));
    }
    Ok((disk.map(String::as_str), settings))
}

fn wrong(text: String) -> Failure {
    Failure::wrong_use(anyhow!(text))
}

/// Reads what disks, VMs and groups have: a weight, limits and reservations.
fn node(settings: &[(&str, &str)]) -> Outcome<Map<String, Value>> {
    let mut node = Map::new();
    for &(key, text) in settings {
        let value = match key {
            "weight" => Value::from(args::weight(text).map_err(wrong)?),
            key if is_limit(key) => value(text),
            key => {
                let text = format!(
                    "{key}: of a disk, a VM or a group the weight, limits and reservations can \
                     be set; write weight=300 or total_iops_sec=500, or name a pool with --pool"
                );
                return Err(wrong(text));
            }
        };
        if node.insert(key.to_owned(), value).is_some() {
            return Err(wrong(format!("one {key} is enough")));
        }
    }
    Ok(node)
}

/// Returns a line for each limit that is set.
fn limit_lines(limits: &LimitStatus) -> String {
    limits
        .set
        .iter()
        .map(|(name, value)| format!("  {name}={}\n", format_limit(name, *value)))
        .collect()
}

/// Returns the document that says all of this to the daemon.
fn change(args: &SetArgs, settings: &[(&str, &str)]) -> Outcome<Value> {
    if let Some(vm) = &args.vm {
        return Ok(json!({ "vms": { vm: node(settings)? } }));
    }
    if let Some(group) = &args.group {
        return Ok(json!({ "groups": { group: node(settings)? } }));
    }
    let mut change = Map::new();
    let options = [
        ("scheduler", args.scheduler.map(|scheduler| scheduler.to_string())),
        ("profile", args.profile.map(|profile| profile.to_string())),
    ];
    for (key, value) in options {
        if let Some(value) = value {
            change.insert(key.to_owned(), Value::String(value));
        }
    }
    for &(key, text) in settings {
        let twice = || wrong(format!("{key} is set twice; say it once"));
        let (place, name) = match key.split_once('.') {
            None => (&mut change, key),
            Some((table, name)) => {
                let table = change.entry(table).or_insert_with(|| Value::Object(Map::new()));
                (table.as_object_mut().ok_or_else(twice)?, name)
            }
        };
        if place.insert(name.to_owned(), value(text)).is_some() {
            return Err(twice());
        }
    }
    Ok(Value::Object(change))
}

/// Returns what a word means: a whole number, true, false, or itself.
fn value(text: &str) -> Value {
    match (text.parse::<bool>(), text.parse::<i64>()) {
        (Ok(flag), _) => Value::Bool(flag),
        (_, Ok(number)) => Value::Number(number.into()),
        _ => Value::String(text.to_owned()),
    }
}

fn only_pool(client: &Client) -> Outcome<String> {
    let status = client.status().map_err(Failure::work)?;
    match &status.pools[..] {
        [pool] => Ok(pool.name.clone()),
        pools => {
            let names: Vec<_> = pools.iter().map(|pool| pool.name.as_str()).collect();
            let text = format!("which pool? add --pool with one of {}", names.join(", "));
            Err(wrong(text))
        }
    }
}

/// Says what holds from now on.
fn report(args: &SetArgs, pool: &PoolStatus) -> String {
    let of = |list: &[GroupStatus], name: &str| {
        let group = list.iter().find(|group| group.name == name);
        let group = group.cloned().unwrap_or_default();
        format!("{name}: weight {}\n{}", group.weight, limit_lines(&group.limits))
    };
    match (&args.vm, &args.group) {
        (Some(vm), _) => of(&pool.vms, vm),
        (_, Some(group)) => of(&pool.groups, group),
        _ => {
            let profile = pool.profile.as_deref().unwrap_or("none");
            let PoolStatus { name, scheduler, depth, .. } = pool;
            let mut text =
                format!("{name}: scheduler {scheduler}, profile {profile}, depth {depth}\n");
            if let Some(polling) = &pool.polling {
                text += &format!("  looks for work for at most {} us at a time\n", polling.most_us);
            }
            for (key, value) in &pool.tunables {
                text += &format!("  {key}={value}\n");
            }
            text + &limit_lines(&pool.limits)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command};

    fn parsed(line: &str) -> Result<(Option<String>, Value), String> {
        let words = ["evenkeel", "set"].into_iter().chain(line.split_whitespace());
        let cli = Cli::try_parse_from(words).map_err(|error| error.to_string())?;
        let Command::Set(args) = cli.command else { unreachable!("the line says set") };
        let text = |failure| match failure {
            Failure::Arguments(error) => error.to_string(),
            Failure::Use(error) | Failure::Work(error) => error.to_string(),
        };
        let (disk, settings) = split(&args).map_err(text)?;
        if let Some(disk) = disk {
            return Ok((Some(disk.to_owned()), json!(node(&settings).map_err(text)?)));
        }
        Ok((None, change(&args, &settings).map_err(text)?))
    }

    #[test]
    fn words_become_a_change() {
        assert_eq!(parsed("web weight=7"), Ok((Some("web".to_owned()), json!({"weight": 7}))));
        let limits = json!({"total_iops_sec": 500, "bps-total": "10M", "rbps": "max"});
        let line = "web total_iops_sec=500 bps-total=10M rbps=max";
        assert_eq!(parsed(line), Ok((Some("web".to_owned()), limits)));
        let of_pool = |line: &str, change| assert_eq!(parsed(line), Ok((None, change)), "{line}");
        of_pool("--vm shop weight=7", json!({"vms": {"shop": {"weight": 7}}}));
        of_pool("--group gold weight=7", json!({"groups": {"gold": {"weight": 7}}}));
        of_pool(
            "--pool main bfq.slice_idle=0 bfq.low_latency=false scheduler=cfq depth=default",
            json!({
                "bfq": {"slice_idle": 0, "low_latency": false},
                "scheduler": "cfq", "depth": "default"
            }),
        );
        of_pool(
            "--scheduler as --profile batch",
            json!({
                "scheduler": "anticipatory", "profile": "batch"
            }),
        );
    }

    #[test]
    fn wrong_words_bring_what_to_write() {
        for (line, hint) in [
            ("", "--pool, --vm or --group"),
            ("web", "weight=300"),
            ("weight=3", "name a disk"),
            ("web weight=0", "1 to 1000"),
            ("web colour=red", "--pool"),
            ("web weight=3 weight=4", "one weight"),
            ("--pool main", "such as weight=300"),
            ("--pool main depth", "KEY=VALUE"),
            ("--pool main depth=", "KEY=VALUE"),
            ("--pool main depth=3 depth=4", "twice"),
            ("--pool main bfq=3 bfq.slice_idle=4", "twice"),
            ("--profile games", "database"),
            ("--scheduler fair", "kyber"),
            ("--vm a --group b weight=3", "cannot be used with"),
            ("a/b weight=3", "letters, digits"),
        ] {
            let error = parsed(line).unwrap_err();
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
