//! The sandbox image, as callers see it.

use std::time::SystemTime;

use serde::{Serialize, Serializer};

use crate::config::EngineKind;

/// A sandbox image that an engine has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageInfo {
    /// The engine's id of it.
    pub id: String,
    /// Which engine has it.
    pub engine: EngineKind,
    /// The sha256 of the agent in it; empty where its label is missing.
    pub agent: String,
    /// When it was made, in seconds since 1970.
    #[serde(serialize_with = "unix_seconds")]
    pub created: SystemTime,
    /// Its size in bytes.
    pub size: u64,
    /// Whether it is the one that this controller uses.
    pub current: bool,
}

/// Which image to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSelector {
    /// The one with this id, or the start of it.
    Id(String),
    /// All but the current one.
    Stale,
    /// All.
    All,
}

/// Whether an image that is there already is built again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rebuild {
    /// Only where it is missing.
    IfMissing,
    /// In any case.
    Always,
}

/// Seconds since 1970, as the documents have times.
pub(crate) fn unix_seconds<S: Serializer>(time: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(seconds(*time))
}

/// Seconds since 1970; 0 for what is before.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
