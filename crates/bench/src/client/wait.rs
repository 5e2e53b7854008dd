//! One place to wait for any number of clients.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;

/// What ended a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// There may be answers.
    Answers,
    /// The server stopped a vring whose driver broke the rules, and said so.
    Broken,
    /// The server closed the connection.
    Gone,
    /// Nothing happened in time.
    Timeout,
}

impl Client {
    /// Sleeps until there are answers, the server is gone, or `timeout` is over.
    ///
    /// # Errors
    ///
    /// What poll reports.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<Wake> {
        if self.arm() {
            return Ok(Wake::Answers);
        }
        let socket = self.channel.socket();
        let fds = [self.call.as_fd(), self.err.as_fd(), socket];
        let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let timeout = Timespec::try_from(timeout).expect("timeouts are short");
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Wake::Answers),
            Err(error) => return Err(error.into()),
        }
        let [answers, broken, gone] = fds.map(|fd| !fd.revents().is_empty());
        if answers {
            drain(&self.call);
            Ok(Wake::Answers)
        } else if broken {
            drain(&self.err);
            Ok(Wake::Broken)
        } else {
            Ok(if gone { Wake::Gone } else { Wake::Timeout })
        }
    }
}

/// Waits for any number of clients, which stay connected meanwhile.
pub struct Waiter {
    epoll: OwnedFd,
    /// What happened last.
    events: Vec<Event>,
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiter").field("epoll", &self.epoll).finish_non_exhaustive()
    }
}

/// What a descriptor that is waited for means.
const ANSWERS: u64 = 0;
const BROKEN: u64 = 1;
const GONE: u64 = 2;

impl Waiter {
    /// Makes one for these clients.
    ///
    /// # Errors
    ///
    /// What epoll reports.
    pub fn new<C: AsRef<Client>>(clients: &[C]) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for client in clients.iter().map(AsRef::as_ref) {
            // An eventfd tells of each time it is written to, so nobody need read it.
            for (fd, means) in [
                (client.call.as_fd(), ANSWERS),
                (client.err.as_fd(), BROKEN),
                (client.channel.socket(), GONE),
            ] {
                let flags = EventFlags::IN | EventFlags::ET;
                epoll::add(&epoll, fd, EventData::new_u64(means), flags)?;
            }
        }
        Ok(Self { epoll, events: Vec::with_capacity(2 * clients.len()) })
    }

    /// Sleeps until one of the `clients` that it was made for has answers or lost its server.
    ///
    /// # Errors
    ///
    /// What epoll reports.
    pub fn wait<C: AsMut<Client>>(
        &mut self,
        clients: &mut [C],
        timeout: Duration,
    ) -> io::Result<Wake> {
        if clients.iter_mut().fold(false, |ready, client| client.as_mut().arm() | ready) {
            return Ok(Wake::Answers);
        }
        let timeout = Timespec::try_from(timeout).expect("timeouts are short");
        self.events.clear();
        let events = rustix::buffer::spare_capacity(&mut self.events);
        match epoll::wait(&self.epoll, events, Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Wake::Answers),
            Err(error) => return Err(error.into()),
        }
        let worst = self.events.iter().map(|event| event.data.u64()).max();
        Ok(match worst {
            None => Wake::Timeout,
            Some(ANSWERS) => Wake::Answers,
            Some(BROKEN) => Wake::Broken,
            Some(_) => Wake::Gone,
        })
    }
}

/// Sets an eventfd back to zero.
fn drain(eventfd: &OwnedFd) {
    let mut count = [0; 8];
    // Somebody else may have read it meanwhile; what it announced is there anyway.
    let _empty = rustix::io::read(eventfd, &mut count);
}
