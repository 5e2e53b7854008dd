//! What is left to chance: elevators, limits, faults, loads.

use evenkeel_engine::{BlockConfig, BlockSize, Responses};
use evenkeel_sched::{
    BfqTunables, CfqTunables, ElevatorConfig, Kind, Limits, Nanos, Queueing, Rate, Rates,
    Reservation, Weight,
};

use crate::world::driver::DriverModel;
use crate::world::{FaultPlan, File, Order, Random};

const MIB: u64 = 2048;

pub(super) fn pick<T: Copy>(random: &mut Random, of: &[T]) -> T {
    let count = u64::try_from(of.len()).expect("few");
    of[usize::try_from(random.below(count)).expect("an index")]
}

fn millis(random: &mut Random, from: u64, to: u64) -> Nanos {
    Nanos::from_millis(random.within(from, to))
}

fn small(random: &mut Random, from: u64, to: u64) -> u32 {
    u32::try_from(random.within(from, to)).expect("small numbers")
}

pub(super) fn weight(random: &mut Random) -> Weight {
    let value = match random.below(4) {
        0 => random.within(1, 1000),
        1 => pick(random, &[1, 10, 300, 1000]),
        _ => 100,
    };
    Weight::new(value).expect("in range")
}

/// Returns a model's specification, and the longest time of one of its commands.
pub(super) fn model(random: &mut Random) -> (&'static str, Nanos) {
    pick(
        random,
        &[
            ("hdd", Nanos::from_millis(60)),
            ("hdd:ncq=32", Nanos::from_millis(60)),
            ("hdd:write_cache_kib=0", Nanos::from_millis(60)),
            ("sdhc", Nanos::from_millis(400)),
            ("emmc", Nanos::from_millis(200)),
            ("ssd", Nanos::from_millis(20)),
            ("ssd:depth=4", Nanos::from_millis(20)),
            ("nvme", Nanos::from_millis(10)),
            ("nvme:depth=16", Nanos::from_millis(10)),
        ],
    )
}

pub(super) fn kind(random: &mut Random) -> Kind {
    if random.per_mille(400) { Kind::Bfq } else { pick(random, &Kind::ALL) }
}

/// Returns an elevator whose tunables are valid, often far from the defaults. What the device is
/// like is kept.
pub(super) fn elevator(random: &mut Random, kind: Kind, like: &ElevatorConfig) -> ElevatorConfig {
    let mut config = ElevatorConfig {
        kind,
        depth: like.depth,
        rotational: like.rotational,
        ..ElevatorConfig::default()
    };
    config.bfq.queueing = like.bfq.queueing;
    if random.per_mille(400) {
        return config;
    }
    let deadline = &mut config.deadline;
    deadline.read_expire = millis(random, 0, 1000);
    deadline.write_expire = millis(random, 1, 5000);
    deadline.writes_starved = small(random, 0, 4);
    deadline.fifo_batch = small(random, 0, 32);
    deadline.front_merges = random.per_mille(700);
    deadline.prio_aging_expire = millis(random, 0, 10_000);
    let anticipatory = &mut config.anticipatory;
    anticipatory.antic_expire = millis(random, 0, 20);
    anticipatory.read_expire = millis(random, 0, 300);
    anticipatory.read_batch_expire = millis(random, 1, 600);
    config.kyber.read_lat = Nanos::from_micros(random.within(1, 5000));
    config.kyber.write_lat = Nanos::from_micros(random.within(1, 50_000));
    config.cfq = cfq(random);
    config.bfq = bfq(random, like.bfq.queueing);
    let is_valid = config.deadline.validate().is_ok()
        && config.anticipatory.validate().is_ok()
        && config.kyber.validate().is_ok()
        && config.cfq.validate().is_ok()
        && config.bfq.validate().is_ok();
    assert!(is_valid, "the ranges above are those of the tunables: {config:?}");
    config
}

