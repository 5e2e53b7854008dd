//! What the agent tells people, and what other programs of the guest may ask of it.
//!
//! A Unix socket; each connection carries one line of JSON in and one out. Who asks is known from
//! the socket itself, so nobody can mark a process of somebody else.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_wire::agent::Level;
use serde::{Deserialize, Serialize};

/// Where the socket is unless told.
pub(crate) const DEFAULT_SOCKET: &str = "/run/evenkeel-agent.sock";

/// How long somebody who connects may take; the agent does nothing else meanwhile.
const PATIENCE: Duration = Duration::from_millis(20);

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

    /// Answers everybody who has connected; `answer` gets the process that asks.
    pub(crate) fn serve(&self, mut answer: impl FnMut(u32, Request) -> Reply) {
        while let Ok((stream, _)) = self.socket.accept() {
            // Who asks nonsense, or leaves, does so at his own cost.
            let _answered = serve_one(&stream, &mut answer);
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
    answer: &mut impl FnMut(u32, Request) -> Reply,
) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let peer = rustix::net::sockopt::socket_peercred(stream)?;
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
    let mut line = String::new();
    BufReader::new(stream.take(1024)).read_line(&mut line)?;
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answer(pid, request),
        Err(error) => Reply::Refused(error.to_string()),
    };
    let mut text = serde_json::to_string(&reply)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
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
            listener.serve(|pid, request| {
                asked = Some((pid, request));
                Reply::Marked
            });
            std::thread::yield_now();
        }
        let request = Request::Mark { level: Level::Interactive };
        assert_eq!(asked, Some((std::process::id(), request)));
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
}
