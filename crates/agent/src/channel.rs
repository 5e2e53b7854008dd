//! The way to the host: a virtio-serial port, or vsock where there is none.
#![expect(unsafe_code, reason = "vsock has no address type in the libraries used here")]

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use evenkeel_wire::agent::{FromGuest, FromHost, Lines, PORT, VSOCK_PORT};

/// Where to look for the host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Way {
    /// The port if there is one, else vsock.
    Any,
    /// This character device.
    Port(PathBuf),
    /// The host's vsock.
    Vsock,
}

/// An open connection. Lines that do not fit at once are dropped: the next one says the same.
#[derive(Debug)]
pub(crate) struct Channel {
    file: File,
    name: String,
    lines: Lines,
    /// The rest of a line that the other side had no room for.
    pending: Vec<u8>,
}

impl Channel {
    /// Opens the way to the host.
    ///
    /// # Errors
    ///
    /// There is no port and no vsock, or it is in use; the message says what was tried.
    pub(crate) fn open(way: &Way) -> io::Result<Self> {
        let (file, name) = match way {
            Way::Port(path) => (open_port(path)?, path.display().to_string()),
            Way::Vsock => (open_vsock()?, format!("vsock port {VSOCK_PORT}")),
            Way::Any => match find_port() {
                Some(path) => (open_port(&path)?, path.display().to_string()),
                None => {
                    let file = open_vsock().map_err(|error| {
                        let text = format!("no virtio-serial port {PORT}, and no vsock: {error}");
                        io::Error::new(error.kind(), text)
                    })?;
                    (file, format!("vsock port {VSOCK_PORT}"))
                }
            },
        };
        Ok(Self { file, name, lines: Lines::default(), pending: Vec::new() })
    }

    /// Returns what it is, for people.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Sends a line. One that finds no room is dropped.
    ///
    /// # Errors
    ///
    /// The connection is gone.
    pub(crate) fn send(&mut self, message: &FromGuest) -> io::Result<()> {
        self.flush()?;
        if self.pending.is_empty() {
            serde_json::to_writer(&mut self.pending, message)?;
            self.pending.push(b'\n');
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty() {
            match self.file.write(&self.pending) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes every message that has come; what is none is skipped.
    ///
    /// # Errors
    ///
    /// The connection is gone; a port whose host has closed it counts as gone, too.
    pub(crate) fn receive(&mut self, mut each: impl FnMut(FromHost)) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            match self.file.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.lines.push(&buffer[..length], |line| {
                    if let Ok(message) = serde_json::from_slice(line) {
                        each(message);
                    }
                }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open_port(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map_err(|error| {
        io::Error::new(error.kind(), format!("cannot open {}: {error}", path.display()))
    })
}

/// Finds the port by its name; udev's link is not there in every guest.
fn find_port() -> Option<PathBuf> {
    let link = Path::new("/dev/virtio-ports").join(PORT);
    if link.exists() {
        return Some(link);
    }
    fs::read_dir("/sys/class/virtio-ports").ok()?.find_map(|entry| {
        let entry = entry.ok()?;
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        (name.trim_end() == PORT).then(|| Path::new("/dev").join(entry.file_name()))
    })
}

/// Connects to the host's vsock port; the connection is made within a moment or not at all.
fn open_vsock() -> io::Result<File> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes numbers only.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just made, and nobody else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all bits zero is a valid address of this type.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::sa_family_t::try_from(libc::AF_VSOCK).expect("a small constant");
    address.svm_cid = libc::VMADDR_CID_HOST;
    address.svm_port = VSOCK_PORT;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_vm>()).expect("16 bytes");
    // SAFETY: the address is a live local of the length given.
    let failed = unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(File::from(socket))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use evenkeel_wire::agent::{LINE_BYTES_MAX, Level};

    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("a socket");
        let channel = Channel {
            file: File::from(OwnedFd::from(ours)),
            name: "test".to_owned(),
            lines: Lines::default(),
            pending: Vec::new(),
        };
        (channel, theirs)
    }

    fn received(channel: &mut Channel) -> Vec<FromHost> {
        let mut all = Vec::new();
        channel.receive(|message| all.push(message)).expect("it is open");
        all
    }

    #[test]
    fn garbage_between_messages_is_skipped() {
        let (mut channel, mut host) = pair();
        let hello = br#"{"type":"hello","version":1,"lease_max_ms":500}"#;
        host.write_all(b"garbage\n\n\xff\xfe\n").expect("room");
        host.write_all(&vec![b'x'; 5 * LINE_BYTES_MAX]).expect("room");
        host.write_all(b"\n").expect("room");
        host.write_all(&hello[..10]).expect("room");
        assert_eq!(received(&mut channel), []);
        host.write_all(&hello[10..]).expect("room");
        host.write_all(b"\n").expect("room");
        let expected = FromHost::Hello { version: 1, lease_max_ms: 500 };
        assert_eq!(received(&mut channel), [expected]);
    }

    #[test]
    fn a_host_that_does_not_read_blocks_nobody_and_gets_whole_lines() {
        let (mut channel, mut host) = pair();
        for seq in 0..100_000 {
            let level = Level::Interactive;
            let message =
                FromGuest::Help { seq, level, lease_ms: 1, marked: false, reason: String::new() };
            channel.send(&message).expect("it is open");
        }
        let pending = channel.pending.len();
        assert!(pending < LINE_BYTES_MAX, "{pending}");
        host.set_nonblocking(true).expect("a socket");
        let mut bytes = Vec::new();
        let _would_block = host.read_to_end(&mut bytes);
        channel.flush().expect("it is open");
        let _would_block = host.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("JSON");
        for line in text.lines() {
            serde_json::from_str::<FromGuest>(line).expect("a whole line");
        }
    }

    #[test]
    fn a_closed_connection_is_noticed() {
        let (mut channel, host) = pair();
        drop(host);
        assert!(channel.receive(|_| {}).is_err());
    }
}
