//! The judgement of a guest's agent: which processes are urgent, and when to ask the host for help.
//!
//! Values without clock, without `/proc` and without a channel, so that the agent and its model in
//! the simulator judge by the same code.

mod asking;
mod watch;

pub use asking::Asking;
pub use watch::{Rules, Watched};
