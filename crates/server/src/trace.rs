//! Recording what guests ask for, without ever holding them up.
//!
//! Picture a stenographer with a few pads: she fills one, hands it to a clerk who files it, and
//! takes an empty one. If the clerk is slow and no pad is empty she listens on, writes nothing, and
//! counts what she misses. The worker is the stenographer; the clerk is a thread of its own, the
//! only one that touches the file.
//!
//! Pads are blocks of a bounded number, set aside at the start. The worker never waits, except at
//! the very end for the clerk's last pad.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use evenkeel_engine::{Request, Retired, Status};
use evenkeel_sched::{Nanos, Op, Tag};
use evenkeel_wire::status::TraceStatus as TraceFigures;
use evenkeel_wire::trace::{
    TRACE_MAGIC, TraceBlock, TraceHeader, TraceOp, TraceRecord, TraceStatus,
};

/// Bytes of a block: some 4000 requests, a system call for each block.
const BLOCK_BYTES: usize = 64 << 10;
/// Blocks of a trace. 4 MiB hold a second of 250 000 requests a second.
const BLOCKS: usize = 64;
/// A block goes to the file once it is so old, full or not, when the next request is answered.
const BLOCK_AGE: Nanos = Nanos::from_secs(1);

/// A trace could not be begun.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the trace {}: {problem}", path.display())]
pub struct TraceError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what to do.
    pub problem: TraceProblem,
}

/// What keeps a trace from being begun.
#[derive(Debug, thiserror::Error)]
pub enum TraceProblem {
    /// Something else would be lost.
    #[error("a file that is no trace is in the way; move it away, or choose another name")]
    InTheWay,
    /// No file can be written there.
    #[error("neither a file nor a character device; choose another name")]
    Kind,
    /// The system refuses.
    #[error("{0}; choose a directory that is there and that the daemon may write to")]
    System(#[from] io::Error),
}

/// What is known of a trace outside of the worker.
#[derive(Debug)]
pub(crate) struct Trace {
    path: PathBuf,
    counts: Arc<Counts>,
    clerk: JoinHandle<()>,
}

/// What both threads count.
#[derive(Debug, Default)]
struct Counts {
    requests: AtomicU64,
    dropped: AtomicU64,
    bytes: AtomicU64,
    /// Why the trace ended before the daemon did.
    ended: OnceLock<String>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// When the trace began.
    origin: Nanos,
    /// Requests that are not answered, by tag.
    open: Vec<Open>,
    /// Where records go; none while all blocks wait for the file.
    block: Option<TraceBlock>,
    /// When its first record came.
    begun: Nanos,
    /// Requests since the last block that are in none.
    dropped: u64,
    empty: Receiver<TraceBlock>,
    full: SyncSender<TraceBlock>,
    counts: Arc<Counts>,
}

/// What a request asked for.
#[derive(Clone, Copy, Debug)]
struct Open {
    op: TraceOp,
    queue: u16,
    nr_sectors: u32,
    sector: u64,
    ioprio: u32,
}

const NOTHING: Open = Open { op: TraceOp::Flush, queue: 0, nr_sectors: 0, sector: 0, ioprio: 0 };

/// The file's end.
#[derive(Debug)]
struct Clerk {
    path: PathBuf,
    file: File,
    full: Receiver<TraceBlock>,
    empty: SyncSender<TraceBlock>,
    counts: Arc<Counts>,
}

/// Opens the file of a trace and starts the thread that writes it. A trace that is there already
/// is kept as `FILE.old`, in place of an older one.
///
/// # Errors
///
/// * [`TraceError`] if something else is in the way, or the system refuses.
pub(crate) fn begin(path: &Path, header: &TraceHeader) -> Result<(Trace, Recorder), TraceError> {
    let named = |problem| TraceError { path: path.to_owned(), problem };
    let file = open(path).map_err(named)?;
    let (recorder, clerk) = ends(path, file, BLOCKS, BLOCK_BYTES);
    let counts = Arc::clone(&recorder.counts);
    let header = header.encode();
    let thread = thread::Builder::new()
        .name(format!("trace-{}", path.file_name().unwrap_or_default().display()))
        .spawn(move || clerk.work(&header))
        .map_err(|error| named(error.into()))?;
    tracing::info!(path = %path.display(), "recording requests");
    Ok((Trace { path: path.to_owned(), counts, clerk: thread }, recorder))
}

fn ends(path: &Path, file: File, blocks: usize, block_bytes: usize) -> (Recorder, Clerk) {
    // Each channel holds all blocks that there are, so nobody ever waits for room in one.
    let (full, to_file) = mpsc::sync_channel(blocks);
    let (back, empty) = mpsc::sync_channel(blocks);
    for _ in 1..blocks {
        back.try_send(TraceBlock::new(block_bytes)).expect("it has room for all blocks");
    }
    let counts = Arc::<Counts>::default();
    let recorder = Recorder {
        origin: Nanos::ORIGIN,
        open: Vec::new(),
        block: Some(TraceBlock::new(block_bytes)),
        begun: Nanos::ORIGIN,
        dropped: 0,
        empty,
        full,
        counts: Arc::clone(&counts),
    };
    (recorder, Clerk { path: path.to_owned(), file, full: to_file, empty: back, counts })
}

fn open(path: &Path) -> Result<File, TraceProblem> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() && there.len() > 0 => {
            let mut magic = [0; TRACE_MAGIC.len()];
            let read = File::open(path)?.read(&mut magic)?;
            if magic[..read] != TRACE_MAGIC {
                return Err(TraceProblem::InTheWay);
            }
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            fs::rename(path, old)?;
        }
        Ok(there) if !there.is_file() && !there.file_type().is_char_device() => {
            return Err(TraceProblem::Kind);
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error.into()),
    }
    Ok(OpenOptions::new().write(true).create(true).truncate(true).open(path)?)
}

