//! The promises of this room and the tests that hold it to them, by the numbers that comments and
//! assertions use; and the tests that belong nowhere else.
//!
//! | promise | in short | test |
//! |---|---|---|
//! | T1.1 | every request comes out once, nothing is mixed | `tests/elevators/conservation.rs` |
//! | T1.2 | merging makes nobody older wait longer | `merged_requests_are_as_old_as_their_oldest_part` |
//! | T1.3 | the choice between two does not depend on their order | `choose.rs` |
//! | T1.4 | a sweep visits everybody and wraps once | `table.rs` |
//! | T1.5 | tree, fifo and hash hold the same | `Table::check`, in every random history |
//! | T2.1, T2.2 | first come, first served; never idle | `tests/elevators/noop.rs` |
//! | T3.1 .. T3.7 | batches, starvation, deadlines, classes | `tests/elevators/deadline_random.rs`; all of it in `model.rs` |
//! | T4.1 | no wait is longer than it may be | `an_idle_device_never_waits_longer_than_allowed` |
//! | T4.2, T4.3 | who is waited for, and until when | `who_thinks_for_as_long_as_the_wait_at_most_..` |
//! | T4.4, T4.5 | exits teach; batches of writes | `tests/elevators/anticipatory_random.rs` |
//! | T5.1, T5.3 | time by level | `time_follows_the_slices_whatever_requests_cost` |
//! | T5.2 | rounds | `a_round_takes_the_target_latency_..` |
//! | T5.4, T5.5 | classes, quantum | `tests/elevators/cfq_random.rs` |
//! | T7.1, T7.3 | tokens, depths | `kyber/tests.rs` |
//! | T7.2, T7.4 | turns, order | `tests/elevators/kyber.rs` |
//! | T8.1, T8.5, T8.7 | reservations | `reservations_are_kept_while_somebody_waits_..` |
//! | T8.2 | limits | `in_every_window_every_limit_holds_and_nothing_is_lost` |
//! | T8.3 | who shares a limit shares it by weight | `limits/histories.rs` |
//! | T8.4 | no phase of weights here: weights are the elevator's | B14 |
//! | T8.6 | tags of requests that were due never fall | `limits/histories.rs` |
//! | E1 .. E3, E6 .. E8, E10 | trees, sums, places, budgets agree | `wf2q/check.rs`, after every step of `wf2q/tests.rs` |
//! | E4 | virtual time never steps back | `wf2q/tests.rs` |
//! | E5, E9 | who is next; groups pay what children get | `wf2q/tests.rs`, against `wf2q/model.rs` |
//! | E11 | who is not ahead is forgotten | `wf2q/properties.rs` |
//! | P1, P3 | lead and lag | `wf2q/deviation.rs` |
//! | P2, P4 | sleepers; the idle class | `wf2q/properties.rs` |
//! | P5 | what is moved is charged | `Wf2q::serve`, in every random history |
//! | P6, P7 | slow queues share time; who never pays for it, unless a raise outgrew its credit | `bfq/histories/slots.rs` |
//! | P8 .. P10 | the estimate of the rate | `bfq/rate.rs` |
//! | P11 | the largest budget follows it | `bfq/histories/slots.rs` |
//! | P12 .. P18 | raises and bursts | `bfq/tests/` |
//! | P19 .. P23 | waits and injection | `bfq/histories/` |
//! | P24, P25 | the limit of injection | `bfq/inject.rs` |
//! | P26 .. P29 | merged queues | `bfq/histories/merging.rs`, and `bfq/merging.rs` after every step |
//! | B1 .. B4, B9, B15 | counts, places, waits, weights | `bfq/check.rs`, after every step of every random history |
//! | B5 .. B8 | budgets and slots | `bfq/histories/slots.rs` |
//! | B10 | places are counted and come back | `bfq/check.rs` |
//! | B11 | nobody starves | the lag of `wf2q/deviation.rs`; P4 |
//! | B12 | nobody waits without a reason | `bfq/histories/waiting.rs` |
//! | B13 | the same history gives the same order | `tests/bfq_random.rs` |
//! | B14 | weights hold | `bfq/histories/fairness.rs`, at length in `tests/bfq_shares.rs` |
//! | X1, X2 | as T1.1, for all elevators | `tests/elevators/conservation.rs` |
//! | X3, X4 | overlapping writes, flushes | `crates/engine`: `claims.rs`, `tests/histories.rs` |
//! | X5 | bounded memory | `tests/allocations.rs` |
//! | X6 | deadlines lie ahead; asking in vain changes nothing | `tests/elevators/conservation.rs` |
//! | X7 | time jumps | `tests/elevators/conservation.rs`, `bfq/tests/jumps.rs` |
//! | X8 | nothing overflows, virtual time wraps | `wf2q/tests.rs`, `wf2q/properties.rs` |
//!
//! Random tests try 10 000 cases, and `EVENKEEL_CASES` changes that; the deviations of P1 and P3 are
//! measured in a million slots each, whatever it says.
//!
//! Some promises do not hold in the words in which they are usually made. What is held instead is the
//! most that is true:
//!
//! - T3.3, the wait of an overdue read: with `writes_starved` 0, whose rule is that writes go first,
//!   there is none. Otherwise the k-th overdue one waits for what is left of the batch under way,
//!   for a batch of reads for each before it, and for one of writes before every `writes_starved` of
//!   these.
//! - T3.5, who is aged goes next: of several aged requests one does, and those of the better class
//!   go first. While only one class has requests, being aged means nothing.
//! - T5.2, a round within the target latency: that counts on slices of level 4, and a better level has
//!   up to 1.8 times as much. Queues of one level have their turn within the sum of their slices; one
//!   of a worse level is also passed by better ones for as long as its place lies behind theirs,
//!   which no target shortens. A slice ends no earlier than the second request of its queue, and what
//!   is at the device then comes on top. All queues do one kind of work: between kinds a turn is by
//!   workload.
//! - T8.3, the excess in proportion to weights: virtual time has twelve fractional bits, so of each
//!   request less than 1/4096 of a sector for each unit of weight is forgotten.
//! - T8.6, tags fall by the credit alone: a request that the elevator chose gives back its own cost,
//!   but what arrived late may have been more expensive than those behind it. So the test compares
//!   with a history without the requests that the elevator chose: what is due is due at the same
//!   time.
//!
//! The vectors of the specification:
//!
//! | vector | test |
//! |---|---|
//! | the choice between two requests | `the_six_known_choices_come_out` |
//! | a trace of B-WF2Q+, and a slot cut short | `three_backlogged_queues_follow_the_trace`, `a_slot_cut_short_is_stamped_..` |
//! | think times | `the_known_think_times_come_out`, `think_time_follows_the_vectors` |
//! | the peak rate | `the_filter_matches_the_vectors`, `budget_and_raise_duration_follow_the_peak` |
//! | budgets | `budgets_follow_the_vectors`, `too_idle_takes_eight_slots_to_the_minimum` |
//! | time charges | `time_charges_follow_the_vectors` |
//! | soft real time | `the_earliest_next_batch_follows_the_vectors` |
//! | slices of CFQ | `the_known_slices_come_out`, `slices_shrink_to_fit_the_target_..` |
//! | depths of Kyber | `the_known_depths_come_out` |
//! | shares of the tags | none: places at the device are limited instead, see `bfq/slots.rs` |
//! | limits of injection | `the_limit_follows_the_vectors` |
//! | tags of mClock | `tags_follow_the_vector` |
//! | batches of deadline | `a_fresh_elevator_starts_with_writes_..`, `by_the_legacy_rules_a_fresh_..` |

