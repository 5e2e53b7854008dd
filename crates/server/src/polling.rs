//! How long a worker looks for work itself before it sleeps: adaptive polling.
//!
//! To sleep and to be woken costs a request some microseconds, tens of them where a processor is
//! halted meanwhile; to look costs the processor. So a worker looks only for as long as waits have
//! lately been, never longer than the operator allows, and not at all where looking found too
//! little. Waits for the device and waits for guests are told apart: the one has a pace of its
//! own, the other that of whoever thinks.
//!
//! The window grows while waits are short and shrinks when one was long, as that of KVM for halted
//! virtual processors does (`halt_poll_ns`, Documentation/virt/kvm/halt-polling.rst in Linux).
//! What is not from there: the count of looks that paid, and that a worker whose processor somebody
//! else wants stops looking.
//!
//! Knows no clock and no ring: spans come as arguments.

use evenkeel_sched::Nanos;

/// The first window of those that grow.
const START: Nanos = Nanos::from_micros(8);
/// Below this a window is none.
const LEAST: Nanos = Nanos::from_micros(4);
/// One for certain, as a share of looks that paid.
const CERTAIN: u32 = 1024;
/// What is believed before anything is known, and again after a rest.
const HOPED: u32 = CERTAIN * 3 / 4;
/// Looks are given up when fewer than half of them pay: more time is lost then than used.
const TOO_FEW: u32 = CERTAIN / 2;
/// How many waits pass without a look after looks were given up: at first, and at most.
const REST_FIRST: u32 = 16;
const REST_MOST: u32 = 4096;
/// Looks that must pay before the next rest is half as long as it would be.
const TRUSTED: u32 = 1024;

/// What a worker waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Awaited {
    /// An answer of the device; guests may come meanwhile.
    Device,
    /// A guest: the device has nothing to do.
    Guest,
}

/// What looking did, for one kind of wait, since the worker started.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Looks {
    /// How long the next one lasts at most; 0 is not at all.
    pub(crate) window: Nanos,
    /// Times that the worker looked.
    pub(crate) looks: u64,
    /// Of these, those that found something before the worker slept.
    pub(crate) paid: u64,
    /// How long all of them took.
    pub(crate) time: Nanos,
    /// Times that looks were given up for a while because too few paid, or because somebody else
    /// wanted the processor.
    pub(crate) rests: u64,
}

/// One kind of wait.
#[derive(Clone, Copy, Debug)]
struct Kind {
    figures: Looks,
    /// The share of looks that paid lately, up to [`CERTAIN`].
    paying: u32,
    /// Waits that still pass without a look.
    rest: u32,
    /// Length of the next rest.
    next_rest: u32,
    /// Looks that paid since the last rest, or since the next one was shortened.
    trust: u32,
}

impl Default for Kind {
    fn default() -> Self {
        Self { figures: Looks::default(), paying: HOPED, rest: 0, next_rest: REST_FIRST, trust: 0 }
    }
}

/// Decides how long a worker looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Polling {
    most: Nanos,
    device: Kind,
    guest: Kind,
    /// What the worker sleeps for, and since when.
    asleep: Option<(Awaited, Nanos)>,
}

impl Polling {
    /// Returns a policy that looks for `most` at a time at most; 0 is never.
    pub(crate) fn new(most: Nanos) -> Self {
        Self { most, device: Kind::default(), guest: Kind::default(), asleep: None }
    }

    /// Changes how long to look at most; what was learned is kept as far as it fits.
    pub(crate) fn set_most(&mut self, most: Nanos) {
        self.most = most;
        for kind in [&mut self.device, &mut self.guest] {
            kind.figures.window = kind.figures.window.min(most);
        }
    }

    /// Returns how long to look at most, 0 for never.
    pub(crate) const fn most(&self) -> Nanos {
        self.most
    }

    /// Returns what looking did.
    pub(crate) const fn figures(&self, awaited: Awaited) -> Looks {
        match awaited {
            Awaited::Device => self.device.figures,
            Awaited::Guest => self.guest.figures,
        }
    }

