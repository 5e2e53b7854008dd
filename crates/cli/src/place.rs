//! Where the sockets are when nobody says.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

use crate::args::Place;
use crate::failure::{Failure, Outcome};

/// Returns the directory of the sockets, as an absolute path.
pub(crate) fn socket_dir(chosen: Option<&Path>) -> Outcome<PathBuf> {
    let dir = match chosen {
        Some(dir) => dir.to_owned(),
        None if rustix::process::geteuid().is_root() => PathBuf::from("/run/evenkeel"),
        None => env::var_os("XDG_RUNTIME_DIR")
            .filter(|dir| !dir.is_empty())
            .map(|dir| PathBuf::from(dir).join("evenkeel"))
            .ok_or_else(|| {
                Failure::wrong_use(anyhow!(
                    "XDG_RUNTIME_DIR is not set; say where the sockets are with --socket-dir DIR"
                ))
            })?,
    };
    std::path::absolute(&dir)
        .with_context(|| format!("the path {} cannot be used", dir.display()))
        .map_err(Failure::wrong_use)
}

/// Returns the socket of the API.
pub(crate) fn api(place: &Place) -> Outcome<PathBuf> {
    match &place.api {
        Some(api) => Ok(api.clone()),
        None => Ok(socket_dir(place.socket_dir.as_deref())?.join("api.sock")),
    }
}

/// Returns the socket of the port by which a VM's agent asks for help.
pub(crate) fn agent(dir: &Path, vm: &str) -> PathBuf {
    dir.join(format!("{vm}.agent.sock"))
}

/// Returns the socket of a disk.
pub(crate) fn disk(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.sock"))
}
