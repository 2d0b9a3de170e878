//! What is remembered of an engine between commands.

use std::fs;
use std::path::{Path, PathBuf};

/// What the names of caches begin with.
pub const CACHE_PREFIX: &str = "image-";

/// A text that is remembered between commands, where that can be. Only speed is lost without it.
#[derive(Debug)]
pub struct Cache(PathBuf);

impl Cache {
    /// The cache called `key` in the state folder at `state_dir`.
    pub fn new(state_dir: &Path, key: &str) -> Self {
        Self(state_dir.join(format!("{CACHE_PREFIX}{key}")))
    }

    /// What was remembered.
    #[must_use]
    pub fn read(&self) -> Option<String> {
        fs::read_to_string(&self.0).ok().filter(|text| !text.is_empty())
    }

    /// Remembers this.
    pub fn write(&self, text: &str) {
        // Renamed into place, so that no other process reads half of it.
        let part = self.0.with_extension(std::process::id().to_string());
        let written = fs::write(&part, text).and_then(|()| fs::rename(&part, &self.0));
        if let Err(error) = written {
            tracing::debug!(%error, path = %self.0.display(), "cannot write the cache");
        }
    }

    /// Forgets it.
    pub fn remove(&self) {
        _ = fs::remove_file(&self.0);
    }
}
