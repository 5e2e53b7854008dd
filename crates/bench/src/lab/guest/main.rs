//! The lab's program inside a guest: a remote hand, two readers and an application to start.
//!
//! It runs from the guest's initramfs, so it is compiled by the lab itself into one static file
//! and uses nothing but the standard library. Sub-commands:
//!
//! | command | does |
//! |---|---|
//! | `agent PORT` | runs the host's commands, several at once, and streams what they print |
//! | `agent -` | the same by the socket that is its standard input, until that is closed |
//! | `launch SECONDS PROGRAM ARGS..` | starts a program and measures until it prints `ready` |
//! | `app DIR` | the application: reads and checks every file of `DIR/manifest`, then `ready` |
//! | `launch-x SECONDS LISTEN SERVER PROGRAM ARGS..` | the same until it maps its first window |
//! | `read-sequential FILE STOP [AREA]` | reads FILE from begin to end, again and again |
//! | `read-random FILE STOP SEED [AREA]` | reads 4 KiB at random places of FILE |
//! | `write-sequential FILE STOP AREA` | writes FILE from begin to end, again and again |
//! | `write-random FILE STOP SEED AREA` | writes 4 KiB at random places of FILE |
//! | `play FILE PIECES PERIOD AREA` | plays AREA, divided into pieces, one each PERIOD nanoseconds |
//!
//! The readers and writers run until the file STOP exists and then print `BYTES NANOSECONDS`.
//! AREA is `OFFSET:LENGTH` in bytes; without it, all of the file.
//! `play` prints for how many nanoseconds it waited for each piece.
//!
//! `launch-x` stands between a program and its X server: the program finds it at the socket LISTEN,
//! and everything goes on to and from the socket SERVER.
//!
//! Frames on the port, both ways: `id: u32, kind: u8, len: u32`, little-endian, then `len` bytes.
//! Kinds are listed in the lab's `channel.rs`.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["agent", "-"] => agent_on_stdin(),
        ["agent", port] => agent_on_port(port),
        ["launch", seconds, program, rest @ ..] => launch(seconds, program, rest),
        ["launch-x", seconds, listen, server, program, rest @ ..] => {
            launch_x(seconds, [listen, server], program, rest)
        }
        ["app", dir] => app(dir),
        ["read-sequential", file, stop, area @ ..] => read_sequential(file, stop, area),
        ["read-random", file, stop, seed, area @ ..] => read_random(file, stop, seed, area),
        ["write-sequential", file, stop, area @ ..] => write_sequential(file, stop, area),
        ["write-random", file, stop, seed, area @ ..] => write_random(file, stop, seed, area),
        ["play", file, pieces, period, area] => play(file, pieces, period, area),
        _ => Err(io::Error::other("unknown command; see the head of this program's source")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn agent_on_port(port: &str) -> io::Result<()> {
    // Where the host's end is not open at the moment, virtio ports read as empty.
    agent(OpenOptions::new().read(true).write(true).open(port)?, true)
}

fn agent_on_stdin() -> io::Result<()> {
    agent(File::from(io::stdin().as_fd().try_clone_to_owned()?), false)
}

/// Runs the host's commands until the port is closed; one that `reopens` never is.
fn agent(file: File, reopens: bool) -> io::Result<()> {
    let mut input = BufReader::new(file.try_clone()?);
    let output = Arc::new(Mutex::new(file));
    let running: Arc<Mutex<HashMap<u32, Job>>> = Arc::default();
    send(&output, 0, HELLO, &[])?;
    loop {
        let mut head = [0_u8; 9];
        match input.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                if !reopens {
                    return Ok(());
                }
                thread::sleep(Duration::from_millis(50));
                continue;
            }
            other => other?,
        }
        let id = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let len = u32::from_le_bytes([head[5], head[6], head[7], head[8]]);
        let mut payload = vec![0; usize::try_from(len).map_err(io::Error::other)?];
        input.read_exact(&mut payload)?;
        match head[4] {
            RUN => {
                let script = String::from_utf8_lossy(&payload).into_owned();
                let (output, running) = (Arc::clone(&output), Arc::clone(&running));
                // It may be killed before it has begun.
                running.lock().map_err(poisoned)?.insert(id, Job::Begins);
                thread::spawn(move || run(id, &script, &output, &running));
            }
            KILL => {
                if let Some(job) = running.lock().map_err(poisoned)?.get_mut(&id) {
                    match *job {
                        Job::Runs(group) => kill(group)?,
                        Job::Begins | Job::Killed => *job = Job::Killed,
                    }
                }
            }
            HELLO => send(&output, id, HELLO, &[])?,
            other => return Err(io::Error::other(format!("unknown kind of frame {other}"))),
        }
    }
}

