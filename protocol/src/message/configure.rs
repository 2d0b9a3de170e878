//! Limits and policy of a sandbox.

use serde::{Deserialize, Serialize};

use super::exec::Variable;

/// `configure`: limits and policy of the sandbox for its lifetime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    /// The limits.
    pub limits: Limits,
    /// The policy.
    pub policy: Policy,
    /// The authority of the connections that the controller terminates, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<Box<Ca>>,
}

/// Where systems have the certificates of authorities: Debian and Alpine, Fedora (two), openSUSE, others.
pub const CA_FILES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The certificate authority of a sandbox, which commands are to trust.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ca {
    /// Its certificate, as PEM.
    pub certificate: String,
    /// Variables of every command that does not set them itself: what stands for secrets that the controller
    /// adds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variables: Vec<Variable>,
}

/// Limits that the agent enforces, for the lifetime of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of the Luau VM.
    pub vm_memory_bytes: u64,
    /// Bytes written to files, including overwritten bytes and holes.
    pub write_bytes: u64,
    /// Files and directories created.
    pub entries: u64,
    /// Size of a file that one file operation reads or writes in full.
    pub file_bytes: u64,
    /// File handles open at one time.
    pub open_handles: u64,
    /// Encoded bytes of all log entries together.
    pub log_bytes: u64,
    /// Number of log entries.
    pub log_lines: u64,
    /// Encoded bytes of a run's result.
    pub result_bytes: u64,
    /// Entries of one list.
    pub list_entries: u64,
    /// Depth of one recursive list.
    pub list_depth: u64,
    /// Timeout of one file operation.
    pub operation_timeout_ms: u64,
    /// Bytes of a command's output, stdout and stderr together.
    pub output_bytes: u64,
    /// Bytes per output stream that a script's `process.exec` keeps.
    pub collected_bytes: u64,
    /// Disk reserve: bytes that the agent's writes leave free on the file system.
    pub disk_reserve_bytes: u64,
    /// CPU time of the agent's process, and of each command, since its start (`RLIMIT_CPU`). Null
    /// for no limit.
    pub cpu_seconds: Option<u64>,
}

/// What the sandbox allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Whether scripts can use files at all.
    pub io: bool,
    /// How `io` reports OS errors.
    pub io_errors: IoErrors,
    /// The allowed guest path prefixes, compared by component.
    pub allowed_paths: Vec<AllowedPath>,
    /// Names that cannot be written in any directory: `.bashrc`, `.git/hooks`.
    pub protected: Vec<String>,
    /// Where file operations may go.
    #[serde(default, skip_serializing_if = "FileScope::is_default")]
    pub files: FileScope,
}

/// Where the file operations of a sandbox may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FileScope {
    /// To the io dir and the inputs. No link is followed.
    #[default]
    Io,
    /// Wherever a program of the sandbox may go. Links are followed inside the container.
    All,
}

impl FileScope {
    /// Whether it is the usual one.
    pub const fn is_default(&self) -> bool {
        matches!(self, Self::Io)
    }
}

/// How `io` reports OS errors. A broken rule of the sandbox always raises an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum IoErrors {
    /// Raises an error, as `error` does.
    #[default]
    Raise,
    /// Returns `nil, message, errno`, as standard Lua does.
    Return,
}

/// A guest path prefix and the access allowed below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AllowedPath {
    /// A guest path.
    pub path: String,
    /// Read-only, or read and write.
    pub access: Access,
}

/// Read-only, or read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Read-only.
    Read,
    /// Read and write.
    Write,
}
