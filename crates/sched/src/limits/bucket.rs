//! Leaky buckets: what a node's limits are, and how soon one of them lets the next request pass.

use crate::Nanos;

/// One limit: so many units a second, and perhaps a burst above it.
///
/// Zero means no limit. A burst lets through `burst_per_second` x `burst_seconds` units beyond
/// the rate, at most at `burst_per_second`; it is earned back while less than the rate is used.
/// Without one, a tenth of a second's worth may pass at once.
///
/// Source: QEMU documentation, `bps-total`, `bps-total-max`, `bps-total-max-length`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rate {
    /// Bytes or requests a second; 0: no limit.
    pub per_second: u64,
    /// The same during a burst; 0: no burst.
    pub burst_per_second: u64,
    /// How long a burst lasts, in seconds; 0 counts as 1.
    pub burst_seconds: u32,
}

/// The limits of one kind: of both directions together, of reads, of writes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates {
    /// Reads and writes together.
    pub total: Rate,
    /// Reads.
    pub read: Rate,
    /// Writes, discards and write-zeroes.
    pub write: Rate,
}

/// The limits of a node. The default is none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits {
    /// Bytes a second.
    pub bytes: Rates,
    /// Requests a second.
    pub ops: Rates,
    /// A request of n times so many bytes counts as n requests; 0: every request counts as one.
    pub op_bytes: u64,
}

impl Limits {
    /// Returns whether nothing is limited.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.rates().iter().all(|rate| rate.per_second == 0)
    }

    const fn rates(&self) -> [Rate; BUCKETS] {
        let (bytes, ops) = (self.bytes, self.ops);
        [bytes.total, bytes.read, bytes.write, ops.total, ops.read, ops.write]
    }
}

const BUCKETS: usize = 6;
/// The buckets that a direction fills: of bytes and of requests, total and its own.
const FILLED: [[usize; 4]; 2] = [[0, 1, 3, 4], [0, 2, 3, 5]];
/// The first bucket that counts requests.
const FIRST_OF_OPS: usize = 3;
/// Levels are in units times nanoseconds, so that what leaks in a nanosecond is a whole number.
const SECOND: u128 = 1_000_000_000;

/// Returns how many requests a request of `bytes` counts as, in requests times nanoseconds.
pub(super) fn ops_cost(bytes: u64, op_bytes: u64) -> u128 {
    if op_bytes == 0 || bytes <= op_bytes {
        return SECOND;
    }
    u128::from(bytes) * SECOND / u128::from(op_bytes)
}

/// A bucket with a hole: what passes is poured in, and leaks out at the rate.
///
/// A request may pass while the level is not over the brim, whatever its size; so large requests
/// are not starved by small ones, and what passes in a window is at most what leaks in it, the
/// bucket, and one request.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    rate: u64,
    brim: u128,
    level: u128,
    /// A second, small bucket that leaks at the rate of bursts; unused if that is 0.
    burst_rate: u64,
    burst_brim: u128,
    burst_level: u128,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        let per_second = u128::from(rate.per_second);
        let burst_rate = rate.burst_per_second.max(rate.per_second);
        let burst = u128::from(burst_rate);
        let seconds = u128::from(rate.burst_seconds.max(1));
        let bursts = rate.burst_per_second > 0;
        Self {
            rate: rate.per_second,
            brim: if bursts { burst * seconds * SECOND } else { per_second * SECOND / 10 },
            level: 0,
            burst_rate: if bursts && seconds > 1 { burst_rate } else { 0 },
            burst_brim: burst * SECOND / 10,
            burst_level: 0,
        }
    }

    fn leak(&mut self, span: Nanos) {
        let span = u128::from(span.0);
        self.level = self.level.saturating_sub(span * u128::from(self.rate));
        self.burst_level = self.burst_level.saturating_sub(span * u128::from(self.burst_rate));
    }

    fn pour(&mut self, cost: u128) {
        self.level += cost;
        if self.burst_rate > 0 {
            self.burst_level += cost;
        }
    }

    /// Returns how long it takes until the next request may pass.
    fn wait(&self) -> Nanos {
        let over = self.level.saturating_sub(self.brim);
        let burst_over = self.burst_level.saturating_sub(self.burst_brim);
        span(over, self.rate).max(span(burst_over, self.burst_rate))
    }
}

/// Returns how long so much takes to leak, rounded up.
fn span(amount: u128, rate: u64) -> Nanos {
    if amount == 0 {
        return Nanos::ZERO;
    }
    let long = u64::MAX;
    let span = match u64::try_from(amount) {
        Ok(amount) => amount.div_ceil(rate),
        Err(_) => u64::try_from(amount.div_ceil(u128::from(rate))).unwrap_or(long),
    };
    Nanos(span)
}

/// All buckets of a node.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    buckets: [Bucket; BUCKETS],
    op_bytes: u64,
    updated: Nanos,
}

impl Buckets {
    /// Returns empty buckets for `limits`.
    pub(super) fn new(now: Nanos, limits: &Limits) -> Self {
        let buckets = limits.rates().map(Bucket::new);
        Self { buckets, op_bytes: limits.op_bytes, updated: now }
    }

    /// Puts other limits in force. Nobody gets a second burst by it, or pays a long time for what
    /// was allowed before: levels stay, but go down to the new brim.
    pub(super) fn renew(&mut self, now: Nanos, limits: &Limits) {
        self.leak(now);
        let old = core::mem::replace(self, Self::new(now, limits));
        for (bucket, old) in self.buckets.iter_mut().zip(&old.buckets) {
            bucket.level = old.level.min(bucket.brim);
            bucket.burst_level = old.burst_level.min(bucket.burst_brim);
        }
    }

    fn leak(&mut self, now: Nanos) {
        let elapsed = now.since(self.updated);
        self.updated = self.updated.max(now);
        for bucket in self.buckets.iter_mut().filter(|bucket| bucket.rate > 0) {
            bucket.leak(elapsed);
        }
    }

    /// Counts a request of `bytes`.
    pub(super) fn pour(&mut self, now: Nanos, direction: usize, bytes: u64) {
        self.leak(now);
        let ops = ops_cost(bytes, self.op_bytes);
        for index in FILLED[direction] {
            let bucket = &mut self.buckets[index];
            if bucket.rate > 0 {
                bucket.pour(if index < FIRST_OF_OPS { u128::from(bytes) * SECOND } else { ops });
            }
        }
    }

    /// Returns from when on the next request of each direction may pass.
    pub(super) fn ready(&self) -> [Nanos; 2] {
        FILLED.map(|filled| {
            let wait = filled.into_iter().map(|index| self.buckets[index].wait());
            self.updated + wait.max().unwrap_or_default()
        })
    }
}
