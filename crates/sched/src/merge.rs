//! Gluing adjacent requests together.
//!
//! A request may join another only within the same queue, so the tree by sector of that queue
//! finds both candidates in O(log n): the lower neighbour, which may end where the new request
//! begins, and the upper one, which may begin where it ends. No hash of end sectors is needed. (If
//! waiting requests overlap, the neighbour may hide a candidate behind it; then a merge is missed,
//! which costs a command and harms nothing.) In a tree shared by several queues the same holds.
//!
//! Whatever grows together are neighbours in the tree, with nothing in between. So one that begins
//! earlier than before stays where it is in the tree, and is still in order.
//!
//! Age is never lost: of two waiting requests that grow together the one inserted earlier stands
//! for both and keeps its place and its time in the list by age.

use crate::fifo::Fifo;
use crate::sorted::{Sorted, Spot};
use crate::table::Table;
use crate::tree::NIL;
use crate::{Nanos, Request, Tag};

/// How large a merged request may become.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MergeLimits {
    /// Most sectors (512 bytes); larger is more efficient, and keeps others waiting longer.
    pub max_sectors: u32,
    /// Most memory segments; a system call takes at most 1024.
    pub max_segments: u16,
}

impl Default for MergeLimits {
    fn default() -> Self {
        // 1280 KiB is what Linux allows by default; 1024 is IOV_MAX.
        Self { max_sectors: 2560, max_segments: 1024 }
    }
}

/// What an elevator allows when it merges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MergeRules {
    pub(crate) limits: MergeLimits,
    /// Whether a new request may be glued before a waiting one.
    pub(crate) front: bool,
}

/// At which end a waiting request grew.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// It begins earlier now.
    Front,
    /// It ends later now.
    Back,
}

/// What a merge did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Merge {
    /// The request that the new one is a part of now. It waits and is larger than before; it may
    /// begin earlier even if the new request came behind another one (see `absorbed`).
    pub(crate) into: Tag,
    /// Where the new request was glued to the one that it touched.
    pub(crate) end: End,
    /// A second waiting request that the first one reached by growing: it does not wait any more
    /// and is in no list, but a part of `into`.
    pub(crate) absorbed: Option<Tag>,
}

/// Makes a new request a part of a waiting one of the same queue, if it touches one; else it
/// waits on its own from now on, overdue at `fifo_time`, and the answer is nothing.
pub(crate) fn add(
    table: &mut Table,
    (sorted, fifo): (&mut Sorted, &mut Fifo),
    request: &Request,
    fifo_time: Nanos,
    rules: MergeRules,
) -> Option<Merge> {
    table.admit(request, fifo_time);
    let spot = sorted.spot(table, request.pos, request.end());
    if let Some(touched) = touched(table, &spot, request, rules) {
        let new = request.tag.0;
        return Some(merge(table, (sorted, fifo), &spot, (new, touched), rules.limits));
    }
    sorted.insert_at(table, &spot, request.tag.0);
    fifo.push(table, request.tag.0);
    None
}

/// Returns which neighbour a new request touches and may be merged with.
#[inline]
fn touched(table: &Table, spot: &Spot, request: &Request, rules: MergeRules) -> Option<(u32, End)> {
    if !request.op.is_mergeable() {
        return None;
    }
    let new = request.tag.0;
    let back = spot.met_below().filter(|&below| touch(table, below, new, rules.limits));
    let front = || {
        let above = spot.met_above().filter(|_| rules.front)?;
        touch(table, new, above, rules.limits).then_some((above, End::Front))
    };
    back.map(|below| (below, End::Back)).or_else(front)
}

/// Makes `new` a part of `touched`, and glues that to the next one if it reaches it now.
fn merge(
    table: &mut Table,
    (sorted, fifo): (&mut Sorted, &mut Fifo),
    spot: &Spot,
    (new, (touched, end)): (u32, (u32, End)),
    limits: MergeLimits,
) -> Merge {
    let (lower, upper) = if end == End::Back { (touched, new) } else { (new, touched) };
    join(table, sorted, (lower, upper), touched);
    let absorbed = match (end, spot.above(), spot.below()) {
        (End::Back, Some(above), _) if touch(table, touched, above, limits) => above,
        (End::Front, _, Some(below)) if touch(table, below, touched, limits) => below,
        _ => return Merge { into: Tag(touched), end, absorbed: None },
    };
    chain(table, (sorted, fifo), (touched, absorbed), end)
}

/// Glues the waiting request `grown` to the waiting one that it reached by growing at `end`.
fn chain(
    table: &mut Table,
    (sorted, fifo): (&mut Sorted, &mut Fifo),
    (grown, reached): (u32, u32),
    end: End,
) -> Merge {
    let (lower, upper) = if end == End::Back { (grown, reached) } else { (reached, grown) };
    let grown_stays = table.record(grown).is_older_than(table.record(reached));
    let (stays, goes) = if grown_stays { (grown, reached) } else { (reached, grown) };
    sorted.remove(table, goes);
    fifo.remove(table, goes);
    join(table, sorted, (lower, upper), stays);
    Merge { into: Tag(stays), end, absorbed: Some(Tag(goes)) }
}

/// Returns whether two waiting requests may become one.
#[inline]
fn touch(table: &Table, lower: u32, upper: u32, limits: MergeLimits) -> bool {
    let (lower, upper) = (table.record(lower), table.record(upper));
    let sectors = u64::from(lower.nr_sectors) + u64::from(upper.nr_sectors);
    let segments = u32::from(lower.segments) + u32::from(upper.segments);
    lower.end() == upper.pos
        && lower.queue == upper.queue
        && lower.flavour == upper.flavour
        && sectors <= u64::from(limits.max_sectors)
        && segments <= u32::from(limits.max_segments)
}

/// Makes one request of two; `stays`, one of them, stands for both and is the only one sorted.
fn join(table: &mut Table, sorted: &mut Sorted, (lower, upper): (u32, u32), stays: u32) {
    let before = table.record(stays).pos;
    let goes = if stays == lower { upper } else { lower };
    let (below, above) = (table.record(lower), table.record(upper));
    let pos = below.pos;
    let nr_sectors = below.nr_sectors + above.nr_sectors;
    let segments = below.segments + above.segments;
    let (lower_last, upper_last) = (below.last_part, above.last_part);
    let lower_first = table.record(lower_last).next_part;
    let upper_first = table.record(upper_last).next_part;
    table.record_mut(lower_last).next_part = upper_first;
    table.record_mut(upper_last).next_part = lower_first;
    table.record_mut(goes).last_part = NIL;
    table.record_mut(lower_last).last_part = NIL;
    table.record_mut(upper_last).last_part = upper_last;
    table.absorb(goes);
    let whole = table.record_mut(stays);
    whole.last_part = upper_last;
    whole.pos = pos;
    whole.nr_sectors = nr_sectors;
    whole.segments = segments;
    sorted.grown(table, stays, before);
}
