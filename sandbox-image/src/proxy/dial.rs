//! A connection to the sandbox's loopback, while it is being made.
//!
//! Only `127.0.0.1` is tried, and `::1` where nothing listens there. The thread that serves all
//! connections makes it, and never blocks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use sandbox_protocol::limits::{DIAL_TIMEOUT, FIRST_DIAL, FIRST_TUNNEL};
use sandbox_protocol::{ErrorKind, WireError};

/// Whether a tunnel of this number was dialled.
pub const fn is_one(number: u32) -> bool {
    FIRST_DIAL <= number && number < FIRST_TUNNEL
}

/// A connection that is being made.
pub struct Dialling {
    /// The request that it answers.
    pub id: u64,
    pub tunnel: u32,
    /// When it fails.
    pub until: Instant,
    address: SocketAddr,
}

impl Dialling {
    pub fn new(id: u64, tunnel: u32, port: u16) -> Self {
        let address = (Ipv4Addr::LOCALHOST, port).into();
        Self { id, tunnel, until: Instant::now() + DIAL_TIMEOUT, address }
    }

    /// A socket for the connection, which [`advance`](Self::advance) connects.
    pub fn socket(&self) -> Result<TcpStream, WireError> {
        let family = match self.address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None);
        socket.map(TcpStream::from).map_err(|errno| self.failed(errno))
    }

    /// Does what can be done now: whether it is connected. The socket may be another one after that.
    pub fn advance(&mut self, socket: &mut TcpStream) -> Result<bool, WireError> {
        loop {
            // Called again for a socket that connects, it says how far that is.
            match connect(&*socket, &self.address) {
                Ok(()) | Err(Errno::ISCONN) if is_to_itself(socket) => {
                    return Err(self.failed(Errno::CONNREFUSED));
                }
                Ok(()) | Err(Errno::ISCONN) => return Ok(true),
                Err(Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => return Ok(false),
                Err(Errno::CONNREFUSED) if self.address.is_ipv4() => {
                    self.address = (Ipv6Addr::LOCALHOST, self.address.port()).into();
                    *socket = self.socket()?;
                }
                Err(errno) => return Err(self.failed(errno)),
            }
        }
    }

    /// The answer if its time is over.
    pub fn late(&self) -> WireError {
        let port = self.address.port();
        WireError::new(
            ErrorKind::Timeout,
            format!("what listens on port {port} accepts no connection"),
        )
    }

    fn failed(&self, errno: Errno) -> WireError {
        let port = self.address.port();
        match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN => {
                WireError::busy(format!("no socket: {}", io::Error::from(errno)))
            }
            // There may be no IPv6.
            _ => WireError::new(ErrorKind::NotFound, format!("nothing listens on port {port}")),
        }
    }
}

/// Where nothing listens on a port of those that the kernel gives to clients, a socket may be given that
/// very port, and then it connects to itself.
fn is_to_itself(socket: &TcpStream) -> bool {
    match (socket.local_addr(), socket.peer_addr()) {
        (Ok(local), Ok(peer)) => local == peer,
        _ => false,
    }
}
