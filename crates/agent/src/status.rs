//! What the agent tells people, and what other programs of the guest may ask of it.
//!
//! A Unix socket; each connection carries one line of JSON in and one out. Who asks is known from
//! the socket itself; but a number may be somebody else's by then, and a process may have changed its
//! user, so who is not root marks processes of his own only.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_wire::agent::Level;
use serde::{Deserialize, Serialize};

/// Where the socket is unless told.
pub(crate) const DEFAULT_SOCKET: &str = "/run/evenkeel-agent.sock";

/// How long those who connect may take in a turn, and how many are answered in one; the agent does
/// nothing else meanwhile.
const PATIENCE: Duration = Duration::from_millis(20);
const ANSWERS: usize = 4;

/// The longest question.
const QUESTION_MAX: usize = 1024;

/// Who asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Peer {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl Peer {
    /// Says whether he may mark himself, being a process of the user `owner` by now.
    ///
    /// # Errors
    ///
    /// Why not.
    pub(crate) fn may_mark(self, owner: Option<u32>) -> Result<(), String> {
        let Self { pid, uid } = self;
        match owner {
            Some(owner) if owner != uid && uid != 0 => {
                Err(format!("process {pid} belongs to user {owner}, and user {uid} asks"))
            }
            Some(_) => Ok(()),
            None => Err(format!("process {pid} is gone")),
        }
    }
}

/// A question.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    /// What are you doing?
    Status,
    /// I am urgent, and so is the program that I become.
    Mark {
        /// How urgent.
        level: Level,
    },
}

/// An answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    Status(Box<Status>),
    /// The mark holds.
    Marked,
    /// The question was not understood, or refused.
    Refused(String),
}

/// What the agent does, and why.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub(crate) struct Status {
    pub(crate) version: String,
    /// The way to the host, or why there is none.
    pub(crate) host: String,
    pub(crate) connected: bool,
    /// What the host grants now.
    pub(crate) granted: Level,
    /// Help that the host would still grant, in ms, as it said last.
    pub(crate) credit_ms: u64,
    /// Messages sent to the host.
    pub(crate) messages: u64,
    /// How new programs are noticed.
    pub(crate) programs: String,
    /// Whose counters of what they read can be read.
    #[serde(default)]
    pub(crate) counters: String,
    /// How priorities are set, or why they are not.
    pub(crate) priorities: String,
    /// Where it is written down what must be put back, or why it is not.
    #[serde(default)]
    pub(crate) undo: String,
    /// The guest's clock tells times apart by this, in µs.
    pub(crate) clock_granularity_us: u64,
    /// Processes watched.
    pub(crate) processes: usize,
    /// Those that are urgent now.
    pub(crate) urgent: Vec<Urgent>,
}

/// An urgent process.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Urgent {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) level: Level,
    pub(crate) reason: String,
}

/// The agent's end.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Makes the socket, for every user of the guest.
    ///
    /// # Errors
    ///
    /// Another agent is running, or the directory is not ours to write.
    pub(crate) fn bind(path: &Path) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            let text = format!("another agent answers on {}", path.display());
            return Err(io::Error::new(io::ErrorKind::AddrInUse, text));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Answers those who have connected first; the others wait for the next turn, so that nobody
    /// stops the agent by connecting. `answer` gets who asks.
    pub(crate) fn serve(&self, mut answer: impl FnMut(Peer, Request) -> Reply) {
        let deadline = Instant::now() + PATIENCE;
        for _ in 0..ANSWERS {
            let Ok((stream, _)) = self.socket.accept() else { return };
            // Who asks nonsense, or leaves, does so at his own cost.
            let _answered = serve_one(&stream, deadline, &mut answer);
            if Instant::now() >= deadline {
                return;
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.path);
    }
}

