//! A server, a witness and the hostile client's disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_bench::client::verify::{Corruption, Verifier};
use evenkeel_bench::client::vring::Descriptor;
use evenkeel_bench::client::{Client, Options, Wake};
use evenkeel_bench::process::{DiskSpec, PoolSpec, Server, build_evenkeel};

/// Size of each disk in bytes.
pub(crate) const DISK_BYTES: u64 = 8 << 20;
/// The hostile client owns the sectors below; honest ones verify those from here on.
pub(crate) const HONEST_FIRST: u64 = 8192;

/// What became of a chain.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Fate {
    /// Answered with this status byte.
    Status(u8),
    /// Given back with length 0 and without a status.
    Dropped,
    /// The server stopped the vring.
    Stopped,
}

/// A server with a disk to abuse and a disk to watch.
#[derive(Debug)]
pub(crate) struct Arena {
    server: Server,
    dir: PathBuf,
    witness: Option<JoinHandle<Result<(), Corruption>>>,
    stop: Arc<AtomicBool>,
    seen: Arc<AtomicU64>,
}

impl Arena {
    /// Starts server and witness; `name` is the test's own.
    pub(crate) fn new(name: &str) -> Self {
        static BINARY: OnceLock<PathBuf> = OnceLock::new();
        let binary = BINARY.get_or_init(|| build_evenkeel().unwrap());
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("hostile-{name}"));
        // What an earlier run left behind would not hold zeroes.
        let _absent = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let disk = |name: &str| DiskSpec::image(name, &dir.join(format!("{name}.img")), DISK_BYTES);
        let pool = PoolSpec {
            scheduler: "bfq".to_owned(),
            model: None,
            low_latency: None,
            settings: Vec::new(),
            disks: vec![disk("abused"), disk("watched")],
        };
        let server = Server::evenkeel(binary, &dir, &pool).unwrap();
        let (stop, seen) = (Arc::default(), Arc::default());
        let socket = server.socket(1).to_owned();
        let witness = std::thread::spawn({
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            move || watch(&socket, &stop, &seen)
        });
        let arena = Self { server, dir, witness: Some(witness), stop, seen };
        arena.await_witness();
        arena
    }

    /// Returns the socket of the disk that may be abused.
    pub(crate) fn socket(&self) -> &Path {
        self.server.socket(0)
    }

    /// Returns how to connect to it: one vring, a depth of 8, 16 KiB of data for each.
    pub(crate) fn options() -> Options {
        Options { size: 64, depth: 8, max_bytes: 16384, ..Options::default() }
    }

    /// Connects to it as an honest client would, so far.
    pub(crate) fn connect(&self) -> Client {
        self.connect_with(Self::options())
    }

    /// The same with other options.
    pub(crate) fn connect_with(&self, options: Options) -> Client {
        Client::connect(self.socket(), options).unwrap_or_else(|error| {
            panic!("an honest session is refused: {error}; log:\n{}", self.server.log_tail())
        })
    }

    /// Waits until the witness has done some more work: everything that the worker was told before
    /// has had its turn by then.
    pub(crate) fn await_witness(&self) {
        let goal = self.seen.load(Ordering::Relaxed) + 300;
        while self.seen.load(Ordering::Relaxed) < goal {
            let witness = self.witness.as_ref().expect("taken only by finish");
            assert!(!witness.is_finished(), "witness ended; log:\n{}", self.server.log_tail());
            std::thread::yield_now();
        }
    }

    /// Ends a test: the witness has worked on, the server lives, the abused disk serves again.
    pub(crate) fn finish(mut self) {
        self.await_witness();
        let mut client = self.connect();
        let mut verifier = Verifier::new(HONEST_FIRST, 1024, 1);
        let honest = verifier
            .drive(&mut client, 1, |verifier| verifier.answered() >= 200)
            .and_then(|_wake| verifier.sweep(&mut client));
        honest.unwrap_or_else(|error| panic!("{error}; log:\n{}", self.server.log_tail()));
        client.stop().unwrap();
        self.stop.store(true, Ordering::Relaxed);
        let witness = self.witness.take().expect("finish is called once").join();
        let watched = witness.expect("the witness reports instead of panicking");
        watched.unwrap_or_else(|error| panic!("{error}; log:\n{}", self.server.log_tail()));
        assert!(self.server.is_alive(), "log:\n{}", self.server.log_tail());
        let status = self.server.terminate().unwrap();
        assert!(status.success(), "the server left with {status}:\n{}", self.server.log_tail());
        std::fs::remove_dir_all(&self.dir).unwrap();
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn watch(socket: &Path, stop: &AtomicBool, seen: &AtomicU64) -> Result<(), Corruption> {
    let options = Options { vrings: 2, depth: 8, max_bytes: 8192, ..Options::default() };
    let mut client = Client::connect(socket, options).map_err(Corruption::Socket)?;
    let mut verifier = Verifier::new(0, 8192, 2);
    let woken = verifier.drive(&mut client, 2, |verifier| {
        seen.store(verifier.answered(), Ordering::Relaxed);
        stop.load(Ordering::Relaxed)
    })?;
    if woken == Wake::Gone {
        return Err(Corruption::Lost { requests: client.outstanding() });
    }
    verifier.sweep(&mut client)
}

/// Returns a descriptor of guest memory.
pub(crate) fn descriptor(address: u64, len: u32, flags: u16, next: u16) -> Descriptor {
    Descriptor { address, len, flags, next }
}

/// Submits whatever chain begins at descriptor `head` of vring 0 and says what became of it.
pub(crate) fn submit(client: &mut Client, head: u16) -> Fate {
    let before = client.vring(0).used_index();
    client.vring(0).push_available(head);
    client.vring(0).publish();
    fate(client, before)
}

/// Waits for the first answer after the used index `before`.
pub(crate) fn fate(client: &mut Client, before: u16) -> Fate {
    loop {
        if client.vring(0).used_index() != before {
            let (_head, len) = client.vring(0).used_element(before);
            let mut status = [0];
            let at = client.vring(0).header_at(0) + 16;
            client.memory().read(at, &mut status);
            return if len == 0 { Fate::Dropped } else { Fate::Status(status[0]) };
        }
        // The client itself counts no answers here, so that it must not sleep on those.
        match client.wait(Duration::from_secs(20)).unwrap() {
            Wake::Answers => {}
            Wake::Broken => return Fate::Stopped,
            Wake::Gone => panic!("the server closed the session for one bad chain"),
            Wake::Timeout => panic!("no answer, no error"),
        }
    }
}
