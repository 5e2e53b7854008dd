//! A modelled device between engine and backend: real data, modelled timing.
//!
//! A command is finished when both the backend and the model have finished it, so a pool can only
//! be slower than what it really lives on.

use evenkeel_engine::Command;
use evenkeel_sched::{Nanos, Tag};
use evenkeel_sim::{DeviceModel as _, Io, Model, ModelError, ModelSpec};

/// The model of a pool.
#[derive(Debug)]
pub(crate) struct Modelled {
    model: Model,
}

impl Modelled {
    /// Builds a model.
    ///
    /// # Errors
    ///
    /// * [`ModelError`], which says what is allowed.
    pub(crate) fn new(spec: &ModelSpec) -> Result<Self, ModelError> {
        Ok(Self { model: spec.build()? })
    }

    /// Returns how many commands the device works on at once.
    pub(crate) fn depth(&self) -> u32 {
        self.model.depth()
    }

    /// Returns whether seeks cost time.
    pub(crate) fn rotational(&self) -> bool {
        self.model.rotational()
    }

    /// Hands over a command.
    pub(crate) fn submit(&mut self, now: Nanos, command: &Command) {
        self.model.submit(now, command.tag, &Io::from(command));
    }

    /// Returns when the next command is finished.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.model.next_event()
    }

    /// Returns a command that is finished by now; call until `None`.
    pub(crate) fn complete(&mut self, now: Nanos) -> Option<Tag> {
        self.model.complete(now)
    }
}
