//! The thread that serves all connections: those of the proxy's clients, and those that were dialled.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use sandbox_protocol::limits::{MAX_CHUNK_BYTES, MAX_DIALS};

use super::client::{Client, Progress};
use super::{Commands, Shared};

/// Stack size of the thread: its buffers are on the heap.
const STACK_BYTES: usize = 128 << 10;

/// When connections are accepted again after one could not be. It stays pending, so that a poll would
/// return at once for as long as there is no free descriptor.
const RETRY: Duration = Duration::from_millis(100);

/// Starts the thread.
pub fn start(listener: Option<TcpListener>, shared: Arc<Shared>) -> io::Result<()> {
    let server = Server::new(listener, shared);
    crate::threads::start("proxy", STACK_BYTES, move || server.run())
}

struct Server {
    /// For the clients of the proxy, if it may have some.
    listener: Option<TcpListener>,
    shared: Arc<Shared>,
    clients: Vec<Client>,
    /// The connections that were dialled.
    dials: Vec<Client>,
    /// No connection is waited for until then.
    retry: Option<Instant>,
    buffer: Vec<u8>,
}

impl Server {
    fn new(listener: Option<TcpListener>, shared: Arc<Shared>) -> Self {
        Self {
            listener,
            shared,
            clients: Vec::new(),
            dials: Vec::new(),
            retry: None,
            buffer: vec![0; MAX_CHUNK_BYTES],
        }
    }

    fn run(mut self) {
        loop {
            self.wait();
            self.shared.wake.see();
            self.accept();
            self.dial();
            self.step();
        }
    }

    /// Begins the connections that were asked for. There are at most [`MAX_DIALS`] that are not closed by
    /// now; those that are may still deliver their last bytes, as long as there is room.
    fn dial(&mut self) {
        let asked = std::mem::take(&mut *self.shared.dials.lock().unwrap());
        for dialling in asked {
            if self.dials.len() >= 2 * MAX_DIALS
                && let Some(oldest) = self.dials.iter().position(Client::is_leaving)
            {
                self.dials.remove(oldest);
            }
            self.dials.extend(Client::dial(dialling, &self.shared));
        }
    }

    /// One piece in each direction per client, so that none has to wait long for the others.
    fn step(&mut self) {
        let Self { clients, dials, shared, buffer, .. } = self;
        for connections in [clients, dials] {
            connections.retain_mut(|client| client.step(shared, buffer) == Progress::GoesOn);
        }
    }

