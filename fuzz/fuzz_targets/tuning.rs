//! Every tunable of every elevator, one at a time, anywhere in its range.

use evenkeel_sched::{
    AnticipatoryTunables, BfqTunables, CfqTunables, DeadlineTunables, ElevatorConfig, Kind,
    KyberTunables, Nanos, Queueing,
};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;
/// The largest number that Linux takes for most of its tunables.
const MOST: u64 = (1 << 31) - 1;

/// Changes one tunable of the elevator of `config`, unless that contradicts another one.
pub fn tune(config: &mut ElevatorConfig, field: u8, raw: u16) {
    match config.kind {
        Kind::None | Kind::Noop => {}
        Kind::Deadline | Kind::DeadlineLegacy => tune_deadline(&mut config.deadline, field, raw),
        Kind::Anticipatory => tune_anticipatory(&mut config.anticipatory, field, raw),
        Kind::Kyber => tune_kyber(&mut config.kyber, field, raw),
        Kind::Cfq => tune_cfq(&mut config.cfq, field, raw),
        Kind::Bfq => {
            let mut bfq = config.bfq;
            tune_bfq(&mut bfq, field, raw);
            if bfq.validate().is_ok() {
                config.bfq = bfq;
            }
        }
    }
}

/// Returns a number of any size between two: ten bits, at one of many places.
pub fn between(raw: u16, min: u64, max: u64) -> u64 {
    (u64::from(raw >> 6) << (raw % 42)).clamp(min, max)
}

fn small(raw: u16, min: u32, max: u32) -> u32 {
    u32::try_from(between(raw, min.into(), max.into())).expect("not above the largest")
}

fn time(raw: u16, min: u64, max: u64) -> Nanos {
    Nanos(between(raw, min, max))
}

/// Returns a number that is zero or between two.
fn off_or(raw: u16, min: u64, max: u64) -> u64 {
    if raw % 4 == 0 { 0 } else { between(raw, min, max) }
}

fn tune_deadline(deadline: &mut DeadlineTunables, field: u8, raw: u16) {
    let most = u32::try_from(MOST).expect("31 bits");
    match field % 6 {
        0 => deadline.read_expire = time(raw, 0, MOST * MS),
        1 => deadline.write_expire = time(raw, 0, MOST * MS),
        2 => deadline.writes_starved = small(raw, 0, most),
        3 => deadline.fifo_batch = small(raw, 0, most),
        4 => deadline.front_merges = raw % 2 == 0,
        _ => deadline.prio_aging_expire = time(raw, 0, MOST * MS),
    }
    assert_eq!(deadline.validate(), Ok(()));
}

fn tune_anticipatory(anticipatory: &mut AnticipatoryTunables, field: u8, raw: u16) {
    let value = time(raw, 0, MOST * MS);
    match field % 5 {
        0 => anticipatory.read_expire = value,
        1 => anticipatory.write_expire = value,
        2 => anticipatory.read_batch_expire = value,
        3 => anticipatory.write_batch_expire = value,
        _ => anticipatory.antic_expire = value,
    }
    assert_eq!(anticipatory.validate(), Ok(()));
}

fn tune_kyber(kyber: &mut KyberTunables, field: u8, raw: u16) {
    let value = time(raw, 4, 3600 * S);
    match field % 2 {
        0 => kyber.read_lat = value,
        _ => kyber.write_lat = value,
    }
    assert_eq!(kyber.validate(), Ok(()));
}

fn tune_cfq(cfq: &mut CfqTunables, field: u8, raw: u16) {
    let most = u32::try_from(MOST).expect("31 bits");
    match field % 12 {
        0 => cfq.quantum = small(raw, 1, most),
        1 => cfq.fifo_expire_sync = time(raw, MS, MOST * MS),
        2 => cfq.fifo_expire_async = time(raw, MS, MOST * MS),
        3 => cfq.back_seek_max_kib = small(raw, 0, most),
        4 => cfq.back_seek_penalty = small(raw, 1, most),
        5 => cfq.slice_sync = time(raw, MS, MOST * MS),
        6 => cfq.slice_async = time(raw, MS, MOST * MS),
        7 => cfq.slice_async_rq = small(raw, 1, most),
        8 => cfq.slice_idle = time(raw, 0, MOST * MS),
        9 => cfq.group_idle = time(raw, 0, MOST * MS),
        10 => cfq.low_latency = raw % 2 == 0,
        _ => cfq.target_latency = time(raw, MS, MOST * MS),
    }
    assert_eq!(cfq.validate(), Ok(()));
}

fn tune_bfq(bfq: &mut BfqTunables, field: u8, raw: u16) {
    let is_on = raw % 2 == 0;
    let ratio = |most: u32| u16::try_from(small(raw, 2, most)).expect("16 bits");
    let size = |value: u64| u32::try_from(value).expect("32 bits");
    match field % 25 {
        0 => bfq.slice_idle = time(raw, 0, S),
        1 => bfq.strict_guarantees = is_on,
        2 => bfq.back_seek_max_kib = small(raw, 0, 1 << 21),
        3 => bfq.back_seek_penalty = small(raw, 1, 1000),
        4 => bfq.fifo_expire_sync = time(raw, MS, 60 * S),
        5 => bfq.fifo_expire_async = time(raw, MS, 60 * S),
        6 => bfq.timeout_sync = time(raw, MS, 10 * S),
        7 => bfq.max_budget_sectors = size(off_or(raw, 64, 1 << 24)),
        8 => bfq.low_latency = is_on,
        9 => bfq.wr_coeff = ratio(100),
        10 => bfq.wr_max_time = Nanos(off_or(raw, MS, 300 * S)),
        11 => bfq.wr_max_service_sectors = small(raw, 1, u32::MAX),
        12 => bfq.wr_min_idle_time = time(raw, 1, 3600 * S),
        13 => bfq.wr_rt_coeff = ratio(10_000),
        14 => bfq.wr_rt_max_time = time(raw, MS, 10 * S),
        15 => bfq.wr_max_softrt_rate = small(raw, 0, u32::MAX),
        16 => bfq.soft_rt_guard = time(raw, 0, S),
        17 => bfq.large_burst_thresh = size(off_or(raw, 2, 1000)),
        18 => bfq.burst_interval = time(raw, MS, 599 * MS),
        19 => bfq.async_charge_factor = small(raw, 1, 100),
        20 => bfq.injection = is_on,
        21 => bfq.merge_queues = is_on,
        22 => bfq.stable_merge = is_on,
        23 => {
            let kinds = [Queueing::Auto, Queueing::Yes, Queueing::No];
            bfq.queueing = kinds[usize::from(raw % 3)];
        }
        _ => bfq.kernel_compat = is_on,
    }
}
