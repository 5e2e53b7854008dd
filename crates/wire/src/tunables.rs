//! What can be tuned about the elevators: one list for the file, the API and the messages.
//!
//! Names, units and ranges are those of Linux, where Linux has them. A value is kept in the smallest
//! unit of its kind, so that two names of one thing (`slice_idle`, `slice_idle_us`) mean one value.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a number counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// True or false; the kernel's 1 and 0 are understood too.
    Flag,
    /// Requests, batches, sectors, KiB or a factor, as the name says.
    Plain,
    /// Milliseconds; kept in nanoseconds.
    Millis,
    /// Microseconds; kept in nanoseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

impl Unit {
    /// Returns by what a written number is multiplied.
    const fn factor(self) -> u64 {
        match self {
            Self::Flag | Self::Plain | Self::Nanos => 1,
            Self::Micros => 1_000,
            Self::Millis => 1_000_000,
        }
    }
}

/// One name under which something can be tuned.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tunable {
    /// The table that it stands in: the elevator.
    pub table: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// Under which name the value is kept.
    pub field: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// The least that may be written.
    pub min: u64,
    /// The most that may be written.
    pub max: u64,
}

impl Tunable {
    /// Returns the tunable of that name.
    #[must_use]
    pub fn find(table: &str, name: &str) -> Option<&'static Self> {
        TUNABLES.iter().find(|tunable| tunable.table == table && tunable.name == name)
    }

    const fn flag(table: &'static str, name: &'static str) -> Self {
        Self { table, name, field: name, unit: Unit::Flag, min: 0, max: 1 }
    }

    const fn plain(table: &'static str, name: &'static str, min: u64) -> Self {
        Self { table, name, field: name, unit: Unit::Plain, min, max: INT_MAX }
    }

    const fn millis(table: &'static str, name: &'static str, min: u64) -> Self {
        Self { table, name, field: name, unit: Unit::Millis, min, max: INT_MAX }
    }

    /// Another name, in microseconds, of a time in milliseconds.
    const fn micros(
        table: &'static str,
        name: &'static str,
        field: &'static str,
        min: u64,
    ) -> Self {
        Self { table, name, field, unit: Unit::Micros, min, max: UINT_MAX }
    }

    const fn nanos(table: &'static str, name: &'static str, (min, max): (u64, u64)) -> Self {
        Self { table, name, field: name, unit: Unit::Nanos, min, max }
    }

    const fn up_to(mut self, max: u64) -> Self {
        self.max = max;
        self
    }
}

/// The kernel's limit for tunables that it keeps in an `int`.
const INT_MAX: u64 = (1 << 31) - 1;
/// The same for an `unsigned int`.
const UINT_MAX: u64 = (1 << 32) - 1;
/// Kyber's targets: above 3 ns, up to an hour.
const TARGETS: (u64, u64) = (4, 3_600_000_000_000);

/// Everything that can be tuned, in the order of the documentation.
pub const TUNABLES: &[Tunable] = &[
    Tunable::millis("bfq", "slice_idle", 0).up_to(1_000),
    Tunable::micros("bfq", "slice_idle_us", "slice_idle", 0).up_to(1_000_000),
    Tunable::flag("bfq", "strict_guarantees"),
    Tunable::flag("bfq", "low_latency"),
    Tunable::millis("bfq", "timeout_sync", 1).up_to(10_000),
    Tunable::plain("bfq", "max_budget", 0).up_to(1 << 24),
    Tunable::plain("bfq", "back_seek_max", 0).up_to(1 << 21),
    Tunable::plain("bfq", "back_seek_penalty", 1).up_to(1000),
    Tunable::millis("bfq", "fifo_expire_sync", 1).up_to(60_000),
    Tunable::millis("bfq", "fifo_expire_async", 1).up_to(60_000),
    Tunable::plain("bfq", "wr_coeff", 2).up_to(100),
    Tunable::millis("bfq", "wr_max_time", 0).up_to(300_000),
    Tunable::plain("bfq", "wr_max_service", 1).up_to(UINT_MAX),
    Tunable::millis("bfq", "wr_min_idle_time", 1).up_to(3_600_000),
    Tunable::plain("bfq", "wr_rt_coeff", 2).up_to(10_000),
    Tunable::millis("bfq", "wr_rt_max_time", 1).up_to(10_000),
    Tunable::plain("bfq", "wr_max_softrt_rate", 0).up_to(UINT_MAX),
    Tunable::millis("bfq", "soft_rt_guard", 0).up_to(1_000),
    Tunable::plain("bfq", "large_burst_thresh", 0).up_to(1_000),
    Tunable::millis("bfq", "burst_interval", 1).up_to(599),
    Tunable::plain("bfq", "async_charge_factor", 1).up_to(100),
    Tunable::flag("bfq", "injection"),
    Tunable::flag("bfq", "merge_queues"),
    Tunable::flag("bfq", "stable_merge"),
    Tunable::flag("bfq", "kernel_compat"),
    Tunable::millis("deadline", "read_expire", 0),
    Tunable::millis("deadline", "write_expire", 0),
    Tunable::plain("deadline", "writes_starved", 0),
    Tunable::plain("deadline", "fifo_batch", 0),
    Tunable::flag("deadline", "front_merges"),
    Tunable::millis("deadline", "prio_aging_expire", 0),
    Tunable::millis("anticipatory", "read_expire", 0),
    Tunable::millis("anticipatory", "write_expire", 0),
    Tunable::millis("anticipatory", "read_batch_expire", 0),
    Tunable::millis("anticipatory", "write_batch_expire", 0),
    Tunable::millis("anticipatory", "antic_expire", 0),
    Tunable::nanos("kyber", "read_lat_nsec", TARGETS),
    Tunable::nanos("kyber", "write_lat_nsec", TARGETS),
    Tunable::plain("cfq", "quantum", 1),
    Tunable::millis("cfq", "fifo_expire_sync", 1),
    Tunable::millis("cfq", "fifo_expire_async", 1),
    Tunable::plain("cfq", "back_seek_max", 0),
    Tunable::plain("cfq", "back_seek_penalty", 1),
    Tunable::millis("cfq", "slice_sync", 1),
    Tunable::micros("cfq", "slice_sync_us", "slice_sync", 1_000),
    Tunable::millis("cfq", "slice_async", 1),
    Tunable::micros("cfq", "slice_async_us", "slice_async", 1_000),
    Tunable::plain("cfq", "slice_async_rq", 1),
    Tunable::millis("cfq", "slice_idle", 0),
    Tunable::micros("cfq", "slice_idle_us", "slice_idle", 0),
    Tunable::millis("cfq", "group_idle", 0),
    Tunable::micros("cfq", "group_idle_us", "group_idle", 0),
    Tunable::flag("cfq", "low_latency"),
    Tunable::millis("cfq", "target_latency", 1),
    Tunable::micros("cfq", "target_latency_us", "target_latency", 1_000),
];

