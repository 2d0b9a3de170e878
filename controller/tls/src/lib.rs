//! Checks that the server name in a connection's TLS handshake is the host that the command
//! requested.
//!
//! A [`Guard`] is between a command and the host. It parses the ClientHello, however it is split
//! into packets and records, holds it back until its name is known to be right, and then forwards
//! everything. A server may request a second ClientHello (HelloRetryRequest), which may name
//! another host, and a lenient server takes one unasked: so what follows the first one is checked
//! until the client encrypts. Up to TLS 1.2 it does from its ChangeCipherSpec on, which keys have to
//! precede; in TLS 1.3 what it encrypts has a type of record of its own, so that every other record is
//! checked to the end. An encrypted name (ECH) cannot be checked, and is refused.
//!
//! Up to TLS 1.2 a server that resumes a session takes the name from there. So the guard reads the
//! server's answer too: a session may be resumed if it was [seen to begin](Sessions) for the name.
//!
//! Where another protocol than TLS is allowed too, its [first bytes](sandbox_api::hosts::first_bytes) must be
//! such that no server accepts them as TLS: a ClientHello that the guard does not recognise is
//! never forwarded. What follows a record that some servers skip is judged like the beginning.
//!
//! ```text
//!            another protocol, where one may be        client: encrypts (TLS 1.2)
//!   Start ──────────────────────────────────▶ Open ◀───────────────┐
//!     │ TLS                                                        │
//!     └────▶ Hello ───────── the right name ──────────────────▶ Plain
//!              ▲                                                   │
//!              └──────────── server: retry, once ──────────────────┘
//! ```
//!
//! Pure, and bounded: it holds at most `MAX_HELD`, and reads each byte once.

#![deny(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod sessions;
#[cfg(test)]
mod tests;

use sandbox_api::hosts::Host;
use sandbox_api::hosts::first_bytes::{Beginning, DECISIVE};

use sessions::Session;
pub use sessions::Sessions;

/// The maximum size of a ClientHello. Today's have 0.3 to 2 KiB; tickets make them longer.
const MAX_HELLO: usize = 64 << 10;
/// The maximum number of bytes held back for one, including record headers.
const MAX_HELD: usize = 128 << 10;
/// The port on which a name may only be reached with TLS.
const HTTPS: u16 = 443;

const RECORD_HEADER: usize = 5;
/// The maximum size of an unencrypted record, and of an encrypted one, in any version.
const MAX_PLAIN_RECORD: usize = 1 << 14;
const MAX_RECORD: usize = (1 << 14) + 2048;
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const APPLICATION_DATA: u8 = 23;
const MAJOR_VERSION: u8 = 3;
/// TLS 1.3. For compatibility, record headers have the versions of SSL 3.0 to TLS 1.2.
const MAX_MINOR_VERSION: u8 = 4;

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const CLIENT_KEY_EXCHANGE: u8 = 16;
/// Message header, version and random.
const SERVER_HELLO_HEAD: usize = 4 + 2 + 32;
/// The random of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3).
const RETRY: [u8; 32] = [
    0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
    0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
];

const NEW_SESSION_TICKET: u8 = 4;
/// The maximum that is read of a server's handshake for its ticket: the certificates come before
/// it.
const MAX_ANSWER: usize = 128 << 10;

const SERVER_NAME: u16 = 0;
const SESSION_TICKET: u16 = 35;
/// In a ServerHello: it is TLS 1.3.
const SUPPORTED_VERSIONS: u16 = 43;

