//! One pool: its backends, its worker's thread, and what is known of its disks outside of it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::SystemTime;

use evenkeel_engine::SECTOR_BYTES;
use evenkeel_wire::status::{DiskExplain, DiskStatus, PoolExplain, PoolStatus};
use evenkeel_wire::trace::{TraceDisk, TraceHeader};
use evenkeel_wire::{DevicePriority, PoolChange};

use crate::affinity::{self, PinError};
use crate::api::ControlError;
use crate::backend::{Backend, LOCK_PATIENCE, OpenError};
use crate::command::{self, Command, DiskIndex, SessionDisk, WorkerGone, WorkerHandle};
use crate::config::{DiskPlan, PoolPlan, governs, polls};
use crate::model::Modelled;
use crate::priority::{IoPriorities, may_be_real_time};
use crate::scheduling::{Device, Scheduling};
use crate::trace::{self, Recorder, Trace, TraceError};
use crate::worker::{self, Worker};

/// Most data segments of a request, which QEMU's default of 128 descriptors holds with header and
/// status; guests put them into an indirect table.
const SEG_MAX: u32 = 126;

/// A disk that is served, as control threads see it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) session: SessionDisk,
    pub(crate) socket: PathBuf,
    /// Whether a session is on it.
    pub(crate) connected: AtomicBool,
    vm: String,
    source: String,
}

/// A running pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) name: String,
    pub(crate) worker: WorkerHandle,
    pub(crate) disks: Vec<Arc<Served>>,
    schedule: Scheduling,
    device: String,
    trace: Option<Trace>,
    thread: JoinHandle<()>,
}

/// A pool could not be started.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// One or more images could not be opened.
    #[error("{}", list(.0))]
    Open(Vec<OpenError>),
    /// The kernel would refuse commands of the real-time class.
    #[error(
        "pools.{pool}.device_priority = \"real-time\": the daemon has not the capability \
         CAP_SYS_NICE; grant it, or use \"best-effort\""
    )]
    RealTime {
        /// The pool.
        pool: String,
    },
    /// Its requests could not be recorded.
    #[error("pool {pool}: {source}")]
    Trace {
        /// The pool.
        pool: String,
        /// What is wrong.
        source: TraceError,
    },
    /// Its worker cannot run where it shall.
    #[error("pools.{pool}.cpus: {source}")]
    Cpus {
        /// The pool.
        pool: String,
        /// Why.
        source: PinError,
    },
    /// No ring, no thread, no descriptor.
    #[error("pool {pool}: cannot start its worker: {source}")]
    Worker {
        /// The pool.
        pool: String,
        /// What the system said.
        source: io::Error,
    },
}

