//! Benchmarks and the guest lab: workloads, start-up measurement, statistics, reports.

pub mod client;
pub mod lab;
pub mod process;
pub mod rate;
pub mod shares;
pub mod stats;
