//! The thread that serves all of the proxy's clients.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sandbox_protocol::limits::{FIRST_TUNNEL, MAX_CHUNK_BYTES};

use super::Shared;
use super::client::{Client, Progress};

/// Stack size of the thread: its buffers are on the heap.
const STACK_BYTES: usize = 128 << 10;

/// Starts the thread.
pub fn start(listener: TcpListener, shared: Arc<Shared>) -> io::Result<()> {
    let server = Server {
        listener,
        shared,
        clients: Vec::new(),
        next: FIRST_TUNNEL,
        buffer: vec![0; MAX_CHUNK_BYTES],
    };
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
    /// Where the search for a free number starts.
    next: u32,
    buffer: Vec<u8>,
}

impl Server {
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
        let has_room = self.shared.lock().room(self.clients.len()) > 0;
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if has_room {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        let mut deadline: Option<Instant> = None;
        for client in &self.clients {
            let interest = client.interest(&self.shared);
            // A client without events to wait for is left out: otherwise an unhandled hang-up would
            // be reported forever.
            if !interest.is_empty() {
                fds.push(PollFd::from_borrowed_fd(client.socket().as_fd(), interest));
            }
            deadline = deadline.into_iter().chain(client.deadline()).min();
        }
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        _ = poll(&mut fds, timeout.as_ref());
    }

    fn accept(&mut self) {
        while self.shared.lock().room(self.clients.len()) > 0 {
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.clients.push(Client::new(TcpStream::from(socket))),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                // None is pending, or there are too many descriptors: the next round tries again.
                Err(_) => return,
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
