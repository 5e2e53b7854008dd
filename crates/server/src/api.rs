//! The daemon's API: REST with JSON over a Unix socket that only its owner may open.
//!
//! | call | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`] |
//! | `GET /v1/explain` | [`Explain`] |
//! | `GET /v1/disks/NAME` | [`DiskStatus`] |
//! | `PUT /v1/disks/NAME/weight` with [`SetWeight`] | `DiskStatus` with the new weight |
//! | `GET /v1/pools/NAME` | [`PoolStatus`] |
//! | `PATCH /v1/pools/NAME` with a [`PoolChange`] | `PoolStatus` with what was changed |
//!
//! Whatever fails answers with an [`ApiError`] and a fitting HTTP status. The server runs on one
//! thread of its own and asks the workers like everybody else, through [`Control`].

mod client;

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use evenkeel_wire::status::{ApiError, DiskStatus, Explain, PoolStatus, SetWeight, Status};
use evenkeel_wire::{PoolChange, Problem, Problems, WEIGHT_MAX};
use tokio::sync::oneshot;

pub use client::{Client, ClientError};

/// The longest body of a call: every tunable there is takes a fraction of it.
const BODY_BYTES_MAX: usize = 16 << 10;

/// What the API needs of the daemon. Calls may block for as long as a worker's turn takes.
pub trait Control: Send + Sync + 'static {
    /// Returns the figures of all pools.
    fn status(&self) -> Status;

    /// Returns why requests waited.
    fn explain(&self) -> Explain;

    /// Sets the weight of the VM that owns `disk`.
    ///
    /// # Errors
    ///
    /// What to answer; `weight` has been checked to be in range.
    fn set_weight(&self, disk: &str, weight: u32) -> Result<(), ControlError>;

    /// Changes how a pool schedules, all or nothing.
    ///
    /// # Errors
    ///
    /// What to answer.
    fn change_pool(&self, pool: &str, change: &PoolChange) -> Result<(), ControlError>;
}

/// Why the daemon did not do what it was told.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ControlError {
    /// The change cannot be carried out.
    #[error(transparent)]
    Invalid(Problems),
    /// There is no disk of that name.
    #[error("no such disk")]
    NoSuchDisk,
    /// There is no pool of that name.
    #[error("no such pool")]
    NoSuchPool,
    /// The daemon is ending.
    #[error("the daemon is shutting down")]
    Stopping,
}

