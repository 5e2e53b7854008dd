//! One setup of the experiments: device, loads, schedulers, coordination.

use core::fmt;

use evenkeel_sched::{Kind, Nanos};

use super::layout::Layout;
use crate::world::{
    AgentModel, App, FaultyDevice, File, GuestModel, HostModel, HostPath, Order, OsModel, Place,
    Program, Random, Reader, World, Writer,
};
use crate::{Model, model};

/// The devices of table 1.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Device {
    /// The hard disk.
    Hdd,
    /// The microSDHC card.
    Sdhc,
    /// The eMMC.
    Emmc,
}

impl Device {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hdd, Self::Sdhc, Self::Emmc];

    /// Returns the name of its model.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hdd => "hdd",
            Self::Sdhc => "sdhc",
            Self::Emmc => "emmc",
        }
    }

    fn build(self) -> Model {
        model(self.name(), &[]).expect("the models of the experiments exist")
    }
}

/// What runs in the guest besides the application.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GuestLoad {
    /// Readers.
    pub readers: u64,
    /// Writers.
    pub writers: u64,
    /// At random positions instead of in order.
    pub random: bool,
}

impl GuestLoad {
    /// Nothing.
    pub const NONE: Self = Self { readers: 0, writers: 0, random: false };

    /// Returns a load of readers alone.
    #[must_use]
    pub const fn readers(readers: u64, random: bool) -> Self {
        Self { readers, writers: 0, random }
    }

    /// Returns the load of two readers and two writers.
    #[must_use]
    pub const fn writers(random: bool) -> Self {
        Self { readers: 2, writers: 2, random }
    }
}

impl fmt::Display for GuestLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.random { "rand" } else { "seq" };
        match (self.readers, self.writers) {
            (0, 0) => f.pad("none"),
            (readers, 0) => f.pad(&format!("{readers}r-{order}")),
            (readers, writers) => f.pad(&format!("{readers}r{writers}w-{order}")),
        }
    }
}

/// How many sequential readers run in the host.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct HostLoad(pub u64);

impl fmt::Display for HostLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { f.pad("none") } else { f.pad(&format!("{}r-seq", self.0)) }
    }
}

/// What passes between the guest's scheduler and the host.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Coordination {
    /// Nothing, and the host's kernel schedules the threads of QEMU, whose queues it has merged:
    /// the document's chapter 8.
    None,
    /// The same with a queue for each thread.
    Threads,
    /// Nothing, and Evenkeel schedules in the host.
    Evenkeel,
    /// The guest's BFQ asks for help while it has somebody raised, and Evenkeel gives it: the
    /// document's own idea.
    Help,
    /// Evenkeel's agent in the guest marks the requests of urgent programs and asks for help.
    Agent,
}

/// One setup.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Setup {
    /// The device.
    pub device: Device,
    /// What runs in the guest besides the application.
    pub guest_load: GuestLoad,
    /// What runs in the host.
    pub host_load: HostLoad,
    /// The guest's elevator.
    pub guest: Kind,
    /// The host's elevator.
    pub host: Kind,
    /// What passes between them.
    pub coordination: Coordination,
    /// Whether the guest's BFQ knows that its clock jumps (D3.6, section 3.2).
    pub guarded: bool,
    /// What is started.
    pub app: App,
}

impl Setup {
    /// Returns the same without load: what start-up times are compared with.
    #[must_use]
    pub const fn idle(self) -> Self {
        Self {
            guest_load: GuestLoad::NONE,
            host_load: HostLoad(0),
            coordination: Coordination::None,
            guarded: true,
            ..self
        }
    }

    /// Returns the seed of one of its runs: the same whatever else is run.
    #[must_use]
    pub fn seed(&self, seed: u64, run: u32) -> u64 {
        let text = format!("{self:?}");
        let mut hash = seed ^ u64::from(run) << 32;
        for byte in text.bytes() {
            hash = Random::new(hash ^ u64::from(byte)).bits();
        }
        hash
    }

    /// Builds the world, without its loads.
    pub(super) fn world(&self, seed: u64) -> (World, Place) {
        let path = match self.coordination {
            Coordination::None => HostPath::MergedThreads,
            Coordination::Threads => HostPath::Threads,
            Coordination::Evenkeel | Coordination::Help | Coordination::Agent => HostPath::Evenkeel,
        };
        let mut host = HostModel::new(path, self.host);
        host.os = OsModel::new(2, 256);
        let device = FaultyDevice::new(self.device.build());
        let mut world = World::new(device, &host, seed);
        let mut guest = GuestModel::new(self.guest, Layout::image());
        let ticks = if self.guarded { 4 } else { 0 };
        guest.elevator.bfq.soft_rt_guard = Nanos::from_millis(ticks * 1000 / 100);
        match self.coordination {
            Coordination::Help => guest.help = Some(Nanos::from_millis(100)),
            Coordination::Agent => guest.agent = Some(AgentModel::beside(self.guest)),
            Coordination::None | Coordination::Threads | Coordination::Evenkeel => {}
        }
        let place = world.add_guest(&guest);
        (world, place)
    }

    /// Starts the loads, not all at the same instant.
    pub(super) fn load(&self, world: &mut World, place: Place, random: &mut Random) {
        let order = if self.guest_load.random { Order::Random } else { Order::Sequential };
        for index in 0..self.guest_load.readers {
            let reader = Reader::new(Layout::guest_file(index), order);
            begin(world, place, Program::Reader(reader), random);
        }
        for index in 0..self.guest_load.writers {
            let file = Layout::guest_file(5 + index);
            let writer = Writer::new(file, self.guest_load.random);
            begin(world, place, Program::Writer(writer), random);
        }
        for index in 0..self.host_load.0 {
            let file: File = Layout::host_file(index);
            let reader = Reader::new(file, Order::Sequential);
            begin(world, Place::Host, Program::Reader(reader), random);
        }
    }
}

fn begin(world: &mut World, place: Place, program: Program, random: &mut Random) {
    let pause = Nanos::from_millis(random.below(100));
    world.run_until(world.now() + pause);
    world.start(place, program);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_named_as_in_the_document() {
        let names = [
            (GuestLoad::NONE, "none"),
            (GuestLoad::readers(1, false), "1r-seq"),
            (GuestLoad::readers(5, true), "5r-rand"),
            (GuestLoad::writers(false), "2r2w-seq"),
        ];
        for (load, name) in names {
            assert_eq!(load.to_string(), name);
        }
        assert_eq!(
            (HostLoad(0).to_string(), HostLoad(5).to_string()),
            ("none".into(), "5r-seq".into())
        );
    }
}
