//! The tree of tenants and VMs, whichever elevator there is.
//!
//! The engine's names of groups outlive elevators; an elevator's names of the same groups are its
//! own business.

use evenkeel_sched::{GroupId, IoReport, Weight};

use crate::classify::VmQueues;

/// A tenant or a VM.
#[derive(Debug)]
pub(crate) struct Group {
    /// The group above.
    pub(crate) parent: GroupId,
    pub(crate) weight: Weight,
    /// What the elevator calls it.
    pub(crate) known_as: GroupId,
    /// The elevator's queues of a VM; tenants have none.
    pub(crate) queues: VmQueues,
    /// Sectors that earlier elevators dispatched for it.
    pub(crate) earlier_sectors: u64,
    /// What earlier elevators that kept books wrote down for it and all below.
    pub(crate) earlier_io: IoReport,
}

impl Group {
    pub(crate) fn new(parent: GroupId, weight: Weight, known_as: GroupId) -> Self {
        Self {
            parent,
            weight,
            known_as,
            queues: VmQueues::default(),
            earlier_sectors: 0,
            earlier_io: IoReport::default(),
        }
    }
}

/// All groups of a pool, by name.
#[derive(Debug)]
pub(crate) struct Groups(Vec<Option<Group>>);

impl Default for Groups {
    fn default() -> Self {
        Self(vec![Some(Group::new(GroupId::ROOT, Weight::default(), GroupId::ROOT))])
    }
}

impl Groups {
    /// Stores a group under the lowest free name.
    pub(crate) fn add(&mut self, group: Group) -> GroupId {
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(group);
        GroupId(u32::try_from(index).expect("fewer groups than bytes of memory"))
    }

    /// Forgets a group, and returns what was known of it.
    ///
    /// # Panics
    ///
    /// Panics if there is no such group.
    pub(crate) fn remove(&mut self, id: GroupId) -> Group {
        self.0[id.0 as usize].take().expect("the caller names a group that it added")
    }

    pub(crate) fn get(&self, id: GroupId) -> &Group {
        self.0[id.0 as usize].as_ref().expect("the caller names a group that it added")
    }

    pub(crate) fn get_mut(&mut self, id: GroupId) -> &mut Group {
        self.0[id.0 as usize].as_mut().expect("the caller names a group that it added")
    }

    /// Returns all names but the root's, every parent before its children.
    pub(crate) fn top_down(&self) -> Vec<GroupId> {
        let ids = (1..).zip(self.0.iter().skip(1)).filter(|(_, group)| group.is_some());
        let mut ids: Vec<_> = ids.map(|(id, _)| (self.depth(GroupId(id)), GroupId(id))).collect();
        ids.sort_unstable();
        ids.into_iter().map(|(_, id)| id).collect()
    }

    /// Returns how many groups lie above.
    fn depth(&self, id: GroupId) -> usize {
        let above = |&id: &GroupId| (id != GroupId::ROOT).then(|| self.get(id).parent);
        core::iter::successors(Some(id), above).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_with_a_lower_name_than_its_parent_still_comes_after_it() {
        let mut groups = Groups::default();
        let mut add = |parent| groups.add(Group::new(parent, Weight::default(), parent));
        let first = add(GroupId::ROOT);
        let tenant = add(GroupId::ROOT);
        groups.remove(first);
        let child = groups.add(Group::new(tenant, Weight::default(), tenant));
        assert_eq!(child, first, "names are used again");
        assert_eq!(groups.top_down(), [tenant, child]);
    }
}