/// A running API. Dropping it finishes calls under way and removes the socket.
#[derive(Debug)]
pub struct Api {
    path: PathBuf,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    /// Starts to answer calls at `path`.
    ///
    /// A socket that a killed daemon left behind is replaced.
    ///
    /// # Errors
    ///
    /// * [`io::ErrorKind::AddrInUse`] if somebody answers there.
    /// * Whatever the system says about the directory or the socket.
    pub fn start(path: &Path, control: Arc<dyn Control>) -> io::Result<Self> {
        let listener = bind(path)?;
        listener.set_nonblocking(true)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("api".to_owned()).spawn(move || {
            let served = runtime.block_on(async {
                axum::serve(listener, router(control))
                    .with_graceful_shutdown(async {
                        // A dropped sender says the same as a message.
                        let _ = stopped.await;
                    })
                    .await
            });
            if let Err(error) = served {
                tracing::error!(%error, "the API has ended");
            }
        })?;
        Ok(Self { path: path.to_owned(), stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        // First the name, so that nobody new comes; both may be gone already.
        let _ = fs::remove_file(&self.path);
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Finds out whether an API could be answered at `path`: nothing is there, or a socket that a killed
/// daemon left behind.
///
/// # Errors
///
/// * [`io::ErrorKind::AddrInUse`] if somebody answers there.
/// * [`io::ErrorKind::AlreadyExists`] if something is there that is no socket.
/// * Whatever the system says about the directory or the socket.
pub fn check_free(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{AddrInUse, AlreadyExists, ConnectionRefused, NotFound};

    match fs::symlink_metadata(path) {
        Ok(there) if !there.file_type().is_socket() => {
            let problem =
                "is there and is not a socket; move it away, or name another place with --api";
            return Err(io::Error::new(AlreadyExists, problem));
        }
        Ok(_socket) => {}
        Err(error) if error.kind() == NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    match UnixStream::connect(path) {
        Ok(_alive) => {
            let problem =
                "another daemon answers there; stop it, or name another socket with --api";
            Err(io::Error::new(AddrInUse, problem))
        }
        Err(error) if matches!(error.kind(), ConnectionRefused | NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Listens at `path` with permissions 0600 from the first moment on.
fn bind(path: &Path) -> io::Result<UnixListener> {
    check_free(path)?;
    // Made under another name and moved when it is private: there is no moment in which others
    // could connect, and the move replaces what a killed daemon left.
    // The name is no longer than the usual one, so that no path becomes too long by it.
    let private = path.with_file_name(format!(".{}", std::process::id()));
    let _ = fs::remove_file(&private);
    let listener = UnixListener::bind(&private)?;
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&private, path))
        .inspect_err(|_| {
            let _ = fs::remove_file(&private);
        })?;
    Ok(listener)
}

fn router(control: Arc<dyn Control>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/explain", get(explain))
        .route("/v1/disks/{name}", get(disk))
        .route("/v1/disks/{name}/weight", put(set_weight))
        .route("/v1/pools/{name}", get(pool).patch(change_pool))
        .fallback(|| async {
            Failure::new(StatusCode::NOT_FOUND, "no such address", "see docs/guide/operating.md")
        })
        .method_not_allowed_fallback(|| async {
            let remedy = "use GET to read, PUT to set a weight, PATCH to change a pool";
            Failure::new(StatusCode::METHOD_NOT_ALLOWED, "not possible here", remedy)
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(control)
}

/// An error on its way to the caller.
struct Failure {
    code: StatusCode,
    body: ApiError,
}

impl Failure {
    fn new(code: StatusCode, error: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { code, body: ApiError { error: error.into(), field: None, remedy: remedy.into() } }
    }

    fn of_field(mut self, field: &str) -> Self {
        self.body.field = Some(field.to_owned());
        self
    }

    fn no_such_disk(name: &str) -> Self {
        let remedy = "evenkeel status lists the disks";
        Self::new(StatusCode::NOT_FOUND, format!("no disk has the name {name}"), remedy)
            .of_field("name")
    }

    fn no_such_pool(name: &str) -> Self {
        let remedy = "evenkeel status lists the pools";
        Self::new(StatusCode::NOT_FOUND, format!("no pool has the name {name}"), remedy)
            .of_field("name")
    }

    /// One mistake speaks for itself; several stand in the message, one a line.
    fn invalid(problems: &Problems) -> Self {
        let mut all = problems.iter();
        match (all.next(), all.next()) {
            (Some(only), None) => {
                let error = format!("{}{}", said(only), only.problem);
                let failure = Self::new(StatusCode::BAD_REQUEST, error, only.remedy.as_str());
                if only.path.is_empty() { failure } else { failure.of_field(&only.path) }
            }
            _ => {
                let lines: Vec<_> = problems.iter().map(|one| format!("\n  {one}")).collect();
                let error = format!("{} mistakes:{}", lines.len(), lines.concat());
                let remedy = "nothing was changed; correct them all";
                Self::new(StatusCode::BAD_REQUEST, error, remedy)
            }
        }
    }

    fn control(error: &ControlError, name: &str) -> Self {
        match error {
            ControlError::Invalid(problems) => Self::invalid(problems),
            ControlError::NoSuchDisk => Self::no_such_disk(name),
            ControlError::NoSuchPool => Self::no_such_pool(name),
            ControlError::Stopping => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                error.to_string(),
                "try again when it has started",
            ),
        }
    }
}

/// Returns where a mistake is and what was written there, as the beginning of a message.
fn said(problem: &Problem) -> String {
    match (problem.path.is_empty(), problem.value.is_empty()) {
        (true, _) => String::new(),
        (false, true) => format!("{}: ", problem.path),
        (false, false) => format!("{} = {}: ", problem.path, problem.value),
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.code, Json(self.body)).into_response()
    }
}

/// Runs what may block beside the thread that answers calls.
async fn ask<T: Send + 'static>(
    control: Arc<dyn Control>,
    question: impl FnOnce(&dyn Control) -> T + Send + 'static,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(move || question(&*control)).await.map_err(|error| {
        let remedy = "see the daemon's log";
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string(), remedy)
    })
}

async fn status(State(control): State<Arc<dyn Control>>) -> Result<Json<Status>, Failure> {
    ask(control, |control| control.status()).await.map(Json)
}

async fn explain(State(control): State<Arc<dyn Control>>) -> Result<Json<Explain>, Failure> {
    ask(control, |control| control.explain()).await.map(Json)
}

async fn disk(
    State(control): State<Arc<dyn Control>>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<DiskStatus>, Failure> {
    let status = ask(control, |control| control.status()).await?;
    let disk = status.disk(&name).cloned();
    disk.map(Json).ok_or_else(|| Failure::no_such_disk(&name))
}

async fn set_weight(
    State(control): State<Arc<dyn Control>>,
    UrlPath(name): UrlPath<String>,
    body: Bytes,
) -> Result<Json<DiskStatus>, Failure> {
    let remedy = format!("send {{\"weight\": N}} with N from 1 to {WEIGHT_MAX}");
    let refuse = |error: String| {
        Failure::new(StatusCode::BAD_REQUEST, error, remedy.as_str()).of_field("weight")
    };
    let SetWeight { weight } =
        serde_json::from_slice(&body).map_err(|error| refuse(error.to_string()))?;
    if !(1..=WEIGHT_MAX).contains(&weight) {
        return Err(refuse(format!("weight {weight} is out of range")));
    }
    let disk = name.clone();
    let done = ask(Arc::clone(&control), move |control| control.set_weight(&disk, weight)).await?;
    done.map_err(|error| Failure::control(&error, &name))?;
    self::disk(State(control), UrlPath(name)).await
}

async fn pool(
    State(control): State<Arc<dyn Control>>,
    UrlPath(name): UrlPath<String>,
) -> Result<Json<PoolStatus>, Failure> {
    let status = ask(control, |control| control.status()).await?;
    let pool = status.pool(&name).cloned();
    pool.map(Json).ok_or_else(|| Failure::no_such_pool(&name))
}

async fn change_pool(
    State(control): State<Arc<dyn Control>>,
    UrlPath(name): UrlPath<String>,
    body: Bytes,
) -> Result<Json<PoolStatus>, Failure> {
    let change = serde_json::from_slice(&body).map_err(|error| {
        let remedy = "send a JSON object such as {\"scheduler\": \"cfq\"}";
        Failure::new(StatusCode::BAD_REQUEST, error.to_string(), remedy)
    })?;
    let change = PoolChange::read(change).map_err(|problems| Failure::invalid(&problems))?;
    let pool = name.clone();
    let done =
        ask(Arc::clone(&control), move |control| control.change_pool(&pool, &change)).await?;
    done.map_err(|error| Failure::control(&error, &name))?;
    self::pool(State(control), UrlPath(name)).await
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::Mutex;

    use evenkeel_wire::TunableValue;

    use super::*;

    /// A daemon with one disk and one pool.
    struct Fake(Mutex<u32>, Mutex<evenkeel_wire::Pool>);

    impl Fake {
        fn with(weight: u32) -> Arc<Self> {
            Arc::new(Self(Mutex::new(weight), Mutex::default()))
        }
    }

    impl Control for Fake {
        fn status(&self) -> Status {
            let weight = *self.0.lock().unwrap();
            let disk = DiskStatus { name: "web".to_owned(), weight, ..DiskStatus::default() };
            Status {
                pools: vec![PoolStatus {
                    name: "main".to_owned(),
                    tunables: self.1.lock().unwrap().tunables.written(),
                    disks: vec![disk],
                    ..PoolStatus::default()
                }],
                ..Status::default()
            }
        }

        fn explain(&self) -> Explain {
            Explain::default()
        }

        fn set_weight(&self, disk: &str, weight: u32) -> Result<(), ControlError> {
            match disk {
                "web" => *self.0.lock().unwrap() = weight,
                "late" => return Err(ControlError::Stopping),
                _ => return Err(ControlError::NoSuchDisk),
            }
            Ok(())
        }

        fn change_pool(&self, pool: &str, change: &PoolChange) -> Result<(), ControlError> {
            if pool != "main" {
                return Err(ControlError::NoSuchPool);
            }
            change.apply(&mut self.1.lock().unwrap());
            Ok(())
        }
    }

    /// A directory that goes away with the test.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir =
                std::env::temp_dir().join(format!("evenkeel-api-{name}-{}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn socket(&self) -> PathBuf {
            self.0.join("api.sock")
        }

        fn start(&self) -> Api {
            Api::start(&self.socket(), Fake::with(100)).unwrap()
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(error: ClientError) -> (u16, ApiError) {
        match error {
            ClientError::Refused { code, error } => (code, error),
            other => unreachable!("the daemon answers: {other}"),
        }
    }

    #[test]
    fn what_is_set_is_read_back() {
        let dir = Dir::new("set");
        let _api = dir.start();
        let client = Client::new(&dir.socket());
        assert_eq!(client.status().unwrap().disk("web").unwrap().weight, 100);
        assert_eq!(client.set_weight("web", 300).unwrap().weight, 300);
        assert_eq!(client.disk("web").unwrap().weight, 300);
    }

    #[test]
    fn a_refusal_names_the_field_and_the_remedy() {
        let dir = Dir::new("refuse");
        let _api = dir.start();
        let client = Client::new(&dir.socket());
        for weight in [0, 1001] {
            let (code, error) = refusal(client.set_weight("web", weight).unwrap_err());
            assert_eq!((code, error.field.as_deref()), (400, Some("weight")));
            assert!(error.remedy.contains("1 to 1000"), "{error:?}");
        }
        let (code, error) = refusal(client.disk("nobody").unwrap_err());
        assert_eq!((code, error.field.as_deref()), (404, Some("name")));
        let (code, _) = refusal(client.set_weight("nobody", 5).unwrap_err());
        assert_eq!(code, 404);
        let (code, _) = refusal(client.set_weight("late", 5).unwrap_err());
        assert_eq!(code, 503);
    }

    #[test]
    fn a_pool_is_changed_all_or_nothing() {
        let dir = Dir::new("pool");
        let _api = dir.start();
        let client = Client::new(&dir.socket());
        let change = serde_json::json!({"bfq": {"slice_idle": 3}});
        let pool = client.change_pool("main", &change).unwrap();
        assert_eq!(pool.tunables["bfq.slice_idle"], TunableValue::Number(3));
        let wrong = serde_json::json!({"bfq": {"slice_idle": 4, "low_latency": 2}});
        let (code, error) = refusal(client.change_pool("main", &wrong).unwrap_err());
        assert_eq!((code, error.field.as_deref()), (400, Some("bfq.low_latency")));
        assert_eq!(error.error, "bfq.low_latency = 2: neither true nor false");
        let worse = serde_json::json!({"depth": 0, "profile": "games"});
        let (code, error) = refusal(client.change_pool("main", &worse).unwrap_err());
        assert_eq!((code, &error.field), (400, &None));
        assert!(error.error.starts_with("2 mistakes:\n  depth = 0: "), "{error:?}");
        let (code, _) = refusal(client.change_pool("minor", &change).unwrap_err());
        assert_eq!(code, 404);
        let pool = client.pool("main").unwrap();
        assert_eq!(pool.tunables["bfq.slice_idle"], TunableValue::Number(3));
    }

    #[test]
    fn nonsense_gets_an_answer_and_the_api_lives_on() {
        let dir = Dir::new("nonsense");
        let _api = dir.start();
        let long = format!(
            "PUT /v1/disks/web/weight HTTP/1.0\r\nContent-Length: 99999\r\n\r\n{}",
            "x".repeat(99999)
        );
        for (call, code) in [
            ("GET /nowhere HTTP/1.0\r\n\r\n", "404"),
            ("DELETE /v1/status HTTP/1.0\r\n\r\n", "405"),
            ("PUT /v1/disks/web/weight HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}", "400"),
            (
                "PUT /v1/disks/web/weight HTTP/1.0\r\nContent-Length: 28\r\n\r\n{\"weight\": 5, \"colour\": \"x\"}",
                "400",
            ),
            ("PATCH /v1/pools/main HTTP/1.0\r\nContent-Length: 2\r\n\r\n[]", "400"),
            ("PATCH /v1/pools/main HTTP/1.0\r\nContent-Length: 2\r\n\r\n{]", "400"),
            (long.as_str(), "413"),
            ("\0\r\n\r\n", "400"),
        ] {
            let mut stream = UnixStream::connect(dir.socket()).unwrap();
            stream.write_all(call.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            let answer = String::from_utf8_lossy(&answer);
            assert_eq!(answer.split(' ').nth(1), Some(code), "{call:.40}: {answer}");
        }
        assert_eq!(Client::new(&dir.socket()).disk("web").unwrap().weight, 100);
    }

    #[test]
    fn the_socket_is_private_and_goes_away_with_the_api() {
        let dir = Dir::new("private");
        let api = dir.start();
        let mode = fs::metadata(dir.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(api);
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
        let error = Client::new(&dir.socket()).status().unwrap_err();
        assert!(matches!(error, ClientError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_a_live_one_is_not() {
        let dir = Dir::new("stale");
        drop(UnixListener::bind(dir.socket()).unwrap());
        let _api = dir.start();
        let second = Api::start(&dir.socket(), Fake::with(1));
        assert_eq!(second.map(drop).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(Client::new(&dir.socket()).disk("web").unwrap().weight, 100);
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let dir = Dir::new("file");
        fs::write(dir.socket(), "precious").unwrap();
        let api = Api::start(&dir.socket(), Fake::with(1));
        assert_eq!(api.map(drop).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(dir.socket()).unwrap(), "precious");
    }
}
