//! How much the device is given at a time, found out while it works.
//!
//! Think of a barber's shop with a bench. Customers on the bench keep the barber from ever being
//! idle; but whoever sits there cannot be overtaken any more, so the bench should be as short as it
//! can be with the barber always busy. How short that is depends on how many chairs he has, which
//! nobody tells us; so now and then we let as many in as want to, count how many heads he does, and
//! look for the shortest bench with which he does as many.
//!
//! That is Little's law: at the *knee* all of the device is busy and nobody waits inside it; beyond
//! it, what is at the device waits there, out of the scheduler's reach, for nothing.
//!
//! Reads and writes have knees of their own, and so have short commands, of which a device takes so
//! many, and long ones, of which it takes so many bytes. Together at the device, each kind takes
//! the share of it that it has of its knee, and the device is full when the shares make one.
//!
//! A search for a knee is an *epoch* with everything let in, and a bisection of a ladder of levels,
//! an epoch each: a level will do if it moves as much as everything did, but for a tolerance. Then
//! it holds for many times as long as the search took, and for longer each time that nothing has
//! changed; unless nobody was kept out when it was found, and somebody is now. While somebody is
//! busy who waits for each answer (one short request at a time, or a queue that the scheduler has
//! raised), the tolerance is larger: that is a load of its own, with knees of its own, and its
//! searches begin with what is enough without him.
//!
//! Who is alone with short commands keeps nobody waiting, so no knee is looked for: the device gets
//! all that it may. The first request of somebody else ends that at once.
//!
//! Source of the idea, that little in flight at full rate is where to be, and that it is found by
//! trying: N. Cardwell and others, "BBR: Congestion-Based Congestion Control", ACM Queue 14, 2016.

use evenkeel_sched::{GroupId, Nanos};

/// Commands at the device, by level; the best of what a device may be given is within a fifth.
const LADDER: [u32; 20] =
    [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256, 362, 512, 724, 1024];
/// What a long command counts as: 128 KiB.
const UNIT_SECTORS: u32 = 256;
/// A command is long from here on: 32 KiB.
const LONG_SECTORS: u32 = 64;
/// Of a thousand that the device moves when everything is let in, how many must be moved.
const ENOUGH_PER_MILLE: u64 = 985;
/// The same while somebody waits for each answer.
const NARROW_PER_MILLE: u64 = 900;
/// What makes an epoch, at least.
const EPOCH_COMMANDS: u32 = 1024;
const EPOCH: Nanos = Nanos::from_millis(50);
/// An epoch of few commands ends after this time, if they are this many.
const LONG_EPOCH: Nanos = Nanos::from_secs(6);
const FEW_COMMANDS: u32 = 256;
/// How long a knee holds, in times the search took.
const HOLD_MIN: u64 = 20;
/// The same for one that has been found again, while somebody waits for each answer: 99 of 100 of
/// his requests shall meet no search.
const HOLD_NARROW: u64 = 128;
const HOLD_MAX: u64 = 960;
/// How long it holds at most.
const HOLD: Nanos = Nanos::from_secs(600);
/// An epoch in which the device had nothing to do for more than this part of it shows nothing.
const IDLE_PART: u64 = 20;
/// How long somebody counts as waiting for answers after the last sign of it.
const PATIENCE: Nanos = Nanos::from_secs(1);
/// Short requests, one at a time, that make somebody count so.
const LONE_MIN: u8 = 8;
/// Requests outstanding that make nobody count so.
pub(crate) const CROWD: u32 = 4;
const ONE: u64 = 1 << 32;
const SECOND: u64 = 1_000_000_000;

/// What is bounded apart.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Load {
    writes: bool,
    long: bool,
    narrow: bool,
    /// Of one VM that does not wait, in short commands; nothing is looked for.
    alone: bool,
}

impl Load {
    const COUNT: usize = 8;

    /// Returns the same while nobody waits for each answer.
    const fn wide(self) -> Self {
        Self { narrow: false, ..self }
    }

    /// Returns where its knee is kept.
    const fn index(self) -> usize {
        self.writes as usize * 4 + self.long as usize * 2 + self.narrow as usize
    }
}

