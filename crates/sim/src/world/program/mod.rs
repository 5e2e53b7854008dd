//! What processes do: programs that say, step by step, what they want next.

mod database;
mod loader;
mod player;
mod reader;
mod startup;
mod writer;

use evenkeel_sched::Nanos;

use super::cache::Span;
use super::random::Random;
pub use database::Database;
pub use loader::Loader;
pub use player::Player;
pub use reader::{Order, Reader};
pub use startup::{App, Startup};
pub use writer::Writer;

/// A stretch of a disk that belongs to one file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct File {
    /// First sector.
    pub start: u64,
    /// Length in sectors.
    pub sectors: u64,
}

impl File {
    pub(crate) const fn span(&self) -> Span {
        Span::new(self.start, self.sectors)
    }
}

/// What a process does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Uses a CPU for so long.
    Compute(Nanos),
    /// Waits for a user or a clock.
    Pause(Nanos),
    /// Reads through the page cache, with read-ahead.
    Read(Span),
    /// Touches mapped pages: what is missing of these sectors is read at once.
    Fault(Span),
    /// Reads past the page cache.
    Direct(Span),
    /// Writes into the page cache.
    Write(Span),
    /// Waits until all that it wrote is durable.
    Sync,
    /// Ends.
    Exit,
}

/// A program. Its next step follows from its state and from chance alone.
#[derive(Clone, Debug)]
pub enum Program {
    /// Reads a file for ever.
    Reader(Reader),
    /// Writes a file for ever.
    Writer(Writer),
    /// Starts an application and ends.
    Startup(Startup),
    /// Loads small files together with others.
    Loader(Loader),
    /// Plays a file at a fixed rate.
    Player(Player),
    /// Answers transactions.
    Database(Database),
}

impl Program {
    pub(crate) fn next(&mut self, now: Nanos, random: &mut Random) -> Step {
        match self {
            Self::Reader(program) => program.next(random),
            Self::Writer(program) => program.next(random),
            Self::Startup(program) => program.next(random),
            Self::Loader(program) => program.next(),
            Self::Player(program) => program.next(now),
            Self::Database(program) => program.next(now, random),
        }
    }

    /// Takes the step that comes next if it is known to compute; returns for how long, else zero.
    pub(crate) fn take_think(&mut self) -> Nanos {
        match self {
            Self::Reader(program) => program.take_think(),
            _ => Nanos::ZERO,
        }
    }

    /// Returns the file that it reads or writes in order; read-ahead stops at its end.
    pub(crate) const fn file(&self) -> Span {
        match self {
            Self::Reader(program) => program.file.span(),
            Self::Writer(program) => program.file.span(),
            Self::Startup(program) => program.area(),
            Self::Loader(program) => program.area(),
            Self::Player(program) => program.file.span(),
            Self::Database(program) => program.data.span(),
        }
    }
}
