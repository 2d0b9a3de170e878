//! Where a service listens: at its configured address, or at the sockets that its service manager
//! passed to it.

use std::net::TcpListener;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;

use rustix::net::AddressFamily;
use sandbox_http::{Endpoint, Listener};

use super::own;
use crate::config::{Key, Settings};
use crate::error::{Error, causes};

/// The sockets of a service.
pub struct Listening(Vec<(Listener, Endpoint)>);

impl Listening {
    /// Takes the sockets that a service manager has passed; without any, listens at these addresses.
    ///
    /// # Errors
    ///
    /// If something else listens there, or what was passed cannot be used.
    pub fn passed_or_at(endpoints: &[Endpoint], settings: &Settings) -> Result<Self, Error> {
        let unusable = |source| Error::System { what: "LISTEN_FDS".to_owned(), source };
        let passed: Vec<RawFd> = sd_notify::listen_fds().map_err(unusable)?.collect();
        if passed.is_empty() {
            return Self::at(endpoints, settings);
        }
        // SAFETY: the service manager opened it for this process alone (LISTEN_PID), and it is adopted
        // once, before anything else could close it.
        let passed = passed.into_iter().map(|fd| adopt(unsafe { OwnedFd::from_raw_fd(fd) }));
        let adopted = passed.collect::<std::io::Result<Vec<_>>>().map_err(unusable)?;
        Ok(Self::of(adopted, endpoints))
    }

    /// Takes the socket that the command has passed which started this one.
    ///
    /// # Errors
    ///
    /// If stdin is not a listening socket.
    pub fn passed_as_stdin(endpoints: &[Endpoint]) -> Result<Self, Error> {
        let adopted = own::passed_listener().and_then(adopt);
        let failed = |source| Error::System { what: "the socket on stdin".to_owned(), source };
        Ok(Self::of(vec![adopted.map_err(failed)?], endpoints))
    }

    /// Listens at these addresses.
    ///
    /// # Errors
    ///
    /// If something else listens there.
    pub fn at(endpoints: &[Endpoint], settings: &Settings) -> Result<Self, Error> {
        let bind = |endpoint| {
            Listener::bind(endpoint).map_err(|error| {
                Error::usage(settings.named(Key::ServerListen), causes(&error))
                    .with_hint_of(error.hint())
            })
        };
        let bound = endpoints.iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        Ok(Self::of(bound, endpoints))
    }

    fn of(listeners: Vec<Listener>, endpoints: &[Endpoint]) -> Self {
        let with_endpoint = |listener: Listener| {
            let endpoint = listener.endpoint().unwrap_or_else(|| endpoints[0].clone());
            (listener, endpoint)
        };
        Self(listeners.into_iter().map(with_endpoint).collect())
    }

    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.0.iter().map(|(_, endpoint)| endpoint)
    }

    /// Whether there are UNIX sockets alone, whose callers the kernel names.
    pub fn is_local(&self) -> bool {
        self.endpoints().all(|endpoint| matches!(endpoint, Endpoint::Unix(_)))
    }

    /// Whether other machines cannot connect.
    pub fn is_loopback(&self) -> bool {
        self.endpoints().all(|endpoint| match endpoint {
            Endpoint::Tcp(address) => address.ip().is_loopback(),
            Endpoint::Unix(_) => true,
        })
    }

    /// Refuses an address that other machines can reach.
    ///
    /// # Errors
    ///
    /// If one of the sockets is open to them.
    pub fn refuse_others(&self) -> Result<(), Error> {
        if self.is_loopback() {
            return Ok(());
        }
        let why = "other machines can connect there, and would all be let in";
        Err(Error::usage("--insecure-no-auth", why).with_hint(
            "it is for addresses such as 127.0.0.1:8470; `sandboxctl token create` makes a token",
        ))
    }

    pub fn into_listeners(self) -> Vec<Listener> {
        self.0.into_iter().map(|(listener, _)| listener).collect()
    }
}

/// A socket that was passed to this process.
fn adopt(socket: OwnedFd) -> std::io::Result<Listener> {
    let address = rustix::net::getsockname(&socket)?;
    match address.address_family() {
        AddressFamily::UNIX => Listener::from_unix(UnixListener::from(socket)),
        AddressFamily::INET | AddressFamily::INET6 => Listener::from_tcp(TcpListener::from(socket)),
        family => Err(std::io::Error::other(format!("a socket of another kind: {family:?}"))),
    }
}