/// Why a command's data is not forwarded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlsRefusal {
    /// Something other than TLS, to the HTTPS port of a name.
    #[error("only TLS is passed to port 443 of a name")]
    NoTls,
    /// Not a ClientHello, but some servers would accept it as one.
    #[error(
        "the first bytes are not a TLS ClientHello, and some servers would read them as TLS or SSL"
    )]
    Ambiguous,
    /// An unparsable ClientHello.
    #[error("a malformed TLS ClientHello")]
    Malformed,
    /// A ClientHello without a server name.
    #[error("TLS without a server name (SNI)")]
    NoName,
    /// Another server name.
    #[error("TLS for another server name (SNI) than the connection's")]
    OtherName(String),
    /// An encrypted server name.
    #[error("TLS with an encrypted server name (ECH)")]
    Encrypted,
    /// The server resumes a session, which may have started with a different server name.
    #[error("TLS resumes a session that did not start in this sandbox with this server name")]
    Resumed,
    /// A further unencrypted ClientHello, which the server did not request.
    #[error("another TLS ClientHello, which the server did not request")]
    Unasked,
    /// An empty record, or a record type that a client sends only after it encrypts: some servers
    /// skip it, and take what follows unencrypted.
    #[error("a TLS record that no client sends before it encrypts")]
    TooSoon,
}

/// Checks the data that a command sends to the requested host.
#[derive(Debug)]
pub struct Guard {
    host: Host,
    port: u16,
    /// Whether only TLS is allowed.
    tls_only: bool,
    phase: Phase,
    /// Received data that may not be forwarded yet.
    held: Vec<u8>,
    /// How much of it has been parsed.
    read: usize,
    /// How much of it belongs to records that some servers skip.
    skipped: usize,
    server: Server,
    /// The command's handshake messages after a ClientHello.
    messages: Messages,
    sessions: Sessions,
    /// The session's id in the ClientHello.
    offered: Vec<u8>,
    /// The session that the ClientHello would resume is one of `sessions`.
    is_known: bool,
    /// The server has resumed it: keys exist.
    is_resumed: bool,
}

#[derive(Debug)]
enum Phase {
    Start {
        /// Data that was received and forwarded: too short to classify.
        first: Vec<u8>,
    },
    /// This much of a record is still to be forwarded, which some servers skip: for them, what
    /// follows is the beginning.
    Skipped {
        left: usize,
    },
    Hello(Handshake),
    /// After a ClientHello: this much of a record is still to be forwarded, which belongs to
    /// handshake messages or does not.
    Plain {
        left: usize,
        is_handshake: bool,
    },
    Open,
}

/// The state of the server's reply.
#[derive(Debug)]
enum Server {
    /// Not enough data yet.
    Partial(Handshake),
    /// The ServerHello of TLS 1.2 or older, of this length. The next message shows whether it
    /// resumes a session.
    Greeted(Handshake, usize),
    /// A session of TLS 1.2 or older, for which it may issue a ticket in the message that begins here.
    IsNew(Handshake, usize),
    /// A request for another ClientHello.
    Retries,
    /// The server resumes a session that may be another name's.
    Resumes,
    /// TLS 1.2 or older, of which the rest does not matter.
    Old,
    /// TLS 1.3.
    New,
    /// No reply for which a client could encrypt.
    Unknown,
}

impl Server {
    /// Whether further data will decide what the client may send.
    const fn is_undecided(&self) -> bool {
        matches!(self, Self::Partial(_) | Self::Greeted(..))
    }
}

impl Guard {
    /// A guard for a connection to this host, from a sandbox with these sessions.
    pub fn new(host: Host, port: u16, sessions: Sessions) -> Self {
        let tls_only = port == HTTPS && matches!(host, Host::Name(_));
        let server = Server::Partial(Handshake::new(Side::Server, SERVER_HELLO_HEAD));
        let phase = Phase::Start { first: Vec::new() };
        let messages = Messages::default();
        Self {
            host,
            port,
            tls_only,
            phase,
            held: Vec::new(),
            read: 0,
            skipped: 0,
            server,
            messages,
            sessions,
            offered: Vec::new(),
            is_known: false,
            is_resumed: false,
        }
    }

