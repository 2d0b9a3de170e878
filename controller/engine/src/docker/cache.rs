//! Facts about an engine that are cached between commands.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// The prefix of the names of cache files.
pub const CACHE_PREFIX: &str = "image-";

/// A text that is cached between commands, if possible. Without it, only speed is lost.
#[derive(Debug)]
pub struct Cache(PathBuf);

impl Cache {
    /// The cache of what has this name, however long, in the state directory `state_dir`.
    pub fn new(state_dir: &Path, name: &str) -> Self {
        let key = sandbox_dirfd::hex(&Sha256::digest(name)[..8]);
        Self(state_dir.join(format!("{CACHE_PREFIX}{key}")))
    }

    /// Reads the cached text.
    pub fn read(&self) -> Option<String> {
        fs::read_to_string(&self.0).ok().filter(|text| !text.is_empty())
    }

    /// Caches this text.
    pub fn write(&self, text: &str) {
        // Renamed into place, so that no other process reads an incomplete file.
        let part = self.0.with_extension(std::process::id().to_string());
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &self.0));
        if let Err(error) = written {
            tracing::debug!(%error, path = %self.0.display(), "cannot write the cache");
        }
    }

    /// Removes the cached text.
    pub fn remove(&self) {
        _ = fs::remove_file(&self.0);
    }
}
