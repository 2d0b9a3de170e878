//! Sandboxes that are kept.

use std::collections::BTreeMap;

use sandbox_protocol::message::FileScope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::request::{Content, NetworkRequest};
use super::time::Time;
use crate::limits::LimitsRequest;
use crate::ports::Ports;
use crate::spec::Processes;

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
    /// For how long its container exists without use, in milliseconds. A process that was started and
    /// has not ended is a use, unless `idle` is `freeze`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ms: Option<u64>,
    /// What happens then.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub idle: IdleAction,
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
    #[serde(skip_serializing_if = "crate::is_default")]
    pub limits: LimitsRequest,
    /// Read-only files at `/in/NAME`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Content>,
    /// The network of commands.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub network: NetworkRequest,
    /// The path of its io dir in it; by default `/io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The working directory, to which relative paths are resolved; by default the io dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Whether processes can be started that live on after the request: `kept`.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub processes: Processes,
    /// The TCP ports of its loopback that may be connected to from outside: a list, or `any`. Its image
    /// has programs then.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub ports: Ports,
    /// Where file operations may go: `io`, its io dir and inputs, or `all`, wherever its programs may. Its
    /// image has programs then.
    #[serde(skip_serializing_if = "FileScope::is_default")]
    pub files: FileScope,
    /// The name of what the server has prepared: a process that runs before the sandbox is asked for. Its
    /// image is the sandbox's, and its processes are kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepared: Option<String>,
    /// Environment variables of every command and process, which may replace them. They are stored and
    /// given back: what is secret is a secret of a request.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Content>,
    /// A directory of the host in place of its own io dir, by its absolute path. Only the private
    /// service of a program on the same host takes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(skip)]
    pub host_dir: Option<String>,
}

/// What happens to a sandbox that nothing has used for its idle time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IdleAction {
    /// Its container ends, and its files are kept.
    #[default]
    Stop,
    /// It is frozen with its processes, which get no processor time until the next use and keep their
    /// memory. Where too many are frozen, it is as with `stop`.
    Freeze,
}

/// What changes of a sandbox.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SandboxPatch {
    /// For how long it is to exist from now on, in milliseconds: longer or shorter than before, and
    /// never past the longest life that was fixed at its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Its new metadata, all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Map<String, Value>>,
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
    #[serde(alias = "running")]
    Ready,
    /// Its container is there, and is frozen: the next use thaws it.
    Paused,
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
    /// When its container ends, or is frozen, unless it is used; null while it is in use, and without one.
    pub idle_at: Option<Time>,
    /// What happens then.
    #[serde(default)]
    pub idle: IdleAction,
    /// How many processes have been started in its generation and have not ended; null if it is at another
    /// node.
    #[serde(default)]
    pub processes: Option<u64>,
    /// The bytes of memory that it had when it was paused, which it keeps meanwhile; of a paused one alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_memory: Option<u64>,
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

/// A page of a list of a subject's kept sandboxes, the latest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxList {
    /// The sandboxes.
    pub sandboxes: Vec<SandboxView>,
    /// The `cursor` of the next page; null on the last one.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_is_written_as_it_was_read_and_without_what_is_not_asked_for() {
        assert_eq!(serde_json::to_value(SandboxRequest::default()).unwrap(), json!({ "spec": {} }));
        let full = json!({
            "spec": { "image": "debian", "processes": "kept", "env": { "A": "1" } },
            "idle": "freeze",
        });
        let request: SandboxRequest = serde_json::from_value(full.clone()).unwrap();
        assert_eq!((request.spec.processes, request.idle), (Processes::Kept, IdleAction::Freeze));
        assert_eq!(serde_json::to_value(&request).unwrap(), full);
        for wrong in [json!({ "idle": "sleep" }), json!({ "spec": { "processes": true } })] {
            assert!(serde_json::from_value::<SandboxRequest>(wrong).is_err());
        }
    }
}
