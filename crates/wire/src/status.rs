//! The documents of the API, and of `evenkeel status --format json`.
//!
//! Fields are added, never renamed; figures carry their unit in the name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::agent::Level;
use crate::tunables::TunableValue;

/// The whole daemon: `GET /v1/status`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// The version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// How long it has run.
    pub uptime_seconds: u64,
    /// Its pools, by name.
    pub pools: Vec<PoolStatus>,
}

impl Status {
    /// Returns the pool of that name.
    #[must_use]
    pub fn pool(&self, name: &str) -> Option<&PoolStatus> {
        self.pools.iter().find(|pool| pool.name == name)
    }

    /// Returns the disk of that name.
    #[must_use]
    pub fn disk(&self, name: &str) -> Option<&DiskStatus> {
        self.pools.iter().flat_map(|pool| &pool.disks).find(|disk| disk.name == name)
    }
}

/// One pool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// The scheduler at work.
    pub scheduler: String,
    /// The profile, if one was chosen.
    #[serde(default)]
    pub profile: Option<String>,
    /// Tunables that the profile or the operator has set, as in `bfq.slice_idle`.
    #[serde(default)]
    pub tunables: BTreeMap<String, TunableValue>,
    /// What commands go to: `real`, or the model as in `hdd:rpm=5400`.
    pub device: String,
    /// The most commands at the device at a time.
    pub depth: u32,
    /// The processors that its worker runs on, as in `0-3,8`; none if it runs on any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// What the governor has decided; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub governor: Option<GovernorStatus>,
    /// How its worker looks for work before it sleeps; none if it may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polling: Option<PollingStatus>,
    /// Commands at the device now.
    pub in_flight: u32,
    /// Requests that the scheduler holds now.
    pub waiting: u32,
    /// How many requests go to the device together, as configured: `dynamic`, `static 8`.
    pub block: String,
    /// How its answers are taken, as configured: `each`, `block`, `subset 4`.
    pub responses: String,
    /// Commands that went to the device together, the mean since the daemon started; 0 before the
    /// first.
    pub commands_per_block: f64,
    /// The I/O priority with which urgent commands enter the host's kernel: `none`, `best-effort`
    /// or `real-time`.
    #[serde(default)]
    pub device_priority: String,
    /// Commands that went to the device so far, by how much they matter.
    #[serde(default)]
    pub commands: PrecedenceStatus,
    /// Requests answered for each entry into the kernel by the ring, the mean since the daemon
    /// started; 0 before the first.
    pub requests_per_system_call: f64,
    /// Kicks of guests that the worker heard of, for each request: each is an exit of a guest.
    #[serde(default)]
    pub kicks_per_request: f64,
    /// Interrupts of guests for each request.
    #[serde(default)]
    pub interrupts_per_request: f64,
    /// The trace that its requests are recorded in, if they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceStatus>,
    /// Its groups, parents before children.
    #[serde(default)]
    pub groups: Vec<GroupStatus>,
    /// Its VMs, by name.
    #[serde(default)]
    pub vms: Vec<GroupStatus>,
    /// Limits of everything together.
    #[serde(default)]
    pub limits: LimitStatus,
    /// The books of everything together, if the scheduler keeps any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStatus>,
    /// Its disks, by name.
    pub disks: Vec<DiskStatus>,
}

/// How a pool's worker looks for work before it sleeps.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct PollingStatus {
    /// The longest that it may look at a time.
    pub most_us: u64,
    /// While it waits for an answer of the device.
    pub device: LooksStatus,
    /// While it waits for a guest.
    pub guest: LooksStatus,
}

/// What looking did for one kind of wait, since the daemon started.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LooksStatus {
    /// How long the next look lasts at most; 0 if there is none.
    pub window_us: u64,
    /// Times that it looked.
    pub looks: u64,
    /// Of these, those that found something before it slept.
    pub paid: u64,
    /// How long all of them took.
    pub time_us: u64,
    /// Times that it gave looking up for a while: too little was found, or somebody else wanted
    /// the processor.
    pub rests: u64,
}

