//! Background loads, by the names that D3.6 gives them: `5r-rand`, `2r2w-seq`, `none`.

use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use evenkeel_sim::d36::GuestLoad;
use rustix::fs::{Advice, fadvise};

use crate::client::IoOp;
use crate::client::load::{Loader, Pattern, Shape, drive};
use crate::lab::{Guest, Job, reader};

/// Most readers, and most writers, of one load: as many areas as the disk has.
pub(super) const MOST: u64 = 8;
/// Where the area of the first reader of the guest begins, behind the file system.
const FIRST_BYTES: u64 = 3 << 30;
/// Size of an area; each load has one of its own, and there are twice [`MOST`].
const AREA_BYTES: u64 = 640 << 20;
/// Where films begin, behind the areas of readers and writers; there is room for 5 GB.
pub(super) const FILM_BYTES: u64 = FIRST_BYTES + MOST * AREA_BYTES;
/// Size of the guest's disk, which holds them all.
pub const DISK_BYTES: u64 = FIRST_BYTES + 2 * MOST * AREA_BYTES;
/// How long the guest may take to say that nobody is under way; it looks for a minute.
const UNDER_WAY_PATIENCE: Duration = Duration::from_secs(90);
/// A fast disk has a hundredth of an area read in that time.
const FORGET_EVERY: Duration = Duration::from_millis(100);
/// How long the end of a load may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// Reads a load's name: `none`, or readers and perhaps writers, in order or at random places.
///
/// # Errors
///
/// What is wrong with it, and how it is written.
pub fn parse(name: &str) -> Result<GuestLoad, String> {
    let remedy = format!("write none, 5r-rand, 1r-seq or 2r2w-seq, with at most {MOST} of each");
    let wrong = || format!("{name:?} is no load; {remedy}");
    if name == "none" {
        return Ok(GuestLoad::NONE);
    }
    let (counts, order) = name.split_once('-').ok_or_else(wrong)?;
    let random = match order {
        "seq" => false,
        "rand" => true,
        _ => return Err(wrong()),
    };
    let (readers, writers) = counts.split_once('r').ok_or_else(wrong)?;
    let writers = match writers {
        "" => "0",
        writers => writers.strip_suffix('w').ok_or_else(wrong)?,
    };
    let count = |text: &str| text.parse().ok().filter(|&count: &u64| count <= MOST);
    let readers = count(readers).ok_or_else(wrong)?;
    let writers = count(writers).ok_or_else(wrong)?;
    if readers + writers == 0 {
        return Err(wrong());
    }
    Ok(GuestLoad { readers, writers, random })
}

/// Returns where on the disk so many readers and writers are at work, the first ones first.
pub(super) fn areas(workers: u64) -> Range<u64> {
    FIRST_BYTES..FIRST_BYTES + workers * AREA_BYTES
}

/// All loads of a scenario, at work.
#[derive(Debug)]
pub(super) struct Loads<'a> {
    pub(super) guest: Workers<'a>,
    pub(super) beside: Beside,
    pub(super) forget: Option<Forget>,
}

impl Loads<'_> {
    /// Ends them; returns what the guest's and the others got, in MB/s.
    pub(super) fn stop(self) -> Result<(f64, f64)> {
        drop(self.forget);
        Ok((self.guest.stop()?, self.beside.stop()?))
    }
}

/// A load at work in the guest, or in its place.
#[derive(Debug)]
pub(super) struct Workers<'a> {
    guest: &'a Guest,
    jobs: Vec<Job<'a>>,
}

impl<'a> Workers<'a> {
    /// Starts it on the guest's `disk`.
    pub(super) fn start(guest: &'a Guest, disk: &str, load: GuestLoad) -> Result<Self> {
        guest.check("rm -f /tmp/stop*")?;
        let mut jobs = Vec::new();
        for index in 0..load.readers + load.writers {
            let verb = if index < load.readers { "read" } else { "write" };
            let area = format!("{}:{AREA_BYTES}", FIRST_BYTES + index * AREA_BYTES);
            jobs.push(guest.spawn(&match load.random {
                true => format!("guest {verb}-random {disk} /tmp/stop {} {area}", 2 * index + 11),
                false => format!("guest {verb}-sequential {disk} /tmp/stop {area}"),
            })?);
        }
        Ok(Self { guest, jobs })
    }

