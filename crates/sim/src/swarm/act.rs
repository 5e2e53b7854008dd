//! What happens meanwhile: operators, guests that come and go, cries for help.

use evenkeel_engine::{Ask, Limited};
use evenkeel_sched::{Limits, Nanos, Reservation, Urgency};

use super::draw::{self, pick};
use super::scene::{Scene, idle};

impl Scene {
    /// Lets something happen.
    pub(super) fn act(&mut self) {
        let vm = self.any_vm();
        match self.random.below(14) {
            0 | 1 => self.switch(),
            2 => self.tune(),
            3 => self.change_depth(),
            4 => self.change_weight(vm),
            5 => self.change_limits(vm),
            6 => self.change_reservation(vm),
            7 | 8 => self.ask(vm),
            9 => self.start_process(vm),
            10 => self.kill(vm),
            11 => self.unplug(vm),
            12 => self.toggle_cache(vm),
            _ => {
                let group = self.vms[vm].group;
                self.world.control(|engine, now| engine.reset_help(now, group));
            }
        }
    }

    fn any_vm(&mut self) -> usize {
        let count = u64::try_from(self.vms.len()).expect("few");
        usize::try_from(self.random.below(count)).expect("an index")
    }

    fn switch(&mut self) {
        let kind = draw::kind(&mut self.random);
        let like = self.elevator.clone();
        self.elevator = draw::elevator(&mut self.random, kind, &like);
        #[cfg(feature = "planted")]
        {
            self.elevator.planted = like.planted;
        }
        self.set_elevator();
    }

    fn tune(&mut self) {
        let like = self.elevator.clone();
        self.elevator = draw::elevator(&mut self.random, like.kind, &like);
        #[cfg(feature = "planted")]
        {
            self.elevator.planted = like.planted;
        }
        self.set_elevator();
    }

    fn set_elevator(&mut self) {
        let allowed = idle(&self.elevator) + Nanos::from_millis(3);
        self.world.audit().allow_idle(allowed);
        let config = &self.elevator;
        self.world.control(|engine, now| engine.set_elevator(now, config));
        self.world.check_invariants();
    }

    fn change_depth(&mut self) {
        // What is at the device stays there, so the auditor follows only upwards.
        let depth = pick(&mut self.random, &[1, 2, 4, 16, 64]);
        self.depth = self.depth.max(depth);
        self.world.audit().set_depth(self.depth);
        self.world.control(|engine, _| engine.set_depth(depth));
        if self.more.per_mille(300) {
            let governs = self.more.per_mille(500);
            let usual = pick(&mut self.more, &[1, 2, 16, u32::MAX]);
            self.world.control(|engine, _| {
                engine.set_usual_depth(usual);
                engine.govern(governs);
            });
        }
    }

    fn change_weight(&mut self, vm: usize) {
        let weight = draw::weight(&mut self.random);
        let group = self.vms[vm].group;
        self.world.control(|engine, now| engine.set_weight(now, group, weight));
    }

    fn any_limited(&mut self, vm: usize) -> Limited {
        match self.random.below(4) {
            0 => Limited::Group(evenkeel_sched::GroupId::ROOT),
            1 if !self.tenants.is_empty() => Limited::Group(pick(&mut self.random, &self.tenants)),
            2 if !self.vms[vm].disks.is_empty() => {
                Limited::Disk(pick(&mut self.random, &self.vms[vm].disks))
            }
            _ => Limited::Group(self.vms[vm].group),
        }
    }

    fn change_limits(&mut self, vm: usize) {
        let whom = self.any_limited(vm);
        let limits = if self.random.per_mille(400) {
            Limits::default()
        } else {
            draw::limits(&mut self.random)
        };
        if !limits.is_none() && !self.has_limits {
            self.has_limits = true;
            self.unbound();
        }
        self.world.control(|engine, now| engine.set_limits(now, whom, &limits));
    }

    fn change_reservation(&mut self, vm: usize) {
        let whom = self.any_limited(vm);
        let reservation = if self.random.per_mille(400) {
            Reservation::default()
        } else {
            draw::reservation(&mut self.random)
        };
        self.world.control(|engine, now| engine.set_reservation(now, whom, reservation));
    }

    /// Lets a VM ask for help.
    pub(super) fn ask(&mut self, vm: usize) {
        let is_urgent = self.vms[vm].is_urgent;
        let urgency = if is_urgent {
            Urgency::SoftRealTime
        } else {
            let all = [Urgency::None, Urgency::Interactive, Urgency::SoftRealTime];
            pick(&mut self.random, &all)
        };
        let vm = &mut self.vms[vm];
        vm.asks += 1;
        // Guests that lie about the order of their messages are heard as well.
        let seq = if is_urgent { vm.asks } else { vm.asks ^ self.random.below(2) };
        let (lease, group) = (Nanos::from_secs(1), vm.group);
        let marked = !is_urgent && self.random.per_mille(200);
        let ask = Ask { seq, urgency, lease, marked };
        self.world.control(|engine, now| engine.ask_help(now, group, ask));
    }

    fn kill(&mut self, vm: usize) {
        if let Some(process) = self.vms[vm].processes.pop() {
            self.world.kill(process);
        }
    }

    /// Takes a driver's disk away: nothing more comes, what waits is let through or given up, and
    /// once all is answered the disk goes. Another one comes instead.
    fn unplug(&mut self, vm: usize) {
        let Some((driver, disk)) = self.vms[vm].drivers.pop() else { return };
        self.world.stop_driver(driver);
        self.vms[vm].disks.retain(|&other| other != disk);
        self.leaving.push(disk);
        self.let_go();
        if self.random.per_mille(700) {
            self.add_driver(vm);
            self.bind(vm);
        }
    }

    /// Helps disks that are to go, and removes those that are drained.
    pub(super) fn let_go(&mut self) {
        let leaving = std::mem::take(&mut self.leaving);
        for disk in leaving {
            self.world.audit().abandon(disk);
            self.world.control(|engine, now| {
                engine.expedite(now, disk);
                engine.abandon_stalled(now, disk);
            });
            if self.world.control(|engine, _| engine.outstanding_of(disk)) > 0 {
                self.leaving.push(disk);
                continue;
            }
            self.world.control(|engine, now| engine.remove_disk(now, disk));
            self.world.audit().unbound(disk);
        }
    }

    fn toggle_cache(&mut self, vm: usize) {
        if self.vms[vm].disks.is_empty() {
            return;
        }
        let disk = pick(&mut self.random, &self.vms[vm].disks);
        let is_durable = self.random.per_mille(500);
        self.world.control(|engine, _| engine.set_write_through(disk, is_durable));
    }
}
