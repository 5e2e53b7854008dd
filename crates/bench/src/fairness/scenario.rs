//! Who competes, with what right, and asking for what.

use evenkeel_sched::{Class, Nanos, Priority};

/// One competition.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: &'static str,
    pub(super) groups: Vec<Group>,
    pub(super) queues: Vec<Queue>,
    /// How long it is watched.
    pub(super) span: Nanos,
    /// Whether elevators that know neither weights nor groups take part.
    pub(super) is_for_all: bool,
    /// Whether the shares of the topmost groups are compared, not those of queues.
    pub(super) by_group: bool,
    /// Whether service of the theory is comparable: everybody in one class.
    pub(super) has_bound: bool,
}

/// A group below another one, which comes before it, or below the root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub(super) parent: Option<usize>,
    pub(super) weight: u16,
}

/// Somebody who keeps some requests outstanding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    pub(super) group: Option<usize>,
    pub(super) priority: Priority,
    /// Sectors in each request.
    pub(super) nr_sectors: u32,
    pub(super) depth: u32,
    /// Pause after each completion.
    pub(super) think: Nanos,
    /// Works so long, then sleeps so long; zero never sleeps.
    pub(super) awake: Nanos,
    pub(super) asleep: Nanos,
}

/// Sectors in an ordinary request: 32 KiB.
const SECTORS: u32 = 64;

impl Queue {
    /// A queue at the root that always has requests.
    const GREEDY: Self = Self {
        group: None,
        priority: Priority { class: Class::BestEffort, level: 4 },
        nr_sectors: SECTORS,
        depth: 8,
        think: Nanos::ZERO,
        awake: Nanos::ZERO,
        asleep: Nanos::ZERO,
    };

    /// Returns whether it ever has no requests.
    pub(super) fn pauses(&self) -> bool {
        self.think > Nanos::ZERO || self.asleep > Nanos::ZERO
    }

    fn level(level: u8) -> Self {
        Self { priority: Priority { class: Class::BestEffort, level }, ..Self::GREEDY }
    }

    fn within(group: usize) -> Self {
        Self { group: Some(group), ..Self::GREEDY }
    }
}

impl Scenario {
    fn flat(name: &'static str, queues: Vec<Queue>) -> Self {
        let span = Nanos::from_secs(if queues.len() > 10 { 60 } else { 20 });
        let groups = Vec::new();
        Self { name, groups, queues, span, is_for_all: false, by_group: false, has_bound: true }
    }

    fn groups(name: &'static str, weights: &[u16]) -> Self {
        let groups: Vec<Group> =
            weights.iter().map(|&weight| Group { parent: None, weight }).collect();
        let queues = (0..groups.len()).map(Queue::within).collect();
        Self { groups, ..Self::flat(name, queues) }
    }

    /// Returns all competitions, simple ones first.
    pub(super) fn all() -> Vec<Self> {
        let for_all = |scenario| Self { is_for_all: true, ..scenario };
        let greedy = |count| vec![Queue::GREEDY; count];
        let mut all = vec![
            for_all(Self::flat("2 equal queues", greedy(2))),
            for_all(Self::flat("10 equal queues", greedy(10))),
            for_all(Self::flat("100 equal queues", greedy(100))),
        ];
        for (name, count) in [("2 groups, 1:3", 1), ("10 groups, 1:3", 5), ("100 groups, 1:3", 50)]
        {
            let weights = [100, 300].repeat(count);
            let groups = Self::groups(name, &weights);
            let span = Nanos::from_secs(if weights.len() > 10 { 60 } else { 20 });
            all.push(Self { span, ..groups });
        }
        all.extend([
            three_levels(),
            visited(),
            sleeper(),
            for_all(mixed_sizes()),
            Self::flat("levels 0 and 7", vec![Queue::level(0), Queue::level(7)]),
            idle_class(),
        ]);
        all
    }
}

/// Two tenants of weights 1 and 3, each with two machines of 1 and 2, each with two queues.
fn three_levels() -> Scenario {
    let mut scenario = Scenario::groups("three levels", &[100, 300]);
    scenario.queues.clear();
    for tenant in 0..2 {
        for weight in [100, 200] {
            scenario.groups.push(Group { parent: Some(tenant), weight });
            let machine = scenario.groups.len() - 1;
            scenario.queues.extend([Queue::within(machine); 2]);
        }
    }
    scenario
}

/// Two equal groups; one of them has visitors: queues that send a request now and then, too seldom
/// to be waited for.
fn visited() -> Scenario {
    let mut scenario = Scenario::groups("equal groups, one with visitors", &[100, 100]);
    let visitor = Queue { depth: 1, think: Nanos::from_millis(9), ..Queue::within(0) };
    scenario.queues.extend([visitor; 3]);
    scenario.by_group = true;
    scenario
}

/// Four equal queues, of which one sleeps now and then.
fn sleeper() -> Scenario {
    let (awake, asleep) = (Nanos::from_millis(90), Nanos::from_millis(70));
    let mut queues = vec![Queue::GREEDY; 4];
    queues[0] = Queue { awake, asleep, ..Queue::GREEDY };
    Scenario::flat("4 equal queues, one sleeps", queues)
}

/// Small requests against large ones.
fn mixed_sizes() -> Scenario {
    let sized = |nr_sectors| Queue { nr_sectors, ..Queue::GREEDY };
    Scenario::flat("requests of 4 and 256 KiB", vec![sized(8), sized(512)])
}

fn idle_class() -> Scenario {
    let idle = Priority { class: Class::Idle, level: 7 };
    let queues = vec![Queue::GREEDY, Queue { priority: idle, ..Queue::GREEDY }];
    Scenario { has_bound: false, ..Scenario::flat("best effort and idle class", queues) }
}
