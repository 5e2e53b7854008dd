//! Blocks: how many requests go to the device in one go, and when.
//!
//! Picture a ferry. With little traffic it leaves with the one car that is there; while it is away
//! cars gather at the quay, and when it is back it takes all of them, as far as there is room. That
//! is the *dynamic* policy: nobody waits for company, yet the crossing is shared as soon as there
//! is any. The *static* policy leaves with a full deck only; it is here as the yardstick.
//!
//! Source: E. Bougioukou, A. Ntalla, A. Palli, M. Varsamou and T. Antonakopoulos, "Prototyping and
//! Performance Evaluation of a Dynamically Adaptable Block Device Driver for PCIe-based SSDs",
//! 2014, sections II to IV. What they call the maximum block size is the depth here. Their static
//! driver sends full blocks only, so that fewer requests than a block wait for ever; here the
//! remainder goes after [`REMAINDER_WAIT`].
//!
//! A device that takes commands one by one (all that `io_uring` leads to) is a ferry with as many
//! small boats as its depth: with [`Responses::Each`] every completion gives one place back, and
//! the next block is what waits at that moment. With the other two there is one block at a time.
//!
//! Their interface queue, a ring of descriptors whose index names the request without a search, is
//! the table of slots together with the kernel's ring: a tag is the index of its slot, it travels
//! through the ring as the entry's user data, and the ring's size is a power of two. The table
//! itself needs none, since tags come back in any order: free ones are linked, not counted around.
//!
//! Not decided here: which requests. That is the scheduler's.

use evenkeel_sched::Nanos;

/// How long the remainder of a static block waits for the rest of it. Much longer than a thread
/// takes to submit its next request, so that it never cuts a block short that was about to fill.
pub const REMAINDER_WAIT: Nanos = Nanos::from_millis(1);

/// How many requests make a block.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BlockSize {
    /// All that wait when the device has room, as far as it has. Nothing waits for company.
    #[default]
    Dynamic,
    /// This many, at least 1; fewer only after [`REMAINDER_WAIT`]. More than the depth count as
    /// the depth.
    Static(u32),
}

/// How the device's answers are taken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Responses {
    /// Each as soon as it is there; its place is free at once.
    #[default]
    Each,
    /// All of a block together, when the last is there; then the next block may go.
    Block,
    /// In groups of this many, at least 1, the last group of a block perhaps fewer; the next block
    /// goes when the last group is there.
    Subset(u32),
}

/// How requests are handed to the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockConfig {
    /// How many go together.
    pub size: BlockSize,
    /// How their answers are taken.
    pub responses: Responses,
    /// Whether the device has one block at a time even if it answers each command: what the
    /// interface of the paper does. The other ways of answering imply it.
    pub one_at_a_time: bool,
}

/// What was handed over so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct BlockFigures {
    /// Blocks begun.
    pub blocks: u64,
    /// Commands in them.
    pub commands: u64,
}

/// Returns whether commands that gather on their way to a device that takes them one by one go now:
/// once there are half as many as are on their way or at the device. A device with little to do
/// gets the first one at once, a busy one larger and larger blocks; so n commands for an idle
/// device go in about log2 n blocks.
#[must_use]
pub const fn is_block_due(gathered: usize, in_flight: u32) -> bool {
    gathered * 2 >= in_flight as usize
}

/// The gate between scheduler and device.
///
/// The caller asks [`admits`](Self::admits) before each command, says [`sent`](Self::sent) after
/// it, [`close`](Self::close) when nobody else wants to go, and [`completed`](Self::completed) for
/// each command that comes back. Constant time, no allocation.
#[derive(Clone, Copy, Debug)]
pub struct Blocks {
    size: BlockSize,
    responses: Responses,
    one_at_a_time: bool,
    /// The largest block, and the most commands at the device.
    max: u32,
    /// How many more the open block takes; none is open if 0.
    grant: u32,
    /// Places taken at the device: commands sent, and not given back.
    taken: u32,
    /// Those of them that are complete while their answers are held.
    held: u32,
    /// Whether the next command begins a block.
    begins: bool,
    /// Since when a remainder waits.
    waits_since: Option<Nanos>,
    /// Whether the gate was last found shut though the device had room.
    shut: bool,
    figures: BlockFigures,
}

