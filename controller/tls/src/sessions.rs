//! The TLS sessions that servers have issued to a sandbox, each for a name and port.
//!
//! Up to TLS 1.2, a client that resumes a session reaches the name with which the session started,
//! regardless of the name in its ClientHello: so a session passes only for the name with which it
//! was seen to start.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandbox_api::hosts::Host;
use sha2::{Digest, Sha256};

/// The maximum number of known sessions: the ones used last.
const MAX_SESSIONS: usize = 4096;

/// What a session is resumed by. A server that issues no tickets ignores one, and takes the id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session<'a> {
    Id(&'a [u8]),
    Ticket(&'a [u8]),
}

/// The name and port that a session is for, and the digest of its id or ticket.
type Known = (Host, u16, [u8; 32]);

/// The sessions of a sandbox, for all of its connections.
#[derive(Debug, Clone, Default)]
pub struct Sessions(Arc<Mutex<VecDeque<Known>>>);

impl Sessions {
    /// Adds a session that a server has issued; an empty id or ticket does not count.
    pub(crate) fn add(&self, host: &Host, port: u16, session: Session<'_>) {
        let known = known(host, port, session);
        let mut sessions = self.lock();
        let (Session::Id(bytes) | Session::Ticket(bytes)) = session;
        if bytes.is_empty() || renew(&mut sessions, &known) {
            return;
        }
        if sessions.len() == MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back(known);
    }

    /// Whether it was issued by this host, on this port. If so, marks it as used last.
    pub(crate) fn has(&self, host: &Host, port: u16, session: Session<'_>) -> bool {
        renew(&mut self.lock(), &known(host, port, session))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn known(host: &Host, port: u16, session: Session<'_>) -> Known {
    let (kind, bytes) = match session {
        Session::Id(bytes) => (b"i", bytes),
        Session::Ticket(bytes) => (b"t", bytes),
    };
    (host.clone(), port, Sha256::new().chain_update(kind).chain_update(bytes).finalize().into())
}

/// Marks a session as used last; whether it is known.
fn renew(sessions: &mut VecDeque<Known>, known: &Known) -> bool {
    let Some(at) = sessions.iter().position(|it| it == known) else { return false };
    let known = sessions.remove(at);
    sessions.extend(known);
    true
}
