//! Settings that belong together, under one name.

use std::fmt;
use std::str::FromStr;

use crate::Scheduler;
use crate::tunables::{Tunable, Tunables};

/// What a pool is mainly used for. `docs/guide/configuration.md` gives the reasons.
///
/// A profile chooses the scheduler and some tunables; what an operator writes himself wins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Profile {
    /// Arrays that reorder many requests themselves.
    EnterpriseStorage,
    /// People who wait for applications.
    Desktop,
    /// Databases: nobody is raised, nobody waits long.
    Database,
    /// Throughput; nobody watches.
    Batch,
    /// Many streams that must not stutter.
    Streaming,
}

/// One value of a profile: table, name, what would be written.
type Value = (&'static str, &'static str, u64);

impl Profile {
    /// Every profile, in the order of the documentation.
    pub const ALL: [Self; 5] =
        [Self::EnterpriseStorage, Self::Desktop, Self::Database, Self::Batch, Self::Streaming];

    /// Returns its name, as users write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::EnterpriseStorage => "enterprise-storage",
            Self::Desktop => "desktop",
            Self::Database => "database",
            Self::Batch => "batch",
            Self::Streaming => "streaming",
        }
    }

    /// Returns the scheduler that it chooses.
    #[must_use]
    pub const fn scheduler(self) -> Scheduler {
        match self {
            Self::EnterpriseStorage => Scheduler::Cfq,
            Self::Desktop | Self::Database | Self::Batch | Self::Streaming => Scheduler::Bfq,
        }
    }

    /// Returns the tunables that it sets.
    #[must_use]
    pub fn tunables(self) -> Tunables {
        let mut tunables = Tunables::default();
        for &(table, name, value) in self.values() {
            let tunable = Tunable::find(table, name).expect("profiles name what can be tuned");
            tunables.set(tunable, value);
        }
        tunables
    }

    const fn values(self) -> &'static [Value] {
        match self {
            Self::EnterpriseStorage => &[("cfq", "quantum", 32), ("cfq", "slice_idle", 0)],
            Self::Desktop => &[("bfq", "low_latency", 1), ("bfq", "timeout_sync", 80)],
            Self::Database => &[
                ("bfq", "low_latency", 0),
                ("bfq", "timeout_sync", 60),
                ("bfq", "fifo_expire_sync", 60),
            ],
            Self::Batch => &[
                ("bfq", "low_latency", 0),
                ("bfq", "timeout_sync", 500),
                ("bfq", "fifo_expire_sync", 500),
                ("bfq", "fifo_expire_async", 1000),
            ],
            Self::Streaming => &[
                ("bfq", "low_latency", 1),
                ("bfq", "timeout_sync", 40),
                ("bfq", "fifo_expire_sync", 80),
            ],
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Profile {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|profile| profile.as_str() == name).ok_or(
            "no such profile; there are enterprise-storage, desktop, database, batch and streaming",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_has_a_name_and_values_that_may_be_written() {
        for profile in Profile::ALL {
            assert_eq!(profile.as_str().parse(), Ok(profile));
            assert_eq!(profile.tunables().written().len(), profile.values().len());
            for (table, name, value) in profile.values() {
                let tunable = Tunable::find(table, name).unwrap();
                assert!((tunable.min..=tunable.max).contains(value), "{profile}: {name}");
                assert_eq!(*table, profile.scheduler().as_str());
            }
        }
        assert_eq!("desktopp".parse::<Profile>().ok(), None);
    }
}
