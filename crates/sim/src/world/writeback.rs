//! Write-back: written data waits in memory until there is too much of it, or it is old.
//!
//! Picture a sink below a tap. Up to a first mark nothing happens; above it the drain opens (the
//! flusher writes); at the second mark whoever pours has to wait. The drain fills every request
//! slot there is, so others find the door blocked (D3.6, section 8.1).
//!
//! Source: Linux documentation, "/proc/sys/vm", `dirty_background_ratio`, `dirty_ratio`,
//! `dirty_expire_centisecs`, for the rules.

use std::collections::VecDeque;

use evenkeel_sched::Nanos;

use super::cache::Span;

/// Largest write of the flusher, in sectors: 512 KiB.
const WRITE: u64 = 1024;
/// The flusher goes on to the next file after so many sectors: 4 MiB.
const TURN: u64 = 8192;
/// Data older than this is written whatever the marks say.
const OLD: Nanos = Nanos::from_secs(30);

/// The marks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WritebackModel {
    /// Above so many dirty sectors the flusher works.
    pub background_sectors: u64,
    /// Above so many dirty sectors writers wait.
    pub limit_sectors: u64,
    /// Most writes that the flusher has outstanding; more than the slots of the block layer.
    pub outstanding: u32,
}

impl WritebackModel {
    /// Returns the marks of a kernel with so much memory: 10 % and 20 %.
    #[must_use]
    pub const fn of_memory(memory_sectors: u64) -> Self {
        Self {
            background_sectors: memory_sectors / 10,
            limit_sectors: memory_sectors / 5,
            outstanding: 136,
        }
    }
}

/// Dirty data of one file, oldest first.
#[derive(Debug)]
struct File {
    owner: u32,
    spans: VecDeque<(Span, Nanos)>,
}

/// The state of one kernel's write-back.
#[derive(Debug)]
pub(crate) struct Writeback {
    model: WritebackModel,
    files: Vec<File>,
    /// The file whose turn it is, and what is left of the turn.
    turn: usize,
    left: u64,
    /// Sectors that wait for the flusher, and those being written.
    waiting: u64,
    writing: u64,
    outstanding: u32,
}

impl Writeback {
    pub(crate) fn new(model: WritebackModel) -> Self {
        Self {
            model,
            files: Vec::new(),
            turn: 0,
            left: TURN,
            waiting: 0,
            writing: 0,
            outstanding: 0,
        }
    }

    fn file(&mut self, owner: u32) -> &mut File {
        let index = match self.files.iter().position(|file| file.owner == owner) {
            Some(index) => index,
            None => {
                self.files.push(File { owner, spans: VecDeque::new() });
                self.files.len() - 1
            }
        };
        &mut self.files[index]
    }

    /// Takes data that a process wrote; it is all of one file.
    pub(crate) fn dirty(&mut self, now: Nanos, owner: u32, span: Span) {
        let spans = &mut self.file(owner).spans;
        match spans.back_mut() {
            Some((last, _)) if last.end == span.start && last.len() < TURN => last.end = span.end,
            _ => spans.push_back((span, now)),
        }
        self.waiting += span.len();
    }

    /// Returns whether writers have to wait.
    pub(crate) const fn is_full(&self) -> bool {
        self.waiting + self.writing > self.model.limit_sectors
    }

    fn has_old(&self, now: Nanos) -> bool {
        let old = |file: &File| file.spans.front().is_some_and(|(_, at)| now.since(*at) > OLD);
        self.files.iter().any(old)
    }

    /// Returns the next write of the flusher; none if it has no reason to write or enough to do.
    pub(crate) fn next(&mut self, now: Nanos) -> Option<Span> {
        let model = self.model;
        if self.waiting == 0 || self.outstanding >= model.outstanding {
            return None;
        }
        if self.waiting + self.writing <= model.background_sectors && !self.has_old(now) {
            return None;
        }
        if self.left == 0 || self.files[self.turn].spans.is_empty() {
            self.left = TURN;
            let count = self.files.len();
            let others = (1..=count).map(|step| (self.turn + step) % count);
            self.turn = others.into_iter().find(|&index| !self.files[index].spans.is_empty())?;
        }
        let span = take(&mut self.files[self.turn].spans)?;
        self.left = self.left.saturating_sub(span.len());
        self.outstanding += 1;
        self.count_writing(span);
        Some(span)
    }

    /// Returns the next write of what one process has written, for that process to wait for.
    pub(crate) fn take_of(&mut self, owner: u32) -> Option<Span> {
        let span = take(&mut self.file(owner).spans)?;
        self.count_writing(span);
        Some(span)
    }

    const fn count_writing(&mut self, span: Span) {
        self.waiting -= span.len();
        self.writing += span.len();
    }

    /// Says that a write has ended.
    pub(crate) const fn written(&mut self, span: Span, by_flusher: bool) {
        self.writing -= span.len();
        if by_flusher {
            self.outstanding -= 1;
        }
    }
}

fn take(spans: &mut VecDeque<(Span, Nanos)>) -> Option<Span> {
    let (first, _) = spans.front_mut()?;
    let taken = Span::new(first.start, first.len().min(WRITE));
    first.start = taken.end;
    if first.is_empty() {
        spans.pop_front();
    }
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writeback() -> Writeback {
        Writeback::new(WritebackModel {
            background_sectors: 10_000,
            limit_sectors: 20_000,
            outstanding: 4,
        })
    }

    #[test]
    fn nothing_is_written_below_the_first_mark_until_it_is_old() {
        let mut writeback = writeback();
        writeback.dirty(Nanos(0), 1, Span::new(0, 5000));
        assert_eq!(writeback.next(Nanos::from_secs(30)), None);
        assert_eq!(writeback.next(Nanos(OLD.0 + 1)), Some(Span::new(0, 1024)));
    }

    #[test]
    fn writers_wait_above_the_second_mark_until_writes_have_ended() {
        let mut writeback = writeback();
        for index in 0..20 {
            writeback.dirty(Nanos(0), 1, Span::new(index * 1024, 1024));
        }
        assert!(writeback.is_full());
        let first = writeback.next(Nanos(0)).expect("above the mark");
        assert!(writeback.is_full(), "what is being written is not clean yet");
        writeback.written(first, true);
        assert!(!writeback.is_full());
        let more: Vec<Span> = std::iter::from_fn(|| writeback.next(Nanos(0))).collect();
        assert_eq!(more.len(), 4, "no more than the flusher may have outstanding");
    }

    #[test]
    fn files_are_written_in_turns() {
        let mut writeback = writeback();
        for index in 0..40 {
            writeback.dirty(Nanos(0), 1, Span::new(index * 1024, 1024));
            writeback.dirty(Nanos(0), 2, Span::new(1_000_000 + index * 1024, 1024));
        }
        let mut turns = Vec::new();
        while let Some(span) = writeback.next(Nanos(0)) {
            let file = u32::from(span.start >= 1_000_000);
            if turns.last() != Some(&file) {
                turns.push(file);
            }
            writeback.written(span, true);
        }
        assert!(turns.len() >= 6, "{turns:?}");
    }
}
