mod budget;
mod rate;
mod stats;
mod tunables;
