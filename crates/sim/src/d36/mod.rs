//! The experiments of deliverable D3.6 of the vIrtical project, in virtual time.
//!
//! A guest on a host, a slow storage device below, readers and writers in the guest, readers in the
//! host, and an application that starts in the guest: how long does that take, and how much is read
//! meanwhile? [`figures()`] lists what each figure of the document shows, [`measure()`] runs one of the
//! setups once. Statistics and pages are made elsewhere, by whoever runs them.
//!
//! Nothing in here knows which result is expected. What the schedulers do follows from the
//! requests, and those from the programs, page caches, clocks and threads of [`crate::world`].
//!
//! Source: P. Valente and others, "I/O Scheduler for virtualized systems", deliverable D3.6 of the
//! vIrtical project, FP7 grant 288574, 2014.

mod figures;
mod layout;
mod measure;
mod setup;

pub use figures::{Figure, Metric, figures};
pub use layout::Layout;
pub use measure::{Effort, Outcome, measure};
pub use setup::{Coordination, Device, GuestLoad, HostLoad, Setup};
