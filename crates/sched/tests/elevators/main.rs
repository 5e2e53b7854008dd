//! What every elevator owes its caller, and what some promise beyond that.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod anticipatory;
mod anticipatory_random;
mod cfq;
mod cfq_random;
mod conservation;
mod deadline;
mod deadline_random;
mod kyber;
mod model;
mod noop;
mod random;
mod world;
