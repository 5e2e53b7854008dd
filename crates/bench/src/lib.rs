//! Benchmarks and the guest lab: workloads, start-up measurement, statistics, reports.

pub mod client;
pub mod lab;
pub mod stats;
