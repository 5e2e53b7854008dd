//! What is known of one VM, and the sums that it is made of.

use evenkeel_sched::{GroupId, Nanos};

use super::named::NAMED;

/// Why the requests of one VM waited, since it was added. Requests that wait together count
/// together.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Explanation {
    /// The sum of all waits, and of all parts below but `served` and `kept`.
    pub waited: Nanos,
    /// The sum of all times at the device, counted likewise.
    pub served: Nanos,
    /// While the VM's own requests held the device or were in the way of another.
    pub own: Nanos,
    /// While limits held requests up, the VM's own or those of a group above.
    pub limited: Nanos,
    /// While the device was kept idle for somebody's next request, perhaps the VM's own.
    pub idled: Nanos,
    /// While the device was empty until more requests came for a static block.
    pub gathered: Nanos,
    /// While other VMs held the device; in no order.
    pub causes: Vec<Cause>,
    /// The same for other VMs that are not told apart: those that hold the device seldom, and
    /// those that are gone.
    pub others: Nanos,
    /// How long the device was kept idle for this VM while requests waited: one nanosecond for each,
    /// however many they were.
    pub kept: Nanos,
}

/// A part of a VM's waits that is blamed on another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Cause {
    /// On whom it is blamed.
    pub vm: GroupId,
    /// While that one held the device.
    pub held: Nanos,
}

/// Why a request that waits does not compete for the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aside {
    /// A limit holds it up.
    Limit,
    /// Another request of its VM is in its way.
    Own,
}

/// For how long a VM held the device, which grows by itself while it has commands there: `share` is
/// the time since the start that one command at the device has had of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Gauge {
    base: u64,
    commands: u64,
}

impl Gauge {
    /// Makes a gauge that shows nothing yet.
    pub(super) const fn new(share: u64, commands: u64) -> Self {
        Self { base: commands.wrapping_mul(share).wrapping_neg(), commands }
    }

    #[inline]
    pub(super) const fn enter(&mut self, share: u64) {
        self.commands += 1;
        self.base = self.base.wrapping_sub(share);
    }

    #[inline]
    pub(super) const fn leave(&mut self, share: u64) {
        self.commands -= 1;
        self.base = self.base.wrapping_add(share);
    }

    #[inline]
    pub(super) const fn read(&self, share: u64) -> u64 {
        self.base.wrapping_add(self.commands.wrapping_mul(share))
    }

    pub(super) const fn commands(&self) -> u64 {
        self.commands
    }
}

/// What is on the clocks of a pool at an instant; they run only while requests wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clocks {
    /// See [`Gauge`].
    pub(super) share: u64,
    /// What could not be shared out: less than a nanosecond for each command at each instant.
    pub(super) rest: u64,
    /// While the device was kept idle.
    pub(super) idled: u64,
    /// While the device was empty until a static block was full.
    pub(super) gathered: u64,
}

impl Clocks {
    /// Adds `times` of what `held` and the clocks show; `held` takes the place of the share.
    #[inline]
    fn plus(&self, times: u64, held: u64, other: &Self) -> Self {
        let plus = |a: u64, b: u64| a.wrapping_add(times.wrapping_mul(b));
        Self {
            share: plus(self.share, held),
            rest: plus(self.rest, other.rest),
            idled: plus(self.idled, other.idled),
            gathered: plus(self.gathered, other.gathered),
        }
    }
}

/// The sum of the times that requests spend in one state. Wraps around until all have left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) requests: u32,
    pub(super) time: u64,
}

impl Tally {
    #[inline]
    pub(super) fn enter(&mut self, now: Nanos, requests: u32) {
        self.requests += requests;
        self.time = self.time.wrapping_sub(u64::from(requests).wrapping_mul(now.0));
    }

    #[inline]
    pub(super) fn leave(&mut self, now: Nanos, requests: u32) {
        self.requests -= requests;
        self.time = self.time.wrapping_add(u64::from(requests).wrapping_mul(now.0));
    }

