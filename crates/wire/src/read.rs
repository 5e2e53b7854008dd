//! From text to [`Config`]: every mistake is written down, and reading goes on.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::blocks::{BLOCK_REMEDY, DEPTH_MAX, RESPONSES_REMEDY};
use crate::change::PoolChange;
use crate::config::{
    Config, DEFAULT_BLOCK_BYTES, DEFAULT_QUEUES, DEFAULT_WEIGHT, DevicePriority, Disk, Group, Pool,
    QUEUES_MAX, Rotational, SQPOLL_MS_MAX, Scheduler, Source, Trust, Vm, WEIGHT_MAX,
};
use crate::cpus::CPUS_REMEDY;
use crate::limits::{LIMITS, Limits, LimitsChange, RATE_MAX};
use crate::poll::{POLL_REMEDY, POLL_US_MAX, Poll};
use crate::problem::{Problem, Problems, join};
use crate::profile::Profile;
use crate::size::parse_size;
use crate::tunables::{TUNABLES, Tunables, Unit, tables};

/// What to write for a pool's scheduler.
const SCHEDULERS: &str = "use \"none\", \"noop\", \"deadline\", \"deadline-legacy\", \
    \"anticipatory\", \"kyber\", \"cfq\" or \"bfq\"";
/// What to write for a pool's profile.
const PROFILES: &str =
    "use \"enterprise-storage\", \"desktop\", \"database\", \"batch\" or \"streaming\"";

/// A configuration that has been read, with what was wrong with it so far.
#[derive(Clone, Debug)]
pub struct Document {
    /// What was understood; a field that was not understood has its default.
    pub config: Config,
    /// What was not, and what [`Config::check`] found.
    pub problems: Vec<Problem>,
    lines: BTreeMap<String, u64>,
}

impl Document {
    /// Reads a configuration file.
    ///
    /// Never fails: problems are kept until [`finish`](Self::finish), so that the caller can add
    /// those that only it can see, such as an unknown model.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let (table, errors) = DeTable::parse_recoverable(text);
        let sheet = Sheet::new(text);
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let (line, column) = sheet.position(span.start);
            sheet.problems.borrow_mut().push(Problem {
                line: Some(line),
                ..Problem::new(
                    "",
                    "",
                    format!("column {column}: {}", error.message()),
                    "correct the TOML syntax",
                )
            });
        }
        // What a broken document seems to say would only confuse.
        let table = if errors.is_empty() { table } else { Spanned::new(0..0, DeTable::new()) };
        let config = read_config(Section::new(&sheet, String::new(), Some(table.get_ref())));
        let mut document =
            Self { problems: sheet.problems.into_inner(), lines: sheet.lines.into_inner(), config };
        if errors.is_empty() {
            document.problems.extend(document.config.check());
        }
        document
    }

    /// Returns the configuration if nobody found anything wrong with it.
    ///
    /// # Errors
    ///
    /// All problems of [`Document::problems`], each with its line.
    pub fn finish(mut self) -> Result<Config, Problems> {
        for problem in self.problems.iter_mut().filter(|problem| problem.line.is_none()) {
            problem.line = line_of(&self.lines, &problem.path);
        }
        match Problems::from_vec(self.problems) {
            Some(problems) => Err(problems),
            None => Ok(self.config),
        }
    }
}

/// Returns the line of a field, or of the closest section above it.
fn line_of(lines: &BTreeMap<String, u64>, path: &str) -> Option<u64> {
    let mut path = path;
    loop {
        if let Some(line) = lines.get(path) {
            return Some(*line);
        }
        path = &path[..path.rfind('.')?];
    }
}

/// What all sections of one document share.
#[derive(Default)]
struct Sheet<'i> {
    text: &'i str,
    /// Where each line but the first begins, in bytes.
    starts: Vec<usize>,
    problems: RefCell<Vec<Problem>>,
    lines: RefCell<BTreeMap<String, u64>>,
}

impl<'i> Sheet<'i> {
    fn new(text: &'i str) -> Self {
        let starts = text.match_indices('\n').map(|(end, _)| end + 1).collect();
        Self { text, starts, ..Self::default() }
    }

    /// Returns line and column of a byte of the text, both counted from 1.
    fn position(&self, byte: usize) -> (u64, usize) {
        let before = self.text.get(..byte).unwrap_or(self.text);
        let lines = self.starts.partition_point(|&start| start <= before.len());
        let start = lines.checked_sub(1).map_or(0, |last| self.starts[last]);
        let line = u64::try_from(lines).expect("a usize fits a u64") + 1;
        (line, before[start..].chars().count() + 1)
    }
}