fn list(errors: &[OpenError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

impl Pool {
    /// Opens all images of a pool and starts its worker.
    ///
    /// # Errors
    ///
    /// * [`PoolError`]; all images that cannot be opened are reported together.
    pub(crate) fn start(plan: &PoolPlan, socket_dir: &Path) -> Result<Self, PoolError> {
        let wants_real_time = plan.settings.device_priority == DevicePriority::RealTime;
        if wants_real_time && !may_be_real_time() {
            return Err(PoolError::RealTime { pool: plan.name.clone() });
        }
        let backends = open_all(&plan.disks)?;
        let system = |source| PoolError::Worker { pool: plan.name.clone(), source };
        let (worker, inbox) = command::channel().map_err(|errno| system(errno.into()))?;
        let model = plan.model.as_ref().map(|spec| {
            Modelled::new(spec).expect("the configuration's check has built this model before")
        });
        let rotational = plan.rotational.unwrap_or_else(|| match &model {
            Some(model) => model.rotational(),
            None => backends.iter().any(Backend::rotational),
        });
        let takes = match &model {
            Some(model) => Some(model.depth()),
            None => backends.iter().any(Backend::takes_one).then_some(1),
        };
        let schedule = Scheduling::new(plan, Device { rotational, takes });
        let device = plan.model.as_ref().map_or_else(|| "real".to_owned(), ToString::to_string);
        if model.is_some() {
            tracing::warn!(
                pool = plan.name,
                model = device,
                "this pool imitates the timing of a modelled device"
            );
        }
        if plan.settings.iopoll {
            warn_of_interrupts(plan, &backends);
        }
        let disks: Vec<_> = plan
            .disks
            .iter()
            .zip(&backends)
            .zip(0..)
            .map(|((disk, backend), index)| {
                Arc::new(serve(disk, backend, DiskIndex(index), &worker, socket_dir))
            })
            .collect();
        let engine = schedule.engine(&plan.settings);
        let (kind, depth) = (engine.elevator.kind, engine.depth);
        let header = trace_header(plan, &disks, &device, depth);
        let (trace, recorder) = record(plan, &header)?.unzip();
        let worker_plan = worker::Plan {
            engine,
            model,
            governs: governs(&plan.settings, rotational),
            usual_depth: schedule.usual_depth(&plan.settings),
            tells_streams_apart: plan.settings.streams.unwrap_or(true),
            polls: polls(&plan.settings),
            sqpoll_ms: plan.settings.sqpoll_ms,
            iopoll: plan.settings.iopoll,
            priorities: IoPriorities::new(plan.settings.device_priority),
            trace: recorder,
            groups: plan.groups.clone(),
            vms: plan.vms.clone(),
            controls: schedule.controls(),
            disks: plan.disks.iter().zip(backends).map(worker_disk).collect(),
        };
        let thread = spawn(plan, worker_plan, inbox)?;
        tracing::info!(pool = plan.name, scheduler = %kind, device, depth, rotational, "pool ready");
        Ok(Self { name: plan.name.clone(), worker, disks, schedule, device, trace, thread })
    }

    /// Returns the pool's document, without figures if the worker has ended.
    pub(crate) fn status(&self) -> PoolStatus {
        let mut status = PoolStatus {
            name: self.name.clone(),
            device: self.device.clone(),
            trace: self.trace.as_ref().map(Trace::status),
            disks: self.disks.iter().map(|disk| disk.status()).collect(),
            ..PoolStatus::default()
        };
        self.schedule.fill(&mut status);
        if let Ok(figures) = self.worker.ask(|reply| Command::Snapshot { reply }) {
            self.schedule.fill_groups(&mut status, &figures);
            figures.fill(&mut status);
            self.schedule.fill_gate(&mut status, &figures.gate);
        }
        status
    }

    /// Returns why requests waited, nothing if the worker has ended.
    pub(crate) fn explain(&self) -> PoolExplain {
        let explained = self.worker.ask(|reply| Command::Explain { reply }).unwrap_or_default();
        let mut vms = self.schedule.explain(&explained);
        let status = self.status();
        for vm in &mut vms {
            let disks = status.disks.iter().filter(|disk| disk.vm == vm.name);
            let explain = |disk: &DiskStatus| DiskExplain {
                name: disk.name.clone(),
                requests: disk.requests,
                queue_time: disk.queue_time,
                service_time: disk.service_time,
            };
            vm.disks = disks.map(explain).collect();
        }
        PoolExplain { name: self.name.clone(), scheduler: status.scheduler, vms }
    }

    /// Changes how the pool schedules, all or nothing. Requests go on meanwhile.
    ///
    /// # Errors
    ///
    /// * [`ControlError::Invalid`]: every mistake.
    /// * [`ControlError::Stopping`]: the worker has ended.
    pub(crate) fn change(&self, change: &PoolChange) -> Result<(), ControlError> {
        let (settings, schedule) = self.schedule.plan(change).map_err(ControlError::Invalid)?;
        self.worker
            .ask(|reply| Command::Reschedule { schedule: Box::new(schedule), reply })
            .map_err(|_gone| ControlError::Stopping)?;
        tracing::info!(pool = self.name, scheduler = %settings.scheduler(), "rescheduled");
        self.schedule.settle(settings);
        Ok(())
    }

    /// Finishes what guests have asked for, makes it durable, and ends the worker.
    pub(crate) fn drain(&self) {
        // A worker that has ended already has nothing left to finish.
        let _ended: Result<(), WorkerGone> = self.worker.ask(|reply| Command::Drain { reply });
    }

    /// Waits for the worker's thread.
    pub(crate) fn join(self) {
        if self.thread.join().is_err() {
            tracing::error!(pool = self.name, "the worker ended by a panic");
        }
        if let Some(trace) = self.trace {
            trace.join();
        }
    }
}

impl Served {
    fn status(&self) -> DiskStatus {
        DiskStatus {
            name: self.session.name.to_string(),
            vm: self.vm.clone(),
            path: self.source.clone(),
            socket: self.socket.display().to_string(),
            size_bytes: self.session.geometry.sectors * SECTOR_BYTES,
            read_only: self.session.geometry.read_only,
            connected: self.connected.load(Ordering::Relaxed),
            ..DiskStatus::default()
        }
    }
}

fn open_all(disks: &[DiskPlan]) -> Result<Vec<Backend>, PoolError> {
    let mut backends = Vec::new();
    let mut errors = Vec::new();
    for disk in disks {
        match Backend::open(&disk.source, disk.read_only, LOCK_PATIENCE) {
            Ok(backend) => backends.push(backend.with_block_bytes(disk.block_bytes)),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() { Ok(backends) } else { Err(PoolError::Open(errors)) }
}

/// Tells the operator which disks `iopoll` does nothing for.
fn warn_of_interrupts(plan: &PoolPlan, backends: &[Backend]) {
    for (disk, backend) in plan.disks.iter().zip(backends) {
        if !backend.can_be_asked() {
            tracing::warn!(
                pool = plan.name,
                disk = disk.name,
                image = disk.source_text,
                "iopoll: this disk is served by interrupts: its device has no queues without them \
                 (queue/io_poll in sysfs is not 1; nvme has some with poll_queues=N), or its file \
                 system no direct I/O"
            );
        }
    }
}

fn serve(
    plan: &DiskPlan,
    backend: &Backend,
    index: DiskIndex,
    worker: &WorkerHandle,
    socket_dir: &Path,
) -> Served {
    let session = SessionDisk {
        name: plan.name.as_str().into(),
        index,
        geometry: *backend.geometry(),
        seg_max: SEG_MAX,
        max_vrings: plan.queues,
        write_cache: plan.write_cache,
        worker: worker.clone(),
    };
    Served {
        session,
        socket: socket_dir.join(format!("{}.sock", plan.name)),
        connected: AtomicBool::new(false),
        vm: plan.vm.clone(),
        source: plan.source_text.clone(),
    }
}

/// Begins to record a pool's requests, if that is wanted.
fn record(plan: &PoolPlan, header: &TraceHeader) -> Result<Option<(Trace, Recorder)>, PoolError> {
    let begun = plan.settings.trace.as_ref().map(|path| trace::begin(path, header));
    begun.transpose().map_err(|source| PoolError::Trace { pool: plan.name.clone(), source })
}

fn trace_header(plan: &PoolPlan, disks: &[Arc<Served>], device: &str, depth: u32) -> TraceHeader {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let disks = plan.disks.iter().zip(disks).map(|(disk, served)| TraceDisk {
        name: disk.name.clone(),
        vm: disk.vm.clone(),
        weight: u32::from(plan.groups[disk.group].weight.value()),
        sectors: served.session.geometry.sectors,
        heeds_priority: plan.vms.iter().any(|vm| vm.name == disk.vm && vm.heeds_priority),
        write_through: !disk.write_cache,
    });
    TraceHeader {
        started_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(0),
        pool: plan.name.clone(),
        scheduler: plan.settings.scheduler().to_string(),
        device: device.to_owned(),
        depth,
        disks: disks.collect(),
    }
}

fn worker_disk((plan, backend): (&DiskPlan, Backend)) -> worker::DiskPlan {
    worker::DiskPlan {
        name: plan.name.as_str().into(),
        backend,
        group: plan.group,
        serial: plan.serial,
        write_through: !plan.write_cache,
    }
}

/// Starts a worker's thread and waits until it is ready.
fn spawn(
    pool: &PoolPlan,
    plan: worker::Plan,
    inbox: command::Inbox,
) -> Result<JoinHandle<()>, PoolError> {
    let (ready, readiness) = mpsc::sync_channel(1);
    let name = pool.name.clone();
    let system = |source| PoolError::Worker { pool: pool.name.clone(), source };
    let (cpus, named) = (pool.settings.cpus.clone(), format!("pool-{name}"));
    let thread = thread::Builder::new().name(named).spawn(move || {
        if let Some(Err(source)) = cpus.as_ref().map(affinity::pin) {
            let _waiting = ready.send(Err(PoolError::Cpus { pool: name, source }));
            return;
        }
        match Worker::new(plan, inbox) {
            Ok(worker) => {
                let _waiting = ready.send(Ok(()));
                worker.run().expect("a ring that could be made works until its worker ends");
            }
            Err(source) => {
                let _waiting = ready.send(Err(PoolError::Worker { pool: name, source }));
            }
        }
    });
    let thread = thread.map_err(system)?;
    readiness.recv().map_err(|gone| system(io::Error::other(gone)))??;
    Ok(thread)
}