    /// Handles data from the command, and returns what may be forwarded to the host now. While it
    /// [waits](Self::is_waiting), it must be given nothing more until there is data from the
    /// server.
    pub fn client(&mut self, bytes: Vec<u8>) -> Result<Vec<u8>, TlsRefusal> {
        if self.held.is_empty() {
            self.held = bytes;
        } else {
            self.held.extend_from_slice(&bytes);
        }
        loop {
            let rest = &self.held[self.read..];
            match &mut self.phase {
                Phase::Start { .. } | Phase::Skipped { .. } if rest.is_empty() => {
                    return Ok(self.release());
                }
                Phase::Start { first } => {
                    let forwarded = first.len();
                    first.extend(rest.iter().take(DECISIVE - first.len()));
                    match Beginning::of(first) {
                        Beginning::Handshake => {
                            self.phase = Phase::Hello(Handshake::new(Side::Client, 4));
                        }
                        _ if self.tls_only => return Err(TlsRefusal::NoTls),
                        Beginning::Ambiguous => return Err(TlsRefusal::Ambiguous),
                        Beginning::Skipped(length) => {
                            self.phase = Phase::Skipped { left: length - forwarded };
                        }
                        Beginning::Other => self.phase = Phase::Open,
                        // Too short for the server too: nothing needs to be held back.
                        Beginning::TooShort => {
                            self.read = self.held.len();
                            return Ok(self.release());
                        }
                    }
                }
                Phase::Skipped { left } => {
                    let passing = rest.len().min(*left);
                    *left -= passing;
                    self.read += passing;
                    self.skipped = self.read;
                    if *left == 0 {
                        self.phase = Phase::Start { first: Vec::new() };
                    }
                }
                Phase::Hello(hello) => {
                    self.read += hello.feed(rest).ok_or(TlsRefusal::Malformed)?;
                    match hello.message() {
                        None if self.held.len() - self.skipped > MAX_HELD => {
                            return Err(TlsRefusal::Malformed);
                        }
                        None => return Ok(Vec::new()),
                        Some(&[CLIENT_HELLO, a, b, c]) => {
                            let length = u32::from_be_bytes([0, a, b, c]) as usize;
                            if length == 0 || length > MAX_HELLO {
                                return Err(TlsRefusal::Malformed);
                            }
                            hello.need = 4 + length;
                        }
                        Some([CLIENT_HELLO, _, _, _, body @ ..]) if hello.is_between_records() => {
                            let ClientHello { session, ticket, .. } = check(body, &self.host)?;
                            // A server takes the session from the ticket, if there is one.
                            let ticket = ticket.filter(|it| !it.is_empty()).map(Session::Ticket);
                            let resumed = ticket.unwrap_or(Session::Id(session));
                            self.is_known = self.sessions.has(&self.host, self.port, resumed);
                            self.offered = session.to_vec();
                            self.phase = Phase::Plain { left: 0, is_handshake: false };
                        }
                        // Another message, or several in the last record.
                        Some(_) => return Err(TlsRefusal::Malformed),
                    }
                }
                Phase::Plain { left, is_handshake } if *left > 0 => {
                    let passing = rest.len().min(*left);
                    if *is_handshake && self.messages.has_hello(&rest[..passing]) {
                        return Err(TlsRefusal::Unasked);
                    }
                    *left -= passing;
                    self.read += passing;
                    if passing == 0 {
                        return Ok(self.release());
                    }
                }
                Phase::Plain { left, is_handshake } => match *rest {
                    [
                        kind @ CHANGE_CIPHER_SPEC..=APPLICATION_DATA,
                        MAJOR_VERSION,
                        _,
                        high,
                        low,
                        ..,
                    ] => {
                        let length = usize::from(u16::from_be_bytes([high, low]));
                        match (&self.server, kind) {
                            (Server::Resumes, _) => return Err(TlsRefusal::Resumed),
                            (Server::Retries, HANDSHAKE) => {
                                // A server requests it once.
                                self.server = Server::New;
                                self.phase = Phase::Hello(Handshake::new(Side::Client, 4));
                                continue;
                            }
                            // It may be a second ClientHello or not: the server's reply decides.
                            (Server::Partial(_), HANDSHAKE) | (Server::Greeted(..), _) => {
                                return Ok(self.release());
                            }
                            _ if length == 0 => return Err(TlsRefusal::TooSoon),
                            _ if length > MAX_RECORD => return Err(TlsRefusal::Malformed),
                            (Server::IsNew(..) | Server::Old, CHANGE_CIPHER_SPEC) => {
                                let has_keys = self.is_resumed || self.messages.has_key_exchange();
                                if length > 1 || !has_keys {
                                    return Err(TlsRefusal::TooSoon);
                                }
                                // From here on its records are encrypted.
                                self.phase = Phase::Open;
                                continue;
                            }
                            (Server::Unknown, HANDSHAKE) => return Err(TlsRefusal::Unasked),
                            (Server::Unknown, CHANGE_CIPHER_SPEC | APPLICATION_DATA)
                            | (Server::IsNew(..) | Server::Old, APPLICATION_DATA) => {
                                return Err(TlsRefusal::TooSoon);
                            }
                            _ => {}
                        }
                        (*left, *is_handshake) = (length, kind == HANDSHAKE);
                        self.read += RECORD_HEADER;
                    }
                    _ if rest.len() >= RECORD_HEADER => return Err(TlsRefusal::Malformed),
                    _ => return Ok(self.release()),
                },
                Phase::Open => {
                    self.read = self.held.len();
                    return Ok(self.release());
                }
            }
        }
    }

