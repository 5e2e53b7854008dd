//! The start of an application: what it reads before its window opens, and what it computes.
//!
//! A start reads the directory entries and inodes of some files, maps libraries and touches most of
//! their pages in no order, and reads small files whole. Between the reads it computes. The files
//! lie scattered over the system's part of the disk. The profiles are generated, always the same
//! for an application: a page fault reads 128 KiB around itself as in Linux, so what counts is how
//! many reads there are, that each must end before the next begins, and how much lies between.
//!
//! Source of the sizes: chosen after the shared libraries, fonts and settings that these programs
//! load on a distribution of 2013, without what a running system has in memory anyway (libc and
//! the libraries of other programs).

use evenkeel_sched::Nanos;

use super::{File, Step};
use crate::world::cache::Span;
use crate::world::random::Random;

/// What a page fault reads, in sectors: 128 KiB.
const AROUND: u64 = 256;
/// A block of metadata, in sectors.
const BLOCK: u64 = 8;

/// An application of the experiments, in the order of size.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum App {
    /// The shell.
    Bash,
    /// The terminal of X.
    Xterm,
    /// The terminal of KDE.
    Konsole,
}

/// What an application loads.
#[derive(Clone, Copy, Debug)]
struct Shape {
    name: &'static str,
    seed: u64,
    libraries: u64,
    library_kib: (u64, u64),
    small_files: u64,
    small_kib: (u64, u64),
    cpu: Nanos,
}

impl App {
    /// Every application.
    pub const ALL: [Self; 3] = [Self::Bash, Self::Xterm, Self::Konsole];

    /// Returns the name of the program.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.shape().name
    }

    /// Returns the application of that name, if it is one of them.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|app| app.name() == name)
    }

    const fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }
}

/// In the order of [`App::ALL`].
static SHAPES: [Shape; 3] = [
    Shape {
        name: "bash",
        seed: 0xba54,
        libraries: 3,
        library_kib: (40, 900),
        small_files: 8,
        small_kib: (1, 12),
        cpu: Nanos::from_millis(60),
    },
    Shape {
        name: "xterm",
        seed: 0x7e44,
        libraries: 22,
        library_kib: (60, 800),
        small_files: 24,
        small_kib: (1, 100),
        cpu: Nanos::from_millis(400),
    },
    Shape {
        name: "konsole",
        seed: 0x4050,
        libraries: 60,
        library_kib: (80, 1400),
        small_files: 90,
        small_kib: (1, 60),
        cpu: Nanos::from_millis(2000),
    },
];

/// A read, and the computing after it.
#[derive(Clone, Copy, Debug)]
struct Stage {
    span: Span,
    think: Nanos,
}

/// Starts an application once.
#[derive(Clone, Debug)]
pub struct Startup {
    area: File,
    stages: Vec<Stage>,
    next: usize,
    thinks: bool,
}

impl Startup {
    /// Returns the start of an application whose files lie in `area`, which is the system's part of
    /// the disk; of 256 MiB at least, so that all of them fit.
    #[must_use]
    pub fn new(app: App, area: File) -> Self {
        let shape = app.shape();
        let mut random = Random::new(shape.seed);
        let mut spans = Vec::new();
        for _ in 0..shape.libraries {
            look_up(&mut spans, &mut random, area);
            map(&mut spans, &mut random, area, shape.library_kib);
        }
        for _ in 0..shape.small_files {
            look_up(&mut spans, &mut random, area);
            let (least, most) = shape.small_kib;
            let sectors = random.within(least, most) * 2;
            let start = place(&mut random, area, sectors);
            for offset in (0..sectors).step_by(256) {
                spans.push(Span::new(start + offset, AROUND.min(sectors - offset)));
            }
        }
        let stages = think(&spans, &mut random, shape.cpu);
        Self { area, stages, next: 0, thinks: false }
    }

    /// Returns the start of another application: what it reads, one after another, and for how long
    /// it computes after each.
    #[must_use]
    pub fn of(area: File, reads: &[(File, Nanos)]) -> Self {
        let stages =
            reads.iter().map(|&(file, think)| Stage { span: file.span(), think }).collect();
        Self { area, stages, next: 0, thinks: false }
    }

    pub(super) const fn area(&self) -> Span {
        self.area.span()
    }

