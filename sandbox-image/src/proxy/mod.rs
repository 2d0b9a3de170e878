//! The connections between the sandbox's loopback and the controller: a proxy for the egress of
//! commands, and the connections to ports in the sandbox that the controller [asks for](Proxy::dial).
//!
//! The proxy supports HTTP (`CONNECT`, and plain requests) and SOCKS5 on one port, distinguished by the
//! first byte. Each connection becomes a tunnel to the controller, which decides and dials; nothing
//! is decided here. The sandbox has no network device other than `lo`, so nothing can bypass the
//! proxy.
//!
//! One thread serves all clients, because the sandbox's processes are limited, and polls all of
//! them. Its memory is bounded: at most [`MAX_TUNNELS`] clients at one time, the others wait to be
//! accepted, and [`MAX_DIALS`] dialled connections; for each a head, a piece in each direction, and what
//! the credit allows.
//!
//! Only commands are clients. When the last one has ended, its connections must neither reach a host
//! that its result does not list, nor take the places of the next command's:
//! [`Proxy::drop_clients`].

mod client;
mod dial;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod http;
mod listening;
mod serve;
mod socks;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use sandbox_protocol::limits::{CREDIT_STEP, FIRST_TUNNEL, MAX_DIALS, MAX_TUNNELS};
use sandbox_protocol::message::{Chunk, Closed, Connected, Credit, Dial};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow, StreamError};
use sandbox_protocol::{ErrorKind, WireError};

use self::dial::Dialling;
pub use self::listening::Listening;
pub use crate::outbox::Outbox;

use crate::wake::Wake;

/// Opens the proxy's port on loopback.
///
/// # Errors
///
/// If the port is in use, or there is no loopback.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// What commands reach without the proxy: the sandbox's own loopback.
const OWN_HOSTS: &str = "localhost,127.0.0.1,::1";

/// The environment variables that point commands to the proxy at this address, for all hosts but the
/// sandbox itself. curl reads only the lower-case ones.
pub fn environment(address: SocketAddr) -> Vec<(&'static str, String)> {
    let names =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let by_it = names.into_iter().map(|name| (name, format!("http://{address}")));
    by_it.chain(["NO_PROXY", "no_proxy"].map(|name| (name, OWN_HOSTS.to_owned()))).collect()
}

/// A running proxy, for the thread that reads the controller's messages, and for those of commands.
pub struct Proxy {
    shared: Arc<Shared>,
    /// The port of commands' egress, if they have one.
    pub port: Option<u16>,
}

struct Shared {
    tunnels: Mutex<Tunnels>,
    /// Connections to be made, which the thread has not taken yet.
    dials: Mutex<Vec<Dialling>>,
    commands: Mutex<Commands>,
    /// The thread has dropped what the commands left.
    dropped: Condvar,
    /// Something has arrived for one of the tunnels, or the commands have ended.
    wake: Wake,
    outbox: Arc<Outbox>,
}

/// Whether commands run, which alone connect to the proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commands {
    /// No command: data that still arrives is from an ended one, and is dropped.
    None,
    /// Some: their connections are served.
    Running,
    /// The last one has ended, and the thread has not dropped yet what it left.
    Ended,
}

/// The tunnels for which one side has not sent its last message, and where the search for the number of
/// another one starts.
#[derive(Default)]
struct Tunnels(HashMap<u32, Tunnel>, u32);

/// A tunnel, shared by its client and the thread that reads the controller's messages.
struct Tunnel {
    incoming: ReceiveWindow,
    outgoing: SendWindow,
    arrived: Vec<u8>,
    owed: u64,
    is_connected: bool,
    closed: Option<Closed>,
    /// Its client is gone: it waits for the controller's last message.
    is_left: bool,
}

impl Proxy {
    /// Starts serving; without a listener, only what is [dialled](Self::dial).
    ///
    /// # Errors
    ///
    /// If no thread or descriptor is available.
    pub fn start(listener: Option<TcpListener>, outbox: Arc<Outbox>) -> io::Result<Arc<Self>> {
        let port = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let shared = Arc::new(Shared::new(outbox)?);
        serve::start(listener, shared.clone())?;
        Ok(Arc::new(Self { shared, port: port.map(|address| address.port()) }))
    }

    /// Connects to a port of the loopback, and answers the request `id` by that.
    ///
    /// # Errors
    ///
    /// What it is answered instead.
    pub fn dial(&self, id: u64, Dial { tunnel, port }: Dial) -> Result<(), WireError> {
        let refuse = |kind, why: &str| Err(WireError::new(kind, why));
        if self.port == Some(port) {
            return refuse(ErrorKind::NotAllowed, "the port of the sandbox's proxy is not reached");
        }
        {
            let mut tunnels = self.shared.lock();
            if tunnels.0.contains_key(&tunnel) || !dial::is_one(tunnel) {
                return refuse(ErrorKind::InvalidRequest, "not the number of a new tunnel");
            }
            if tunnels.0.keys().filter(|&&number| dial::is_one(number)).count() >= MAX_DIALS {
                return refuse(ErrorKind::Busy, "too many connections at one time");
            }
            tunnels.open(tunnel);
        }
        self.shared.dials.lock().unwrap().push(Dialling::new(id, tunnel, port));
        self.shared.wake.wake();
        Ok(())
    }

