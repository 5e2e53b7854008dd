//! The experiments of deliverable D3.6 with their statistics and pages.
//!
//! [`run()`] measures every setup of the figures asked for, each several times, on as many threads as
//! there are CPUs; each world is a thread's own, so the figures do not depend on how many there are.
//! The report says what was measured, what the document states, and whether the two agree.

mod chart;
mod page;
mod rows;
mod run;
mod stated;
mod text;

pub use rows::{Report, Row};
pub use run::{Options, Progress, run};
pub use stated::{Stated, stated};
