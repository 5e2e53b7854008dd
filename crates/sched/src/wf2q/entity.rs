//! The records of the competition: entities, and who competes with whom.

use alloc::vec::Vec;

use super::vtime::Vtime;
use super::{Node, Policy};
use crate::tree::{Links, NIL, Nodes, Tree, successor};
use crate::{Class, Nanos};

/// Where an entity is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    /// Nowhere; its weight does not count.
    Away,
    /// Waits for service.
    Active,
    /// Has nothing to do, but its finish lies ahead of virtual time: its weight still counts, and
    /// it may not start anew before that.
    Idle,
    /// Holds the device, or a descendant does.
    InService,
}

/// A member of the competition; what searches look at lies in its first cache line.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Entity {
    pub(super) links: Links,
    pub(super) start: Vtime,
    pub(super) finish: Vtime,
    /// Least start in the subtree of the active tree below this node.
    pub(super) min_start: Vtime,
    /// Received in the current slot, in sectors.
    pub(super) service: u64,
    /// Weight in force: raise included.
    pub(super) weight: u32,
    /// Index of the scheduler in which it competes, its parent's.
    pub(super) competes_in: u32,
    pub(super) parent: Node,
    pub(super) class: Class,
    pub(super) place: Place,
    pub(super) depth: u8,
    /// Whether it starts at virtual time when it is next queued, whatever its lead or lag.
    pub(super) is_forgiven: bool,
    /// The same, if it is raised then, for as long as it is; it also goes before its siblings then,
    /// until it is served.
    pub(super) is_lifted: bool,
    /// What the slot may bring, in sectors.
    pub(super) budget: u64,
    /// Received since the entity exists, in sectors, without time charges.
    pub(super) total: u64,
    /// By how much `finish` is put off while the entity is idle: so long its weight goes on
    /// counting although virtual time has caught up with it.
    pub(super) hold: u64,
    /// By how much it would start later, or earlier, if it were not lifted.
    pub(super) warp: u64,
    /// By how much its stamps are earlier while it waits so that it goes before its siblings.
    pub(super) jump: u64,
    /// Index of the scheduler of its children, [`NIL`] for a leaf.
    pub(super) sched: u32,
    /// Weight asked for, without raise.
    pub(super) base: u16,
    /// Raise in force.
    pub(super) coeff: u16,
    /// Raise asked for; weight and raise come into force when the entity is next queued.
    pub(super) new_coeff: u16,
}

const _: () = assert!(size_of::<Entity>() == 128, "an entity is two cache lines");

impl Entity {
    pub(super) fn new(parent: Node, depth: u8, class: Class, weight: u16, sched: u32) -> Self {
        Self {
            links: Links::DETACHED,
            start: Vtime::default(),
            finish: Vtime::default(),
            min_start: Vtime::default(),
            service: 0,
            weight: u32::from(weight),
            competes_in: NIL,
            parent,
            class,
            place: Place::Away,
            depth,
            is_forgiven: false,
            is_lifted: false,
            budget: 0,
            total: 0,
            hold: 0,
            warp: 0,
            jump: 0,
            sched,
            base: weight,
            coeff: 1,
            new_coeff: 1,
        }
    }

    pub(super) fn wanted(&self) -> u32 {
        u32::from(self.base) * u32::from(self.new_coeff)
    }

    /// Makes `finish` again what it was before the entity turned idle.
    pub(super) fn drop_hold(&mut self) {
        self.finish = Vtime(self.finish.0.wrapping_sub(self.hold));
        self.hold = 0;
    }

    /// Starts at this point, and remembers where it would have.
    fn warp_to(&mut self, point: Vtime) {
        self.warp = self.warp.wrapping_add(self.start.0.wrapping_sub(point.0));
        self.start = point;
    }

    /// Starts where it would have if it had never been warped.
    fn unwarp(&mut self) {
        self.start = self.start.plus(core::mem::take(&mut self.warp));
    }