    /// Handles data from the server, which is forwarded in any case.
    pub fn server(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            let (handshake, is_greeted) = match &mut self.server {
                Server::Partial(handshake) | Server::IsNew(handshake, _) => (handshake, false),
                Server::Greeted(handshake, _) => (handshake, true),
                Server::Retries | Server::Resumes | Server::Old | Server::New | Server::Unknown => {
                    return;
                }
            };
            let Some(count) = handshake.feed(rest) else {
                self.server = match self.server {
                    Server::Partial(_) => Server::Unknown,
                    // It encrypts, without a handshake for new keys.
                    _ if is_greeted => self.resumed(Server::Old),
                    _ => Server::Old,
                };
                return;
            };
            rest = &rest[count..];
            let is_whole = handshake.message().is_some();
            let is_hello = handshake.message.first().is_none_or(|&kind| kind == SERVER_HELLO);
            if is_hello && !is_whole {
                return;
            }
            self.server = match std::mem::replace(&mut self.server, Server::Unknown) {
                Server::Partial(handshake) => Self::greeting(handshake),
                Server::Greeted(handshake, at) => self.after_hello(handshake, at),
                Server::IsNew(handshake, at) => self.next_message(handshake, at),
                decided => decided,
            };
        }
    }

    /// The server's first message, or the beginning of one.
    fn greeting(mut handshake: Handshake) -> Server {
        let message = &handshake.message[..];
        let [SERVER_HELLO, a, b, c, ..] = *message else { return Server::Unknown };
        if message.get(6..SERVER_HELLO_HEAD) == Some(&RETRY) {
            return Server::Retries;
        }
        let length = 4 + u32::from_be_bytes([0, a, b, c]) as usize;
        if message.len() < length && length <= MAX_HELLO {
            handshake.need = length;
            return Server::Partial(handshake);
        }
        match ServerHello::of(message) {
            Some(hello) if hello.is_1_3 => Server::New,
            Some(_) => {
                handshake.need = length + 1;
                Server::Greeted(handshake, length)
            }
            None => Server::Unknown,
        }
    }

    /// The server has resumed a session; continues if that is one of the name's.
    fn resumed(&mut self, goes_on: Server) -> Server {
        self.is_resumed = self.is_known;
        if self.is_known { goes_on } else { Server::Resumes }
    }

    /// A message begins at `at`, after the ServerHello of TLS 1.2 or older.
    fn after_hello(&mut self, handshake: Handshake, at: usize) -> Server {
        if handshake.message[at] == NEW_SESSION_TICKET {
            return self.resumed(Server::IsNew(handshake, at));
        }
        // A server that repeats the client's choice has not issued it.
        let hello = ServerHello::of(&handshake.message);
        if let Some(hello) = hello.filter(|hello| hello.session != self.offered) {
            self.sessions.add(&self.host, self.port, Session::Id(hello.session));
        }
        Server::IsNew(handshake, at)
    }

    /// A message of a handshake with tickets begins at `at`, of which the type, the type and length, or
    /// all has been read.
    fn next_message(&self, mut handshake: Handshake, mut at: usize) -> Server {
        handshake.need = match handshake.message[at..] {
            [kind, a, b, c, ref body @ ..] => {
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if body.len() < length {
                    at + 4 + length
                } else if kind == NEW_SESSION_TICKET {
                    let mut ticket = body.get(4..).unwrap_or_default();
                    let ticket = take_vector(&mut ticket, 2).unwrap_or_default();
                    self.sessions.add(&self.host, self.port, Session::Ticket(ticket));
                    return Server::Old;
                } else {
                    at += 4 + length;
                    at + 4
                }
            }
            _ => at + 4,
        };
        match handshake.need > MAX_ANSWER {
            true => Server::Old,
            false => Server::IsNew(handshake, at),
        }
    }

    /// Must be called at the end of the server's data: there will be no HelloRetryRequest.
    pub fn server_ended(&mut self) {
        if self.server.is_undecided() {
            self.server = Server::Unknown;
        }
    }

    /// Whether the held data depends on what the server sends next.
    pub fn is_waiting(&self) -> bool {
        let rest = &self.held[self.read..];
        matches!(self.phase, Phase::Plain { left: 0, .. })
            && self.server.is_undecided()
            && rest.len() >= RECORD_HEADER
    }

    /// Must be called at the end of the command's data, when nothing waits: the held data is complete,
    /// or never will be.
    pub fn finish(&mut self) -> Result<Vec<u8>, TlsRefusal> {
        let mut last = self.client(Vec::new())?;
        match self.phase {
            Phase::Hello(_) => Err(TlsRefusal::Malformed),
            _ if self.is_waiting() => Err(TlsRefusal::Unasked),
            // A part of a record's header.
            _ => {
                last.append(&mut self.held);
                Ok(last)
            }
        }
    }

    fn release(&mut self) -> Vec<u8> {
        let rest = self.held.split_off(self.read);
        (self.read, self.skipped) = (0, 0);
        std::mem::replace(&mut self.held, rest)
    }
}