    pub(super) fn at(&self, now: u64) -> u64 {
        self.time.wrapping_add(u64::from(self.requests).wrapping_mul(now))
    }
}

/// What is known of one VM.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Requests that compete for the device.
    pub(super) waiting: u32,
    /// The number of them that what is settled fits.
    pub(super) counted: u32,
    pub(super) is_dirty: bool,
    /// Its place among those who are told apart.
    pub(super) place: Option<usize>,
    /// For how long it held the device.
    pub(super) gauge: Gauge,
    /// How long the device was kept idle for it.
    pub(super) kept_for: u64,
    /// What is settled of its waits by the pool's clocks; the share is that of its own commands.
    waits: Clocks,
    /// What is settled of its blame on those told apart, by place; zero where it ends.
    pub(super) row: Vec<u64>,
    /// Its blame on those who were told apart before.
    pub(super) kept: Vec<(GroupId, u64)>,
    pub(super) waited: Tally,
    pub(super) limited: Tally,
    pub(super) behind: Tally,
    pub(super) served: Tally,
    /// How much it held the device lately, and its gauge when that was looked at.
    pub(super) lately: u64,
    seen: u64,
}

impl Account {
    /// Makes room for the rows of a pool with so many VMs.
    pub(super) fn make_room(&mut self, vms: usize) {
        let row = vms.next_power_of_two().min(NAMED);
        self.row.reserve_exact(row.saturating_sub(self.row.len()));
        if vms > NAMED {
            self.kept.reserve_exact(NAMED - self.kept.len());
        }
    }

    /// Makes everything settled fit the number of requests that wait now, given what the meters of
    /// those show who are told apart.
    #[inline]
    pub(super) fn settle(&mut self, clocks: &Clocks, meters: &[u64]) {
        self.is_dirty = false;
        let shrunk = u64::from(self.counted).wrapping_sub(u64::from(self.waiting));
        if shrunk == 0 {
            return;
        }
        self.counted = self.waiting;
        self.waits = self.waits.plus(shrunk, self.gauge.read(clocks.share), clocks);
        if self.row.len() < meters.len() {
            self.row.resize(meters.len(), 0);
        }
        // Nearly always by one request, for which the compiler needs no multiplications.
        match shrunk {
            1 => self.correct(1, meters),
            u64::MAX => self.correct(u64::MAX, meters),
            _ => self.correct(shrunk, meters),
        }
    }

    #[inline(always)]
    fn correct(&mut self, times: u64, meters: &[u64]) {
        for (settled, meter) in self.row.iter_mut().zip(meters) {
            *settled = settled.wrapping_add(times.wrapping_mul(*meter));
        }
    }

    /// Returns its blame on who has a place, up to the last settlement.
    pub(super) fn blame(&self, place: usize, meter: u64) -> u64 {
        let settled = self.row.get(place).copied().unwrap_or(0);
        settled.wrapping_add(u64::from(self.counted).wrapping_mul(meter))
    }

    /// Returns its waits by the pool's clocks, up to the last settlement; the share is its blame on
    /// its own commands.
    pub(super) fn waits(&self, clocks: &Clocks) -> Clocks {
        self.waits.plus(u64::from(self.counted), self.gauge.read(clocks.share), clocks)
    }

    /// Adds to its blame on one who is no longer told apart; the least of these is forgotten.
    pub(super) fn keep(&mut self, vm: GroupId, blame: u64) {
        if let Some((_, kept)) = self.kept.iter_mut().find(|(of, _)| *of == vm) {
            *kept += blame;
        } else if self.kept.len() < NAMED {
            self.kept.push((vm, blame));
        } else if let Some(least) = self.kept.iter_mut().min_by_key(|(_, kept)| *kept)
            && least.1 < blame
        {
            *least = (vm, blame);
        }
    }

    /// Looks at how much it held the device since the last look; what was before counts half.
    pub(super) fn look(&mut self, clocks: &Clocks) {
        let held = self.gauge.read(clocks.share);
        self.lately = self.lately / 2 + held.wrapping_sub(self.seen);
        self.seen = held;
    }
}
