//! Lists of images.

use std::time::SystemTime;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::EngineKind;
use crate::time::unix_seconds;

/// A sandbox image of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageInfo {
    /// The engine's id of the image.
    pub id: String,
    /// The kind of engine that has it.
    pub engine: EngineKind,
    /// The sha256 of the agent in it; empty if the label is missing.
    pub agent: String,
    /// When it was created, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub created: SystemTime,
    /// Its size in bytes.
    pub size: u64,
    /// Whether this controller uses it.
    pub current: bool,
}

/// What programs can run in: an image of Docker's, or an unpacked archive of the embedded engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProgramImage {
    /// Its id: the engine's, or the name in the cache.
    pub id: String,
    /// The kind of engine that has it.
    pub engine: EngineKind,
    /// Its names; an unpacked archive has none.
    pub names: Vec<String>,
    /// When it was created, or an unpacked archive last used, in seconds since 1970.
    #[serde(with = "unix_seconds")]
    #[schemars(with = "u64")]
    pub since: SystemTime,
    /// Its size in bytes.
    pub size: u64,
}
