//! One program's connection to the proxy.
//!
//! ```text
//!   Asking ── a whole head ──▶ Connecting ── connected ──▶ Open ── closed ──▶ Leaving ──▶ gone
//!     │                            │                                             ▲
//!     └── no proper head ──────────┴── closed: why ──────────────────────────────┘
//! ```
//!
//! It never waits: [`Client::step`] does what can be done now.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::net::sockopt::set_socket_linger;
use sandbox_protocol::FromAgent;
use sandbox_protocol::limits::MAX_CHUNK_BYTES;
use sandbox_protocol::message::{Close, Closed, ClosedReason, Connect};

use super::http::{self, Body, OnConnect};
use super::{Shared, Tunnel, socks};

/// How long a program may take to say what it wants.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a program that has all our words may take to end its side too. Closed at once, what it still
/// sends would have the kernel reset the connection, and our last words be lost.
const LINGER: Duration = Duration::from_secs(2);

/// Whether a client is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is.
    GoesOn,
    /// It is gone.
    Gone,
}

/// A program's connection.
pub struct Client {
    socket: TcpStream,
    stage: Stage,
    /// What came of the program and is not sent on.
    up: Vec<u8>,
    /// What the program is to get.
    down: Vec<u8>,
    /// Until when it may ask, or end its side.
    until: Instant,
}

enum Stage {
    /// It says what it wants.
    Asking(Dialect),
    /// The controller was asked.
    Connecting { tunnel: u32, dialect: Dialect, then: OnConnect },
    /// Bytes come and go.
    Open(Open),
    /// Our last words are on their way.
    Leaving(Parting),
}

/// How it speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dialect {
    /// The first byte will tell.
    Unknown,
    Http,
    /// It was greeted.
    Socks,
}

struct Open {
    tunnel: u32,
    /// The program has ended its side, and so have we towards the controller.
    is_up_ended: bool,
    /// The host has ended its side, and so have we towards the program.
    is_down_ended: bool,
    /// Of a plain request.
    exchange: Option<Exchange>,
}

/// A plain request and its answer.
struct Exchange {
    /// What is to come of the request.
    body: Body,
    /// The answer's head as far as it has come; `None` once it is through.
    answer: Option<Vec<u8>>,
}

/// How it is left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Parting {
    /// By an end.
    End,
    /// It was told the end, and has not ended its own side.
    Ended,
    /// By a reset: what the program got is not all there was.
    Reset,
}

impl Client {
    /// One that has said nothing yet.
    pub fn new(socket: TcpStream) -> Self {
        // Pieces are written whole as they come.
        _ = socket.set_nodelay(true);
        let stage = Stage::Asking(Dialect::Unknown);
        Self {
            socket,
            stage,
            up: Vec::new(),
            down: Vec::new(),
            until: Instant::now() + REQUEST_TIMEOUT,
        }
    }

    /// Its socket.
    pub const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// When it is given up. Never while it has something to get: it may take its time for that.
    pub fn deadline(&self) -> Option<Instant> {
        let has_one = matches!(self.stage, Stage::Asking(_) | Stage::Leaving(Parting::Ended));
        has_one.then_some(self.until)
    }