use std::collections::BTreeMap;

use crate::merge::{MergeLimits, MergeRules};
use crate::table::{SortList, Table};
use crate::testing::{Random, for_many_seeds};
use crate::{Nanos, Op, QueueId, Request, Tag};

/// T1.2.
#[test]
fn merged_requests_are_as_old_as_their_oldest_part() {
    for_many_seeds(10_000, |seed| {
        let mut random = Random::new(seed);
        let limits = MergeLimits { max_sectors: 64, max_segments: 1024 };
        let rules = MergeRules { limits, front: random.below(4) > 0 };
        let (mut table, mut list) = (Table::default(), SortList::default());
        let mut ages = BTreeMap::new();
        for tag in 0..24 {
            let since = Nanos(u64::from(tag));
            let (tag, pos) = (Tag(tag), random.below(40) * 4);
            let nr_sectors = 4 << random.below(2);
            let (op, queue) = (Op::Read, QueueId(0));
            let request = Request { tag, queue, op, pos, nr_sectors, segments: 1, sync: true };
            ages.insert(tag, since);
            let merge = list.add(&mut table, &request, since, rules);
            table.check();
            list.check(&table);
            let Some(merge) = merge else { continue };
            let first = table.first_part(merge.into);
            let parts = core::iter::successors(Some(first), |&part| table.next_part(part));
            let oldest = parts.map(|part| ages[&part]).min();
            assert_eq!(Some(table.get(merge.into).fifo_time), oldest);
        }
    });
}