/// One table of the document; it remembers which keys somebody asked for.
struct Section<'s, 'i> {
    sheet: &'s Sheet<'i>,
    path: String,
    table: Option<&'s DeTable<'i>>,
    known: Vec<&'static str>,
    /// Those of them that are too many to be listed.
    limits: Vec<&'static str>,
}

impl<'s, 'i> Section<'s, 'i> {
    fn new(sheet: &'s Sheet<'i>, path: String, table: Option<&'s DeTable<'i>>) -> Self {
        let section = Self { sheet, path, table, known: Vec::new(), limits: Vec::new() };
        for key in section.table.into_iter().flat_map(DeTable::keys) {
            let line = sheet.position(key.span().start).0;
            sheet.lines.borrow_mut().insert(section.path_of(key.get_ref()), line);
        }
        section
    }

    fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    fn problem(&self, key: &str, problem: impl Into<String>, remedy: impl Into<String>) {
        let written = self.table.and_then(|table| table.get(key)).map(|value| {
            let text = self.sheet.text.get(value.span()).unwrap_or("");
            if value.get_ref().is_table() { String::new() } else { text.to_owned() }
        });
        let value = written.unwrap_or_default();
        self.sheet.problems.borrow_mut().push(Problem::new(
            self.path_of(key),
            value,
            problem,
            remedy,
        ));
    }

    fn value(&mut self, key: &'static str) -> Option<&'s DeValue<'i>> {
        if !self.known.contains(&key) {
            self.known.push(key);
        }
        self.table?.get(key).map(Spanned::get_ref)
    }

    fn string(&mut self, key: &'static str) -> Option<String> {
        match self.value(key)? {
            DeValue::String(text) if text.is_empty() => {
                self.problem(key, "empty", "write a value or leave the key out");
                None
            }
            DeValue::String(text) => Some(text.clone().into_owned()),
            _ => {
                self.problem(key, "not a text", "write it in quotation marks");
                None
            }
        }
    }

    /// Reads a text and converts it; `remedy` says what it may be.
    fn parsed<T>(
        &mut self,
        key: &'static str,
        parse: impl Fn(&str) -> Option<T>,
        remedy: &str,
    ) -> Option<T> {
        let text = self.string(key)?;
        let parsed = parse(&text);
        if parsed.is_none() {
            self.problem(key, "not one of the possible values", remedy);
        }
        parsed
    }

    fn flag(&mut self, key: &'static str) -> Option<bool> {
        match self.value(key)? {
            DeValue::Boolean(flag) => Some(*flag),
            // The kernel's own notation.
            DeValue::Integer(number) if matches!(number.as_str(), "0" | "1") => {
                Some(number.as_str() == "1")
            }
            _ => {
                self.problem(key, "neither true nor false", "use true or false");
                None
            }
        }
    }

    fn number(&mut self, key: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        let range = u64::from(*range.start())..=u64::from(*range.end());
        self.long_number(key, range).and_then(|number| u32::try_from(number).ok())
    }

