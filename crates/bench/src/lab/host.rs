//! This machine in the place of a guest: the same program takes commands, without QEMU.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result};

use super::guest::{Guest, RunDir};
use super::initramfs::{find_program, guest_program};
use crate::child::Process;

/// What a guest finds in its initramfs, in a `/tmp` of its own: its program, and busybox for what
/// only that has.
const PREPARE: &str = "mount -t tmpfs tmpfs \"$1\" && cp \"$2\" \"$1/guest\" && \
    ln -s \"$3\" \"$1/usleep\" && mount --move \"$1\" /tmp && \
    cd / && exec env -i HOME=/ PATH=/tmp:/usr/sbin:/usr/bin:/sbin:/bin guest agent -";

/// Lets this machine take the commands that a guest takes, with programs of the lab at `dir`. What
/// is started, mounted and listened at there is seen by nobody else, and ends with the returned
/// value or, at the latest, with this process: it has namespaces of its own, and no network, as
/// guests have none.
///
/// # Errors
///
/// A program is missing, or the kernel lacks such namespaces, or lets only root have them.
pub(crate) fn on_host(dir: &Path) -> Result<Guest> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let program = guest_program(dir)?;
    let busybox = find_program("busybox")?;
    let run = RunDir::new("host")?;
    let (ours, theirs) = UnixStream::pair()?;
    let console = File::create(run.0.join("console"))?;
    let process = Process::start("unshare", |command| {
        command.args(["--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"]);
        command.args(["--mount-proc", "sh", "-c", PREPARE, "sh"]);
        command.arg(&run.0).arg(&program).arg(&busybox);
        command.stdin(Stdio::from(OwnedFd::from(theirs)));
        command.stdout(Stdio::null()).stderr(console);
    })?;
    let guest = Guest::of_process("host", "unshare", process, ours, run)?;
    guest.ready()?;
    Ok(guest)
}
