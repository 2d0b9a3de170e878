//! Requests of executions.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use sandbox_protocol::WireString;
use sandbox_protocol::message::{IoErrors, SignalName};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::limits::LimitsRequest;
use crate::secrets::SecretValue;

/// An execution to queue: a script or a command, in a sandbox of its own.
///
/// Its secrets are read, and never written: a stored request has none.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = exactly_one(["script", "command"])))]
pub struct ExecutionRequest {
    /// The source code of a Luau script. Exactly one of `script` and `command` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<Content>,
    /// A command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<CommandRequest>,
    /// The signal that asks a command to end, before what is left of it is killed; by default `TERM`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<SignalName>,
    /// The script's `args`.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub args: Map<String, Value>,
    /// The seed of the script's `math.random`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u32>,
    /// The script's time in seconds since 1970, which stands still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub now: Option<u64>,
    /// The image that commands run in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The limits that differ from the server's defaults.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub limits: LimitsRequest,
    /// Read-only files at `/in/NAME`, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Content>,
    /// The io dir.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub io: IoRequest,
    /// The network of commands.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub network: NetworkRequest,
    /// Secrets: `secrets.NAME` of a script, environment variables of a command.
    #[serde(skip_serializing)]
    pub secrets: RequestSecrets,
    /// Members of the caller's own, which are kept and given back.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// In a schema: one of these members is given, and no other.
fn exactly_one(members: [&str; 2]) -> Vec<Value> {
    let given = |name: &str| json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } });
    members.map(given).to_vec()
}

/// A command: exactly one of `program` and `shell`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(extend("oneOf" = exactly_one(["program", "shell"])))]
pub struct CommandRequest {
    /// A path in the sandbox, or a name to search in the `PATH` there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<Content>,
    /// The program's arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<Content>,
    /// A line for `/bin/sh -c` of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Content>,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Content>,
    /// The working directory; by default the io dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<Content>,
    /// The stdin; by default empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Content>,
}

/// Bytes: in JSON a string, or `{"b64": "…"}` where they are not UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "WireString", into = "WireString")]
pub struct Content(pub Vec<u8>);

impl Content {
    /// As text, if they are UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl From<WireString> for Content {
    fn from(bytes: WireString) -> Self {
        Self(bytes.into_bytes())
    }
}

impl From<Content> for WireString {
    fn from(content: Content) -> Self {
        content.0.into()
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Content {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// Without the bytes, which may be many.
impl fmt::Debug for Content {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes", self.0.len())
    }
}

impl JsonSchema for Content {
    fn schema_name() -> Cow<'static, str> {
        WireString::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        WireString::json_schema(generator)
    }
}

/// The io dir of an execution.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct IoRequest {
    /// Which one; by default what the server has for scripts, and a private one for commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<IoMode>,
    /// Its path in the sandbox; by default `/io`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_path: Option<String>,
    /// The working directory, to which relative paths are resolved; by default the io dir.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// How a script's `io` reports OS errors: `raise` or `return`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<IoErrors>,
}

/// Which io dir an execution has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum IoMode {
    /// None.
    Off,
    /// One of its own, whose files are kept with the result.
    Private,
    /// The one that the server shares among executions.
    Shared,
}

/// The hosts that commands may reach; none by default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkRequest {
    /// Rules as of `--allow`: `HOST[:PORT]`.
    pub allow: Vec<String>,
}

/// Secrets by name, as a request gives them: not yet checked. `Debug` does not show them, and they
/// are never serialized.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RequestSecrets(pub BTreeMap<String, SecretValue>);

impl RequestSecrets {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for RequestSecrets {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_set().entries(self.0.keys()).finish()
    }
}

impl<'de> Deserialize<'de> for RequestSecrets {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let contents = BTreeMap::<String, Content>::deserialize(deserializer)?;
        Ok(Self(contents.into_iter().map(|(name, it)| (name, SecretValue::new(it.0))).collect()))
    }
}

impl JsonSchema for RequestSecrets {
    fn schema_name() -> Cow<'static, str> {
        "Secrets".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let content = generator.subschema_for::<Content>();
        json_schema!({
            "description": "Secrets by name. They are never stored and never given back.",
            "type": "object",
            "additionalProperties": content,
            "writeOnly": true,
        })
    }
}

impl ExecutionRequest {
    /// As JSON with its secrets: for the client that sends it, and for nothing else.
    ///
    /// # Errors
    ///
    /// As of `serde_json`.
    pub fn to_json_with_secrets(&self) -> serde_json::Result<zeroize::Zeroizing<String>> {
        let mut json = serde_json::to_value(self)?;
        if let (Value::Object(members), false) = (&mut json, self.secrets.is_empty()) {
            let secret = |(name, value): (&String, &SecretValue)| {
                let value = serde_json::to_value(WireString::new(value.as_bytes()))?;
                Ok((name.clone(), value))
            };
            let secrets = self.secrets.0.iter().map(secret);
            let secrets = secrets.collect::<serde_json::Result<Map<_, _>>>()?;
            members.insert("secrets".to_owned(), Value::Object(secrets));
        }
        serde_json::to_string(&json).map(zeroize::Zeroizing::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_read_and_sent_and_never_stored_or_shown() {
        let json =
            r#"{"script":"return 1","secrets":{"TOKEN":"hunter2!","RAW":{"b64":"/////w=="}}}"#;
        let request: ExecutionRequest = serde_json::from_str(json).unwrap();
        assert_eq!(request.secrets.0["RAW"].as_bytes(), b"\xff\xff\xff\xff");
        let stored = serde_json::to_string(&request).unwrap();
        for text in [stored, format!("{request:?}{request:#?}")] {
            assert!(!text.contains("hunter2") && !text.contains("////"), "{text}");
        }
        let sent = request.to_json_with_secrets().unwrap();
        assert_eq!(serde_json::from_str::<ExecutionRequest>(&sent).unwrap(), request);
    }

    #[test]
    fn request_is_strict_and_reads_back_as_written() {
        let json = serde_json::json!({
            "command": {
                "program": "cat", "args": ["-n", { "b64": "/w==" }],
                "env": { "A": "b" }, "cwd": "/tmp", "stdin": "x",
            },
            "stop_signal": "INT",
            "image": "debian",
            "limits": { "timeout_ms": 5, "cpus": 0.5 },
            "inputs": { "a.txt": "text" },
            "io": { "mode": "private" },
            "network": { "allow": ["example.org:443"] },
            "metadata": { "step": 3 },
        });
        let request: ExecutionRequest = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&request).unwrap(), json);
        for unknown in [
            r#"{"scripts":"x"}"#,
            r#"{"command":{"programme":"x"}}"#,
            r#"{"limits":{"timeout":5}}"#,
            r#"{"io":{"dir":"/etc"}}"#,
            r#"{"script":7}"#,
            r#"{"script":{"b64":"!"}}"#,
        ] {
            assert!(serde_json::from_str::<ExecutionRequest>(unknown).is_err(), "{unknown}");
        }
    }
}