    fn long_number(&mut self, key: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let remedy = format!("use a whole number from {} to {}", range.start(), range.end());
        let DeValue::Integer(number) = self.value(key)? else {
            self.problem(key, "not a whole number", remedy);
            return None;
        };
        let number = i128::from_str_radix(number.as_str(), number.radix()).ok();
        let number = number.and_then(|number| u64::try_from(number).ok());
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            self.problem(key, "out of range", remedy);
        }
        number
    }

    /// Reads all limits and reservations, under whichever name each is written.
    fn limits(&mut self) -> LimitsChange {
        let mut change = LimitsChange::default();
        for (index, key) in LIMITS.iter().enumerate() {
            let mut first = None;
            for name in [key.name].into_iter().chain(key.aliases.iter().copied()) {
                self.limits.push(name);
                let value = self.table.and_then(|table| table.get(name)).map(Spanned::get_ref);
                let Some(value) = value else { continue };
                if let Some(first) = first {
                    let remedy = format!("keep {first} or {name}, not both");
                    self.problem(name, format!("says the same as {first}"), remedy);
                    continue;
                }
                first = Some(name);
                self.note_line(name, key.name);
                let text = match value {
                    DeValue::String(text) => text.as_ref(),
                    DeValue::Integer(number) if number.radix() == 10 => number.as_str(),
                    _ => "",
                };
                match key.parse(text) {
                    Ok(value) => change.set(index, value),
                    Err((problem, remedy)) => self.problem(name, problem, remedy),
                }
            }
        }
        change
    }

    /// Lets what is said of a key under its own name point to where it was written.
    fn note_line(&self, written: &str, own: &str) {
        let mut lines = self.sheet.lines.borrow_mut();
        if let Some(&line) = lines.get(&self.path_of(written)) {
            lines.insert(self.path_of(own), line);
        }
    }

    fn size(&mut self, key: &'static str) -> Option<u64> {
        let size = match self.value(key)? {
            DeValue::String(text) => parse_size(text),
            DeValue::Integer(number) => parse_size(number.as_str()),
            _ => parse_size(""),
        };
        size.map_err(|error| {
            let remedy = "write bytes, or a number with K, M, G or T, such as \"10G\"";
            self.problem(key, error.to_string(), remedy);
        })
        .ok()
    }

    fn weight(&mut self, key: &'static str) -> Option<u32> {
        self.number(key, 1..=WEIGHT_MAX)
    }

    fn section(&mut self, key: &'static str) -> Self {
        let value = self.value(key);
        let table = value.and_then(DeValue::as_table);
        if value.is_some() && table.is_none() {
            self.problem(key, "not a table", format!("write [{}]", self.path_of(key)));
        }
        Self::new(self.sheet, self.path_of(key), table)
    }

    /// Reads a table of named tables.
    fn named<T>(&mut self, key: &'static str, read: impl Fn(Self) -> T) -> BTreeMap<String, T> {
        let section = self.section(key);
        let mut named = BTreeMap::new();
        for (name, value) in section.table.into_iter().flatten() {
            let Some(table) = value.get_ref().as_table() else {
                let remedy = format!("write [{}]", section.path_of(name.get_ref()));
                section.problem(name.get_ref(), "not a table", remedy);
                continue;
            };
            let path = section.path_of(name.get_ref());
            let value = read(Self::new(section.sheet, path, Some(table)));
            named.insert(name.get_ref().clone().into_owned(), value);
        }
        named
    }

    /// Reports every key that nobody asked for.
    fn end(self) {
        for key in self.table.into_iter().flat_map(DeTable::keys) {
            let key: &str = key.get_ref();
            if self.known.contains(&key) || self.limits.contains(&key) {
                continue;
            }
            let known = self.known.join(", ");
            let all: Vec<_> = self.known.iter().chain(&self.limits).copied().collect();
            let remedy = match closest(key, &all) {
                Some(near) => format!("did you mean {near}?"),
                None if self.limits.is_empty() => format!("possible here: {known}"),
                None => format!("possible here: {known}, and limits such as total_bytes_sec"),
            };
            self.problem(key, "unknown key", remedy);
        }
    }
}

