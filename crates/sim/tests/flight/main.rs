//! Closed loops over the engine and a modelled device: what is at the device, beyond everybody's
//! reach, and what becomes of a guest that lies.

mod closed;
mod governor;
mod large;
mod liar;
