//! What the engine's tests share: an engine, the shape of its disks, and what guests ask of them.

use evenkeel_engine::{BlockConfig, Engine, EngineConfig, Geometry, Request};
use evenkeel_sched::{ElevatorConfig, Kind, Nanos, Op};

/// Size of a disk.
pub(crate) const SECTORS: u64 = 1 << 20;

/// A disk that takes every kind of request.
pub(crate) fn geometry() -> Geometry {
    Geometry {
        sectors: SECTORS,
        block_bytes: 512,
        read_only: false,
        discard: true,
        write_zeroes: true,
    }
}

/// An engine without disks.
pub(crate) fn engine_with_blocks(kind: Kind, depth: u32, blocks: BlockConfig) -> Engine {
    let elevator = ElevatorConfig { kind, ..ElevatorConfig::default() };
    Engine::new(Nanos::ORIGIN, &EngineConfig { elevator, depth, blocks })
}

/// A request as most guests send it.
pub(crate) fn request(op: Op, sector: u64, nr_sectors: u32) -> Request {
    Request { op, sector, nr_sectors, segments: 1, ioprio: 0x4004, unmap: false }
}
