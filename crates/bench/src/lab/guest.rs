//! One guest under QEMU: how it is described, booted, commanded and ended.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::process::Signal;

use super::channel::{Channel, Output, Wire};
use super::initramfs::Boot;
use crate::child::Process;

/// What a guest shall be; [`boot`](Self::boot) makes it.
///
/// Disks appear in the guest as `/dev/vda`, `/dev/vdb` and so on, in the order of the calls.
#[derive(Clone, Debug)]
pub struct GuestBuilder {
    boot: Boot,
    name: String,
    memory_mib: u32,
    cpus: u32,
    disks: Vec<Disk>,
    agent_port: Option<PathBuf>,
    reboots: bool,
    ticks: bool,
}

#[derive(Clone, Debug)]
enum Disk {
    VhostUser { socket: PathBuf, queues: u32 },
    Plain { image: PathBuf },
    Card { image: PathBuf },
}

impl GuestBuilder {
    pub(super) fn new(boot: Boot) -> Self {
        Self {
            boot,
            name: "guest".to_owned(),
            memory_mib: 256,
            cpus: 1,
            disks: Vec::new(),
            agent_port: None,
            reboots: false,
            ticks: false,
        }
    }

    /// Sets the name that errors mention.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Sets the memory in MiB; 256 unless told, and 384 at least where fio runs.
    #[must_use]
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets the number of virtual CPUs; 1 unless told.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// Adds a vhost-user-blk disk with `queues` vrings; QEMU reconnects to it every second.
    #[must_use]
    pub fn disk(mut self, socket: impl Into<PathBuf>, queues: u32) -> Self {
        self.disks.push(Disk::VhostUser { socket: socket.into(), queues });
        self
    }

    /// Adds a raw image that QEMU serves by itself: the reference without Evenkeel.
    #[must_use]
    pub fn plain_disk(mut self, image: impl Into<PathBuf>) -> Self {
        self.disks.push(Disk::Plain { image: image.into() });
        self
    }

    /// Adds an SD card that QEMU serves by itself, of a power of two of bytes. Its driver is loaded by
    /// `modprobe -a sdhci-pci mmc_block`.
    #[must_use]
    pub fn card(mut self, image: impl Into<PathBuf>) -> Self {
        self.disks.push(Disk::Card { image: image.into() });
        self
    }

    /// Adds the port by which the guest's agent talks to the daemon that listens at `socket`.
    #[must_use]
    pub fn agent_port(mut self, socket: impl Into<PathBuf>) -> Self {
        self.agent_port = Some(socket.into());
        self
    }

