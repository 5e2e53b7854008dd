//! What is at the device, beyond everybody's reach: how long the pieces are, and how many.

mod closed;
mod governor;
mod large;
