//! The parameters of flash devices, and the values of four of them.

use crate::spec::{Parameter, Preset};

/// What a flash device is like. `docs/devices.md` says where the values come from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlashParams {
    pub capacity_mb: u64,
    pub depth: u64,
    pub ways: u64,
    pub page_kib: u64,
    pub command_us: u64,
    pub latency_us: u64,
    pub sense_us: u64,
    pub way_kbps: u64,
    pub read_kbps: u64,
    pub duplex: u64,
    pub write_kbps: u64,
    pub cache_kib: u64,
    pub write_us: u64,
    pub program_us: u64,
    pub unit_kib: u64,
    pub open_units: u64,
    pub open_us: u64,
    pub rewrite_us: u64,
    pub flush_us: u64,
    pub discard_us: u64,
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

pub(crate) const PARAMETERS: &[Parameter<FlashParams>] = parameters! {
    capacity_mb 100 ..= 100_000_000 "capacity in 10^6 bytes";
    depth 1 ..= 4_096 "commands that the device works on at once";
    ways 1 ..= 256 "flash chips that work in parallel";
    page_kib 4 ..= 1_024 "what one chip fetches at once; neighbouring pages are on different chips; with one \
        way, all of a command";
    command_us 0 ..= 10_000 "controller time of a command, one command at a time";
    latency_us 0 ..= 10_000 "delay of a command that occupies nothing";
    sense_us 0 ..= 10_000 "a chip fetches a page from its cells";
    way_kbps 0 ..= 10_000_000 "transfer from chip to controller in 10^3 bytes per second; 0: \
        derived so that 128 KiB reads one at a time reach `read_kbps`";
    read_kbps 1_000 ..= 100_000_000 "sequential read rate, with 128 KiB at full depth, in 10^3 \
        bytes per second; the host link is no faster";
    duplex 0 ..= 1 "1: the link carries reads and writes at once";
    write_kbps 100 ..= 100_000_000 "sustained sequential write rate in 10^3 bytes per second";
    cache_kib 0 ..= 16_777_216 "volatile write cache, as much as is written sequentially in the \
        same time; 0: none";
    write_us 0 ..= 100_000 "delay of a write into the cache";
    program_us 0 ..= 100_000 "a chip writes a page: a read may find it busy that long, and a \
        durable write waits for it";
    unit_kib 64 ..= 1_048_576 "allocation unit";
    open_units 1 ..= 64 "allocation units that can be written to at once";
    open_us 0 ..= 10_000_000 "closing one unit and opening another";
    rewrite_us 0 ..= 10_000_000 "write in an open unit that does not continue the last one there";
    flush_us 0 ..= 1_000_000 "flush of an empty cache";
    discard_us 0 ..= 1_000_000 "discard or zeroing, for each allocation unit touched";
};

pub(crate) const PRESETS: &[Preset<FlashParams>] = &[SDHC, EMMC, SSD, NVME];

const SDHC: Preset<FlashParams> = Preset {
    name: "sdhc",
    title: "microSDHC card of 8 GB, class 6 (Transcend)",
    params: FlashParams {
        capacity_mb: 8_000,
        depth: 1,
        ways: 1,
        page_kib: 128,
        command_us: 200,
        latency_us: 200,
        sense_us: 300,
        way_kbps: 0,
        read_kbps: 16_000,
        duplex: 0,
        write_kbps: 8_000,
        cache_kib: 0,
        write_us: 0,
        program_us: 1_500,
        unit_kib: 4_096,
        open_units: 2,
        open_us: 100_000,
        rewrite_us: 8_000,
        flush_us: 200,
        discard_us: 1_500,
    },
    sources: &[
        "D3.6, table 1",
        "the SD bus has one command at a time",
        "assumed: one controller channel",
        "not used with one way",
        "assumed: command, response and driver on a small host",
        "assumed",
        "derived: so that a random 4 KiB read takes about 1 ms",
        "derived",
        "D3.6, table 1",
        "the SD bus is half duplex",
        "derived: class 6 promises 6 MB/s, cards of that class reach about 8",
        "no volatile cache",
        "no volatile cache",
        "assumed: multi-level cells",
        "SD Physical Layer Specification 2.0: the largest unit of an SDHC card",
        "assumed: cheap cards keep one or two",
        "derived: about 10 random 4 KiB writes per second",
        "derived: about 100 scattered 4 KiB writes per second within a unit",
        "assumed: one command",
        "assumed",
    ],
};

