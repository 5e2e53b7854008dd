//! The vhost-user socket, seen from the VMM: messages out, answers in, descriptors alongside.
//!
//! Own code rather than the `vhost` crate's front end, because the tests must also say what no
//! honest VMM says: half messages, unknown numbers, descriptors where none belong.
//!
//! Source: QEMU documentation, "Vhost-user Protocol", "Message Specification".

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Numbers of the messages a front end sends.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Bits of the protocol features.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod protocol {
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
}

const VERSION: u32 = 1;
const REPLY: u32 = 4;
const NEED_REPLY: u32 = 8;
const HEADER_BYTES: usize = 12;
/// Most payload bytes of an answer; the largest honest one is a configuration space.
const PAYLOAD_MAX: usize = 4096;
/// Most descriptors in one message: the specification's limit of memory regions.
pub const FDS_MAX: usize = 8;

/// One answer of the server.
#[derive(Debug)]
pub struct Reply {
    /// Number of the message that it answers.
    pub request: u32,
    /// The bytes after the header.
    pub payload: Vec<u8>,
    /// Descriptors that came along.
    pub fds: Vec<OwnedFd>,
}

impl Reply {
    /// Returns the payload as one little-endian 64-bit value.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the payload has another size.
    pub fn to_u64(&self) -> io::Result<u64> {
        let bytes = self.payload.as_slice().try_into();
        bytes.map(u64::from_le_bytes).map_err(|_size| invalid("answer is not a 64-bit value"))
    }
}

/// A connection to a vhost-user back end.
#[derive(Debug)]
pub struct Channel {
    stream: UnixStream,
    /// REPLY_ACK has been negotiated: every message that has no answer of its own asks for one.
    acknowledged: bool,
}

impl Channel {
    /// Connects to the socket at `path`; nothing later on this channel waits longer than
    /// `patience`.
    ///
    /// # Errors
    ///
    /// What connect reports.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, acknowledged: false })
    }

    /// From now on asks for an acknowledgement of every message without an answer of its own.
    pub fn set_acknowledged(&mut self, acknowledged: bool) {
        self.acknowledged = acknowledged;
    }

    /// Returns the socket, to be polled for the server's departure.
    #[must_use]
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Writes bytes that need not be a message at all.
    ///
    /// # Errors
    ///
    /// What write reports.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends the sending direction only; the server sees the end of the stream.
    ///
    /// # Errors
    ///
    /// What shutdown reports.
    pub fn shut_write(&self) -> io::Result<()> {
        self.stream.shutdown(std::net::Shutdown::Write)
    }

    /// Reads until the server closes the connection and returns how many bytes came.
    ///
    /// # Errors
    ///
    /// What read reports; `WouldBlock` if the server keeps the connection open.
    pub fn read_to_end(&mut self) -> io::Result<usize> {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(rest.len()),
            other => other,
        }
    }

    /// Sends one message, and waits for its acknowledgement if that was negotiated.
    ///
    /// # Errors
    ///
    /// * what sendmsg or recvmsg reports;
    /// * `InvalidData` -- the server refused the message (the value of its acknowledgement).
    pub fn tell(&mut self, request: u32, payload: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let flags = if self.acknowledged { NEED_REPLY } else { 0 };
        self.send(request, flags, payload, fds)?;
        if self.acknowledged {
            let answer = self.receive(request)?.to_u64()?;
            if answer != 0 {
                return Err(invalid(&format!("message {request} refused with {answer}")));
            }
        }
        Ok(())
    }

    /// Sends one message that has an answer and returns it.
    ///
    /// # Errors
    ///
    /// What sendmsg or recvmsg reports; `InvalidData` if something else came.
    pub fn ask(&mut self, request: u32, payload: &[u8]) -> io::Result<Reply> {
        self.send(request, 0, payload, &[])?;
        self.receive(request)
    }

    /// Sends one message with `flags` besides the version.
    ///
    /// # Errors
    ///
    /// What sendmsg reports.
    pub fn send(
        &mut self,
        request: u32,
        flags: u32,
        payload: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let size = u32::try_from(payload.len()).map_err(|_size| invalid("payload too long"))?;
        let header = words(&[request, VERSION | flags, size]);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(invalid("too many descriptors"));
        }
        let parts = [IoSlice::new(&header), IoSlice::new(payload)];
        let sent = sendmsg(&self.stream, &parts, &mut control, SendFlags::NOSIGNAL)?;
        if sent == header.len() + payload.len() { Ok(()) } else { Err(invalid("message cut")) }
    }

    /// Receives one answer to `request`.
    ///
    /// # Errors
    ///
    /// * what recvmsg reports;
    /// * `UnexpectedEof` -- the server closed the connection;
    /// * `InvalidData` -- this is no answer to `request`.
    pub fn receive(&mut self, request: u32) -> io::Result<Reply> {
        let mut header = [0; HEADER_BYTES];
        let mut fds = Vec::new();
        let read = self.receive_header(&mut header, &mut fds)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.stream.read_exact(&mut header[read..])?;
        let (number, flags, size) = (word(&header, 0), word(&header, 4), word(&header, 8));
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if number != request || flags & REPLY == 0 || size > PAYLOAD_MAX {
            return Err(invalid(&format!("message {number} instead of an answer to {request}")));
        }
        let mut payload = vec![0; size];
        self.stream.read_exact(&mut payload)?;
        Ok(Reply { request: number, payload, fds })
    }

    fn receive_header(
        &mut self,
        header: &mut [u8; HEADER_BYTES],
        fds: &mut Vec<OwnedFd>,
    ) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(header)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.stream, &mut parts, &mut control, flags)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        Ok(received.bytes)
    }
}

/// Lays 32-bit values out as a payload.
#[must_use]
pub fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Lays 64-bit values out as a payload.
#[must_use]
pub fn longs(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were taken"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Channel, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Channel { stream: ours, acknowledged: false }, theirs)
    }

    #[test]
    fn a_message_is_three_words_and_its_payload() {
        let (mut channel, mut server) = pair();
        channel.tell(message::SET_FEATURES, &longs(&[0x1_4000_0000]), &[]).unwrap();
        let mut bytes = [0; 20];
        server.read_exact(&mut bytes).unwrap();
        let expected = [2, 0, 0, 0, 1, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0x40, 1, 0, 0, 0];
        assert_eq!(bytes, expected);
    }

    #[test]
    fn a_refusal_is_an_error_and_a_closed_socket_too() {
        let (mut channel, mut server) = pair();
        channel.set_acknowledged(true);
        server.write_all(&[words(&[3, VERSION | REPLY, 8]), longs(&[1])].concat()).unwrap();
        let refused = channel.tell(message::SET_OWNER, &[], &[]).unwrap_err();
        assert_eq!(refused.to_string(), "message 3 refused with 1");
        drop(server);
        assert_eq!(
            channel.receive(message::SET_OWNER).map(|reply| reply.request).unwrap_err().kind(),
            io::ErrorKind::ConnectionReset
        );
    }
}
