//! Benchmarks and the guest lab: workloads, start-up measurement, statistics, reports.

mod allocations;
mod child;
pub mod client;
pub mod d36;
pub mod demo;
pub mod downwards;
pub mod fairness;
pub mod kernel;
pub mod lab;
pub mod process;
pub mod rate;
pub mod sched;
pub mod shares;
pub mod speed;
pub mod stats;
pub mod suite;
