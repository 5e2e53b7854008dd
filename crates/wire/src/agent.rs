//! What a guest's agent and the daemon say to each other: one JSON object per line.
//!
//! The channel is the guest's identity: a virtio-serial port or a vsock connection belongs to one
//! VM, so no message names one. Both sides ignore fields that they do not know; a line that is not
//! understood is counted and skipped. Messages have level semantics: the newest by `seq` says what
//! is, so a lost or repeated one does no harm, and a lease ends what nobody renews.
//!
//! ```text
//! guest  {"type":"hello","version":1,"agent":"0.1.0"}
//! host   {"type":"hello","version":1,"lease_max_ms":1000}
//! guest  {"type":"help","seq":7,"level":"interactive","lease_ms":1000,"marked":true,"reason":"start of xterm"}
//! host   {"type":"grant","seq":7,"level":"interactive","lease_ms":1000,"credit_ms":18200}
//! guest  {"type":"help","seq":8,"level":"none","lease_ms":0,"marked":true,"reason":""}
//! host   {"type":"grant","seq":8,"level":"none","lease_ms":0,"credit_ms":17900}
//! ```

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The version of the protocol. A side that gets a higher one answers with its own and goes on:
/// fields are added, never changed.
pub const VERSION: u32 = 1;

/// The name of the virtio-serial port.
pub const PORT: &str = "org.evenkeel.agent.0";

/// The vsock port on which the host listens ("EK").
pub const VSOCK_PORT: u32 = 0x454b;

/// Returns where a VMM connects that offers its guest a vsock at the Unix socket `vsock`, as
/// Firecracker and Cloud Hypervisor do: at a socket of that name, an underscore and the port.
#[must_use]
pub fn vsock_listener(vsock: &Path) -> PathBuf {
    let mut path = vsock.as_os_str().to_owned();
    path.push(format!("_{VSOCK_PORT}"));
    path.into()
}

/// The longest line in bytes, line feed included; a longer one is skipped up to its line feed.
pub const LINE_BYTES_MAX: usize = 1024;

/// The longest lease, in milliseconds: an agent that died helps nobody for longer.
pub const LEASE_MS_MAX: u32 = 1000;

/// How urgent a guest's I/O is.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Nothing urgent.
    #[default]
    None,
    /// An application starts, or somebody works with one.
    Interactive,
    /// A player or recorder must keep its pace.
    SoftRealTime,
}

impl Level {
    /// Returns its name in messages and on the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Interactive => "interactive",
            Self::SoftRealTime => "soft-real-time",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Level {
    type Err = &'static str;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        [Self::None, Self::Interactive, Self::SoftRealTime]
            .into_iter()
            .find(|level| level.as_str() == name)
            .ok_or("no such level; there are none, interactive and soft-real-time")
    }
}

/// A line from the guest.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromGuest {
    /// The first line of a connection, and again after the host's hello.
    Hello {
        /// The version that the agent speaks.
        version: u32,
        /// The agent's own version.
        #[serde(default)]
        agent: String,
    },
    /// What is urgent now; replaces what the last one said.
    Help {
        /// Grows with every message of an agent, from any start.
        seq: u64,
        /// How urgent; `none` ends the help.
        level: Level,
        /// For how long it holds unless it is repeated, in ms; at most [`LEASE_MS_MAX`].
        lease_ms: u32,
        /// Whether the requests that are meant carry an I/O priority better than the default.
        #[serde(default)]
        marked: bool,
        /// Why, for people.
        #[serde(default)]
        reason: String,
    },
}

/// A line from the host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum FromHost {
    /// The answer to a hello, and the first line after the daemon has come back: an agent that
    /// sees it repeats its hello and its help.
    Hello {
        /// The version that the daemon speaks.
        version: u32,
        /// The longest lease that it grants, in ms.
        lease_max_ms: u32,
    },
    /// The answer to a help.
    Grant {
        /// The message that is answered.
        seq: u64,
        /// What holds from now on; `none` when the VM may not ask, or its credit is used up.
        level: Level,
        /// For how long, in ms.
        lease_ms: u32,
        /// Help that the VM could still get at once, in ms.
        credit_ms: u64,
    },
}

/// Cuts a stream of bytes into lines. Lines longer than [`LINE_BYTES_MAX`] are skipped, so that
/// memory stays bounded whatever the other side sends.
#[derive(Debug, Default)]
pub struct Lines {
    /// The beginning of a line whose end has not come yet.
    partial: Vec<u8>,
    skipping: bool,
}

impl Lines {
    /// Takes bytes; calls `each` with every line that they complete, without its line feed.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
            self.keep(&rest[..at]);
            if !self.skipping {
                each(&self.partial);
            }
            self.partial.clear();
            self.skipping = false;
            rest = &rest[at + 1..];
        }
        self.keep(rest);
    }

    fn keep(&mut self, bytes: &[u8]) {
        if self.partial.len() + bytes.len() < LINE_BYTES_MAX {
            self.partial.extend_from_slice(bytes);
        } else {
            self.skipping = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        let mut all = Vec::new();
        for piece in pieces {
            lines.push(piece, |line| all.push(String::from_utf8_lossy(line).into_owned()));
            assert!(lines.partial.len() < LINE_BYTES_MAX);
        }
        all
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        assert_eq!(lines(&[b"a\nb", b"", b"c\n\nd"]), ["a", "bc", ""]);
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_and_the_next_one_read() {
        let long = [b'x'; LINE_BYTES_MAX];
        assert_eq!(lines(&[&long, &long, b"\nshort\n"]), ["short"]);
        let longest = [b'y'; LINE_BYTES_MAX - 1];
        assert_eq!(lines(&[&longest, b"\n"]), [String::from_utf8_lossy(&longest)]);
        assert_eq!(lines(&[&longest, b"y", b"\n"]), [""; 0]);
    }

    #[test]
    fn levels_are_ordered_by_urgency() {
        assert!(Level::None < Level::Interactive && Level::Interactive < Level::SoftRealTime);
    }

    #[test]
    fn a_level_is_read_by_the_name_that_it_prints() {
        for level in [Level::None, Level::Interactive, Level::SoftRealTime] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        "urgent".parse::<Level>().unwrap_err();
    }

    #[test]
    fn a_message_is_one_line_of_json_and_unknown_fields_are_ignored() {
        let help = FromGuest::Help {
            seq: 7,
            level: Level::Interactive,
            lease_ms: 1000,
            marked: true,
            reason: "start of xterm".to_owned(),
        };
        let line = r#"{"type":"help","seq":7,"level":"interactive","lease_ms":1000,"marked":true,"reason":"start of xterm"}"#;
        assert_eq!(serde_json::to_string(&help).expect("plain data"), line);
        let newer = r#"{"type":"help","seq":7,"level":"interactive","lease_ms":1000,"marked":true,"reason":"start of xterm","x":1}"#;
        assert_eq!(serde_json::from_str::<FromGuest>(newer).expect("a help"), help);
    }

    #[test]
    fn what_is_not_a_message_is_refused() {
        for line in ["", "{}", "[]", r#"{"type":"help"}"#, r#"{"type":"reboot"}"#, "\u{0}"] {
            assert!(serde_json::from_str::<FromGuest>(line).is_err(), "{line}");
        }
    }
}