fn cfq(random: &mut Random) -> CfqTunables {
    CfqTunables {
        quantum: small(random, 1, 32),
        fifo_expire_sync: millis(random, 1, 300),
        slice_sync: millis(random, 1, 200),
        slice_async: millis(random, 1, 100),
        slice_async_rq: small(random, 1, 8),
        slice_idle: millis(random, 0, 10),
        group_idle: millis(random, 0, 10),
        low_latency: random.per_mille(500),
        target_latency: millis(random, 1, 500),
        ..CfqTunables::default()
    }
}

fn bfq(random: &mut Random, queueing: Queueing) -> BfqTunables {
    let is_tight = random.per_mille(300);
    BfqTunables {
        slice_idle: if random.per_mille(250) { Nanos::ZERO } else { millis(random, 1, 10) },
        strict_guarantees: random.per_mille(100),
        fifo_expire_sync: millis(random, 1, 300),
        fifo_expire_async: millis(random, 1, 500),
        timeout_sync: millis(random, 10, 200),
        max_budget_sectors: if is_tight { small(random, 64, 4096) } else { 0 },
        low_latency: random.per_mille(600),
        wr_coeff: u16::try_from(random.within(2, 100)).expect("small"),
        wr_max_time: if is_tight { millis(random, 1, 5000) } else { Nanos::ZERO },
        wr_min_idle_time: millis(random, 50, 3000),
        large_burst_thresh: if is_tight { small(random, 2, 10) } else { 0 },
        async_charge_factor: small(random, 1, 10),
        injection: random.per_mille(600),
        merge_queues: random.per_mille(400),
        stable_merge: random.per_mille(300),
        queueing: if is_tight { Queueing::Auto } else { queueing },
        kernel_compat: random.per_mille(250),
        ..BfqTunables::default()
    }
}

pub(super) fn blocks(random: &mut Random) -> BlockConfig {
    if random.per_mille(600) {
        return BlockConfig::default();
    }
    let is_static = random.per_mille(300);
    BlockConfig {
        size: if is_static { BlockSize::Static(small(random, 1, 12)) } else { BlockSize::Dynamic },
        responses: match random.below(3) {
            0 => Responses::Each,
            1 => Responses::Block,
            _ => Responses::Subset(small(random, 1, 5)),
        },
        one_at_a_time: random.per_mille(300),
    }
}

fn rate(random: &mut Random, unit: u64) -> Rate {
    if random.per_mille(600) {
        return Rate::default();
    }
    let per_second = unit * random.within(1, 200);
    let bursts = random.per_mille(300);
    Rate {
        per_second,
        burst_per_second: if bursts { per_second * random.within(1, 5) } else { 0 },
        burst_seconds: if bursts { small(random, 0, 3) } else { 0 },
    }
}

fn rates(random: &mut Random, unit: u64) -> Rates {
    let is_total = random.per_mille(500);
    if is_total {
        Rates { total: rate(random, unit), ..Rates::default() }
    } else {
        Rates { read: rate(random, unit), write: rate(random, unit), ..Rates::default() }
    }
}

pub(super) fn limits(random: &mut Random) -> Limits {
    Limits {
        bytes: rates(random, 1 << 17),
        ops: rates(random, 10),
        op_bytes: if random.per_mille(300) { 65_536 } else { 0 },
    }
}

pub(super) fn reservation(random: &mut Random) -> Reservation {
    Reservation {
        ops: random.within(0, 50),
        bytes: random.below(2) * random.within(0, 1 << 20),
        op_bytes: 0,
    }
}

