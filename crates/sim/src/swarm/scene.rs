//! Who is there: a pool, its tenants and VMs, their disks and what they do with them.

use std::fmt::Write as _;

use evenkeel_engine::{BlockConfig, DiskId, HelpPolicy, Limited};
use evenkeel_sched::{
    BfqTunables, ElevatorConfig, GroupId, Kind, Nanos, Queueing, Urgency, Weight,
};

use super::draw::{self, pick};
use super::{Class, SwarmOptions};
use crate::world::audit::{Audit, Rules};
use crate::world::driver::DriverModel;
use crate::world::{
    AgentModel, App, Database, FaultPlan, FaultyDevice, File, GuestModel, HostModel, HostPath,
    Order, Place, Player, ProcessId, Program, Random, Reader, Startup, World, Writer,
};
use crate::{DeviceModel as _, Model, ModelSpec};

const MIB: u64 = 2048;
/// Sets the generator of what was added later apart.
const LATER: u64 = 0x6c61_7465_7221;
/// The size of a disk without an operating system.
pub(super) const PLAIN_SECTORS: u64 = 64 * MIB;
/// The size of a disk with one.
const SYSTEM_SECTORS: u64 = 1024 * MIB;

/// A VM.
#[derive(Debug)]
pub(super) struct Vm {
    pub(super) group: GroupId,
    pub(super) weight: Weight,
    /// Its share of the pool, by the weights of all VMs and tenants.
    pub(super) share: f64,
    pub(super) disks: Vec<DiskId>,
    /// Drivers at work, with their disks.
    pub(super) drivers: Vec<(u32, DiskId)>,
    pub(super) processes: Vec<ProcessId>,
    pub(super) guests: Vec<Place>,
    /// Whether it is always asking to be helped, and must be.
    pub(super) is_urgent: bool,
    /// Numbers its messages.
    pub(super) asks: u64,
}

/// Everything, before anything has happened.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) class: Class,
    pub(super) world: World,
    pub(super) random: Random,
    /// Decides about what was added later, so that earlier seeds keep most of their worlds.
    pub(super) more: Random,
    pub(super) spec: &'static str,
    pub(super) elevator: ElevatorConfig,
    pub(super) depth: u32,
    /// The longest time of one command.
    pub(super) slowest: Nanos,
    /// For how long the device answers nothing, all together.
    pub(super) stalled: Nanos,
    pub(super) tenants: Vec<GroupId>,
    pub(super) vms: Vec<Vm>,
    pub(super) may_cut_power: bool,
    pub(super) has_limits: bool,
    /// Disks that are to go.
    pub(super) leaving: Vec<DiskId>,
    pub(super) span: Nanos,
    /// The load of every VM, where all have the same.
    load: Option<DriverModel>,
    next_image: u64,
    pub(super) setup: String,
}

/// Returns the model of a specification.
pub(super) fn build(spec: &str) -> Model {
    spec.parse::<ModelSpec>().and_then(|spec| spec.build()).expect("one of the models")
}

/// Returns how long an elevator may keep an idle device while somebody waits.
pub(super) fn idle(config: &ElevatorConfig) -> Nanos {
    let longest = match config.kind {
        Kind::None | Kind::Noop | Kind::Deadline | Kind::DeadlineLegacy | Kind::Kyber => {
            Nanos::ZERO
        }
        Kind::Anticipatory => config.anticipatory.antic_expire,
        Kind::Cfq => config.cfq.slice_idle.max(config.cfq.group_idle),
        // A raised queue is waited for at least twice as long, whatever `slice_idle` says.
        Kind::Bfq => config.bfq.slice_idle.max(Nanos::from_millis(30)),
    };
    longest + longest
}

/// Returns the defaults that follow from a device.
fn made_for(model: &Model) -> ElevatorConfig {
    let queueing = if model.depth() > 1 { Queueing::Yes } else { Queueing::No };
    let bfq = BfqTunables { queueing, ..BfqTunables::default() };
    ElevatorConfig { rotational: model.rotational(), bfq, ..ElevatorConfig::default() }
}

