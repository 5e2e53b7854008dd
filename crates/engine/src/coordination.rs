//! What a guest says reaches the scheduler: the urgency of a VM becomes that of its queues.
//!
//! Which of them? Those that the guest itself prefers, by the I/O priority of their requests, as
//! its agent does with the applications that it means. A guest that marks nothing has all queues
//! that somebody waits for made urgent: then its own scheduler must say what goes first, and the
//! host makes sure that the guest as a whole is served at once. So has one that says that it marks,
//! and of which nothing marked ever comes: its kernel is too old to hand priorities on, or something
//! on the way to the disk, as encryption, forgets them.

use evenkeel_sched::{GroupId, Nanos, Scheduler as _, Urgency};

use crate::classify;
use crate::engine::Engine;
use crate::help::{Ask, Help, HelpPolicy, HelpReport, Served};
use crate::slots::Slot;
use crate::streams::StreamId;

/// How long after its last marked request a guest is taken for one that marks.
const MARKS_FOR: Nanos = Nanos::from_secs(2);
/// How long after it has said that it marks an agent is believed to tell what starts.
const SPEAKS_FOR: Nanos = Nanos::from_secs(60);
/// After so many reads without a mark, and so long, an agent that says that it marks is not believed
/// until a marked one comes: a program that starts is marked within a few milliseconds.
const UNMARKED_READS: u32 = 64;
const UNMARKED_FOR: Nanos = Nanos::from_millis(500);

/// The help of all VMs of a pool.
#[derive(Debug, Default)]
pub(crate) struct Helps {
    /// By group; none for groups that are no VM, or whose policy was never set.
    vms: Vec<Option<VmHelp>>,
    /// How many VMs are helped now.
    on: u32,
    /// Not later than the first end of a lease or a credit.
    deadline: Option<Nanos>,
}

#[derive(Debug)]
struct VmHelp {
    help: Help,
    /// When the guest last sent a request that it prefers, while it was helped, or until when it
    /// has said that it does.
    marked: Option<Nanos>,
    /// Whether it says that it marks, and since help began no marked request has come. A program
    /// begins to read before anybody can mark it.
    awaits_mark: bool,
    /// Whether its marks reach us, as far as is known of this agent.
    marking: Marking,
    /// What its queues were last told.
    applied: Urgency,
}

/// Whether marks of an agent that says that it marks reach us.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Marking {
    /// It has not said that it marks.
    #[default]
    Unknown,
    /// It has said so first then, and so many reads without a mark have come while it was helped.
    Claimed { since: Nanos, unmarked: u32 },
    /// They do not.
    Lost,
    /// They do.
    Seen,
}

impl Marking {
    /// Takes note that the agent says that it marks.
    fn claim(&mut self, now: Nanos) {
        if *self == Self::Unknown {
            *self = Self::Claimed { since: now, unmarked: 0 };
        }
    }

    /// Takes note of a read without a mark; returns whether now it is clear that marks are lost.
    fn miss(&mut self, now: Nanos) -> bool {
        let Self::Claimed { since, unmarked } = self else { return false };
        *unmarked += 1;
        let is_lost = *unmarked >= UNMARKED_READS && now >= *since + UNMARKED_FOR;
        if is_lost {
            *self = Self::Lost;
        }
        is_lost
    }
}

impl Helps {
    /// Returns whether any VM is helped now.
    #[inline]
    pub(crate) fn is_any_on(&self) -> bool {
        self.on > 0
    }

    #[inline]
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    pub(crate) fn next_deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    pub(crate) fn forget(&mut self, vm: GroupId) {
        if let Some(place) = self.vms.get_mut(vm.0 as usize) {
            let was_on = place.take().is_some_and(|vm| vm.applied != Urgency::None);
            self.on -= u32::from(was_on);
        }
    }

    fn get_mut(&mut self, vm: GroupId) -> Option<&mut VmHelp> {
        self.vms.get_mut(vm.0 as usize)?.as_mut()
    }
}

impl Engine {
    /// Says how far a VM's requests for help are believed. Before the first call a VM that asks is
    /// not heard.
    pub fn set_help_policy(&mut self, now: Nanos, vm: GroupId, policy: HelpPolicy) {
        let served = self.served(now, vm);
        let index = vm.0 as usize;
        if self.helps.vms.len() <= index {
            self.helps.vms.resize_with(index + 1, || None);
        }
        match &mut self.helps.vms[index] {
            Some(known) => known.help.set_policy(now, policy, served),
            place => {
                let help = Help::new(now, policy, served);
                *place = Some(VmHelp {
                    help,
                    marked: None,
                    awaits_mark: false,
                    marking: Marking::default(),
                    applied: Urgency::None,
                });
            }
        }
        self.apply_help(now, vm);
    }

    /// Takes a VM's request for help; returns what it got.
    pub fn ask_help(&mut self, now: Nanos, vm: GroupId, ask: Ask) -> HelpReport {
        let served = self.served(now, vm);
        let Some(known) = self.helps.get_mut(vm) else { return HelpReport::default() };
        let is_new = known.help.ask(now, ask, served);
        if is_new && ask.marked {
            known.awaits_mark |= known.applied == Urgency::None;
            known.marked = Some(now + ask.lease);
            known.marking.claim(now);
            if known.marking != Marking::Lost {
                self.groups.get_mut(vm).queues.speak_until(now + SPEAKS_FOR);
            }
        }
        let report = known.help.report();
        self.apply_help(now, vm);
        report
    }