/// What is known of a load.
#[derive(Clone, Copy, Debug)]
struct Knee {
    level: usize,
    /// Whether the load asked for no more when it was found, so that the device may need more.
    is_open: bool,
    /// What was moved with it.
    rate: u64,
    /// When to look again, and for how many times the search it held.
    review_at: Nanos,
    hold: u64,
}

/// What the search waits for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Nothing: the knee holds.
    Hold,
    /// An epoch with everything let in.
    Full,
    /// An epoch at the level between one that is too low, if there is any, and one that will do.
    Between { low: Option<usize>, high: usize },
}

/// Counts since the epoch began.
#[derive(Clone, Copy, Debug, Default)]
struct Epoch {
    /// None while commands of before still come back.
    begun: Option<Nanos>,
    /// So many must come back before it begins.
    settling: u32,
    commands: u32,
    sectors: u64,
    written: u64,
    /// Of the sectors, those of long commands.
    long: u64,
    /// Commands that came back while somebody was kept out.
    bound: u32,
    /// How long the device had nothing to do.
    idle: Nanos,
    /// Most at the device: commands, sectors.
    peak: (u32, u64),
}

/// What is at the device of one kind, and how much may be.
#[derive(Clone, Copy, Debug)]
struct Kind {
    commands: u32,
    sectors: u64,
    limit: (u32, u64),
    /// The share of the device that a command, and a sector, takes.
    share: (u64, u64),
}

/// How much of one kind may be at the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct FlightLimit {
    /// Commands.
    pub commands: u32,
    /// Bytes; one command may exceed it.
    pub bytes: u64,
}

/// What a governor has decided.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct GovernorReport {
    /// For reads.
    pub reads: FlightLimit,
    /// For writes.
    pub writes: FlightLimit,
    /// Whether they are narrow for somebody who waits for each answer.
    pub narrow: bool,
    /// Whether they are wide because one VM is alone.
    pub alone: bool,
    /// Searches finished.
    pub searches: u64,
}

/// The governor of one device; see the module. Constant time for each call, no allocation.
#[derive(Debug)]
pub(crate) struct Governor {
    is_on: bool,
    /// Whether it is narrow for those who wait for each answer.
    favours: bool,
    /// The highest level: all that the device may be given.
    top: usize,
    /// The level for what has not been at work yet, and its commands.
    first: usize,
    usual: u32,
    /// All that the device may be given.
    most: u32,
    kinds: [Kind; 2],
    knees: [Option<Knee>; Load::COUNT],
    load: Load,
    phase: Phase,
    /// What was moved when everything was let in.
    full_rate: u64,
    /// The level that held everything then; none if somebody was kept out all the same.
    open_level: Option<usize>,
    /// What was moved at the lowest level that will do.
    enough_rate: u64,
    search_begun: Nanos,
    /// Counts of now.
    epoch: Epoch,
    is_shut: bool,
    /// Since when the device has nothing to do.
    idle_since: Option<Nanos>,
    narrow_until: Nanos,
    /// Whose request came last, and until when he counts as one of several.
    last: Option<GroupId>,
    together_until: Nanos,
    searches: u64,
}

impl Governor {
    /// Makes a governor that lets everything pass.
    pub(crate) fn new(depth: u32) -> Self {
        let kind = Kind { commands: 0, sectors: 0, limit: (0, 0), share: (0, 0) };
        let mut governor = Self {
            is_on: false,
            favours: false,
            top: 0,
            first: 0,
            usual: u32::MAX,
            most: 0,
            kinds: [kind; 2],
            knees: [None; Load::COUNT],
            load: Load::default(),
            phase: Phase::Full,
            full_rate: 0,
            open_level: None,
            enough_rate: 0,
            search_begun: Nanos::ZERO,
            epoch: Epoch::default(),
            is_shut: false,
            idle_since: None,
            narrow_until: Nanos::ZERO,
            last: None,
            together_until: Nanos::ZERO,
            searches: 0,
        };
        governor.set_depth(depth);
        governor
    }

    /// Switches it on or off; `favours` says whether what is not at the device is given to those
    /// who wait for each answer sooner than to others, so that it helps them to be narrow.
    pub(crate) fn turn(&mut self, is_on: bool, favours: bool) {
        if (is_on, favours) != (self.is_on, self.favours) {
            (self.is_on, self.favours) = (is_on, favours);
            self.forget();
        }
    }