/// Returns what is said of an elevator that decides as Linux does.
const fn named_rules(config: &ElevatorConfig) -> &'static str {
    let is_compatible = matches!(config.kind, Kind::Bfq) && config.bfq.kernel_compat;
    if is_compatible { " with kernel_compat" } else { "" }
}

impl Scene {
    /// Sets everything up that follows from a seed.
    pub(super) fn new(seed: u64, options: &SwarmOptions) -> Self {
        let mut random = Random::new(seed);
        let class = match random.below(10) {
            0..2 => Class::Fair,
            2..4 => Class::Urgent,
            _ => Class::Mixed,
        };
        let (spec, slowest) = draw::model(&mut random);
        let model = build(spec);
        let span =
            Nanos::from_millis(options.span_ms.unwrap_or_else(|| random.within(500, 60_000)));
        let (plan, stalled) = match class {
            Class::Mixed => {
                draw::faults(&mut random, span, model.sectors().unwrap_or(1 << 25).min(1 << 24))
            }
            _ => (FaultPlan::default(), Nanos::ZERO),
        };
        let may_cut_power = plan.power_cuts && random.per_mille(500);
        let kind = if class == Class::Mixed { draw::kind(&mut random) } else { Kind::Bfq };
        let mut elevator = draw::elevator(&mut random, kind, &made_for(&model));
        let depth = match class {
            Class::Mixed if random.per_mille(300) => pick(&mut random, &[1, 2, 3, 8, 64]),
            Class::Mixed => model.depth().min(64),
            _ => model.depth().min(8),
        };
        class.tame(&mut elevator);
        #[cfg(feature = "planted")]
        {
            elevator.planted = options.planted;
        }
        let blocks = match class {
            Class::Mixed => draw::blocks(&mut random),
            _ => BlockConfig::default(),
        };
        let mut host = HostModel { explains: true, ..HostModel::new(HostPath::Evenkeel, kind) };
        (host.elevator, host.depth, host.blocks) = (elevator.clone(), Some(depth), blocks);
        let rules = named_rules(&elevator);
        let setup =
            format!("{class:?}: {spec}, depth {depth}, {kind}{rules}, {blocks:?}, {plan:?}");
        let device = FaultyDevice::with_faults(model, plan);
        let mut world = World::new(device, &host, random.bits());
        let rules = Rules {
            depth,
            idle: idle(&elevator) + Nanos::from_millis(3),
            keeps_history: options.keeps_history,
        };
        world.set_audit(Audit::new(rules));
        let load = (class == Class::Fair).then(|| saturating(&mut random, depth));
        let mut scene = Self {
            class,
            world,
            random,
            more: Random::new(seed ^ LATER),
            spec,
            elevator,
            depth,
            slowest,
            stalled,
            tenants: Vec::new(),
            vms: Vec::new(),
            may_cut_power,
            has_limits: false,
            leaving: Vec::new(),
            span,
            load,
            next_image: 4 * MIB,
            setup,
        };
        scene.add_tenants();
        scene.populate();
        scene
    }

    fn perhaps_govern(&mut self) {
        if self.class == Class::Mixed && self.more.per_mille(300) {
            self.world.control(|engine, _| engine.govern(true));
            self.setup += ", governed";
        }
    }

    fn add_tenants(&mut self) {
        for _tenant in 0..self.random.below(3) {
            let parent = self.any_parent();
            let weight = draw::weight(&mut self.random);
            let group = self.world.control(|engine, now| engine.add_group(now, parent, weight));
            self.tenants.push(group);
        }
    }

    fn any_parent(&mut self) -> GroupId {
        if self.tenants.is_empty() || self.random.per_mille(500) {
            return GroupId::ROOT;
        }
        pick(&mut self.random, &self.tenants)
    }

