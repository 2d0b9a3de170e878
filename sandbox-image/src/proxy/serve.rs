//! The thread that serves all of the proxy's clients.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sandbox_protocol::limits::{FIRST_TUNNEL, MAX_CHUNK_BYTES};

use super::Shared;
use super::client::{Client, Progress};

/// Stack size of the thread: its buffers are on the heap.
const STACK_BYTES: usize = 128 << 10;

/// When connections are accepted again after one could not be. It stays pending, so that a poll would
/// return at once for as long as there is no free descriptor.
const RETRY: Duration = Duration::from_millis(100);

/// Starts the thread.
pub fn start(listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let server = Server::new(listener, shared);
    std::thread::Builder::new()
        .name("proxy".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || server.run())
        .map(|_| ())
}

struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
    clients: Vec<Client>,
    /// No connection is waited for until then.
    retry: Option<Instant>,
    /// Where the search for a free number starts.
    next: u32,
    buffer: Vec<u8>,
}

impl Server {
    fn new(listener: TcpListener, shared: Arc<Shared>) -> Self {
        Self {
            listener,
            shared,
            clients: Vec::new(),
            retry: None,
            next: FIRST_TUNNEL,
            buffer: vec![0; MAX_CHUNK_BYTES],
        }
    }

    fn run(mut self) {
        loop {
            self.wait();
            self.shared.wake.see();
            self.accept();
            // One piece in each direction per client at a time, so that none has to wait long for
            // the others.
            let Self { clients, shared, next, buffer, .. } = &mut self;
            clients.retain_mut(|client| {
                let mut number = || free_number(shared, next);
                client.step(shared, buffer, &mut number) == Progress::GoesOn
            });
        }
    }

    /// Waits until there is work.
    fn wait(&self) {
        let deadline = self.clients.iter().filter_map(Client::deadline).chain(self.retry).min();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        _ = poll(&mut self.polled(), timeout.as_ref());
    }

    /// What there may be work for.
    fn polled(&self) -> Vec<PollFd<'_>> {
        let has_room = self.shared.lock().room(self.clients.len()) > 0;
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if has_room && self.retry.is_none() {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for client in &self.clients {
            let interest = client.interest(&self.shared);
            // A client without events to wait for is left out: otherwise an unhandled hang-up would
            // be reported forever.
            if !interest.is_empty() {
                fds.push(PollFd::from_borrowed_fd(client.socket().as_fd(), interest));
            }
        }
        fds
    }

    fn accept(&mut self) {
        self.retry = None;
        while self.shared.lock().room(self.clients.len()) > 0 {
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.clients.push(Client::new(TcpStream::from(socket))),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                // There are too many descriptors, of clients and commands.
                Err(_) => {
                    self.retry = Some(Instant::now() + RETRY);
                    return;
                }
            }
        }
    }
}

/// A number that no tunnel uses.
fn free_number(shared: &Shared, next: &mut u32) -> u32 {
    let tunnels = shared.lock();
    loop {
        let number = *next;
        *next = number.checked_add(1).unwrap_or(FIRST_TUNNEL);
        if !tunnels.0.contains_key(&number) {
            return number;
        }
    }
}

#[cfg(test)]
mod tests {
    use sandbox_protocol::FromAgent;

    use super::*;
    use crate::proxy::{FrameSender, listen};
    use crate::wake::Wake;

    struct Nobody;

    impl FrameSender for Nobody {
        fn send(&self, _: &FromAgent<'_>) {}
    }

    #[test]
    fn a_connection_that_cannot_be_accepted_is_not_waited_for_until_a_little_later() {
        let shared = Shared {
            tunnels: Default::default(),
            wake: Wake::new().unwrap(),
            sender: Arc::new(Nobody),
        };
        let mut server = Server::new(listen(0).unwrap(), Arc::new(shared));
        server.accept();
        assert_eq!((server.polled().len(), server.retry), (2, None));
        // Readable, and nothing is accepted from it, as without a free descriptor.
        rustix::net::shutdown(&server.listener, rustix::net::Shutdown::Both).unwrap();
        server.accept();
        assert_eq!((server.polled().len(), server.retry.is_some()), (1, true));
        server.listener = listen(0).unwrap();
        server.accept();
        assert_eq!((server.polled().len(), server.retry), (2, None));
    }
}
