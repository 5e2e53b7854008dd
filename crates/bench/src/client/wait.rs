//! One place to wait for any number of clients.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;

/// Most clients that one thread waits for.
const CLIENTS_MAX: usize = 64;
/// Up to so many without allocating.
const CLIENTS_FEW: usize = 16;
/// Descriptors of each.
const FDS: usize = 3;

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

/// Sleeps until one of `clients` has answers or lost its server, and says which by its index.
///
/// # Errors
///
/// What poll reports.
///
/// # Panics
///
/// Panics at no client at all and at more than 64.
pub fn wait_for<C>(clients: &mut [C], timeout: Duration) -> io::Result<(Wake, usize)>
where
    C: AsMut<Client> + AsRef<Client>,
{
    assert!(clients.len() <= CLIENTS_MAX, "one thread drives at most {CLIENTS_MAX} clients");
    for (index, client) in clients.iter_mut().enumerate() {
        if client.as_mut().arm() {
            return Ok((Wake::Answers, index));
        }
    }
    let stand_in = clients[0].as_ref().channel.socket();
    let empty = || PollFd::from_borrowed_fd(stand_in, PollFlags::empty());
    let (mut few, mut many): ([PollFd<'_>; FDS * CLIENTS_FEW], Vec<PollFd<'_>>);
    let fds = if clients.len() <= CLIENTS_FEW {
        few = std::array::from_fn(|_slot| empty());
        &mut few[..FDS * clients.len()]
    } else {
        many = (0..FDS * clients.len()).map(|_slot| empty()).collect();
        &mut many[..]
    };
    for (three, client) in fds.chunks_mut(FDS).zip(clients.iter()) {
        let client = client.as_ref();
        three[0] = PollFd::new(&client.call, PollFlags::IN);
        three[1] = PollFd::new(&client.err, PollFlags::IN);
        three[2] = PollFd::from_borrowed_fd(client.channel.socket(), PollFlags::IN);
    }
    let timeout = Timespec::try_from(timeout).expect("timeouts are short");
    match poll(fds, Some(&timeout)) {
        Ok(0) => return Ok((Wake::Timeout, 0)),
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((Wake::Answers, 0)),
        Err(error) => return Err(error.into()),
    }
    let mut other = None;
    for (index, three) in fds.chunks(FDS).enumerate() {
        if !three[0].revents().is_empty() {
            drain(&clients[index].as_ref().call);
            return Ok((Wake::Answers, index));
        }
        if !three[1].revents().is_empty() {
            drain(&clients[index].as_ref().err);
            return Ok((Wake::Broken, index));
        }
        if !three[2].revents().is_empty() {
            other = other.or(Some((Wake::Gone, index)));
        }
    }
    Ok(other.unwrap_or((Wake::Timeout, 0)))
}

/// Sets an eventfd back to zero.
fn drain(eventfd: &OwnedFd) {
    let mut count = [0; 8];
    // Somebody else may have read it meanwhile; what it announced is there anyway.
    let _empty = rustix::io::read(eventfd, &mut count);
}