const EMMC: Preset<FlashParams> = Preset {
    name: "emmc",
    title: "eMMC of 16 GB (SanDisk SEM16G)",
    params: FlashParams {
        capacity_mb: 16_000,
        depth: 1,
        ways: 1,
        page_kib: 128,
        command_us: 50,
        latency_us: 100,
        sense_us: 100,
        way_kbps: 0,
        read_kbps: 70_000,
        duplex: 0,
        write_kbps: 20_000,
        cache_kib: 512,
        write_us: 150,
        program_us: 1_300,
        unit_kib: 4_096,
        open_units: 8,
        open_us: 3_000,
        rewrite_us: 1_000,
        flush_us: 500,
        discard_us: 500,
    },
    sources: &[
        "D3.6, table 1",
        "no command queue before eMMC 5.1",
        "assumed: interleaving is part of the rate",
        "not used with one way",
        "assumed: command and response",
        "assumed",
        "derived: so that a random 4 KiB read takes about 0.3 ms",
        "derived",
        "D3.6, table 1",
        "the eMMC bus is half duplex",
        "assumed: typical of parts of 16 GB of that time",
        "assumed: small",
        "assumed",
        "assumed: multi-level cells",
        "assumed: typical erase group with interleaving",
        "assumed",
        "derived: about 300 random 4 KiB writes per second",
        "derived: about 800 scattered 4 KiB writes per second within a unit",
        "assumed",
        "assumed",
    ],
};

const SSD: Preset<FlashParams> = Preset {
    name: "ssd",
    title: "SATA SSD",
    params: FlashParams {
        capacity_mb: 500_000,
        depth: 32,
        ways: 8,
        page_kib: 16,
        command_us: 8,
        latency_us: 5,
        sense_us: 60,
        way_kbps: 400_000,
        read_kbps: 500_000,
        duplex: 0,
        write_kbps: 450_000,
        cache_kib: 32_768,
        write_us: 25,
        program_us: 600,
        unit_kib: 65_536,
        open_units: 16,
        open_us: 5,
        rewrite_us: 3,
        flush_us: 1_000,
        discard_us: 50,
    },
    sources: &[
        "chosen",
        "SATA 3: native command queueing",
        "chosen: a typical controller",
        "typical page of planar and early 3D cells",
        "derived: about 100 000 commands per second at most",
        "assumed",
        "derived: so that a random 4 KiB read takes about 90 us",
        "ONFI 3: 400 MB/s per channel",
        "derived: SATA at 6 Gb/s less coding and framing, rounded down",
        "SATA is half duplex",
        "chosen: a little below the link",
        "assumed: a part of the drive's memory",
        "derived: so that a cached 4 KiB write takes about 50 us",
        "typical of multi-level cells, without suspending",
        "chosen: one erase block of all chips",
        "assumed",
        "derived: about 70 000 random 4 KiB writes per second",
        "derived: as `open_us`, without the new unit",
        "assumed",
        "assumed",
    ],
};

const NVME: Preset<FlashParams> = Preset {
    name: "nvme",
    title: "NVMe SSD",
    params: FlashParams {
        capacity_mb: 1_000_000,
        depth: 256,
        ways: 16,
        page_kib: 16,
        command_us: 1,
        latency_us: 10,
        sense_us: 64,
        way_kbps: 1_200_000,
        read_kbps: 3_000_000,
        duplex: 1,
        write_kbps: 2_000_000,
        cache_kib: 131_072,
        write_us: 8,
        program_us: 100,
        unit_kib: 262_144,
        open_units: 64,
        open_us: 3,
        rewrite_us: 2,
        flush_us: 500,
        discard_us: 10,
    },
    sources: &[
        "chosen",
        "chosen: deep enough to fill all ways",
        "chosen: a typical controller with 8 channels of two chips",
        "typical page of 3D cells",
        "chosen: at most 1 000 000 commands per second",
        "assumed: doorbell, fetch and completion",
        "derived: so that a random 4 KiB read takes about 80 us",
        "ONFI 4.1: 1 200 MB/s per channel",
        "PCIe 3.0 with four lanes, less framing, rounded down",
        "PCIe has lanes for each direction",
        "chosen: typical of drives of that class",
        "assumed: a part of the drive's memory",
        "derived: so that a cached 4 KiB write takes about 20 us",
        "derived: programs are suspended for reads",
        "chosen: one erase block of all chips",
        "chosen: no penalty that matters",
        "derived: about 200 000 random 4 KiB writes per second",
        "derived: as `open_us`, without the new unit",
        "assumed",
        "assumed",
    ],
};
