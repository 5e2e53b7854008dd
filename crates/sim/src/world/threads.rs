//! The threads of QEMU that serve the requests of one VM with blocking system calls.
//!
//! Requests of a virtual disk come to a list; idle threads take from it, and when there is none a
//! new one is made. To the host's elevator each thread is a process of its own, so a stream of the
//! guest is dealt out to several queues like cards (D3.6, section 9.2).
//!
//! Source: QEMU, `util/thread-pool.c`, for the numbers.

use std::collections::VecDeque;

use evenkeel_sched::Nanos;

/// Most threads of one VM.
const MOST: u32 = 64;
/// A thread without work ends after this time.
const LINGER: Nanos = Nanos::from_secs(10);

/// A thread of the pool, by its source in the host's block layer.
#[derive(Clone, Copy, Debug)]
struct Idle {
    source: u32,
    since: Nanos,
}

/// Who takes a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Taker {
    /// This thread.
    Thread(u32),
    /// Nobody is free: make a thread and start it with [`ThreadPool::starts`].
    New,
    /// Nobody is free, and no more threads are made; the request waits.
    Later,
}

/// The threads of one VM. Idle ones wait in line: who has waited longest is woken first.
#[derive(Debug, Default)]
pub(crate) struct ThreadPool {
    idle: VecDeque<Idle>,
    threads: u32,
    waiting: VecDeque<u32>,
}

impl ThreadPool {
    /// Returns who takes the request `tag`.
    pub(crate) fn submit(&mut self, tag: u32) -> Taker {
        if let Some(idle) = self.idle.pop_front() {
            Taker::Thread(idle.source)
        } else if self.threads < MOST {
            Taker::New
        } else {
            self.waiting.push_back(tag);
            Taker::Later
        }
    }

    /// Counts a thread that was made.
    pub(crate) const fn starts(&mut self) {
        self.threads += 1;
    }

    /// Says that a thread is done with its request; returns the next one for it.
    pub(crate) fn done(&mut self, now: Nanos, source: u32) -> Option<u32> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.idle.push_back(Idle { source, since: now });
        }
        next
    }

    /// Returns a thread that has ended for want of work; call until `None`.
    pub(crate) fn ended(&mut self, now: Nanos) -> Option<u32> {
        let idle = self.idle.front().filter(|idle| now.since(idle.since) > LINGER)?.source;
        self.idle.pop_front();
        self.threads -= 1;
        Some(idle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_made_when_all_are_busy_taken_in_turn_and_end_when_idle() {
        let mut pool = ThreadPool::default();
        for source in 0..MOST {
            assert_eq!(pool.submit(source), Taker::New);
            pool.starts();
        }
        assert_eq!(pool.submit(99), Taker::Later);
        assert_eq!(pool.done(Nanos(0), 5), Some(99), "who waits is served before anybody rests");
        assert_eq!((pool.done(Nanos(1), 5), pool.done(Nanos(2), 3)), (None, None));
        assert_eq!(pool.submit(1), Taker::Thread(5));
        assert_eq!(pool.ended(Nanos::from_secs(10)), None);
        assert_eq!(pool.ended(Nanos::from_secs(11)), Some(3));
        assert_eq!(pool.ended(Nanos::from_secs(11)), None);
    }
}