/// Returns the candidate that takes the fewest edits, if it takes at most a third of the word.
fn closest(word: &str, candidates: &[&'static str]) -> Option<&'static str> {
    let (edits, near) = candidates.iter().map(|near| (edits(word, near), *near)).min()?;
    (edits <= word.len().div_ceil(3)).then_some(near)
}

/// Returns how many insertions, removals and replacements lead from `a` to `b` (Levenshtein).
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

fn read_config(mut top: Section<'_, '_>) -> Config {
    let config = Config {
        socket_dir: top.string("socket_dir").map(PathBuf::from),
        api: top.string("api").map(PathBuf::from),
        log: top.string("log"),
        pools: top.named("pools", read_pool),
    };
    top.end();
    config
}

fn read_pool(mut from: Section<'_, '_>) -> Pool {
    let depth = read_depth(&mut from);
    let pool = Pool {
        scheduler: read_scheduler(&mut from),
        profile: read_profile(&mut from),
        depth: depth.flatten(),
        governor: depth == Some(None),
        block: from.parsed("block", |text| text.parse().ok(), BLOCK_REMEDY).unwrap_or_default(),
        responses: from
            .parsed("responses", |text| text.parse().ok(), RESPONSES_REMEDY)
            .unwrap_or_default(),
        poll: read_poll(&mut from).unwrap_or_default(),
        sqpoll_ms: from.number("sqpoll_ms", 1..=SQPOLL_MS_MAX),
        iopoll: from.flag("iopoll").unwrap_or_default(),
        cpus: from.parsed("cpus", |text| text.parse().ok(), CPUS_REMEDY),
        model: from.string("model"),
        rotational: read_rotational(&mut from),
        trace: from.string("trace").map(PathBuf::from),
        capacity_iops: from.long_number("capacity_iops", 1..=RATE_MAX),
        capacity_bps: from.size("capacity_bps"),
        limits: Limits::from(from.limits()),
        tunables: read_tunables(&mut from),
        trust: read_trust(&mut from).unwrap_or_default(),
        device_priority: read_device_priority(&mut from),
        streams: from.flag("streams"),
        groups: from.named("groups", read_group),
        vms: from.named("vms", read_vm),
        disks: from.named("disks", read_disk),
    };
    from.end();
    pool
}

/// Reads a depth; `Some(None)` is the word that leaves it to a governor.
fn read_depth(from: &mut Section<'_, '_>) -> Option<Option<u32>> {
    match from.value("depth") {
        Some(DeValue::String(text)) if text == "auto" => Some(None),
        Some(DeValue::String(_)) => {
            let remedy = format!("use \"auto\" or a whole number from 1 to {DEPTH_MAX}");
            from.problem("depth", "not a depth", remedy);
            None
        }
        _ => from.number("depth", 1..=DEPTH_MAX).map(Some),
    }
}

/// Reads whether a worker looks for work; as a word, or as the limit of it.
fn read_poll(from: &mut Section<'_, '_>) -> Option<Poll> {
    let us = from.number("poll_us", 0..=POLL_US_MAX).map(Poll::from_us);
    let word = match from.value("poll") {
        None => return us,
        Some(DeValue::Boolean(false)) => Some(Poll::Off),
        Some(DeValue::String(text)) if text == "off" => Some(Poll::Off),
        Some(DeValue::String(text)) if text == "brief" => Some(Poll::Brief),
        Some(DeValue::String(text)) if text == "auto" => Some(Poll::Auto),
        Some(_) => {
            from.problem("poll", "not one of the possible values", POLL_REMEDY);
            None
        }
    };
    if us.is_some() {
        from.problem("poll", "says something else than poll_us", "keep poll or poll_us, not both");
    }
    word
}

/// Reads a class of priority, or whether there shall be one.
fn read_device_priority(from: &mut Section<'_, '_>) -> DevicePriority {
    let text = match from.value("device_priority") {
        None | Some(DeValue::Boolean(false)) => return DevicePriority::None,
        Some(DeValue::Boolean(true)) => return DevicePriority::BestEffort,
        Some(DeValue::String(text)) => text.as_ref(),
        Some(_) => "",
    };
    let known = DevicePriority::ALL.into_iter().find(|known| known.as_str() == text);
    known.unwrap_or_else(|| {
        let remedy = "use \"none\", \"best-effort\" or \"real-time\"";
        from.problem("device_priority", "not one of the possible values", remedy);
        DevicePriority::None
    })
}

fn read_rotational(from: &mut Section<'_, '_>) -> Rotational {
    match from.value("rotational") {
        None => Rotational::Auto,
        Some(DeValue::Boolean(true)) => Rotational::Yes,
        Some(DeValue::Boolean(false)) => Rotational::No,
        Some(DeValue::String(text)) if text == "auto" => Rotational::Auto,
        Some(_) => {
            let remedy = "use \"auto\", true or false";
            from.problem("rotational", "not one of the possible values", remedy);
            Rotational::Auto
        }
    }
}

fn read_scheduler(from: &mut Section<'_, '_>) -> Option<Scheduler> {
    from.parsed("scheduler", |name| name.parse().ok(), SCHEDULERS)
}

fn read_profile(from: &mut Section<'_, '_>) -> Option<Profile> {
    from.parsed("profile", |name| name.parse().ok(), PROFILES)
}

/// Reads the tables of all elevators.
fn read_tunables(from: &mut Section<'_, '_>) -> Tunables {
    let mut tunables = Tunables::default();
    for name in tables() {
        let mut table = from.section(name);
        for tunable in TUNABLES.iter().filter(|tunable| tunable.table == name) {
            let value = match tunable.unit {
                Unit::Flag => table.flag(tunable.name).map(u64::from),
                _ => table.long_number(tunable.name, tunable.min..=tunable.max),
            };
            let Some(value) = value else { continue };
            if tunables.get(name, tunable.field).is_some() {
                let remedy = format!("keep {} or {}, not both", tunable.field, tunable.name);
                table.problem(tunable.name, format!("says the same as {}", tunable.field), remedy);
            }
            tunables.set(tunable, value);
        }
        table.end();
    }
    tunables
}

/// Reads a change of a running pool. Returns what is wrong with it.
pub(crate) fn read_change(text: &str, change: &mut PoolChange) -> Vec<Problem> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if let Some(error) = errors.first() {
        let problem = format!("cannot be read: {}", error.message());
        return vec![Problem::new("", "", problem, "send a flat object")];
    }
    let sheet = Sheet::new(text);
    let mut from = Section::new(&sheet, String::new(), Some(table.get_ref()));
    let scheduler = read_scheduler(&mut from).map(Some);
    let profile = read_profile(&mut from).map(Some);
    let depth = read_depth(&mut from);
    change.scheduler = change.scheduler.or(scheduler);
    change.profile = change.profile.or(profile);
    change.depth = change.depth.or(depth);
    let governor = depth.map(|depth| depth.is_none());
    change.governor = change.governor.or(governor);
    let poll = read_poll(&mut from);
    change.poll = change.poll.or(poll);
    change.tunables = read_tunables(&mut from);
    change.limits = from.limits();
    change.capacity_iops = from.long_number("capacity_iops", 1..=RATE_MAX);
    change.capacity_bps = from.size("capacity_bps");
    let node = |mut from: Section<'_, '_>| {
        let read = (from.weight("weight"), from.limits());
        from.end();
        read
    };
    (change.groups, change.group_limits) = apart(from.named("groups", node));
    (change.vms, change.vm_limits) = apart(from.named("vms", node));
    change.disk_limits = from.named("disks", |mut from: Section<'_, '_>| {
        let limits = from.limits();
        from.end();
        limits
    });
    from.end();
    sheet.problems.into_inner()
}

/// What a list of groups or VMs says, by name.
type Named<T> = BTreeMap<String, T>;

/// Takes weights and limits apart.
fn apart(both: Named<(Option<u32>, LimitsChange)>) -> (Named<u32>, Named<LimitsChange>) {
    let weights = both.iter().filter_map(|(name, (weight, _))| Some((name.clone(), (*weight)?)));
    let weights = weights.collect();
    let limits = both.into_iter().filter(|(_, (_, limits))| !limits.is_none());
    (weights, limits.map(|(name, (_, limits))| (name, limits)).collect())
}

fn read_group(mut from: Section<'_, '_>) -> Group {
    let group = Group {
        parent: from.string("parent"),
        weight: from.weight("weight").unwrap_or(DEFAULT_WEIGHT),
        limits: Limits::from(from.limits()),
    };
    from.end();
    group
}

fn read_vm(mut from: Section<'_, '_>) -> Vm {
    let vm = Vm {
        group: from.string("group"),
        weight: from.weight("weight").unwrap_or(DEFAULT_WEIGHT),
        trust: read_trust(&mut from),
        help_seconds_per_minute: from.number("help_seconds_per_minute", 0..=60),
        help_mib_per_minute: from.number("help_mib_per_minute", 0..=i32::MAX.unsigned_abs()),
        vsock: from.string("vsock").map(PathBuf::from),
        limits: Limits::from(from.limits()),
    };
    from.end();
    vm
}

fn read_trust(from: &mut Section<'_, '_>) -> Option<Trust> {
    let remedy = "use \"none\", \"vm\", \"interactive\" or \"soft-real-time\"";
    from.parsed("trust", |name| name.parse().ok(), remedy)
}

fn read_disk(mut from: Section<'_, '_>) -> Disk {
    let remedy = "write the path of an image or block device, or null:SIZE such as \"null:10G\"";
    if from.value("path").is_none() {
        from.problem("path", "missing", remedy);
    }
    let source = from.parsed("path", |path| path.parse::<Source>().ok(), remedy);
    // Without a path reading goes on, so that the other mistakes show as well; the stand-in is no
    // other disk's image.
    let mut disk = Disk::new(source.unwrap_or_else(|| Source::Path(PathBuf::from(&from.path))));
    disk.create_bytes = from.size("create");
    disk.preallocate = from.flag("preallocate").unwrap_or(false);
    disk.vm = from.string("vm");
    disk.weight = from.weight("weight");
    disk.read_only = from.flag("read_only").unwrap_or(false);
    disk.queues = from
        .number("queues", 1..=u32::from(QUEUES_MAX))
        .and_then(|queues| u16::try_from(queues).ok())
        .unwrap_or(DEFAULT_QUEUES);
    disk.serial = from.string("serial");
    disk.block_bytes = from.number("block_bytes", 512..=4096).unwrap_or(DEFAULT_BLOCK_BYTES);
    disk.write_cache = from.flag("write_cache").unwrap_or(true);
    disk.limits = Limits::from(from.limits());
    from.end();
    disk
}
