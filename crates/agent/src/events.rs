//! What the kernel tells of processes: who began a program, who was forked, who ended.
//!
//! By the process events connector of netlink, which needs `CAP_NET_ADMIN` and a kernel with
//! `CONFIG_PROC_EVENTS` (all distributions have it). Without it new programs are found a little
//! later, by looking through `/proc`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// A change in the life of a process; threads that are not the first are told of as well.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Event {
    /// `pid` began another program.
    Exec { pid: u32 },
    /// `parent` has a new child process.
    Fork { parent: u32, child: u32 },
    /// The first thread of a process has ended, and with it the process unless it has others.
    Exit { pid: u32 },
    /// Some events were lost.
    Lost,
}

/// Sizes of the headers before an event, and where an event's details begin.
const NETLINK_HEADER: usize = 16;
const CONNECTOR_HEADER: usize = 20;
const DETAILS: usize = NETLINK_HEADER + CONNECTOR_HEADER + 16;

/// The connector's name for process events, index and value, and its order "tell me".
const PROC: u32 = 1;
const LISTEN: u32 = 1;
const DONE: u16 = 3;

const FORK: u32 = 1;
const EXEC: u32 = 2;
const EXIT: u32 = 0x8000_0000;

/// The subscription.
#[derive(Debug)]
pub(crate) struct Events {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Events {
    /// Subscribes.
    ///
    /// # Errors
    ///
    /// `EPERM` without the capability, `EPROTONOSUPPORT` or `ECONNREFUSED` without the connector.
    pub(crate) fn subscribe() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::CONNECTOR),
        )?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, PROC))?;
        // Forks come in storms; a lost exec is an application that starts slowly.
        let (size, set) = (1 << 20, rustix::net::sockopt::set_socket_recv_buffer_size_force);
        if set(&socket, size).is_err() {
            let _smaller_is_fine = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, size);
        }
        rustix::net::send(&socket, &subscription(), SendFlags::empty())?;
        Ok(Self { socket, buffer: vec![0; 4096] })
    }

    /// Takes everything that has been told.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(Event)) -> io::Result<()> {
        loop {
            match rustix::net::recv(&self.socket, &mut self.buffer, RecvFlags::empty()) {
                Ok((length, _)) => {
                    if let Some(event) = parse(&self.buffer[..length]) {
                        each(event);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NOBUFS) => each(Event::Lost),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn subscription() -> [u8; NETLINK_HEADER + CONNECTOR_HEADER + 4] {
    let mut message = [0; NETLINK_HEADER + CONNECTOR_HEADER + 4];
    let length = u32::try_from(message.len()).expect("40 bytes");
    message[..4].copy_from_slice(&length.to_ne_bytes());
    message[4..6].copy_from_slice(&DONE.to_ne_bytes());
    message[16..20].copy_from_slice(&PROC.to_ne_bytes());
    message[20..24].copy_from_slice(&PROC.to_ne_bytes());
    message[32..34].copy_from_slice(&4_u16.to_ne_bytes());
    message[36..40].copy_from_slice(&LISTEN.to_ne_bytes());
    message
}

/// Reads one message; `None` for events that do not matter here.
fn parse(message: &[u8]) -> Option<Event> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 4)?.try_into().expect("four bytes");
        Some(u32::from_ne_bytes(bytes))
    };
    if word(NETLINK_HEADER)? != PROC {
        return None;
    }
    match word(NETLINK_HEADER + CONNECTOR_HEADER)? {
        EXEC => Some(Event::Exec { pid: word(DETAILS + 4)? }),
        // A new thread belongs to the process that has it.
        FORK if word(DETAILS + 8)? == word(DETAILS + 12)? => {
            Some(Event::Fork { parent: word(DETAILS + 4)?, child: word(DETAILS + 12)? })
        }
        EXIT if word(DETAILS)? == word(DETAILS + 4)? => Some(Event::Exit { pid: word(DETAILS)? }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(what: u32, details: &[u32]) -> Vec<u8> {
        let mut message = vec![0; DETAILS];
        message[16..20].copy_from_slice(&PROC.to_ne_bytes());
        message[36..40].copy_from_slice(&what.to_ne_bytes());
        details.iter().for_each(|word| message.extend(word.to_ne_bytes()));
        message
    }

    #[test]
    fn processes_are_told_from_threads() {
        assert_eq!(parse(&message(EXEC, &[8, 7])), Some(Event::Exec { pid: 7 }));
        let fork = Event::Fork { parent: 1, child: 9 };
        assert_eq!(parse(&message(FORK, &[2, 1, 9, 9])), Some(fork));
        assert_eq!(parse(&message(FORK, &[2, 1, 9, 1])), None);
        assert_eq!(parse(&message(EXIT, &[9, 9, 0, 0])), Some(Event::Exit { pid: 9 }));
        assert_eq!(parse(&message(EXIT, &[9, 1, 0, 0])), None);
    }

    #[test]
    fn messages_cut_short_are_ignored() {
        let whole = message(FORK, &[2, 1, 9, 9]);
        for length in 0..whole.len() {
            assert_eq!(parse(&whole[..length]), None);
        }
    }
}
