//! One connection of the sandbox's loopback: a command's to the proxy, or one that was dialled.
//!
//! ```text
//!   Requesting ── a whole head ──▶ Connecting ── connected ──▶ Open ── closed ──▶ Leaving ──▶ gone
//!     │                            │                                             ▲
//!     └── no proper head ──────────┴── closed: why ──────────────────────────────┘
//!
//!   Dialling ── connected ──▶ Open     a dialled one has no other stages before it
//! ```
//!
//! It never blocks: [`Client::step`] does what can be done now. A client whose command has ended is
//! [left alone](Client::leave_alone): an open one continues for a while, others are dropped.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::sockopt::set_socket_linger;
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{Close, Closed, ClosedReason, Connect, Done};
use sandbox_protocol::{FromAgent, WireError};

use super::dial::Dialling;
use super::http::{self, Body, ConnectRequest, OnConnect};
use super::{Shared, Tunnel, socks};

/// How long a client may take to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client that has received everything may take to close its side too. If the proxy
/// closed at once, bytes that still arrive would make the kernel reset the connection, and the last
/// message would be lost.
const LINGER: Duration = Duration::from_secs(2);
/// How long the rest of what a command has sent may take to reach the host, and the host to close its
/// side, once the command has ended; and the rest of what a dialled connection has, once it is closed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether a client is still connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is connected.
    GoesOn,
    /// It is disconnected.
    Gone,
}

/// A client's connection.
pub struct Client {
    /// Its socket.
    pub socket: TcpStream,
    stage: Stage,
    /// Bytes received from the client and not yet sent on.
    up: Vec<u8>,
    /// Bytes to send to the client.
    down: Vec<u8>,
    /// The deadline for its request, or for closing its side.
    until: Instant,
    is_dialled: bool,
}

enum Stage {
    /// It is being connected.
    Dialling(Dialling),
    /// It sends its request.
    Requesting(Dialect),
    /// The controller was asked to connect.
    Connecting { tunnel: u32, dialect: Dialect, then: OnConnect },
    /// Bytes are copied in both directions.
    Open(Open),
    /// The last message is being sent.
    Leaving(Parting),
}

/// The protocol that the client uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// Decided by the first byte.
    Unknown,
    Http,
    /// The greeting was answered.
    Socks,
}

struct Open {
    tunnel: u32,
    /// The client has closed its side, and so has the proxy towards the controller.
    is_up_ended: bool,
    /// The host has closed its side, and so has the proxy towards the client.
    is_down_ended: bool,
    /// For a plain request.
    exchange: Option<Exchange>,
    /// When it is aborted, if its command has ended.
    flush_until: Option<Instant>,
}

/// A plain request and its response.
struct Exchange {
    /// What is still to come of the request.
    body: Body,
    /// The received part of the response's head; `None` once it has been passed on.
    answer: Option<Vec<u8>>,
}

/// How the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parting {
    /// By a normal close.
    End,
    /// The end was sent, and the client has not closed its side.
    Ended,
    /// By a reset: the client did not receive everything.
    Reset,
}

impl Client {
    /// A client that has sent nothing yet.
    pub fn new(socket: TcpStream) -> Self {
        // Pieces are written in full as they arrive.
        _ = socket.set_nodelay(true);
        let stage = Stage::Requesting(Dialect::Unknown);
        Self {
            socket,
            stage,
            up: Vec::new(),
            down: Vec::new(),
            until: Instant::now() + REQUEST_TIMEOUT,
            is_dialled: false,
        }
    }

    /// One that is being connected to a port of the sandbox; `None` if that was refused.
    pub fn dial(dialling: Dialling, shared: &Shared) -> Option<Self> {
        match dialling.socket() {
            Ok(socket) => {
                let until = dialling.until;
                let stage = Stage::Dialling(dialling);
                Some(Self { stage, until, is_dialled: true, ..Self::new(socket) })
            }
            Err(error) => {
                refuse(&dialling, error, shared);
                None
            }
        }
    }

