//! Child processes that never outlive this one, however it ends.
//!
//! A test that is killed cannot clean up, and a forgotten QEMU keeps a core busy for ever. So
//! every child asks the kernel for SIGKILL at its parent's death (`setpriv --pdeathsig`). The
//! kernel means the death of the *thread* that forked; therefore one thread, which lives as long
//! as the process, does all the forking.

use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A child process, killed and reaped when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    name: String,
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

impl Process {
    /// Starts `program`; `prepare` adds arguments and redirections.
    pub(crate) fn start(program: &str, prepare: impl FnOnce(&mut Command)) -> Result<Self> {
        static NURSERY: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
        let nursery = NURSERY.get_or_init(|| {
            let (orders, inbox) = mpsc::channel::<Order>();
            thread::spawn(move || {
                for (mut command, reply) in inbox {
                    // Ignored: nobody waits for the answer any more; the child dies with us.
                    let _ = reply.send(command.spawn());
                }
            });
            Mutex::new(orders)
        });
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", program]);
        prepare(&mut command);
        let (reply, answer) = mpsc::channel();
        nursery.lock().expect("no holder panics").send((command, reply)).expect("it never ends");
        let child = answer.recv().expect("it answers every order");
        let child = child.with_context(|| format!("cannot start setpriv for {program}"))?;
        Ok(Self { child, name: program.to_owned() })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the exit status if the process has ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Sends a signal; nothing happens if the process has ended already.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match kill_process(pid.context("no process id")?, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot signal {}", self.name)),
        }
    }

    /// Ends the process by SIGKILL and waits until it is gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() >= end {
                bail!("{} still runs after {} s", self.name, limit.as_secs());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ignored: it may have ended, and then there is nothing to end.
        let _ = self.kill();
    }
}