/// The tables, in the order of the documentation.
pub(crate) fn tables() -> impl Iterator<Item = &'static str> {
    let first = |index: &usize| *index == 0 || TUNABLES[*index].table != TUNABLES[*index - 1].table;
    (0..TUNABLES.len()).filter(first).map(|index| TUNABLES[index].table)
}

/// A tunable's value as it is written.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(untagged)]
pub enum TunableValue {
    /// Of a flag.
    Flag(bool),
    /// Of anything else, in the unit of its name.
    Number(u64),
}

impl std::fmt::Display for TunableValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Values of tunables; what is not in it has the elevator's default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tunables(BTreeMap<(&'static str, &'static str), u64>);

impl Tunables {
    /// Returns a value: a time in nanoseconds, a flag as 0 or 1, anything else as written.
    ///
    /// # Panics
    ///
    /// Panics if nothing of that name can be tuned: the caller has misspelt it.
    #[must_use]
    pub fn get(&self, table: &str, field: &str) -> Option<u64> {
        let tunable = Tunable::find(table, field).expect("the caller names a tunable");
        self.0.get(&(tunable.table, tunable.field)).copied()
    }

    /// Sets a value that is written as `value` in the unit of `tunable`.
    pub fn set(&mut self, tunable: &Tunable, value: u64) {
        let value = value.saturating_mul(tunable.unit.factor());
        self.0.insert((tunable.table, tunable.field), value);
    }

    /// Gives a tunable its default again.
    pub fn reset(&mut self, tunable: &Tunable) {
        self.0.remove(&(tunable.table, tunable.field));
    }

    /// Takes over every value of `others`.
    pub fn extend(&mut self, others: &Self) {
        self.0.extend(&others.0);
    }

    /// Returns every value, under the name with the largest unit in which it is a whole number.
    #[must_use]
    pub fn written(&self) -> BTreeMap<String, TunableValue> {
        self.0.iter().map(|(&(table, field), &value)| written(table, field, value)).collect()
    }
}

fn written(table: &str, field: &str, value: u64) -> (String, TunableValue) {
    let fits = |tunable: &&Tunable| {
        let is_name = tunable.table == table && tunable.field == field;
        is_name && value.is_multiple_of(tunable.unit.factor())
    };
    let tunable = TUNABLES.iter().filter(fits).max_by_key(|tunable| tunable.unit.factor());
    let tunable = tunable.expect("a value was written under one of its names");
    let value = match tunable.unit {
        Unit::Flag => TunableValue::Flag(value != 0),
        unit => TunableValue::Number(value / unit.factor()),
    };
    (format!("{table}.{}", tunable.name), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_to_a_field_that_is_a_name_itself() {
        for tunable in TUNABLES {
            let (table, field) = (tunable.table, tunable.field);
            let own = Tunable::find(table, field).unwrap();
            assert_eq!(own.field, field, "{tunable:?}");
            assert!(tunable.min <= tunable.max);
            let twins =
                TUNABLES.iter().filter(|twin| twin.table == table && twin.name == tunable.name);
            assert_eq!(twins.count(), 1, "{tunable:?}");
        }
        let tables: Vec<_> = tables().collect();
        assert_eq!(tables, ["bfq", "deadline", "anticipatory", "kyber", "cfq"]);
    }

    #[test]
    fn two_names_of_one_thing_set_one_value_and_the_coarser_one_is_shown() {
        let mut tunables = Tunables::default();
        tunables.set(Tunable::find("bfq", "slice_idle_us").unwrap(), 7_500);
        assert_eq!(tunables.get("bfq", "slice_idle"), Some(7_500_000));
        let shown = |tunables: &Tunables| tunables.written().into_iter().collect::<Vec<_>>();
        let number = |name: &str, value| [(name.to_owned(), TunableValue::Number(value))];
        assert_eq!(shown(&tunables), number("bfq.slice_idle_us", 7_500));
        tunables.set(Tunable::find("bfq", "slice_idle").unwrap(), 7);
        assert_eq!(shown(&tunables), number("bfq.slice_idle", 7));
        tunables.reset(Tunable::find("bfq", "slice_idle_us").unwrap());
        assert_eq!(tunables, Tunables::default());
    }
}