/// A job is a process group of its own, so that its children die with it.
fn kill(group: u32) -> io::Result<()> {
    Command::new("/bin/sh").args(["-c", &format!("kill -9 -{group}")]).status().map(drop)
}

/// How far a script is.
#[derive(Clone, Copy)]
enum Job {
    Begins,
    /// In this process group.
    Runs(u32),
    /// Before it ran.
    Killed,
}

/// Runs one script, streams its output, then sends its status: 0 to 255, or 256 + the signal.
fn run(id: u32, script: &str, output: &Arc<Mutex<File>>, running: &Mutex<HashMap<u32, Job>>) {
    let status = run_child(id, script, output, running).unwrap_or_else(|error| {
        // Ignored: when the port is gone nobody can be told.
        let _ = send(output, id, STDERR, format!("guest agent: {error}\n").as_bytes());
        127
    });
    if let Ok(mut running) = running.lock() {
        running.remove(&id);
    }
    let _ = send(output, id, EXIT, &status.to_le_bytes());
}

fn run_child(
    id: u32,
    script: &str,
    output: &Arc<Mutex<File>>,
    running: &Mutex<HashMap<u32, Job>>,
) -> io::Result<i32> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let before = running.lock().map_err(poisoned)?.insert(id, Job::Runs(child.id()));
    if matches!(before, Some(Job::Killed)) {
        kill(child.id())?;
    }
    let errors = child.stderr.take().map(|pipe| {
        let output = Arc::clone(output);
        thread::spawn(move || forward(pipe, id, STDERR, &output))
    });
    if let Some(pipe) = child.stdout.take() {
        forward(pipe, id, STDOUT, output)?;
    }
    if let Some(errors) = errors {
        errors.join().map_err(|_| io::Error::other("the stderr thread panicked"))??;
    }
    let status = child.wait()?;
    Ok(status.code().unwrap_or_else(|| 256 + status.signal().unwrap_or(0)))
}

fn forward(mut pipe: impl Read, id: u32, kind: u8, output: &Mutex<File>) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match pipe.read(&mut buffer)? {
            0 => return Ok(()),
            n => send(output, id, kind, &buffer[..n])?,
        }
    }
}

fn send(output: &Mutex<File>, id: u32, kind: u8, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(9 + payload.len());
    frame.extend_from_slice(&id.to_le_bytes());
    frame.push(kind);
    frame.extend_from_slice(&u32::try_from(payload.len()).map_err(io::Error::other)?.to_le_bytes());
    frame.extend_from_slice(payload);
    output.lock().map_err(poisoned)?.write_all(&frame)
}

