//! What every elevator owes its caller, and what `deadline` promises beyond that.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod conservation;
mod deadline;
mod model;
mod random;
mod world;
