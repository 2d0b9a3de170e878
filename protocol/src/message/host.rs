//! Calls of scripts to the host: the agent asks, the controller decides and answers.
//!
//! ```text
//!   agent                                         controller
//!     │ call {request, call, target, …} ────────▶   │ holds it against what the run was given, calls
//!     │ ◀─── call_result {request, call, end, …}    │ a request, which the agent answers at once
//! ```
//!
//! A script waits for each of its calls: there is one at a time. If the run ends first, the call is
//! cancelled, and no result follows.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::{Base64, ErrorKind};

/// `call`: a script calls the host. From the agent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostCall {
    /// The id of the `run`. It has not been answered yet.
    pub request: u64,
    /// A number of the agent's, for the result.
    pub call: u32,
    /// What is called.
    pub target: CallTarget,
    /// The tool, or the words that are searched for; at most
    /// [`MAX_TOOL_NAME_BYTES`](crate::limits::MAX_TOOL_NAME_BYTES).
    pub name: String,
    /// The arguments of the tool, an object; at most
    /// [`MAX_TOOL_ARGUMENT_BYTES`](crate::limits::MAX_TOOL_ARGUMENT_BYTES).
    pub arguments: Box<RawValue>,
}

crate::words! {
    /// What a script calls.
    pub enum CallTarget {
        /// A tool: `tools.NAME.TOOL{…}`.
        Tool = "tool",
        /// The search for tools: `tools.search(words)`.
        Search = "search",
        /// The description of a tool: `tools.describe(name)`.
        Describe = "describe",
        /// What the sandbox may reach: `policy()`.
        Policy = "policy",
    }
}

/// `call_result`: how a call ended. From the controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallResult {
    /// The id of the `run`.
    pub request: u64,
    /// The number of the call.
    pub call: u32,
    /// How it ended.
    pub end: CallEnd,
    /// Files that belong to the result: at most [`MAX_TOOL_FILES`](crate::limits::MAX_TOOL_FILES),
    /// with [`MAX_TOOL_FILE_BYTES`](crate::limits::MAX_TOOL_FILE_BYTES) together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<CallFile>,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CallEnd {
    /// With a value of at most [`MAX_TOOL_VALUE_BYTES`](crate::limits::MAX_TOOL_VALUE_BYTES) of
    /// JSON, nested at most as deep as [`MAX_VALUE_DEPTH`](crate::limits::MAX_VALUE_DEPTH).
    Value(Value),
    /// With an error, which the script gets as text.
    Failed {
        /// `runtime` if the tool itself failed; otherwise what the script's error becomes if it is
        /// not caught.
        kind: ErrorKind,
        /// The text, at most [`MAX_MESSAGE_BYTES`](crate::limits::MAX_MESSAGE_BYTES) encoded.
        message: String,
    },
}

/// A file of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallFile {
    /// Its name, without a directory: ASCII letters, digits and `._-`, at most
    /// [`MAX_TOOL_FILE_NAME_BYTES`](crate::limits::MAX_TOOL_FILE_NAME_BYTES).
    pub name: String,
    /// Its media type, of printable ASCII and the same length.
    pub mime_type: String,
    /// Its content.
    pub data: Base64,
}