/// Starts a program and prints the nanoseconds until it said `ready`, or `timeout`, or `failed`.
fn launch(seconds: &str, program: &str, args: &[&str]) -> io::Result<()> {
    let limit = Duration::from_secs(seconds.parse().map_err(io::Error::other)?);
    let start = Instant::now();
    let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let child = Arc::new(Mutex::new(child));
    let watchdog = Arc::clone(&child);
    thread::spawn(move || {
        thread::sleep(limit);
        // Ignored: it may have ended by itself in this very moment.
        let _ = watchdog.lock().map(|mut child: std::sync::MutexGuard<'_, Child>| child.kill());
    });
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    let elapsed = start.elapsed();
    let waited = waited_for_disk(child.lock().map_err(poisoned)?.id());
    // Polled, not waited for: the watchdog needs the lock in between.
    let status = loop {
        if let Some(status) = child.lock().map_err(poisoned)?.try_wait()? {
            break status;
        }
        thread::sleep(Duration::from_millis(1));
    };
    match line.trim() {
        "ready" if status.success() => println!("{}{waited}", elapsed.as_nanos()),
        _ if elapsed >= limit => println!("timeout"),
        other => println!("failed: {other:?}, {status}"),
    }
    Ok(())
}

/// Starts a program that opens a window, and prints the nanoseconds until it asks its X server to
/// show one (`MapWindow`), or `timeout`, or `failed`. The program is killed then.
/// Returns a blank and for how many ms a process has waited for disks, at most 20 ms after it was
/// ready; nothing if the kernel does not count that, or the process has ended.
fn waited_for_disk(pid: u32) -> String {
    const DELAY: usize = 39;
    const TICK_MS: u64 = 10;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let ticks = fields.and_then(|mut fields| fields.nth(DELAY)?.parse::<u64>().ok());
    ticks.filter(|&ticks| ticks > 0).map_or_else(String::new, |n| format!(" {}", n * TICK_MS))
}

fn launch_x(seconds: &str, sockets: [&str; 2], program: &str, args: &[&str]) -> io::Result<()> {
    let limit = Duration::from_secs(seconds.parse().map_err(io::Error::other)?);
    let [listen, server] = sockets.map(str::to_owned);
    // Ignored: there is none before the first start.
    let _ = fs::remove_file(&listen);
    let listener = UnixListener::bind(&listen)?;
    let (mapped, maps) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (server, mapped) = (server.clone(), mapped.clone());
            thread::spawn(move || relay(client, &server, &mapped));
        }
    });
    let start = Instant::now();
    let mut child = Command::new(program).args(args).stdout(Stdio::null()).spawn()?;
    loop {
        match maps.recv_timeout(Duration::from_millis(20)) {
            Ok(at) => {
                let elapsed = Instant::duration_since(&at, start);
                println!("{}{}", elapsed.as_nanos(), waited_for_disk(child.id()));
            }
            Err(_) if start.elapsed() >= limit => println!("timeout"),
            Err(_) => match child.try_wait()? {
                Some(status) => println!("failed: no window, {status}"),
                None => continue,
            },
        }
        break;
    }
    // Ignored: it may have ended by itself.
    let _ = child.kill();
    child.wait().map(drop)
}

