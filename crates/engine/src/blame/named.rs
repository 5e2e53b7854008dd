//! The VMs that are told apart by name.

use super::account::{Account, Gauge};

/// How many VMs are told apart at a time, and how many former ones are remembered for each. A row
/// of this many takes 256 bytes.
pub(super) const NAMED: usize = 32;

/// The places of those who are told apart, and their gauges since they are.
#[derive(Debug)]
pub(super) struct Named {
    vms: Vec<Option<usize>>,
    gauges: Vec<Gauge>,
    /// What the gauges showed when they were last read.
    meters: Vec<u64>,
    used: usize,
    most: usize,
}

impl Named {
    pub(super) fn new(most: usize) -> Self {
        Self { vms: Vec::new(), gauges: Vec::new(), meters: Vec::new(), used: 0, most }
    }

    /// Makes room for the places of so many VMs.
    pub(super) fn make_room(&mut self, vms: usize) {
        let room = vms.next_power_of_two().min(self.most).saturating_sub(self.vms.len());
        self.vms.reserve_exact(room);
        self.gauges.reserve_exact(room);
        self.meters.reserve_exact(room);
    }

    /// Returns whether nobody can be told apart any more unless another gives up a place.
    pub(super) fn is_full(&self) -> bool {
        self.used == self.most
    }

    /// Returns who has which place.
    pub(super) fn vms(&self) -> &[Option<usize>] {
        &self.vms
    }

    #[inline]
    pub(super) fn gauge_mut(&mut self, place: usize) -> &mut Gauge {
        &mut self.gauges[place]
    }

    /// Reads all gauges, by place.
    #[inline]
    pub(super) fn read(&mut self, share: u64) -> &[u64] {
        for (meter, gauge) in self.meters.iter_mut().zip(&self.gauges) {
            *meter = gauge.read(share);
        }
        &self.meters
    }

    /// Reads the gauge at a place.
    pub(super) fn meter(&self, place: usize, share: u64) -> u64 {
        self.gauges[place].read(share)
    }

    /// Gives a VM a free place.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    pub(super) fn occupy(&mut self, accounts: &mut [Account], index: usize, share: u64) {
        assert!(!self.is_full(), "a free place was asked for");
        let free = self.vms.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.vms.push(None);
            self.gauges.push(Gauge::default());
            self.meters.push(0);
            self.vms.len() - 1
        });
        let account = &mut accounts[index];
        account.place = Some(place);
        self.vms[place] = Some(index);
        self.gauges[place] = Gauge::new(share, account.gauge.commands());
        self.used += 1;
    }

    /// Takes a place from a VM: what others waited for it is on no row any more.
    pub(super) fn vacate(&mut self, accounts: &mut [Account], index: usize) {
        let Some(place) = accounts[index].place.take() else { return };
        for account in accounts {
            if let Some(settled) = account.row.get_mut(place) {
                *settled = 0;
            }
        }
        self.vms[place] = None;
        self.gauges[place] = Gauge::default();
        self.used -= 1;
    }

    /// Returns who should give up a place, and for whom: the one without that held the device most
    /// of late, if that was much more than another with a place did.
    pub(super) fn rivals(&self, accounts: &[Account]) -> Option<(usize, usize)> {
        let lately = |index: &usize| accounts[*index].lately;
        let is_unnamed = |index: &usize| accounts[*index].place.is_none();
        let new = (0..accounts.len()).filter(is_unnamed).max_by_key(lately)?;
        let old = self.vms.iter().copied().flatten().min_by_key(lately)?;
        // Twice as much, so that equals do not take turns.
        (lately(&new) > 2 * lately(&old)).then_some((old, new))
    }

    /// Panics if places contradict accounts.
    pub(super) fn check(&self, accounts: &[Account]) {
        assert!(self.used <= self.most);
        assert_eq!(self.vms.iter().flatten().count(), self.used);
        for (place, index) in self.vms.iter().enumerate() {
            let Some(index) = *index else { continue };
            assert_eq!(accounts[index].place, Some(place));
            assert_eq!(accounts[index].gauge.commands(), self.gauges[place].commands());
        }
        let placed = accounts.iter().filter(|account| account.place.is_some());
        assert_eq!(placed.count(), self.used);
    }
}
