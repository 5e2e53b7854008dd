//! How a world goes on, ends, and is judged.

use evenkeel_engine::Limited;
use evenkeel_sched::{GroupId, Limits, Nanos};

use super::scene::{Scene, build};
use super::{CHECK_STEPS, Class, whereabouts};

/// How far the service of a saturating VM may be from its share, in a thousand of that.
const TOLERANCE: f64 = 0.15;
/// Of the requests of a VM that is helped one in so many may wait longer than it should.
const LATE_ONE_IN: u64 = 20;
/// A VM that is helped repeats its message so often.
const REPEAT: Nanos = Nanos::from_millis(300);

impl Scene {
    /// Tells the auditor how long requests may wait.
    pub(super) fn bind_all(&mut self) {
        for vm in 0..self.vms.len() {
            self.bind(vm);
        }
    }

    /// Tells the auditor how long requests of a VM may wait.
    pub(super) fn bind(&mut self, vm: usize) {
        if self.has_limits || self.vms[vm].is_urgent {
            return;
        }
        let bound = self.patience();
        let now = self.world.now();
        for disk in self.vms[vm].disks.clone() {
            self.world.audit().bound(now, disk, bound, "nobody starves");
        }
    }

    /// Returns how long a request may wait if nothing but others is in its way: all others, each
    /// as long as a command takes at most, as often as the largest weight goes before the least.
    fn patience(&self) -> Nanos {
        let waiting = 1000;
        let ratio = 100;
        Nanos(self.slowest.0 * waiting * ratio) + self.stalled + Nanos::from_secs(60)
    }

    pub(super) fn unbound(&mut self) {
        let disks: Vec<_> = self.vms.iter().flat_map(|vm| vm.disks.clone()).collect();
        for disk in disks {
            self.world.audit().unbound(disk);
        }
    }

    /// Lets the world go on, for so many steps at most.
    pub(super) fn run(&mut self, steps: u64) {
        let end = self.world.now() + self.span;
        let mut act_at = self.next_act();
        let mut ask_at = self.world.now();
        let mut left = steps;
        while left > 0 && self.world.now() < end && self.world.audit().is_content() {
            let pause = act_at.min(ask_at).min(end);
            while left > 0 && self.world.step(pause) && self.world.audit().is_content() {
                left -= 1;
                if left.is_multiple_of(CHECK_STEPS) {
                    whereabouts::at(self.world.now());
                    self.world.check_invariants();
                }
            }
            if left == 0 || !self.world.audit().is_content() {
                break;
            }
            self.world.run_until(pause);
            whereabouts::at(pause);
            if pause == act_at {
                if self.class == Class::Mixed {
                    self.act();
                    self.let_go();
                }
                act_at = self.next_act();
            }
            if pause == ask_at {
                self.help_urgent();
                ask_at += REPEAT;
            }
        }
        self.judge();
    }

    fn next_act(&mut self) -> Nanos {
        // Mostly often enough for the shortest of worlds, sometimes never in it.
        let longest = self.random.within(1, self.span.0 / 4 + 1);
        self.world.now() + Nanos(self.random.within(1, longest))
    }

    /// Lets those ask who must be helped.
    fn help_urgent(&mut self) {
        for vm in 0..self.vms.len() {
            if !self.vms[vm].is_urgent {
                continue;
            }
            self.ask(vm);
            // From here on it is helped all the time.
            if self.vms[vm].asks == 2 {
                let (soon, at_last, now) = (self.soon(), self.at_last(), self.world.now());
                for disk in self.vms[vm].disks.clone() {
                    let name = "a raised queue is served at last";
                    self.world.audit().bound(now, disk, at_last, name);
                    self.world.audit().expect_soon(now, disk, soon);
                }
            }
        }
    }

    /// Returns how long a raised queue waits nearly always: for what is at the device, and for a
    /// few slots that others have begun.
    fn soon(&self) -> Nanos {
        Nanos(self.slowest.0 * self.places() + 3 * self.elevator.bfq.timeout_sync.0)
    }