/// Stands between one X client and its server; tells when the client maps a window.
///
/// Source: X Window System Protocol, version 11, "Connection Setup" and "Request Format"; Big
/// Requests Extension Protocol.
fn relay(client: UnixStream, server: &str, mapped: &mpsc::Sender<Instant>) -> io::Result<()> {
    let mut to = UnixStream::connect(server)?;
    let (mut answers, mut back) = (to.try_clone()?, client.try_clone()?);
    thread::spawn(move || io::copy(&mut answers, &mut back));
    let mut from = BufReader::new(client);
    let mut setup = [0; 12];
    from.read_exact(&mut setup)?;
    let is_little = setup[0] == b'l';
    let word = |bytes: [u8; 2]| {
        u64::from(if is_little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    to.write_all(&setup)?;
    let name = word([setup[6], setup[7]]).next_multiple_of(4);
    let data = word([setup[8], setup[9]]).next_multiple_of(4);
    io::copy(&mut from.by_ref().take(name + data), &mut to)?;
    loop {
        let mut head = [0; 4];
        from.read_exact(&mut head)?;
        to.write_all(&head)?;
        let (mut words, mut sent) = (word([head[2], head[3]]), 4);
        if words == 0 {
            let mut long = [0; 4];
            from.read_exact(&mut long)?;
            to.write_all(&long)?;
            let length =
                if is_little { u32::from_le_bytes(long) } else { u32::from_be_bytes(long) };
            (words, sent) = (u64::from(length), 8);
        }
        if head[0] == MAP_WINDOW {
            // Ignored: the first one has been told already.
            let _ = mapped.send(Instant::now());
        }
        io::copy(&mut from.by_ref().take((words * 4).saturating_sub(sent)), &mut to)?;
    }
}

/// Reads each file of the manifest once and checks it: libraries one after another, as a loader
/// does, then everything else by [`LOADERS`] threads, as programs with many small files do.
///
/// Manifest lines: `PATH BYTES FNV1A64-IN-HEX`, paths relative to `dir`.
fn app(dir: &str) -> io::Result<()> {
    let manifest = fs::read_to_string(format!("{dir}/manifest"))?;
    let (libraries, others): (Vec<&str>, Vec<&str>) =
        manifest.lines().partition(|line| line.starts_with("lib/"));
    libraries.into_iter().try_for_each(|line| load(dir, line))?;
    let next = AtomicUsize::new(0);
    let loader = || {
        while let Some(line) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            load(dir, line)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let loaders: Vec<_> = (0..LOADERS).map(|_| scope.spawn(loader)).collect();
        loaders.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(io::Error::other("a loader panicked")),
        })
    })?;
    println!("ready");
    Ok(())
}

fn load(dir: &str, line: &str) -> io::Result<()> {
    let words: Vec<&str> = line.split(' ').collect();
    let [path, bytes, hash] = words[..] else {
        return Err(io::Error::other(format!("odd line in the manifest: {line}")));
    };
    let content = fs::read(format!("{dir}/{path}"))?;
    let found = format!("{} {:016x}", content.len(), fnv1a(&content));
    if found != format!("{bytes} {hash}") {
        return Err(io::Error::other(format!("{path}: read {found}, expected {bytes} {hash}")));
    }
    Ok(())
}

/// Hashes 8 bytes at a time by FNV-1a; the lab's `demo` writes the manifest with the same function.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325, |hash: u64, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Part of a file.
#[derive(Clone, Copy)]
struct Area {
    offset: u64,
    length: u64,
}

impl Area {
    /// Returns what was asked for, else the whole file.
    fn new(file: &File, area: &[&str]) -> io::Result<Self> {
        let Some(text) = area.first() else {
            return Ok(Self { offset: 0, length: file.metadata()?.len() });
        };
        let numbers = text.split_once(':').and_then(|(offset, length)| {
            Some(Self { offset: offset.parse().ok()?, length: length.parse().ok()? })
        });
        numbers.ok_or_else(|| io::Error::other("an area is OFFSET:LENGTH"))
    }

    /// Returns the place of a random page.
    fn page(self, random: &mut u64) -> u64 {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        self.offset + *random % (self.length / 4096) * 4096
    }
}

/// An odd seed below 2^63 is never 0, which xorshift cannot leave.
fn seeded(seed: &str) -> io::Result<u64> {
    Ok(seed.parse::<u64>().map_err(io::Error::other)? | 1)
}

fn read_sequential(path: &str, stop: &str, area: &[&str]) -> io::Result<()> {
    let file = File::open(path)?;
    let area = Area::new(&file, area)?;
    let mut buffer = vec![0; 128 << 10];
    let mut done = 0;
    until_stopped(stop, || {
        let n = widen(file.read_at(&mut buffer, area.offset + done)?);
        done = if n == 0 || done + n >= area.length { 0 } else { done + n };
        Ok(n)
    })
}

fn read_random(path: &str, stop: &str, seed: &str, area: &[&str]) -> io::Result<()> {
    let file = File::open(path)?;
    let area = Area::new(&file, area)?;
    let mut random = seeded(seed)?;
    let mut buffer = [0; 4096];
    until_stopped(stop, || {
        file.read_exact_at(&mut buffer, area.page(&mut random))?;
        Ok(4096)
    })
}