    /// Lets the guest reboot; without this a reboot is QEMU's end.
    #[must_use]
    pub const fn reboots(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// Lets the guest's clock tick all the time. A timer that is set anew for each event gets lost now
    /// and then under emulation on a busy host, and with it all that the guest waits for.
    #[must_use]
    pub const fn ticks(mut self) -> Self {
        self.ticks = true;
        self
    }

    /// Starts QEMU and waits until the guest takes commands.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started, or the guest is not up within two minutes (the error then has the
    /// end of its console).
    pub fn boot(&self) -> Result<Guest> {
        let guest = self.start()?;
        guest.ready()?;
        Ok(guest)
    }

    /// Starts QEMU and returns at once; [`Guest::ready`] waits. Boots several guests in parallel.
    ///
    /// # Errors
    ///
    /// QEMU cannot be started, or ends at once.
    pub fn start(&self) -> Result<Guest> {
        let run = RunDir::new(&self.name)?;
        let qemu = Process::start("qemu-system-x86_64", |command| {
            self.arguments(&run.0, command);
            let log = fs::File::create(run.0.join("qemu.log"));
            command.stdin(Stdio::null()).stdout(Stdio::null());
            command.stderr(log.map_or_else(|_| Stdio::null(), Stdio::from));
        })?;
        let mut guest = Guest {
            name: self.name.clone(),
            machine: "QEMU",
            qemu: Mutex::new(qemu),
            channel: Mutex::new(None),
            hello: Mutex::new(None),
            run,
        };
        let stream = guest.connect()?;
        guest.listen(stream)?;
        Ok(guest)
    }

    fn arguments(&self, run: &Path, command: &mut Command) {
        let memory = self.memory_mib;
        command.args(["-name", &self.name, "-nodefaults", "-no-user-config", "-display", "none"]);
        command.args(["-m", &format!("{memory}M")]);
        if !self.reboots {
            command.arg("-no-reboot");
        }
        command.args(["-object", &format!("memory-backend-memfd,id=mem,size={memory}M,share=on")]);
        command.args(["-machine", "q35,memory-backend=mem", "-smp", &self.cpus.to_string()]);
        if kvm_works() {
            command.args(["-accel", "kvm", "-cpu", "host"]);
        } else {
            command.args(["-accel", "tcg,thread=multi", "-cpu", "max"]);
        }
        command.arg("-kernel").arg(&self.boot.kernel).arg("-initrd").arg(&self.boot.initramfs);
        // mitigations=off: under emulation they only cost time.
        let mut kernel_line =
            "console=ttyS0 quiet loglevel=4 panic=-1 rdinit=/init mitigations=off".to_owned();
        if self.ticks {
            kernel_line += " nohz=off highres=off";
        }
        command.args(["-append", &kernel_line, "-serial"]);
        command.arg(format!("file:{}", run.join("console").display()));
        for (index, disk) in self.disks.iter().enumerate() {
            disk.arguments(index, command);
        }
        let port = run.join("port").display().to_string();
        command.args(["-device", "virtio-serial-pci", "-chardev"]);
        command.arg(format!("socket,id=lab,path={port},server=on,wait=off"));
        command.args(["-device", "virtserialport,chardev=lab,name=org.evenkeel.lab.0"]);
        if let Some(socket) = &self.agent_port {
            let path = socket.display();
            command.arg("-chardev");
            command.arg(format!("socket,id=agent,path={path},{}", reconnect_option()));
            command.args(["-device", "virtserialport,chardev=agent,name=org.evenkeel.agent.0"]);
        }
    }
}

impl Disk {
    fn arguments(&self, index: usize, command: &mut Command) {
        match self {
            Self::VhostUser { socket, queues } => {
                let path = socket.display();
                command.arg("-chardev");
                command.arg(format!("socket,id=disk{index},path={path},{}", reconnect_option()));
                command.arg("-device");
                command.arg(format!("vhost-user-blk-pci,chardev=disk{index},num-queues={queues}"));
            }
            Self::Plain { image } => {
                drive(index, image, command);
                command.args(["-device", &format!("virtio-blk-pci,drive=disk{index}")]);
            }
            Self::Card { image } => {
                drive(index, image, command);
                command.args(["-device", "sdhci-pci", "-device"]);
                command.arg(format!("sd-card,drive=disk{index}"));
            }
        }
    }
}

/// Tells QEMU of an image for a disk.
fn drive(index: usize, image: &Path, command: &mut Command) {
    let path = image.display();
    command.arg("-drive");
    command.arg(format!("if=none,id=disk{index},format=raw,cache=none,file={path}"));
}

/// A running guest. Dropping it kills QEMU at once, as a power cut would.
#[derive(Debug)]
pub struct Guest {
    name: String,
    /// What errors call the process.
    machine: &'static str,
    qemu: Mutex<Process>,
    channel: Mutex<Option<Channel>>,
    hello: Mutex<Option<Hello>>,
    run: RunDir,
}

/// The guest says so each time that it begins to take commands.
#[derive(Debug)]
struct Hello {
    wire: Wire,
    is_heard: bool,
}

impl Guest {
    /// Takes what runs in `process` for a guest; its agent is at the other end of `stream`, and what
    /// it prints goes to the file `console` in `run`.
    pub(super) fn of_process(
        name: &str,
        machine: &'static str,
        process: Process,
        stream: UnixStream,
        run: RunDir,
    ) -> Result<Self> {
        let mut guest = Self {
            name: name.to_owned(),
            machine,
            qemu: Mutex::new(process),
            channel: Mutex::new(None),
            hello: Mutex::new(None),
            run,
        };
        guest.listen(stream)?;
        Ok(guest)
    }

    fn listen(&mut self, stream: UnixStream) -> Result<()> {
        let (channel, hello) = Channel::new(stream)?;
        self.channel = Mutex::new(Some(channel));
        self.hello = Mutex::new(Some(Hello { wire: hello, is_heard: false }));
        Ok(())
    }

