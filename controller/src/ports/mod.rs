//! Ports of a sandbox's loopback: connections to them, and what listens there.
//!
//! A connection is a tunnel through the agent, which connects to the loopback and nowhere else. Which
//! ports may be reached is decided here, by the sandbox's spec.

mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_api::PortList;
use sandbox_protocol::ErrorKind;
use sandbox_protocol::limits::{DIAL_TIMEOUT, MAX_DIALS, MAX_LISTENING};
use sandbox_protocol::message::ListPorts;
use sandbox_session::Tunnel;

pub use self::stream::PortStream;
use crate::audit::{Connection, Event};
use crate::error::Error;
use crate::sandbox::idle::Active;
use crate::sandbox::{Inner, Sandbox, detached};

/// How long the agent may take for an answer beyond the time that it has.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

const UNANSWERED: &str = "a request about its ports was not answered";

impl Sandbox {
    /// Connects to a TCP port of its loopback. While the connection is open, the sandbox is in use, and
    /// silent while it is paused.
    ///
    /// # Errors
    ///
    /// [`Error::PortNotListed`], [`Error::PortClosed`], [`Error::TooMany`]; [`Error`] if the sandbox is
    /// paused or has ended.
    pub async fn dial(&self, port: u16) -> Result<PortStream, Error> {
        // What a caller gives up is closed, too.
        detached(self.inner().clone().dial(port)).await
    }

    /// The TCP sockets that listen in it.
    ///
    /// # Errors
    ///
    /// [`Error`] if it runs no programs, is paused, or has ended.
    pub async fn listening_ports(&self) -> Result<PortList, Error> {
        let inner = self.inner();
        let _active = inner.begin_with_ports()?;
        let asked = inner.session.call(ListPorts {});
        let ports = inner.answered(ANSWER_TIMEOUT, UNANSWERED, asked).await?.listening;
        if ports.len() > MAX_LISTENING {
            inner.session.breach("it lists too many ports");
            return Err(inner.why_ended().await);
        }
        Ok(PortList { ports })
    }
}

impl Inner {
    /// Begins a use of its ports, if it can be used.
    fn begin_with_ports(&self) -> Result<Active, Error> {
        if !self.supports_exec {
            return Err(Error::ExecUnsupported);
        }
        let active = self.activity.begin();
        self.refusal().map_or(Ok(active), Err)
    }

    async fn dial(self: Arc<Self>, port: u16) -> Result<PortStream, Error> {
        if !self.ports.allows(port) {
            return Err(Error::PortNotListed { port });
        }
        let began = Instant::now();
        let active = self.begin_with_ports()?;
        match self.connect(port).await {
            Ok(tunnel) => {
                let inner = self.clone();
                let ended = move |bytes, outcome: &str| {
                    inner.record_dial(port, outcome, Some(bytes), began.elapsed());
                    drop(active);
                };
                Ok(PortStream::new(tunnel, ended))
            }
            Err(error) => {
                self.record_dial(port, error.kind().as_str(), None, began.elapsed());
                Err(error)
            }
        }
    }

    async fn connect(&self, port: u16) -> Result<Tunnel, Error> {
        let asked = self.session.dial(port);
        let tunnel = match self.answered(DIAL_TIMEOUT + ANSWER_TIMEOUT, UNANSWERED, asked).await {
            Err(Error::Refused { source }) => match source.kind() {
                ErrorKind::NotFound | ErrorKind::NotAllowed | ErrorKind::Timeout => {
                    return Err(Error::PortClosed { port });
                }
                ErrorKind::Busy => None,
                _ => return Err(Error::Refused { source }),
            },
            answer => answer?,
        };
        tunnel.ok_or(Error::TooMany { most: MAX_DIALS, what: "connections" })
    }

    fn record_dial(&self, port: u16, outcome: &str, bytes: Option<u64>, took: Duration) {
        self.audit().record(&Event {
            outcome,
            bytes,
            duration: Some(took),
            connection: Some(Connection {
                target: &format!("localhost:{port}"),
                address: None,
                reason: None,
            }),
            ..Event::new(self.id(), "port.dial")
        });
    }
}
