//! How a session begins: QEMU's messages in QEMU's order.

use std::io;
use std::os::fd::AsFd as _;

use super::channel::{longs, message, protocol, words};
use super::vring::Vring;
use super::{Client, GUEST_BASE, Inflight, Offer, Options, USER_BASE};

/// Feature bits of virtio-blk and of the ring.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod feature {
    pub const READ_ONLY: u64 = 1 << 5;
    pub const FLUSH: u64 = 1 << 9;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    pub const INDIRECT: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

impl Client {
    /// Negotiates, shares the memory and starts every vring, in QEMU's order.
    pub(super) fn start(&mut self) -> io::Result<()> {
        self.negotiate()?;
        self.start_vrings()
    }

    fn negotiate(&mut self) -> io::Result<()> {
        let features = self.channel.ask(message::GET_FEATURES, &[])?.to_u64()?;
        let wanted_protocol = protocol::MQ
            | protocol::REPLY_ACK
            | protocol::CONFIG
            | if self.options.inflight { protocol::INFLIGHT_SHMFD } else { 0 };
        let offered = self.channel.ask(message::GET_PROTOCOL_FEATURES, &[])?.to_u64()?;
        let agreed = offered & wanted_protocol;
        self.channel.tell(message::SET_PROTOCOL_FEATURES, &longs(&[agreed]), &[])?;
        self.channel.set_acknowledged(agreed & protocol::REPLY_ACK != 0);
        self.offer = Offer { features, protocol: offered, ..self.offer };
        self.offer.vrings_max = 1;
        if agreed & protocol::MQ != 0 {
            self.offer.vrings_max = self.channel.ask(message::GET_QUEUE_NUM, &[])?.to_u64()?;
        }
        if u64::from(self.options.vrings) > self.offer.vrings_max {
            return Err(unsupported("the server has fewer vrings"));
        }
        self.channel.tell(message::SET_OWNER, &[], &[])?;
        if agreed & protocol::CONFIG != 0 {
            self.read_config()?;
        }
        let wanted = feature::VERSION_1 | feature::PROTOCOL | feature::FLUSH;
        let optional = feature::MQ | feature::DISCARD | feature::WRITE_ZEROES | feature::READ_ONLY;
        let ring = if self.options.event_idx { feature::EVENT_IDX } else { 0 }
            | if self.options.indirect { feature::INDIRECT } else { 0 };
        if features & ring != ring {
            return Err(unsupported("the server lacks a ring feature"));
        }
        let accepted = features & (wanted | optional) | ring;
        self.channel.tell(message::SET_FEATURES, &longs(&[accepted]), &[])
    }

    fn read_config(&mut self) -> io::Result<()> {
        const CONFIG_BYTES: usize = 60;
        let payload = [words(&[0, 60, 0]), vec![0; CONFIG_BYTES]].concat();
        let reply = self.channel.ask(message::GET_CONFIG, &payload)?;
        let space = reply.payload.get(12..12 + CONFIG_BYTES).ok_or(io::ErrorKind::InvalidData)?;
        self.offer.sectors = u64::from_le_bytes(space[0..8].try_into().expect("eight bytes"));
        self.offer.block_bytes = u32::from_le_bytes(space[20..24].try_into().expect("four bytes"));
        Ok(())
    }

    pub(super) fn start_vrings(&mut self) -> io::Result<()> {
        if self.options.inflight && self.offer.protocol & protocol::INFLIGHT_SHMFD != 0 {
            self.share_inflight()?;
        }
        let size = self.memory.len() as u64;
        let table = [words(&[1, 0]), longs(&[GUEST_BASE, size, USER_BASE, 0])].concat();
        self.channel.tell(message::SET_MEM_TABLE, &table, &[self.memory.fd()])?;
        for index in 0..self.options.vrings {
            self.start_vring(index)?;
        }
        // Whatever is already in the rings has been kicked to somebody else.
        self.vrings.iter_mut().for_each(Vring::kick);
        Ok(())
    }

    fn start_vring(&mut self, index: u16) -> io::Result<()> {
        let vring = &self.vrings[usize::from(index)];
        let (layout, number) = (vring.layout(), u32::from(index));
        let user = |offset: usize| USER_BASE + offset as u64;
        let addresses = [user(layout.descriptors), user(layout.used), user(layout.available), 0];
        let addresses = [words(&[number, 0]), longs(&addresses)].concat();
        let base = u32::from(vring.used_index());
        let channel = &mut self.channel;
        channel.tell(message::SET_VRING_NUM, &words(&[number, self.options.size.into()]), &[])?;
        channel.tell(message::SET_VRING_BASE, &words(&[number, base]), &[])?;
        channel.tell(message::SET_VRING_ADDR, &addresses, &[])?;
        let whom = longs(&[number.into()]);
        channel.tell(message::SET_VRING_KICK, &whom, &[vring.kick_fd()])?;
        channel.tell(message::SET_VRING_CALL, &whom, &[self.call.as_fd()])?;
        channel.tell(message::SET_VRING_ERR, &whom, &[self.err.as_fd()])?;
        channel.tell(message::SET_VRING_ENABLE, &words(&[number, 1]), &[])
    }

    fn share_inflight(&mut self) -> io::Result<()> {
        let Options { vrings, size, .. } = self.options;
        if self.inflight.is_none() {
            let shape = u32::from(vrings) | u32::from(size) << 16;
            let payload = [longs(&[0, 0]), words(&[shape, 0])].concat();
            let mut reply = self.channel.ask(message::GET_INFLIGHT_FD, &payload)?;
            let fd = reply.fds.pop().ok_or_else(|| unsupported("no in-flight descriptor came"))?;
            // The two 16-bit fields are ours, as in QEMU.
            let mut description = reply.payload;
            if description.len() < 20 {
                return Err(io::ErrorKind::InvalidData.into());
            }
            description[16..20].copy_from_slice(&shape.to_le_bytes());
            self.inflight = Some(Inflight { fd, description });
        }
        let inflight = self.inflight.as_ref().expect("it was just set");
        let fds = [inflight.fd.as_fd()];
        self.channel.tell(message::SET_INFLIGHT_FD, &inflight.description, &fds)
    }
}

fn unsupported(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, what)
}