    /// Ends a VM's help because nobody speaks for it any more: its channel was closed, or the VM
    /// was reset. Credit and trust stay.
    pub fn reset_help(&mut self, now: Nanos, vm: GroupId) {
        let served = self.served(now, vm);
        if let Some(known) = self.helps.get_mut(vm) {
            known.help.reset(now, served);
            known.marking = Marking::default();
            self.groups.get_mut(vm).queues.speak_until(now);
            self.apply_help(now, vm);
        }
    }

    /// Returns what a VM has got so far.
    ///
    /// None if the VM may not ask.
    #[must_use]
    pub fn help_report(&self, vm: GroupId) -> Option<HelpReport> {
        Some(self.helps.vms.get(vm.0 as usize)?.as_ref()?.help.report())
    }

    /// Ends what is over.
    pub(crate) fn review_help(&mut self, now: Nanos) {
        self.helps.deadline = None;
        for vm in (0..).map(GroupId).take(self.helps.vms.len()) {
            let is_on = self.helps.get_mut(vm).is_some_and(|vm| vm.help.urgency() != Urgency::None);
            if is_on {
                let served = self.served(now, vm);
                let known = self.helps.get_mut(vm).expect("it was there a moment ago");
                known.help.review(now, served);
                self.apply_help(now, vm);
            }
        }
    }

    /// Takes note that a helped guest marks its requests.
    pub(crate) fn note_preferred(&mut self, now: Nanos, vm: GroupId) {
        let Some(known) = self.helps.get_mut(vm) else { return };
        let was_awaited = core::mem::take(&mut known.awaits_mark);
        let is_known = known.marks(now) && !was_awaited;
        known.marking = Marking::Seen;
        known.marked = known.marked.max(Some(now));
        if !is_known {
            self.apply_help(now, vm);
        }
    }

    /// Takes note of a read without a mark.
    pub(crate) fn note_unmarked(&mut self, now: Nanos, vm: GroupId) {
        let Some(known) = self.helps.get_mut(vm) else { return };
        if known.applied != Urgency::None && known.marking.miss(now) {
            self.groups.get_mut(vm).queues.speak_until(now);
            self.apply_help(now, vm);
        }
    }

    /// Tells the scheduler how urgent a VM's queues are.
    pub(crate) fn apply_help(&mut self, now: Nanos, vm: GroupId) {
        let Some(known) = self.helps.get_mut(vm) else { return };
        let (urgency, marks) = (known.help.urgency(), known.marks(now));
        known.awaits_mark &= urgency != Urgency::None;
        let awaits_mark = known.awaits_mark;
        let before = core::mem::replace(&mut known.applied, urgency);
        let deadline = known.help.next_deadline();
        let helps = &mut self.helps;
        helps.on += u32::from(urgency != Urgency::None);
        helps.on -= u32::from(before != Urgency::None);
        helps.deadline = [helps.deadline, deadline].into_iter().flatten().min();
        if urgency != Urgency::None || before != Urgency::None {
            for (priority, stream, queue) in self.groups.get(vm).queues.awaited() {
                // What nobody has marked yet is in no stream: a program has just begun to read.
                let may_be_new = awaits_mark && stream == StreamId(None);
                let is_meant = !marks || may_be_new || classify::is_preferred(priority);
                let urgency = if is_meant { urgency } else { Urgency::None };
                self.scheduler.set_urgency(now, queue, urgency);
            }
            let group = self.groups.get(vm).known_as;
            self.scheduler.set_spoken_for(now, group, marks && urgency != Urgency::None);
        }
    }

    /// Returns the help that reaches a request which somebody waits for.
    #[inline]
    pub(crate) fn granted_urgency(&self, now: Nanos, slot: &Slot) -> Urgency {
        if !self.helps.is_any_on() {
            return Urgency::None;
        }
        let vm = self.vm_of(slot.disk);
        match self.helps.vms.get(vm.0 as usize) {
            Some(Some(known)) if !known.marks(now) || classify::is_preferred(slot.priority) => {
                known.applied
            }
            _ => Urgency::None,
        }
    }

    /// Returns what a VM has received so far. Where nobody writes down who holds the device, all
    /// time counts.
    fn served(&mut self, now: Nanos, vm: GroupId) -> Served {
        let time = self.blame.held(now, vm).unwrap_or(now);
        Served { sectors: self.served_sectors(vm), time }
    }

    /// Returns the sectors dispatched for a VM by all elevators.
    pub(crate) fn served_sectors(&self, vm: GroupId) -> u64 {
        let group = self.groups.get(vm);
        group.earlier_sectors + self.scheduler.group_report(group.known_as).service_sectors
    }
}

impl VmHelp {
    fn marks(&self, now: Nanos) -> bool {
        self.marking != Marking::Lost && self.marked.is_some_and(|marked| now < marked + MARKS_FOR)
    }
}