/// How much of its depth a pool uses, as its governor has found out.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GovernorStatus {
    /// Most reads at the device at a time.
    pub reads: FlightStatus,
    /// Most writes.
    pub writes: FlightStatus,
    /// Whether they are fewer for somebody who waits for each answer.
    pub narrow: bool,
    /// Whether they are wide because one VM is alone.
    #[serde(default)]
    pub alone: bool,
    /// Searches finished since the daemon started.
    pub searches: u64,
}

/// How much of one kind may be at the device at a time.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct FlightStatus {
    /// Commands.
    pub commands: u32,
    /// Bytes; one command may exceed it.
    pub bytes: u64,
}

/// Commands of a pool since the daemon started, by how much they matter beside others of the host.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct PrecedenceStatus {
    /// Of queues that are raised as soft real-time.
    pub soft_real_time: u64,
    /// Of queues that are raised as interactive.
    pub interactive: u64,
    /// Others that somebody waits for; flushes and discards.
    pub ordinary: u64,
    /// Write-back, and the idle class of guests.
    pub background: u64,
}

/// A file that requests are recorded in.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TraceStatus {
    /// The file.
    pub path: String,
    /// Requests in it so far. The latest are still in memory: those of a second, or some thousand.
    pub requests: u64,
    /// Requests that are not in it because they came faster than it could be written.
    pub dropped: u64,
    /// Its size so far.
    pub bytes: u64,
    /// Why it ended before the daemon did; absent if it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

/// A group or a VM.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its share among its siblings.
    pub weight: u32,
    /// Its limits and its reservation.
    #[serde(default)]
    pub limits: LimitStatus,
    /// What it and all below it requested and got since the daemon started; absent unless the
    /// scheduler keeps books, as `bfq` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoStatus>,
}

/// The books of a group, as Linux keeps them for a control group in its files `bfq.io_*`.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct IoStatus {
    /// Reads.
    pub read: IoKindStatus,
    /// Writes.
    pub write: IoKindStatus,
    /// Discards, and writes of zeroes.
    pub discard: IoKindStatus,
    /// Those of all these that somebody waits for.
    pub sync: IoKindStatus,
    /// The others: write-back.
    #[serde(rename = "async")]
    pub write_back: IoKindStatus,
    /// All together.
    pub total: IoKindStatus,
    /// Requests that wait now.
    pub queued: u32,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct IoKindStatus {
    /// Requests that the device has answered, those that were merged counted once.
    pub serviced: u64,
    /// Bytes that they moved.
    pub service_bytes: u64,
    /// Requests that were merged into others.
    pub merged: u64,
    /// From the scheduler to the device, the sum over all requests.
    pub wait_time_us: u64,
    /// From the device to its answer, the sum over all requests.
    pub service_time_us: u64,
}

/// Limits and reservations, and what they did since the daemon started.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct LimitStatus {
    /// Those that are set, as in `total_iops_sec`.
    pub set: BTreeMap<String, u64>,
    /// Requests that these limits or some above hold up now.
    pub held: u32,
    /// Requests that had to wait for them.
    pub delayed: u64,
    /// How long at least one request waited for them, all together.
    pub throttled_us: u64,
}

/// One disk: `GET /v1/disks/NAME`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DiskStatus {
    /// Its name.
    pub name: String,
    /// The VM that it belongs to.
    pub vm: String,
    /// Where its data lives: a path or `null:SIZE`.
    pub path: String,
    /// Where a VMM connects.
    pub socket: String,
    /// What the guest sees.
    pub size_bytes: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether a VMM is connected.
    pub connected: bool,
    /// The weight of its VM.
    pub weight: u32,
    /// Whether the scheduler raises its VM at the moment.
    pub raised: bool,
    /// Its requests at the device now.
    pub in_flight: u32,
    /// Its requests that the scheduler holds now.
    pub waiting: u32,
    /// Those of them that write and found the file system full; they wait for room.
    #[serde(default)]
    pub no_room: u32,
    /// Requests answered, all kinds together.
    pub requests: u64,
    /// Bytes moved, both directions together.
    pub bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Kicks of its guest that the worker heard of; several while it was busy are one.
    #[serde(default)]
    pub kicks: u64,
    /// Interrupts of its guest.
    #[serde(default)]
    pub interrupts: u64,
    /// Requests and bytes of reads.
    pub read: OpStatus,
    /// The same by kind.
    pub write: OpStatus,
    /// The same by kind.
    pub flush: OpStatus,
    /// Discards and write-zeroes.
    pub discard: OpStatus,
    /// The help that its VM has asked for; absent if it may not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<HelpStatus>,
    /// From the daemon's taking a request to the device.
    pub queue_time: Latency,
    /// From the device to its answer.
    pub service_time: Latency,
    /// Its own limits and reservation.
    #[serde(default)]
    pub limits: LimitStatus,
}

