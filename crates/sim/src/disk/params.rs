//! The parameters of a disk, and the values of the disk of D3.6.

use crate::spec::{Parameter, Preset};

/// What a disk is like. `docs/devices.md` says where the values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskParams {
    pub capacity_mb: u64,
    pub rpm: u64,
    pub heads: u64,
    pub rate_kbps: u64,
    pub inner_percent: u64,
    pub seek_min_us: u64,
    pub seek_avg_us: u64,
    pub seek_max_us: u64,
    pub head_switch_us: u64,
    pub overhead_us: u64,
    pub interface_kbps: u64,
    pub buffer_kib: u64,
    pub segments: u64,
    pub write_cache_kib: u64,
    pub ncq: u64,
    pub ageing_ms: u64,
}

macro_rules! parameters {
    ($($name:ident $min:literal ..= $max:literal $meaning:literal;)*) => {
        &[$(Parameter {
            name: stringify!($name),
            meaning: $meaning,
            min: $min,
            max: $max,
            field: |params| &mut params.$name,
        }),*]
    };
}

pub(crate) const PARAMETERS: &[Parameter<DiskParams>] = parameters! {
    capacity_mb 1_000 ..= 40_000_000 "capacity in 10^6 bytes";
    rpm 1_000 ..= 20_000 "revolutions per minute";
    heads 1 ..= 32 "heads, so tracks per cylinder";
    rate_kbps 1_000 ..= 1_000_000 "sustained sequential rate of the outermost zone in 10^3 bytes \
        per second, switches of heads and cylinders included; the density follows from it";
    inner_percent 20 ..= 100 "rate of the innermost of 16 zones in percent of the outermost; 100: \
        one zone";
    seek_min_us 100 ..= 50_000 "seek to the next cylinder";
    seek_avg_us 100 ..= 100_000 "seek, mean over random pairs of cylinders";
    seek_max_us 100 ..= 200_000 "seek over the full stroke";
    head_switch_us 100 ..= 50_000 "switch to the next head of the same cylinder";
    overhead_us 0 ..= 10_000 "controller time before each command";
    interface_kbps 1_000 ..= 10_000_000 "transfer between buffer and host in 10^3 bytes per second";
    buffer_kib 64 ..= 262_144 "read buffer, all segments together; a segment is also how far the \
        head reads ahead";
    segments 1 ..= 64 "segments of the read buffer, so sequential streams that it remembers";
    write_cache_kib 0 ..= 262_144 "volatile write-back cache; 0: every write goes to the platter";
    ncq 1 ..= 32 "commands that the disk chooses from, shortest positioning first; 1: none, in \
        order of arrival";
    ageing_ms 1 ..= 60_000 "age at which a command of the queue goes first, wherever the head is";
};

pub(crate) const PRESETS: &[Preset<DiskParams>] = &[Preset {
    name: "hdd",
    title: "1.8-inch hard disk of 60 GB (Toshiba MK6006GAH)",
    params: DiskParams {
        capacity_mb: 60_000,
        rpm: 4_200,
        heads: 4,
        rate_kbps: 10_000,
        inner_percent: 100,
        seek_min_us: 3_000,
        seek_avg_us: 15_000,
        seek_max_us: 26_000,
        head_switch_us: 1_000,
        overhead_us: 200,
        interface_kbps: 100_000,
        buffer_kib: 1_536,
        segments: 6,
        write_cache_kib: 512,
        ncq: 1,
        ageing_ms: 1_000,
    },
    sources: &[
        "D3.6, table 1",
        "data sheet",
        "two platters of 30 GB, both sides used (maker's announcement, 2004)",
        "D3.6, table 1: measured peak. The drive alone is faster; the measured system is what we \
         model",
        "assumed flat: D3.6 gives one figure",
        "data sheet of the drive family, track to track",
        "data sheet of the drive family, average",
        "data sheet of the drive family, full stroke",
        "assumed: a third of the shortest seek, settling without moving",
        "assumed: typical for drives of that time",
        "Ultra DMA mode 5 (ATA-6)",
        "derived: the 2 MiB of the data sheet less the write cache",
        "assumed: 256 KiB each",
        "assumed: a quarter of the buffer",
        "ATA-5/6 has no native command queueing",
        "chosen: two and a half times the mean wait at depth 32",
    ],
}];
