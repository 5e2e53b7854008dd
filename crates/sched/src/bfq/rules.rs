//! What differs from Linux by choice, and how to get Linux back.
//!
//! One field for each decision of the module's list that can be taken back; the numbers are those
//! of that list. `docs/scheduling.md` has the whole table, with what cannot be taken back and why.

use crate::wf2q::Policy;

/// The rules in force.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// 1: a raise lifts the groups above, and sets their lead aside meanwhile.
    pub(super) raise_goes_up: bool,
    /// 2: queues of any level are raised, not only those of level 4.
    pub(super) any_level_is_raised: bool,
    /// 5, 8 and 9: on a device that queues by itself and does not rotate, queues overlap.
    pub(super) flash_overlaps: bool,
    /// 6: a queue that paused continues even if its budget was used up.
    pub(super) spent_continues: bool,
    /// 7: a queue whose requests are stuck at the device is left when its slot times out.
    pub(super) stuck_times_out: bool,
    /// 8: the threshold of slowness follows the length of the slot.
    pub(super) slow_follows_length: bool,
    /// 9: time is charged by the timeout in force, not by 125 ms.
    pub(super) charge_follows_timeout: bool,
    /// 10: preemption compares where paths part, and asks who would be next there.
    pub(super) preempts_where_paths_part: bool,
    /// 12: on a rotating device the slot's clock waits for the head.
    pub(super) clock_waits_for_head: bool,
    /// 13: the device holds little, and merged requests are kept short on slow devices.
    pub(super) device_holds_little: bool,
    /// 14: the peak rate counts long requests by their length, idleness from the last completion,
    /// and believes more than 10 GB/s.
    pub(super) rate_counts_length: bool,
    /// 15: an overdue wait ended when it was due.
    pub(super) waits_end_when_due: bool,
    /// 26: the first arrival at a queue, and one after a silence that makes it a start, say nothing
    /// about its think time; one that was waited for does.
    pub(super) think_time_is_exact: bool,
    /// 21: injected requests pay for the delay that they cause.
    pub(super) delay_is_paid: bool,
    /// 27: a long wait for a queue that was never measured lets one request of others in.
    pub(super) long_waits_let_one_in: bool,
    /// 28: nothing is injected while a raised queue is waited for that thinks for less than half of
    /// the longest wait.
    pub(super) raised_are_left_alone: bool,
    /// 30: raised queues take turns of one timeout.
    pub(super) raised_take_turns: bool,
    /// 31: what arrives does not go before an overdue request that is next, and a long slot looks
    /// for one in every timeout.
    pub(super) overdue_stay_next: bool,
    /// 33: a queue that turns busy and is raised alone keeps the device for a while whatever its
    /// budget, and need not sit out its lead.
    pub(super) raised_keep_device: bool,
    /// 34: who wakes others has nothing more to do then, and is given up when they come without it.
    pub(super) wakers_have_done: bool,
    /// 35: who has waited for long while raised queues were served is relieved.
    pub(super) nobody_starves: bool,
    /// 37: a start may go on in other queues of its group, which are waited for together.
    pub(super) starts_go_on: bool,
    /// 38: who never pauses is soon no program that starts.
    pub(super) starts_pause: bool,
    /// 43: a group stays lifted for a moment when what starts in it pauses.
    pub(super) pauses_are_bridged: bool,
    /// How the engine below decides.
    pub(super) engine: Policy,
}

impl Rules {
    /// What this module promises.
    const OURS: Self = Self {
        raise_goes_up: true,
        any_level_is_raised: true,
        flash_overlaps: true,
        spent_continues: true,
        stuck_times_out: true,
        slow_follows_length: true,
        charge_follows_timeout: true,
        preempts_where_paths_part: true,
        clock_waits_for_head: true,
        device_holds_little: true,
        rate_counts_length: true,
        waits_end_when_due: true,
        think_time_is_exact: true,
        delay_is_paid: true,
        long_waits_let_one_in: true,
        raised_are_left_alone: true,
        raised_take_turns: true,
        overdue_stay_next: true,
        raised_keep_device: true,
        wakers_have_done: true,
        nobody_starves: true,
        starts_go_on: true,
        starts_pause: true,
        pauses_are_bridged: true,
        engine: Policy::Exact,
    };
    /// What Linux does.
    const LINUX: Self = Self {
        raise_goes_up: false,
        any_level_is_raised: false,
        flash_overlaps: false,
        spent_continues: false,
        stuck_times_out: false,
        slow_follows_length: false,
        charge_follows_timeout: false,
        preempts_where_paths_part: false,
        clock_waits_for_head: false,
        device_holds_little: false,
        rate_counts_length: false,
        waits_end_when_due: false,
        think_time_is_exact: false,
        delay_is_paid: false,
        long_waits_let_one_in: false,
        raised_are_left_alone: false,
        raised_take_turns: false,
        overdue_stay_next: false,
        raised_keep_device: false,
        wakers_have_done: false,
        nobody_starves: false,
        starts_go_on: false,
        starts_pause: false,
        pauses_are_bridged: false,
        engine: Policy::Kernel,
    };

    /// Returns the rules that `kernel_compat` stands for.
    pub(super) const fn new(kernel_compat: bool) -> Self {
        if kernel_compat { Self::LINUX } else { Self::OURS }
    }
}