    /// Returns how long it waits at most: a queue in which something seems to start, elsewhere, may
    /// keep the device for many timeouts.
    fn at_last(&self) -> Nanos {
        let bfq = &self.elevator.bfq;
        Nanos(self.slowest.0 * self.places() + 2 * u64::from(bfq.wr_coeff) * bfq.timeout_sync.0)
    }

    fn places(&self) -> u64 {
        2 * u64::from(self.depth) + 4
    }

    /// Looks at what a world of one class must hold in the end.
    fn judge(&mut self) {
        match self.class {
            Class::Mixed => {}
            Class::Fair => self.judge_shares(),
            Class::Urgent => self.judge_waits(),
        }
    }

    fn judge_waits(&mut self) {
        for vm in 0..self.vms.len() {
            if !self.vms[vm].is_urgent {
                continue;
            }
            let (late, all) = self.world.audit().late(self.vms[vm].disks[0]);
            if late * LATE_ONE_IN > all + 3 * LATE_ONE_IN {
                let detail = format!("{late} of {all} waited longer than {:?}", self.soon());
                let now = self.world.now();
                self.world.audit().broken(now, "a raised queue is served soon", detail);
            }
        }
    }

    fn judge_shares(&mut self) {
        let served: Vec<u64> = self
            .vms
            .iter()
            .map(|vm| vm.disks[0])
            .collect::<Vec<_>>()
            .into_iter()
            .map(|disk| self.world.audit().served_sectors(disk))
            .collect();
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 sectors")]
        let sectors: Vec<f64> = served.iter().map(|&sectors| sectors as f64).collect();
        let total: f64 = sectors.iter().sum();
        // A slot more or less, and what is at the device.
        let slack =
            2.5 * f64::from(self.elevator.bfq.max_budget_sectors) + f64::from(self.depth) * 128.0;
        for (vm, &served) in self.vms.iter().zip(&sectors) {
            let due = vm.share * total;
            if (served - due).abs() > TOLERANCE * due + slack {
                let shares: Vec<_> = self.vms.iter().map(|vm| vm.weight.value()).collect();
                let detail = format!(
                    "{served} of {total} sectors for weight {} of {shares:?}, all: {sectors:?}",
                    vm.weight.value()
                );
                let now = self.world.now();
                self.world.audit().broken(now, "saturating VMs share by weight", detail);
                return;
            }
        }
    }

    /// Ends all load, and waits until everything is answered; or cuts the power.
    pub(super) fn end(&mut self) {
        let now = self.world.now();
        if self.may_cut_power {
            let cut = self.world.device_mut().cut_power(build(self.spec));
            self.world.audit().power_cut(now, &cut);
            return;
        }
        self.world.quiet();
        self.world.device_mut().repair();
        self.lift_limits();
        let end = now + self.stalled + Nanos::from_secs(600);
        while self.world.now() < end && self.world.audit().is_content() {
            let next = self.world.now() + Nanos::from_millis(100);
            while self.world.audit().is_content() && self.world.step(next) {}
            self.world.run_until(next);
            whereabouts::at(next);
            self.let_go();
            if self.world.audit().requests().1 == 0 {
                break;
            }
        }
        let now = self.world.now();
        self.world.check_invariants();
        self.world.audit().finished(now);
    }

    /// Either nobody is limited any more, or everybody is let through.
    fn lift_limits(&mut self) {
        let mut whom = vec![Limited::Group(GroupId::ROOT)];
        whom.extend(self.tenants.iter().map(|&group| Limited::Group(group)));
        whom.extend(self.vms.iter().map(|vm| Limited::Group(vm.group)));
        whom.extend(self.vms.iter().flat_map(|vm| &vm.disks).map(|&disk| Limited::Disk(disk)));
        let lifts = self.random.per_mille(500);
        for whom in whom {
            self.world.control(|engine, now| match whom {
                Limited::Disk(disk) if !lifts => engine.expedite(now, disk),
                _ if lifts => engine.set_limits(now, whom, &Limits::default()),
                Limited::Disk(_) | Limited::Group(_) => {}
            });
        }
    }
}