    /// Waits until everybody is under way, at most a minute: a scheduler in the guest may hold a
    /// reader up for long after its first read, and then takes it for a program that starts.
    ///
    /// # Errors
    ///
    /// If nobody is by then.
    pub(super) fn wait_until_under_way(&self) -> Result<()> {
        let everybody = self.jobs.len();
        if everybody == 0 {
            return Ok(());
        }
        let count = "$(ls /tmp | grep -c under-way)";
        let script = format!(
            "n=0; until [ {count} -ge {everybody} ] || [ $n -ge 600 ]; do \
             n=$((n + 1)); usleep 100000; done; [ {count} -gt 0 ]"
        );
        self.guest
            .check_within(UNDER_WAY_PATIENCE, &script)
            .context("no reader or writer of the guest was served sixteen times in a minute")?;
        Ok(())
    }

    /// Ends it; returns what it got, all together, in megabytes (10^6) per second.
    pub(super) fn stop(self) -> Result<f64> {
        self.guest.check("touch /tmp/stop")?;
        let mut rate = 0.0;
        for job in self.jobs {
            rate += reader::finish(&job, PATIENCE)?;
        }
        Ok(rate)
    }
}

/// A load beside the guest: other VMs of the pool, one for each reader or writer, without a guest
/// around them. It ends when dropped.
#[derive(Debug)]
pub(super) struct Beside {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<f64>>>,
}

impl Beside {
    /// Starts a load on the disks at `sockets`, of which there are enough.
    pub(super) fn start(load: GuestLoad, sockets: &[&Path]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spawn = |(index, socket): (u64, &&Path)| {
            let (stop, socket) = (Arc::clone(&stop), socket.to_path_buf());
            let shape = shape(load, index < load.readers);
            thread::spawn(move || work(&socket, shape, index + 1, &stop))
        };
        let threads = (0..load.readers + load.writers).zip(sockets).map(spawn).collect();
        Self { stop, threads }
    }

    /// Ends it; returns what it got, all together, in megabytes (10^6) per second.
    pub(super) fn stop(mut self) -> Result<f64> {
        self.stop.store(true, Ordering::Relaxed);
        let mut rate = 0.0;
        for thread in self.threads.drain(..) {
            rate += thread.join().expect("it reports errors instead of panicking")?;
        }
        Ok(rate)
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Keeps out of memory what readers of the host have read. A guest's memory is smaller than the area
/// of one reader; the host's may hold them all, and then the disk would be idle. Ends when dropped.
#[derive(Debug)]
pub(super) struct Forget {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Forget {
    /// Starts with the areas of the first `readers` on a disk.
    pub(super) fn start(disk: &Path, readers: u64) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (file, areas) = (File::open(disk)?, areas(readers));
        let thread = NonZeroU64::new(areas.end - areas.start).map(|length| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // Ignored: it is advice, and fails for what is no file at most.
                    let _ = fadvise(&file, areas.start, Some(length), Advice::DontNeed);
                    thread::sleep(FORGET_EVERY);
                }
            })
        });
        Ok(Self { stop, thread })
    }
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Waited for, as it has the disk open. It does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// What one reader or writer asks for: a file in order keeps two requests of a readahead window
/// under way, a reader at random waits for each page.
fn shape(load: GuestLoad, reads: bool) -> Shape {
    let op = if reads { IoOp::Read } else { IoOp::Write };
    if load.random {
        Shape { op, pattern: Pattern::Random, block_bytes: 4096, depth: 1 }
    } else {
        Shape { op, pattern: Pattern::Sequential, block_bytes: 128 << 10, depth: 2 }
    }
}

fn work(socket: &Path, shape: Shape, seed: u64, stop: &AtomicBool) -> Result<f64> {
    let mut loaders = [Loader::connect(socket, shape, 1, seed, 0)?];
    let start = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        drive(&mut loaders, Duration::from_millis(200))?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let [loader] = loaders;
    let bytes = crate::rate::count(loader.bytes());
    loader.leave()?;
    Ok(bytes / 1e6 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_readers_and_writers_in_order_or_at_random() {
        for name in ["none", "1r-seq", "5r-rand", "2r2w-seq", "0r3w-rand"] {
            let load = parse(name).unwrap();
            let shown = load.to_string();
            assert_eq!(parse(&shown), Ok(load), "{name} is shown as {shown}");
        }
        assert_eq!(parse("2r1w-rand"), Ok(GuestLoad { readers: 2, writers: 1, random: true }));
    }

    #[test]
    fn what_is_no_load_is_refused_with_what_is() {
        for name in ["", "5", "5r", "r-seq", "0r-seq", "9r-seq", "2r2-seq", "1r-random", "-1r-seq"]
        {
            let problem = parse(name).unwrap_err();
            assert!(problem.contains("5r-rand"), "{name}: {problem}");
        }
    }
}
