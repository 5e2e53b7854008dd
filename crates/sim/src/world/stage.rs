//! Loads without an operating system, and what the swarm needs of a world: drivers, a hand on the engine, an auditor, a last act.

use evenkeel_engine::{DiskId, Engine};
use evenkeel_sched::{GroupId, Nanos, Weight};

use super::audit::Audit;
use super::daemon::Daemon;
use super::driver::{Client, Driver, DriverModel};
use super::faults::FaultyDevice;
use super::host::Owner;
use super::program::File;
use super::{Event, World};

impl World {
    #[inline]
    fn daemon(&mut self) -> &mut Daemon {
        self.host.daemon().expect("the swarm runs around the engine")
    }

    /// Sets an auditor on the engine. There is none before, and none where the host is a kernel.
    pub(crate) fn set_audit(&mut self, audit: Audit) {
        self.daemon().audit = Some(Box::new(audit));
    }

    pub(crate) fn audit(&mut self) -> &mut Audit {
        self.daemon().audit.as_mut().expect("an auditor was set")
    }

    /// Lets somebody change the engine; what follows from it happens at once.
    pub(crate) fn control<R>(&mut self, change: impl FnOnce(&mut Engine, Nanos) -> R) -> R {
        let now = self.now;
        let result = change(&mut self.daemon().engine, now);
        self.settle_host();
        result
    }

    pub(crate) const fn device_mut(&mut self) -> &mut FaultyDevice {
        &mut self.device
    }

    /// Returns the disk of a guest.
    pub(crate) fn disk_of(&mut self, guest: u32) -> DiskId {
        let daemon = self.daemon();
        daemon.disk(daemon.vms[guest as usize].1)
    }

    /// Adds a driver with a disk of its own in the VM `vm`; returns its index.
    pub(crate) fn add_driver(
        &mut self,
        vm: GroupId,
        file: File,
        model: DriverModel,
    ) -> (u32, DiskId) {
        let random = self.random.fork();
        let daemon = self.daemon();
        let source = daemon.add_disk(vm, file);
        let disk = daemon.disk(source);
        (self.employ(Driver::new(model, source, random)), disk)
    }

    /// Lets a driver begin; returns its index.
    fn employ(&mut self, mut driver: Driver) -> u32 {
        let index = u32::try_from(self.drivers.len()).expect("few drivers");
        for place in 0..driver.window() {
            let at = self.now + driver.pause() + Nanos(1);
            self.events.add(at, Event::Drive { driver: index, place });
        }
        self.drivers.push(driver);
        index
    }

    /// Adds a VM that keeps requests on the way.
    ///
    /// # Panics
    ///
    /// Panics unless the host runs Evenkeel.
    pub fn add_client(&mut self, client: &Client) {
        let now = self.now;
        let daemon = self.host.daemon().expect("clients are VMs of Evenkeel");
        let vm = daemon.engine.add_group(now, GroupId::ROOT, Weight::default());
        let source = daemon.add_disk(vm, client.file);
        let random = self.random.fork();
        self.employ(Driver::client(client, source, random));
    }

    /// Lets a driver submit nothing more; what it has asked for goes on.
    pub(crate) fn stop_driver(&mut self, driver: u32) {
        self.drivers[driver as usize].is_stopped = true;
    }

    /// Lets nobody submit anything more. Requests on their way to the host still arrive.
    pub(crate) const fn quiet(&mut self) {
        self.is_quiet = true;
    }

    /// Lets a place of a driver submit; returns whether the host has something to decide.
    #[inline]
    pub(super) fn drive(&mut self, driver: u32, place: u32) -> bool {
        let now = self.now;
        let known = &mut self.drivers[driver as usize];
        if known.is_stopped || self.is_quiet {
            return false;
        }
        let ((io, ioprio), source) = (known.next(), known.source);
        let token = Owner::Driver { driver, place }.token();
        let daemon = self.daemon();
        daemon.submit(now, source, token, &io, ioprio);
        !daemon.is_device_full(now)
    }

    /// Lets a place of a driver pause after an answer.
    #[inline]
    pub(super) fn think(&mut self, driver: u32, place: u32) {
        let pause = self.drivers[driver as usize].pause();
        self.events.add(self.now + pause.max(Nanos(1)), Event::Drive { driver, place });
    }
}
