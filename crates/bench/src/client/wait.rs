//! One place to wait for any number of clients.

use std::io;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Client;

/// What ended a wait.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Wake {
    /// There may be answers.
    Answers,
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
/// Panics at no client at all and at more than 16.
pub fn wait_for<C>(clients: &mut [C], timeout: Duration) -> io::Result<(Wake, usize)>
where
    C: AsMut<Client> + AsRef<Client>,
{
    const CLIENTS_MAX: usize = 16;
    assert!(clients.len() <= CLIENTS_MAX, "one thread drives at most {CLIENTS_MAX} clients");
    for (index, client) in clients.iter_mut().enumerate() {
        if client.as_mut().arm() {
            return Ok((Wake::Answers, index));
        }
    }
    let stand_in = clients[0].as_ref().channel.socket();
    let mut fds: [PollFd<'_>; 2 * CLIENTS_MAX] =
        std::array::from_fn(|_slot| PollFd::from_borrowed_fd(stand_in, PollFlags::empty()));
    for (pair, client) in fds.chunks_mut(2).zip(clients.iter()) {
        let client = client.as_ref();
        pair[0] = PollFd::new(&client.call, PollFlags::IN);
        pair[1] = PollFd::from_borrowed_fd(client.channel.socket(), PollFlags::IN);
    }
    let timeout = Timespec::try_from(timeout).expect("timeouts are short");
    match poll(&mut fds[..2 * clients.len()], Some(&timeout)) {
        Ok(0) => return Ok((Wake::Timeout, 0)),
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok((Wake::Answers, 0)),
        Err(error) => return Err(error.into()),
    }
    let mut gone = None;
    for (index, pair) in fds.chunks(2).take(clients.len()).enumerate() {
        if !pair[0].revents().is_empty() {
            let mut count = [0; 8];
            // Somebody else may have read it meanwhile; the answers are in the ring anyway.
            let _empty = rustix::io::read(&clients[index].as_ref().call, &mut count);
            return Ok((Wake::Answers, index));
        }
        if !pair[1].revents().is_empty() {
            gone = gone.or(Some(index));
        }
    }
    Ok(gone.map_or((Wake::Timeout, 0), |index| (Wake::Gone, index)))
}