    /// Waits until the guest takes commands; returns at once when it did before.
    ///
    /// # Errors
    ///
    /// The guest is not up within two minutes, or QEMU has ended.
    pub fn ready(&self) -> Result<()> {
        let mut hello = self.hello.lock().expect("no holder panics");
        let hello = hello.as_mut().expect("set before a guest is handed out");
        if !hello.is_heard {
            hello.wire.hello(BOOT_LIMIT).with_context(|| self.diagnosis())?;
            hello.is_heard = true;
        }
        Ok(())
    }

    /// Resets the guest without shutting it down; [`ready`](Self::ready) waits until it takes
    /// commands again. What ran there never ends. For guests that [may](GuestBuilder::reboots).
    ///
    /// # Errors
    ///
    /// The guest has ended.
    pub fn reboot(&self) -> Result<()> {
        let mut hello = self.hello.lock().expect("no holder panics");
        hello.as_mut().expect("set before a guest is handed out").is_heard = false;
        self.spawn("reboot -f").map(drop)
    }

    /// Stops QEMU: the guest's time stands still, and nobody hears of it.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn pause(&self) -> Result<()> {
        self.qemu.lock().expect("no holder panics").signal(Signal::STOP)
    }

    /// Lets a guest that [pauses](Self::pause) go on.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn resume(&self) -> Result<()> {
        self.qemu.lock().expect("no holder panics").signal(Signal::CONT)
    }

    /// Runs a shell script in the guest and waits for its end, a minute at most.
    ///
    /// # Errors
    ///
    /// The script does not end in time, or the guest has ended. A script that fails is no error;
    /// see [`Output::status`].
    pub fn run(&self, script: &str) -> Result<Output> {
        self.run_within(Duration::from_secs(60), script)
    }

    /// Runs a shell script in the guest and waits for its end, `limit` at most.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub fn run_within(&self, limit: Duration, script: &str) -> Result<Output> {
        self.spawn(script)?.wait(limit)
    }

    /// Runs a shell script that must succeed, and returns what it printed, trimmed.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run), and when the exit status is not 0.
    pub fn check(&self, script: &str) -> Result<String> {
        self.check_within(Duration::from_secs(60), script)
    }

    /// Does what [`check`](Self::check) does, with a limit of its own.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check).
    pub fn check_within(&self, limit: Duration, script: &str) -> Result<String> {
        let output = self.run_within(limit, script)?;
        if output.status != 0 {
            bail!(
                "{}: `{script}` ended with status {}\n{}\n{}",
                self.name,
                output.status,
                output.text(),
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(output.text())
    }

    /// Starts a shell script in the guest and returns while it runs.
    ///
    /// # Errors
    ///
    /// The guest has ended.
    pub fn spawn(&self, script: &str) -> Result<Job<'_>> {
        let mut channel = self.channel.lock().expect("no holder panics");
        let channel = channel.as_mut().expect("set before a guest is handed out");
        let wire = channel.spawn(script).with_context(|| self.diagnosis())?;
        Ok(Job { guest: self, script: script.to_owned(), wire })
    }

    /// Kills QEMU with SIGKILL: the guest's power is cut.
    ///
    /// # Errors
    ///
    /// The kernel refuses.
    pub fn kill(self) -> Result<()> {
        self.qemu.lock().expect("no holder panics").kill()
    }

    /// Shuts the guest down: `sync`, power off, wait for QEMU's end. Unmount file systems before.
    ///
    /// # Errors
    ///
    /// QEMU still runs after half a minute.
    pub fn poweroff(self) -> Result<()> {
        let job = self.spawn("sync; poweroff -f")?;
        let ended = self.qemu.lock().expect("no holder panics").wait(Duration::from_secs(30));
        drop(job);
        ended.map(drop).with_context(|| self.diagnosis())
    }

    /// Returns the process id of QEMU.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.qemu.lock().expect("no holder panics").pid()
    }

    /// Returns what the guest's kernel and QEMU have printed so far.
    #[must_use]
    pub fn console(&self) -> String {
        let read = |name| fs::read(self.run.0.join(name)).unwrap_or_default();
        let (console, qemu) = (read("console"), read("qemu.log"));
        format!("{}{}", String::from_utf8_lossy(&console), String::from_utf8_lossy(&qemu))
    }

    fn connect(&self) -> Result<UnixStream> {
        let end = Instant::now() + CONNECT_LIMIT;
        loop {
            let error = match UnixStream::connect(self.run.0.join("port")) {
                Ok(stream) => return Ok(stream),
                Err(error) => error,
            };
            let ended = self.qemu.lock().expect("no holder panics").ended()?;
            if ended.is_some() || Instant::now() >= end {
                return Err(error).with_context(|| self.diagnosis());
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Says which guest it is, how QEMU fares, and the end of the console.
    fn diagnosis(&self) -> String {
        let machine = self.machine;
        let state = match self.qemu.lock().expect("no holder panics").ended() {
            Ok(None) => format!("{machine} runs"),
            Ok(Some(status)) => format!("{machine} has ended ({status})"),
            Err(error) => format!("{machine} cannot be asked ({error})"),
        };
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        let tail = lines[lines.len().saturating_sub(25)..].join("\n");
        format!("guest {}: {state}; the end of its console:\n{tail}\n", self.name)
    }
}

/// A script that runs in a guest.
#[derive(Debug)]
pub struct Job<'guest> {
    guest: &'guest Guest,
    script: String,
    wire: Wire,
}

impl Job<'_> {
    /// Waits for the end of the script, `limit` at most; it goes on running after a failed wait.
    ///
    /// # Errors
    ///
    /// The script has not ended in time, or the guest has ended.
    pub fn wait(&self, limit: Duration) -> Result<Output> {
        self.wire
            .wait(limit)
            .with_context(|| format!("`{}` in {}", self.script, self.guest.diagnosis()))
    }

    /// Waits for the next whole line of the script's standard output, `limit` at most.
    ///
    /// # Errors
    ///
    /// None has come in time, or the script or the guest has ended.
    pub fn line(&self, limit: Duration) -> Result<String> {
        self.wire
            .line(limit)
            .with_context(|| format!("`{}` in {}", self.script, self.guest.diagnosis()))
    }

    /// Ends the script and all its children with SIGKILL; [`wait`](Self::wait) still reports.
    ///
    /// # Errors
    ///
    /// The guest has ended.
    pub fn kill(&self) -> Result<()> {
        let mut channel = self.guest.channel.lock().expect("no holder panics");
        channel.as_mut().expect("set before a guest is handed out").kill(self.wire.id)
    }
}