impl Blocks {
    /// Makes a gate to a device that takes `max` commands, at least 1.
    #[must_use]
    pub fn new(config: &BlockConfig, max: u32) -> Self {
        let max = max.max(1);
        Self {
            size: match config.size {
                BlockSize::Dynamic => BlockSize::Dynamic,
                BlockSize::Static(size) => BlockSize::Static(size.max(1)),
            },
            responses: match config.responses {
                Responses::Subset(size) => Responses::Subset(size.max(1)),
                other => other,
            },
            one_at_a_time: config.one_at_a_time || config.responses != Responses::Each,
            max,
            grant: 0,
            taken: 0,
            held: 0,
            begins: true,
            waits_since: None,
            shut: false,
            figures: BlockFigures::default(),
        }
    }

    /// Changes how many commands the device takes, at least 1. What is there already stays.
    pub fn set_max(&mut self, max: u32) {
        self.max = max.max(1);
        self.grant = self.grant.min(self.max.saturating_sub(self.taken));
    }

    /// Returns whether a command may go now; `waiting` counts those that could.
    #[inline]
    pub fn admits(&mut self, now: Nanos, waiting: impl FnOnce() -> u32) -> bool {
        if self.grant > 0 {
            return true;
        }
        if !self.has_room() {
            return false;
        }
        let free = self.max - self.taken;
        self.grant = match self.size {
            BlockSize::Dynamic => free,
            BlockSize::Static(size) => self.fill(now, size.min(self.max), free, waiting()),
        };
        self.begins = true;
        self.shut = self.grant == 0;
        !self.shut
    }

    /// Returns how many of a static block go now.
    fn fill(&mut self, now: Nanos, size: u32, free: u32, waiting: u32) -> u32 {
        if waiting == 0 || free < size {
            self.waits_since = None;
            return 0;
        }
        if waiting < size {
            let since = *self.waits_since.get_or_insert(now);
            if now < since + REMAINDER_WAIT {
                return 0;
            }
        }
        self.waits_since = None;
        waiting.min(size)
    }

    /// Notes that a command has gone to the device.
    ///
    /// # Panics
    ///
    /// Panics if it was not admitted.
    #[inline]
    pub fn sent(&mut self) {
        assert!(self.grant > 0, "a command goes only if the gate is open");
        self.grant -= 1;
        self.taken += 1;
        self.figures.blocks += u64::from(self.begins);
        self.figures.commands += 1;
        self.begins = false;
    }

    /// Ends the block: nobody else wants to go now. Returns whether held answers may be shown.
    #[inline]
    pub fn close(&mut self) -> bool {
        self.grant = 0;
        self.held > 0 && self.give_back()
    }

    /// Takes a completion. Returns whether it may be shown, with all that were held before it.
    ///
    /// # Panics
    ///
    /// Panics if the device has completed more than it was sent.
    #[inline]
    pub fn completed(&mut self) -> bool {
        assert!(self.taken > self.held, "the device completes what it was sent");
        if self.responses == Responses::Each {
            self.taken -= 1;
            return true;
        }
        self.held += 1;
        self.give_back()
    }

    /// Gives places back if a group is complete.
    fn give_back(&mut self) -> bool {
        let whole = self.grant == 0 && self.held == self.taken;
        let group = matches!(self.responses, Responses::Subset(size) if self.held >= size);
        if whole || group {
            self.taken -= self.held;
            self.held = 0;
        }
        whole || group
    }

    /// Returns whether the device could take a block.
    #[must_use]
    pub const fn has_room(&self) -> bool {
        self.taken < self.max && !(self.one_at_a_time && self.taken > 0)
    }