/// Finds the beginnings of unencrypted handshake messages, which records may split anywhere.
#[derive(Debug, Default)]
struct Messages {
    /// The received bytes of a message's type and length.
    head: [u8; 4],
    have: usize,
    /// The number of bytes of the message still to come.
    left: u32,
    /// Whether a ClientKeyExchange has started.
    has_keys: bool,
}

impl Messages {
    /// Whether the client has given its part of the keys, in whole messages.
    const fn has_key_exchange(&self) -> bool {
        self.has_keys && self.have == 0 && self.left == 0
    }

    /// Whether a ClientHello begins in these bytes of handshake records.
    fn has_hello(&mut self, bytes: &[u8]) -> bool {
        bytes.iter().any(|&byte| {
            if self.left > 0 {
                self.left -= 1;
                return false;
            }
            self.head[self.have] = byte;
            self.have += 1;
            if self.have == self.head.len() {
                let [_, a, b, c] = self.head;
                (self.have, self.left) = (0, u32::from_be_bytes([0, a, b, c]));
            }
            self.has_keys |= self.head[0] == CLIENT_KEY_EXCHANGE;
            self.head[0] == CLIENT_HELLO
        })
    }
}

/// The beginning of a handshake, reassembled from its records.
#[derive(Debug)]
struct Handshake {
    header: [u8; RECORD_HEADER],
    /// The number of received header bytes.
    have: usize,
    /// The number of bytes of the record still to come.
    left: usize,
    message: Vec<u8>,
    /// The number of required bytes.
    need: usize,
    by: Side,
    /// The number of bytes of a skipped record still to come.
    skip: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Refuses malformed data.
    Client,
    /// Malformed data is an answer too: so an alert or a ChangeCipherSpec before it is skipped, and
    /// the version in a record header does not matter.
    Server,
}

