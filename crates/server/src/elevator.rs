//! From a pool's settings to an elevator and its tunables.

use evenkeel_sched::{
    AnticipatoryTunables, BfqTunables, CfqTunables, DeadlineTunables, ElevatorConfig, Kind,
    KyberTunables, Nanos,
};
use evenkeel_wire::{Pool, Problem, Scheduler, Tunables};

/// Returns what a pool's settings ask for. What the device decides is not in it: whether it is
/// rotational, and whether it queues.
pub(crate) fn elevator(pool: &Pool) -> ElevatorConfig {
    let tunables = pool.effective_tunables();
    let of = |table| Table { tunables: &tunables, table };
    ElevatorConfig {
        kind: kind(pool.scheduler()),
        deadline: deadline(&of("deadline")),
        anticipatory: anticipatory(&of("anticipatory")),
        kyber: kyber(&of("kyber")),
        cfq: cfq(&of("cfq")),
        bfq: bfq(&of("bfq")),
        ..ElevatorConfig::default()
    }
}

/// Returns what is wrong with the tunables taken together; each by itself has been checked when it
/// was read. `path` is that of the pool; empty for a change of a running one.
pub(crate) fn check_elevator(path: &str, config: &ElevatorConfig) -> Vec<Problem> {
    let text = |error: &dyn std::error::Error| error.to_string();
    let results = [
        ("bfq", config.bfq.validate().map_err(|error| text(&error))),
        ("deadline", config.deadline.validate().map_err(|error| text(&error))),
        ("anticipatory", config.anticipatory.validate().map_err(|error| text(&error))),
        ("kyber", config.kyber.validate().map_err(|error| text(&error))),
        ("cfq", config.cfq.validate().map_err(|error| text(&error))),
    ];
    let what = "these values do not work together";
    let dot = if path.is_empty() { "" } else { "." };
    let problem =
        |(table, error)| Problem::new(format!("{path}{dot}{table}"), String::new(), what, error);
    results
        .into_iter()
        .filter_map(|(table, result)| Some(problem((table, result.err()?))))
        .collect()
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

/// One elevator's tunables as written; what is not written has the default that is given.
struct Table<'a> {
    tunables: &'a Tunables,
    table: &'static str,
}

impl Table<'_> {
    fn time(&self, field: &str, default: Nanos) -> Nanos {
        self.tunables.get(self.table, field).map_or(default, Nanos)
    }

    fn flag(&self, field: &str, default: bool) -> bool {
        self.tunables.get(self.table, field).map_or(default, |value| value != 0)
    }

    /// The ranges of what may be written fit the types.
    fn number<T: TryFrom<u64>>(&self, field: &str, default: T) -> T {
        let value = self.tunables.get(self.table, field);
        value.and_then(|value| T::try_from(value).ok()).unwrap_or(default)
    }
}

fn deadline(from: &Table<'_>) -> DeadlineTunables {
    let default = DeadlineTunables::default();
    DeadlineTunables {
        read_expire: from.time("read_expire", default.read_expire),
        write_expire: from.time("write_expire", default.write_expire),
        writes_starved: from.number("writes_starved", default.writes_starved),
        fifo_batch: from.number("fifo_batch", default.fifo_batch),
        front_merges: from.flag("front_merges", default.front_merges),
        prio_aging_expire: from.time("prio_aging_expire", default.prio_aging_expire),
        ..default
    }
}

fn anticipatory(from: &Table<'_>) -> AnticipatoryTunables {
    let default = AnticipatoryTunables::default();
    AnticipatoryTunables {
        read_expire: from.time("read_expire", default.read_expire),
        write_expire: from.time("write_expire", default.write_expire),
        read_batch_expire: from.time("read_batch_expire", default.read_batch_expire),
        write_batch_expire: from.time("write_batch_expire", default.write_batch_expire),
        antic_expire: from.time("antic_expire", default.antic_expire),
    }
}

fn kyber(from: &Table<'_>) -> KyberTunables {
    let default = KyberTunables::default();
    KyberTunables {
        read_lat: from.time("read_lat_nsec", default.read_lat),
        write_lat: from.time("write_lat_nsec", default.write_lat),
    }
}

fn cfq(from: &Table<'_>) -> CfqTunables {
    let default = CfqTunables::default();
    CfqTunables {
        quantum: from.number("quantum", default.quantum),
        fifo_expire_sync: from.time("fifo_expire_sync", default.fifo_expire_sync),
        fifo_expire_async: from.time("fifo_expire_async", default.fifo_expire_async),
        back_seek_max_kib: from.number("back_seek_max", default.back_seek_max_kib),
        back_seek_penalty: from.number("back_seek_penalty", default.back_seek_penalty),
        slice_sync: from.time("slice_sync", default.slice_sync),
        slice_async: from.time("slice_async", default.slice_async),
        slice_async_rq: from.number("slice_async_rq", default.slice_async_rq),
        slice_idle: from.time("slice_idle", default.slice_idle),
        group_idle: from.time("group_idle", default.group_idle),
        low_latency: from.flag("low_latency", default.low_latency),
        target_latency: from.time("target_latency", default.target_latency),
    }
}

