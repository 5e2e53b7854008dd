//! Another elevator, or other tunables, while requests wait and while they are at the device.

use evenkeel_sched::{Elevator, ElevatorConfig, GroupId, IoReport, Nanos, Scheduler as _, Tag};

use super::Engine;
use crate::groups::Group;
use crate::slots::{Carried, Place};

impl Engine {
    /// Changes the elevator, its tunables, or both, under load.
    ///
    /// If only tunables differ, whatever waits stays where it is, as far as the elevator can do
    /// that. Otherwise a new elevator takes over: it gets the same groups with the same weights, and
    /// everything that waits in the order in which it arrived. Merged requests that wait are given
    /// part by part, and merged anew by its rules. Commands at the device stay there and complete as
    /// they would have; the new elevator does not know of them. Flushes, and requests that wait for
    /// others in their way, never are with an elevator, so nothing changes for them.
    ///
    /// Takes O(n log n) time in the requests outstanding, and allocates. The tunables are valid; the
    /// caller dispatches afterwards.
    pub fn set_elevator(&mut self, now: Nanos, config: &ElevatorConfig) {
        if self.scheduler.set_tunables(now, config) {
            return;
        }
        let config = ElevatorConfig { depth: self.scheduled_depth(), ..config.clone() };
        let old = core::mem::replace(&mut self.scheduler, Elevator::new(now, &config));
        self.govern_anew();
        self.look_for_streams();
        self.carry_commands(&old);
        self.hand_over_groups(now, &old);
        let mut waiting: Vec<_> = self.slots.scheduled().collect();
        waiting.sort_unstable();
        for (_, tag) in waiting {
            self.schedule(now, tag);
        }
    }

    /// Changes the most commands at the device, at least 1. What is there already stays.
    pub fn set_depth(&mut self, depth: u32) {
        self.depth = depth.max(1);
        for disk in self.disks.iter_mut().flatten() {
            disk.claims.make_room(self.depth);
        }
        self.blocks.set_max(self.depth);
        self.governor.set_depth(self.depth);
        self.scheduler.set_depth(self.scheduled_depth());
        self.look_for_streams();
    }

    /// Remembers of each command at the device what only the elevator knew: its parts.
    fn carry_commands(&mut self, old: &Elevator) {
        for disk in self.disks.iter().flatten() {
            for whole in disk.claims.at_device() {
                let slot = self.slots.get(whole);
                // A request in pieces keeps its claim while the next one waits.
                if slot.place != Place::Scheduled || !slot.is_sent {
                    continue;
                }
                let first = old.first_part(whole);
                let mut part = Some(first);
                while let Some(tag) = part {
                    part = old.next_part(tag);
                    let slot = self.slots.get_mut(tag);
                    slot.place = Place::Carried;
                    slot.next = part;
                }
                self.carried.push(Carried { whole, first });
            }
        }
    }

    fn hand_over_groups(&mut self, now: Nanos, old: &Elevator) {
        let note = |group: &mut Group| {
            if let Some(stats) = old.group_stats(group.known_as) {
                group.earlier_io += IoReport { queued: 0, ..stats.recursive };
            }
        };
        note(self.groups.get_mut(GroupId::ROOT));
        for id in self.groups.top_down() {
            let parent = self.groups.get(self.groups.get(id).parent).known_as;
            let group = self.groups.get_mut(id);
            group.earlier_sectors += old.group_report(group.known_as).service_sectors;
            note(group);
            group.known_as = self.scheduler.add_group(now, parent, group.weight);
            group.queues.forget();
        }
    }

    /// Returns the part with the lowest sector of a command of an earlier elevator.
    pub(super) fn first_carried(&self, whole: Tag) -> Tag {
        let carried = self.carried.iter().find(|carried| carried.whole == whole);
        carried.expect("a carried command is listed until it completes").first
    }

    /// Forgets a command of an earlier elevator that has completed.
    pub(super) fn drop_carried(&mut self, whole: Tag) {
        self.carried.retain(|carried| carried.whole != whole);
    }
}