    /// Accepts clients from now on: a command is about to start.
    pub fn accept_clients(&self) {
        *self.shared.commands.lock().unwrap() = Commands::Running;
    }

    /// Drops the clients, because the last command has ended. Those without a connection to their
    /// host are gone, and their tunnels closed, when this returns; the others have a short time for
    /// what their command has sent.
    pub fn drop_clients(&self) {
        let mut commands = self.shared.commands.lock().unwrap();
        *commands = Commands::Ended;
        self.shared.wake.wake();
        let is_pending = |commands: &mut Commands| *commands == Commands::Ended;
        drop(self.shared.dropped.wait_while(commands, is_pending).unwrap());
    }

    /// Receives a chunk. A chunk for an ended tunnel is dropped.
    ///
    /// # Errors
    ///
    /// If the controller broke the rules of the stream.
    pub fn take_chunk(&self, chunk: &Chunk) -> Result<(), StreamError> {
        self.with(chunk.stream, |tunnel| {
            tunnel.incoming.receive(chunk)?;
            if !tunnel.is_left {
                tunnel.arrived.extend_from_slice(&chunk.data.0);
            }
            Ok(())
        })
    }

    /// Receives credit.
    ///
    /// # Errors
    ///
    /// If the controller broke the rules of the stream.
    pub fn take_credit(&self, credit: &Credit) -> Result<(), StreamError> {
        self.with(credit.stream, |tunnel| tunnel.outgoing.grant(credit))
    }

    /// Receives the report that a connection is established.
    pub fn take_connected(&self, connected: Connected) {
        _ = self.with(connected.tunnel, |tunnel| {
            tunnel.is_connected = true;
            Ok(())
        });
    }

    /// Receives the controller's last message for a tunnel.
    pub fn take_closed(&self, closed: Closed) {
        let mut tunnels = self.shared.lock();
        let number = closed.tunnel;
        match tunnels.0.get_mut(&number) {
            Some(tunnel) if tunnel.is_left => _ = tunnels.0.remove(&number),
            Some(tunnel) => tunnel.closed = Some(closed),
            None => {}
        }
        drop(tunnels);
        self.shared.wake.wake();
    }

    fn with(
        &self,
        number: u32,
        act: impl FnOnce(&mut Tunnel) -> Result<(), StreamError>,
    ) -> Result<(), StreamError> {
        self.shared.lock().0.get_mut(&number).map_or(Ok(()), act)?;
        self.shared.wake.wake();
        Ok(())
    }
}

impl Shared {
    fn new(outbox: Arc<Outbox>) -> io::Result<Self> {
        Ok(Self {
            tunnels: Mutex::default(),
            dials: Mutex::default(),
            commands: Mutex::new(Commands::None),
            dropped: Condvar::new(),
            wake: Wake::new()?,
            outbox,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Tunnels> {
        self.tunnels.lock().unwrap()
    }
}

impl Tunnels {
    /// The tunnel with this number.
    fn open(&mut self, number: u32) {
        let tunnel = Tunnel {
            incoming: ReceiveWindow::new(number),
            outgoing: SendWindow::new(number),
            arrived: Vec::new(),
            owed: 0,
            is_connected: false,
            closed: None,
            is_left: false,
        };
        self.0.insert(number, tunnel);
    }

    /// One with a number that none uses, which it returns.
    fn open_any(&mut self) -> u32 {
        loop {
            let number = self.1.max(FIRST_TUNNEL);
            self.1 = number.wrapping_add(1);
            if !self.0.contains_key(&number) {
                self.open(number);
                return number;
            }
        }
    }

    /// How many more clients can be accepted.
    fn room(&self, clients: usize) -> usize {
        let left = |(number, tunnel): &(&u32, &Tunnel)| **number >= FIRST_TUNNEL && tunnel.is_left;
        let left = self.0.iter().filter(left).count();
        MAX_TUNNELS.saturating_sub(clients + left)
    }
}

impl Tunnel {
    /// Takes at most `most` of the received bytes, and the credit that is due for them.
    fn take(&mut self, most: usize) -> (Vec<u8>, Option<Credit>) {
        let rest = self.arrived.split_off(self.arrived.len().min(most));
        let taken = std::mem::replace(&mut self.arrived, rest);
        self.owed += taken.len() as u64;
        let is_due = self.owed >= CREDIT_STEP && !self.incoming.is_ended() && self.closed.is_none();
        (taken, is_due.then(|| self.incoming.consumed(std::mem::take(&mut self.owed))))
    }

    /// Whether the stream has ended and all of it has been taken.
    fn is_drained(&self) -> bool {
        self.incoming.is_ended() && self.arrived.is_empty()
    }
}
