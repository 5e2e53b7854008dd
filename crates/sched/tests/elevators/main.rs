//! What every elevator owes its caller, and what `deadline` promises beyond that.

mod conservation;
mod deadline;
mod model;
mod random;
mod world;
