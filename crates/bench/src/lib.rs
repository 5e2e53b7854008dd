//! Benchmarks and the guest lab: workloads, start-up measurement, statistics, reports.

mod allocations;
mod cgroup;
mod child;
pub mod client;
pub mod cost;
mod cpu;
pub mod d36;
pub mod demo;
pub mod downwards;
pub mod fairness;
pub mod image;
pub mod isolation;
pub mod kernel;
pub mod lab;
mod loop_device;
pub mod process;
mod qsd;
pub mod rate;
pub mod scale;
pub mod sched;
pub mod shares;
pub mod speed;
pub mod stats;
pub mod suite;
pub mod target;
