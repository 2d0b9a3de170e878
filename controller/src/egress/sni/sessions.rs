//! The TLS sessions that servers have issued to a sandbox, each for a name.
//!
//! Up to TLS 1.2, a client that resumes a session gets the name for which that was begun, whatever
//! name its ClientHello has: so a session passes only for the name with which it was seen to begin.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox_api::hosts::Host;
use sha2::{Digest, Sha256};

/// How many are known: the last ones.
const MAX_SESSIONS: usize = 1024;

/// The name that a session is for, and the digest of its id or ticket.
type Known = (Host, [u8; 32]);

/// Those of a sandbox, for all of its connections.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions(Arc<Mutex<VecDeque<Known>>>);

impl Sessions {
    /// Adds a session that a server has issued for this name, by its id or ticket.
    pub fn add(&self, host: &Host, session: &[u8]) {
        let known: Known = (host.clone(), Sha256::digest(session).into());
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if session.is_empty() || sessions.contains(&known) {
            return;
        }
        if sessions.len() == MAX_SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back(known);
    }

    /// Whether it was issued for this name.
    pub fn has(&self, host: &Host, session: &[u8]) -> bool {
        let digest: [u8; 32] = Sha256::digest(session).into();
        let sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sessions.iter().any(|(name, known)| name == host && *known == digest)
    }
}