    /// Starts anew after what the slot brought.
    pub(super) fn end_slot(&mut self) {
        self.start = self.after(self.service);
        self.service = 0;
    }

    /// Goes before its siblings no longer.
    pub(super) fn step_back(&mut self) {
        let jump = core::mem::take(&mut self.jump);
        (self.start, self.finish) = (self.start.plus(jump), self.finish.plus(jump));
    }

    /// Puts start and finish where an entity whose weight is settled belongs that waits from
    /// `vtime` on for a slot of `budget` sectors; it was away if it has `missed` something. The least
    /// finish of its siblings that wait is that of the `first`; one that goes before them needs it.
    pub(super) fn stamp(
        &mut self,
        vtime: Vtime,
        budget: u64,
        missed: Option<u64>,
        first: Option<Vtime>,
    ) {
        let goes_before = self.goes_before();
        self.step_back();
        self.budget = budget;
        if core::mem::take(&mut self.is_forgiven) {
            (self.start, self.warp) = (vtime, 0);
        }
        let is_lifted = core::mem::take(&mut self.is_lifted);
        if self.coeff == 1 {
            self.unwarp();
        } else if is_lifted {
            self.warp_to(vtime);
        }
        if let Some(memory) = missed {
            let reach = self.after(budget.max(memory));
            if vtime.is_after(reach) {
                // A raised queue keeps its edge: it is pushed by a fraction of the gap only.
                let divisor = if self.is_leaf() { u64::from(self.coeff) } else { 1 };
                self.start = self.start.plus(vtime.since(reach) / divisor);
            }
        }
        self.finish = self.after(budget);
        if let Some(first) = first.filter(|first| goes_before && !first.is_after(self.finish)) {
            self.jump = self.finish.since(first) + 1;
            self.start = self.start.before(self.jump);
            self.finish = self.finish.before(self.jump);
        }
    }

    /// Returns whether it goes before its siblings when it is next queued.
    pub(super) fn goes_before(&self) -> bool {
        (self.is_lifted || self.jump > 0) && self.new_coeff > 1
    }

    /// Ends a slot at `vtime` and waits for one of `budget` sectors, but for what its tree counts.
    pub(super) fn continue_with(&mut self, vtime: Vtime, budget: u64, first: Option<Vtime>) {
        self.end_slot();
        (self.weight, self.coeff) = (self.wanted(), self.new_coeff);
        self.stamp(vtime, budget, None, first);
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.sched == NIL
    }

    pub(super) fn after(&self, service: u64) -> Vtime {
        self.start.after(service, u64::from(self.weight))
    }

    /// Returns whether virtual time is beyond where so much service takes the entity.
    pub(super) fn is_left_behind(&self, vtime: Vtime, service: u64) -> bool {
        vtime.is_beyond(self.start, service, u64::from(self.weight))
    }
}

/// The entities, as the records in which the nodes of all active and idle trees lie.
#[derive(Clone, Debug, Default)]
pub(super) struct Arena(pub(super) Vec<Entity>);

impl Arena {
    #[inline]
    pub(super) fn at(&self, node: Node) -> &Entity {
        &self.0[node as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, node: Node) -> &mut Entity {
        &mut self.0[node as usize]
    }
}

impl Nodes for Arena {
    const AUGMENTED: bool = true;

    #[inline]
    fn links(&self, index: u32) -> &Links {
        &self.at(index).links
    }

    #[inline]
    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.at_mut(index).links
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        self.at(b).finish.is_after(self.at(a).finish)
    }

    #[inline]
    fn refresh(&mut self, index: u32) -> bool {
        let entity = self.at(index);
        let mut least = entity.start;
        if let Some(left) = entity.links.left() {
            least = least.min(self.at(left).min_start);
        }
        if let Some(right) = entity.links.right() {
            least = least.min(self.at(right).min_start);
        }
        core::mem::replace(&mut self.at_mut(index).min_start, least) != least
    }
}

/// The same for idle trees, in which nobody looks for the least start.
pub(super) struct Idle<'a>(pub(super) &'a mut Arena);