    fn populate(&mut self) {
        self.perhaps_govern();
        let most = if self.class == Class::Mixed { 6 } else { 5 };
        let count = self.random.within(if self.class == Class::Mixed { 1 } else { 2 }, most);
        for index in 0..count {
            // Shares are judged where they are known: all VMs side by side.
            let parent = if self.class == Class::Mixed { self.any_parent() } else { GroupId::ROOT };
            let weight = match self.class {
                Class::Mixed => draw::weight(&mut self.random),
                Class::Fair => {
                    let value = pick(&mut self.random, &[100, 100, 100, 200, 300]);
                    Weight::new(value).expect("in range")
                }
                Class::Urgent => Weight::default(),
            };
            self.add_vm(parent, weight, self.class == Class::Urgent && index == 0);
        }
        let sum: u32 = self.vms.iter().map(|vm| u32::from(vm.weight.value())).sum();
        for vm in &mut self.vms {
            vm.share = f64::from(vm.weight.value()) / f64::from(sum);
        }
        write!(self.setup, "; {} VMs, {} tenants", self.vms.len(), self.tenants.len())
            .expect("a string takes everything");
    }

    fn add_vm(&mut self, parent: GroupId, weight: Weight, is_urgent: bool) {
        let heeds = self.random.per_mille(800);
        let policy = HelpPolicy {
            most: Urgency::SoftRealTime,
            time_per_minute: Nanos::from_secs(if is_urgent { 60 } else { 20 }),
            sectors_per_minute: if is_urgent { 1 << 40 } else { 2 << 20 },
            ..HelpPolicy::default()
        };
        let group = self.world.control(|engine, now| {
            let group = engine.add_group(now, parent, weight);
            engine.heed_priority(group, heeds);
            engine.set_help_policy(now, group, policy);
            group
        });
        self.vms.push(Vm {
            group,
            weight,
            share: 0.0,
            disks: Vec::new(),
            drivers: Vec::new(),
            processes: Vec::new(),
            guests: Vec::new(),
            is_urgent,
            asks: 0,
        });
        let vm = self.vms.len() - 1;
        let disks = if self.class == Class::Mixed { self.random.within(1, 3) } else { 1 };
        for _disk in 0..disks {
            let has_guest = self.vms.iter().map(|vm| vm.guests.len()).sum::<usize>() < 2;
            if self.class == Class::Mixed && has_guest && self.random.per_mille(300) {
                self.add_guest(vm);
            } else {
                self.add_driver(vm);
            }
        }
        if self.class == Class::Mixed {
            self.control(vm);
        }
    }

    /// Perhaps limits a VM, or promises it something.
    fn control(&mut self, vm: usize) {
        let group = Limited::Group(self.vms[vm].group);
        if self.random.per_mille(150) {
            let limits = draw::limits(&mut self.random);
            self.has_limits |= !limits.is_none();
            self.world.control(|engine, now| engine.set_limits(now, group, &limits));
        }
        if self.random.per_mille(150) {
            let reservation = draw::reservation(&mut self.random);
            self.world.control(|engine, now| engine.set_reservation(now, group, reservation));
        }
    }

    fn image(&mut self, sectors: u64) -> File {
        let start = self.next_image;
        self.next_image += sectors + 4 * MIB;
        File { start, sectors }
    }

    /// Gives a VM another disk, and a driver on it.
    pub(super) fn add_driver(&mut self, vm: usize) {
        let random = &mut self.random;
        let model = match (&self.load, self.class) {
            (Some(load), _) => load.clone(),
            (None, Class::Urgent) if self.vms[vm].is_urgent => quiet(random),
            (None, Class::Urgent) => greedy(random),
            _ => draw::driver(random, PLAIN_SECTORS),
        };
        let mut model = model;
        if self.class == Class::Mixed && self.more.per_mille(120) {
            draw::lengthen(&mut self.more, &mut model);
        }
        let (is_durable, group) = (random.per_mille(100), self.vms[vm].group);
        let image = self.image(PLAIN_SECTORS);
        let (driver, disk) = self.world.add_driver(group, image, model);
        self.world.audit().forget(disk);
        if self.class == Class::Mixed {
            self.world.control(|engine, _| engine.set_write_through(disk, is_durable));
        }
        self.vms[vm].drivers.push((driver, disk));
        self.vms[vm].disks.push(disk);
    }

