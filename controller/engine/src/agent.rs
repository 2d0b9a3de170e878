//! The agent's executable: embedded in this library, or read from a file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::config::AgentSource;
use crate::error::AgentError;

include!(concat!(env!("OUT_DIR"), "/programs.rs"));

/// The agent to use. Cheap to clone.
#[derive(Debug, Clone)]
pub enum Agent {
    /// The agent that was built with this crate.
    Embedded,
    /// An agent from a file.
    File {
        /// The executable.
        bytes: Arc<[u8]>,
        /// Its digest, in hex.
        sha256: Arc<str>,
    },
}

impl Agent {
    /// Loads the agent to use.
    ///
    /// # Errors
    ///
    /// [`AgentError`] if the file cannot be read, or is not an executable.
    pub fn open(source: &AgentSource) -> Result<Self, AgentError> {
        match source {
            AgentSource::Embedded => Ok(Self::Embedded),
            AgentSource::File(path) => {
                Self::read(path).map_err(|source| AgentError { path: path.clone(), source })
            }
        }
    }

    fn read(path: &Path) -> std::io::Result<Self> {
        let bytes = fs::read(path)?;
        if !bytes.starts_with(b"\x7fELF") {
            return Err(std::io::Error::other("it is not a program"));
        }
        let sha256 = sandbox_dirfd::hex(&Sha256::digest(&bytes)).into();
        Ok(Self::File { bytes: bytes.into(), sha256 })
    }

    /// The executable.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Embedded => AGENT,
            Self::File { bytes, .. } => bytes,
        }
    }

    /// Its digest, in hex.
    pub fn sha256(&self) -> &str {
        match self {
            Self::Embedded => AGENT_SHA256,
            Self::File { sha256, .. } => sha256,
        }
    }
}
