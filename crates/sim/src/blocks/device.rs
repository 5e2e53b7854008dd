//! The device: a processor that takes descriptors apart, and one or two DMA engines.
//!
//! Each part is the instant at which it is free. Commands are executed in order; while an engine
//! moves a page the processor is at the next command, so the time between two commands is that of
//! the processor or that of the engine, whichever is longer.

use super::params::PcieParams;

/// A page: what every command moves.
pub(crate) const PAGE_BYTES: u64 = 4_096;

/// What commands do, seen from the host.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Direction {
    /// Pages go to the host.
    Read,
    /// Pages come from the host.
    Write,
}

/// The device; times in nanoseconds.
#[derive(Debug)]
pub(crate) struct Device {
    params: PcieParams,
    direction: Direction,
    processor: u64,
    /// The engine of the data, and that of the descriptors if there are two.
    engines: [u64; 2],
    /// Which of them moves descriptors.
    descriptors: usize,
    /// Whether a page is under way whose outcome the processor has not looked at.
    under_way: bool,
}

impl Device {
    pub(crate) fn new(params: &PcieParams, direction: Direction, engines: u32) -> Self {
        Self {
            params: *params,
            direction,
            processor: 0,
            engines: [0; 2],
            descriptors: usize::from(engines > 1),
            under_way: false,
        }
    }

    /// Sees a register that the host wrote at `at`.
    pub(crate) fn notice(&mut self, at: u64) {
        self.processor = self.processor.max(at + self.params.notice_ns);
    }

    /// Fetches descriptors into local memory; the processor waits for them.
    pub(crate) fn fetch(&mut self, count: u64) {
        self.program(self.descriptors, self.params.pull_time(count * self.params.descriptor_bytes));
        self.processor = self.engines[self.descriptors];
    }

    /// Fetches descriptors that are needed later; the processor goes on.
    pub(crate) fn prefetch(&mut self, count: u64) {
        self.program(self.descriptors, self.params.pull_time(count * self.params.descriptor_bytes));
    }

    /// Takes a command apart and starts its transfer, once the engine has finished the last one
    /// and `answer` more descriptors, if any, are on their way to the host. Returns when those
    /// are there.
    pub(crate) fn command(&mut self, answer: u64) -> Option<u64> {
        self.processor += self.params.command_ns;
        let answered = self.look(answer);
        let time = match self.direction {
            Direction::Read => self.params.push_time(PAGE_BYTES),
            Direction::Write => self.params.pull_time(PAGE_BYTES),
        };
        self.program(0, time);
        self.under_way = true;
        answered
    }

    /// Waits for the last transfer, and sends `answer` descriptors, if any, to the host. Returns
    /// when they are there.
    pub(crate) fn look(&mut self, answer: u64) -> Option<u64> {
        if self.under_way {
            self.processor = self.processor.max(self.engines[0]) + self.params.update_ns;
            self.under_way = false;
        }
        if answer == 0 {
            return None;
        }
        self.program(
            self.descriptors,
            self.params.push_time(answer * self.params.descriptor_bytes),
        );
        Some(self.engines[self.descriptors])
    }

    /// Returns when the processor has done all that it was given.
    pub(crate) const fn free(&self) -> u64 {
        self.processor
    }

    /// Programs an engine, which then is busy for `time`. One that is busy is waited for.
    fn program(&mut self, engine: usize, time: u64) {
        self.processor = self.processor.max(self.engines[engine]) + self.params.program_ns;
        self.engines[engine] = self.processor + time;
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::PRESET;
    use super::*;

    #[test]
    fn commands_follow_each_other_at_the_pace_of_the_slower_part() {
        let pace = |direction, command_ns| {
            let params = PcieParams { command_ns, ..PRESET.params };
            let mut device = Device::new(&params, direction, 1);
            device.command(0);
            let first = device.free();
            (0..10).for_each(|_| assert_eq!(device.command(0), None));
            (device.free() - first) / 10
        };
        let p = PRESET.params;
        let around = p.update_ns + p.program_ns;
        assert_eq!(pace(Direction::Read, 1_800), p.push_time(PAGE_BYTES) + around);
        assert_eq!(pace(Direction::Write, 1_800), p.pull_time(PAGE_BYTES) + around);
        assert_eq!(pace(Direction::Read, 9_000), 9_000 + around);
    }

    #[test]
    fn an_answer_holds_up_the_next_page_unless_it_has_an_engine_of_its_own() {
        let total = |engines, answer| {
            let mut device = Device::new(&PRESET.params, Direction::Read, engines);
            device.command(0);
            for _ in 0..20 {
                assert_eq!(device.command(answer).is_some(), answer > 0);
            }
            device.free()
        };
        assert!(total(1, 0) == total(2, 0));
        assert!(total(1, 0) < total(2, 1) && total(2, 1) < total(1, 1));
    }
}