    fn add_guest(&mut self, vm: usize) {
        let image = self.image(SYSTEM_SECTORS);
        let kind = pick(&mut self.random, &Kind::ALL);
        let mut model = GuestModel::new(kind, image);
        model.vm = Some(self.vms[vm].group);
        model.help = self.random.per_mille(500).then_some(Nanos::from_millis(500));
        model.agent = self.more.per_mille(300).then(|| AgentModel::beside(kind));
        model.absent_per_mille = if self.random.per_mille(500) { 5 } else { 100 };
        let place = self.world.add_guest(&model);
        let Place::Guest(index) = place else { unreachable!("a guest was added") };
        let disk = self.world.disk_of(index);
        self.world.audit().forget(disk);
        self.vms[vm].guests.push(place);
        self.vms[vm].disks.push(disk);
        for _process in 0..self.random.within(1, 3) {
            self.start_process(vm);
        }
    }

    /// Starts a process in a guest of a VM that has one.
    pub(super) fn start_process(&mut self, vm: usize) {
        let Some(&place) = self.vms[vm].guests.first() else { return };
        let random = &mut self.random;
        let file = File { start: random.below(6) * 128 * MIB, sectors: 128 * MIB };
        let program = match random.below(7) {
            0 => Program::Reader(Reader::new(file, Order::Sequential)),
            1 => Program::Reader(Reader::new(file, Order::Random)),
            2 => {
                let mut reader = Reader::new(file, Order::Strided(random.within(8, 4096)));
                reader.direct = random.per_mille(500);
                Program::Reader(reader)
            }
            3 => Program::Writer(Writer::new(file, random.per_mille(500))),
            4 => Program::Player(Player::film(file)),
            5 => {
                let log = File { start: 800 * MIB, sectors: 64 * MIB };
                Program::Database(Database::new(file, log))
            }
            _ => {
                let area = File { start: 0, sectors: SYSTEM_SECTORS };
                Program::Startup(Startup::new(pick(random, &App::ALL), area))
            }
        };
        let process = self.world.start(place, program);
        self.vms[vm].processes.push(process);
    }
}

/// Returns a load that never lets the device or its VM's queue run empty.
fn saturating(random: &mut Random, depth: u32) -> DriverModel {
    let longest = pick(random, &[8, 8, 32, 128]);
    DriverModel {
        window: 2 * depth + 16,
        reads_per_mille: 1000,
        flushes_per_mille: 0,
        ranges_per_mille: 0,
        sectors: (longest, longest),
        order: Order::Random,
        area: File { start: 0, sectors: PLAIN_SECTORS },
        think: (Nanos::ZERO, Nanos::ZERO),
        ioprios: vec![0],
    }
}

/// Returns a load that takes what it can get.
fn greedy(random: &mut Random) -> DriverModel {
    let longest = pick(random, &[8, 64, 256]);
    DriverModel {
        window: pick(random, &[8, 16, 32]),
        reads_per_mille: pick(random, &[0, 500, 1000, 1000]),
        sectors: (longest, longest),
        order: if random.per_mille(500) { Order::Random } else { Order::Sequential },
        ..saturating(random, 1)
    }
}

/// Returns a load that wants little, but soon.
fn quiet(random: &mut Random) -> DriverModel {
    DriverModel {
        window: 1,
        sectors: (8, 8),
        think: (Nanos::from_millis(1), Nanos::from_millis(random.within(2, 40))),
        ..saturating(random, 1)
    }
}