/// What a VM's agent asked for and got, since the daemon started.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct HelpStatus {
    /// What holds now: `none`, `interactive` or `soft-real-time`.
    pub level: Level,
    /// Time of the device that it could still have with help at once.
    pub credit_ms: u64,
    /// How far it is believed, in thousandths: the part of its credit that refills.
    pub trust_per_mille: u32,
    /// Messages from its agent.
    pub messages: u64,
    /// Of these, older than one before.
    pub outdated: u64,
    /// Times that help began.
    pub begun: u64,
    /// Times that it ended because nobody renewed it.
    pub expired: u64,
    /// Times that it ended because the credit was used up.
    pub exhausted: u64,
    /// Messages that got no help for want of credit.
    pub refused: u64,
    /// Time with help.
    pub helped_ms: u64,
    /// Bytes moved with help.
    pub helped_bytes: u64,
}

/// Why requests waited: `GET /v1/explain`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Explain {
    /// The pools, by name.
    pub pools: Vec<PoolExplain>,
}

/// One pool.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct PoolExplain {
    /// Its name.
    pub name: String,
    /// The scheduler at work.
    pub scheduler: String,
    /// Its VMs, by name.
    pub vms: Vec<VmExplain>,
}

/// One VM, since the daemon started. Requests that wait together count together.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct VmExplain {
    /// Its name.
    pub name: String,
    /// The sum of the times that its requests waited: of the six parts below, to the nanosecond.
    pub waited_ns: u64,
    /// While other VMs held the device, the longest first.
    pub blames: Vec<BlameStatus>,
    /// The same for VMs that are not told apart: those that hold the device seldom.
    pub others_ns: u64,
    /// While its own requests held the device, or were in the way of another.
    pub own_ns: u64,
    /// While limits held its requests up, its own or those of a group above.
    pub limited_ns: u64,
    /// While the scheduler kept the device idle for somebody's next request, perhaps its own.
    pub idled_ns: u64,
    /// While the device was empty until more requests came for a static block.
    pub gathered_ns: u64,
    /// The sum of the times that its requests were at the device.
    pub served_ns: u64,
    /// How long the scheduler kept the device idle for it while requests waited.
    pub kept_ns: u64,
    /// By how much time of the device it is ahead of its share now because it was raised; it gives
    /// that back.
    #[serde(default)]
    pub ahead_ns: u64,
    /// Whether that is so much that it is raised for short starts alone until a part of it is gone.
    #[serde(default)]
    pub owes: bool,
    /// Its disks, by name.
    pub disks: Vec<DiskExplain>,
}

/// A part of a VM's waits.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct BlameStatus {
    /// The VM that is blamed.
    pub vm: String,
    /// While it held the device; if several did, its share.
    pub held_ns: u64,
}

/// How long requests of a disk took that are answered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct DiskExplain {
    /// Its name.
    pub name: String,
    /// Requests answered.
    pub requests: u64,
    /// From the daemon's taking a request to the device.
    pub queue_time: Latency,
    /// From the device to its answer.
    pub service_time: Latency,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct OpStatus {
    /// Requests answered.
    pub requests: u64,
    /// Bytes moved; 0 where none move.
    pub bytes: u64,
}

/// How long something took, since the daemon started.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Latency {
    /// The mean.
    pub mean_us: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
    /// All together.
    #[serde(default)]
    pub total_us: f64,
}

/// What to change: `PUT /v1/disks/NAME/weight`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct SetWeight {
    /// The new weight of the disk's VM, 1 to 1000.
    pub weight: u32,
}

/// Why a call failed.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct ApiError {
    /// What went wrong.
    pub error: String,
    /// The field or part of the address that caused it, if one did.
    pub field: Option<String>,
    /// What to do.
    pub remedy: String,
}
