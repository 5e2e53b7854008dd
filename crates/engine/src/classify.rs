//! Which queue a request belongs to.
//!
//! A queue shall come as close to one application of the guest as the evidence allows. The
//! evidence is the I/O priority that Linux guests write into every request, the direction, whether
//! a flush soon waits for a write, and whether a read continues others.

use evenkeel_sched::{Class, Nanos, Priority, QueueId};

use crate::streams::{Reading, Seat, StreamId, StreamSet, Streams};

/// Reads the priority word of a virtio-blk header.
///
/// Linux fills it with `class << 13 | level`; class 1 is real time, 2 best effort, 3 idle. Zero,
/// and everything unknown, means "not said": best effort 4, never "lowest". A hint from a guest,
/// valid only among the queues of its own VM.
///
/// Source: measured on Linux 6.1 guests; `include/uapi/linux/ioprio.h` for the encoding.
#[must_use]
pub(crate) fn priority(word: u32) -> Priority {
    let level = u8::try_from(word & 7).expect("three bits");
    let class = match word >> 13 {
        1 => Class::RealTime,
        2 => Class::BestEffort,
        3 => Class::Idle,
        _ => return Priority::default(),
    };
    Priority { class, level }
}

/// Returns whether a guest marks such requests as more important than others.
pub(crate) fn is_preferred(priority: Priority) -> bool {
    match priority.class {
        Class::RealTime => true,
        Class::BestEffort => priority.level < Priority::default().level,
        Class::Idle => false,
    }
}

/// Returns the number of a priority: 0 to 23, the most important first.
pub(crate) fn number(priority: Priority) -> u8 {
    let class = match priority.class {
        Class::RealTime => 0,
        Class::BestEffort => 1,
        Class::Idle => 2,
    };
    class * 8 + priority.level.min(7)
}

/// Returns the number of the priority that whoever reads with this one has without a mark.
fn number_unmarked(priority: Priority) -> u8 {
    number(if is_preferred(priority) { Priority::default() } else { priority })
}

fn numbered(number: u8) -> Priority {
    let class = [Class::RealTime, Class::BestEffort, Class::Idle][usize::from(number / 8)];
    Priority { class, level: number % 8 }
}

const PRIORITIES: usize = 24;

/// The queues of one VM, made when first needed: one for each priority and kind, and one for each
/// priority and stream.
#[derive(Clone, Debug)]
pub(crate) struct VmQueues {
    sync: [[Option<QueueId>; StreamId::NAMES]; PRIORITIES],
    write_back: [Option<QueueId>; PRIORITIES],
    streams: Streams,
    /// Whether the guest's I/O priorities count.
    pub(crate) heeds_priority: bool,
}

impl Default for VmQueues {
    fn default() -> Self {
        Self {
            sync: [[None; StreamId::NAMES]; PRIORITIES],
            write_back: [None; PRIORITIES],
            streams: Streams::default(),
            heeds_priority: true,
        }
    }
}

impl VmQueues {
    /// Returns the stream that a read belongs to, and whether it starts something; remembers it.
    /// `pos` is its first sector on the pool's address space, so that disks of the VM are told
    /// apart.
    pub(crate) fn stream(
        &mut self,
        now: Nanos,
        priority: Priority,
        pos: u64,
        nr_sectors: u32,
    ) -> Reading {
        if is_preferred(priority) {
            // Together they are what somebody waits for. When the mark is taken back, its reader goes
            // on, and does not start.
            return self.streams.on_marked(now, number_unmarked(priority), pos);
        }
        let reading = self.streams.on_read(now, number(priority), pos, nr_sectors);
        if reading.settles {
            self.settle_crowd(priority);
        }
        reading
    }

    /// Says that until then an agent of the guest tells what starts there.
    pub(crate) fn speak_until(&mut self, until: Nanos) {
        self.streams.speak_until(until);
    }

    /// Notes that such a read is over.
    pub(crate) fn read_is_done(&mut self, now: Nanos, seat: Seat, priority: Priority, pos: u64) {
        self.streams.on_done(now, seat, number_unmarked(priority), pos);
    }

    /// Returns the place of the queue for `priority` and `sync`; only what somebody waits for is
    /// told apart by `stream`.
    pub(crate) fn slot(
        &mut self,
        priority: Priority,
        sync: bool,
        stream: StreamId,
    ) -> &mut Option<QueueId> {
        let priority = usize::from(number(priority));
        if sync {
            &mut self.sync[priority][place_of(stream)]
        } else {
            &mut self.write_back[priority]
        }
    }

    /// Returns the queues of streams, as far as they have any.
    pub(crate) fn of_streams(&self, priority: Priority, streams: StreamSet) -> Vec<QueueId> {
        let queues = &self.sync[usize::from(number(priority))];
        streams.iter().filter_map(|stream| queues[place_of(stream)]).collect()
    }

