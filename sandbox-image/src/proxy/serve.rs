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

use super::client::{Client, Progress};
use super::{Commands, Shared};

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
            self.step();
        }
    }

    /// One piece in each direction per client, so that none has to wait long for the others.
    fn step(&mut self) {
        let Self { clients, shared, next, buffer, .. } = self;
        clients.retain_mut(|client| {
            let mut number = || free_number(shared, next);
            client.step(shared, buffer, &mut number) == Progress::GoesOn
        });
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
        let accepts = self.accepts(*self.shared.commands.lock().unwrap());
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if accepts && self.retry.is_none() {
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

    /// Accepts the clients that have connected, and drops those of commands that have ended.
    fn accept(&mut self) {
        self.retry = None;
        let shared = self.shared.clone();
        // Held: none of a command that starts meanwhile is dropped.
        let mut commands = shared.commands.lock().unwrap();
        if *commands == Commands::Ended {
            self.clients.retain_mut(|client| client.leave_alone(&shared) == Progress::GoesOn);
        }
        while self.accepts(*commands) {
            match accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) if *commands == Commands::Running => {
                    self.clients.push(Client::new(TcpStream::from(socket)));
                }
                Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => break,
                // There are too many descriptors, of clients and commands.
                Err(_) => {
                    self.retry = Some(Instant::now() + RETRY);
                    break;
                }
            }
        }
        if *commands == Commands::Ended {
            *commands = Commands::None;
            shared.dropped.notify_all();
        }
    }

    /// Whether connections are accepted now. One that is dropped at once does not count.
    fn accepts(&self, commands: Commands) -> bool {
        commands != Commands::Running || self.shared.lock().room(self.clients.len()) > 0
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
    use std::io::{Read, Write};
    use std::sync::Mutex;

    use sandbox_protocol::FromAgent;

    use super::*;
    use crate::proxy::{FrameSender, listen};

    /// What was sent to the controller.
    #[derive(Default)]
    struct Sent(Mutex<Vec<String>>);

    impl Sent {
        fn messages(&self) -> Vec<String> {
            self.0.lock().unwrap().clone()
        }
    }

    impl FrameSender for Sent {
        fn send(&self, message: &FromAgent<'_>) {
            let word = match message {
                FromAgent::Connect(connect) => format!("connect {}", connect.host),
                FromAgent::Chunk(chunk) => format!("chunk of {} bytes", chunk.data.0.len()),
                FromAgent::Close(_) => "close".to_owned(),
                other => panic!("{other:?}"),
            };
            self.0.lock().unwrap().push(word);
        }
    }

    fn server() -> (Server, Arc<Sent>) {
        let sent = Arc::new(Sent::default());
        let shared = Shared::new(sent.clone()).unwrap();
        (Server::new(listen(0).unwrap(), Arc::new(shared)), sent)
    }

    /// A client that has sent this.
    fn client(server: &Server, words: &str) -> TcpStream {
        let mut client = TcpStream::connect(server.listener.local_addr().unwrap()).unwrap();
        client.write_all(words.as_bytes()).unwrap();
        client
    }

    /// Whether its connection is closed, in whichever way.
    fn is_closed(mut client: &TcpStream) -> bool {
        client.set_nonblocking(true).unwrap();
        !matches!(client.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    fn set(server: &Server, commands: Commands) {
        *server.shared.commands.lock().unwrap() = commands;
    }

    #[test]
    fn last_command_leaves_no_client_without_a_connection_and_none_comes_later() {
        const CONNECT: &str = "CONNECT ok.example:443 HTTP/1.1\r\n\r\n";
        let (mut server, sent) = server();
        set(&server, Commands::Running);
        let silent = client(&server, "");
        let asking = client(&server, CONNECT);
        while sent.messages().is_empty() {
            server.accept();
            server.step();
        }
        assert_eq!(server.clients.len(), 2);
        let queued = client(&server, CONNECT);
        set(&server, Commands::Ended);
        server.accept();
        assert!(*server.shared.commands.lock().unwrap() == Commands::None);
        let late = client(&server, CONNECT);
        for client in [silent, asking, queued, late] {
            while !is_closed(&client) {
                server.accept();
                server.step();
            }
        }
        assert_eq!(
            (server.clients.len(), sent.messages()),
            (0, vec!["connect ok.example".to_owned(), "close".to_owned()])
        );
        // The next command's are served.
        set(&server, Commands::Running);
        let _next = client(&server, "");
        while server.clients.is_empty() {
            server.accept();
        }
    }

    #[test]
    fn open_client_forwards_what_its_command_has_sent_until_a_deadline() {
        let (mut server, sent) = server();
        set(&server, Commands::Running);
        let mut open = client(&server, "CONNECT ok.example:443 HTTP/1.1\r\n\r\n");
        while sent.messages().is_empty() {
            server.accept();
            server.step();
        }
        server.shared.lock().0.get_mut(&FIRST_TUNNEL).unwrap().is_connected = true;
        server.step();
        assert_eq!(server.clients[0].deadline(), None);
        assert!(open.read(&mut [0; 100]).unwrap() > 0, "the answer, which a close would reset");
        open.write_all(b"hello").unwrap();
        drop(open);
        set(&server, Commands::Ended);
        server.accept();
        let deadline = server.clients[0].deadline();
        assert!(deadline.is_some());
        while sent.messages().len() < 3 {
            server.step();
        }
        assert_eq!(sent.messages()[1..], ["chunk of 5 bytes", "chunk of 0 bytes"]);
        // The end of another command does not extend its time.
        set(&server, Commands::Ended);
        server.accept();
        assert_eq!(server.clients[0].deadline(), deadline);
    }

    #[test]
    fn a_connection_that_cannot_be_accepted_is_not_waited_for_until_a_little_later() {
        let (mut server, _) = server();
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
