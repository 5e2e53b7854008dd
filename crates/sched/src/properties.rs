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
//! | T3.1 .. T3.7 | batches, starvation, deadlines, classes | `tests/elevators/deadline.rs`, `model.rs` |
//! | T4.1 .. T4.5 | waits, who is waited for, batches | `tests/elevators/anticipatory.rs` |
//! | T5.1 .. T5.5 | time by level and weight, rounds, classes, quantum | `tests/elevators/cfq.rs` |
//! | T7.1 .. T7.4 | tokens, turns, depths, order | `kyber/tests.rs`, `tests/elevators/kyber.rs` |
//! | T8.1 .. T8.7 | reservations and limits | `limits/tests.rs` |
//! | E1 .. E3, E6 .. E8, E10 | trees, sums, places, budgets agree | `wf2q/check.rs`, after every step of `wf2q/tests.rs` |
//! | E4 | virtual time never steps back | `wf2q/tests.rs` |
//! | E5, E9 | who is next; groups pay what children get | `wf2q/tests.rs`, against `wf2q/model.rs` |
//! | E11 | who is not ahead is forgotten | `wf2q/properties.rs` |
//! | P1, P3 | lead and lag | `wf2q/deviation.rs` |
//! | P2, P4 | sleepers; the idle class | `wf2q/properties.rs` |
//! | P5 | what is moved is charged | `Wf2q::serve`, in every random history |
//! | P6 | slow queues share time | `tests/bfq_shares.rs` |
//! | P7 | who never pays for time | `bfq/histories/slots.rs` |
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
//! | B14 | weights hold | `tests/bfq_shares.rs` |
//! | X1, X2 | as T1.1, for all elevators | `tests/elevators/conservation.rs` |
//! | X3, X4 | overlapping writes, flushes | `crates/engine`: `claims.rs`, `tests/histories.rs` |
//! | X5 | bounded memory | `tests/allocations.rs` |
//! | X6 | deadlines lie ahead; asking in vain changes nothing | `tests/elevators/conservation.rs` |
//! | X7 | time jumps | `tests/elevators/conservation.rs`, `bfq/tests/jumps.rs` |
//! | X8 | nothing overflows, virtual time wraps | `wf2q/tests.rs`, `wf2q/properties.rs` |

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