impl Nodes for Idle<'_> {
    #[inline]
    fn links(&self, index: u32) -> &Links {
        &self.0.at(index).links
    }

    #[inline]
    fn links_mut(&mut self, index: u32) -> &mut Links {
        &mut self.0.at_mut(index).links
    }

    #[inline]
    fn before(&self, a: u32, b: u32) -> bool {
        self.0.before(a, b)
    }
}

/// The competition among the children of one group that belong to one class.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceTree {
    pub(super) active: Tree,
    pub(super) idle: Tree,
    /// The first in `idle`, or [`NIL`]: it is looked at whenever virtual time moves.
    pub(super) first_idle: Node,
    pub(super) vtime: Vtime,
    /// Sum of the weights of all entities that are not away.
    pub(super) wsum: u64,
    /// How many of those that wait are raised.
    pub(super) raised: u32,
}

impl ServiceTree {
    pub(super) fn enter_idle(&mut self, arena: &mut Arena, node: Node) {
        self.idle.insert(&mut Idle(arena), node);
        if self.first_idle == NIL || arena.before(node, self.first_idle) {
            self.first_idle = node;
        }
    }

    pub(super) fn leave_idle(&mut self, arena: &mut Arena, node: Node) {
        self.idle.remove(&mut Idle(arena), node);
        if self.first_idle == node {
            self.first_idle = self.idle.first(arena).unwrap_or(NIL);
        }
    }

    /// Lets an entity that is stamped wait for service.
    pub(super) fn enter_active(&mut self, arena: &mut Arena, node: Node) {
        self.raised += u32::from(arena.at(node).coeff > 1);
        self.active.insert(arena, node);
    }

    pub(super) fn leave_active(&mut self, arena: &mut Arena, node: Node) {
        self.raised -= u32::from(arena.at(node).coeff > 1);
        self.active.remove(arena, node);
    }

    /// Returns the least finish of those that wait before which an entity may go: nobody goes before
    /// others that are raised. In a group of queues those go before the others, in their own order.
    pub(super) fn least_finish(&self, arena: &Arena) -> Option<Vtime> {
        let is_queue_of_group = |node: Node| arena.at(node).is_leaf() && arena.at(node).depth > 1;
        let mut first = self.active.first(arena)?;
        while self.raised > 0 && arena.at(first).coeff > 1 {
            first = successor(arena, first).filter(|_| is_queue_of_group(first))?;
        }
        (self.raised == 0 || is_queue_of_group(first)).then(|| arena.at(first).finish)
    }

    /// Lets go of the idle entity that finished first, if virtual time has caught up with it.
    #[inline]
    pub(super) fn forget_first(&mut self, arena: &mut Arena) {
        let first = self.first_idle;
        if first != NIL && !arena.at(first).finish.is_after(self.vtime) {
            self.leave_idle(arena, first);
            let entity = arena.at_mut(first);
            entity.place = Place::Away;
            entity.drop_hold();
            self.wsum -= u64::from(entity.weight);
        }
    }
}

/// The competition among the children of one group.
#[derive(Clone, Debug)]
pub(super) struct Sched {
    pub(super) trees: [ServiceTree; 3],
    pub(super) in_service: Node,
    /// When the idle class must be served although others wait.
    pub(super) idle_due: Nanos,
}

impl Sched {
    pub(super) const EMPTY: ServiceTree = ServiceTree {
        active: Tree::EMPTY,
        idle: Tree::EMPTY,
        first_idle: NIL,
        vtime: Vtime(0),
        wsum: 0,
        raised: 0,
    };
    pub(super) const NEW: Self =
        Self { trees: [Self::EMPTY; 3], in_service: NIL, idle_due: Nanos::ZERO };

    /// Returns who would be served next, classes in strict order.
    #[inline]
    pub(super) fn next(&self, arena: &Arena, policy: Policy) -> Option<(Vtime, Node)> {
        self.trees.iter().find_map(|tree| tree.next(arena, policy))
    }
}
