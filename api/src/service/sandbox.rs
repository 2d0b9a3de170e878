//! Sandboxes that are kept.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::request::{Content, NetworkRequest};
use super::time::Time;
use crate::limits::LimitsRequest;

/// A sandbox to create, or the one of this name if its spec is the same.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxRequest {
    /// A name of the caller's own; without one it is always a new sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What it is.
    pub spec: KeptSpec,
    /// For how long it exists at most, in milliseconds; it can be extended up to the server's limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// For how long its processes exist without use, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// Members of the caller's own, which are kept and given back.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// What a kept sandbox is. Its io dir is its own, and outlives its processes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KeptSpec {
    /// The image that commands run in; without one it runs scripts and file operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The limits that differ from the server's defaults.
    #[serde(skip_serializing_if = "LimitsRequest::is_empty")]
    pub limits: LimitsRequest,
    /// Read-only files at `/in/NAME`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Content>,
    /// The network of commands.
    #[serde(skip_serializing_if = "NetworkRequest::is_none")]
    pub network: NetworkRequest,
    /// The path of its io dir in it; by default `/io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The working directory, to which relative paths are resolved; by default the io dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// A directory of the host in place of its own io dir, by its absolute path. Only the private
    /// service of a program on the same host takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub host_dir: Option<String>,
}

/// For how long a sandbox is to exist from now on, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExtendRequest {
    /// Never past the longest life that was fixed at its creation; never shorter than before.
    pub ttl_ms: u64,
}

/// The state of a kept sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SandboxStatus {
    /// Its container is being started.
    Starting,
    /// Its container is there.
    Ready,
    /// It has no container, and its files are kept: the next use starts a new generation.
    Stopped,
}

/// A kept sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxView {
    /// Its id.
    pub id: String,
    /// The name that its creator gave it.
    pub name: Option<String>,
    /// The number of its container, from 1: processes of an earlier one are gone.
    pub generation: u64,
    /// Its state.
    pub status: SandboxStatus,
    /// What it is.
    pub spec: KeptSpec,
    /// When it was created.
    pub created_at: Time,
    /// When it was last used. Reading a sandbox does not count as use.
    pub last_used_at: Time,
    /// When it ends, unless it is extended.
    pub expires_at: Time,
    /// Until when it can be extended.
    pub max_expires_at: Time,
    /// When its container ends, unless it is used; null while it has none.
    pub idle_at: Option<Time>,
    /// The members of its creator's own.
    pub metadata: Map<String, Value>,
    /// Whether the node of the cluster that has it is not there: it can be deleted, and not be used.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub node_away: bool,
}

/// A kept sandbox, and the generation that is meant, if one is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxRef {
    /// Its id.
    pub id: String,
    /// The generation; `None` for whichever there is.
    pub generation: Option<u64>,
}

/// A subject's kept sandboxes, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxList {
    /// The sandboxes.
    pub sandboxes: Vec<SandboxView>,
}
