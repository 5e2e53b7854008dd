//! The I/O priority with which commands enter the host's kernel.
//!
//! A word per request, as `ioprio_set(2)` has it: class in the upper three bits, level in the
//! lower 13; 0 leaves the daemon's own. What the kernel makes of it depends on the scheduler of the
//! device below (docs/coordination.md).

use evenkeel_engine::Precedence;
use evenkeel_wire::DevicePriority;
use rustix::thread::{CapabilitySet, capabilities};

const CLASS_REAL_TIME: u16 = 1 << 13;
const CLASS_BEST_EFFORT: u16 = 2 << 13;

/// The words of a pool, by precedence.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct IoPriorities([u16; Precedence::COUNT]);

impl IoPriorities {
    /// Returns the words for what the operator allows.
    ///
    /// Background is the last level of its class, never the idle class: commands of that would
    /// keep their places in the pool's depth while any other process reads, and with them those
    /// of all VMs.
    pub(crate) const fn new(allowed: DevicePriority) -> Self {
        let background = CLASS_BEST_EFFORT | 7;
        Self(match allowed {
            DevicePriority::None => [0; Precedence::COUNT],
            DevicePriority::BestEffort => [background, 0, CLASS_BEST_EFFORT, CLASS_BEST_EFFORT],
            DevicePriority::RealTime => [background, 0, CLASS_REAL_TIME | 4, CLASS_REAL_TIME],
        })
    }

    /// Returns the word for a command.
    #[inline]
    pub(crate) const fn of(self, precedence: Precedence) -> u16 {
        self.0[precedence as usize]
    }
}

/// Returns whether the kernel takes commands of the real-time class from this thread.
pub(crate) fn may_be_real_time() -> bool {
    let enough = CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN;
    capabilities(None).is_ok_and(|sets| sets.effective.intersects(enough))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_allows_it_sends_the_real_time_class_and_nobody_the_idle_class() {
        let all = [
            Precedence::Background,
            Precedence::Ordinary,
            Precedence::Interactive,
            Precedence::SoftRealTime,
        ];
        let words = |allowed| all.map(|precedence| IoPriorities::new(allowed).of(precedence));
        assert_eq!(words(DevicePriority::None), [0; 4]);
        assert_eq!(words(DevicePriority::BestEffort), [0x4007, 0, 0x4000, 0x4000]);
        assert_eq!(words(DevicePriority::RealTime), [0x4007, 0, 0x2004, 0x2000]);
    }
}