    /// Whether nothing but its end is left to be done.
    pub const fn is_leaving(&self) -> bool {
        matches!(self.stage, Stage::Leaving(_))
    }

    /// When it times out. While its command runs, never if there is something to send to it: it may
    /// take any time to read that.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Dialling(_) | Stage::Requesting(_) | Stage::Leaving(Parting::Ended) => {
                Some(self.until)
            }
            // What it is connected to may never read.
            Stage::Leaving(_) if self.is_dialled => Some(self.until),
            Stage::Open(open) => open.flush_until,
            Stage::Connecting { .. } | Stage::Leaving(_) => None,
        }
    }

    /// Its command has ended. Only data that it has sent to a host is still forwarded, for a
    /// limited time.
    pub fn leave_alone(&mut self, shared: &Shared) -> Progress {
        self.check_answer(shared);
        if let Stage::Open(open) = &mut self.stage {
            open.flush_until.get_or_insert_with(|| Instant::now() + FLUSH_TIMEOUT);
            return Progress::GoesOn;
        }
        self.abandon(shared);
        Progress::Gone
    }

    /// The socket events that it waits for.
    pub fn interest(&self, shared: &Shared) -> PollFlags {
        let has_words = !self.down.is_empty();
        let (reads, writes) = match &self.stage {
            Stage::Dialling(_) => (false, true),
            // One message is answered before the next one is read.
            Stage::Requesting(_) => (!has_words, has_words),
            Stage::Connecting { .. } => (false, has_words),
            Stage::Leaving(parting) => (*parting == Parting::Ended, has_words),
            Stage::Open(open) => match shared.lock().0.get(&open.tunnel) {
                Some(tunnel) => (
                    !open.is_up_ended && self.up.is_empty() && tunnel.outgoing.capacity() > 0,
                    // Also states that can continue without any event.
                    has_words
                        || (!self.up.is_empty() && tunnel.outgoing.capacity() > 0)
                        || !tunnel.arrived.is_empty()
                        || tunnel.closed.is_some()
                        || (tunnel.is_drained() && !open.is_down_ended),
                ),
                None => (false, has_words),
            },
        };
        let mut interest = PollFlags::empty();
        interest.set(PollFlags::IN, reads);
        interest.set(PollFlags::OUT, writes);
        interest
    }

    /// Does what can be done now.
    pub fn step(&mut self, shared: &Shared, buffer: &mut [u8]) -> Progress {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            self.abandon(shared);
            return Progress::Gone;
        }
        let stepped = self.advance(shared, buffer).and_then(|()| self.write());
        match stepped {
            Ok(()) => self.after(shared),
            Err(_) => {
                self.abandon(shared);
                Progress::Gone
            }
        }
    }

    fn advance(&mut self, shared: &Shared, buffer: &mut [u8]) -> io::Result<()> {
        match self.stage {
            Stage::Dialling(_) => self.connect(shared),
            Stage::Requesting(_) => self.request_tunnel(shared, buffer),
            Stage::Connecting { .. } => {
                self.check_answer(shared);
                Ok(())
            }
            Stage::Open(_) => {
                self.send(shared, buffer)?;
                self.receive(shared);
                Ok(())
            }
            Stage::Leaving(Parting::Ended) => match self.read(buffer)? {
                Some([]) => Err(io::ErrorKind::UnexpectedEof.into()),
                Some(_) | None => Ok(()),
            },
            Stage::Leaving(_) => Ok(()),
        }
    }

    /// Goes on to connect, and answers the request for it.
    fn connect(&mut self, shared: &Shared) -> io::Result<()> {
        let Stage::Dialling(dialling) = &mut self.stage else { return Ok(()) };
        match dialling.advance(&mut self.socket) {
            Ok(false) => Ok(()),
            Ok(true) => {
                let (id, tunnel) = (dialling.id, dialling.tunnel);
                // It may be another socket than at first.
                _ = self.socket.set_nodelay(true);
                if let Some(tunnel) = shared.lock().0.get_mut(&tunnel) {
                    tunnel.is_connected = true;
                }
                self.stage = Stage::Open(Open::new(tunnel, None));
                shared.outbox.answer_kept(id, Ok(Done {}), || ());
                Ok(())
            }
            Err(error) => {
                refuse(dialling, error, shared);
                self.stage = Stage::Leaving(Parting::Reset);
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// Reads what is available; `None` if nothing is.
    fn read<'a>(&mut self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        match self.socket.read(buffer) {
            Ok(count) => Ok(Some(&buffer[..count])),
            Err(error) if is_not_now(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        if self.down.is_empty() {
            return Ok(());
        }
        match self.socket.write(&self.down) {
            Ok(count) => {
                self.down.drain(..count);
                Ok(())
            }
            Err(error) if is_not_now(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Reads the client's request, and asks the controller to connect.
    fn request_tunnel(&mut self, shared: &Shared, buffer: &mut [u8]) -> io::Result<()> {
        if !self.down.is_empty() {
            return Ok(());
        }
        // Up to a head's length more than the limit of a head: the surplus is bounded.
        let most = buffer.len().min(http::MAX_HEAD);
        match self.read(&mut buffer[..most])? {
            None => return Ok(()),
            Some([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(bytes) => self.up.extend_from_slice(bytes),
        }
        let Stage::Requesting(mut dialect) = self.stage else { return Ok(()) };
        if dialect == Dialect::Unknown {
            if self.up.first() == Some(&socks::VERSION) {
                let Some((length, is_open)) = socks::read_greeting(&self.up) else { return Ok(()) };
                self.up.drain(..length);
                if !is_open {
                    self.leave(&socks::NO_METHOD, Parting::End);
                    return Ok(());
                }
                self.down.extend(socks::NO_AUTHENTICATION);
                dialect = Dialect::Socks;
            } else {
                dialect = Dialect::Http;
            }
            self.stage = Stage::Requesting(dialect);
        }
        let read = if dialect == Dialect::Socks {
            socks::read_request(&self.up).map_err(|reply| reply.bytes().to_vec())
        } else {
            http::read_request(&self.up).map_err(|bad| http::answer(bad.status, bad.why))
        };
        let ConnectRequest { host, port, then, length } = match read {
            Ok(None) => return Ok(()),
            Ok(Some(request)) => request,
            Err(words) => {
                self.leave(&words, Parting::End);
                return Ok(());
            }
        };
        self.up.drain(..length);
        let tunnel = shared.lock().open_any();
        self.stage = Stage::Connecting { tunnel, dialect, then };
        shared.outbox.notify(&FromAgent::Connect(Connect { tunnel, host, port }));
        Ok(())
    }

    /// Checks for the controller's answer to the request.
    fn check_answer(&mut self, shared: &Shared) {
        let Stage::Connecting { tunnel, dialect, then } = &mut self.stage else { return };
        let (tunnel, dialect) = (*tunnel, *dialect);
        let (is_connected, closed) = {
            let mut tunnels = shared.lock();
            let Some(shared) = tunnels.0.get_mut(&tunnel) else { return };
            // A tunnel that closed after it was connected is handled in the state Open.
            let closed = if shared.is_connected { None } else { shared.closed.take() };
            if closed.is_some() {
                tunnels.0.remove(&tunnel);
            }
            (closed.is_none() && tunnels.0[&tunnel].is_connected, closed)
        };
        if let Some(Closed { reason, message, .. }) = closed {
            shared.outbox.notify(&FromAgent::Close(Close { tunnel }));
            let words = match dialect {
                Dialect::Socks => socks::Reply::to(reason).bytes().to_vec(),
                Dialect::Http | Dialect::Unknown => http::answer(status(reason), &message),
            };
            return self.leave(&words, Parting::End);
        }
        if !is_connected {
            return;
        }
        let exchange = match std::mem::replace(then, OnConnect::Tunnel) {
            OnConnect::Tunnel => {
                match dialect {
                    Dialect::Socks => self.down.extend(socks::Reply::Succeeded.bytes()),
                    Dialect::Http | Dialect::Unknown => self.down.extend(http::ESTABLISHED),
                }
                None
            }
            OnConnect::Forward { mut head, mut body } => {
                let early = std::mem::take(&mut self.up);
                match body.take(&early) {
                    Ok(count) => head.extend_from_slice(&early[..count]),
                    Err(bad) => {
                        self.give_up(shared, tunnel);
                        return self.leave(&http::answer(bad.status, bad.why), Parting::End);
                    }
                }
                self.up = head;
                Some(Exchange { body, answer: Some(Vec::new()) })
            }
        };
        self.stage = Stage::Open(Open::new(tunnel, exchange));
    }

    /// Copies from the client to the controller.
    fn send(&mut self, shared: &Shared, buffer: &mut [u8]) -> io::Result<()> {
        let Stage::Open(open) = &mut self.stage else { return Ok(()) };
        if open.is_up_ended {
            return Ok(());
        }
        let tunnel = open.tunnel;
        let capacity = shared.lock().0.get(&tunnel).map_or(0, |tunnel| tunnel.outgoing.capacity());
        if capacity == 0 {
            return Ok(());
        }
        let mut is_last = false;
        if self.up.is_empty() {
            let most = buffer.len().min(capacity);
            match self.socket.read(&mut buffer[..most]) {
                Ok(0) => is_last = true,
                Ok(count) => self.up.extend_from_slice(&buffer[..count]),
                Err(error) if is_not_now(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            if let Some(exchange) = &mut open.exchange {
                // Bytes after the body are dropped.
                let count = exchange.body.take(&self.up).map_err(|_| io::ErrorKind::InvalidData)?;
                self.up.truncate(count);
            }
        }
        open.is_up_ended = is_last;
        // Everything that there is credit for: the rest waits for more credit, which wakes.
        while !self.up.is_empty() || is_last {
            let chunk = {
                let mut tunnels = shared.lock();
                let tunnel = tunnels.0.get_mut(&tunnel).filter(|tunnel| tunnel.closed.is_none());
                let Some(tunnel) = tunnel else { return Ok(()) };
                let size = self.up.len().min(tunnel.outgoing.capacity());
                if size == 0 && !is_last {
                    return Ok(());
                }
                let rest = self.up.split_off(size);
                tunnel.outgoing.chunk(std::mem::replace(&mut self.up, rest), is_last)
            };
            shared.outbox.notify(&FromAgent::Chunk(chunk.map_err(io::Error::other)?));
            is_last = false;
        }
        Ok(())
    }

    /// Copies from the controller to the client.
    fn receive(&mut self, shared: &Shared) {
        let Stage::Open(open) = &mut self.stage else { return };
        let tunnel = open.tunnel;
        let (bytes, credit, closed, is_ended) = {
            let mut tunnels = shared.lock();
            let Some(tunnel) = tunnels.0.get_mut(&tunnel) else { return };
            // All bytes of a tunnel that has ended: its number must become free.
            let most = match (&tunnel.closed, self.down.is_empty()) {
                (Some(_), _) => usize::MAX,
                (None, true) => MAX_CHUNK_BYTES,
                (None, false) => 0,
            };
            let (bytes, credit) = tunnel.take(most);
            (bytes, credit, tunnel.closed.take(), tunnel.is_drained())
        };
        if let Some(credit) = credit {
            shared.outbox.notify(&FromAgent::Credit(credit));
        }
        match &mut open.exchange {
            Some(exchange) => {
                exchange.receive(&bytes, is_ended || closed.is_some(), &mut self.down)
            }
            None => self.down.extend_from_slice(&bytes),
        }
        if let Some(closed) = closed {
            shared.lock().0.remove(&tunnel);
            shared.outbox.notify(&FromAgent::Close(Close { tunnel }));
            let is_whole = is_ended || closed.reason == ClosedReason::Done;
            self.leave(&[], if is_whole { Parting::End } else { Parting::Reset });
        }
    }

    /// Closes directions that have ended, once everything is written.
    fn after(&mut self, shared: &Shared) -> Progress {
        if !self.down.is_empty() {
            return Progress::GoesOn;
        }
        match &mut self.stage {
            Stage::Open(open) if !open.is_down_ended => {
                let tunnels = shared.lock();
                if tunnels.0.get(&open.tunnel).is_some_and(Tunnel::is_drained) {
                    open.is_down_ended = true;
                    _ = self.socket.shutdown(std::net::Shutdown::Write);
                }
                Progress::GoesOn
            }
            Stage::Leaving(parting @ Parting::End) => {
                *parting = Parting::Ended;
                self.until = Instant::now() + LINGER;
                _ = self.socket.shutdown(std::net::Shutdown::Write);
                Progress::GoesOn
            }
            Stage::Leaving(Parting::Ended) => Progress::GoesOn,
            Stage::Leaving(Parting::Reset) => {
                _ = set_socket_linger(&self.socket, Some(Duration::ZERO));
                Progress::Gone
            }
            Stage::Dialling(_)
            | Stage::Requesting(_)
            | Stage::Connecting { .. }
            | Stage::Open(_) => Progress::GoesOn,
        }
    }

    /// Sends this last message.
    fn leave(&mut self, words: &[u8], parting: Parting) {
        self.down.extend_from_slice(words);
        self.up = Vec::new();
        if self.is_dialled {
            self.until = Instant::now() + FLUSH_TIMEOUT;
            if parting == Parting::Reset {
                // Its other end is gone, and hears no more.
                self.down = Vec::new();
            }
        }
        self.stage = Stage::Leaving(parting);
    }

    /// The client is gone, sent an invalid request, or has had its time.
    fn abandon(&self, shared: &Shared) {
        match &self.stage {
            Stage::Dialling(dialling) => refuse(dialling, dialling.late(), shared),
            Stage::Connecting { tunnel, .. } | Stage::Open(Open { tunnel, .. }) => {
                self.give_up(shared, *tunnel);
            }
            Stage::Requesting(_) | Stage::Leaving(_) => return,
        }
        _ = set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// Sends our last message for a tunnel. Its number stays in use until the controller has sent
    /// its own.
    fn give_up(&self, shared: &Shared, number: u32) {
        {
            let mut tunnels = shared.lock();
            let Some(tunnel) = tunnels.0.get_mut(&number) else { return };
            tunnel.is_left = true;
            tunnel.arrived = Vec::new();
            if tunnel.closed.is_some() {
                tunnels.0.remove(&number);
            }
        }
        shared.outbox.notify(&FromAgent::Close(Close { tunnel: number }));
    }
}

impl Open {
    const fn new(tunnel: u32, exchange: Option<Exchange>) -> Self {
        Self { tunnel, is_up_ended: false, is_down_ended: false, exchange, flush_until: None }
    }
}

/// Answers that a connection is not made.
fn refuse(dialling: &Dialling, error: WireError, shared: &Shared) {
    shared.lock().0.remove(&dialling.tunnel);
    shared.outbox.answer_kept::<Done>(dialling.id, Err(error), || ());
}

impl Exchange {
    /// Consumes a piece of the response, and returns what the client gets of it.
    fn receive(&mut self, bytes: &[u8], is_all: bool, down: &mut Vec<u8>) {
        let Some(mut head) = self.answer.take() else { return down.extend_from_slice(bytes) };
        head.extend_from_slice(bytes);
        loop {
            match http::read_response_head(&head) {
                Ok(Some(answer)) => {
                    down.extend(answer.head);
                    head.drain(..answer.length);
                    if !answer.is_interim {
                        return down.extend(head);
                    }
                }
                Ok(None) if !is_all => {
                    self.answer = Some(head);
                    return;
                }
                // Not a valid head: pass it on, the client may understand it.
                Ok(None) | Err(()) => return down.extend(head),
            }
        }
    }
}

/// The status for a failed connection.
const fn status(reason: ClosedReason) -> u16 {
    match reason {
        ClosedReason::Refused => 403,
        ClosedReason::Timeout => 504,
        ClosedReason::Limit => 503,
        ClosedReason::Unreachable | ClosedReason::Reset | ClosedReason::Done => 502,
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