impl Handshake {
    const fn new(by: Side, need: usize) -> Self {
        let header = [0; RECORD_HEADER];
        Self { header, have: 0, left: 0, message: Vec::new(), need, by, skip: 0 }
    }

    /// Parses up to the required bytes, and returns how many bytes that consumed; `None` if it is
    /// not a handshake.
    fn feed(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut rest = bytes;
        while self.message.len() < self.need && !rest.is_empty() {
            if self.skip > 0 {
                let count = rest.len().min(self.skip);
                self.skip -= count;
                rest = &rest[count..];
            } else if self.left == 0 {
                let count = rest.len().min(RECORD_HEADER - self.have);
                let (head, more) = rest.split_at(count);
                self.header[self.have..self.have + count].copy_from_slice(head);
                self.have += count;
                rest = more;
                if self.have == RECORD_HEADER {
                    let [kind, major, minor, high, low] = self.header;
                    let length = usize::from(u16::from_be_bytes([high, low]));
                    self.have = 0;
                    let is_sound = major == MAJOR_VERSION
                        && (minor <= MAX_MINOR_VERSION || self.by == Side::Server)
                        && (1..=MAX_PLAIN_RECORD).contains(&length);
                    match (kind, self.by) {
                        (HANDSHAKE, _) if is_sound => self.left = length,
                        (ALERT | CHANGE_CIPHER_SPEC, Side::Server)
                            if is_sound && self.message.is_empty() =>
                        {
                            self.skip = length;
                        }
                        _ => return None,
                    }
                }
            } else {
                let count = rest.len().min(self.left).min(self.need - self.message.len());
                let (piece, more) = rest.split_at(count);
                self.message.extend_from_slice(piece);
                self.left -= count;
                rest = more;
            }
        }
        Some(bytes.len() - rest.len())
    }

    /// The required bytes, once they have arrived.
    fn message(&self) -> Option<&[u8]> {
        (self.message.len() == self.need).then_some(&self.message)
    }

    const fn is_between_records(&self) -> bool {
        self.left == 0
    }
}

/// Parses a ClientHello, and compares its server name with the host.
fn check<'a>(hello: &'a [u8], host: &Host) -> Result<ClientHello<'a>, TlsRefusal> {
    let hello = read_hello(hello).ok_or(TlsRefusal::Malformed)?;
    if hello.is_encrypted {
        return Err(TlsRefusal::Encrypted);
    }
    match (hello.name, host) {
        // TLS has no server names for addresses.
        (None, Host::Address(_)) => Ok(hello),
        (None, Host::Name(_)) => Err(TlsRefusal::NoName),
        // On the wire a name is ASCII.
        (Some(name), host) if name.is_ascii() => {
            match std::str::from_utf8(name).ok().map(str::parse::<Host>) {
                Some(Ok(found)) if found == *host => Ok(hello),
                Some(Ok(found)) => Err(TlsRefusal::OtherName(found.to_string())),
                _ => Err(TlsRefusal::Malformed),
            }
        }
        (Some(_), _) => Err(TlsRefusal::Malformed),
    }
}

#[derive(Debug, Default)]
struct ClientHello<'a> {
    name: Option<&'a [u8]>,
    is_encrypted: bool,
    /// The id and the ticket of the session that it would resume; may be empty.
    session: &'a [u8],
    ticket: Option<&'a [u8]>,
}