/// A directory that is removed with its owner, unless that owner dies of a panic.
#[derive(Debug)]
pub(super) struct RunDir(pub(super) PathBuf);

impl RunDir {
    pub(super) fn new(name: &str) -> Result<Self> {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        // Not below the lab: the path of a Unix socket may have 107 bytes only.
        let dir = std::env::temp_dir()
            .join(format!("evenkeel-lab-{}-{serial}-{name}", std::process::id()));
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !thread::panicking() {
            // Ignored: a directory left in the temporary space does no harm.
            let _ = fs::remove_dir_all(&self.0);
        }
    }
}

/// Says whether guests can use the CPU's own virtualisation.
///
/// A `/dev/kvm` that opens is not enough: some hosts offer one that emulates most instructions
/// and cannot boot a kernel, and those do not show the CPU flags.
#[must_use]
pub fn kvm_works() -> bool {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm")
        && fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// QEMU 9.2 renamed `reconnect` (seconds) to `reconnect-ms`.
fn reconnect_option() -> &'static str {
    static OPTION: std::sync::OnceLock<&str> = std::sync::OnceLock::new();
    OPTION.get_or_init(|| {
        let version = Command::new("qemu-system-x86_64").arg("--version").output();
        let text = version.map(|output| output.stdout).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let number = text.split_whitespace().find_map(|word| {
            let mut parts = word.split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
        if number >= Some((9, 2)) { "reconnect-ms=1000" } else { "reconnect=1" }
    })
}

/// Emulated guests need about 6 s alone on a core; two of them beside a build may need 40 s.
const BOOT_LIMIT: Duration = Duration::from_secs(120);
/// QEMU makes its sockets before it connects to its disks, which may not be served yet.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