    pub(crate) const fn is_on(&self) -> bool {
        self.is_on
    }

    /// Changes the most commands that the device may be given.
    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.most = depth.max(1);
        self.forget();
    }

    /// Changes how many commands of a load may be there before its knee has been looked for; all
    /// unless told otherwise.
    pub(crate) fn set_usual(&mut self, usual: u32) {
        if usual != self.usual {
            self.usual = usual;
            self.forget();
        }
    }

    /// Returns how many commands are usually enough for the device.
    pub(crate) fn usual(&self) -> u32 {
        self.usual.min(self.most)
    }

    fn forget(&mut self) {
        let level = |most: u32| LADDER.partition_point(|&level| level < most).min(LADDER.len() - 1);
        (self.top, self.first) = (level(self.most), level(self.usual()));
        self.knees = [None; Load::COUNT];
        self.load = Load::default();
        self.begin(Phase::Full);
    }

    /// Returns what it has decided; none while it is off.
    pub(crate) fn report(&self) -> Option<GovernorReport> {
        let limit = |kind: usize| {
            let (commands, sectors) = self.kinds[kind].limit;
            FlightLimit { commands, bytes: sectors * crate::request::SECTOR_BYTES }
        };
        self.is_on.then(|| GovernorReport {
            reads: limit(0),
            writes: limit(1),
            narrow: self.load.narrow,
            alone: self.load.alone,
            searches: self.searches,
        })
    }

    /// Returns whether the device has room for another command; `waits` says whether one waits.
    #[inline]
    pub(crate) fn admits(&mut self, waits: impl FnOnce() -> bool) -> bool {
        let has_room = self.has_room();
        self.is_shut = !has_room && waits();
        has_room
    }

    /// Returns whether the device has room for another command.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        if !self.is_on {
            return true;
        }
        let share = |kind: &Kind| {
            let commands = u64::from(kind.commands) * kind.share.0;
            commands.max(kind.sectors * kind.share.1)
        };
        share(&self.kinds[0]) + share(&self.kinds[1]) < ONE
    }

    /// Notes that a read or write goes to the device.
    #[inline]
    pub(crate) fn sent(&mut self, now: Nanos, writes: bool, nr_sectors: u32) {
        let kind = &mut self.kinds[usize::from(writes)];
        kind.commands += 1;
        kind.sectors += u64::from(nr_sectors);
        if let Some(since) = self.idle_since.take() {
            self.epoch.idle += now - since;
        }
        if self.is_on {
            let [reads, writes] = &self.kinds;
            let peak = &mut self.epoch.peak;
            peak.0 = peak.0.max(reads.commands + writes.commands);
            peak.1 = peak.1.max(reads.sectors + writes.sectors);
        }
    }

    /// Notes that a read or write has come back; `waits` says whether a request waits for the
    /// device.
    #[inline]
    pub(crate) fn completed(
        &mut self,
        now: Nanos,
        writes: bool,
        nr_sectors: u32,
        waits: impl FnOnce() -> bool,
    ) {
        let kind = &mut self.kinds[usize::from(writes)];
        kind.commands -= 1;
        kind.sectors -= u64::from(nr_sectors);
        if self.is_on {
            if self.kinds.iter().all(|kind| kind.commands == 0) && !waits() {
                self.idle_since = Some(now);
            }
            self.count(now, writes, nr_sectors);
        }
    }

    /// Looks at a request of a VM that comes while `others` of its disk are outstanding; `lone` is
    /// what is known of the disk. Finds those who wait for each answer, and who is alone.
    #[inline]
    pub(crate) fn arrived(
        &mut self,
        now: Nanos,
        vm: GroupId,
        others: u32,
        is_short: bool,
        lone: &mut u8,
    ) {
        if self.last != Some(vm) {
            self.company(now, vm);
        }
        if others == 0 && is_short {
            *lone = lone.saturating_add(1);
            if *lone >= LONE_MIN {
                self.favour(now);
            }
        } else if others >= CROWD {
            *lone = 0;
        }
    }

    /// Notes that another VM's request came before this one's.
    fn company(&mut self, now: Nanos, vm: GroupId) {
        if self.last.replace(vm).is_some() {
            self.together_until = now + PATIENCE;
            if self.load.alone {
                self.turn_to(now, Load { alone: false, ..self.load });
            }
        }
    }

    /// Notes that somebody waits for each answer.
    #[inline]
    pub(crate) fn favour(&mut self, now: Nanos) {
        self.narrow_until = now + PATIENCE;
    }

    fn count(&mut self, now: Nanos, writes: bool, nr_sectors: u32) {
        let epoch = &mut self.epoch;
        if epoch.begun.is_none() {
            epoch.settling = epoch.settling.saturating_sub(1);
            if epoch.settling == 0 {
                let [reads, writes] = &self.kinds;
                let peak = (reads.commands + writes.commands, reads.sectors + writes.sectors);
                *epoch = Epoch { begun: Some(now), peak, ..Epoch::default() };
            }
            return;
        }
        epoch.commands += 1;
        epoch.sectors += u64::from(nr_sectors);
        epoch.written += u64::from(writes) * u64::from(nr_sectors);
        epoch.long += u64::from(nr_sectors >= LONG_SECTORS) * u64::from(nr_sectors);
        epoch.bound += u32::from(self.is_shut);
        if epoch.commands >= FEW_COMMANDS {
            self.look(now);
        }
    }

    /// Ends the epoch if it was long enough.
    fn look(&mut self, now: Nanos) {
        let epoch = self.epoch;
        let begun = epoch.begun.expect("it counts");
        let span = now - begun;
        // Somebody who waits for each answer waits longer while everything is let in.
        let commands = if self.load.narrow { FEW_COMMANDS } else { EPOCH_COMMANDS };
        if span < LONG_EPOCH && (epoch.commands < commands || span < EPOCH) {
            return;
        }
        let (writes, long) = (epoch.written * 2 > epoch.sectors, epoch.long * 2 > epoch.sectors);
        let narrow = self.favours && now < self.narrow_until;
        let may_be_alone = self.usual() < self.most && !long && !narrow;
        let alone = may_be_alone && now >= self.together_until;
        let load = Load { writes, long, narrow, alone };
        if let Some(wide) = &mut self.knees[load.wide().index()] {
            // It may be long since anybody could look.
            wide.is_open |= now >= wide.review_at;
        }
        if load != self.load {
            return self.turn_to(now, load);
        }
        if load.alone {
            self.epoch = Epoch { begun: Some(now), ..Epoch::default() };
            return;
        }
        let moved = if load.long { epoch.sectors } else { u64::from(epoch.commands) };
        // In thousandths, so that slow devices are told apart.
        let rate =
            moved.saturating_mul(1000).saturating_mul(SECOND / 1000) / (span.0 / 1000).max(1);
        let is_bound = u64::from(epoch.bound) * 8 >= u64::from(epoch.commands) * 7;
        let is_idle = epoch.idle.0 * IDLE_PART > span.0;
        if is_idle && self.phase != Phase::Hold {
            return self.put_off(now, span);
        }
        self.decide(now, begun, rate, is_bound);
    }

    /// Turns to another load; what was found so far is not of it.
    fn turn_to(&mut self, now: Nanos, load: Load) {
        self.load = load;
        let is_known = self.knees[load.index()].is_some_and(|knee| now < knee.review_at);
        self.search_begun = now;
        self.begin(if is_known || load.alone { Phase::Hold } else { Phase::Full });
    }

    /// Gives a search up: who leaves the device without work says nothing of its best rate.
    fn put_off(&mut self, now: Nanos, span: Nanos) {
        match &mut self.knees[self.load.index()] {
            None => self.begin(Phase::Full),
            Some(knee) => {
                knee.review_at = now + Nanos(span.0.saturating_mul(knee.hold)).min(HOLD);
                knee.is_open = false;
                self.begin(Phase::Hold);
            }
        }
    }

    /// Takes what an epoch has shown.
    fn decide(&mut self, now: Nanos, begun: Nanos, rate: u64, is_bound: bool) {
        match self.phase {
            Phase::Hold => self.hold(now, rate, is_bound),
            Phase::Full => {
                self.search_begun = begun;
                (self.full_rate, self.enough_rate) = (rate, rate);
                let (commands, sectors) = self.epoch.peak;
                let units = if self.load.long {
                    u32::try_from(sectors / u64::from(UNIT_SECTORS)).unwrap_or(u32::MAX)
                } else {
                    commands
                };
                let high = LADDER.partition_point(|&level| level < units).min(self.top);
                self.open_level = (!is_bound && high < self.top).then_some(high);
                self.narrow_down(now, None, high);
            }
            Phase::Between { low, high } => {
                let middle = between(low, high);
                let per_mille = if self.load.narrow { NARROW_PER_MILLE } else { ENOUGH_PER_MILLE };
                // A level that keeps nobody out will do, whatever is moved.
                if !is_bound || rate >= self.full_rate / 1000 * per_mille {
                    self.enough_rate = rate;
                    self.narrow_down(now, low, middle);
                } else {
                    self.narrow_down(now, Some(middle), high);
                }
            }
        }
    }

    fn narrow_down(&mut self, now: Nanos, low: Option<usize>, high: usize) {
        if between(low, high) < high {
            return self.begin(Phase::Between { low, high });
        }
        let (knee, rate) = (&mut self.knees[self.load.index()], self.enough_rate);
        let hold = match knee {
            Some(old) if old.level.abs_diff(high) <= 1 => {
                let least = if self.load.narrow { HOLD_NARROW } else { HOLD_MIN };
                (old.hold * 4).clamp(least, HOLD_MAX)
            }
            _ => HOLD_MIN,
        };
        let span = (now - self.search_begun).0.saturating_mul(hold);
        let review_at = now + Nanos(span).min(HOLD);
        let is_open = self.open_level == Some(high);
        *knee = Some(Knee { level: high, is_open, rate, review_at, hold });
        self.searches += 1;
        self.begin(Phase::Hold);
    }

    /// Looks whether the knee still is one.
    fn hold(&mut self, now: Nanos, rate: u64, is_bound: bool) {
        let Some(knee) = &mut self.knees[self.load.index()] else {
            return self.begin(Phase::Full);
        };
        let differs = rate.abs_diff(knee.rate) > knee.rate / 4;
        // Beside somebody who is waited for, what is moved says little about the device.
        let is_wrong = is_bound && (knee.is_open || (differs && !self.load.narrow));
        if now >= knee.review_at || is_wrong {
            if differs && !self.load.narrow {
                knee.hold = HOLD_MIN / 2;
            }
            return self.begin(Phase::Full);
        }
        self.epoch = Epoch { begun: Some(now), ..Epoch::default() };
    }

    /// Returns the highest level that is worth trying with a load: what is more than enough while
    /// nobody waits for each answer is more than enough beside somebody who does, and in his way.
    fn widest(&self, load: Load) -> usize {
        let wide = self.knees[load.wide().index()];
        let is_known = wide.filter(|knee| load.narrow && !knee.is_open);
        is_known.map_or(self.top, |knee| knee.level)
    }

    /// Begins an epoch, with the limits that it is about.
    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        for writes in [false, true] {
            let level = |long: bool| {
                let load = Load { writes, long, ..self.load };
                let at_work = load.index() == self.load.index();
                let knee = self.knees[load.index()].map_or(self.first, |knee| knee.level);
                match phase {
                    _ if load.alone => self.top,
                    Phase::Full if at_work => self.widest(load),
                    Phase::Between { low, high } if at_work => between(low, high),
                    _ => knee,
                }
            };
            let commands = LADDER[level(false)].min(self.most);
            let sectors = u64::from(LADDER[level(true)]) * u64::from(UNIT_SECTORS);
            // What the highest level is about is the number of commands.
            let sectors = if level(true) == self.top { sectors * 8 } else { sectors };
            let kind = &mut self.kinds[usize::from(writes)];
            kind.limit = (commands, sectors);
            kind.share = (ONE.div_ceil(u64::from(commands)), ONE.div_ceil(sectors));
        }
        let [reads, writes] = &self.kinds;
        let settling = (reads.commands + writes.commands).max(1);
        self.epoch = Epoch { settling, ..Epoch::default() };
    }
}

/// Returns the level to try next; the higher one if there is none between.
fn between(low: Option<usize>, high: usize) -> usize {
    match low {
        None => high / 2,
        Some(low) => usize::midpoint(low, high).max(low + 1),
    }
}

#[cfg(test)]
mod tests;