    /// What of its socket it waits for.
    pub fn interest(&self, shared: &Shared) -> PollFlags {
        let has_words = !self.down.is_empty();
        let (reads, writes) = match &self.stage {
            // One word is answered before the next one is read.
            Stage::Asking(_) => (!has_words, has_words),
            Stage::Connecting { .. } => (false, has_words),
            Stage::Leaving(parting) => (*parting == Parting::Ended, has_words),
            Stage::Open(open) => match shared.lock().0.get(&open.tunnel) {
                Some(tunnel) => (
                    !open.is_up_ended && self.up.is_empty() && tunnel.outgoing.capacity() > 0,
                    // Also what can go on without a word from anybody.
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
    pub fn step(
        &mut self,
        shared: &Shared,
        buffer: &mut [u8],
        number: &mut dyn FnMut() -> u32,
    ) -> Progress {
        if self.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            return Progress::Gone;
        }
        let stepped = self.advance(shared, buffer, number).and_then(|()| self.write());
        match stepped {
            Ok(()) => self.after(shared),
            Err(_) => {
                self.abandon(shared);
                Progress::Gone
            }
        }
    }

    fn advance(
        &mut self,
        shared: &Shared,
        buffer: &mut [u8],
        number: &mut dyn FnMut() -> u32,
    ) -> io::Result<()> {
        match self.stage {
            Stage::Asking(_) => self.ask(shared, buffer, number),
            Stage::Connecting { .. } => {
                self.hear(shared);
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

    /// Reads what is there; `None` where nothing is.
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

    /// Reads what the program wants, and asks the controller for it.
    fn ask(
        &mut self,
        shared: &Shared,
        buffer: &mut [u8],
        number: &mut dyn FnMut() -> u32,
    ) -> io::Result<()> {
        if !self.down.is_empty() {
            return Ok(());
        }
        // A head's length more than what a head may have: a bounded surplus.
        let most = buffer.len().min(http::MAX_HEAD);
        match self.read(&mut buffer[..most])? {
            None => return Ok(()),
            Some([]) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Some(bytes) => self.up.extend_from_slice(bytes),
        }
        let Stage::Asking(mut dialect) = self.stage else { return Ok(()) };
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
            self.stage = Stage::Asking(dialect);
        }
        let (host, port, length, then) = if dialect == Dialect::Socks {
            match socks::read_request(&self.up) {
                Ok(None) => return Ok(()),
                Ok(Some(socks::ConnectRequest { host, port, length })) => {
                    (host, port, length, OnConnect::Tunnel)
                }
                Err(reply) => {
                    self.leave(&reply.bytes(), Parting::End);
                    return Ok(());
                }
            }
        } else {
            match http::read_request(&self.up) {
                Ok(None) => return Ok(()),
                Ok(Some(http::ConnectRequest { host, port, then, length })) => {
                    (host, port, length, then)
                }
                Err(bad) => {
                    self.leave(&http::answer(bad.status, bad.why), Parting::End);
                    return Ok(());
                }
            }
        };
        self.up.drain(..length);
        let tunnel = number();
        shared.lock().open(tunnel);
        self.stage = Stage::Connecting { tunnel, dialect, then };
        shared.sender.send(&FromAgent::Connect(Connect { tunnel, host, port }));
        Ok(())
    }

    /// Looks what the controller says to the wish.
    fn hear(&mut self, shared: &Shared) {
        let Stage::Connecting { tunnel, dialect, then } = &mut self.stage else { return };
        let (tunnel, dialect) = (*tunnel, *dialect);
        let (is_connected, closed) = {
            let mut tunnels = shared.lock();
            let Some(shared) = tunnels.0.get_mut(&tunnel) else { return };
            // What closed after it had been connected is Open's business.
            let closed = if shared.is_connected { None } else { shared.closed.take() };
            if closed.is_some() {
                tunnels.0.remove(&tunnel);
            }
            (closed.is_none() && tunnels.0[&tunnel].is_connected, closed)
        };
        if let Some(Closed { reason, message, .. }) = closed {
            shared.sender.send(&FromAgent::Close(Close { tunnel }));
            match dialect {
                Dialect::Socks => self.leave(&socks::Reply::to(reason).bytes(), Parting::End),
                Dialect::Http | Dialect::Unknown => {
                    self.leave(&http::answer(status(reason), &message), Parting::End);
                }
            }
            return;
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
        self.stage =
            Stage::Open(Open { tunnel, is_up_ended: false, is_down_ended: false, exchange });
    }

    /// From the program to the controller.
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
                // What comes behind the body is for nobody.
                let count = exchange.body.take(&self.up).map_err(|_| io::ErrorKind::InvalidData)?;
                self.up.truncate(count);
            }
        }
        open.is_up_ended = is_last;
        // All of it that there is credit for: what stays waits for more, which wakes.
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
            shared.sender.send(&FromAgent::Chunk(chunk.map_err(io::Error::other)?));
            is_last = false;
        }
        Ok(())
    }

    /// From the controller to the program.
    fn receive(&mut self, shared: &Shared) {
        let Stage::Open(open) = &mut self.stage else { return };
        let tunnel = open.tunnel;
        let (bytes, credit, closed, is_ended) = {
            let mut tunnels = shared.lock();
            let Some(tunnel) = tunnels.0.get_mut(&tunnel) else { return };
            // Of a tunnel that is over there is all of it: its number is to be free.
            let most = match (&tunnel.closed, self.down.is_empty()) {
                (Some(_), _) => usize::MAX,
                (None, true) => MAX_CHUNK_BYTES,
                (None, false) => 0,
            };
            let (bytes, credit) = tunnel.take(most);
            (bytes, credit, tunnel.closed.take(), tunnel.is_drained())
        };
        if let Some(credit) = credit {
            shared.sender.send(&FromAgent::Credit(credit));
        }
        match &mut open.exchange {
            Some(exchange) => {
                exchange.receive(&bytes, is_ended || closed.is_some(), &mut self.down)
            }
            None => self.down.extend_from_slice(&bytes),
        }
        if let Some(closed) = closed {
            shared.lock().0.remove(&tunnel);
            shared.sender.send(&FromAgent::Close(Close { tunnel }));
            let is_whole = is_ended || closed.reason == ClosedReason::Done;
            self.leave(&[], if is_whole { Parting::End } else { Parting::Reset });
        }
    }

    /// Ends what has come to its end, once all is written.
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
            Stage::Asking(_) | Stage::Connecting { .. } | Stage::Open(_) => Progress::GoesOn,
        }
    }

    /// Says these last words.
    fn leave(&mut self, words: &[u8], parting: Parting) {
        self.down.extend_from_slice(words);
        self.up = Vec::new();
        self.stage = Stage::Leaving(parting);
    }

    /// The program is gone, or spoke nonsense.
    fn abandon(&self, shared: &Shared) {
        match &self.stage {
            Stage::Connecting { tunnel, .. } | Stage::Open(Open { tunnel, .. }) => {
                self.give_up(shared, *tunnel);
            }
            Stage::Asking(_) | Stage::Leaving(_) => return,
        }
        _ = set_socket_linger(&self.socket, Some(Duration::ZERO));
    }

    /// Says our last word on a tunnel. It keeps its number until the controller has said its own.
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
        shared.sender.send(&FromAgent::Close(Close { tunnel: number }));
    }
}

impl Exchange {
    /// Takes a piece of the answer, and gives what the program gets of it.
    fn receive(&mut self, bytes: &[u8], is_all: bool, down: &mut Vec<u8>) {
        let Some(mut head) = self.answer.take() else { return down.extend_from_slice(bytes) };
        head.extend_from_slice(bytes);
        loop {
            match http::read_answer(&head) {
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
                // No head that anybody could read: the program may know what it is.
                Ok(None) | Err(()) => return down.extend(head),
            }
        }
    }
}

/// The status that tells why there is no connection.
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