fn serve_one(
    mut stream: &UnixStream,
    deadline: Instant,
    answer: &mut impl FnMut(Peer, Request) -> Reply,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    let line = read_line(stream, deadline)?;
    let reply = match serde_json::from_slice(&line) {
        Ok(request) => answer(Peer { pid, uid: peer.uid.as_raw() }, request),
        Err(error) => Reply::Refused(error.to_string()),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// Reads a line, however slowly it comes, until `deadline`.
fn read_line(mut stream: &UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut piece = [0; QUESTION_MAX];
    loop {
        // What is there already is read even if the time is over.
        let left = deadline.saturating_duration_since(Instant::now());
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        let length = stream.read(&mut piece)?;
        line.extend(&piece[..length]);
        if length == 0 || line.contains(&b'\n') || line.len() >= QUESTION_MAX {
            return Ok(line);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Asks the agent at `path`.
///
/// # Errors
///
/// Nobody answers there.
pub(crate) fn ask(path: &Path, request: Request) -> io::Result<Reply> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut text = serde_json::to_string(&request)?;
    text.push('\n');
    stream.write_all(text.as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Writes a status for people.
pub(crate) fn print(status: &Status, out: &mut impl io::Write) -> io::Result<()> {
    let link = if status.connected { "connected" } else { "not connected" };
    writeln!(out, "host        {link}: {}", status.host)?;
    writeln!(
        out,
        "help        {} granted, {} ms of credit left",
        status.granted, status.credit_ms
    )?;
    writeln!(out, "programs    {}", status.programs)?;
    writeln!(out, "counters    {}", status.counters)?;
    writeln!(out, "priorities  {}", status.priorities)?;
    writeln!(out, "undo        {}", status.undo)?;
    writeln!(out, "clock       tells {} us apart", status.clock_granularity_us)?;
    writeln!(out, "processes   {} watched, {} urgent", status.processes, status.urgent.len())?;
    for urgent in &status.urgent {
        let Urgent { pid, name, level, reason } = urgent;
        writeln!(out, "{pid:>9}  {name:<15}  {level:<14}  {reason}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("evenkeel-agent-{}-{name}.sock", std::process::id()))
    }

    #[test]
    fn who_asks_is_known_and_answered() {
        let path = socket("ask");
        let listener = Listener::bind(&path).expect("a free path");
        let asker = std::thread::spawn({
            let path = path.clone();
            move || ask(&path, Request::Mark { level: Level::Interactive })
        });
        let mut asked = None;
        while asked.is_none() {
            listener.serve(|peer, request| {
                asked = Some((peer, request));
                Reply::Marked
            });
            std::thread::yield_now();
        }
        let request = Request::Mark { level: Level::Interactive };
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(asked, Some((Peer { pid: std::process::id(), uid }, request)));
        assert_eq!(asker.join().expect("no panic").expect("an answer"), Reply::Marked);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_second_agent_is_refused_and_a_dead_one_is_replaced() {
        let path = socket("second");
        let first = Listener::bind(&path).expect("a free path");
        let kind = Listener::bind(&path).map(|_| ()).map_err(|error| error.kind());
        assert_eq!(kind, Err(io::ErrorKind::AddrInUse));
        drop(first);
        drop(UnixListener::bind(&path).expect("a free path"));
        assert!(path.exists(), "nobody removes the socket of a dead agent");
        Listener::bind(&path).map(|_| ()).expect("nobody answers there");
    }

    #[test]
    fn nonsense_is_refused() {
        let path = socket("nonsense");
        let listener = Listener::bind(&path).expect("a free path");
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"{}\n").expect("room");
        listener.serve(|_, _| unreachable!("nothing was asked"));
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        assert!(line.contains("refused"), "{line}");
    }

    #[test]
    fn those_who_connect_all_the_time_are_answered_a_few_in_a_turn() {
        let path = socket("many");
        let listener = Listener::bind(&path).expect("a free path");
        let mut streams = Vec::new();
        for _ in 0..3 * ANSWERS {
            let mut stream = UnixStream::connect(&path).expect("it listens");
            stream.write_all(b"\"status\"\n").expect("room");
            streams.push(stream);
        }
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < streams.len() {
            let mut answered = 0;
            listener.serve(|_, _| {
                answered += 1;
                Reply::Marked
            });
            turns.push(answered);
        }
        assert!(turns.iter().all(|&answered| answered <= ANSWERS), "{turns:?}");
    }

    #[test]
    fn who_says_nothing_costs_one_turn_and_nobody_elses_answer() {
        let path = socket("silent");
        let listener = Listener::bind(&path).expect("a free path");
        let _silent = UnixStream::connect(&path).expect("it listens");
        let mut asker = UnixStream::connect(&path).expect("it listens");
        asker.write_all(b"\"status\"\n").expect("room");
        listener.serve(|_, _| unreachable!("the time of this turn is over"));
        let mut answered = false;
        listener.serve(|_, _| {
            answered = true;
            Reply::Marked
        });
        assert!(answered);
    }

    #[test]
    fn only_root_marks_processes_of_others() {
        let peer = |uid| Peer { pid: 42, uid };
        assert_eq!(peer(1000).may_mark(Some(1000)), Ok(()));
        assert_eq!(peer(0).may_mark(Some(1000)), Ok(()));
        let why = "process 42 belongs to user 0, and user 1000 asks";
        assert_eq!(peer(1000).may_mark(Some(0)), Err(why.to_owned()));
        assert_eq!(peer(1000).may_mark(None), Err("process 42 is gone".to_owned()));
    }
}