    /// Lets the crowd keep the queue of those of whom nothing was known; they get what was the crowd's.
    fn settle_crowd(&mut self, priority: Priority) {
        let queues = &mut self.sync[usize::from(number(priority))];
        queues.swap(place_of(StreamId(None)), place_of(StreamId::CROWD));
    }

    /// Returns every queue made so far that somebody waits for, with its priority and stream.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (Priority, StreamId, QueueId)> {
        self.sync.iter().zip(0..).flat_map(|(queues, priority)| {
            let streams = core::iter::once(None).chain((0..).map(Some)).map(StreamId);
            let queues = queues.iter().zip(streams);
            queues.filter_map(move |(queue, stream)| {
                queue.map(|queue| (numbered(priority), stream, queue))
            })
        })
    }

    /// Forgets every queue: the elevator that made them is gone.
    pub(crate) fn forget(&mut self) {
        *self = Self { heeds_priority: self.heeds_priority, ..Self::default() };
    }

    /// Returns every queue made so far.
    pub(crate) fn iter(&self) -> impl Iterator<Item = QueueId> {
        self.sync.as_flattened().iter().chain(&self.write_back).flatten().copied()
    }
}

/// Returns where the queue of a stream is among those of its priority.
fn place_of(stream: StreamId) -> usize {
    stream.0.map_or(0, |id| usize::from(id) + 1)
}

/// Tells writes that somebody waits for from write-back.
///
/// virtio-blk does not mark them. A guest that waits for its writes (a journal commit, a database)
/// sends few of them between two flushes; write-back sends many and flushes rarely. So while short
/// bursts end in flushes, writes are synchronous; the first long burst ends that.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushHabit {
    writes_since_flush: u32,
    short_bursts: bool,
}

impl FlushHabit {
    /// Notes a write; returns whether somebody probably waits for it.
    pub(crate) fn on_write(&mut self) -> bool {
        self.writes_since_flush = self.writes_since_flush.saturating_add(1);
        if self.writes_since_flush > SHORT_BURST_WRITES {
            self.short_bursts = false;
        }
        self.short_bursts
    }

    /// Notes a flush.
    pub(crate) fn on_flush(&mut self) {
        self.short_bursts = self.writes_since_flush <= SHORT_BURST_WRITES;
        self.writes_since_flush = 0;
    }
}

/// Most writes in a burst that somebody waits for: an ext4 journal commit of a small fsync takes 2
/// to 10 requests, a database page flush a few more.
const SHORT_BURST_WRITES: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_priority_that_linux_guests_send_is_understood() {
        let expect = |word, class, level| assert_eq!(priority(word), Priority { class, level });
        expect(0x2000, Class::RealTime, 0);
        expect(0x2007, Class::RealTime, 7);
        expect(0x4000, Class::BestEffort, 0);
        expect(0x4007, Class::BestEffort, 7);
        expect(0x6000, Class::Idle, 0);
    }

    #[test]
    fn unknown_priorities_count_as_the_default() {
        for word in [0, 4, 0x8000, 0xffff_ffff, 0x1_4000] {
            assert_eq!(priority(word), Priority::default(), "{word:#x}");
        }
    }

    #[test]
    fn a_vm_tells_its_awaited_queues_with_their_priorities() {
        let mut queues = VmQueues::default();
        let priorities = [
            (Class::RealTime, 7),
            (Class::BestEffort, 0),
            (Class::BestEffort, 4),
            (Class::Idle, 7),
        ]
        .map(|(class, level)| Priority { class, level });
        for (priority, id) in priorities.into_iter().zip(0..) {
            *queues.slot(priority, true, StreamId(None)) = Some(QueueId(id));
            *queues.slot(priority, false, StreamId(None)) = Some(QueueId(100 + id));
        }
        *queues.slot(priorities[3], true, StreamId(Some(1))) = Some(QueueId(7));
        let mut expected: Vec<_> = priorities
            .into_iter()
            .zip(0..)
            .map(|(priority, id)| (priority, StreamId(None), QueueId(id)))
            .collect();
        expected.push((priorities[3], StreamId(Some(1)), QueueId(7)));
        assert_eq!(queues.awaited().collect::<Vec<_>>(), expected);
        let preferred = expected.iter().filter(|(priority, ..)| is_preferred(*priority));
        assert_eq!(preferred.count(), 2);
    }

    #[test]
    fn short_bursts_before_flushes_are_synchronous_until_a_long_one() {
        let mut habit = FlushHabit::default();
        assert!(!habit.on_write());
        habit.on_flush();
        for _ in 0..SHORT_BURST_WRITES {
            assert!(habit.on_write());
        }
        assert!(!habit.on_write());
        habit.on_flush();
        assert!(!habit.on_write());
        habit.on_flush();
        assert!(habit.on_write());
    }
}
