//! The recorder with a file that is slow, full, or not one.

use evenkeel_engine::{DiskId, Token};
use evenkeel_wire::trace::{TraceDisk, TraceReader};

use super::*;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("main.trace")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_dir_all(&self.0);
    }
}

fn header() -> TraceHeader {
    let disk = TraceDisk { sectors: 1 << 20, ..TraceDisk::default() };
    TraceHeader { disks: vec![disk], ..TraceHeader::default() }
}

/// Submits and answers the `n`th request, a microsecond after the one before.
fn request(recorder: &mut Recorder, n: u64) -> bool {
    let request =
        Request { op: Op::Read, sector: n, nr_sectors: 8, segments: 1, ioprio: 0, unmap: false };
    let tag = Tag(u32::try_from(n % 16).unwrap());
    recorder.submitted(tag, Some(&request), 0, 3);
    let arrived = Nanos::ORIGIN + Nanos::from_micros(n);
    recorder.answered(&Retired {
        token: Token(n),
        tag,
        disk: DiskId(0),
        status: Status::Ok,
        arrived,
        dispatched: arrived,
        completed: arrived + Nanos(500),
    })
}

fn sectors_and_dropped(bytes: &[u8]) -> (Vec<u64>, u64, bool) {
    let mut reader = TraceReader::new(bytes).unwrap();
    let sectors = reader.by_ref().map(|record| record.unwrap().sector).collect();
    (sectors, reader.dropped(), reader.is_complete())
}

#[test]
fn a_file_that_lags_costs_records_and_not_one_is_lost_uncounted() {
    let scratch = Scratch::new("trace-lag");
    let file = File::create(scratch.file()).unwrap();
    let (mut recorder, clerk) = ends(&scratch.file(), file, 2, 128);
    let mut recorded = Vec::new();
    for n in 0..100 {
        let before = recorder.counts.dropped.load(Ordering::Relaxed);
        assert!(request(&mut recorder, n));
        if recorder.counts.dropped.load(Ordering::Relaxed) == before {
            recorded.push(n);
        }
    }
    // Two blocks are full, and nobody has emptied one yet.
    assert!(recorded.len() < 20 && recorder.block.is_none());
    let counts = Arc::clone(&recorder.counts);
    let clerk = thread::spawn(move || clerk.work(&header().encode()));
    recorder.finish();
    clerk.join().unwrap();
    let dropped = counts.dropped.load(Ordering::Relaxed);
    assert_eq!(dropped + recorded.len() as u64, 100);
    assert_eq!(counts.requests.load(Ordering::Relaxed), recorded.len() as u64);
    let bytes = fs::read(scratch.file()).unwrap();
    assert_eq!(counts.bytes.load(Ordering::Relaxed), bytes.len() as u64);
    assert_eq!(sectors_and_dropped(&bytes), (recorded, dropped, true));
}

#[test]
fn a_block_that_is_a_second_old_goes_to_the_file_with_the_next_answer() {
    let scratch = Scratch::new("trace-age");
    let file = File::create(scratch.file()).unwrap();
    let (mut recorder, clerk) = ends(&scratch.file(), file, 2, 4096);
    assert!(request(&mut recorder, 0) && request(&mut recorder, 999_999));
    assert!(clerk.full.try_recv().ok().is_none());
    assert!(request(&mut recorder, 1_000_000));
    assert_eq!(clerk.full.try_recv().map(|block| block.records()), Ok(3));
}

#[test]
fn once_warm_the_same_blocks_go_round() {
    let scratch = Scratch::new("trace-warm");
    let file = File::create(scratch.file()).unwrap();
    let (mut recorder, clerk) = ends(&scratch.file(), file, 3, 128);
    let mut seen = std::collections::BTreeMap::<usize, u32>::new();
    for n in 0..500 {
        assert!(request(&mut recorder, n));
        while let Ok(mut block) = clerk.full.try_recv() {
            *seen.entry(block.bytes().as_ptr().addr()).or_default() += 1;
            block.clear();
            clerk.empty.try_send(block).unwrap();
        }
    }
    assert!(seen.len() <= 3 && seen.values().all(|&times| times > 10), "{seen:?}");
    assert_eq!((recorder.open.len(), recorder.counts.dropped.load(Ordering::Relaxed)), (16, 0));
}

#[test]
fn a_full_disk_ends_the_trace_and_nothing_else() {
    let (trace, mut recorder) = begin(Path::new("/dev/full"), &header()).unwrap();
    let mut n = 0;
    while trace.counts.ended.get().is_none() {
        thread::yield_now();
    }
    while request(&mut recorder, n) {
        n += 1;
    }
    assert_eq!(trace.status().ended.as_deref(), Some("No space left on device (os error 28)"));
    assert_eq!((trace.status().bytes, trace.status().requests), (0, 0));
    recorder.finish();
    trace.join();
}

#[test]
fn an_earlier_trace_is_kept_and_other_files_are_not_touched() {
    let scratch = Scratch::new("trace-old");
    for round in 0..3 {
        let (trace, mut recorder) = begin(&scratch.file(), &header()).unwrap();
        assert!(request(&mut recorder, round));
        recorder.finish();
        trace.join();
    }
    let sectors = |name: &str| sectors_and_dropped(&fs::read(scratch.0.join(name)).unwrap()).0;
    assert_eq!((sectors("main.trace"), sectors("main.trace.old")), (vec![2], vec![1]));
    fs::write(scratch.file(), [7; 4096]).unwrap();
    let error = begin(&scratch.file(), &header()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot write the trace {}: a file that is no trace is in the way; move it away, or \
             choose another name",
            scratch.file().display()
        )
    );
    assert_eq!(fs::read(scratch.file()).unwrap(), [7; 4096]);
    assert!(matches!(begin(&scratch.0, &header()).unwrap_err().problem, TraceProblem::Kind));
}
