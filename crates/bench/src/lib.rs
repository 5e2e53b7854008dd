//! Placeholder of the room; see ARCHITECTURE.md.

pub mod client;
