//! Read-ahead of a kernel: who reads in order finds the next window read already.
//!
//! A read that continues the last one, or begins a file, opens a window; each window is twice the
//! last, up to the maximum, and is asked for when the reader reaches the mark in the window before.
//! Anything else is read as it is asked for.
//!
//! Source: Wu Fengguang, Xi Hongsheng, Xu Chenfeng, "On the design of a new Linux readahead
//! framework", 2008; the size of the window is Linux's default.

use super::cache::Span;

/// Largest window in sectors: 128 KiB.
const MOST: u64 = 256;

/// What is known of one reader of one file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Readahead {
    /// Behind the last sector asked for.
    next: u64,
    window: Span,
    /// Who reaches this sector causes the next window to be read.
    mark: u64,
}

impl Readahead {
    /// Returns what to read because of an access, if not all of it is in memory: at most two
    /// windows, none behind the end of the file.
    pub(crate) fn access(&mut self, wanted: Span, file: Span) -> [Span; 2] {
        let continues = wanted.start == self.next;
        self.next = wanted.end;
        if !continues && wanted.start != file.start {
            self.window = Span::default();
            return [wanted, Span::default()];
        }
        let mut windows = [Span::default(); 2];
        if !continues || self.window.is_empty() || wanted.start > self.window.end {
            let size = (wanted.len().next_power_of_two() * 4).min(MOST).max(wanted.len());
            self.window = Span::new(wanted.start, size);
            // The first window is read partly ahead: the mark lies behind what is wanted.
            self.mark = wanted.end;
            windows[0] = clip(self.window, file);
        }
        if wanted.end > self.mark || self.mark == self.window.end {
            let size = (self.window.len() * 2).min(MOST);
            self.window = Span::new(self.window.end, size);
            self.mark = self.window.start;
            windows[1] = clip(self.window, file);
        }
        windows
    }
}

fn clip(span: Span, file: Span) -> Span {
    let clipped = Span { start: span.start, end: span.end.min(file.end) };
    if clipped.is_empty() { Span::default() } else { clipped }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: Span = Span { start: 1000, end: 3000 };

    #[test]
    fn a_sequential_reader_is_one_window_ahead_and_windows_grow_to_the_maximum() {
        let mut ahead = Readahead::default();
        let mut read = FILE.start;
        for pos in (FILE.start..FILE.end).step_by(16) {
            for window in ahead.access(Span::new(pos, 16.min(FILE.end - pos)), FILE) {
                if !window.is_empty() {
                    assert_eq!(window.start, read, "windows lie one behind the other");
                    assert!(window.len() <= MOST);
                    read = window.end;
                }
            }
            assert!(read >= FILE.end.min(pos + 32), "{pos}: read up to {read}");
            assert!(read <= pos + 2 * MOST + 16);
        }
        assert_eq!(read, FILE.end);
    }

    #[test]
    fn a_random_reader_gets_what_it_asks_for_and_nothing_more() {
        let mut ahead = Readahead::default();
        for pos in [2000, 1500, 2900, 1100] {
            let wanted = Span::new(pos, 8);
            assert_eq!(ahead.access(wanted, FILE), [wanted, Span::default()]);
        }
    }
}