fn write_sequential(path: &str, stop: &str, area: &[&str]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let area = Area::new(&file, area)?;
    let buffer = vec![0x5a; 128 << 10];
    let mut done = 0;
    until_stopped(stop, || {
        file.write_all_at(&buffer, area.offset + done)?;
        done = (done + widen(buffer.len())) % area.length;
        Ok(widen(buffer.len()))
    })
}

fn write_random(path: &str, stop: &str, seed: &str, area: &[&str]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    let area = Area::new(&file, area)?;
    let mut random = seeded(seed)?;
    until_stopped(stop, || {
        file.write_all_at(&[0x5a; 4096], area.page(&mut random))?;
        Ok(4096)
    })
}

/// Plays a film: asks for each piece one period before it is due, so that this is what it has to
/// come in. A late one stops the film, and everything after it is due later. The first one starts
/// the clock. Who waits until it should have ended twice leaves.
fn play(path: &str, pieces: &str, period: &str, area: &str) -> io::Result<()> {
    let pieces: u64 = pieces.parse().map_err(io::Error::other)?;
    let period = Duration::from_nanos(period.parse().map_err(io::Error::other)?);
    let file = File::open(path)?;
    let area = Area::new(&file, &[area])?;
    let length = area.length / pieces;
    let mut buffer = vec![0; 128 << 10];
    let mut waits = Vec::new();
    let mut ask = Instant::now();
    let patience = period.saturating_mul(u32::try_from(2 * pieces).map_err(io::Error::other)?);
    let end_of_patience = ask + patience;
    for piece in (0..pieces).take_while(|_| Instant::now() < end_of_patience) {
        thread::sleep(ask.saturating_duration_since(Instant::now()));
        let asked = Instant::now();
        let (mut at, end) = (piece * length, (piece + 1) * length);
        while at < end {
            let most = usize::try_from(end - at).map_or(buffer.len(), |n| n.min(buffer.len()));
            let n = file.read_at(&mut buffer[..most], area.offset + at)?;
            if n == 0 {
                return Err(io::Error::other("the film is shorter than its area"));
            }
            at += widen(n);
        }
        let now = Instant::now();
        waits.push((now - asked).as_nanos().to_string());
        let due = if piece == 0 { now } else { ask + period };
        ask = due.max(now);
    }
    println!("{}", waits.join(" "));
    Ok(())
}

/// Works until there is a file `stop`; says by one beside it when the work is under way.
fn until_stopped(stop: &str, mut step: impl FnMut() -> io::Result<u64>) -> io::Result<()> {
    let start = Instant::now();
    let (mut bytes, mut steps) = (0, 0);
    let mut next_look = start;
    loop {
        bytes += step()?;
        steps += 1;
        if steps == STEPS_UNDER_WAY {
            File::create(format!("{stop}.under-way.{}", std::process::id()))?;
        }
        let now = Instant::now();
        if now >= next_look {
            if fs::exists(stop)? {
                println!("{bytes} {}", (now - start).as_nanos());
                return Ok(());
            }
            next_look = now + Duration::from_millis(50);
        }
    }
}

fn widen(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn poisoned<T>(_: std::sync::PoisonError<T>) -> io::Error {
    io::Error::other("another thread panicked")
}

/// Reads or writes after which a load counts as under way.
const STEPS_UNDER_WAY: u32 = 16;

/// The request of an X client to show a window.
const MAP_WINDOW: u8 = 8;

/// Threads of the application. Fewer make the slow schedulers slower: each read waits its turn.
const LOADERS: usize = 8;

const HELLO: u8 = 0;
const RUN: u8 = 1;
const KILL: u8 = 2;
const STDOUT: u8 = 3;
const STDERR: u8 = 4;
const EXIT: u8 = 5;