/// Returns what goes wrong with a device within `span`, and for how long it answers nothing.
pub(super) fn faults(random: &mut Random, span: Nanos, capacity: u64) -> (FaultPlan, Nanos) {
    let mut plan = FaultPlan { seed: random.bits(), ..FaultPlan::default() };
    plan.power_cuts = random.per_mille(300);
    let mut stalled = Nanos::ZERO;
    let instant = |random: &mut Random| Nanos::ORIGIN + Nanos(random.below(span.0));
    let stretch = |random: &mut Random, most: u64| {
        let start = random.below(capacity);
        start..start + random.within(1, most)
    };
    if random.per_mille(250) {
        for _stall in 0..random.within(1, 3) {
            let lasts = millis(random, 1, 3000);
            stalled += lasts;
            plan.stalls.push((instant(random), lasts));
        }
    }
    if random.per_mille(200) {
        let lasts = millis(random, 1, 300);
        stalled += lasts;
        plan.slow.push((stretch(random, capacity / 4), lasts));
    }
    if random.per_mille(250) {
        for _place in 0..random.within(1, 4) {
            let errno = pick(random, &[5, 5, 28, 61, 95, 122]);
            plan.bad.push((stretch(random, 200 * MIB), evenkeel_engine::Errno(errno)));
        }
    }
    if random.per_mille(250) {
        let lasts = millis(random, 1, 5000);
        plan.full.push((instant(random), lasts, stretch(random, capacity)));
    }
    if random.per_mille(250) {
        plan.disorder = millis(random, 0, 20);
        stalled += plan.disorder;
    }
    (plan, stalled)
}

/// Returns a driver at random. Its disk has so many sectors.
pub(super) fn driver(random: &mut Random, disk_sectors: u64) -> DriverModel {
    let is_tight = random.per_mille(300);
    let area_sectors = if is_tight { random.within(64, 2048) } else { disk_sectors };
    let start = random.within(0, disk_sectors - area_sectors);
    let longest = pick(random, &[8, 8, 64, 256, 1024]);
    let shortest = if random.per_mille(500) { longest } else { 1 };
    DriverModel {
        window: pick(random, &[1, 1, 2, 4, 8, 16, 32]),
        reads_per_mille: pick(random, &[0, 200, 500, 700, 1000, 1000]),
        flushes_per_mille: pick(random, &[0, 0, 10, 50, 300]),
        ranges_per_mille: pick(random, &[0, 0, 0, 20, 200]),
        sectors: (shortest, longest),
        order: match random.below(4) {
            0 | 1 => Order::Random,
            2 => Order::Sequential,
            _ => Order::Strided(random.within(longest, 4 * MIB)),
        },
        area: File { start, sectors: area_sectors },
        think: match random.below(3) {
            0 => (Nanos::ZERO, Nanos::ZERO),
            1 => (Nanos::ZERO, Nanos::from_micros(random.within(10, 2000))),
            _ => (Nanos::ZERO, millis(random, 1, 100)),
        },
        ioprios: if random.per_mille(700) {
            vec![0]
        } else {
            // Every class, levels at both ends, and words that mean nothing.
            vec![0, 0x2000, 0x4000, 0x4007, 0x6000, 0xffff_ffff]
        },
    }
}

/// Lets a driver ask for so much at a time that it goes to the device in pieces. Few such requests
/// are on their way at a time: at the end all of them are waited for.
pub(super) fn lengthen(random: &mut Random, driver: &mut DriverModel) {
    let (longest, window) = pick(random, &[(2 * MIB, 4), (4 * MIB, 2), (16 * MIB, 1)]);
    driver.sectors.1 = longest;
    driver.window = driver.window.min(window);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_drawn_is_valid() {
        let mut random = Random::new(7);
        let like = ElevatorConfig::default();
        for _ in 0..2000 {
            let kind = kind(&mut random);
            assert_eq!(elevator(&mut random, kind, &like).kind, kind);
            let mut driver = driver(&mut random, 20 * MIB);
            assert!(driver.area.start + driver.area.sectors <= 20 * MIB);
            lengthen(&mut random, &mut driver);
            let (shortest, longest) = driver.sectors;
            assert!(shortest <= longest && longest > MIB && driver.window > 0, "{driver:?}");
            faults(&mut random, Nanos::from_secs(10), 1 << 20);
        }
    }
}