    /// Returns how many reads there are, and of how many sectors together.
    #[must_use]
    pub fn size(&self) -> (usize, u64) {
        (self.stages.len(), self.stages.iter().map(|stage| stage.span.len()).sum())
    }

    pub(super) fn next(&mut self, random: &mut Random) -> Step {
        let Some(&Stage { span, think }) = self.stages.get(self.next) else { return Step::Exit };
        self.thinks = !self.thinks;
        if self.thinks {
            return Step::Fault(span);
        }
        self.next += 1;
        // No two starts are alike: up to a tenth more or less.
        Step::Compute(Nanos(think.0 * random.within(900, 1100) / 1000))
    }
}

/// Reads the directory and the inode of a file: half of the time one of them is in memory, as
/// neighbours share blocks.
fn look_up(spans: &mut Vec<Span>, random: &mut Random, area: File) {
    if random.per_mille(500) {
        // Metadata lies in groups of 128 MiB, at their beginning.
        let groups = (area.sectors >> 18).max(1);
        let group = area.start + (random.below(groups) << 18);
        spans.push(Span::new(group + random.below(512) * BLOCK, BLOCK));
    }
}

/// Maps a library and touches most of it: the header first, then 128 KiB at a time in no order.
fn map(spans: &mut Vec<Span>, random: &mut Random, area: File, kib: (u64, u64)) {
    // Small libraries are more frequent than large ones.
    let share = random.within(0, 1000) * random.within(0, 1000);
    let sectors = (kib.0 * 2 + (kib.1 - kib.0) * 2 * share / 1_000_000) / BLOCK * BLOCK;
    let start = place(random, area, sectors);
    spans.push(Span::new(start, AROUND.min(sectors)));
    let mut windows: Vec<u64> = (1..sectors.div_ceil(AROUND)).collect();
    while !windows.is_empty() {
        let count = u64::try_from(windows.len()).expect("a few");
        let chosen = usize::try_from(random.below(count)).expect("below the length");
        let window = windows.swap_remove(chosen);
        if random.per_mille(800) {
            let offset = window * AROUND;
            spans.push(Span::new(start + offset, AROUND.min(sectors - offset)));
        }
    }
}

fn place(random: &mut Random, area: File, sectors: u64) -> u64 {
    area.start + random.below((area.sectors.saturating_sub(sectors) / BLOCK).max(1)) * BLOCK
}

/// Spreads the computing over the reads: most of it in few places, as programs do.
fn think(spans: &[Span], random: &mut Random, cpu: Nanos) -> Vec<Stage> {
    let shares: Vec<u64> = spans
        .iter()
        .map(|_| if random.per_mille(150) { random.within(10, 40) } else { random.within(1, 4) })
        .collect();
    let all: u64 = shares.iter().sum::<u64>().max(1);
    spans
        .iter()
        .zip(shares)
        .map(|(&span, share)| Stage { span, think: Nanos(cpu.0 / all * share) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: File = File { start: 5000, sectors: 1 << 20 };

    #[test]
    fn applications_are_larger_in_the_order_of_their_names_and_always_the_same() {
        let sizes = App::ALL.map(|app| Startup::new(app, AREA).size());
        assert!(sizes.windows(2).all(|pair| pair[0].0 * 2 < pair[1].0 && pair[0].1 < pair[1].1));
        assert_eq!(sizes, App::ALL.map(|app| Startup::new(app, AREA).size()));
    }

    #[test]
    fn a_start_computes_what_its_application_needs_and_stays_in_its_area() {
        for app in App::ALL {
            let mut start = Startup::new(app, AREA);
            let mut random = Random::new(1);
            let mut computed = 0;
            loop {
                match start.next(&mut random) {
                    Step::Fault(span) => {
                        assert!(AREA.start <= span.start && span.end <= AREA.start + AREA.sectors);
                        assert!((1..=AROUND).contains(&span.len()));
                    }
                    Step::Compute(time) => computed += time.0,
                    Step::Exit => break,
                    other => unreachable!("a start does not {other:?}"),
                }
            }
            let cpu = app.shape().cpu.0;
            assert!(computed.abs_diff(cpu) < cpu / 20, "{computed} of {cpu} ns");
        }
    }
}