impl Trace {
    /// Returns the figures for the pool's document.
    pub(crate) fn status(&self) -> TraceFigures {
        let Counts { requests, dropped, bytes, ended } = &*self.counts;
        TraceFigures {
            path: self.path.display().to_string(),
            requests: requests.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
            bytes: bytes.load(Ordering::Relaxed),
            ended: ended.get().cloned(),
        }
    }

    /// Waits until everything that was recorded is in the file.
    pub(crate) fn join(self) {
        if self.clerk.join().is_err() {
            tracing::error!(path = %self.path.display(), "the writer of the trace panicked");
        }
    }
}

impl Recorder {
    /// Says when the trace begins: before the first request comes.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.origin = now;
    }

    /// Notes what a request asks for; none is a flush. `queue` is its vring.
    pub(crate) fn submitted(
        &mut self,
        tag: Tag,
        request: Option<&Request>,
        ioprio: u32,
        queue: u16,
    ) {
        let at = tag.0 as usize;
        if at >= self.open.len() {
            self.open.resize(at + 1, NOTHING);
        }
        self.open[at] = match request {
            None => Open { queue, ioprio, ..NOTHING },
            Some(request) => {
                let op = match request.op {
                    Op::Read => TraceOp::Read,
                    Op::Write => TraceOp::Write,
                    Op::Discard => TraceOp::Discard,
                    Op::WriteZeroes => TraceOp::WriteZeroes,
                };
                let Request { sector, nr_sectors, .. } = *request;
                Open { op, queue, nr_sectors, sector, ioprio }
            }
        };
    }

    /// Records an answer. False if the trace has ended and nothing is recorded any more.
    pub(crate) fn answered(&mut self, retired: &Retired) -> bool {
        if self.block.is_none() {
            match self.empty.try_recv() {
                Ok(block) => self.block = Some(block),
                Err(TryRecvError::Empty) => {
                    self.dropped += 1;
                    self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                    return true;
                }
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        let record = self.record(retired);
        let block = self.block.as_mut().expect("taken above");
        if block.records() == 0 {
            self.begun = retired.completed;
        }
        block.push(&record);
        if block.has_room() && retired.completed - self.begun < BLOCK_AGE {
            return true;
        }
        self.hand_over(false)
    }

    fn record(&self, retired: &Retired) -> TraceRecord {
        let Retired { tag, disk, arrived, dispatched, completed, .. } = *retired;
        let Open { op, queue, nr_sectors, sector, ioprio } = self.open[tag.0 as usize];
        let status = match retired.status {
            Status::Ok => TraceStatus::Ok,
            Status::IoError => TraceStatus::IoError,
            Status::Unsupported => TraceStatus::Unsupported,
        };
        TraceRecord {
            arrived_ns: (arrived - self.origin).0,
            disk: disk.0,
            queue,
            op,
            status,
            sector,
            nr_sectors,
            ioprio,
            wait_ns: (dispatched - arrived).0,
            service_ns: (completed - dispatched).0,
        }
    }

    /// Gives the block to the file. False if nobody writes any more.
    fn hand_over(&mut self, is_last: bool) -> bool {
        let Some(mut block) = self.block.take() else { return true };
        block.seal(std::mem::take(&mut self.dropped), is_last);
        self.full.try_send(block).is_ok()
    }

    /// Ends the trace. Waits for an empty block if there is none, for the last word of how many
    /// requests are missing.
    pub(crate) fn finish(mut self) {
        if self.block.is_none() {
            self.block = self.empty.recv().ok();
        }
        self.hand_over(true);
    }
}

impl Clerk {
    /// Writes everything until the worker ends or the file fails; then nothing is recorded any
    /// more, and the pool goes on.
    fn work(mut self, header: &[u8]) {
        let mut written = 0;
        if let Err(error) = self.write_all(header, &mut written) {
            let Self { path, counts, .. } = &self;
            tracing::warn!(path = %path.display(), %error, bytes = written,
                "the trace ends here; the disks are served as before");
            let _first = counts.ended.set(error.to_string());
            // What is left of a block would only look like damage. A device cannot be cut.
            let _device = self.file.set_len(written);
        }
    }

    fn write_all(&mut self, header: &[u8], written: &mut u64) -> io::Result<()> {
        self.write(header, written)?;
        while let Ok(mut block) = self.full.recv() {
            self.write(block.bytes(), written)?;
            self.counts.requests.fetch_add(u64::from(block.records()), Ordering::Relaxed);
            block.clear();
            // The worker has gone and left its last block.
            let _nobody_needs_it = self.empty.try_send(block);
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8], written: &mut u64) -> io::Result<()> {
        self.file.write_all(bytes)?;
        *written += bytes.len() as u64;
        self.counts.bytes.store(*written, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
