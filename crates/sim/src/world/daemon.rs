//! Evenkeel as the host runs it: the engine, where each disk lies, and perhaps an auditor.

use evenkeel_engine::{DiskId, Engine, Errno, Geometry, Request, Token};
use evenkeel_sched::{GroupId, Nanos, Tag};

use super::audit::Audit;
use super::program::File;
use crate::Io;

/// Evenkeel.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) engine: Engine,
    /// By source: the disk, and where its file begins on the device.
    disks: Vec<(DiskId, u64)>,
    /// By guest: the group and the source.
    pub(crate) vms: Vec<(GroupId, u32)>,
    /// Messages of guests.
    pub(crate) asked: u64,
    pub(crate) audit: Option<Box<Audit>>,
}

impl Daemon {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self { engine, disks: Vec::new(), vms: Vec::new(), asked: 0, audit: None }
    }

    /// Gives a group a disk that lies at `file`; returns its source.
    pub(crate) fn add_disk(&mut self, group: GroupId, file: File) -> u32 {
        let geometry = Geometry {
            sectors: file.sectors,
            block_bytes: 512,
            read_only: false,
            discard: true,
            write_zeroes: true,
        };
        let disk = self.engine.add_disk(group, geometry);
        self.disks.push((disk, file.start));
        u32::try_from(self.disks.len() - 1).expect("fewer than 2^32 disks")
    }

    pub(crate) fn disk(&self, source: u32) -> DiskId {
        self.disks[source as usize].0
    }

    pub(crate) fn is_anybody_raised(&self) -> bool {
        self.disks.iter().any(|&(disk, _)| self.engine.report(disk).raised)
    }

    /// Takes a request whose position is one of the device.
    pub(crate) fn submit_at(&mut self, now: Nanos, source: u32, token: u64, io: &Io) {
        let base = self.disks[source as usize].1;
        let io = Io { pos: io.pos.saturating_sub(base), ..*io };
        self.submit(now, source, token, &io, 0);
    }

    /// Takes a request whose position counts from the beginning of its disk.
    #[inline]
    pub(crate) fn submit(&mut self, now: Nanos, source: u32, token: u64, io: &Io, ioprio: u32) {
        let disk = self.disks[source as usize].0;
        let tag = match io.op.op() {
            None => self.engine.flush(now, disk, Token(token)),
            Some(op) => {
                let Io { pos: sector, nr_sectors, .. } = *io;
                let request = Request { op, sector, nr_sectors, segments: 1, ioprio, unmap: false };
                self.engine.submit(now, disk, Token(token), &request)
            }
        };
        if let Some(audit) = &mut self.audit {
            audit.asked(now, tag, token, disk, io);
        }
    }

    /// Returns whether nothing can go to the device, nor does an auditor want to know.
    #[inline]
    pub(crate) fn is_device_full(&mut self, now: Nanos) -> bool {
        self.audit.is_none() && self.engine.is_device_full(now)
    }

    #[inline]
    pub(crate) fn dispatch(&mut self, now: Nanos) -> Option<(Tag, Io)> {
        // Looked at where it is: a copy made at once would have to wait until all of it is there.
        let next = self.engine.dispatch(now);
        let command = next.as_ref()?;
        if let Some(audit) = &mut self.audit {
            audit.sent(now, &self.engine, command);
        }
        Some((command.tag, Io::from(command)))
    }

    #[inline]
    pub(crate) fn complete(&mut self, now: Nanos, tag: Tag, outcome: Result<(), Errno>) {
        if let Some(audit) = &mut self.audit {
            audit.completed(now, tag, outcome);
        }
        self.engine.complete(now, tag, outcome);
    }

    /// Returns the token of a request that is finished.
    #[inline]
    pub(crate) fn retire(&mut self, now: Nanos) -> Option<u64> {
        let retired = self.engine.retire()?;
        Some(match &mut self.audit {
            None => retired.token.0,
            Some(audit) => {
                audit.answered(now, &retired);
                retired.token.0
            }
        })
    }

    /// Says that the host has nothing to do until something happens.
    #[inline]
    pub(crate) fn settled(&mut self, now: Nanos) {
        if let Some(audit) = &mut self.audit {
            audit.settled(now, &self.engine);
        }
    }
}
