//! How fast the simulator is: requests of virtual machines per second of one core.
//!
//! Every queue is a reader of its own that asks for 4 KiB anywhere, waits for it, and asks again;
//! all of them share a modelled NVMe drive below the engine. A request costs everything that it
//! costs in an experiment: program, page cache not asked, engine, elevator, device model, events.

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::world::{
    FaultyDevice, File, HostModel, HostPath, Order, Place, Program, Reader, World,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Sectors of the file of each reader: 1 GiB.
const FILE_SECTORS: u64 = 2 << 20;

/// One elevator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRow {
    /// Its name.
    pub scheduler: String,
    /// Readers, each a queue and a group of its own.
    pub queues: u64,
    /// Requests that were simulated.
    pub requests: u64,
    /// Requests per second of one core.
    pub requests_per_s: f64,
    /// Nanoseconds of one core for each request.
    pub ns_per_request: f64,
}

/// What `evenkeel sim speed --format json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedReport {
    /// One for each elevator.
    pub rows: Vec<SpeedRow>,
}

/// Measures with so many queues, for two seconds of virtual time: about two million requests.
#[must_use]
pub fn run(queues: u64) -> SpeedReport {
    measure_all(queues, Nanos::from_secs(2))
}

fn measure_all(queues: u64, span: Nanos) -> SpeedReport {
    let kinds = [Kind::None, Kind::Deadline, Kind::Cfq, Kind::Bfq];
    SpeedReport { rows: kinds.map(|kind| measure(kind, queues, span)).to_vec() }
}

fn measure(kind: Kind, queues: u64, span: Nanos) -> SpeedRow {
    let model = "nvme".parse::<ModelSpec>().and_then(|spec| spec.build());
    let device = FaultyDevice::new(model.expect("there is a model of this name"));
    let mut host = HostModel::new(HostPath::Evenkeel, kind);
    host.os.cpus = u32::try_from(queues).unwrap_or(u32::MAX);
    let mut world = World::new(device, &host, 1);
    for queue in 0..queues {
        let file = File { start: (queue + 1) * (FILE_SECTORS + 4096), sectors: FILE_SECTORS };
        let mut reader = Reader::new(file, Order::Random);
        reader.direct = true;
        world.start(Place::Host, Program::Reader(reader));
    }
    // Until everything has its largest size.
    world.run_until(world.now() + Nanos(span.0 / 10));
    let (before, start) = (world.completed(), cpu_seconds());
    world.run_until(world.now() + span);
    let took = cpu_seconds() - start;
    let requests = world.completed() - before;
    #[expect(clippy::cast_precision_loss, reason = "millions")]
    let count = requests as f64;
    SpeedRow {
        scheduler: kind.to_string(),
        queues,
        requests,
        requests_per_s: count / took,
        ns_per_request: took * 1e9 / count.max(1.0),
    }
}

/// Returns the time that this thread has computed, so that whoever else is at work on the machine
/// is not in the figure.
#[expect(clippy::cast_precision_loss, reason = "a program's life, in seconds and nanoseconds")]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_elevator_moves_requests_of_all_queues() {
        let report = measure_all(20, Nanos::from_millis(20));
        assert_eq!(report.rows.len(), 4);
        assert!(report.rows.iter().all(|row| row.requests > 100), "{report:?}");
    }
}