    /// Waits until there is work.
    fn wait(&self) {
        let deadlines = self.clients.iter().chain(&self.dials).filter_map(Client::deadline);
        let deadline = deadlines.chain(self.retry).min();
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec::try_from(left).expect("it is seconds"));
        _ = poll(&mut self.polled(), timeout.as_ref());
    }

    /// What there may be work for.
    fn polled(&self) -> Vec<PollFd<'_>> {
        let accepts = self.accepts(*self.shared.commands.lock().unwrap());
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        if let Some(listener) = self.listener.as_ref().filter(|_| accepts && self.retry.is_none()) {
            fds.push(PollFd::new(listener, PollFlags::IN));
        }
        for client in self.clients.iter().chain(&self.dials) {
            let interest = client.interest(&self.shared);
            // A client without events to wait for is left out: otherwise an unhandled hang-up would
            // be reported forever.
            if !interest.is_empty() {
                fds.push(PollFd::from_borrowed_fd(client.socket.as_fd(), interest));
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
            let Some(listener) = &self.listener else { break };
            match accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use sandbox_protocol::limits::{FIRST_DIAL, FIRST_TUNNEL};
    use sandbox_protocol::message::{Chunk, Closed, ClosedReason, Dial};
    use sandbox_protocol::{Base64, ErrorKind, FromAgent};

    use super::*;
    use crate::outbox::{Outbox, Recorder};
    use crate::proxy::dial::Dialling;
    use crate::proxy::{Proxy, listen};

    /// What was sent to the controller.
    struct Sent(Recorder);

    impl Sent {
        fn messages(&self) -> Vec<String> {
            self.0.lines().iter().filter_map(|line| word(line)).collect()
        }
    }

    fn word(line: &str) -> Option<String> {
        Some(match FromAgent::decode(line).unwrap() {
            FromAgent::Connect(connect) => format!("connect {}", connect.host),
            FromAgent::Chunk(chunk) => format!("chunk of {} bytes", chunk.data.0.len()),
            FromAgent::Close(_) => "close".to_owned(),
            FromAgent::Credit(_) => return None,
            FromAgent::Reply { result: Ok(_), .. } => "dialled".to_owned(),
            FromAgent::Reply { result: Err(error), .. } => format!("{}: {error}", error.kind()),
            other => panic!("{other:?}"),
        })
    }

    fn server() -> (Server, Sent) {
        let recorder = Recorder::default();
        let shared = Shared::new(Arc::new(Outbox::new(recorder.clone()))).unwrap();
        (Server::new(Some(listen(0).unwrap()), Arc::new(shared)), Sent(recorder))
    }

    fn address(server: &Server) -> std::net::SocketAddr {
        server.listener.as_ref().unwrap().local_addr().unwrap()
    }

    /// A client that has sent this.
    fn client(server: &Server, words: &str) -> TcpStream {
        let mut client = TcpStream::connect(address(server)).unwrap();
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
        rustix::net::shutdown(server.listener.as_ref().unwrap(), rustix::net::Shutdown::Both)
            .unwrap();
        server.accept();
        assert_eq!((server.polled().len(), server.retry.is_some()), (1, true));
        server.listener = Some(listen(0).unwrap());
        server.accept();
        assert_eq!((server.polled().len(), server.retry), (2, None));
    }

    /// Has a port dialled.
    fn dial(server: &mut Server, dialling: Dialling) {
        server.shared.lock().open(dialling.tunnel);
        server.shared.dials.lock().unwrap().push(dialling);
        server.dial();
    }

    fn proxy(server: &Server) -> Proxy {
        Proxy { shared: server.shared.clone(), port: Some(3128) }
    }

    #[test]
    fn dialled_connection_carries_bytes_both_ways_whatever_becomes_of_commands() {
        let (mut server, sent) = server();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        dial(&mut server, Dialling::new(1, FIRST_DIAL, port));
        while sent.messages().is_empty() {
            server.step();
        }
        let (mut peer, _) = listener.accept().unwrap();
        set(&server, Commands::Ended);
        server.accept();
        let chunk = Chunk { stream: FIRST_DIAL, seq: 0, data: Base64(b"ask".into()), last: true };
        proxy(&server).take_chunk(&chunk).unwrap();
        peer.set_nonblocking(true).unwrap();
        let mut asked = Vec::new();
        // To its end: the controller sends no more.
        while let Err(error) = peer.read_to_end(&mut asked) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            server.step();
        }
        assert_eq!(asked, b"ask");
        peer.write_all(b"hello").unwrap();
        drop(peer);
        while sent.messages().len() < 3 {
            server.step();
        }
        assert_eq!(sent.messages(), ["dialled", "chunk of 5 bytes", "chunk of 0 bytes"]);
        // The controller closes it, not the agent.
        server.step();
        assert_eq!((server.dials.len(), sent.messages().len()), (1, 3));
        let (reason, message) = (ClosedReason::Done, String::new());
        proxy(&server).take_closed(Closed { tunnel: FIRST_DIAL, reason, message });
        while !server.dials.is_empty() {
            server.step();
        }
        assert_eq!(sent.messages()[3..], ["close"]);
        assert!(server.shared.lock().0.is_empty());
    }

    #[test]
    fn connection_that_the_controller_resets_does_not_wait_for_a_reader() {
        let (mut server, sent) = server();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        dial(&mut server, Dialling::new(1, FIRST_DIAL, port));
        while sent.messages().is_empty() {
            server.step();
        }
        let (mut peer, _) = listener.accept().unwrap();
        // More than its socket takes without a reader.
        let socket = &server.dials[0].socket;
        rustix::net::sockopt::set_socket_send_buffer_size(socket, 4096).unwrap();
        for seq in 0..4 {
            let data = Base64(vec![7; MAX_CHUNK_BYTES]);
            let chunk = Chunk { stream: FIRST_DIAL, seq, data, last: false };
            proxy(&server).take_chunk(&chunk).unwrap();
            server.step();
        }
        let (reason, message) = (ClosedReason::Reset, String::new());
        proxy(&server).take_closed(Closed { tunnel: FIRST_DIAL, reason, message });
        server.step();
        assert!(server.dials.is_empty() && server.shared.lock().0.is_empty());
        let read = peer.read_to_end(&mut Vec::new());
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn connection_that_is_not_made_is_answered_so_and_leaves_no_tunnel() {
        let (mut server, sent) = server();
        // A port without a listener, which no other test gets meanwhile.
        let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM);
        let held = rustix::net::socket(family, kind, None).unwrap();
        let any: std::net::SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&held, &any).unwrap();
        let held_at = rustix::net::getsockname(&held).unwrap();
        let free = std::net::SocketAddr::try_from(held_at).unwrap().port();
        dial(&mut server, Dialling::new(1, FIRST_DIAL, free));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut late = Dialling::new(2, FIRST_DIAL + 1, port);
        late.until = Instant::now();
        dial(&mut server, late);
        while !server.dials.is_empty() {
            server.step();
        }
        let mut answers = sent.messages();
        answers.sort();
        assert_eq!(
            answers,
            [
                format!("not_found: nothing listens on port {free}"),
                format!("timeout: what listens on port {port} accepts no connection"),
            ]
        );
        assert!(server.shared.lock().0.is_empty());
    }

    #[test]
    fn there_are_so_many_dialled_connections_and_none_to_the_proxy_itself() {
        let (server, _) = server();
        let dial = |tunnel, port| {
            let dialled = proxy(&server).dial(1, Dial { tunnel, port });
            dialled.map_err(|error| error.kind())
        };
        assert_eq!(dial(FIRST_DIAL, 3128), Err(ErrorKind::NotAllowed));
        for wrong in [0, FIRST_DIAL - 1, FIRST_TUNNEL, u32::MAX] {
            assert_eq!(dial(wrong, 80), Err(ErrorKind::InvalidRequest), "{wrong}");
        }
        let last = FIRST_DIAL + u32::try_from(MAX_DIALS).unwrap();
        (FIRST_DIAL..last).for_each(|tunnel| dial(tunnel, 80).unwrap());
        assert_eq!(dial(last, 80), Err(ErrorKind::Busy));
        assert_eq!(dial(FIRST_DIAL, 80), Err(ErrorKind::InvalidRequest));
        // They take no place of a command's.
        assert_eq!(server.shared.lock().room(0), sandbox_protocol::limits::MAX_TUNNELS);
    }
}