    const fn kind(&mut self, awaited: Awaited) -> &mut Kind {
        match awaited {
            Awaited::Device => &mut self.device,
            Awaited::Guest => &mut self.guest,
        }
    }

    /// Returns how long to look before the wait that begins now; none is to sleep at once. To be
    /// asked once per wait.
    pub(crate) fn window(&mut self, awaited: Awaited) -> Option<Nanos> {
        if self.most == Nanos(0) {
            return None;
        }
        let kind = self.kind(awaited);
        if kind.rest > 0 {
            kind.rest -= 1;
            return None;
        }
        (kind.figures.window > Nanos(0)).then_some(kind.figures.window)
    }

    /// Notes that a look found something after `span`.
    pub(crate) fn found(&mut self, awaited: Awaited, span: Nanos) {
        let kind = self.kind(awaited);
        kind.figures.looks += 1;
        kind.figures.paid += 1;
        kind.figures.time += span;
        kind.paying += (CERTAIN - kind.paying) / 16;
        kind.trust += 1;
        if kind.trust == TRUSTED {
            kind.trust = 0;
            kind.next_rest = (kind.next_rest / 2).max(REST_FIRST);
        }
    }

    /// Notes that a look of `span` found nothing; the worker sleeps now.
    pub(crate) fn missed(&mut self, awaited: Awaited, span: Nanos) {
        let kind = self.kind(awaited);
        kind.figures.looks += 1;
        kind.figures.time += span;
        kind.paying -= kind.paying / 16;
        if kind.paying < TOO_FEW {
            kind.begin_rest();
        }
    }

    /// Notes that somebody else had the processor while the worker wanted it: who looks takes it
    /// away from them, and gets it later when there is work.
    pub(crate) fn crowded(&mut self) {
        for kind in [&mut self.device, &mut self.guest] {
            kind.begin_rest();
        }
    }

    /// Notes that the worker sleeps, in a wait that began at `since`.
    pub(crate) fn sleep(&mut self, awaited: Awaited, since: Nanos) {
        if self.most > Nanos(0) {
            self.asleep = Some((awaited, since));
        }
    }

    /// Notes that the worker is awake, and learns from how long the wait was.
    pub(crate) fn wake(&mut self, now: Nanos) {
        let Some((awaited, since)) = self.asleep.take() else { return };
        let most = self.most;
        let window = &mut self.kind(awaited).figures.window;
        let shorter = Nanos(window.0 / 2);
        *window = if now - since <= most {
            Nanos(window.0 * 2).max(START).min(most)
        } else if shorter >= LEAST {
            shorter
        } else {
            Nanos(0)
        };
    }
}

