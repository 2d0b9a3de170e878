//! The way out for programs: a proxy on the sandbox's loopback.
//!
//! It speaks HTTP (`CONNECT`, and plain requests) and SOCKS5 on one port, told apart by the first byte.
//! Each connection becomes a tunnel to the controller, which decides and dials; nothing is decided
//! here. There is no other device than `lo` in the sandbox, so nothing can go around it.
//!
//! One thread serves all of them, because the sandbox's processes are counted, and it waits for
//! whichever is ready. What it holds is bounded: [`MAX_TUNNELS`] programs at one time, the others wait to
//! be accepted; of each a head, a piece each way, and what the credit lets come.

mod client;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod http;
mod serve;
mod socks;

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard};

use sandbox_protocol::FromAgent;
use sandbox_protocol::limits::{CREDIT_STEP, MAX_TUNNELS};
use sandbox_protocol::message::{Chunk, Closed, Connected, Credit};
use sandbox_protocol::stream::{ReceiveWindow, SendWindow, StreamError};

use crate::wake::Wake;

/// Takes what the proxy says to the controller.
pub trait FrameSender: Send + Sync {
    /// Sends a message; it may wait for the controller to read.
    fn send(&self, message: &FromAgent<'_>);
}

/// Opens the proxy's port on the loopback.
///
/// # Errors
///
/// Where it is taken, or there is no loopback.
pub fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The variables by which programs find the proxy at this address, and which hosts they are to reach
/// `without` it. curl reads lower-case ones alone.
#[must_use]
pub fn environment(address: SocketAddr, without: &str) -> Vec<(&'static str, String)> {
    let names =
        ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];
    let by_it = names.into_iter().map(|name| (name, format!("http://{address}")));
    by_it.chain(["NO_PROXY", "no_proxy"].map(|name| (name, without.to_owned()))).collect()
}

/// A proxy that runs, for whoever reads what the controller says.
pub struct Proxy {
    shared: Arc<Shared>,
}

struct Shared {
    tunnels: Mutex<Tunnels>,
    /// Something has come for one of the tunnels.
    wake: Wake,
    sender: Arc<dyn FrameSender>,
}

/// The tunnels on which one side has not said its last word.
#[derive(Default)]
struct Tunnels(HashMap<u32, Tunnel>);

/// A tunnel, as its client and the controller's reader share it.
struct Tunnel {
    incoming: ReceiveWindow,
    outgoing: SendWindow,
    arrived: Vec<u8>,
    owed: u64,
    is_connected: bool,
    closed: Option<Closed>,
    /// Nobody here wants it any more: it waits for the controller's last word.
    is_left: bool,
}

impl Proxy {
    /// Starts serving.
    ///
    /// # Errors
    ///
    /// Where no thread or descriptor can be had.
    pub fn start(listener: TcpListener, sender: Arc<dyn FrameSender>) -> io::Result<Self> {
        let wake = Wake::new()?;
        let shared = Arc::new(Shared { tunnels: Mutex::default(), wake, sender });
        serve::start(listener, shared.clone())?;
        Ok(Self { shared })
    }

    /// Takes a chunk. Of a tunnel that is over it is dropped.
    ///
    /// # Errors
    ///
    /// Where the controller broke the rules of the stream.
    pub fn take_chunk(&self, chunk: &Chunk) -> Result<(), StreamError> {
        self.with(chunk.stream, |tunnel| {
            tunnel.incoming.receive(chunk)?;
            if !tunnel.is_left {
                tunnel.arrived.extend_from_slice(&chunk.data.0);
            }
            Ok(())
        })
    }

    /// Takes credit.
    ///
    /// # Errors
    ///
    /// Where the controller broke the rules of the stream.
    pub fn take_credit(&self, credit: &Credit) -> Result<(), StreamError> {
        self.with(credit.stream, |tunnel| tunnel.outgoing.grant(credit))
    }

    /// Takes the news that a connection is there.
    pub fn take_connected(&self, connected: Connected) {
        _ = self.with(connected.tunnel, |tunnel| {
            tunnel.is_connected = true;
            Ok(())
        });
    }

    /// Takes the controller's last word on a tunnel.
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
    fn lock(&self) -> MutexGuard<'_, Tunnels> {
        self.tunnels.lock().unwrap()
    }
}

impl Tunnels {
    /// A tunnel of this number.
    fn open(&mut self, number: u32) {
        self.0.insert(
            number,
            Tunnel {
                incoming: ReceiveWindow::new(number),
                outgoing: SendWindow::new(number),
                arrived: Vec::new(),
                owed: 0,
                is_connected: false,
                closed: None,
                is_left: false,
            },
        );
    }

    /// How many more clients may come.
    fn room(&self, clients: usize) -> usize {
        let left = self.0.values().filter(|tunnel| tunnel.is_left).count();
        MAX_TUNNELS.saturating_sub(clients + left)
    }
}

impl Tunnel {
    /// At most so many of the bytes that came, and the credit that is due for them.
    fn take(&mut self, most: usize) -> (Vec<u8>, Option<Credit>) {
        let rest = self.arrived.split_off(self.arrived.len().min(most));
        let taken = std::mem::replace(&mut self.arrived, rest);
        self.owed += taken.len() as u64;
        let is_due = self.owed >= CREDIT_STEP && !self.incoming.is_ended() && self.closed.is_none();
        (taken, is_due.then(|| self.incoming.consumed(std::mem::take(&mut self.owed))))
    }

    /// Whether all that will ever come has been taken.
    fn is_drained(&self) -> bool {
        self.incoming.is_ended() && self.arrived.is_empty()
    }
}
