//! How fast the simulator is: requests of virtual machines per second of one core.
//!
//! Every queue asks for 4 KiB anywhere, waits for it, and asks again; all of them share a modelled
//! NVMe drive below the engine. At depth 1 a queue is a process that reads past the page cache: the
//! hardest case for elevators with slots, since each request is a slot of its own. At depth 32 it is
//! a VM whose guest keeps that many requests on the way. A request costs everything that it costs
//! in an experiment: program, engine, elevator, device model, events.

use evenkeel_sched::{Kind, Nanos};
use evenkeel_sim::ModelSpec;
use evenkeel_sim::world::{
    Client, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, Place, Player, Program,
    Reader, World,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Sectors of the file of each reader: 1 GiB.
const FILE_SECTORS: u64 = 2 << 20;

/// Requests that a VM keeps on the way, where it is not one at a time.
const DEPTH: u32 = 32;
/// From an answer to the next request: as long as a process takes to wake up and read again.
const THINK: Nanos = Nanos::from_micros(26);

/// One elevator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SpeedRow {
    /// Its name.
    pub scheduler: String,
    /// Readers, each a queue and a group of its own.
    pub queues: u64,
    /// Requests that each of them has on the way.
    pub depth: u32,
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
    /// One for each elevator and depth.
    pub rows: Vec<SpeedRow>,
}

/// Measures with so many queues, for two seconds of virtual time each: about half a million requests.
#[must_use]
pub fn run(queues: u64) -> SpeedReport {
    measure_all(queues, Nanos::from_secs(2))
}

fn measure_all(queues: u64, span: Nanos) -> SpeedReport {
    let kinds = [Kind::None, Kind::Deadline, Kind::Cfq, Kind::Bfq];
    let loads = [1, DEPTH].into_iter().flat_map(|depth| kinds.map(|kind| (kind, depth)));
    SpeedReport { rows: loads.map(|(kind, depth)| measure(kind, queues, depth, span)).collect() }
}

fn measure(kind: Kind, queues: u64, depth: u32, span: Nanos) -> SpeedRow {
    let mut world = busy_world(kind, queues, depth);
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
        depth,
        requests,
        requests_per_s: count / took,
        ns_per_request: took * 1e9 / count.max(1.0),
    }
}

/// Returns a world in which so many queues never rest.
fn busy_world(kind: Kind, queues: u64, depth: u32) -> World {
    let model = "nvme".parse::<ModelSpec>().and_then(|spec| spec.build());
    let device = FaultyDevice::new(model.expect("there is a model of this name"));
    let mut host = HostModel::new(HostPath::Evenkeel, kind);
    host.os.cpus = u32::try_from(queues).unwrap_or(u32::MAX);
    let mut world = World::new(device, &host, 1);
    for queue in 0..queues {
        let file = File { start: (queue + 1) * (FILE_SECTORS + 4096), sectors: FILE_SECTORS };
        if depth > 1 {
            world.add_client(&Client { file, depth, think: THINK });
        } else {
            let mut reader = Reader::new(file, Order::Random);
            reader.direct = true;
            world.start(Place::Host, Program::Reader(reader));
        }
    }
    world
}

/// Returns the time that this thread has computed, so that whoever else is at work on the machine
/// is not in the figure.
#[expect(clippy::cast_precision_loss, reason = "a program's life, in seconds and nanoseconds")]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Many VMs on several devices, all at once.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// VMs, shared out evenly among the devices.
    pub vms: u64,
    /// Devices, each with a pool of its own.
    pub disks: u64,
    /// Virtual time, in seconds.
    pub seconds: u64,
    /// What the devices are, by the name of a model.
    pub model: String,
}

/// What `evenkeel sim speed --vms N --format json` prints in its row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetRow {
    /// VMs, each with an operating system and two processes.
    pub vms: u64,
    /// Devices.
    pub disks: u64,
    /// Virtual time, in seconds.
    pub virtual_s: u64,
    /// Requests that devices have completed.
    pub requests: u64,
    /// Seconds of one core, what it takes to set everything up included.
    pub cpu_s: f64,
    /// The most memory that the program has had, in MiB.
    pub peak_mib: u64,
}

/// One row, as tables are.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetReport {
    /// The only one.
    pub rows: Vec<FleetRow>,
}

/// Runs a fleet: in every guest somebody reads 4 KiB anywhere, for ever, and somebody plays a film.
///
/// All worlds are in memory together and go on second by second, so that the memory is that of
/// the whole fleet.
#[must_use]
pub fn run_fleet(fleet: &Fleet) -> FleetReport {
    let start = cpu_seconds();
    let mut worlds: Vec<World> = (0..fleet.disks).map(|disk| shelf(fleet, disk)).collect();
    for second in 1..=fleet.seconds {
        for world in &mut worlds {
            world.run_until(Nanos::ORIGIN + Nanos::from_secs(second));
        }
    }
    let requests = worlds.iter().map(World::completed).sum();
    let Fleet { vms, disks, seconds, .. } = *fleet;
    let cpu_s = cpu_seconds() - start;
    let row = FleetRow { vms, disks, virtual_s: seconds, requests, cpu_s, peak_mib: peak_mib() };
    FleetReport { rows: vec![row] }
}

/// Returns one device of a fleet with its VMs.
fn shelf(fleet: &Fleet, disk: u64) -> World {
    let model = fleet.model.parse::<ModelSpec>().and_then(|spec| spec.build());
    let device = FaultyDevice::new(model.expect("there is a model of this name"));
    let mut world = World::new(device, &HostModel::new(HostPath::Evenkeel, Kind::Bfq), disk + 1);
    let vms = fleet.vms / fleet.disks + u64::from(disk < fleet.vms % fleet.disks);
    for vm in 0..vms {
        let image = File { start: (vm + 1) * (FILE_SECTORS + 4096), sectors: FILE_SECTORS };
        let guest = world.add_guest(&GuestModel::new(Kind::Deadline, image));
        let half = FILE_SECTORS / 2;
        let reader = Reader::new(File { start: 0, sectors: half }, Order::Random);
        world.start(guest, Program::Reader(reader));
        let film = Player::film(File { start: half, sectors: half });
        world.start(guest, Program::Player(film));
    }
    world
}

/// Returns the most memory that this program has had, in MiB; zero where nobody knows.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or_default() / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_shares_its_devices_out_and_tells_its_memory() {
        let fleet = Fleet { vms: 25, disks: 4, seconds: 1, model: "ssd".to_owned() };
        let report = run_fleet(&fleet);
        let row = &report.rows[0];
        assert!(row.requests > 25 * 20 && row.peak_mib > 0, "{row:?}");
        assert_eq!(run_fleet(&fleet).rows[0].requests, row.requests, "the same every time");
    }

    #[test]
    fn every_elevator_moves_requests_of_all_queues() {
        let report = measure_all(20, Nanos::from_millis(20));
        assert_eq!(report.rows.len(), 8);
        assert!(report.rows.iter().all(|row| row.requests > 100), "{report:?}");
    }
}
