//! Previews: hosts at which a browser or a program reaches a port of a sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::service::Time;

/// A preview to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PreviewRequest {
    /// For how long it is valid, in milliseconds: an hour by default, and at most until the sandbox ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_ms: Option<u64>,
    /// Whether its URL is enough to use it: the URL has the token then. The server has to allow it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub public: bool,
}

/// A preview of a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Preview {
    /// Where it is.
    pub url: String,
    /// What requests have in the header `Sandbox-Port-Token`; null for a public one.
    pub token: Option<String>,
    /// Until when it is valid.
    pub expires_at: Time,
}

/// The header with the token of a preview.
pub const PORT_TOKEN: &str = "sandbox-port-token";

/// What a connection becomes that is a tunnel to a port: the bytes follow as they are.
pub const TCP_PROTOCOL: &str = "sandboxctl-tcp";