/// Whether this extension has the server name in encrypted form: ECH and all its drafts, and their
/// predecessor ESNI.
const fn is_encrypted_name(extension: u16) -> bool {
    matches!(extension, 0xfe08..=0xfe0d | 0xff02 | 0xff03 | 0xffce)
}

/// Parses the body of a ClientHello; `None` if it is malformed.
fn read_hello(body: &[u8]) -> Option<ClientHello<'_>> {
    let mut rest = body;
    let version_and_random = take(&mut rest, 2 + 32)?;
    if version_and_random[0] != MAJOR_VERSION {
        return None;
    }
    let session = take_vector(&mut rest, 1)?;
    let ciphers = take_vector(&mut rest, 2)?;
    let compressions = take_vector(&mut rest, 1)?;
    if session.len() > 32 || ciphers.is_empty() || ciphers.len() % 2 != 0 || compressions.is_empty()
    {
        return None;
    }
    let mut hello = ClientHello { session, ..ClientHello::default() };
    if rest.is_empty() {
        return Some(hello);
    }
    let mut extensions = take_vector(&mut rest, 2)?;
    while !extensions.is_empty() {
        let kind = take_number(&mut extensions, 2)?;
        let data = take_vector(&mut extensions, 2)?;
        match u16::try_from(kind).ok()? {
            SERVER_NAME if hello.name.is_some() => return None,
            SERVER_NAME => hello.name = Some(read_server_name(data)?),
            SESSION_TICKET if hello.ticket.is_some() => return None,
            SESSION_TICKET => hello.ticket = Some(data),
            kind if is_encrypted_name(kind) => hello.is_encrypted = true,
            _ => {}
        }
    }
    rest.is_empty().then_some(hello)
}

#[derive(Debug)]
struct ServerHello<'a> {
    /// The id of its session; may be empty.
    session: &'a [u8],
    is_1_3: bool,
}

impl<'a> ServerHello<'a> {
    /// Parses a message, and ignores what follows it; `None` if it is malformed.
    fn of(message: &'a [u8]) -> Option<Self> {
        let mut rest = message.get(1..)?;
        let mut rest = take_vector(&mut rest, 3)?;
        take(&mut rest, 2 + 32)?;
        let session = take_vector(&mut rest, 1)?;
        // The cipher and the compression.
        take(&mut rest, 2 + 1)?;
        let mut is_1_3 = false;
        let mut extensions = if rest.is_empty() { rest } else { take_vector(&mut rest, 2)? };
        while !extensions.is_empty() {
            let kind = take_number(&mut extensions, 2)?;
            let data = take_vector(&mut extensions, 2)?;
            let is_version = kind == usize::from(SUPPORTED_VERSIONS);
            is_1_3 |=
                is_version && matches!(data, [MAJOR_VERSION, minor] if *minor >= MAX_MINOR_VERSION);
        }
        Some(Self { session, is_1_3 })
    }
}

/// A single name, of the only existing type. RFC 6066 has no dot at its end, with which it is another
/// name for servers.
fn read_server_name(data: &[u8]) -> Option<&[u8]> {
    let mut rest = data;
    let mut list = take_vector(&mut rest, 2)?;
    let kind = take_number(&mut list, 1)?;
    let name = take_vector(&mut list, 2)?;
    let is_sound = kind == 0 && !name.is_empty() && !name.ends_with(b".");
    (is_sound && list.is_empty() && rest.is_empty()).then_some(name)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, more) = rest.split_at_checked(count)?;
    *rest = more;
    Some(taken)
}

fn take_number(rest: &mut &[u8], bytes: usize) -> Option<usize> {
    Some(take(rest, bytes)?.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)))
}

/// A vector with its length prefix.
fn take_vector<'a>(rest: &mut &'a [u8], length_bytes: usize) -> Option<&'a [u8]> {
    let length = take_number(rest, length_bytes)?;
    take(rest, length)
}
