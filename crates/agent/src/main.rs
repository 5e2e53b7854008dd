//! The guest's side of Evenkeel: notices applications that need urgent service, gives their I/O a
//! priority that the host sees in every request, and asks the host for help meanwhile.

mod channel;
mod clock;
mod daemon;
mod events;
mod ioprio;
mod journal;
mod procfs;
mod raised;
mod signals;
#[cfg(test)]
mod stage;
mod status;

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use evenkeel_wire::agent::Level;

use crate::channel::Way;
use crate::ioprio::{DISKS, IoPrio};
use crate::status::{DEFAULT_SOCKET, Reply, Request};

/// Notices applications that need urgent service in this guest, and tells the host
#[derive(Debug, Parser)]
#[command(name = "evenkeel-agent", version)]
struct Args {
    /// The socket by which the agent is asked
    #[arg(long, global = true, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the agent
    Serve {
        /// Talk to the host by this virtio-serial port, or `vsock`; without it the agent looks
        #[arg(long, value_name = "PATH|vsock")]
        host: Option<String>,
        /// Leave I/O priorities alone, only ask the host for help
        #[arg(long)]
        no_priority: bool,
        /// Do not ask the host for help, only set I/O priorities
        #[arg(long)]
        no_help: bool,
    },
    /// Run a command as an urgent one
    Run {
        /// How urgent it is: interactive or soft-real-time
        #[arg(long, default_value_t = Level::Interactive)]
        level: Level,
        /// The command and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    /// Say what the agent does, and why
    Status {
        /// For whom to print: table or json
        #[arg(long, value_name = "FORMAT", default_value = "table",
              value_parser = ["table", "json"])]
        format: String,
    },
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Serve { host, no_priority, no_help } => {
            let way = match host.as_deref() {
                None => Way::Any,
                Some("vsock") => Way::Vsock,
                Some(path) => Way::Port(path.into()),
            };
            let options = daemon::Options {
                way: (!no_help).then_some(way),
                priorities: !no_priority,
                socket: args.socket,
                disks: DISKS.into(),
            };
            daemon::serve(&options)
        }
        Action::Run { level, command } => {
            // Without an agent the command still runs, with a priority of its own.
            match status::ask(&args.socket, Request::Mark { level }) {
                Ok(Reply::Marked) => {}
                Ok(Reply::Refused(why)) => eprintln!("evenkeel-agent: not marked: {why}"),
                Ok(Reply::Status(_)) => anyhow::bail!("the agent answered another question"),
                Err(error) => {
                    let what = mark_oneself(Path::new(DISKS), |prio| prio.set(0));
                    eprintln!(
                        "evenkeel-agent: no agent on {} ({error}); {what}",
                        args.socket.display()
                    );
                }
            }
            let error = Command::new(&command[0]).args(&command[1..]).exec();
            Err(error).with_context(|| format!("cannot run {}", command[0]))
        }
        Action::Status { format } => {
            let reply = status::ask(&args.socket, Request::Status).with_context(|| {
                format!("no agent answers on {}; is it running?", args.socket.display())
            })?;
            let Reply::Status(status) = reply else {
                anyhow::bail!("the agent did not understand the question; is it older?");
            };
            let mut out = io::stdout().lock();
            if format == "json" {
                serde_json::to_writer_pretty(&mut out, &status)?;
                writeln!(out)?;
            } else {
                status::print(&status, &mut out)?;
            }
            Ok(())
        }
    }
}

/// Sets the priority that the agent would set; returns what to tell of it.
fn mark_oneself(disks: &Path, set: impl FnOnce(IoPrio) -> io::Result<()>) -> String {
    let prio = IoPrio::urgent(disks);
    match set(prio) {
        Ok(()) => format!("only the priority is set: {}", prio.describe()),
        Err(error) => format!("the priority stays as it was: not {}: {error}", prio.describe()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::Stage;

    #[test]
    fn without_an_agent_a_command_gets_the_priority_that_its_guest_needs() {
        let stage = Stage::new("alone");
        let mut set = None;
        let mut mark = || {
            mark_oneself(&stage.disks(), |prio| {
                set = Some(prio);
                Ok(())
            })
        };
        assert_eq!(mark(), "only the priority is set: best effort 0");
        stage.scheduler("vda", "none [bfq]\n");
        mark();
        assert_eq!(set, Some(IoPrio::FIRST));
        let refused = mark_oneself(&stage.disks(), |_| Err(io::ErrorKind::PermissionDenied.into()));
        assert_eq!(
            refused,
            "the priority stays as it was: not real time 7, since the guest's own scheduler is \
             bfq: permission denied"
        );
    }
}
