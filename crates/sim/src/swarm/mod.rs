//! Random worlds around the engine, and what must hold in all of them.
//!
//! Think of a crash-test track with a die: from a seed follow a device and what goes wrong with it,
//! an elevator and its tunables, tenants, VMs and disks with weights, limits and reservations, what
//! the guests do, and what an operator changes meanwhile. An [auditor](Violation) watches; after a
//! while all load ends, and everything that was asked for must be answered. The same seed gives the
//! same history to the last byte, so a seed that fails is a test.
//!
//! There are three classes of worlds. In a *mixed* one anything may happen. In a *fair* one all VMs
//! saturate the device in the same way, and must get it by their weights. In an *urgent* one a VM
//! is helped, and must not wait for the others.
//!
//! Source: A. Groce, C. Zhang, E. Eide, Y. Chen and J. Regehr, "Swarm Testing", ISSTA 2012.

mod act;
mod draw;
mod judge;
mod scene;

use evenkeel_sched::{BfqTunables, ElevatorConfig, Nanos};

pub use crate::world::audit::Violation;
use scene::Scene;

/// Steps after which the scheduler looks at itself.
const CHECK_STEPS: u64 = 300;

/// What is asked of a world.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwarmOptions {
    /// How long it goes on, in virtual milliseconds; none: as long as the seed says, at most a
    /// minute, and no longer than some thousand events.
    pub span_ms: Option<u64>,
    /// Whether the history is written down.
    pub keeps_history: bool,
    /// A bug to be found.
    #[cfg(feature = "planted")]
    pub planted: Option<evenkeel_sched::Planted>,
}

/// What must hold in a world beyond what always must.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Class {
    Mixed,
    Fair,
    Urgent,
}

impl Class {
    /// Sets those tunables that give up what is judged.
    fn tame(self, elevator: &mut ElevatorConfig) {
        let bfq = &mut elevator.bfq;
        let like = BfqTunables {
            kernel_compat: bfq.kernel_compat,
            injection: bfq.injection,
            queueing: bfq.queueing,
            async_charge_factor: bfq.async_charge_factor,
            ..Default::default()
        };
        match self {
            Self::Mixed => {}
            Self::Fair => {
                let max_budget_sectors = bfq.max_budget_sectors.clamp(256, 2048);
                *bfq = BfqTunables { low_latency: false, max_budget_sectors, ..like };
            }
            Self::Urgent => *bfq = like,
        }
    }
}

/// How a world went.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct SeedReport {
    /// From which it followed.
    pub seed: u64,
    /// What it was, in words.
    pub setup: String,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Requests of guests.
    pub requests: u64,
    /// Commands that the device has completed.
    pub commands: u64,
    /// The longest wait of a request, in milliseconds.
    pub longest_wait_ms: u64,
    /// A number that follows from everything that happened, in hexadecimal digits.
    pub digest: String,
    /// What happened, a line for each event, if it was asked for.
    #[serde(skip)]
    pub history: String,
    /// What was broken.
    #[serde(skip)]
    pub violation: Option<Violation>,
}

/// Runs the world of a seed.
///
/// What the schedulers assert of themselves panics, and so does what the engine asserts; call
/// [`whereabouts`] for a line that says which world it was.
#[must_use]
pub fn run(seed: u64, options: &SwarmOptions) -> SeedReport {
    whereabouts::enter(seed);
    let mut scene = Scene::new(seed, options);
    let steps = if options.span_ms.is_some() { u64::MAX } else { scene.random.within(500, 9_000) };
    scene.bind_all();
    scene.run(steps);
    if scene.world.audit().is_content() {
        scene.end();
    }
    let world = &mut scene.world;
    let (now, commands) = (world.now(), world.completed());
    let audit = world.audit();
    let report = SeedReport {
        seed,
        setup: scene.setup,
        virtual_ms: now.since(Nanos::ORIGIN).as_millis(),
        requests: audit.requests().0,
        commands,
        longest_wait_ms: audit.longest_wait().as_millis(),
        digest: format!("{:016x}", audit.digest()),
        history: audit.take_history(),
        violation: audit.violation(),
    };
    whereabouts::leave();
    report
}

pub mod whereabouts {
    //! Where the world of this thread is, for whoever has to report a panic in it.

    use std::cell::Cell;

    use evenkeel_sched::Nanos;

    thread_local! {
        static HERE: Cell<Option<(u64, Nanos)>> = const { Cell::new(None) };
    }

    pub(super) fn enter(seed: u64) {
        HERE.set(Some((seed, Nanos::ORIGIN)));
    }

    pub(super) fn at(now: Nanos) {
        HERE.set(HERE.get().map(|(seed, _)| (seed, now)));
    }

    pub(super) fn leave() {
        HERE.set(None);
    }

    /// Returns the seed of the world that this thread runs, and its instant.
    #[must_use]
    pub fn now() -> Option<(u64, Nanos)> {
        HERE.get()
    }
}

impl SeedReport {
    /// Returns what to tell about a failure: the promise, the instant, and how to see it again.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let Violation { at, invariant, detail } = self.violation.as_ref()?;
        Some(failure(self.seed, *at, &format!("{invariant}: {detail}\n  in {}", self.setup)))
    }
}

/// Says of a seed what was broken when, and how to see it again.
#[must_use]
pub fn failure(seed: u64, at: Nanos, what: &str) -> String {
    let since = at.since(Nanos::ORIGIN);
    let (seconds, nanos) = (since.0 / 1_000_000_000, since.0 % 1_000_000_000);
    format!(
        "seed {seed} fails at {seconds}.{nanos:09} s of virtual time\n  {what}\n  again: evenkeel \
         sim swarm --seed {seed}"
    )
}
