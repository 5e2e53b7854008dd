//! What a worker reports of itself.

use evenkeel_engine::{
    BlockFigures, DiskReport, FlightLimit, GovernorReport, HelpReport, Precedence, SECTOR_BYTES,
};
use evenkeel_sched::{IoReport, IoStats, Nanos, Weight};
use evenkeel_wire::status::{
    DiskStatus, FlightStatus, GovernorStatus, HelpStatus, IoKindStatus, IoStatus, Latency,
    LooksStatus, OpStatus, PollingStatus, PoolStatus, PrecedenceStatus,
};

use crate::agents;
use crate::guests::Exits;
use crate::limits::GateFigures;
use crate::polling::{Awaited, Looks, Polling};

/// The figures of a pool at one instant.
#[derive(Clone, Debug)]
pub(crate) struct PoolFigures {
    /// Commands at the device.
    pub(crate) in_flight: u32,
    /// Requests that wait for the device.
    pub(crate) waiting: u32,
    /// How the worker looks for work.
    pub(crate) polling: Polling,
    /// What the governor has decided, if there is one.
    pub(crate) governor: Option<GovernorReport>,
    /// What went to the device together.
    pub(crate) blocks: BlockFigures,
    /// Commands by precedence, from the least on.
    pub(crate) precedence: [u64; Precedence::COUNT],
    /// Entries into the kernel by the ring.
    pub(crate) system_calls: u64,
    /// By position in the pool's list of groups.
    pub(crate) weights: Vec<Weight>,
    /// The scheduler's books, if it keeps any: of each group in the same order, and of the pool.
    pub(crate) io: Vec<Option<IoReport>>,
    pub(crate) pool_io: Option<IoReport>,
    /// What limits held up.
    pub(crate) gate: GateFigures,
    /// By disk index.
    pub(crate) disks: Vec<DiskFigures>,
}

/// The figures of one disk at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiskFigures {
    pub(crate) report: DiskReport,
    /// Of its VM, if that may ask for help.
    pub(crate) help: Option<HelpReport>,
    /// How often its guest and the worker woke each other.
    pub(crate) exits: Exits,
    /// Requests that made no sense.
    pub(crate) refused: u64,
    /// The weight of its VM.
    pub(crate) weight: Weight,
}

impl PoolFigures {
    /// Adds the figures to what is known of the pool and its disks.
    pub(crate) fn fill(&self, status: &mut PoolStatus) {
        status.in_flight = self.in_flight;
        status.waiting = self.waiting;
        status.governor = self.governor.as_ref().map(governor);
        status.polling = polling(&self.polling);
        status.io = self.pool_io.as_ref().map(io);
        for (disk, figures) in status.disks.iter_mut().zip(&self.disks) {
            figures.fill(disk);
        }
        let [background, ordinary, interactive, soft_real_time] = self.precedence;
        status.commands = PrecedenceStatus { soft_real_time, interactive, ordinary, background };
        let requests = status.disks.iter().map(|disk| disk.requests).sum();
        status.commands_per_block = ratio(self.blocks.commands, self.blocks.blocks);
        let sum = |of: fn(&DiskStatus) -> u64| status.disks.iter().map(of).sum();
        status.kicks_per_request = ratio(sum(|disk| disk.kicks), requests);
        status.interrupts_per_request = ratio(sum(|disk| disk.interrupts), requests);
        status.requests_per_system_call = ratio(requests, self.system_calls);
    }
}

fn governor(report: &GovernorReport) -> GovernorStatus {
    let flight = |FlightLimit { commands, bytes }| FlightStatus { commands, bytes };
    GovernorStatus {
        reads: flight(report.reads),
        writes: flight(report.writes),
        narrow: report.narrow,
        alone: report.alone,
        searches: report.searches,
    }
}

fn polling(polling: &Polling) -> Option<PollingStatus> {
    let looks = |awaited| {
        let Looks { window, looks, paid, time, rests } = polling.figures(awaited);
        let (window_us, time_us) = (window.as_micros(), time.as_micros());
        LooksStatus { window_us, looks, paid, time_us, rests }
    };
    let most_us = polling.most().as_micros();
    (most_us > 0).then(|| PollingStatus {
        most_us,
        device: looks(Awaited::Device),
        guest: looks(Awaited::Guest),
    })
}

/// Returns how many there are for each of `of`; none for none.
#[expect(clippy::cast_precision_loss, reason = "a figure for people; 53 bits are plenty")]
fn ratio(count: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { count as f64 / of as f64 }
}

impl DiskFigures {
    /// Adds the figures to what is known of the disk.
    pub(crate) fn fill(&self, status: &mut DiskStatus) {
        let report = &self.report;
        status.weight = u32::from(self.weight.value());
        status.raised = report.raised;
        status.in_flight = report.in_flight;
        status.waiting = report.outstanding.saturating_sub(report.in_flight);
        status.no_room = report.stalled;
        status.requests = report.reads + report.writes + report.discards + report.flushes;
        status.bytes = report.read_bytes + report.written_bytes;
        status.errors = report.errors + self.refused;
        status.read = operations(report.reads, report.read_bytes);
        status.write = operations(report.writes, report.written_bytes);
        status.flush = operations(report.flushes, 0);
        status.discard = operations(report.discards, 0);
        status.kicks = self.exits.kicks;
        status.interrupts = self.exits.interrupts;
        status.help = self.help.as_ref().map(help);
        status.queue_time = latency(&report.queue_time);
        status.service_time = latency(&report.service_time);
    }
}

/// Writes the scheduler's books of a group down as the API tells them.
pub(crate) fn io(report: &IoReport) -> IoStatus {
    let kind = |stats: IoStats| IoKindStatus {
        serviced: stats.serviced,
        service_bytes: stats.sectors * SECTOR_BYTES,
        merged: stats.merged,
        wait_time_us: stats.wait_time.as_micros(),
        service_time_us: stats.service_time.as_micros(),
    };
    IoStatus {
        read: kind(report.reads),
        write: kind(report.writes),
        discard: kind(report.discards),
        sync: kind(report.sync),
        write_back: kind(report.write_back),
        total: kind(report.total()),
        queued: report.queued,
    }
}

fn help(report: &HelpReport) -> HelpStatus {
    HelpStatus {
        level: agents::level(report.urgency),
        credit_ms: report.credit.as_millis(),
        trust_per_mille: report.trust_per_mille,
        messages: report.messages,
        outdated: report.outdated,
        begun: report.begun,
        expired: report.expired,
        exhausted: report.exhausted,
        refused: report.refused,
        helped_ms: report.helped.as_millis(),
        helped_bytes: report.helped_sectors * SECTOR_BYTES,
    }
}

const fn operations(requests: u64, bytes: u64) -> OpStatus {
    OpStatus { requests, bytes }
}

fn latency(durations: &evenkeel_engine::Durations) -> Latency {
    Latency {
        mean_us: micros(durations.mean),
        p50_us: micros(durations.p50),
        p99_us: micros(durations.p99),
        p999_us: micros(durations.p999),
        total_us: micros(durations.total),
    }
}

fn micros(time: Nanos) -> f64 {
    std::time::Duration::from_nanos(time.0).as_secs_f64() * 1e6
}