    /// Returns whether the device takes no command more, not even for the block that is open.
    #[inline]
    pub(crate) const fn is_occupied(&self) -> bool {
        self.grant == 0 && !self.has_room()
    }

    /// Returns whether the gate has no will of its own: everybody may go as long as the device has
    /// room, and no answer is held.
    #[inline]
    pub(crate) const fn is_indifferent(&self) -> bool {
        self.held == 0 && matches!(self.size, BlockSize::Dynamic)
    }

    /// Returns whether a static block waits for more requests.
    #[must_use]
    pub const fn is_gathering(&self) -> bool {
        self.waits_since.is_some()
    }

    /// Returns when [`admits`](Self::admits) must be asked again even if nothing happens, given
    /// when the scheduler must be.
    #[must_use]
    #[inline]
    pub fn next_deadline(&self, scheduler: impl FnOnce() -> Option<Nanos>) -> Option<Nanos> {
        if !self.has_room() {
            return None;
        }
        match self.waits_since {
            Some(since) => Some(since + REMAINDER_WAIT),
            // The scheduler is not asked before a block is full, so its time does not matter.
            None if self.shut => None,
            None => scheduler(),
        }
    }

    /// Returns what was handed over so far.
    #[must_use]
    pub const fn figures(&self) -> BlockFigures {
        self.figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::ORIGIN;

    /// Sends as many of `waiting` as the gate admits, and closes it.
    fn send(blocks: &mut Blocks, now: Nanos, waiting: u32) -> u32 {
        let mut sent = 0;
        while blocks.admits(now, || waiting - sent) && sent < waiting {
            blocks.sent();
            sent += 1;
        }
        assert!(!blocks.close(), "nothing has come back yet");
        sent
    }

    fn gate(size: BlockSize, responses: Responses, max: u32) -> Blocks {
        Blocks::new(&BlockConfig { size, responses, one_at_a_time: false }, max)
    }

    #[test]
    fn an_idle_device_gets_the_first_command_at_once_and_then_blocks_that_double() {
        let (mut gathered, mut blocks) = (0, Vec::new());
        for in_flight in 1..=1000 {
            gathered += 1;
            if is_block_due(gathered, in_flight) {
                blocks.push(std::mem::take(&mut gathered));
            }
        }
        assert_eq!(blocks, [1, 1, 2, 4, 8, 16, 32, 64, 128, 256]);
    }

    #[test]
    fn a_busy_device_gets_no_command_alone() {
        assert!(!is_block_due(1, 65) && !is_block_due(32, 65));
        assert!(is_block_due(33, 65));
    }

    #[test]
    fn a_request_that_finds_the_device_idle_goes_at_once_and_alone() {
        for responses in [Responses::Each, Responses::Block, Responses::Subset(4)] {
            let mut blocks = gate(BlockSize::Dynamic, responses, 32);
            for _ in 0..10 {
                assert_eq!(send(&mut blocks, NOW, 1), 1, "{responses:?}");
                assert!(blocks.completed(), "{responses:?}: its answer waits for nobody");
            }
            assert_eq!(blocks.figures(), BlockFigures { blocks: 10, commands: 10 });
        }
    }

    #[test]
    fn while_a_block_is_away_requests_gather_and_the_next_takes_all_of_them() {
        let mut blocks = gate(BlockSize::Dynamic, Responses::Block, 8);
        assert_eq!(send(&mut blocks, NOW, 1), 1);
        assert_eq!(send(&mut blocks, NOW, 5), 0, "one block at a time");
        assert!(blocks.completed());
        assert_eq!(send(&mut blocks, NOW, 5), 5);
        let shown: Vec<bool> = (0..5).map(|_| blocks.completed()).collect();
        assert_eq!(shown, [false, false, false, false, true]);
        assert_eq!(send(&mut blocks, NOW, 20), 8, "no more than the maximum");
        assert_eq!(blocks.figures(), BlockFigures { blocks: 3, commands: 14 });
    }

    #[test]
    fn answers_come_in_groups_and_the_last_group_may_be_smaller() {
        let mut blocks = gate(BlockSize::Dynamic, Responses::Subset(2), 8);
        assert_eq!(send(&mut blocks, NOW, 5), 5);
        let shown: Vec<bool> = (0..5).map(|_| blocks.completed()).collect();
        assert_eq!(shown, [false, true, false, true, true]);
        assert_eq!(send(&mut blocks, NOW, 3), 3);
    }

    #[test]
    fn with_each_answer_its_place_is_free_for_the_next_request() {
        let mut blocks = gate(BlockSize::Dynamic, Responses::Each, 4);
        assert_eq!(send(&mut blocks, NOW, 9), 4);
        assert!(blocks.completed());
        assert_eq!(send(&mut blocks, NOW, 9), 1);
        assert!(blocks.completed() && blocks.completed());
        assert_eq!(send(&mut blocks, NOW, 9), 2);
        let config = BlockConfig { one_at_a_time: true, ..BlockConfig::default() };
        let mut single = Blocks::new(&config, 4);
        assert_eq!(send(&mut single, NOW, 9), 4);
        assert!(single.completed() && single.completed() && single.completed());
        assert_eq!(send(&mut single, NOW, 9), 0, "the block is not back");
        assert!(single.completed());
        assert_eq!(send(&mut single, NOW, 9), 4);
    }

    #[test]
    fn a_static_block_goes_when_it_is_full() {
        let mut blocks = gate(BlockSize::Static(4), Responses::Block, 32);
        assert_eq!(send(&mut blocks, NOW, 3), 0);
        assert_eq!(send(&mut blocks, NOW, 9), 4);
        for _ in 0..4 {
            blocks.completed();
        }
        assert_eq!(send(&mut blocks, NOW, 5), 4);
    }

    #[test]
    fn the_remainder_of_a_static_block_goes_after_a_while() {
        let mut blocks = gate(BlockSize::Static(4), Responses::Each, 32);
        assert_eq!(blocks.next_deadline(|| None), None);
        assert_eq!(send(&mut blocks, NOW, 3), 0);
        let at = blocks.next_deadline(|| None).expect("somebody waits");
        assert_eq!(at, NOW + REMAINDER_WAIT);
        assert_eq!(send(&mut blocks, Nanos(at.0 - 1), 3), 0);
        assert_eq!(send(&mut blocks, at, 3), 3);
        assert_eq!(blocks.next_deadline(|| None), None, "nobody is left");
        assert_eq!(send(&mut blocks, at, 0), 0);
        assert_eq!(blocks.next_deadline(|| Some(at)), None, "the scheduler has nothing");
    }

    #[test]
    fn a_static_block_larger_than_the_device_is_as_large_as_the_device() {
        let mut blocks = gate(BlockSize::Static(64), Responses::Block, 8);
        assert_eq!(send(&mut blocks, NOW, 7), 0);
        assert_eq!(send(&mut blocks, NOW, 8), 8);
    }

    #[test]
    fn a_device_that_answers_before_the_block_is_complete_ends_it_with_the_last_one() {
        let mut blocks = gate(BlockSize::Dynamic, Responses::Block, 8);
        for _ in 0..3 {
            assert!(blocks.admits(NOW, || 1));
            blocks.sent();
            assert!(!blocks.completed(), "the block is still open");
        }
        assert!(blocks.close());
        assert_eq!(send(&mut blocks, NOW, 1), 1);
    }

    #[test]
    fn a_busy_device_needs_nobody_to_ask_again() {
        let mut blocks = gate(BlockSize::Dynamic, Responses::Block, 8);
        let soon = Some(Nanos(5));
        assert_eq!(blocks.next_deadline(|| soon), soon);
        assert_eq!(send(&mut blocks, NOW, 2), 2);
        assert_eq!(blocks.next_deadline(|| soon), None);
        let mut full = gate(BlockSize::Static(4), Responses::Each, 6);
        assert_eq!(send(&mut full, NOW, 9), 4);
        assert_eq!(full.next_deadline(|| soon), None, "two places do not make a block");
    }
}