fn bfq(from: &Table<'_>) -> BfqTunables {
    let default = BfqTunables::default();
    BfqTunables {
        slice_idle: from.time("slice_idle", default.slice_idle),
        strict_guarantees: from.flag("strict_guarantees", default.strict_guarantees),
        back_seek_max_kib: from.number("back_seek_max", default.back_seek_max_kib),
        back_seek_penalty: from.number("back_seek_penalty", default.back_seek_penalty),
        fifo_expire_sync: from.time("fifo_expire_sync", default.fifo_expire_sync),
        fifo_expire_async: from.time("fifo_expire_async", default.fifo_expire_async),
        timeout_sync: from.time("timeout_sync", default.timeout_sync),
        max_budget_sectors: from.number("max_budget", default.max_budget_sectors),
        low_latency: from.flag("low_latency", default.low_latency),
        wr_coeff: from.number("wr_coeff", default.wr_coeff),
        wr_max_service_sectors: from.number("wr_max_service", default.wr_max_service_sectors),
        wr_max_time: from.time("wr_max_time", default.wr_max_time),
        wr_min_idle_time: from.time("wr_min_idle_time", default.wr_min_idle_time),
        wr_rt_coeff: from.number("wr_rt_coeff", default.wr_rt_coeff),
        wr_rt_max_time: from.time("wr_rt_max_time", default.wr_rt_max_time),
        wr_max_softrt_rate: from.number("wr_max_softrt_rate", default.wr_max_softrt_rate),
        soft_rt_guard: from.time("soft_rt_guard", default.soft_rt_guard),
        large_burst_thresh: from.number("large_burst_thresh", default.large_burst_thresh),
        burst_interval: from.time("burst_interval", default.burst_interval),
        async_charge_factor: from.number("async_charge_factor", default.async_charge_factor),
        injection: from.flag("injection", default.injection),
        merge_queues: from.flag("merge_queues", default.merge_queues),
        stable_merge: from.flag("stable_merge", default.stable_merge),
        kernel_compat: from.flag("kernel_compat", default.kernel_compat),
        ..default
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_wire::{Profile, TUNABLES};

    use super::*;

    fn described(pool: &Pool) -> String {
        format!("{:?}", elevator(pool))
    }

    #[test]
    fn every_tunable_reaches_its_elevator() {
        for tunable in TUNABLES {
            let at = |value| {
                let mut pool = Pool::default();
                pool.tunables.set(tunable, value);
                described(&pool)
            };
            assert_ne!(at(tunable.min), at(tunable.max), "{}.{}", tunable.table, tunable.name);
        }
    }

    #[test]
    fn what_may_be_written_is_valid_by_itself_where_others_are_not_concerned() {
        for tunable in TUNABLES {
            for value in [tunable.min, tunable.max] {
                let mut pool = Pool::default();
                pool.tunables.set(tunable, value);
                for problem in check_elevator("pools.main", &elevator(&pool)) {
                    // Two values of BFQ must fit together, and a set budget a request.
                    assert_eq!(problem.path, "pools.main.bfq", "{}: {problem}", tunable.name);
                    assert!(!problem.remedy.contains("choose"), "{}: {problem}", tunable.name);
                }
            }
        }
    }

    #[test]
    fn without_a_word_every_tunable_is_the_default_of_its_elevator() {
        assert_eq!(described(&Pool::default()), format!("{:?}", ElevatorConfig::default()));
    }

    #[test]
    fn every_profile_is_valid_and_cfq_knows_its_own() {
        for profile in Profile::ALL {
            let pool = Pool { profile: Some(profile), ..Pool::default() };
            assert_eq!(check_elevator("", &elevator(&pool)), [], "{profile}");
        }
        let profile = Some(Profile::EnterpriseStorage);
        let pool = Pool { profile, ..Pool::default() };
        assert_eq!(elevator(&pool).cfq, CfqTunables::enterprise_storage());
        assert_eq!(elevator(&pool).kind, Kind::Cfq);
    }

    #[test]
    fn values_that_contradict_each_other_are_reported_with_their_table() {
        let mut pool = Pool::default();
        pool.tunables.set(evenkeel_wire::Tunable::find("bfq", "slice_idle").unwrap(), 200);
        let all = check_elevator("", &elevator(&pool));
        assert_eq!(all[0].path, "bfq");
        assert!(all[0].remedy.contains("shorten slice_idle"), "{all:?}");
    }
}