impl Kind {
    fn begin_rest(&mut self) {
        self.figures.window = Nanos(0);
        self.figures.rests += 1;
        self.paying = HOPED;
        self.trust = 0;
        self.rest = self.next_rest;
        self.next_rest = (2 * self.next_rest).min(REST_MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Nanos = Nanos::from_micros(100);

    /// Waits for a device that answers after `span`; returns whether the worker slept.
    fn wait(polling: &mut Polling, span: Nanos) -> bool {
        let start = Nanos::ORIGIN;
        let window = polling.window(Awaited::Device);
        match window {
            Some(window) if span <= window => {
                polling.found(Awaited::Device, span);
                return false;
            }
            Some(window) => polling.missed(Awaited::Device, window),
            None => {}
        }
        polling.sleep(Awaited::Device, start);
        polling.wake(start + span);
        true
    }

    fn slept(polling: &mut Polling, span: Nanos, waits: u32) -> u32 {
        (0..waits).map(|_| u32::from(wait(polling, span))).sum()
    }

    #[test]
    fn a_quick_device_is_soon_waited_for_awake() {
        let mut polling = Polling::new(MOST);
        assert_eq!(slept(&mut polling, Nanos::from_micros(60), 1000), 4, "8, 16, 32, 64 us");
        let figures = polling.figures(Awaited::Device);
        assert_eq!((figures.looks, figures.paid, figures.rests), (999, 996, 0));
        assert_eq!(figures.window, Nanos::from_micros(64));
        assert_eq!(figures.time, Nanos::from_micros(996 * 60 + 8 + 16 + 32));
    }

    #[test]
    fn a_device_slower_than_the_window_is_never_looked_at() {
        let mut polling = Polling::new(MOST);
        assert_eq!(slept(&mut polling, Nanos::from_micros(101), 1000), 1000);
        assert_eq!(polling.figures(Awaited::Device), Looks::default());
    }

    #[test]
    fn a_worker_that_may_not_look_sleeps_and_learns_nothing() {
        let mut polling = Polling::new(Nanos(0));
        assert_eq!(slept(&mut polling, Nanos::from_micros(1), 100), 100);
        assert_eq!(polling.figures(Awaited::Device), Looks::default());
    }

    #[test]
    fn where_few_looks_pay_they_become_rare() {
        let mut polling = Polling::new(MOST);
        // Two quick waits teach that a look could pay; the four slow ones after them do not.
        for turn in 0..6000 {
            let span = if turn % 6 < 2 { 20 } else { 90 + 20 * u64::from(turn % 6 > 2) };
            wait(&mut polling, Nanos::from_micros(span));
        }
        let figures = polling.figures(Awaited::Device);
        assert!(figures.rests > 3, "{figures:?}");
        assert!(figures.looks < 1500, "of 6000 waits: {figures:?}");
    }

    #[test]
    fn looks_come_back_when_the_device_becomes_quick_again() {
        let mut polling = Polling::new(MOST);
        slept(&mut polling, Nanos::from_micros(30), 100);
        polling.crowded();
        assert_eq!(slept(&mut polling, Nanos::from_micros(30), REST_FIRST), REST_FIRST);
        assert!(slept(&mut polling, Nanos::from_micros(30), 1000) < 5);
        assert_eq!(polling.figures(Awaited::Device).rests, 1);
    }

    #[test]
    fn each_rest_is_longer_than_the_one_before_up_to_a_limit() {
        let mut polling = Polling::new(MOST);
        let mut rests = Vec::new();
        for _ in 0..12 {
            polling.crowded();
            rests.push(polling.guest.rest);
        }
        assert_eq!(rests[..3], [16, 32, 64]);
        assert_eq!(rests[9..], [REST_MOST; 3]);
        polling.guest.rest = 0;
        for _ in 0..4 * TRUSTED {
            polling.found(Awaited::Guest, Nanos::from_micros(1));
        }
        polling.crowded();
        assert_eq!(polling.guest.rest, REST_MOST / 16, "forgotten slowly");
    }

    #[test]
    fn guests_and_device_are_learned_apart() {
        let mut polling = Polling::new(MOST);
        slept(&mut polling, Nanos::from_micros(30), 100);
        assert_eq!(polling.window(Awaited::Guest), None);
        assert!(polling.window(Awaited::Device).is_some());
    }

    #[test]
    fn one_long_wait_halves_the_window_and_a_row_of_them_closes_it() {
        let mut polling = Polling::new(MOST);
        slept(&mut polling, Nanos::from_micros(60), 100);
        wait(&mut polling, Nanos::from_secs(1));
        assert_eq!(polling.figures(Awaited::Device).window, Nanos::from_micros(32));
        slept(&mut polling, Nanos::from_secs(1), 4);
        assert_eq!(polling.window(Awaited::Device), None);
    }

    #[test]
    fn a_smaller_limit_holds_at_once() {
        let mut polling = Polling::new(MOST);
        slept(&mut polling, Nanos::from_micros(60), 100);
        polling.set_most(Nanos::from_micros(10));
        assert_eq!(polling.window(Awaited::Device), Some(Nanos::from_micros(10)));
        polling.set_most(Nanos(0));
        assert_eq!(polling.window(Awaited::Device), None);
    }
}
