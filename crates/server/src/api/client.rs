//! The other end of the API, for `evenkeel status` and `evenkeel set`.
//!
//! One call per connection in HTTP/1.0, where the end of the stream is the end of the answer: all
//! that is needed between two ends of one program, and no runtime.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_wire::status::{ApiError, DiskStatus, Explain, PoolStatus, SetWeight, Status};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A daemon that does not answer for so long is stuck.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest answer: 10 000 disks have about 15 MB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why a call did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The answer is not one of this API.
    #[error("the answer at {} makes no sense: {detail}; is another program listening there?", path.display())]
    Nonsense {
        /// The socket.
        path: PathBuf,
        /// What is wrong with the answer.
        detail: String,
    },
    /// The daemon said no.
    #[error("{}; {}", error.error, error.remedy)]
    Refused {
        /// The HTTP status.
        code: u16,
        /// Its reason.
        error: ApiError,
    },
    /// Nobody answers.
    #[error("no daemon answers at {}: {source}; start evenkeel serve, or name its socket with --api", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Calls a daemon.
#[derive(Clone, Debug)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// Returns a client of the daemon whose API is at `path`. Connects with each call.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Returns the figures of all pools.
    ///
    /// # Errors
    ///
    /// See [`ClientError`]; the same holds for the other calls.
    pub fn status(&self) -> Result<Status, ClientError> {
        self.call("GET", "/v1/status", "")
    }

    /// Returns why requests waited.
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn explain(&self) -> Result<Explain, ClientError> {
        self.call("GET", "/v1/explain", "")
    }

    /// Returns the figures of one disk.
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn disk(&self, name: &str) -> Result<DiskStatus, ClientError> {
        self.call("GET", &format!("/v1/disks/{name}"), "")
    }

    /// Sets the weight of the VM that owns a disk, and returns the disk's figures.
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn set_weight(&self, name: &str, weight: u32) -> Result<DiskStatus, ClientError> {
        let body = serde_json::to_string(&SetWeight { weight }).expect("a number becomes JSON");
        self.call("PUT", &format!("/v1/disks/{name}/weight"), &body)
    }

    /// Returns the figures of one pool.
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn pool(&self, name: &str) -> Result<PoolStatus, ClientError> {
        self.call("GET", &format!("/v1/pools/{name}"), "")
    }

    /// Changes how a pool schedules, and returns its figures. `change` is read by
    /// [`PoolChange::read`](evenkeel_wire::PoolChange::read).
    ///
    /// # Errors
    ///
    /// See [`ClientError`].
    pub fn change_pool(&self, name: &str, change: &Value) -> Result<PoolStatus, ClientError> {
        self.call("PATCH", &format!("/v1/pools/{name}"), &change.to_string())
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        address: &str,
        body: &str,
    ) -> Result<T, ClientError> {
        let answer = self
            .exchange(method, address, body)
            .map_err(|source| ClientError::Unreachable { path: self.path.clone(), source })?;
        let nonsense = |detail: String| ClientError::Nonsense { path: self.path.clone(), detail };
        let (head, body) =
            answer.split_once("\r\n\r\n").ok_or_else(|| nonsense("no head".to_owned()))?;
        let code = head.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok());
        let code = code.ok_or_else(|| nonsense("no status".to_owned()))?;
        if code == 200 {
            return serde_json::from_str(body).map_err(|error| nonsense(error.to_string()));
        }
        let error = serde_json::from_str(body)
            .map_err(|_| nonsense(format!("status {code} without a reason")))?;
        Err(ClientError::Refused { code, error })
    }

    fn exchange(&self, method: &str, address: &str, body: &str) -> io::Result<String> {
        let mut stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        let length = body.len();
        write!(stream, "{method} {address} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{body}")?;
        let mut answer = String::new();
        stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
        Ok(answer)
    }
}
